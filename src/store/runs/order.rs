//! Files exchanged between a run and the process that executes one attempt: the order, and the result.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use swarm_model::asks::judge::Consent;
use swarm_model::asks::rules::AskRule;
use swarm_model::run::Outcome;
use swarm_model::run::progress::Spent;

use swarm_agents::{Agent, Session};
use swarm_sys::clock::random_uuid;
use swarm_sys::files::list;
use swarm_sys::files::replace_durably;

use super::seal::digest_of;
use super::{denied, records};

/// Exit code of an attempt that could not read its order or write its result: `EX_IOERR` of sysexits(3).
pub const IO_FAILED: u8 = 74;

/// Content of `order.json`: what the process of an attempt has to do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Order {
    pub run: String,
    pub job: String,
    pub attempt: u32,
    /// Digest of the spec. `None` in orders of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<String>,
    /// Root of the run. Orders of older versions have none: what their agents load was checked when they were written.
    #[serde(default)]
    pub root: Option<PathBuf>,
    pub agent: Agent,
    /// File that the events are appended to.
    pub events: PathBuf,
    pub log: PathBuf,
    /// Directory with messages from people to the agent.
    pub context: PathBuf,
    /// What the agent may do without asking. `None`: everything; the sandbox of codex still applies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consent: Option<Consent>,
    /// Rules of the repository at the beginning of the run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<AskRule>,
    /// Conversation to resume.
    pub session: Option<Session>,
    /// Id of the tool use at which the conversation has stopped. `None` if it has not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deferred: Option<String>,
    /// Id for a new conversation.
    pub fresh_id: String,
    /// Time for which an agent is held while a person is asked, in milliseconds. `None` for the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold_ms: Option<u64>,
}

/// Content of `result.json`: what became of an attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AttemptResult {
    pub outcome: Outcome,
    pub spent: Spent,
    /// Digest of the order that was carried out. Empty in results of older versions.
    #[serde(default)]
    pub order: String,
}

impl AttemptResult {
    /// Returns a result that does not name its order yet.
    pub fn new(outcome: Outcome, spent: Spent) -> Self {
        Self { outcome, spent, order: String::new() }
    }
}

/// File of the order.
pub const ORDER: &str = "order.json";
/// File of the lines that the agent printed.
pub const STREAM: &str = "stream.log";
const RESULT: &str = "result.json";
const RESOLUTION: &str = "resolution.";
const SESSION: &str = "session.json";
/// File that exists while the agent is blocked. It contains what the agent waits for.
pub const WAITING: &str = "waiting";
/// File with what the agent was last denied, or asked, with nobody to ask. It stays after the attempt.
const UNHEARD: &str = "unheard";
/// File that exists while the agent has stopped, or is about to stop, at the use of a tool. It contains the id of that use.
const DEFERRED: &str = "deferred";
/// First argument of the command that executes an attempt.
pub const VERB: &str = "__attempt";
/// File of the prompt.
pub const PROMPT: &str = "prompt.md";

/// Writes the text of an order durably. Removes what an earlier attempt of the same number left, whose result is not that
/// of this order.
///
/// # Errors
/// Returns any I/O error.
pub fn write_order(dir: &Path, order: &[u8]) -> io::Result<()> {
    for entry in list(dir)? {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if [RESULT, SESSION, WAITING, UNHEARD, DEFERRED, denied::FILE].contains(&&*name) || name.starts_with(RESOLUTION)
        {
            fs::remove_file(entry.path())?;
        }
    }
    replace_durably(dir, ORDER, order)
}

/// Reads the order.
///
/// # Errors
/// Returns I/O and parse errors.
pub fn read_order(dir: &Path) -> io::Result<Order> {
    Ok(read_with_digest(dir)?.0)
}

/// Reads the order, and the digest by which a result names it.
///
/// # Errors
/// Returns I/O and parse errors.
pub fn read_with_digest(dir: &Path) -> io::Result<(Order, String)> {
    let text = records::read(dir.join(ORDER))?;
    Ok((serde_json::from_slice(&text)?, digest_of(&text)))
}

/// Writes the result durably.
///
/// # Errors
/// Returns any I/O error.
pub fn write_result(dir: &Path, result: &AttemptResult) -> io::Result<()> {
    replace_durably(dir, RESULT, &serde_json::to_vec_pretty(result)?)
}

/// Reads the result; `None` if the attempt left no readable one.
pub fn read_result(dir: &Path) -> Option<AttemptResult> {
    serde_json::from_slice(&records::read(dir.join(RESULT)).ok()?).ok()
}

