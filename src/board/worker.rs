//! A worker as programs read it: the shape of `ls --json`, of the board and of the API. It is documented in docs/json.md;
//! keys are added, never changed.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value};
use swarm_model::{
    Activity, BaseRef, By, Doing, Ended, ExitRecord, FineState, Held, Hits, Job, Needs, Over, Reason, RestartPolicy,
    TurnEnd, Usage, WorkerView,
};

/// Placeholder for the value of an environment variable.
const HIDDEN: &str = "***";

/// An object with its schema as the first key.
#[derive(Serialize)]
pub struct Named<'a, T> {
    pub schema: &'a str,
    #[serde(flatten)]
    pub body: T,
}

/// A list of workers.
#[derive(Serialize)]
pub struct Workers<'a> {
    /// Number of selected workers before `--limit` and `--offset`.
    pub total: usize,
    pub workers: Vec<Worker<'a>>,
}

/// One worker; the values of `--env` are hidden.
#[derive(Serialize)]
pub struct Worker<'a> {
    name: &'a str,
    status: &'static str,
    state: &'static str,
    pid: Option<i32>,
    cmd: &'a [String],
    cwd: &'a str,
    started: &'a str,
    tags: &'a [String],
    env: BTreeMap<&'a str, &'static str>,
    tmux: Option<Tmux<'a>>,
    worktree: Option<Worktree<'a>>,
    port: Option<u16>,
    generation: Option<u64>,
    host: Option<String>,
    parent: Option<&'a str>,
    restart: RestartPolicy,
    restarts: u32,
    next_start_ms: Option<u64>,
    waiting: Option<String>,
    activity: Option<ActivityJson<'a>>,
    needs: Option<Needs>,
    stuck: Option<&'a str>,
    limits: Option<Limits>,
    job: Option<JobJson<'a>>,
    exit: Option<Exit>,
    failed: bool,
    given_up: Option<&'a str>,
}

/// The job that a worker is, and what the batch system said about it last.
#[derive(Serialize)]
struct JobJson<'a> {
    host: &'a str,
    name: &'a str,
    number: Option<u64>,
    state: Option<&'a str>,
    reason: Option<&'a str>,
    node: Option<&'a str>,
    asked_ms: Option<u64>,
    /// Whether something of a job that is over may still work.
    unproven: bool,
}

impl<'a> JobJson<'a> {
    fn of(job: &'a Job, has_record: bool) -> Self {
        Self {
            host: &job.host,
            name: &job.name,
            number: job.number,
            state: job.state.as_deref(),
            reason: job.reason.as_deref(),
            node: job.node.as_deref(),
            asked_ms: job.asked_ms,
            unproven: job.over == Some(Over::Unproven) && !has_record,
        }
    }
}

/// Activity of the agent: `working`, `idle` or `waiting`, with what, since when, and how its last turn broke off.
#[derive(Serialize)]
struct ActivityJson<'a> {
    doing: Doing,
    what: Option<&'a str>,
    since_ms: u64,
    turn: Option<&'static str>,
}

impl<'a> ActivityJson<'a> {
    fn of(activity: &'a Activity) -> Self {
        Self {
            doing: activity.doing,
            what: activity.what.as_deref(),
            since_ms: activity.since_ms,
            turn: activity.turn.map(TurnEnd::word),
        }
    }
}

#[derive(Serialize)]
struct Tmux<'a> {
    session: &'a str,
    window: &'a str,
    socket: Option<&'a str>,
    pane: Option<&'a str>,
    socket_path: Option<&'a str>,
}

#[derive(Serialize)]
struct Worktree<'a> {
    path: &'a str,
    branch: &'a str,
    base_repo: &'a str,
    base: Option<BaseRef>,
}

/// Each requested limit and what enforces it; null if nothing does.
#[derive(Serialize)]
struct Limits {
    memory: Option<Limit>,
    cpu: Option<Limit>,
    pids: Option<Limit>,
    output: Option<Limit>,
}

#[derive(Serialize)]
struct Limit {
    #[serde(flatten)]
    size: Map<String, Value>,
    by: Option<By>,
}

impl Limits {
    fn of(held: &Held) -> Self {
        let asked = held.asked;
        let limit = |unit: &str, size: Option<Value>, by| size.map(|size| Limit { size: object([(unit, size)]), by });
        Self {
            memory: limit("bytes", asked.memory_bytes.map(Value::from), held.memory),
            cpu: limit("cores", asked.cpu_milli.map(|milli| Value::from(f64::from(milli) / 1000.0)), held.cpu),
            pids: limit("max", asked.pids.map(Value::from), held.pids),
            output: limit("bytes", asked.max_output_bytes.map(Value::from), held.output),
        }
    }
}

/// End of a worker. `outcome` is `code`, `signal` or `unknown`.
#[derive(Serialize)]
pub struct Exit {
    outcome: &'static str,
    code: Option<i32>,
    signal: Option<String>,
    reason: Option<Reason>,
    ended_at_ms: Option<u64>,
    duration_ms: Option<u64>,
    usage: Option<Usage>,
    survivors: Vec<i32>,
    hits: Hits,
}

