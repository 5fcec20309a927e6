//! Bases of branches that were made for the work in a worktree and outlive it, in `<common>/swarm-branches`. git's record of
//! the worktree, which has them, goes with the worktree.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};
use swarm_model::BaseRef;
use swarm_sys::files;

use super::{admin, owner, record};
use crate::repository::objects;
use crate::trash::reflog;

const DIR: &str = "swarm-branches";

/// Record of a branch that was made for a worktree which has been removed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) base: BaseRef,
    /// Commit at which the branch was made.
    pub(crate) made_at: String,
}

/// Records the base of the branch that was made for the worktree of this entry, before the entry is removed. Forgets
/// branches that do not exist any more.
pub(crate) fn keep(common: &Path, entry: &Path) {
    let kept = || -> io::Result<()> {
        let (Some((branch, made_at)), Some(base)) = (owner::read_branch(entry), owner::read_base(entry)) else {
            return Ok(());
        };
        // Empty if the work started from a commit.
        let onto = base.branch.unwrap_or_default();
        let dir = common.join(DIR);
        forget_missing(common, &dir)?;
        fs::create_dir_all(&dir)?;
        record::write(&file(common, &branch), format!("{branch}\n{made_at}\n{onto}\n{}\n", base.commit).as_bytes())
    };
    if let Err(error) = kept() {
        tracing::warn!(entry = %entry.display(), %error, "cannot record the base of a branch");
    }
}

/// Returns what is on record of a branch, unless somebody else has made it since.
pub(crate) fn known(common: &Path, branch: &str) -> Option<Known> {
    let text = record::read_text(&file(common, branch)).ok()?;
    let [name, made_at, onto, commit] = text.lines().collect::<Vec<_>>()[..] else { return None };
    let is_other = || reflog::begins_elsewhere(common, &format!("refs/heads/{branch}"), made_at).unwrap_or(true);
    if name != branch
        || !(onto.is_empty() || objects::is_branch_name(onto))
        || ![made_at, commit].into_iter().all(owner::is_id)
        || is_other()
    {
        return None;
    }
    let base = BaseRef { branch: Some(onto.to_owned()).filter(|onto| !onto.is_empty()), commit: commit.to_owned() };
    Some(Known { base, made_at: made_at.to_owned() })
}

/// Forgets the base of a branch that is deleted: who makes it again may mean something else.
pub(crate) fn forget(common: &Path, reference: &str) {
    if let Some(branch) = reference.strip_prefix("refs/heads/") {
        // What stays is noticed by the reflog of the next branch of that name, or by the next record.
        let _ = fs::remove_file(file(common, branch));
    }
}

fn forget_missing(common: &Path, dir: &Path) -> io::Result<()> {
    // One for all: to open a repository, or to run git, for each record would take seconds. Without it, nothing is forgotten.
    let Ok(repo) = objects::open(common) else { return Ok(()) };
    for file in files::list_if_present(dir)? {
        let text = record::read_text(&file.path()).unwrap_or_default();
        let branch = text.lines().next().unwrap_or_default();
        if objects::is_branch_name(branch) && objects::tip(&repo, branch).is_ok_and(|tip| tip.is_none()) {
            admin::ignore_missing(fs::remove_file(file.path()))?;
        }
    }
    Ok(())
}

/// Returns the file of a branch. Its name is a digest, because branches have slashes.
fn file(common: &Path, branch: &str) -> PathBuf {
    let digest = Sha256::digest(branch.as_bytes());
    common.join(DIR).join(digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect::<String>())
}
