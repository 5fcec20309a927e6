//! One step of an active flow: ended turns are settled, and runnable nodes are claimed, each with a new turn for which
//! a worker is started.
//!
//! The step is one change of the flow. The orders of turns are written before it: an interrupted step leaves orders
//! that nothing refers to, and later ones overwrite them.

use std::collections::BTreeMap;

use serde_json::json;
use swarm_actors::flow::rules::consent::{self, Answer, Request, Wish};
use swarm_actors::flow::rules::document::FlowRun;
use swarm_actors::flow::rules::entry::{Conversation, Entry};
use swarm_actors::flow::rules::improvement::{self, Begun, ResumePath};
use swarm_actors::flow::rules::names::{RoleId, edge_key, split_edge_key};
use swarm_actors::flow::rules::operator;
use swarm_actors::flow::rules::plan::{Plan, PlanEntry};
use swarm_actors::flow::rules::schedule::claim;
use swarm_actors::flow::rules::state::Reason;
use swarm_model::flow::{Ended, How, News, Standing, Turn, worker_name};
use swarm_model::{FlowPlace, Reason as Why};

use super::prompt::{Facts, Said};
use super::sidecar::Step;
use super::store::{FlowFiles, Open, StoreError};
use super::turns::{self, Order};
use swarm_sys::clock::now_iso;

/// The flow to advance.
pub struct Stage<'a> {
    pub files: &'a FlowFiles,
    pub place: &'a FlowPlace,
    /// Maximum number of repairs of a turn, for the roles whose turns ended.
    pub repairs: &'a BTreeMap<String, u32>,
}

