//! `swarm.json`: what only this program has to know of a flow. The other one leaves it
//! alone.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A later layout that an older program must not take for its own gets another number.
pub const SIDECAR_VERSION: u32 = 1;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sidecar {
    pub version: u32,
    /// What the work of the flow is made from: a commit, branch or tag.
    pub base: Option<String>,
    /// What a person asked for when the flow was made.
    pub task: Option<String>,
    /// The rules of the owner's role do not hold.
    pub relaxed: bool,
    /// By role instance.
    pub roles: BTreeMap<String, RoleSide>,
    /// The commit that goes with what was handed over last, by edge key.
    pub commits: BTreeMap<String, String>,
    /// How often the present turn was sent back to its agent, by node or role.
    pub repairs: BTreeMap<String, u32>,
}

/// One conversation, and where it works.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RoleSide {
    pub worker: String,
    pub worktree: Option<String>,
    pub branch: Option<String>,
    pub commit: Option<String>,
    /// By which the agent's program goes on with the conversation.
    pub session: Option<String>,
    pub turn: u64,
}

impl Default for Sidecar {
    fn default() -> Self {
        Self {
            version: SIDECAR_VERSION,
            base: None,
            task: None,
            relaxed: false,
            roles: BTreeMap::new(),
            commits: BTreeMap::new(),
            repairs: BTreeMap::new(),
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
}
