//! The part of a flow's state that the scheduler reads and writes: lists and maps of the document.

use std::collections::HashSet;

use super::document::FlowRun;
use super::json::{Json, Members};

/// Status of a flow or phase whose nodes may run.
pub const RUNNING: &str = "running";

/// Reason why a node waits for a person.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The agent asked a question, or its handoff was declined.
    PromptHuman,
    /// The turn ended without a result.
    AutonomousAbort,
    /// A permission request is open.
    Consent,
    /// The permission was denied.
    ConsentDenied,
    /// The configuration of the role is not chosen.
    RoleConfiguration,
    /// A staged handoff awaits approval.
    HandoffApproval,
}

impl Reason {
    pub const ALL: [Self; 6] = [
        Self::PromptHuman,
        Self::AutonomousAbort,
        Self::Consent,
        Self::ConsentDenied,
        Self::RoleConfiguration,
        Self::HandoffApproval,
    ];

    pub fn word(self) -> &'static str {
        match self {
            Self::PromptHuman => "prompt-human",
            Self::AutonomousAbort => "autonomous-abort",
            Self::Consent => "consent",
            Self::ConsentDenied => "consent-denied",
            Self::RoleConfiguration => "role-configuration",
            Self::HandoffApproval => "handoff-approval",
        }
    }

    /// Reports whether a node with this reason accepts a text answer. Unknown reasons do, since a
    /// newer release may have added them.
    pub fn takes_text(word: &str) -> bool {
        ![Self::Consent, Self::RoleConfiguration, Self::HandoffApproval].iter().any(|reason| reason.word() == word)
    }
}

/// A node that waits for a person.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait<'a> {
    pub node: &'a str,
    pub role: &'a str,
    pub reason: &'a str,
}

impl FlowRun {
    pub fn running(&self) -> impl Iterator<Item = &str> {
        self.texts("runningNodes")
    }

    pub fn visited(&self) -> impl Iterator<Item = &str> {
        self.texts("visitedNodeIds")
    }

    pub fn completed(&self) -> impl Iterator<Item = &str> {
        self.texts("completedHandoffs")
    }

    pub fn awaiting_handoff(&self) -> impl Iterator<Item = &str> {
        self.texts("awaitingHandoff")
    }

    pub fn is_running(&self, node: &str) -> bool {
        self.running().any(|running| running == node)
    }

    /// Removes and returns the running nodes that `taken` selects, so that they can be claimed
    /// again.
    pub fn take_running(&mut self, taken: impl Fn(&str) -> bool) -> Vec<String> {
        let out: Vec<String> = self.running().filter(|node| taken(node)).map(str::to_owned).collect();
        self.drop("runningNodes", |node| taken(node));
        out
    }

    pub fn awaits_handoff(&self, node: &str) -> bool {
        self.awaiting_handoff().any(|waiting| waiting == node)
    }

    pub fn is_completed(&self, edge: &str) -> bool {
        self.completed().any(|key| key == edge)
    }

