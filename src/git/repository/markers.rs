//! Conflicts of a merge that has stopped, and the markers that git wrote into the files.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use super::cli::Call;
use super::fault::Fault;
use super::parse;
use crate::trash::raw;
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
        Conflict { path, is_link, length }
    };
    Ok(found.map(conflict).collect())
}

impl Conflict {
    #[cfg(test)]
    pub(crate) fn at(path: &str) -> Self {
        Self { path: path.as_bytes().to_vec(), is_link: false, length: LENGTH }
    }

    pub(crate) fn shown(&self) -> String {
        String::from_utf8_lossy(&self.path).into_owned()
    }

    /// Returns the markers in the file below `tree`. Nothing but a regular file has any: a pipe would block, and a link may
    /// lead to a device without an end.
    pub(crate) fn markers(&self, tree: &Path) -> Markers {
        let path = tree.join(OsStr::from_bytes(&self.path));
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
    use std::fs;

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
    fn nothing_but_a_regular_file_is_read() {
        let dir = tempfile::tempdir().expect("a directory");
        nix::unistd::mkfifo(&dir.path().join("pipe"), nix::sys::stat::Mode::S_IRWXU).expect("made");
        std::os::unix::fs::symlink("/dev/zero", dir.path().join("zero")).expect("linked");
        for name in ["pipe", "zero", "", "absent"] {
            assert_eq!(Conflict::at(name).markers(dir.path()), Markers::default(), "{name}");
        }
    }
}
