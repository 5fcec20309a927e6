//! `swarm.json`: what only this program has to know of a flow. The other one leaves it
//! alone.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use swarm_actors::flow::names::RoleId;
use swarm_model::flows::Turn;

use swarm_agents::Session;

/// A later layout that an older program must not take for its own gets another number.
pub const SIDECAR_VERSION: u32 = 1;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sidecar {
    pub version: u32,
    /// What the work of the flow is made from, and where it is to land: a branch, or a
    /// commit or tag.
    pub base: Option<String>,
    /// What a person asked for when the flow was made.
    pub task: Option<String>,
    /// The rules of the owner's role do not hold.
    pub relaxed: bool,
    /// What it comes to goes into the merge queue when it is over.
    pub merge: bool,
    /// By role instance.
    pub roles: BTreeMap<String, RoleSide>,
    /// The commit that goes with what was handed over last, by edge key.
    pub commits: BTreeMap<String, String>,
    /// How often the present turn was sent back to its agent, by role.
    pub repairs: BTreeMap<String, u32>,
    /// What those ask that wait for a person, or why their turn ended: by node, or by
    /// role while roles look back.
    pub words: BTreeMap<String, String>,
    /// Questions of permission, by number; those that were answered until their asker has
    /// read it.
    pub requests: BTreeMap<u64, Asked>,
    /// The last number of one: none is given twice.
    pub last_request: u64,
}

/// A question of permission.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    pub role: String,
    pub turn: u64,
    /// None while the role looks back.
    pub node: Option<String>,
    /// The tool and what it is to be used with, as the rules of consent know them.
    pub tool: String,
    pub input: serde_json::Value,
    pub asked_at: String,
    /// `allow_once`, `allow_flow` or `deny`.
    pub answer: Option<String>,
}

/// One conversation, and where it works.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RoleSide {
    pub worker: String,
    pub worktree: Option<String>,
    /// With which agent the conversation is.
    pub agent: Option<String>,
    /// By which the agent's program goes on with it.
    pub session: Option<Session>,
    /// The last turn that was begun.
    pub turn: u64,
    /// What that is about, until it has come to something.
    pub at_work: Option<Step>,
    /// The node that the conversation is about, until that has handed over.
    pub about: Option<String>,
    /// When its last turn ended.
    pub ended_at: Option<String>,
}

/// What a turn is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Step {
    Node(String),
    /// Looking back, in the improvement phase.
    Back,
}

impl Default for Sidecar {
    fn default() -> Self {
        Self {
            version: SIDECAR_VERSION,
            base: None,
            task: None,
            relaxed: false,
            merge: false,
            roles: BTreeMap::new(),
            commits: BTreeMap::new(),
            repairs: BTreeMap::new(),
            words: BTreeMap::new(),
            requests: BTreeMap::new(),
            last_request: 0,
        }
    }
}

impl Sidecar {
    /// # Errors
    /// The parser's sentence, or that it is of a later program.
    pub fn parse(text: &str) -> Result<Self, String> {
        let sidecar: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        if sidecar.version != SIDECAR_VERSION {
            return Err(format!("its version is {}, and only {SIDECAR_VERSION} is understood", sidecar.version));
        }
        Ok(sidecar)
    }

    pub fn render(&self) -> String {
        serde_json::to_string_pretty(self).expect("it is plain data with text keys")
    }

    pub fn role(&mut self, role: &str) -> &mut RoleSide {
        self.roles.entry(RoleId::key(role)).or_default()
    }

    /// The turns that have not come to anything yet, in the order of their roles.
    pub fn turns(&self) -> impl Iterator<Item = Turn> {
        self.roles.iter().filter_map(|(role, side)| {
            let node = match side.at_work.as_ref()? {
                Step::Node(node) => Some(node.clone()),
                Step::Back => None,
            };
            Some(Turn { role: role.clone(), number: side.turn, node })
        })
    }

    /// Whether this is the turn that its role is at.
    pub fn is_at(&self, turn: &Turn) -> bool {
        self.turns().any(|known| known == *turn)
    }
}
