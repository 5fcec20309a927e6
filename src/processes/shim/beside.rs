//! Start of a supervisor on behalf of a command inside the worker, when supervisor and guard are both gone.
//!
//! The command itself must not start one: the shim is the subreaper of all descendants, so even a daemon would belong
//! to the worker and end with it. The shim itself is outside the worker's control groups, and has neither the worker's
//! environment nor its limits. Its sibling has the parent of the shim: the fork server, tmux, or init.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::Stdio;

use nix::libc;
use nix::sys::signal::Signal;
use nix::unistd::ForkResult;

use crate::processes::guard;
use swarm_sys::processes::fork_sibling;

/// Name of the pipe in the generation's directory on which the supervisor reports its readiness to the command.
pub const READY_PIPE: &str = "ready.pipe";

/// Reports whether this shim starts a supervisor when it gets SIGUSR1. Older shims do not block that signal and would
/// be killed by it.
pub fn starts_supervisors(shim: i32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{shim}/status")).unwrap_or_default();
    let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:"));
    let blocked = blocked.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    blocked & (1 << (Signal::SIGUSR1 as u32 - 1)) != 0
}

/// Starts a guard as a sibling of this shim. If there is a supervisor already, the new one ends by itself.
pub fn start_supervisor() {
    let Ok(root) = std::fs::canonicalize("../..") else { return };
    if let Ok(ForkResult::Child) = fork_sibling() {
        // Before this shim may end, at which the kernel tells the processes of its terminal to end, too.
        let _ = nix::unistd::setsid();
        let error = guard::become_one(&root, ready());
        let _ = writeln!(io::stderr(), "swarm: error: cannot start a supervisor: {error}");
        // SAFETY: ends the child without running the parent's exit handlers.
        #[expect(unsafe_code, reason = "the standard library runs them")]
        unsafe {
            libc::_exit(1)
        }
    }
}

/// Returns the pipe of the command that waits. Without a reader, opening it fails.
fn ready() -> Stdio {
    let pipe = OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(Path::new(READY_PIPE));
    pipe.map_or_else(|_| Stdio::null(), Stdio::from)
}
