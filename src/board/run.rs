//! A run and its workstreams as programs read them: the shape of `run status --json` and of the board. It is documented in
//! docs/json.md; keys are added, never changed.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use swarm_actors::run::place::{NoSeat, without_place};
use swarm_model::merge::queue::{Item, State};
use swarm_model::run::plan::{Job, Plan, Seats};
use swarm_model::run::progress::{Mode, Progress, Run, Stage, Verdict};
use swarm_model::run::{key_of, worker_name};
use swarm_model::{NeedKind, QueueView};
use swarm_store::runs::denied::{self, Denials};
use swarm_store::runs::home::{Home, iso};
use swarm_store::runs::order;

/// For each host, the obstacle to starting a job there.
pub type InTheWay<'a> = Vec<(&'a str, NoSeat<'a>)>;

/// Returns the status of a run. A run whose supervisor is gone is still `running`, because the next one continues it.
pub fn mode(run: &Run) -> &'static str {
    match run.mode {
        Mode::Running => "running",
        Mode::Held => "paused",
        Mode::Stopping => "stopping",
        Mode::Over(Verdict::Completed) => "completed",
        Mode::Over(Verdict::Failed) => "failed",
        Mode::Over(Verdict::Interrupted) => "interrupted",
    }
}

/// Returns what is known of a run as a whole, with damaged lines of its journal.
pub fn run_object(run: &Run, damage: &[String]) -> Map<String, Value> {
    let plan = &run.plan;
    let value = json!({
        "run": plan.id,
        "home": plan.home,
        "base": plan.base,
        "status": mode(run),
        "consent": plan.rules.consent,
        "damage": damage,
        "hosts": hosts(run),
    });
    object(value)
}

/// Returns the workstreams of a run, in the order of its plan, without what git must be asked.
pub fn workstreams(run: &Run) -> Vec<Map<String, Value>> {
    let without_place: BTreeMap<usize, InTheWay<'_>> = without_place(run).into_iter().collect();
    let jobs = run.plan.jobs.iter().zip(&run.jobs).enumerate();
    jobs.map(|(at, (job, progress))| workstream(run, job, progress, without_place.get(&at))).collect()
}

fn workstream(run: &Run, job: &Job, progress: &Progress, in_the_way: Option<&InTheWay<'_>>) -> Map<String, Value> {
    let Denials { count, last } = denied(run, job, progress);
    object(json!({
        "id": job.id,
        "stage": progress.stage.word(),
        "worker": worker_name(&run.plan.slug, &job.id),
        "attempt": progress.attempt,
        "failures": progress.failures,
        "pid": progress.pid,
        "host": progress.host,
        "on": job.on,
        "waits_for_host": in_the_way.map(|hosts| seats(hosts)),
        "branch": job.branch,
        "after": job.after,
        "commit": progress.commit,
        "files": progress.files,
        "left_out": progress.left_out,
        "summary": progress.summary,
        "error": progress.stuck.as_ref().or(progress.error.as_ref()),
        "waiting": waiting(run, job, progress),
        "unheard": unheard(run, job, progress),
        "denied": count,
        "last_denied": last.map(|last| json!({"at": iso(last.at_ms), "what": last.what, "reason": last.reason})),
        "started_at": progress.started_ms.map(iso),
        "completed_at": progress.ended_ms.map(iso),
        "input_tokens": progress.spent.input_tokens,
        "output_tokens": progress.spent.output_tokens,
        "usd": progress.spent.usd,
        "unpriced": progress.spent.unpriced,
    }))
}

fn object(value: Value) -> Map<String, Value> {
    let Value::Object(map) = value else { unreachable!("it is written as an object") };
    map
}

/// Returns the request of a workstream whose agent has ended to wait for an answer, with the command that answers it.
pub fn needs(progress: &Progress) -> Option<Value> {
    let Stage::Asking { ask, what, kind } = &progress.stage else { return None };
    let answer =
        if *kind == NeedKind::Question { format!("swarm answer {ask} TEXT") } else { format!("swarm approve {ask}") };
    Some(json!({"kind": kind, "text": what, "answer": answer}))
}

/// Returns what the agent of a running job waits for, if anything.
pub fn waiting(run: &Run, job: &Job, progress: &Progress) -> Option<String> {
    let dir = Home::new(&run.plan.home).attempt(&job.id, progress.attempt);
    match &progress.stage {
        Stage::Working => order::waiting(&dir),
        Stage::Asking { ask, what, kind } => Some(asking(*ask, *kind, what)),
        _ => None,
    }
}

/// Returns a request as text, with the commands that answer it.
pub fn asking(ask: u64, kind: NeedKind, what: &str) -> String {
    let how = match kind {
        NeedKind::Question => format!("'swarm answer {ask} TEXT'"),
        NeedKind::Permission | NeedKind::Login | NeedKind::Trust | NeedKind::Input => {
            format!("'swarm approve {ask}' or 'swarm deny {ask}'")
        }
    };
    format!("asks: {what} (answer with {how})")
}

