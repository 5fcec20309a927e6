//! Durability of `state.json`: each commit is recorded in the journal before it becomes visible.
//!
//! | step | write | after a power cut right after it |
//! |---|---|---|
//! | 1 | the new file under a temporary name, not synced | the old file; nothing was acknowledged |
//! | 2 | a record in `state.journal`, synced: **the commit** | the new file, from the record |
//! | 3 | the rename, not synced | the same; acknowledged now |
//!
//! A process that is killed between 2 and 3 leaves a record of a commit that nobody has seen. The next process begins a
//! new journal with the file that is visible. Only a power cut before that makes the commit visible; it was not
//! acknowledged, and its command was not executed.
//!
//! The files of contracts are not synced either; their texts are in the records. When half of the journal is in use, and
//! the contracts of workers that are still there would take much of the next one, a thread syncs the file system, after
//! which the next journal can do without the contracts that were written before.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{SystemTime, UNIX_EPOCH};

use swarm_model::Spec;
use swarm_sys::files::{make_dirs, open_regular, replace_durably, sync_file_system};

use super::error::StoreError;
use super::journal::{self, Content, Journal};
use super::replay::{Change, Record, Unsynced, Version, contracts, replay};
use super::state_file;
use super::store::{FileId, file_id, io_error};
use super::table::Table;

/// The journal of one state directory. All methods that write need the registry lock.
pub struct Durable {
    root: PathBuf,
    boot: String,
    journal: Option<Journal>,
    /// The file after our last commit.
    last: Option<FileId>,
    /// Contracts that the next journal must contain.
    unsynced: Vec<Unsynced>,
    syncing: Option<Syncing>,
    /// Time of the last record.
    at_ms: u64,
}

/// A sync of the file system in progress, after which the first `count` contracts are durable.
struct Syncing {
    thread: JoinHandle<io::Result<()>>,
    count: usize,
}

/// One commit, between the states that its caller knows.
pub struct Commit<'a> {
    pub old: &'a Table,
    /// The file that `old` was read from.
    pub old_file: Option<FileId>,
    pub new: &'a Table,
    /// The new text of the file.
    pub text: &'a str,
    pub contracts: Vec<Unsynced>,
}

impl Durable {
    pub fn new(root: &Path, boot: String) -> Self {
        Self { root: root.to_owned(), boot, journal: None, last: None, unsynced: Vec::new(), syncing: None, at_ms: 0 }
    }

    pub fn boot(&self) -> &str {
        &self.boot
    }

    /// Records a commit durably. The caller then renames the new file and calls [`Durable::committed`], or
    /// [`Durable::failed`].
    ///
    /// # Errors
    /// Fails if the journal or an earlier version of the file cannot be written to the disk.
    pub fn record(&mut self, commit: Commit<'_>) -> Result<(), StoreError> {
        self.end_sync();
        let is_ours = self.last.is_some() && self.last == commit.old_file;
        if let Some(journal) = self.journal.as_mut().filter(|_| is_ours) {
            let change = Change::between(commit.old, commit.new);
            let contracts = commit.contracts.clone();
            self.at_ms = self.at_ms.max(now_ms());
            let (version, at_ms) = (Version::of(commit.text), self.at_ms);
            let record = Record { version, change, contracts, closed: false, at_ms };
            match journal.append(&record) {
                Ok(true) => {
                    self.unsynced.extend(commit.contracts);
                    self.begin_sync();
                    return Ok(());
                }
                Ok(false) => {}
                Err(error) => {
                    // The record may be on the disk all the same.
                    self.failed();
                    return Err(io_error("write", &self.path(), &error));
                }
            }
        }
        self.unsynced.extend(commit.contracts);
        self.begin(commit.text, false).inspect_err(|_| self.failed())
    }

    /// Notes that the recorded commit is visible as this file.
    pub fn committed(&mut self, file: Option<FileId>) {
        self.last = file;
    }

    /// Takes back the recorded commit, which could not be made visible, by a new journal with the file as it is. If that
    /// fails as well, the next commit begins one.
    pub fn failed(&mut self) {
        if let Err(error) = self.note(false) {
            tracing::warn!(%error, "cannot take back a record of the registry's journal");
            self.journal = None;
            self.last = None;
        }
    }

