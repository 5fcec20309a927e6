//! Input of a node's turn when it starts, as facts. The prompt is worded elsewhere.

use super::graph::Node;

/// A claimed node and the handoffs that were delivered to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    pub node: String,
    pub role: String,
    /// First visit of the node: the turn gets its contract.
    pub first_visit: bool,
    /// Whether a turn of this node was in progress when the flow was last stopped.
    pub interrupted: bool,
    /// Answer of a person. It is all that the turn gets; queued handoffs stay queued.
    pub answer: Option<String>,
    /// Contract of the node, on the first visit only.
    pub contract: Option<Contract>,
    /// Delivered handoffs, no longer queued.
    pub taken: Vec<Taken>,
    /// Handoffs that the node sent and must send again, because their receiver sent work back.
    pub superseded: Vec<Superseded>,
    /// Predecessors that have not handed over.
    pub not_received: Vec<String>,
    /// Successors that the node has handed over to.
    pub sent: Vec<String>,
    /// Successors that the node still owes a handoff.
    pub not_sent: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contract {
    pub work: Vec<String>,
    pub required_readings: Vec<String>,
    /// Whether forward handoffs need approval by a person.
    pub human_colab: bool,
    /// Whether the work mentions `workflow.yaml`, so that the prompt has to explain its format.
    pub mentions_workflow: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    pub from: String,
    pub side: Side,
    pub artifacts: Vec<String>,
}

/// Direction of a neighbor in the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Predecessor,
    Successor,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superseded {
    pub to: String,
    pub artifacts: Vec<String>,
}

/// State of a role's conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conversation {
    /// Node that the last turn was for.
    pub node: String,
    /// Whether that node has not handed over since.
    pub open: bool,
    /// Whether the last message is the agent's.
    pub spoke_last: bool,
}

/// Event that the start of a turn writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryEvent {
    HumanResumed,
    RoleActive,
    RoleResumed,
}

impl EntryEvent {
    pub fn kind(self) -> &'static str {
        match self {
            Self::HumanResumed => "human.resumed",
            Self::RoleActive => "role.active",
            Self::RoleResumed => "role.resumed",
        }
    }
}

impl Contract {
    pub fn of(node: &Node) -> Self {
        Self {
            work: node.work.clone(),
            required_readings: node.required_readings.clone(),
            human_colab: node.human_colab,
            mentions_workflow: node.work.iter().any(|line| line.to_lowercase().contains("workflow.yaml")),
        }
    }
}

impl Entry {
    /// Reports whether the turn was caused by a handoff, forward or backward.
    pub fn by_handoff(&self) -> bool {
        self.answer.is_none() && !(self.taken.is_empty() && self.superseded.is_empty())
    }

    /// Reports whether the turn continues its conversation without new input.
    pub fn continues(&self, conversation: Option<&Conversation>) -> bool {
        self.answer.is_none() && !self.by_handoff() && self.is_open(conversation)
    }

    /// Returns the events of this entry, given the state of the role's conversation.
    pub fn events(&self, conversation: Option<&Conversation>) -> Vec<EntryEvent> {
        let mut events = Vec::new();
        if self.answer.is_some() {
            events.push(EntryEvent::HumanResumed);
        }
        let open = self.is_open(conversation);
        if self.first_visit || !open || self.by_handoff() {
            events.push(EntryEvent::RoleActive);
        }
        if open && self.answer.is_none() && !self.by_handoff() && conversation.is_some_and(|said| said.spoke_last) {
            events.push(EntryEvent::RoleResumed);
        }
        events
    }

    fn is_open(&self, conversation: Option<&Conversation>) -> bool {
        conversation.is_some_and(|conversation| conversation.open && conversation.node == self.node)
    }
}
