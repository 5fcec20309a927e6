//! Lands a candidate: moves the base by compare-and-swap, and updates the directories that have it
//! checked out at the same time. The order: lock the ref and check its value, update the files,
//! move the ref.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use git2::{Oid, Repository};
use swarm_model::merge::Landing;
use swarm_model::merge::queue::{Item, Queue, State};

use super::arriving;
use super::checkout::{self, Marker, Updated};
use super::complete;
use super::reference::{Move, RefUpdate};
use super::signed::Copies;
use super::trees;
use crate::landing::workspace::Workspace;
use crate::repository::cli::{CliError, TREE_MS_MAX};
use crate::repository::durable::sync_file_systems;
use crate::repository::fault::Fault;
use crate::repository::plain_ref::{self, Before, Update};
use crate::repository::{borrowed, deletion, holders, objects};
use crate::worktrees::admin;

/// Time limit for signing; a signer that prompts gets no answer here.
const SIGN_MAX: Duration = Duration::from_secs(60);

/// Maximum number of plans of a landing: directories may check other branches out meanwhile.
const PLANS_MAX: u32 = 3;

/// Returns the tip of the base.
pub(crate) fn base(workspace: &Workspace) -> Result<String, Fault> {
    if let Some(repo) = workspace.library()
        && let Ok(found) = repo.find_reference(&workspace.target.branch).and_then(|base| base.peel_to_commit())
    {
        return Ok(found.id().to_string());
    }
    let tip = objects::branch_tip(&workspace.cli, &workspace.common, workspace.target.base())?;
    tip.ok_or_else(|| {
        let cause = format!("base branch '{}' not found", workspace.target.base());
        Fault::new(cause).remedy("create it again, then run 'swarm merge retry'")
    })
}

pub(crate) fn land(workspace: &Workspace, from: &str, candidate: &str) -> Result<Landing, Fault> {
    if let Some(marker) = Marker::load(workspace)? {
        checkout::recover(workspace, &marker)?;
    }
    let now = base(workspace)?;
    let signed = match workspace.identity()?.signs {
        true => sign(workspace, from, candidate)?,
        false => Signed { tip: candidate.to_owned(), renamed: Vec::new() },
    };
    let to = signed.tip.as_str();
    // A candidate on top of the current base cannot be an ancestor of it, so skip the search.
    if to == now || (now != from && is_ancestor(workspace, to, &now)?) {
        return Ok(Landing::Done(signed.renamed));
    }
    if now != from {
        return Ok(Landing::Moved);
    }
    let places =
        || borrowed::places(&workspace.common).into_iter().chain(workspace.state().map(Path::to_owned)).collect();
    if let Some(found) = borrowed::below(&workspace.common, places) {
        return Err(found.fault(&workspace.common));
    }
    if !is_complete(workspace, from, to)? {
        let cause = format!("objects of {to} are missing in the repository");
        return Err(Fault::new(cause).remedy("run 'swarm merge retry' to create them again"));
    }
    if to != candidate {
        // Candidates were synced before the queue recorded them; their signed copies were not.
        sync_file_systems([workspace.common.as_path()])?;
    }
    for _ in 0..PLANS_MAX {
        match put_in_place(workspace, from, to)? {
            Some(Landing::Done(_)) => return Ok(Landing::Done(signed.renamed)),
            Some(other) => return Ok(other),
            None => {}
        }
    }
    Ok(Landing::Moved)
}

/// Moves the base, and updates the directories that have it checked out. Returns `None` if these are others meanwhile.
fn put_in_place(workspace: &Workspace, from: &str, to: &str) -> Result<Option<Landing>, Fault> {
    let mut plan = match checkout::plan(workspace, from, to)? {
        checkout::Planned::Ready(plan) => plan,
        checkout::Planned::Unready(unready) => return Ok(Some(unready.landing())),
        checkout::Planned::Refused(why) => return Ok(Some(Landing::Failed(why))),
    };
    plan.marker.save(workspace)?;
    let landed = move_base(workspace, &mut plan, from, to);
    // After an error the progress is unknown; the marker stays, and the next attempt recovers.
    let landed = landed?;
    plan.marker.remove(workspace)?;
    Ok(landed)
}

