//! `swarm __keep DIR`, or a fork of the far end: executes the verb of a request that changes something, and notes its output
//! and exit code. It lives on if the connection is cut or the far end is killed. If nobody asks for some minutes, the verb gets
//! a hangup.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use nix::sys::signal::Signal;
use rustix::event::{PollFd, PollFlags};
use rustix::fs::FallocateFlags;
use serde::{Deserialize, Serialize};
use swarm_hosts::frames::CHUNK_BYTES;
use swarm_sys::commands::deadline::wait_until;
use swarm_sys::files::list;

use super::login::Variables;
use super::requests::{Request, Requests, STREAM_BYTES_MAX};
use super::verb::{PIPE_BLOCKS_MAX, code_of, hang_up, process_of, send_signal, take};
use super::{KEEP, forked};

/// Time for which a verb goes on although nobody asks for its output.
const ALONE_MAX: Duration = Duration::from_secs(300);
/// Says that somebody waits for the output.
pub const HERE: &str = "here";

/// What is executed. It is read from standard input, because an environment is secret.
#[derive(Debug, Serialize, Deserialize)]
pub struct Order {
    pub words: Vec<String>,
    pub dir: PathBuf,
    pub environment: Variables,
}

impl Order {
    /// Returns the environment of the verb.
    fn variables(&self) -> Variables {
        let mut variables = self.environment.clone();
        variables.insert("PWD".to_owned(), self.dir.to_string_lossy().into_owned());
        variables
    }

    /// Returns the command of the verb, in a process group of its own. It is executed in a fork of this process, if that is
    /// possible.
    ///
    /// # Errors
    /// Fails if the program cannot be found.
    pub fn command(&self) -> io::Result<Command> {
        use std::os::unix::process::CommandExt as _;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(&self.words).env_clear().envs(&self.environment).current_dir(&self.dir).env("PWD", &self.dir);
        command.process_group(0);
        if forked::is_possible() {
            forked::within(&mut command, &self.words, &self.variables());
        }
        Ok(command)
    }
}

/// Executes the request with this directory. Standard output is its lock.
pub fn main(mut arguments: impl Iterator<Item = OsString>) -> u8 {
    let request = Request::at(arguments.next().unwrap_or_default());
    // The end of the other processes of the connection is none of this one.
    let _ = nix::unistd::setsid();
    let mut order = Vec::new();
    let read = io::stdin().lock().read_to_end(&mut order);
    keep(&request, read.and_then(|_| serde_json::from_slice::<Order>(&order).map_err(io::Error::other)))
}

/// Executes a request in a fork of this process. The fork holds the lock.
///
/// # Errors
/// Fails if there can be no fork.
pub fn in_fork(request: &Request, lock: File, order: Order) -> io::Result<()> {
    let words = [b"swarm", KEEP.as_bytes(), request.dir().as_os_str().as_encoded_bytes()];
    forked::apart(&words, lock, || keep(request, Ok(order)))
}

/// Executes the verb of a request, and notes its output and its end.
fn keep(request: &Request, order: io::Result<Order>) -> u8 {
    let kept = order.and_then(|order| Kept::start(request, &order)).and_then(Kept::attend);
    let code = kept
        .or_else(|error| fs::write(request.err(), format!("swarm: error: cannot start swarm: {error}\n")).map(|()| 1));
    let ended = code.and_then(|code| request.end(code));
    // Behind the answer, so that no verb waits for it.
    if let Some(requests) = Requests::around(request) {
        requests.tidy();
    }
    u8::from(ended.is_err())
}

/// A verb that is executed, and its output.
struct Kept {
    request: Request,
    child: Child,
    out: (Option<ChildStdout>, File),
    err: (Option<ChildStderr>, File),
    asks: Inotify,
}

