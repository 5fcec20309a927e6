//! What every step of one queue needs: the caller's git, where things lie, and as
//! whom to commit.

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use git2::{Repository, Signature, Time};
use swarm_model::{Caller, Target};

use super::build::Author;
use super::{complete, journal};
use crate::repository::cli::{Call, Cli};
use crate::repository::fault::Fault;
use crate::repository::gc_lock::{self, Hold};
use crate::trash::save::DURABLE;
use swarm_sys::paths::Paths;

/// Times of files are no finer than this, with room to spare.
const FILE_CLOCK_MAX: Duration = Duration::from_secs(1);

pub(crate) struct Desk {
    pub(crate) cli: Cli,
    pub(crate) caller: Caller,
    pub(crate) target: Target,
    /// The repository's common directory.
    pub(crate) common: PathBuf,
    /// The queue's own directory.
    pub(crate) own: PathBuf,
    pub(crate) executable: PathBuf,
    identity: OnceLock<Identity>,
    library: Mutex<Option<Kept>>,
}

/// The repository as one step has read it, for the next one.
struct Kept {
    repository: Repository,
    /// When a pack came or went for the last time. Objects of one that went would
    /// be taken for there, and not be written again.
    packs: Option<SystemTime>,
}

/// The repository, lent to one step.
pub(crate) struct Library<'a> {
    desk: &'a Desk,
    kept: Option<Kept>,
}

impl Deref for Library<'_> {
    type Target = Repository;

    fn deref(&self) -> &Repository {
        &self.kept.as_ref().expect("it is given back at the end of its loan only").repository
    }
}

impl Drop for Library<'_> {
    fn drop(&mut self) {
        *self.desk.library.lock().unwrap_or_else(PoisonError::into_inner) = self.kept.take();
    }
}

/// Who commits, by the caller's environment and git's configuration.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    author: (String, String),
    committer: (String, String),
    /// Whether commits of this person are signed.
    pub(crate) signs: bool,
}

impl Desk {
    pub(crate) fn open(paths: &Paths, target: &Target, executable: &Path) -> Result<Self, Fault> {
        let own = journal::place(paths, target);
        let caller = journal::caller(paths, target).map_err(Fault::at(&own))?;
        Ok(Self {
            cli: Cli::new(&caller)?,
            caller,
            target: target.clone(),
            common: PathBuf::from(&target.repository),
            own,
            executable: executable.to_owned(),
            identity: OnceLock::new(),
            library: Mutex::default(),
        })
    }

    /// The locks that a git of ours may leave behind.
    pub(crate) fn locks(&self) -> Vec<PathBuf> {
        let mut locks = self.own_locks();
        locks.push(self.common.join("packed-refs.lock"));
        locks
    }

    /// Those of references that only we write.
    pub(crate) fn own_locks(&self) -> Vec<PathBuf> {
        let id = self.own.file_name().unwrap_or_default().to_string_lossy();
        let own = format!("refs/swarm/cand/{id}.lock");
        std::iter::once(self.common.join(own)).chain(complete::pin_locks(&self.common)).collect()
    }

