//! Running one command with given input, bounded output, and a deadline after which it is killed. One thread waits
//! for the pipes and the process together, without polling.

use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// Result of a command.
#[derive(Debug)]
pub struct Said {
    pub success: bool,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
}

/// Reason why a command has no result.
#[derive(Debug)]
pub enum Silence {
    /// The command could not be started.
    Spawn(io::Error),
    /// The command did not end before the deadline, and was killed.
    Timeout,
    /// The command wrote too much, and was killed.
    TooMuch,
    System(io::Error),
}

/// Runs `command` with `input` on its stdin, and returns its result.
///
/// # Errors
/// Fails if the command cannot be started, does not end within `limit`, or writes more than `bytes_max` bytes.
pub fn run(command: &mut Command, input: Option<&[u8]>, limit: Duration, bytes_max: usize) -> Result<Said, Silence> {
    let stdin = if input.is_some() { Stdio::piped() } else { Stdio::null() };
    let child = command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(Silence::Spawn)?;
    let mut client = Client { child, said: Said { success: false, stdout: Vec::new(), stderr: Vec::new() } };
    let talked = client.talk(input.unwrap_or_default(), Instant::now() + limit, bytes_max);
    if talked.is_err() {
        // An error means that the process has ended meanwhile.
        let _ = client.child.kill();
    }
    let status = client.child.wait().map_err(Silence::System)?;
    talked?;
    client.said.success = status.success();
    Ok(client.said)
}

struct Client {
    child: Child,
    said: Said,
}

impl Client {
    fn talk(&mut self, mut input: &[u8], deadline: Instant, bytes_max: usize) -> Result<(), Silence> {
        let ended = self.pidfd().map_err(Silence::System)?;
        let mut stdin = self.child.stdin.take();
        let mut stdout = self.child.stdout.take();
        let mut stderr = self.child.stderr.take();
        nonblocking(stdin.as_ref())
            .and(nonblocking(stdout.as_ref()))
            .and(nonblocking(stderr.as_ref()))
            .map_err(Silence::System)?;
        loop {
            feed(&mut stdin, &mut input);
            drain(&mut stdout, &mut self.said.stdout).map_err(Silence::System)?;
            drain(&mut stderr, &mut self.said.stderr).map_err(Silence::System)?;
            if self.said.stdout.len() + self.said.stderr.len() > bytes_max {
                return Err(Silence::TooMuch);
            }
            let mut waits = vec![PollFd::new(&ended, PollFlags::IN)];
            waits.extend(stdin.as_ref().map(|fd| PollFd::new(fd, PollFlags::OUT)));
            waits.extend(stdout.as_ref().map(|fd| PollFd::new(fd, PollFlags::IN)));
            waits.extend(stderr.as_ref().map(|fd| PollFd::new(fd, PollFlags::IN)));
            if !wait_until(&mut waits, deadline).map_err(Silence::System)? {
                return Err(Silence::Timeout);
            }
            // A server that the command started may hold the pipes open, so wait for the end of the process and not
            // for the end of its output.
            if !waits[0].revents().is_empty() {
                drain(&mut stdout, &mut self.said.stdout).map_err(Silence::System)?;
                return drain(&mut stderr, &mut self.said.stderr).map_err(Silence::System);
            }
        }
    }

    fn pidfd(&self) -> io::Result<OwnedFd> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| io::Error::other("the child has no pid"))?;
        Ok(pidfd_open(pid, PidfdFlags::empty())?)
    }
}

/// Waits for one of `waits`. Returns `false` if the deadline comes first.
pub fn wait_until(waits: &mut [PollFd<'_>], deadline: Instant) -> io::Result<bool> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let limit = Timespec::try_from(left).map_err(io::Error::other)?;
        match poll(waits, Some(&limit)) {
            Ok(0) => return Ok(false),
            Ok(_) => return Ok(true),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn nonblocking<F: std::os::fd::AsFd>(pipe: Option<&F>) -> io::Result<()> {
    match pipe {
        Some(pipe) => Ok(rustix::io::ioctl_fionbio(pipe.as_fd(), true)?),
        None => Ok(()),
    }
}

/// Writes as much as the pipe accepts now. A closed pipe is no error, because a command that closes it early reports
/// the reason on stderr.
fn feed(stdin: &mut Option<ChildStdin>, input: &mut &[u8]) {
    while let Some(pipe) = stdin {
        if input.is_empty() {
            *stdin = None;
            return;
        }
        match pipe.write(input) {
            Ok(written) => *input = &input[written..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => *stdin = None,
        }
    }
}

/// Reads what is available now, and drops the pipe at its end. The number of reads is bounded, so that the limits
/// also apply to a command that writes without pause.
fn drain<R: io::Read>(pipe: &mut Option<R>, into: &mut Vec<u8>) -> io::Result<()> {
    const READS_MAX: usize = 64;
    let mut buffer = [0_u8; 65_536];
    for _ in 0..READS_MAX {
        let Some(reader) = pipe else { return Ok(()) };
        match reader.read(&mut buffer) {
            Ok(0) => *pipe = None,
            Ok(count) => into.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn input_and_output_larger_than_a_pipe_pass_together() {
        let input = vec![b'x'; 3_000_000];
        let said =
            run(&mut sh("cat; echo no >&2; exit 3"), Some(&input), Duration::from_secs(20), 1 << 24).expect("runs");
        assert!(!said.success);
        assert_eq!((said.stdout.len(), said.stderr.as_slice()), (3_000_000, b"no\n".as_slice()));
    }

    #[test]
    fn a_command_that_does_not_end_is_killed_at_the_deadline() {
        let began = Instant::now();
        let silence = run(&mut sh("exec sleep 60"), None, Duration::from_millis(100), 1_000).expect_err("is killed");
        assert!(matches!(silence, Silence::Timeout), "{silence:?}");
        assert!(began.elapsed() < Duration::from_secs(20));
    }

    #[test]
    fn a_command_that_writes_too_much_is_killed() {
        let silence = run(&mut sh("exec yes"), None, Duration::from_secs(20), 100_000).expect_err("is killed");
        assert!(matches!(silence, Silence::TooMuch), "{silence:?}");
    }

    #[test]
    fn a_pipe_held_open_by_another_process_does_not_delay_the_result() {
        let began = Instant::now();
        let said = run(&mut sh("echo first; sleep 30 & exit 0"), None, Duration::from_secs(20), 1_000).expect("runs");
        assert_eq!(said.stdout, b"first\n");
        assert!(said.success && began.elapsed() < Duration::from_secs(15));
    }

    #[test]
    fn unread_input_is_no_error() {
        let said = run(&mut sh("exit 0"), Some(&vec![b'x'; 1_000_000]), Duration::from_secs(20), 1_000).expect("runs");
        assert!(said.success);
    }
}
