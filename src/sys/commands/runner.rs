//! `swarm __runner DIR LOG MILLISECONDS UMASK COMMAND [INPUT]`: runs one command of the user, and ends all processes
//! that it started when it ends, when its time is up, or when the caller is gone. Standard input is a pipe from the
//! caller, whose end means that the caller is gone; the outcome is written to standard output. The command reads the
//! file INPUT.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::prctl;
use nix::sys::signal::{Signal, killpg};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::{Deserialize, Serialize};

use crate::{processes, procfs};

/// Maximum size of the output that is kept, in bytes.
const OUTPUT_BYTES_MAX: u64 = 8 << 20;

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    Code(i32),
    Signal(i32),
    /// The time limit was reached.
    Timeout,
    /// The command could not be run, or its end is unknown, for this reason.
    Unknown(String),
}

pub fn main(arguments: impl Iterator<Item = OsString>) -> u8 {
    let words: Vec<OsString> = arguments.collect();
    let [dir, log, limit, umask, command, input @ ..] = words.as_slice() else { return 2 };
    let input = input.first().map_or(Path::new("/dev/null"), Path::new);
    let Some(limit) = limit.to_str().and_then(|text| text.parse().ok()).map(Duration::from_millis) else { return 2 };
    let Some(umask) = umask.to_str().and_then(|text| u32::from_str_radix(text, 8).ok()) else { return 2 };
    nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(umask));
    let ended = run(Path::new(dir), Path::new(log), limit, command, input).unwrap_or_else(|error| {
        let outcome = Outcome::Unknown(format!("cannot run the command: {error}"));
        Some(Ended { outcome, unwritten: None })
    });
    if let Some(ended) = ended {
        let _ = io::stdout().write_all(ended.text().as_bytes());
    }
    0
}

/// Report about a command that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    pub outcome: Outcome,
    /// Why the log lacks some of the output. `None` if it is complete.
    pub unwritten: Option<String>,
}

impl Ended {
    /// Returns the text of the report: a line for the outcome, and a second one if the log is incomplete.
    fn text(&self) -> String {
        let outcome = serde_json::to_string(&self.outcome).unwrap_or_default();
        self.unwritten.iter().fold(format!("{outcome}\n"), |text, why| format!("{text}{why}\n"))
    }

    /// Parses the text of a report. `None` if it is malformed.
    pub fn read(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let outcome = serde_json::from_str(lines.next()?).ok()?;
        Some(Self { outcome, unwritten: lines.next().map(str::to_owned) })
    }
}

/// A command to run through the runner.
#[derive(Clone, Copy, Debug)]
pub struct Order<'a> {
    /// Working directory of the command.
    pub dir: &'a Path,
    /// File to which the output is appended.
    pub log: &'a Path,
    pub limit: Duration,
    pub umask: u32,
    /// Command line for `sh -c`.
    pub command: &'a str,
    /// Standard input of the command. `None` is `/dev/null`.
    pub input: Option<&'a Path>,
}

impl Order<'_> {
    /// Starts the runner, `executable __runner`. The command has the environment that `environment` sets.
    ///
    /// # Errors
    /// Fails if the process cannot be started.
    pub fn start(&self, executable: &Path, environment: impl FnOnce(&mut Command)) -> io::Result<Runner> {
        let mut runner = Command::new(executable);
        runner.arg("__runner").args([self.dir, self.log]);
        runner.args([&self.limit.as_millis().to_string(), &format!("{:o}", self.umask), self.command]);
        runner.args(self.input).current_dir("/");
        environment(&mut runner);
        runner.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().map(Runner)
    }
}

/// A running runner. Dropping it ends the command: the runner reads end of file from its standard input.
#[derive(Debug)]
pub struct Runner(Child);

impl Runner {
    /// Returns the process number of the runner.
    pub fn pid(&self) -> i32 {
        i32::try_from(self.0.id()).unwrap_or(i32::MAX)
    }

    /// Returns a descriptor that becomes readable when the runner reports or ends.
    ///
    /// # Errors
    /// Fails if the process has no descriptors left.
    pub fn report(&self) -> io::Result<OwnedFd> {
        let output = self.0.stdout.as_ref().ok_or(io::ErrorKind::BrokenPipe)?;
        output.as_fd().try_clone_to_owned()
    }

    /// Waits for the report on the command. Returns `None` if the runner was killed.
    ///
    /// # Errors
    /// Fails if the report cannot be read.
    pub fn wait(mut self) -> io::Result<Option<Ended>> {
        // Standard input stays open meanwhile: end of file would end the command.
        let mut text = String::new();
        if let Some(output) = self.0.stdout.as_mut() {
            output.read_to_string(&mut text)?;
        }
        let _ = self.0.wait();
        Ok(Ended::read(&text))
    }

    /// Like [`Runner::wait`]. A runner that does not report within `limit` is killed with its process group.
    ///
    /// # Errors
    /// Fails if the runner cannot be killed, or if the report cannot be read.
    pub fn wait_within(mut self, limit: Duration) -> io::Result<Option<Ended>> {
        if self.0.stdout.as_ref().is_some_and(|output| processes::wait_readable(output, limit)) {
            return self.wait();
        }
        // The child has not been waited for, so the pid still belongs to it and to its group.
        if let Ok(pid) = i32::try_from(self.0.id()) {
            let _ = killpg(nix::unistd::Pid::from_raw(pid), Signal::SIGKILL);
        }
        self.0.kill()?;
        self.0.wait()?;
        Ok(None)
    }
}

