//! Permissions: what an agent may do without asking, and the questions that await an answer.
//!
//! ```text
//!   no-access       everything needs permission; stored grants are ignored
//!   partial-access  file writes are allowed, and commands and tools that were granted
//!   full-access     nothing needs permission
//! ```
//!
//! Reading never needs permission, nor do `pwd` and `ls` on relative paths below the working directory.

use swarm_model::asks::judge::Consent;

use super::document::FlowRun;
use super::improvement;
use super::json::{Json, Members, trim};
use super::names::RoleId;
use super::state::{RUNNING, Reason, object_in};

/// Time recorded for a grant without a `grantedAt` text.
const UNKNOWN_TIME: &str = "1970-01-01T00:00:00.000Z";
const PREVIEW_CHARS_MAX: usize = 240;

/// An action that needs permission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub node: String,
    pub role: String,
    pub wish: Wish,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wish {
    Write { tool: String, path: String },
    Command { command: String },
    Tool { tool: String, server: String, name: String, arguments: String },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    AllowOnce,
    AllowFlow,
    Deny,
}

impl Answer {
    pub fn word(self) -> &'static str {
        match self {
            Self::AllowOnce => "allow_once",
            Self::AllowFlow => "allow_flow",
            Self::Deny => "deny",
        }
    }
}

/// Returns a valid consent state. Invalid or unknown parts of `value` are dropped or replaced by
/// defaults.
pub fn normalize(value: Option<&Json>) -> Json {
    let state = value.and_then(Json::as_object);
    let mode = state.and_then(|state| Consent::of(state.text("mode")?)).unwrap_or(Consent::NoAccess);
    let grants = |part: &str, list: &str, name: &str| {
        let given = state.and_then(|state| state.get(part)?.as_object()?.get(list)?.as_object());
        let mut kept = Members::default();
        for (key, grant) in given.into_iter().flat_map(Members::iter) {
            let Some(grant) = grant.as_object() else { continue };
            let Some(granted) = grant.text(name) else { continue };
            let at = grant.text("grantedAt").unwrap_or(UNKNOWN_TIME);
            kept.set(key, [(name, Json::from(granted)), ("grantedAt", Json::from(at))]);
        }
        Json::from([(list, Json::Object(kept))])
    };
    Json::from([
        ("mode", Json::from(mode.word())),
        ("bash", grants("bash", "allowedCommands", "command")),
        ("mcp", grants("mcp", "allowedTools", "toolName")),
    ])
}

/// Reports whether a command never needs permission: a bare `pwd`, or `ls` without shell control
/// characters, globs or paths outside the working directory.
pub fn is_harmless(command: &str) -> bool {
    let command = trim(command);
    let steers = |c: char| "\n\r;&|<>`$(){}[]*?".contains(c);
    if command.is_empty() || command.contains(steers) {
        return false;
    }
    let mut words = command.split_whitespace();
    match words.next() {
        Some("pwd") => words.next().is_none(),
        Some("ls") => words.all(is_below),
        _ => false,
    }
}

fn is_below(argument: &str) -> bool {
    argument.starts_with('-')
        || !(argument.starts_with('/') || argument.contains('\\') || argument.split('/').any(|part| part == ".."))
}

/// Returns the permission that a use of the tool needs. `None` if it never needs one.
pub fn request(tool: &str, input: &serde_json::Value, node: &str, role: &str) -> Option<Request> {
    let text = |key: &str| input.get(key).and_then(serde_json::Value::as_str);
    let wish = match tool {
        "edit_file" | "write_file" => {
            Wish::Write { tool: tool.to_owned(), path: text("path").unwrap_or("(missing path)").to_owned() }
        }
        "run_command" => Wish::Command { command: trim(text("command").unwrap_or_default()).to_owned() },
        _ => {
            let (server, name) = tool.strip_prefix("mcp__")?.split_once("__")?;
            if server.is_empty() || name.is_empty() {
                return None;
            }
            let arguments = preview(input);
            Wish::Tool { tool: tool.to_owned(), server: server.to_owned(), name: name.to_owned(), arguments }
        }
    };
    Some(Request { node: node.to_owned(), role: role.to_owned(), wish })
}

fn preview(input: &serde_json::Value) -> String {
    let text = if input.is_null() { "{}".to_owned() } else { Json::from(input).render_compact() };
    if text.chars().count() <= PREVIEW_CHARS_MAX {
        return text;
    }
    text.chars().take(PREVIEW_CHARS_MAX - 3).chain("...".chars()).collect()
}

/// Grants of a flow, and its open questions: at most one per role.
#[derive(Clone, Debug, PartialEq)]
pub struct Gate {
    state: Members,
    open: Vec<(String, Request)>,
}

impl Gate {
    pub fn of(state: Option<&Json>) -> Self {
        let Json::Object(state) = normalize(state) else { return Self { state: Members::default(), open: Vec::new() } };
        Self { state, open: Vec::new() }
    }

    /// Returns the state as it is stored in the flow.
    pub fn state(&self) -> Json {
        Json::Object(self.state.clone())
    }

    pub fn mode(&self) -> Consent {
        self.state.text("mode").and_then(Consent::of).unwrap_or(Consent::NoAccess)
    }

    pub fn open(&self) -> impl Iterator<Item = &Request> {
        self.open.iter().map(|(_, request)| request)
    }

    pub fn is_granted(&self, wish: &Wish) -> bool {
        if let Wish::Command { command } = wish
            && is_harmless(command)
        {
            return true;
        }
        match self.mode() {
            Consent::FullAccess => true,
            Consent::NoAccess => false,
            Consent::PartialAccess => match wish {
                Wish::Write { .. } => true,
                Wish::Command { command } => !command.is_empty() && self.has("bash", "allowedCommands", command),
                Wish::Tool { tool, .. } => self.has("mcp", "allowedTools", tool),
            },
        }
    }

