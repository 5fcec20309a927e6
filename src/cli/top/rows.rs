//! Rows of the board as the screen shows them. They are read from the same JSON that programs get, so that all faces say
//! the same.

use std::collections::BTreeMap;

use serde::Deserialize;
use swarm_actors::top::{Answer, Class, Id, Kind, Row};

use super::super::render::{Clock, escape};

#[derive(Deserialize)]
struct Worker {
    name: String,
    status: String,
    state: String,
    #[serde(default)]
    cmd: Vec<String>,
    #[serde(default)]
    started: String,
    #[serde(default)]
    tags: Vec<String>,
    tmux: Option<serde::de::IgnoredAny>,
    worktree: Option<Worktree>,
    generation: Option<u64>,
    host: Option<String>,
    next_start_ms: Option<u64>,
    activity: Option<Activity>,
    needs: Option<Needs>,
    stuck: Option<String>,
    exit: Option<Exit>,
    #[serde(default)]
    failed: bool,
}

#[derive(Deserialize)]
struct Worktree {
    branch: String,
}

#[derive(Deserialize)]
struct Activity {
    doing: String,
    what: Option<String>,
    since_ms: u64,
}

#[derive(Deserialize)]
struct Needs {
    kind: String,
    text: String,
    since_ms: u64,
    answer: Option<String>,
}

#[derive(Deserialize)]
struct Exit {
    code: Option<i32>,
    signal: Option<String>,
    reason: Option<String>,
    ended_at_ms: Option<u64>,
}

/// Returns the row of a worker. `None` if the text is none.
pub fn worker(rev: u64, text: &str, clock: &Clock) -> Option<Row> {
    let worker: Worker = serde_json::from_str(text).ok()?;
    let is_running = worker.status == "running";
    let class = class(&worker, is_running);
    let (state, at, since_ms) = told(&worker, class, clock);
    let clean = |text: &str| escape(text).into_owned();
    Some(Row {
        label: clean(&worker.name),
        generation: worker.generation,
        rev,
        class,
        state: clean(&state),
        at: clean(&at),
        since_ms,
        is_running,
        has_window: is_running && worker.tmux.is_some(),
        tags: worker.tags,
        place: worker.worktree.map(|tree| clean(&tree.branch)).unwrap_or_default(),
        is_first: false,
        worker: None,
        branch: None,
        subject: None,
        answer: worker.needs.as_ref().and_then(|needs| answer(needs.answer.as_deref()?)),
        id: Id::worker(&worker.name),
    })
}

#[derive(Deserialize)]
struct Item {
    key: String,
    item: u64,
    name: String,
    repository: String,
    base: String,
    state: String,
    reason: Option<String>,
    #[serde(default)]
    files: Vec<String>,
    queued_ms: Option<u64>,
    settled_ms: Option<u64>,
}

/// Returns the row of an item of a merge queue. `None` if the text is none.
pub fn item(rev: u64, text: &str) -> Option<Row> {
    let item: Item = serde_json::from_str(text).ok()?;
    let class = match item.state.as_str() {
        "conflict" | "rejected" => Class::Failed,
        "waiting" => Class::NeedsYou,
        "queued" => Class::Queued,
        _ => Class::Working,
    };
    let clean = |text: &str| escape(text).into_owned();
    let why = item.reason.into_iter().chain(item.files).collect::<Vec<_>>().join(", ");
    Some(Row {
        label: clean(&format!("{} {}", item.item, item.name)),
        generation: None,
        rev,
        class,
        state: clean(&item.state),
        at: clean(&format!("{}{}{why}", item.base, if why.is_empty() { "" } else { ": " })),
        since_ms: item.settled_ms.or(item.queued_ms),
        is_running: false,
        has_window: false,
        tags: Vec::new(),
        place: clean(&item.repository),
        answer: None,
        is_first: class == Class::NeedsYou,
        worker: None,
        branch: None,
        subject: None,
        id: Id { kind: Kind::Item, name: item.key },
    })
}