/// Runs the command. Returns `None` if the caller is gone.
fn run(dir: &Path, log: &Path, limit: Duration, command: &OsString, input: &Path) -> io::Result<Option<Ended>> {
    prctl::set_child_subreaper(true)?;
    let _ = nix::unistd::setsid();
    let log = File::options().create(true).append(true).open(log)?;
    let (output, writer) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC)?;
    let shell = Command::new("/bin/sh")
        .arg("-c")
        .arg(command)
        .current_dir(dir)
        .stdin(Stdio::from(File::open(input)?))
        .stdout(Stdio::from(writer.try_clone()?))
        .stderr(Stdio::from(writer))
        .spawn();
    let mut shell = shell?;
    let copying = std::thread::Builder::new().spawn(move || copy(output, log))?;
    let raw = Pid::from_child(&shell);
    let pidfd = pidfd_open(raw, PidfdFlags::empty())?;
    let over = wait(&pidfd, limit)?;
    let me = nix::unistd::getpid().as_raw();
    let living = || {
        let mut living = Vec::new();
        for pid in procfs::descendants(me)? {
            living.extend(procfs::living(pid)?.map(|_| pid));
        }
        Ok(living)
    };
    let ended = processes::end_set(&living);
    let status = shell.wait()?;
    if let Err(error) = ended {
        return Ok(Some(Ended { outcome: Outcome::Unknown(error.to_string()), unwritten: None }));
    }
    // The last process is gone, and with it the last writer.
    let unwritten = copying.join().ok().flatten().map(|error| error.to_string());
    let outcome = match over {
        Over::Abandoned => return Ok(None),
        Over::Timeout => Outcome::Timeout,
        Over::Ended => match (status.code(), status.signal()) {
            (Some(code), _) => Outcome::Code(code),
            (None, Some(signal)) => Outcome::Signal(signal),
            (None, None) => Outcome::Unknown("the exit status is unknown".to_owned()),
        },
    };
    Ok(Some(Ended { outcome, unwritten }))
}

enum Over {
    Ended,
    Timeout,
    Abandoned,
}

fn wait(pidfd: &OwnedFd, limit: Duration) -> io::Result<Over> {
    let deadline = Instant::now() + limit;
    let life = io::stdin();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).map_err(io::Error::other)?;
        let mut fds = [PollFd::new(pidfd, PollFlags::IN), PollFd::from_borrowed_fd(life.as_fd(), PollFlags::IN)];
        match poll(&mut fds, Some(&timeout)) {
            Ok(0) => return Ok(Over::Timeout),
            Ok(_) if !fds[0].revents().is_empty() => return Ok(Over::Ended),
            // The caller never writes anything, so this is the end of the pipe.
            Ok(_) => return Ok(Over::Abandoned),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Writes the beginning of the output to the log, and reads the rest so that no writer blocks. Returns the first
/// error of writing.
fn copy(output: OwnedFd, mut log: File) -> Option<io::Error> {
    let (mut output, mut room, mut dropped) = (File::from(output), OUTPUT_BYTES_MAX, 0_u64);
    let mut failed = None;
    let mut buffer = [0_u8; 16 << 10];
    loop {
        let count = match output.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => break,
        };
        let kept = count.min(usize::try_from(room).unwrap_or(usize::MAX));
        // A full disk loses output, but the command continues.
        if let Err(error) = log.write_all(&buffer[..kept]) {
            failed.get_or_insert(error);
        }
        room -= kept as u64;
        dropped += (count - kept) as u64;
    }
    if dropped > 0 {
        let _ = writeln!(log, "\n[swarm: {dropped} more bytes were not kept]");
    }
    failed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_that_cannot_be_written_is_reported_and_the_command_continues() {
        let (output, input) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC).unwrap();
        File::from(input).write_all(b"said\n").unwrap();
        let failed = copy(output, File::options().append(true).open("/dev/full").unwrap()).unwrap();
        assert!(crate::files::reserve::is_full(&failed), "{failed}");
        for unwritten in [None, Some(failed.to_string())] {
            let ended = Ended { outcome: Outcome::Code(1), unwritten };
            assert_eq!(Ended::read(&ended.text()), Some(ended));
        }
        assert_eq!(Ended::read(""), None);
    }
    #[test]
    fn a_runner_that_is_suspended_is_killed_with_its_process_group() {
        use std::os::unix::process::CommandExt as _;
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 611 & echo $! >&2; kill -STOP $$"]);
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut runner = piped.spawn().expect("started");
        let mut said = runner.stderr.take().expect("piped");
        let began = Instant::now();
        assert_eq!(Runner(runner).wait_within(Duration::from_millis(500)).expect("waited for"), None);
        // All processes that could write to the pipe are gone.
        let mut pid = String::new();
        said.read_to_string(&mut pid).expect("read to its end");
        assert!(pid.trim().parse::<i32>().is_ok(), "{pid}");
        assert!(began.elapsed() < Duration::from_secs(300), "it was waited for");
    }
}
