//! `state.json` on disk. Only this module writes the file.
//!
//! A mutation takes `flock(2)` on `state.lock` (the lock of the original `swarm`, on a file that is
//! never removed), reads `state.json` again if another program has written it, records the change in
//! the journal (`durable.rs`), and replaces the file. The lock is held only for these steps. Readers
//! take no lock, because a rename is atomic.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::durable::{Commit, Durable, contracts_of_other_boot, is_of_other_boot, text_after_power_cut};
use super::error::{Refused, StoreError};
use super::machine::{Mutation, apply};
use super::replay::Unsynced;
use super::state_file;
use super::table::Table;
use swarm_model::{Row, Spec};
use swarm_sys::files::lock::{holder, lock_within};
use swarm_sys::files::{list, reserve};
use swarm_sys::procfs;

/// Maximum wait of a mutation for the lock. The original `swarm` waits forever.
pub const LOCK_WAIT_MAX: Duration = Duration::from_secs(10);
/// Maximum wait for the lock when the registry is opened or closed.
pub const CLOSE_WAIT_MAX: Duration = Duration::from_secs(1);
/// Size of `state.json`, in bytes, above which it is read only if it is a registry. One of ten thousand workers takes 6 MB.
pub const STATE_BYTES_MAX: u64 = 64 << 20;
/// Maximum size of a registry that is read, in bytes. Other programs and earlier versions write more than
/// [`STATE_BYTES_MAX`]; the workers in it can be ended and forgotten.
pub const REGISTRY_BYTES_MAX: u64 = 256 << 20;
/// Maximum size of `state.json` after a start, in bytes. The rest is for changes that must never fail: ends, removals, and
/// rows that were lost.
pub const START_BYTES_MAX: u64 = STATE_BYTES_MAX / 2;
/// Maximum number of quarantined copies of damaged files.
const QUARANTINE_MAX: u32 = 1000;

/// Result of reading the file.
#[derive(Debug)]
pub enum Loaded<T = Table> {
    Absent,
    Table(T),
    /// The file cannot be parsed, for this reason.
    Damaged(String),
}

/// The registry's file, with a cache of the content last read or written.
pub struct Store {
    root: PathBuf,
    cached: Option<(FileId, Table)>,
    /// Whether another program has written the file since the last query.
    changed_by_others: bool,
    lock_wait: Duration,
    temporary: u64,
    durable: Durable,
    /// Whether the file was compared with the journal of an earlier boot.
    is_recovered: bool,
}

/// Returns the rows that the workers' records prove.
pub type Rebuild<'a> = &'a dyn Fn() -> io::Result<Vec<Row>>;

