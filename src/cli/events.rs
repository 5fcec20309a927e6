//! `swarm events`: recorded events, as sentences or as JSON.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::path::Path;
use std::rc::Rc;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use swarm_model::asks::parking::Parking;
use swarm_model::{Ended, Event, EventKind, Hits, NeedKind, Reason, Refusal, RefusalKind};

use super::args::EventsArgs;
use super::error::{Failure, unknown_worker};
use super::follow::{Follow, Places};
use super::render::{Clock, ended_word, escape, words};
use super::run::plain::totals;
use super::screen::Screen;
use super::tail::{From, Pending, Place, Tail};
use swarm_agents::short;
use swarm_ports::pid_list;
use swarm_store::lines::{self, Damage};
use swarm_sys::paths::Paths;

/// Number of past events that `--follow` shows first.
const FOLLOW_LINES: u64 = 10;

pub fn run(args: &EventsArgs, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    let file = paths.events();
    if args.follow && !paths.root().is_dir() {
        let cause = format!("no events yet: {} does not exist", paths.root().display());
        return Err(Refusal::new(RefusalKind::Registry, cause).remedy("start a worker with 'swarm spawn'").into());
    }
    let limit = args.lines.or_else(|| (args.follow && args.since.is_none()).then_some(FOLLOW_LINES));
    let mut history = History::new(args, limit);
    let mut tail = Tail::new(file.clone());
    // Watch before reading, so that no event is missed in between.
    let follow = if args.follow { Some(Follow::new(paths, &file)?) } else { None };
    match screen.goes_on() {
        Some(mark) => history.go_on(mark, &mut tail, screen)?,
        None => tail.start(From::Start, &mut |bytes: &[u8]| history.give(bytes, screen))?,
    }
    while tail.drain(&mut |bytes: &[u8]| history.give(bytes, screen))?.more {}
    history.past_is_complete(screen)?;
    history.warn(&file, screen);
    if let Some(name) = args.name.as_deref().filter(|_| !history.is_known && follow.is_none()) {
        // A worker that was cleaned still has events, and one whose events were rotated away still has a row.
        let registry = super::read_one(paths, name, screen)?;
        if registry.find(name).is_none() {
            return Err(unknown_worker(name, &registry));
        }
    }
    if let Some(mut follow) = follow {
        let places = screen.is_marked().then(Rc::<RefCell<Places>>::default);
        follow.places.clone_from(&places);
        follow.run(&mut tail, None, None, &mut |bytes: &[u8]| {
            history.give(bytes, screen)?;
            history.warn(&file, screen);
            match places.as_ref().filter(|_| bytes.is_empty()) {
                Some(places) => screen.mark(|| history.mark(places.borrow().log.clone())),
                None => Ok(()),
            }
        })?;
    }
    Ok(0)
}

/// How far the events were followed.
#[derive(Debug, Serialize, Deserialize)]
struct Mark {
    place: Place,
    /// Incomplete last line.
    pending: String,
    /// Whether damaged lines were reported.
    is_told: bool,
}

/// Describes damaged lines of a file: the first one, and the number of all.
pub fn damage_of(file: &Path, first: &Damage, count: usize) -> String {
    let more = if count > 1 { format!(" ({count} damaged lines)") } else { String::new() };
    format!("{}: damaged line in the middle: {}{more}; its event is missing here", file.display(), first.cause)
}

