//! Facts about a worker, each with its source and its age.

use std::fs;
use std::path::Path;
use std::time::SystemTime;

use swarm_model::asks::parking::Parking;
use swarm_model::{By, Event, EventKind, Held, Job, WantedState, WorkerView};
use swarm_ports::{DirFacts, SpecFacts, pid_list};

use super::{EVENTS, OUTPUT_LINES};
use crate::api::client;
use crate::cli::events;
use crate::cli::jobs;
use crate::cli::render::{Clock, counted, ended_word, window};
use crate::cli::tail::{From, Tail};
use swarm_store::jobs::FILE;
use swarm_store::records::DiskRecords;
use swarm_store::repositories::{self, Listed};
use swarm_store::sessions::HEARTBEAT;
use swarm_store::window_log;
use swarm_sys::paths::Paths;
use swarm_sys::procfs;
use swarm_sys::strip_ansi::Plain;

/// Observation about a worker, with its origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    pub what: &'static str,
    pub value: String,
    /// File or socket that the fact was read from.
    pub source: String,
    /// Milliseconds since the source was written; `None` if the fact was observed just now.
    pub age_ms: Option<u64>,
}

/// Evidence about a worker, gathered once for all conclusions.
#[derive(Clone, Debug, Default)]
pub struct Evidence {
    facts: Option<DirFacts>,
    pub has_supervisor: bool,
    supervisor: Option<i32>,
    /// Cause for which the supervisor gave the worker up.
    pub failure: Option<String>,
    pub has_tree: bool,
    pub output: Vec<String>,
    pub events: Vec<String>,
}

impl Evidence {
    /// Reports whether all steps against a stuck worker were taken without effect.
    pub fn is_given_up(&self) -> bool {
        self.facts.as_ref().is_some_and(|facts| facts.wanted.rungs.given_up)
    }

    pub fn of(view: &WorkerView, paths: &Paths) -> Self {
        let name = &view.row.name;
        let generation = view.row.swarm().map(|swarm| swarm.generation);
        let records = DiskRecords::new(paths.clone());
        let facts = generation.and_then(|generation| records.read(name, generation).ok().flatten());
        let supervisor = client::hello(paths).ok().flatten().map(|hello| hello.pid);
        let recorded = recorded(paths, name);
        let failure = recorded.iter().rev().find_map(|event| match &event.kind {
            EventKind::WorkerFailed { cause } => Some(cause.clone()),
            _ => None,
        });
        let clock = Clock::system();
        let mut parking = Parking::default();
        let mut shown = |event: &Event| format!("{}  {}", clock.local(event.at_ms), events::told(event, &mut parking));
        let told: Vec<String> = recorded.iter().map(&mut shown).collect();
        Self {
            facts,
            has_supervisor: supervisor.is_some(),
            supervisor,
            failure,
            has_tree: view.row.worktree.as_ref().is_some_and(|tree| Path::new(&tree.path).exists()),
            output: output(view, paths),
            events: told[told.len().saturating_sub(EVENTS)..].to_vec(),
        }
    }
}

/// Returns the last `count` events of this worker as sentences, newest first.
pub fn events(paths: &Paths, name: &str, count: usize) -> Vec<String> {
    let recorded = recorded(paths, name);
    let mut parking = Parking::default();
    let told: Vec<String> = recorded.iter().map(|event| events::told(event, &mut parking)).collect();
    told.into_iter().rev().take(count).collect()
}

fn recorded(paths: &Paths, name: &str) -> Vec<Event> {
    let mut found = Vec::new();
    // Unreadable events are left out; the others still count.
    let _ = events::of_worker(paths, name, &mut |event| found.push(event));
    found
}