/// Identity of one version of the file. Each write creates a new inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileId {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// Proof that the registry lock is held. Dropping it releases the lock.
pub struct LockGuard(#[allow(dead_code, reason = "held for its lock")] File);

impl Store {
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self::of_boot(root, procfs::boot_id())
    }

    /// Returns the store of a process that runs during this boot.
    pub fn of_boot(root: impl Into<PathBuf>, boot: String) -> Self {
        let root = root.into();
        let durable = Durable::new(&root, boot);
        Self {
            root,
            cached: None,
            changed_by_others: false,
            lock_wait: LOCK_WAIT_MAX,
            temporary: 0,
            durable,
            is_recovered: false,
        }
    }

    /// Restores the file, and the contracts of its workers, if a power cut has taken a part of them. Precedes reading
    /// the workers' records: a torn contract would be taken for that of a start that was never committed.
    ///
    /// # Errors
    /// Fails if the lock cannot be acquired, or if a file cannot be read or written.
    pub fn recover(&mut self) -> Result<(), StoreError> {
        if is_of_other_boot(&self.root, self.durable.boot()) {
            let guard = self.lock()?;
            self.durable.recover()?;
            if let Err(error) = self.recover_once(&guard) {
                tracing::warn!(%error, "cannot begin a new journal of the registry yet");
            }
            return Ok(());
        }
        let noted = lock(&self.root, CLOSE_WAIT_MAX).and_then(|guard| self.recover_once(&guard));
        if let Err(error) = noted {
            tracing::warn!(%error, "cannot begin a new journal of the registry yet");
        }
        Ok(())
    }

    /// Begins a journal with the file as this process finds it, once: that of an earlier process does not know what
    /// other programs wrote since.
    fn recover_once(&mut self, _: &LockGuard) -> Result<(), StoreError> {
        if !self.is_recovered {
            self.durable.recover()?;
            self.durable.note(false)?;
            self.is_recovered = true;
        }
        Ok(())
    }

    /// Records the changes of other programs, so that a power cut does not bring back what they replaced.
    ///
    /// # Errors
    /// Fails if a file cannot be read or written.
    pub fn note_changes(&mut self, guard: &LockGuard) -> Result<(), StoreError> {
        self.recover_once(guard)?;
        if self.durable.is_behind(file_id(&self.state())) { self.durable.note(false) } else { Ok(()) }
    }

    /// Records that this process writes no more. Whatever the file contains later is what another program wrote.
    ///
    /// # Errors
    /// Fails if a file cannot be read or written.
    pub fn close(&mut self, guard: &LockGuard) -> Result<(), StoreError> {
        self.recover_once(guard)?;
        self.durable.note(true)
    }

    /// Reports whether another program has written the file since the previous call, and resets that.
    pub fn take_changed_by_others(&mut self) -> bool {
        std::mem::take(&mut self.changed_by_others)
    }

    /// Sets the maximum wait for the lock, for tests in which another process holds it.
    #[must_use]
    pub fn lock_wait(mut self, wait: Duration) -> Self {
        self.lock_wait = wait;
        self
    }

    fn state(&self) -> PathBuf {
        self.root.join("state.json")
    }

    /// Reports whether there is no file.
    pub fn is_missing(&self) -> bool {
        file_id(&self.state()).is_none()
    }

    /// Returns the table that is on disk now. A damaged file is quarantined as a hard link and
    /// replaced in memory by the rows that `rebuild` returns; the second value then describes the
    /// damage. A missing file counts as damaged if there are records of workers.
    ///
    /// # Errors
    /// Fails if the file or, for a rebuild, the records cannot be read, or a damaged file cannot be
    /// quarantined.
    pub fn read(&mut self, rebuild: Rebuild<'_>) -> Result<(&Table, Option<String>), StoreError> {
        let path = self.state();
        let before = file_id(&path);
        let known = matches!((&self.cached, before), (Some((id, _)), Some(now)) if *id == now);
        let mut damage = None;
        if !known {
            self.changed_by_others |= self.cached.is_some();
            let rebuilt = || rebuild().map_err(|error| io_error("rebuild", &path, &error));
            let table = match load_of_boot(&path, self.durable.boot(), Table::parse)? {
                Loaded::Absent => {
                    let rows = rebuilt()?;
                    damage = (!rows.is_empty()).then(|| "the file is missing".to_owned());
                    Table::of(rows)
                }
                Loaded::Table(table) => table,
                Loaded::Damaged(cause) => {
                    quarantine(&path)?;
                    damage = Some(cause);
                    Table::of(rebuilt()?)
                }
            };
            // If the file is missing or damaged, the next call reads it again.
            let id = before.filter(|_| damage.is_none()).unwrap_or(FileId::NONE);
            self.cached = Some((id, table));
        }
        let (_, table) = self.cached.as_ref().expect("was filled above");
        Ok((table, damage))
    }

    /// Applies the mutations in one commit and returns the answer to each. If this returns `Ok`, the
    /// applied mutations are durable and visible.
    ///
    /// # Errors
    /// Returns why the commit failed. The registry then treats the whole batch as not applied.
    pub fn commit(
        &mut self,
        batch: Vec<Mutation>,
        rebuild: Rebuild<'_>,
    ) -> Result<Vec<Result<(), Refused>>, StoreError> {
        let guard = self.lock()?;
        self.commit_under(&guard, batch, rebuild)
    }

    /// Like [`commit`](Self::commit), under a lock that the caller holds.
    ///
    /// # Errors
    /// As [`commit`](Self::commit), but for the lock.
    pub fn commit_under(
        &mut self,
        guard: &LockGuard,
        batch: Vec<Mutation>,
        rebuild: Rebuild<'_>,
    ) -> Result<Vec<Result<(), Refused>>, StoreError> {
        self.recover_once(guard)?;
        let (table, damage) = self.read(rebuild)?;
        if let Some(version) = table.newer_schema() {
            return Err(StoreError::NewerSchema { path: self.state(), version });
        }
        let mut new = table.clone();
        let (mut answers, mut contracts) = (Vec::with_capacity(batch.len()), Vec::new());
        for mut mutation in batch {
            let contract = mutation.take_contract();
            answers.push(apply(&mut new, mutation));
            contracts.extend(contract.filter(|_| answers.last().is_some_and(Result::is_ok)));
        }
        if damage.is_some() || answers.iter().any(Result::is_ok) {
            let is_start = !contracts.is_empty();
            let file = match self.replace(guard, &new, contracts) {
                // The end or the removal of a worker is what makes room.
                Err(StoreError::Io { is_full: true, .. }) if !is_start && reserve::give_up(&self.root) => {
                    self.replace(guard, &new, Vec::new())
                }
                replaced => replaced,
            }?;
            self.cached = file.map(|id| (id, new));
        }
        Ok(answers)
    }

    /// Writes a temporary file, records the change, and renames the file over `state.json`. Returns that file.
    /// `durable.rs` describes what a power cut leaves after each step.
    fn replace(&mut self, _: &LockGuard, new: &Table, contracts: Vec<Unsynced>) -> Result<Option<FileId>, StoreError> {
        let path = self.state();
        self.temporary += 1;
        let temporary = self.root.join(format!("state.json.tmp.{}.{}", std::process::id(), self.temporary));
        let text = new.render();
        let (old_file, old) = match &self.cached {
            Some((id, table)) => (Some(*id), table),
            None => (None, &Table::default()),
        };
        let commit = Commit { old, old_file, new, text: &text, contracts };
        let written =
            write_new(&temporary, text.as_bytes()).and_then(|()| self.durable.record(commit)).and_then(|()| {
                let renamed = fs::rename(&temporary, &path);
                renamed.inspect_err(|_| self.durable.failed()).map_err(|error| io_error("replace", &path, &error))
            });
        if let Err(error) = written {
            let _ = fs::remove_file(&temporary);
            return Err(error);
        }
        let file = file_id(&path);
        self.durable.committed(file);
        let _ = reserve::keep(&self.root, 2 * text.len() as u64);
        Ok(file)
    }

    /// Deletes the temporary files of killed commits.
    ///
    /// # Errors
    /// Fails if the lock cannot be acquired.
    pub fn tidy(&self) -> Result<(), StoreError> {
        self.sweep(&self.lock()?);
        Ok(())
    }

    /// Deletes all temporary files. Under the lock no other commit is in progress, so none of them is
    /// in use. Failures are ignored.
    fn sweep(&self, _: &LockGuard) {
        for entry in list(&self.root).into_iter().flatten() {
            if entry.file_name().to_string_lossy().starts_with("state.json.tmp.") {
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    fn lock(&self) -> Result<LockGuard, StoreError> {
        lock(&self.root, self.lock_wait)
    }
}

/// Acquires the lock of the registry in `root`.
///
/// # Errors
/// Fails if the lock is not free within `wait`, and names the process that holds it.
pub fn lock(root: &Path, wait: Duration) -> Result<LockGuard, StoreError> {
    let path = root.join("state.lock");
    let deadline = Instant::now() + wait;
    loop {
        let open = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
        let file = open.map_err(|error| io_error("open", &path, &error))?;
        let left = deadline.saturating_duration_since(Instant::now());
        let file = match lock_within(file, left) {
            Ok(Some(file)) => file,
            Ok(None) => {
                let waited_s = wait.as_secs();
                return Err(StoreError::Locked { holder: holder(&path), path, waited_s });
            }
            Err(error) => return Err(io_error("lock", &path, &error)),
        };
        // The lock is valid only if the path still names this file.
        let ours = file.metadata().map(|meta| (meta.dev(), meta.ino()));
        let there = fs::metadata(&path).map(|meta| (meta.dev(), meta.ino()));
        if matches!((ours, there), (Ok(ours), Ok(there)) if ours == there) {
            return Ok(LockGuard(file));
        }
        if left.is_zero() {
            let error = io::Error::other("the file is replaced again and again");
            return Err(io_error("lock", &path, &error));
        }
    }
}

/// Reads and parses `path`, the file `state.json`, without taking a lock. If a power cut has left another text than the
/// last commit made, returns that of the commit.
///
/// # Errors
/// Fails if it is not a regular file, is larger than [`STATE_BYTES_MAX`] and no registry, is larger than
/// [`REGISTRY_BYTES_MAX`], or cannot be read.
pub fn load(path: &Path) -> Result<Loaded, StoreError> {
    load_with(path, Table::parse)
}

/// Reports whether a supervisor has to compare the registry in `root` with a journal of an earlier boot first.
pub fn is_behind_journal(root: &Path) -> bool {
    is_of_other_boot(root, &procfs::boot_id())
}

/// Contracts that only the journal of an earlier boot may have: a power cut may have taken their files, until a supervisor
/// restores them.
#[derive(Debug)]
pub struct LostContracts(Vec<Unsynced>);

impl LostContracts {
    /// Reads the journal in `root`.
    ///
    /// # Errors
    /// Fails if the journal exists and cannot be read.
    pub fn read(root: &Path, boot: &str) -> io::Result<Self> {
        contracts_of_other_boot(root, boot).map(Self)
    }

    /// Returns the contract of the worker directory `dir`, if the journal has it.
    pub fn of(&self, dir: &str) -> Option<Spec> {
        let found = self.0.iter().find(|one| one.dir == dir)?;
        serde_json::from_str(&found.text).ok()
    }
}

/// Reads `path` without taking a lock and passes its text to `parse`.
///
/// # Errors
/// As [`load`].
pub fn load_with<T>(path: &Path, parse: impl FnOnce(&str) -> Result<T, String>) -> Result<Loaded<T>, StoreError> {
    load_of_boot(path, &procfs::boot_id(), parse)
}

fn load_of_boot<T>(
    path: &Path,
    boot: &str,
    parse: impl FnOnce(&str) -> Result<T, String>,
) -> Result<Loaded<T>, StoreError> {
    let read = state_file::read(path)?;
    if let Some(root) = path.parent()
        && let Some(text) = text_after_power_cut(root, boot)?
    {
        return Ok(parse(&text).map_or_else(Loaded::Damaged, Loaded::Table));
    }
    let Some(bytes) = read else { return Ok(Loaded::Absent) };
    let parsed = match std::str::from_utf8(&bytes) {
        Ok(text) => parse(text),
        Err(error) => Err(format!("not valid UTF-8: {error}")),
    };
    if parsed.is_err() && bytes.len() as u64 > STATE_BYTES_MAX {
        return Err(StoreError::TooLarge { path: path.to_owned(), limit_bytes: STATE_BYTES_MAX });
    }
    Ok(parsed.map_or_else(Loaded::Damaged, Loaded::Table))
}

/// Quarantines a damaged file as a hard link under another name. The link takes no space, and the
/// original path stays in place. A file that is already quarantined is not linked again.
///
/// # Errors
/// Fails if no link can be created. The file is then left untouched.
pub fn quarantine(path: &Path) -> Result<(), StoreError> {
    let inode = |path: &Path| fs::symlink_metadata(path).map(|meta| (meta.dev(), meta.ino())).ok();
    let damaged = inode(path);
    for number in 0..QUARANTINE_MAX {
        let mut name = path.as_os_str().to_owned();
        name.push(".corrupted");
        if number > 0 {
            name.push(format!(".{number}"));
        }
        let kept = PathBuf::from(name);
        match fs::hard_link(path, &kept) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                if inode(&kept) == damaged {
                    return Ok(());
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(io_error("quarantine", path, &error)),
        }
    }
    Err(io_error("quarantine", path, &io::Error::other("too many backups")))
}

/// Writes a temporary file. A crash in it leaves the file, which `sweep` deletes.
fn write_new(path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    let open = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let mut file = open.map_err(|error| io_error("create", path, &error))?;
    file.write_all(bytes).map_err(|error| io_error("write", path, &error))
}

pub(super) fn file_id(path: &Path) -> Option<FileId> {
    let meta = fs::symlink_metadata(path).ok()?;
    Some(FileId {
        device: meta.dev(),
        inode: meta.ino(),
        size: meta.len(),
        modified: (meta.mtime(), meta.mtime_nsec()),
        changed: (meta.ctime(), meta.ctime_nsec()),
    })
}

impl FileId {
    /// Identity that matches no file.
    const NONE: Self = Self { device: 0, inode: 0, size: 0, modified: (0, 0), changed: (0, 0) };
}

pub(super) fn io_error(step: &'static str, path: &Path, error: &io::Error) -> StoreError {
    StoreError::Io {
        step,
        path: path.to_owned(),
        cause: error.to_string(),
        is_full: reserve::is_full(error),
        errno: error.raw_os_error(),
    }
}
