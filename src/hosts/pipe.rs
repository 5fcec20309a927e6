//! A connection to the far end, from its hello to its last line.

use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use swarm_sys::commands::deadline::wait_until;

use crate::fault::Fault;
use crate::frames::{Ask, BEAT, Hello, Lines, SILENCE_MAX, Tell, hello_in, line};
use crate::host::Host;
use crate::master::{self, Control};
use crate::slurm;
use crate::words::far_end;

/// Time from the start of the command to the hello: that of a login, and of a login shell.
pub(crate) const HELLO_MAX: Duration = Duration::from_secs(20);
/// Maximum number of bytes that a login shell may print before the hello.
pub(crate) const NOISE_BYTES_MAX: usize = 64 << 10;
/// Maximum number of bytes of standard error that are kept.
pub(crate) const SAID_BYTES_MAX: u64 = 64 << 10;
/// Time for the command to end after its output has.
pub(crate) const END_MAX: Duration = Duration::from_secs(2);
const BLOCK_BYTES: usize = 64 << 10;
/// Time to wait for room in a shared connection: servers limit the number of commands of a login (`MaxSessions`).
const FULL_MAX: Duration = Duration::from_secs(10);
/// First and longest pause between two looks whether there is room.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// What comes next from the far end.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    Tell(Tell),
    /// Nothing is there at the moment.
    Nothing,
    /// The connection was cut.
    Cut,
}

/// Connection to the far end. Dropping it ends the command that carries it.
#[derive(Debug)]
pub struct Pipe {
    child: Child,
    /// `None` once the connection is being closed.
    input: Option<Arc<Mutex<ChildStdin>>>,
    output: ChildStdout,
    lines: Lines,
    is_over: bool,
    /// Dropped to end the thread that sends beats.
    _beats: mpsc::Sender<()>,
    control: Control,
    pub hello: Hello,
    /// Time from the first byte of the command to the hello.
    pub took: Duration,
}

impl Pipe {
    /// Connects to `host`.
    ///
    /// # Errors
    /// Returns why there is no connection.
    pub fn open(host: &Host) -> Result<Self, Fault> {
        let host = &slurm::reached(host)?;
        let control = master::control(host);
        let (deadline, mut pause) = (Instant::now() + FULL_MAX, PAUSE_MIN);
        loop {
            match Self::through(host, &control) {
                Err(silent) if silent.is_full(&control) && Instant::now() < deadline => {
                    // Nobody tells when another command ends.
                    let _ = wait_until(&mut [], Instant::now() + pause);
                    pause = (pause * 2).min(PAUSE_MAX);
                }
                opened => return Self::else_alone(host, &control, opened),
            }
        }
    }

    /// Connects beside the shared connection if that is full, has ended, or does not answer.
    fn else_alone(host: &Host, control: &Control, opened: Result<Self, Silent>) -> Result<Self, Fault> {
        match opened {
            Err(Silent::Ended { code: Some(255), .. }) if matches!(control, Control::Own(_)) => {
                let opened = master::alone(control, || Self::through(host, &Control::None));
                opened.map_err(|silent| silent.fault(host))
            }
            Err(Silent::Hung) if *control != Control::None => {
                if master::answers(host, control) {
                    return Err(Silent::Shell.fault(host));
                }
                // The connection accepts commands, but nothing comes back.
                master::put_aside(control);
                Self::through(host, &Control::None).map_err(|silent| silent.fault(host))
            }
            opened => opened.map_err(|silent| silent.fault(host)),
        }
    }

