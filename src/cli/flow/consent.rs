//! `swarm flow requests`, `allow`, `deny` and `consent-check`: what agents ask to do.

use std::io::Read as _;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use swarm_actors::flow::consent::{self, Answer, Gate, Request, Wish};
use swarm_actors::flow::improvement;
use swarm_actors::flow::operator;
use swarm_actors::flow::state::Reason;
use swarm_actors::model::RefusalKind;

use super::args::{AllowArgs, FlowOf};
use super::emit::Here;
use crate::adapters::clock::now_iso;
use crate::adapters::flows::sidecar::Asked;
use crate::adapters::flows::store::{Open, StoreError, gate_of};
use crate::cli::error::Failure;
use crate::cli::json;
use crate::cli::render::escape;
use crate::cli::screen::Screen;
use crate::cli::watch::{Changes, Until, wait_any};

/// A hook's message is not longer.
const SAID_BYTES_MAX: u64 = 64 << 20;
/// It is looked again at least so often: another file system may tell nothing of changes.
const LOOK_PAUSE: Duration = Duration::from_secs(60);

/// One thing that waits for a person.
pub struct Waiting {
    number: Option<u64>,
    /// The node, or the role that looks back.
    pub who: String,
    role: String,
    pub reason: String,
    /// What it asks.
    pub what: String,
    /// What a person may type.
    pub helps: String,
}

