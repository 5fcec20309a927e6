//! Forks in place of further executions of this program: on the way to the first answer, each of those would take as long as
//! many verbs do. A process with several threads executes the program instead.

use std::ffi::{CString, OsString};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::process::CommandExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::Command;

use nix::sys::signal::{SigHandler, Signal, signal};
use nix::unistd::{ForkResult, fork, setsid};
use swarm_sys::files::list;

use super::login::Variables;
use crate::processes::title::Title;

/// Exit code of a process that has panicked.
const PANICKED: u8 = 101;

/// Reports whether this process has one thread, so that a fork of it may do anything.
pub fn is_possible() -> bool {
    list(Path::new("/proc/self/task")).is_ok_and(|threads| threads.len() == 1)
}

/// Executes `work` in a fork that outlives this process: in a session of its own, without any of its files. Its standard
/// output is `held`.
///
/// # Errors
/// Fails if there can be no fork.
pub fn apart(words: &[&[u8]], held: File, work: impl FnOnce() -> u8) -> io::Result<()> {
    // SAFETY: this process has one thread, so the fork may do anything.
    #[expect(unsafe_code, reason = "only called by a process with one thread")]
    match unsafe { fork() }? {
        ForkResult::Parent { .. } => Ok(()),
        ForkResult::Child => {
            let done = catch_unwind(AssertUnwindSafe(move || {
                part_from_streams(held).map(|()| {
                    show(words);
                    work()
                })
            }));
            std::process::exit(i32::from(done.map_or(PANICKED, |done| done.unwrap_or(1))))
        }
    }
}

/// Leaves session, directory and files of the process that was forked.
fn part_from_streams(held: File) -> io::Result<()> {
    // The end of the other processes of the connection is none of this one.
    let _ = setsid();
    let null = OpenOptions::new().read(true).write(true).open("/dev/null")?;
    nix::unistd::dup2_stdin(&null)?;
    nix::unistd::dup2_stderr(&null)?;
    nix::unistd::dup2_stdout(&held)?;
    drop((null, held));
    crate::close_inherited();
    std::env::set_current_dir("/")
}

/// Lets a command execute words of this program in the fork that would otherwise execute the program, with this environment.
pub fn within(command: &mut Command, words: &[String], environment: &Variables) {
    let words: Vec<OsString> =
        std::iter::once("swarm").chain(words.iter().map(String::as_str)).map(Into::into).collect();
    let text = |text: &str| CString::new(text).unwrap_or_default();
    // A variable that cannot be one lets the command fail before.
    let environment: Vec<(CString, CString)> =
        environment.iter().map(|(name, value)| (text(name), text(value))).collect();
    let work = move || -> io::Result<()> {
        // Also the pipe by which the other process hears whether the execution has failed: it would wait for its end.
        crate::close_inherited();
        let shown: Vec<&[u8]> = words.iter().map(|word| word.as_encoded_bytes()).collect();
        show(&shown);
        let done = catch_unwind(AssertUnwindSafe(|| {
            // SAFETY: ignoring installs no handler.
            #[expect(unsafe_code, reason = "sigaction is unsafe for handlers, of which this has none")]
            let _ = unsafe { signal(Signal::SIGPIPE, SigHandler::SigIgn) };
            replace_environment(&environment);
            crate::start(&words)
        }));
        std::process::exit(i32::from(done.unwrap_or(PANICKED)))
    };
    // SAFETY: this process has one thread, so the fork may do anything.
    #[expect(unsafe_code, reason = "only called by a process with one thread")]
    unsafe {
        command.pre_exec(work);
    }
}

/// Replaces the environment, without the standard library: the thread that has forked holds its lock, and does not exist
/// here. Nothing else in this program changes the environment of a verb.
fn replace_environment(environment: &[(CString, CString)]) {
    // SAFETY: this process has one thread, and nobody keeps a pointer to a variable.
    #[expect(unsafe_code, reason = "the lock of the standard library is held")]
    unsafe {
        nix::libc::clearenv();
        for (name, value) in environment {
            nix::libc::setenv(name.as_ptr(), value.as_ptr(), 1);
        }
    }
}

/// Shows these words as the command line, as far as there is room.
fn show(words: &[&[u8]]) {
    if let Some(mut title) = Title::find() {
        title.set(words);
    }
}
