//! Derives the state of a worker: a pure function of its row, its lease, its exit record and the
//! boot in which they were written. All readers and the supervisor's adoption use it, so they
//! always agree.
//!
//! | lease | this boot | exit record | contract | state |
//! |---|---|---|---|---|
//! | held | – | none | pending | starting |
//! | held | – | none | executed | running, or suspended |
//! | held | – | exists | – | stopping |
//! | free | – | any, and processes that its shim could not end live | – | stopping |
//! | free | – | exists | – | exited, out of memory, stopped, interrupted, failed, or backoff if a restart is due |
//! | free | no | none | – | interrupted, backoff if a restart is due, or stopped if that was wanted |
//! | free | yes | none | executed | unsupervised while its process lives, else stopped if that was wanted, else lost |
//! | free | yes | none | pending | lost: it was never executed |
//! | any, of another machine | no | none, or a restart is due | – | elsewhere |
//! | a job instead | – | see [`of_job`] | | |
//! | no directory | | | | started by the original `swarm`: its process or window decides |

use std::cmp::Ordering;
use std::sync::Arc;

use swarm_model::{
    ExitRecord, FineState, Job, Metadata, ProcessId, Reason, RestartPolicy, Row, RowTmux, RowWorktree, Spec, SwarmMeta,
    Wanted, WantedState, WireStatus, WorkerName, WorkerView,
};
use swarm_ports::{DirFacts, LeaseFacts, SpecFacts};

/// Variable that names the worker in its environment.
pub(super) const WORKER: &str = "SWARM_WORKER";

/// The parts of a generation's records that determine its state. Each reader fills this from what
/// it has read.
#[derive(Clone, Copy, Debug)]
pub struct Evidence<'a> {
    /// Name and generation of the directory.
    pub name: &'a str,
    pub generation: u64,
    /// `None` if there is no readable contract.
    pub launch: Option<Launch<'a>>,
    pub lease: &'a LeaseFacts,
    pub exit: Option<&'a ExitRecord>,
    pub wanted: &'a Wanted,
}

/// The launch that wrote the records.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    pub name: &'a str,
    pub token: &'a str,
    pub started: &'a str,
    pub restart: RestartPolicy,
    /// Whether the command was executed. False while the contract is pending.
    pub executed: bool,
}

impl<'a> From<&'a DirFacts> for Evidence<'a> {
    fn from(facts: &'a DirFacts) -> Self {
        let launch = facts.spec.spec().map(|spec| Launch {
            name: &spec.name,
            token: &spec.token,
            started: &spec.started,
            restart: spec.contract.restart,
            executed: matches!(facts.spec, SpecFacts::Executed(_)),
        });
        let DirFacts { name, generation, lease, exit, wanted, .. } = facts;
        Self { name, generation: *generation, launch, lease, exit: exit.as_ref(), wanted }
    }
}

impl Evidence<'_> {
    fn is_executed(&self) -> bool {
        self.launch.is_some_and(|launch| launch.executed)
    }
}

/// Reports whether the launch of this directory wrote the row. The original `swarm` copies
/// `metadata` when it recreates a row, so token, start time and pid must all match those of the
/// launch. A window that the original recreates has another start time.
pub fn belongs<'a>(row: &Row, evidence: impl Into<Evidence<'a>>) -> bool {
    let evidence = evidence.into();
    let (Some(meta), Some(launch)) = (row.swarm(), evidence.launch) else { return false };
    let noted =
        (evidence.exit.map(|exit| exit.pid)).or_else(|| evidence.lease.content.as_ref().map(|lease| lease.worker.pid));
    // A lease that is derived from the contract knows no pid.
    let noted = noted.filter(|pid| *pid > 0);
    let same_place = match (&row.tmux, noted) {
        (Some(_), _) | (None, None) => true,
        // Its pid is one of another machine.
        (None, Some(_)) if row.place().is_some() => true,
        (None, Some(pid)) => row.pid == Some(i64::from(pid)),
    };
    same_place && meta.id == launch.token && row.started == launch.started && row.name == launch.name
}

/// Derives the view of one worker. `evidence` describes the directory that the row's metadata names;
/// `foreign` is the living process of a row that another program wrote.
pub fn judge(row: Arc<Row>, evidence: Option<Evidence<'_>>, foreign: Option<ProcessId>) -> WorkerView {
    match evidence.filter(|evidence| belongs(&row, *evidence)) {
        Some(evidence) => ours(row, evidence),
        None => theirs(row, foreign),
    }
}

