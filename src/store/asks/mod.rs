//! Requests of agents to people: `$SWARM_DIR/asks/`.
//!
//! ```text
//!   N.ask.json      what is asked            N.taken.json   for whom the answer was used
//!   N.answer.json   the answer               N.over.json    why nobody waits any more
//! ```
//!
//! Every file is complete and synced before it gets its name, and none is replaced: of several writers the first one
//! counts, and no lock is needed. The files of one directory can be watched together.

pub mod covered;
mod deadlines;
mod past;
pub mod present;
pub mod rules;
pub mod settled;
pub mod watch;

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use nix::sys::inotify::{AddWatchFlags, Inotify};
use serde::Serialize;
use serde::de::DeserializeOwned;
use swarm_model::asks::{Ask, AskAnswer, AskRecord, AskState, Draft, Over, SCHEMA, Taken};
use swarm_sys::clock::{random_uuid, wall_ms};
use swarm_sys::files::{is_absent, list_if_present};
use swarm_sys::owner;
use swarm_sys::paths::{Paths, digest};
use swarm_sys::watching;

/// Length of a request's digest in bytes.
const DIGEST_BYTES: usize = 32;
/// Maximum number of numbers that are tried for a new request.
const TRIES_MAX: u64 = 10_000;
/// Maximum size of a file in bytes.
const FILE_BYTES_MAX: u64 = 32 << 20;
/// Events after which a watch of the directory reports nothing more.
const DIR_GONE: AddWatchFlags = AddWatchFlags::IN_DELETE_SELF.union(AddWatchFlags::IN_MOVE_SELF);

/// Why a request is over that a person answered where the agent shows it.
pub const ANSWERED_IN_DIALOG: &str = "it was answered in the agent's own dialog";
/// Minimum age in milliseconds of a request whose dialog a screen has shown: a younger one may have come since.
const SHOWN_MS_MIN: u64 = 1_000;

/// Why a request could not be answered.
#[derive(Debug, thiserror::Error)]
pub enum AnswerError {
    #[error("request {0} not found")]
    NotFound(u64),
    #[error("request {number} is over: {why}")]
    Over { number: u64, why: String },
    #[error("request {number} was already answered{}", .first.by.user.as_ref().map(|user| format!(" by {user}")).unwrap_or_default())]
    Answered { number: u64, first: Box<AskAnswer> },
    #[error("request {0} is not the one that was shown")]
    Changed(u64),
    #[error("cannot record the answer to request {number}: {error}")]
    Io { number: u64, error: io::Error },
}

/// Requests of one state directory.
#[derive(Clone, Debug)]
pub struct Asks {
    dir: PathBuf,
}

impl Asks {
    pub fn new(paths: &Paths) -> Self {
        Self { dir: paths.asks() }
    }

    /// Returns the directory, which exists once something was asked.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns how the keys of the requests of a worker begin.
    pub fn of_worker(name: &str, generation: u64) -> String {
        format!("worker/{name}/{generation}/")
    }

    /// Creates the directory, for a process that watches it.
    ///
    /// # Errors
    /// Returns any I/O error.
    pub fn make_dir(&self) -> io::Result<()> {
        owner::make_dir_inside(&self.dir)
    }

    /// Returns a watch that is readable when a file got its name in the directory, which this creates, or when a file or
    /// the directory itself is gone.
    ///
    /// # Errors
    /// Returns any I/O error.
    pub fn watch(&self) -> io::Result<Inotify> {
        self.make_dir()?;
        let inotify = watching::start()?;
        // A file gets its name by a link.
        let made = AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MOVED_TO;
        let gone = AddWatchFlags::IN_DELETE | AddWatchFlags::IN_MOVED_FROM;
        let all = made | gone | DIR_GONE | AddWatchFlags::IN_ONLYDIR;
        inotify.add_watch(&self.dir, all).map_err(watching::explained)?;
        Ok(inotify)
    }

    /// Records a request durably and returns it. A request with the same key that is not over is returned instead.
    ///
    /// # Errors
    /// Returns any I/O error; then nothing is asked.
    pub fn ask(&self, draft: &Draft) -> io::Result<Ask> {
        self.make_dir()?;
        let is_same = |one: &AskRecord| one.ask.key == draft.key && one.state() != AskState::Over;
        if let Some(same) = self.unfinished()?.into_iter().find(is_same) {
            return Ok(same.ask);
        }
        // A file that cannot be read sets no limit: the request stays open.
        let timeout = swarm_config::approval_times().unwrap_or_default().timeout;
        let timeout_ms = timeout.and_then(|timeout| u64::try_from(timeout.as_millis()).ok());
        let after = self.files()?.into_iter().map(|(number, _)| number).max().unwrap_or(0);
        let asked_at_ms = wall_ms();
        for number in (after + 1)..=(after + TRIES_MAX) {
            let ask = Ask {
                schema: SCHEMA.to_owned(),
                number,
                key: draft.key.clone(),
                who: draft.who.clone(),
                tool: draft.tool.clone(),
                wish: draft.wish.clone(),
                cwd: draft.cwd.clone(),
                waits: draft.waits,
                digest: digest_of(draft)?,
                asked_at_ms,
                expires_at_ms: timeout_ms.map(|timeout_ms| asked_at_ms.saturating_add(timeout_ms)),
            };
            if self.publish(number, "ask", &ask)? {
                return Ok(ask);
            }
        }
        Err(io::Error::other("cannot find a free number for the request"))
    }

