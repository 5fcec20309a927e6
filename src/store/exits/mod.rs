//! Exit records that a power cut must not take: `exit.slots`, beside `state.json`.
//!
//! The file was allocated and written in advance, so that the end of a worker overwrites one block and syncs nothing but
//! that: no size, no allocation and no directory. Each start gets a slot of its own, a block that no other shim writes
//! (`assign.rs`). The ordinary file, `exit.json`, is written without a sync:
//!
//! | step | write | after a power cut right after it |
//! |---|---|---|
//! | 1 | `exit.json`, by a rename, not synced | it is there, or torn, or missing; nothing was acknowledged |
//! | 2 | the slot, synced: **the end** | the end, from the slot |
//! | 3 | the lease is released | the same; acknowledged now |
//!
//! Step 1 precedes step 2 so that a shim that is killed in between leaves the record to its own boot. A slot is valid if
//! its checksum is right, and belongs to the start that has its token. A start ends once, so an old record is true as long
//! as it is there. Whoever finds no `exit.json` of an earlier boot looks into the slot; the next supervisor writes the file
//! again.
//!
//! A shim without a slot, or with one that it cannot write, syncs `exit.json`, its directory, and `w/`.

mod assign;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use serde::{Deserialize, Serialize};
use swarm_model::{ExitRecord, Spec, Token};
use swarm_ports::SpecFacts;
use swarm_sys::files::{Durability, open_regular, replace_private};

pub use assign::Slots;
pub(crate) use assign::assigned;

use crate::records;

const FILE: &str = "exit.slots";
/// Size of a slot in bytes. A disk writes it as a whole, or in parts that are multiples of 512.
const SLOT: usize = 4096;
/// Maximum size of a file that is read, in bytes.
const SIZE_MAX: u64 = 16 << 20;
const MAGIC: [u8; 8] = *b"swarmend";
/// Magic, length, checksum.
const HEADER: usize = 8 + 4 + 4;

/// Content of a slot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Entry {
    /// Name of the directory below `w/`.
    dir: String,
    /// Boot in which the worker ended. In this boot `exit.json` is intact.
    boot: String,
    record: ExitRecord,
}

/// Slot of a shim, locked as long as the shim lives.
#[derive(Debug)]
pub struct Slot {
    file: File,
    path: PathBuf,
    number: u32,
    dir: String,
    boot: String,
}

impl Slot {
    /// Opens and locks a slot. `dir` is the name of the worker's directory below `w/`, and `boot` the present boot.
    ///
    /// # Errors
    /// Fails if there is no such slot, or if another shim has it.
    pub fn take(root: &Path, number: u32, dir: &str, boot: &str) -> io::Result<Self> {
        let path = root.join(FILE);
        let file = open_regular(OpenOptions::new().read(true).write(true), &path)?;
        if boot.is_empty() || number >= count(&file)? {
            return Err(io::Error::other("no such slot"));
        }
        fcntl(&file, FcntlArg::F_OFD_SETLK(&lock_of(number)))?;
        Ok(Self { file, path, number, dir: dir.to_owned(), boot: boot.to_owned() })
    }

    /// Writes the record durably.
    ///
    /// # Errors
    /// Fails if the record does not fit, if the file was removed, or with the error of the disk. The record may be
    /// durable all the same.
    pub fn write(&self, record: &ExitRecord) -> io::Result<()> {
        let entry = Entry { dir: self.dir.clone(), boot: self.boot.clone(), record: record.clone() };
        let block = encode(&entry)?;
        if identity(&self.file.metadata()?) != identity(&fs::symlink_metadata(&self.path)?) {
            return Err(io::Error::other("the file was replaced"));
        }
        self.file.write_all_at(&block, offset(self.number))?;
        self.file.sync_data()
    }
}

/// Completes what was read of one generation: its end, if a power cut took the file, and that it was executed, which an
/// end proves. `boot` is the present boot.
///
/// # Errors
/// Fails if the slots exist and cannot be read.
pub(crate) fn complete(root: &Path, boot: &str, spec: &mut SpecFacts, exit: &mut Option<ExitRecord>) -> io::Result<()> {
    if let Some(spec) = spec.spec().filter(|_| exit.is_none()) {
        *exit = after_power_cut(root, boot, spec)?;
    }
    if let (SpecFacts::Pending(pending), true) = (&*spec, exit.is_some()) {
        *spec = SpecFacts::Executed(pending.clone());
    }
    Ok(())
}

/// Returns the end of a worker of an earlier boot from its slot.
fn after_power_cut(root: &Path, boot: &str, spec: &Spec) -> io::Result<Option<ExitRecord>> {
    let is_of_boot = spec.machine.as_ref().is_none_or(|machine| machine.boot == boot);
    let Some(number) = spec.exit_slot.filter(|_| !is_of_boot) else { return Ok(None) };
    let Some(file) = open(root)? else { return Ok(None) };
    if number >= count(&file)? {
        return Ok(None);
    }
    let mut block = [0; SLOT];
    file.read_exact_at(&mut block, offset(number))?;
    let is_its_own = |entry: &Entry| entry.record.token == spec.token && entry.boot != boot;
    Ok(decode(&block).filter(is_its_own).map(|entry| entry.record))
}

/// Ends of workers of earlier boots, for a reader of many workers.
#[derive(Debug, Default)]
pub struct LostEnds(Vec<ExitRecord>);

