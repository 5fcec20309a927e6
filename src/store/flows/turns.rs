//! The folder of one turn, `turns/ROLE/NUMBER/` of a flow: what it is told, and what is
//! known of it afterwards.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use swarm_actors::flow::names::RoleId;
use swarm_model::FlowPlace;
use swarm_model::flows::Turn;

use super::file;
use swarm_sys::paths::digest;

/// How the command of a worker that plays a role goes on behind the program.
pub const VERB: &str = "__role";
/// There when its agent was started with it.
pub const TOLD: &str = "told";
const ORDER: &str = "order.json";
/// The same as the text that its agent gets.
pub const PROMPT: &str = "prompt.md";
/// Where an agent may leave its handoff block.
pub const HANDOFF: &str = "handoff.yaml";
/// A longer handoff file is none.
pub const HANDOFF_BYTES_MAX: u64 = 1 << 20;
const ORDER_BYTES_MAX: u64 = 64 << 20;

/// What a turn is begun with.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Order {
    pub place: FlowPlace,
    pub turn: Turn,
    /// All that is said to the agent.
    pub prompt: String,
    /// The same for an agent that does not remember what it was told before.
    pub whole: String,
    /// Its agent was told all of it by an earlier turn of the same visit.
    #[serde(default)]
    pub was_told: bool,
    /// What was handed over, in words.
    #[serde(default)]
    pub inbox: String,
    /// What a person has said, where the turn is begun for that.
    #[serde(default)]
    pub answer: Option<String>,
    /// What the node is there for: its shell blocks are the program of the `shell` agent.
    pub work: Vec<String>,
    /// Commits that were handed over, by who handed them over.
    pub commits: BTreeMap<String, String>,
}

/// Where the folder of a turn is.
pub fn dir(flow: &Path, turn: &Turn) -> PathBuf {
    flow.join("turns").join(folder(&turn.role)).join(turn.number.to_string())
}

/// A folder's name for a role. A workflow may be edited at any time, and name what is none.
pub fn folder(role: &str) -> String {
    match RoleId::parse(role) {
        Ok(role) => role.instance,
        Err(_) => format!("x{}", digest(role.as_bytes(), 8)),
    }
}

/// Whether the agent of a turn was started with what it was to be told.
pub fn was_told(flow: &Path, turn: &Turn) -> bool {
    fs::exists(dir(flow, turn).join(TOLD)).unwrap_or(false)
}

/// Whether there is a word of its agent that was not brought in.
pub fn has_word(flow: &Path, turn: &Turn) -> bool {
    fs::exists(dir(flow, turn).join(HANDOFF)).unwrap_or(false)
}

/// # Errors
/// What the system says.
pub fn write(flow: &Path, order: &Order) -> io::Result<()> {
    let dir = dir(flow, &order.turn);
    file::make_dirs(&dir)?;
    file::replace(&dir.join(ORDER), &serde_json::to_vec_pretty(order)?)
}

/// # Errors
/// What the system or the parser says.
pub fn read(dir: &Path) -> io::Result<Order> {
    let text = file::read_text(&dir.join(ORDER), ORDER_BYTES_MAX)?;
    let text = text.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
    Ok(serde_json::from_str(&text)?)
}

/// Whether it was begun; a claim that was cut off may be known of and not be there.
pub fn is_there(flow: &Path, turn: &Turn) -> bool {
    fs::exists(dir(flow, turn).join(ORDER)).unwrap_or(false)
}

/// There is no word of its agent yet.
///
/// # Errors
/// What the system says.
pub fn forget_word(flow: &Path, turn: &Turn) -> io::Result<()> {
    match fs::remove_file(dir(flow, turn).join(HANDOFF)) {
        Err(error) if !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Err(error),
        _ => Ok(()),
    }
}

/// Removes what killed processes left half-written; under the flow's lock, when the turn
/// is over.
pub fn tidy(flow: &Path, turn: &Turn) {
    let of_role = flow.join("roles").join(folder(&turn.role));
    for dir in [flow.to_owned(), dir(flow, turn), of_role, flow.join("record")] {
        file::remove_torn(&dir);
    }
}

/// What an agent handed over goes with the turn that is begun in the place of its own.
///
/// # Errors
/// What the system says.
pub fn take_along(flow: &Path, from: &Turn, to: &Turn) -> io::Result<()> {
    // What is no file of a sane length says nothing.
    match file::read_text(&dir(flow, from).join(HANDOFF), HANDOFF_BYTES_MAX) {
        Ok(Some(block)) => file::replace(&dir(flow, to).join(HANDOFF), block.as_bytes()),
        Ok(None) | Err(_) => Ok(()),
    }
}
