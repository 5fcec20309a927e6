//! `swarm history`: all starts and ends of one worker, as recorded in the events.

use clap::Args;
use serde::Serialize;
use serde_json::{Map, Value, json};
use swarm_model::asks::parking::Parking;
use swarm_model::json::Members as _;
use swarm_model::{Ended, Event, EventKind, Hits, NeedKind, Reason, WorkerView};

use super::error::{Failure, unknown_worker};
use super::events::{self, exited, parked, sentence};
use super::json;
use super::render::{Clock, ended_word, escape, table, words};
use super::screen::Screen;
use swarm_sys::paths::Paths;

#[derive(Debug, Args)]
pub struct HistoryArgs {
    /// Name of the worker
    pub name: String,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

pub fn run(args: &HistoryArgs, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    let registry = super::read_one(paths, &args.name, screen)?;
    let view = registry.find(&args.name);
    let mut past = Past::default();
    if let Some(warning) = events::of_worker(paths, &args.name, &mut |event| past.take(event))? {
        screen.warning(&warning);
    }
    if let Some(view) = view {
        past.complete(view);
    } else if past.starts.is_empty() && past.landings.is_empty() {
        return Err(unknown_worker(&args.name, &registry));
    }
    show(args, &past, view.is_some(), &Clock::system(), screen)
}

/// Reason for a start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum How {
    Spawn,
    Restart,
    Respawn,
}

impl How {
    fn word(self) -> &'static str {
        match self {
            Self::Spawn => "spawn",
            Self::Restart => "restart",
            Self::Respawn => "respawn",
        }
    }
}

/// One start of a worker with its end.
#[derive(Serialize)]
struct Start {
    generation: Option<u64>,
    pid: Option<i32>,
    started_at_ms: Option<u64>,
    how: How,
    exit: Option<json::Exit>,
    #[serde(skip)]
    end: Option<(Option<Ended>, Option<Reason>, Option<u64>)>,
    /// Limits that were hit.
    #[serde(skip)]
    hits: Hits,
    #[serde(skip)]
    ended_at_ms: Option<u64>,
    restart_in_ms: Option<u64>,
    killed: bool,
    /// Request whose answer its agent waits for, after an end that is no failure.
    #[serde(skip)]
    parked: Option<u64>,
}

impl Start {
    fn begun(generation: Option<u64>, how: How) -> Self {
        Self {
            generation,
            pid: None,
            started_at_ms: None,
            how,
            exit: None,
            hits: Hits::default(),
            end: None,
            ended_at_ms: None,
            restart_in_ms: None,
            killed: false,
            parked: None,
        }
    }
}

/// Request of the worker to a person, with the answer.
#[derive(Serialize)]
struct Request {
    at_ms: u64,
    ask: u64,
    kind: NeedKind,
    tool: String,
    answered_at_ms: Option<u64>,
    verdict: Option<String>,
    by: Option<String>,
}

#[derive(Default)]
struct Past {
    starts: Vec<Start>,
    landings: Vec<Map<String, Value>>,
    requests: Vec<Request>,
    parking: Parking,
    /// Set if the next start is due to the restart policy.
    restarting: bool,
    /// Set if an earlier worker with this name was cleaned.
    cleaned: bool,
}

impl Past {
    fn take(&mut self, event: Event) {
        let asks = self.parking.take(&event);
        let (at_ms, generation) = (event.at_ms, event.generation);
        match event.kind {
            EventKind::WorkerStarted { pid } => {
                let how = self.how();
                let begun = Start::begun(generation, how);
                self.starts.push(Start { pid: Some(pid), started_at_ms: Some(at_ms), ..begun });
                (self.restarting, self.cleaned) = (false, false);
            }
            EventKind::WorkerExited { ended, reason, duration_ms, hits } => {
                let life = self.life(generation);
                life.exit = Some(json::Exit::told(ended, reason, at_ms, duration_ms, hits));
                (life.end, life.ended_at_ms) = (Some((ended, reason, duration_ms)), Some(at_ms));
                (life.hits, life.parked) = (hits, asks);
            }
            EventKind::WorkerRestarting { in_ms, .. } => {
                self.life(generation).restart_in_ms = Some(in_ms);
                self.restarting = true;
            }
            EventKind::WorkerKilled => {
                self.life(generation).killed = true;
                self.restarting = false;
            }
            EventKind::WorkerCleaned => self.cleaned = true,
            EventKind::ApprovalRequested { ask, kind, tool } => {
                let (answered_at_ms, verdict, by) = (None, None, None);
                self.requests.push(Request { at_ms, ask, kind, tool, answered_at_ms, verdict, by });
            }
            EventKind::ApprovalAnswered { ask, verdict, by } => {
                if let Some(request) = self.requests.iter_mut().rev().find(|request| request.ask == ask) {
                    (request.answered_at_ms, request.verdict, request.by) = (Some(at_ms), Some(verdict), by);
                }
            }
            EventKind::MergeSettled { item, base, state, commit, cause, .. } => self.landings.push(json::object([
                ("at_ms", json!(at_ms)),
                ("item", json!(item)),
                ("base", json!(base)),
                ("state", json!(state)),
                ("commit", json!(commit)),
                ("cause", json!(cause)),
            ])),
            _ => {}
        }
    }

