//! `swarm wait`: waits for the end of workers without polling; returns within a few milliseconds of the end.
//!
//! The exit record is the end. If a supervisor runs, its event about the end is waited for as well, for a short time,
//! so that `events` and `history` show what `wait` has reported.
//!
//! A worker whose agent has ended to ask a person has not ended: it is started again after the answer. The wait goes on, and
//! says so.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use swarm_model::{Ended, FineState, Needs, RefusalKind, WorkerView};

use super::args::WaitArgs;
use super::error::{Failure, unknown_worker};
use super::json;
use super::life::{BLIND_LOOK, WatchState, WatchedWorker, has_ended, watch_records};
use super::render::{escape, short_state};
use super::screen::Screen;
use super::watch::{Changes, Until, allow_many_descriptors, wait_any};
use crate::api::client;
use crate::api::supervision::Supervision;
use swarm_ports::pid_list;
use swarm_store::asks::present;
use swarm_store::events;
use swarm_store::views::{Detail, Pick, Registry, load_where};
use swarm_sys::paths::Paths;

/// Exit code of `--exit-code` if the time is up, as that of `timeout`.
const TIMED_OUT: u8 = 124;
/// Maximum time between an end and its event, for which the answer is delayed.
const EVENT_MAX: Duration = Duration::from_secs(2);

pub fn run(args: &WaitArgs, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    let limit = args.timeout.filter(|limit| !limit.is_zero()).map(|limit| limit.saturating_sub(screen.spent()));
    let registry = super::read_for(paths, super::only(&args.names).filter(|_| !args.all), screen)?;
    let was: Option<Mark> = screen.goes_on();
    let waiting = match &was {
        Some(was) => was.lives.iter().map(|(name, started)| WatchedWorker::since(name, started)).collect(),
        None => chosen(args, &registry)?,
    };
    for view in waiting.iter().filter_map(|life| registry.find(&life.name)) {
        if let Some(host) = &view.elsewhere {
            let name = escape(&view.row.name);
            screen.aside(
                "note: ",
                &format!("worker '{name}' is on machine '{}': its end is seen with a delay", escape(host)),
            );
        }
    }
    allow_many_descriptors();
    let mut wait = Wait::new(paths, limit.and_then(|limit| Instant::now().checked_add(limit)));
    wait.first_only = args.any;
    let mut report = Report::of(args, screen);
    if let Some(was) = was {
        (report.ended, report.codes, report.results, wait.told) = (was.ended, was.codes, was.results, was.told);
    }
    let mut left = wait.all(waiting, registry, &mut report, screen)?;
    if args.any && report.ended > 0 {
        left.clear();
    }
    for life in &left {
        report.say(&life.name, "timeout", None, screen)?;
    }
    if args.json {
        json::print_list(screen, "swarm.waited/1", "workers", std::mem::take(&mut report.results))?;
    }
    Ok(report.code(!left.is_empty()))
}

/// Returns the named workers in any state, or all that run or will be restarted.
fn chosen(args: &WaitArgs, registry: &Registry) -> Result<Vec<WatchedWorker>, Failure> {
    if args.tagged.is_given() {
        let open = |view: &&WorkerView| !args.all || !has_ended(view);
        return Ok(args.tagged.workers(registry)?.into_iter().filter(open).map(WatchedWorker::of).collect());
    }
    if args.all {
        return Ok(registry.workers.iter().filter(|view| !has_ended(view)).map(WatchedWorker::of).collect());
    }
    if args.names.is_empty() {
        return Err(Failure::new(RefusalKind::Invalid, "name required (or use --all)"));
    }
    let find = |name: &String| registry.find(name).map(WatchedWorker::of).ok_or_else(|| unknown_worker(name, registry));
    super::each_once(&args.names).iter().map(find).collect()
}

/// How far a wait is.
#[derive(Debug, Serialize, Deserialize)]
struct Mark {
    /// Names of the workers that have not ended, and the starts of their lives.
    lives: Vec<(String, String)>,
    told: BTreeSet<(String, String)>,
    ended: usize,
    codes: Vec<u8>,
    results: Vec<Map<String, Value>>,
}