    pub fn waits(&self) -> impl Iterator<Item = Wait<'_>> {
        let members = self.object("awaitingHumanNodes").into_iter().flat_map(Members::iter);
        members.map(|(node, wait)| wait_of(node, wait))
    }

    pub fn wait(&self, node: &str) -> Option<Wait<'_>> {
        let (node, wait) = self.object("awaitingHumanNodes")?.iter().find(|(key, _)| *key == node)?;
        Some(wait_of(node, wait))
    }

    /// Returns the nodes with an undelivered answer.
    pub fn answered(&self) -> impl Iterator<Item = &str> {
        self.object("pendingHumanInputs").into_iter().flat_map(Members::keys)
    }

    /// Returns the answers that are texts, with their nodes.
    pub fn answers(&self) -> impl Iterator<Item = (&str, &str)> {
        let inputs = self.object("pendingHumanInputs").into_iter().flat_map(Members::iter);
        inputs.filter_map(|(node, input)| Some((node, input.as_object()?.text("text")?)))
    }

    /// Returns the queued handoffs: edge keys in either direction, with their artifacts.
    pub fn queued(&self) -> impl Iterator<Item = (&str, &Json)> {
        self.object("receivingHandoff").into_iter().flat_map(Members::iter)
    }

    pub fn is_queued(&self, edge: &str) -> bool {
        self.object("receivingHandoff").is_some_and(|queued| queued.has(edge))
    }

    /// Reports whether an artifact was ever handed over along any edge.
    pub fn was_used(&self, artifact: &str) -> bool {
        let edges = self.object("historyHandoff").into_iter().flat_map(Members::iter);
        edges.filter_map(|(_, list)| list.as_list()).flatten().any(|used| used.as_text() == Some(artifact))
    }

    /// Returns a member if it is an object.
    pub fn object(&self, key: &str) -> Option<&Members> {
        self.doc.get(key)?.as_object()
    }

    /// Returns the state of the improvement phase.
    pub fn phase(&self) -> Option<&Members> {
        self.object("improvementPhase")
    }

    pub fn phase_status(&self) -> Option<&str> {
        self.phase()?.text("status")
    }

    fn texts(&self, key: &str) -> impl Iterator<Item = &str> {
        self.doc.get(key).and_then(Json::as_list).unwrap_or_default().iter().filter_map(Json::as_text)
    }

    pub(super) fn set_status(&mut self, status: &str) {
        self.doc.set("status", status);
    }

    /// Adds a text to a list unless the list has it.
    pub(super) fn add(&mut self, key: &str, text: &str) {
        if !self.texts(key).any(|known| known == text) {
            self.list_mut(key).push(Json::from(text));
        }
    }

    /// Adds texts to a list unless the list has them.
    pub(super) fn add_all(&mut self, key: &str, texts: &[String]) {
        let known: HashSet<&str> = self.texts(key).collect();
        let mut met = HashSet::new();
        let new: Vec<Json> = texts
            .iter()
            .filter(|text| !known.contains(text.as_str()) && met.insert(text.as_str()))
            .map(|text| Json::from(text.as_str()))
            .collect();
        self.list_mut(key).extend(new);
    }

    pub(super) fn drop(&mut self, key: &str, gone: impl Fn(&str) -> bool) {
        self.list_mut(key).retain(|item| !item.as_text().is_some_and(&gone));
    }

    /// Returns a member as an object. A missing or other value is replaced by an empty object.
    pub(super) fn object_mut(&mut self, key: &str) -> &mut Members {
        object_in(&mut self.doc, key)
    }

    fn list_mut(&mut self, key: &str) -> &mut Vec<Json> {
        list_in(&mut self.doc, key)
    }

    /// Appends an artifact to the queue of an edge and to its history.
    pub(super) fn queue(&mut self, edge: &str, artifact: &str) {
        for key in ["receivingHandoff", "historyHandoff"] {
            let list = list_in(self.object_mut(key), edge);
            if !artifact.is_empty() && !list.iter().any(|known| known.as_text() == Some(artifact)) {
                list.push(Json::from(artifact));
            }
        }
    }

    /// Makes the node wait for a person: it is no longer running.
    pub(super) fn suspend(&mut self, node: &str, role: &str, reason: Reason) {
        self.drop("runningNodes", |running| running == node);
        let wait = [("role", Json::from(role)), ("reason", Json::from(reason.word()))];
        self.object_mut("awaitingHumanNodes").set(node, wait);
        self.set_status(RUNNING);
    }

    /// Removes the node from all lists of running and waiting nodes.
    pub(super) fn release(&mut self, node: &str) {
        self.drop("runningNodes", |running| running == node);
        self.drop("awaitingHandoff", |waiting| waiting == node);
        self.object_mut("awaitingHumanNodes").remove(node);
        self.forget_approval(node);
    }

    pub(super) fn forget_approval(&mut self, node: &str) {
        if let Some(staged) = self.doc.get_mut("pendingHandoffApprovals").and_then(Json::as_object_mut) {
            staged.remove(node);
        }
    }
}

fn wait_of<'a>(node: &'a str, wait: &'a Json) -> Wait<'a> {
    let text = |key| wait.as_object().and_then(|wait| wait.text(key)).unwrap_or_default();
    Wait { node, role: text("role"), reason: text("reason") }
}

/// Returns a member as an object. A missing or other value is replaced by an empty object.
pub(super) fn object_in<'a>(members: &'a mut Members, key: &str) -> &'a mut Members {
    if members.get(key).and_then(Json::as_object).is_none() {
        members.set(key, Json::object());
    }
    members.get_mut(key).and_then(Json::as_object_mut).expect("was just made an object")
}

/// Returns a member as a list. A missing or other value is replaced by an empty list.
pub(super) fn list_in<'a>(members: &'a mut Members, key: &str) -> &'a mut Vec<Json> {
    if members.get(key).and_then(Json::as_list).is_none() {
        members.set(key, Json::List(Vec::new()));
    }
    members.get_mut(key).and_then(Json::as_list_mut).expect("was just made a list")
}