/// Returns all that is known of an item, as lines.
pub fn item_lines(text: &str) -> String {
    let Ok(members) = serde_json::from_str::<BTreeMap<String, serde_json::Value>>(text) else { return String::new() };
    let told = members.into_iter().filter(|(key, _)| key != "key").filter_map(|(key, value)| {
        let value = match value {
            serde_json::Value::Null => return None,
            serde_json::Value::String(text) => text,
            serde_json::Value::Array(list) if list.is_empty() => return None,
            other => other.to_string(),
        };
        Some(format!("{key:15} {value}\n"))
    });
    told.collect()
}

/// Returns the request of a worker as a row of its own, if it has a number.
pub fn request(worker: &Row) -> Option<Row> {
    let number = worker.answer.as_ref()?.request()?;
    let label = format!("{number} {}", worker.label);
    let id = Id { kind: Kind::Request, name: number.to_owned() };
    Some(Row { id, label, place: worker.id.name.clone(), has_window: false, ..worker.clone() })
}

fn class(worker: &Worker, is_running: bool) -> Class {
    match worker.state.as_str() {
        _ if worker.needs.is_some() => Class::NeedsYou,
        _ if worker.failed || worker.stuck.is_some() => Class::Failed,
        "starting" | "stopping" | "backoff" => Class::Queued,
        _ if is_running => Class::Working,
        _ => Class::Ended,
    }
}

/// Returns the state of a worker in a word or two, what it does, and since when.
fn told(worker: &Worker, class: Class, clock: &Clock) -> (String, String, Option<u64>) {
    let command = command(&worker.cmd);
    let started = clock.at_ms(&worker.started);
    if let Some(needs) = &worker.needs {
        let word = if needs.kind == "question" || needs.kind == "permission" { "asks" } else { "waiting" };
        return (word.to_owned(), needs.text.clone(), Some(needs.since_ms));
    }
    if let Some(stuck) = &worker.stuck {
        return ("stuck".to_owned(), stuck.clone(), worker.activity.as_ref().map(|activity| activity.since_ms));
    }
    if let Some(exit) = &worker.exit {
        let word = match (exit.code, &exit.signal) {
            _ if class != Class::Failed => worker.state.clone(),
            (Some(code), _) => format!("exited {code}"),
            (None, Some(signal)) => signal.clone(),
            (None, None) => "failed".to_owned(),
        };
        let at = match exit.reason.as_deref() {
            Some("exited" | "stopped") | None => command,
            Some(reason) => format!("{reason}: {command}"),
        };
        return (word, at, exit.ended_at_ms);
    }
    match &worker.activity {
        Some(activity) if worker.state == "running" => {
            let at = activity.what.clone().unwrap_or(command);
            (activity.doing.clone(), at, Some(activity.since_ms))
        }
        _ => {
            let at = match &worker.host {
                Some(host) if worker.state == "elsewhere" => format!("on {host}: {command}"),
                _ => command,
            };
            (worker.state.clone(), at, worker.next_start_ms.filter(|_| class == Class::Queued).or(started))
        }
    }
}

/// Returns a command as people know it. The path of this program and a long path say nothing of an attempt or a turn.
fn command(words: &[String]) -> String {
    let end = |dir: &str, parts: usize| {
        let mut last: Vec<&str> = dir.rsplit('/').take(parts).collect();
        last.reverse();
        last.join("/")
    };
    match words {
        [_, verb, dir] if verb == "__attempt" => format!("attempt {}", end(dir, 1)),
        [_, verb, dir] if verb == "__role" => format!("turn {}", end(dir, 2)),
        words => words.join(" "),
    }
}