impl Kept {
    fn start(request: &Request, order: &Order) -> io::Result<Self> {
        let asks = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        asks.add_watch(&request.asks(), AddWatchFlags::IN_CREATE | AddWatchFlags::IN_CLOSE_WRITE)?;
        let append = |path: PathBuf| OpenOptions::new().append(true).open(path);
        let (out, err) = (append(request.out())?, append(request.err())?);
        let mut command = order.command()?;
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let (own_out, own_err) = (child.stdout.take(), child.stderr.take());
        Ok(Self { request: request.clone(), child, out: (own_out, out), err: (own_err, err), asks })
    }

    /// Notes output until the verb has ended; returns its exit code.
    fn attend(mut self) -> io::Result<u8> {
        let process = process_of(&self.child)?;
        let mut alone = Instant::now() + ALONE_MAX;
        // Something may have been asked before it was watched for.
        self.obey()?;
        loop {
            let asks = self.asks.as_fd();
            let mut waits = vec![PollFd::new(&process, PollFlags::IN), PollFd::new(&asks, PollFlags::IN)];
            waits.extend(self.out.0.as_ref().map(|out| PollFd::new(out, PollFlags::IN)));
            waits.extend(self.err.0.as_ref().map(|err| PollFd::new(err, PollFlags::IN)));
            let is_ready = wait_until(&mut waits, alone)?;
            let ready: Vec<bool> = waits.iter().map(|wait| !wait.revents().is_empty()).collect();
            if !is_ready {
                hang_up(&mut self.child)?;
                return self.rest();
            }
            if ready[1] {
                alone = Instant::now() + ALONE_MAX;
                self.obey()?;
            }
            self.note()?;
            if ready[0] {
                return self.rest();
            }
        }
    }

    /// Notes what is in the pipes after the end.
    fn rest(mut self) -> io::Result<u8> {
        let status = self.child.wait()?;
        // A process that it started may still write to them.
        for _ in 0..PIPE_BLOCKS_MAX {
            if !self.note()? {
                break;
            }
        }
        Ok(code_of(status))
    }

    /// Sends the signals that were asked for.
    fn obey(&mut self) -> io::Result<()> {
        while self.asks.read_events().is_ok_and(|events| !events.is_empty()) {}
        for entry in list(&self.request.asks())? {
            let signal = match entry.file_name().to_str() {
                Some("INT") => Signal::SIGINT,
                Some("TERM") => Signal::SIGTERM,
                Some("HUP") => Signal::SIGHUP,
                _ => continue,
            };
            fs::remove_file(entry.path())?;
            send_signal(&self.child, signal);
        }
        Ok(())
    }

    /// Notes one block of each stream that is there; returns whether there was any.
    fn note(&mut self) -> io::Result<bool> {
        let mut block = vec![0; CHUNK_BYTES];
        let out = take(&mut self.out.0, &mut block)?;
        append(&mut self.out.1, &block[..out])?;
        let err = take(&mut self.err.0, &mut block)?;
        append(&mut self.err.1, &block[..err])?;
        Ok(out + err > 0)
    }
}

/// Appends to a stream, and frees the space of what is too old. Positions in it stay the same.
fn append(file: &mut File, bytes: &[u8]) -> io::Result<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    file.write_all(bytes)?;
    let length = file.metadata()?.len();
    if let Some(old) = length.checked_sub(STREAM_BYTES_MAX).filter(|old| *old > 0) {
        // Not every file system can do so; then it takes more space.
        let _ = rustix::fs::fallocate(&*file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, old);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_keeps_its_end_and_its_positions() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("out");
        let mut file = OpenOptions::new().append(true).create(true).open(&path).expect("open");
        let block = vec![b'x'; 1 << 20];
        for _ in 0..STREAM_BYTES_MAX / (1 << 20) + 4 {
            append(&mut file, &block).expect("written");
        }
        append(&mut file, b"end").expect("written");
        let bytes = fs::read(&path).expect("there");
        assert_eq!(bytes.len() as u64, STREAM_BYTES_MAX + (4 << 20) + 3);
        assert!(bytes.ends_with(b"xend") && bytes[bytes.len() - 100..bytes.len() - 3].iter().all(|byte| *byte == b'x'));
    }
}
