//! Verbs with which a person steers a flow: answers, approvals, choices. Each is one change of the flow's file under
//! its lock.

use serde_json::{Value, json};
use swarm_actors::flow::rules::consent;
use swarm_actors::flow::rules::document::FlowRun;
use swarm_actors::flow::rules::handoff::Ended;
use swarm_actors::flow::rules::improvement::{self, Feedback};
use swarm_actors::flow::rules::names::RoleId;
use swarm_actors::flow::rules::operator::{self, Denied, To};
use swarm_actors::flow::rules::plan::{ImprovementMode, Plan};
use swarm_actors::flow::rules::state::Reason;
use swarm_model::RefusalKind;
use swarm_model::asks::judge::Consent;

use super::args::{AnswerArgs, ApproveArgs, Common, ConsentArgs, DeclineArgs, FeedbackArgs, ImproveArgs};
use crate::cli::error::Failure;
use crate::cli::json;
use crate::cli::render::escape;
use crate::cli::screen::Screen;
use swarm_store::flows::feed;
use swarm_store::flows::store::{FlowFiles, Open, StoreError, gate_of};
use swarm_sys::clock::now_iso;

impl From<Denied> for Failure {
    fn from(denied: Denied) -> Self {
        Self::new(RefusalKind::Invalid, denied.to_string())
    }
}

/// Prints what was done to which node or role, and notifies the supervisor if it runs the flow.
pub fn told(
    files: &FlowFiles,
    common: &Common,
    done: &str,
    who: Option<&str>,
    screen: &mut Screen,
) -> Result<u8, Failure> {
    super::run::wake(files, screen);
    if common.json {
        let id = files.id();
        let object = json::object([
            ("project", json!(id.project)),
            ("flow", json!(id.flow)),
            ("done", json!(done)),
            ("node", json!(who)),
        ]);
        json::print(screen, "swarm.flow.changed/1", &object)?;
    } else {
        screen.line(&who.map_or_else(|| done.to_owned(), |who| format!("{done}: {}", escape(who))))?;
    }
    Ok(0)
}

pub fn answer(args: &AnswerArgs, screen: &mut Screen) -> Result<u8, Failure> {
    let files = super::steered(&args.of)?;
    let text = super::text_of(&args.text)?;
    if text.trim().is_empty() {
        return Err(Failure::new(RefusalKind::Invalid, "the answer is empty"));
    }
    let to = match (&args.node, &args.role) {
        (Some(node), _) => To::Node(node),
        (None, Some(role)) => To::Role(role),
        (None, None) => To::Anyone,
    };
    let who = files.update(|open| {
        let at = now_iso();
        let (key, who) = if improvement::is_running(&open.flow) {
            let role = role_of(&open.flow, to)?;
            ("role", improvement::answer(&mut open.flow, &role, &text, &at)?)
        } else {
            ("nodeId", operator::answer(&mut open.flow, &open.graph, to, &text, &at)?)
        };
        open.tell("human.answered", [(key, json!(who))]);
        Ok::<_, Failure>(who)
    })?;
    let role = files.open().ok().and_then(|open| open.graph.node(&who).map(|node| RoleId::key(&node.role)));
    // The feed is only for readers and may fail; the answer itself is in the flow.
    let _ = feed::add(files.dir(), &role.unwrap_or_else(|| who.clone()), &[(feed::Kind::User, text)]);
    told(&files, &args.of.common, "answered", Some(&who), screen)
}

/// Returns the role that an answer goes to in the improvement phase, in which there are no nodes.
///
/// # Errors
/// Fails if a node was named, if no role waits, or if several wait and none was named.
fn role_of(flow: &FlowRun, to: To<'_>) -> Result<String, Denied> {
    let waiting = || improvement::waits(flow).filter(|(_, reason)| Reason::takes_text(reason));
    match to {
        To::Role(role) => Ok(role.to_owned()),
        To::Node(node) => Err(Denied::NodeNotAccepting(node.to_owned())),
        To::Anyone => match waiting().collect::<Vec<_>>().as_slice() {
            [] => Err(Denied::NotAccepting),
            [(role, _)] => Ok((*role).to_owned()),
            _ => Err(Denied::Ambiguous),
        },
    }
}