impl Stage<'_> {
    /// Settles the ended turns and, with `claims`, claims what is runnable. Returns the resulting standing of the flow.
    ///
    /// # Errors
    /// Fails if the flow cannot be opened or written; nothing has changed then.
    pub fn advance(&self, ended: &[Ended], claims: bool) -> Result<Standing, StoreError> {
        self.files.update(|open| {
            // A flow that an earlier version started.
            if open.sidecar.start.is_none() {
                open.sidecar.start = Some(open.graph.start());
            }
            for one in ended {
                self.settle(open, one)?;
            }
            if claims {
                self.claim(open)?;
            }
            Ok(standing(open))
        })
    }

    /// Settles a turn whose worker has ended. Most turns have recorded their result before.
    fn settle(&self, open: &mut Open, ended: &Ended) -> Result<(), StoreError> {
        let turn = &ended.turn;
        if !open.sidecar.is_at(turn) {
            return Ok(());
        }
        if !is_open(&open.flow, turn) {
            release(open, turn);
            return Ok(());
        }
        let cause = match &ended.how {
            How::NotStarted(cause) => return abort(open, turn, &format!("cannot start the turn: {cause}")),
            How::Exit(Some(exit)) if exit.interrupted => {
                "the turn was interrupted by a signal, such as that of a shutdown"
            }
            How::Exit(Some(exit)) => match exit.reason {
                Why::Stopped | Why::Closed | Why::Abandoned => return abort(open, turn, "the turn was stopped"),
                Why::Timeout => "the turn timed out",
                Why::OutOfMemory => "the turn ran out of memory",
                Why::Output => "the turn exceeded its output limit",
                Why::Exited => "the turn ended unexpectedly",
            },
            How::Exit(None) => "the turn ended unexpectedly, with an unknown result",
        };
        deny(open, turn);
        if !is_open(&open.flow, turn) {
            release(open, turn);
            return Ok(());
        }
        self.retry(open, turn, cause)
    }

    /// Starts the turn again under the next number, or aborts it if its repairs are used up.
    fn retry(&self, open: &mut Open, turn: &Turn, cause: &str) -> Result<(), StoreError> {
        let repairs = open.sidecar.repairs.entry(turn.role.clone()).or_default();
        let most = self.repairs.get(&turn.role).copied().unwrap_or_default();
        // If its agent has left a handoff, the turn only has to apply it, which is always allowed.
        let dir = turns::dir(self.files.dir(), turn);
        if *repairs >= most && !turns::has_handoff(&dir) {
            return abort(open, turn, cause);
        }
        *repairs += 1;
        let mut order = match turns::read(&dir) {
            Ok(order) => order,
            Err(error) => return abort(open, turn, &format!("{cause}, and its order cannot be read: {error}")),
        };
        let side = open.sidecar.role(&turn.role);
        side.turn += 1;
        order.turn.number = side.turn;
        turns::remove_handoff(&turns::dir(self.files.dir(), &order.turn))?;
        order.was_told |= turns::was_told(self.files.dir(), turn);
        order.prompt = format!("Your turn was interrupted ({cause}). Continue where you stopped.\n\n{}", order.whole);
        turns::write(self.files.dir(), &order)?;
        // A handoff that the agent left and that was not applied is passed to the new turn.
        turns::copy_handoff(self.files.dir(), turn, &order.turn)?;
        turns::tidy(self.files.dir(), turn);
        let members = [("nodeId", json!(turn.node)), ("role", json!(turn.role)), ("summary", json!(cause))];
        open.tell("turn.again", members);
        Ok(())
    }

    fn claim(&self, open: &mut Open) -> Result<(), StoreError> {
        // An interrupted claim may have left a turn whose order or node was not written.
        let lost: Vec<Turn> = open
            .sidecar
            .turns()
            .filter(|turn| {
                let entered = |node: &String| open.flow.visited().any(|visited| visited == node);
                let begun = turn.node.as_ref().is_none_or(entered) && turns::has_order(self.files.dir(), turn);
                !begun || !is_open(&open.flow, turn)
            })
            .collect();
        lost.iter().for_each(|turn| release(open, turn));
        match ResumePath::of(&open.flow) {
            ResumePath::FlowRunner => self.claim_nodes(open),
            ResumePath::Improvement => self.claim_roles(open),
            ResumePath::None => Ok(()),
        }
    }

    fn claim_nodes(&self, open: &mut Open) -> Result<(), StoreError> {
        let at_work: Vec<String> = open.sidecar.turns().filter_map(|turn| turn.node).collect();
        let initial = open.flow.take_running(|node| !at_work.iter().any(|known| known == node));
        if !initial.is_empty() {
            // The agents that asked for permissions are gone, so their requests are denied.
            deny_all_but(open, &at_work);
        }
        // Prompts describe the state before the claim.
        let before = open.flow.clone();
        for entry in claim(&mut open.flow, &open.graph, &initial, |_| true) {
            self.begin_node(open, &before, &entry)?;
        }
        Ok(())
    }

    fn begin_node(&self, open: &mut Open, before: &FlowRun, entry: &Entry) -> Result<(), StoreError> {
        let side = open.sidecar.role(&entry.role).clone();
        let conversation = side.about.as_ref().map(|node| Conversation {
            node: node.clone(),
            open: true,
            spoke_last: side.session.is_some(),
        });
        // Earlier turns of the same visit took the handoffs, and their agents may not have seen them.
        let last = Turn { role: RoleId::key(&entry.role), number: side.turn, node: Some(entry.node.clone()) };
        let about = side.about.as_deref() == Some(&entry.node);
        let earlier =
            turns::read(&turns::dir(self.files.dir(), &last)).ok().filter(|order| about && order.turn == last);
        let earlier = earlier.unwrap_or_default();
        let about = about && (earlier.was_told || turns::was_told(self.files.dir(), &last));
        let said = self.facts(open, before).of_node(entry, side.session.is_some(), about, &earlier.inbox);
        let commits = entry.taken.iter().filter_map(|taken| {
            let key = edge_key(&taken.from, &entry.node);
            Some((taken.from.clone(), open.sidecar.commits.get(&key)?.clone()))
        });
        let mut commits: BTreeMap<String, String> = commits.collect();
        if entry.taken.is_empty() {
            // Commits of handoffs taken earlier: merging one again changes nothing.
            let into = open.sidecar.commits.iter().filter_map(|(key, commit)| {
                let (from, to) = split_edge_key(key)?;
                (to == entry.node).then(|| (from.to_owned(), commit.clone()))
            });
            commits.extend(into);
        }
        let node = open.graph.node(&entry.node).map(|node| node.work.clone()).unwrap_or_default();
        let order = Order { work: node, commits, was_told: about, ..Order::default() };
        let goes_on = entry.interrupted && entry.answer.is_none() && !entry.by_handoff() && earlier.turn == last;
        // An interrupted turn gets the same prompt again, and its unapplied handoff.
        let said = match goes_on {
            true => Said { whole: earlier.whole, answer: earlier.answer, ..said },
            false => said,
        };
        let begun = self.begin(open, &entry.role, Step::Node(entry.node.clone()), said, order)?;
        if goes_on {
            turns::copy_handoff(self.files.dir(), &last, &begun)?;
        }
        open.sidecar.words.remove(&entry.node);
        // A script without approval is proposed again if the node is still due.
        if open.sidecar.scripts.get(&entry.node).is_some_and(|script| !script.agreed) {
            open.sidecar.scripts.remove(&entry.node);
        }
        for event in entry.events(conversation.as_ref()) {
            open.tell(event.kind(), [("nodeId", json!(entry.node)), ("role", json!(entry.role))]);
        }
        Ok(())
    }

    fn claim_roles(&self, open: &mut Open) -> Result<(), StoreError> {
        let mode = improvement::mode(&open.flow);
        let Some(Ok(plan)) = mode.map(|mode| Plan::of(&open.graph, mode)) else {
            return Err(StoreError::System(std::io::Error::other(
                "the workflow does not have an improvement plan any more",
            )));
        };
        improvement::settle(&mut open.flow, &plan);
        // The roles of one wave must end before the next wave starts.
        if open.sidecar.turns().next().is_some() {
            return Ok(());
        }
        for entry in improvement::runnable(&open.flow, &plan) {
            self.begin_role(open, entry)?;
        }
        Ok(())
    }

    fn begin_role(&self, open: &mut Open, entry: &PlanEntry) -> Result<(), StoreError> {
        let begun = improvement::begin(&mut open.flow, &entry.role);
        let knows = open.sidecar.role(&entry.role).session.is_some();
        let said = self.facts(open, &open.flow).of_role(entry, &begun, knows);
        self.begin(open, &entry.role, Step::Improvement, said, Order::default())?;
        open.sidecar.words.remove(&entry.role);
        let kind = if matches!(begun, Begun::Answered(_)) { "human.resumed" } else { "role.active" };
        open.tell(kind, [("role", json!(entry.role))]);
        Ok(())
    }

    fn facts<'a>(&'a self, open: &'a Open, flow: &'a FlowRun) -> Facts<'a> {
        Facts { files: self.files, flow, graph: &open.graph, sidecar: &open.sidecar }
    }

    fn begin(&self, open: &mut Open, role: &str, step: Step, said: Said, order: Order) -> Result<Turn, StoreError> {
        let role = RoleId::key(role);
        let side = open.sidecar.role(&role);
        side.worker = worker_name(self.place, &role);
        side.turn += 1;
        if let Step::Node(node) = &step {
            side.about = Some(node.clone());
        }
        side.at_work = Some(step);
        let turn = open.sidecar.turns().find(|turn| turn.role == role).expect("its role is at work");
        open.sidecar.repairs.remove(&role);
        let Said { prompt, whole, inbox, answer } = said;
        let place = self.place.clone();
        // An interrupted claim with this number may have left a handoff.
        turns::remove_handoff(&turns::dir(self.files.dir(), &turn))?;
        turns::write(self.files.dir(), &Order { place, turn: turn.clone(), prompt, whole, inbox, answer, ..order })?;
        Ok(turn)
    }
}