/// Calls `take` with each event of the worker, oldest first. Skips incomplete lines left by a crash and kinds that only
/// a newer program knows. Returns a warning if a damaged line may be about the worker.
pub fn of_worker(paths: &Paths, name: &str, take: &mut dyn FnMut(Event)) -> Result<Option<String>, Failure> {
    let (mut pending, mut tail) = (Pending::default(), Tail::new(paths.events()));
    let quoted = Value::from(name).to_string();
    let mut damaged = Damaged::default();
    let mut sink = |bytes: &[u8]| {
        for line in pending.whole(bytes) {
            // Most lines concern other workers, and parsing is expensive. A line that is an object at both ends is
            // parsed only if it names the worker.
            let is_named = memchr::memmem::find(&line, quoted.as_bytes()).is_some();
            if !is_named && line.starts_with(b"{\"") && line.ends_with(b"}\n") {
                continue;
            }
            match serde_json::from_slice::<Event>(&line) {
                Ok(event) if event.worker.as_deref() == Some(name) => take(event),
                Ok(_) => {}
                Err(_) => damaged.check(&line),
            }
        }
        Ok(())
    };
    tail.start(From::Start, &mut sink)?;
    while tail.drain(&mut sink)?.more {}
    Ok(damaged.warning(&paths.events()))
}

/// Damaged lines that a reader met. They are reported once.
#[derive(Default)]
struct Damaged {
    first: Option<Damage>,
    count: usize,
    is_told: bool,
}

impl Damaged {
    /// Checks a complete line that is no event of this version.
    fn check(&mut self, line: &[u8]) {
        // The number of a line means nothing here, because the file may be rotated.
        if let Some(damage) = lines::damage(line, 0) {
            self.count += 1;
            self.first.get_or_insert(damage);
        }
    }

    /// Returns the warning about these lines, at the first call after one was met.
    fn warning(&mut self, file: &Path) -> Option<String> {
        let first = self.first.as_ref().filter(|_| !self.is_told)?;
        self.is_told = true;
        Some(damage_of(file, first, self.count))
    }
}

/// Filters and formats lines between the file and the screen.
struct History<'a> {
    args: &'a EventsArgs,
    clock: Clock,
    /// Incomplete last line.
    pending: Pending,
    /// Last past lines and their maximum number, while the past is read with a limit.
    held: Option<(VecDeque<String>, usize)>,
    /// Whether there is any event of the worker, also at other times.
    is_known: bool,
    damaged: Damaged,
    parking: Parking,
}

impl<'a> History<'a> {
    fn new(args: &'a EventsArgs, limit: Option<u64>) -> Self {
        let held = limit.map(|limit| (VecDeque::new(), usize::try_from(limit).unwrap_or(usize::MAX)));
        Self {
            args,
            clock: Clock::system(),
            pending: Pending::default(),
            held,
            is_known: false,
            damaged: Damaged::default(),
            parking: Parking::default(),
        }
    }

    fn give(&mut self, bytes: &[u8], screen: &mut Screen) -> Result<(), Failure> {
        if bytes.is_empty() {
            return screen.flush();
        }
        self.pending.whole(bytes).iter().try_for_each(|line| {
            let text = String::from_utf8_lossy(line);
            if serde_json::from_str::<Value>(text.trim_end()).is_err() {
                self.damaged.check(line);
            }
            self.line(&text, screen)
        })
    }

    /// Goes on where another reader was.
    fn go_on(&mut self, mark: Mark, tail: &mut Tail, screen: &mut Screen) -> Result<(), Failure> {
        self.held = None;
        self.damaged.is_told = mark.is_told;
        self.pending.whole(mark.pending.as_bytes());
        tail.go_on(&mark.place, &mut |bytes: &[u8]| self.give(bytes, screen))
    }

    fn mark(&self, place: Place) -> Mark {
        let pending = String::from_utf8_lossy(self.pending.rest()).into_owned();
        Mark { place, pending, is_told: self.damaged.is_told }
    }

    /// Warns once about damaged lines.
    fn warn(&mut self, file: &Path, screen: &mut Screen) {
        if let Some(warning) = self.damaged.warning(file) {
            screen.warning(&warning);
        }
    }

    fn line(&mut self, line: &str, screen: &mut Screen) -> Result<(), Failure> {
        let Some(shown) = self.shown(line.trim_end()) else { return Ok(()) };
        match &mut self.held {
            Some((held, limit)) => {
                held.push_back(shown);
                if held.len() > *limit {
                    held.pop_front();
                }
                Ok(())
            }
            None => screen.line(&shown),
        }
    }

