//! Tells what a landing has written from what somebody else has.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use super::kept::is_absent;
use super::lock::EXPECTED;
use super::{Checkout, Marker, Written};
use crate::landing::workspace::Workspace;
use crate::repository::cli::CliError;
use crate::repository::content::{Match, compare};
use crate::repository::fault::Fault;
use crate::worktrees::admin;

/// What a landing writes at a path.
pub(super) struct Goal {
    pub(super) kind: Kind,
    id: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    File,
    SymbolicLink,
    Submodule,
}

/// What is at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    Nothing,
    Directory,
    /// A file or symbolic link, compared with the goal.
    Content(Match),
}

/// What the landing writes, by path. Paths that it deletes are not in it.
pub(super) struct Goals<'a> {
    checkout: &'a Checkout,
    workspace: &'a Workspace,
    commit: &'a str,
    by_path: HashMap<Vec<u8>, Goal>,
}

impl<'a> Goals<'a> {
    pub(super) fn read(checkout: &'a Checkout, workspace: &'a Workspace, marker: &'a Marker) -> Result<Self, Fault> {
        let call = checkout.read(workspace).args(["diff-tree", "-r", "-z", "--raw", "--no-renames", "--no-ext-diff"]);
        let by_path = parse(&call.args([&marker.from, &marker.to]).run()?);
        Ok(Self { checkout, workspace, commit: &marker.to, by_path })
    }

    pub(super) fn of(&self, file: &Written) -> Option<&Goal> {
        self.by_path.get(&file.path)
    }

    /// Returns what is at the place of a file. `None` if a symbolic link leads there: it is somewhere else then.
    pub(super) fn look(&self, file: &Written) -> Result<Option<Found>, Fault> {
        let path = self.checkout.path_of(file);
        if self.checkout.is_through_link(file)? {
            return Ok(None);
        }
        let seen = match fs::symlink_metadata(&path) {
            Err(error) if is_absent(&error) => return Ok(Some(Found::Nothing)),
            seen => seen.map_err(Fault::at(&path))?,
        };
        if seen.is_dir() {
            return Ok(Some(Found::Directory));
        }
        let goal = self.of(file).map(|goal| (goal.kind, goal));
        let found = match goal {
            Some((Kind::SymbolicLink, goal)) if seen.is_symlink() => self.compare_link(&path, goal)?,
            Some((Kind::File, _)) if seen.is_file() && seen.len() == 0 => Match::Beginning,
            Some((Kind::File, goal)) if seen.is_file() => self.compare_file(&path, file, goal)?,
            _ => Match::Other,
        };
        Ok(Some(Found::Content(found)))
    }

    fn compare_link(&self, path: &Path, goal: &Goal) -> Result<Match, Fault> {
        let target = fs::read_link(path).map_err(Fault::at(path))?;
        let wanted = self.checkout.read(self.workspace).args(["cat-file", "blob", &goal.id]).run()?;
        Ok(if target.as_os_str().as_bytes() == wanted { Match::Whole } else { Match::Other })
    }

    fn compare_file(&self, path: &Path, file: &Written, goal: &Goal) -> Result<Match, Fault> {
        let failed = Fault::at(path);
        let open = || fs::File::open(path).map_err(&failed);
        // First backwards: a filter that writes files may have failed, as if it needs the network.
        let at = [b"--path=", file.path.as_slice()].concat();
        let hash = self.checkout.read(self.workspace).args(["hash-object", "--stdin"]).arg(OsStr::from_bytes(&at));
        match hash.input(open()?).line() {
            Ok(id) if id == goal.id => return Ok(Match::Whole),
            Ok(_) | Err(CliError::Exit { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        let expected = self.checkout.git_dir.join(EXPECTED);
        let failed = Fault::at(&expected);
        admin::ignore_missing(fs::remove_file(&expected)).map_err(&failed)?;
        let made = fs::File::options().read(true).write(true).create_new(true).open(&expected);
        let name = [self.commit.as_bytes(), b":", &file.path].concat();
        let show = self.checkout.read(self.workspace).args(["cat-file", "--filters"]).arg(OsStr::from_bytes(&name));
        let is_known = match show.output(made.map_err(&failed)?).run() {
            Ok(_) => true,
            Err(CliError::Exit { .. }) => false,
            Err(error) => return Err(error.into()),
        };
        let same = match is_known {
            true => fs::File::open(&expected).map_err(&failed).and_then(|whole| Ok((open()?, whole))),
            false => return Ok(Match::Other),
        };
        same.and_then(|(found, whole)| compare(found, whole).map_err(&failed))
    }
}

impl Checkout {
    /// Reports whether a part of the path to a file is a symbolic link, or anything else but a directory.
    fn is_through_link(&self, file: &Written) -> Result<bool, Fault> {
        let path = Path::new(OsStr::from_bytes(&file.path));
        let mut above: Vec<&Path> = path.ancestors().skip(1).filter(|dir| !dir.as_os_str().is_empty()).collect();
        above.reverse();
        for dir in above {
            let dir = self.tree.join(dir);
            match fs::symlink_metadata(&dir) {
                Ok(seen) if seen.is_dir() => {}
                Ok(_) => return Ok(true),
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
                Err(error) => return Err(Fault::at(&dir)(error)),
            }
        }
        Ok(false)
    }
}

/// Parses `git diff-tree --raw -z` and returns the new side.
fn parse(out: &[u8]) -> HashMap<Vec<u8>, Goal> {
    let one = |pair: &[&[u8]]| {
        let mut words = std::str::from_utf8(pair[0]).ok()?.split(' ');
        let (mode, id) = (words.nth(1)?, words.nth(1)?);
        let kind = match mode {
            "100644" | "100755" => Kind::File,
            "120000" => Kind::SymbolicLink,
            "160000" => Kind::Submodule,
            _ => return None,
        };
        Some((pair[1].to_vec(), Goal { kind, id: id.to_owned() }))
    };
    let fields: Vec<&[u8]> = out.split(|byte| *byte == 0).filter(|field| !field.is_empty()).collect();
    fields.chunks_exact(2).filter_map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_new_side_of_a_difference_is_parsed() {
        let found = parse(
            b":100644 100755 1a 2a M\0a b\0:100644 000000 1b 00 D\0gone\0:000000 120000 00 2c A\0l\0:000000 160000 00 2d A\0m\0",
        );
        let mut found: Vec<_> =
            found.iter().map(|(path, goal)| (path.as_slice(), goal.kind, goal.id.as_str())).collect();
        found.sort_by_key(|(path, ..)| *path);
        let link = (&b"l"[..], Kind::SymbolicLink, "2c");
        assert_eq!(found, [(&b"a b"[..], Kind::File, "2a"), link, (b"m", Kind::Submodule, "2d")]);
    }
}
