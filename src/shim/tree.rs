//! Ending the process tree and proving it gone. The shim is the subreaper of
//! everything below it: whatever daemonises becomes its child, and no children
//! means an empty tree.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::child::Child;
use super::signals::Signals;
use crate::adapters::procfs;

/// How long a tree has to end by itself.
const GRACE: Duration = Duration::from_secs(5);
/// How long the worker's own process group has before the rest is looked for.
const GROUP_GRACE: Duration = Duration::from_millis(20);
/// How long SIGKILL is repeated, for what forks meanwhile.
const INSISTENCE: Duration = Duration::from_secs(5);
const ROUND: Duration = Duration::from_millis(100);
/// A window that was closed says hang-up first, and this long nothing more.
const HANGUP_GRACE: Duration = Duration::from_secs(1);

/// Ends all descendants; returns the pids of those that outlived SIGKILL.
pub fn end(child: &mut Child, signals: &Signals, first: Option<Signal>) -> Vec<i32> {
    if !child.reap() {
        return Vec::new();
    }
    // Nearly all trees are one process group, which needs no search.
    if first.is_none() && child.signal_group(Signal::SIGTERM) && wait_empty(child, signals, GROUP_GRACE) {
        return Vec::new();
    }
    if let Some(first) = first {
        signal_all(first);
        if wait_empty(child, signals, HANGUP_GRACE) {
            return Vec::new();
        }
    }
    signal_all(Signal::SIGTERM);
    if wait_empty(child, signals, GRACE) {
        return Vec::new();
    }
    let deadline = Instant::now() + INSISTENCE;
    while Instant::now() < deadline {
        signal_all(Signal::SIGKILL);
        if wait_empty(child, signals, ROUND) {
            return Vec::new();
        }
    }
    procfs::descendants(nix::unistd::getpid().as_raw())
}

/// The signal, then SIGCONT so that a stopped process can see it.
fn signal_all(signal: Signal) {
    for pid in procfs::descendants(nix::unistd::getpid().as_raw()) {
        crate::adapters::process::signal_descendant(pid, signal);
        if signal != Signal::SIGKILL {
            crate::adapters::process::signal_descendant(pid, Signal::SIGCONT);
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
