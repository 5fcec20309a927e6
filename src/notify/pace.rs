//! Decides which events are reported to people, and how often. Pure functions.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};
use swarm_model::asks::parking::Parking;
use swarm_model::{Ended, Event, EventKind, NeedKind, Reason};

use super::config::Group;
use swarm_agents::short;

/// Time during which events are gathered into one notice, in milliseconds.
const GATHER_MS: u64 = 300;
/// Time during which events of a group are gathered after a notice of that group, in milliseconds.
const BURST_MS: u64 = 2_000;
/// Minimum time between two notices about the same worker and group, in milliseconds.
pub const APART_MS: u64 = 5_000;
/// Type of the event of a worker's end.
const EXITED: &str = "worker.exited";
/// Maximum number of names in a notice.
const NAMES_MAX: usize = 100;
/// Maximum number of names in the message of a notice.
const NAMES_SHOWN_MAX: usize = 5;

/// A notification to deliver.
#[derive(Clone, Debug, PartialEq)]
pub struct Notice {
    pub group: Group,
    /// Message for people.
    pub message: String,
    /// The worker, or several, separated by commas.
    pub worker: String,
    /// Type of the event.
    pub kind: String,
    /// The event with `group` and `message`; for several events their common fields, with `workers`.
    pub event: Value,
}

/// Returns the group of an event and its message; `None` if it is not reported.
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
            // Ended by a person, or because the state directory was removed.
            (_, Some(Reason::Stopped | Reason::Closed | Reason::Abandoned)) => return None,
            (_, Some(Reason::Timeout)) => (Group::Failed, about("timed out".to_owned())),
            (_, Some(Reason::OutOfMemory)) => (Group::Failed, about("ran out of memory".to_owned())),
            (_, Some(Reason::Output)) => (Group::Failed, about("exceeded its output limit".to_owned())),
            (Some(Ended::Code(code)), _) => (Group::Failed, about(format!("exited with code {code}"))),
            (Some(Ended::Signal(signal)), _) => (Group::Failed, about(format!("was killed by signal {signal}"))),
            (None, _) => (Group::Failed, about("ended with an unknown result".to_owned())),
        },
        EventKind::WorkerFailed { cause } => {
            (Group::Failed, about(format!("failed and will not be restarted: {cause}")))
        }
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
        EventKind::MergeDamaged { cause, .. } => (Group::Waiting, cause.clone()),
        EventKind::WorkerStuck { signal, evidence, step } => match (signal.as_str(), step.as_str()) {
            (_, "given-up") => (Group::Stuck, about(format!("is stuck and did not recover: {evidence}"))),
            ("context-full", "told") => (Group::Budget, about(format!("is near its context limit: {evidence}"))),
            // The supervisor is still trying to recover the worker.
            _ => return None,
        },
        EventKind::WorkerWaiting { text, .. } => (Group::Waiting, about(format!("waits for you: {text}"))),
        EventKind::ApprovalRequested { ask, kind: NeedKind::Question, .. } => {
            (Group::Waiting, about(format!("asks you a question: swarm approvals {ask}")))
        }
        EventKind::ApprovalRequested { ask, tool, .. } => {
            (Group::Waiting, about(format!("asks you to approve {}: swarm approvals {ask}", short(tool))))
        }
        EventKind::ApprovalReminded { ask, kind: NeedKind::Question, .. } => {
            (Group::Waiting, about(format!("still asks you a question: swarm approvals {ask}")))
        }
        EventKind::ApprovalReminded { ask, tool, .. } => {
            (Group::Waiting, about(format!("still asks you to approve {}: swarm approvals {ask}", short(tool))))
        }
        EventKind::WorkerIdle { text } => (Group::Waiting, about(format!("waits for its next task: {text}"))),
        EventKind::SessionLost { .. } => (Group::Failed, about("lost its session to another process".to_owned())),
        EventKind::LoopEnded { reason, .. } => match reason.as_str() {
            "done_pattern" | "max_iterations" => (Group::Finished, about(format!("ended its loop: {reason}"))),
            "killed" => return None,
            _ => (Group::Failed, about(format!("ended its loop: {reason}"))),
        },
        EventKind::FlowWaiting { flow, node, reason, text, .. } => {
            let who = if node.is_empty() { String::new() } else { format!("{node} ") };
            let why = if text.is_empty() { reason } else { text };
            (Group::Waiting, format!("flow {flow}: {who}waits for you: {}", short(why)))
        }
        EventKind::FlowEnded { flow } => (Group::Finished, format!("flow {flow} completed")),
        EventKind::RunEnded { .. } => return run_ended(&event.kind),
        _ => return None,
    })
}

