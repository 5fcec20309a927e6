//! A flow as programs read it: the shape of `flow status --json`, of `flow requests --json` and of the board. It is documented
//! in docs/json.md; keys are added, never changed.

use serde_json::{Map, Value, json};
use swarm_actors::flow::rules::consent::{self, Wish};
use swarm_actors::flow::rules::improvement;
use swarm_actors::flow::rules::names::RoleId;
use swarm_actors::flow::rules::operator;
use swarm_actors::flow::rules::state::{Reason, Wait};
use swarm_actors::flow::rules::status::{Doing, FlowStatus, NodeStatus, Stall, status as status_of};
use swarm_agents::shell_script;
use swarm_store::flows::sidecar::Asked;
use swarm_store::flows::store::{Open, gate_of};
use swarm_sys::quoting::command_line;

/// Something in a flow that waits for a person.
#[derive(Default)]
pub struct Waiting {
    /// Number of a permission request; `None` for everything else.
    pub number: Option<u64>,
    /// Node, or role in the improvement phase.
    pub who: String,
    pub role: String,
    /// Whether `who` is a role.
    pub is_role: bool,
    /// Whether a handoff waits to be approved.
    pub is_handoff: bool,
    /// Whether changed work, which the `shell` agent executes, waits to be approved.
    pub is_script: bool,
    pub reason: String,
    /// Question or requested action.
    pub what: String,
    /// Command that answers it.
    pub helps: String,
}

/// Returns everything in the flow that waits for a person.
pub fn waiting(open: &Open) -> Vec<Waiting> {
    let (flow, id) = (&open.flow, open.flow.id().flow);
    let mut list = Vec::new();
    for (number, asked) in open.sidecar.requests.iter().filter(|(_, asked)| asked.answer.is_none()) {
        list.push(Waiting {
            number: Some(*number),
            is_role: asked.node.is_none(),
            reason: Reason::Consent.word().to_owned(),
            what: what(asked),
            helps: command(&["allow", &id, &number.to_string()], ""),
            ..Waiting::of(asked.node.as_ref().unwrap_or(&asked.role), &asked.role)
        });
    }
    let answered: Vec<&str> = flow.answered().collect();
    let waits = flow.waits().filter(|wait| !answered.contains(&wait.node) && wait.reason != Reason::Consent.word());
    list.extend(waits.map(|wait| of_node(open, &wait)));
    let choice = match flow.status() {
        "awaiting_improvement_choice" => Some(("the forward pass is complete", "improve", "graph-based|parallel|none")),
        "awaiting_feedback_consent" => Some(("the improvement phase is complete", "feedback", "grant|deny")),
        _ => None,
    };
    list.extend(choice.map(|(what, verb, words)| Waiting {
        reason: flow.status().to_owned(),
        what: what.to_owned(),
        helps: command(&[verb, &id], words),
        ..Waiting::of("flow", "-")
    }));
    for (role, reason) in improvement::waits(flow).filter(|(_, reason)| *reason != Reason::Consent.word()) {
        list.push(Waiting {
            is_role: true,
            reason: reason.to_owned(),
            what: open.sidecar.words.get(role).cloned().unwrap_or_default(),
            helps: command(&["answer", &id, "--role", role], "TEXT"),
            ..Waiting::of(role, role)
        });
    }
    list
}

impl Waiting {
    fn of(who: &str, role: &str) -> Self {
        Self { who: who.to_owned(), role: role.to_owned(), ..Self::default() }
    }
}

/// Returns a command of `swarm flow` with these words, which agents may have chosen, and a placeholder at its end.
fn command(words: &[&str], placeholder: &str) -> String {
    let line = command_line(["swarm", "flow"].into_iter().chain(words.iter().copied()));
    format!("{line} {placeholder}").trim_end().to_owned()
}

/// Returns what a node waits for.
fn of_node(open: &Open, wait: &Wait<'_>) -> Waiting {
    let (flow, id) = (&open.flow, open.flow.id().flow);
    let staged = operator::staged(flow, wait.node).map(|targets| {
        let targets = targets.iter().map(|target| {
            let artifact = target.artifact.as_deref().unwrap_or("no artifact");
            let is_altered = open.graph.is_altered(wait.node, &target.node);
            let note = if is_altered { ": the workflow was changed here after the flow started" } else { "" };
            format!("hands over {artifact} to {}{note}", target.node)
        });
        targets.collect::<Vec<_>>().join("\n")
    });
    // All of it: whoever agrees has seen what is executed.
    let script = open.proposed(wait.node).map(|script| {
        let work = script.work.join("\n");
        shell_script(&work).unwrap_or(work)
    });
    let (is_handoff, is_script) = (staged.is_some(), script.is_some());
    let helps = match is_handoff || is_script {
        true => command(&["approve", &id, wait.node], ""),
        false => command(&["answer", &id, "--node", wait.node], "TEXT"),
    };
    let said = open.sidecar.words.get(wait.node).cloned();
    let what: Vec<String> = [said, staged, script].into_iter().flatten().filter(|text| !text.is_empty()).collect();
    Waiting {
        is_handoff,
        is_script,
        reason: wait.reason.to_owned(),
        what: what.join("\n"),
        helps,
        ..Waiting::of(wait.node, wait.role)
    }
}

fn what(asked: &Asked) -> String {
    match consent::request(&asked.tool, &asked.input, "", &asked.role).map(|request| request.wish) {
        Some(Wish::Command { command }) => command,
        Some(Wish::Write { path, .. }) => format!("writes {path}"),
        Some(Wish::Tool { server, name, arguments, .. }) => format!("{name} of {server}: {arguments}"),
        None => asked.tool.clone(),
    }
}