/// Reads the command with which a person answers.
pub fn answer(command: &str) -> Option<Answer> {
    let mut words = command.split_whitespace().skip(1);
    match (words.next()?, words.next()?) {
        ("approve" | "deny", request) => Some(Answer::Permission(request.to_owned())),
        ("answer", request) => Some(Answer::Question(request.to_owned())),
        ("attach" | "keys", _) => Some(Answer::Window),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use swarm_model::{Activity, Doing, Ended, NeedKind, Needs, WorkerView};

    use super::*;
    use crate::board::worker::Worker as Wire;
    use crate::cli::sample;

    fn shown(view: &WorkerView) -> Row {
        let text = serde_json::to_string(&Wire::of(view)).expect("serialises");
        worker(7, &text, &sample::clock("2026-01-02T00:05:00Z")).expect("a worker")
    }

    fn parts(row: &Row) -> (char, &str, &str) {
        (row.class.sign(), &row.state, &row.at)
    }

    #[test]
    fn an_item_tells_what_keeps_it() {
        let text = r#"{"key":"/r:main/3","item":3,"name":"fix","repository":"/r","base":"main","state":"conflict",
            "reason":null,"files":["a","b"],"queued_ms":5,"settled_ms":9,"tip":"abc"}"#;
        let row = item(4, text).expect("an item");
        assert_eq!(
            (parts(&row), row.label.as_str(), row.since_ms),
            (('x', "conflict", "main: a, b"), "3 fix", Some(9))
        );
        let lines = item_lines(text);
        assert!(
            lines.contains("state           conflict\n") && lines.contains("files           [\"a\",\"b\"]\n"),
            "{lines}"
        );
        assert!(!lines.contains("reason") && !lines.contains("/r:main/3"), "{lines}");
    }

    #[test]
    fn attempts_and_turns_are_named_by_what_they_are_about() {
        let of = |words: [&str; 3]| command(&words.map(str::to_owned));
        assert_eq!(of(["/usr/bin/swarm", "__attempt", "/r/.arial/attempts/api.2"]), "attempt api.2");
        assert_eq!(of(["/usr/bin/swarm", "__role", "/r/.a-society/state/p/f/turns/dev/3"]), "turn dev/3");
        assert_eq!(of(["cargo", "test", "-q"]), "cargo test -q");
    }

    #[test]
    fn rows_tell_what_needs_somebody_and_why() {
        let asks = |kind, answer: &str| {
            let needs = Needs { kind, text: "which\ncolour?".into(), since_ms: 9, answer: Some(answer.into()) };
            shown(&WorkerView { ask: Some(needs), ..sample::window("fix") })
        };
        let question = asks(NeedKind::Question, "swarm answer 17 TEXT");
        assert_eq!(parts(&question), ('!', "asks", "which\\ncolour?"));
        assert_eq!((question.answer.clone(), question.since_ms), (Some(Answer::Question("17".into())), Some(9)));
        assert_eq!(request(&question).map(|row| (row.id.name, row.label, row.place)), {
            Some(("17".to_owned(), "17 fix".to_owned(), "fix".to_owned()))
        });
        assert_eq!(request(&asks(NeedKind::Login, "swarm attach fix")), None);
        assert_eq!(asks(NeedKind::Permission, "swarm approve 3").answer, Some(Answer::Permission("3".into())));
        assert_eq!(asks(NeedKind::Login, "swarm attach fix").answer, Some(Answer::Window));
        assert_eq!(parts(&shown(&sample::ended("b", Ended::Code(3)))), ('x', "exited 3", "cargo test"));
        assert_eq!(parts(&shown(&sample::ended("b", Ended::Signal(9)))), ('x', "SIGKILL", "cargo test"));
        assert_eq!(parts(&shown(&sample::ended("b", Ended::Code(0)))), ('.', "exited", "cargo test"));
        let stuck = WorkerView { stuck: Some("no output for 10m".into()), ..sample::process("b") };
        assert_eq!(parts(&shown(&stuck)), ('x', "stuck", "no output for 10m"));
        let what = Some("Bash: make".to_owned());
        let activity = Some(Activity { doing: Doing::Working, what, since_ms: 5, kind: None, turn: None });
        let row = shown(&WorkerView { activity, ..sample::window("b") });
        assert_eq!((parts(&row), row.since_ms, row.has_window), ((' ', "working", "Bash: make"), Some(5), true));
        let plain = shown(&sample::process("b"));
        assert_eq!((plain.since_ms, plain.rev, plain.has_window), (Some(1_767_312_000_000), 7, false));
        assert!(worker(1, "[]", &sample::clock("2026-01-02T00:05:00Z")).is_none());
    }
}