    fn how(&self) -> How {
        match (self.restarting, self.starts.is_empty() || self.cleaned) {
            (true, _) => How::Restart,
            (false, true) => How::Spawn,
            (false, false) => How::Respawn,
        }
    }

    /// Returns the entry of a generation, and adds one if its start is missing from the recorded events.
    fn life(&mut self, generation: Option<u64>) -> &mut Start {
        if self.starts.last().is_none_or(|life| life.generation != generation) {
            let how = self.how();
            self.starts.push(Start::begun(generation, how));
        }
        self.starts.last_mut().expect("an entry was just added if there was none")
    }

    /// Completes the current start from the registry, which is more reliable than the events.
    fn complete(&mut self, view: &WorkerView) {
        let generation = view.row.swarm().map(|swarm| swarm.generation);
        let life = self.life(generation);
        life.pid = life.pid.or(view.pid);
        if let Some(record) = &view.exit {
            life.exit = Some(json::Exit::recorded(record));
            life.end = Some((Some(record.ended), Some(record.reason), Some(record.duration_ms)));
            life.ended_at_ms = Some(record.ended_at_ms);
        } else if !view.state.is_running() && life.exit.is_none() {
            life.exit = Some(json::Exit::unknown());
            life.end = Some((None, None, None));
        }
    }
}

fn show(args: &HistoryArgs, past: &Past, registered: bool, clock: &Clock, screen: &mut Screen) -> Result<u8, Failure> {
    if args.json {
        let body = json!({
            "name": args.name, "registered": registered, "starts": past.starts, "landings": past.landings,
            "requests": past.requests,
        });
        return json::print(screen, "swarm.history/1", &body).map(|()| 0);
    }
    let head = ["START", "REASON", "PID", "END", "EXIT", "DURATION", "RESULT"].map(str::to_owned).to_vec();
    let rows: Vec<Vec<String>> = std::iter::once(head).chain(past.starts.iter().map(|life| row(life, clock))).collect();
    for line in table(&rows, |_, _, _| None).lines() {
        screen.line(line.trim_end())?;
    }
    for request in &past.requests {
        let asked = EventKind::ApprovalRequested { ask: request.ask, kind: request.kind, tool: request.tool.clone() };
        let answer = request.verdict.as_ref().map(|verdict| {
            let (ask, verdict, by) = (request.ask, verdict.clone(), request.by.clone());
            format!(" ({})", sentence(&EventKind::ApprovalAnswered { ask, verdict, by }))
        });
        let text = format!("{}{}", sentence(&asked), answer.unwrap_or_default());
        screen.line(&format!("{}  {}", clock.local(request.at_ms), escape(&text)))?;
    }
    for landing in &past.landings {
        let text = |key: &str| landing.text(key).unwrap_or_default().to_owned();
        let at = clock.local(landing.whole("at_ms").unwrap_or_default());
        let why = [text("commit"), text("cause")].into_iter().find(|text| !text.is_empty()).unwrap_or_default();
        let why = if why.is_empty() { why } else { format!(": {why}") };
        screen.line(&escape(&format!("{at}  {} on {}{why}", text("state"), text("base"))))?;
    }
    Ok(0)
}