    /// Returns a request. `None` if there is none with this number.
    ///
    /// # Errors
    /// Fails if one of its files cannot be read.
    pub fn find(&self, number: u64) -> io::Result<Option<AskRecord>> {
        // The question last: a request that is removed meanwhile loses it first, and is never open again.
        let (over, taken, answer) =
            (self.read(number, "over")?, self.read(number, "taken")?, self.read(number, "answer")?);
        let Some(ask) = self.read(number, "ask")? else { return Ok(None) };
        Ok(Some(AskRecord { ask, answer, taken, over }))
    }

    /// Returns all requests by number, except those that are [damaged](Self::damaged).
    ///
    /// # Errors
    /// Fails if the directory or a file cannot be read.
    pub fn all(&self) -> io::Result<Vec<AskRecord>> {
        each(self.numbers_without(|_| false)?, |number| self.find(number))
    }

    /// Returns the requests that are not over, by number, except those that are [damaged](Self::damaged). Reads nothing of
    /// the others.
    ///
    /// # Errors
    /// Fails if the directory or a file cannot be read.
    pub fn unfinished(&self) -> io::Result<Vec<AskRecord>> {
        each(self.numbers_without(|part| part == "over")?, |number| self.find(number))
    }

    /// Returns the numbers of the requests that are not over, and of which a file is damaged or was written by another
    /// version, each with the cause.
    ///
    /// # Errors
    /// Fails if the directory cannot be read.
    pub fn damaged(&self) -> io::Result<Vec<(u64, String)>> {
        let numbers = self.numbers_without(|part| part == "over")?;
        let cause = |number| self.find(number).err().filter(is_damage).map(|error| (number, error.to_string()));
        Ok(numbers.into_iter().filter_map(cause).collect())
    }

    /// Ends all requests whose keys begin with `start`, durably.
    ///
    /// # Errors
    /// Returns the first error, and ends the others nevertheless.
    pub fn end_all(&self, start: &str, why: &str) -> io::Result<()> {
        let ours = self.unfinished()?.into_iter().filter(|one| one.ask.key.starts_with(start));
        let ended: Vec<io::Result<()>> = ours.map(|one| self.end(one.ask.number, why)).collect();
        ended.into_iter().collect()
    }

    /// Ends the request of a worker whose dialog a person has answered in its window, durably. Does nothing if the worker
    /// has several open requests, because the screen does not say which of them it was, or if the request has just come.
    ///
    /// # Errors
    /// Returns any I/O error.
    pub fn end_shown(&self, worker: &str, generation: u64, now_ms: u64) -> io::Result<()> {
        let ours = Self::of_worker(worker, generation);
        let open = self.open()?.into_iter().filter(|ask| ask.key.starts_with(&ours)).collect::<Vec<_>>();
        match &open[..] {
            [only] if now_ms.saturating_sub(only.asked_at_ms) >= SHOWN_MS_MIN => {
                self.end(only.number, ANSWERED_IN_DIALOG)
            }
            _ => Ok(()),
        }
    }

    /// Returns the requests that wait for an answer, by number. Only their own files are read.
    ///
    /// # Errors
    /// As [`Self::all`].
    pub fn open(&self) -> io::Result<Vec<Ask>> {
        each(self.numbers_without(|part| part != "ask")?, |number| self.read(number, "ask"))
    }

    /// Returns the numbers of the requests that have no file for which `settles` is true, in order.
    fn numbers_without(&self, settles: fn(&str) -> bool) -> io::Result<Vec<u64>> {
        let (mut asked, mut settled) = (BTreeSet::new(), BTreeSet::new());
        for (number, part) in self.files()? {
            if part == "ask" {
                asked.insert(number);
            }
            if settles(&part) {
                settled.insert(number);
            }
        }
        Ok(asked.difference(&settled).copied().collect())
    }

    /// Returns the number and the part of each file.
    fn files(&self) -> io::Result<Vec<(u64, String)>> {
        let named = list_if_present(&self.dir)?.into_iter().filter_map(|entry| named(entry.file_name().to_str()?));
        Ok(named.collect())
    }