/// Reports whether the flow still expects a result of the turn.
pub fn is_open(flow: &FlowRun, turn: &Turn) -> bool {
    match &turn.node {
        Some(node) => {
            let asks = |reason: &str| reason == Reason::Consent.word();
            flow.is_running(node) || flow.wait(node).is_some_and(|wait| asks(wait.reason))
        }
        None => {
            let waits = improvement::wait_reason(flow, &turn.role);
            improvement::is_running(flow)
                && improvement::is_at_work(flow, &turn.role)
                && waits.is_none_or(|reason| reason == Reason::Consent.word())
        }
    }
}

/// Ends a turn, with or without a result: its role can start another one.
pub fn release(open: &mut Open, turn: &Turn) {
    let side = open.sidecar.role(&turn.role);
    side.at_work = None;
    side.ended_at = Some(now_iso());
    turns::tidy(open.dir(), turn);
    open.sidecar.repairs.remove(&turn.role);
    open.sidecar.requests.retain(|_, asked| asked.role != turn.role);
}

/// Ends a turn without a result; the node or role then waits for a person, who is shown the cause.
///
/// # Errors
/// Never fails; the result type fits the callers.
pub fn abort(open: &mut Open, turn: &Turn, cause: &str) -> Result<(), StoreError> {
    match &turn.node {
        // Fails only if the node has got a result meanwhile.
        Some(node) => drop(operator::abort(&mut open.flow, &open.graph, node)),
        None => improvement::abort(&mut open.flow, &turn.role),
    }
    let who = turn.node.as_ref().unwrap_or(&turn.role);
    open.sidecar.words.insert(who.clone(), cause.to_owned());
    release(open, turn);
    let reason = Reason::AutonomousAbort.word();
    open.tell(
        "human.awaiting_input",
        [("nodeId", json!(turn.node)), ("role", json!(turn.role)), ("reason", json!(reason)), ("text", json!(cause))],
    );
    Ok(())
}

