//! Rows of runs and flows as the screen shows them, from the same JSON that programs get.

use std::collections::BTreeMap;

use serde::Deserialize;
use swarm_actors::top::{Answer, Branch, Class, Id, Kind, Row, Subject};
use swarm_store::runs::home::from_iso;
use swarm_sys::quoting::command_line;

use super::super::render::{counted, escape};
use super::rows::answer;

#[derive(Clone, Deserialize)]
pub struct Run {
    key: String,
    run: Option<String>,
    home: String,
    root: Option<String>,
    name: Option<String>,
    specs: Option<String>,
    base: Option<String>,
    status: String,
    over: bool,
    stages: BTreeMap<String, usize>,
    #[serde(default)]
    hosts: Vec<Host>,
    error: Option<String>,
}

#[derive(Clone, Deserialize)]
struct Host {
    name: String,
    state: String,
}

#[derive(Deserialize)]
struct Workstream {
    key: String,
    id: String,
    home: String,
    stage: String,
    worker: String,
    attempt: u64,
    host: Option<String>,
    after: Vec<String>,
    waits_for_host: Option<Vec<Seat>>,
    commit: Option<String>,
    files: Vec<String>,
    summary: Option<String>,
    error: Option<String>,
    waiting: Option<String>,
    started_at: Option<String>,
    completed_at: Option<String>,
    item: Option<String>,
    needs: Option<Needs>,
    retry_ms: Option<u64>,
}

#[derive(Deserialize)]
struct Seat {
    host: String,
    reason: String,
}

#[derive(Deserialize)]
struct Needs {
    text: String,
    answer: String,
}

#[derive(Deserialize)]
struct Flow {
    key: String,
    project: String,
    flow: String,
    root: String,
    status: String,
    name: Option<String>,
    run: bool,
    nodes: Vec<Node>,
    next: Vec<String>,
    stalled: Option<String>,
    not_queued: Option<String>,
    roles: Vec<Role>,
    requests: Vec<Gate>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    role: String,
    state: String,
    reason: Option<String>,
    answered: bool,
}

#[derive(Deserialize)]
struct Role {
    role: String,
    worker: Option<String>,
    turn: u64,
}

#[derive(Deserialize)]
struct Gate {
    request: Option<u64>,
    node: String,
    role: String,
    reason: String,
    text: String,
    answers: Answers,
}

#[derive(Deserialize)]
struct Answers {
    yes: Option<Vec<String>>,
    text: Option<Vec<String>>,
}

fn clean(text: &str) -> String {
    escape(text).into_owned()
}

fn plain(id: Id, label: &str, class: Class) -> Row {
    Row {
        id,
        label: clean(label),
        generation: None,
        rev: 0,
        class,
        state: String::new(),
        at: String::new(),
        since_ms: None,
        is_running: false,
        has_window: false,
        tags: Vec::new(),
        place: String::new(),
        answer: None,
        is_first: false,
        worker: None,
        branch: None,
        subject: None,
    }
}

/// Returns a run. `None` if the text is none.
pub fn run(text: &str) -> Option<Run> {
    serde_json::from_str(text).ok()
}

impl Run {
    /// Returns the name of the run.
    fn label(&self) -> String {
        self.run.as_ref().map_or_else(|| self.short(), |id| format!("{} {id}", self.short()))
    }

    fn short(&self) -> String {
        clean(self.name.as_deref().unwrap_or(&self.home))
    }

    /// Returns how much of the run is done.
    fn progress(&self) -> String {
        let of = |stage: &str| self.stages.get(stage).copied().unwrap_or_default();
        format!("{}/{}", of("done"), self.stages.values().sum::<usize>())
    }

