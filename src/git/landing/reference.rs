//! The base's reference, moved by compare-and-swap in two steps: locked and known to be
//! where it was, and when the files are there, committed. In this process where
//! references are files, else by `git update-ref --stdin`.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout};
use std::time::Duration;

use git2::{ReferenceType, Repository, Signature};

use super::checkout::in_time;
use super::desk::{Desk, date};
use super::land::base;
use crate::repository::cli::CliError;
use crate::repository::fault::Fault;
use crate::repository::parse;
use swarm_sys::processes;

/// How long another git may hold the reference.
const LOCK_WAIT: Duration = Duration::from_secs(5);
/// The same for git.
const LOCKS: [&str; 4] = ["-c", "core.filesRefLockTimeout=5000", "-c", "core.packedRefsTimeout=5000"];
/// How long an answer of git may take, its waiting for locks included.
const ANSWER_MAX: Duration = Duration::from_secs(60);
/// What the reflog says.
const WHY: &str = "swarm: landed";

/// From where to where, by full name.
#[derive(Clone, Copy)]
pub(crate) struct Move<'a> {
    pub(crate) branch: &'a str,
    pub(crate) from: &'a str,
    pub(crate) to: &'a str,
}

/// Dropped without a commit it gives up the lock.
pub(crate) enum Mover<'a> {
    Hand(ByHand<'a>),
    Git(ByGit),
}

impl<'a> Mover<'a> {
    pub(crate) fn start(desk: &'a Desk) -> Result<Self, Fault> {
        Ok(match ByHand::start(desk)? {
            Some(hand) => Self::Hand(hand),
            None => Self::Git(ByGit::start(desk)?),
        })
    }

    /// Locks the reference and makes sure that it is where it was.
    pub(crate) fn prepare(&mut self, to_move: Move<'_>) -> Result<(), Fault> {
        match self {
            Self::Hand(hand) => hand.prepare(to_move),
            Self::Git(git) => git.prepare(to_move),
        }
    }

    pub(crate) fn commit(self, to_move: Move<'_>) -> Result<(), Fault> {
        match self {
            Self::Hand(hand) => hand.commit(to_move),
            Self::Git(mut git) => git.ask("commit", "commit"),
        }
    }
}

/// As git does it where references are files: a lock that holds the new value becomes
/// the reference, and HEAD is locked where it stands for it. So one rename is left to do
/// once it is prepared. What a kill leaves of the locks [`checkout::mend`] removes.
///
/// [`checkout::mend`]: super::checkout::mend
pub(crate) struct ByHand<'a> {
    desk: &'a Desk,
    who: Signature<'static>,
    /// Ours, until it is the reference.
    lock: Option<Lock>,
    head: Option<Lock>,
}

impl<'a> ByHand<'a> {
    /// `None` where references are no files, or this one stands for another, or their
    /// modes are a matter of configuration.
    pub(crate) fn start(desk: &'a Desk) -> Result<Option<Self>, Fault> {
        let is_plain = |repo: &Repository| {
            let base = repo.find_reference(&desk.target.branch);
            let shared = repo.config().and_then(|config| config.get_string("core.sharedRepository"));
            base.is_ok_and(|base| base.kind() == Some(ReferenceType::Direct)) && shared.is_err()
        };
        if !desk.library().is_some_and(|repo| is_plain(&repo)) {
            return Ok(None);
        }
        Ok(Some(Self { desk, who: desk.identity()?.committer()?, lock: None, head: None }))
    }

    fn prepare(&mut self, to_move: Move<'_>) -> Result<(), Fault> {
        let common = &self.desk.common;
        if self.is_head(to_move.branch) {
            // Else somebody could switch away while files are brought along.
            let head = Lock::take(&common.join("HEAD"), common, to_move.to)?;
            self.head = self.is_head(to_move.branch).then_some(head);
        }
        let file = common.join(to_move.branch);
        if let Some(dir) = file.parent().filter(|dir| !dir.exists()) {
            // Of one that is packed.
            make_like(dir, &common.join("refs/heads"))?;
        }
        self.lock = Some(Lock::take(&file, common, to_move.to)?);
        if file.is_dir() {
            // What a name below this one left that came to nothing.
            remove_empty(&file).map_err(Fault::at(&file))?;
        }
        match base(self.desk)? == to_move.from {
            true => Ok(()),
            false => Err(not_moved("it is not where it was")),
        }
    }

    fn commit(mut self, to_move: Move<'_>) -> Result<(), Fault> {
        let Some(lock) = self.lock.take() else { return Err(not_moved("its lock was not taken")) };
        let file = self.desk.common.join(to_move.branch);
        if !lock.is_ours() {
            return Err(not_moved("somebody removed its lock"));
        }
        self.log(to_move);
        fs::rename(&lock.path, &file).map_err(Fault::at(&file))?;
        let dir = file.parent().unwrap_or(&self.desk.common);
        File::open(dir).and_then(|dir| dir.sync_all()).map_err(Fault::at(dir))
    }

    fn is_head(&self, branch: &str) -> bool {
        let head = fs::read_to_string(self.desk.common.join("HEAD"));
        head.is_ok_and(|head| head.strip_prefix("ref: ").is_some_and(|name| name.trim_end() == branch))
    }