fn ours(row: Arc<Row>, evidence: Evidence<'_>) -> WorkerView {
    let state = fine_state(evidence);
    let lease = evidence.lease.content.as_ref();
    let living = state.is_running();
    let restart = evidence.launch.map_or(RestartPolicy::Never, |launch| launch.restart);
    // Processes of a job are on a node.
    let here = living && state != FineState::Elsewhere && evidence.lease.job.is_none();
    let survivor = evidence.lease.survivors.first().filter(|_| !evidence.lease.held);
    let watch = lease.filter(|_| here).map(|lease| match (state, survivor) {
        (_, Some(survivor)) => survivor.clone(),
        (FineState::Unsupervised, None) => lease.worker.clone(),
        (_, None) => lease.shim.clone(),
    });
    let has_process = here && (survivor.is_none() || evidence.lease.worker_alive);
    WorkerView {
        row: refreshed(row, state),
        state,
        pid: lease.filter(|_| has_process).map(|lease| lease.worker.pid),
        watch,
        pane: lease.filter(|_| state != FineState::Elsewhere).and_then(|lease| lease.pane.clone()),
        exit: evidence.exit.cloned(),
        restart,
        restarts: evidence.wanted.restarts,
        next_start_ms: evidence.wanted.next_start_ms,
        activity: None,
        ask: None,
        stuck: None,
        limits: lease.and_then(|lease| lease.limits.clone()),
        elsewhere: evidence.lease.elsewhere.clone().filter(|_| state == FineState::Elsewhere),
        job: evidence.lease.job.clone(),
        survivors: evidence.lease.survivors.iter().map(|process| process.pid).collect(),
        given_up: None,
        retry_ms: None,
        dir: Some(swarm_model::worker_dir_name(evidence.name, evidence.generation)),
    }
}

fn theirs(row: Arc<Row>, foreign: Option<ProcessId>) -> WorkerView {
    let state = if foreign.is_some() { FineState::Running } else { FineState::Exited };
    WorkerView {
        row: refreshed(row, state),
        state,
        pid: foreign.as_ref().map(|process| process.pid),
        watch: foreign,
        pane: None,
        exit: None,
        restart: RestartPolicy::Never,
        restarts: 0,
        next_start_ms: None,
        activity: None,
        ask: None,
        stuck: None,
        limits: None,
        elsewhere: None,
        job: None,
        survivors: Vec::new(),
        given_up: None,
        retry_ms: None,
        dir: None,
    }
}

/// Reports whether the worker of these records runs, with or without its shim, or has left processes that its shim could
/// not end.
pub fn runs(facts: &DirFacts) -> bool {
    if let Some(job) = &facts.lease.job {
        // It was submitted after its row was committed.
        return facts.lease.held && (job.submissions > 0 || matches!(facts.spec, SpecFacts::Executed(_)));
    }
    let executed = matches!(facts.spec, SpecFacts::Executed(_));
    let at_work = facts.lease.worker_alive && facts.exit.is_none();
    executed && (at_work || !facts.lease.survivors.is_empty())
}

/// Reports whether a process of these records is alive: the shim, the worker, or one that the shim could not end.
pub fn has_processes(facts: &DirFacts) -> bool {
    facts.lease.held || facts.lease.worker_alive || !facts.lease.survivors.is_empty()
}

/// Reports whether a row is that of an earlier start of ours than these records: it has a lower number, or the same one and
/// another id. The records of its start are gone then, because those of another one are in their place.
pub fn is_earlier(row: &Row, facts: &DirFacts) -> bool {
    let is_other = |id: &str| facts.spec.spec().is_some_and(|spec| spec.token != id);
    row.swarm().is_some_and(|meta| match meta.generation.cmp(&facts.generation) {
        Ordering::Less => true,
        Ordering::Equal => is_other(&meta.id),
        Ordering::Greater => false,
    })
}

/// Returns the state that follows from the records of a generation.
pub fn fine_state<'a>(evidence: impl Into<Evidence<'a>>) -> FineState {
    let evidence = evidence.into();
    let state = state_here(evidence);
    match state {
        // A recorded end is true everywhere. Anything else depends on processes that only their machine sees, also
        // whether a worker that must stop has ended.
        FineState::Exited | FineState::OutOfMemory | FineState::Failed => state,
        FineState::Stopped if evidence.exit.is_some() => state,
        _ if evidence.lease.elsewhere.is_some() => FineState::Elsewhere,
        _ => state,
    }
}