/// Rolls back a landing that failed permanently, so that nothing of it blocks anyone.
pub(crate) fn roll_back(workspace: &Workspace) -> Result<(), Fault> {
    Marker::load(workspace)?.map_or(Ok(()), |marker| checkout::recover(workspace, &marker))
}

fn move_base(workspace: &Workspace, plan: &mut checkout::Plan, from: &str, to: &str) -> Result<Option<Landing>, Fault> {
    let mut update = RefUpdate::start(workspace)?;
    if let Some(unready) = plan.lock()? {
        return Ok(Some(unready.landing()));
    }
    let to_move = Move { branch: &workspace.target.branch, from, to };
    if let Err(fault) = update.prepare(to_move) {
        drop(update);
        if fault.transient {
            return Err(fault);
        }
        plan.unlock()?;
        // Somebody else moved the base first, or holds the lock.
        return if base(workspace)? == from { Err(fault) } else { Ok(Some(Landing::Moved)) };
    }
    let stopped = match arriving::git(workspace)? {
        Some(unready) => Some(Some(unready.landing())),
        // A git that held a lock may have checked another branch out.
        None if plan.is_outdated(workspace)? => Some(None),
        None => match plan.update(workspace)? {
            Updated::Done => None,
            Updated::Overlap(files) => Some(Some(Landing::Overlap(files))),
            Updated::Refused(why) => Some(Some(Landing::Failed(why))),
            Updated::Unready(unready) => Some(Some(unready.landing())),
        },
    };
    if let Some(landing) = stopped {
        drop(update);
        plan.unlock()?;
        return Ok(landing);
    }
    // A base that has moved must not point ahead of files that a power cut can still empty.
    sync_file_systems(plan.trees())?;
    if let Some(unready) = arriving::git(workspace)? {
        drop(update);
        checkout::recover(workspace, &plan.marker)?;
        return Ok(Some(unready.landing()));
    }
    update.commit(to_move)?;
    // With our lock, a git that has read the old index cannot write it back.
    plan.wait_for_gits();
    plan.unlock()?;
    // The marker may go only after everything else is durable, and so may the word that the item has landed.
    sync_file_systems(plan.trees().chain([workspace.common.as_path()]))?;
    Ok(Some(Landing::Done(Vec::new())))
}

/// A chain of signed commits.
pub(super) struct Signed {
    pub(super) tip: String,
    /// Pairs of a candidate and its signed copy.
    renamed: Vec<(String, String)>,
}

/// Signs the commits that land, if the user wants that; candidates are unsigned. The signed
/// copy of each candidate is remembered, so that each is signed only once, and a ref keeps it from being pruned.
pub(super) fn sign(workspace: &Workspace, from: &str, to: &str) -> Result<Signed, Fault> {
    let range = format!("{from}..{to}");
    let listed = workspace.read().args(["rev-list", "--reverse", "--first-parent", "--parents", &range]).line()?;
    let (mut tip, mut renamed) = (from.to_owned(), Vec::new());
    let _hold = workspace.hold()?;
    let mut copies = Copies::read(&workspace.own);
    let mut is_any_new = false;
    for line in listed.lines() {
        let ids: Vec<&str> = line.split(' ').collect();
        let [candidate, _, others @ ..] = ids.as_slice() else { continue };
        let parents: Vec<&str> = std::iter::once(tip.as_str()).chain(others.iter().copied()).collect();
        let known = copies.of(candidate).filter(|known| is_signed_copy(workspace, candidate, known, &parents));
        tip = match known.map(str::to_owned) {
            Some(known) => known,
            None => {
                let signed = sign_one(workspace, candidate, &parents)?;
                copies.add(candidate, &signed)?;
                is_any_new = true;
                signed
            }
        };
        renamed.push(((*candidate).to_owned(), tip.clone()));
    }
    if is_any_new {
        // A power cut could otherwise keep a reference and take its commit.
        sync_file_systems([workspace.common.as_path()])?;
    }
    for (candidate, copy) in &renamed {
        let name = format!("refs/swarm/signed/{candidate}");
        let update = Update { name: &name, to: copy, before: Before::Any, is_durable: true };
        if !plain_ref::set(&workspace.common, &update, |_| ())? {
            workspace.write().args(["update-ref", "--no-deref", &name, copy]).run()?;
        }
    }
    Ok(Signed { tip, renamed })
}