/// Returns the last lines of the log that was written most recently.
fn output(view: &WorkerView, paths: &Paths) -> Vec<String> {
    let kinds: &[&str] = if view.row.tmux.is_some() { &["tmux"] } else { &["stderr", "stdout"] };
    let files = kinds.iter().map(|kind| paths.log(&view.row.name, kind));
    let written = files.filter_map(|file| {
        let meta = fs::metadata(&file).ok().filter(|meta| meta.len() > 0)?;
        Some((meta.modified().ok()?, file))
    });
    let Some((_, file)) = written.max() else { return Vec::new() };
    if view.row.tmux.is_some() {
        return window_log::last_lines(&file, OUTPUT_LINES).unwrap_or_default();
    }
    let (mut tail, mut bytes) = (Tail::new(file), Vec::new());
    let lines = u64::try_from(OUTPUT_LINES).unwrap_or(u64::MAX);
    let mut sink = |more: &[u8]| {
        bytes.extend_from_slice(more);
        Ok(())
    };
    if tail.start(From::LastLines(lines), &mut sink).is_ok() {
        while tail.drain(&mut sink).is_ok_and(|drained| drained.more) {}
    }
    let mut text = Vec::new();
    Plain::new().feed(&bytes, &mut text);
    String::from_utf8_lossy(&text).lines().filter(|line| !line.trim().is_empty()).map(str::to_owned).collect()
}

pub fn facts(view: &WorkerView, evidence: &Evidence, paths: &Paths, clock: &Clock) -> Vec<Fact> {
    let dir = view.dir.as_ref().map(|dir| paths.workers().join(dir));
    let mut facts = vec![of_row(view, paths, clock)];
    if let (Some(dir), Some(known)) = (&dir, &evidence.facts) {
        facts.extend(of_dir(dir, known));
    }
    match &view.job {
        Some(job) => facts.push(of_job(job, dir.as_deref(), clock)),
        None => facts.push(of_process(view)),
    }
    facts.extend(of_end(view, dir.as_deref(), clock));
    facts.extend(of_surroundings(view, evidence, paths));
    facts
}

fn of_row(view: &WorkerView, paths: &Paths, clock: &Clock) -> Fact {
    let place = view.row.tmux.as_ref().map(|tmux| format!(", window {}", window(tmux))).unwrap_or_default();
    let value = format!("started {}{place}: {}", view.row.started, view.row.cmd.join(" "));
    let age_ms = clock.since(&view.row.started).map(|seconds| seconds * 1000);
    Fact { what: "row", value, source: paths.state().display().to_string(), age_ms }
}

fn of_dir(dir: &Path, known: &DirFacts) -> Vec<Fact> {
    let file = |what, name: &str, value: String| of_file(what, value, &dir.join(name));
    let contract = match &known.spec {
        SpecFacts::Missing => {
            file("contract", "spec.json", "cannot be read; respawn cannot restore the original settings".into())
        }
        SpecFacts::Pending(_) => file("contract", "spec.pending", "the command was never executed".into()),
        SpecFacts::Executed(_) => file("contract", "spec.json", format!("executed (start {})", known.generation)),
    };
    let lease = match (&known.lease.content, known.lease.held) {
        _ if known.lease.job.is_some() => "held by its shim on a node, if it runs".into(),
        (Some(lease), true) => format!("held by the running shim (pid {})", lease.shim.pid),
        (Some(lease), false) => format!("free; the shim (pid {}) has ended", lease.shim.pid),
        (None, true) => "held by a start in progress".into(),
        (None, false) => "none".into(),
    };
    let wanted = match known.wanted.state {
        WantedState::Running => format!("running; {} so far", counted(known.wanted.restarts.into(), "restart")),
        WantedState::Stopped => "stopped".into(),
        WantedState::Failed => "given up after too many restarts".into(),
    };
    let limits = known.lease.content.as_ref().and_then(|lease| lease.limits.as_ref());
    let limits = limits.map(|held| file("limits", "lease", in_force(held)));
    [contract, file("lease", "lease", lease), file("wanted", "wanted.json", wanted)].into_iter().chain(limits).collect()
}

/// Describes each requested limit and the mechanism that enforces it.
fn in_force(held: &Held) -> String {
    let asked = &held.asked;
    let limits = [
        (asked.memory_bytes.map(|bytes| format!("memory {} MiB", bytes >> 20)), held.memory),
        (asked.cpu_milli.map(|milli| format!("cpu {}", f64::from(milli) / 1000.0)), held.cpu),
        (asked.pids.map(|pids| format!("pids {pids}")), held.pids),
        (asked.max_output_bytes.map(|bytes| format!("output {bytes} bytes")), held.output),
    ];
    let by = |by: Option<By>| match by {
        Some(By::GroupV2) => "cgroup v2",
        Some(By::GroupV1) => "cgroup v1",
        Some(By::Rlimit) => "per process",
        Some(By::Swarm) => "swarm",
        None => "NOT enforced",
    };
    let said = limits.into_iter().filter_map(|(limit, held)| Some(format!("{} ({})", limit?, by(held))));
    said.collect::<Vec<_>>().join(", ")
}

