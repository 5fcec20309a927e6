//! Forks, optionally into a control group. Only for single-threaded processes.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::Path;

use nix::errno::Errno;
use nix::libc;
use nix::unistd::{ForkResult, Pid};

/// From <linux/sched.h>. The value does not fit into libc's type for it.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// Forks this process.
pub fn fork() -> io::Result<ForkResult> {
    // SAFETY: the calling process has one thread, so the child may do anything.
    #[expect(unsafe_code, reason = "all callers are single-threaded")]
    Ok(unsafe { nix::unistd::fork() }?)
}

/// Forks this process so that the child starts in a control group of version 2.
///
/// # Errors
/// Fails if the system refuses, or is too old. There is no child then.
pub fn fork_in(dir: &Path) -> io::Result<ForkResult> {
    let group = File::open(dir)?;
    let arguments = libc::clone_args {
        flags: CLONE_INTO_CGROUP,
        pidfd: 0,
        child_tid: 0,
        parent_tid: 0,
        exit_signal: u64::from(libc::SIGCHLD.unsigned_abs()),
        stack: 0,
        stack_size: 0,
        tls: 0,
        set_tid: 0,
        set_tid_size: 0,
        cgroup: u64::from(group.as_raw_fd().unsigned_abs()),
    };
    // SAFETY: equals a fork of a single-threaded process: memory is copied, and nothing is shared. What the C library
    // does at a fork beyond that concerns only other threads, of which there are none.
    #[expect(unsafe_code, reason = "the C library has no function for this")]
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw const arguments, size_of::<libc::clone_args>()) };
    match i32::try_from(pid) {
        Ok(0) => Ok(ForkResult::Child),
        Ok(pid) if pid > 0 => Ok(ForkResult::Parent { child: Pid::from_raw(pid) }),
        Ok(_) | Err(_) => Err(Errno::last().into()),
    }
}
