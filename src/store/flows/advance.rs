//! One step of a flow that is run: what ended is brought into its files, what may be
//! worked on is claimed, each with a turn that its worker is started for.
//!
//! All of it is one change of the flow. The orders of turns are written before: one that
//! is cut off leaves orders that nobody names, and those are written over.

use std::collections::BTreeMap;

use serde_json::json;
use swarm_actors::flow::consent::{self, Answer, Request, Wish};
use swarm_actors::flow::document::FlowRun;
use swarm_actors::flow::entry::{Conversation, Entry};
use swarm_actors::flow::improvement::{self, Begun, ResumePath};
use swarm_actors::flow::names::{RoleId, edge_key, split_edge_key};
use swarm_actors::flow::operator;
use swarm_actors::flow::plan::{Plan, PlanEntry};
use swarm_actors::flow::schedule::claim;
use swarm_actors::flow::state::Reason;
use swarm_model::flows::{Ended, How, News, Standing, Turn, worker_name};
use swarm_model::{FlowPlace, Reason as Why};

use super::prompt::{Facts, Said};
use super::sidecar::Step;
use super::store::{FlowFiles, Open, StoreError};
use super::turns::{self, Order};
use swarm_sys::clock::now_iso;

/// The flow that this is about, and who plays in it.
pub struct Stage<'a> {
    pub files: &'a FlowFiles,
    pub place: &'a FlowPlace,
    /// How often a turn may be sent back, by the roles whose turns ended.
    pub repairs: &'a BTreeMap<String, u32>,
}