fn of_job(job: &Job, dir: Option<&Path>, clock: &Clock) -> Fact {
    let value = format!("{} on {}: {}", job.name, job.host, jobs::words(job));
    let source = dir.map_or_else(|| "-".to_owned(), |dir| dir.join(FILE).display().to_string());
    let age_ms = job.asked_ms.and_then(|at| clock.since_ms(at)).map(|seconds| seconds * 1000);
    Fact { what: "job", value, source, age_ms }
}

fn of_process(view: &WorkerView) -> Fact {
    let (value, source) = match view.pid {
        None if !view.survivors.is_empty() => {
            (format!("has ended, but {} could not be ended", pid_list(&view.survivors)), "/proc".to_owned())
        }
        Some(pid) => {
            let stat = procfs::stat(pid);
            let state = stat.map_or('?', |stat| stat.state);
            let mib = stat.map_or(0, |stat| stat.resident_bytes() >> 20);
            (format!("pid {pid}, state {state}, {mib} MiB in use"), format!("/proc/{pid}/stat"))
        }
        None => ("not running".to_owned(), "/proc".to_owned()),
    };
    Fact { what: "process", value, source, age_ms: None }
}

fn of_end(view: &WorkerView, dir: Option<&Path>, clock: &Clock) -> Option<Fact> {
    let exit = view.exit.as_ref()?;
    let usage = &exit.usage;
    let cpu_ms = (usage.user_us + usage.system_us) / 1000;
    let word = serde_json::to_value(exit.reason).ok().and_then(|word| word.as_str().map(str::to_owned));
    let value = format!(
        "{} ({}); {} ms CPU time, peak {} MiB",
        ended_word(exit.ended),
        word.unwrap_or_default(),
        cpu_ms,
        usage.rss_max_kb >> 10
    );
    let value = exit.hits.words().map_or(value.clone(), |hits| format!("{value}; {hits}"));
    let source = dir.map_or_else(|| "-".to_owned(), |dir| dir.join("exit.json").display().to_string());
    let age_ms = clock.since_ms(exit.ended_at_ms).map(|seconds| seconds * 1000);
    Some(Fact { what: "exit", value, source, age_ms })
}

fn of_surroundings(view: &WorkerView, evidence: &Evidence, paths: &Paths) -> Vec<Fact> {
    let mut facts = Vec::new();
    if let Some(tree) = &view.row.worktree {
        let path = Path::new(&tree.path);
        // As git's record has it: the worktree's own `.git` file is the worker's to write.
        let listed = repositories::worktrees_of(Path::new(&tree.base_repo)).unwrap_or_default();
        let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let value = match listed.into_iter().find(|one| one.path == real) {
            _ if !path.exists() => "missing".to_owned(),
            Some(Listed { branch: Some(branch), .. }) => format!("on branch {branch}"),
            Some(Listed { branch: None, .. }) => "HEAD is detached".to_owned(),
            None => "not listed by git".to_owned(),
        };
        facts.push(Fact { what: "worktree", value, source: tree.path.clone(), age_ms: None });
    }
    let session = evidence.facts.as_ref().and_then(|facts| facts.spec.spec()?.session());
    if let Some(beat) = session.map(|session| Path::new(&session.dir).join(HEARTBEAT)).filter(|file| file.exists()) {
        facts.push(of_file("heartbeat", "heartbeat of its session".to_owned(), &beat));
    }
    for kind in ["stdout", "stderr", "tmux"] {
        let log = paths.log(&view.row.name, kind);
        if let Ok(meta) = fs::metadata(&log) {
            facts.push(of_file("output", format!("{} bytes", meta.len()), &log));
        }
    }
    let value = evidence.supervisor.map_or_else(|| "not running".to_owned(), |pid| format!("pid {pid}"));
    facts.push(Fact { what: "supervisor", value, source: paths.socket().display().to_string(), age_ms: None });
    facts
}

fn of_file(what: &'static str, value: String, path: &Path) -> Fact {
    let written = fs::metadata(path).and_then(|meta| meta.modified()).ok();
    let age = written.and_then(|written| SystemTime::now().duration_since(written).ok());
    let age_ms = age.map(|age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX));
    Fact { what, value, source: path.display().to_string(), age_ms }
}
