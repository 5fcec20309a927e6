//! Worker directories below `w/`: reads their records, probes leases without taking them, and does the few writes
//! that belong to the supervisor.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::libc;
use serde::de::DeserializeOwned;
use swarm_actors::registry::reconcile;
use swarm_actors::registry::store::LostContracts;
use swarm_model::{ExitRecord, Lease, ProcessId, Spec, Wanted, WantedState, WorkerName, worker_dir_name};
use swarm_ports::{BoxFuture, DirFacts, LeaseFacts, Mark, Note, Records, Scan, SpecFacts, Unreadable};

use crate::asks::Asks;
use crate::exits::{self, Slots};
use crate::generations::{self, GENERATION_MAX, Generations};
use crate::jobs;
use crate::leases::{self, probe};
pub use crate::leases::{is_held, wait_let_go, wait_let_go_within, whole_file_lock};
use crate::log_parts::unfinished;
pub use crate::record_text::{RECORD_BYTES_MAX, parse};
use swarm_sys::files::{
    Durability, absent_ok, blocking, list_if_present, make_dir, open_regular, remove_if_present, rename_if_present,
    replace_durably, replace_private, write_private,
};
use swarm_sys::machine::Gone;
use swarm_sys::paths::Paths;
use swarm_sys::{cgroups, procfs};

/// Marker file of a worker that makes no progress; holds the evidence.
pub const STUCK: &str = "stuck";
/// Marker file of a worker that waits for a person; holds the evidence.
pub const WAITS: &str = "waits";
/// Marker file of a worker whose turn is over; holds the evidence.
pub const IDLE: &str = "idle";
/// Empty marker file of a worker whose screen showed that it works, although it had reported that it waits.
pub const WORKS: &str = "works";
/// File that lists the control groups of a generation, one per line.
pub const GROUPS: &str = "groups";

pub struct DiskRecords {
    paths: Paths,
    boot: String,
    slots: Arc<Slots>,
    generations: Arc<Generations>,
}

impl DiskRecords {
    pub fn new(paths: Paths) -> Self {
        let (slots, generations) = (Arc::new(Slots::new(paths.root())), Arc::new(Generations::new(&paths)));
        Self { paths, boot: procfs::boot_id(), slots, generations }
    }

    pub fn boot(&self) -> &str {
        &self.boot
    }

    /// Reads the records of one generation. Malformed records count as absent; `None` if there is no directory.
    ///
    /// # Errors
    /// Fails if the directory or a record in it exists and cannot be read, or if only the worker's process can tell
    /// whether the worker has ended and cannot be examined. None of these means that it has ended.
    pub fn read(&self, name: &str, generation: u64) -> io::Result<Option<DirFacts>> {
        let dir = self.paths.worker(name, generation);
        match fs::symlink_metadata(&dir) {
            Ok(meta) if meta.is_dir() => {}
            Ok(_) => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return self.lost(name, generation),
            Err(error) => return Err(error),
        }
        // The lease is read before the exit record, which is written before the lease is released: a lease found free
        // therefore always has its record, unless the shim died.
        let (held, mut content) = probe(&dir)?.unwrap_or_default();
        let mut exit: Option<ExitRecord> = record(&dir.join("exit.json"))?;
        if content.is_none() && (held || exit.is_none()) {
            content = self.unwritten_lease(&dir)?;
        }
        let mut lease = self.with_process(held, content, !held && exit.is_none())?;
        let mut spec = spec(&dir)?;
        if let Some(job) = spec.spec().map(|spec| jobs::read(&dir, spec, &self.paths)).transpose()?.flatten() {
            let wanted: Wanted = record(&dir.join("wanted.json"))?.unwrap_or_default();
            let content = spec.spec().map(jobs::lease);
            let lease = jobs::facts(job, content, exit.as_mut(), &wanted);
            return Ok(Some(DirFacts { name: name.to_owned(), generation, spec, lease, exit, wanted }));
        }
        if matches!(spec, SpecFacts::Missing)
            && let Some(lost) = self.lost_contract(name, generation)?
        {
            spec = SpecFacts::Pending(Box::new(lost));
        }
        exits::complete(self.paths.root(), &self.boot, &mut spec, &mut exit)?;
        if lease.content.is_none() && !held {
            lease.content = spec.spec().and_then(|spec| spec.lost_lease(&self.boot));
        }
        let machine = lease.content.as_ref().and_then(|lease| lease.machine.as_ref());
        let machine = machine.or_else(|| spec.spec().and_then(|spec| spec.machine.as_ref()));
        lease.elsewhere = Gone::new(&self.paths).elsewhere(machine)?;
        let wanted: Wanted = record(&dir.join("wanted.json"))?.unwrap_or_default();
        if let Some(exit) = exit.as_mut().filter(|_| wanted.state == WantedState::Stopped) {
            // Whatever signal came first, it was to be stopped.
            exit.interrupted = false;
        }
        Ok(Some(DirFacts { name: name.to_owned(), generation, spec, lease, exit, wanted }))
    }