    fn through(host: &Host, control: &Control) -> Result<Self, Silent> {
        let begun = Instant::now();
        let mut command = far_end(host, control);
        // In a process group of its own, because Ctrl-C in this terminal is a message to the verb there.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut child = command.spawn().map_err(|error| Silent::NotStarted(command.get_program().into(), error))?;
        let (input, output, said) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(input), Some(mut output), Some(said)) = (input, output, said) else {
            unreachable!("all three are pipes")
        };
        let (sender, said_of) = mpsc::channel();
        // A connection that ssh leaves behind may keep standard error open, so nobody waits for its end.
        thread::spawn(move || {
            let mut text = Vec::new();
            let _ = said.take(SAID_BYTES_MAX).read_to_end(&mut text);
            let _ = sender.send(text);
        });
        let mut lines = Lines::default();
        match await_hello(&mut output, &mut lines) {
            Ok(hello) if hello.is_understood() => {
                let input = Arc::new(Mutex::new(input));
                let beats = send_beats(&input);
                let (took, control) = (begun.elapsed(), control.clone());
                Ok(Self {
                    child,
                    input: Some(input),
                    output,
                    lines,
                    is_over: false,
                    _beats: beats,
                    control,
                    hello,
                    took,
                })
            }
            Ok(hello) => {
                end(&mut child);
                Err(Silent::Stranger(hello))
            }
            Err(Unheard::Late(noise)) => {
                end(&mut child);
                if noise.is_empty() { Err(Silent::Hung) } else { Err(Silent::Noisy(noise)) }
            }
            Err(Unheard::Ended(noise)) => {
                let code = end(&mut child);
                let said = said_of.recv_timeout(END_MAX).unwrap_or_default();
                Err(Silent::Ended { code, said: String::from_utf8_lossy(&said).into_owned(), noise })
            }
        }
    }

    /// Says that nothing came for too long: the next connection does not use the same login.
    pub fn is_silent(&self) {
        master::put_aside(&self.control);
    }

    /// Sends a line.
    ///
    /// # Errors
    /// Fails if the connection was cut.
    pub fn send(&self, ask: &Ask) -> io::Result<()> {
        self.input().send(ask)
    }

    /// Returns a way to send lines from another thread.
    pub fn input(&self) -> Input {
        Input(self.input.as_ref().map(Arc::downgrade).unwrap_or_default())
    }

    /// Returns the next line. Does not wait unless bytes are there to be read: wait for the descriptor first.
    pub fn poll(&mut self) -> Next {
        loop {
            match self.lines.complete() {
                Ok(Some(line)) => match serde_json::from_slice(&line) {
                    Ok(tell) => return Next::Tell(tell),
                    // Of a newer program, about something that this one did not ask for: a sign of life.
                    Err(_) => return Next::Tell(Tell::Beat),
                },
                Ok(None) if self.is_over => return Next::Cut,
                Ok(None) => {}
                Err(_) => {
                    self.is_over = true;
                    return Next::Cut;
                }
            }
            let mut waits = [PollFd::new(&self.output, PollFlags::IN)];
            if !wait_until(&mut waits, Instant::now()).unwrap_or(false) {
                return Next::Nothing;
            }
            self.is_over = !read_some(&mut self.output, &mut self.lines);
        }
    }

    /// Returns the next line. [`Next::Cut`] if none comes within the time after which a connection counts as cut,
    /// [`Next::Nothing`] if there are only beats until `deadline`.
    pub fn wait(&mut self, deadline: Instant) -> Next {
        loop {
            match self.poll() {
                Next::Nothing | Next::Tell(Tell::Beat) => {}
                next => return next,
            }
            let cut = Instant::now() + SILENCE_MAX;
            let mut waits = [PollFd::new(&self.output, PollFlags::IN)];
            let is_there = wait_until(&mut waits, cut.min(deadline)).unwrap_or(false);
            if Instant::now() >= deadline {
                return Next::Nothing;
            }
            if !is_there {
                return Next::Cut;
            }
        }
    }
}

/// Way to the far end, which ends with the connection.
#[derive(Clone, Debug)]
pub struct Input(Weak<Mutex<ChildStdin>>);

impl Input {
    /// Sends a line.
    ///
    /// # Errors
    /// Fails if the connection was cut or closed.
    pub fn send(&self, ask: &Ask) -> io::Result<()> {
        let input = self.0.upgrade().ok_or(io::ErrorKind::BrokenPipe)?;
        input.lock().unwrap_or_else(PoisonError::into_inner).write_all(&line(ask))
    }
}

impl AsFd for Pipe {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.output.as_fd()
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        // The far end ends with its input.
        self.input = None;
        end(&mut self.child);
    }
}

/// Why no hello came.
pub(crate) enum Silent {
    NotStarted(std::ffi::OsString, io::Error),
    Ended {
        code: Option<i32>,
        said: String,
        noise: String,
    },
    /// Something was printed, but no hello.
    Noisy(String),
    Hung,
    /// Its login works, but nothing is executed.
    Shell,
    Stranger(Hello),
}

