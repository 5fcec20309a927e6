//! `swarm.json`: state of a flow that only this program needs. The original program does not touch the file.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use swarm_actors::flow::rules::graph::{Graph, Start};
use swarm_actors::flow::rules::names::RoleId;
use swarm_model::flow::Turn;

use swarm_agents::Session;

/// Format version; increased if an older program must not read the file.
pub const SIDECAR_VERSION: u32 = 1;
/// Maximum size of a changed workflow that is kept, in bytes.
const LAST_BYTES_MAX: usize = 1 << 20;
/// Maximum number of paths that are named as left out of a handoff.
const LEFT_OUT_MAX: usize = 20;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sidecar {
    pub version: u32,
    /// Start point of the flow's work, and its merge target: a branch, or a commit or tag.
    pub base: Option<String>,
    /// Task given by a person when the flow was created.
    pub task: Option<String>,
    /// The rules for the owner role are not enforced.
    pub relaxed: bool,
    /// The result is added to the merge queue when the flow is completed.
    pub merge: bool,
    /// Why the result of the completed flow is in no merge queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_queued: Option<String>,
    /// Nodes whose handoffs need approval, as the workflow had them when the flow first ran; agents may edit it later.
    /// `None` if an earlier version started the flow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gates: Option<BTreeSet<String>>,
    /// The workflow when the flow first ran. What it made the `shell` agent execute needs no approval. If it required an
    /// approval, agents cannot lead around it. `None` if an earlier version started the flow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start: Option<Start>,
    /// The workflow when it was last read, if it was changed after the start. Counts while the file cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last: Option<Start>,
    /// Work that is not that of the start and that the `shell` agent is to execute, by node.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub scripts: BTreeMap<String, Script>,
    /// State of each role instance.
    pub roles: BTreeMap<String, RoleSide>,
    /// Commit that belongs to the last handoff, by edge key.
    pub commits: BTreeMap<String, String>,
    /// What the last handoff of each role left out of its commit, by role.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub left_out: BTreeMap<String, LeftOut>,
    /// Number of repairs of the present turn, by role.
    pub repairs: BTreeMap<String, u32>,
    /// Questions to a person, or causes for which a turn ended; by node, or by role in the improvement phase.
    pub words: BTreeMap<String, String>,
    /// Permission requests by number. Answered ones are kept until the agent has read the answer.
    pub requests: BTreeMap<u64, Asked>,
    /// Number of the last permission request; numbers are not reused.
    pub last_request: u64,
}

/// Changed work of a node, which the `shell` agent executes only if a person agrees.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Script {
    /// Role instance that plays the node.
    pub role: String,
    pub work: Vec<String>,
    pub agreed: bool,
}

/// Paths of a role's worktree whose changes were not handed over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    /// The first ones.
    pub paths: Vec<String>,
    pub count: usize,
}

impl LeftOut {
    /// Returns `None` if nothing was left out.
    pub fn of(mut paths: Vec<String>) -> Option<Self> {
        let count = paths.len();
        paths.truncate(LEFT_OUT_MAX);
        (count > 0).then_some(Self { paths, count })
    }

    pub fn shown(&self) -> String {
        let more = self.count.saturating_sub(self.paths.len());
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        format!("{}{more}", self.paths.join(", "))
    }
}

/// A permission request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    pub role: String,
    pub turn: u64,
    /// `None` in the improvement phase.
    pub node: Option<String>,
    /// Name of the tool, as used by the consent rules.
    pub tool: String,
    pub input: serde_json::Value,
    pub asked_at: String,
    /// `allow_once`, `allow_flow` or `deny`.
    pub answer: Option<String>,
}

/// Conversation and worktree of one role instance.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RoleSide {
    pub worker: String,
    pub worktree: Option<String>,
    /// Agent that leads the conversation.
    pub agent: Option<String>,
    /// Session with which the agent resumes the conversation.
    pub session: Option<Session>,
    /// Number of the last turn that was started.
    pub turn: u64,
    /// Step that the last turn works on; `None` once it has a result.
    pub at_work: Option<Step>,
    /// Node that the conversation is about, until the node has handed over.
    pub about: Option<String>,
    /// End of the last turn.
    pub ended_at: Option<String>,
}

/// Step that a turn works on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Step {
    Node(String),
    /// A step of the improvement phase.
    #[serde(rename = "back")]
    Improvement,
}

impl Default for Sidecar {
    fn default() -> Self {
        Self {
            version: SIDECAR_VERSION,
            base: None,
            task: None,
            relaxed: false,
            merge: false,
            not_queued: None,
            gates: None,
            start: None,
            last: None,
            scripts: BTreeMap::new(),
            roles: BTreeMap::new(),
            commits: BTreeMap::new(),
            left_out: BTreeMap::new(),
            repairs: BTreeMap::new(),
            words: BTreeMap::new(),
            requests: BTreeMap::new(),
            last_request: 0,
        }
    }
}

impl Sidecar {
    /// Parses the file.
    ///
    /// # Errors
    /// Fails with a message for users if the text is not valid, or has another version.
    pub fn parse(text: &str) -> Result<Self, String> {
        let sidecar: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        if sidecar.version != SIDECAR_VERSION {
            return Err(format!("unsupported version {} (this program supports {SIDECAR_VERSION})", sidecar.version));
        }
        Ok(sidecar)
    }

    pub fn render(&self) -> String {
        serde_json::to_string_pretty(self).expect("it is plain data with text keys")
    }

    /// Keeps the workflow for the time when its file cannot be read. A very large one is not kept.
    pub(super) fn remember(&mut self, graph: &Graph) {
        let Some(start) = &self.start else { return };
        let last = Some(graph.start()).filter(|now| now != start);
        let bytes = |last: &Start| serde_json::to_string(last).map_or(usize::MAX, |text| text.len());
        if last != self.last && last.as_ref().is_none_or(|last| bytes(last) <= LAST_BYTES_MAX) {
            self.last = last;
        }
    }

    pub fn role(&mut self, role: &str) -> &mut RoleSide {
        self.roles.entry(RoleId::key(role)).or_default()
    }

    /// Returns the turns that have no result yet, in the order of their roles.
    pub fn turns(&self) -> impl Iterator<Item = Turn> {
        self.roles.iter().filter_map(|(role, side)| {
            let node = match side.at_work.as_ref()? {
                Step::Node(node) => Some(node.clone()),
                Step::Improvement => None,
            };
            Some(Turn { role: role.clone(), number: side.turn, node })
        })
    }

    /// Reports whether this is the present turn of its role, without a result yet.
    pub fn is_at(&self, turn: &Turn) -> bool {
        self.turns().any(|known| known == *turn)
    }
}
