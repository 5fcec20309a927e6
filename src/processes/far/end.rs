//! The end of an attempt for a controller: waits for it, keeps its work, and removes what is left.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use swarm_actors::worker::ended_of;
use swarm_git::clones::{self, Failure, Kept};
use swarm_git::repository::is_branch_name;
use swarm_git::worktrees::{ignored_files, include};
use swarm_model::run::Outcome;
use swarm_model::{Caller, CleanRequest, ExitRecord, KillRequest, RefusalKind, RowWorktree, Scope};
use swarm_ports::Completion;
use swarm_store::processes::SystemProcesses;
use swarm_store::records::DiskRecords;
use swarm_store::runs::far::{FarAnswer, FarAttempt, FarResult};
use swarm_store::runs::home::{end_of, remove_torn};
use swarm_store::runs::order::{self, STREAM};
use swarm_sys::files::{is_absent, list_if_present, remove_if_present, remove_tree};
use swarm_sys::procfs::known_boot_id;

use super::host::{Found, Host, Worker, answer_to, settled};
use super::place::{Attempt, Begun, COMMAND, ELSEWHERE, is_elsewhere, read_end, write_end};
use super::{clone, say, start};
use crate::processes::pilot::was_ended;

/// Number of bytes of each text that are kept as evidence.
const STDERR_BYTES: u64 = 16 << 10;
const LOG_BYTES: u64 = 64 << 10;
const STREAM_BYTES: u64 = 256 << 10;
/// The same for each output of a command.
const OUTPUT_BYTES: u64 = 256 << 10;
/// Maximum number of ignored files that are named.
const IGNORED_MAX: usize = 100;

/// Waits for the end of an attempt, and keeps its work.
pub fn end(host: &Host, at: &FarAttempt, base: &str, subject: Option<String>) -> Result<FarAnswer, FarAnswer> {
    let attempt = Attempt::of(at, &host.paths).map_err(FarAnswer::Refused)?;
    if !base.is_empty() && !is_branch_name(base) {
        return Err(FarAnswer::Refused(format!("'{}' is not a valid branch name", base.escape_debug())));
    }
    let (is_its, exit) = match host.worker(&attempt)? {
        Found::Its(worker) => (true, wait(host, &at.worker, worker.generation)?),
        Found::None | Found::Sibling(_) | Found::Again(_) | Found::Strange => (false, None),
    };
    let begun = match Begun::read(&attempt.dir) {
        Some(begun) => begun,
        None if is_its => {
            let cause =
                format!("worker '{}' has this attempt, and its files are not in {}", at.worker, attempt.dir.display());
            return Err(FarAnswer::Unknown(cause));
        }
        None => return Ok(FarAnswer::Ended(Box::default())),
    };
    let failed = |error: io::Error| FarAnswer::Busy(format!("{}: {error}", attempt.dir.display()));
    // Another connection may ask for the same.
    let _lock = attempt.lock().map_err(failed)?;
    let caller = host.caller(&attempt.clone);
    if let Some(known) = read_end(&attempt.dir) {
        return pinned_again(&attempt, known, &caller);
    }
    let (worker, is_again) = match host.worker(&attempt)? {
        Found::Its(worker) => (Some(worker), false),
        Found::Again(worker) if worker.executes(&attempt) || !begun.has_tree() => (None, true),
        // A person has cleaned the worker.
        Found::None | Found::Strange => (None, false),
        // The worktree is that of another attempt.
        Found::Sibling(_) | Found::Again(_) => return Ok(FarAnswer::Ended(Box::default())),
    };
    let left = if !begun.has_tree() {
        FarResult::default()
    } else if is_clone_gone(&attempt) {
        FarResult { waits: Some(gone("the clone")), ..FarResult::default() }
    } else if is_again {
        beside(&attempt, &begun, &caller).map_err(passing)?
    } else {
        let base = if base.is_empty() { begun.base.as_str() } else { base };
        let left = keep(&attempt, &begun, worker.as_deref(), (base, subject), caller).map_err(passing)?;
        let is_gone = left.tip.is_none() && is_absent(&attempt.tree(&begun.leaf));
        if is_gone { FarResult { waits: Some(gone("its branch with the worktree")), ..left } } else { left }
    };
    let is_restarted = exit.is_none() && begun.is_of_another_boot(known_boot_id().ok().as_deref());
    let is_cut = worker.as_ref().is_some_and(|worker| was_ended(&host.paths, &at.worker, worker.generation));
    let result = FarResult { is_restarted, ..evidence(host, &attempt, exit, worker.is_some(), left) };
    let result = if is_cut { cut(result) } else { result };
    write_end(&attempt.dir, &result).map_err(failed)?;
    Ok(FarAnswer::Ended(Box::new(result)))
}