/// Returns what the agent of the last attempt was denied, or asked, with nobody to ask.
pub fn unheard(run: &Run, job: &Job, progress: &Progress) -> Option<String> {
    order::unheard(&Home::new(&run.plan.home).attempt(&job.id, progress.attempt))
}

/// Returns what the agents of the workstream were denied in its attempts.
pub fn denied(run: &Run, job: &Job, progress: &Progress) -> Denials {
    denied::of_job(&Home::new(&run.plan.home), &job.id, progress.attempt)
}

/// Returns the hosts of a run.
fn hosts(run: &Run) -> Vec<Value> {
    let state = |seat: &Seats| {
        let closed = run.closed.get(&seat.host);
        let is_there = |(job, progress): &(&Job, &Progress)| {
            let host = run.plan.rules.place_of(job, progress.host.as_deref());
            host == seat.host && (progress.stage == Stage::Working || progress.sent)
        };
        json!({
            "name": seat.host,
            "cap": seat.cap,
            "tags": seat.tags,
            "working": run.plan.jobs.iter().zip(&run.jobs).filter(is_there).count(),
            "state": closed.map_or("open", |closed| closed.kind.name()),
            "cause": closed.map(|closed| &closed.cause),
        })
    };
    run.plan.rules.on.iter().map(state).collect()
}

/// Returns what is in the way on each host.
pub fn seats(hosts: &[(&str, NoSeat)]) -> Vec<Value> {
    let object = |(host, why): &(&str, NoSeat)| {
        let (reason, cause, since_ms) = match why {
            NoSeat::Tags(tags) => ("tags", Some(format!("it lacks {}", quoted(tags.iter().copied()))), None),
            NoSeat::Unfit(unfit) => ("unfit", Some(unfit.cause.clone()), None),
            NoSeat::Closed(closed) => {
                (closed.kind.name(), Some(closed.cause.clone()), Some(closed.since_ms).filter(|at_ms| *at_ms > 0))
            }
            NoSeat::GivenUp => ("given-up", None, None),
            NoSeat::Full => ("full", None, None),
        };
        json!({"host": host, "reason": reason, "cause": cause, "since": since_ms.map(iso)})
    };
    hosts.iter().map(object).collect()
}

/// Returns tags as text.
pub fn quoted<'a>(tags: impl Iterator<Item = &'a str>) -> String {
    tags.map(|tag| format!("'{tag}'")).collect::<Vec<_>>().join(", ")
}

/// Returns the item that says what became of the work of an attempt: the newest one of the run, or a later one, which a
/// person added, if that has landed.
pub fn item<'a>(view: &'a QueueView, plan: &Plan, job: &Job, attempt: u32) -> Option<&'a Item> {
    let items = &view.queue.items;
    let of_key = |again| {
        let key = key_of(&plan.id, &job.id, attempt, again);
        items.iter().find(|item| item.key.as_ref() == Some(&key))
    };
    let own = (0..).map_while(of_key).last()?;
    let landed = |item: &&Item| item.name == own.name && item.id > own.id && item.state.is_done();
    items.iter().rev().find(landed).or(Some(own))
}

/// Brings a run that is over to the state in which its work is by now: the queue goes on without it.
pub fn bring_up_to_date(run: &mut Run, views: &[QueueView]) {
    if !matches!(run.mode, Mode::Over(_)) {
        return;
    }
    let plan = run.plan.clone();
    for (job, progress) in plan.jobs.iter().zip(&mut run.jobs) {
        if matches!(progress.stage, Stage::Merging | Stage::Waiting)
            && let Some(item) = views.iter().find_map(|view| item(view, &plan, job, progress.attempt))
        {
            apply(item, progress);
        }
    }
}

/// Sets the progress of a job by its item.
fn apply(item: &Item, progress: &mut Progress) {
    let pending = |cause: String| (Stage::Pending, None, Some(cause));
    let (stage, commit, error) = match &item.state {
        State::Landed { commit } => (Stage::Done, Some(commit.clone()), None),
        State::Noop if item.contained => (Stage::Done, None, None),
        State::Noop => pending("left nothing to land".to_owned()),
        State::Queued | State::Active | State::Resolving => (Stage::Merging, None, None),
        State::Waiting { reason, .. } => (Stage::Waiting, None, Some(reason.clone())),
        State::Conflict { files } => pending(format!("conflicts with the base: {}", files.join(", "))),
        State::Rejected { reason } => pending(format!("verification failed: {reason}")),
        State::Dropped => pending("dropped from the merge queue".to_owned()),
    };
    (progress.stage, progress.commit, progress.error) = (stage, commit, error);
    progress.files = item.state.files().to_vec();
    progress.continues = item.obstacle().is_some();
}
