//! State of a worktree that git trees cannot represent: index flags, exact modes, empty
//! directories, sparse checkout, and files of an unfinished merge. It is saved, and compared,
//! as one object.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Component, Path, PathBuf};

use crate::repository::parse::{self, Entry};
use crate::worktrees::{copies, owner, record};
use swarm_sys::files;

/// Files in a worktree's entry that are part of its state. Those of a rebase, a sequence of
/// picks or a bisect are not saved, because these operations are not resumed.
const STATE: [&str; 10] = [
    "MERGE_HEAD",
    "MERGE_MSG",
    "MERGE_MODE",
    "MERGE_AUTOSTASH",
    "CHERRY_PICK_HEAD",
    "REVERT_HEAD",
    SETTINGS,
    "info/sparse-checkout",
    owner::BASE,
    owner::BRANCH,
];
const SETTINGS: &str = "config.worktree";
const MODE: u32 = 0o7777;

/// State that trees cannot represent. Each list is sorted by path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct WorktreeMetadata {
    /// Entries of `add --intent-to-add`, with the mode.
    pub(crate) intended: Vec<(String, Vec<u8>)>,
    pub(crate) assumed: Vec<Vec<u8>>,
    pub(crate) skipped: Vec<Vec<u8>>,
    /// Paths in `skipped` that are missing in the directory.
    pub(crate) absent: Vec<Vec<u8>>,
    /// Files whose mode is neither 644 nor 755 as git records it.
    pub(crate) modes: Vec<(u32, Vec<u8>)>,
    /// Directories whose mode is not 755.
    pub(crate) directories: Vec<(u32, Vec<u8>)>,
    /// Directories without a file, parents first.
    pub(crate) empty: Vec<(u32, Vec<u8>)>,
    /// Ignored files that are saved because they were copied from the base checkout and changed.
    pub(crate) copied: Vec<Vec<u8>>,
    /// Files from the worktree's entry.
    pub(crate) state: Vec<(String, Vec<u8>)>,
}

/// Special entries of an index.
pub(crate) struct Flags {
    pub(crate) intended: Vec<(String, Vec<u8>)>,
    pub(crate) assumed: Vec<Vec<u8>>,
    pub(crate) skipped: Vec<Vec<u8>>,
}

impl WorktreeMetadata {
    /// Reads the state of a worktree. `entries` is everything in it that is saved.
    pub(crate) fn of(tree: &Path, record: Option<&Path>, flags: Flags, entries: &[Entry]) -> io::Result<Self> {
        let mut absent = flags.skipped.clone();
        absent.retain(|path| fs::symlink_metadata(tree.join(OsStr::from_bytes(path))).is_err());
        let mut found = Self {
            intended: flags.intended,
            assumed: flags.assumed,
            skipped: flags.skipped,
            absent,
            ..Self::default()
        };
        let mut known = BTreeSet::from([PathBuf::new()]);
        let mut modules = BTreeSet::new();
        for entry in entries {
            let path = Path::new(OsStr::from_bytes(&entry.path));
            let Ok(meta) = fs::symlink_metadata(tree.join(path)) else { continue };
            if entry.mode == "160000" {
                // The content of a submodule belongs to the submodule.
                modules.insert(path.to_owned());
            }
            known.extend(path.ancestors().skip(1).map(Path::to_owned));
            let mode = meta.permissions().mode() & MODE;
            if meta.is_file() && mode != usual(&entry.mode) {
                found.modes.push((mode, entry.path.clone()));
            }
        }
        for dir in &known {
            let meta = fs::symlink_metadata(tree.join(dir))?;
            let mode = meta.permissions().mode() & MODE;
            if mode != 0o755 {
                found.directories.push((mode, dir.as_os_str().as_bytes().to_vec()));
            }
            found.find_empty(tree, dir, &|path| known.contains(path) || modules.contains(path))?;
        }
        if let Some(record) = record {
            found.state = state(record)?;
            found.copied = copies::changed(tree, record);
        }
        Ok(found)
    }

    /// Records the directories in `dir` that contain nothing but directories.
    fn find_empty(&mut self, tree: &Path, dir: &Path, is_known: &dyn Fn(&Path) -> bool) -> io::Result<()> {
        let mut below = Vec::new();
        for file in files::list(&tree.join(dir))? {
            let path = dir.join(file.file_name());
            if file.file_type()?.is_dir() && file.file_name() != ".git" && !is_known(&path) {
                below.push(path);
            }
        }
        below.sort();
        for path in below {
            let mut inner = Vec::new();
            if !has_file(tree, &path, &mut inner)? {
                self.empty.extend(inner);
            }
        }
        Ok(())
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut text = Vec::new();
        let mut put = |kind: &str, note: &str, path: &[u8]| {
            // No path contains a NUL; a state file with one was not written by git.
            if !path.contains(&0) {
                text.extend_from_slice(format!("{kind} {note} ").as_bytes());
                text.extend_from_slice(path);
                text.push(0);
            }
        };
        self.intended.iter().for_each(|(mode, path)| put("intended", mode, path));
        self.assumed.iter().for_each(|path| put("assumed", "-", path));
        self.skipped.iter().for_each(|path| put("skipped", "-", path));
        self.absent.iter().for_each(|path| put("absent", "-", path));
        self.copied.iter().for_each(|path| put("copied", "-", path));
        self.modes.iter().for_each(|(mode, path)| put("mode", &format!("{mode:o}"), path));
        self.directories.iter().for_each(|(mode, path)| put("directory", &format!("{mode:o}"), path));
        self.empty.iter().for_each(|(mode, path)| put("empty", &format!("{mode:o}"), path));
        self.state.iter().for_each(|(name, content)| put("state", name, content));
        text
    }