impl Mark {
    fn of(waiting: &[WatchedWorker], wait: &Wait, report: &Report) -> Self {
        let lives = waiting.iter().map(|life| (life.name.clone(), life.started().to_owned())).collect();
        let (codes, results) = (report.codes.clone(), report.results.clone());
        Self { lives, told: wait.told.clone(), ended: report.ended, codes, results }
    }
}

struct Wait<'a> {
    paths: &'a Paths,
    deadline: Option<Instant>,
    /// Created when the first worker needs it.
    changes: Option<Changes>,
    /// Watched directories below `w/`.
    watched: BTreeSet<Option<String>>,
    watches_events: bool,
    /// Set once a worker needs a supervisor.
    supervision: Option<Supervision<'a>>,
    /// Set if the end of one worker is enough.
    first_only: bool,
    /// What was said of workers whose agents ask a person, or of which processes live on.
    told: BTreeSet<(String, String)>,
}

impl<'a> Wait<'a> {
    fn new(paths: &'a Paths, deadline: Option<Instant>) -> Self {
        Self {
            paths,
            deadline,
            changes: None,
            watched: BTreeSet::new(),
            watches_events: false,
            supervision: None,
            first_only: false,
            told: BTreeSet::new(),
        }
    }
}

impl Wait<'_> {
    /// Waits for all of `waiting`, or for the first; returns those that have not ended.
    fn all(
        &mut self,
        mut waiting: Vec<WatchedWorker>,
        mut registry: Registry,
        report: &mut Report,
        screen: &mut Screen,
    ) -> Result<Vec<WatchedWorker>, Failure> {
        let mut unsupervised = false;
        loop {
            let (mut blind, mut again, mut untold) = (false, false, None);
            let mut unwatched = Vec::new();
            let mut going = Vec::new();
            let parked = self.parked(&waiting, &registry)?;
            for mut life in waiting {
                let view = registry.find(&life.name);
                match life.look_beyond(view, parked.contains_key(&life.name))? {
                    WatchState::Ended if self.is_in_events(&life, view) => {
                        report.say(&life.name, "exited", view, screen)?;
                        continue;
                    }
                    WatchState::Ended => untold = untold.into_iter().chain(life.ended).min(),
                    WatchState::Watched => {}
                    WatchState::Gone => again = true,
                    WatchState::Unwatched => unwatched.extend(view.map(|view| view.dir.clone())),
                    WatchState::Blind => blind = true,
                }
                going.push(life);
            }
            waiting = going;
            self.tell(parked, screen);
            self.tell_left(&waiting, &registry, screen);
            screen.mark(|| Mark::of(&waiting, self, report))?;
            let enough = self.first_only && report.ended > 0;
            if waiting.is_empty() || enough || self.deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                return Ok(waiting);
            }
            if !unwatched.is_empty() {
                self.supervise(unsupervised)?;
            }
            // A change before the watch was set would be missed, so read the registry once more.
            again |= self.watch(&unwatched)?;
            if untold.is_some() {
                again |= self.watch_events()?;
            }
            if !again {
                let soon = [blind.then(|| Instant::now() + BLIND_LOOK), untold.map(|ended| ended + EVENT_MAX)];
                let soon = soon.into_iter().flatten().min();
                self.pause(&mut waiting, !unwatched.is_empty() || untold.is_some(), soon)?;
            }
            // Before the registry is read, so that what an ended supervisor did counts.
            unsupervised = self.supervision.as_ref().is_some_and(Supervision::has_ended);
            let names: Vec<&str> = waiting.iter().map(|life| life.name.as_str()).collect();
            registry = load_where(self.paths, Detail::Exit, Pick::Named(&names))?;
        }
    }

    /// Returns what the agents of those workers ask that are started again after the answer.
    fn parked(&self, waiting: &[WatchedWorker], registry: &Registry) -> Result<BTreeMap<String, Needs>, Failure> {
        let ended = |life: &&WatchedWorker| {
            registry.find(&life.name).is_some_and(|view| view.state == FineState::Exited && view.exit.is_some())
        };
        let names: Vec<&str> = waiting.iter().filter(ended).map(|life| life.name.as_str()).collect();
        let parked = present::parked(self.paths, &names);
        parked.map_err(|error| Failure::system("cannot read the requests of agents", &error))
    }

    /// Says once what each of these workers waits for.
    fn tell(&mut self, parked: BTreeMap<String, Needs>, screen: &mut Screen) {
        for (name, needs) in parked {
            let said = (name, needs.answer.unwrap_or_default());
            if !self.told.contains(&said) {
                let (name, answer, what) = (&said.0, &said.1, &needs.text);
                screen.aside("note: ", &format!("worker '{name}' asks a person: {what}; answer with '{answer}'"));
                self.told.insert(said);
            }
        }
    }

    /// Says once which processes of these workers live on after the end of the command.
    fn tell_left(&mut self, waiting: &[WatchedWorker], registry: &Registry, screen: &mut Screen) {
        for view in waiting.iter().filter_map(|life| registry.find(&life.name)).filter(|view| !view.left().is_empty()) {
            let (name, pids) = (&view.row.name, pid_list(view.left()));
            if self.told.insert((name.clone(), pids.clone())) {
                screen.aside("note: ", &format!("processes of worker '{name}' cannot be ended: {pids}"));
            }
        }
    }

    /// Reports whether the end of this worker is visible everywhere: it is in the events, or nobody can be expected to
    /// record it there.
    fn is_in_events(&self, life: &WatchedWorker, view: Option<&WorkerView>) -> bool {
        let Some(ended) = life.ended else { return true };
        let Some(generation) = view.and_then(|view| view.row.swarm()).map(|swarm| swarm.generation) else {
            return true;
        };
        let now = Instant::now();
        now >= ended + EVENT_MAX
            || self.deadline.is_some_and(|deadline| now >= deadline)
            || events::has_ended(self.paths, &life.name, generation)
            || !client::is_running(self.paths)
    }

    /// Makes sure that a supervisor runs for workers that only a supervisor can start again.
    fn supervise(&mut self, unsupervised: bool) -> Result<(), Failure> {
        match &mut self.supervision {
            None => self.supervision = Some(Supervision::unless_stopped(self.paths)?),
            Some(supervision) if unsupervised => supervision.renew()?,
            Some(_) => {}
        }
        Ok(())
    }

    /// Watches the event log; returns true if the watch is new.
    fn watch_events(&mut self) -> Result<bool, Failure> {
        let changes = match self.changes.take() {
            Some(changes) => changes,
            None => Changes::new()?,
        };
        changes.add_file(&self.paths.events())?;
        self.changes = Some(changes);
        Ok(!std::mem::replace(&mut self.watches_events, true))
    }

    /// Watches the records of workers without a process; returns true if a new watch was set.
    fn watch(&mut self, dirs: &[Option<String>]) -> Result<bool, Failure> {
        let mut new = false;
        for dir in dirs {
            let changes = match self.changes.take() {
                Some(changes) => changes,
                None => Changes::new()?,
            };
            if self.watched.insert(dir.clone()) {
                watch_records(&changes, self.paths, dir.as_deref())?;
                // A request may end without another start of its worker.
                changes.add_dir(&self.paths.asks())?;
                new = true;
            }
            self.changes = Some(changes);
        }
        Ok(new)
    }

    /// Sleeps until a process ends, a record changes, or the deadline passes.
    fn pause(&mut self, waiting: &mut [WatchedWorker], records: bool, soon: Option<Instant>) -> Result<(), Failure> {
        let deadline = [soon, self.deadline].into_iter().flatten().min();
        let mut owners = Vec::new();
        let mut sources = Vec::new();
        for (index, life) in waiting.iter().enumerate() {
            if let Some(fd) = life.fd() {
                owners.push(index);
                sources.push((fd, Until::Readable));
            }
        }
        if let Some(changes) = self.changes.as_ref().filter(|_| records) {
            sources.push((changes.as_fd(), Until::Readable));
            let supervisor = self.supervision.as_ref().and_then(Supervision::fd);
            sources.extend(supervisor.map(|supervisor| (supervisor, Until::Readable)));
        }
        let ready = wait_any(&sources, deadline)?;
        for (owner, _) in owners.into_iter().zip(&ready).filter(|(_, ready)| **ready) {
            waiting[owner].process_ended();
        }
        if let Some(changes) = &self.changes {
            changes.take()?;
        }
        Ok(())
    }
}

