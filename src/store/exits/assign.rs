//! Assignment of slots to starts. Only the supervisor does this, of which there is one.
//!
//! A slot is free if no record can be needed from it. It is taken by a start from the assignment until the directory of the
//! start was removed, or until its `exit.json` is durable: the file system was synced after the file had its name. A
//! directory is removed after its row, so that nobody asks for its end. A new supervisor finds taken slots by the contracts
//! below `w/`, and by the records in the slots. A slot whose lock is held is never assigned, whatever is known about it.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use serde::Deserialize;
use swarm_ports::BoxFuture;
use swarm_sys::files::{is_absent, list_if_present, open_regular, remove_if_present, sync_file_system};

use crate::records::record;

use super::{FILE, SLOT, count, entries, identity, lock_of, offset};

/// Number of slots of a new file.
const COUNT: u32 = 128;

/// Slots whose ends are durable once a sync has ended, each with the serial number of its assignment.
type Synced = Vec<(u32, u64)>;

/// Slots of one state directory.
#[derive(Debug)]
pub struct Slots {
    root: PathBuf,
    count: u32,
    table: Mutex<Option<Table>>,
}

#[derive(Debug)]
pub(super) struct Table {
    file: File,
    free: Vec<u32>,
    taken: BTreeMap<u32, Taken>,
    /// Number of assignments.
    serial: u64,
    pub(super) syncing: Option<JoinHandle<io::Result<Synced>>>,
    /// Number of starts after which to look for ends again, if there were too few.
    pause: usize,
}

#[derive(Debug, Default)]
struct Taken {
    /// Tells assignments of the same slot apart.
    serial: u64,
    /// Names of directories below `w/`: more than one if an earlier supervisor assigned the slot again.
    dirs: Vec<String>,
}

impl Slots {
    pub fn new(root: &Path) -> Self {
        Self::of(root, COUNT)
    }

    /// Like [`Slots::new`], for files with this number of slots.
    pub(super) fn of(root: &Path, count: u32) -> Self {
        Self { root: root.to_owned(), count, table: Mutex::new(None) }
    }

    /// Reports whether the next assignment need not read the workers' contracts first.
    pub fn is_open(&self) -> bool {
        self.table.try_lock().is_ok_and(|table| table.as_ref().is_some_and(|table| table.is_there(&self.root)))
    }

    /// Assigns a slot to the start in the directory `dir` below `w/`. `None` if all are taken or the file cannot be used:
    /// the shim then syncs its record in the ordinary way.
    pub fn assign(&self, dir: &str) -> Option<u32> {
        let mut kept = self.lock();
        if kept.as_ref().is_none_or(|table| !table.is_there(&self.root)) {
            *kept = None;
            match self.open() {
                Ok(table) => *kept = Some(table),
                Err(error) => tracing::warn!(%error, "cannot use the slots of exit records"),
            }
        }
        kept.as_mut()?.assign(dir, &self.root.join("w"))
    }

    /// Removes the directory of a start, and frees its slot.
    ///
    /// # Errors
    /// Fails as `remove` does. The slot is then still taken.
    pub fn removing(&self, dir: &Path, remove: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
        remove(dir)?;
        if let (Some(table), Some(name)) = (self.lock().as_mut(), dir.file_name().and_then(OsStr::to_str)) {
            table.forget(name);
        }
        Ok(())
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Option<Table>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self) -> io::Result<Table> {
        let path = self.root.join(FILE);
        let file = match open_regular(OpenOptions::new().read(true).write(true), &path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => create(&path, self.count)?,
            opened => opened?,
        };
        let taken = taken(&self.root)?;
        let free = (0..count(&file)?).rev().filter(|number| !taken.contains_key(number)).collect();
        Ok(Table { file, free, taken, serial: 0, syncing: None, pause: 0 })
    }
}

impl Table {
    /// Reports whether the path still names the file.
    fn is_there(&self, root: &Path) -> bool {
        let there = fs::symlink_metadata(root.join(FILE)).map(|meta| identity(&meta));
        matches!((self.file.metadata(), there), (Ok(ours), Ok(there)) if identity(&ours) == there)
    }

    fn assign(&mut self, dir: &str, workers: &Path) -> Option<u32> {
        self.end_sync();
        self.begin_sync(workers);
        self.take(dir)
    }

    pub(super) fn take(&mut self, dir: &str) -> Option<u32> {
        let number = loop {
            let number = self.free.pop()?;
            // A shim whose directory somebody removed. Its slot is left alone from now on.
            if !self.is_locked(number) {
                break number;
            }
        };
        self.serial += 1;
        self.taken.insert(number, Taken { serial: self.serial, dirs: vec![dir.to_owned()] });
        Some(number)
    }