    pub fn row(&self, rev: u64) -> Row {
        let class = match self.status.as_str() {
            "unreadable" | "failed" => Class::Failed,
            "running" | "stopping" => Class::Working,
            "paused" => Class::Queued,
            _ => Class::Ended,
        };
        let counts =
            ["asking", "working", "retrying", "merging", "waiting", "failed"].into_iter().filter_map(|stage| {
                let count = *self.stages.get(stage)?;
                Some(format!("{count} {stage}"))
            });
        let away = self.hosts.iter().filter(|host| host.state != "open");
        let away = away.map(|host| format!("{} is {}", host.name, host.state));
        let base = self.base.iter().map(|base| format!("on {base}"));
        let parts: Vec<String> =
            std::iter::once(format!("{} done", self.progress())).chain(counts).chain(away).chain(base).collect();
        let subject = Subject::Run {
            home: self.home.clone(),
            root: self.root.clone().filter(|_| self.specs.is_some()),
            status: self.status.clone(),
            is_over: self.over,
        };
        Row {
            rev,
            state: self.status.clone(),
            at: clean(self.error.as_ref().unwrap_or(&parts.join(", "))),
            place: clean(self.root.as_ref().unwrap_or(&self.home)),
            branch: Some(Branch { of: self.key.clone(), name: self.short(), at: 0, depth: 0 }),
            subject: Some(subject),
            ..plain(Id { kind: Kind::Run, name: self.key.clone() }, &self.label(), class)
        }
    }
}

/// Returns the rows of the workstreams of a run, each below the last one that it comes after.
pub fn workstreams<'t>(run: &Run, texts: impl Iterator<Item = (u64, &'t str)>) -> Vec<Row> {
    let parsed = texts.filter_map(|(rev, text)| Some((rev, serde_json::from_str::<Workstream>(text).ok()?)));
    let all: Vec<(u64, Workstream)> = parsed.collect();
    let stages: BTreeMap<&str, &str> = all.iter().map(|(_, one)| (one.id.as_str(), one.stage.as_str())).collect();
    let mut order = Vec::new();
    let mut is_placed = vec![false; all.len()];
    let known = |id: &String| stages.contains_key(id.as_str());
    for at in 0..all.len() {
        if !all[at].1.after.iter().any(known) {
            place(&all, at, 1, &mut is_placed, &mut order);
        }
    }
    // In a ring, which no plan has.
    for at in 0..all.len() {
        place(&all, at, 1, &mut is_placed, &mut order);
    }
    let rows = order.into_iter().enumerate().map(|(at, (index, depth))| {
        let (rev, one) = &all[index];
        workstream(run, one, *rev, &stages, at + 1, depth)
    });
    rows.collect()
}

/// Places a workstream, and then those whose last dependency it is.
fn place(all: &[(u64, Workstream)], at: usize, depth: usize, placed: &mut [bool], order: &mut Vec<(usize, usize)>) {
    let mut open = vec![(at, depth)];
    while let Some((at, depth)) = open.pop() {
        if std::mem::replace(&mut placed[at], true) {
            continue;
        }
        order.push((at, depth));
        let id = &all[at].1.id;
        let below = (0..all.len()).rev().filter(|next| all[*next].1.after.last() == Some(id));
        open.extend(below.map(|next| (next, depth + 1)));
    }
}

fn workstream(run: &Run, one: &Workstream, rev: u64, stages: &BTreeMap<&str, &str>, at: usize, depth: usize) -> Row {
    let is_far = one.host.is_some();
    let class = match one.stage.as_str() {
        "asking" | "waiting" => Class::NeedsYou,
        "working" if one.waiting.is_some() => Class::NeedsYou,
        "failed" => Class::Failed,
        "pending" if run.over && one.error.is_some() => Class::Failed,
        "working" => Class::Working,
        "done" => Class::Ended,
        _ if run.over => Class::Ended,
        _ => Class::Queued,
    };
    // The row of its worker or of its item is on top already, if there is one here.
    let is_first = match one.stage.as_str() {
        "asking" => true,
        "working" => one.waiting.is_some() && is_far,
        "waiting" => one.item.is_none(),
        _ => false,
    };
    let since = one.completed_at.as_ref().or(one.started_at.as_ref());
    Row {
        generation: Some(one.attempt),
        rev,
        state: if class == Class::NeedsYou && one.stage != "waiting" { "asks".into() } else { one.stage.clone() },
        at: clean(&told(one, stages)),
        since_ms: one.retry_ms.or_else(|| from_iso(since?)),
        is_running: one.stage == "working",
        place: clean(one.host.as_deref().unwrap_or_default()),
        answer: one.needs.as_ref().and_then(|needs| answer(&needs.answer)),
        is_first,
        worker: Some(one.worker.clone()),
        branch: Some(Branch { of: one.home.clone(), name: run.short(), at, depth }),
        subject: Some(Subject::Workstream {
            home: one.home.clone(),
            root: run.root.clone().filter(|_| run.specs.is_some()),
            id: one.id.clone(),
            stage: one.stage.clone(),
            is_over: run.over,
        }),
        ..plain(Id { kind: Kind::Workstream, name: one.key.clone() }, &one.id, class)
    }
}

