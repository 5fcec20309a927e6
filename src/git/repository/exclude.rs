//! Adds patterns to the repository's `info/exclude`, so that git ignores files of this program.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::Duration;

use super::lock::{self, LOCK_WAIT_MS_MAX};
use super::writer;
use crate::worktrees::{admin, record};
use swarm_sys::files::{Durability, Mode, replace};

/// Adds the directory `name` at the root to the repository's `info/exclude`.
///
/// # Errors
/// Fails if the file cannot be read or written.
pub fn exclude(root: &Path, name: &str) -> io::Result<()> {
    add(root, &[[pattern(Path::new(name)).as_slice(), b"/"].concat()], None)
}

/// Adds files in the directory `below` at the root to the repository's `info/exclude`; `*` in a name stands for any text.
/// Other files there stay visible to git. Removes the pattern for the whole directory, which earlier versions added.
///
/// # Errors
/// Fails if the file cannot be read or written.
pub fn exclude_files(root: &Path, below: &Path, names: &[&str]) -> io::Result<()> {
    let patterns: Vec<_> =
        names.iter().map(|name| [pattern(below).as_slice(), b"/", name.as_bytes()].concat()).collect();
    add(root, &patterns, Some(&[b"/".as_slice(), below.as_os_str().as_bytes(), b"/"].concat()))
}

/// Adds files and directories at the root to the repository's `info/exclude`; `*` in a name stands for any text.
///
/// # Errors
/// Fails if the file cannot be read or written.
pub fn exclude_at_root(root: &Path, names: &[&str]) -> io::Result<()> {
    let patterns: Vec<_> = names.iter().map(|name| [b"/".as_slice(), name.as_bytes()].concat()).collect();
    add(root, &patterns, None)
}

/// Adds any path, such as a symbolic link, to the repository's `info/exclude`.
///
/// # Errors
/// Fails if the file cannot be read or written.
pub(crate) fn exclude_path(root: &Path, name: &str) -> io::Result<()> {
    add(root, &[pattern(Path::new(name.trim_end_matches('/')))], None)
}

/// Adds these paths to the repository's `info/exclude`.
///
/// # Errors
/// Fails if the file cannot be read or written.
pub(crate) fn exclude_paths<'a>(root: &Path, names: impl Iterator<Item = &'a str>) -> io::Result<()> {
    let patterns: Vec<_> = names.map(|name| pattern(Path::new(name))).collect();
    add(root, &patterns, None)
}

/// Returns the pattern for exactly this path.
fn pattern(path: &Path) -> Vec<u8> {
    let mut pattern = vec![b'/'];
    for byte in path.as_os_str().as_bytes() {
        match byte {
            // A pattern is one line.
            b'\n' => pattern.push(b'?'),
            b'\\' | b'*' | b'?' | b'[' | b' ' => pattern.extend([b'\\', *byte]),
            _ => pattern.push(*byte),
        }
    }
    pattern
}

