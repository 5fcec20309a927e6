//! `swarm __runner DIR LOG MILLISECONDS UMASK COMMAND`: runs one command of the user
//! with everything that it starts, and ends all of it when it is over, when its
//! time is up, or when who asked for it is gone. Standard input is the line to
//! that one, standard output takes the outcome.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::prctl;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::{Deserialize, Serialize};

use crate::adapters::{process, procfs};

/// What is kept of a command's output, in bytes.
const OUTPUT_BYTES_MAX: u64 = 8 << 20;

/// How a command came to its end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    Code(i32),
    Signal(i32),
    /// Its time was up.
    Timeout,
    /// It could not be run, or it cannot be told how it ended.
    Unknown(String),
}

pub fn main(arguments: impl Iterator<Item = OsString>) -> u8 {
    let words: Vec<OsString> = arguments.collect();
    let [dir, log, limit, umask, command] = words.as_slice() else { return 2 };
    let Some(limit) = limit.to_str().and_then(|text| text.parse().ok()).map(Duration::from_millis) else { return 2 };
    let Some(umask) = umask.to_str().and_then(|text| u32::from_str_radix(text, 8).ok()) else { return 2 };
    nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(umask));
    let outcome = run(Path::new(dir), Path::new(log), limit, command)
        .unwrap_or_else(|error| Some(Outcome::Unknown(format!("the command could not be run: {error}"))));
    if let Some(outcome) = outcome {
        let text = serde_json::to_string(&outcome).unwrap_or_default();
        let _ = writeln!(io::stdout(), "{text}");
    }
    0
}

/// `None` when who asked is gone.
fn run(dir: &Path, log: &Path, limit: Duration, command: &OsString) -> io::Result<Option<Outcome>> {
    prctl::set_child_subreaper(true)?;
    let _ = nix::unistd::setsid();
    let log = File::options().create(true).append(true).open(log)?;
    let (output, input) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC)?;
    let shell = Command::new("/bin/sh")
        .arg("-c")
        .arg(command)
        .current_dir(dir)
        .stdin(Stdio::null())
        .stdout(Stdio::from(input.try_clone()?))
        .stderr(Stdio::from(input))
        .spawn();
    let mut shell = shell?;
    let copying = std::thread::Builder::new().spawn(move || copy(output, log))?;
    let raw = Pid::from_child(&shell);
    let pidfd = pidfd_open(raw, PidfdFlags::empty())?;
    let over = wait(&pidfd, limit)?;
    let me = nix::unistd::getpid().as_raw();
    let living = || {
        let below = procfs::descendants(me);
        below.into_iter().filter(|pid| procfs::stat(*pid).is_some_and(|stat| stat.is_alive())).collect()
    };
    let ended = process::end_set(&living);
    let status = shell.wait()?;
    if let Err(error) = ended {
        return Ok(Some(Outcome::Unknown(error.to_string())));
    }
    // The last of them is gone, and with it the last writer.
    let _ = copying.join();
    Ok(match over {
        Over::Abandoned => None,
        Over::Timeout => Some(Outcome::Timeout),
        Over::Ended => Some(match (status.code(), status.signal()) {
            (Some(code), _) => Outcome::Code(code),
            (None, Some(signal)) => Outcome::Signal(signal),
            (None, None) => Outcome::Unknown("its exit is unknown".to_owned()),
        }),
    })
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
            // Nothing is ever written to it: this is its end.
            Ok(_) => return Ok(Over::Abandoned),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Keeps the beginning, and reads on so that nobody blocks.
fn copy(output: OwnedFd, mut log: File) {
    let (mut output, mut room, mut dropped) = (File::from(output), OUTPUT_BYTES_MAX, 0_u64);
    let mut buffer = [0_u8; 16 << 10];
    loop {
        let count = match output.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => break,
        };
        let kept = count.min(usize::try_from(room).unwrap_or(usize::MAX));
        // A full disk loses output, and the command goes on.
        let _ = log.write_all(&buffer[..kept]);
        room -= kept as u64;
        dropped += (count - kept) as u64;
    }
    if dropped > 0 {
        let _ = writeln!(log, "\n[swarm: {dropped} more bytes were not kept]");
    }
}
