//! What a view needs of a worker's records, and no more: a list of a thousand
//! workers looks at one small file of each. The contract is not read; what the
//! lease and the row repeat of it stands in its place.

use std::fs::File;
use std::os::fd::OwnedFd;

use rustix::fs::{Access, AtFlags, Mode, OFlags, accessat, open, openat};
use rustix::io::retry_on_intr;
use serde::de::DeserializeOwned;
use swarm_actors::registry::reconcile::{Evidence, Launch};
use swarm_model::{ExitRecord, Lease, RestartPolicy, Row, Wanted, worker_dir_name};
use swarm_ports::LeaseFacts;

use super::procfs;
use super::records::{is_held, parse};
use crate::paths::Paths;

/// How closely a view looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// Running or stopped, as the original has it, and nothing else.
    Word,
    /// Also how it ended.
    Exit,
    /// Also whether a running worker is suspended.
    Fine,
}

/// What a view has read of one generation.
#[derive(Clone, Debug)]
pub struct Glance {
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

impl<'a> From<&'a Glance> for Evidence<'a> {
    fn from(glance: &'a Glance) -> Self {
        let Glance { name, generation, token, started, restart, executed, lease, exit, wanted } = glance;
        let launch = Launch { name, token, started, restart: *restart, executed: *executed };
        Self { name, generation: *generation, launch: Some(launch), lease, exit: exit.as_ref(), wanted }
    }
}

/// The directory of all records, which stays open: names below it are short.
pub struct Records {
    workers: OwnedFd,
    boot: String,
}

impl Records {
    /// `None` when there is no such directory, and so nothing to look at.
    pub fn open(paths: &Paths) -> Option<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let workers = retry_on_intr(|| open(paths.workers(), flags, Mode::empty())).ok()?;
        Some(Self { workers, boot: procfs::boot_id() })
    }

    /// The records of the generation that the row names.
    pub fn of(&self, row: &Row, detail: Detail) -> Option<Glance> {
        let generation = row.swarm()?.generation;
        let dir = worker_dir_name(&row.name, generation);
        let mut lease = self.file(&dir, "lease")?;
        let held = is_held(&lease);
        if held && detail == Detail::Word {
            return Some(running(row, generation));
        }
        let lease: Lease = parse(&mut lease)?;
        // Nothing that the record says could make it run.
        let settled = detail == Detail::Word && lease.restart == RestartPolicy::Never && self.has(&dir, "exit.json");
        // Held, it runs or is just ending: the same word for both.
        let looked = detail == Detail::Fine || !(settled || held);
        let exit = if looked { self.record(&dir, "exit.json") } else { None };
        // The kernel renders the file of a process anew for each look, the dearest of all.
        let stat = if looked { procfs::alive(&lease.worker, &self.boot) } else { None };
        // A running worker was executed, but for the moment of its start.
        let pending = looked && exit.is_none() && self.has(&dir, "spec.pending");
        // Without a policy little was ever wanted of one that runs.
        let noted = lease.restart != RestartPolicy::Never || (exit.is_some() && !held);
        Some(Glance {
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
                worker_alive: stat.is_some() || (held && !looked),
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

/// Its shim holds the lease. That is enough for the word: should the other
/// program just be remaking the row, then its own process makes it true.
fn running(row: &Row, generation: u64) -> Glance {
    Glance {
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
