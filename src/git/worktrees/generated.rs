//! Untracked files that are not committed for anybody, because tools generate files of their kind. A kind does not apply
//! where the repository tracks such files already: there, new ones belong to the work.

use std::collections::BTreeMap;

use swarm_model::{SESSION_FOLDER, is_session_file};

/// Directories that are never committed, at any depth.
const DIRECTORIES: [&str; 12] = [
    "node_modules",
    ".next",
    ".nuxt",
    "dist",
    ".turbo",
    "__pycache__",
    ".venv",
    "go-build",
    ".gocache",
    "gocache",
    ".golangci-lint-cache",
    ".cache",
];
/// Directories that are never committed if they are directly inside a given parent.
const NESTED: [[&str; 2]; 2] = [["target", "debug"], ["target", "release"]];
const EXTENSIONS: [&str; 3] = [".pyc", ".tmp", ".log"];
/// Name prefix of files that debuggers build next to the sources.
const PREFIX: &str = "__debug_bin";

/// Kind of generated files that a path belongs to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// Never committed, whatever is tracked.
    Always,
    /// Below a directory, which is given with its final slash.
    Below(String),
    /// Directly in a directory, which is given with its final slash, and with an extension.
    Ending(String, &'static str),
}

impl Kind {
    /// Reports whether a tracked path is of this kind, so that untracked ones are part of the work.
    fn has(&self, tracked: &str) -> bool {
        match self {
            Self::Always => false,
            Self::Below(dir) => tracked.starts_with(dir.as_str()),
            Self::Ending(dir, end) => {
                let name = tracked.strip_prefix(dir.as_str()).unwrap_or_default();
                !name.contains('/') && name.ends_with(end)
            }
        }
    }
}

/// Returns the kinds of generated files that a path belongs to.
fn kinds(path: &str) -> Vec<Kind> {
    let parts: Vec<&str> = path.split('/').collect();
    let (name, above) = parts.split_last().expect("splitting gives one part at least");
    let below = |count: usize| above[..count].iter().map(|part| format!("{part}/")).collect::<String>();
    let mut kinds = Vec::new();
    // The session of the worker itself, at the top of its worktree. Other files in that folder are work.
    let is_of_session = above == [SESSION_FOLDER] && is_session_file(name);
    if is_of_session || name.starts_with(PREFIX) {
        kinds.push(Kind::Always);
    }
    if let Some(at) = above.iter().position(|part| DIRECTORIES.contains(part)) {
        kinds.push(Kind::Below(below(at + 1)));
    }
    if let Some(at) = above.windows(2).position(|pair| NESTED.iter().any(|nested| nested == pair)) {
        kinds.push(Kind::Below(below(at + 2)));
    }
    let ends = EXTENSIONS.iter().filter(|end| name.ends_with(**end));
    kinds.extend(ends.map(|end| Kind::Ending(below(above.len()), end)));
    kinds
}

/// Splits untracked paths into those that are left out, and those that are committed. A path that ends with a slash is a
/// nested repository, and is left out. `tracked` returns the tracked paths, each followed by a NUL; it is called only if
/// a path is of a kind that tools generate.
///
/// # Errors
/// Returns the error of `tracked`.
pub(crate) fn split<'a, P: AsRef<[u8]> + ?Sized + 'a, E>(
    untracked: impl Iterator<Item = &'a P>,
    tracked: impl FnOnce() -> Result<Vec<u8>, E>,
) -> Result<(Vec<&'a P>, Vec<&'a P>), E> {
    let untracked: Vec<(&P, Vec<Kind>)> =
        untracked.map(|path| (path, kinds(&String::from_utf8_lossy(path.as_ref())))).collect();
    let mut applies: BTreeMap<Kind, bool> = BTreeMap::new();
    for kind in untracked.iter().flat_map(|(_, kinds)| kinds) {
        applies.entry(kind.clone()).or_insert(true);
    }
    if !applies.is_empty() {
        let tracked = tracked()?;
        let tracked = String::from_utf8_lossy(&tracked);
        for path in tracked.split('\0') {
            applies.iter_mut().for_each(|(kind, applies)| *applies &= !kind.has(path));
        }
    }
    let is_out = |(path, kinds): &(&P, Vec<Kind>)| {
        path.as_ref().ends_with(b"/") || kinds.iter().any(|kind| applies.get(kind) == Some(&true))
    };
    let (out, kept): (Vec<_>, Vec<_>) = untracked.into_iter().partition(is_out);
    let paths = |split: Vec<(&'a P, Vec<Kind>)>| split.into_iter().map(|(path, _)| path).collect();
    Ok((paths(out), paths(kept)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left_out(untracked: &[&'static str], tracked: &str) -> Vec<&'static str> {
        let read = || Ok::<_, ()>(tracked.replace(' ', "\0").into_bytes());
        split(untracked.iter().copied(), read).expect("split").0
    }

    #[test]
    fn excluded_directories_and_file_names_are_distinguished() {
        let session = [".agent/state.json", ".agent/.state.json.tmp-1-2"];
        let others = ["a/dist/b", ".venv/x", "target/release/x", "x/y.log", "__debug_bin123", "a/.cache/b", "sub/"];
        let out = [session.as_slice(), &others].concat();
        assert_eq!(left_out(&out, "main.rs a/b"), out);
        let kept = [
            ".agent/rules/new.md",
            ".agent/x",
            "sub/.agent/state.json",
            ".agent/x/state.json",
            "dist",
            "target/x",
            "debug/target",
            "catalog",
            "a.log.rs",
            "x__debug_bin",
        ];
        assert_eq!(left_out(&kept, "main.rs"), [""; 0]);
    }

    #[test]
    fn new_files_beside_tracked_ones_of_their_kind_are_part_of_the_work() {
        let cases: [(&[&'static str], &str, &[&'static str]); 9] = [
            (&["pkg/dist/new.go"], "pkg/dist/old.go", &[]),
            (&["pkg/dist/deep/new.go"], "pkg/dist/old.go", &[]),
            (&["pkg/dist/new.go", "dist/new.go"], "pkg/dist/old.go", &["dist/new.go"]),
            (&["pkg/dist/new.go"], "pkg/distance pkg/dist2/x", &["pkg/dist/new.go"]),
            (&["fixtures/new.log"], "fixtures/old.log", &[]),
            (&["fixtures/new.log"], "fixtures/old.txt fixtures/a/old.log old.log", &["fixtures/new.log"]),
            (&["new.log"], "old.log", &[]),
            (&["dist/node_modules/x"], "dist/old", &[]),
            (&["target/debug/x", ".agent/todos.json"], "target/debug/y .agent/y", &[".agent/todos.json"]),
        ];
        for (untracked, tracked, expected) in cases {
            assert_eq!(left_out(untracked, tracked), expected, "{untracked:?} beside {tracked:?}");
        }
    }
}