    fn past_is_complete(&mut self, screen: &mut Screen) -> Result<(), Failure> {
        let held = self.held.take().map(|(held, _)| held).unwrap_or_default();
        held.iter().try_for_each(|line| screen.line(line))
    }

    /// Returns the line to print; `None` for events of other workers or times, and for incomplete lines.
    fn shown(&mut self, line: &str) -> Option<String> {
        let value: Value = serde_json::from_str(line).ok()?;
        let worker = value.get("worker").and_then(Value::as_str);
        if self.args.name.is_some() && self.args.name.as_deref() != worker {
            return None;
        }
        self.is_known = true;
        let event = serde_json::from_str::<Event>(line).ok();
        let what = event.map(|event| told(&event, &mut self.parking));
        if self.args.since.is_some() || self.args.until.is_some() {
            let at_ms = value.get("at_ms").and_then(Value::as_u64)?;
            if self.args.since.is_some_and(|since| at_ms < since) || self.args.until.is_some_and(|until| at_ms >= until)
            {
                return None;
            }
        }
        if self.args.json {
            return Some(line.to_owned());
        }
        let at = self.clock.local(value.get("at_ms").and_then(Value::as_u64)?);
        let what = match what {
            Some(what) => what,
            // A kind that only a newer program knows: print its name.
            None => value.get("type").and_then(Value::as_str)?.to_owned(),
        };
        let who = worker.unwrap_or("supervisor");
        Some(format!("{at}  {}  {}", escape(who), escape(&what)))
    }
}

fn answered(ask: u64, verdict: &str, by: Option<&str>) -> String {
    let done = match verdict {
        "allow" => "approved",
        "deny" => "denied",
        _ => "answered",
    };
    let by = by.map_or_else(String::new, |by| format!(" by {by}"));
    format!("request {ask} was {done}{by}")
}

/// Returns the sentence that describes an event in view of those before it.
pub fn told(event: &Event, parking: &mut Parking) -> String {
    match (parking.take(event), &event.kind) {
        (Some(ask), EventKind::WorkerExited { duration_ms, .. }) => parked(ask, *duration_ms),
        _ => sentence(&event.kind),
    }
}

/// Returns the sentence for the end of an attempt whose agent asks a person.
pub fn parked(ask: u64, duration_ms: Option<u64>) -> String {
    let after = duration_ms.map(|ms| format!(" after {}", words(ms / 1000))).unwrap_or_default();
    format!("ended{after}, and goes on when request {ask} is answered")
}

