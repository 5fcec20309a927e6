//! In-memory directories below `w/`.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::kernel::Kernel;
use super::script::Script;
use swarm_model::{ExitRecord, Job, Lease, Over, ProcessId, Spec, Token, Wanted, worker_dir_name};
use swarm_ports::{BoxFuture, DirFacts, LeaseFacts, Mark, Note, Records, Scan, SpecFacts, Unreadable};

/// Cause of every failure to read a damaged directory.
const DAMAGE: &str = "input/output error";

/// Name and generation.
pub type Key = (String, u64);

/// Maximum wait for a lease to be released, as in the real implementation.
const LEASE_WAIT_MAX: Duration = Duration::from_secs(3);

#[derive(Clone, Debug)]
struct Dir {
    spec: Spec,
    executed: bool,
    lease: Option<Lease>,
    exit: Option<ExitRecord>,
    wanted: Wanted,
}

pub struct FakeRecords {
    kernel: Arc<Kernel>,
    script: Arc<Script>,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    dirs: BTreeMap<Key, Dir>,
    executions: Vec<Token>,
    logs_removed: Vec<String>,
    marks: BTreeMap<String, Mark>,
    notes: std::collections::BTreeSet<(String, u64, Note)>,
    damaged: Vec<Key>,
    broken: BTreeMap<String, String>,
    /// Answers of the batch system about jobs.
    said: BTreeMap<Key, (String, Option<Over>)>,
    /// Highest generation that was removed, of each name.
    removed: BTreeMap<String, u64>,
}

impl Inner {
    fn remove(&mut self, key: &Key) {
        let highest = self.removed.entry(key.0.clone()).or_default();
        *highest = key.1.max(*highest);
        self.dirs.remove(key);
    }
}

impl FakeRecords {
    pub fn new(kernel: Arc<Kernel>, script: Arc<Script>) -> Self {
        Self { kernel, script, inner: Mutex::default() }
    }

    /// Returns the tokens of all executed starts, in order.
    pub fn executions(&self) -> Vec<Token> {
        self.with(|inner| inner.executions.clone())
    }

    /// Forgets which generations were removed, as a power cut may.
    pub fn forget_removed(&self) {
        self.with(|inner| inner.removed.clear());
    }

    pub fn logs_removed(&self) -> Vec<String> {
        self.with(|inner| inner.logs_removed.clone())
    }

    /// Returns the mark of this worker.
    pub fn mark_of(&self, name: &str) -> Option<Mark> {
        self.with(|inner| inner.marks.get(name).cloned())
    }

    /// Has the last turn of this worker's agent end so, or by itself.
    pub fn break_turn(&self, name: &str, end: Option<&str>) {
        self.with(|inner| match end {
            Some(end) => inner.broken.insert(name.to_owned(), end.to_owned()),
            None => inner.broken.remove(name),
        });
    }

    pub fn keys(&self) -> Vec<Key> {
        self.with(|inner| inner.dirs.keys().cloned().collect())
    }

    /// Returns the last generation of `name` that was executed.
    pub fn newest(&self, name: &str) -> Option<Key> {
        self.with(|inner| {
            let mut executed = inner.dirs.iter().filter(|((of, _), dir)| of == name && dir.executed);
            executed.next_back().map(|(key, _)| key.clone())
        })
    }

    pub fn facts(&self, key: &Key) -> Option<DirFacts> {
        let dir = self.with(|inner| inner.dirs.get(key).cloned())?;
        let job = Job::of(&dir.spec).map(|job| match self.with(|inner| inner.said.get(key).cloned()) {
            Some((state, over)) => Job { state: Some(state), over, ..job },
            None => job,
        });
        let works = job.as_ref().map(|job| dir.exit.is_none() && job.over.is_none());
        let spec = Box::new(dir.spec);
        let lease = dir.lease;
        Some(DirFacts {
            name: key.0.clone(),
            generation: key.1,
            spec: if dir.executed { SpecFacts::Executed(spec) } else { SpecFacts::Pending(spec) },
            lease: LeaseFacts {
                held: works.unwrap_or_else(|| lease.as_ref().is_some_and(|lease| self.kernel.exists(&lease.shim))),
                this_boot: job.is_some() || lease.as_ref().is_some_and(|lease| lease.worker.boot == self.kernel.boot()),
                worker_alive: works
                    .unwrap_or_else(|| lease.as_ref().is_some_and(|lease| self.kernel.is_alive(&lease.worker))),
                suspended: false,
                elsewhere: None,
                job,
                survivors: lease.iter().flat_map(|lease| self.living(&lease.survivors)).collect(),
                content: lease,
            },
            exit: dir.exit,
            wanted: dir.wanted,
        })
    }

