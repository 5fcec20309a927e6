//! Merge of a commit into the worktree of a role. git computes it outside of the worktree: to merge a submodule, it opens
//! whatever repository it finds there, and obeys its configuration.

use std::collections::BTreeSet;

use super::{Git, MergeOutcome, committed, shown, stopped};
use crate::repository::fault::Fault;
use crate::repository::parse;
use crate::trash::raw;
use swarm_sys::files::replace_durably;

/// What the merge of two commits is.
#[derive(Debug, PartialEq, Eq)]
struct Computed {
    /// Files with conflicts contain markers.
    tree: String,
    /// Sides of each conflict, as `MODE ID STAGE`, and its path.
    sides: Vec<(String, Vec<u8>)>,
    /// Paths in the messages about conflicts. Some conflicts have no sides, such as a directory that was renamed to two
    /// names.
    told: BTreeSet<String>,
}

/// Merges a commit into a worktree without uncommitted changes. A failure may leave a part of the merge.
pub(super) fn merge(git: &Git, commit: &str, message: &str) -> Result<MergeOutcome, Fault> {
    let head = git.head()?;
    let (code, _) = git.read().args(["merge-base", "--is-ancestor", &head, commit]).run_for(&[0, 1])?;
    if code == 0 {
        return advance(git, commit, commit);
    }
    // Without a worktree, git needs to know where to read attributes (merge drivers, binary files).
    let call = git.apart().env("GIT_ATTR_SOURCE", &head);
    let (code, out) = call.args(["merge-tree", "--write-tree", "--messages", "-z", "HEAD", commit]).run_for(&[0, 1])?;
    let found = computed(&out).ok_or_else(|| Fault::new("unexpected output of 'git merge-tree'"))?;
    if code != 0 {
        return stop(git, &head, commit, message, &found);
    }
    let plain = ["-c", "commit.gpgSign=false", "commit-tree", "-m", message, "-p", &head, "-p", commit, &found.tree];
    advance(git, &git.apart().args(plain).line()?, commit)
}

/// Moves the worktree and its branch forward to a commit that contains HEAD.
fn advance(git: &Git, to: &str, commit: &str) -> Result<MergeOutcome, Fault> {
    let head = git.head()?;
    update(git, &head, to)?;
    committed::move_to(git, [&head, to], &format!("merge {commit}"))?;
    Ok(MergeOutcome::Merged)
}

/// Brings the files and the index from HEAD to another tree.
fn update(git: &Git, head: &str, to: &str) -> Result<(), Fault> {
    // Files of which only the times changed are not in the way. Exit code 1 means that others did.
    git.write().args(["update-index", "-q", "--refresh"]).run_for(&[0, 1])?;
    Ok(git.write().args(["read-tree", "-m", "-u", head, to]).run().map(drop)?)
}

/// Leaves the worktree like a `git merge` that stops at conflicts.
fn stop(git: &Git, head: &str, commit: &str, message: &str, found: &Computed) -> Result<MergeOutcome, Fault> {
    let git_dir = &git.place.git_dir;
    update(git, head, &found.tree)?;
    show_hidden(git, found)?;
    let mut lines = Vec::new();
    let mut last: &[u8] = b"";
    for (side, path) in &found.sides {
        if *path != last {
            lines.extend([format!("0 {} 0\t", "0".repeat(head.len())).as_bytes(), path, b"\0"].concat());
        }
        lines.extend([side.as_bytes(), b"\t", path, b"\0"].concat());
        last = path;
    }
    raw::feed(git.write().args(["update-index", "-z", "--index-info"]), git_dir, &lines)?;
    let files =
        [("MERGE_MSG", format!("{message}\n")), ("MERGE_MODE", String::new()), ("MERGE_HEAD", format!("{commit}\n"))];
    for (name, text) in files {
        replace_durably(git_dir, name, text.as_bytes()).map_err(Fault::at(&git_dir.join(name)))?;
    }
    let conflicts = stopped::record(git, commit)?;
    let named = if conflicts.is_empty() { found.told.iter().cloned().collect() } else { shown(&conflicts) };
    Ok(MergeOutcome::Conflict(named))
}

/// Writes the files with conflicts that a sparse worktree does not have.
fn show_hidden(git: &Git, found: &Computed) -> Result<(), Fault> {
    let git_dir = &git.place.git_dir;
    let paths: BTreeSet<&[u8]> = found.sides.iter().map(|(_, path)| path.as_slice()).collect();
    let mut hidden = parse::hidden(&git.read().args(["ls-files", "-v", "-z"]).run()?);
    hidden.retain(|path| paths.contains(path.as_slice()));
    if hidden.is_empty() {
        return Ok(());
    }
    raw::mark(git.write(), git_dir, "--no-skip-worktree", &hidden)?;
    raw::feed(git.write().args(["checkout-index", "-z", "--stdin"]), git_dir, &hidden.join(&0))
}

/// Parses the output of `git merge-tree -z`: a tree, the sides of conflicts, an empty field, and messages, each a count,
/// as many paths, a kind and a sentence.
fn computed(out: &[u8]) -> Option<Computed> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let mut fields = out.split(|byte| *byte == 0);
    let tree = fields.next().map(text).filter(|tree| !tree.is_empty())?;
    let mut sides = Vec::new();
    for field in fields.by_ref().take_while(|field| !field.is_empty()) {
        let at = field.iter().position(|byte| *byte == b'\t')?;
        sides.push((text(&field[..at]), field[at + 1..].to_vec()));
    }
    let mut told = BTreeSet::new();
    while let Some(count) = fields.next().and_then(|field| text(field).parse().ok()) {
        let paths: Vec<String> = fields.by_ref().take(count).map(text).collect();
        let kind = fields.next().map(text).unwrap_or_default();
        let _ = fields.next();
        if kind.starts_with("CONFLICT") {
            told.extend(paths);
        }
    }
    Some(Computed { tree, sides, told })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees_sides_and_messages_are_told_apart() {
        let out = b"aa\x00100644 b1 1\tf\x00100644 b2 2\tf\0\x001\0f\0CONFLICT (contents)\0CONFLICT in f\n\0";
        let side = |text: &str| (text.to_owned(), b"f".to_vec());
        let expected = Computed {
            tree: "aa".to_owned(),
            sides: vec![side("100644 b1 1"), side("100644 b2 2")],
            told: BTreeSet::from(["f".to_owned()]),
        };
        assert_eq!(computed(out), Some(expected));
        let out =
            b"aa\0\x001\0y\0Auto-merging\0Auto-merging y\n\x002\0d\0e\0CONFLICT (directory rename split)\0why\n\0";
        let found = computed(out).expect("parsed");
        assert_eq!((found.sides.len(), found.told), (0, BTreeSet::from(["d".to_owned(), "e".to_owned()])));
        assert_eq!(computed(b"aa\0").map(|found| (found.sides.len(), found.told.len())), Some((0, 0)));
        assert_eq!(computed(b""), None);
    }
}

#[cfg(test)]
#[path = "merge_tests.rs"]
mod merge_tests;