    /// Reports whether a shim has the slot. If locks cannot be queried, it may have it.
    fn is_locked(&self, number: u32) -> bool {
        let mut lock = lock_of(number);
        let asked = fcntl(&self.file, FcntlArg::F_OFD_GETLK(&mut lock));
        asked.is_err() || i32::from(lock.l_type) != libc::F_UNLCK
    }

    fn forget(&mut self, dir: &str) {
        let free = &mut self.free;
        self.taken.retain(|number, taken| {
            let was_its_own = taken.dirs.iter().any(|other| other == dir);
            taken.dirs.retain(|other| other != dir);
            let is_free = was_its_own && taken.dirs.is_empty();
            free.extend(is_free.then_some(*number));
            !is_free
        });
    }

    /// Starts to sync the file system if few slots are free and there are ends that this makes durable.
    fn begin_sync(&mut self, workers: &Path) {
        let all = self.free.len() + self.taken.len();
        self.pause = self.pause.saturating_sub(1);
        if self.free.len() > all / 4 || self.pause > 0 || self.syncing.is_some() {
            return;
        }
        let has_ended = |dir: &String| workers.join(dir).join("exit.json").exists();
        let ended = self.taken.iter().filter(|(_, taken)| taken.dirs.iter().all(has_ended));
        let ended: Vec<_> = ended.map(|(number, taken)| (*number, taken.serial)).collect();
        self.pause = all / 8;
        if ended.is_empty() || ended.len() < all / 8 {
            return;
        }
        let workers = workers.to_owned();
        let sync = move || sync_file_system(&workers).map(|()| ended);
        self.syncing = std::thread::Builder::new().name("sync".to_owned()).spawn(sync).ok();
    }

    fn end_sync(&mut self) {
        if let Some(syncing) = self.syncing.take_if(|syncing| syncing.is_finished()) {
            self.free(syncing.join());
        }
    }

    /// Frees the slots of ends that a sync has made durable.
    pub(super) fn free(&mut self, synced: std::thread::Result<io::Result<Synced>>) {
        let ended = match synced {
            Ok(Ok(ended)) => ended,
            Ok(Err(error)) => return tracing::warn!(%error, "cannot sync exit records; their slots stay taken"),
            Err(_) => return,
        };
        for (number, serial) in ended {
            if self.taken.get(&number).is_some_and(|taken| taken.serial == serial) {
                self.taken.remove(&number);
                self.free.push(number);
            }
        }
    }
}

/// Assigns a slot to the start in the directory `dir`. The first assignment reads all contracts, and is made by another
/// thread.
pub(crate) fn assigned(slots: &Arc<Slots>, dir: String) -> BoxFuture<'static, Option<u32>> {
    if slots.is_open() {
        return Box::pin(std::future::ready(slots.assign(&dir)));
    }
    let slots = Arc::clone(slots);
    Box::pin(async move { tokio::task::spawn_blocking(move || slots.assign(&dir)).await.unwrap_or(None) })
}

/// Part of the contract that names the slot.
#[derive(Deserialize)]
struct Named {
    exit_slot: Option<u32>,
}

/// Returns the slots of all starts below `w/`. A contract that cannot be read is left out: a living shim has the lock of
/// its slot, and a record names its directory.
fn taken(root: &Path) -> io::Result<BTreeMap<u32, Taken>> {
    let mut taken: BTreeMap<u32, Taken> = BTreeMap::new();
    let mut take = |number: u32, dir: String| {
        let dirs = &mut taken.entry(number).or_default().dirs;
        if !dirs.contains(&dir) {
            dirs.push(dir);
        }
    };
    for entry in list_if_present(&root.join("w"))? {
        let Ok(dir) = entry.file_name().into_string() else { continue };
        for leaf in ["spec.json", "spec.pending"] {
            if let Ok(Some(Named { exit_slot: Some(number) })) = record(&entry.path().join(leaf)) {
                take(number, dir.clone());
            }
        }
    }
    for (number, entry) in entries(root)? {
        if !is_absent(&root.join("w").join(&entry.dir)) {
            take(number, entry.dir);
        }
    }
    Ok(taken)
}

/// Creates the file durably, with all of its blocks written: the first write of an allocated block would change the file.
fn create(path: &Path, count: u32) -> io::Result<File> {
    let temporary = PathBuf::from(format!("{}.tmp", path.display()));
    // Left by a killed supervisor, of which there is one at a time.
    remove_if_present(&temporary)?;
    let made = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&temporary);
    let made = made.and_then(|file| {
        file.write_all_at(&vec![0; SLOT * usize::try_from(count).unwrap_or(0)], offset(0))?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()?;
        Ok(file)
    });
    made.inspect_err(|_| drop(fs::remove_file(&temporary)))
}
