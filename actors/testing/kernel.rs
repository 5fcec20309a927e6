//! Processes by identity, and the present boot.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;

use super::clock::FakeClock;
use swarm_model::ProcessId;
use swarm_ports::Clock as _;

pub struct Kernel {
    clock: Arc<FakeClock>,
    inner: Mutex<Inner>,
}

struct Inner {
    boot: u32,
    last_pid: i32,
    living: BTreeMap<i32, (ProcessId, watch::Sender<()>)>,
    /// Pids of processes in another process namespace, which the supervisor does not see.
    hidden: BTreeSet<i32>,
}

impl Kernel {
    pub fn new(clock: Arc<FakeClock>) -> Self {
        Self {
            clock,
            inner: Mutex::new(Inner { boot: 1, last_pid: 100, living: BTreeMap::new(), hidden: BTreeSet::new() }),
        }
    }

    pub fn boot(&self) -> String {
        format!("boot-{}", self.with(|inner| inner.boot))
    }

    pub fn fork(&self) -> ProcessId {
        let (boot, start_ticks) = (self.boot(), self.clock.boot_ms() / 10);
        self.with(|inner| {
            inner.last_pid += 1;
            let process = ProcessId { pid: inner.last_pid, start_ticks, boot };
            inner.living.insert(inner.last_pid, (process.clone(), watch::channel(()).0));
            process
        })
    }

    /// Reports whether the supervisor sees this process.
    pub fn is_alive(&self, process: &ProcessId) -> bool {
        self.exists(process) && !self.with(|inner| inner.hidden.contains(&process.pid))
    }

    /// Reports whether this process exists in any namespace.
    pub fn exists(&self, process: &ProcessId) -> bool {
        self.with(|inner| inner.living.get(&process.pid).is_some_and(|(living, _)| living == process))
    }

    /// Moves a process to another process namespace.
    pub fn hide(&self, process: &ProcessId) {
        self.with(|inner| inner.hidden.insert(process.pid));
    }

    pub fn by_pid(&self, pid: i32) -> Option<ProcessId> {
        self.with(|inner| inner.living.get(&pid).map(|(process, _)| process.clone()))
    }

    /// Returns the number of processes.
    pub fn living(&self) -> usize {
        self.with(|inner| inner.living.len())
    }

    /// Ends the process and wakes its watchers.
    pub fn end(&self, process: &ProcessId) {
        if self.exists(process) {
            self.with(|inner| inner.living.remove(&process.pid));
        }
    }

    pub fn gone(&self, process: &ProcessId) -> impl Future<Output = ()> + Send + use<> {
        let alive = self.is_alive(process);
        let receiver =
            self.with(|inner| inner.living.get(&process.pid).filter(|_| alive).map(|(_, end)| end.subscribe()));
        async move {
            if let Some(mut receiver) = receiver {
                // Nothing is ever sent: the sender is dropped with the process.
                let _ = receiver.changed().await;
            }
        }
    }

    /// Reboots the machine: no process survives.
    pub fn reboot(&self) {
        self.with(|inner| {
            inner.boot += 1;
            inner.living.clear();
        });
    }

    fn with<T>(&self, work: impl FnOnce(&mut Inner) -> T) -> T {
        work(&mut self.inner.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