    /// Parses the encoded form. Skips unknown kinds, which a newer program may have saved.
    pub(crate) fn decode(text: &[u8]) -> Self {
        let mut read = Self::default();
        for record in text.split(|byte| *byte == 0) {
            let mut parts = record.splitn(3, |byte| *byte == b' ');
            let (Some(kind), Some(note), Some(path)) = (parts.next(), parts.next(), parts.next()) else { continue };
            let note = String::from_utf8_lossy(note).into_owned();
            let mode = u32::from_str_radix(&note, 8).unwrap_or(0o600) & MODE;
            let path = path.to_vec();
            if kind != b"state" && !is_inside(&path) {
                continue;
            }
            match kind {
                b"intended" => read.intended.push((note, path)),
                b"assumed" => read.assumed.push(path),
                b"skipped" => read.skipped.push(path),
                b"absent" => read.absent.push(path),
                b"copied" => read.copied.push(path),
                b"mode" => read.modes.push((mode, path)),
                b"directory" => read.directories.push((mode, path)),
                b"empty" => read.empty.push((mode, path)),
                b"state" if note == SETTINGS => read.state.push((note, sparse_settings(&path))),
                b"state" if STATE.contains(&note.as_str()) => read.state.push((note, path)),
                _ => {}
            }
        }
        read
    }

    /// Creates the empty directories and sets all modes.
    pub(crate) fn apply(&self, tree: &Path, entries: &[Entry]) -> io::Result<()> {
        let at = |path: &[u8]| tree.join(OsStr::from_bytes(path));
        let set = |path: &Path, mode: u32| fs::set_permissions(path, fs::Permissions::from_mode(mode));
        let mut dirs = BTreeSet::from([PathBuf::new()]);
        for entry in entries {
            let path = Path::new(OsStr::from_bytes(&entry.path));
            let Ok(meta) = fs::symlink_metadata(tree.join(path)) else { continue };
            dirs.extend(path.ancestors().skip(1).map(Path::to_owned));
            if meta.is_file() {
                set(&tree.join(path), usual(&entry.mode))?;
            }
        }
        for (mode, path) in &self.modes {
            set(&at(path), *mode)?;
        }
        for (_, path) in &self.empty {
            fs::create_dir_all(at(path))?;
        }
        // Innermost first, because a directory's own mode may deny us access to its content.
        for (mode, path) in self.empty.iter().rev() {
            set(&at(path), *mode)?;
        }
        let known: HashMap<&[u8], u32> = self.directories.iter().map(|(mode, path)| (path.as_slice(), *mode)).collect();
        for dir in dirs.iter().rev() {
            let mode = known.get(dir.as_os_str().as_bytes()).copied().unwrap_or(0o755);
            set(&tree.join(dir), mode)?;
        }
        Ok(())
    }
}

/// Returns the first record that only one of the two encodings contains.
pub(crate) fn difference(saved: &[u8], found: &[u8]) -> String {
    let records = |text: &[u8]| text.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect::<BTreeSet<_>>();
    let (saved, found) = (records(saved), records(found));
    let first = saved.symmetric_difference(&found).next().map(|record| String::from_utf8_lossy(record).into_owned());
    first.unwrap_or_else(|| "the order of its metadata".to_owned())
}

/// Reports whether a path is relative and does not leave the worktree.
fn is_inside(path: &[u8]) -> bool {
    Path::new(OsStr::from_bytes(path)).components().all(|part| matches!(part, Component::Normal(_)))
}

/// Extracts the sparse checkout keys from a worktree's `config.worktree`. Drops all other keys,
/// because a setting may name a program to run.
fn sparse_settings(text: &[u8]) -> Vec<u8> {
    const KEYS: [(&str, &str); 3] = [("core", "sparseCheckout"), ("core", "sparseCheckoutCone"), ("index", "sparse")];
    let text = String::from_utf8_lossy(text);
    let (mut section, mut kept) = (String::new(), String::new());
    for line in text.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            section = name.trim().to_ascii_lowercase();
        }
        let Some((key, value)) = line.split_once('=') else { continue };
        let known = KEYS.iter().find(|(of, name)| *of == section && key.trim().eq_ignore_ascii_case(name));
        if let (Some((section, name)), "true" | "false") = (known, value.trim()) {
            let written = write!(kept, "[{section}]\n\t{name} = {}\n", value.trim());
            written.expect("writing to a string cannot fail");
        }
    }
    kept.into_bytes()
}