/// Returns the status of a flow, without its roles.
pub fn status_object(open: &Open, status: &FlowStatus) -> Map<String, Value> {
    let (flow, id) = (&open.flow, open.flow.id());
    let node = |node: &NodeStatus| {
        let reason = if let Doing::AwaitingHuman(reason) = &node.doing { Some(reason) } else { None };
        let state = node.doing.word();
        json!({"id": node.node, "role": node.role, "state": state, "reason": reason, "answered": node.answered})
    };
    let stall = status.stall.map(|stall| match stall {
        Stall::Suspended => "suspended",
        Stall::Dead => "dead",
    });
    let waits: Vec<Value> =
        improvement::waits(flow).map(|(role, reason)| json!({"role": role, "reason": reason})).collect();
    let phase = flow.phase_status().map(
        |phase| json!({"status": phase, "mode": flow.phase().and_then(|phase| phase.text("mode")), "waiting": waits}),
    );
    let members = [
        ("project", json!(id.project)),
        ("flow", json!(id.flow)),
        ("root", json!(flow.workspace_root())),
        ("record", json!(flow.record_folder())),
        ("status", json!(flow.status())),
        ("name", json!(flow.record_name)),
        ("summary", json!(flow.record_summary)),
        ("base", json!(open.sidecar.base)),
        ("task", json!(open.sidecar.task)),
        ("consent", json!(gate_of(flow).mode().word())),
        ("nodes", status.nodes.iter().map(node).collect()),
        ("next", json!(status.next)),
        ("stalled", json!(stall)),
        ("improvement", json!(phase)),
        ("not_queued", json!(open.sidecar.not_queued)),
    ];
    members.map(|(key, value)| (key.to_owned(), value)).into_iter().collect()
}

/// Longest text of a request on the board, in bytes. `flow requests` has all of it.
const TEXT_BYTES_MAX: usize = 4000;

impl Waiting {
    /// Returns the request as `flow requests --json` prints it.
    pub fn value(&self) -> Map<String, Value> {
        let members = [
            ("request", json!(self.number)),
            ("node", json!(self.who)),
            ("role", json!(self.role)),
            ("reason", json!(self.reason)),
            ("text", json!(self.what)),
            ("command", json!(self.helps)),
        ];
        members.map(|(key, value)| (key.to_owned(), value)).into_iter().collect()
    }

    /// Returns the request for the board: with the verbs that answer it, and without the end of a long text.
    fn short_value(&self, root: &str, flow: &str) -> Map<String, Value> {
        let mut value = self.value();
        let is_cut = self.what.len() > TEXT_BYTES_MAX;
        if is_cut {
            let end = self.what.floor_char_boundary(TEXT_BYTES_MAX);
            value.insert("text".to_owned(), json!(self.what[..end]));
        }
        value.insert("cut".to_owned(), json!(is_cut));
        value.insert("answers".to_owned(), self.answers(root, flow));
        value
    }

    /// Returns the words of the verbs that answer it: `yes` and `no`, or `text`, which a text follows.
    fn answers(&self, root: &str, flow: &str) -> Value {
        let words = |verb: &str, options: &[&str], rest: &[&str]| {
            let root = format!("--root={root}");
            let words: Vec<String> = [&["flow", verb, &root][..], options, &["--", flow], rest]
                .concat()
                .iter()
                .map(ToString::to_string)
                .collect();
            words
        };
        let (yes_no, text) = match (self.number.map(|number| number.to_string()), self.reason.as_str()) {
            (Some(number), _) => (Some((words("allow", &[], &[&number]), words("deny", &[], &[&number]))), None),
            (None, "awaiting_improvement_choice") => (None, Some(words("improve", &[], &[]))),
            (None, "awaiting_feedback_consent") => {
                (Some((words("feedback", &[], &["grant"]), words("feedback", &[], &["deny"]))), None)
            }
            (None, _) if self.is_handoff || self.is_script => {
                (Some((words("approve", &[], &[&self.who]), words("decline", &[], &[&self.who]))), None)
            }
            (None, _) => {
                let to = if self.is_role { format!("--role={}", self.who) } else { format!("--node={}", self.who) };
                (None, Some(words("answer", &[&to], &[])))
            }
        };
        let (yes, no) = yes_no.unzip();
        json!({"yes": yes, "no": no, "text": text})
    }
}

/// Returns a flow for the board: its status, the parts of its roles, and what waits for a person. `is_run`: a supervisor runs it.
pub fn row(open: &Open, is_run: bool) -> Map<String, Value> {
    let mut object = status_object(open, &status_of(&open.flow, &open.graph));
    let id = open.flow.id().to_string();
    let root = open.flow.workspace_root();
    let requests: Vec<_> = waiting(open).iter().map(|one| one.short_value(root, &id)).collect();
    let mut roles: Vec<String> = Vec::new();
    for node in open.graph.nodes() {
        let role = RoleId::key(&node.role);
        if !roles.contains(&role) {
            roles.push(role);
        }
    }
    let role = |role: String| {
        let side = open.sidecar.roles.get(&role);
        let left_out = open.sidecar.left_out.get(&role).map(|left| left.paths.clone()).unwrap_or_default();
        let (worker, turn) = (side.map(|side| &side.worker), side.map_or(0, |side| side.turn));
        json!({"role": role, "worker": worker, "turn": turn, "left_out": left_out})
    };
    object.insert("roles".to_owned(), roles.into_iter().map(role).collect());
    object.insert("requests".to_owned(), json!(requests));
    object.insert("run".to_owned(), json!(is_run));
    object.insert("damage".to_owned(), json!(open.damage));
    object
}