    /// Reports whether a start of this name after `generation` may have records. A look at two files is cheaper than the
    /// list of all directories.
    pub(crate) fn may_have_later(&self, name: &str, generation: u64) -> bool {
        let next = generation.saturating_add(1);
        // A later start got the next number, or a higher one because of this number.
        self.paths.worker(name, next).exists() || self.generations.highest(name).map_or(true, |it| it >= generation)
    }

    /// Returns the lease of an executed start of this boot that has no readable one, if its worker is found.
    fn unwritten_lease(&self, dir: &Path) -> io::Result<Option<Lease>> {
        match spec(dir)? {
            SpecFacts::Executed(spec)
                if spec.contract.job.is_none() && spec.machine.as_ref().is_none_or(|it| it.boot == self.boot) =>
            {
                leases::of_processes(dir, &spec, &self.boot)
            }
            _ => Ok(None),
        }
    }

    /// Returns the facts of a directory that a power cut took away; `None` if there was none.
    fn lost(&self, name: &str, generation: u64) -> io::Result<Option<DirFacts>> {
        let Some(spec) = self.lost_contract(name, generation)? else { return Ok(None) };
        let lease = LeaseFacts { content: spec.lost_lease(&self.boot), ..LeaseFacts::default() };
        let (name, mut spec, mut exit) = (name.to_owned(), SpecFacts::Pending(Box::new(spec)), None);
        exits::complete(self.paths.root(), &self.boot, &mut spec, &mut exit)?;
        Ok(Some(DirFacts { name, generation, spec, lease, exit, wanted: Wanted::default() }))
    }

    /// Returns the contract of a start whose file a power cut took away and no supervisor has restored yet.
    fn lost_contract(&self, name: &str, generation: u64) -> io::Result<Option<Spec>> {
        let lost = LostContracts::read(self.paths.root(), &self.boot)?;
        Ok(lost.of(&worker_dir_name(name, generation)))
    }

    /// Combines the lease with the state of the worker's process. If that does not decide anything, a process that
    /// cannot be examined counts as gone.
    fn with_process(&self, held: bool, content: Option<Lease>, decides: bool) -> io::Result<LeaseFacts> {
        let this_boot = content.as_ref().is_some_and(|lease| lease.worker.boot == self.boot);
        let stat = match &content {
            Some(lease) if decides => procfs::alive(&lease.worker, &self.boot)?,
            Some(lease) => procfs::alive(&lease.worker, &self.boot).ok().flatten(),
            None => None,
        };
        let suspended = stat.is_some_and(|stat| stat.is_suspended());
        let survivors = content.as_ref().map_or_else(Vec::new, |lease| living(&lease.survivors, &self.boot));
        let (worker_alive, elsewhere, job) = (stat.is_some(), None, None);
        Ok(LeaseFacts { held, content, this_boot, worker_alive, suspended, elsewhere, survivors, job })
    }
}

/// Returns those of the processes that are alive, or may be.
pub fn living(processes: &[ProcessId], boot: &str) -> Vec<ProcessId> {
    let is_gone = |process: &ProcessId| matches!(procfs::alive(process, boot), Ok(None));
    processes.iter().filter(|process| !is_gone(process)).cloned().collect()
}

/// Returns the directory in which the worker with these records was started. `None` if its contract cannot be read.
pub fn started_in(dir: &Path) -> Option<String> {
    Some(spec(dir).ok()?.spec()?.contract.cwd.clone())
}

/// Returns the number of workers above the worker with these records. 0 if a person has started it.
///
/// # Errors
/// Fails if there is no contract, or if it cannot be read.
pub fn depth(dir: &Path) -> io::Result<u64> {
    let facts = spec(dir)?;
    let spec = facts.spec().ok_or(io::ErrorKind::NotFound)?;
    Ok(spec.contract.origin.as_ref().map_or(0, |origin| origin.depth))
}

