//! What a node is told when its turn begins, as facts: the words are somebody else's.

use super::graph::Node;

/// One node that was claimed, and what has changed hands with it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    pub node: String,
    pub role: String,
    /// Nobody was at this node before: it is told what it is there for.
    pub first_visit: bool,
    /// A turn of it was under way when its flow was last left.
    pub interrupted: bool,
    /// A person's answer. It is all that the turn is told; what is queued stays queued.
    pub answer: Option<String>,
    /// What it is there for; on the first visit only.
    pub contract: Option<Contract>,
    /// What was queued for it and is now taken.
    pub taken: Vec<Taken>,
    /// What it had sent and has to send anew, since its receiver asked for something else.
    pub superseded: Vec<Superseded>,
    /// Predecessors that have not handed over.
    pub not_received: Vec<String>,
    /// Successors that it has handed over to, and those that it owes.
    pub sent: Vec<String>,
    pub not_sent: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contract {
    pub work: Vec<String>,
    pub required_readings: Vec<String>,
    /// Its forward handoffs need a person's yes.
    pub human_colab: bool,
    /// It is to write the workflow, and so has to know what one looks like.
    pub mentions_workflow: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    pub from: String,
    pub side: Side,
    pub artifacts: Vec<String>,
}

/// On which side of a node another one is.
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

/// Where the conversation of a role is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conversation {
    /// The node that it was last about.
    pub node: String,
    /// It has not handed over since.
    pub open: bool,
    /// Its last word is the agent's own.
    pub spoke_last: bool,
}

/// What beginning a turn is called in the list of events.
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
    /// Something was handed to it, or back.
    pub fn by_handoff(&self) -> bool {
        self.answer.is_none() && !(self.taken.is_empty() && self.superseded.is_empty())
    }

    /// It goes on where its conversation stopped, and nothing new is said to it.
    pub fn continues(&self, conversation: Option<&Conversation>) -> bool {
        self.answer.is_none() && !self.by_handoff() && self.is_open(conversation)
    }

    /// What happened, given where the role's conversation is.
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