/// Returns the evidence of an attempt that was ended with its allocation, unless it had succeeded before. It has not failed,
/// and is repeated.
fn cut(result: FarResult) -> FarResult {
    let has_succeeded = match &result.result {
        Some(found) => matches!(found.outcome, Outcome::Success { .. }),
        None => result.exit.as_ref().is_some_and(|exit| exit.ended.is_success()),
    };
    match has_succeeded {
        true => result,
        false => FarResult { exit: None, result: None, is_restarted: true, ..result },
    }
}

/// Answers with a recorded end, whose work may have been removed since.
fn pinned_again(attempt: &Attempt, known: FarResult, caller: &Caller) -> Result<FarAnswer, FarAnswer> {
    let lost = |what: &str| {
        let (waits, strays) = (Some(gone(what)), Vec::new());
        FarResult { tip: None, also: None, strays, waits, ..known.clone() }
    };
    if known.tip.is_some() && is_clone_gone(attempt) {
        return Ok(FarAnswer::Ended(Box::new(lost("the clone"))));
    }
    let Some(tip) = &known.tip else { return Ok(FarAnswer::Ended(Box::new(known))) };
    if !clones::has_commit(&attempt.clone, tip, caller).map_err(passing)? {
        return Ok(FarAnswer::Ended(Box::new(lost("its work"))));
    }
    clones::pin(&attempt.clone, tip, caller).map_err(passing)?;
    Ok(FarAnswer::Ended(Box::new(known)))
}

/// Returns the answer for a failure of git, which says nothing about the host, and may be gone soon.
fn passing(failure: Failure) -> FarAnswer {
    FarAnswer::Unfit { program: None, cause: failure.cause }
}

fn is_clone_gone(attempt: &Attempt) -> bool {
    is_absent(&attempt.clone.join(".git"))
}

fn gone(what: &str) -> String {
    format!("{what} was removed on the host")
}

/// Waits until all processes of this generation are gone.
fn wait(host: &Host, name: &str, generation: u64) -> Result<Option<ExitRecord>, FarAnswer> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| FarAnswer::Busy(format!("cannot wait: {error}")))?;
    let (records, processes) = (DiskRecords::new(host.paths.clone()), SystemProcesses::new());
    Ok(runtime.block_on(ended_of(&records, &processes, name, generation)))
}

/// Commits and pins the work of the attempt, and looks at what else it has left.
fn keep(
    attempt: &Attempt,
    begun: &Begun,
    worker: Option<&Worker>,
    (base, subject): (&str, Option<String>),
    caller: Caller,
) -> Result<FarResult, Failure> {
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let own = || RowWorktree {
        path: text(&attempt.tree(&begun.leaf)),
        branch: begun.branch.clone(),
        base_repo: text(&attempt.clone),
    };
    let worktree = worker.and_then(|worker| worker.worktree.clone()).unwrap_or_else(own);
    let survivors = worker.map_or_else(Vec::new, |worker| worker.facts.lease.survivors.clone());
    let Kept { tip, left_out, waits, also } = clones::keep(&Completion {
        worker: Some((worktree.clone(), None)),
        base: Some(base.to_owned()),
        subject,
        survivors: survivors.iter().map(|process| process.pid).collect(),
        ..Completion::new(attempt.at.worker.as_str(), caller.clone())
    })?;
    let known = tip.iter().chain(&also).chain([&begun.tip, &begun.base_commit]).cloned();
    let strays = clones::strays(&worktree, &begun.base, known, &caller)?;
    let mut ignored = ignored_files(&worktree, &caller);
    ignored.truncate(IGNORED_MAX);
    Ok(FarResult { tip, left_out, waits, also, strays, ignored, ..FarResult::default() })
}

