//! The base moves, by compare-and-swap, and a directory that has it checked out
//! comes along in the same breath: the reference is locked and known to be where
//! it was, then the files, then the reference.

use std::collections::HashMap;
use std::fs::File;
use std::time::Duration;

use git2::{Oid, Repository};
use swarm_model::merge::Landing;
use swarm_model::merge::queue::{Item, Queue, State};

use super::checkout::{self, Brought, Marker};
use super::complete;
use super::desk::Desk;
use super::reference::{Move, Mover};
use super::trees;
use crate::repository::cli::CliError;
use crate::repository::fault::Fault;
use crate::repository::{holders, objects};

/// How long a signer may take; one that asks a person asks nobody here.
const SIGN_MAX: Duration = Duration::from_secs(60);

/// Where the base is.
pub(crate) fn base(desk: &Desk) -> Result<String, Fault> {
    if let Some(repo) = desk.library()
        && let Ok(found) = repo.find_reference(&desk.target.branch).and_then(|base| base.peel_to_commit())
    {
        return Ok(found.id().to_string());
    }
    let tip = objects::branch_tip(&desk.cli, &desk.common, desk.target.base())?;
    tip.ok_or_else(|| {
        let cause = format!("the base branch '{}' is gone", desk.target.base());
        Fault::new(cause).remedy("make it again, then swarm merge retry")
    })
}

pub(crate) fn land(desk: &Desk, from: &str, to: &str) -> Result<Landing, Fault> {
    if let Some(marker) = Marker::load(desk)? {
        checkout::mend(desk, &marker)?;
    }
    let now = base(desk)?;
    let signed = match desk.identity()?.signs {
        true => sign(desk, from, to)?,
        false => Signed { tip: to.to_owned(), renamed: Vec::new() },
    };
    let to = signed.tip.as_str();
    // What was made on top of the base is not below it, and needs no search.
    if to == now || (now != from && is_ancestor(desk, to, &now)?) {
        return Ok(Landing::Done(signed.renamed));
    }
    if now != from {
        return Ok(Landing::Moved);
    }
    if !is_whole(desk, from, to)? {
        let cause = format!("objects of {to} are gone from the repository");
        return Err(Fault::new(cause).remedy("swarm merge retry makes them again"));
    }
    // Candidates are not synced one by one; what lands is.
    sync(desk)?;
    let plan = match checkout::plan(desk, from, to)? {
        checkout::Planned::Ready(plan) => plan,
        checkout::Planned::Busy(why) => return Ok(Landing::Failed(why)),
    };
    plan.marker.save(desk)?;
    let landed = move_base(desk, &plan, from, to);
    // After an error it is not known how far it came: the next attempt finds out.
    let landed = landed?;
    plan.marker.remove(desk)?;
    Ok(match landed {
        Landing::Done(_) => Landing::Done(signed.renamed),
        other => other,
    })
}

/// After a landing that failed for good: nothing of it stays in anybody's way.
pub(crate) fn take_back(desk: &Desk) -> Result<(), Fault> {
    Marker::load(desk)?.map_or(Ok(()), |marker| checkout::mend(desk, &marker))
}

fn move_base(desk: &Desk, plan: &checkout::Plan, from: &str, to: &str) -> Result<Landing, Fault> {
    let mut mover = Mover::start(desk)?;
    if let Some(why) = plan.lock()? {
        return Ok(Landing::Failed(why));
    }
    let to_move = Move { branch: &desk.target.branch, from, to };
    if let Err(fault) = mover.prepare(to_move) {
        drop(mover);
        if fault.passing {
            return Err(fault);
        }
        plan.unlock()?;
        // Somebody was quicker, or holds the lock.
        return if base(desk)? == from { Err(fault) } else { Ok(Landing::Moved) };
    }
    match plan.bring(desk)? {
        Brought::Done => {}
        Brought::Overlap(files) => {
            drop(mover);
            plan.unlock()?;
            return Ok(Landing::Overlap(files));
        }
        Brought::Refused(why) => {
            drop(mover);
            plan.unlock()?;
            return Ok(Landing::Failed(why));
        }
    }
    mover.commit(to_move)?;
    plan.unlock()?;
    Ok(Landing::Done(Vec::new()))
}

/// A chain with signatures.
struct Signed {
    tip: String,
    /// Each candidate, and the commit that is the same with a signature.
    renamed: Vec<(String, String)>,
}

/// Candidates are not signed; what lands is, where the user wants that. Which
/// commit stands for which is kept in references, so that it is done once.
fn sign(desk: &Desk, from: &str, to: &str) -> Result<Signed, Fault> {
    let range = format!("{from}..{to}");
    let listed = desk.read().args(["rev-list", "--reverse", "--first-parent", "--parents", &range]).line()?;
    let (mut tip, mut renamed) = (from.to_owned(), Vec::new());
    let _hold = desk.hold()?;
    for line in listed.lines() {
        let ids: Vec<&str> = line.split(' ').collect();
        let [candidate, _, others @ ..] = ids.as_slice() else { continue };
        let name = format!("refs/swarm/signed/{candidate}");
        let known = objects::commit(&desk.cli, &desk.common, &name)?;
        tip = match known {
            Some(known) => known,
            None => {
                let parents: Vec<&str> = std::iter::once(tip.as_str()).chain(others.iter().copied()).collect();
                let signed = sign_one(desk, candidate, &parents)?;
                desk.write().args(["update-ref", &name, &signed]).run()?;
                signed
            }
        };
        renamed.push(((*candidate).to_owned(), tip.clone()));
    }
    Ok(Signed { tip, renamed })
}