/// Returns the state if this machine wrote the records.
fn state_here(evidence: Evidence<'_>) -> FineState {
    let (executed, lease) = (evidence.is_executed(), evidence.lease);
    if let Some(job) = &lease.job {
        return of_job(evidence, job);
    }
    match (lease.held, evidence.exit) {
        (true, Some(_)) => FineState::Stopping,
        (true, None) if !executed => FineState::Starting,
        (true, None) if lease.suspended => FineState::Suspended,
        (true, None) => FineState::Running,
        (false, _) if !lease.survivors.is_empty() => FineState::Stopping,
        (false, Some(_)) => ended(evidence),
        (false, None) if lease.content.is_some() && !lease.this_boot => interrupted(evidence),
        (false, None) if executed && lease.worker_alive => FineState::Unsupervised,
        (false, None) if executed => ended(evidence),
        (false, None) => FineState::Lost,
    }
}

/// Returns the state of a worker that is a job. Without an exit record, only the supervisor concludes that it is over, from
/// what the batch system says: see `jobs::machine`.
///
/// | exit record | known to be over | state |
/// |---|---|---|
/// | exists | – | as of a process |
/// | none | no | queued until the command is executed, then running, or suspended |
/// | none | yes | stopped if that was wanted, or if it was cancelled before it began; else lost |
fn of_job(evidence: Evidence<'_>, job: &Job) -> FineState {
    let executed = evidence.is_executed();
    if evidence.exit.is_some() {
        return ended(evidence);
    }
    match job.over {
        None if !executed => FineState::Queued,
        None if job.is_suspended() => FineState::Suspended,
        None => FineState::Running,
        Some(_) if evidence.wanted.state == WantedState::Stopped => FineState::Stopped,
        Some(_) if !executed && job.is_cancelled() => FineState::Stopped,
        Some(_) => FineState::Lost,
    }
}

/// Returns the state of a worker whose machine went down. A restart policy applies as after any
/// other end.
fn interrupted(evidence: Evidence<'_>) -> FineState {
    match evidence.wanted.state {
        WantedState::Failed => return FineState::Failed,
        WantedState::Stopped => return FineState::Stopped,
        WantedState::Running => {}
    }
    // The row is durable before the command is executed, and the name of an executed contract is not: a pending one says
    // nothing about an earlier boot.
    if restart_due(evidence) { FineState::Backoff } else { FineState::Interrupted }
}

fn ended(evidence: Evidence<'_>) -> FineState {
    match evidence.wanted.state {
        WantedState::Failed => return FineState::Failed,
        // Without an exit record, the shim was killed before it could write one; the stop was recorded before.
        WantedState::Stopped => return FineState::Stopped,
        WantedState::Running => {}
    }
    if restart_due(evidence) {
        return FineState::Backoff;
    }
    match evidence.exit.map(|exit| exit.reason) {
        None => FineState::Lost,
        Some(_) if evidence.exit.is_some_and(|exit| exit.interrupted) => FineState::Interrupted,
        Some(Reason::Stopped) => FineState::Stopped,
        Some(Reason::OutOfMemory) => FineState::OutOfMemory,
        Some(Reason::Exited | Reason::Closed | Reason::Timeout | Reason::Output | Reason::Abandoned) => {
            FineState::Exited
        }
    }
}

/// Reports whether the policy restarts the worker after this end. An unknown end counts as a
/// failure, never as a success.
fn restart_due(evidence: Evidence<'_>) -> bool {
    let Evidence { launch: Some(launch), exit, wanted, .. } = evidence else { return false };
    let stopped = exit.is_some_and(ExitRecord::is_ordered);
    let success = exit.is_some_and(|exit| exit.ended.is_success() && !exit.interrupted);
    if wanted.state != WantedState::Running {
        return false;
    }
    // It was ended in order to be restarted. If it exited successfully by itself first, that
    // takes precedence.
    if wanted.renewed && !exit.is_some_and(|exit| exit.reason == Reason::Exited && exit.ended.is_success()) {
        return true;
    }
    if stopped {
        return false;
    }
    match launch.restart {
        RestartPolicy::Never => false,
        RestartPolicy::OnFailure => !success,
        RestartPolicy::Always => true,
    }
}

fn refreshed(row: Arc<Row>, state: FineState) -> Arc<Row> {
    if state == FineState::Elsewhere {
        return row;
    }
    let status = if state.is_running() { WireStatus::Running } else { WireStatus::Stopped };
    if row.status == status {
        return row;
    }
    let mut row = Arc::unwrap_or_clone(row);
    row.status = status;
    Arc::new(row)
}

