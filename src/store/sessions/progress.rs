//! `progress.log` of a session.

use std::path::Path;

use swarm_sys::clock::wall_ms;

use super::folder::Folder;
use super::{PROGRESS, PROGRESS_BYTES_MAX};

/// Formats a line of `progress.log`.
pub fn line(event: &str, details: &str) -> String {
    format!("{}|{event}|{}", wall_ms(), details.replace('\n', " "))
}

/// Appends an event to `progress.log`. A failure is only logged: no operation fails for lack of history.
pub(super) fn append(base: &Path, event: &str, details: &str) {
    let line = line(event, details);
    let appended = Folder::open(base).and_then(|folder| match folder {
        Some(folder) => folder.append(PROGRESS, &line, PROGRESS_BYTES_MAX),
        None => Ok(()),
    });
    if let Err(error) = appended {
        tracing::debug!(base = %base.display(), %error, "cannot append to progress.log");
    }
}