/// Fields of a commit that its signed copy has as well.
const FIELDS: &str = "--format=%T%n%an%n%ae%n%ad%n%B";

/// Returns these fields of a commit.
fn fields_of(workspace: &Workspace, commit: &str) -> Result<String, CliError> {
    let format = ["log", "-1", "--no-show-signature", "--no-walk", "--encoding=UTF-8", "--date=raw", FIELDS, commit];
    workspace.read().args(format).line()
}

/// Reports whether a commit that this queue has signed still exists, has these parents, and is the candidate in all else but the committer.
fn is_signed_copy(workspace: &Workspace, candidate: &str, copy: &str, parents: &[&str]) -> bool {
    let raw = workspace.read().args(["cat-file", "commit", copy]).line();
    let Ok(raw) = raw else { return false };
    let headers: Vec<&str> = raw.lines().take_while(|line| !line.is_empty()).collect();
    let own: Vec<&str> = headers.iter().filter_map(|line| line.strip_prefix("parent ")).collect();
    let is_signed = headers.iter().any(|line| line.starts_with("gpgsig"));
    let is_same = |one: Result<String, CliError>, other: Result<String, CliError>| matches!((one, other), (Ok(one), Ok(other)) if one.trim_end() == other.trim_end());
    is_signed && own == parents && is_same(fields_of(workspace, candidate), fields_of(workspace, copy))
}

fn sign_one(workspace: &Workspace, candidate: &str, parents: &[&str]) -> Result<String, Fault> {
    let said = fields_of(workspace, candidate)?;
    let mut lines = said.splitn(5, '\n');
    let mut next = || lines.next().unwrap_or_default();
    let (tree, name, mail, date, message) = (next(), next(), next(), next(), next());
    let call = workspace.identity()?.environment(workspace.write(), None);
    let call = call.env("GIT_AUTHOR_NAME", name).env("GIT_AUTHOR_EMAIL", mail).env("GIT_AUTHOR_DATE", date);
    let call = call.limit(SIGN_MAX).args(["commit-tree", "-S", "-m", message.trim_end()]);
    let call = parents.iter().fold(call, |call, parent| call.args(["-p", parent]));
    let signed = call.arg(tree).line();
    signed.map_err(|error| {
        let cause = format!("cannot sign the commit: {error}");
        Fault::new(cause)
            .remedy("unlock the key or run 'git config commit.gpgSign false', then run 'swarm merge retry'")
    })
}

/// Reports whether all objects of what lands exist: they may have been pruned in spite of our refs. In a partial clone,
/// an object that a remote promised counts as existing, because git fetches it if it is needed.
fn is_complete(workspace: &Workspace, from: &str, to: &str) -> Result<bool, Fault> {
    // Opened again, because objects that another step has read may have been deleted since.
    if let Ok(repo) = objects::open(&workspace.common) {
        match trees::is_complete(&repo, from, to) {
            Err(error) if trees::is_absent(&error) => {}
            // libgit2 knows no promised objects.
            Ok(false) => {}
            whole => return Ok(whole?),
        }
    }
    // With `--missing`, git fetches nothing for this check, and fails for a missing object that nobody promised.
    let list = ["rev-list", "--objects", "--quiet", "--missing=allow-promisor", to, "--not", from];
    match workspace.read().limit(Duration::from_millis(TREE_MS_MAX)).args(list).run() {
        Err(CliError::Exit { .. }) => Ok(false),
        listed => Ok(listed.map(|_| true)?),
    }
}

/// Reports whether commit `one` is `other` or an ancestor of it.
pub(crate) fn is_ancestor(workspace: &Workspace, one: &str, other: &str) -> Result<bool, Fault> {
    if one == other {
        return Ok(true);
    }
    if let Some(repo) = workspace.library()
        && let Ok(is) = descends(&repo, other, one)
    {
        return Ok(is);
    }
    let (code, _) = workspace.read().args(["merge-base", "--is-ancestor", one, other]).run_for(&[0, 1])?;
    Ok(code == 0)
}