/// Pins the branch of an attempt whose worker has a later life. What that has not committed is not touched.
fn beside(attempt: &Attempt, begun: &Begun, caller: &Caller) -> Result<FarResult, Failure> {
    let tip = clones::branch_tip(&attempt.clone, &begun.branch, caller)?;
    if let Some(tip) = &tip {
        clones::pin(&attempt.clone, tip, caller)?;
    }
    let waits = format!("{} before its work was taken", started_again(attempt));
    Ok(FarResult { tip, waits: Some(waits), ..FarResult::default() })
}

fn started_again(attempt: &Attempt) -> String {
    format!("worker '{}' was started again on the host", attempt.at.worker)
}

/// Returns the evidence of an attempt, beside the work that it has left.
fn evidence(host: &Host, attempt: &Attempt, exit: Option<ExitRecord>, is_known: bool, left: FarResult) -> FarResult {
    let (dir, at) = (&attempt.dir, &attempt.at);
    remove_torn(dir);
    // A result of another order is not that of this attempt.
    let digest = order::read_with_digest(dir).map(|(_, digest)| digest).ok();
    let result = order::read_result(dir).filter(|result| Some(&result.order) == digest.as_ref());
    let tail = |path: &Path, bytes| {
        let end = end_of(path, bytes).unwrap_or_default();
        String::from_utf8_lossy(&end).into_owned()
    };
    // The log may be that of a later worker.
    let output = |kind: &str, bytes| {
        if is_known { tail(&host.paths.log(&at.worker, kind), bytes) } else { String::new() }
    };
    let (stdout, stderr) = match is_absent(&dir.join(COMMAND)) {
        true => (String::new(), output("stderr", STDERR_BYTES)),
        false => (output("stdout", OUTPUT_BYTES), output("stderr", OUTPUT_BYTES)),
    };
    FarResult {
        exit,
        result,
        session: order::read_session(dir),
        stderr,
        stdout,
        log: tail(&attempt.home.log(&at.job), LOG_BYTES),
        stream: tail(&dir.join(STREAM), STREAM_BYTES),
        delivered: say::delivered(&attempt.home.context(&at.job)),
        ..left
    }
}

/// Ends the worker of an attempt. One that was not started, or has ended, is no error.
pub fn stop(host: &Host, at: &FarAttempt) -> Result<FarAnswer, FarAnswer> {
    let attempt = Attempt::of(at, &host.paths).map_err(FarAnswer::Refused)?;
    if !attempt.site.dir().is_dir() {
        return Ok(FarAnswer::Done);
    }
    // A start that was asked for before goes first.
    let _lock = attempt.lock().map_err(|error| FarAnswer::Busy(format!("{}: {error}", attempt.dir.display())))?;
    if let Found::Its(worker) = host.worker(&attempt)? {
        kill(host, &attempt, &worker)?;
    }
    Ok(FarAnswer::Done)
}

/// Keeps a commit that the controller cannot fetch.
pub fn withhold(host: &Host, at: &FarAttempt, commit: &str) -> Result<FarAnswer, FarAnswer> {
    let attempt = Attempt::of(at, &host.paths).map_err(FarAnswer::Refused)?;
    if !clones::is_commit_id(commit) {
        return Err(FarAnswer::Refused(format!("'{}' is not the id of a commit", commit.escape_debug())));
    }
    let caller = host.caller(&attempt.clone);
    if !is_clone_gone(&attempt) && clones::has_commit(&attempt.clone, commit, &caller).map_err(passing)? {
        clones::withhold(&attempt.clone, commit, &caller).map_err(passing)?;
    }
    Ok(FarAnswer::Done)
}

