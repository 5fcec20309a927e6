//! Reads only the part of a worker's records that a view needs: listing a thousand workers reads one small file of
//! each. The contract is not read; the fields of it that lease and row repeat are used instead.

use std::fs::File;
use std::os::fd::OwnedFd;

use rustix::fs::{Access, AtFlags, Mode, OFlags, accessat, open, openat};
use rustix::io::retry_on_intr;
use serde::de::DeserializeOwned;
use swarm_actors::registry::reconcile::{Evidence, Launch};
use swarm_model::{ExitRecord, Lease, RestartPolicy, Row, Wanted, worker_dir_name};
use swarm_ports::LeaseFacts;

use super::records::{is_held, parse};
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
    boot: String,
}

impl Records {
    /// Opens the directory; `None` if it does not exist, so that there are no records.
    pub fn open(paths: &Paths) -> Option<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let workers = retry_on_intr(|| open(paths.workers(), flags, Mode::empty())).ok()?;
        Some(Self { workers, boot: procfs::boot_id() })
    }

    /// Reads the records of the generation that the row names; `None` if there is no readable lease.
    pub fn of(&self, row: &Row, detail: Detail) -> Option<Summary> {
        let generation = row.swarm()?.generation;
        let dir = worker_dir_name(&row.name, generation);
        let mut lease = self.file(&dir, "lease")?;
        let held = is_held(&lease);
        if held && detail == Detail::Word {
            return Some(running(row, generation));
        }
        let lease: Lease = parse(&mut lease)?;
        // Without a restart policy an exit record settles the question: its content cannot make the worker run.
        let settled = detail == Detail::Word && lease.restart == RestartPolicy::Never && self.has(&dir, "exit.json");
        // A held lease means running or just ending, which have the same status word.
        let looked = detail == Detail::Fine || !(settled || held);
        let exit = if looked { self.record(&dir, "exit.json") } else { None };
        // Reading a process's file in /proc is the most expensive step: the kernel renders it for each read.
        let examined = if looked { procfs::alive(&lease.worker, &self.boot) } else { Ok(None) };
        let unknown = examined.is_err() || (held && !looked);
        let stat = examined.ok().flatten();
        // A running worker was executed, except during its start.
        let pending = looked && exit.is_none() && self.has(&dir, "spec.pending");
        // `wanted.json` matters only for workers with a restart policy and for ended ones.
        let noted = lease.restart != RestartPolicy::Never || (exit.is_some() && !held);
        Some(Summary {
            name: row.name.clone(),
            generation,
            token: lease.token.clone(),
            started: lease.started.clone(),
            restart: lease.restart,
            executed: !pending,
            exit,
            wanted: noted.then(|| self.record(&dir, "wanted.json")).flatten().unwrap_or_default(),
            lease: LeaseFacts {
                held,
                this_boot: lease.worker.boot == self.boot,
                worker_alive: stat.is_some() || unknown,
                suspended: stat.is_some_and(|stat| stat.is_suspended()),
                content: Some(lease),
            },
        })
    }

    fn file(&self, dir: &str, name: &str) -> Option<File> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let path = format!("{dir}/{name}");
        retry_on_intr(|| openat(&self.workers, path.as_str(), flags, Mode::empty())).ok().map(File::from)
    }

    fn record<T: DeserializeOwned>(&self, dir: &str, name: &str) -> Option<T> {
        parse(&mut self.file(dir, name)?)
    }

    fn has(&self, dir: &str, name: &str) -> bool {
        let path = format!("{dir}/{name}");
        retry_on_intr(|| accessat(&self.workers, path.as_str(), Access::EXISTS, AtFlags::empty())).is_ok()
    }
}

/// Returns the facts of a worker whose shim holds the lease. That suffices for the status word: if the original
/// `swarm` is replacing the row at this moment, its own process makes the word true.
fn running(row: &Row, generation: u64) -> Summary {
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