/// Withdraws the permission request of a turn whose agent is gone, so that its node can be started again.
pub fn withdraw_request(open: &mut Open, turn: &Turn) {
    let node = turn.node.clone().unwrap_or_default();
    let wish = Wish::Command { command: String::new() };
    consent::settle(&mut open.flow, &Request { node, role: turn.role.clone(), wish }, Answer::AllowOnce);
}

/// Denies the permission request of a turn whose agent is gone.
fn deny(open: &mut Open, turn: &Turn) {
    let node = turn.node.clone().unwrap_or_default();
    let wish = Wish::Command { command: String::new() };
    consent::settle(&mut open.flow, &Request { node, role: turn.role.clone(), wish }, Answer::Deny);
}

fn deny_all_but(open: &mut Open, at_work: &[String]) {
    open.sidecar.requests.retain(|_, asked| asked.node.as_ref().is_some_and(|node| at_work.contains(node)));
    let waits = open.flow.waits().filter(|wait| wait.reason == Reason::Consent.word());
    let stale: Vec<Turn> = waits
        .filter(|wait| !at_work.iter().any(|known| known == wait.node))
        .map(|wait| Turn { role: wait.role.to_owned(), number: 0, node: Some(wait.node.to_owned()) })
        .collect();
    stale.iter().for_each(|turn| deny(open, turn));
}

/// Returns the present standing of the flow.
pub fn standing(open: &Open) -> Standing {
    let flow = &open.flow;
    let text = |who: &str| open.sidecar.words.get(who).cloned().unwrap_or_default();
    let news = |who: &str, role: &str, reason: &str| News {
        who: who.to_owned(),
        role: role.to_owned(),
        reason: reason.to_owned(),
        text: text(who),
    };
    let answered: Vec<&str> = flow.answered().collect();
    let mut waits: Vec<News> = flow
        .waits()
        .filter(|wait| !answered.contains(&wait.node))
        .map(|wait| news(wait.node, wait.role, wait.reason))
        .collect();
    waits.extend(improvement::waits(flow).map(|(role, reason)| news(role, role, reason)));
    if matches!(flow.status(), "awaiting_improvement_choice" | "awaiting_feedback_consent") {
        waits.push(news("", "", flow.status()));
    }
    let roles = |reason: Reason| -> Vec<String> {
        let of_nodes = flow.waits().filter(|wait| wait.reason == reason.word()).map(|wait| RoleId::key(wait.role));
        let of_roles = improvement::waits(flow).filter(|(_, known)| *known == reason.word());
        of_nodes.chain(of_roles.map(|(role, _)| role.to_owned())).collect()
    };
    Standing {
        denied: roles(Reason::ConsentDenied),
        asking: roles(Reason::Consent),
        turns: open.sidecar.turns().collect(),
        over: flow.status() == "completed",
        waits,
    }
}