/// Adds the patterns that are missing. The file may be in any encoding.
fn add(root: &Path, patterns: &[Vec<u8>], obsolete: Option<&[u8]>) -> io::Result<()> {
    let common = admin::common_dir(root)?;
    let (info, path) = (common.join("info"), common.join("info/exclude"));
    let read = || Ok::<_, io::Error>(admin::ignore_missing(record::read_linked(&path))?.unwrap_or_default());
    let is_obsolete = |line: &[u8]| obsolete.is_some_and(|obsolete| line.trim_ascii() == obsolete);
    let mut known = read()?;
    if known.split(|byte| *byte == b'\n').any(is_obsolete) {
        // Of two processes that remove it, neither may lose what the other one adds.
        let wait = Duration::from_millis(LOCK_WAIT_MS_MAX);
        let _lock = lock::acquire(&common, wait).map_err(|error| io::Error::other(error.to_string()))?;
        known = read()?
            .split_inclusive(|byte| *byte == b'\n')
            .filter(|line| !is_obsolete(line))
            .flatten()
            .copied()
            .collect();
        // The file may be a link to one that the user shares between repositories.
        let target = path.canonicalize()?;
        let temporary = target.with_file_name(format!("exclude.tmp.{}", writer::own_next()));
        let mode = Mode::KeepOrDefault { add: 0 };
        replace(&temporary, &target, &known, mode, Durability::Synced)?;
    }
    let is_same = |line: &[u8], pattern: &[u8]| line == pattern || line.trim_ascii() == pattern;
    let is_known = |pattern: &[u8]| known.split(|byte| *byte == b'\n').any(|line| is_same(line, pattern));
    let new: Vec<&[u8]> = patterns.iter().map(Vec::as_slice).filter(|pattern| !is_known(pattern)).collect();
    if new.is_empty() {
        return Ok(());
    }
    fs::create_dir_all(&info)?;
    let gap: &[u8] = if known.is_empty() || known.ends_with(b"\n") { b"" } else { b"\n" };
    let mut file = fs::OpenOptions::new().append(true).create(true).open(&path)?;
    file.write_all(&[gap, &new.join(&b'\n'), b"\n"].concat())
}

#[cfg(test)]
mod tests {
    use swarm_model::{SESSION_FILES, SESSION_FOLDER};

    use super::*;
    use crate::fixture::{Fixture, text};

    fn write(fix: &Fixture, paths: &[&str]) {
        for path in paths {
            fs::create_dir_all(fix.repo.join(path).parent().expect("a parent")).expect("made");
            fs::write(fix.repo.join(path), "x").expect("written");
        }
    }

    fn untracked(fix: &Fixture) -> String {
        text(&fix.git(&["status", "--porcelain", "-uall"]))
    }

    #[test]
    fn files_beside_those_of_a_session_stay_visible() {
        let fix = Fixture::new();
        write(&fix, &[".agent/rules/old.md"]);
        fix.git(&["add", "-A"]);
        fix.git(&["commit", "-q", "-m", "rules"]);
        exclude_files(&fix.repo, Path::new(SESSION_FOLDER), &SESSION_FILES).expect("excluded");
        write(&fix, &[".agent/state.json", ".agent/state.json.malformed.2", ".agent/.heartbeat.json.tmp-1-2"]);
        assert_eq!(untracked(&fix), "");
        write(&fix, &[".agent/rules/new.md", ".agent/notes", "sub/.agent/state.json"]);
        assert_eq!(untracked(&fix), "?? .agent/notes\n?? .agent/rules/new.md\n?? sub/.agent/state.json");
    }

    #[test]
    fn the_pattern_for_the_whole_directory_goes_and_other_lines_stay_as_they_are() {
        let fix = Fixture::new();
        let path = fix.repo.join(".git/info/exclude");
        fs::create_dir_all(path.parent().expect("a parent")).expect("made");
        fs::write(&path, b"# caf\xe9\n/.agent/\n*.swp").expect("written");
        for _ in 0..2 {
            exclude_files(&fix.repo, Path::new(SESSION_FOLDER), &["state.json", ".*.tmp-*"]).expect("excluded");
            let found = fs::read(&path).expect("read");
            assert_eq!(found, b"# caf\xe9\n*.swp\n/.agent/state.json\n/.agent/.*.tmp-*\n");
        }
    }

    #[test]
    fn a_pattern_for_an_odd_path_matches_nothing_else() {
        let fix = Fixture::new();
        write(&fix, &["a b [1]*/x", "a b 1z/x", "c\nd/x", "e"]);
        exclude(&fix.repo, "a b [1]*").expect("excluded");
        exclude_files(&fix.repo, Path::new("c\nd"), &["x"]).expect("excluded");
        assert_eq!(untracked(&fix), "?? \"a b 1z/x\"\n?? e");
        exclude_path(&fix.repo, "e/").expect("excluded");
        assert_eq!(untracked(&fix), "?? \"a b 1z/x\"");
    }
}