impl Silent {
    /// Reports whether the shared connection has no room for another command.
    fn is_full(&self, control: &Control) -> bool {
        let is_own = matches!(control, Control::Own(_));
        is_own && matches!(self, Self::Ended { said, .. } if said.contains("Session open refused by peer"))
    }

    pub(crate) fn fault(self, host: &Host) -> Fault {
        match self {
            Self::NotStarted(program, error) => {
                let mut fault = Fault::away(host, &format!("cannot start {}: {error}", program.display()));
                fault.remedy = Some("install the OpenSSH client".to_owned()).filter(|_| program == "ssh");
                fault
            }
            Self::Ended { code, said, noise } => Fault::silent(host, code, &said, &noise),
            Self::Noisy(noise) => {
                let mut fault = Fault::silent(host, None, "", &noise);
                fault.remedy =
                    Some("look for what prints, waits or starts another shell in ~/.bashrc there".to_owned());
                fault
            }
            Self::Hung => Fault::away(host, &format!("no answer within {} seconds", HELLO_MAX.as_secs())),
            Self::Shell => {
                let limit = HELLO_MAX.as_secs();
                let mut fault =
                    Fault::away(host, &format!("its login shell did not start swarm within {limit} seconds"));
                fault.remedy = Some("look for what waits or starts another shell in ~/.bashrc there".to_owned());
                fault
            }
            Self::Stranger(hello) => Fault::protocol(host, &hello),
        }
    }
}

/// Why there is no hello, with the bytes that were read instead.
enum Unheard {
    Late(String),
    Ended(String),
}

fn await_hello(output: &mut ChildStdout, lines: &mut Lines) -> Result<Hello, Unheard> {
    let (deadline, mut noise) = (Instant::now() + HELLO_MAX, Vec::new());
    let text = |noise: &[u8], lines: &Lines| String::from_utf8_lossy(&[noise, lines.rest()].concat()).into_owned();
    loop {
        while let Ok(Some(line)) = lines.complete() {
            if let Some(hello) = hello_in(&line) {
                return Ok(hello);
            }
            noise.extend_from_slice(&line);
            noise.push(b'\n');
        }
        if noise.len() + lines.rest().len() > NOISE_BYTES_MAX {
            return Err(Unheard::Late(text(&noise, lines)));
        }
        let mut waits = [PollFd::new(output, PollFlags::IN)];
        if !wait_until(&mut waits, deadline).unwrap_or(false) {
            return Err(Unheard::Late(text(&noise, lines)));
        }
        if !read_some(output, lines) {
            return Err(Unheard::Ended(text(&noise, lines)));
        }
    }
}

/// Reads what is there; returns false at the end.
pub(crate) fn read_some(output: &mut ChildStdout, lines: &mut Lines) -> bool {
    let mut block = vec![0; BLOCK_BYTES];
    loop {
        match output.read(&mut block) {
            Ok(0) => return false,
            Ok(read) => {
                lines.add(&block[..read]);
                return true;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return false,
        }
    }
}

/// Sends beats until the returned end is dropped or the connection is cut. In a thread, because this process may wait for a
/// reader of its own output.
fn send_beats(input: &Arc<Mutex<ChildStdin>>) -> mpsc::Sender<()> {
    let (sender, receiver) = mpsc::channel();
    let input = Input(Arc::downgrade(input));
    thread::spawn(move || {
        while receiver.recv_timeout(BEAT) == Err(RecvTimeoutError::Timeout) {
            if input.send(&Ask::Beat).is_err() {
                return;
            }
        }
    });
    sender
}

/// Ends the command and returns its exit code.
pub(crate) fn end(child: &mut Child) -> Option<i32> {
    let deadline = Instant::now() + END_MAX;
    drop(child.stdin.take());
    if let Ok(Some(status)) = child.try_wait() {
        return status.code();
    }
    let pid = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw)?;
    if let Ok(process) = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()) {
        let mut waits = [PollFd::new(&process, PollFlags::IN)];
        if !wait_until(&mut waits, deadline).unwrap_or(false) {
            let _ = child.kill();
        }
    }
    child.wait().ok().and_then(|status| status.code())
}
