//! Starts an attempt for a controller. Each step finds what an earlier try has done:
//!
//! | step | write | if everything is killed right after it |
//! |---|---|---|
//! | 1 | `begun.json`: what was asked | nothing depends on it yet |
//! | 2 | the work of an earlier attempt is pinned, and its worktree removed if it does not fit | the same again |
//! | 3 | the branch is set to the tip | the same again |
//! | 4 | ignored files in the clone, from where the worktree gets them; `prompt.md` and `order.json`, or `command.json` | the same again |
//! | 5 | the supervisor starts the worker | a repeated request finds the worker |
//! | 6 | the files in the clone are removed | removed by the next start or `forget` |
//!
//! A command without a worktree works in an empty directory of its attempt, so that steps 2, 3 and 6 are none.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Component, Path};

use swarm_agents::{Session, Turn};
use swarm_git::clones;
use swarm_git::repository::is_branch_name;
use swarm_git::worktrees::include;
use swarm_model::{Caller, CleanRequest, Contract, RefusalKind, Scope, SpawnRequest, WorktreeRequest};
use swarm_ports::WorktreeError;
use swarm_store::runs::far::{FarAnswer, FarCommand, FarStart, FarTree, FarWork};
use swarm_store::runs::home::make_all;
use swarm_store::runs::order::{self, Order, PROMPT};
use swarm_store::tenants::remove_worktree_saving;
use swarm_sys::files::reserve::is_full;
use swarm_sys::files::{is_absent, remove_if_present, replace_durably};
use swarm_sys::lookup::{self, Place};
use swarm_sys::state_id::state_id;

use super::host::{Found, Host, Worker, answer_of, answer_to, bare, load, settled};
use super::place::{Attempt, Begun, COMMAND, check_leaf, forget_end, read_end};
use super::{aside, branches, say};
use crate::processes::pilot::{NoTime, no_time};

/// Starts the attempt, or finds its worker.
pub fn start(host: &Host, asked: &FarStart) -> Result<FarAnswer, FarAnswer> {
    let attempt = Attempt::of(&asked.at, &host.paths).map_err(FarAnswer::Refused)?;
    check(asked).map_err(FarAnswer::Refused)?;
    // Another connection may be about to start it.
    let lock = attempt.lock().map_err(|error| io_failed(&attempt.dir, &error));
    let _lock = lock.map_err(unknown)?;
    let found = host.worker(&attempt).map_err(unknown)?;
    match &found {
        Found::Its(worker) => return Ok(started(host, worker.generation)),
        // It has been started, and has ended since. It is not executed once more.
        Found::Again(worker) if worker.executes(&attempt) => return Ok(started(host, worker.generation)),
        Found::Sibling(worker) if number(worker.request()) > Some(asked.at.attempt) => {
            return Err(FarAnswer::Refused(format!("a later attempt has been started: {}", worker.request())));
        }
        Found::Sibling(worker) | Found::Again(worker) if asked.tree.is_none() && !is_over(&attempt, worker) => {
            let cause = format!("an earlier attempt still works: {}", worker.request());
            return Err(FarAnswer::Unfit { program: None, cause });
        }
        // A person has cleaned its worker, or a later worker is in its place. It has ended, and is not executed again.
        _ if attempt.has_ended(asked) => return Ok(started(host, 0)),
        Found::None | Found::Sibling(_) | Found::Again(_) | Found::Strange => {}
    }
    // An earlier call has written the order, and perhaps asked the supervisor.
    let record = attempt.dir.join(record_of(&asked.work));
    let was_asked = !is_absent(&record) && !matches!(found, Found::Strange);
    let caller = host.caller(&attempt.clone);
    let prepared = prepare(host, &attempt, asked, &caller);
    let _branches = prepared.map_err(|answer| if was_asked { unknown(answer) } else { answer })?;
    let answer = host.ask(&request(host, &attempt, asked, &caller));
    // While it is not known whether the worktree is made, it may still get them.
    let is_known = match &answer {
        Ok(spawned) => spawned.is_some(),
        Err(refusal) => is_certain(refusal.kind, was_asked),
    };
    if is_known && asked.tree.is_some() {
        let _ = include::clear(&attempt.clone);
    }
    match answer {
        Ok(Some(spawned)) => Ok(started(host, spawned.generation)),
        Ok(None) => Err(FarAnswer::Unknown("the supervisor gave no answer".to_owned())),
        Err(refusal) if is_certain(refusal.kind, was_asked) => {
            // Nothing was started with it.
            let _ = remove_if_present(&record);
            Err(of_attempt(answer_of(refusal)))
        }
        Err(refusal) => Err(unknown(answer_of(refusal))),
    }
}