    /// History is worth having and not worth failing for.
    fn log(&self, to_move: Move<'_>) {
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        let (name, mail) = (text(self.who.name_bytes()), text(self.who.email_bytes()));
        let line = format!("{} {} {name} <{mail}> {}\t{WHY}\n", to_move.from, to_move.to, date(self.who.when()));
        let logs = self.desk.common.join("logs");
        for name in [Some(to_move.branch), self.head.as_ref().map(|_| "HEAD")].into_iter().flatten() {
            // Where there is none, none is begun.
            let log = OpenOptions::new().append(true).open(logs.join(name));
            if let Err(error) = log.and_then(|mut log| log.write_all(line.as_bytes()))
                && error.kind() != io::ErrorKind::NotFound
            {
                tracing::warn!(%error, "the reflog has no line about a landing");
            }
        }
    }
}

/// The lock of a file of references. It is kept open, so that it is seen to be held.
struct Lock {
    path: PathBuf,
    file: File,
}

impl Lock {
    /// With this value in it, and durable. Who may read `of` may read it, and where that
    /// is packed, who may read HEAD.
    fn take(of: &Path, common: &Path, value: &str) -> Result<Self, Fault> {
        let path = of.with_added_extension("lock");
        let failed = Fault::at(&path);
        let mut made = None;
        let is_ours = in_time(path.parent().unwrap_or(of), LOCK_WAIT, || match File::create_new(&path) {
            Ok(file) => {
                made = Some(file);
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(error),
        });
        is_ours.map_err(&failed)?;
        let Some(file) = made else {
            return Err(not_moved(&format!("another git has held {} for {} s", path.display(), LOCK_WAIT.as_secs())));
        };
        let mut lock = Self { path: path.clone(), file };
        let files = [of.to_owned(), common.join("HEAD")];
        let mut like = files.iter().filter_map(|file| fs::metadata(file).ok());
        if let Some(like) = like.find(fs::Metadata::is_file) {
            let _ = lock.file.set_permissions(like.permissions());
        }
        let written = lock.file.write_all(format!("{value}\n").as_bytes()).and_then(|()| lock.file.sync_all());
        written.map(|()| lock).map_err(&failed)
    }

    fn is_ours(&self) -> bool {
        let there = fs::symlink_metadata(&self.path);
        there.is_ok_and(|there| self.file.metadata().is_ok_and(|ours| ours.ino() == there.ino()))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // It would be in everybody's way: what fails once may not fail twice.
        for _ in 0..2 {
            if !self.is_ours() {
                return;
            }
            if let Err(error) = fs::remove_file(&self.path) {
                tracing::warn!(lock = %self.path.display(), %error, "a lock of ours cannot be removed");
            }
        }
    }
}

/// Makes a directory, and those above it that are not there, with the mode of another.
fn make_like(dir: &Path, like: &Path) -> Result<(), Fault> {
    if let Some(above) = dir.parent().filter(|above| !above.exists()) {
        make_like(above, like)?;
    }
    match fs::create_dir(dir) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(Fault::at(dir)(error)),
        _ => {}
    }
    let mode = fs::metadata(like).map(|like| like.permissions());
    mode.and_then(|mode| fs::set_permissions(dir, mode)).map_err(Fault::at(dir))
}

/// Removes directories as long as there is nothing else in them.
fn remove_empty(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_empty(&entry.path())?;
        }
    }
    fs::remove_dir(dir)
}

fn not_moved(why: &str) -> Fault {
    Fault::new(format!("the base could not be moved: {why}"))
}

/// `git update-ref --stdin`, spoken to line by line.
pub(crate) struct ByGit {
    git: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl ByGit {
    pub(crate) fn start(desk: &Desk) -> Result<Self, Fault> {
        let call = desk.write().args(LOCKS).args(["update-ref", "-m", WHY, "--stdin"]);
        let mut git = call.start().map_err(CliError::Run)?;
        let (Some(input), Some(output)) = (git.stdin.take(), git.stdout.take()) else {
            return Err(Fault::new("git has no pipes"));
        };
        Ok(Self { git, input: Some(input), output: BufReader::new(output) })
    }

    fn prepare(&mut self, to_move: Move<'_>) -> Result<(), Fault> {
        let Move { branch, from, to } = to_move;
        self.ask("start", "start")?;
        self.ask(&format!("update {branch} {to} {from}\nprepare"), "prepare")
    }

    fn ask(&mut self, words: &str, about: &str) -> Result<(), Fault> {
        let said = self.input.as_mut().map(|input| input.write_all(format!("{words}\n").as_bytes()));
        let mut line = String::new();
        if said.is_some_and(|said| said.is_ok()) && processes::wait_readable(self.output.get_ref(), ANSWER_MAX) {
            let _ = self.output.read_line(&mut line);
        }
        if line.trim_end() == format!("{about}: ok") {
            return Ok(());
        }
        self.input = None;
        let mut stderr = Vec::new();
        if let Some(mut pipe) = self.git.stderr.take()
            && processes::wait_readable(&pipe, ANSWER_MAX)
        {
            let _ = pipe.read_to_end(&mut stderr);
        }
        let killed = self.git.wait().is_ok_and(|status| status.signal().is_some());
        let why = parse::first_useful_line(&stderr).unwrap_or_else(|| format!("git did not answer to '{about}'"));
        Err(Fault { passing: killed, killed, ..not_moved(&why) })
    }
}

impl Drop for ByGit {
    fn drop(&mut self) {
        self.input = None;
        let _ = self.git.wait();
    }
}