pub(crate) fn spec(dir: &Path) -> io::Result<SpecFacts> {
    if let Some(spec) = record::<Spec>(&dir.join("spec.json"))? {
        return Ok(SpecFacts::Executed(Box::new(spec)));
    }
    if let Some(spec) = record::<Spec>(&dir.join("spec.pending"))? {
        return Ok(SpecFacts::Pending(Box::new(spec)));
    }
    // The file may have been renamed between the two reads.
    let executed = record::<Spec>(&dir.join("spec.json"))?;
    Ok(executed.map_or(SpecFacts::Missing, |spec| SpecFacts::Executed(Box::new(spec))))
}

/// Reads a record. `None` if it is missing or malformed.
///
/// # Errors
/// Fails if the file exists and cannot be read.
pub(crate) fn record<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    match OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path) {
        Ok(mut file) => parse(&mut file),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reports whether an error says nothing about the file, only that the system or this process has run out of memory or
/// descriptors.
pub(crate) fn lacks_resources(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM))
}

/// Splits `name.generation`.
pub(crate) fn parse_dir_name(text: &str) -> Option<(&str, u64)> {
    let (name, generation) = text.rsplit_once('.')?;
    Some((name, generation.parse().ok().filter(|number| (1..=GENERATION_MAX).contains(number))?))
}

impl Records for DiskRecords {
    fn scan_now(&self) -> io::Result<Scan> {
        let entries = list_if_present(&self.paths.workers())?;
        let names: Vec<String> = entries.into_iter().filter_map(|entry| entry.file_name().into_string().ok()).collect();
        let mut found: Vec<(&str, u64)> = names.iter().filter_map(|name| parse_dir_name(name)).collect();
        found.sort_unstable();
        let mut scan = Scan::default();
        for (name, generation) in found {
            match self.read(name, generation) {
                Ok(facts) => scan.dirs.extend(facts),
                Err(error) if lacks_resources(&error) => return Err(error),
                Err(error) => {
                    tracing::error!(worker = name, generation, %error, "cannot read the records of a worker");
                    scan.unreadable.push(Unreadable { name: name.to_owned(), generation, cause: error.to_string() });
                }
            }
        }
        Ok(scan)
    }

