//! A turn, and what is told of turns.

use serde::{Deserialize, Serialize};

use super::FlowRules;
use crate::{Caller, ExitRecord};

/// One turn of a role: what a worker is started for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Turn {
    /// The role instance; it has one turn at a time.
    pub role: String,
    /// Of all turns of this role in this flow, from 1.
    pub number: u64,
    /// The node that it is about; none while the role looks back.
    pub node: Option<String>,
}

/// A turn whose worker is gone.
#[derive(Clone, Debug, PartialEq)]
pub struct Ended {
    pub turn: Turn,
    pub how: How,
}

#[derive(Clone, Debug, PartialEq)]
pub enum How {
    /// What is on record of it; none where nothing is.
    Exit(Option<ExitRecord>),
    NotStarted(String),
}

/// What a flow's files say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// The turns that are at work, whether their workers run or not.
    pub turns: Vec<Turn>,
    /// Roles whose agent was told no by a person, and is to do nothing more.
    pub denied: Vec<String>,
    /// Roles whose agent waits until a person allows what it asks.
    pub asking: Vec<String>,
    /// Nothing will follow.
    pub over: bool,
    /// Those that wait for a person, and why.
    pub waits: Vec<News>,
}

/// Somebody waits for a person.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct News {
    /// The node, or the role that looks back; empty where the flow itself waits.
    pub who: String,
    pub role: String,
    /// In the word of the file.
    pub reason: String,
    /// What it asks, or why its turn ended.
    pub text: String,
}

/// A flow that is run now, as a person asked for it.
#[derive(Clone, Debug)]
pub struct Begin {
    pub rules: FlowRules,
    pub caller: Caller,
}
