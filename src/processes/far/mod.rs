//! `swarm __stdio`: the far end of a connection from another machine. Says hello, executes one verb with the environment of
//! a login shell, passes its streams on, and ends with its input. Without a line for a minute it ends as well: a dead
//! network brings no end of file. A run carries out attempts here by calls ([`calls`]).

mod calls;
mod clone;
mod end;
mod host;
mod login;
mod place;
mod start;

use std::ffi::OsString;
use std::io::{self, Read as _, Write as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use rustix::event::{PollFd, PollFlags};
use swarm_hosts::frames::{Ask, BEAT, Bytes, CHUNK_BYTES, Call, Hello, Lines, Tell, hello_line, line};
use swarm_sys::commands::deadline::wait_until;

pub use clone::git;
pub use login::print as print_environment;

/// Verb that prints the environment of a login shell.
pub const ENVIRONMENT: &str = "__env";

/// Time without a line from the other end after which it counts as gone.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// Number of blocks that a full pipe can hold, at its maximum size of 1 MiB.
const PIPE_BLOCKS_MAX: usize = (1 << 20) / CHUNK_BYTES;
/// Time for a verb to end after the connection was cut.
const END_MAX: Duration = Duration::from_secs(5);

pub fn main() -> u8 {
    let hello = Hello::of_this(env!("CARGO_PKG_VERSION"));
    match say(&hello_line(&hello)).and_then(|()| serve()) {
        Ok(()) => 0,
        // Nobody is there to be told.
        Err(_) => 1,
    }
}

/// Attaches the terminal of this process: `swarm __attach STATE WORD…`, with `-` for the default state directory. Becomes the
/// verb, with the environment of a login shell.
pub fn attach(mut arguments: impl Iterator<Item = OsString>) -> u8 {
    let state = arguments.next().unwrap_or_default().to_string_lossy().into_owned();
    let failed = |cause: String| {
        eprintln!("swarm: error: {cause}");
        1
    };
    let executable = match std::env::current_exe() {
        Ok(executable) => executable,
        Err(error) => return failed(format!("cannot find the program: {error}")),
    };
    let (environment, problem) = login::environment();
    if let Some(problem) = problem {
        eprintln!("swarm: warning: {problem}");
    }
    let mut command = Command::new(executable);
    command.args(arguments).env_clear().envs(environment);
    if let Some(term) = std::env::var_os("TERM") {
        command.env("TERM", term);
    }
    if state != "-" {
        match at_home(&state) {
            Ok(state) => drop(command.env("SWARM_DIR", state)),
            Err(cause) => return failed(cause),
        }
    }
    failed(format!("cannot start swarm: {}", command.exec()))
}

fn say(line: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(line)?;
    out.flush()
}

fn tell(tell: &Tell) -> io::Result<()> {
    say(&line(tell))
}

/// Lines received from the other end.
#[derive(Default)]
struct Heard {
    lines: Lines,
    is_over: bool,
}

impl Heard {
    /// Reads what is there.
    fn read(&mut self) {
        let mut block = vec![0; CHUNK_BYTES];
        match io::stdin().lock().read(&mut block) {
            Ok(0) => self.is_over = true,
            Ok(read) => self.lines.add(&block[..read]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => self.is_over = true,
        }
    }

    /// Returns the next line that is complete and known.
    fn next(&mut self) -> Option<Ask> {
        loop {
            match self.lines.complete() {
                Ok(Some(line)) => match serde_json::from_slice(&line) {
                    Ok(ask) => return Some(ask),
                    Err(_) => continue,
                },
                Ok(None) => return None,
                Err(_) => {
                    self.is_over = true;
                    return None;
                }
            }
        }
    }
}

/// Waits for a verb or a call, and executes it.
fn serve() -> io::Result<()> {
    let mut heard = Heard::default();
    let deadline = Instant::now() + SILENCE_MAX;
    loop {
        match heard.next() {
            Some(Ask::Verb(call)) => {
                return match start_verb(&call) {
                    Ok(running) => running.attend(&mut heard),
                    Err(cause) => tell(&Tell::Refused(cause)),
                };
            }
            Some(Ask::Call { id, call, state }) => return calls::serve(&mut heard, calls::Asked { id, call, state }),
            Some(_) => continue,
            None if heard.is_over => return Ok(()),
            None => {}
        }
        let stdin = io::stdin();
        if !wait_until(&mut [PollFd::new(&stdin, PollFlags::IN)], deadline)? {
            return Ok(());
        }
        heard.read();
    }
}

/// Returns the path below the home, unless it is absolute.
fn at_home(path: &str) -> Result<PathBuf, String> {
    let home = std::env::var_os("HOME").filter(|home| !home.is_empty()).ok_or("HOME is not set there")?;
    Ok(Path::new(&home).join(path.strip_prefix("~/").unwrap_or(if path == "~" { "" } else { path })))
}

fn start_verb(call: &Call) -> Result<Running, String> {
    // An internal process of this program is not a verb.
    if call.words.first().is_some_and(|verb| verb.starts_with("__")) {
        return Err(format!("'{}' is not a verb", call.words[0]));
    }
    let dir = at_home(call.dir.as_deref().unwrap_or_default())?;
    if !dir.is_dir() {
        return Err(format!("there is no directory {}", dir.display()));
    }
    let executable = std::env::current_exe().map_err(|error| format!("cannot find the program: {error}"))?;
    let (environment, problem) = login::environment();
    if let Some(problem) = problem {
        // Whether somebody hears it is seen by the next line.
        let _ = tell(&Tell::Err(Bytes::of(format!("swarm: warning: {problem}\n").as_bytes())));
    }
    let mut command = Command::new(executable);
    command.args(&call.words).env_clear().envs(environment).current_dir(&dir).env("PWD", &dir);
    if let Some(state) = &call.state {
        command.env("SWARM_DIR", at_home(state)?);
    }
    let stdin = if call.input { Stdio::piped() } else { Stdio::null() };
    command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn().map_err(|error| format!("cannot start swarm: {error}"))?;
    let feed = child.stdin.take().map(feed);
    Ok(Running { feed, out: child.stdout.take(), err: child.stderr.take(), child })
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
}

impl Running {
    /// Passes streams and signals on until the verb has ended, or the other end is gone.
    fn attend(mut self, heard: &mut Heard) -> io::Result<()> {
        let process = self.process()?;
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

    fn process(&self) -> io::Result<std::os::fd::OwnedFd> {
        let pid = rustix::process::Pid::from_child(&self.child);
        Ok(rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())?)
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
                "INT" => self.signal(Signal::SIGINT),
                "TERM" => self.signal(Signal::SIGTERM),
                _ => {}
            },
            Ask::Verb(_) | Ask::Call { .. } | Ask::Beat => {}
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
        Ok(out + err > 0)
    }

    /// Ends the verb if the other end is gone.
    fn must<T>(&mut self, done: io::Result<T>) -> io::Result<T> {
        if done.is_err() {
            let _ = self.end();
        }
        done
    }

    /// Ends the verb as the end of a terminal does. What it asked the supervisor to do goes on.
    fn end(&mut self) -> io::Result<()> {
        let process = self.process()?;
        self.signal(Signal::SIGHUP);
        if !wait_until(&mut [PollFd::new(&process, PollFlags::IN)], Instant::now() + END_MAX)? {
            self.child.kill()?;
        }
        self.child.wait().map(drop)
    }

    fn signal(&self, signal: Signal) {
        if let Ok(group) = i32::try_from(self.child.id()) {
            // The child has not been reaped yet, so the number of its group cannot belong to another process.
            let _ = killpg(Pid::from_raw(group), signal);
        }
    }
}

/// Reads what is there of a stream into `block`, and returns the number of bytes. Closes the stream at its end.
fn take<S: io::Read + std::os::fd::AsFd>(stream: &mut Option<S>, block: &mut [u8]) -> io::Result<usize> {
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
fn code_of(status: ExitStatus) -> u8 {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default());
    u8::try_from(code).unwrap_or(u8::MAX)
}