/// Records what an agent spent on resolving a conflict of this attempt; `token` identifies the try.
///
/// # Errors
/// Returns any I/O error.
pub fn write_resolution(dir: &Path, token: &str, spent: &Spent) -> io::Result<()> {
    replace_durably(dir, &format!("{RESOLUTION}{token}.json"), &serde_json::to_vec(spent)?)
}

/// Returns the sum of what was spent on resolving conflicts of this attempt.
pub fn resolutions(dir: &Path) -> Spent {
    let files = list(dir).into_iter().flatten();
    let ours = files.filter(|file| file.file_name().to_string_lossy().starts_with(RESOLUTION));
    let spent = ours.filter_map(|file| serde_json::from_slice(&records::read(file.path()).ok()?).ok());
    spent.fold(Spent::default(), Spent::plus)
}

/// Writes the conversation durably. Called as soon as its id is known, and after each turn.
///
/// # Errors
/// Returns any I/O error.
pub fn write_session(dir: &Path, session: &Session) -> io::Result<()> {
    replace_durably(dir, SESSION, &serde_json::to_vec(session)?)
}

/// Returns the recorded conversation. An id that an agent could take for an option is none.
pub fn read_session(dir: &Path) -> Option<Session> {
    let session: Session = serde_json::from_slice(&records::read(dir.join(SESSION)).ok()?).ok()?;
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte);
    (!session.id.starts_with('-') && session.id.bytes().all(is_plain)).then_some(session)
}

/// Records what the agent waits for; `None` removes the record.
///
/// # Errors
/// Returns any I/O error.
pub fn write_waiting(dir: &Path, cause: Option<&str>) -> io::Result<()> {
    match cause {
        Some(cause) => replace_durably(dir, WAITING, cause.as_bytes()),
        None => fs::remove_file(dir.join(WAITING)),
    }
}

/// Returns what the agent of an attempt waits for, or `None` if it is not blocked.
pub fn waiting(dir: &Path) -> Option<String> {
    records::read_text(dir.join(WAITING)).ok()
}

/// Records what the agent was denied, or asked, with nobody to ask.
///
/// # Errors
/// Returns any I/O error.
pub fn write_unheard(dir: &Path, cause: &str) -> io::Result<()> {
    replace_durably(dir, UNHEARD, cause.as_bytes())
}

/// Returns what the agent of an attempt was last denied, or asked, with nobody to ask.
pub fn unheard(dir: &Path) -> Option<String> {
    records::read_text(dir.join(UNHEARD)).ok()
}

/// Records that the agent stops at this use of a tool. Reports whether it does: of several uses, the first one counts until
/// it is [cleared](clear_deferred).
///
/// # Errors
/// Returns any I/O error; then the agent must not stop.
pub fn defer(dir: &Path, call: &str) -> io::Result<bool> {
    let temporary = dir.join(format!(".{}", random_uuid()));
    let linked = fs::write(&temporary, call).and_then(|()| fs::hard_link(&temporary, dir.join(DEFERRED)));
    let _ = fs::remove_file(&temporary);
    match linked {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(deferred(dir).as_deref() == Some(call)),
        Err(error) => Err(error),
    }
}

/// Returns the id of the tool use at which the agent of an attempt stops. `None` if there is none.
pub fn deferred(dir: &Path) -> Option<String> {
    records::read_text(dir.join(DEFERRED)).ok()
}

/// Records that the agent does not stop at this use of a tool, or no longer.
///
/// # Errors
/// Returns any I/O error.
pub fn clear_deferred(dir: &Path, call: &str) -> io::Result<()> {
    if deferred(dir).as_deref() == Some(call) { fs::remove_file(dir.join(DEFERRED)) } else { Ok(()) }
}

/// Returns the directory of the attempt that a worker with this command executes. `None` if it executes none.
pub fn attempt_of(command: &[String]) -> Option<&Path> {
    match command {
        [_, verb, dir] if verb == VERB => Some(Path::new(dir)),
        _ => None,
    }
}

/// Returns the undelivered messages from people, oldest first, each with its file.
pub fn said(dir: &Path) -> Vec<(PathBuf, String)> {
    let mut files: Vec<PathBuf> = list(dir).into_iter().flatten().map(|entry| entry.path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "md"));
    files.sort();
    let read = |file: PathBuf| records::read_text(&file).ok().map(|text| (file, text.trim().to_owned()));
    files.into_iter().filter_map(read).collect()
}

/// Marks a message as delivered to the agent, or as late.
///
/// # Errors
/// Returns any I/O error.
pub fn take(file: &Path, delivered: bool) -> io::Result<()> {
    fs::rename(file, file.with_extension(if delivered { "delivered" } else { "late" }))
}