pub fn requests(args: &FlowOf, screen: &mut Screen) -> Result<u8, Failure> {
    let open = super::flow_of(args)?.open()?;
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

/// All of a flow that waits for a person.
pub fn waiting(open: &Open) -> Vec<Waiting> {
    let (flow, id) = (&open.flow, open.flow.id().flow);
    let mut list = Vec::new();
    for (number, asked) in open.sidecar.requests.iter().filter(|(_, asked)| asked.answer.is_none()) {
        list.push(Waiting {
            number: Some(*number),
            who: asked.node.clone().unwrap_or_else(|| asked.role.clone()),
            role: asked.role.clone(),
            reason: Reason::Consent.word().to_owned(),
            what: what(asked),
            helps: format!("swarm flow allow {id} {number}"),
        });
    }
    let answered: Vec<&str> = flow.answered().collect();
    for wait in flow.waits().filter(|wait| !answered.contains(&wait.node) && wait.reason != Reason::Consent.word()) {
        let staged = operator::staged(flow, wait.node).map(|targets| {
            let targets = targets.iter().map(|target| {
                format!("hands over {} to {}", target.artifact.as_deref().unwrap_or("nothing"), target.node)
            });
            targets.collect::<Vec<_>>().join("\n")
        });
        let helps = match staged {
            Some(_) => format!("swarm flow approve {id} {}", wait.node),
            None => format!("swarm flow answer {id} --node {} TEXT", wait.node),
        };
        let said = open.sidecar.words.get(wait.node).cloned().unwrap_or_default();
        let what = [said, staged.unwrap_or_default()].into_iter().filter(|text| !text.is_empty());
        list.push(Waiting {
            number: None,
            who: wait.node.to_owned(),
            role: wait.role.to_owned(),
            reason: wait.reason.to_owned(),
            what: what.collect::<Vec<_>>().join("\n"),
            helps,
        });
    }
    for (role, reason) in improvement::waits(flow).filter(|(_, reason)| *reason != Reason::Consent.word()) {
        list.push(Waiting {
            number: None,
            who: role.to_owned(),
            role: role.to_owned(),
            reason: reason.to_owned(),
            what: open.sidecar.words.get(role).cloned().unwrap_or_default(),
            helps: format!("swarm flow answer {id} --role {role} TEXT"),
        });
    }
    list
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
    respond(args, answer, "allowed", screen)
}

pub fn deny(args: &AllowArgs, screen: &mut Screen) -> Result<u8, Failure> {
    respond(args, Answer::Deny, "denied", screen)
}

fn respond(args: &AllowArgs, answer: Answer, done: &str, screen: &mut Screen) -> Result<u8, Failure> {
    let files = super::flow_of(&args.of)?;
    let who = files.update(|open| {
        let asked = open.sidecar.requests.get(&args.request).filter(|asked| asked.answer.is_none()).cloned();
        let asked = asked.ok_or_else(|| {
            let refusal = format!("no request {} is open in this flow", args.request);
            Failure::new(RefusalKind::NotFound, refusal)
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
    super::voice::told(&files, &args.of.common, done, Some(&who), screen)
}

/// With full access no question stays open.
pub fn settle_all(open: &mut Open) {
    // Those that another program asked for are in the flow alone.
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
    // Also where it would be granted by now: whoever asked waits for the answer.
    let mode = gate.mode();
    gate.set_mode(consent::Mode::NoAccess);
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

/// What an agent's hook is told, which waits for it.
enum Decision {
    Proceed,
    Deny(&'static str),
}

pub fn check(screen: &mut Screen) -> Result<u8, Failure> {
    let mut text = String::new();
    let read = std::io::stdin().take(SAID_BYTES_MAX).read_to_string(&mut text);
    read.map_err(|error| Failure::system("read standard input", &error))?;
    let said: Value = serde_json::from_str(&text)
        .map_err(|error| Failure::new(RefusalKind::Invalid, format!("what was asked is no JSON: {error}")))?;
    let here = Here::find()?;
    let decision = decide(&here, &said)?;
    screen.line(&answer_to(&said, &decision).to_string())?;
    Ok(0)
}

fn decide(here: &Here, said: &Value) -> Result<Decision, Failure> {
    let (tool, input) = wish_of(said);
    let node = here.turn.node.clone().unwrap_or_default();
    let Some(request) = consent::request(&tool, &input, &node, &here.turn.role) else { return Ok(Decision::Proceed) };
    if matches!(&request.wish, Wish::Command { command } if is_own(command)) {
        return Ok(Decision::Proceed);
    }
    let changes = Changes::new()?;
    changes.add_dir(here.files.dir())?;
    let opened = here.files.update(|open| {
        here.check(open)?;
        if gate_of(&open.flow).is_granted(&request.wish) {
            return Ok(None);
        }
        let number = open.sidecar.requests.keys().last().map_or(1, |last| last + 1);
        open.sidecar.requests.retain(|_, asked| asked.role != here.turn.role);
        open.sidecar.requests.insert(
            number,
            Asked {
                role: here.turn.role.clone(),
                turn: here.turn.number,
                node: here.turn.node.clone(),
                tool: tool.clone(),
                input: input.clone(),
                asked_at: now_iso(),
                answer: None,
            },
        );
        consent::await_answer(&mut open.flow, &request);
        let members = [("role", json!(here.turn.role)), ("nodeId", json!(here.turn.node)), ("request", json!(number))];
        open.tell("consent.requested", members);
        Ok::<_, Failure>(Some(number))
    })?;
    match opened {
        None => Ok(Decision::Proceed),
        Some(number) => {
            super::run::wake_quietly(&here.files);
            wait_for_answer(here, number, &changes)
        }
    }
}

fn wait_for_answer(here: &Here, number: u64, changes: &Changes) -> Result<Decision, Failure> {
    loop {
        match here.files.sidecar() {
            Ok(sidecar) if !sidecar.is_at(&here.turn) => return Ok(Decision::Deny("its turn is over")),
            Ok(sidecar) => match sidecar.requests.get(&number) {
                None => return Ok(Decision::Deny("its question is no question any more")),
                Some(asked) => match asked.answer.as_deref() {
                    Some("deny") => return Ok(Decision::Deny("a person has said no")),
                    Some(_) => return Ok(Decision::Proceed),
                    None => {}
                },
            },
            // Another version of it is looked at next.
            Err(StoreError::Unreadable { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        wait_any(&[(std::os::fd::AsFd::as_fd(changes), Until::Readable)], Some(Instant::now() + LOOK_PAUSE))?;
        changes.take()?;
    }
}

/// The tool and what it is used with, in the words of the rules.
fn wish_of(said: &Value) -> (String, Value) {
    let text = |key: &str| said.get(key).and_then(Value::as_str);
    let (Some(tool), input) = (text("tool_name"), &said["tool_input"]) else {
        return (text("tool").unwrap_or_default().to_owned(), said["input"].clone());
    };
    match tool {
        "Bash" => ("run_command".to_owned(), json!({"command": input["command"]})),
        "Write" | "Edit" | "MultiEdit" => ("write_file".to_owned(), json!({"path": input["file_path"]})),
        "NotebookEdit" => ("write_file".to_owned(), json!({"path": input["notebook_path"]})),
        _ => (tool.to_owned(), input.clone()),
    }
}

/// How an agent ends its turn is nothing to ask for.
fn is_own(command: &str) -> bool {
    let steers = |c: char| "\n\r;&|<>`$(){}".contains(c);
    let quoted = !command.contains(steers);
    let words: Vec<&str> = command.split_whitespace().take(3).collect();
    quoted && matches!(words.as_slice(), ["swarm", "flow", "emit"])
}

fn answer_to(said: &Value, decision: &Decision) -> Value {
    if said.get("tool_name").is_none() {
        let word = if matches!(decision, Decision::Proceed) { "proceed" } else { "deny" };
        return json!({ "decision": word });
    }
    let hook = |word: &str, why: &str| {
        json!({
            "hookEventName": "PreToolUse", "permissionDecision": word, "permissionDecisionReason": why,
        })
    };
    match decision {
        Decision::Proceed => json!({ "hookSpecificOutput": hook("allow", "the flow allows it") }),
        Decision::Deny(why) => {
            json!({ "continue": false, "stopReason": why, "hookSpecificOutput": hook("deny", why) })
        }
    }
}