    /// Reports whether there is a journal, also of an earlier process.
    fn is_used(&self) -> bool {
        self.journal.is_some() || self.path().exists()
    }

    /// Reports whether the file is not the one that the journal describes, although there is a journal.
    pub fn is_behind(&self, file: Option<FileId>) -> bool {
        self.journal.is_some() && self.last != file
    }

    /// Starts a new journal with the file as it is now, if there is one already. If `closed`, later versions of the file
    /// win over it.
    ///
    /// # Errors
    /// Fails if the journal or the file cannot be written to the disk.
    pub fn note(&mut self, closed: bool) -> Result<(), StoreError> {
        if !self.is_used() {
            return Ok(());
        }
        let state = self.root.join("state.json");
        let file = file_id(&state);
        let (text, closed) = match state_file::read(&state)? {
            Some(bytes) => match String::from_utf8(bytes) {
                Ok(text) => (text, closed),
                // The next commit rebuilds the damaged file, and begins a journal.
                Err(_) => {
                    self.journal = None;
                    self.last = None;
                    return Ok(());
                }
            },
            // It must stay missing.
            None => (String::new(), true),
        };
        self.begin(&text, closed)?;
        self.last = file;
        Ok(())
    }

    /// Starts a new journal whose first record is the whole file.
    fn begin(&mut self, text: &str, closed: bool) -> Result<(), StoreError> {
        let (state, path) = (self.root.join("state.json"), self.path());
        let failed = |error: &io::Error| io_error("write", &path, error);
        if self.journal.take().is_none() {
            // That of an earlier supervisor.
            let read = journal::read(&path).map_err(|error| failed(&error))?;
            let earlier = read.map(|content| content.records).unwrap_or_default();
            self.at_ms = earlier.iter().map(|record| record.at_ms).fold(self.at_ms, u64::max);
            let earlier = contracts(&earlier);
            let is_new = |one: &Unsynced| self.unsynced.iter().all(|other| other.dir != one.dir);
            let earlier: Vec<_> = earlier.into_iter().filter(is_new).collect();
            self.unsynced.splice(0..0, earlier);
            if let Some(syncing) = &mut self.syncing {
                syncing.count = 0;
            }
        }
        let after = match state_file::read(&state)? {
            Some(bytes) => {
                let opened = open_regular(OpenOptions::new().read(true), &state);
                opened.and_then(|file| file.sync_all()).map_err(|error| io_error("sync", &state, &error))?;
                std::str::from_utf8(&bytes).ok().map(Version::of)
            }
            None => None,
        };
        sync_directory(&self.root)?;
        self.drop_removed();
        tracing::debug!(contracts = self.unsynced.len(), "a new journal of the registry");
        let change = Change::Whole { after, text: text.to_owned() };
        self.at_ms = self.at_ms.max(now_ms()).max(modified_ms(&state));
        let (version, contracts, at_ms) = (Version::of(text), self.unsynced.clone(), self.at_ms);
        let record = Record { version, change, contracts, closed, at_ms };
        self.journal = Some(Journal::begin(&path, &self.boot, &record).map_err(|error| failed(&error))?);
        Ok(())
    }

    /// Drops the contracts of removed directories.
    fn drop_removed(&mut self) {
        let workers = self.root.join("w");
        let (mut at, mut dropped) = (0, 0);
        let count = self.syncing.as_ref().map_or(0, |syncing| syncing.count);
        self.unsynced.retain(|one| {
            let gone = |error: io::Error| error.kind() == io::ErrorKind::NotFound;
            let is_there = !fs::symlink_metadata(workers.join(&one.dir)).is_err_and(gone);
            dropped += usize::from(!is_there && at < count);
            at += 1;
            is_there
        });
        if let Some(syncing) = &mut self.syncing {
            syncing.count -= dropped;
        }
    }