/// Returns the sentence that describes an event.
pub fn sentence(kind: &EventKind) -> String {
    match kind {
        EventKind::SupervisorStarted { pid } => format!("started (pid {pid})"),
        EventKind::SupervisorStopped { reason } => format!("stopped: {reason}"),
        EventKind::WorkerStarted { pid } => format!("started (pid {pid})"),
        EventKind::WorkerAdopted { pid } => format!("adopted by a new supervisor (pid {pid})"),
        EventKind::WorkerExited { ended, reason, duration_ms, hits } => exited(*ended, *reason, *duration_ms, *hits),
        EventKind::WorkerRestarting { in_ms, restarts } => {
            format!("restart {restarts} in {}", words(in_ms.div_ceil(1000)))
        }
        EventKind::WorkerFailed { cause } => format!("failed: {cause}"),
        EventKind::WorkerKilled => "killed".into(),
        EventKind::WorkerCleaning => "being cleaned".into(),
        EventKind::WorkerCleaned => "cleaned".into(),
        // Earlier versions also reported waiting agents with this event.
        EventKind::WorkerStuck { signal, evidence, step } => match (signal.as_str(), step.as_str()) {
            ("asks" | "waiting" | "idle", "told") => format!("waits for a person: {evidence}"),
            _ => format!("stuck ({evidence}): {step}"),
        },
        EventKind::WorkerWaiting { text, .. } => format!("waits for a person: {text}"),
        EventKind::ApprovalRequested { ask, kind: NeedKind::Question, .. } => {
            format!("asks a question: swarm approvals {ask}")
        }
        EventKind::ApprovalRequested { ask, tool, .. } => format!("asks for {tool}: swarm approvals {ask}"),
        EventKind::ApprovalReminded { ask, .. } => format!("reminder: request {ask} is still open"),
        EventKind::ApprovalAnswered { ask, verdict, by } => answered(*ask, verdict, by.as_deref()),
        EventKind::WorkerIdle { text } => format!("waits for its next task: {text}"),
        EventKind::WorkerWorking => "works again".into(),
        EventKind::WorkerUnstuck => "no longer stuck".into(),
        EventKind::SessionLost { found } if found.is_empty() => "stopped, because its session was taken over".into(),
        EventKind::SessionLost { found } => format!("stopped, because launch {found} took over its session"),
        EventKind::NudgeSent { beat } => format!("nudged (beat {beat})"),
        EventKind::NudgeMissed { cause } => format!("nudge not delivered: {cause}"),
        EventKind::NudgeExpired => "heartbeat expired".into(),
        EventKind::NudgeStopped { cause } => format!("heartbeat stopped: {cause}"),
        EventKind::RunBegan { run, home } => format!("run {run} started in {home}"),
        EventKind::RunEnded { run, name, status, done, failed, pending, .. } => {
            format!("run {run} of {name} {}", totals(status, *done, *failed, *pending))
        }
        EventKind::SaveExpired { reference, commit, why } => format!("{reference} ({commit}) expired: {why}"),
        EventKind::WorktreeSaved { reference, commit } => format!("worktree saved as {reference} ({commit})"),
        EventKind::MergeQueued { item, base, left_out, survivors } => {
            let out = if left_out.is_empty() { String::new() } else { format!(", excluding {}", left_out.join(", ")) };
            let lives = match survivors.as_slice() {
                [] => String::new(),
                pids => format!("; some of its processes cannot be ended: {}", pid_list(pids)),
            };
            format!("queued for {base} (item {item}){out}{lives}")
        }
        EventKind::MergeBuilding { item, base } => format!("building for {base} (item {item})"),
        EventKind::MergeLanding { item, base, commit } => format!("landing on {base} (item {item}) as {commit}"),
        EventKind::MergePaused { base } => format!("merge queue of {base} paused"),
        EventKind::MergeResumed { base } => format!("merge queue of {base} resumed"),
        EventKind::MergeVerifying { item, base, commit } => {
            format!("verifying for {base} (item {item}), candidate {commit}")
        }
        EventKind::MergeResolving { item, base, files } => {
            format!("resolving conflicts with {base} (item {item}): {}", files.join(", "))
        }
        EventKind::MergeSettled { item, base, state, commit, cause, files } => {
            let what = commit.as_ref().or(cause.as_ref()).cloned().unwrap_or_else(|| files.join(", "));
            let what = if what.is_empty() { what } else { format!(": {what}") };
            format!("{state}, item {item} of {base}{what}")
        }
        EventKind::MergeRefused { cause } => format!("not queued: {cause}"),
        EventKind::MergeDamaged { cause, .. } => cause.clone(),
        EventKind::FlowWaiting { flow, node, role, reason, text } => waiting(flow, node, role, reason, text),
        EventKind::FlowTurn { flow, node, role, number } => {
            format!("turn {number} of {role} in flow {flow}: {}", node.as_deref().unwrap_or("improvement phase"))
        }
        EventKind::FlowEnded { flow } => format!("flow {flow} ended"),
        EventKind::LoopStarted { iteration, max } => format!("loop started at iteration {iteration} of {max}"),
        EventKind::LoopIteration { iteration, max } => format!("loop iteration {iteration} of {max}"),
        EventKind::LoopPaused { reason } => format!("loop paused ({reason})"),
        EventKind::LoopResumed => "loop resumed".into(),
        EventKind::LoopEnded { reason, iterations } => {
            format!("loop ended after {iterations} iterations: {reason}")
        }
        EventKind::LoopWarning { text } => format!("warning: {text}"),
        EventKind::StartAborted { cause } => format!("start aborted: {cause}"),
    }
}