/// Prepares everything but the worker. Returns the lock under which branches are set and worktrees made.
fn prepare(host: &Host, attempt: &Attempt, asked: &FarStart, caller: &Caller) -> Result<Option<fs::File>, FarAnswer> {
    host.check_room()?;
    match no_time(&host.paths, asked.timeout_ms) {
        Some(NoTime::Closed(cause)) => return Err(FarAnswer::Busy(cause)),
        Some(NoTime::TooLong(cause)) => return Err(FarAnswer::Unfit { program: None, cause }),
        None => {}
    }
    check_program(host, &asked.work)?;
    let written = |error: io::Error| of_attempt(io_failed(&attempt.dir, &error));
    for dir in [attempt.home.path(), &attempt.home.logs(), &attempt.dir] {
        make_all(dir).map_err(written)?;
    }
    forget_end(&attempt.dir).map_err(written)?;
    let held = match &asked.tree {
        Some(_) if !attempt.clone.is_dir() => {
            return Err(FarAnswer::Gone(format!("there is no clone {}", attempt.clone.display())));
        }
        Some(tree) => {
            // Held until the worktree is made: another run may want the same branch, or set who commits.
            let lock = attempt.site.lock_clone().map_err(written)?;
            let committer = tree.committer.as_ref().map(|known| (known.name.as_str(), known.email.as_str()));
            clones::check_identity(&attempt.clone, committer, caller).map_err(answer_to)?;
            branches::prepare(host, attempt, tree, caller).map_err(of_attempt)?;
            put_files(attempt, tree).map_err(of_attempt)?;
            Some(lock)
        }
        None => {
            Begun::here().write(&attempt.dir).map_err(written)?;
            None
        }
    };
    say::leave(&attempt.home.context(&asked.at.job), &asked.messages).map_err(written)?;
    match &asked.work {
        FarWork::Agent { order, prompt } => write_order(attempt, order, prompt).map_err(written)?,
        FarWork::Command(command) => {
            make_all(&attempt.work_dir(&command.dir)).map_err(written)?;
            replace_durably(&attempt.dir, COMMAND, &serde_json::to_vec(command).unwrap_or_default())
                .map_err(written)?;
        }
    }
    Ok(held)
}

/// Puts ignored files into the clone, from where the worktree gets them.
fn put_files(attempt: &Attempt, tree: &FarTree) -> Result<(), FarAnswer> {
    let files = tree.include.iter().map(|file| include::File {
        path: file.path.clone(),
        mode: file.mode,
        content: file.content().to_vec(),
    });
    include::put(&attempt.clone, &files.collect::<Vec<_>>()).map_err(answer_to)
}

/// Returns the name of the file that is written right before the supervisor is asked for the worker.
fn record_of(work: &FarWork) -> &'static str {
    match work {
        FarWork::Agent { .. } => order::ORDER,
        FarWork::Command(_) => COMMAND,
    }
}

/// Returns the answer for a failure that does not tell whether the worker was started.
fn unknown(answer: FarAnswer) -> FarAnswer {
    match answer {
        FarAnswer::Busy(cause) | FarAnswer::Refused(cause) | FarAnswer::Unfit { cause, .. } => {
            FarAnswer::Unknown(cause)
        }
        // What is sent once more is harmless, and so is another start.
        answer => answer,
    }
}

/// Returns the answer for a failure that says nothing about other attempts, such as a lock of git, or a branch or a name that
/// somebody else has. It may be gone soon.
fn of_attempt(answer: FarAnswer) -> FarAnswer {
    match answer {
        FarAnswer::Busy(cause) | FarAnswer::Refused(cause) => FarAnswer::Unfit { program: None, cause },
        answer => answer,
    }
}

/// Reports whether a refusal of the supervisor means that the request has started no worker. If it may have been asked
/// before, the name may be taken by that worker.
fn is_certain(kind: RefusalKind, was_asked: bool) -> bool {
    match kind {
        RefusalKind::NotFound | RefusalKind::Invalid | RefusalKind::Worktree | RefusalKind::Start => true,
        RefusalKind::Exists | RefusalKind::Running => !was_asked,
        RefusalKind::Registry | RefusalKind::Tool | RefusalKind::Stopping | RefusalKind::Internal => false,
    }
}

fn started(host: &Host, generation: u64) -> FarAnswer {
    FarAnswer::Started { generation, host: state_id(&host.paths).ok(), load: load() }
}

pub fn io_failed(dir: &Path, error: &io::Error) -> FarAnswer {
    let cause = format!("{}: {error}", dir.display());
    if is_full(error) { FarAnswer::Busy(cause) } else { FarAnswer::Refused(cause) }
}

