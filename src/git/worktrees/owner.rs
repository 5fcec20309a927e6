//! Records in a worktree's administrative directory for which state directory it was created.
//! A worktree that merely lies next to ours, or that another state directory created, must not be
//! removed unasked.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use swarm_model::RowWorktree;

use super::admin;
use crate::repository::holders;

const MARK: &str = "swarm-made";
/// Name of the worker that was forgotten while this worktree stayed or was restored, its branch, and the checkout that it
/// was made from. For a restored worktree also the state directory: it has no [`MARK`], so that nothing removes it
/// unasked.
const KEPT: &str = "swarm-kept";
/// Minimum age of a leftover worktree. A start with the user's commands takes at most ten minutes.
const AGE_MIN: Duration = Duration::from_secs(1800);

/// Records the owner of a worktree. A worktree without this record is never removed unasked.
pub(crate) fn record_owner(common: &Path, tree: &Path, state_dir: &Path) {
    if let Ok(Some(entry)) = admin::entry_of(common, tree) {
        let _ = fs::write(entry.join(MARK), state_dir.as_os_str().as_encoded_bytes());
    }
}

/// Reports whether swarm created the worktree of this entry.
pub(crate) fn is_marked(entry: &Path) -> bool {
    entry.join(MARK).exists()
}

/// Returns the state directory that created the worktree, and the age of that record.
fn read_owner(tree: &Path, base_repo: &Path) -> Option<(PathBuf, Duration)> {
    let common = admin::common_dir(base_repo).ok()?;
    let mark = admin::entry_of(&common, tree).ok()??.join(MARK);
    let age = SystemTime::now().duration_since(fs::metadata(&mark).ok()?.modified().ok()?).ok()?;
    Some((PathBuf::from(fs::read_to_string(&mark).ok()?), age))
}

/// Reports whether a worktree was certainly created for this state directory, by a start that
/// ended long ago, and no process runs in it.
pub fn is_abandoned_by(tree: &Path, base_repo: &Path, state_dir: &Path) -> bool {
    let is_here = |maker: &Path| admin::resolved(maker) == admin::resolved(state_dir);
    let is_ours = |(maker, age): (PathBuf, Duration)| is_here(&maker) && age >= AGE_MIN;
    read_owner(tree, base_repo).is_some_and(is_ours) && !holders::is_any_process_in(tree)
}

/// Records that the worktree stays although its worker is forgotten. What is not a worktree of the repository is left
/// alone.
///
/// # Errors
/// Fails if git's record of the worktree cannot be read or written.
pub(crate) fn keep(name: &str, tree: &RowWorktree) -> io::Result<()> {
    let common = admin::common_dir(Path::new(&tree.base_repo))?;
    match admin::entry_of(&common, Path::new(&tree.path))? {
        Some(entry) => fs::write(entry.join(KEPT), format!("{name}\n{}\n{}\n", tree.branch, tree.base_repo)),
        None => Ok(()),
    }
}

/// Records that the worktree of this worker was restored.
///
/// # Errors
/// Fails if git's record of the worktree cannot be read or written.
pub(crate) fn keep_restored(name: &str, tree: &RowWorktree, state_dir: &Path) -> io::Result<()> {
    let common = admin::common_dir(Path::new(&tree.base_repo))?;
    let Some(entry) = admin::entry_of(&common, Path::new(&tree.path))? else { return Ok(()) };
    let mut text = format!("{name}\n{}\n{}\n", tree.branch, tree.base_repo).into_bytes();
    text.extend_from_slice(state_dir.as_os_str().as_encoded_bytes());
    text.push(b'\n');
    fs::write(entry.join(KEPT), text)
}

/// Returns the worktree of a repository that stayed when this worker of the state directory was forgotten, or that was
/// restored since.
///
/// # Errors
/// Fails if the worktrees of the repository cannot be listed.
pub(crate) fn kept(name: &str, common: &Path, state_dir: &Path) -> io::Result<Option<RowWorktree>> {
    let of_entry = |entry: &PathBuf| {
        let text = fs::read_to_string(entry.join(KEPT)).ok()?;
        let (kept, branch, base_repo, maker) = match text.lines().collect::<Vec<_>>()[..] {
            [kept, branch, base_repo] => (kept, branch, base_repo, fs::read_to_string(entry.join(MARK)).ok()?),
            [kept, branch, base_repo, maker] => (kept, branch, base_repo, maker.to_owned()),
            _ => return None,
        };
        let is_ours = kept == name && admin::resolved(Path::new(&maker)) == admin::resolved(state_dir);
        let path = admin::tree_of(entry).filter(|_| is_ours)?.to_str()?.to_owned();
        Some(RowWorktree { path, branch: branch.to_owned(), base_repo: base_repo.to_owned() })
    };
    Ok(admin::entries(common)?.iter().find_map(of_entry))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::Fixture;

    #[test]
    fn a_restored_worktree_is_that_of_its_worker_in_its_state_directory_only_and_has_no_owner() {
        let fix = Fixture::new();
        let path = fix.root.join("w");
        fix.git(&["worktree", "add", "-q", "-b", "w", path.to_str().unwrap()]);
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        let tree = RowWorktree { path: text(&path), branch: "w".to_owned(), base_repo: text(&fix.repo) };
        let (common, here) = (fix.repo.join(".git"), fix.root.join("state"));
        let kept = |name: &str, state_dir: &Path| kept(name, &common, state_dir).unwrap();
        assert_eq!(kept("fix", &here), None);
        keep_restored("fix", &tree, &here).unwrap();
        assert_eq!((kept("fix", &here), kept("w", &here)), (Some(tree), None));
        assert_eq!(kept("fix", &fix.root.join("other")), None);
        assert!(read_owner(&path, &fix.repo).is_none(), "nothing removes it unasked");
    }
}
