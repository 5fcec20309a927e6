//! What a command asks of flows: bodies of the API under `/v1/flow`.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::request::Caller;

/// Which flow: all three are what its file says.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FlowPlace {
    /// The folder that holds the projects, absolute and resolved.
    pub root: String,
    pub project: String,
    pub flow: String,
}

impl fmt::Display for FlowPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.project, self.flow)
    }
}

/// `POST /v1/flow`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FlowRequest {
    pub caller: Caller,
    pub place: FlowPlace,
    #[serde(flatten)]
    pub order: FlowOrder,
}

/// What is to be done with a flow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "order")]
pub enum FlowOrder {
    /// Work on it, from the beginning or from where it was left.
    Run(FlowRules),
    /// End the turn at this node, or all of them and work on it no longer.
    Stop { node: Option<String> },
    /// Look at its file again: a person has said something.
    Wake,
    /// Answered when nothing of it is at work.
    Rest,
}

/// What was typed when it was begun, and holds when it goes on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FlowRules {
    /// Turns that are at work at the same time; all that can be where nothing is said.
    pub max: Option<usize>,
    /// Begin what can be begun now, and nothing after it.
    pub once: bool,
}

/// What became of such a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowLine {
    pub place: FlowPlace,
    /// `running`, `stopping`, `stopped` or `woken`; of one that rests `waiting` or `over`.
    pub done: String,
}
