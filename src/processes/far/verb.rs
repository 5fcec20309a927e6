//! A verb at work: its streams and signals are passed on until it has ended, or the other end is gone.

use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use rustix::event::{PollFd, PollFlags};
use swarm_config::hosts::may_be_sent;
use swarm_hosts::frames::{Ask, BEAT, Bytes, CHUNK_BYTES, Call, Lines, Tell, line};
use swarm_sys::commands::deadline::wait_until;

use super::keep::Order;
use super::{Heard, MARKED, SILENCE_MAX, at_home, login, say, stream, tell};

/// Number of blocks that a full pipe can hold, at its maximum size of 1 MiB.
pub const PIPE_BLOCKS_MAX: usize = (1 << 20) / CHUNK_BYTES;
/// Time for a verb to end after the connection was cut.
const END_MAX: Duration = Duration::from_secs(5);

/// Returns what is executed for a call, with the environment of a login shell.
///
/// # Errors
/// Returns why it cannot be executed.
pub fn order(call: &Call) -> Result<Order, String> {
    // An internal process of this program is not a verb.
    if call
        .words
        .first()
        .is_some_and(|verb| verb.starts_with("__") && ![stream::VERB, say::VERB].contains(&verb.as_str()))
    {
        return Err(format!("'{}' is not a verb", call.words[0]));
    }
    let dir = at_home(call.dir.as_deref().unwrap_or_default())?;
    if !dir.is_dir() {
        return Err(format!("there is no directory {}", dir.display()));
    }
    let (mut environment, problem) = login::environment();
    if let Some(problem) = problem {
        // Whether somebody hears it is seen by the next line.
        let _ = tell(&Tell::Note(format!("swarm: warning: {problem}\n")));
    }
    let sent = call.env.iter().filter(|(name, _)| may_be_sent(name));
    environment.extend(sent.map(|(name, value)| (name.clone(), value.clone())));
    if let Some(state) = &call.state {
        environment.insert("SWARM_DIR".to_owned(), at_home(state)?.to_string_lossy().into_owned());
    }
    let marked = call.goes_on.as_ref().map(|_| MARKED.to_owned());
    Ok(Order { words: marked.into_iter().chain(call.words.iter().cloned()).collect(), dir, environment })
}

/// Executes a verb until it has ended, or the other end is gone.
pub fn execute(call: &Call, heard: &mut Heard) -> io::Result<()> {
    match order(call).and_then(|order| start(call, &order)) {
        Ok(running) => running.attend(heard),
        Err(cause) => tell(&Tell::Refused(cause)),
    }
}

fn start(call: &Call, order: &Order) -> Result<Running, String> {
    let failed = |error: io::Error| format!("cannot start swarm: {error}");
    let mut command = order.command().map_err(failed)?;
    let mut marks = None;
    let stdin = match &call.goes_on {
        Some(goes_on) => {
            let (own, other) = UnixStream::pair().map_err(failed)?;
            marks = Some((own, line(goes_on)));
            Stdio::from(OwnedFd::from(other))
        }
        None if call.input => Stdio::piped(),
        None => Stdio::null(),
    };
    command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(failed)?;
    // Close our copy of the child's end of the socket, so that its exit closes the socket.
    drop(command);
    let marks = marks.map(|(mut own, first)| {
        // If it has ended, its exit code says why.
        let _ = own.write_all(&first);
        Marked { socket: Some(own), lines: Lines::default() }
    });
    let feed = child.stdin.take().map(feed);
    Ok(Running { feed, out: child.stdout.take(), err: child.stderr.take(), marks, child })
}

/// Output and marks of a verb that says how far it is.
struct Marked {
    socket: Option<UnixStream>,
    lines: Lines,
}

impl Marked {
    /// Passes on what is there; returns whether there was any.
    fn pass_on(&mut self) -> io::Result<bool> {
        let mut block = vec![0; CHUNK_BYTES];
        let read = take(&mut self.socket, &mut block)?;
        self.lines.add(&block[..read]);
        while let Ok(Some(line)) = self.lines.complete() {
            if let Ok(told @ (Tell::Out(_) | Tell::Err(_) | Tell::Mark(_))) = serde_json::from_slice(&line) {
                tell(&told)?;
            }
        }
        Ok(read > 0)
    }
}

/// Passes bytes on to the verb in a thread, because it may read them late or never.
fn feed(mut stdin: ChildStdin) -> mpsc::Sender<Bytes> {
    let (sender, receiver) = mpsc::channel::<Bytes>();
    thread::spawn(move || {
        for bytes in receiver {
            if stdin.write_all(bytes.as_slice()).is_err() {
                return;
            }
        }
    });
    sender
}

/// A verb at work.
struct Running {
    child: Child,
    /// `None` if its standard input is empty or has ended.
    feed: Option<mpsc::Sender<Bytes>>,
    out: Option<ChildStdout>,
    err: Option<ChildStderr>,
    marks: Option<Marked>,
}

