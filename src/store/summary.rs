//! Reads only the part of a worker's records that a view needs: listing a thousand workers reads one small file of
//! each. The contract is not read; the fields of it that lease and row repeat are used instead.

use std::cell::{Cell, OnceCell};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::fs::{Access, AtFlags, Mode, OFlags, accessat, open, openat};
use rustix::io::{Errno, retry_on_intr};
use serde::de::DeserializeOwned;
use swarm_actors::registry::reconcile::{Evidence, Launch};
use swarm_actors::registry::store::LostContracts;
use swarm_model::{ExitRecord, Job, Lease, RestartPolicy, Row, Spec, Wanted, worker_dir_name};
use swarm_ports::{DirFacts, LeaseFacts, SpecFacts};

use super::exits::LostEnds;
use super::jobs;
use super::records::{DiskRecords, is_held, lacks_resources, living, parse, wait_let_go_within};
use swarm_sys::machine::Gone;
use swarm_sys::paths::Paths;
use swarm_sys::procfs;

/// Level of detail of a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// Only running or stopped, as the original `swarm` reports it.
    Word,
    /// As `Word`, with the exit record.
    Exit,
    /// As `Exit`, and whether a running worker is suspended.
    Fine,
}

/// Records of one generation, as far as a view needs them.
#[derive(Clone, Debug)]
pub struct Summary {
    name: String,
    generation: u64,
    token: String,
    started: String,
    restart: RestartPolicy,
    executed: bool,
    lease: LeaseFacts,
    exit: Option<ExitRecord>,
    wanted: Wanted,
}

impl<'a> From<&'a Summary> for Evidence<'a> {
    fn from(summary: &'a Summary) -> Self {
        let Summary { name, generation, token, started, restart, executed, lease, exit, wanted } = summary;
        let launch = Launch { name, token, started, restart: *restart, executed: *executed };
        Self { name, generation: *generation, launch: Some(launch), lease, exit: exit.as_ref(), wanted }
    }
}

/// The directory of all records, kept open so that the paths opened below it are short.
pub struct Records {
    workers: OwnedFd,
    dir: PathBuf,
    root: PathBuf,
    boot: String,
    gone: Gone,
    /// Read for the first worker whose contract is missing.
    journaled: OnceCell<LostContracts>,
    /// Read for the first worker of an earlier boot without an exit record.
    ends: OnceCell<LostEnds>,
    /// Why they cannot be read, if that is so.
    damage: OnceCell<String>,
    /// End of the wait for workers whose windows were closed; set by the first of them.
    closing_until: Cell<Option<Instant>>,
}

/// Maximum time in which the workers of closed windows are expected to end.
const CLOSING_MAX: Duration = Duration::from_secs(1);

