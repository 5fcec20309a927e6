//! Sessions: the `.agent` folder of a worktree, in a format that unites those of two original programs.
//!
//! The originals do not write safely. Here every write happens under the folder's lock, goes to a temporary file
//! first, and preserves unknown fields.
//!
//! - `folder`: one folder, held open
//! - `check`: the observable facts of a session
//! - `store`: `state.json`; `beat`: `heartbeat.json`
//! - `activity`: what an agent reports that it does
//! - `kept`: where an agent keeps its conversation
//! - `reports`: listens to those reports
//! - `ends`: how turns ended that no report says
//! - `resume`: how an interrupted agent resumes
//! - this file: what is written from the start of a worker to its end

mod activity;
mod beat;
mod check;
mod ends;
pub(crate) mod folder;
pub mod hooked;
mod kept;
mod progress;
mod reports;
mod resume;
mod store;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use swarm_actors::sessions::recovery::{self, Known};
use swarm_model::Recovery;
pub use swarm_model::SESSION_FOLDER as FOLDER;
use swarm_model::{Fence, Reason, Resume, Session, SessionOwner, SessionPlan, SessionStatus, Spec, WORK_TYPES};
use swarm_ports::{Beaten, BoxFuture, Life, LifeEnd, News, Opening, SessionError, Sessions, Sight};

pub use self::activity::{Tool, activity, note, note_without_session, recorded, write_activity, write_todos};
pub use self::check::{Checked, answer, attempts_max, check};

use self::beat::Beater;
pub use self::beat::HEARTBEAT;
use self::check::known;
use self::folder::Folder;
pub use self::kept::{Conversation, conversation, note_conversation};
pub use self::progress::line as progress_line;
use self::reports::Reports;
pub use self::resume::{PROMPT as RECOVERY_PROMPT, how};
pub use self::store::{Change, StoreError, read, read_expect, replace, update};
use crate::asks::Asks;
use swarm_agents::end_words;
use swarm_sys::clock::{now_iso, wall_ms};
use swarm_sys::paths::Paths;
use swarm_sys::pool::Pool;
use swarm_sys::procfs;

/// Default interval between two beats, in milliseconds.
const INTERVAL_MS: u64 = 10_000;
/// Environment variable that sets the interval.
const INTERVAL: &str = "AGENT_HEARTBEAT_INTERVAL_MS";
/// Minimum interval between two beats, in milliseconds.
const INTERVAL_MS_MIN: u64 = 100;

/// Maximum time that a session counts as being started, in milliseconds.
const BEGINNING_MS_MAX: u64 = 60_000;
const PROGRESS: &str = "progress.log";
const PROGRESS_BYTES_MAX: u64 = 1 << 20;
/// To-do items, as the agent keeps them.
const TODOS: &str = "todos.json";
const PRESERVED: &str = "preserved.json";

/// Reads a positive number from an environment variable.
fn set(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.trim().parse().ok().filter(|number| *number > 0)
}

/// Sessions of this machine's workers.
pub struct DiskSessions {
    paths: Paths,
    /// Program that agents' hooks run to report their activity. `None` if it may have been removed by then.
    program: Option<PathBuf>,
    boot: String,
    beater: Arc<Beater>,
    /// Threads that read and write sessions.
    disks: Arc<Pool>,
    /// Threads that look for the programs of agents.
    looks: Arc<Pool>,
    /// Maximum time for such a look.
    look_max: Duration,
    reports: Reports,
}

/// Maximum number of threads that may wait for the disks of sessions.
const DISKS_MAX: usize = 256;
/// Maximum number of threads that may wait for the disks of programs.
const LOOKS_MAX: usize = 16;
/// Maximum time to find out whether an agent takes hooks. Without an answer it gets none.
const LOOK_MAX: Duration = Duration::from_secs(2);

impl DiskSessions {
    pub fn new(paths: Paths, program: Option<PathBuf>) -> Self {
        let disks = Pool::new(DISKS_MAX);
        Self {
            paths,
            program,
            boot: procfs::boot_id(),
            beater: Arc::default(),
            reports: Reports::new(Arc::clone(&disks)),
            disks,
            looks: Pool::new(LOOKS_MAX),
            look_max: LOOK_MAX,
        }
    }
}

