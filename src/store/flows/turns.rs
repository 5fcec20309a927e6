//! The folder of one turn, `turns/ROLE/NUMBER/` in a flow: its order, prompt and handoff.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use swarm_actors::flow::rules::names::RoleId;
use swarm_model::FlowPlace;
use swarm_model::flow::Turn;

use super::file;
use swarm_sys::paths::digest;

/// First argument of the command that executes a turn.
pub const VERB: &str = "__role";
/// File that exists once the agent was started with the prompt.
pub const TOLD: &str = "told";
const ORDER: &str = "order.json";
/// File with the prompt as text.
pub const PROMPT: &str = "prompt.md";
/// File in which an agent may leave its handoff block.
pub const HANDOFF: &str = "handoff.yaml";
/// Maximum size of a handoff file in bytes; a longer one is ignored.
pub const HANDOFF_BYTES_MAX: u64 = 1 << 20;
const ORDER_BYTES_MAX: u64 = 64 << 20;

/// Content of `order.json`: input of a turn.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Order {
    pub place: FlowPlace,
    pub turn: Turn,
    /// Prompt for an agent that resumes its conversation.
    pub prompt: String,
    /// Complete prompt for an agent without memory of the conversation.
    pub whole: String,
    /// The agent got the complete prompt in an earlier turn of the same visit.
    #[serde(default)]
    pub was_told: bool,
    /// Received artifacts with their content, as text.
    #[serde(default)]
    pub inbox: String,
    /// Answer of a person, if the turn was started because of it.
    #[serde(default)]
    pub answer: Option<String>,
    /// Work items of the node; their shell blocks are the program of the `shell` agent.
    pub work: Vec<String>,
    /// Commits that were handed over, by the node that handed them over.
    pub commits: BTreeMap<String, String>,
}

/// Returns the folder of a turn.
pub fn dir(flow: &Path, turn: &Turn) -> PathBuf {
    flow.join("turns").join(folder(&turn.role)).join(turn.number.to_string())
}

/// Returns the folder name for a role. An edited workflow may contain an invalid role name, which is hashed.
pub fn folder(role: &str) -> String {
    match RoleId::parse(role) {
        Ok(role) => role.instance,
        Err(_) => format!("x{}", digest(role.as_bytes(), 8)),
    }
}

/// Reports whether the agent of a turn was started with its prompt.
pub fn was_told(flow: &Path, turn: &Turn) -> bool {
    fs::exists(dir(flow, turn).join(TOLD)).unwrap_or(false)
}

/// Reports whether the agent left a handoff file.
pub fn has_handoff(flow: &Path, turn: &Turn) -> bool {
    fs::exists(dir(flow, turn).join(HANDOFF)).unwrap_or(false)
}

/// Writes the order of a turn durably.
///
/// # Errors
/// Returns any I/O error.
pub fn write(flow: &Path, order: &Order) -> io::Result<()> {
    let dir = dir(flow, &order.turn);
    swarm_sys::files::make_dirs(&dir)?;
    file::replace(&dir.join(ORDER), &serde_json::to_vec_pretty(order)?)
}

/// Reads the order in the folder of a turn.
///
/// # Errors
/// Returns I/O and parse errors.
pub fn read(dir: &Path) -> io::Result<Order> {
    let text = file::read_text(&dir.join(ORDER), ORDER_BYTES_MAX)?;
    let text = text.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
    Ok(serde_json::from_str(&text)?)
}

/// Reports whether the order of a turn was written; an interrupted claim may have left a turn without one.
pub fn has_order(flow: &Path, turn: &Turn) -> bool {
    fs::exists(dir(flow, turn).join(ORDER)).unwrap_or(false)
}

/// Removes the handoff file of a turn; an absent one is not an error.
///
/// # Errors
/// Returns any other I/O error.
pub fn remove_handoff(flow: &Path, turn: &Turn) -> io::Result<()> {
    match fs::remove_file(dir(flow, turn).join(HANDOFF)) {
        Err(error) if !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Err(error),
        _ => Ok(()),
    }
}

/// Removes temporary files of killed processes when a turn is over. Requires the flow's lock.
pub fn tidy(flow: &Path, turn: &Turn) {
    let of_role = flow.join("roles").join(folder(&turn.role));
    for dir in [flow.to_owned(), dir(flow, turn), of_role, flow.join("record")] {
        file::remove_torn(&dir);
    }
}

/// Copies the handoff file of a turn to the turn that replaces it.
///
/// # Errors
/// Returns any I/O error of the write.
pub fn copy_handoff(flow: &Path, from: &Turn, to: &Turn) -> io::Result<()> {
    // An unreadable or oversized file is ignored.
    match file::read_text(&dir(flow, from).join(HANDOFF), HANDOFF_BYTES_MAX) {
        Ok(Some(block)) => file::replace(&dir(flow, to).join(HANDOFF), block.as_bytes()),
        Ok(None) | Err(_) => Ok(()),
    }
}
