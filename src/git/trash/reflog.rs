//! Commits that only the reflog of a branch has: they were taken back with `git reset`, or rewritten. git deletes the
//! reflog together with the branch, so such commits are saved under `refs/swarm/trash/` before a branch is deleted. A kill
//! in between leaves the save and the branch; what a save holds is not saved again.

use std::collections::HashSet;
use std::path::Path;

use git2::{Oid, Repository};
use swarm_ports::Saved;

use super::only_here::{self, is_id};
use super::save::{self, Place};
use super::saved::PREFIX;
use crate::landing::complete::DONE;
use crate::repository::cli::Cli;
use crate::repository::fault::Fault;
use crate::repository::gc_lock;
use crate::worktrees::{admin, record};

/// Reports whether the branch `full`, whose tip is `tip`, may have commits in its reflog that neither `tip` nor `onto`
/// contains. In nearly all cases each entry follows the one before it, which shows without a search of the history.
pub(crate) fn has_more(repo: &Repository, full: &str, tip: Oid, onto: Oid) -> Result<bool, git2::Error> {
    let entries = read(repo.commondir(), full).map_err(|fault| git2::Error::from_str(&fault.cause))?;
    let (mut known, mut open) = (HashSet::from([tip, onto]), Vec::new());
    for (old, new) in entries.iter().rev() {
        let [old, new] = [old, new].map(|id| Oid::from_str(id));
        let (old, new) = (old?, new?);
        let follows = !old.is_zero() && known.contains(&new) && repo.find_commit(new)?.parent_ids().any(|id| id == old);
        if follows {
            known.insert(old);
        }
        open.extend([old, new]);
    }
    open.retain(|id| !id.is_zero() && !known.contains(id));
    if open.is_empty() {
        return Ok(false);
    }
    let mut walk = repo.revwalk()?;
    open.iter().try_for_each(|id| walk.push(*id))?;
    walk.hide(onto)?;
    walk.hide(tip)?;
    Ok(walk.next().is_some())
}

/// Reports whether the branch `full` was certainly created at another commit than this one, by its reflog: whoever did
/// that had deleted the branch before.
pub(crate) fn begins_elsewhere(common: &Path, full: &str, commit: &str) -> Result<bool, Fault> {
    let first = read(common, full)?.into_iter().next();
    Ok(first.is_some_and(|(old, new)| old.bytes().all(|byte| byte == b'0') && new != commit))
}

/// Saves the commits that only the reflog of the branch `full` has, durably. Returns `None` if there are none.
pub(crate) fn save(cli: &Cli, common: &Path, full: &str, tip: Option<&str>) -> Result<Option<Saved>, Fault> {
    let named = named(cli, common, full)?;
    let open: HashSet<&str> = named.iter().map(String::as_str).filter(|id| is_id(id) && Some(*id) != tip).collect();
    if open.is_empty() {
        return Ok(None);
    }
    // Candidates and signed copies are deleted once their items are over. A pinned tip stays until the base contains it.
    let kept = [format!("--glob={DONE}/*"), format!("--glob={PREFIX}*")];
    let held = ["--exclude=refs/swarm/*", "--all"].into_iter().chain(kept.iter().map(String::as_str));
    let mut tips = only_here::tips(cli, common, open.into_iter(), held)?;
    // The newest is restored, and the others are named.
    tips.sort_by_key(|tip| std::cmp::Reverse(named.iter().rposition(|id| id == tip)));
    let Some((head, others)) = tips.split_first() else { return Ok(None) };
    let _hold = gc_lock::hold(common, gc_lock::SAVE_WAIT)?;
    let name = full.strip_prefix("refs/heads/").unwrap_or(full);
    let message = format!(
        "swarm: saved commits of {name}\n\nWorker: {name}\nPath: (none)\nBranch: {full}\nHEAD: {head}\nDoing: (none)\n\
         Changes: 0\nIndex: {head}\nCommits: {}",
        others.join(" ")
    );
    let place = Place {
        git_dir: common.to_owned(),
        tree: common.to_owned(),
        head: Some(head.clone()),
        branch: Some(full.to_owned()),
        is_whole: false,
        common: common.to_owned(),
        view: None,
    };
    let saved = save::commit(cli, &place, &format!("{head}^{{tree}}"), &message, &tips)?;
    let saved = save::publish(cli, &place, name, saved)?;
    tracing::info!(branch = full, reference = saved.reference, "saved commits that only a reflog had");
    Ok(Some(saved))
}

/// Returns the ids in the reflog of a branch, oldest first.
fn named(cli: &Cli, common: &Path, full: &str) -> Result<Vec<String>, Fault> {
    if common.join("reftable").is_dir() {
        let log = ["log", "--walk-reflogs", "--no-show-signature", "--format=%H", full, "--"];
        let listed = cli.read(common).args(log).run_for(&[0, 128])?.1;
        return Ok(String::from_utf8_lossy(&listed).lines().rev().map(str::to_owned).collect());
    }
    Ok(read(common, full)?.into_iter().flat_map(|(old, new)| [old, new]).collect())
}

/// Returns the values before and after each change of a branch, from the file of its reflog.
fn read(common: &Path, full: &str) -> Result<Vec<(String, String)>, Fault> {
    let file = common.join("logs").join(full);
    // A directory is left of branches below this name. The branch has no reflog then.
    if file.is_dir() {
        return Ok(Vec::new());
    }
    // An agent may write there.
    let content = admin::ignore_missing(record::read(&file)).map_err(Fault::at(&file))?.unwrap_or_default();
    let text = String::from_utf8_lossy(&content);
    let entry = |line: &str| {
        let mut ids = line.split(' ').map(str::to_owned);
        Some((ids.next()?, ids.next()?))
    };
    Ok(text.lines().filter_map(entry).collect())
}