impl From<StoreError> for Failed {
    fn from(error: StoreError) -> Self {
        Self(of_store(&error))
    }
}

/// Wraps an error to pass it through [`update`].
struct Failed(SessionError);

fn system(error: &impl ToString) -> SessionError {
    SessionError::System(error.to_string())
}

fn of_store(error: &StoreError) -> SessionError {
    match error {
        StoreError::System(cause) if folder::is_foreign(cause) => SessionError::Blocked(error.to_string()),
        _ => system(error),
    }
}

fn open(opening: &Opening) -> Result<Option<String>, SessionError> {
    let (plan, base) = (&opening.plan, Path::new(&opening.plan.dir));
    let path = plan.folder();
    let checked = check(base).map_err(|error| of_store(&error.into()))?;
    let note = checked.malformed.as_ref().map(|cause| format!("{cause}; moved it aside"));
    // The check is repeated under the lock: of two concurrent starts only one succeeds.
    let begun = update::<_, Failed>(base, |session| {
        if let Some(found) = session.identifier().filter(|found| *found != plan.identifier) {
            let (wanted, worker) = (plan.identifier.clone(), session.owner().map(|owner| owner.worker));
            return Err(Failed(SessionError::Mismatch { path: path.clone(), found, wanted, worker }));
        }
        let now = Checked { state: Some(session.clone()), known: known(Some(session), checked.beat_pid), ..checked };
        if recovery::is_alive(&now.facts(None)) || is_being_started(session, opening) {
            return Err(Failed(SessionError::Alive { path: path.clone(), evidence: evidence(&now, base) }));
        }
        begin(session, opening);
        Ok(Change::Write(()))
    });
    begun.map_err(|Failed(error)| error)?;
    folder::exclude(base);
    forget_earlier(base);
    let event = if opening.again { "recovery" } else { "start" };
    progress::append(base, event, &format!("generation {} of {}", opening.generation, opening.worker));
    Ok(note)
}

/// Reports whether another worker has just marked the session as being started. The mark of a supervisor that died
/// meanwhile expires after `BEGINNING_MS_MAX`.
fn is_being_started(session: &Session, opening: &Opening) -> bool {
    let other = session.owner().is_some_and(|owner| owner.worker != opening.worker);
    let begins = session.status() == Some(SessionStatus::Initializing);
    let age_ms = i64::try_from(wall_ms()).unwrap_or(i64::MAX).abs_diff(session.integer("lastUpdatedAt").unwrap_or(0));
    other && begins && age_ms < BEGINNING_MS_MAX
}

/// Returns why the agent of the session in `base` counts as alive. A heartbeat that lies ahead stays young until the clock
/// has reached it, so that only its removal helps.
pub fn evidence(checked: &Checked, base: &Path) -> String {
    let process = checked.state.as_ref().and_then(Session::owner).and_then(|owner| owner.process);
    match (checked.known, process, checked.beat_ms) {
        (Known::Alive, Some(process), _) => format!("process {} is alive", process.pid),
        (_, _, Some(beat_ms)) => {
            let age_ms = i64::try_from(wall_ms()).unwrap_or(i64::MAX).saturating_sub(beat_ms);
            if age_ms >= 0 {
                return format!("last heartbeat {} s ago", age_ms / 1000);
            }
            let (file, ahead_s) = (base.join(FOLDER).join(HEARTBEAT), age_ms.unsigned_abs().div_ceil(1000));
            let is = format!("the last heartbeat in {} is {ahead_s} s ahead of the clock", file.display());
            format!("{is}; delete that file if no agent works there")
        }
        _ => "according to its state".to_owned(),
    }
}

