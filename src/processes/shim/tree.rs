//! Ending the process tree and proving that it is gone. The shim is the subreaper of all its descendants: every process
//! that daemonizes becomes its child, so no children means an empty tree. Control groups of the worker must be empty as
//! well.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::child::Child;
use super::signals::Signals;
use swarm_model::ProcessId;
use swarm_sys::cgroups::Groups;
use swarm_sys::procfs;

/// Time between SIGTERM and SIGKILL.
pub const GRACE: Duration = Duration::from_secs(5);
/// Time between SIGTERM and SIGKILL in a job. It is shorter, because a batch system kills the whole job some seconds after its
/// own SIGTERM, and the end must be recorded before that.
pub const GRACE_OF_JOB: Duration = Duration::from_secs(2);
/// Time for the worker's own process group to end before other descendants are searched.
const GROUP_GRACE: Duration = Duration::from_millis(20);
/// Time for which SIGKILL is repeated, because processes may fork in the meantime.
const INSISTENCE: Duration = Duration::from_secs(5);
/// Maximum number of survivors that are recorded: there is room for them in the exit record.
const SURVIVORS_MAX: usize = 16;
/// Interval between two rounds of SIGKILL.
const ROUND: Duration = Duration::from_millis(100);
/// Time between SIGHUP and SIGTERM.
const HANGUP_GRACE: Duration = Duration::from_secs(1);

/// Ends all descendants and all processes in the groups. Returns the processes that survived SIGKILL, such as those of
/// another user.
pub fn end(
    child: &mut Child,
    signals: &Signals,
    groups: &Groups,
    first: Option<Signal>,
    grace: Duration,
) -> Vec<ProcessId> {
    if ends_when_asked(child, signals, first, grace) && groups.members().is_empty() {
        return Vec::new();
    }
    groups.forbid_forks();
    let deadline = Instant::now() + INSISTENCE;
    while Instant::now() < deadline {
        groups.kill();
        signal_all(child, Signal::SIGKILL);
        if wait_empty(child, signals, ROUND) && groups.members().is_empty() {
            return Vec::new();
        }
    }
    let mut survivors = groups.members();
    // If they cannot be listed, the command itself stands for the tree that is left.
    survivors.extend(procfs::descendants(nix::unistd::getpid().as_raw()).unwrap_or_else(|_| vec![child.pid()]));
    let boot = procfs::boot_id();
    let is_alive = |pid: i32| procfs::living(pid).ok().flatten().is_some();
    let living = survivors.into_iter().filter(|pid| is_alive(*pid)).filter_map(|pid| procfs::identity(pid, &boot));
    let living = living.take(SURVIVORS_MAX).collect();
    // The command may have ended after the last look, and has a status then.
    child.reap();
    living
}

/// Asks the tree to end, and reports whether it is empty without SIGKILL.
fn ends_when_asked(child: &mut Child, signals: &Signals, first: Option<Signal>, grace: Duration) -> bool {
    if !child.reap() {
        return true;
    }
    // Nearly all trees are a single process group, which needs no search.
    if first.is_none() && child.signal_group(Signal::SIGTERM) && wait_empty(child, signals, GROUP_GRACE) {
        return true;
    }
    if let Some(first) = first {
        signal_all(child, first);
        if wait_empty(child, signals, HANGUP_GRACE) {
            return true;
        }
    }
    signal_all(child, Signal::SIGTERM);
    wait_empty(child, signals, grace)
}

/// Sends the signal to all descendants, and then SIGCONT, so that stopped processes can handle it. If they cannot be
/// listed, at least the process group of the command gets it.
fn signal_all(child: &Child, signal: Signal) {
    let Ok(all) = procfs::descendants(nix::unistd::getpid().as_raw()) else {
        child.signal_group(signal);
        return;
    };
    for pid in all {
        swarm_sys::processes::signal_descendant(pid, signal);
        if signal != Signal::SIGKILL {
            swarm_sys::processes::signal_descendant(pid, Signal::SIGCONT);
        }
    }
}

fn wait_empty(child: &mut Child, signals: &Signals, limit: Duration) -> bool {
    let deadline = Instant::now() + limit;
    loop {
        if !child.reap() {
            return true;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        signals.wait_child(left);
    }
}
