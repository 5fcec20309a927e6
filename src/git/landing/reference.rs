//! Moves the base's ref by compare-and-swap in two steps: lock it and check its value, then,
//! after the files are updated, commit. In-process if refs are files, otherwise with
//! `git update-ref --stdin`.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout};
use std::time::Duration;

use git2::Signature;

use super::land::base;
use crate::landing::workspace::{Workspace, date};
use crate::repository::cli::CliError;
use crate::repository::exit;
use crate::repository::fault::Fault;
use crate::repository::parse;
use crate::repository::plain_ref::{self, Before, HEAD, Prepared, Update};
use crate::worktrees::record;
use swarm_sys::processes;

/// Options with the limit for locks that `plain_ref` has.
const LOCKS: [&str; 4] = ["-c", "core.filesRefLockTimeout=5000", "-c", "core.packedRefsTimeout=5000"];
/// Time limit for an answer of git, including its waiting for locks.
const ANSWER_MAX: Duration = Duration::from_secs(60);
/// Message in the reflog.
const WHY: &str = "swarm: landed";

/// A move of a branch, given by its full ref name.
#[derive(Clone, Copy)]
pub(crate) struct Move<'a> {
    pub(crate) branch: &'a str,
    pub(crate) from: &'a str,
    pub(crate) to: &'a str,
}

/// A prepared update of the base's ref. Dropping it without a commit releases the locks.
pub(crate) enum RefUpdate<'a> {
    Direct(DirectUpdate<'a>),
    Git(GitUpdate),
}

impl<'a> RefUpdate<'a> {
    pub(crate) fn start(workspace: &'a Workspace) -> Result<Self, Fault> {
        record::check_reference(&workspace.common, &workspace.target.branch)?;
        Ok(match DirectUpdate::start(workspace)? {
            Some(direct) => Self::Direct(direct),
            None => Self::Git(GitUpdate::start(workspace)?),
        })
    }

    /// Locks the ref and checks that it still has its old value.
    pub(crate) fn prepare(&mut self, to_move: Move<'_>) -> Result<(), Fault> {
        match self {
            Self::Direct(direct) => direct.prepare(to_move),
            Self::Git(git) => git.prepare(to_move),
        }
    }

    pub(crate) fn commit(self, to_move: Move<'_>) -> Result<(), Fault> {
        match self {
            Self::Direct(direct) => direct.commit(to_move),
            Self::Git(mut git) => git.ask("commit", "commit"),
        }
    }
}

/// Updates the ref as git does if refs are files: the lock file contains the new value and is
/// renamed to the ref. HEAD is locked, too, if it points to the ref. After `prepare`, only one
/// rename remains. If we are killed, [`checkout::recover`] removes the locks.
///
/// git would open a reflog that an agent has replaced meanwhile: it would follow a link, and wait for the other end of a
/// pipe.
///
/// [`checkout::recover`]: super::checkout::recover
pub(crate) struct DirectUpdate<'a> {
    workspace: &'a Workspace,
    who: Signature<'static>,
    /// Ref that gets the value: the base, or the one to which it leads as a symbolic one.
    name: String,
    /// Our lock, until it is renamed to the ref.
    lock: Option<Prepared>,
    head: Option<Prepared>,
}

impl<'a> DirectUpdate<'a> {
    /// Returns `None` if refs are not files.
    pub(crate) fn start(workspace: &'a Workspace) -> Result<Option<Self>, Fault> {
        if !plain_ref::are_files(&workspace.common) {
            return Ok(None);
        }
        let name = plain_ref::resolved(&workspace.common, &workspace.target.branch)?;
        Ok(Some(Self { workspace, who: workspace.identity()?.committer()?, name, lock: None, head: None }))
    }

    fn prepare(&mut self, to_move: Move<'_>) -> Result<(), Fault> {
        let common = &self.workspace.common;
        if self.is_head(to_move.branch) {
            // Otherwise a user could switch away while the files are being updated.
            let head = locked(common, HEAD, to_move.to)?;
            self.head = self.is_head(to_move.branch).then_some(head);
        }
        self.lock = Some(locked(common, &self.name, to_move.to)?);
        match plain_ref::resolved(common, to_move.branch)? == self.name && base(self.workspace)? == to_move.from {
            true => Ok(()),
            false => Err(not_moved("the branch has moved in the meantime")),
        }
    }