/// Sets the state of a session before its agent runs. Fields of other programs stay.
fn begin(session: &mut Session, opening: &Opening) {
    let plan = &opening.plan;
    if session.issue_id().is_none() {
        session.set("issueId", &opening.session_id);
    }
    let before = if opening.again { session.recoveries() } else { 0 };
    let recoveries = before.saturating_add(i64::from(opening.counts));
    let suffix = WORK_TYPES.iter().find(|(name, _)| *name == plan.work_type).map_or("DEV", |(_, suffix)| suffix);
    if !opening.again || session.integer("startedAt").is_none_or(|at| at == 0) {
        session.set("startedAt", &wall_ms());
    }
    session.set("issueIdentifier", &plan.identifier);
    session.set_session_id(&opening.session_id);
    // A conversation can be resumed only by the same provider, for the same type of work.
    let same = |key: &str, value: &str| session.text(key).is_none_or(|was| was == value);
    if !opening.again
        || !same("workType", &plan.work_type)
        || !same("providerName", plan.provider.as_deref().unwrap_or_default())
    {
        session.set("providerSessionId", &());
    }
    match &plan.provider {
        Some(provider) => session.set("providerName", provider),
        None => session.remove("providerName"),
    }
    session.set("workType", &plan.work_type);
    session.set("prompt", &plan.prompt);
    session.set_status(SessionStatus::Initializing);
    session.set("currentStep", &"spawning");
    session.set("currentPhase", &"starting");
    session.set_recoveries(recoveries);
    session.set("pid", &());
    session.set("workerId", &opening.worker);
    session.set("taskListId", &format!("{}-{suffix}", plan.identifier));
    session.remove("errorMessage");
    session.set_owner(&SessionOwner {
        worker: opening.worker.clone(),
        generation: opening.generation,
        host: swarm_sys::clock::host(),
        machine: Some(swarm_sys::machine::this().clone()),
        process: None,
        end: None,
    });
}

/// Removes the activity and the last beat of an earlier agent.
fn forget_earlier(base: &Path) {
    if let Ok(Some(folder)) = Folder::open(base) {
        activity::forget(&folder);
        let _ = folder.remove(HEARTBEAT);
    }
}

fn is_ours(session: &Session, session_id: &str) -> bool {
    session.session_id().as_deref() == Some(session_id)
}

fn run(life: &Life, known: Option<&Fence>) -> Result<Fence, SessionError> {
    let none = || SessionError::System(format!("worker '{}' has no session", life.worker));
    let plan = life.plan.as_ref().ok_or_else(none)?;
    let base = Path::new(&plan.dir);
    if !base.is_dir() {
        return Err(SessionError::System(format!("{} does not exist any more", base.display())));
    }
    let changed = update::<_, Failed>(base, |session| {
        if session.session_id().is_none() && session.identifier().is_none() {
            // The file was removed while the agent runs: it is recreated from the known values.
            begin(session, &opening(life, plan));
            if let Some(known) = known {
                // The start time identifies the session: a concurrent beat must not take it for another one.
                session.set("startedAt", &known.started_ms);
            }
        }
        if !is_ours(session, &life.session_id) {
            return Err(Failed(SessionError::Taken { path: plan.folder(), found: session.fence() }));
        }
        if session.status().is_some_and(SessionStatus::is_over) {
            return Ok(Change::Keep(session.fence()));
        }
        session.set_status(SessionStatus::Running);
        session.set("currentStep", &"streaming");
        session.set("currentPhase", &"running");
        session.set("pid", &life.process.pid);
        let owner = SessionOwner { process: Some(life.process.clone()), ..session.owner().unwrap_or_default() };
        session.set_owner(&owner);
        Ok(Change::Write(session.fence()))
    });
    changed.map(|(_, fence)| fence).map_err(|Failed(error)| error)
}

fn opening(life: &Life, plan: &SessionPlan) -> Opening {
    Opening {
        plan: plan.clone(),
        worker: life.worker.clone(),
        generation: life.generation,
        session_id: life.session_id.clone(),
        again: false,
        counts: false,
    }
}

/// Maps an end to the session status, the error message, and the value of the owner's `end` field.
fn ending(end: LifeEnd) -> (SessionStatus, Option<String>, &'static str) {
    match end {
        None => (SessionStatus::Failed, Some("ended without an exit record".to_owned()), "unknown"),
        Some((ended, Reason::Exited)) if ended.is_success() => (SessionStatus::Completed, None, "completed"),
        Some((ended, Reason::Exited)) => (SessionStatus::Failed, Some(end_words(ended)), "provider-error"),
        Some((_, Reason::Stopped)) => (SessionStatus::Stopped, None, "operator-cancelled"),
        Some((_, Reason::Closed)) => (SessionStatus::Stopped, Some("the window was closed".to_owned()), "closed"),
        Some((_, Reason::Timeout)) => (SessionStatus::Failed, Some("reached its time limit".to_owned()), "timeout"),
        Some((_, Reason::OutOfMemory)) => {
            (SessionStatus::Failed, Some("ran out of memory".to_owned()), "out-of-memory")
        }
        Some((_, Reason::Output)) => (SessionStatus::Failed, Some("exceeded its output limit".to_owned()), "output"),
        Some((_, Reason::Abandoned)) => {
            (SessionStatus::Stopped, Some("the state directory was removed".to_owned()), "abandoned")
        }
    }
}

