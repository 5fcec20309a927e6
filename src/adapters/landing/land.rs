//! The base moves, by compare-and-swap, and a directory that has it checked out
//! comes along in the same breath: the reference is locked and known to be where
//! it was, then the files, then the reference.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Child, ChildStdin, ChildStdout};
use std::time::Duration;

use git2::{Oid, Repository};
use swarm_actors::merge::machine::Landing;
use swarm_actors::merge::queue::{Item, State};

use super::checkout::{self, Brought, Marker};
use super::complete;
use super::desk::Desk;
use crate::adapters::git::fault::Fault;
use crate::adapters::git::{objects, parse};
use crate::adapters::process;

/// How long git waits for a lock of another git.
const LOCKS: [&str; 4] = ["-c", "core.filesRefLockTimeout=5000", "-c", "core.packedRefsTimeout=5000"];
/// How long an answer of git may take, its waiting for locks included.
const ANSWER_MAX: Duration = Duration::from_secs(60);

/// Where the base is.
pub(super) fn base(desk: &Desk) -> Result<String, Fault> {
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

pub(super) fn land(desk: &Desk, from: &str, to: &str) -> Result<Landing, Fault> {
    if let Some(marker) = Marker::load(desk)? {
        checkout::mend(desk, &marker)?;
    }
    let now = base(desk)?;
    if is_ancestor(desk, to, &now)? {
        return Ok(Landing::Done);
    }
    if now != from {
        return Ok(Landing::Moved);
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
    Ok(landed)
}

fn move_base(desk: &Desk, plan: &checkout::Plan, from: &str, to: &str) -> Result<Landing, Fault> {
    let mut transaction = Transaction::start(desk)?;
    let (branch, locked) = (&desk.target.branch, plan.lock()?);
    if let Some(why) = locked {
        return Ok(Landing::Failed(why));
    }
    let prepared = transaction
        .ask("start", "start")
        .and_then(|()| transaction.ask(&format!("update {branch} {to} {from}\nprepare"), "prepare"));
    if let Err(fault) = prepared {
        plan.unlock()?;
        // Somebody was quicker, or holds the lock.
        return if base(desk)? == from { Err(fault) } else { Ok(Landing::Moved) };
    }
    match plan.bring(desk)? {
        Brought::Done => {}
        Brought::Overlap(files) => {
            transaction.abort();
            plan.unlock()?;
            return Ok(Landing::Overlap(files));
        }
        Brought::Refused(why) => {
            transaction.abort();
            plan.unlock()?;
            return Ok(Landing::Failed(why));
        }
    }
    transaction.ask("commit", "commit")?;
    plan.unlock()?;
    Ok(Landing::Done)
}

fn sync(desk: &Desk) -> Result<(), Fault> {
    let failed = Fault::at(&desk.common);
    let dir = File::open(&desk.common).map_err(&failed)?;
    rustix::fs::syncfs(&dir).map_err(|error| failed(error.into()))
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

/// `git update-ref --stdin`, spoken to line by line. Its end without a commit
/// gives up the lock.
struct Transaction {
    git: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Transaction {
    fn start(desk: &Desk) -> Result<Self, Fault> {
        let call = desk.write().args(LOCKS).args(["update-ref", "-m", "swarm: landed", "--stdin"]);
        let failed = |error: io::Error| Fault::new(format!("git could not be run: {error}"));
        let mut git = call.start().map_err(failed)?;
        let (Some(input), Some(output)) = (git.stdin.take(), git.stdout.take()) else {
            return Err(Fault::new("git has no pipes"));
        };
        Ok(Self { git, input: Some(input), output: BufReader::new(output) })
    }

    fn ask(&mut self, words: &str, about: &str) -> Result<(), Fault> {
        let said = self.input.as_mut().map(|input| input.write_all(format!("{words}\n").as_bytes()));
        let mut line = String::new();
        if said.is_some_and(|said| said.is_ok()) && process::wait_readable(self.output.get_ref(), ANSWER_MAX) {
            let _ = self.output.read_line(&mut line);
        }
        if line.trim_end() == format!("{about}: ok") {
            return Ok(());
        }
        self.input = None;
        let mut stderr = Vec::new();
        if let Some(mut pipe) = self.git.stderr.take()
            && process::wait_readable(&pipe, ANSWER_MAX)
        {
            let _ = pipe.read_to_end(&mut stderr);
        }
        let why = parse::first_useful_line(&stderr).unwrap_or_else(|| format!("git did not answer to '{about}'"));
        Err(Fault::new(format!("the base could not be moved: {why}")))
    }

    fn abort(&mut self) {
        self.input = None;
        let _ = self.git.wait();
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        self.input = None;
        let _ = self.git.wait();
    }
}

/// A tip that is on its base needs no reference of ours.
pub(super) fn tidy(desk: &Desk, item: &Item) -> Result<(), Fault> {
    let is_over = matches!(item.state, State::Landed { .. } | State::Noop);
    if !is_over || item.tip.is_empty() || !is_ancestor(desk, &item.tip, &base(desk)?)? {
        return Ok(());
    }
    let name = complete::pinned(&item.tip);
    let removed = desk.library().map(|repo| repo.find_reference(&name).and_then(|mut pinned| pinned.delete()));
    if !matches!(removed, Some(Ok(()))) {
        desk.write().args(["update-ref", "-d", &name]).run()?;
    }
    Ok(())
}
