//! `swarm flow requests`, `allow` and `deny`: everything that waits for a person, and agents' permission requests.

use serde_json::json;
use swarm_actors::flow::rules::consent::{self, Answer, Gate, Request, Wish};
use swarm_actors::flow::rules::improvement;
use swarm_actors::flow::rules::state::Reason;
use swarm_model::asks::judge::Consent;
use swarm_model::{Refusal, RefusalKind};

use super::args::{AllowArgs, DenyArgs, FlowOf};
use crate::board::flow::{Waiting, waiting};
use crate::cli::error::Failure;
use crate::cli::json;
use crate::cli::render::escape;
use crate::cli::screen::Screen;
use swarm_store::flows::store::{Open, gate_of};
use swarm_sys::clock::now_iso;

pub fn requests(args: &FlowOf, screen: &mut Screen) -> Result<u8, Failure> {
    let open = super::opened(&super::flow_of(args)?, screen)?;
    let list = waiting(&open);
    if args.common.json {
        json::print_list(screen, "swarm.flow.requests/1", "requests", list.iter().map(Waiting::value).collect())?;
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
