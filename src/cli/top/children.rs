//! Verbs that run as children of this process, with the words that a person would type. Their output comes through a pipe
//! on which the screen waits, and their end through a pidfd.

use std::ffi::OsStr;
use std::io::{self, PipeReader, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::verbs::with_limit_of_caller;

/// Output that is kept of a verb.
const OUTPUT_BYTES_MAX: usize = 4 << 20;

/// A verb that runs.
pub struct Verb {
    child: Child,
    end: OwnedFd,
    /// `None` after its end.
    out: Option<PipeReader>,
    bytes: Vec<u8>,
    pub began: Instant,
}

/// How a verb ended.
#[derive(Debug)]
pub struct Ended {
    /// `None`: by a signal.
    pub code: Option<i32>,
    pub output: Vec<u8>,
    pub took: Duration,
}

impl Verb {
    /// Starts `swarm WORDS` with this text as its standard input, in a directory if one is given.
    ///
    /// # Errors
    /// Fails if no process can be started.
    pub fn start<W: AsRef<OsStr>>(words: &[W], input: Option<&str>, dir: Option<&str>) -> io::Result<Self> {
        let (out, writer) = io::pipe()?;
        rustix::io::ioctl_fionbio(&out, true)?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(words).stdout(writer.try_clone()?).stderr(writer);
        command.stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() });
        if let Some(dir) = dir {
            command.current_dir(dir);
        }
        with_limit_of_caller(&mut command);
        let mut child = command.spawn()?;
        if let (Some(text), Some(mut stdin)) = (input, child.stdin.take()) {
            // A typed text fits into the pipe. A verb that does not read it says why.
            let _ = stdin.write_all(text.as_bytes());
        }
        let end = pidfd(&child)?;
        Ok(Self { child, end, out: Some(out), bytes: Vec::new(), began: Instant::now() })
    }

    /// Returns what tells that something has come, or that it has ended.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.out.iter().map(PipeReader::as_fd).chain([self.end.as_fd()])
    }

    /// Takes what has come. Returns how the verb ended, if it has.
    pub fn look(&mut self) -> Option<Ended> {
        self.read();
        let status = self.child.try_wait().ok().flatten()?;
        // Its last output.
        self.read();
        let output = std::mem::take(&mut self.bytes);
        Some(Ended { code: status.code(), output, took: self.began.elapsed() })
    }

    fn read(&mut self) {
        let mut part = [0; 16 * 1024];
        while let Some(Ok(count)) = self.out.as_mut().map(|out| out.read(&mut part)) {
            if count == 0 {
                self.out = None;
                return;
            }
            self.bytes.extend_from_slice(&part[..count]);
            if self.bytes.len() > OUTPUT_BYTES_MAX {
                let surplus = self.bytes.len() - OUTPUT_BYTES_MAX / 2;
                self.bytes.drain(..surplus);
            }
        }
    }

    /// Ends a verb that only reads, and whose output nobody wants any more.
    pub fn drop_it(mut self) {
        let _ = pidfd_send_signal(&self.end, Signal::KILL);
        let _ = self.child.wait();
    }
}

pub fn pidfd(child: &Child) -> io::Result<OwnedFd> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?;
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}
