//! The answer of a request that changes something, as it comes: to whoever asks first, and to whoever asks again.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use rustix::event::{PollFd, PollFlags};
use swarm_hosts::frames::{Ask, BEAT, Bytes, CHUNK_BYTES, Repeatable, Tell};
use swarm_sys::commands::deadline::wait_until;

use super::keep::{HERE, Order};
use super::requests::{Entry, Request, Requests, STREAM_BYTES_MAX};
use super::{Heard, KEEP, SILENCE_MAX, login, tell};

/// What to do with a request.
pub enum Begun {
    /// Its answer is told.
    Noted(Request),
    /// It could not be noted, for this reason, and is not executed.
    Unnoted(String),
}

/// Notes a request and begins to execute it, unless it is known.
///
/// # Errors
/// Returns why it cannot be executed.
pub fn begin(id: &str, order: impl FnOnce() -> Result<Order, String>) -> Result<Begun, String> {
    let Some(cache) = login::cache() else { return Ok(Begun::Unnoted("HOME is not set".to_owned())) };
    let requests = Requests::new(&cache);
    // What it needs may be gone since.
    if let Some(known) = requests.known(id) {
        return Ok(Begun::Noted(known));
    }
    let order = order()?;
    let (request, lock) = match requests.enter(id) {
        Ok(Entry::New(request, lock)) => (request, lock),
        Ok(Entry::Known(request)) => return Ok(Begun::Noted(request)),
        Err(error) => return Ok(Begun::Unnoted(format!("cannot note the request in {}: {error}", cache.display()))),
    };
    match execute(&request, lock, &order) {
        Ok(()) => Ok(Begun::Noted(request)),
        Err(error) => {
            let cause = format!("cannot start swarm: {error}");
            // Whoever asks again gets the same answer.
            let _ = std::fs::write(request.err(), format!("swarm: error: {cause}\n"));
            let _ = request.end(1);
            Err(cause)
        }
    }
}

/// Starts the process that executes the verb, and holds the lock.
fn execute(request: &Request, lock: File, order: &Order) -> io::Result<()> {
    let order = serde_json::to_vec(order)?;
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(KEEP).arg(request.dir()).current_dir("/").stdin(Stdio::piped()).stdout(lock).stderr(Stdio::null());
    let mut keeper = command.spawn()?;
    // It has the lock now.
    drop(command);
    keeper.stdin.take().map_or(Ok(()), |mut stdin| stdin.write_all(&order))
}

/// Tells the answer from these positions on, until it is complete or the other end is gone.
pub fn attend(request: &Request, from: &Repeatable, heard: &mut Heard) -> io::Result<()> {
    let changes = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
    let flags = AddWatchFlags::IN_MODIFY | AddWatchFlags::IN_CLOSE_WRITE | AddWatchFlags::IN_MOVED_TO;
    changes.add_watch(request.dir(), flags)?;
    let (mut out, mut err) = (Stream::new(request.out(), from.out), Stream::new(request.err(), from.err));
    let (mut last, mut beat) = (Instant::now(), Instant::now() + BEAT);
    let _ = request.ask(HERE);
    loop {
        while let Some(ask) = heard.next() {
            last = Instant::now();
            if let Ask::Signal(name) = ask
                && ["INT", "TERM", "HUP"].contains(&name.as_str())
            {
                request.ask(&name)?;
            }
        }
        if heard.is_over || last.elapsed() >= SILENCE_MAX {
            return Ok(());
        }
        // In this order, so that nothing is missed: who works, whether it has ended, what it printed.
        let is_at_work = request.is_at_work();
        let code = request.code();
        let mut has_told = false;
        while out.pass_on(Tell::Out)? | err.pass_on(Tell::Err)? {
            has_told = true;
        }
        if has_told {
            // Somebody has read, perhaps slowly: nothing was heard meanwhile.
            last = Instant::now();
        }
        match code {
            Some(code) => return tell(&Tell::Exit(code)),
            None if !is_at_work => return tell(&Tell::Lost),
            None => {}
        }
        let (stdin, events) = (io::stdin(), changes.as_fd());
        let mut waits = [PollFd::new(&stdin, PollFlags::IN), PollFd::new(&events, PollFlags::IN)];
        wait_until(&mut waits, beat.min(last + SILENCE_MAX))?;
        let is_heard = !waits[0].revents().is_empty();
        while changes.read_events().is_ok_and(|events| !events.is_empty()) {}
        if is_heard {
            heard.read();
        }
        if Instant::now() >= beat {
            beat = Instant::now() + BEAT;
            let _ = request.ask(HERE);
            tell(&Tell::Beat)?;
        }
    }
}

/// A stream of the answer, and the position in it.
struct Stream {
    path: PathBuf,
    file: Option<File>,
    at: u64,
}

impl Stream {
    fn new(path: PathBuf, at: u64) -> Self {
        Self { path, file: None, at }
    }

    /// Passes on one block, if there is any.
    fn pass_on(&mut self, make: fn(Bytes) -> Tell) -> io::Result<bool> {
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(File::open(&self.path)?),
        };
        let mut block = vec![0; CHUNK_BYTES];
        let read = file.read_at(&mut block, self.at)?;
        if read == 0 {
            return Ok(false);
        }
        let kept = file.metadata()?.len().saturating_sub(STREAM_BYTES_MAX);
        if self.at < kept {
            let missing = format!("swarm: warning: {} bytes of the output were not kept\n", kept - self.at);
            self.at = kept;
            return tell(&Tell::Note(missing)).map(|()| true);
        }
        self.at += read as u64;
        tell(&make(Bytes::of(&block[..read])))?;
        Ok(true)
    }
}