struct Report {
    as_json: bool,
    /// Set for `--exit-code`.
    by_code: bool,
    /// Set if failures are printed as such, and not in the words of the original.
    plain: bool,
    results: Vec<Map<String, Value>>,
    /// Number of workers that have ended.
    ended: usize,
    /// Exit code for each of them, as shells report it.
    codes: Vec<u8>,
}

impl Report {
    fn of(args: &WaitArgs, screen: &Screen) -> Self {
        let plain = args.exit_code || screen.terminal;
        Self { as_json: args.json, by_code: args.exit_code, plain, results: Vec::new(), ended: 0, codes: Vec::new() }
    }

    /// Prints `NAME: exited` or `NAME: still running (timeout)` at once, or collects it for `--json`.
    fn say(&mut self, name: &str, result: &str, view: Option<&WorkerView>, screen: &mut Screen) -> Result<(), Failure> {
        if result == "exited" {
            self.ended += 1;
            self.codes.push(shell_code(view));
        }
        if self.as_json {
            // A worker that was cleaned meanwhile has ended too, without a record.
            let exit = (result == "exited").then(|| view.and_then(json::Exit::of).unwrap_or_else(json::Exit::unknown));
            self.results.push(json::object([("name", json!(name)), ("result", json!(result)), ("exit", json!(exit))]));
            return Ok(());
        }
        let words = match view {
            _ if result != "exited" => "still running (timeout)".into(),
            Some(view) if self.plain => short_state(view),
            _ => "exited".into(),
        };
        screen.line(&format!("{}: {words}", escape(name)))?;
        screen.flush()
    }

