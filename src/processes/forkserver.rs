//! The fork server, `swarm __forkserver TITLE`: a single-threaded process from which the shims of detached workers are
//! forked. A fork of this small process is much cheaper than a new program, and all shims share its pages.
//!
//! Standard input is a socket of messages: each is the directory of a generation, with the shim's end of the
//! handshake attached. A spare that was forked in advance takes the message and becomes the shim of that generation,
//! which answers over the handshake. At end of file the supervisor is gone, and fork server and spare exit.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, IoSliceMut, Read as _, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigHandler, Signal, signal};
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, recvmsg, sendmsg, socketpair,
};
use nix::unistd::{ForkResult, fork};

use crate::processes::memory;
use crate::processes::shim;
use crate::processes::title::Title;
use swarm_store::exits;
use swarm_sys::{attributes, cgroups, machine};

/// Maximum length of a path in the kernel, in bytes.
const PATH_BYTES_MAX: usize = 4096;
/// Pause before the next spare after one that died unused.
const PAUSE: Duration = Duration::from_millis(50);
/// Room for the name of a worker's directory in the command line that `ps` shows, in bytes.
const TITLE_ROOM: usize = 96;

/// Supervisor's side of a fork server.
pub struct ForkServer {
    socket: OwnedFd,
    process: Child,
}

impl ForkServer {
    /// Starts a fork server. `workers` is the parent of the directories that will be ordered.
    ///
    /// # Errors
    /// Fails if the socket or the process cannot be created.
    pub fn start(executable: &Path, workers: &Path) -> io::Result<Self> {
        let kind = SockType::SeqPacket;
        let (ours, theirs) = socketpair(AddressFamily::Unix, kind, None, SockFlag::SOCK_CLOEXEC)?;
        let mut title = workers.as_os_str().to_owned();
        title.push(" ".repeat(TITLE_ROOM));
        let process = Command::new(executable)
            .arg0("swarm")
            .arg("__forkserver")
            .arg(title)
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // A process group for the fork server and its spares, which can be woken together.
            .process_group(0)
            .spawn()?;
        Ok(Self { socket: ours, process })
    }

    /// Orders a shim. The shim answers over `link`; end of file at its other end means that there is no shim.
    ///
    /// # Errors
    /// Fails with `WouldBlock` if too many orders are waiting, or with the error of the socket. There is no shim then.
    pub fn fork(&self, dir: &Path, link: &OwnedFd) -> io::Result<()> {
        let descriptors = [link.as_raw_fd()];
        let attached = [ControlMessage::ScmRights(&descriptors)];
        let text = [IoSlice::new(dir.as_os_str().as_bytes())];
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        loop {
            match sendmsg::<()>(self.socket.as_raw_fd(), &text, &attached, flags, None) {
                Err(Errno::EINTR) => {}
                sent => return Ok(sent.map(drop)?),
            }
        }
    }

    /// Like [`fork`](Self::fork), but waits up to `limit` until the order can be queued.
    ///
    /// # Errors
    /// Fails as [`fork`](Self::fork) does.
    pub fn fork_in_turn(&self, dir: &Path, link: &OwnedFd, limit: Duration) -> io::Result<()> {
        let deadline = Instant::now() + limit;
        loop {
            match self.fork(dir, link) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < deadline => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    let left = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
                    poll(&mut [PollFd::new(self.socket.as_fd(), PollFlags::POLLOUT)], left)?;
                }
                ordered => return ordered,
            }
        }
    }

    /// Reports whether the fork server has ended; its last order may be lost then.
    pub fn is_gone(&self) -> bool {
        hung_up(&self.socket)
    }

    /// Wakes the fork server, which may have been suspended.
    pub fn wake(&self) {
        if let Ok(pid) = i32::try_from(self.process.id()) {
            // A child that was not waited for, so its pid cannot be reused.
            let _ = nix::sys::signal::killpg(nix::unistd::Pid::from_raw(pid), Signal::SIGCONT);
        }
    }
}

