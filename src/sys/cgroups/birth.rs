//! Forks, also into a control group. Only for processes of one thread.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::Path;

use nix::errno::Errno;
use nix::libc;
use nix::unistd::{ForkResult, Pid};

/// From <linux/sched.h>; it has more bits than libc's type for it.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// An ordinary fork.
pub fn fork() -> io::Result<ForkResult> {
    // SAFETY: the calling process has one thread, so the child may do anything.
    #[expect(unsafe_code, reason = "those who fork are single-threaded")]
    Ok(unsafe { nix::unistd::fork() }?)
}

/// A fork whose child is in the group of version 2 from its first moment on.
///
/// # Errors
/// What the system says, also that it is too old for this; there is no child then.
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
    // SAFETY: as a fork of a process of one thread: memory is copied, nothing is shared. What
    // the C library does at a fork beyond that is for its threads, of which there are none.
    #[expect(unsafe_code, reason = "the C library has no call for it")]
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw const arguments, size_of::<libc::clone_args>()) };
    match i32::try_from(pid) {
        Ok(0) => Ok(ForkResult::Child),
        Ok(pid) if pid > 0 => Ok(ForkResult::Parent { child: Pid::from_raw(pid) }),
        Ok(_) | Err(_) => Err(Errno::last().into()),
    }
}
