//! Workers and their shims as processes. They end when a test ends them, and shims write exit
//! records.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::clock::FakeClock;
use super::kernel::Kernel;
use super::records::{FakeRecords, Key};
use super::script::Script;
use swarm_model::{Ended, ExitRecord, Hits, Lease, ProcessId, Reason, Row, Usage};
use swarm_ports::{BoxFuture, Clock as _, Gone, ProcessError, Processes, StopOrder};

/// Default duration of a stop, in milliseconds.
const STOP_MS: u64 = 50;

/// Members of an exit record that tests set in addition to the reason.
#[derive(Clone, Copy, Default)]
struct Extras {
    interrupted: bool,
    server_lost: Option<bool>,
}

#[derive(Clone)]
pub struct FakeProcesses {
    pub(super) kernel: Arc<Kernel>,
    records: Arc<FakeRecords>,
    clock: Arc<FakeClock>,
    script: Arc<Script>,
    stop_ms: Arc<AtomicU64>,
    hung_up: Arc<Mutex<Vec<ProcessId>>>,
}

impl FakeProcesses {
    pub fn new(kernel: Arc<Kernel>, records: Arc<FakeRecords>, clock: Arc<FakeClock>, script: Arc<Script>) -> Self {
        Self { kernel, records, clock, script, stop_ms: Arc::new(AtomicU64::new(STOP_MS)), hung_up: Arc::default() }
    }

    /// Sets the time that workers take to stop, in milliseconds.
    pub fn stop_takes_ms(&self, ms: u64) {
        self.stop_ms.store(ms, Ordering::SeqCst);
    }

    /// Ends the worker's command. Its shim, if it has one, records the exit.
    pub fn end(&self, key: &Key, ended: Ended) {
        self.finish(key, ended, Reason::Exited, Extras::default());
    }

    /// Ends the worker's command for the given reason.
    pub fn end_because(&self, key: &Key, ended: Ended, reason: Reason) {
        self.finish(key, ended, reason, Extras::default());
    }

    /// Ends the worker because its terminal has hung up: its window was closed, or the tmux server was lost with all
    /// of its windows.
    pub fn hang_up(&self, key: &Key, server_lost: bool) {
        let extras = Extras { server_lost: Some(server_lost), ..Extras::default() };
        self.finish(key, Ended::Signal(1), Reason::Closed, extras);
    }

    /// Ends a worker as a machine does that shuts down: its shim gets a signal that no supervisor sent.
    pub fn interrupt(&self, key: &Key, ended: Ended) {
        self.finish(key, ended, Reason::Stopped, Extras { interrupted: true, ..Extras::default() });
    }

    /// Closes the window of a worker. Its shim ends it when the test says so.
    pub fn close_window(&self, key: &Key) {
        let lease = self.records.facts(key).and_then(|facts| facts.lease.content);
        self.hung_up.lock().unwrap_or_else(PoisonError::into_inner).extend(lease.map(|lease| lease.shim));
    }

    /// Kills the shim without an exit record. A child at its gate dies with it.
    pub fn kill_shim(&self, key: &Key) {
        let Some(facts) = self.records.facts(key) else { return };
        let Some(lease) = facts.lease.content else { return };
        self.kernel.end(&lease.shim);
        if matches!(facts.spec, swarm_ports::SpecFacts::Pending(_)) {
            self.kernel.end(&lease.worker);
        }
    }

    fn finish(&self, key: &Key, ended: Ended, reason: Reason, extras: Extras) {
        let Extras { interrupted, server_lost } = extras;
        let Some(lease) = self.records.facts(key).and_then(|facts| facts.lease.content) else { return };
        self.kernel.end(&lease.worker);
        if !self.kernel.exists(&lease.shim) {
            return;
        }
        let exit = ExitRecord {
            token: lease.token.clone(),
            started: lease.started.clone(),
            pid: lease.worker.pid,
            ended,
            reason,
            ended_at_ms: self.clock.wall_ms(),
            duration_ms: self.clock.boot_ms().saturating_sub(lease.worker.start_ticks * 10),
            usage: Usage::default(),
            survivors: Vec::new(),
            hits: Hits::default(),
            interrupted,
            server_lost,
        };
        self.records.set_exit(key, exit);
        self.kernel.end(&lease.shim);
    }