    /// Returns the exit code of the verb.
    fn code(&self, timed_out: bool) -> u8 {
        match self.codes[..] {
            _ if !self.by_code => u8::from(timed_out),
            _ if timed_out => TIMED_OUT,
            [code] => code,
            _ => u8::from(self.codes.iter().any(|code| *code != 0)),
        }
    }
}

/// Returns the code of an ended worker as shells report it: 128 and the number of the signal that ended it, and 1 if it
/// is unknown or if the worker failed in spite of code 0.
fn shell_code(view: Option<&WorkerView>) -> u8 {
    let Some((view, exit)) = view.and_then(|view| Some((view, view.exit.as_ref()?))) else { return 1 };
    let code = match exit.ended {
        Ended::Code(code) => code & 0xff,
        Ended::Signal(signal) => 128 + signal,
    };
    u8::try_from(code).unwrap_or(1).max(u8::from(view.has_failed()))
}

#[cfg(test)]
mod tests {
    use swarm_model::{FineState, ProcessId, Reason};

    use super::*;
    use crate::cli::sample;

    fn waited(words: &[&str], registry: Registry) -> (String, String, u8) {
        let crate::cli::args::Command::Wait(args) = sample::command(&[&["wait"], words].concat()) else {
            panic!("not wait");
        };
        let paths = Paths::new("/nowhere");
        sample::said(|screen| {
            let waiting = chosen(&args, &registry)?;
            let deadline = args.timeout.filter(|limit| !limit.is_zero()).map(|limit| Instant::now() + limit);
            let mut report = Report::of(&args, screen);
            let mut wait = Wait::new(&paths, deadline);
            wait.first_only = args.any;
            let left = wait.all(waiting, registry, &mut report, screen)?;
            for life in &left {
                report.say(&life.name, "timeout", None, screen)?;
            }
            if args.json {
                json::print_list(screen, "swarm.waited/1", "workers", std::mem::take(&mut report.results))?;
            }
            Ok(report.code(!left.is_empty()))
        })
    }

    /// Starts a process and returns its worker. The second read of the stub registry is empty, as if the worker had
    /// been cleaned during the wait.
    fn child(name: &str) -> (std::process::Child, WorkerView) {
        let child = std::process::Command::new("true").spawn().expect("started");
        let pid = i32::try_from(child.id()).expect("a pid");
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("there until it is reaped");
        let (_, rest) = stat.rsplit_once(')').expect("brackets");
        let start_ticks = rest.split_ascii_whitespace().nth(19).expect("field").parse().expect("number");
        let mut view = sample::process(name);
        view.watch = Some(ProcessId { pid, start_ticks, boot: String::new() });
        (child, view)
    }