/// Returns the worker in which this one was started: as the supervisor saw it, or else by the environment of whoever
/// started it.
fn parent_of(spec: &Spec) -> Option<String> {
    if let Some(origin) = &spec.contract.origin {
        return Some(origin.worker.clone());
    }
    let (_, name) = spec.contract.environment.iter().rev().find(|(key, _)| key == WORKER)?;
    // Text of any length may be there, and a worker is not its own parent.
    (WorkerName::parse(name).is_ok() && *name != spec.name).then(|| name.clone())
}

/// Returns the row of a launch. A commit writes this row, and a rebuild reproduces it. `pid` is the
/// worker's own process; the row of a tmux worker has none, as in the original `swarm`.
pub fn row_of(spec: &Spec, pid: i32, host: &str) -> Row {
    let contract = &spec.contract;
    let base = spec.worktree.as_ref().map(|plan| plan.base.clone());
    let (id, generation, merge) = (spec.token.clone(), spec.generation, spec.contract.merge);
    let (host, port, parent) = (host.to_owned(), contract.port, parent_of(spec));
    let place = spec.place();
    let has_pid = contract.tmux.is_none() && place.is_none();
    let meta = SwarmMeta { id, generation, host, base, merge, port, parent, place };
    Row {
        name: spec.name.clone(),
        status: WireStatus::Running,
        cmd: contract.argv.clone(),
        started: spec.started.clone(),
        cwd: spec.worktree.as_ref().map_or_else(|| contract.cwd.clone(), |plan| plan.path.clone()),
        env: contract.env.clone(),
        tags: contract.tags.clone(),
        tmux: contract.tmux.as_ref().map(|place| RowTmux {
            session: place.session.clone(),
            window: spec.name.clone(),
            socket: place.socket.clone(),
        }),
        worktree: spec.worktree.as_ref().map(|plan| RowWorktree {
            path: plan.path.clone(),
            branch: plan.branch.clone(),
            base_repo: plan.base_repo.clone(),
        }),
        pid: has_pid.then_some(i64::from(pid)),
        metadata: Metadata::from(contract.metadata.clone()).with(meta),
    }
}

/// Returns the row of a generation with its present status. `None` if its command was never executed.
pub fn row_now(facts: &DirFacts, host: &str) -> Option<Row> {
    let spec = match &facts.spec {
        SpecFacts::Executed(spec) => spec,
        // A job that waits in the queue of the batch system.
        SpecFacts::Pending(spec) if runs(facts) && facts.lease.job.is_some() => spec,
        SpecFacts::Pending(_) | SpecFacts::Missing => return None,
    };
    let pid = (facts.exit.as_ref().map(|exit| exit.pid))
        .or_else(|| facts.lease.content.as_ref().map(|lease| lease.worker.pid))
        .unwrap_or(0);
    let status = if fine_state(facts).is_running() { WireStatus::Running } else { WireStatus::Stopped };
    Some(Row { status, ..row_of(spec, pid, host) })
}

/// Returns the rows that another program replaced by those of an earlier generation, each with the newest generation of
/// its name that was executed. The commit of a start precedes its execution, and a start that is rolled back was not
/// executed, so that program saved a list that it had read before the start. A row that has records is left alone
/// unless the newer generation runs: that one may be what is left of a worker that was cleaned.
pub fn outdated<'a>(rows: &[Arc<Row>], all: &'a [DirFacts]) -> Vec<(Arc<Row>, &'a DirFacts)> {
    let newest = |row: &Arc<Row>| {
        let executed = |facts: &&DirFacts| facts.name == row.name && matches!(facts.spec, SpecFacts::Executed(_));
        let newest = all.iter().filter(executed).max_by_key(|facts| facts.generation)?;
        let is_ours = newest.lease.elsewhere.is_none() && is_earlier(row, newest);
        let has_records = || all.iter().any(|facts| belongs(row, facts));
        (is_ours && (runs(newest) || !has_records())).then(|| (Arc::clone(row), newest))
    };
    rows.iter().filter_map(newest).collect()
}

/// Returns the rows from which a damaged `state.json` is rebuilt: for each name, the newest
/// generation that was executed.
pub fn rebuild(all: &[DirFacts], host: &str) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for row in all.iter().filter_map(|facts| row_now(facts, host)) {
        rows.retain(|other| other.name != row.name);
        rows.push(row);
    }
    rows.sort_by(|a, b| a.started.cmp(&b.started));
    rows
}