/// Returns the group and the message for the end of a run: how it ended, its totals, what failed and what waits.
fn run_ended(kind: &EventKind) -> Option<(Group, String)> {
    let EventKind::RunEnded { run, name, status, done, failed, pending, failures, waits, .. } = kind else {
        return None;
    };
    let group = match status.as_str() {
        _ if *failed > 0 => Group::Failed,
        _ if !waits.is_empty() => Group::Waiting,
        "failed" => Group::Failed,
        _ => Group::Finished,
    };
    let how = match status.as_str() {
        "interrupted" => "was stopped",
        "failed" if *failed == 0 => "ended before all was done",
        how => how,
    };
    let mut parts = vec![format!("{done} done")];
    if *failed > 0 {
        parts.push(format!("{failed} failed ({})", first_of(failures, *failed)));
    }
    if !waits.is_empty() {
        let wait = if waits.len() == 1 { "waits" } else { "wait" };
        parts.push(format!("{} {wait} for you ({})", waits.len(), first_of(waits, waits.len())));
    }
    let rest = pending.saturating_sub(waits.len());
    if rest > 0 {
        parts.push(format!("{rest} pending"));
    }
    Some((group, format!("run {run} of {name} {how}: {}", parts.join(", "))))
}

/// Returns the first of these names, and how many of `count` they leave out.
fn first_of(names: &[String], count: usize) -> String {
    let shown = &names[..names.len().min(NAMES_SHOWN_MAX)];
    let more = count - shown.len();
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{more}", shown.join(", "))
}

/// Returns the message for several events of a group, about these workers, flows or queues.
fn several(group: Group, names: &[&str]) -> String {
    let what = match group {
        Group::Finished => "finished",
        Group::Failed => "failed",
        Group::Stuck => "are stuck",
        Group::Waiting => "wait for you",
        Group::Landed => "landed",
        Group::Budget => "are near their context limit",
    };
    let named: Vec<&str> = names.iter().copied().filter(|name| !name.is_empty()).collect();
    let mut shown = named.iter().take(NAMES_SHOWN_MAX).copied().collect::<Vec<_>>().join(", ");
    let more = names.len() - named.len().min(NAMES_SHOWN_MAX);
    if more > 0 && !shown.is_empty() {
        shown.push_str(&format!(" and {more} more"));
    }
    let colon = if shown.is_empty() { "" } else { ": " };
    format!("{} workers {what}{colon}{shown}", names.len())
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
        let names: Vec<&str> = notices.iter().map(|notice| notice.worker.as_str()).collect();
        let message = several(group, &names);
        let names = &names[..names.len().min(NAMES_MAX)];
        let last = notices.last()?;
        let event = json!({
            "at_ms": last.event.get("at_ms"),
            "type": last.kind,
            "group": group,
            "message": message,
            "workers": names,
            "count": notices.len(),
        });
        Some(Self { group, worker: names.join(","), kind: last.kind.clone(), event, message })
    }

    /// Returns the notice sent by `swarm notify test`.
    pub fn test(at_ms: u64) -> Self {
        let (message, kind) = ("test notification".to_owned(), "notify.test".to_owned());
        let event = json!({"at_ms": at_ms, "type": kind, "group": Group::Finished, "message": message});
        Self { group: Group::Finished, worker: String::new(), kind, event, message }
    }
}

type Key = (Group, String);

#[derive(Debug)]
struct Waiting {
    notice: Notice,
    /// Time at which the notice is due.
    at_ms: u64,
    /// Earliest time at which it may be sent together with another notice of its group.
    from_ms: u64,
    /// Whether it is sent by itself, because a sentence about several workers would hide what it says.
    is_alone: bool,
}

/// Pending notices, and the times of the last ones.
#[derive(Debug, Default)]
pub struct Pace {
    waiting: BTreeMap<Key, Waiting>,
    told: BTreeMap<Key, u64>,
    told_of: BTreeMap<Group, u64>,
    /// Workers that a loop or flow starts repeatedly; only the end of the loop is reported. Each with whether its agent has
    /// said that its turn is over.
    loops: BTreeMap<String, bool>,
    /// Workers whose loop ended before their agent said that its turn is over.
    through: BTreeSet<String>,
    /// Open requests of attempts of runs.
    parking: Parking,
}