impl Stage<'_> {
    /// # Errors
    /// Why the flow cannot be opened or written; nothing has changed then.
    pub fn advance(&self, ended: &[Ended], claims: bool) -> Result<Standing, StoreError> {
        self.files.update(|open| {
            for one in ended {
                self.settle(open, one)?;
            }
            if claims {
                self.claim(open)?;
            }
            Ok(standing(open))
        })
    }

    /// A turn whose worker is gone. Most have brought their result into the file before.
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
            How::NotStarted(cause) => return abort(open, turn, &format!("it could not be started: {cause}")),
            How::Exit(Some(exit)) => match exit.reason {
                Why::Stopped | Why::Closed | Why::Abandoned => return abort(open, turn, "the turn was stopped"),
                Why::Timeout => "its time was up",
                Why::OutOfMemory => "it ran out of memory",
                Why::Output => "it wrote more than it may",
                Why::Exited => "the turn ended unexpectedly",
            },
            How::Exit(None) => "the turn ended unexpectedly, with an unknown result",
        };
        deny(open, turn);
        if !is_open(&open.flow, turn) {
            release(open, turn);
            return Ok(());
        }
        self.again(open, turn, cause)
    }

    /// The same once more, unless it was often enough.
    fn again(&self, open: &mut Open, turn: &Turn, cause: &str) -> Result<(), StoreError> {
        let repairs = open.sidecar.repairs.entry(turn.role.clone()).or_default();
        let most = self.repairs.get(&turn.role).copied().unwrap_or_default();
        // One that has said what comes next only has to be heard.
        if *repairs >= most && !turns::has_word(self.files.dir(), turn) {
            return abort(open, turn, cause);
        }
        *repairs += 1;
        let mut order = turns::read(&turns::dir(self.files.dir(), turn))?;
        let side = open.sidecar.role(&turn.role);
        side.turn += 1;
        order.turn.number = side.turn;
        turns::forget_word(self.files.dir(), &order.turn)?;
        order.was_told |= turns::was_told(self.files.dir(), turn);
        order.prompt = format!("Your turn was cut off ({cause}). Go on where you were.\n\n{}", order.whole);
        turns::write(self.files.dir(), &order)?;
        // What it had handed over, and could not bring in any more.
        turns::take_along(self.files.dir(), turn, &order.turn)?;
        let members = [("nodeId", json!(turn.node)), ("role", json!(turn.role)), ("summary", json!(cause))];
        open.tell("turn.again", members);
        Ok(())
    }

    fn claim(&self, open: &mut Open) -> Result<(), StoreError> {
        // A claim that was cut off may have left a name for what is not there.
        let lost: Vec<Turn> = open
            .sidecar
            .turns()
            .filter(|turn| {
                let entered = |node: &String| open.flow.visited().any(|visited| visited == node);
                let begun = turn.node.as_ref().is_none_or(entered) && turns::is_there(self.files.dir(), turn);
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
            // Whoever was asked is gone, and so is who asked.
            deny_all_but(open, &at_work);
        }
        // What is said to a node is made of the state before it was claimed.
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
        // Earlier turns of the same visit took what was handed over, and may not have been
        // told of it.
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
            // Of what was taken before: what is there already is merged by nothing.
            let into = open.sidecar.commits.iter().filter_map(|(key, commit)| {
                let (from, to) = split_edge_key(key)?;
                (to == entry.node).then(|| (from.to_owned(), commit.clone()))
            });
            commits.extend(into);
        }
        let node = open.graph.node(&entry.node).map(|node| node.work.clone()).unwrap_or_default();
        let order = Order { work: node, commits, was_told: about, ..Order::default() };
        let goes_on = entry.interrupted && entry.answer.is_none() && !entry.by_handoff() && earlier.turn == last;
        // It was left in the middle: it is told the same, and has what it had.
        let said = match goes_on {
            true => Said { whole: earlier.whole, answer: earlier.answer, ..said },
            false => said,
        };
        let begun = self.begin(open, &entry.role, Step::Node(entry.node.clone()), said, order)?;
        if goes_on {
            turns::take_along(self.files.dir(), &last, &begun)?;
        }
        open.sidecar.words.remove(&entry.node);
        for event in entry.events(conversation.as_ref()) {
            open.tell(event.kind(), [("nodeId", json!(entry.node)), ("role", json!(entry.role))]);
        }
        Ok(())
    }

    fn claim_roles(&self, open: &mut Open) -> Result<(), StoreError> {
        let mode = improvement::mode(&open.flow);
        let Some(Ok(plan)) = mode.map(|mode| Plan::of(&open.graph, mode)) else {
            return Err(StoreError::System(std::io::Error::other(
                "the workflow has no plan for looking back any more",
            )));
        };
        improvement::settle(&mut open.flow, &plan);
        // A wave ends before the next one begins.
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
        self.begin(open, &entry.role, Step::Back, said, Order::default())?;
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
        let turn = open.sidecar.turns().find(|turn| turn.role == role).expect("it is at work by now");
        open.sidecar.repairs.remove(&role);
        let Said { prompt, whole, inbox, answer } = said;
        let place = self.place.clone();
        // Of a claim that was cut off under this number.
        turns::forget_word(self.files.dir(), &turn)?;
        turns::write(self.files.dir(), &Order { place, turn: turn.clone(), prompt, whole, inbox, answer, ..order })?;
        Ok(turn)
    }
}

/// Whether it has not come to anything yet.
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

/// It has come to something, or never will.
pub fn release(open: &mut Open, turn: &Turn) {
    let side = open.sidecar.role(&turn.role);
    side.at_work = None;
    side.ended_at = Some(now_iso());
    turns::tidy(open.dir(), turn);
    open.sidecar.repairs.remove(&turn.role);
    open.sidecar.requests.retain(|_, asked| asked.role != turn.role);
}

/// Its turn ended without a result; a person is told why.
///
/// # Errors
/// None of its own.
pub fn abort(open: &mut Open, turn: &Turn, cause: &str) -> Result<(), StoreError> {
    match &turn.node {
        // A node that is not at work has come to something meanwhile.
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

/// Whoever asked is gone, and its node is begun anew.
pub fn ask_no_more(open: &mut Open, turn: &Turn) {
    let node = turn.node.clone().unwrap_or_default();
    let wish = Wish::Command { command: String::new() };
    consent::settle(&mut open.flow, &Request { node, role: turn.role.clone(), wish }, Answer::AllowOnce);
}

/// Whoever asked is gone: its question was answered with no.
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

/// What the files say now.
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