fn finish(
    base: &Path,
    session_id: &str,
    pid: Option<i32>,
    (status, cause, word): (SessionStatus, Option<String>, &str),
) -> Result<(), SessionError> {
    // If the worktree or the folder was removed, there is no session to end.
    let Some(folder) = Folder::open(base).map_err(|error| system(&error))? else { return Ok(()) };
    // The beat is removed first, whatever the state says: a reader that knows only the beat would consider the
    // session alive until the beat is stale.
    if pid.is_some() && beat::stamp_of(&folder).map(|(_, pid)| pid) == pid {
        folder.remove(HEARTBEAT).map_err(|error| system(&error))?;
    }
    folder.remove(&beat::spare(session_id)).map_err(|error| system(&error))?;
    let changed = update::<_, Failed>(base, |session| {
        if !is_ours(session, session_id) || session.status().is_some_and(SessionStatus::is_over) {
            return Ok(Change::Keep(false));
        }
        session.set_status(status);
        session.set("currentStep", &"completed");
        session.set("currentPhase", &status);
        session.set("pid", &());
        if let Some(cause) = &cause {
            session.set("errorMessage", cause);
        }
        let owner = session.owner().unwrap_or_default();
        session.set_owner(&SessionOwner { end: Some(word.to_owned()), ..owner });
        Ok(Change::Write(true))
    });
    let (_, ended) = changed.map_err(|Failed(error)| error)?;
    if ended {
        let event = match status {
            SessionStatus::Completed => "complete",
            SessionStatus::Failed => "error",
            _ => "stop",
        };
        progress::append(base, event, cause.as_deref().unwrap_or(word));
    }
    Ok(())
}

/// Withdraws a counted recovery attempt whose agent was never executed.
fn uncount(opening: &Opening) -> Result<(), SessionError> {
    if !opening.counts {
        return Ok(());
    }
    let changed = update::<_, Failed>(Path::new(&opening.plan.dir), |session| {
        if !is_ours(session, &opening.session_id) {
            return Ok(Change::Keep(()));
        }
        let recoveries = session.recoveries();
        session.set_recoveries(recoveries.saturating_sub(1).max(0));
        Ok(Change::Write(()))
    });
    changed.map(|_| ()).map_err(|Failed(error)| error)
}

fn preserve(base: &Path, reason: &str, details: &str) -> io::Result<()> {
    let Some(folder) = Folder::open(base)? else { return Ok(()) };
    let issue = store::load(&folder).ok().flatten().and_then(|session| session.issue_id()).unwrap_or_default();
    let kept = json!({
        "preservedAt": now_iso(),
        "issueId": issue,
        "reason": reason,
        "details": details,
    });
    folder.replace(PRESERVED, format!("{kept:#}").as_bytes(), true)?;
    folder.remove(HEARTBEAT)
}

async fn blocking<T: Send + 'static>(
    disks: Arc<Pool>,
    work: impl FnOnce() -> Result<T, SessionError> + Send + 'static,
) -> Result<T, SessionError> {
    let none = || Err(system(&"no thread can read or write sessions"));
    disks.run(work).await.unwrap_or_else(none)
}

impl Sessions for DiskSessions {
    fn interval_ms(&self) -> u64 {
        set(INTERVAL).unwrap_or(INTERVAL_MS).max(INTERVAL_MS_MIN)
    }

    fn answered<'a>(&'a self, life: &'a Life) -> BoxFuture<'a, ()> {
        Box::pin(beat::end_shown(Arc::clone(&self.disks), Asks::new(&self.paths), life))
    }

    fn check<'a>(&'a self, plan: &'a SessionPlan) -> BoxFuture<'a, Recovery> {
        let (plan, disks) = (plan.clone(), Arc::clone(&self.disks));
        Box::pin(async move {
            let answer = disks.run(move || answer(&plan)).await;
            // If the check fails here, the start checks again and reports the error.
            answer.unwrap_or(Recovery::NoState)
        })
    }