/// Returns the sentence for the end of a worker: how it ended, why, after what time, and which limits it hit.
pub fn exited(ended: Option<Ended>, reason: Option<Reason>, duration_ms: Option<u64>, hits: Hits) -> String {
    let how = match ended {
        Some(ended @ Ended::Code(_)) => format!("exited with code {}", ended_word(ended)),
        Some(ended @ Ended::Signal(_)) => format!("killed by {}", ended_word(ended)),
        None => "ended, exit code unknown".into(),
    };
    let why = match reason {
        None | Some(Reason::Exited) => "",
        Some(Reason::Stopped) => " (stopped)",
        Some(Reason::Closed) => " (window closed)",
        Some(Reason::Timeout) => " (time limit reached)",
        Some(Reason::OutOfMemory) => " (out of memory)",
        Some(Reason::Output) => " (output limit reached)",
        Some(Reason::Abandoned) => " (state directory removed)",
    };
    let after = duration_ms.map(|ms| format!(" after {}", words(ms / 1000))).unwrap_or_default();
    // Limits that were hit, unless the reason already says so.
    let facts = hits.words().filter(|_| reason != Some(Reason::OutOfMemory) || hits.pids_refused > 0);
    let facts = facts.map(|facts| format!("; {facts}")).unwrap_or_default();
    format!("{how}{why}{after}{facts}")
}

