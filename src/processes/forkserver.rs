//! The fork server: a process of one thread from which the shims of detached
//! workers are forked, `swarm __forkserver TITLE`. A fork of this small image
//! costs a fraction of a new program's start, and its pages are shared by all
//! shims.
//!
//! Standard input is a socket of whole messages: each is the directory of a
//! generation, with the shim's end of the handshake attached. A spare, forked
//! ahead, takes the message and becomes that generation's shim, which answers
//! over the handshake. End of file is the supervisor's end, and that of both.

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
use swarm_sys::cgroups;

/// The longest path that the kernel takes.
const PATH_BYTES_MAX: usize = 4096;
/// Before the next spare, when one came to nothing.
const PAUSE: Duration = Duration::from_millis(50);
/// Room for the longest directory's name in the command line that `ps` shows.
const TITLE_ROOM: usize = 96;

/// The supervisor's end.
pub struct ForkServer {
    socket: OwnedFd,
    process: Child,
}

impl ForkServer {
    /// Starts one. `workers` is the directory above those that will be asked for.
    ///
    /// # Errors
    /// What the system says.
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
            // A group of their own for it and its spares, which can be woken together.
            .process_group(0)
            .spawn()?;
        Ok(Self { socket: ours, process })
    }

    /// Asks for a shim. Whether it came up is told over `link`, whose other end
    /// says end of file when it did not.
    ///
    /// # Errors
    /// `WouldBlock` when more orders wait than the kernel keeps, else what the
    /// system says; there is no shim then.
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

    /// The same, waiting for room at most `limit`.
    ///
    /// # Errors
    /// As [`fork`](Self::fork).
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

    /// Whether it has ended, so that what it was asked last may not be done.
    pub fn is_gone(&self) -> bool {
        hung_up(&self.socket)
    }

    /// Somebody may have suspended it.
    pub fn wake(&self) {
        if let Ok(pid) = i32::try_from(self.process.id()) {
            // A child of this process, not waited for yet: the number is its own.
            let _ = nix::sys::signal::killpg(nix::unistd::Pid::from_raw(pid), Signal::SIGCONT);
        }
    }
}

impl Drop for ForkServer {
    /// It has nothing to lose, and its shims live on.
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Whether the other end is gone.
fn hung_up(socket: &OwnedFd) -> bool {
    let mut wait = [PollFd::new(socket.as_fd(), PollFlags::empty())];
    poll(&mut wait, PollTimeout::ZERO).is_ok() && wait[0].any() == Some(true)
}

/// The fork server's own part.
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
    let title = Title::find();
    // Nobody waits for shims here: the kernel is to forget those that ended.
    // SAFETY: ignoring installs no handler.
    #[expect(unsafe_code, reason = "sigaction is unsafe for handlers, of which this has none")]
    unsafe { signal(Signal::SIGCHLD, SigHandler::SigIgn) }?;
    cgroups::learn();
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
            // There may be memory again when there is an order.
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

/// Waits until there is an order, or the end, and leaves it. False when there is none
/// within so long.
fn wait_order(socket: &OwnedFd, limit: PollTimeout) -> io::Result<bool> {
    loop {
        match poll(&mut [PollFd::new(socket.as_fd(), PollFlags::POLLIN)], limit) {
            Err(Errno::EINTR) => {}
            waited => return Ok(waited? > 0),
        }
    }
}

/// Waits until the spare needs a successor: it says so by a byte, or by its end.
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
        // It ended without being of use; whatever ended it may end the next one, too.
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

/// A fork that is ready before it is asked for, so that nobody waits for it.
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
    // The next one is made while this one waits for its verdict.
    shim::run_in(&dir, move || drop(taken.write_all(b"t")))
}

/// The next order. End of file ends the process.
fn next(socket: &OwnedFd) -> io::Result<(PathBuf, OwnedFd)> {
    // On the stack, where it is gone afterwards.
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

/// The memory in which the kernel finds this process's command line.
struct Title(&'static mut [u8]);

impl Title {
    /// `None` where the kernel does not say; the command line stays as it is then.
    fn find() -> Option<Self> {
        let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
        let (_, fields) = stat.rsplit_once(')')?;
        // Fields 48 and 49 of proc(5), `arg_start` and `arg_end`; the first here is 3.
        let mut fields = fields.split_ascii_whitespace().skip(45).map(str::parse::<usize>);
        let (start, end) = (fields.next()?.ok()?, fields.next()?.ok()?);
        let length = end.checked_sub(start).filter(|_| start > 0)?;
        // SAFETY: the kernel put the arguments there, writable, at the exec; they
        // were read before, and nothing reads them again.
        #[expect(unsafe_code, reason = "the arguments' memory has no name in Rust")]
        let memory = unsafe { std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut(start), length) };
        let mut title = Self(memory);
        let root: Vec<u8> = title.0.split(|byte| *byte == 0).nth(2)?.trim_ascii_end().to_vec();
        title.set(&[b"swarm", b"__forkserver", &root]);
        Some(title)
    }

    fn set(&mut self, words: &[&[u8]]) {
        let text = words.join(&0);
        // The last byte stays zero: otherwise the kernel reads on into the environment.
        let shown = text.len().min(self.0.len().saturating_sub(1));
        self.0[..shown].copy_from_slice(&text[..shown]);
        self.0[shown..].fill(0);
    }
}