impl<'a> Worker<'a> {
    pub fn of(view: &'a WorkerView) -> Self {
        let (row, swarm) = (view.row.as_ref(), view.row.swarm());
        let pane = view.pane.as_ref();
        let tmux = row.tmux.as_ref().map(|tmux| Tmux {
            session: &tmux.session,
            window: &tmux.window,
            socket: tmux.socket.as_deref(),
            pane: pane.map(|pane| pane.pane.as_str()),
            socket_path: pane.map(|pane| pane.socket_path.as_str()),
        });
        let base = swarm.as_ref().and_then(|swarm| swarm.base.clone());
        let needs = view.needs();
        let worktree = row.worktree.as_ref().map(|tree| Worktree {
            path: &tree.path,
            branch: &tree.branch,
            base_repo: &tree.base_repo,
            base,
        });
        Self {
            name: &row.name,
            status: status_word(view),
            state: state_word(view.shown_state()),
            pid: view.pid,
            cmd: &row.cmd,
            cwd: &row.cwd,
            started: &row.started,
            tags: &row.tags,
            env: row.env.keys().map(|key| (key.as_str(), HIDDEN)).collect(),
            tmux,
            worktree,
            port: swarm.as_ref().and_then(|swarm| swarm.port),
            generation: swarm.as_ref().map(|swarm| swarm.generation),
            host: swarm.map(|swarm| swarm.host.clone()),
            parent: swarm.and_then(|swarm| swarm.parent.as_deref()),
            restart: view.restart,
            restarts: view.restarts,
            next_start_ms: view.next_start_ms.or(view.retry_ms),
            waiting: needs.as_ref().map(|needs| needs.text.clone()),
            activity: view.activity.as_ref().map(ActivityJson::of),
            needs,
            stuck: view.stuck.as_deref(),
            limits: view.limits.as_ref().map(Limits::of),
            job: view.job.as_ref().map(|job| JobJson::of(job, view.exit.is_some())),
            exit: Exit::of(view),
            failed: view.has_failed(),
            given_up: view.given_up.as_deref(),
        }
    }
}

impl Exit {
    /// Returns the end of a worker: `None` while it runs, `unknown` if it ended without an exit record.
    pub fn of(view: &WorkerView) -> Option<Self> {
        match &view.exit {
            Some(record) => Some(Self::recorded(record)),
            None if view.state.is_running() => None,
            None => Some(Self::unknown()),
        }
    }

    pub fn recorded(record: &ExitRecord) -> Self {
        let (outcome, code, signal) = match record.ended {
            Ended::Code(code) => ("code", Some(code), None),
            Ended::Signal(signal) => ("signal", None, Some(signal_name(signal))),
        };
        Self {
            outcome,
            code,
            signal,
            reason: Some(record.reason),
            ended_at_ms: Some(record.ended_at_ms),
            duration_ms: Some(record.duration_ms),
            usage: Some(record.usage),
            survivors: record.survivors.clone(),
            hits: record.hits,
        }
    }

    /// Builds the end from an event, which has less detail than the exit record.
    pub fn told(
        ended: Option<Ended>,
        reason: Option<Reason>,
        ended_at_ms: u64,
        duration_ms: Option<u64>,
        hits: Hits,
    ) -> Self {
        let (outcome, code, signal) = match ended {
            Some(Ended::Code(code)) => ("code", Some(code), None),
            Some(Ended::Signal(signal)) => ("signal", None, Some(signal_name(signal))),
            None => ("unknown", None, None),
        };
        Self { outcome, code, signal, reason, ended_at_ms: Some(ended_at_ms), duration_ms, hits, ..Self::unknown() }
    }

    pub fn unknown() -> Self {
        Self {
            outcome: "unknown",
            code: None,
            signal: None,
            reason: None,
            ended_at_ms: None,
            duration_ms: None,
            usage: None,
            survivors: Vec::new(),
            hits: Hits::default(),
        }
    }
}

/// Builds an object from pairs.
pub fn object<const N: usize>(pairs: [(&str, Value); N]) -> Map<String, Value> {
    pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

/// Returns the status word of the original.
pub fn status_word(view: &WorkerView) -> &'static str {
    if view.state.is_running() { "running" } else { "stopped" }
}

pub fn state_word(state: FineState) -> &'static str {
    match state {
        FineState::Starting => "starting",
        FineState::Queued => "queued",
        FineState::Running => "running",
        FineState::Suspended => "suspended",
        FineState::Unsupervised => "unsupervised",
        FineState::Stopping => "stopping",
        FineState::Exited => "exited",
        FineState::OutOfMemory => "out-of-memory",
        FineState::Stopped => "stopped",
        FineState::Backoff => "backoff",
        FineState::Failed => "failed",
        FineState::Lost => "lost",
        FineState::Interrupted => "interrupted",
        FineState::Elsewhere => "elsewhere",
    }
}

pub fn signal_name(signal: i32) -> String {
    nix::sys::signal::Signal::try_from(signal).map_or_else(|_| format!("SIG{signal}"), |known| known.as_str().into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::sample;

    #[test]
    fn values_of_variables_are_hidden_and_the_exit_is_included() {
        let view = sample::ended("x", Ended::Signal(9));
        let value = serde_json::to_value(Worker::of(&view)).expect("serialises");
        assert_eq!(value["env"]["KEY"], "***");
        assert_eq!(value["exit"]["outcome"], "signal");
        assert_eq!(value["exit"]["signal"], "SIGKILL");
        assert!(!value.to_string().contains("secret"));
    }

    #[test]
    fn limits_are_listed_with_their_enforcement() {
        let asked = swarm_model::Limits { cpu_milli: Some(1500), pids: Some(5), ..Default::default() };
        let limits = Some(Held { asked, cpu: Some(By::GroupV2), ..Held::default() });
        let told = serde_json::to_value(Worker::of(&WorkerView { limits, ..sample::process("x") })).expect("plain");
        let expected =
            r#"{"memory":null,"cpu":{"cores":1.5,"by":"cgroup-v2"},"pids":{"max":5,"by":null},"output":null}"#;
        assert_eq!(told["limits"], serde_json::from_str::<Value>(expected).expect("json"));
    }
}