    /// Records an answer durably.
    ///
    /// # Errors
    /// Fails if the request does not exist, is over, was answered by somebody else before, or is not the one that the
    /// answer names; and with any I/O error.
    pub fn answer(&self, number: u64, answer: &AskAnswer) -> Result<(), AnswerError> {
        let io = |error| AnswerError::Io { number, error };
        let record = self.find(number).map_err(io)?.ok_or(AnswerError::NotFound(number))?;
        if record.ask.digest != answer.digest {
            return Err(AnswerError::Changed(number));
        }
        if let Some(over) = record.over {
            return Err(AnswerError::Over { number, why: over.why });
        }
        if record.answer.is_none() && self.publish(number, "answer", answer).map_err(io)? {
            return Ok(());
        }
        let first: Option<AskAnswer> = self.read(number, "answer").map_err(io)?;
        match first {
            Some(first) => Err(AnswerError::Answered { number, first: Box::new(first) }),
            None => Err(io(io::Error::other("the answer is gone"))),
        }
    }

    /// Uses the answer for `by`, durably. Reports whether this call was the first one: only then may the agent hear
    /// the answer.
    ///
    /// # Errors
    /// Returns any I/O error; then the answer must not be used.
    pub fn take(&self, number: u64, by: &str) -> io::Result<bool> {
        self.publish(number, "taken", &Taken { by: by.to_owned(), at_ms: wall_ms() })
    }

    /// Records durably that nobody waits any more. A reason that was recorded before stays.
    ///
    /// # Errors
    /// Returns any I/O error.
    pub fn end(&self, number: u64, why: &str) -> io::Result<()> {
        self.publish(number, "over", &Over { why: why.to_owned(), at_ms: wall_ms() }).map(drop)
    }

    fn path(&self, number: u64, part: &str) -> PathBuf {
        self.dir.join(format!("{number}.{part}.json"))
    }

    fn read<T: DeserializeOwned>(&self, number: u64, part: &str) -> io::Result<Option<T>> {
        let path = self.path(number, part);
        let damaged =
            |cause: String| io::Error::new(io::ErrorKind::InvalidData, format!("{}: {cause}", path.display()));
        let mut options = OpenOptions::new();
        // Neither waits for the other end of a pipe.
        let file = match options.read(true).custom_flags(nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK).open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) if error.raw_os_error() == Some(nix::libc::ELOOP) => return Err(damaged(error.to_string())),
            Err(error) => return Err(io::Error::new(error.kind(), format!("{}: {error}", path.display()))),
        };
        let meta = file.metadata()?;
        if !meta.is_file() || meta.len() > FILE_BYTES_MAX {
            return Err(damaged("it is no file of a request".to_owned()));
        }
        let mut text = Vec::new();
        file.take(FILE_BYTES_MAX).read_to_end(&mut text)?;
        serde_json::from_slice(&text).map(Some).map_err(|error| damaged(error.to_string()))
    }

    /// Gives a file its name, unless there is one of this name. Reports whether it did.
    fn publish(&self, number: u64, part: &str, value: &impl Serialize) -> io::Result<bool> {
        let path = self.path(number, part);
        if !is_absent(&path) {
            return Ok(false);
        }
        let temporary = self.dir.join(format!(".{}", random_uuid()));
        let linked = write_synced(&temporary, &self.dir, &serde_json::to_vec_pretty(value)?)
            .and_then(|()| fs::hard_link(&temporary, &path));
        let _ = fs::remove_file(&temporary);
        match linked {
            Ok(()) => File::open(&self.dir)?.sync_all().map(|()| true),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Reads the requests with these numbers. Leaves out those that are damaged or belong to somebody else: they must not hide
/// the others.
fn each<T>(numbers: Vec<u64>, read: impl Fn(u64) -> io::Result<Option<T>>) -> io::Result<Vec<T>> {
    let mut found = Vec::new();
    for number in numbers {
        match read(number) {
            Ok(one) => found.extend(one),
            Err(error) if is_damage(&error) => tracing::warn!(number, %error, "a request is damaged"),
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

fn is_damage(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::PermissionDenied)
}

/// Returns the number of the request that a file belongs to, and the part of the request. `None` for other files.
fn named(name: &str) -> Option<(u64, String)> {
    let (number, part) = name.strip_suffix(".json")?.split_once('.')?;
    Some((number.parse().ok()?, part.to_owned()))
}

fn write_synced(path: &Path, dir: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    // The answer of root is for the agents of the directory's user.
    owner::give(&file, dir)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Returns the digest of a request, which identifies what is asked.
///
/// # Errors
/// Fails if the request cannot be written as JSON.
pub fn digest_of(draft: &Draft) -> io::Result<String> {
    // The members of an object are sorted, so equal wishes have equal texts.
    let text = serde_json::to_vec(&serde_json::json!([draft.tool, draft.wish, draft.cwd]))?;
    Ok(digest(&text, DIGEST_BYTES))
}

#[cfg(test)]
pub(crate) mod tests;
