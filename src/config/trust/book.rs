//! `trust.json` in the user's configuration directory: what a person agreed to, for each project.
//!
//! A change holds `trust.lock`, reads the file, and replaces it durably. A process that is killed leaves the old file or
//! the new one, and perhaps a temporary file, which the next change removes.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use swarm_sys::files::{list_if_present, lock, replace_durably};
use toml::Value;

use super::place::Project;
use super::{Entry, SPECS};
use crate::file;

const FILE: &str = "trust.json";
const LOCK: &str = "trust.lock";
/// Maximum wait for the lock, which is held for one write.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(10);
/// Maximum size of the book in bytes: a million specs.
const FILE_BYTES_MAX: u64 = 128 << 20;
/// Format of the file.
const VERSION: u32 = 1;

/// Content of `trust.json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Book {
    pub version: u32,
    /// By the key of the project.
    #[serde(default)]
    pub projects: BTreeMap<String, Agreed>,
}

/// What a person agreed to in one project.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Agreed {
    /// Time of the last change, in Unix milliseconds.
    #[serde(default)]
    pub at_ms: u64,
    /// Settled sections: recorded values by key.
    #[serde(default)]
    pub sections: BTreeMap<String, BTreeMap<String, Value>>,
}

/// Version of a book.
#[derive(Deserialize)]
struct Version {
    version: u32,
}

impl Book {
    /// Reads the book; empty if it does not exist.
    ///
    /// # Errors
    /// Fails if the file cannot be read, is damaged, or was written by a newer version.
    pub fn read(path: &Path) -> Result<Self, String> {
        let shown = path.display();
        let Some(text) = file::read_up_to(path, FILE_BYTES_MAX).map_err(|error| format!("{shown}: {error}"))? else {
            return Ok(Self { version: VERSION, ..Self::default() });
        };
        let damaged = |error: serde_json::Error| {
            let (line, column) = (error.line(), error.column());
            let remedy = "move the file aside and agree again with 'swarm trust'";
            format!("{shown}: damaged at line {line}, column {column}; {remedy}")
        };
        // The version comes first: a file of a newer version may have another shape.
        let Version { version } = serde_json::from_str(&text).map_err(damaged)?;
        if version != VERSION {
            return Err(format!("{shown}: version {version} is not supported (expected {VERSION})"));
        }
        serde_json::from_str(&text).map_err(damaged)
    }
}

/// Returns the path of the book of somebody with these values of `XDG_CONFIG_HOME` and `HOME`.
pub fn book_path_in(xdg: Option<PathBuf>, home: Option<PathBuf>) -> Option<PathBuf> {
    file::user_path_in(xdg, home).map(|path| path.with_file_name(FILE))
}

/// Returns the path of the book; `None` if neither `XDG_CONFIG_HOME` nor `HOME` is set.
pub fn book_path() -> Option<PathBuf> {
    file::user_path().map(|path| path.with_file_name(FILE))
}

/// Returns the path of the book, unless this process ignores the user's own files.
pub fn user_book() -> Option<PathBuf> {
    if crate::ignores_user() { None } else { book_path() }
}

