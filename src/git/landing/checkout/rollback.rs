//! Rolls the files of an interrupted landing back, or forward if their new index was in place already.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use super::{Checkout, FileStamp, Marker, RESTORE, Written};
use crate::landing::workspace::Workspace;
use crate::repository::cli::CliError;
use crate::repository::fault::Fault;
use crate::worktrees::admin;

impl Checkout {
    /// Restores the files that an interrupted landing wrote, if the index is still the old one. If it is the new one,
    /// completes the files, of which a power cut may have taken some.
    pub(super) fn restore(&self, workspace: &Workspace, marker: &Marker) -> Result<(), Fault> {
        let index = match self.read(workspace).args(["diff-index", "--cached", "-z", "--name-only", &marker.to]).run() {
            // The commit was pruned long after the landing, so only the user can judge the files.
            Err(CliError::Exit { .. }) => return Ok(()),
            index => index?,
        };
        let differs = |path: &[u8]| index.split(|byte| *byte == 0).any(|other| other == path);
        match self.files.iter().any(|file| differs(&file.path)) {
            true => self.roll_back(workspace, marker),
            false => self.roll_forward(workspace, marker),
        }
    }

    fn roll_back(&self, workspace: &Workspace, marker: &Marker) -> Result<(), Fault> {
        let mut old = Vec::new();
        for file in self.files.iter().filter(|file| !file.is_somebodys()) {
            let path = self.path_of(file);
            if FileStamp::at(&path) == file.before || !self.is_ours(workspace, marker, file)? {
                continue;
            }
            admin::ignore_missing(fs::remove_file(&path)).map_err(Fault::at(&path))?;
            match file.before {
                Some(_) => old.push(file.path.as_slice()),
                None => remove_empty(path.parent(), &self.tree),
            }
        }
        for link in self.files.iter().filter(|file| file.was_link) {
            // The directory was empty; otherwise the landing would not have written anything.
            let _ = fs::create_dir(self.path_of(link));
        }
        self.write_from_index(workspace, &old)
    }

    fn roll_forward(&self, workspace: &Workspace, marker: &Marker) -> Result<(), Fault> {
        let mut new = Vec::new();
        for file in self.files.iter().filter(|file| !file.is_somebodys() && !file.was_link) {
            let path = self.path_of(file);
            let wanted = self.content(workspace, &marker.to, file)?;
            let is_done = match found_at(&path)? {
                Found::Nothing => wanted.is_none(),
                Found::Content(found) => wanted.as_ref() == Some(&found),
                Found::Directory => true,
            };
            if is_done || !self.is_ours(workspace, marker, file)? {
                continue;
            }
            admin::ignore_missing(fs::remove_file(&path)).map_err(Fault::at(&path))?;
            match wanted {
                Some(_) => new.push(file.path.as_slice()),
                None => remove_empty(path.parent(), &self.tree),
            }
        }
        self.write_from_index(workspace, &new)
    }

    /// Writes files as the index has them.
    fn write_from_index(&self, workspace: &Workspace, paths: &[&[u8]]) -> Result<(), Fault> {
        if paths.is_empty() {
            return Ok(());
        }
        let list = self.git_dir.join(RESTORE);
        let failed = Fault::at(&list);
        fs::write(&list, paths.join(&0)).map_err(&failed)?;
        let input = fs::File::open(&list).map_err(&failed)?;
        self.write(workspace).args(["checkout-index", "-z", "--stdin"]).input(input).run()?;
        // The files have new times, so refresh the index.
        admin::copy_index(&self.git_dir.join("index"), &list).map_err(&failed)?;
        let refresh = self.write(workspace).env("GIT_INDEX_FILE", &list);
        let _ = refresh.args(["update-index", "-q", "--refresh"]).run();
        let index = self.git_dir.join("index");
        fs::rename(&list, &index).map_err(Fault::at(&index))
    }

    fn path_of(&self, file: &Written) -> PathBuf {
        self.tree.join(OsStr::from_bytes(&file.path))
    }

    /// Returns what a checkout of the commit writes to the file; `None` if the commit does not have it.
    fn content(&self, workspace: &Workspace, commit: &str, file: &Written) -> Result<Option<Vec<u8>>, Fault> {
        let name = [commit.as_bytes(), b":", &file.path].concat();
        match self.read(workspace).args(["cat-file", "--filters"]).arg(OsStr::from_bytes(&name)).run() {
            Ok(content) => Ok(Some(content)),
            Err(CliError::Exit { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Reports whether the file's content is a beginning of what the landing wrote or removed.
    fn is_ours(&self, workspace: &Workspace, marker: &Marker, file: &Written) -> Result<bool, Fault> {
        let found = match found_at(&self.path_of(file))? {
            Found::Directory => return Ok(false),
            // git removed it in order to write it again.
            Found::Nothing => return Ok(true),
            Found::Content(found) => found,
        };
        for commit in [&marker.to, &marker.from] {
            if self.content(workspace, commit, file)?.is_some_and(|whole| is_beginning(&found, &whole)) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl Written {
    /// Reports whether a file of the user was in the way, which the landing did not write.
    fn is_somebodys(&self) -> bool {
        self.is_new && self.before.is_some()
    }
}

/// What is at a path.
enum Found {
    Nothing,
    Directory,
    /// Content of a file, or target of a symbolic link.
    Content(Vec<u8>),
}

fn found_at(path: &Path) -> Result<Found, Fault> {
    let content = match fs::symlink_metadata(path) {
        Ok(seen) if seen.is_dir() => return Ok(Found::Directory),
        Ok(seen) if seen.is_symlink() => fs::read_link(path).map(|to| to.as_os_str().as_bytes().to_vec()),
        Ok(_) => fs::read(path),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(Found::Nothing);
        }
        Err(error) => Err(error),
    };
    content.map(Found::Content).map_err(Fault::at(path))
}

/// Reports whether `found` is what was written of `whole` before a kill or a power cut: a beginning of it, perhaps
/// followed by zeros whose data did not reach the disk.
pub(super) fn is_beginning(found: &[u8], whole: &[u8]) -> bool {
    let same = found.iter().zip(whole).take_while(|(found, whole)| found == whole).count();
    found.len() <= whole.len() && found[same..].iter().all(|byte| *byte == 0)
}

/// Removes directories that the landing created, from `dir` upwards, as long as they are empty.
fn remove_empty(dir: Option<&Path>, tree: &Path) {
    let mut dir = dir;
    while let Some(path) = dir.filter(|path| *path != tree && path.starts_with(tree)) {
        if fs::remove_dir(path).is_err() {
            return;
        }
        dir = path.parent();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_was_written_in_part_is_known_and_an_edited_one_is_not() {
        let whole = b"one\ntwo\n";
        for (found, is) in [
            (&b""[..], true),
            (b"one\n", true),
            (b"one\ntwo\n", true),
            (b"\0\0\0\0", true),
            (b"one\n\0\0\0\0", true),
            (b"one\n\0\0\0\0\0", false),
            (b"one\n\0x", false),
            (b"ONE\n", false),
            (b"one\ntwo\nthree\n", false),
        ] {
            assert_eq!(is_beginning(found, whole), is, "{found:?}");
        }
    }
}
