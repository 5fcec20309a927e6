//! Recovery of a server whose socket is gone: SIGUSR1 makes tmux create it again. A second server instead would have
//! the same name, and make the workers of the first one unreachable.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::TmuxError;
use swarm_sys::commands::deadline;

/// Time limit in milliseconds for a server to create its socket again.
const SOCKET_MS_MAX: u64 = 2_000;
/// Pause in milliseconds before another try to connect to an existing socket. No event reports that a new socket
/// accepts connections.
const LISTEN_MS: u64 = 5;

/// Result of a recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recovered {
    /// The socket accepts connections again.
    Yes,
    /// No known server with this socket is alive.
    NothingThere,
}

/// Recovers the socket at `path` if one of the `known` servers has it.
///
/// # Errors
/// Fails if such a server is alive and does not create its socket.
pub fn recover(path: &str, known: &[(String, i32)]) -> Result<Recovered, TmuxError> {
    if path.is_empty() {
        // The server ended during the call. The error of the next try will name its socket.
        return Ok(Recovered::Yes);
    }
    let (mut asked, mut unreachable) = (None, None);
    let deadline = Instant::now() + Duration::from_millis(SOCKET_MS_MAX);
    for (_, pid) in known.iter().filter(|(socket, _)| same_socket(socket, path)) {
        let Some(server) = server_process(*pid) else { continue };
        if asked == Some(*pid) {
            continue;
        }
        asked = Some(*pid);
        if ask_for_socket(&server, Path::new(path), deadline).unwrap_or(false) {
            return Ok(Recovered::Yes);
        }
        // A server that ends anyway, for example with its last window, has no socket either.
        unreachable = unreachable.or((!has_ended(&server)).then_some(*pid));
    }
    match unreachable {
        Some(pid) => Err(TmuxError::Unreachable { pid, path: path.to_owned() }),
        None => Ok(Recovered::NothingThere),
    }
}

/// Reports whether two paths name the same socket. The socket itself is gone, so only its directories can be
/// resolved.
fn same_socket(one: &str, other: &str) -> bool {
    let place = |path: &str| {
        let path = Path::new(path);
        Some((path.parent()?.canonicalize().ok()?, path.file_name()?.to_owned()))
    };
    one == other || (place(one).is_some() && place(one) == place(other))
}

/// Returns a handle of the process if it is a tmux server. The handle is opened before the name is read, so that both
/// refer to the same process.
fn server_process(pid: i32) -> Option<OwnedFd> {
    let process = if pid > 1 { Pid::from_raw(pid)? } else { return None };
    let handle = pidfd_open(process, PidfdFlags::empty()).ok()?;
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    (name.starts_with("tmux") && !name.starts_with("tmux: client")).then_some(handle)
}

fn has_ended(process: &OwnedFd) -> bool {
    let mut wait = [PollFd::new(process, PollFlags::IN)];
    deadline::wait_until(&mut wait, Instant::now()).is_ok() && !wait[0].revents().is_empty()
}

/// Sends the signal, and waits until the socket accepts a connection. The watch is set before the signal, so that no
/// event is missed.
fn ask_for_socket(server: &OwnedFd, path: &Path, deadline: Instant) -> io::Result<bool> {
    let directory = path.parent().ok_or_else(|| io::Error::other("the socket has no directory"))?;
    let watch = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
    watch.add_watch(directory, AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MOVED_TO | AddWatchFlags::IN_ATTRIB)?;
    pidfd_send_signal(server, Signal::USR1)?;
    while UnixStream::connect(path).is_err() {
        let mut waits = [PollFd::new(&watch, PollFlags::IN), PollFd::new(server, PollFlags::IN)];
        let soon = Instant::now() + Duration::from_millis(LISTEN_MS);
        let until = if path.exists() { deadline.min(soon) } else { deadline };
        deadline::wait_until(&mut waits, until)?;
        let ended = !waits[1].revents().is_empty();
        if ended || Instant::now() >= deadline {
            return Ok(false);
        }
        // The kind of event does not matter.
        let _ = watch.read_events();
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tmux_servers_are_signalled() {
        let own = i32::try_from(std::process::id()).expect("fits");
        assert!(server_process(own).is_none());
        for pid in [-1, 0, 1, i32::MAX] {
            assert!(server_process(pid).is_none());
        }
        let known = [("/nowhere/s".to_owned(), own)];
        assert_eq!(recover("/nowhere/s", &known), Ok(Recovered::NothingThere));
    }

    #[test]
    fn paths_of_a_socket_are_equal_through_a_link() {
        let dir = tempfile::tempdir().expect("makes a directory");
        let (real, link) = (dir.path().join("real"), dir.path().join("link"));
        std::fs::create_dir(&real).expect("makes");
        std::os::unix::fs::symlink(&real, &link).expect("links");
        let socket = |place: &Path| place.join("s").to_string_lossy().into_owned();
        assert!(same_socket(&socket(&real), &socket(&link)));
        assert!(!same_socket(&socket(&real), "/other/s"));
    }
}