fn descends(repo: &Repository, commit: &str, from: &str) -> Result<bool, git2::Error> {
    repo.graph_descendant_of(Oid::from_str(commit)?, Oid::from_str(from)?)
}

/// Removes the refs of finished items that still have one, because a supervisor died between
/// landing and cleanup.
pub(crate) fn tidy_kept(workspace: &Workspace, queue: &Queue) -> Result<(), Fault> {
    let kept = workspace.read().args(["for-each-ref", "--format=%(refname)", complete::DONE]).line()?;
    tidy(workspace, queue.items.iter().filter(|item| kept.lines().any(|name| name == complete::pinned(&item.tip))))
}

/// Removes the refs to signed copies that have landed, and forgets these.
fn forget_signed(workspace: &Workspace) -> Result<(), Fault> {
    let base = base(workspace)?;
    let known =
        workspace.read().args(["for-each-ref", "--format=%(refname) %(objectname)", "refs/swarm/signed/"]).line()?;
    for (name, signed) in known.lines().filter_map(|line| line.split_once(' ')) {
        if is_ancestor(workspace, signed, &base)? {
            deletion::delete(&workspace.cli, &workspace.common, name, Some(signed))?;
        }
    }
    // What cannot be found is no copy any more.
    Copies::read(&workspace.own).forget(|copy| is_ancestor(workspace, copy, &base).unwrap_or(true))
}

/// Returns the last `count` commits on the first-parent line of the base with their parents.
fn newest(repo: &Repository, base: &str, count: usize) -> Result<HashMap<String, Vec<String>>, git2::Error> {
    let mut next = Some(repo.find_commit(Oid::from_str(base)?)?);
    let mut found = HashMap::new();
    while let Some(commit) = next.take().filter(|_| found.len() < count) {
        found.insert(commit.id().to_string(), commit.parent_ids().map(|id| id.to_string()).collect());
        next = commit.parent(0).ok();
    }
    Ok(found)
}

/// Removes the refs of finished items; a tip that is on its base needs none.
pub(crate) fn tidy<'a>(workspace: &Workspace, items: impl Iterator<Item = &'a Item>) -> Result<(), Fault> {
    let items: Vec<&Item> = items.filter(|item| item.state.is_done() && !item.tip.is_empty()).collect();
    if items.is_empty() {
        return Ok(());
    }
    if workspace.identity()?.signs {
        forget_signed(workspace)?;
    }
    let base = base(workspace)?;
    let packed = workspace.common.join("packed-refs");
    let packed = admin::ignore_missing(fs::read(&packed)).map_err(Fault::at(&packed))?.unwrap_or_default();
    let newest = workspace.library().and_then(|repo| newest(&repo, &base, 2 * items.len()).ok()).unwrap_or_default();
    for item in items {
        // In nearly all cases the item has just landed, and no search of the history is needed.
        let is_merged = match &item.state {
            State::Landed { commit } => newest.get(commit).is_some_and(|parents| parents.contains(&item.tip)),
            _ => false,
        };
        if !is_merged && !is_ancestor(workspace, &item.tip, &base)? {
            continue;
        }
        let name = complete::pinned(&item.tip);
        if !unpin(workspace, &packed, &name) {
            deletion::delete(&workspace.cli, &workspace.common, &name, None)?;
        }
    }
    holders::clear_stale_locks(&workspace.own_locks(), None);
    Ok(())
}

/// Deletes a ref that pins a tip, if it is a file and nothing else. Only we write these refs. git would lock
/// `packed-refs` for it, and if we are killed then, the lock stays and blocks everyone. If the ref is packed at this
/// very moment, it comes back; it is then deleted when the queue starts the next time.
fn unpin(workspace: &Workspace, packed: &[u8], name: &str) -> bool {
    // A repository that libgit2 opens has its refs in files.
    if workspace.library().is_none() || has(packed, name.as_bytes()) {
        return false;
    }
    let _ = fs::remove_file(workspace.common.join("logs").join(name));
    let removed = fs::remove_file(workspace.common.join(name));
    removed.is_ok() || removed.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

fn has(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}
