//! Running one tmux client: nothing on its stdin but what is meant for it,
//! bounded output, and a deadline after which it is killed. One thread waits
//! for pipes and process together, so nothing polls.

use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// What the client said.
#[derive(Debug)]
pub struct Said {
    pub success: bool,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
}

/// Why there is no answer.
#[derive(Debug)]
pub enum Silence {
    Spawn(io::Error),
    Timeout,
    TooMuch,
    System(io::Error),
}

/// Runs `command`, feeds it `input`, and returns what it wrote.
pub fn run(command: &mut Command, input: Option<&[u8]>, limit: Duration, bytes_max: usize) -> Result<Said, Silence> {
    let stdin = if input.is_some() { Stdio::piped() } else { Stdio::null() };
    let child = command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(Silence::Spawn)?;
    let mut client = Client { child, said: Said { success: false, stdout: Vec::new(), stderr: Vec::new() } };
    let talked = client.talk(input.unwrap_or_default(), Instant::now() + limit, bytes_max);
    if talked.is_err() {
        // An error here means that it ended meanwhile, which is what is wanted.
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
            // A server started by this client may hold the pipes open, so the
            // end of the process counts and not the end of its output.
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

/// Waits for one of `waits`; false when the deadline came first.
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

/// Writes what the pipe takes now. A client that closes its end early says why
/// on stderr, so that error is not one here.
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

/// Reads what is there now, and forgets the pipe at its end. One call reads a
/// bounded number of times, so that an endless writer meets the limits above.
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
    fn input_and_output_larger_than_a_pipe_pass_at_once() {
        let input = vec![b'x'; 3_000_000];
        let said =
            run(&mut sh("cat; echo no >&2; exit 3"), Some(&input), Duration::from_secs(20), 1 << 24).expect("runs");
        assert!(!said.success);
        assert_eq!((said.stdout.len(), said.stderr.as_slice()), (3_000_000, b"no\n".as_slice()));
    }

    #[test]
    fn a_silent_client_is_killed_at_its_limit() {
        let began = Instant::now();
        let silence = run(&mut sh("exec sleep 60"), None, Duration::from_millis(100), 1_000).expect_err("is killed");
        assert!(matches!(silence, Silence::Timeout), "{silence:?}");
        assert!(began.elapsed() < Duration::from_secs(20));
    }

    #[test]
    fn a_talkative_client_is_killed_at_its_limit() {
        let silence = run(&mut sh("exec yes"), None, Duration::from_secs(20), 100_000).expect_err("is killed");
        assert!(matches!(silence, Silence::TooMuch), "{silence:?}");
    }

    #[test]
    fn a_pipe_held_open_by_somebody_else_keeps_nobody_waiting() {
        let began = Instant::now();
        let said = run(&mut sh("echo first; sleep 30 & exit 0"), None, Duration::from_secs(20), 1_000).expect("runs");
        assert_eq!(said.stdout, b"first\n");
        assert!(said.success && began.elapsed() < Duration::from_secs(15));
    }

    #[test]
    fn input_that_nobody_reads_is_no_error() {
        let said = run(&mut sh("exit 0"), Some(&vec![b'x'; 1_000_000]), Duration::from_secs(20), 1_000).expect("runs");
        assert!(said.success);
    }
}
