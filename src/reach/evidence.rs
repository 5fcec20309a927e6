//! Files of an attempt on another host, written into the home of the run here as an attempt here would leave them. Nothing of
//! what the host says becomes a path or an option.

use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};
use swarm_model::run::plan::Work;
use swarm_model::run::progress::Now;
use swarm_model::run::{FaultKind, Outcome};
use swarm_store::runs::ends::ERRORS;
use swarm_store::runs::far::FarResult;
use swarm_store::runs::home::{Home, append_lines, end_of, make_all};
use swarm_store::runs::kept;
use swarm_store::runs::order::{self, AttemptResult, STREAM};
use swarm_sys::files::{remove_if_present, replace_durably};

/// File with the commits with which the attempt begins on the host.
const SENT: &str = "sent.json";

/// Content of `sent.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sent {
    /// Run of the attempt. An earlier run may have left a file of this name.
    pub run: String,
    /// Commit with which the work begins. Both are empty for a job without a worktree.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub tip: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub base_commit: String,
    /// Name of the repository on the host. `None` if an older version has written the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repository: Option<String>,
    /// Name of the host here. `None` if an older version has written the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Id of the state directory on the host that has started it. `None` before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Work of the attempt to which the branch here was moved. Somebody may have deleted the branch since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taken: Option<String>,
}

/// Returns the commits that were chosen for an attempt; `None` if none were.
pub fn sent(dir: &Path, run: &str) -> Option<Sent> {
    let sent: Sent = serde_json::from_slice(&std::fs::read(dir.join(SENT)).ok()?).ok()?;
    let commits = [&sent.tip, &sent.base_commit];
    let is_whole = commits.iter().all(|commit| swarm_git::carry::is_commit_id(commit));
    let is_empty = commits.iter().all(|commit| commit.is_empty());
    let is_hex = |text: &String| text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    (sent.run == run && (is_whole || is_empty) && sent.repository.iter().all(is_hex)).then_some(sent)
}

/// Records the commits durably, before they are sent.
///
/// # Errors
/// Returns any I/O error.
pub fn record_sent(dir: &Path, sent: &Sent) -> io::Result<()> {
    make_all(dir)?;
    replace_durably(dir, SENT, &serde_json::to_vec(sent)?)
}

/// Writes what an attempt has left on a host; the result is the last file. Writes the same files again if it is repeated.
///
/// # Errors
/// Fails if the home contains a symbolic link, if the order cannot be read, or on I/O errors.
pub fn write(now: &Now, host: &str, left: &FarResult) -> io::Result<()> {
    let (home, id) = (Home::new(&now.plan.home), &now.job().id);
    home.check_links()?;
    let dir = home.attempt(id, now.progress.attempt);
    kept::report_delivered(&home, &now.plan.id, id, &left.delivered);
    if matches!(now.job().work, Work::Command(_)) {
        return kept::replace_output(&home, id, &left.stdout, &left.stderr);
    }
    match left.stderr.as_str() {
        "" => remove_if_present(&dir.join(ERRORS))?,
        errors => replace_durably(&dir, ERRORS, errors.as_bytes())?,
    }
    if let Some(session) = &left.session {
        order::write_session(&dir, session)?;
    }
    if !left.stream.is_empty() {
        replace_durably(&dir, STREAM, left.stream.as_bytes())?;
    }
    if !left.log.is_empty() {
        append_log(&home, id, &left.log)?;
    }
    let Some(result) = &left.result else { return Ok(()) };
    // The order there has other paths.
    let (_, order) = order::read_with_digest(&dir)?;
    let outcome = own_outcome(&result.outcome, host);
    order::write_result(&dir, &AttemptResult { outcome, order, ..result.clone() })
}

/// Returns the outcome as it counts here. The number of a request is one of the requests there.
fn own_outcome(outcome: &Outcome, host: &str) -> Outcome {
    match outcome {
        Outcome::Parked { what, .. } => Outcome::Failure {
            cause: format!("asks on {host}, where nobody answers: {what}"),
            evidence: None,
            fault: FaultKind::Task,
        },
        outcome => outcome.clone(),
    }
}

/// Maximum number of bytes of a log that are taken over at once. A host sends no more, unless it is hostile.
const LOG_BYTES_MAX: usize = 64 << 10;

/// Maximum number of bytes of the recorded lines of an agent that are taken over.
const STREAM_BYTES_MAX: usize = 256 << 10;
/// Maximum number of bytes of each output of a command that are taken over.
const OUTPUT_BYTES_MAX: usize = 256 << 10;
/// Maximum number of bytes of a text that goes into the journal of the run.
const TEXT_BYTES_MAX: usize = 16 << 10;
/// Maximum number of paths that go into the journal of the run.
const PATHS_MAX: usize = 500;
/// Maximum number of commits beside the work that are fetched.
const STRAYS_MAX: usize = 20;

/// Shortens what a hostile host says at a length that no other does.
pub fn bounded(mut left: FarResult) -> FarResult {
    let end_of = |text: &mut String, bytes: usize| {
        let from = text.ceil_char_boundary(text.len().saturating_sub(bytes));
        text.drain(..from);
    };
    end_of(&mut left.log, LOG_BYTES_MAX);
    end_of(&mut left.stream, STREAM_BYTES_MAX);
    end_of(&mut left.stdout, OUTPUT_BYTES_MAX);
    end_of(&mut left.stderr, OUTPUT_BYTES_MAX);
    left.left_out.retain(|path| path.len() <= TEXT_BYTES_MAX);
    left.left_out.truncate(PATHS_MAX);
    left.ignored.retain(|path| path.len() <= TEXT_BYTES_MAX);
    left.ignored.truncate(PATHS_MAX);
    left.strays.truncate(STRAYS_MAX);
    left.waits.iter_mut().for_each(|text| end_of(text, TEXT_BYTES_MAX));
    match left.result.as_mut().map(|result| &mut result.outcome) {
        Some(Outcome::Failure { cause, evidence, .. }) => {
            end_of(cause, TEXT_BYTES_MAX);
            evidence.iter_mut().for_each(|text| end_of(text, LOG_BYTES_MAX));
        }
        Some(Outcome::Success { summary }) => summary.iter_mut().for_each(|text| end_of(text, LOG_BYTES_MAX)),
        Some(Outcome::Parked { what, .. }) => end_of(what, TEXT_BYTES_MAX),
        _ => {}
    }
    left
}

/// Appends the log of a host. It may begin with lines that an earlier attempt has brought.
fn append_log(home: &Home, id: &str, text: &str) -> io::Result<()> {
    make_all(&home.logs())?;
    let log = home.log(id);
    let known = match end_of(&log, text.len() as u64) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        known => known?,
    };
    let fresh = fresh(&known, text);
    if fresh.is_empty() { Ok(()) } else { append_lines(&log, fresh)?.sync_all() }
}

/// Returns the lines of `text` that do not overlap with the end of what is known.
fn fresh<'a>(known: &[u8], text: &'a str) -> &'a str {
    let ends = text.match_indices('\n').map(|(at, _)| at + 1).chain([text.len()]);
    let overlap = ends.filter(|end| known.ends_with(&text.as_bytes()[..*end])).max();
    &text[overlap.unwrap_or(0)..]
}

#[cfg(test)]
#[path = "evidence_tests.rs"]
mod tests;
