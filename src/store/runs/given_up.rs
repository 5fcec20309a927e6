//! Workstreams that their run has given up, although the worker of the last attempt ended with success: for example because
//! its work was rejected. Read for listings from the `state.json` of the run.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use serde::Deserialize;
use swarm_agents::short;
use swarm_model::run::progress::{Mode, Run, Stage};
use swarm_model::{FineState, WorkerView};

use super::home::{Home, NO_LINK};
use super::journal;
use super::order::attempt_of;
use super::run_id;

/// Maximum size of a state that is read, in bytes.
const BYTES_MAX: u64 = 16 << 20;
/// Status of a workstream that its run has given up.
const FAILED: &str = "failed";
/// Status of a workstream without an attempt at the moment.
const PENDING: &str = "pending";

/// The parts of `state.json` that matter here.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct State {
    created_at: String,
    workstreams: Vec<Workstream>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Workstream {
    id: String,
    status: String,
    last_error: Option<String>,
}

/// Adds to each worker that ended with success why its run has given up the workstream, if it has, and to each that failed
/// when its run tries again. Reads the state of each run once.
pub fn mark(workers: &mut [WorkerView]) {
    let mut runs: BTreeMap<PathBuf, Option<State>> = BTreeMap::new();
    let mut journals = BTreeMap::new();
    for view in workers.iter_mut().filter(|view| view.state == FineState::Exited) {
        let Some((home, job)) = attempt_of(&view.row.cmd).and_then(place_of) else { continue };
        let Some(state) = runs.entry(home.to_owned()).or_insert_with(|| read(home)) else { continue };
        let tag = format!("run:{}", run_id(home, &state.created_at));
        if !view.row.tags.contains(&tag) {
            continue;
        }
        let Some(ours) = state.workstreams.iter().find(|one| one.id == job) else { continue };
        if view.has_failed() {
            view.retry_ms = (ours.status == PENDING).then(|| due_in(home, &mut journals, &tag, job)).flatten();
            continue;
        }
        let ours = Some(ours).filter(|one| one.status == FAILED);
        view.given_up = ours.map(|one| short(one.last_error.as_deref().unwrap_or("its run failed the workstream")));
    }
}

/// Returns when the next attempt of the workstream `job` is due, if the run with this tag starts one by itself.
fn due_in(home: &Path, journals: &mut BTreeMap<PathBuf, Option<Run>>, tag: &str, job: &str) -> Option<u64> {
    let journal = || journal::replay(&Home::new(home)).ok().flatten();
    let run = journals.entry(home.to_owned()).or_insert_with(journal).as_ref()?;
    let is_ours = run.mode == Mode::Running && tag.strip_prefix("run:") == Some(run.plan.id.as_str());
    let at = run.plan.jobs.iter().position(|one| one.id == job).filter(|_| is_ours)?;
    match run.jobs.get(at)?.stage {
        Stage::BackingOff { until_ms } => Some(until_ms),
        _ => None,
    }
}

/// Returns the home of the run and the workstream of an attempt, from its directory.
pub fn place_of(attempt: &Path) -> Option<(&Path, &str)> {
    let (job, _) = attempt.file_name()?.to_str()?.rsplit_once('.')?;
    Some((attempt.parent()?.parent()?, job))
}