    /// Starts to sync the file system if half of the journal is in use, and if the next one would have to contain too many
    /// contracts.
    fn begin_sync(&mut self) {
        let Some(journal) = self.journal.as_ref().filter(|journal| journal.is_half_full()) else { return };
        let room = journal.room_for_contracts();
        if self.syncing.is_some() || self.contract_bytes() <= room {
            return;
        }
        // Most commands of a large run are over and cleaned by now.
        self.drop_removed();
        if self.contract_bytes() <= room {
            return;
        }
        let workers = self.root.join("w");
        let thread = std::thread::Builder::new().name("sync".to_owned()).spawn(move || sync_file_system(&workers));
        // Without a thread, the next journal contains the contracts again.
        self.syncing = thread.ok().map(|thread| Syncing { thread, count: self.unsynced.len() });
    }

    /// Returns the size of the contracts that the next journal must contain.
    fn contract_bytes(&self) -> usize {
        self.unsynced.iter().map(|one| one.text.len()).sum()
    }

    /// Drops the contracts that are durable now, if a sync has ended with success.
    fn end_sync(&mut self) {
        let Some(syncing) = self.syncing.take_if(|syncing| syncing.thread.is_finished()) else { return };
        match syncing.thread.join() {
            Ok(Ok(())) => drop(self.unsynced.drain(..syncing.count)),
            Ok(Err(error)) => tracing::warn!(%error, "cannot sync the workers' contracts; the journal keeps them"),
            Err(_) => {}
        }
    }

    /// Brings the file and the contracts to the state of the last commit if the journal was written before this boot.
    ///
    /// # Errors
    /// Fails if the journal cannot be read, or if a file cannot be read or written.
    pub fn recover(&mut self) -> Result<(), StoreError> {
        let path = self.path();
        let read = journal::read_of_other_boot(&path, &self.boot);
        let Some(content) = read.map_err(|error| io_error("read", &path, &error))? else { return Ok(()) };
        let state = self.root.join("state.json");
        let found = read_if_text(&state)?;
        let text = replayed(&self.root, &content, found.as_deref());
        let table = text.as_deref().or(found.as_deref()).and_then(|text| Table::parse(text).ok()).unwrap_or_default();
        for contract in contracts(&content.records) {
            restore(&self.root, &table, &contract)?;
        }
        if let Some(text) = text {
            tracing::warn!("state.json was not written completely before the power was lost; restoring it");
            replace_durably(&self.root, "state.json", text.as_bytes())
                .map_err(|error| io_error("restore", &state, &error))?;
        }
        Ok(())
    }

    fn path(&self) -> PathBuf {
        journal_of(&self.root)
    }
}

/// Returns the text that a reader must take for that of the file, if a power cut has left another one.
///
/// # Errors
/// Fails if the journal or the file cannot be read.
pub fn text_after_power_cut(root: &Path, boot: &str) -> Result<Option<String>, StoreError> {
    let path = journal_of(root);
    let read = journal::read_of_other_boot(&path, boot);
    match read.map_err(|error| io_error("read", &path, &error))? {
        Some(content) => Ok(replayed(root, &content, read_if_text(&root.join("state.json"))?.as_deref())),
        None => Ok(None),
    }
}

/// Returns the contracts that only a journal of an earlier boot may have, because their files were not synced.
///
/// # Errors
/// Fails if the journal exists and cannot be read.
pub fn contracts_of_other_boot(root: &Path, boot: &str) -> io::Result<Vec<Unsynced>> {
    let content = journal::read_of_other_boot(&journal_of(root), boot)?;
    Ok(content.map(|content| contracts(&content.records)).unwrap_or_default())
}

fn now_ms() -> u64 {
    unix_ms(SystemTime::now())
}

/// Returns when a file was modified, in Unix milliseconds; 0 if that is unknown.
fn modified_ms(path: &Path) -> u64 {
    fs::symlink_metadata(path).and_then(|meta| meta.modified()).map_or(0, unix_ms)
}

