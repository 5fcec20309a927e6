//! Conflicts of a merge that has stopped, and the markers that git wrote into the files.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::cli::Call;
use super::fault::Fault;
use super::parse;
use crate::trash::raw;
use crate::worktrees::admin;
use swarm_sys::files::open_regular;

/// Length of a marker unless the attribute of the file says otherwise.
const LENGTH: usize = 7;
/// Attribute that says how long the markers in a file are.
const ATTRIBUTE: &str = "conflict-marker-size";
/// Number of bytes of a file in which markers are looked for. git does not merge larger files as text.
const BYTES_MAX: u64 = 1 << 30;

/// A path at which a merge has stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Conflict {
    pub(crate) path: Vec<u8>,
    /// Whether one side has a submodule there.
    pub(crate) is_link: bool,
    /// Length of the markers in the file.
    length: usize,
    /// Whether a side has something there. If both deleted it, there is nothing to choose.
    has_side: bool,
    /// What the merge left in the worktree; `None` if that is unknown.
    left: Option<Left>,
}

/// Content of a path in a worktree, limited to what a commit can store. Equal values mean equal content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Left {
    Nothing,
    Link(Vec<u8>),
    File {
        digest: String,
        is_executable: bool,
    },
    /// A directory, or what git cannot add.
    Other,
}

fn is_absent(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::NOENT | Errno::NOTDIR | Errno::LOOP))
}

impl Left {
    /// Returns what is at the path `name` of a worktree; nothing if it is reached through a symbolic link, as for git.
    pub(crate) fn below(tree: &Path, name: &[u8]) -> Result<Self, Fault> {
        let path = admin::without_links(tree, Path::new(OsStr::from_bytes(name)));
        path.map_or(Ok(Self::Nothing), |path| Self::at(&path).map_err(Fault::at(&path)))
    }

    fn at(path: &Path) -> io::Result<Self> {
        let meta = match fs::symlink_metadata(path) {
            // Something else is in place of a directory above it.
            Err(error) if is_absent(&error) => return Ok(Self::Nothing),
            meta => meta?,
        };
        if meta.is_symlink() {
            return Ok(Self::Link(fs::read_link(path)?.into_os_string().into_vec()));
        }
        if !meta.is_file() {
            return Ok(Self::Other);
        }
        let (mut file, mut digest) = (open_regular(OpenOptions::new().read(true), path)?, Sha256::new());
        let mut buffer = vec![0; 64 << 10];
        loop {
            match file.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => digest.update(&buffer[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        let digest = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self::File { digest, is_executable: meta.permissions().mode() & 0o100 != 0 })
    }
}

/// Which markers a file contains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Markers {
    pub(crate) begin: bool,
    pub(crate) end: bool,
}

/// Returns the conflicts in the index. `read` returns a reading call in the worktree whose git directory is `git_dir`.
pub(crate) fn conflicts<'a>(read: &impl Fn() -> Call<'a>, git_dir: &Path) -> Result<Vec<Conflict>, Fault> {
    let listed = parse::index(&read().args(["ls-files", "--unmerged", "-z"]).run()?);
    let is_link = |path: &[u8]| listed.iter().any(|entry| entry.mode == "160000" && entry.path == path);
    let mut paths: Vec<Vec<u8>> = listed.iter().map(|entry| entry.path.clone()).collect();
    paths.dedup();
    if paths.is_empty() {
        return Ok(Vec::new());
    }
    let ask = read().args(["check-attr", "-z", "--stdin", ATTRIBUTE]);
    let said = raw::output_with_input(ask, git_dir, &[paths.join(&0).as_slice(), b"\0"].concat())?;
    let values: Vec<&[u8]> = said.split(|byte| *byte == 0).skip(2).step_by(3).collect();
    let length = |value: Option<&&[u8]>| {
        let text = String::from_utf8_lossy(value.copied().unwrap_or_default());
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        text[..digits].parse::<usize>().ok().filter(|length| *length > 0).unwrap_or(LENGTH)
    };
    let found = paths.into_iter().enumerate();
    let conflict = |(number, path): (usize, Vec<u8>)| {
        let (is_link, length) = (is_link(&path), length(values.get(number)));
        let has_side = listed.iter().any(|entry| entry.path == path && entry.stage != 1);
        Conflict { path, is_link, length, has_side, left: None }
    };
    Ok(found.map(conflict).collect())
}

/// Returns the conflicts in the index of a merge that has just stopped, with what it left of each in the worktree `tree`.
pub(crate) fn stopped<'a>(read: &impl Fn() -> Call<'a>, git_dir: &Path, tree: &Path) -> Result<Vec<Conflict>, Fault> {
    let mut found = conflicts(read, git_dir)?;
    for conflict in &mut found {
        conflict.left = Some(Left::below(tree, &conflict.path)?);
    }
    Ok(found)
}