impl Pace {
    /// Takes an event. Only the last notice for a worker and group is kept.
    pub fn take(&mut self, event: &Event, now_ms: u64) {
        if self.is_one_of_many(event) || self.is_parked(event) {
            return;
        }
        let Some((group, message)) = sort(event) else { return };
        let notice = Notice::one(group, message, event);
        let run = match &event.kind {
            EventKind::RunEnded { run, .. } => Some(run),
            _ => None,
        };
        let is_alone = run.is_some();
        // No worker has such a name.
        let key = (group, run.map_or_else(|| notice.worker.clone(), |run| format!("run {run}")));
        let from_ms = self.told.get(&key).map_or(0, |told| told + APART_MS);
        let burst = self.told_of.get(&group).filter(|_| !is_alone).map_or(0, |told| told + BURST_MS);
        let at_ms = (now_ms + GATHER_MS).max(from_ms).max(burst);
        let at_ms = self.waiting.get(&key).map_or(at_ms, |waiting| waiting.at_ms);
        self.waiting.insert(key, Waiting { notice, at_ms, from_ms, is_alone });
    }

    /// Reports whether an event is the end of an iteration of a loop or flow, or of the turn in it, which is not reported.
    fn is_one_of_many(&mut self, event: &Event) -> bool {
        let Some(worker) = &event.worker else { return false };
        match &event.kind {
            EventKind::LoopStarted { .. } | EventKind::LoopIteration { .. } | EventKind::FlowTurn { .. } => {
                self.loops.insert(worker.clone(), false);
                self.through.remove(worker);
            }
            EventKind::LoopEnded { .. } => {
                let is_in_turn = self.loops.remove(worker) == Some(false);
                self.through.extend(is_in_turn.then(|| worker.clone()));
            }
            EventKind::WorkerIdle { .. } => match self.loops.get_mut(worker) {
                Some(is_over) => {
                    *is_over = true;
                    return true;
                }
                // The last turn of the loop, whose end was reported.
                None => return self.through.remove(worker),
            },
            EventKind::WorkerStarted { .. } | EventKind::WorkerCleaned => {
                self.through.remove(worker);
            }
            EventKind::WorkerExited { .. } => {
                self.through.remove(worker);
                return self.loops.contains_key(worker);
            }
            _ => {}
        }
        false
    }

    /// Reports whether an event is the end of an attempt whose agent asks a person: it is started again after the answer.
    fn is_parked(&mut self, event: &Event) -> bool {
        if let (EventKind::ApprovalRequested { .. }, None, Some(worker)) =
            (&event.kind, event.generation, &event.worker)
        {
            let key = (Group::Failed, worker.clone());
            // The request may be noticed after the end.
            self.waiting.retain(|of, waiting| *of != key || waiting.notice.kind != EXITED);
        }
        self.parking.take(event).is_some()
    }

    /// Returns the time at which the next notice is due.
    pub fn next_ms(&self) -> Option<u64> {
        self.waiting.values().map(|waiting| waiting.at_ms).min()
    }

    /// Returns the notices that are due, at most one per group, and those that are sent by themselves.
    pub fn due(&mut self, now_ms: u64) -> Vec<Notice> {
        let due = self.waiting.iter().filter(|(_, waiting)| waiting.at_ms <= now_ms);
        let due: BTreeSet<Group> = due.map(|((group, _), _)| *group).collect();
        let (mut groups, mut alone) = (BTreeMap::<Group, Vec<Notice>>::new(), Vec::new());
        let is_told = |(group, _): &Key, waiting: &mut Waiting| due.contains(group) && waiting.from_ms <= now_ms;
        for (key, waiting) in self.waiting.extract_if(.., is_told) {
            match waiting.is_alone {
                true => alone.push(waiting.notice),
                false => groups.entry(key.0).or_default().push(waiting.notice),
            }
            self.told_of.insert(key.0, now_ms);
            self.told.insert(key, now_ms);
        }
        self.told.retain(|_, told| told.saturating_add(APART_MS) > now_ms);
        groups.into_iter().filter_map(|(group, notices)| Notice::all(group, notices)).chain(alone).collect()
    }
}

#[cfg(test)]
#[path = "pace_tests.rs"]
mod tests;