/// Reads a state, which other programs may have put there. `None` if it cannot be read.
fn read(home: &Path) -> Option<State> {
    let flags = NO_LINK | OFlag::O_NONBLOCK.bits();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(Home::new(home).state()).ok()?;
    file.metadata().ok().filter(std::fs::Metadata::is_file)?;
    let mut bytes = Vec::new();
    file.take(BYTES_MAX).read_to_end(&mut bytes).ok()?;
    serde_json::from_slice(&bytes).ok()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::Arc;

    use serde_json::json;
    use swarm_model::run::plan::{Job, Plan};
    use swarm_model::run::progress::{Progress, Verdict};
    use swarm_model::{Ended, ExitRecord, Hits, Metadata, Reason, RestartPolicy, Row, Usage, WireStatus};

    use super::*;

    fn ended(home: &Home, job: &str, tag: &str) -> WorkerView {
        let attempt = home.attempt(job, 2).display().to_string();
        let row = Row {
            name: job.to_owned(),
            status: WireStatus::Stopped,
            cmd: vec!["swarm".to_owned(), "__attempt".to_owned(), attempt],
            started: "s".to_owned(),
            cwd: "/".to_owned(),
            env: BTreeMap::new(),
            tags: vec![tag.to_owned()],
            tmux: None,
            worktree: None,
            pid: None,
            metadata: Metadata::default(),
        };
        let exit = ExitRecord {
            token: "t".to_owned(),
            started: "s".to_owned(),
            pid: 1,
            ended: Ended::Code(0),
            reason: Reason::Exited,
            ended_at_ms: 0,
            duration_ms: 0,
            usage: Usage::default(),
            survivors: Vec::new(),
            hits: Hits::default(),
            interrupted: false,
            server_lost: None,
        };
        WorkerView {
            row: Arc::new(row),
            state: FineState::Exited,
            pid: None,
            watch: None,
            pane: None,
            exit: Some(exit),
            restart: RestartPolicy::Never,
            restarts: 0,
            next_start_ms: None,
            activity: None,
            ask: None,
            stuck: None,
            limits: None,
            elsewhere: None,
            survivors: Vec::new(),
            given_up: None,
            retry_ms: None,
            job: None,
            dir: None,
        }
    }

    #[test]
    fn a_worker_whose_run_has_given_up_its_work_has_failed() {
        let dir = tempfile::tempdir().expect("a directory");
        let home = Home::new(dir.path());
        let created = "2026-01-01T00:00:00.000Z";
        let tag = format!("run:{}", run_id(home.path(), created));
        let all = |state: &str| {
            fs::write(home.state(), state).expect("written");
            let jobs = ["bad", "good", "silent", "other"];
            let mut views: Vec<WorkerView> = jobs.iter().map(|job| ended(&home, job, &tag)).collect();
            views.push(ended(&home, "bad", "run:00000000"));
            mark(&mut views);
            views.into_iter().map(|view| (view.has_failed(), view.given_up)).collect::<Vec<_>>()
        };
        let work =
            |id: &str, status: &str, error: Option<&str>| json!({ "id": id, "status": status, "lastError": error });
        let state = json!({ "version": 2, "createdAt": created, "workstreams": [
            work("bad", "failed", Some("rejected: 'make test' exited with code 1")), work("good", "done", None),
            work("silent", "failed", None), work("other", "pending", Some("an earlier error")),
        ] });
        let why = |text: &str| (true, Some(text.to_owned()));
        assert_eq!(
            all(&state.to_string()),
            [
                why("rejected: 'make test' exited with code 1"),
                (false, None),
                why("its run failed the workstream"),
                (false, None),
                (false, None), // Of another run.
            ]
        );
        for odd in ["", "{", "[]", "{\"createdAt\": 1}"] {
            assert!(all(odd).into_iter().all(|one| one == (false, None)), "{odd}");
        }
    }

    #[test]
    fn a_worker_has_not_failed_whose_run_starts_the_next_attempt_by_itself() {
        let dir = tempfile::tempdir().expect("a directory");
        let home = Home::new(dir.path());
        let created = "2026-01-01T00:00:00.000Z";
        let id = run_id(home.path(), created);
        let work = json!({ "id": "a", "status": PENDING, "lastError": "429" });
        let state = json!({ "version": 2, "createdAt": created, "workstreams": [work] });
        fs::write(home.state(), state.to_string()).expect("written");
        let shown = |mode: Mode, stage: Stage, id: &str| {
            let jobs = vec![Job { id: "a".to_owned(), ..Job::default() }];
            let plan = Plan { id: id.to_owned(), home: home.path().display().to_string(), jobs, ..Plan::default() };
            let jobs = vec![Progress { stage, attempt: 2, ..Progress::default() }];
            let run = Run { plan: Arc::new(plan), jobs, mode, ..Run::default() };
            journal::begin(&home, &run, "request").expect("begun");
            let mut view = ended(&home, "a", &format!("run:{}", run_id(home.path(), created)));
            view.exit.as_mut().expect("it has ended").ended = Ended::Code(1);
            mark(std::slice::from_mut(&mut view));
            (view.has_failed(), view.shown_state(), view.retry_ms)
        };
        let later = Stage::BackingOff { until_ms: 9 };
        let for_good = (true, FineState::Exited, None);
        assert_eq!(shown(Mode::Running, later.clone(), &id), (false, FineState::Backoff, Some(9)));
        assert_eq!(shown(Mode::Running, Stage::Pending, &id), for_good);
        assert_eq!(shown(Mode::Held, later.clone(), &id), for_good, "nothing starts by itself");
        assert_eq!(shown(Mode::Over(Verdict::Interrupted), later.clone(), &id), for_good);
        assert_eq!(shown(Mode::Running, later, "00000000"), for_good, "of another run");
    }
}
