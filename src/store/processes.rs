//! Implements the processes port: reaches our shims and process trees through their leases, and workers of the
//! original `swarm` through their rows.

use std::io;

use rustix::process::pidfd_send_signal;
use swarm_model::{Lease, ProcessId, Row};
use swarm_ports::{BoxFuture, Gone, ProcessError, Processes, StopOrder};
use swarm_sys::cgroups::Groups;
use swarm_sys::processes::{end_set, pidfd};
use swarm_sys::procfs;
use swarm_sys::readable::Readable;

use crate::legacy_process;

/// Processes of this system, in this boot.
pub struct SystemProcesses {
    boot: String,
}

impl Default for SystemProcesses {
    fn default() -> Self {
        Self::new()
    }
}

impl SystemProcesses {
    pub fn new() -> Self {
        Self { boot: procfs::boot_id() }
    }
}

impl Processes for SystemProcesses {
    fn gone(&self, process: ProcessId) -> BoxFuture<'static, Gone> {
        let fd = pidfd(&process, &self.boot);
        Box::pin(async move {
            if let Some(fd) = fd
                && let Ok(readable) = Readable::new(fd)
            {
                let _ = readable.wait().await;
            }
            Gone
        })
    }

    fn is_alive(&self, process: &ProcessId) -> bool {
        procfs::alive(process, &self.boot).is_some()
    }

    fn stop_by_shim(&self, lease: &Lease, order: StopOrder) -> Result<(), ProcessError> {
        let Some(fd) = pidfd(&lease.shim, &self.boot) else { return Ok(()) };
        let signal = match order {
            StopOrder::Stop => rustix::process::Signal::TERM,
            StopOrder::Output => rustix::process::Signal::XFSZ,
        };
        let sent = pidfd_send_signal(&fd, signal);
        // A suspended shim has to continue before it can handle the signal.
        let _ = pidfd_send_signal(&fd, rustix::process::Signal::CONT);
        match sent {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => Err(ProcessError::Tool(format!("cannot signal shim {}: {error}", lease.shim.pid))),
        }
    }

    fn stop_unsupervised<'a>(&'a self, lease: &'a Lease) -> BoxFuture<'a, Result<(), ProcessError>> {
        let (lease, boot) = (lease.clone(), self.boot.clone());
        blocking(move || {
            // Control groups first: a fork bomb cannot be found process by process.
            let groups = Groups::of(&lease);
            let survivors = groups.end();
            end_set(&|| with_token(&lease, &boot))?;
            groups.remove();
            if survivors.is_empty() { Ok(()) } else { Err(ProcessError::Survivors(survivors)) }
        })
    }

    fn stop_foreign<'a>(&'a self, row: &'a Row) -> BoxFuture<'a, Result<(), ProcessError>> {
        let (row, boot) = (row.clone(), self.boot.clone());
        blocking(move || {
            let Some(leader) = legacy_process::alive(&row, &boot).map_err(ProcessError::Tool)? else { return Ok(()) };
            let tree = legacy_process::tree(&leader);
            if row.tmux.is_some() {
                legacy_process::kill_window(&row).map_err(ProcessError::Tool)?;
            }
            end_set(&|| legacy_process::survivors(&tree, &leader, &boot))
        })
    }

    fn foreign<'a>(&'a self, row: &'a Row) -> BoxFuture<'a, Result<Option<ProcessId>, ProcessError>> {
        let (row, boot) = (row.clone(), self.boot.clone());
        blocking(move || legacy_process::alive(&row, &boot).map_err(ProcessError::Tool))
    }
}

/// Returns the pids of the worker's process and its session, of all processes that carry the worker's token in their
/// environment, and of the descendants of all these.
fn with_token(lease: &Lease, boot: &str) -> Vec<i32> {
    let needle = format!("SWARM_TOKEN={}", lease.token);
    let leader = procfs::alive(&lease.worker, boot).map(|_| lease.worker.pid);
    let mut found: Vec<i32> = leader.into_iter().collect();
    for pid in procfs::all().unwrap_or_default() {
        let Some(stat) = procfs::stat(pid).filter(procfs::Stat::is_alive) else { continue };
        let marked = std::fs::read(format!("/proc/{pid}/environ"))
            .is_ok_and(|environment| environment.split(|byte| *byte == 0).any(|pair| pair == needle.as_bytes()));
        if marked || Some(stat.session) == leader {
            found.push(pid);
        }
    }
    let below: Vec<i32> = found.iter().flat_map(|pid| procfs::descendants(*pid)).collect();
    found.extend(below.into_iter().filter(|pid| procfs::stat(*pid).is_some_and(|stat| stat.is_alive())));
    found.sort_unstable();
    found.dedup();
    found
}

fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ProcessError> + Send + 'static,
) -> BoxFuture<'static, Result<T, ProcessError>> {
    Box::pin(async move {
        let done = tokio::task::spawn_blocking(work).await;
        done.unwrap_or_else(|error| Err(ProcessError::Tool(io::Error::other(error).to_string())))
    })
}
