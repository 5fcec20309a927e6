//! Inspects and signals processes without confusing one with another.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
pub use rustix::process::Signal;
use rustix::process::{Pid, PidfdFlags, pidfd_open, pidfd_send_signal};

pub fn all() -> Vec<i32> {
    let entries = std::fs::read_dir("/proc").expect("readable").flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

pub fn has_variable(pid: i32, variable: &str) -> bool {
    let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    environ.split(|byte| *byte == 0).any(|entry| entry == variable.as_bytes())
}

/// Command line of a process.
pub fn words(pid: i32) -> Vec<String> {
    let text = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    text.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

/// Field of `/proc/PID/stat` by its number in proc(5), from 3 on.
pub fn stat(pid: i32, field: usize) -> Option<String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = text.rsplit_once(')')?;
    rest.split_whitespace().nth(field.checked_sub(3)?).map(str::to_owned)
}

/// Reports whether a process runs; a zombie does not.
pub fn alive(pid: i32) -> bool {
    stat(pid, 3).is_some_and(|state| !matches!(state.as_str(), "Z" | "X"))
}

pub fn is_stopped(pid: i32) -> bool {
    stat(pid, 3).is_some_and(|state| state == "T")
}

fn open(pid: i32) -> Option<OwnedFd> {
    pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()
}

/// Waits until a process has ended.
pub fn wait_end(pid: i32, limit: Duration) -> bool {
    let Some(handle) = open(pid) else { return true };
    let limit =
        Timespec { tv_sec: i64::try_from(limit.as_secs()).expect("short"), tv_nsec: i64::from(limit.subsec_nanos()) };
    poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&limit)).is_ok_and(|count| count > 0)
}

/// Signals a process that the caller's rig started.
pub fn signal(pid: i32, signal: Signal) {
    assert!(pid > 1, "pid {pid}");
    if let Some(handle) = open(pid) {
        let _ = pidfd_send_signal(&handle, signal);
    }
}

pub fn kill(pid: i32) {
    signal(pid, Signal::KILL);
}

/// Kills a process that carries the marker. The marker is checked again after the pidfd is open, so a process that
/// got the pid meanwhile is safe.
pub fn end_marked(pid: i32, marker: &str) {
    if let Some(handle) = open(pid).filter(|_| has_variable(pid, marker)) {
        let _ = pidfd_send_signal(&handle, Signal::KILL);
    }
}