/// Returns the file mode that git sets for an entry mode.
fn usual(mode: &str) -> u32 {
    if mode == "100755" { 0o755 } else { 0o644 }
}

fn has_file(tree: &Path, dir: &Path, dirs: &mut Vec<(u32, Vec<u8>)>) -> io::Result<bool> {
    let mode = fs::symlink_metadata(tree.join(dir))?.permissions().mode() & MODE;
    dirs.push((mode, dir.as_os_str().as_bytes().to_vec()));
    let mut below = Vec::new();
    for file in files::list(&tree.join(dir))? {
        if !file.file_type()?.is_dir() {
            return Ok(true);
        }
        below.push(dir.join(file.file_name()));
    }
    below.sort();
    for dir in below {
        if has_file(tree, &dir, dirs)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn state(dir: &Path) -> io::Result<Vec<(String, Vec<u8>)>> {
    let mut found = Vec::new();
    for name in STATE {
        match record::read(&dir.join(name)) {
            Ok(content) if name == SETTINGS => found.push((name.to_owned(), sparse_settings(&content))),
            Ok(content) => found.push((name.to_owned(), content)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// Writes the saved state files into an entry, and deletes those that a new entry has and the save lacks.
pub(crate) fn write_state(dir: &Path, state: &[(String, Vec<u8>)]) -> io::Result<()> {
    for name in STATE {
        let path = dir.join(name);
        match state.iter().find(|(known, _)| known == name) {
            Some((_, content)) => {
                fs::create_dir_all(path.parent().unwrap_or(dir))?;
                record::write(&path, content)?;
            }
            None => drop(crate::worktrees::admin::ignore_missing(fs::remove_file(path))?),
        }
    }
    Ok(())
}

/// Returns the intent-to-add entries in the output of `ls-files --debug -s -z`: each entry is
/// followed by five lines, the last of which has its flags.
pub(crate) fn intended(out: &[u8]) -> Vec<(String, Vec<u8>)> {
    const INTENT: u32 = 1 << 29;
    let mut found = Vec::new();
    let mut rest = out;
    while let Some(end) = rest.iter().position(|byte| *byte == 0) {
        let entry = parse::index(&rest[..end]);
        rest = &rest[end + 1..];
        let mut lines = rest.splitn(6, |byte| *byte == b'\n');
        let Some(last) = lines.nth(4) else { break };
        let flags = String::from_utf8_lossy(last);
        let flags = flags.rsplit_once("flags: ").and_then(|(_, hex)| u32::from_str_radix(hex.trim(), 16).ok());
        if flags.is_some_and(|flags| flags & INTENT != 0) {
            found.extend(entry.into_iter().map(|entry| (entry.mode, entry.path)));
        }
        rest = lines.next().unwrap_or_default();
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_survives_encoding() {
        let odd = b"a\n\xff b".to_vec();
        let all = WorktreeMetadata {
            intended: vec![("100755".to_owned(), odd.clone())],
            assumed: vec![odd.clone(), b" ".to_vec()],
            skipped: vec![b"s".to_vec()],
            absent: vec![b"s".to_vec()],
            modes: vec![(0o600, odd.clone()), (0o4711, b"x".to_vec())],
            directories: vec![(0o700, Vec::new())],
            empty: vec![(0o755, odd)],
            copied: vec![b".env".to_vec()],
            state: vec![("MERGE_MSG".to_owned(), b"two\nlines \n".to_vec())],
        };
        assert_eq!(WorktreeMetadata::decode(&all.encode()), all);
        assert_eq!(WorktreeMetadata::decode(b""), WorktreeMetadata::default());
        let foreign =
            b"later - x\0mode 777 ../x\0empty 700 /x\0state ../../config x\0state HEAD x\0mode\0skipped - y\0";
        let read = WorktreeMetadata { skipped: vec![b"y".to_vec()], ..WorktreeMetadata::default() };
        assert_eq!(WorktreeMetadata::decode(foreign), read, "nothing else may be written into the entry");
    }

    #[test]
    fn only_sparse_checkout_settings_are_kept() {
        let text = b"[core]\n\tsparseCheckout = true\n\tfsmonitor = evil\n[index]\n\tsparse = false\n[alias]\n\tsparse = true\n";
        let kept = "[core]\n\tsparseCheckout = true\n[index]\n\tsparse = false\n";
        assert_eq!(String::from_utf8(sparse_settings(text)).unwrap(), kept);
        assert_eq!(sparse_settings(kept.as_bytes()), kept.as_bytes());
    }

    #[test]
    fn intent_to_add_entries_are_recognized_by_their_flags() {
        let rest = "  ctime: 0:0\n  mtime: 0:0\n  dev: 0\tino: 0\n  uid: 0\tgid: 0\n";
        let id = "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391";
        let text = format!(
            "100644 {id} 0\tplain\0{rest}  size: 2\tflags: 8000\n100755 {id} 0\tnew\nline\0{rest}  size: 0\tflags: 20004000\n"
        );
        assert_eq!(intended(text.as_bytes()), vec![("100755".to_owned(), b"new\nline".to_vec())]);
        assert!(intended(b"").is_empty() && intended(b"something else").is_empty());
    }
}