    #[test]
    fn ended_workers_are_reported_at_once() {
        let registry = sample::registry(vec![sample::ended("x", Ended::Code(7))]);
        assert_eq!(waited(&["x"], registry), ("x: exited\n".into(), String::new(), 0));
        let registry = sample::registry(vec![sample::ended("x", Ended::Code(7))]);
        let (out, _, code) = waited(&["x", "--json", "--timeout", "0"], registry);
        let value: Value = serde_json::from_str(&out).expect("json");
        assert_eq!((value["workers"][0]["exit"]["code"].as_i64(), code), (Some(7), 0));
    }

    #[test]
    fn exit_code_is_that_of_the_worker_and_failures_are_named() {
        let end = |ended, reason| {
            let mut view = sample::ended("x", ended);
            view.exit.as_mut().expect("an exit").reason = reason;
            view
        };
        let unknown = WorkerView { exit: None, state: FineState::Lost, ..sample::ended("x", Ended::Code(0)) };
        let stopped = WorkerView { state: FineState::Stopped, ..end(Ended::Signal(15), Reason::Stopped) };
        for (view, words, expected) in [
            (end(Ended::Code(0), Reason::Exited), "exited", 0),
            (end(Ended::Code(7), Reason::Exited), "failed (exit code 7)", 7),
            (end(Ended::Signal(9), Reason::Exited), "failed (SIGKILL)", 137),
            (end(Ended::Code(0), Reason::Timeout), "failed (time limit)", 1),
            (unknown, "lost", 1),
            (stopped, "stopped", 143),
        ] {
            let registry = || sample::registry(vec![view.clone()]);
            let (out, err, code) = waited(&["x", "--exit-code"], registry());
            assert_eq!((out, err.as_str(), code), (format!("x: {words}\n"), "", expected));
            assert_eq!(waited(&["x"], registry()), ("x: exited\n".into(), String::new(), 0), "{words}");
        }
        let two = || sample::registry(vec![sample::ended("a", Ended::Code(0)), sample::ended("b", Ended::Code(7))]);
        assert_eq!(waited(&["a", "b", "--status"], two()).2, 1);
        assert_eq!(waited(&["a", "--any", "--exit-code"], two()).2, 0);
    }

    #[test]
    fn all_selects_the_workers_that_run_now() {
        let (mut process, running) = child("up");
        let registry = sample::registry(vec![sample::ended("down", Ended::Code(0)), running]);
        assert_eq!(waited(&["--all"], registry), ("up: exited\n".into(), String::new(), 0));
        process.wait().expect("reaped");
        let registry = sample::registry(vec![sample::ended("down", Ended::Code(0))]);
        assert_eq!(waited(&["--all"], registry), (String::new(), String::new(), 0));
    }

    #[test]
    fn running_workers_are_reported_at_the_timeout() {
        let me = std::process::id();
        let mut view = sample::process("up");
        view.state = FineState::Running;
        let stat = std::fs::read_to_string(format!("/proc/{me}/stat")).expect("alive");
        let ticks =
            stat.rsplit_once(')').expect("brackets").1.split_ascii_whitespace().nth(19).expect("field").to_owned();
        view.watch = Some(ProcessId {
            pid: i32::try_from(me).expect("a pid"),
            start_ticks: ticks.parse().expect("number"),
            boot: String::new(),
        });
        let paths = Paths::new("/nowhere");
        let mut wait = Wait::new(&paths, Some(Instant::now()));
        let registry = sample::registry(vec![view]);
        let lives: Vec<WatchedWorker> = registry.workers.iter().map(WatchedWorker::of).collect();
        let crate::cli::args::Command::Wait(args) = sample::command(&["wait", "up"]) else { panic!("not wait") };
        let (out, _, code) = sample::said(|screen| {
            let mut report = Report::of(&args, screen);
            let left = wait.all(lives, registry, &mut report, screen)?;
            report.say(&left[0].name, "timeout", None, screen)?;
            Ok(report.code(!left.is_empty()))
        });
        assert_eq!((out.as_str(), code), ("up: still running (timeout)\n", 1));
    }

    #[test]
    fn a_name_is_required() {
        let none = || sample::registry(Vec::new());
        assert_eq!(waited(&[], none()).1, "swarm: error: name required (or use --all)\n");
        assert_eq!(waited(&["x"], none()), (String::new(), "swarm: error: worker 'x' not found\n".into(), 1));
    }
}