/// Reports whether an earlier attempt is over. A worker that was killed with its shim, or by a restart of the machine, leaves
/// no exit record: its end is known once the controller was told.
fn is_over(attempt: &Attempt, worker: &Worker) -> bool {
    let dir = number(worker.request()).map(|number| attempt.home.attempt(&attempt.at.job, number));
    worker.has_ended() || dir.is_some_and(|dir| read_end(&dir).is_some())
}

/// Returns the number of the attempt in a request.
fn number(request: &str) -> Option<u32> {
    request.rsplit('/').next()?.parse().ok()
}

fn check(asked: &FarStart) -> Result<(), String> {
    match &asked.work {
        FarWork::Agent { .. } if asked.tree.is_none() => return Err("an agent needs a worktree".to_owned()),
        FarWork::Agent { .. } => {}
        FarWork::Command(command) => check_command(command)?,
    }
    asked.tree.as_ref().map_or(Ok(()), check_tree)
}

fn check_command(command: &FarCommand) -> Result<(), String> {
    let is_plain = |part: Component| matches!(part, Component::Normal(_));
    if !Path::new(&command.dir).components().all(is_plain) || command.dir.contains('\0') {
        return Err(format!("invalid directory '{}'", command.dir.escape_debug()));
    }
    match command.argv.first().is_none_or(String::is_empty) {
        true => Err("the command is empty".to_owned()),
        false => Ok(()),
    }
}

fn check_tree(asked: &FarTree) -> Result<(), String> {
    check_leaf(&asked.leaf).map_err(|cause| format!("invalid name of a worktree: {cause}"))?;
    for branch in [&asked.branch, &asked.base] {
        if !is_branch_name(branch) {
            return Err(format!("'{}' is not a valid branch name", branch.escape_debug()));
        }
    }
    if asked.branch == asked.base {
        return Err(format!("'{}' is the base", asked.base));
    }
    for commit in [&asked.tip, &asked.base_commit] {
        if !clones::is_commit_id(commit) {
            return Err(format!("'{}' is not the id of a commit", commit.escape_debug()));
        }
    }
    Ok(())
}

/// Fails unless the program of the agent, or of the command, is installed here.
fn check_program(host: &Host, work: &FarWork) -> Result<(), FarAnswer> {
    let launch = match work {
        FarWork::Agent { order, .. } => order.agent.launch(&Turn::default()).argv,
        FarWork::Command(command) => command.argv.clone(),
    };
    let Some(program) = launch.first() else { return Ok(()) };
    let own = match work {
        FarWork::Agent { .. } => None,
        FarWork::Command(command) => command.env.get("PATH").map(String::as_str),
    };
    let found = lookup::check(program, own.or_else(|| host.variable("PATH")), &Place::LaterWorktree);
    found.map_err(|_| FarAnswer::Unfit {
        program: Some(program.clone()),
        cause: format!("'{program}' is not installed on this host"),
    })
}

/// Forgets the worker of an earlier attempt, and removes the worktree of the job. What is not committed there is saved
/// under `refs/swarm/trash/`. A directory that has lost its clone is put aside.
pub fn remove_tree(host: &Host, attempt: &Attempt, tree: &Path, caller: &Caller) -> Result<(), FarAnswer> {
    remove_tree_of(host, attempt, host.worker(attempt)?, tree, caller)
}

/// Removes the worktree of the life of a worker that was found. A life that was started since is left alone, with the worktree.
pub fn remove_tree_of(
    host: &Host,
    attempt: &Attempt,
    found: Found,
    tree: &Path,
    caller: &Caller,
) -> Result<(), FarAnswer> {
    let name = &attempt.at.worker;
    let is_free = match &found {
        Found::None => true,
        Found::Its(worker) | Found::Sibling(worker) | Found::Again(worker) => !worker.facts.lease.held,
        Found::Strange => false,
    };
    if is_free {
        aside::put(attempt, tree).map_err(|error| io_failed(tree, &error))?;
    }
    if let Found::Its(worker) | Found::Sibling(worker) | Found::Again(worker) = found {
        settled(host.ask(&CleanRequest {
            caller: caller.clone(),
            scope: Scope::Names(vec![name.clone()]),
            rm_worktree: true,
            force_dirty: true,
            drop_branch: false,
            started_by: Some(worker.request().to_owned()),
        }))?;
    }
    if is_absent(tree) {
        return Ok(());
    }
    let removed = remove_worktree_saving(name, tree, &attempt.clone, &host.paths, caller);
    removed.map_err(|error| {
        let cause = format!("cannot remove {}: {error}", tree.display());
        match error {
            WorktreeError::Used(_) | WorktreeError::InUse(_) | WorktreeError::Tool(_) => FarAnswer::Busy(cause),
            _ => FarAnswer::Refused(cause),
        }
    })
}