/// Returns what was agreed to in the project of `root`; `None` if nothing is recorded or `root` does not exist.
///
/// # Errors
/// Fails if the book or the project cannot be read.
pub fn recorded(book: &Path, root: &Path) -> Result<Option<Agreed>, String> {
    let mut book = Book::read(book)?;
    if book.projects.is_empty() {
        return Ok(None);
    }
    match Project::of(root) {
        Ok(project) => Ok(book.projects.remove(&project.key)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(format!("{}: {error}", root.display())),
    }
}

/// Records that a person agreed to these entries, which are all entries of these sections. Specs are added to those that
/// are recorded, because there may be several folders of them.
///
/// # Errors
/// Fails if the book cannot be read or written.
pub fn agree(book: &Path, project: &Project, sections: &[&str], entries: &[Entry], now_ms: u64) -> Result<(), String> {
    change(book, |book| {
        let agreed = book.projects.entry(project.key.clone()).or_default();
        agreed.at_ms = now_ms;
        for section in sections {
            let values = agreed.sections.entry((*section).to_owned()).or_default();
            values.retain(|key, _| *section == SPECS && is_there(project, key));
            let ours = entries.iter().filter(|entry| entry.section == *section);
            let (none, ours): (Vec<_>, Vec<_>) = ours.partition(|entry| entry.is_none());
            values.retain(|key, _| none.iter().all(|entry| entry.key != *key));
            values.extend(ours.into_iter().map(|entry| (entry.key.clone(), entry.value.clone())));
        }
        true
    })
}

/// Reports whether the file of a recorded spec still exists.
fn is_there(project: &Project, key: &str) -> bool {
    let file = key.rsplit_once(' ').map_or(key, |(file, _)| file);
    Path::new(project.shown()).join(file).exists()
}

/// Settles sections of a project with nothing recorded, so that what is running goes on without later entries.
///
/// # Errors
/// Fails if the book cannot be read or written.
pub fn settle(book: &Path, project: &Project, sections: &[&str], now_ms: u64) -> Result<(), String> {
    change(book, |book| {
        let agreed = book.projects.entry(project.key.clone()).or_default();
        let before = agreed.sections.len();
        for section in sections {
            agreed.sections.entry((*section).to_owned()).or_default();
        }
        let is_changed = agreed.sections.len() > before;
        if is_changed {
            agreed.at_ms = now_ms;
        }
        is_changed
    })
}

/// Withdraws the consent for a project, by its key, and forgets the project: what its files want to execute waits until
/// somebody is asked again. Returns whether anything was recorded.
///
/// # Errors
/// Fails if the book cannot be read or written.
pub fn revoke(book: &Path, key: &str) -> Result<bool, String> {
    let mut had_any = false;
    change(book, |book| {
        let removed = book.projects.remove(key);
        had_any = removed.as_ref().is_some_and(|agreed| agreed.sections.values().any(|values| !values.is_empty()));
        removed.is_some()
    })?;
    Ok(had_any)
}

/// Changes the book under its lock. It is written only if `edit` returns true.
fn change(path: &Path, edit: impl FnOnce(&mut Book) -> bool) -> Result<(), String> {
    let failed = |error: io::Error| format!("cannot write {}: {error}", path.display());
    let dir = path.parent().unwrap_or(Path::new("/"));
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed)?;
    let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(dir.join(LOCK));
    let held = lock::lock_within(file.map_err(failed)?, LOCK_WAIT_MAX).map_err(failed)?;
    let _held = held.ok_or_else(|| format!("{} is locked by {}", path.display(), lock::holder(&dir.join(LOCK))))?;
    let mut book = Book::read(path)?;
    if !edit(&mut book) {
        return Ok(());
    }
    // A repository that is gone, and about which nobody agreed to anything, needs no place. If its disk is only not
    // mounted, its sections are not settled any more: nothing is executed, and the next verb settles them again.
    let is_empty = |agreed: &Agreed| agreed.sections.values().all(BTreeMap::is_empty);
    book.projects.retain(|key, agreed| !is_empty(agreed) || Path::new(key).exists());
    let text = serde_json::to_vec_pretty(&book).map_err(|error| failed(error.into()))?;
    remove_temporary(dir);
    replace_durably(dir, FILE, &text).map_err(failed)
}

/// Removes the temporary files of processes that were killed while they wrote the book. Whoever writes one holds the lock,
/// which the caller has, so that no living process has any.
fn remove_temporary(dir: &Path) {
    let is_left = |file: &fs::DirEntry| {
        let name = file.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix(FILE)?.strip_prefix(".tmp."));
        pid.is_some_and(|pid| pid.parse::<u32>().is_ok()) && file.file_type().is_ok_and(|kind| kind.is_file())
    };
    for file in list_if_present(dir).unwrap_or_default().into_iter().filter(is_left) {
        let _ = fs::remove_file(file.path());
    }
}