fn unix_ms(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

fn journal_of(root: &Path) -> PathBuf {
    root.join("state.journal")
}

fn read_if_text(path: &Path) -> Result<Option<String>, StoreError> {
    // A torn file is no text; it must differ from a missing one.
    Ok(state_file::read(path)?.map(|bytes| String::from_utf8(bytes).unwrap_or_default()))
}

/// Reports whether a journal of an earlier boot is there, or cannot be read.
pub fn is_of_other_boot(root: &Path, boot: &str) -> bool {
    journal::read_of_other_boot(&journal_of(root), boot).map_or(true, |content| content.is_some())
}

/// Returns the text that the file must have, and `None` if it has it already, or if somebody changed it after the last
/// commit, or removed the whole registry. Compares only times that were recorded by the same clock before the power cut:
/// the clock of the next boot may be wrong.
fn replayed(root: &Path, content: &Content, found: Option<&str>) -> Option<String> {
    let (path, state) = (journal_of(root), root.join("state.json"));
    let is_later = content.records.last().is_some_and(|last| last.at_ms > 0 && modified_ms(&state) > last.at_ms);
    let is_whole = found.is_some_and(|text| Table::parse(text).is_ok());
    if is_whole && is_later || found.is_none() && !root.join("w").exists() {
        return None;
    }
    if content.is_damaged {
        tracing::error!(path = %path.display(), "the registry's journal is damaged; commits after the damage are lost");
    }
    replay(&content.records, found).unwrap_or_else(|cause| {
        tracing::error!(path = %path.display(), cause, "the registry's journal cannot be used");
        None
    })
}

/// Writes the contract of a row if its file was lost. The directory of another start, whose removal was lost, is
/// replaced.
///
/// # Errors
/// Fails if the contract cannot be written. What cannot be read is left to the supervisor, which tries again.
fn restore(root: &Path, table: &Table, contract: &Unsynced) -> Result<(), StoreError> {
    let Ok(spec) = serde_json::from_str::<Spec>(&contract.text) else { return Ok(()) };
    let row = table.find(&spec.name).and_then(|row| row.swarm().cloned());
    if row.is_none_or(|row| row.id != spec.token || row.generation != spec.generation) {
        return Ok(());
    }
    let dir = root.join("w").join(&contract.dir);
    let mut leaf = "spec.pending";
    for name in ["spec.json", "spec.pending"] {
        match fs::read(dir.join(name)) {
            Ok(bytes) => match serde_json::from_slice::<Spec>(&bytes) {
                Ok(found) if found.token == spec.token => return Ok(()),
                Ok(_) => fs::remove_dir_all(&dir).map_err(|error| io_error("remove", &dir, &error))?,
                Err(_) => leaf = name,
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                tracing::error!(dir = %dir.display(), %error, "cannot read the contract of a worker");
                return Ok(());
            }
        }
    }
    tracing::warn!(worker = spec.name, generation = spec.generation, "restoring a contract that a power cut had taken");
    let written = make_dirs(&dir).and_then(|()| replace_durably(&dir, leaf, contract.text.as_bytes()));
    written.map_err(|error| io_error("restore the contract in", &dir, &error))
}

fn sync_directory(path: &Path) -> Result<(), StoreError> {
    let synced = File::open(path).and_then(|directory| directory.sync_all());
    synced.map_err(|error| io_error("sync", path, &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn commit(durable: &mut Durable, state: &Path, number: usize) {
        let dir = format!("job.{number}");
        let contract = Unsynced { dir, text: "x".repeat(3000) };
        let table = Table::default();
        let text = table.render();
        let commit =
            Commit { old: &table, old_file: file_id(state), new: &table, text: &text, contracts: vec![contract] };
        durable.record(commit).expect("recorded");
        fs::write(state, &text).expect("written");
        durable.committed(file_id(state));
    }

    /// Number of commits that fill more than half of a journal.
    const MANY: usize = 80;

    #[test]
    fn only_contracts_of_workers_that_are_there_need_a_sync_of_the_file_system() {
        for stay in [false, true] {
            let home = tempfile::tempdir().expect("a directory");
            let state = home.path().join("state.json");
            let mut durable = Durable::new(home.path(), "boot".to_owned());
            for number in 0..MANY {
                let dir = home.path().join("w").join(format!("job.{number}"));
                fs::create_dir_all(&dir).expect("made");
                commit(&mut durable, &state, number);
                if !stay {
                    fs::remove_dir(&dir).expect("removed");
                }
                let is_full = durable.journal.as_ref().is_some_and(Journal::is_half_full);
                assert!(stay || durable.syncing.is_none(), "the file system is synced for removed workers");
                if stay && is_full {
                    assert!(durable.syncing.is_some());
                    break;
                }
            }
            assert_eq!(durable.syncing.is_some(), stay);
        }
    }
}