/// Writes prompt and order. They stay if they are written already: an earlier try may have started the worker.
fn write_order(attempt: &Attempt, asked: &Order, prompt: &str) -> io::Result<()> {
    let (dir, home) = (&attempt.dir, &attempt.home);
    let (session, deferred) = match &asked.session {
        Some(session) if is_here(attempt, session) => (Some(session.clone()), asked.deferred.clone()),
        _ => (None, None),
    };
    let order = serde_json::to_vec_pretty(&Order {
        run: attempt.at.run.clone(),
        job: attempt.at.job.clone(),
        attempt: attempt.at.attempt,
        root: Some(attempt.clone.clone()),
        events: home.events(),
        log: home.log(&attempt.at.job),
        context: home.context(&attempt.at.job),
        session,
        deferred,
        ..asked.clone()
    })?;
    let is_there = |name: &str, text: &[u8]| fs::read(dir.join(name)).is_ok_and(|there| there == text);
    if is_there(PROMPT, prompt.as_bytes()) && is_there(order::ORDER, &order) {
        return Ok(());
    }
    replace_durably(dir, PROMPT, prompt.as_bytes())?;
    order::write_order(dir, &order)
}

/// Reports whether an earlier attempt on this host has recorded the conversation. Agents keep them on their machine.
fn is_here(attempt: &Attempt, session: &Session) -> bool {
    let dirs = (1..attempt.at.attempt).map(|earlier| attempt.home.attempt(&attempt.at.job, earlier));
    dirs.filter_map(|dir| order::read_session(&dir)).any(|known| known.id == session.id)
}

fn request(host: &Host, attempt: &Attempt, asked: &FarStart, caller: &Caller) -> SpawnRequest {
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let (argv, env, cwd) = match &asked.work {
        FarWork::Agent { .. } => {
            let argv = vec![text(&host.executable), order::VERB.to_owned(), text(&attempt.dir)];
            (argv, BTreeMap::new(), text(&attempt.clone))
        }
        FarWork::Command(command) => (command.argv.clone(), command.env.clone(), text(&attempt.work_dir(&command.dir))),
    };
    let contract = Contract {
        argv,
        env,
        cwd,
        environment: caller.environment.clone(),
        tags: asked.tags.clone(),
        umask: caller.umask,
        rlimits: caller.rlimits.clone(),
        nice: caller.nice,
        attributes: caller.attributes.clone(),
        timeout_ms: asked.timeout_ms,
        log_limit_bytes: asked.log_limit_bytes,
        session: asked.session.clone(),
        ..Contract::default()
    };
    let worktree = asked.tree.as_ref().map(|tree| WorktreeRequest {
        cwd: text(&attempt.clone),
        branch: Some(tree.branch.clone()),
        dir: Some(text(&attempt.site.worktrees(&attempt.at.run))),
        base: Some(format!("refs/heads/{}", tree.base)),
        leaf: Some(tree.leaf.clone()),
        resume: true,
        ..WorktreeRequest::default()
    });
    SpawnRequest {
        caller: bare(caller, &attempt.request),
        name: attempt.at.worker.clone(),
        contract,
        worktree,
        replaces: Some(attempt.series.clone()),
        takes_over: None,
    }
}

#[cfg(test)]
mod tests {
    use swarm_store::runs::far::{FarAttempt, FarClone};
    use swarm_sys::paths::Paths;

    use super::*;

    #[test]
    fn a_conversation_of_another_machine_is_not_continued() {
        let root = tempfile::tempdir().expect("a directory");
        let clone = FarClone { controller: "c0ffee00".into(), repository: "c0ffee00".into() };
        let at =
            FarAttempt { clone, run: "0a1b2c3d".into(), job: "a".into(), attempt: 3, worker: "p.a".into(), host: None };
        let attempt = Attempt::of(&at, &Paths::new(root.path())).expect("a name");
        let session = |id: &str| Session { id: id.to_owned(), ..Session::default() };
        assert!(!is_here(&attempt, &session("s")));
        let earlier = attempt.home.attempt("a", 1);
        make_all(&earlier).expect("made");
        order::write_session(&earlier, &session("s")).expect("written");
        assert!(is_here(&attempt, &session("s")) && !is_here(&attempt, &session("t")));
        assert_eq!((number(&attempt.request), number("x")), (Some(3), None));
    }
}
