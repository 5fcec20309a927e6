//! Workspace of a queue: what each of its steps needs, such as the caller's git, paths, and the
//! commit identity.

use std::ops::Deref;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use git2::{Repository, Signature, Time};
use swarm_model::{Caller, Target};

use super::build::Author;
use super::listing::Cache;
use super::{complete, journal};
use crate::repository::cli::{Call, Cli};
use crate::repository::fault::Fault;
use crate::repository::gc_lock::{self, Hold};
use crate::repository::{holders, objects, pipes};
use crate::trash::save::DURABLE;
use swarm_sys::paths::Paths;

/// Upper bound of the granularity of file times.
const FILE_CLOCK_MAX: Duration = Duration::from_secs(1);

/// Environment variable with the queue's directory, by which a later supervisor finds the gits of an earlier one.
const MARK: &str = "SWARM_LANDING";

pub(crate) struct Workspace {
    pub(crate) cli: Cli,
    pub(crate) caller: Caller,
    pub(crate) target: Target,
    /// Common directory of the repository.
    pub(crate) common: PathBuf,
    /// Directory of the queue.
    pub(crate) own: PathBuf,
    pub(crate) executable: PathBuf,
    identity: OnceLock<Identity>,
    library: Mutex<Option<Kept>>,
}

/// Opened repository, kept from one step to the next.
struct Kept {
    repository: Repository,
    /// Time of the last change in the pack directory. libgit2 would believe that objects of a
    /// pack deleted since then still exist, and would not write them again.
    packs: Option<SystemTime>,
    trees: Cache,
}

/// The opened repository, borrowed by one step.
pub(crate) struct Library<'a> {
    workspace: &'a Workspace,
    kept: Option<Kept>,
}

impl Library<'_> {
    /// Returns the repository and the trees that earlier steps have read.
    pub(crate) fn parts(&self) -> (&Repository, &Cache) {
        let kept = self.kept.as_ref().expect("it is given back at the end of its loan only");
        (&kept.repository, &kept.trees)
    }
}

impl Deref for Library<'_> {
    type Target = Repository;

    fn deref(&self) -> &Repository {
        self.parts().0
    }
}

impl Drop for Library<'_> {
    fn drop(&mut self) {
        *self.workspace.library.lock().unwrap_or_else(PoisonError::into_inner) = self.kept.take();
    }
}

/// Identity for commits, from the caller's environment and git's configuration.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    author: (String, String),
    committer: (String, String),
    /// Whether the user wants commits signed.
    pub(crate) signs: bool,
}

impl Workspace {
    /// Opens the workspace for the items of one caller, given by its key. `None`: the caller that added last.
    pub(crate) fn open(paths: &Paths, target: &Target, caller: Option<&str>, executable: &Path) -> Result<Self, Fault> {
        let own = journal::place(paths, target);
        let caller = journal::caller(paths, target, caller).map_err(Fault::at(&own))?;
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

    /// Returns the state directory, which contains `merge/ID` of this queue.
    pub(crate) fn state(&self) -> Option<&Path> {
        self.own.parent()?.parent()
    }

    /// Returns the locks that a git started by us may leave behind.
    pub(crate) fn locks(&self) -> Vec<PathBuf> {
        let mut locks = self.own_locks();
        locks.push(self.common.join("packed-refs.lock"));
        locks
    }

    /// Returns the locks of refs that only we write.
    pub(crate) fn own_locks(&self) -> Vec<PathBuf> {
        let id = self.own.file_name().unwrap_or_default().to_string_lossy();
        let own = format!("refs/swarm/cand/{id}.lock");
        std::iter::once(self.common.join(own)).chain(complete::pin_locks(&self.common)).collect()
    }

    /// Returns a read-only call on the repository.
    pub(crate) fn read(&self) -> Call<'_> {
        self.cli.read(&self.common)
    }

