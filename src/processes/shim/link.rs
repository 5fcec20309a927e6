//! Handshake with the supervisor: lines over a socket.
//!
//! ```text
//!   shim → prepared {lease} | failed why        supervisor → go | no
//!   shim → started [warnings] | failed why
//! ```

use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::signals::Signals;

/// Name of the socket in the generation's directory, for shims in tmux panes.
pub const SOCKET_NAME: &str = "hs.sock";

/// Maximum number of attempts to write a line or to connect; the kernel may be out of memory for a moment.
const TRIES_MAX: u32 = 10;
const PAUSE: Duration = Duration::from_millis(10);

/// Decision of the supervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartDecision {
    Go,
    No,
    /// The supervisor is gone.
    EndOfFile,
}

pub struct Link(Option<UnixStream>);

impl Link {
    /// Opens the handshake: a shim in a pane connects, a detached one has the socket as its standard input.
    pub fn open(in_tmux: bool) -> std::io::Result<Self> {
        if in_tmux {
            return Ok(Self(connect()));
        }
        let inherited = std::io::stdin().as_fd().try_clone_to_owned()?;
        // From here on the shim does not read standard input, and the child gets its own.
        let null = std::fs::File::open("/dev/null")?;
        replace_stdin(&null.into())?;
        Ok(Self(Some(UnixStream::from(inherited))))
    }

    /// Returns the link of a shim without a supervisor.
    pub fn none() -> Self {
        Self(None)
    }

    /// Sends one line. If the supervisor has died, the line is lost.
    pub fn say(&mut self, line: &str) {
        let Some(stream) = &mut self.0 else { return };
        let text = format!("{line}\n");
        for _ in 0..TRIES_MAX {
            // The line is smaller than the socket's buffer, so it is written completely or not at all.
            match stream.write_all(text.as_bytes()) {
                Err(error) if error.kind() == std::io::ErrorKind::OutOfMemory => std::thread::sleep(PAUSE),
                _ => return,
            }
        }
    }

    /// Waits for the supervisor's decision. A SIGTERM in the meantime counts as `No`.
    pub fn verdict(&mut self, signals: &Signals) -> StartDecision {
        let Some(stream) = &mut self.0 else { return StartDecision::EndOfFile };
        let mut said = Vec::new();
        loop {
            let mut waits =
                [PollFd::new(stream.as_fd(), PollFlags::POLLIN), PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
            if matches!(poll(&mut waits, PollTimeout::NONE), Err(error) if error != nix::errno::Errno::EINTR) {
                return StartDecision::EndOfFile;
            }
            let ready = |wait: &PollFd| wait.revents().is_some_and(|events| !events.is_empty());
            let (heard, signalled) = (ready(&waits[0]), ready(&waits[1]));
            if signalled && signals.is_told_to_end() {
                return StartDecision::No;
            }
            if !heard {
                continue;
            }
            let mut bytes = [0_u8; 16];
            match stream.read(&mut bytes) {
                Ok(0) => return StartDecision::EndOfFile,
                Ok(count) => said.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => return StartDecision::EndOfFile,
            }
            match said.as_slice() {
                b"go\n" => return StartDecision::Go,
                b"no\n" => return StartDecision::No,
                _ => {}
            }
        }
    }
}

/// Connects to the process that waits for this pane; `None` if there is none. A connect that a signal interrupted is
/// repeated with a new socket.
fn connect() -> Option<UnixStream> {
    for _ in 0..TRIES_MAX {
        match UnixStream::connect(SOCKET_NAME) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            connected => return connected.ok(),
        }
    }
    None
}

fn replace_stdin(null: &OwnedFd) -> std::io::Result<()> {
    // SAFETY: descriptor 0 is open (it was just cloned) and nothing in this
    // process owns it; the value is forgotten again so that it stays open.
    #[expect(unsafe_code, reason = "descriptor 0 has no owner to borrow it from")]
    let mut stdin = unsafe { OwnedFd::from_raw_fd(0) };
    let replaced = nix::unistd::dup3(null, &mut stdin, nix::fcntl::OFlag::O_CLOEXEC);
    std::mem::forget(stdin);
    replaced.map_err(std::io::Error::from)
}
