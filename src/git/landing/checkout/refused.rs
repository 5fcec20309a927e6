//! Why git did not update a directory that has the base checked out, and what a person can do about it.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use swarm_sys::quoting::command_line;

use crate::repository::parse;

/// Maximum number of conflicts that are named.
const FILES_MAX: usize = 10;

/// Returns the paths that `git ls-files -v -z` marks as assume-unchanged or skip-worktree.
pub(super) fn marked(listed: &[u8]) -> Vec<&[u8]> {
    let entries = listed.split(|byte| *byte == 0).filter(|entry| entry.len() > 2);
    entries.filter(|entry| entry[0].is_ascii_lowercase() || entry[0] == b'S').map(|entry| &entry[2..]).collect()
}

/// Returns the paths that `git ls-files -t -z` marks as skip-worktree, which may be absent.
pub(super) fn skipped(listed: &[u8]) -> HashSet<&[u8]> {
    listed.split(|byte| *byte == 0).filter_map(|entry| entry.strip_prefix(b"S ")).collect()
}

/// Returns the paths that `git ls-files -v -z` lists and of which a checkout has a file.
pub(super) fn present(listed: &[u8]) -> HashSet<&[u8]> {
    let entries = listed.split(|byte| *byte == 0).filter(|entry| !matches!(entry.first(), Some(b'S' | b's')));
    entries.filter_map(|entry| entry.get(2..)).collect()
}

/// Returns the paths that `git ls-files --unmerged -z` lists.
pub(super) fn unmerged(listed: &[u8]) -> Vec<String> {
    let mut paths: Vec<String> =
        parse::index(listed).iter().map(|one| String::from_utf8_lossy(&one.path).into()).collect();
    paths.dedup();
    paths
}

/// Returns that `tree` has conflicts of a person's merge in these files.
pub(super) fn unresolved(tree: &Path, files: &[String]) -> String {
    let tree: PathBuf = tree.components().collect();
    let (shown, more) = (files.iter().take(FILES_MAX).cloned().collect::<Vec<_>>().join(", "), files.len() > FILES_MAX);
    let more = if more { format!(" and {} more", files.len() - FILES_MAX) } else { String::new() };
    format!(
        "{}, which has the base checked out, has unresolved conflicts: {shown}{more} (the work lands by itself once they \
         are resolved)",
        tree.display()
    )
}

/// Returns why `tree` could not be updated, with the remedy. `hidden` are the changed files that are marked assume-unchanged
/// or skip-worktree, and `message` is what git printed.
pub(super) fn reason(tree: &Path, hidden: &[String], message: &str) -> String {
    // git ends the path of a main checkout with a slash.
    let tree: PathBuf = tree.components().collect();
    let (dir, at) = (tree.display(), tree.to_string_lossy());
    if hidden.is_empty() {
        let status = command_line(["git", "-C", &at, "status"]);
        return format!(
            "git cannot update {dir}, which has the base checked out: {message} (see '{status}', then run 'swarm merge \
             retry')"
        );
    }
    let words = ["git", "-C", &at, "update-index", "--no-assume-unchanged", "--no-skip-worktree"];
    let shown = command_line(words.into_iter().chain(hidden.iter().map(String::as_str)));
    let files = hidden.join(", ");
    format!(
        "{dir} has changed files that are marked assume-unchanged or skip-worktree: {files} (run '{shown}', commit or \
         discard the changes, then run 'swarm merge retry')"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_of_the_index_are_recognized() {
        let listed = b"H a\0h b c\0S d\0s e\0M f\0";
        assert_eq!(marked(listed), [&b"b c"[..], b"d", b"e"]);
        assert!(marked(b"").is_empty());
        assert_eq!(skipped(b"H a\0S d e\0M f\0"), HashSet::from([&b"d e"[..]]));
        assert_eq!(present(b"H a\0S d e\0s g\0h f\0"), HashSet::from([&b"a"[..], b"f"]));
    }

    #[test]
    fn a_refusal_names_the_directory_and_a_remedy() {
        let tree = Path::new("/a b");
        let hidden = reason(tree, &["f".to_owned(), "g h".to_owned()], "Entry 'f' not uptodate. Cannot merge.");
        assert_eq!(
            hidden,
            "/a b has changed files that are marked assume-unchanged or skip-worktree: f, g h (run 'git -C '/a b' \
             update-index --no-assume-unchanged --no-skip-worktree f 'g h'', commit or discard the changes, then run 'swarm merge \
             retry')"
        );
        let other = reason(Path::new("/a/"), &[], "cannot unlink 'f'");
        assert!(
            other.starts_with("git cannot update /a, which has the base checked out: cannot unlink 'f' (see"),
            "{other}"
        );
    }
}