    fn has(&self, part: &str, list: &str, key: &str) -> bool {
        let grants = self.state.get(part).and_then(Json::as_object).and_then(|part| part.get(list)?.as_object());
        grants.is_some_and(|grants| grants.has(key))
    }

    /// Opens a question unless the request is already granted, and reports whether it is open. A
    /// new question replaces an open one of the same role.
    pub fn ask(&mut self, request: Request) -> bool {
        if self.is_granted(&request.wish) {
            return false;
        }
        let role = RoleId::key(&request.role);
        match self.open.iter_mut().find(|(other, _)| *other == role) {
            Some(open) => open.1 = request,
            None => self.open.push((role, request)),
        }
        true
    }

    /// Answers the open question of a role, and with it those of other roles that become granted.
    /// Returns the settled questions, the role's own first. Returns an empty list if the role has
    /// no open question.
    pub fn respond(&mut self, role: &str, answer: Answer, at_iso: &str) -> Vec<Request> {
        let role = RoleId::key(role);
        let Some(at) = self.open.iter().position(|(open, _)| *open == role) else { return Vec::new() };
        let (_, request) = self.open.remove(at);
        let mut settled = vec![request];
        if answer == Answer::AllowFlow {
            self.state.set("mode", Consent::PartialAccess.word());
            self.grant(&settled[0].wish.clone(), at_iso);
            let (granted, open) =
                std::mem::take(&mut self.open).into_iter().partition(|(_, open)| self.is_granted(&open.wish));
            self.open = open;
            settled.extend(Vec::into_iter(granted).map(|(_, request)| request));
        }
        settled
    }

    fn grant(&mut self, wish: &Wish, at_iso: &str) {
        let (part, list, name, key) = match wish {
            Wish::Write { .. } => return,
            Wish::Command { command } if command.is_empty() => return,
            Wish::Command { command } => ("bash", "allowedCommands", "command", command),
            Wish::Tool { tool, .. } => ("mcp", "allowedTools", "toolName", tool),
        };
        let grant = [(name, Json::from(key.as_str())), ("grantedAt", Json::from(at_iso))];
        object_in(object_in(&mut self.state, part), list).set(key, grant);
    }

    /// Sets the mode back after questions were opened under another one. Settles nothing.
    pub fn restore_mode(&mut self, mode: Consent) {
        self.state.set("mode", mode.word());
    }

    /// Sets the mode and returns the questions that this settles: all of them with full access.
    /// `None` if the mode does not change.
    pub fn set_mode(&mut self, mode: Consent) -> Option<Vec<Request>> {
        if self.mode() == mode {
            return None;
        }
        self.state.set("mode", mode.word());
        let settled = if mode == Consent::FullAccess { std::mem::take(&mut self.open) } else { Vec::new() };
        Some(settled.into_iter().map(|(_, request)| request).collect())
    }
}

/// Stores the state of the gate in the flow.
pub fn keep(flow: &mut FlowRun, gate: &Gate) {
    flow.doc.set("consentState", gate.state());
}

/// Suspends the node, or the role in the improvement phase, until the question is answered.
pub fn await_answer(flow: &mut FlowRun, request: &Request) {
    if improvement::is_running(flow) {
        improvement::set_wait(flow, &RoleId::key(&request.role), Reason::Consent);
        return;
    }
    flow.suspend(&request.node, &request.role, Reason::Consent);
}

/// Applies the answer: the node (or role) continues, or its turn ends if the question was denied.
pub fn settle(flow: &mut FlowRun, request: &Request, answer: Answer) {
    let denied = answer == Answer::Deny;
    if improvement::is_running(flow) {
        let role = RoleId::key(&request.role);
        if improvement::wait_reason(flow, &role) == Some(Reason::Consent.word()) {
            if denied {
                improvement::set_wait(flow, &role, Reason::ConsentDenied);
            } else {
                improvement::end_wait(flow, &role);
            }
        }
        return;
    }
    if flow.wait(&request.node).is_none_or(|wait| wait.reason != Reason::Consent.word()) {
        return;
    }
    if denied {
        flow.suspend(&request.node, &request.role, Reason::ConsentDenied);
        return;
    }
    flow.object_mut("awaitingHumanNodes").remove(&request.node);
    flow.add("runningNodes", &request.node);
    flow.set_status(RUNNING);
}

/// Denies all open questions, because the processes that asked them are gone. Reports whether there
/// were any.
pub fn deny_stale(flow: &mut FlowRun) -> bool {
    let stale = |(node, role, reason): (&str, &str, &str)| {
        (reason == Reason::Consent.word()).then(|| (node.to_owned(), role.to_owned()))
    };
    let nodes: Vec<_> = flow.waits().filter_map(|wait| stale((wait.node, wait.role, wait.reason))).collect();
    for (node, role) in &nodes {
        let wait = [("role", Json::from(role.as_str())), ("reason", Json::from(Reason::ConsentDenied.word()))];
        flow.object_mut("awaitingHumanNodes").set(node, wait);
    }
    let roles: Vec<String> = improvement::waits(flow)
        .filter(|(_, reason)| *reason == Reason::Consent.word())
        .map(|(role, _)| role.to_owned())
        .collect();
    for role in &roles {
        improvement::set_wait(flow, role, Reason::ConsentDenied);
    }
    !nodes.is_empty() || !roles.is_empty()
}
