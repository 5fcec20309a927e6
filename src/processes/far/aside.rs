//! Worktrees that have lost their clone: somebody has removed it. What they have is in no commit any more, and nothing but the
//! directory itself keeps it, so that it is moved out of the way and never removed.

use std::fs;
use std::io;
use std::path::Path;

use swarm_store::runs::home::make_all;
use swarm_sys::files::is_absent;

use super::place::Attempt;

/// Moves a directory aside if it is a worktree without a clone. The caller holds the lock of the attempt.
///
/// # Errors
/// Returns any I/O error.
pub fn put(attempt: &Attempt, tree: &Path) -> io::Result<()> {
    let Some(leaf) = tree.file_name().filter(|_| has_lost_its_clone(tree)) else { return Ok(()) };
    let dir = attempt.site.aside(&attempt.at.run);
    make_all(&dir)?;
    let leaf = leaf.to_string_lossy();
    let free = (1..=u32::MAX).map(|number| dir.join(format!("{leaf}.{number}"))).find(|path| is_absent(path));
    let place = free.ok_or(io::ErrorKind::AlreadyExists)?;
    fs::rename(tree, &place)?;
    tracing::warn!(tree = %tree.display(), place = %place.display(), "a worktree has lost its clone, and was moved aside");
    Ok(())
}

/// Reports whether the `.git` file of a worktree leads to no record of it. Another worktree may have its record by now.
fn has_lost_its_clone(tree: &Path) -> bool {
    let dot_git = tree.join(".git");
    let Ok(text) = fs::read_to_string(&dot_git) else { return false };
    let Some(entry) = text.strip_prefix("gitdir: ").map(|entry| tree.join(entry.trim_end())) else { return false };
    match fs::read_to_string(entry.join("gitdir")) {
        Ok(back) => match (fs::canonicalize(entry.join(back.trim_end())), fs::canonicalize(&dot_git)) {
            (Ok(back), Ok(own)) => back != own,
            _ => false,
        },
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worktree_has_lost_its_clone_if_no_record_leads_back() {
        let root = tempfile::tempdir().expect("a directory");
        let (tree, other, entry) = (root.path().join("t"), root.path().join("u"), root.path().join("entry"));
        let write = |path: &Path, text: &str| fs::write(path, text).expect("written");
        assert!(!has_lost_its_clone(&tree), "there is none");
        for dir in [&tree, &other] {
            fs::create_dir(dir).expect("made");
            assert!(!has_lost_its_clone(dir), "no worktree");
            write(&dir.join(".git"), &format!("gitdir: {}\n", entry.display()));
            assert!(has_lost_its_clone(dir));
        }
        fs::create_dir(&entry).expect("made");
        assert!(has_lost_its_clone(&tree));
        write(&entry.join("gitdir"), &format!("{}\n", tree.join(".git").display()));
        assert!(!has_lost_its_clone(&tree) && has_lost_its_clone(&other));
        write(&entry.join("gitdir"), "../t/.git\n");
        write(&tree.join(".git"), "gitdir: ../entry\n");
        assert!(!has_lost_its_clone(&tree), "paths may be relative");
    }
}