/// Ends this life of a worker. If somebody here has started the worker again meanwhile, that life is left alone.
fn kill(host: &Host, attempt: &Attempt, worker: &Worker) -> Result<(), FarAnswer> {
    if worker.has_ended() {
        return Ok(());
    }
    let (caller, scope) = (host.caller(host.paths.root()), Scope::Names(vec![attempt.at.worker.clone()]));
    let started_by = Some(worker.request().to_owned());
    let request = KillRequest { caller, scope, rm_worktree: false, force_dirty: false, started_by, generation: None };
    match host.ask(&request) {
        Err(refusal) if refusal.kind == RefusalKind::Exists => Ok(()),
        ended => settled(ended),
    }
}

/// Removes everything of a job. What is not pinned is saved first, or stays. A worker that somebody here has started again stays
/// with its worktree, its branch and its files, whether it works or has ended.
pub fn forget(host: &Host, at: &FarAttempt) -> Result<FarAnswer, FarAnswer> {
    // The machine that has it is asked once it answers under its name again.
    if is_elsewhere(at, &host.paths).map_err(FarAnswer::Refused)? {
        return Err(FarAnswer::Unknown(ELSEWHERE.to_owned()));
    }
    let attempt = Attempt::of(at, &host.paths).map_err(FarAnswer::Refused)?;
    if !attempt.site.dir().is_dir() {
        return Ok(FarAnswer::Done);
    }
    let failed = |error: io::Error| FarAnswer::Busy(format!("{}: {error}", attempt.home.path().display()));
    let _lock = attempt.lock().map_err(failed)?;
    if attempt.is_past().map_err(failed)? {
        // It arrives late: a later attempt of the job has begun.
        return Ok(FarAnswer::Done);
    }
    let found = own_worker(host, &attempt)?;
    let has_clone = !is_clone_gone(&attempt);
    let caller = host.caller(if has_clone { &attempt.clone } else { attempt.site.dir() });
    let dirs = attempt.all().map_err(failed)?;
    let begun: Vec<Begun> = dirs.iter().filter_map(|dir| Begun::read(dir)).filter(Begun::has_tree).collect();
    if let Found::Its(worker) | Found::Sibling(worker) = found {
        kill(host, &attempt, &worker)?;
        if begun.is_empty() {
            forget_worker(host, &attempt, &worker, &caller)?;
        }
    }
    let tips: Vec<String> = dirs.iter().filter_map(|dir| read_end(dir)).flat_map(pinned_by).collect();
    for one in &begun {
        // It may have been started again meanwhile.
        let found = own_worker(host, &attempt)?;
        start::remove_tree_of(host, &attempt, found, &attempt.tree(&one.leaf), &caller)?;
        let known = [&one.tip, &one.base_commit].into_iter().chain(&one.before).chain(&tips);
        let known: Vec<&str> = known.map(String::as_str).collect();
        clones::drop_branch(&attempt.clone, &one.branch, &known, &caller).map_err(answer_to)?;
    }
    set_back(&attempt, &begun, &tips, &caller)?;
    drop_references(&attempt, &begun, tips, &caller)?;
    clear_clone(&attempt).map_err(failed)?;
    remove_files(&attempt, &dirs).map_err(failed)?;
    attempt.remove_lock();
    tidy_clones(host, &attempt, &caller);
    Ok(FarAnswer::Done)
}

/// Takes commits that were fetched off the base branches.
fn set_back(attempt: &Attempt, begun: &[Begun], tips: &[String], caller: &Caller) -> Result<(), FarAnswer> {
    if is_clone_gone(attempt) {
        return Ok(());
    }
    let failed = |error: io::Error| FarAnswer::Busy(format!("{}: {error}", attempt.site.dir().display()));
    let _lock = attempt.site.lock_clone().map_err(failed)?;
    for one in begun {
        clones::set_back(&attempt.clone, (&one.base, &one.base_commit), tips, caller).map_err(answer_to)?;
    }
    Ok(())
}

