//! The folder of one turn, `turns/ROLE/NUMBER/` in a flow: its order and prompt, and the folder `out` for its agent.
//!
//! The order decides what is executed without a sandbox. Therefore agents that a sandbox limits may write to `out` only.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use swarm_actors::flow::rules::names::RoleId;
use swarm_model::FlowPlace;
use swarm_model::flow::Turn;

use super::file;
use super::place::{HOME, STATE};
use swarm_sys::files::{make_dirs, remove_tree};
use swarm_sys::paths::digest;

/// First argument of the command that executes a turn.
pub const VERB: &str = "__role";
/// File that exists once the agent was started with the prompt.
pub const TOLD: &str = "told";
const ORDER: &str = "order.json";
/// File with the prompt as text.
pub const PROMPT: &str = "prompt.md";
/// Folder to which the agent may write.
const OUT: &str = "out";
/// File in [`OUT`] in which an agent may leave its handoff block.
const HANDOFF: &str = "handoff.yaml";
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

/// Returns the folder of a turn to which its agent may write.
pub fn outbox(dir: &Path) -> PathBuf {
    dir.join(OUT)
}

/// Returns the handoff file of a turn.
pub fn handoff(dir: &Path) -> PathBuf {
    outbox(dir).join(HANDOFF)
}

/// Reports whether the agent of a turn was started with its prompt.
pub fn was_told(flow: &Path, turn: &Turn) -> bool {
    fs::exists(dir(flow, turn).join(TOLD)).unwrap_or(false)
}

/// Reports whether the agent left a handoff file.
pub fn has_handoff(dir: &Path) -> bool {
    handoff(dir).symlink_metadata().is_ok_and(|meta| meta.is_file())
}

/// Writes the order of a turn durably.
///
/// # Errors
/// Returns any I/O error.
pub fn write(flow: &Path, order: &Order) -> io::Result<()> {
    let dir = dir(flow, &order.turn);
    make_dirs(&outbox(&dir))?;
    file::replace(&dir.join(ORDER), &serde_json::to_vec_pretty(order)?)
}

/// Reads the order in the folder of a turn. Its flow is the one whose folder contains `dir`.
///
/// # Errors
/// Returns I/O and parse errors. Fails if it is the order of another turn.
pub fn read(dir: &Path) -> io::Result<Order> {
    let text = file::read_text(&dir.join(ORDER), ORDER_BYTES_MAX)?;
    let text = text.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
    let (flow, place) = place_of(dir).ok_or_else(|| io::Error::other("not the folder of a turn"))?;
    let order = Order { place, ..serde_json::from_str(&text)? };
    match self::dir(&flow, &order.turn) == dir {
        true => Ok(order),
        false => Err(io::Error::other("order of another turn")),
    }
}

/// Returns the folder and the place of the flow to which the folder of a turn belongs.
fn place_of(dir: &Path) -> Option<(PathBuf, FlowPlace)> {
    let flow = dir.ancestors().nth(3)?;
    let name = |path: &Path| Some(path.file_name()?.to_str()?.to_owned());
    let (project, state) = (flow.parent()?, flow.ancestors().nth(2)?);
    let root = state.ancestors().nth(2).filter(|root| root.join(HOME).join(STATE) == state)?;
    let place = FlowPlace { root: root.to_str()?.to_owned(), project: name(project)?, flow: name(flow)? };
    Some((flow.to_owned(), place))
}

/// Reports whether the order of a turn was written; an interrupted claim may have left a turn without one.
pub fn has_order(flow: &Path, turn: &Turn) -> bool {
    fs::exists(dir(flow, turn).join(ORDER)).unwrap_or(false)
}

/// Removes the handoff of a turn, whatever its agent left there; an absent one is not an error.
///
/// # Errors
/// Returns any other I/O error.
pub fn remove_handoff(dir: &Path) -> io::Result<()> {
    let file = handoff(dir);
    match fs::remove_file(&file) {
        Err(error) if error.kind() == io::ErrorKind::IsADirectory => remove_tree(&file),
        Err(error) if !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Err(error),
        _ => Ok(()),
    }
}

/// Removes temporary files of killed processes when a turn is over. Requires the flow's lock.
pub fn tidy(flow: &Path, turn: &Turn) {
    let of_role = flow.join("roles").join(folder(&turn.role));
    let dir = dir(flow, turn);
    for dir in [flow.to_owned(), outbox(&dir), dir, of_role, flow.join("record")] {
        file::remove_torn(&dir);
    }
}

/// Copies the handoff file of a turn to the turn that replaces it.
///
/// # Errors
/// Returns any I/O error of the write.
pub fn copy_handoff(flow: &Path, from: &Turn, to: &Turn) -> io::Result<()> {
    let (from, to) = (dir(flow, from), dir(flow, to));
    // An unreadable or oversized file is ignored.
    match file::read_text(&handoff(&from), HANDOFF_BYTES_MAX) {
        Ok(Some(block)) => file::replace(&handoff(&to), block.as_bytes()),
        Ok(None) | Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_that_of_the_turn_in_whose_folder_it_is() {
        let root = tempfile::tempdir().expect("a directory");
        let flow = root.path().join(".a-society/state/p/f");
        let turn = Turn { role: "owner".to_owned(), number: 1, node: Some("owner-intake".to_owned()) };
        let place =
            FlowPlace { root: root.path().display().to_string(), project: "p".to_owned(), flow: "f".to_owned() };
        let evil = FlowPlace { root: "/tmp/evil".to_owned(), ..place.clone() };
        let order = Order { place: evil, turn: turn.clone(), ..Order::default() };
        write(&flow, &order).expect("written");
        let dir = dir(&flow, &turn);
        assert_eq!(read(&dir).expect("read"), Order { place, ..order.clone() }, "an order names no other flow");
        let other = Turn { number: 2, ..turn };
        fs::write(dir.join(ORDER), serde_json::to_vec(&Order { turn: other, ..order }).expect("JSON"))
            .expect("written");
        assert!(read(&dir).is_err(), "nor another turn");
        assert_eq!(place_of(&root.path().join("a/b/c/turns/owner/1")), None);
    }

    #[test]
    fn whatever_an_agent_leaves_as_its_handoff_can_be_removed() {
        let root = tempfile::tempdir().expect("a directory");
        let (dir, precious) = (root.path().join("turn"), root.path().join("precious"));
        fs::write(&precious, "x").expect("written");
        remove_handoff(&dir).expect("there is none");
        fs::create_dir_all(handoff(&dir).join("x")).expect("made");
        assert!(!has_handoff(&dir), "a folder is no handoff");
        remove_handoff(&dir).expect("a folder");
        std::os::unix::fs::symlink(&precious, handoff(&dir)).expect("linked");
        assert!(!has_handoff(&dir), "nor is a link");
        remove_handoff(&dir).expect("a link");
        assert!(precious.exists() && fs::read_dir(outbox(&dir)).expect("there").next().is_none());
    }
}