    fn living(&self, processes: &[ProcessId]) -> Vec<ProcessId> {
        processes.iter().filter(|process| self.kernel.is_alive(process)).cloned().collect()
    }

    /// Returns the facts of every generation.
    pub fn all(&self) -> Vec<DirFacts> {
        self.keys().iter().filter_map(|key| self.facts(key)).collect()
    }

    /// Makes the directory of a generation unreadable, or readable again.
    pub fn damage(&self, name: &str, generation: u64, damaged: bool) {
        self.with(|inner| {
            inner.damaged.retain(|key| *key != (name.to_owned(), generation));
            inner.damaged.extend(damaged.then(|| (name.to_owned(), generation)));
        });
    }

    fn scanned(&self) -> Scan {
        let damaged = self.with(|inner| inner.damaged.clone());
        let mut scan = Scan { dirs: self.all(), unreadable: Vec::new() };
        scan.dirs.retain(|facts| !damaged.contains(&(facts.name.clone(), facts.generation)));
        let unreadable = |(name, generation)| Unreadable { name, generation, cause: DAMAGE.to_owned() };
        scan.unreadable = damaged.into_iter().map(unreadable).collect();
        scan
    }

    pub(super) fn reserve(&self, spec: &Spec) -> io::Result<()> {
        let dir = Dir { spec: spec.clone(), executed: false, lease: None, exit: None, wanted: Wanted::default() };
        self.with(|inner| match inner.dirs.insert((spec.name.clone(), spec.generation), dir) {
            None => Ok(()),
            Some(_) => Err(io::ErrorKind::AlreadyExists.into()),
        })
    }

    pub(super) fn set_lease(&self, key: &Key, lease: &Lease) {
        self.change(key, |dir| dir.lease = Some(lease.clone()));
    }

    /// Renames the contract and executes the command, as the child does.
    pub(super) fn execute(&self, key: &Key) {
        self.with(|inner| {
            if let Some(dir) = inner.dirs.get_mut(key) {
                dir.executed = true;
                inner.executions.push(dir.spec.token.clone());
            }
        });
    }

    pub(super) fn set_exit(&self, key: &Key, exit: ExitRecord) {
        self.change(key, |dir| dir.exit = Some(exit));
    }

    /// Records what the batch system says about a job.
    pub(super) fn say(&self, key: &Key, state: &str, over: Option<Over>) {
        self.with(|inner| inner.said.insert(key.clone(), (state.to_owned(), over)));
    }

    /// Records processes that the shim could not end.
    pub(super) fn add_survivor(&self, key: &Key, survivor: ProcessId) {
        self.change(key, |dir| dir.lease.iter_mut().for_each(|lease| lease.survivors.push(survivor.clone())));
    }

    fn change(&self, key: &Key, change: impl FnOnce(&mut Dir)) {
        self.with(|inner| inner.dirs.get_mut(key).map(change));
    }

