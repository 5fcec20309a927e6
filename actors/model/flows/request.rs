//! Requests about flows: bodies of the API under `/v1/flow`.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::request::Caller;

/// Identity of a flow, as its `flow.json` states it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FlowPlace {
    /// Folder that holds the projects, absolute and resolved.
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

/// Order for a flow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "order")]
pub enum FlowOrder {
    /// Start or resume the flow.
    Run(FlowRules),
    /// End the turn at `node`; without a node, end all turns and leave the flow.
    Stop { node: Option<String> },
    /// Read the files again, because a person changed them.
    Wake,
    /// Answered once no turn of the flow is running.
    Rest,
}

/// Options of `flow run`. They still hold when the flow is resumed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FlowRules {
    /// Maximum number of concurrent turns. `None` is unlimited.
    pub max: Option<usize>,
    /// Start what can start now, and nothing after it.
    pub once: bool,
}

/// Result of such a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowLine {
    pub place: FlowPlace,
    /// `running`, `stopping`, `stopped` or `woken`; for `Rest`: `waiting` or `over`.
    pub done: String,
}