    fn scan(&self) -> BoxFuture<'_, io::Result<Scan>> {
        let paths = self.paths.clone();
        blocking(move || Self::new(paths).scan_now())
    }

    fn observe<'a>(&'a self, name: &'a str, generation: u64) -> BoxFuture<'a, io::Result<Option<DirFacts>>> {
        // A few small reads from the page cache are cheaper than a thread.
        Box::pin(std::future::ready(self.read(name, generation)))
    }

    fn exit_slot<'a>(&'a self, name: &'a str, generation: u64) -> BoxFuture<'a, Option<u32>> {
        exits::assigned(&self.slots, worker_dir_name(name, generation))
    }

    fn next_free(&self, name: &str, above: u64) -> io::Result<u64> {
        let above = if above > GENERATION_MAX { 0 } else { above };
        let first = above.max(self.generations.highest(name)?) + 1;
        let is_free = |generation: &u64| fs::symlink_metadata(self.paths.worker(name, *generation)).is_err();
        let free = (first..=GENERATION_MAX).find(is_free);
        free.ok_or_else(|| {
            let file = self.paths.root().join(generations::FILE);
            io::Error::other(format!("no number is left for a start of '{name}': remove {}", file.display()))
        })
    }

    fn lease_is_let_go<'a>(&'a self, name: &'a str, generation: u64) -> BoxFuture<'a, bool> {
        let path = self.paths.worker(name, generation).join("lease");
        Box::pin(async move { tokio::task::spawn_blocking(move || wait_let_go(&path)).await.unwrap_or(false) })
    }

    fn tidy(&self) -> BoxFuture<'_, io::Result<()>> {
        let (workers, root, boot) = (self.paths.workers(), self.paths.root().to_owned(), self.boot.clone());
        blocking(move || {
            if let Err(error) = exits::restore(&root, &boot) {
                tracing::warn!(%error, "cannot restore an exit record yet; its slot keeps it");
            }
            let files =
                list_if_present(&workers)?.into_iter().flat_map(|dir| list_if_present(&dir.path()).unwrap_or_default());
            for file in files.filter(|file| file.file_name().to_string_lossy().contains(".tmp.")) {
                absent_ok(fs::remove_file(file.path()))?;
            }
            Ok(())
        })
    }

    fn remove_leftovers<'a>(
        &'a self,
        name: &'a str,
        keep: Option<u64>,
        committed: Option<u64>,
    ) -> BoxFuture<'a, io::Result<()>> {
        let (slots, generations) = (Arc::clone(&self.slots), Arc::clone(&self.generations));
        let this = Self { paths: self.paths.clone(), boot: self.boot.clone(), slots, generations };
        let name = name.to_owned();
        blocking(move || {
            let mut done = Ok(());
            for dir in list_if_present(&this.paths.workers())? {
                let file_name = dir.file_name();
                let Some((other, generation)) = file_name.to_str().and_then(parse_dir_name) else { continue };
                if other == name && Some(generation) != keep {
                    // A damaged directory must not keep the others from being removed.
                    done = done.and(this.remove_if_over(other, generation, Some(generation) <= committed));
                }
            }
            done
        })
    }

    fn write_wanted<'a>(&'a self, name: &'a str, generation: u64, wanted: &'a Wanted) -> BoxFuture<'a, io::Result<()>> {
        let (dir, workers, wanted) = (self.paths.worker(name, generation), self.paths.workers(), wanted.clone());
        blocking(move || {
            replace_durably(&dir, "wanted.json", &serde_json::to_vec(&wanted)?)?;
            // A start does not sync the name of the directory.
            File::open(workers)?.sync_all()
        })
    }

    fn is_noted<'a>(&'a self, name: &'a str, generation: u64, note: Note) -> BoxFuture<'a, bool> {
        let path = self.paths.worker(name, generation).join(file_of(note));
        // One look into the cache is cheaper than a thread.
        Box::pin(std::future::ready(path.try_exists().unwrap_or(false)))
    }

    fn note<'a>(&'a self, name: &'a str, generation: u64, note: Note) -> BoxFuture<'a, ()> {
        let path = self.paths.worker(name, generation).join(file_of(note));
        let asks = (note == Note::EndTold).then(|| (Asks::new(&self.paths), Asks::of_worker(name, generation)));
        Box::pin(async move {
            let noted = blocking(move || {
                let ended = asks.map_or(Ok(()), |(asks, start)| asks.end_all(&start, "the worker has ended"));
                // Not noted before: whoever notices the end next ends the requests again.
                ended.and_then(|()| write_private(&path, b""))
            });
            if let Err(error) = noted.await {
                tracing::warn!(worker = name, ?note, %error, "cannot write a note about a worker");
            }
        })
    }

    fn broken_turn<'a>(&'a self, name: &'a str, generation: u64) -> BoxFuture<'a, Option<String>> {
        let dir = self.paths.worker(name, generation);
        Box::pin(async move { blocking(move || Ok(crate::views::broken_turn(&dir))).await.ok().flatten() })
    }

    fn mark<'a>(&'a self, name: &'a str, generation: u64, mark: Option<&'a Mark>) -> BoxFuture<'a, ()> {
        let dir = self.paths.worker(name, generation);
        let set = |leaf: &str, evidence: Option<&str>| match evidence {
            Some(evidence) => replace_private(&dir, leaf, evidence.as_bytes(), Durability::None),
            None => absent_ok(fs::remove_file(dir.join(leaf))),
        };
        let marked = match mark {
            Some(Mark::Stuck(evidence)) => Some((STUCK, evidence.as_str())),
            Some(Mark::Waits(evidence)) => Some((WAITS, evidence.as_str())),
            Some(Mark::Idle(evidence)) => Some((IDLE, evidence.as_str())),
            Some(Mark::Works) => Some((WORKS, "")),
            None => None,
        };
        let text = |leaf| marked.filter(|(marked, _)| *marked == leaf).map(|(_, text)| text);
        if let Err(error) = [WAITS, IDLE, WORKS, STUCK].into_iter().try_for_each(|leaf| set(leaf, text(leaf))) {
            tracing::debug!(worker = name, %error, "cannot update the markers of a worker");
        }
        Box::pin(std::future::ready(()))
    }

    fn remove<'a>(&'a self, name: &'a str, generation: u64) -> BoxFuture<'a, io::Result<()>> {
        let (dir, slots) = (self.paths.worker(name, generation), Arc::clone(&self.slots));
        let (name, generations) = (name.to_owned(), Arc::clone(&self.generations));
        blocking(move || {
            if probe(&dir)?.is_some_and(|(held, _)| held) {
                return Err(io::Error::other(format!("the lease of {} is held", dir.display())));
            }
            generations.retire(&name, generation);
            slots.removing(&dir, remove_dir)
        })
    }

    fn remove_logs<'a>(&'a self, name: &'a str) -> BoxFuture<'a, io::Result<()>> {
        let files = self.log_files(name);
        blocking(move || {
            let all = files.iter().flat_map(|(log, rotated)| [log.clone(), rotated.clone(), unfinished(log)]);
            all.into_iter().try_for_each(|file| remove_if_present(&file))
        })
    }

    fn rotate_logs<'a>(&'a self, name: &'a str) -> BoxFuture<'a, io::Result<()>> {
        let files = self.log_files(name);
        // Looking for four files, which are mostly absent, is cheaper than a thread.
        let rotated = files.iter().try_for_each(|(log, rotated)| rename_if_present(log, rotated));
        Box::pin(std::future::ready(rotated))
    }
}