    fn with<T>(&self, work: impl FnOnce(&mut Inner) -> T) -> T {
        work(&mut self.inner.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn subject(name: &str, generation: u64) -> String {
    worker_dir_name(name, generation)
}

impl Records for FakeRecords {
    fn scan_now(&self) -> io::Result<Scan> {
        self.script.before_now("scan_now", "w").map_err(io::Error::other)?;
        Ok(self.scanned())
    }

    fn scan(&self) -> BoxFuture<'_, io::Result<Scan>> {
        Box::pin(async {
            self.script.before("scan", "w").await.map_err(io::Error::other)?;
            Ok(self.scanned())
        })
    }

    fn observe<'a>(&'a self, name: &'a str, generation: u64) -> BoxFuture<'a, io::Result<Option<DirFacts>>> {
        Box::pin(async move {
            self.script.before("observe", &subject(name, generation)).await.map_err(io::Error::other)?;
            if self.with(|inner| inner.damaged.contains(&(name.to_owned(), generation))) {
                return Err(io::Error::other(DAMAGE));
            }
            Ok(self.facts(&(name.to_owned(), generation)))
        })
    }

    fn exit_slot<'a>(&'a self, _: &'a str, _: u64) -> BoxFuture<'a, Option<u32>> {
        Box::pin(std::future::ready(None))
    }

    fn next_free(&self, name: &str, above: u64) -> io::Result<u64> {
        self.script.before_now("next_free", name).map_err(io::Error::other)?;
        let taken = self.keys();
        let free = |generation: &u64| !taken.contains(&(name.to_owned(), *generation));
        let above = self.with(|inner| inner.removed.get(name).copied()).unwrap_or(0).max(above);
        Ok((above + 1..).find(free).expect("there are more numbers than directories"))
    }

    fn tidy(&self) -> BoxFuture<'_, io::Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn remove_leftovers<'a>(
        &'a self,
        name: &'a str,
        keep: Option<u64>,
        committed: Option<u64>,
    ) -> BoxFuture<'a, io::Result<()>> {
        Box::pin(async move {
            self.script.before("remove_leftovers", name).await.map_err(io::Error::other)?;
            let dead = |key: &Key, facts: &DirFacts| {
                let other = key.0 == name && Some(key.1) != keep;
                let may_be_rolled_back = matches!(facts.spec, SpecFacts::Pending(_)) && Some(key.1) > committed;
                other && !facts.lease.held && !may_be_rolled_back
            };
            for key in self.keys() {
                if self.facts(&key).is_some_and(|facts| dead(&key, &facts)) {
                    self.with(|inner| inner.remove(&key));
                }
            }
            Ok(())
        })
    }

    fn lease_is_let_go<'a>(&'a self, name: &'a str, generation: u64) -> BoxFuture<'a, bool> {
        let lease = self.facts(&(name.to_owned(), generation)).and_then(|facts| facts.lease.content);
        let shim = lease.map(|lease| lease.shim);
        let gone = shim.as_ref().map(|shim| self.kernel.gone(shim));
        Box::pin(async move {
            if shim.is_some_and(|shim| self.kernel.exists(&shim) && !self.kernel.is_alive(&shim)) {
                tokio::time::sleep(LEASE_WAIT_MAX).await;
                return false;
            }
            match gone {
                None => true,
                Some(gone) => tokio::time::timeout(LEASE_WAIT_MAX, gone).await.is_ok(),
            }
        })
    }

    fn write_wanted<'a>(&'a self, name: &'a str, generation: u64, wanted: &'a Wanted) -> BoxFuture<'a, io::Result<()>> {
        Box::pin(async move {
            self.script.before("write_wanted", &subject(name, generation)).await.map_err(io::Error::other)?;
            let key = (name.to_owned(), generation);
            if self.facts(&key).is_none() {
                return Err(io::ErrorKind::NotFound.into());
            }
            self.change(&key, |dir| dir.wanted = wanted.clone());
            self.script.after("write_wanted").await.map_err(io::Error::other)
        })
    }

    fn is_noted<'a>(&'a self, name: &'a str, generation: u64, note: Note) -> BoxFuture<'a, bool> {
        Box::pin(std::future::ready(self.with(|inner| inner.notes.contains(&(name.to_owned(), generation, note)))))
    }

    fn note<'a>(&'a self, name: &'a str, generation: u64, note: Note) -> BoxFuture<'a, ()> {
        self.with(|inner| inner.notes.insert((name.to_owned(), generation, note)));
        Box::pin(std::future::ready(()))
    }

    fn broken_turn<'a>(&'a self, name: &'a str, _: u64) -> BoxFuture<'a, Option<String>> {
        Box::pin(std::future::ready(self.with(|inner| inner.broken.get(name).cloned())))
    }

    fn mark<'a>(&'a self, name: &'a str, _: u64, mark: Option<&'a Mark>) -> BoxFuture<'a, ()> {
        self.with(|inner| match mark {
            Some(mark) => inner.marks.insert(name.to_owned(), mark.clone()),
            None => inner.marks.remove(name),
        });
        Box::pin(std::future::ready(()))
    }

    fn remove<'a>(&'a self, name: &'a str, generation: u64) -> BoxFuture<'a, io::Result<()>> {
        Box::pin(async move {
            self.script.before("remove", &subject(name, generation)).await.map_err(io::Error::other)?;
            let key = (name.to_owned(), generation);
            if self.facts(&key).is_some_and(|facts| facts.lease.held) {
                return Err(io::Error::other("the lease is held"));
            }
            self.with(|inner| inner.remove(&key));
            Ok(())
        })
    }

    fn remove_logs<'a>(&'a self, name: &'a str) -> BoxFuture<'a, io::Result<()>> {
        Box::pin(async move {
            self.script.before("remove_logs", name).await.map_err(io::Error::other)?;
            self.with(|inner| inner.logs_removed.push(name.to_owned()));
            Ok(())
        })
    }

    fn rotate_logs<'a>(&'a self, name: &'a str) -> BoxFuture<'a, io::Result<()>> {
        Box::pin(async move { self.script.before("rotate_logs", name).await.map_err(io::Error::other) })
    }
}