/// Returns the first conflict of a stopped merge that nobody has touched: git still knows it as unmerged, and its file is
/// as the merge has left it. Not every kind has markers: files without text, links, and files that one side deleted have
/// none. `open` are the conflicts that are left.
pub(crate) fn untouched<'a>(
    stopped: &'a [Conflict],
    open: &[Conflict],
    tree: &Path,
) -> Result<Option<&'a Conflict>, Fault> {
    for conflict in stopped.iter().filter(|conflict| conflict.has_side && !conflict.is_link) {
        let Some(left) = conflict.left.as_ref().filter(|_| open.iter().any(|open| open.path == conflict.path)) else {
            continue;
        };
        if *left == Left::below(tree, &conflict.path)? {
            return Ok(Some(conflict));
        }
    }
    Ok(None)
}

impl Conflict {
    pub(crate) fn left(&self) -> Option<&Left> {
        self.left.as_ref()
    }

    /// Returns the conflict of a merge that had left this.
    pub(crate) fn with(self, left: Option<Left>) -> Self {
        Self { left, ..self }
    }

    /// Returns its path below `tree`. `None` if a symbolic link leads there.
    pub(crate) fn place(&self, tree: &Path) -> Option<PathBuf> {
        admin::without_links(tree, Path::new(OsStr::from_bytes(&self.path)))
    }

    #[cfg(test)]
    pub(crate) fn at(path: &str) -> Self {
        Self { path: path.as_bytes().to_vec(), is_link: false, length: LENGTH, has_side: true, left: None }
    }

    pub(crate) fn shown(&self) -> String {
        String::from_utf8_lossy(&self.path).into_owned()
    }

    /// Returns the markers in the file below `tree`. Nothing but a regular file has any: a pipe would block, and a link may
    /// lead to a device without an end.
    pub(crate) fn markers(&self, tree: &Path) -> Markers {
        let Some(path) = self.place(tree) else { return Markers::default() };
        let found = open_regular(OpenOptions::new().read(true), &path).and_then(|file| self.find(file));
        found.unwrap_or_default()
    }

    fn find(&self, file: File) -> io::Result<Markers> {
        let (mut reader, mut found) = (BufReader::new(file.take(BYTES_MAX)), Markers::default());
        let (length, mut line) = (self.length, Vec::new());
        let most = u64::try_from(length).map_or(u64::MAX, |length| length.saturating_add(1));
        loop {
            line.clear();
            if reader.by_ref().take(most).read_until(b'\n', &mut line)? == 0 {
                return Ok(found);
            }
            let is = |mark: u8| {
                line.len() > length && line[length] == b' ' && line[..length].iter().all(|byte| *byte == mark)
            };
            found.begin |= is(b'<');
            found.end |= is(b'>');
            if !line.ends_with(b"\n") {
                reader.skip_until(b'\n')?;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lines_with_markers_of_the_right_length_count() {
        let dir = tempfile::tempdir().expect("a directory");
        let markers = |text: &str, length: usize| {
            fs::write(dir.path().join("f"), text).expect("written");
            let found = Conflict { length, ..Conflict::at("f") }.markers(dir.path());
            (found.begin, found.end)
        };
        assert_eq!(markers("a\n<<<<<<< HEAD\nb\n=======\nc\n>>>>>>> topic\n", 7), (true, true));
        assert_eq!(markers("<<<<<<< HEAD\r\n", 7), (true, false));
        assert_eq!(markers("a\n>>>>>>> topic", 7), (false, true));
        let long = "x".repeat(100_000);
        assert_eq!(
            markers(&format!("{long}\n{long}<<<<<<< a\n<<<<<<<\n<<<<<<\n <<<<<<< a\n<<<<<<<< a\n"), 7),
            (false, false)
        );
        assert_eq!(markers("<<< a\n<<<<<<< a\n", 3), (true, false));
        assert_eq!(markers("<<<<<<< a\n", 3), (false, false));
        assert_eq!(markers("<<<<<<< a\n", usize::MAX), (false, false));
    }

    #[test]
    fn what_is_at_a_path_is_compared_by_content() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = |name: &str| dir.path().join(name);
        let left = |name: &str| Left::at(&path(name)).expect("read");
        fs::write(path("f"), "one").expect("written");
        fs::write(path("same"), "one").expect("written");
        fs::write(path("other"), "two").expect("written");
        for (name, to) in [("link", "f"), ("loop", "loop"), ("link2", "f")] {
            std::os::unix::fs::symlink(to, path(name)).expect("linked");
        }
        assert_eq!((left("f"), left("link"), left("")), (left("same"), left("link2"), Left::Other));
        assert!(left("f") != left("other") && left("f") != left("link") && left("loop") != left("link"));
        fs::set_permissions(path("same"), fs::Permissions::from_mode(0o755)).expect("changed");
        assert_ne!(left("f"), left("same"));
        for absent in ["absent", "absent/f", "f/below", "loop/below"] {
            assert_eq!(left(absent), Left::Nothing, "{absent}");
        }
    }

    #[test]
    fn nothing_but_a_regular_file_is_read() {
        let dir = tempfile::tempdir().expect("a directory");
        nix::unistd::mkfifo(&dir.path().join("pipe"), nix::sys::stat::Mode::S_IRWXU).expect("made");
        std::os::unix::fs::symlink("/dev/zero", dir.path().join("zero")).expect("linked");
        for name in ["pipe", "zero", "", "absent"] {
            assert_eq!(Conflict::at(name).markers(dir.path()), Markers::default(), "{name}");
        }
    }
}