fn row(life: &Start, clock: &Clock) -> Vec<String> {
    let dash = || "-".to_owned();
    let at = |ms: Option<u64>| ms.map_or_else(dash, |ms| clock.local(ms));
    let exit = match &life.end {
        // As in `ls -l`.
        Some(_) if life.parked.is_some() => dash(),
        Some((ended, ..)) => ended.map_or_else(|| "unknown".to_owned(), ended_word),
        None => dash(),
    };
    let lasted = match &life.end {
        Some((_, _, lasted)) => lasted.map_or_else(dash, |ms| words(ms / 1000)),
        None => life.started_at_ms.and_then(|at| clock.since_ms(at)).map_or_else(dash, words),
    };
    let mut what = match &life.end {
        Some((ended, reason, _)) => match life.parked {
            Some(ask) => parked(ask, None),
            None => exited(*ended, *reason, None, life.hits),
        },
        None => "running".to_owned(),
    };
    if life.killed && !what.contains("(stopped)") {
        what.push_str(", then killed");
    }
    if let Some(in_ms) = life.restart_in_ms {
        what.push_str(&format!(", restart in {}", words(in_ms.div_ceil(1000))));
    }
    vec![
        at(life.started_at_ms),
        life.how.word().to_owned(),
        life.pid.map_or_else(dash, |pid| pid.to_string()),
        at(life.ended_at_ms),
        exit,
        lasted,
        what,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::sample;

    const LINES: &str = r#"{"at_ms":1767312000000,"type":"supervisor.started","pid":9}
{"at_ms":1767312001000,"worker":"x","generation":1,"type":"worker.started","pid":10}
{"at_ms":1767312002000,"worker":"xx","generation":1,"type":"worker.started","pid":11}
{"at_ms":1767312003000,"worker":"x","generation":1,"type":"worker.exited","ended":{"code":3},"reason":"exited","duration_ms":2000}
{"at_ms":1767312003000,"worker":"x","generation":1,"type":"worker.restarting","in_ms":1000,"restarts":1}
torn {"at_ms":17
{"at_ms":1767312004000,"worker":"x","generation":2,"type":"worker.started","pid":12}
{"at_ms":1767312124000,"worker":"x","generation":2,"type":"worker.exited","ended":{"signal":15},"reason":"stopped","duration_ms":120000}
{"at_ms":1767312124001,"worker":"x","generation":2,"type":"worker.killed"}
{"at_ms":1767312184000,"worker":"x","generation":3,"type":"worker.started","pid":13}
{"at_ms":1767312185000,"worker":"x","generation":3,"type":"approval.requested","ask":7,"kind":"permission","tool":"Bash"}
{"at_ms":1767312186000,"worker":"x","generation":3,"type":"approval.requested","ask":8,"kind":"question","tool":"Ask"}
{"at_ms":1767312187000,"worker":"x","generation":3,"type":"approval.answered","ask":7,"verdict":"deny","by":"me"}
{"at_ms":1767312190000,"worker":"x","type":"merge.settled","item":0,"base":"main","state":"landed","commit":"abc","cause":null,"files":[]}
"#;

    fn told(words: &[&str], view: Option<&WorkerView>) -> String {
        let crate::cli::args::Command::History(args) = sample::command(&[&["history"], words].concat()) else {
            panic!("not history");
        };
        let dir = tempfile::tempdir().expect("a directory");
        let paths = Paths::new(dir.path());
        std::fs::write(paths.events(), LINES).expect("written");
        let mut past = Past::default();
        events::of_worker(&paths, &args.name, &mut |event| past.take(event)).expect("read");
        view.into_iter().for_each(|view| past.complete(view));
        let clock = sample::clock("2026-01-02T00:05:00Z");
        sample::said(|screen| show(&args, &past, view.is_some(), &clock, screen)).0
    }

    #[test]
    fn each_start_is_listed_with_its_end() {
        let expected = "\
START                REASON   PID  END                  EXIT     DURATION  RESULT
2026-01-02 00:00:01  spawn    10   2026-01-02 00:00:03  3        2s        exited with code 3, restart in 1s
2026-01-02 00:00:04  restart  12   2026-01-02 00:02:04  SIGTERM  2m        killed by SIGTERM (stopped)
2026-01-02 00:03:04  respawn  13   -                    -        1m        running
2026-01-02 00:03:05  asks for Bash: swarm approvals 7 (request 7 was denied by me)
2026-01-02 00:03:06  asks a question: swarm approvals 8
2026-01-02 00:03:10  landed on main: abc
";
        assert_eq!(told(&["x"], None), expected);
    }

    #[test]
    fn the_registry_overrides_events_for_the_current_start() {
        let view = sample::ended("xx", Ended::Code(7));
        let value: Value = serde_json::from_str(&told(&["xx", "--json"], Some(&view))).expect("json");
        assert_eq!((value["schema"].as_str(), value["registered"].as_bool()), (Some("swarm.history/1"), Some(true)));
        let starts = value["starts"].as_array().expect("a list");
        assert_eq!(starts.last().expect("one")["exit"]["code"], 7);
    }
}