    fn commit(mut self, to_move: Move<'_>) -> Result<(), Fault> {
        let Some(lock) = self.lock.take() else { return Err(not_moved("the lock of the branch is not held")) };
        if !lock.is_locked() {
            return Err(not_moved("another process removed the lock of the branch"));
        }
        self.log(to_move);
        lock.commit()
    }

    fn is_head(&self, branch: &str) -> bool {
        let head = record::read_text(&self.workspace.common.join("HEAD"));
        let leads = |name: &str| [branch, &self.name].contains(&name.trim_end());
        head.is_ok_and(|head| head.strip_prefix("ref: ").is_some_and(leads))
    }

    /// Appends to the reflogs. Failures are only logged.
    fn log(&self, to_move: Move<'_>) {
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        let (name, mail) = (text(self.who.name_bytes()), text(self.who.email_bytes()));
        let line = format!("{} {} {name} <{mail}> {}\t{WHY}\n", to_move.from, to_move.to, date(self.who.when()));
        let symbolic = Some(to_move.branch).filter(|branch| *branch != self.name);
        for name in [Some(self.name.as_str()), symbolic, self.head.as_ref().map(|_| HEAD)].into_iter().flatten() {
            // None is created.
            plain_ref::append(&self.workspace.common, name, &line);
        }
    }
}

/// Locks a reference and writes the next value to the lock, durably.
fn locked(common: &Path, name: &str, to: &str) -> Result<Prepared, Fault> {
    let update = Update { name, to, before: Before::Any, is_durable: true };
    plain_ref::prepare(common, &update).map_err(|fault| match fault.transient {
        true => fault,
        false => Fault { remedy: fault.remedy, ..not_moved(&fault.cause) },
    })
}

fn not_moved(why: &str) -> Fault {
    Fault::new(format!("cannot move the base: {why}"))
}

/// Updates the ref through the line protocol of `git update-ref --stdin`.
pub(crate) struct GitUpdate {
    git: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    /// Time limit for an answer, and for the end after the last one.
    limit: Duration,
}

impl GitUpdate {
    pub(crate) fn start(workspace: &Workspace) -> Result<Self, Fault> {
        Self::start_within(workspace, ANSWER_MAX)
    }

    /// Starts git as [`GitUpdate::start`] does. `limit`: how long to wait for each answer.
    pub(crate) fn start_within(workspace: &Workspace, limit: Duration) -> Result<Self, Fault> {
        let call = workspace.write().args(LOCKS).args(["update-ref", "-m", WHY, "--stdin"]);
        let mut git = call.start().map_err(CliError::Run)?;
        let (Some(input), Some(output)) = (git.stdin.take(), git.stdout.take()) else {
            return Err(Fault::new("git was started without pipes"));
        };
        Ok(Self { git, input: Some(input), output: BufReader::new(output), limit })
    }

    fn prepare(&mut self, to_move: Move<'_>) -> Result<(), Fault> {
        let Move { branch, from, to } = to_move;
        self.ask("start", "start")?;
        self.ask(&format!("update {branch} {to} {from}\nprepare"), "prepare")
    }

    fn ask(&mut self, words: &str, about: &str) -> Result<(), Fault> {
        let said = self.input.as_mut().map(|input| input.write_all(format!("{words}\n").as_bytes()));
        let mut line = String::new();
        let has_answered = processes::wait_readable(self.output.get_ref(), self.limit);
        if said.is_some_and(|said| said.is_ok()) && has_answered {
            let _ = self.output.read_line(&mut line);
        }
        if line.trim_end() == format!("{about}: ok") {
            return Ok(());
        }
        self.input = None;
        // It has had its time.
        let limit = if has_answered { self.limit } else { Duration::ZERO };
        let killed = exit::end_within(&mut self.git, limit).is_ok_and(|status| status.signal().is_some());
        let stderr = self.git.stderr.take().map(exit::remainder).unwrap_or_default();
        let why = parse::first_useful_line(&stderr).unwrap_or_else(|| format!("git did not answer '{about}'"));
        Err(Fault { transient: killed, killed, ..not_moved(&why) })
    }
}

impl Drop for GitUpdate {
    fn drop(&mut self) {
        self.input = None;
        let _ = exit::end_within(&mut self.git, self.limit);
    }
}
