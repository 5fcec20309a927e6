//! The base's reference, moved by compare-and-swap in two steps: locked and known to be
//! where it was, and when the files are there, committed. In this process where
//! references are files, else by `git update-ref --stdin`.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout};
use std::time::Duration;

use git2::{ReferenceType, Repository, Signature};

use super::checkout::in_time;
use super::desk::Desk;
use super::land::base;
use crate::adapters::git::cli::CliError;
use crate::adapters::git::fault::Fault;
use crate::adapters::git::parse;
use crate::adapters::process;

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
pub(super) struct Move<'a> {
    pub(super) branch: &'a str,
    pub(super) from: &'a str,
    pub(super) to: &'a str,
}

/// Its end without a commit gives up the lock.
pub(super) enum Mover<'a> {
    Hand(ByHand<'a>),
    Git(ByGit),
}

impl<'a> Mover<'a> {
    pub(super) fn start(desk: &'a Desk) -> Result<Self, Fault> {
        Ok(match ByHand::start(desk)? {
            Some(hand) => Self::Hand(hand),
            None => Self::Git(ByGit::start(desk)?),
        })
    }

    /// Locks the reference and makes sure that it is where it was.
    pub(super) fn prepare(&mut self, to_move: Move<'_>) -> Result<(), Fault> {
        match self {
            Self::Hand(hand) => hand.prepare(to_move),
            Self::Git(git) => git.prepare(to_move),
        }
    }

    pub(super) fn commit(self, to_move: Move<'_>) -> Result<(), Fault> {
        match self {
            Self::Hand(hand) => hand.commit(to_move),
            Self::Git(mut git) => git.ask("commit", "commit"),
        }
    }
}

/// As git does it where references are files: a lock that holds the new value becomes
/// the reference. So nothing but two renames is left to do once it is prepared.
pub(super) struct ByHand<'a> {
    desk: &'a Desk,
    who: Signature<'static>,
    /// Ours, until it is the reference.
    lock: Option<PathBuf>,
}

impl<'a> ByHand<'a> {
    /// `None` where references are no files, or this one stands for another.
    pub(super) fn start(desk: &'a Desk) -> Result<Option<Self>, Fault> {
        let is_plain = |repo: &Repository| {
            repo.find_reference(&desk.target.branch).is_ok_and(|base| base.kind() == Some(ReferenceType::Direct))
        };
        if !desk.library().is_some_and(|repo| is_plain(&repo)) {
            return Ok(None);
        }
        Ok(Some(Self { desk, who: desk.identity()?.committer()?, lock: None }))
    }

    fn prepare(&mut self, to_move: Move<'_>) -> Result<(), Fault> {
        let file = self.desk.common.join(to_move.branch);
        let lock = self.desk.common.join(format!("{}.lock", to_move.branch));
        let failed = Fault::at(&lock);
        let dir = lock.parent().unwrap_or(&self.desk.common);
        // One that is packed may have no directory.
        fs::create_dir_all(dir).map_err(&failed)?;
        let mut made = None;
        let is_ours = in_time(dir, LOCK_WAIT, || match File::create_new(&lock) {
            Ok(file) => {
                made = Some(file);
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(error),
        });
        let Some(mut made) = made.filter(|_| matches!(is_ours, Ok(true))) else {
            is_ours.map_err(&failed)?;
            return Err(not_moved(&format!("another git has held {} for {} s", lock.display(), LOCK_WAIT.as_secs())));
        };
        self.lock = Some(lock.clone());
        // As it was shared before.
        let like = fs::metadata(&file).or_else(|_| fs::metadata(self.desk.common.join("HEAD")));
        if let Ok(like) = like {
            let _ = made.set_permissions(like.permissions());
        }
        made.write_all(format!("{}\n", to_move.to).as_bytes()).and_then(|()| made.sync_all()).map_err(&failed)?;
        drop(made);
        match base(self.desk)? == to_move.from {
            true => Ok(()),
            false => Err(not_moved("it is not where it was")),
        }
    }

    fn commit(mut self, to_move: Move<'_>) -> Result<(), Fault> {
        let Some(lock) = self.lock.take() else { return Err(not_moved("its lock was not taken")) };
        let file = self.desk.common.join(to_move.branch);
        let renamed = fs::rename(&lock, &file);
        if let Err(error) = renamed {
            self.lock = Some(lock);
            return Err(Fault::at(&file)(error));
        }
        let dir = file.parent().unwrap_or(&self.desk.common);
        File::open(dir).and_then(|dir| dir.sync_all()).map_err(Fault::at(dir))?;
        self.log(to_move);
        Ok(())
    }

    /// History is worth having and not worth failing for.
    fn log(&self, to_move: Move<'_>) {
        let when = self.who.when();
        let (sign, minutes) = (when.sign(), when.offset_minutes().unsigned_abs());
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        let line = format!(
            "{} {} {} <{}> {} {sign}{:02}{:02}\t{WHY}\n",
            to_move.from,
            to_move.to,
            text(self.who.name_bytes()),
            text(self.who.email_bytes()),
            when.seconds(),
            minutes / 60,
            minutes % 60,
        );
        let logs = self.desk.common.join("logs");
        let is_head = fs::read_to_string(self.desk.common.join("HEAD"))
            .is_ok_and(|head| head.strip_prefix("ref: ").is_some_and(|name| name.trim_end() == to_move.branch));
        for name in [Some(to_move.branch), Some("HEAD").filter(|_| is_head)].into_iter().flatten() {
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

impl Drop for ByHand<'_> {
    fn drop(&mut self) {
        if let Some(lock) = &self.lock {
            let _ = fs::remove_file(lock);
        }
    }
}

fn not_moved(why: &str) -> Fault {
    Fault::new(format!("the base could not be moved: {why}"))
}

/// `git update-ref --stdin`, spoken to line by line.
pub(super) struct ByGit {
    git: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl ByGit {
    pub(super) fn start(desk: &Desk) -> Result<Self, Fault> {
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
        if said.is_some_and(|said| said.is_ok()) && process::wait_readable(self.output.get_ref(), ANSWER_MAX) {
            let _ = self.output.read_line(&mut line);
        }
        if line.trim_end() == format!("{about}: ok") {
            return Ok(());
        }
        self.input = None;
        let mut stderr = Vec::new();
        if let Some(mut pipe) = self.git.stderr.take()
            && process::wait_readable(&pipe, ANSWER_MAX)
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