impl Drop for ForkServer {
    /// Kills the fork server, which has no state; its shims continue.
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Reports whether the other end is closed.
fn hung_up(socket: &OwnedFd) -> bool {
    let mut wait = [PollFd::new(socket.as_fd(), PollFlags::empty())];
    poll(&mut wait, PollTimeout::ZERO).is_ok() && wait[0].any() == Some(true)
}

/// Main function of the fork server's process.
pub fn main() -> u8 {
    match serve() {
        Ok(never) => match never {},
        Err(_) => 1,
    }
}

fn serve() -> io::Result<std::convert::Infallible> {
    let socket = io::stdin().as_fd().try_clone_to_owned()?;
    let null = OpenOptions::new().read(true).write(true).open("/dev/null")?;
    nix::unistd::dup2_stdin(&null)?;
    drop(null);
    let title = Title::find().map(|mut title| {
        let root = title.word(2).trim_ascii_end().to_vec();
        title.set(&[b"swarm", b"__forkserver", &root]);
        title
    });
    // Shims are never waited for, so the kernel must reap them.
    // SAFETY: ignoring installs no handler.
    #[expect(unsafe_code, reason = "sigaction is unsafe for handlers, of which this has none")]
    unsafe { signal(Signal::SIGCHLD, SigHandler::SigIgn) }?;
    cgroups::learn();
    // Found out once for all shims.
    attributes::learn();
    machine::this();
    exits::learn();
    let mut is_needed = false;
    loop {
        let (taken, takes) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
        // SAFETY: this process has one thread, so the child may do anything.
        #[expect(unsafe_code, reason = "the fork server is single-threaded")]
        match unsafe { fork() } {
            Ok(ForkResult::Child) => {
                drop(taken);
                std::process::exit(i32::from(spare(socket, File::from(takes), title)));
            }
            Ok(ForkResult::Parent { .. }) => {
                drop(takes);
                is_needed = false;
                wait_taken(&socket, File::from(taken))?;
            }
            // Retry when there is an order; there may be memory again by then.
            Err(_) if !is_needed => {
                wait_order(&socket, PollTimeout::NONE)?;
                is_needed = true;
            }
            Err(error) => {
                is_needed = false;
                let (_, link) = next(&socket)?;
                let _ = File::from(link).write_all(format!("failed cannot fork: {}\n", error.desc()).as_bytes());
            }
        }
    }
}

fn calm() -> PollTimeout {
    PollTimeout::try_from(memory::CALM).unwrap_or(PollTimeout::MAX)
}

/// Waits until there is an order or end of file, without reading it. Returns false after `limit`.
fn wait_order(socket: &OwnedFd, limit: PollTimeout) -> io::Result<bool> {
    loop {
        match poll(&mut [PollFd::new(socket.as_fd(), PollFlags::POLLIN)], limit) {
            Err(Errno::EINTR) => {}
            waited => return Ok(waited? > 0),
        }
    }
}

/// Waits until the spare needs a successor: it was taken (it writes a byte), or it has ended.
fn wait_taken(socket: &OwnedFd, mut taken: File) -> io::Result<()> {
    let mut limit = calm();
    loop {
        let mut waits =
            [PollFd::new(taken.as_fd(), PollFlags::POLLIN), PollFd::new(socket.as_fd(), PollFlags::empty())];
        match poll(&mut waits, limit) {
            Ok(0) => {
                memory::trim();
                limit = PollTimeout::NONE;
            }
            Ok(_) => break,
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    if hung_up(socket) {
        std::process::exit(0);
    }
    if taken.read(&mut [0]).unwrap_or(0) == 0 {
        // The spare died unused; the pause avoids a busy loop if the next ones die as well.
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

/// Runs a spare: a process that is forked in advance, so that no start has to wait for a fork.
fn spare(socket: OwnedFd, mut taken: File, mut title: Option<Title>) -> u8 {
    shim::rehearse();
    if matches!(wait_order(&socket, calm()), Ok(false)) {
        memory::trim();
    }
    let Ok((dir, link)) = next(&socket) else { return 1 };
    drop(socket);
    // SAFETY: restores the default, installs nothing.
    #[expect(unsafe_code, reason = "sigaction is unsafe for handlers, of which this has none")]
    let ready = unsafe { signal(Signal::SIGCHLD, SigHandler::SigDfl) }.and_then(|_| nix::unistd::dup2_stdin(&link));
    drop(link);
    if ready.is_err() {
        return 1;
    }
    if let Some(title) = &mut title {
        title.set(&[b"swarm", b"__shim", dir.as_os_str().as_bytes()]);
    }
    // The next spare is forked while this one waits for its verdict.
    shim::run_in(&dir, move || drop(taken.write_all(b"t")))
}

/// Returns the next order: the directory and the shim's end of the handshake. Exits the process at end of file.
fn next(socket: &OwnedFd) -> io::Result<(PathBuf, OwnedFd)> {
    // On the stack, so that the memory is free afterwards.
    let mut text = [0_u8; PATH_BYTES_MAX];
    loop {
        let mut space = nix::cmsg_space!(RawFd);
        let mut into = [IoSliceMut::new(&mut text)];
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        let received = match recvmsg::<()>(socket.as_raw_fd(), &mut into, Some(&mut space), flags) {
            Ok(received) => received,
            Err(Errno::EINTR) => continue,
            Err(error) => return Err(error.into()),
        };
        let attached = received.cmsgs()?.find_map(|message| match message {
            ControlMessageOwned::ScmRights(descriptors) => descriptors.first().copied(),
            _ => None,
        });
        let length = received.bytes;
        // SAFETY: the kernel has just made this descriptor for this process.
        #[expect(unsafe_code, reason = "a received descriptor has no owner yet")]
        let link = attached.map(|number| unsafe { OwnedFd::from_raw_fd(number) });
        match link {
            Some(link) => {
                return Ok((PathBuf::from(OsStr::from_bytes(&text[..length])), link));
            }
            None if length == 0 => std::process::exit(0),
            None => {}
        }
    }
}
