//! What of all that happens is told to people, and how often: pure.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};
use swarm_model::{Ended, Event, EventKind, Reason};

use super::config::Group;
use swarm_agents::short;

/// What happens within this time, in milliseconds, is told as one.
const GATHER_MS: u64 = 300;
/// After a notice of a group, the others of that group gather for so long, in milliseconds.
const BURST_MS: u64 = 2_000;
/// Of one worker nobody hears about one group more often than this, in milliseconds.
pub const APART_MS: u64 = 5_000;
/// Names that a notice lists.
const NAMES_MAX: usize = 100;

/// One thing to tell.
#[derive(Clone, Debug, PartialEq)]
pub struct Notice {
    pub group: Group,
    /// A sentence for people.
    pub message: String,
    /// The worker, or several, with commas between.
    pub worker: String,
    /// The type of its event.
    pub kind: String,
    /// The event, with `group` and `message`; of several what they have in common, with
    /// `workers`.
    pub event: Value,
}

/// Whom an event is for, and what is said of it. This is the table.
pub fn sort(event: &Event) -> Option<(Group, String)> {
    let about = |text: String| match &event.worker {
        Some(worker) => format!("{worker} {text}"),
        None => text,
    };
    Some(match &event.kind {
        EventKind::WorkerExited { ended, reason, .. } => match (ended, reason) {
            (Some(ended), Some(Reason::Exited)) if ended.is_success() => {
                (Group::Finished, about("finished".to_owned()))
            }
            // Ended by a person, or with everything.
            (_, Some(Reason::Stopped | Reason::Closed | Reason::Abandoned)) => return None,
            (_, Some(Reason::Timeout)) => (Group::Failed, about("failed: its time was up".to_owned())),
            (_, Some(Reason::OutOfMemory)) => (Group::Failed, about("failed: it ran out of memory".to_owned())),
            (_, Some(Reason::Output)) => (Group::Failed, about("failed: it wrote more than it may".to_owned())),
            (Some(Ended::Code(code)), _) => (Group::Failed, about(format!("failed with code {code}"))),
            (Some(Ended::Signal(signal)), _) => (Group::Failed, about(format!("was ended by signal {signal}"))),
            (None, _) => (Group::Failed, about("ended, and nobody knows how".to_owned())),
        },
        EventKind::WorkerFailed { cause } => (Group::Failed, about(format!("is given up: {cause}"))),
        EventKind::MergeSettled { base, state, cause, files, .. } => {
            let why = cause.clone().unwrap_or_else(|| files.join(", "));
            let why = if why.is_empty() { why } else { format!(": {why}") };
            match state.as_str() {
                "landed" => (Group::Landed, about(format!("landed on {base}"))),
                "conflict" => (Group::Waiting, about(format!("has conflicts with {base}{why}"))),
                "waiting" => (Group::Waiting, about(format!("waits to land on {base}{why}"))),
                "rejected" => (Group::Waiting, about(format!("was rejected by {base}{why}"))),
                _ => return None,
            }
        }
        EventKind::MergeRefused { cause } => (Group::Waiting, about(format!("cannot be queued: {cause}"))),
        EventKind::WorkerStuck { signal, evidence, step } => match (signal.as_str(), step.as_str()) {
            (_, "given-up") => (Group::Stuck, about(format!("stands still, and nothing helped: {evidence}"))),
            ("asks" | "waiting" | "idle", "told") => (Group::Waiting, about(format!("waits for somebody: {evidence}"))),
            ("context-full", "told") => (Group::Budget, about(format!("is near its limit: {evidence}"))),
            // It is being helped.
            _ => return None,
        },
        EventKind::SessionLost { .. } => (Group::Failed, about("has lost its session to somebody else".to_owned())),
        EventKind::LoopEnded { reason, .. } => match reason.as_str() {
            "done_pattern" | "max_iterations" => (Group::Finished, about(format!("has ended its loop: {reason}"))),
            "killed" => return None,
            _ => (Group::Failed, about(format!("has ended its loop: {reason}"))),
        },
        EventKind::FlowWaiting { flow, node, reason, text, .. } => {
            let who = if node.is_empty() { String::new() } else { format!("{node} ") };
            let why = if text.is_empty() { reason } else { text };
            (Group::Waiting, format!("flow {flow}: {who}waits for you: {}", short(why)))
        }
        EventKind::FlowEnded { flow } => (Group::Finished, format!("flow {flow} is over")),
        _ => return None,
    })
}

/// How several of a group are told.
fn several(group: Group, count: usize) -> String {
    match group {
        Group::Finished => format!("{count} workers finished"),
        Group::Failed => format!("{count} workers failed"),
        Group::Stuck => format!("{count} workers are stuck"),
        Group::Waiting => format!("{count} workers wait for somebody"),
        Group::Landed => format!("{count} workers landed"),
        Group::Budget => format!("{count} workers have reached their budget"),
    }
}