fn waiting(flow: &str, node: &str, role: &str, reason: &str, text: &str) -> String {
    let who = if node.is_empty() { String::new() } else { format!("{node} ({role}) ") };
    let text = if text.is_empty() { String::new() } else { format!(": {}", short(text)) };
    format!("flow {flow}: {who}waits for a person ({reason}){text}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::sample;

    const LINES: &str = r#"{"at_ms":1767312000000,"type":"supervisor.started","pid":9}
{"at_ms":1767312001000,"worker":"x","generation":1,"type":"worker.started","pid":10}
{"at_ms":1767312002000,"worker":"y","generation":1,"type":"worker.started","pid":11}
{"at_ms":1767312003000,"worker":"x","generation":1,"type":"worker.exited","ended":{"signal":9},"reason":"timeout","duration_ms":125000}
torn {"at_ms":17
{"at_ms":1767312004000,"worker":"x","type":"worker.pondered","depth":3}
{"at_ms":1767312005000,"worker":"x","type":"worker.fail"#;

    fn told(words: &[&str]) -> String {
        let crate::cli::args::Command::Events(args) = sample::command(&[&["events"], words].concat()) else {
            panic!("not events");
        };
        let mut history = History::new(&args, args.lines);
        history.clock = sample::clock("2026-01-02T00:05:00Z");
        let (out, _, _) = sample::said(|screen| {
            for block in LINES.as_bytes().chunks(7) {
                history.give(block, screen)?;
            }
            history.past_is_complete(screen).map(|()| 0)
        });
        out
    }

    #[test]
    fn events_are_printed_as_sentences() {
        let expected = "\
2026-01-02 00:00:00  supervisor  started (pid 9)
2026-01-02 00:00:01  x  started (pid 10)
2026-01-02 00:00:02  y  started (pid 11)
2026-01-02 00:00:03  x  killed by SIGKILL (time limit reached) after 2m
2026-01-02 00:00:04  x  worker.pondered
";
        assert_eq!(told(&[]), expected);
    }

    #[test]
    fn an_attempt_that_ended_to_ask_a_person_has_not_failed() {
        let lines = r#"{"at_ms":1767312001000,"worker":"p.a","generation":1,"type":"worker.started","pid":10}
{"at_ms":1767312002000,"worker":"p.a","type":"approval.requested","ask":7,"kind":"permission","tool":"Bash"}
{"at_ms":1767312003000,"worker":"p.a","generation":1,"type":"worker.exited","ended":{"code":1},"reason":"exited","duration_ms":2000}
{"at_ms":1767312004000,"worker":"p.a","generation":2,"type":"worker.started","pid":11}
{"at_ms":1767312005000,"worker":"p.a","generation":2,"type":"worker.exited","ended":{"code":1},"reason":"exited","duration_ms":1000}
"#;
        let told = |words: &[&str]| {
            let crate::cli::args::Command::Events(args) = sample::command(&[&["events"], words].concat()) else {
                panic!("not events");
            };
            let mut history = History::new(&args, args.lines);
            history.clock = sample::clock("2026-01-02T00:05:00Z");
            sample::said(|screen| history.give(lines.as_bytes(), screen).map(|()| 0)).0
        };
        let parked = "2026-01-02 00:00:03  p.a  ended after 2s, and goes on when request 7 is answered\n";
        let failed = "2026-01-02 00:00:05  p.a  exited with code 1 after 1s\n";
        let all = told(&["p.a"]);
        assert!(all.contains(parked) && all.ends_with(failed), "{all}");
        let late = told(&["--since", "2026-01-02T00:00:03Z"]);
        assert!(late.starts_with(parked), "{late}");
    }

    #[test]
    fn events_are_selected_by_name_number_and_time_and_json_is_as_recorded() {
        assert_eq!(told(&["y"]), "2026-01-02 00:00:02  y  started (pid 11)\n");
        assert_eq!(told(&["x", "--lines", "1"]), "2026-01-02 00:00:04  x  worker.pondered\n");
        assert_eq!(told(&["y", "--json"]), format!("{}\n", LINES.lines().nth(2).expect("third")));
        assert_eq!(told(&["--lines", "0"]), "");
        let between = ["--since", "2026-01-02T00:00:02Z", "--until", "2026-01-02T00:00:03Z"];
        assert_eq!(told(&between), "2026-01-02 00:00:02  y  started (pid 11)\n");
        assert_eq!(told(&["--since", "1s"]), "");
    }

    #[test]
    fn damaged_lines_are_reported_once_and_torn_ones_are_not() {
        let dir = tempfile::tempdir().expect("a directory");
        let paths = Paths::new(dir.path());
        let warning = |text: &str| {
            std::fs::write(paths.events(), text).expect("written");
            let mut count = 0;
            (of_worker(&paths, "x", &mut |_| count += 1).expect("read"), count)
        };
        let exit = LINES.lines().nth(1).expect("second");
        assert_eq!(warning(&format!("{exit}\n{{\"at_ms\":1,\"wor\n{exit}\n{{\"at")), (None, 2));
        let (said, count) = warning(&format!("{exit}\n{}\n\0\0\0\n{exit}\n", exit.replacen(':', "~", 1)));
        let said = said.expect("a warning");
        assert!(
            said.contains("events.jsonl: damaged line in the middle: ") && said.contains("(2 damaged lines)"),
            "{said}"
        );
        assert_eq!(count, 2);
        // All events: the same two lines.
        let crate::cli::args::Command::Events(args) = sample::command(&["events"]) else { panic!("not events") };
        let mut history = History::new(&args, None);
        let (_, err, _) = sample::said(|screen| {
            history.give(&std::fs::read(paths.events()).expect("there"), screen)?;
            history.warn(&paths.events(), screen);
            history.warn(&paths.events(), screen);
            Ok(0)
        });
        assert_eq!(err.matches("swarm: warning: ").count(), 1, "{err}");
    }
}
