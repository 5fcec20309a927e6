//! `swarm flow requests`, `allow` and `deny`: everything that waits for a person, and agents' permission requests.

use serde_json::json;
use swarm_actors::flow::rules::consent::{self, Answer, Gate, Request, Wish};
use swarm_actors::flow::rules::improvement;
use swarm_actors::flow::rules::operator;
use swarm_actors::flow::rules::state::{Reason, Wait};
use swarm_agents::shell_script;
use swarm_model::asks::judge::Consent;
use swarm_model::{Refusal, RefusalKind};

use super::args::{AllowArgs, DenyArgs, FlowOf};
use crate::cli::error::Failure;
use crate::cli::json;
use crate::cli::render::escape;
use crate::cli::screen::Screen;
use swarm_store::flows::sidecar::Asked;
use swarm_store::flows::store::{Open, gate_of};
use swarm_sys::clock::now_iso;
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

pub fn requests(args: &FlowOf, screen: &mut Screen) -> Result<u8, Failure> {
    let open = super::opened(&super::flow_of(args)?, screen)?;
    let list = waiting(&open);
    if args.common.json {
        let value = |one: &Waiting| {
            json!({
                "request": one.number, "node": one.who, "role": one.role, "reason": one.reason, "text": one.what,
                "command": one.helps,
            })
        };
        json::print_list(screen, "swarm.flow.requests/1", "requests", list.iter().map(value).collect())?;
        return Ok(0);
    }
    for one in list {
        let number = one.number.map_or_else(String::new, |number| format!("#{number} "));
        screen.line(&format!("{number}{} ({}): {}", escape(&one.who), escape(&one.role), escape(&one.reason)))?;
        for line in one.what.lines() {
            screen.line(&format!("  {}", escape(line)))?;
        }
        screen.line(&format!("  → {}", escape(&one.helps)))?;
    }
    Ok(0)
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

pub fn allow(args: &AllowArgs, screen: &mut Screen) -> Result<u8, Failure> {
    let answer = if args.flow_wide { Answer::AllowFlow } else { Answer::AllowOnce };
    respond(&args.of, args.request, answer, "allowed", screen)
}

pub fn deny(args: &DenyArgs, screen: &mut Screen) -> Result<u8, Failure> {
    respond(&args.of, args.request, Answer::Deny, "denied", screen)
}

fn respond(of: &FlowOf, number: u64, answer: Answer, done: &str, screen: &mut Screen) -> Result<u8, Failure> {
    let files = super::steered(of)?;
    let who = files.update(|open| {
        let asked = open.sidecar.requests.get(&number).filter(|asked| asked.answer.is_none()).cloned();
        let asked = asked.ok_or_else(|| {
            let refusal = Refusal::new(RefusalKind::NotFound, format!("request {number} is not open"));
            Failure::from(refusal.remedy("run 'swarm flow requests FLOW' to list open requests"))
        })?;
        let mut gate = gate_with_open(open);
        let settled = gate.respond(&asked.role, answer, &now_iso());
        consent::keep(&mut open.flow, &gate);
        for request in &settled {
            settle(open, request, if request.role == asked.role { answer } else { Answer::AllowOnce });
        }
        let who = asked.node.clone().unwrap_or_else(|| asked.role.clone());
        let members = [("role", json!(asked.role)), ("nodeId", json!(asked.node)), ("answer", json!(answer.word()))];
        open.tell("consent.resolved", members);
        Ok::<_, Failure>(who)
    })?;
    if answer == Answer::AllowFlow && !of.common.json {
        screen.aside("", "the flow now has partial access: agents write files without asking");
    }
    crate::cli::flow::respond::told(&files, &of.common, done, Some(&who), screen)
}

/// Grants every open permission request, as full access implies.
pub fn settle_all(open: &mut Open) {
    // Requests of the original program are recorded in `flow.json` only, not in the sidecar.
    let is_open = |reason: &str| reason == Reason::Consent.word();
    let wish = || Wish::Command { command: String::new() };
    let request = |node: &str, role: &str| Request { node: node.to_owned(), role: role.to_owned(), wish: wish() };
    let waits = open.flow.waits().filter(|wait| is_open(wait.reason)).map(|wait| request(wait.node, wait.role));
    let roles = improvement::waits(&open.flow).filter(|(_, reason)| is_open(reason)).map(|(role, _)| request("", role));
    let requests: Vec<Request> = waits.chain(roles).collect();
    requests.iter().for_each(|request| settle(open, request, Answer::AllowOnce));
}

fn gate_with_open(open: &Open) -> Gate {
    let mut gate = gate_of(&open.flow);
    // Register requests even if they would be granted by now: the agent still waits for an answer.
    let mode = gate.mode();
    gate.set_mode(Consent::NoAccess);
    for asked in open.sidecar.requests.values().filter(|asked| asked.answer.is_none()) {
        let node = asked.node.clone().unwrap_or_default();
        if let Some(request) = consent::request(&asked.tool, &asked.input, &node, &asked.role) {
            gate.ask(request);
        }
    }
    gate.restore_mode(mode);
    gate
}

fn settle(open: &mut Open, request: &Request, answer: Answer) {
    consent::settle(&mut open.flow, request, answer);
    let of_role = open.sidecar.requests.values_mut().filter(|asked| asked.role == request.role);
    of_role.for_each(|asked| asked.answer = Some(answer.word().to_owned()));
}
