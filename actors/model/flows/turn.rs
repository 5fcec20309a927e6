//! Turns of a flow, and reports about them.

use serde::{Deserialize, Serialize};

use super::FlowRules;
use crate::{Caller, ExitRecord};

/// Turn of a role, run by one worker.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Turn {
    /// Role instance. It has one turn at a time.
    pub role: String,
    /// Number of the turn among all turns of this role in this flow, from 1.
    pub number: u64,
    /// Node of the turn. `None` in the improvement phase.
    pub node: Option<String>,
}

/// A turn whose worker has ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Ended {
    pub turn: Turn,
    pub how: How,
}

#[derive(Clone, Debug, PartialEq)]
pub enum How {
    /// Exit record of the worker. `None` if there is none.
    Exit(Option<ExitRecord>),
    NotStarted(String),
}

/// State of a flow, as its files have it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// Running turns, whether or not their workers run.
    pub turns: Vec<Turn>,
    /// Roles whose agent was denied a permission and must end.
    pub denied: Vec<String>,
    /// Roles whose agent waits for a permission.
    pub asking: Vec<String>,
    /// Whether the flow is over.
    pub over: bool,
    /// Waits for a person.
    pub waits: Vec<News>,
}

/// Wait for a person.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct News {
    /// Node, or role in the improvement phase. Empty if the flow itself waits.
    pub who: String,
    pub role: String,
    /// Reason as `flow.json` has it.
    pub reason: String,
    /// Question of the agent, or the reason why its turn ended.
    pub text: String,
}

/// Start of a flow, as a person asked for it.
#[derive(Clone, Debug)]
pub struct Begin {
    pub rules: FlowRules,
    pub caller: Caller,
}
