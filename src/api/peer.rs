//! Process at the other end of a connection to the supervisor.
//!
//! What the kernel says about it counts, and nothing that it says itself. A socket may outlive the process that connected
//! it, which is the one that the kernel names. Therefore a peer is examined while it waits for its answer, and one that
//! cannot be examined counts as being elsewhere.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::{PeerCredentials, PeerPidfd};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use swarm_sys::paths::Paths;
use swarm_sys::procfs::lacks_resources;
use swarm_sys::restraints::Restraints;
use swarm_sys::{attributes, processes};

/// Why a peer is not where the supervisor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Apart {
    /// The process is in another namespace of this kind, or has another root directory.
    Namespace(&'static str),
    /// It shares the supervisor's namespaces, but is restricted by this kernel feature, and the supervisor is not.
    Restraint(&'static str),
    /// Its namespaces cannot be read: it has ended, or it runs as another user, such as root in a container.
    Unknown,
    /// The supervisor lacks the descriptors or the memory to examine it, with this error number.
    Unexamined(i32),
}

/// What was found out about a peer.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// `None` if it is in the namespaces of this process and not more restrained.
    pub apart: Option<Apart>,
    /// Device and inode of the file that it executes. `None` if unknown.
    program: Option<(u64, u64)>,
    /// 0 if it could not be examined.
    pub pid: i32,
}

impl Peer {
    /// Examines the process that connected a socket. Must be called while it waits for its answer.
    pub fn of(stream: &impl AsFd) -> Self {
        Self::examine(stream).unwrap_or_else(|error| {
            tracing::debug!(%error, "cannot examine the process that connected");
            let lack = error.raw_os_error().filter(|_| lacks_resources(&error));
            Self { apart: Some(lack.map_or(Apart::Unknown, Apart::Unexamined)), program: None, pid: 0 }
        })
    }

    fn examine(stream: &impl AsFd) -> io::Result<Self> {
        let cred = getsockopt(stream, PeerCredentials)?;
        let pid = cred.pid();
        if pid <= 0 {
            return Ok(Self { apart: Some(Apart::Namespace("process")), program: None, pid: 0 });
        }
        let process = pidfd(stream, pid)?;
        let apart = match attributes::namespace_apart(pid) {
            // The kernel hides them from a process in a user namespace below.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied && cred.uid() == own_uid() => Some("user"),
            apart => apart?,
        };
        let restraint = || Ok(Restraints::of(pid)?.beyond(Restraints::own()?).map(Apart::Restraint));
        let apart = apart.map_or_else(restraint, |kind| Ok::<_, io::Error>(Some(Apart::Namespace(kind))))?;
        let program = fs::metadata(format!("/proc/{pid}/exe")).ok().map(|meta| place(&meta));
        // As long as the process lives, its pid is that of no other one.
        if processes::wait_readable(&process, Duration::ZERO) {
            return Err(io::Error::other(format!("process {pid} has ended")));
        }
        Ok(Self { apart, program, pid })
    }

    /// Checks that a guard may execute `program` for this peer: the peer executes it itself, and is where the guard is. What
    /// another peer executes may be of its own making, and it gets only the file at the place of the supervisor's own
    /// program, `installed`, which would be executed here anyway.
    ///
    /// # Errors
    /// Returns the reason why it must not be executed.
    pub fn check_program(self, program: &Path, installed: Option<&Path>) -> Result<(), String> {
        let shown = program.display();
        if self.apart.is_some() {
            let is_installed = installed == Some(program);
            return is_installed.then_some(()).ok_or_else(|| format!("{shown} is not where its own program is"));
        }
        let found = fs::metadata(program).ok().map(|meta| place(&meta));
        let is_its_own = found.is_some() && found == self.program;
        is_its_own.then_some(()).ok_or_else(|| format!("{shown} is not the program that asks"))
    }
}

/// Reports whether a supervisor serves this state directory that is in no process namespace which this process can see.
pub fn is_supervisor_hidden(paths: &Paths) -> bool {
    let peer = super::client::connect(paths).and_then(|stream| Ok(getsockopt(&stream, PeerCredentials)?));
    // The kernel has no number for it.
    peer.is_ok_and(|peer| peer.pid() == 0)
}

/// Returns a descriptor of the process that connected. Kernels before 6.5 name only its pid, which may be that of another
/// process by now.
fn pidfd(stream: &impl AsFd, pid: i32) -> io::Result<OwnedFd> {
    match getsockopt(stream, PeerPidfd) {
        Err(Errno::ENOPROTOOPT) => {
            let pid = Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidInput)?;
            Ok(pidfd_open(pid, PidfdFlags::empty())?)
        }
        found => Ok(found?),
    }
}

fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn place(meta: &fs::Metadata) -> (u64, u64) {
    (meta.dev(), meta.ino())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;
    use std::os::unix::net::UnixListener;
    use std::os::unix::process::CommandExt as _;
    use std::process::Command;

    use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};

    use super::*;

    #[test]
    fn this_process_is_here_and_may_name_only_its_own_program() {
        let (one, _other) = std::os::unix::net::UnixStream::pair().expect("a pair");
        let peer = Peer::of(&one);
        assert_eq!(peer.apart, None);
        let own = std::env::current_exe().expect("known");
        assert_eq!(peer.check_program(&own, None), Ok(()));
        let shell = Path::new("/bin/sh");
        assert_eq!(peer.check_program(shell, Some(shell)), Err("/bin/sh is not the program that asks".to_owned()));
        assert!(peer.check_program(Path::new("/nowhere"), None).is_err());
    }

    #[test]
    fn a_peer_elsewhere_may_name_only_the_program_that_is_installed() {
        for apart in [Apart::Namespace("mount"), Apart::Restraint("seccomp"), Apart::Unknown] {
            let own = std::env::current_exe().expect("known");
            let program = fs::metadata(&own).ok().map(|meta| place(&meta));
            let peer = Peer { apart: Some(apart), program, pid: 0 };
            assert!(peer.check_program(&own, None).is_err(), "its own program");
            assert!(peer.check_program(&own, Some(Path::new("/bin/swarm"))).is_err(), "its own program");
            assert_eq!(peer.check_program(Path::new("/bin/swarm"), Some(Path::new("/bin/swarm"))), Ok(()));
        }
    }

    /// Another process connects a socket that this process keeps, as one in other namespaces would do.
    #[test]
    fn a_peer_that_has_ended_is_unknown() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("socket");
        let listener = UnixListener::bind(&path).expect("bound");
        let kept = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).expect("a socket");
        let (address, raw) = (UnixAddr::new(&path).expect("short"), kept.as_raw_fd());
        let mut command = Command::new("sleep");
        command.arg("600");
        // SAFETY: connect is async-signal-safe, and the closure does nothing else.
        #[expect(unsafe_code, reason = "the only way to have a child connect this socket")]
        unsafe {
            command.pre_exec(move || connect(raw, &address).map_err(io::Error::from))
        };
        let mut child = command.spawn().expect("started");
        let (stream, _) = listener.accept().expect("connected");
        assert_eq!(Peer::of(&stream).apart, None, "it lives");
        child.kill().expect("ours");
        let pid = Pid::from_child(&child);
        let ended = pidfd_open(pid, PidfdFlags::empty()).expect("not reaped");
        assert!(processes::wait_readable(&ended, Duration::from_secs(20)), "it does not end");
        assert_eq!(Peer::of(&stream).apart, Some(Apart::Unknown), "it is not reaped");
        child.wait().expect("reaped");
        assert_eq!(Peer::of(&stream).apart, Some(Apart::Unknown), "it is gone");
    }
}