    /// Forks a process of the worker's tree that nobody can end. Its shim gives up on it.
    pub fn fork_survivor(&self, key: &Key) -> ProcessId {
        let survivor = self.kernel.fork();
        self.records.add_survivor(key, survivor.clone());
        survivor
    }

    fn key_of(&self, lease: &Lease) -> Option<Key> {
        let of_it = |facts: &swarm_ports::DirFacts| facts.spec.spec().is_some_and(|spec| spec.token == lease.token);
        self.records.all().into_iter().find(of_it).map(|facts| (facts.name, facts.generation))
    }

    fn stop_delay(&self) -> Duration {
        Duration::from_millis(self.stop_ms.load(Ordering::SeqCst))
    }
}

impl Processes for FakeProcesses {
    fn gone(&self, process: ProcessId) -> BoxFuture<'static, Gone> {
        let gone = self.kernel.gone(&process);
        Box::pin(async move {
            gone.await;
            Gone
        })
    }

    fn is_alive(&self, process: &ProcessId) -> bool {
        self.kernel.is_alive(process)
    }

    fn has_hung_up(&self, process: &ProcessId) -> bool {
        self.hung_up.lock().unwrap_or_else(PoisonError::into_inner).contains(process)
    }

    fn stop_by_shim(&self, lease: &Lease, order: StopOrder) -> Result<(), ProcessError> {
        let key = self.key_of(lease);
        let subject = key.as_ref().map_or_else(String::new, |(name, generation)| format!("{name}.{generation}"));
        self.script.before_now("stop_by_shim", &subject).map_err(ProcessError::Tool)?;
        let (this, delay) = (self.clone(), self.stop_delay());
        tokio::spawn(async move {
            tokio::time::sleep(delay).await;
            if let Some(key) = key {
                let reason = match order {
                    StopOrder::Stop => Reason::Stopped,
                    StopOrder::Output => Reason::Output,
                };
                this.finish(&key, Ended::Signal(15), reason, Extras::default());
            }
        });
        Ok(())
    }

    fn stop_unsupervised<'a>(&'a self, lease: &'a Lease) -> BoxFuture<'a, Result<(), ProcessError>> {
        Box::pin(async move {
            self.script.before("stop_unsupervised", &lease.token).await.map_err(ProcessError::Tool)?;
            if self.kernel.is_alive(&lease.worker) {
                tokio::time::sleep(self.stop_delay()).await;
            }
            self.kernel.end(&lease.worker);
            Ok(())
        })
    }

    fn end_survivors<'a>(&'a self, survivors: &'a [ProcessId]) -> BoxFuture<'a, Result<(), ProcessError>> {
        Box::pin(async move {
            self.script.before("end_survivors", "").await.map_err(ProcessError::Tool)?;
            let living: Vec<i32> = survivors.iter().filter(|it| self.kernel.is_alive(it)).map(|it| it.pid).collect();
            if living.is_empty() { Ok(()) } else { Err(ProcessError::Survivors(living)) }
        })
    }

    fn stop_foreign<'a>(&'a self, row: &'a Row) -> BoxFuture<'a, Result<(), ProcessError>> {
        Box::pin(async move {
            self.script.before("stop_foreign", &row.name).await.map_err(ProcessError::Tool)?;
            if let Some(process) = row.usable_pid().and_then(|pid| self.kernel.by_pid(pid)) {
                self.kernel.end(&process);
            }
            Ok(())
        })
    }

    fn foreign<'a>(&'a self, row: &'a Row) -> BoxFuture<'a, Result<Option<ProcessId>, ProcessError>> {
        Box::pin(async move {
            self.script.before("foreign", &row.name).await.map_err(ProcessError::Tool)?;
            Ok(row.usable_pid().and_then(|pid| self.kernel.by_pid(pid)))
        })
    }
}