/// Removes ignored files that a start which was killed has left in the clone.
fn clear_clone(attempt: &Attempt) -> io::Result<()> {
    if is_clone_gone(attempt) {
        return Ok(());
    }
    let _lock = attempt.site.lock_clone()?;
    include::clear(&attempt.clone)
}

/// Prunes the clone once no attempt needs what it has, and removes clones that are not used any more.
fn tidy_clones(host: &Host, attempt: &Attempt, caller: &Caller) {
    if attempt.site.has_attempts().is_ok_and(|has| !has)
        && !is_clone_gone(attempt)
        && let Err(failure) = clones::prune(&attempt.clone, caller)
    {
        tracing::warn!(clone = %attempt.clone.display(), cause = failure.cause, "cannot prune a clone");
    }
    clone::remove_unused(host);
}

/// Returns the worker of a job that is to be forgotten. Fails if somebody here has started it again.
fn own_worker(host: &Host, attempt: &Attempt) -> Result<Found, FarAnswer> {
    match host.worker(attempt)? {
        Found::Again(_) => {
            Err(FarAnswer::Refused(format!("{}, and stays there with its worktree", started_again(attempt))))
        }
        found => Ok(found),
    }
}

/// Removes a worker of which there is nothing else.
fn forget_worker(host: &Host, attempt: &Attempt, worker: &Worker, caller: &Caller) -> Result<(), FarAnswer> {
    let scope = Scope::Names(vec![attempt.at.worker.clone()]);
    let (rm_worktree, force_dirty, drop_branch) = (true, true, false);
    let started_by = Some(worker.request().to_owned());
    let request = CleanRequest { caller: caller.clone(), scope, rm_worktree, force_dirty, drop_branch, started_by };
    settled(host.ask(&request))
}

/// Returns the commits that the end of an attempt has pinned.
fn pinned_by(end: FarResult) -> impl Iterator<Item = String> {
    end.tip.into_iter().chain(end.also).chain(end.strays)
}

/// Removes the refs that only attempts of this job needed.
fn drop_references(attempt: &Attempt, begun: &[Begun], tips: Vec<String>, caller: &Caller) -> Result<(), FarAnswer> {
    let failed = |error: io::Error| FarAnswer::Busy(format!("{}: {error}", attempt.site.dir().display()));
    let (mut sent, mut done) = (Vec::new(), Vec::new());
    for dir in attempt.others().map_err(failed)? {
        let (begun, end) = (Begun::read(&dir), read_end(&dir));
        done.extend(end.into_iter().flat_map(pinned_by).chain(begun.as_ref().and_then(|one| one.before.clone())));
        sent.extend(begun.into_iter().flat_map(|one| [one.tip, one.base_commit]));
    }
    let clone = &attempt.clone;
    let before = begun.iter().filter_map(|one| one.before.clone());
    for tip in tips.into_iter().chain(before).filter(|tip| !done.contains(tip)) {
        clones::unpin(clone, &tip, caller).map_err(answer_to)?;
    }
    let own = begun.iter().flat_map(|one| [&one.tip, &one.base_commit]);
    for commit in own.filter(|commit| !sent.contains(commit)) {
        clones::drop_sent(clone, commit, caller).map_err(answer_to)?;
    }
    Ok(())
}

/// Removes the files of the job, and those of the run with its last job.
fn remove_files(attempt: &Attempt, dirs: &[PathBuf]) -> io::Result<()> {
    let (home, job) = (&attempt.home, &attempt.at.job);
    for dir in dirs {
        remove_tree(dir)?;
    }
    remove_tree(&home.context(job))?;
    for log in [home.log(job), home.log(job).with_extension("log.1")] {
        remove_if_present(&log)?;
    }
    if list_if_present(&home.path().join("attempts"))?.is_empty() {
        remove_tree(home.path())?;
    }
    // It stays if it has a worktree of another job.
    let _ = fs::remove_dir(attempt.site.worktrees(&attempt.at.run));
    Ok(())
}