impl Notice {
    fn one(group: Group, message: String, event: &Event) -> Self {
        let mut object = match serde_json::to_value(event) {
            Ok(Value::Object(object)) => object,
            Ok(_) | Err(_) => Map::new(),
        };
        let kind = object.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
        object.insert("group".to_owned(), json!(group));
        object.insert("message".to_owned(), json!(message));
        Self { group, message, worker: event.worker.clone().unwrap_or_default(), kind, event: object.into() }
    }

    fn all(group: Group, mut notices: Vec<Self>) -> Option<Self> {
        if notices.len() < 2 {
            return notices.pop();
        }
        let message = several(group, notices.len());
        let names: Vec<&str> = notices.iter().map(|notice| notice.worker.as_str()).take(NAMES_MAX).collect();
        let last = notices.last()?;
        let event = json!({
            "at_ms": last.event["at_ms"],
            "type": last.kind,
            "group": group,
            "message": message,
            "workers": names,
            "count": notices.len(),
        });
        Some(Self { group, worker: names.join(","), kind: last.kind.clone(), event, message })
    }

    /// For `swarm notify test`.
    pub fn test(at_ms: u64) -> Self {
        let (message, kind) = ("a test of notifications".to_owned(), "notify.test".to_owned());
        let event = json!({"at_ms": at_ms, "type": kind, "group": Group::Finished, "message": message});
        Self { group: Group::Finished, worker: String::new(), kind, event, message }
    }
}

type Key = (Group, String);

#[derive(Debug)]
struct Waiting {
    notice: Notice,
    /// When it is told at the latest …
    at_ms: u64,
    /// … and, where another one of its group is, at the earliest.
    from_ms: u64,
}

/// What waits to be told, and what was told lately.
#[derive(Debug, Default)]
pub struct Pace {
    waiting: BTreeMap<Key, Waiting>,
    told: BTreeMap<Key, u64>,
    told_of: BTreeMap<Group, u64>,
    /// Workers that a loop or flow begins again and again: its end is told.
    loops: BTreeSet<String>,
}

impl Pace {
    /// Something happened. Only the last of one worker and group is kept.
    pub fn take(&mut self, event: &Event, now_ms: u64) {
        if self.is_one_of_many(event) {
            return;
        }
        let Some((group, message)) = sort(event) else { return };
        let notice = Notice::one(group, message, event);
        let key = (group, notice.worker.clone());
        let from_ms = self.told.get(&key).map_or(0, |told| told + APART_MS);
        let burst = self.told_of.get(&group).map_or(0, |told| told + BURST_MS);
        let at_ms = (now_ms + GATHER_MS).max(from_ms).max(burst);
        let at_ms = self.waiting.get(&key).map_or(at_ms, |waiting| waiting.at_ms);
        self.waiting.insert(key, Waiting { notice, at_ms, from_ms });
    }

    /// Whether it is the end of an iteration, of which nobody wants to be told.
    fn is_one_of_many(&mut self, event: &Event) -> bool {
        let Some(worker) = &event.worker else { return false };
        match &event.kind {
            EventKind::LoopStarted { .. } | EventKind::LoopIteration { .. } | EventKind::FlowTurn { .. } => {
                self.loops.insert(worker.clone());
            }
            EventKind::LoopEnded { .. } => {
                self.loops.remove(worker);
            }
            EventKind::WorkerExited { .. } => return self.loops.contains(worker),
            _ => {}
        }
        false
    }

    /// When there is something to tell.
    pub fn next_ms(&self) -> Option<u64> {
        self.waiting.values().map(|waiting| waiting.at_ms).min()
    }

    /// What is to be told now, one for each group.
    pub fn due(&mut self, now_ms: u64) -> Vec<Notice> {
        let due = self.waiting.iter().filter(|(_, waiting)| waiting.at_ms <= now_ms);
        let due: BTreeSet<Group> = due.map(|((group, _), _)| *group).collect();
        let mut groups: BTreeMap<Group, Vec<Notice>> = BTreeMap::new();
        let is_told = |(group, _): &Key, waiting: &mut Waiting| due.contains(group) && waiting.from_ms <= now_ms;
        for (key, waiting) in self.waiting.extract_if(.., is_told) {
            groups.entry(key.0).or_default().push(waiting.notice);
            self.told_of.insert(key.0, now_ms);
            self.told.insert(key, now_ms);
        }
        self.told.retain(|_, told| told.saturating_add(APART_MS) > now_ms);
        groups.into_iter().filter_map(|(group, notices)| Notice::all(group, notices)).collect()
    }
}

#[cfg(test)]
#[path = "pace_tests.rs"]
mod tests;