    fn resume<'a>(&'a self, spec: &'a Spec) -> BoxFuture<'a, Resume> {
        let (paths, spec, disks) = (self.paths.clone(), spec.clone(), Arc::clone(&self.disks));
        Box::pin(async move { disks.run(move || resume::plan(&paths, &spec)).await.unwrap_or_default() })
    }

    fn hooked<'a>(&'a self, spec: &'a Spec) -> BoxFuture<'a, Option<Vec<String>>> {
        let program = self.program.clone().filter(|program| hooked::may_take_hooks(&self.paths, program, spec));
        let Some(program) = program else { return Box::pin(std::future::ready(None)) };
        let (paths, of) = (self.paths.clone(), spec.clone());
        Box::pin(async move {
            let looked = self.looks.run(move || hooked::command(&paths, &program, &of));
            let found = tokio::time::timeout(self.look_max, looked).await;
            if found.is_err() {
                tracing::warn!(worker = spec.name, "an agent starts without hooks, because a disk does not answer");
            }
            found.ok().flatten().flatten()
        })
    }

    fn attempts_max(&self) -> i64 {
        attempts_max()
    }

    fn open<'a>(&'a self, opening: &'a Opening) -> BoxFuture<'a, Result<Option<String>, SessionError>> {
        let opening = opening.clone();
        Box::pin(blocking(Arc::clone(&self.disks), move || open(&opening)))
    }

    fn abandon<'a>(&'a self, opening: &'a Opening, cause: &'a str) -> BoxFuture<'a, ()> {
        let (opening, cause, disks) = (opening.clone(), cause.to_owned(), Arc::clone(&self.disks));
        Box::pin(async move {
            let end = (SessionStatus::Failed, Some(cause), "spawn-failed");
            let done = blocking(disks, move || {
                finish(Path::new(&opening.plan.dir), &opening.session_id, None, end)?;
                uncount(&opening)
            });
            let done = done.await;
            if let Err(error) = done {
                tracing::warn!(%error, "cannot mark a session as failed whose start was withdrawn");
            }
        })
    }

    fn run<'a>(&'a self, life: &'a Life, known: Option<Fence>) -> BoxFuture<'a, Result<Fence, SessionError>> {
        let life = life.clone();
        Box::pin(blocking(Arc::clone(&self.disks), move || run(&life, known.as_ref())))
    }

    fn end<'a>(&'a self, life: &'a Life, end: LifeEnd) -> BoxFuture<'a, Result<(), SessionError>> {
        let (life, beater, disks) = (life.clone(), Arc::clone(&self.beater), Arc::clone(&self.disks));
        Box::pin(async move {
            let Some(plan) = life.plan.clone() else { return Ok(()) };
            blocking(disks, move || {
                beater.end(&life);
                finish(Path::new(&plan.dir), &life.session_id, Some(life.process.pid), ending(end))
            })
            .await
        })
    }

    fn beat(&self, life: Arc<Life>, fence: Option<Fence>) -> BoxFuture<'static, (Beaten, Option<Sight>)> {
        let (paths, boot, beater) = (self.paths.clone(), self.boot.clone(), Arc::clone(&self.beater));
        let disks = Arc::clone(&self.disks);
        Box::pin(async move {
            let beaten = disks.run(move || beater.beat(&paths, &boot, &life, fence.as_ref())).await;
            beaten.unwrap_or((Beaten::Done, None))
        })
    }

    fn news(&self, life: &Life) -> BoxFuture<'static, News> {
        self.reports.news(&self.paths, life)
    }

    fn preserve<'a>(&'a self, dir: &'a str, reason: &'a str, details: &'a str) -> BoxFuture<'a, ()> {
        let (base, reason, details) = (dir.to_owned(), reason.to_owned(), details.to_owned());
        let disks = Arc::clone(&self.disks);
        Box::pin(async move {
            let kept = disks.run(move || preserve(Path::new(&base), &reason, &details)).await;
            if let Some(Err(error)) = kept {
                tracing::warn!(%error, "cannot record why a worktree is kept");
            }
        })
    }
}
