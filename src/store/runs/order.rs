//! What passes between a run and the process that carries out one attempt: its order,
//! and what it found to have become of it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use swarm_model::run::Outcome;
use swarm_model::run::progress::Spent;

use swarm_agents::{Agent, Session};
use swarm_sys::files::replace_durably;

/// `order.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Order {
    pub run: String,
    pub job: String,
    pub attempt: u32,
    pub agent: Agent,
    /// Where what is told goes.
    pub events: PathBuf,
    pub log: PathBuf,
    /// Where a person's words for it come in.
    pub context: PathBuf,
    /// The conversation to go on with.
    pub session: Option<Session>,
    /// The name of a conversation that begins.
    pub fresh_id: String,
}

/// `result.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    pub outcome: Outcome,
    pub spent: Spent,
}

const ORDER: &str = "order.json";
const RESULT: &str = "result.json";
const RESOLUTION: &str = "resolution.";
const SESSION: &str = "session.json";
/// What an agent that stands still waits for; there while it does.
const WAITING: &str = "waiting";
/// How the command of a worker that carries out an attempt goes on behind the program.
pub const VERB: &str = "__attempt";
/// What is said to the agent.
pub const PROMPT: &str = "prompt.md";

/// # Errors
/// What the system says.
pub fn write_order(dir: &Path, order: &Order) -> io::Result<()> {
    replace_durably(dir, ORDER, &serde_json::to_vec_pretty(order)?)
}

/// # Errors
/// What the system or the parser says.
pub fn read_order(dir: &Path) -> io::Result<Order> {
    Ok(serde_json::from_slice(&fs::read(dir.join(ORDER))?)?)
}

/// # Errors
/// What the system says.
pub fn write_result(dir: &Path, result: &Verdict) -> io::Result<()> {
    replace_durably(dir, RESULT, &serde_json::to_vec_pretty(result)?)
}

/// `None` where the attempt left none.
pub fn read_result(dir: &Path) -> Option<Verdict> {
    serde_json::from_slice(&fs::read(dir.join(RESULT)).ok()?).ok()
}

/// What an agent used to resolve a conflict of this attempt, once for each try.
///
/// # Errors
/// What the system says.
pub fn write_resolution(dir: &Path, token: &str, spent: &Spent) -> io::Result<()> {
    replace_durably(dir, &format!("{RESOLUTION}{token}.json"), &serde_json::to_vec(spent)?)
}

/// The sum of them.
pub fn resolutions(dir: &Path) -> Spent {
    let files = fs::read_dir(dir).into_iter().flatten().flatten();
    let ours = files.filter(|file| file.file_name().to_string_lossy().starts_with(RESOLUTION));
    let spent = ours.filter_map(|file| serde_json::from_slice(&fs::read(file.path()).ok()?).ok());
    spent.fold(Spent::default(), Spent::plus)
}

/// The conversation, as soon as its name is known and again when a turn has ended.
///
/// # Errors
/// What the system says.
pub fn write_session(dir: &Path, session: &Session) -> io::Result<()> {
    replace_durably(dir, SESSION, &serde_json::to_vec(session)?)
}

pub fn read_session(dir: &Path) -> Option<Session> {
    serde_json::from_slice(&fs::read(dir.join(SESSION)).ok()?).ok()
}

/// Says what the agent waits for, or that it does not any more.
///
/// # Errors
/// What the system says.
pub fn write_waiting(dir: &Path, cause: Option<&str>) -> io::Result<()> {
    match cause {
        Some(cause) => replace_durably(dir, WAITING, cause.as_bytes()),
        None => fs::remove_file(dir.join(WAITING)),
    }
}

/// What the agent of an attempt waits for.
pub fn waiting(dir: &Path) -> Option<String> {
    fs::read_to_string(dir.join(WAITING)).ok()
}

/// What the agent waits for whose attempt a worker with this command carries out.
pub fn waiting_of(command: &[String]) -> Option<String> {
    match command {
        [_, verb, dir] if verb == VERB => waiting(Path::new(dir)),
        _ => None,
    }
}

/// What a person has said since, in that order, each with its file.
pub fn said(dir: &Path) -> Vec<(PathBuf, String)> {
    let mut files: Vec<PathBuf> =
        fs::read_dir(dir).map(|entries| entries.flatten().map(|entry| entry.path()).collect()).unwrap_or_default();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "md"));
    files.sort();
    let read = |file: PathBuf| fs::read_to_string(&file).ok().map(|text| (file, text.trim().to_owned()));
    files.into_iter().filter_map(read).collect()
}

/// It is on its way to the agent, or came too late for it.
///
/// # Errors
/// What the system says.
pub fn take(file: &Path, delivered: bool) -> io::Result<()> {
    fs::rename(file, file.with_extension(if delivered { "delivered" } else { "late" }))
}