impl Running {
    /// Passes streams and signals on until the verb has ended, or the other end is gone.
    fn attend(mut self, heard: &mut Heard) -> io::Result<()> {
        let process = process_of(&self.child)?;
        let (mut last, mut beat) = (Instant::now(), Instant::now() + BEAT);
        loop {
            while let Some(ask) = heard.next() {
                last = Instant::now();
                self.obey(ask);
            }
            if heard.is_over || last.elapsed() >= SILENCE_MAX {
                return self.end();
            }
            let stdin = io::stdin();
            let mut waits = vec![PollFd::new(&stdin, PollFlags::IN), PollFd::new(&process, PollFlags::IN)];
            waits.extend(self.out.as_ref().map(|out| PollFd::new(out, PollFlags::IN)));
            waits.extend(self.err.as_ref().map(|err| PollFd::new(err, PollFlags::IN)));
            let marks = self.marks.as_ref().and_then(|marks| marks.socket.as_ref());
            waits.extend(marks.map(|marks| PollFd::new(marks, PollFlags::IN)));
            let is_ready = wait_until(&mut waits, beat.min(last + SILENCE_MAX))?;
            let ready: Vec<bool> = waits.iter().map(|wait| !wait.revents().is_empty()).collect();
            if Instant::now() >= beat {
                beat = Instant::now() + BEAT;
                self.must(tell(&Tell::Beat))?;
            }
            if !is_ready {
                continue;
            }
            if ready[0] {
                heard.read();
            }
            let passed = self.pass_on();
            if self.must(passed)? {
                // Somebody has read, perhaps slowly: nothing was heard meanwhile.
                last = Instant::now();
            }
            if ready[1] {
                // Everything that it wrote is in the pipes. A process that it started may still write to them.
                let status = self.child.wait()?;
                let mut blocks = PIPE_BLOCKS_MAX;
                while blocks > 0 && self.pass_on()? {
                    blocks -= 1;
                }
                return tell(&Tell::Exit(code_of(status)));
            }
        }
    }

    fn obey(&mut self, ask: Ask) {
        match ask {
            Ask::Input(bytes) => {
                if let Some(feed) = &self.feed {
                    // If it reads no more, the rest is for nobody.
                    let _ = feed.send(bytes);
                }
            }
            Ask::InputEnd => self.feed = None,
            Ask::Signal(name) => match name.as_str() {
                "INT" => send_signal(&self.child, Signal::SIGINT),
                "TERM" => send_signal(&self.child, Signal::SIGTERM),
                _ => {}
            },
            Ask::Verb(_) | Ask::Call { .. } | Ask::Part { .. } | Ask::Beat => {}
        }
    }

    /// Passes on one block of each stream that is there; returns whether there was any.
    fn pass_on(&mut self) -> io::Result<bool> {
        let mut block = vec![0; CHUNK_BYTES];
        let out = take(&mut self.out, &mut block)?;
        if out > 0 {
            tell(&Tell::Out(Bytes::of(&block[..out])))?;
        }
        let err = take(&mut self.err, &mut block)?;
        if err > 0 {
            tell(&Tell::Err(Bytes::of(&block[..err])))?;
        }
        let marks = self.marks.as_mut().map_or(Ok(false), Marked::pass_on)?;
        Ok(marks || out + err > 0)
    }

    /// Ends the verb if the other end is gone.
    fn must<T>(&mut self, done: io::Result<T>) -> io::Result<T> {
        if done.is_err() {
            let _ = self.end();
        }
        done
    }

    fn end(&mut self) -> io::Result<()> {
        hang_up(&mut self.child)?;
        self.child.wait().map(drop)
    }
}

/// Ends a verb as the end of a terminal does. What it asked the supervisor to do goes on.
pub fn hang_up(child: &mut Child) -> io::Result<()> {
    let process = process_of(child)?;
    send_signal(child, Signal::SIGHUP);
    if !wait_until(&mut [PollFd::new(&process, PollFlags::IN)], Instant::now() + END_MAX)? {
        child.kill()?;
    }
    Ok(())
}

pub fn process_of(child: &Child) -> io::Result<OwnedFd> {
    let pid = rustix::process::Pid::from_child(child);
    Ok(rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())?)
}

/// Sends a signal to the process group of a child that was not waited for.
pub fn send_signal(child: &Child, signal: Signal) {
    if let Ok(group) = i32::try_from(child.id()) {
        // The child has not been reaped yet, so the number of its group cannot belong to another process.
        let _ = killpg(Pid::from_raw(group), signal);
    }
}

/// Reads what is there of a stream into `block`, and returns the number of bytes. Closes the stream at its end.
pub fn take<S: io::Read + std::os::fd::AsFd>(stream: &mut Option<S>, block: &mut [u8]) -> io::Result<usize> {
    let Some(open) = stream else { return Ok(0) };
    if !wait_until(&mut [PollFd::new(open, PollFlags::IN)], Instant::now())? {
        return Ok(0);
    }
    let read = open.read(block)?;
    if read == 0 {
        *stream = None;
    }
    Ok(read)
}

/// Returns the exit code as a shell reports it.
pub fn code_of(status: ExitStatus) -> u8 {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default());
    u8::try_from(code).unwrap_or(u8::MAX)
}