/// Returns what a workstream waits for, why it failed, or what it has done.
fn told(one: &Workstream, stages: &BTreeMap<&str, &str>) -> String {
    if let Some(needs) = &one.needs {
        return needs.text.clone();
    }
    if let Some(waiting) = one.waiting.as_ref().filter(|_| one.stage == "working") {
        return waiting.clone();
    }
    if let Some(seats) = &one.waits_for_host {
        let hosts: Vec<String> = seats.iter().map(|seat| format!("{} ({})", seat.host, seat.reason)).collect();
        return format!("waits for a host: {}", hosts.join(", "));
    }
    let is_open = |id: &&String| stages.get(id.as_str()).is_some_and(|stage| *stage != "done");
    let after: Vec<&str> = one.after.iter().filter(is_open).map(String::as_str).collect();
    let error = one.error.as_ref().map(|error| match one.files.is_empty() {
        true => error.clone(),
        false => format!("{error}: {}", one.files.join(", ")),
    });
    match one.stage.as_str() {
        "pending" if error.is_none() && !after.is_empty() => format!("after {}", after.join(", ")),
        "working" => {
            let host = one.host.iter().map(|host| format!("on {host}"));
            let attempt = (one.attempt > 1).then(|| format!("attempt {}", one.attempt));
            host.chain(attempt).chain(error).collect::<Vec<_>>().join(", ")
        }
        "done" => {
            let commit = one.commit.as_ref().map(|commit| format!("landed as {}", commit.get(..12).unwrap_or(commit)));
            commit.into_iter().chain(one.summary.clone()).collect::<Vec<_>>().join(": ")
        }
        _ => error.unwrap_or_default(),
    }
}

/// Returns the rows of a flow: of itself, of its nodes, and of what else in it waits for a person.
pub fn flow(rev: u64, text: &str) -> Vec<Row> {
    let Ok(flow) = serde_json::from_str::<Flow>(text) else { return Vec::new() };
    let label = format!("{}/{}", flow.project, flow.flow);
    let name = flow.name.as_ref().map_or_else(|| label.clone(), |name| format!("{} {name}", short(&flow.flow)));
    let mut rows = vec![of_flow(&flow, &label, &name, rev)];
    let mut left: Vec<&Gate> = flow.requests.iter().collect();
    if let Some(at) = left.iter().position(|gate| gate.node == "flow" && gate.role == "-") {
        ask(&mut rows[0], &flow, left.remove(at));
    }
    for node in &flow.nodes {
        let role = flow.roles.iter().find(|role| role.role == node.role.to_lowercase() || role.role == node.role);
        let class = match node.state.as_str() {
            "running" if flow.run => Class::Working,
            "awaiting-human" if !node.answered => Class::NeedsYou,
            "ready" | "running" | "awaiting-human" | "awaiting-handoff" => Class::Queued,
            _ => Class::Ended,
        };
        let mut row = part(&flow, &label, rev, Id { kind: Kind::Node, name: format!("{}\n{}", flow.key, node.id) });
        row.label = clean(&node.id);
        row.class = class;
        row.state = if node.answered { "answered".to_owned() } else { node.state.clone() };
        let turn = role.filter(|role| role.turn > 0).map(|role| format!(", turn {}", role.turn));
        let next = if flow.next.contains(&node.id) { ", starts next" } else { "" };
        let reason = node.reason.iter().map(|reason| format!(": {reason}")).collect::<String>();
        row.at = clean(&format!("{}{}{next}{reason}", node.role, turn.unwrap_or_default()));
        row.worker = role.and_then(|role| role.worker.clone());
        row.subject = Some(subject(&flow, &label, Some((node.id.clone(), node.role.clone()))));
        if let Some(at) = left.iter().position(|gate| gate.node == node.id) {
            ask(&mut row, &flow, left.remove(at));
        }
        rows.push(row);
    }
    for gate in left {
        let number = gate.request.map_or_else(|| gate.reason.clone(), |number| number.to_string());
        let id = Id { kind: Kind::Gate, name: format!("{}\n{}\n{number}", flow.key, gate.node) };
        let mut row = part(&flow, &label, rev, id);
        row.label = clean(&gate.node);
        ask(&mut row, &flow, gate);
        rows.push(row);
    }
    for (at, row) in rows.iter_mut().enumerate() {
        if let Some(branch) = &mut row.branch {
            branch.at = at;
        }
    }
    rows
}