pub fn approve(args: &ApproveArgs, screen: &mut Screen) -> Result<u8, Failure> {
    let files = super::steered(&args.of)?;
    files.update(|open| {
        if open.agree(&args.node) {
            open.tell("work.approved", [("nodeId", json!(args.node))]);
            return Ok(());
        }
        let ended = operator::approve(&mut open.flow, &open.graph, &args.node, |path| files.look(path))?;
        tell_handed(open, &args.node, &ended);
        Ok::<_, Failure>(())
    })?;
    told(&files, &args.of.common, "approved", Some(&args.node), screen)
}

fn tell_handed(open: &mut Open, node: &str, ended: &Ended) {
    let Ended::Handed(targets) = ended else { return };
    let role = open.graph.node(node).map(|node| node.role.clone());
    let targets: Vec<Value> = targets.iter().map(|(node, role)| json!({"nodeId": node, "role": role})).collect();
    let members = [("fromNodeId", json!(node)), ("fromRole", json!(role)), ("targets", json!(targets))];
    open.tell("handoff.applied", members);
}

pub fn decline(args: &DeclineArgs, screen: &mut Screen) -> Result<u8, Failure> {
    let files = super::steered(&args.of)?;
    let text = args.message.as_deref().map(super::text_of).transpose()?;
    files.update(|open| {
        let message = text.as_deref().filter(|text| !text.trim().is_empty());
        if open.withdraw(&args.node, message.unwrap_or("what this node would execute was declined")) {
            open.tell("work.declined", [("nodeId", json!(args.node))]);
            return Ok(());
        }
        let at = now_iso();
        let message = message.map(|text| (text, at.as_str()));
        operator::decline(&mut open.flow, &args.node, message)?;
        open.tell("handoff.declined", [("nodeId", json!(args.node))]);
        Ok::<_, Failure>(())
    })?;
    told(&files, &args.of.common, "declined", Some(&args.node), screen)
}

pub fn improve(args: &ImproveArgs, screen: &mut Screen) -> Result<u8, Failure> {
    let (files, mode) = (super::steered(&args.of)?, ImprovementMode::of(&args.mode));
    files.update(|open| {
        improvement::choose(&mut open.flow, mode)?;
        if let Some(mode) = mode {
            let plan = Plan::of(&open.graph, mode).map_err(Denied::NoPlan)?;
            // The plan is written first, so that a recorded choice always has its plan.
            files.write_plan(&open.flow, &plan, mode).map_err(StoreError::from)?;
        }
        open.tell("improvement.chosen", [("mode", json!(args.mode))]);
        tell_completed(open);
        Ok::<_, Failure>(())
    })?;
    told(&files, &args.of.common, &format!("improvement: {}", args.mode), None, screen)
}

pub fn feedback(args: &FeedbackArgs, screen: &mut Screen) -> Result<u8, Failure> {
    let files = super::steered(&args.of)?;
    let decision = if args.decision == "grant" { Feedback::Granted } else { Feedback::Denied };
    files.update(|open| {
        improvement::decide(&mut open.flow, decision)?;
        open.tell("feedback.decided", [("decision", json!(args.decision))]);
        tell_completed(open);
        Ok::<_, Failure>(())
    })?;
    let word = if decision == Feedback::Granted { "granted" } else { "denied" };
    told(&files, &args.of.common, &format!("feedback: {word}"), None, screen)
}

fn tell_completed(open: &mut Open) {
    if open.flow.status() == "completed" {
        open.tell("flow.completed", []);
    }
}

pub fn consent(args: &ConsentArgs, screen: &mut Screen) -> Result<u8, Failure> {
    let files = super::steered(&args.of)?;
    let mode = Consent::of(&args.mode)
        .ok_or_else(|| Failure::new(RefusalKind::Invalid, format!("invalid consent mode '{}'", args.mode)))?;
    files.update(|open| {
        let mut gate = gate_of(&open.flow);
        if gate.set_mode(mode).is_none() {
            return Ok(());
        }
        consent::keep(&mut open.flow, &gate);
        if mode == Consent::FullAccess {
            super::consent::settle_all(open);
        }
        open.tell("consent.mode_changed", [("mode", json!(args.mode))]);
        Ok::<_, Failure>(())
    })?;
    told(&files, &args.of.common, &format!("consent: {}", args.mode), None, screen)
}