fn sign_one(desk: &Desk, candidate: &str, parents: &[&str]) -> Result<String, Fault> {
    let format = ["log", "-1", "--no-walk", "--date=raw", "--format=%T%n%an%n%ae%n%ad%n%B", candidate];
    let said = desk.read().args(format).line()?;
    let mut lines = said.splitn(5, '\n');
    let mut next = || lines.next().unwrap_or_default();
    let (tree, name, mail, date, message) = (next(), next(), next(), next(), next());
    let call = desk.identity()?.environment(desk.write(), None);
    let call = call.env("GIT_AUTHOR_NAME", name).env("GIT_AUTHOR_EMAIL", mail).env("GIT_AUTHOR_DATE", date);
    let call = call.limit(SIGN_MAX).args(["commit-tree", "-S", "-m", message.trim_end()]);
    let call = parents.iter().fold(call, |call, parent| call.args(["-p", parent]));
    let signed = call.arg(tree).line();
    signed.map_err(|error| {
        let cause = format!("the commit could not be signed: {error}");
        Fault::new(cause).remedy("unlock the key, or git config commit.gpgSign false; then swarm merge retry")
    })
}

fn sync(desk: &Desk) -> Result<(), Fault> {
    let failed = Fault::at(&desk.common);
    let dir = File::open(&desk.common).map_err(&failed)?;
    rustix::fs::syncfs(&dir).map_err(|error| failed(error.into()))
}

/// Whether everything of what is to land is there: somebody may have pruned it in
/// spite of our references.
fn is_whole(desk: &Desk, from: &str, to: &str) -> Result<bool, Fault> {
    // Opened now: what another step has read may be gone since.
    if let Ok(repo) = Repository::open(&desk.common) {
        return match trees::is_whole(&repo, from, to) {
            Err(error) if trees::is_absent(&error) => Ok(false),
            whole => Ok(whole?),
        };
    }
    match desk.read().args(["rev-list", "--objects", "--quiet", to, "--not", from]).run() {
        Err(CliError::Exit { .. }) => Ok(false),
        listed => Ok(listed.map(|_| true)?),
    }
}

/// Whether the one is on the way to the other, or is it.
fn is_ancestor(desk: &Desk, one: &str, other: &str) -> Result<bool, Fault> {
    if one == other {
        return Ok(true);
    }
    if let Some(repo) = desk.library()
        && let Ok(is) = descends(&repo, other, one)
    {
        return Ok(is);
    }
    let (code, _) = desk.read().args(["merge-base", "--is-ancestor", one, other]).run_for(&[0, 1])?;
    Ok(code == 0)
}

fn descends(repo: &Repository, commit: &str, from: &str) -> Result<bool, git2::Error> {
    repo.graph_descendant_of(Oid::from_str(commit)?, Oid::from_str(from)?)
}

/// The same for those whose reference is still there, where a supervisor died
/// between landing and tidying.
pub(crate) fn tidy_kept(desk: &Desk, queue: &Queue) -> Result<(), Fault> {
    let kept = desk.read().args(["for-each-ref", "--format=%(refname)", complete::DONE]).line()?;
    tidy(desk, queue.items.iter().filter(|item| kept.lines().any(|name| name == complete::pinned(&item.tip))))
}

/// Which commit stands for which is of no use once they have landed.
fn forget_signed(desk: &Desk) -> Result<(), Fault> {
    let base = base(desk)?;
    let known = desk.read().args(["for-each-ref", "--format=%(refname) %(objectname)", "refs/swarm/signed/"]).line()?;
    for (name, signed) in known.lines().filter_map(|line| line.split_once(' ')) {
        if is_ancestor(desk, signed, &base)? {
            desk.write().args(["update-ref", "-d", name, signed]).run()?;
        }
    }
    Ok(())
}

/// The last commits on the first-parent line of the base, each with its parents.
fn newest(repo: &Repository, base: &str, count: usize) -> Result<HashMap<String, Vec<String>>, git2::Error> {
    let mut next = Some(repo.find_commit(Oid::from_str(base)?)?);
    let mut found = HashMap::new();
    while let Some(commit) = next.take().filter(|_| found.len() < count) {
        found.insert(commit.id().to_string(), commit.parent_ids().map(|id| id.to_string()).collect());
        next = commit.parent(0).ok();
    }
    Ok(found)
}

/// A tip that is on its base needs no reference of ours.
pub(crate) fn tidy<'a>(desk: &Desk, items: impl Iterator<Item = &'a Item>) -> Result<(), Fault> {
    let items: Vec<&Item> = items.filter(|item| item.state.is_done() && !item.tip.is_empty()).collect();
    if items.is_empty() {
        return Ok(());
    }
    if desk.identity()?.signs {
        forget_signed(desk)?;
    }
    let base = base(desk)?;
    let newest = desk.library().and_then(|repo| newest(&repo, &base, 2 * items.len()).ok()).unwrap_or_default();
    for item in items {
        // Nearly always it has just landed, and history need not be searched for it.
        let is_merged = match &item.state {
            State::Landed { commit } => newest.get(commit).is_some_and(|parents| parents.contains(&item.tip)),
            _ => false,
        };
        if !is_merged && !is_ancestor(desk, &item.tip, &base)? {
            continue;
        }
        let name = complete::pinned(&item.tip);
        let removed = desk.library().map(|repo| repo.find_reference(&name).and_then(|mut pinned| pinned.delete()));
        if !matches!(removed, Some(Ok(()))) {
            desk.write().args(["update-ref", "-d", &name]).run()?;
        }
    }
    // libgit2 does not say when it could not remove its own.
    holders::clear_stale_locks(&desk.own_locks(), None);
    Ok(())
}