fn of_flow(flow: &Flow, label: &str, name: &str, rev: u64) -> Row {
    let done = flow.nodes.iter().filter(|node| node.state == "done").count();
    let asks = flow.requests.len() as u64;
    let asks = (asks > 0).then(|| format!("{} for you", counted(asks, "request")));
    let stalled = flow.stalled.as_ref().map(|how| format!("stalled: {how}"));
    let not_queued = flow.not_queued.as_ref().map(|cause| format!("the result is not queued: {cause}"));
    let parts = [Some(format!("{done}/{} done", flow.nodes.len())), asks, stalled, not_queued];
    let class = match flow.status.as_str() {
        _ if flow.stalled.is_some() || flow.not_queued.is_some() => Class::Failed,
        "completed" => Class::Ended,
        _ if flow.run => Class::Working,
        _ => Class::Ended,
    };
    let mut row = part(flow, label, rev, Id { kind: Kind::Flow, name: flow.key.clone() });
    row.label = clean(name);
    row.class = class;
    row.state = if flow.run || flow.status != "running" { flow.status.clone() } else { "not run".to_owned() };
    row.at = clean(&parts.into_iter().flatten().collect::<Vec<_>>().join(", "));
    if let Some(branch) = &mut row.branch {
        branch.depth = 0;
    }
    row
}

fn part(flow: &Flow, label: &str, rev: u64, id: Id) -> Row {
    Row {
        rev,
        place: clean(&flow.root),
        branch: Some(Branch { of: flow.key.clone(), name: clean(&flow.project), at: 0, depth: 1 }),
        subject: Some(subject(flow, label, None)),
        ..plain(id, label, Class::Ended)
    }
}

fn subject(flow: &Flow, label: &str, node: Option<(String, String)>) -> Subject {
    Subject::Flow { root: flow.root.clone(), flow: label.to_owned(), is_run: flow.run, node }
}

/// Gives a row what it asks.
fn ask(row: &mut Row, flow: &Flow, gate: &Gate) {
    row.class = Class::NeedsYou;
    row.state = "asks".to_owned();
    let text = gate.text.split_whitespace().collect::<Vec<_>>().join(" ");
    row.at = clean(&if text.is_empty() { gate.reason.clone() } else { format!("{}: {text}", gate.reason) });
    row.is_first = true;
    let of_flow = gate.node == "flow" && gate.role == "-";
    let part = gate.request.map_or_else(|| gate.node.clone(), |number| number.to_string());
    let id = format!("{}/{part}", flow.flow);
    // Only flows that are run have requests with a name of their own.
    row.answer = match (&gate.answers.yes, &gate.answers.text) {
        (Some(_), _) if flow.run && !of_flow => Some(Answer::Permission(id)),
        (_, Some(_)) if flow.run && !of_flow => Some(Answer::Question(id)),
        (Some(words), _) | (None, Some(words)) => {
            Some(Answer::Words(command_line(words.iter().map(String::as_str)) + " "))
        }
        (None, None) => None,
    };
}

/// Returns the id of a flow without its time.
fn short(id: &str) -> &str {
    id.rsplit_once('-').map_or(id, |(_, short)| short)
}
