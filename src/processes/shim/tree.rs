//! Ending the process tree and proving it gone. The shim is the subreaper of
//! everything below it: whatever daemonises becomes its child, and no children
//! means an empty tree. Where the worker has control groups they must be empty as well.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::child::Child;
use super::signals::Signals;
use swarm_sys::cgroups::Groups;
use swarm_sys::procfs;

/// How long a tree has to end by itself.
const GRACE: Duration = Duration::from_secs(5);
/// How long the worker's own process group has before the rest is looked for.
const GROUP_GRACE: Duration = Duration::from_millis(20);
/// How long SIGKILL is repeated, for what forks meanwhile.
const INSISTENCE: Duration = Duration::from_secs(5);
const ROUND: Duration = Duration::from_millis(100);
/// A window that was closed says hang-up first, and this long nothing more.
const HANGUP_GRACE: Duration = Duration::from_secs(1);

/// Ends all descendants and what else is in the groups; returns the pids of those that outlived
/// SIGKILL.
pub fn end(child: &mut Child, signals: &Signals, groups: &Groups, first: Option<Signal>) -> Vec<i32> {
    if ends_when_asked(child, signals, first) && groups.members().is_empty() {
        return Vec::new();
    }
    groups.forbid_forks();
    let deadline = Instant::now() + INSISTENCE;
    while Instant::now() < deadline {
        groups.kill();
        signal_all(Signal::SIGKILL);
        if wait_empty(child, signals, ROUND) && groups.members().is_empty() {
            return Vec::new();
        }
    }
    let mut survivors = groups.members();
    survivors.extend(procfs::descendants(nix::unistd::getpid().as_raw()));
    survivors.into_iter().collect()
}

/// Whether the tree is empty before anybody was killed.
fn ends_when_asked(child: &mut Child, signals: &Signals, first: Option<Signal>) -> bool {
    if !child.reap() {
        return true;
    }
    // Nearly all trees are one process group, which needs no search.
    if first.is_none() && child.signal_group(Signal::SIGTERM) && wait_empty(child, signals, GROUP_GRACE) {
        return true;
    }
    if let Some(first) = first {
        signal_all(first);
        if wait_empty(child, signals, HANGUP_GRACE) {
            return true;
        }
    }
    signal_all(Signal::SIGTERM);
    wait_empty(child, signals, GRACE)
}

/// The signal, then SIGCONT so that a stopped process can see it.
fn signal_all(signal: Signal) {
    for pid in procfs::descendants(nix::unistd::getpid().as_raw()) {
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