    /// Returns a writing call on the repository, whose writes are durable.
    pub(crate) fn write(&self) -> Call<'_> {
        self.write_at(&self.common)
    }

    pub(crate) fn write_at(&self, dir: &Path) -> Call<'_> {
        self.cli.write(dir).args(DURABLE).env(MARK, &self.own)
    }

    /// Waits until no git that an earlier supervisor has started for this queue writes any more. Other gits, such as one of
    /// the user that waits for an editor, do not count: they respect the locks of the queue. Fails if one still runs after
    /// `limit`.
    pub(crate) fn wait_for_own_git(&self, limit: Duration) -> Result<(), Fault> {
        holders::wait_for_marked_git(&[MARK.as_bytes(), b"=", self.own.as_os_str().as_bytes()].concat(), limit)
    }

    /// Points a call explicitly at a repository: discovery would find another repository above
    /// `tree` if `tree` is damaged.
    pub(crate) fn named<'a>(call: Call<'a>, git_dir: &Path, tree: &Path) -> Call<'a> {
        call.env("GIT_DIR", git_dir).env("GIT_WORK_TREE", tree).within(tree).without_fetch(git_dir)
    }

    /// Keeps `git gc` away while no ref holds the new objects.
    pub(crate) fn hold(&self) -> Result<Hold, Fault> {
        gc_lock::hold(&self.common, gc_lock::LANDING_WAIT)
    }

    /// Returns the repository for libgit2, or `None` if libgit2 does not support its format.
    /// Reuses what an earlier step has read.
    pub(crate) fn library(&self) -> Option<Library<'_>> {
        let kept = self.library.lock().unwrap_or_else(PoisonError::into_inner).take();
        let dir = self.common.join("objects/pack");
        let changed = std::fs::metadata(dir).and_then(|meta| meta.modified()).ok();
        let kept = kept.filter(|kept| kept.packs.is_some() && kept.packs == changed);
        // libgit2 reads new objects without opening the repository again, which is when pipes are looked for.
        let kept = kept.filter(|_| pipes::among_objects(&self.common).is_none());
        // The base is looked up in every step.
        let is_held = pipes::in_reference(&self.common, &self.common, &self.target.branch).is_some();
        let kept = kept.filter(|_| !is_held);
        // A directory that changed just now may change again without a new modification time.
        let packs = changed.filter(|at| at.elapsed().is_ok_and(|age| age > FILE_CLOCK_MAX));
        let open = || {
            let repository = objects::open(&self.common).ok().filter(|_| !is_held)?;
            Some(Kept { repository, packs, trees: Cache::default() })
        };
        kept.or_else(open).map(|kept| Library { workspace: self, kept: Some(kept) })
    }

    /// Makes the next [`Self::library`] read the configuration again.
    pub(crate) fn forget_library(&self) {
        *self.library.lock().unwrap_or_else(PoisonError::into_inner) = None;
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
        // The configuration comes first, and its values may contain lines that look like these.
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

    /// Returns name and mail of the author.
    pub(crate) fn author_words(&self) -> (&str, &str) {
        (&self.author.0, &self.author.1)
    }

    pub(crate) fn committer(&self) -> Result<Signature<'static>, git2::Error> {
        Signature::now(&self.committer.0, &self.committer.1)
    }

    /// Sets the identity for `git commit-tree`, with `of` as the author if given.
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
    let remedy = "run 'git config --global user.name NAME' and 'git config --global user.email MAIL'";
    Fault::new("git author identity unknown").remedy(remedy)
}

/// Parses `Name <mail> seconds zone`. Returns `None` for an identity that git made up.
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
    fn an_identity_is_parsed_unless_git_made_it_up() {
        let some = Some(("Ada L".to_owned(), "ada@example.org".to_owned()));
        assert_eq!(person("Ada L <ada@example.org> 1700000000 +0100"), some);
        assert_eq!(person("root <root@host.(none)> 1700000000 +0100"), None);
        assert_eq!(person(" <x@y> 1 +0000"), None);
        assert_eq!(date(Time::new(5, -90)), "5 -0130");
    }
}
