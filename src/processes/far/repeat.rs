//! The answer of a request that changes something, as it comes: to whoever asks first, and to whoever asks again.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use rustix::event::{PollFd, PollFlags};
use swarm_hosts::frames::{Ask, BEAT, Bytes, CHUNK_BYTES, Repeatable, Tell};
use swarm_sys::commands::deadline::wait_until;
use swarm_sys::procfs;

use super::keep::{HERE, Order};
use super::requests::{Entry, Request, Requests, STREAM_BYTES_MAX};
use super::{Heard, KEEP, SILENCE_MAX, forked, keep, login, tell};

/// Pause between two looks at the files of a request that cannot be watched.
const LOOK: Duration = Duration::from_secs(1);

/// Time within which a request that is asked again must have been noted for whoever asked first.
const FIRST_MAX: Duration = Duration::from_secs(5);

/// What to do with a request.
pub enum Begun {
    /// Its answer is told.
    Noted(Request),
    /// The first ask went to an earlier boot, or to another machine, which may have executed the request. It is not executed
    /// again.
    Lost,
    /// It was asked before, and its note is gone: it was kept for its time, or somebody has removed it. It is not executed.
    Forgotten,
    /// It could not be noted, for this reason, and is not executed.
    Unnoted(String),
}

/// Notes a request and begins to execute it, unless it is known.
///
/// # Errors
/// Returns why it cannot be executed.
pub fn begin(from: &Repeatable, order: impl FnOnce() -> Result<Order, String>) -> Result<Begun, String> {
    let Some(cache) = login::cache() else { return Ok(Begun::Unnoted("HOME is not set".to_owned())) };
    let requests = Requests::new(&cache);
    if let Some(known) = requests.known(&from.id) {
        return Ok(Begun::Noted(known));
    }
    if from.is_of_another_boot(&procfs::boot_id()) {
        return Ok(Begun::Lost);
    }
    if from.again {
        // The first connection was cut, and what it carried may still be on its way to another process.
        return Ok(requests.appears(&from.id, FIRST_MAX).map_or(Begun::Forgotten, Begun::Noted));
    }
    // Before the rest, which may take a while: whoever asks again must find it.
    let (request, lock) = match requests.enter(&from.id) {
        Ok(Entry::New(request, lock)) => (request, lock),
        Ok(Entry::Known(request)) => return Ok(Begun::Noted(request)),
        Err(error) => return Ok(Begun::Unnoted(format!("cannot note the request in {}: {error}", cache.display()))),
    };
    let execute = |order: Order| execute(&request, lock, order).map_err(|error| format!("cannot start swarm: {error}"));
    match order().and_then(execute) {
        Ok(()) => Ok(Begun::Noted(request)),
        Err(cause) => {
            // Whoever asks again gets the same answer.
            let _ = std::fs::write(request.err(), format!("swarm: error: {cause}\n"));
            let _ = request.end(1);
            Err(cause)
        }
    }
}

/// Starts the process that executes the verb, and holds the lock.
fn execute(request: &Request, lock: File, order: Order) -> io::Result<()> {
    if forked::is_possible() {
        return keep::in_fork(request, lock, order);
    }
    let order = serde_json::to_vec(&order)?;
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(KEEP).arg(request.dir()).current_dir("/").stdin(Stdio::piped()).stdout(lock).stderr(Stdio::null());
    let mut keeper = command.spawn()?;
    // It has the lock now.
    drop(command);
    keeper.stdin.take().map_or(Ok(()), |mut stdin| stdin.write_all(&order))
}

/// Tells the answer from these positions on, until it is complete or the other end is gone.
pub fn attend(request: &Request, from: &Repeatable, heard: &mut Heard) -> io::Result<()> {
    let changes = watch(request);
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
        let stdin = io::stdin();
        let mut waits = vec![PollFd::new(&stdin, PollFlags::IN)];
        let mut until = beat.min(last + SILENCE_MAX);
        match &changes {
            Ok(changes) => waits.push(PollFd::new(changes, PollFlags::IN)),
            Err(_) => until = until.min(Instant::now() + LOOK),
        }
        wait_until(&mut waits, until)?;
        let is_heard = !waits[0].revents().is_empty();
        drop(waits);
        while changes.as_ref().is_ok_and(|changes| changes.read_events().is_ok_and(|events| !events.is_empty())) {}
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

/// Watches the files of a request. Fails if other programs have used up the instances or watches of the user.
fn watch(request: &Request) -> nix::Result<Inotify> {
    let changes = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
    let flags = AddWatchFlags::IN_MODIFY | AddWatchFlags::IN_CLOSE_WRITE | AddWatchFlags::IN_MOVED_TO;
    changes.add_watch(request.dir(), flags)?;
    Ok(changes)
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
