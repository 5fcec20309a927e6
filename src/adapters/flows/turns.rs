//! The folder of one turn, `turns/ROLE/NUMBER/` of a flow: what it is told, and what is
//! known of it afterwards.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use swarm_actors::flows::Turn;
use swarm_actors::model::FlowPlace;

use super::file;

/// How the command of a worker that plays a role goes on behind the program.
pub const VERB: &str = "__role";
const ORDER: &str = "order.json";
/// The same as the text that its agent gets.
pub const PROMPT: &str = "prompt.md";
/// Where an agent may leave its handoff block.
pub const HANDOFF: &str = "handoff.yaml";
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
    flow.join("turns").join(&turn.role).join(turn.number.to_string())
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

/// What an agent handed over goes with the turn that is begun in the place of its own.
///
/// # Errors
/// What the system says.
pub fn take_along(flow: &Path, from: &Turn, to: &Turn) -> io::Result<()> {
    match fs::read(dir(flow, from).join(HANDOFF)) {
        Ok(block) => file::replace(&dir(flow, to).join(HANDOFF), &block),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}