impl LostEnds {
    /// Reads all slots.
    ///
    /// # Errors
    /// Fails if the file exists and cannot be read.
    pub fn read(root: &Path, boot: &str) -> io::Result<Self> {
        let entries = entries(root)?.into_iter().map(|(_, entry)| entry);
        Ok(Self(entries.filter(|entry| entry.boot != boot).map(|entry| entry.record).collect()))
    }

    /// Returns the end of the start with this token.
    pub fn of(&self, token: &Token) -> Option<ExitRecord> {
        self.0.iter().find(|record| record.token == *token).cloned()
    }
}

/// Writes each `exit.json` again that a power cut took. It is not synced: its slot keeps the record until the file is
/// durable. What fails is left to the readers, which look into the slots, and to the next supervisor.
///
/// # Errors
/// Fails if the slots cannot be read, or with the first file that cannot be written.
pub(crate) fn restore(root: &Path, boot: &str) -> io::Result<()> {
    let mut done = Ok(());
    for (_, entry) in entries(root)?.into_iter().filter(|(_, entry)| entry.boot != boot && !boot.is_empty()) {
        let dir = root.join("w").join(&entry.dir);
        done = done.and(restore_one(&dir, &entry.record));
    }
    done
}

fn restore_one(dir: &Path, record: &ExitRecord) -> io::Result<()> {
    let spec = records::spec(dir)?;
    let is_its_own = spec.spec().is_some_and(|spec| spec.token == record.token);
    if !is_its_own || records::record::<ExitRecord>(&dir.join("exit.json"))?.is_some() {
        return Ok(());
    }
    tracing::warn!(dir = %dir.display(), "restoring an exit record that a power cut had taken");
    replace_private(dir, "exit.json", &serde_json::to_vec(record)?, Durability::None)
}

/// Returns the valid slots, by their numbers.
fn entries(root: &Path) -> io::Result<Vec<(u32, Entry)>> {
    let Some(file) = open(root)? else { return Ok(Vec::new()) };
    let mut bytes = Vec::new();
    file.take(SIZE_MAX).read_to_end(&mut bytes)?;
    Ok((0..).zip(bytes.chunks_exact(SLOT)).filter_map(|(number, block)| Some((number, decode(block)?))).collect())
}

fn open(root: &Path) -> io::Result<Option<File>> {
    let path = root.join(FILE);
    match open_regular(OpenOptions::new().read(true), &path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        // That says nothing about the file.
        Err(error) if records::lacks_resources(&error) => Err(error),
        Err(error) => Err(io::Error::new(error.kind(), format!("cannot read {}: {error}", path.display()))),
    }
}

/// Returns why the ends of workers of earlier boots cannot be read, if that is so.
pub fn damage(root: &Path) -> Option<String> {
    open(root).err().map(|error| error.to_string())
}

/// Returns the number of slots of a file.
fn count(file: &File) -> io::Result<u32> {
    Ok(u32::try_from(file.metadata()?.len().min(SIZE_MAX) / SLOT as u64).unwrap_or(0))
}

fn offset(number: u32) -> u64 {
    u64::from(number) * SLOT as u64
}

/// Returns the lock that a shim holds on its slot.
fn lock_of(number: u32) -> libc::flock {
    libc::flock {
        l_start: libc::off_t::from(number) * SLOT as libc::off_t,
        l_len: SLOT as libc::off_t,
        ..records::whole_file_lock()
    }
}

/// Returns what tells a file from another one that takes its place.
fn identity(meta: &fs::Metadata) -> (u64, u64) {
    (meta.dev(), meta.ino())
}

fn encode(entry: &Entry) -> io::Result<Vec<u8>> {
    let payload = serde_json::to_vec(entry)?;
    if payload.len() > SLOT - HEADER {
        return Err(io::Error::other("the record is larger than its slot"));
    }
    let length = u32::try_from(payload.len()).map_err(io::Error::other)?;
    let mut block = Vec::with_capacity(SLOT);
    block.extend_from_slice(&MAGIC);
    block.extend_from_slice(&length.to_le_bytes());
    block.extend_from_slice(&[0; 4]);
    block.extend_from_slice(&payload);
    let checksum = crc32fast::hash(&block);
    block[12..HEADER].copy_from_slice(&checksum.to_le_bytes());
    block.resize(SLOT, 0);
    Ok(block)
}

/// Finds out once, for all processes that are forked from this one, how this processor computes checksums fastest.
pub fn learn() {
    crc32fast::hash(&MAGIC);
}

fn decode(block: &[u8]) -> Option<Entry> {
    let number = |at: usize| Some(u32::from_le_bytes(block.get(at..at + 4)?.try_into().ok()?));
    let length = usize::try_from(number(8)?).ok()?;
    let whole = block.get(..HEADER.checked_add(length)?).filter(|whole| whole.starts_with(&MAGIC))?;
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&whole[..12]);
    hasher.update(&[0; 4]);
    hasher.update(&whole[HEADER..]);
    if hasher.finalize() != number(12)? {
        return None;
    }
    // The name becomes a part of paths.
    let is_name = |entry: &Entry| !entry.dir.contains('/') && !matches!(entry.dir.as_str(), "" | "." | "..");
    serde_json::from_slice(&whole[HEADER..]).ok().filter(is_name)
}

#[cfg(test)]
mod tests;