impl DiskRecords {
    /// Removes a generation that has ended. A start that was never executed nor committed is kept: its worktree may have
    /// to be rolled back.
    fn remove_if_over(&self, name: &str, generation: u64, is_committed: bool) -> io::Result<()> {
        match self.read(name, generation)? {
            Some(facts)
                if facts.lease.elsewhere.is_none()
                    && !reconcile::has_processes(&facts)
                    && (is_committed || !matches!(facts.spec, SpecFacts::Pending(_))) =>
            {
                self.generations.retire(name, generation);
                self.slots.removing(&self.paths.worker(name, generation), remove_dir)
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Returns the paths of the logs and of their rotated parts, and of the sizes of the window. Empty for names that the original `swarm` accepted and
    /// that would lead out of the directory.
    fn log_files(&self, name: &str) -> Vec<(PathBuf, PathBuf)> {
        if WorkerName::parse(name).is_err() {
            return Vec::new();
        }
        let both = |kind| (self.paths.log(name, kind), self.paths.logs().join(format!("{name}.{kind}.log.1")));
        let sizes = crate::window_sizes::beside(&self.paths.log(name, "tmux"));
        let mut files: Vec<_> = ["stdout", "stderr", "tmux"].map(both).into();
        files.push((sizes.clone(), sizes.with_added_extension("1")));
        files
    }
}

/// Reports whether the work of this generation has been added to a merge queue.
pub fn is_queued(paths: &Paths, name: &str, generation: u64) -> bool {
    paths.worker(name, generation).join(file_of(Note::WorkQueued)).exists()
}

/// Reports whether the work of this generation was refused by its merge queue.
pub fn is_refused(paths: &Paths, name: &str, generation: u64) -> bool {
    paths.worker(name, generation).join(file_of(Note::WorkRefused)).exists()
}

/// Returns the name of the marker file of a note.
fn file_of(note: Note) -> &'static str {
    match note {
        Note::EndTold => "told",
        Note::WorkQueued => "queued",
        Note::WorkRefused => "refused",
    }
}

/// Removes the directory of a generation: first the control groups that a killed shim left, last the contract, so
/// that an interrupted removal is still recognizable as this generation.
fn remove_dir(dir: &Path) -> io::Result<()> {
    if let Ok(listed) = open_regular(OpenOptions::new().read(true), &dir.join(GROUPS)).and_then(io::read_to_string) {
        cgroups::remove_listed(&listed, &dir.file_name().unwrap_or_default().to_string_lossy());
    }
    let mut names: Vec<PathBuf> = list_if_present(dir)?.into_iter().map(|entry| entry.path()).collect();
    names.sort_by_key(|path| path.file_stem().is_some_and(|stem| stem == "spec"));
    for path in names {
        absent_ok(fs::remove_file(path))?;
    }
    absent_ok(fs::remove_dir(dir))
}

/// Creates the directory of one generation and returns its path. The directory is durable if the contract must be.
///
/// # Errors
/// Fails if the directory exists already, or on any other I/O error.
pub fn make_worker_dir(paths: &Paths, spec: &Spec) -> io::Result<PathBuf> {
    let dir = paths.workers().join(worker_dir_name(&spec.name, spec.generation));
    if spec.is_synced() {
        make_dir(&dir)?;
    } else {
        fs::DirBuilder::new().mode(0o700).create(&dir)?;
    }
    Ok(dir)
}

#[cfg(test)]
#[path = "records_tests.rs"]
mod tests;