impl Records {
    /// Opens the directory; `None` if it does not exist, so that there are no records.
    ///
    /// # Errors
    /// Fails if it exists and cannot be opened.
    pub fn open(paths: &Paths) -> io::Result<Option<Self>> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match retry_on_intr(|| open(paths.workers(), flags, Mode::empty())) {
            Ok(workers) => {
                let (dir, root, boot) = (paths.workers(), paths.root().to_owned(), procfs::boot_id());
                let gone = Gone::new(paths);
                Ok(Some(Self {
                    workers,
                    dir,
                    root,
                    boot,
                    gone,
                    closing_until: Cell::new(None),
                    journaled: OnceCell::new(),
                    ends: OnceCell::new(),
                    damage: OnceCell::new(),
                }))
            }
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads the records of the generation that the row names; `None` if it has neither a readable lease nor a
    /// readable contract.
    ///
    /// # Errors
    /// Fails if a record exists and cannot be read.
    pub fn of(&self, row: &Row, detail: Detail) -> io::Result<Option<Summary>> {
        let Some(generation) = row.swarm().map(|meta| meta.generation) else { return Ok(None) };
        let dir = worker_dir_name(&row.name, generation);
        if row.place().is_some() {
            return self.of_job(row, generation, &dir);
        }
        let mut file = self.file(&dir, "lease")?;
        if let Some(file) = file.as_ref()
            && !file.metadata()?.is_file()
        {
            return Err(io::Error::other(format!(
                "{} is not a regular file",
                self.dir.join(dir).join("lease").display()
            )));
        }
        let mut held = file.as_ref().is_some_and(is_held);
        if held && detail == Detail::Word && row.tmux.is_none() {
            return Ok(Some(running(row, generation)));
        }
        let mut lease = file.as_mut().map(parse::<Lease>).transpose()?.flatten();
        if lease.is_none() && !held {
            lease = self.lost_lease(&dir)?;
        }
        let Some(lease) = lease else { return self.without_lease(row, generation, held) };
        if held && row.tmux.is_some() && self.is_closing(&lease) {
            // Its window was closed, so its end is a matter of milliseconds.
            self.await_end(&dir);
            held = file.as_ref().is_some_and(is_held);
        }
        if held && detail == Detail::Word {
            return Ok(Some(running(row, generation)));
        }
        // Without a restart policy an exit record settles the question: its content cannot make the worker run.
        let settled = detail == Detail::Word && lease.restart == RestartPolicy::Never && self.has(&dir, "exit.json")?;
        // A held lease means running or just ending, which have the same status word.
        let looked = detail == Detail::Fine || !(settled || held);
        let mut exit = if looked { self.record(&dir, "exit.json")? } else { None };
        if exit.is_none() && looked && !held && lease.worker.boot != self.boot {
            exit = self.lost_end(&lease)?;
        }
        // Reading a process's file in /proc is the most expensive step: the kernel renders it for each read.
        let examined = if looked { procfs::alive(&lease.worker, &self.boot) } else { Ok(None) };
        let unknown = examined.is_err() || (held && !looked);
        let stat = examined.ok().flatten();
        let elsewhere = self.gone.elsewhere(lease.machine.as_ref())?;
        // A running worker was executed, except during its start.
        let pending = looked && exit.is_none() && self.has(&dir, "spec.pending")?;
        // `wanted.json` matters only for workers with a restart policy and for ended ones: without an exit record, nothing
        // else says that one was stopped.
        let noted = lease.restart != RestartPolicy::Never || !(held || settled);
        let wanted = if noted { self.record(&dir, "wanted.json")? } else { None };
        Ok(Some(Summary {
            name: row.name.clone(),
            generation,
            token: lease.token.clone(),
            started: lease.started.clone(),
            restart: lease.restart,
            executed: !pending,
            exit,
            wanted: wanted.unwrap_or_default(),
            lease: LeaseFacts {
                held,
                this_boot: lease.worker.boot == self.boot,
                worker_alive: stat.is_some() || unknown,
                suspended: stat.is_some_and(|stat| stat.is_suspended()),
                elsewhere,
                survivors: living(&lease.survivors, &self.boot),
                job: None,
                content: Some(lease),
            },
        }))
    }

    /// Reads the records of a generation whose lease is missing or malformed, by its contract. Without one, a held lease
    /// means that it runs.
    fn without_lease(&self, row: &Row, generation: u64, held: bool) -> io::Result<Option<Summary>> {
        let facts = DiskRecords::new(Paths::new(&self.root)).read(&row.name, generation)?;
        let Some(DirFacts { spec, lease, exit, wanted, .. }) = facts else { return Ok(None) };
        let Some(launch) = spec.spec() else { return Ok(held.then(|| running(row, generation))) };
        Ok(Some(Summary {
            name: row.name.clone(),
            generation,
            token: launch.token.clone(),
            started: launch.started.clone(),
            restart: launch.contract.restart,
            executed: matches!(spec, SpecFacts::Executed(_)),
            lease,
            exit,
            wanted,
        }))
    }

    /// Reads the records of a job; `None` if there are none.
    fn of_job(&self, row: &Row, generation: u64, dir: &str) -> io::Result<Option<Summary>> {
        let written: Option<Job> = self.record(dir, jobs::FILE)?;
        let job = match written {
            Some(job) => Some(job),
            None => self.planned_job(dir)?,
        };
        let Some(job) = job else { return Ok(None) };
        let mut exit: Option<ExitRecord> = self.record(dir, "exit.json")?;
        let wanted: Wanted = self.record(dir, "wanted.json")?.unwrap_or_default();
        let executed = exit.is_some() || !self.has(dir, "spec.pending")?;
        let (token, started) = (job.token.clone(), job.started.clone());
        let lease = jobs::facts(Job { asked_ms: jobs::asked_ms(&self.root), ..job }, None, exit.as_mut(), &wanted);
        let (name, restart) = (row.name.clone(), RestartPolicy::Never);
        Ok(Some(Summary { name, generation, token, started, restart, executed, lease, exit, wanted }))
    }

    /// Returns what the contract says of a job whose record is missing.
    fn planned_job(&self, dir: &str) -> io::Result<Option<Job>> {
        for name in ["spec.json", "spec.pending"] {
            if let Some(spec) = self.record::<Spec>(dir, name)? {
                return Ok(Job::of(&spec));
            }
        }
        Ok(None)
    }

    /// Returns what the contract says of a lease that a power cut took away; `None` if there was none. The power cut may
    /// have taken the contract's file as well.
    fn lost_lease(&self, dir: &str) -> io::Result<Option<Lease>> {
        for name in ["spec.json", "spec.pending"] {
            if let Some(spec) = self.record::<Spec>(dir, name)? {
                return Ok(spec.lost_lease(&self.boot));
            }
        }
        if self.journaled.get().is_none() {
            let _ = self.journaled.set(LostContracts::read(&self.root, &self.boot)?);
        }
        Ok(self.journaled.get().and_then(|lost| lost.of(dir)?.lost_lease(&self.boot)))
    }

    /// Returns the end of a worker of an earlier boot, of which a power cut may have taken the file. If it cannot be read,
    /// the worker has ended all the same.
    fn lost_end(&self, lease: &Lease) -> io::Result<Option<ExitRecord>> {
        if self.ends.get().is_none() {
            let ends = match LostEnds::read(&self.root, &self.boot) {
                Err(error) if lacks_resources(&error) => return Err(error),
                Err(error) => {
                    let _ = self.damage.set(error.to_string());
                    LostEnds::default()
                }
                Ok(ends) => ends,
            };
            let _ = self.ends.set(ends);
        }
        Ok(self.ends.get().and_then(|ends| ends.of(&lease.token)))
    }

    /// Returns why the ends of workers of earlier boots could not be read, if one was asked for.
    pub fn damage(&self) -> Option<&str> {
        self.damage.get().map(String::as_str)
    }

    /// Reports whether the window of a worker is gone: the kernel has taken the terminal away from its shim.
    fn is_closing(&self, lease: &Lease) -> bool {
        procfs::has_hung_up(&lease.shim, &self.boot)
    }

    /// Waits for a moment until a worker has ended whose window was closed. All such workers of a view share the time.
    fn await_end(&self, dir: &str) {
        let until = self.closing_until.get().unwrap_or_else(|| Instant::now() + CLOSING_MAX);
        self.closing_until.set(Some(until));
        let left = until.saturating_duration_since(Instant::now());
        if !left.is_zero() {
            wait_let_go_within(&self.dir.join(dir).join("lease"), left);
        }
    }

    fn file(&self, dir: &str, name: &str) -> io::Result<Option<File>> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let path = format!("{dir}/{name}");
        match retry_on_intr(|| openat(&self.workers, path.as_str(), flags, Mode::empty())) {
            Ok(file) => Ok(Some(File::from(file))),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn record<T: DeserializeOwned>(&self, dir: &str, name: &str) -> io::Result<Option<T>> {
        match self.file(dir, name)? {
            Some(mut file) => parse(&mut file),
            None => Ok(None),
        }
    }

    fn has(&self, dir: &str, name: &str) -> io::Result<bool> {
        let path = format!("{dir}/{name}");
        match retry_on_intr(|| accessat(&self.workers, path.as_str(), Access::EXISTS, AtFlags::empty())) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

/// Returns the facts of a worker whose shim holds the lease. That suffices for the status word: if the original
/// `swarm` is replacing the row at this moment, its own process makes the word true. Also the facts of a worker whose
/// records cannot be read: it may be alive.
pub fn running(row: &Row, generation: u64) -> Summary {
    Summary {
        name: row.name.clone(),
        generation,
        token: row.swarm().map(|meta| meta.id.clone()).unwrap_or_default(),
        started: row.started.clone(),
        restart: RestartPolicy::Never,
        executed: true,
        lease: LeaseFacts { held: true, this_boot: true, worker_alive: true, ..LeaseFacts::default() },
        exit: None,
        wanted: Wanted::default(),
    }
}

#[cfg(test)]
#[path = "summary_tests.rs"]
mod tests;