    /// A call that looks, anywhere in the repository.
    pub(crate) fn read(&self) -> Call<'_> {
        self.cli.read(&self.common)
    }

    /// A call that writes, and what it wrote survives a power cut.
    pub(crate) fn write(&self) -> Call<'_> {
        self.write_at(&self.common)
    }

    pub(crate) fn write_at(&self, dir: &Path) -> Call<'_> {
        self.cli.write(dir).args(DURABLE)
    }

    /// Which repository a call in `tree` is about, by name: discovery would find
    /// another one above it when something is missing there.
    pub(crate) fn named<'a>(call: Call<'a>, git_dir: &Path, tree: &Path) -> Call<'a> {
        call.env("GIT_DIR", git_dir).env("GIT_WORK_TREE", tree)
    }

    /// For as long as no reference holds what is made.
    pub(crate) fn hold(&self) -> Result<Hold, Fault> {
        gc_lock::hold(&self.common, gc_lock::LANDING_WAIT)
    }

    /// The repository for libgit2; none where that does not know its format. What
    /// one step has read the next one need not read again.
    pub(crate) fn library(&self) -> Option<Library<'_>> {
        let kept = self.library.lock().unwrap_or_else(PoisonError::into_inner).take();
        let dir = self.common.join("objects/pack");
        let changed = std::fs::metadata(dir).and_then(|meta| meta.modified()).ok();
        let kept = kept.filter(|kept| kept.packs.is_some() && kept.packs == changed);
        // What changed just now may change again without another time.
        let packs = changed.filter(|at| at.elapsed().is_ok_and(|age| age > FILE_CLOCK_MAX));
        let open = || Some(Kept { repository: Repository::open(&self.common).ok()?, packs });
        kept.or_else(open).map(|kept| Library { desk: self, kept: Some(kept) })
    }

    pub(crate) fn identity(&self) -> Result<&Identity, Fault> {
        if let Some(known) = self.identity.get() {
            return Ok(known);
        }
        let asked = self.ask_identity()?;
        Ok(self.identity.get_or_init(|| asked))
    }

    fn ask_identity(&self) -> Result<Identity, Fault> {
        let all = self.read().args(["var", "-l"]).run()?;
        let all = String::from_utf8_lossy(&all);
        // Configuration comes first and may hold anything, also lines like these.
        let last = |key: &str| all.lines().rev().find_map(|line| line.strip_prefix(key));
        let person = |key| last(key).and_then(person).ok_or_else(nobody);
        Ok(Identity {
            author: person("GIT_AUTHOR_IDENT=")?,
            committer: person("GIT_COMMITTER_IDENT=")?,
            signs: last("commit.gpgsign=").is_some_and(|value| ["true", "1", "yes", "on"].contains(&value)),
        })
    }
}

impl Identity {
    pub(crate) fn author(&self) -> Result<Signature<'static>, git2::Error> {
        Signature::now(&self.author.0, &self.author.1)
    }

    pub(crate) fn committer(&self) -> Result<Signature<'static>, git2::Error> {
        Signature::now(&self.committer.0, &self.committer.1)
    }

    /// For `git commit-tree`, with the author of `of` where it is somebody's commit.
    pub(crate) fn environment<'a>(&self, call: Call<'a>, of: Option<&Author>) -> Call<'a> {
        let call = match of {
            Some(author) => call
                .env("GIT_AUTHOR_NAME", &author.name)
                .env("GIT_AUTHOR_EMAIL", &author.mail)
                .env("GIT_AUTHOR_DATE", &author.date),
            None => call.env("GIT_AUTHOR_NAME", &self.author.0).env("GIT_AUTHOR_EMAIL", &self.author.1),
        };
        call.env("GIT_COMMITTER_NAME", &self.committer.0).env("GIT_COMMITTER_EMAIL", &self.committer.1)
    }
}

pub(crate) fn date(time: Time) -> String {
    let (sign, minutes) = (time.sign(), time.offset_minutes().abs());
    format!("{} {sign}{:02}{:02}", time.seconds(), minutes / 60, minutes % 60)
}

fn nobody() -> Fault {
    let remedy = "git config --global user.name NAME; git config --global user.email MAIL";
    Fault::new("git does not know as whom to commit").remedy(remedy)
}

/// `Name <mail> seconds zone`.
fn person(text: &str) -> Option<(String, String)> {
    let (name, rest) = text.split_once(" <")?;
    let (mail, _) = rest.split_once('>')?;
    let is_made_up = name.is_empty() || mail.is_empty() || mail.ends_with(".(none)");
    (!is_made_up).then(|| (name.to_owned(), mail.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_commits_is_read_and_what_git_made_up_is_not() {
        let some = Some(("Ada L".to_owned(), "ada@example.org".to_owned()));
        assert_eq!(person("Ada L <ada@example.org> 1700000000 +0100"), some);
        assert_eq!(person("root <root@host.(none)> 1700000000 +0100"), None);
        assert_eq!(person(" <x@y> 1 +0000"), None);
        assert_eq!(date(Time::new(5, -90)), "5 -0130");
    }
}
