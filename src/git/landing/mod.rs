//! Landing with git: the operations that a merge queue needs in the repository and on disk.
//!
//! `complete` → `build` → `verify` → `land`, and `resolve` for conflicts. Nothing here changes
//! a user's directory, except the files of a landing in a directory that has the base checked
//! out ([`checkout`]). Every step first determines how far its last attempt came.

mod agreed;
mod arriving;
mod at_work;
mod build;
mod check;
mod checked_out;
pub(crate) mod checkout;
mod cleared;
pub(crate) mod complete;
mod config;
mod damaged;
mod discarded;
mod fork;
mod furnish;
pub mod journal;
pub(crate) mod keep;
mod kept;
mod land;
mod landed;
mod leftover;
mod listing;
mod modules;
mod obstacles;
mod places;
mod reference;
mod resolve;
mod run;
mod scratch;
mod signed;
pub(crate) mod site;
mod trees;
mod unfit;
mod verify;
pub(crate) mod workspace;

#[cfg(test)]
mod tests_at_once;
#[cfg(test)]
mod tests_borrowed;
#[cfg(test)]
mod tests_build;
#[cfg(test)]
mod tests_checkout;
#[cfg(test)]
mod tests_complete;
#[cfg(test)]
mod tests_edits;
#[cfg(test)]
mod tests_filters;
#[cfg(test)]
mod tests_holders;
#[cfg(test)]
pub(crate) mod tests_index;
#[cfg(test)]
mod tests_missing;
#[cfg(test)]
mod tests_odd_commits;
#[cfg(test)]
mod tests_pipes;
#[cfg(test)]
mod tests_recover;
#[cfg(test)]
mod tests_reference;
#[cfg(test)]
mod tests_scratch;
#[cfg(test)]
mod tests_signed;
#[cfg(test)]
mod tests_submodules;
#[cfg(test)]
mod tests_symbolic;
#[cfg(test)]
mod tests_unmoved;
#[cfg(test)]
mod tests_unresolved;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::time::{Duration, SystemTime};

use swarm_model::merge::queue::{Item, Obstacle, Phase, Queue};
use swarm_model::merge::{Build, Landing, Resolution, Verdict};
use swarm_model::{Caller, MergeSettings, Refusal, RefusalKind, Target};
use swarm_ports::{BoxFuture, Completed, Completion, DamagedJournal, Landings, Survey, Verification};

pub use complete::{is_queue_of, target_of};
pub use config::{changed, has_resolver};
pub use damaged::{DamagedQueue, damaged};
pub use discarded::{delete_discarded, discarded};

use crate::landing::workspace::Workspace;
use crate::repository::fault::Fault;
use crate::repository::{deletion, durable, gc_lock, holders};
use crate::worktrees::admin;
use swarm_sys::files;
use swarm_sys::paths::Paths;

/// Implements the `Landings` port for the repositories of this host.
pub struct GitLandings {
    paths: Paths,
    workspaces: Arc<Workspaces>,
    /// Done once the temporary files of earlier processes are deleted.
    tidied: Arc<Once>,
}

/// Queue, and the key of a caller.
type Key = (Target, Option<String>);

/// Cached workspaces of the queues.
struct Workspaces {
    paths: Paths,
    /// Path of the swarm program, which runs verifications and resolvers.
    executable: PathBuf,
    open: Mutex<BTreeMap<Key, Arc<Workspace>>>,
    /// Queues that this process has opened before.
    seen: Mutex<BTreeSet<Target>>,
    /// Queues with candidates that a power cut may damage.
    unsynced: Mutex<BTreeSet<Target>>,
}

impl Workspaces {
    /// Returns the workspace of a queue for one caller. Reads files, so it must not run on the actors' thread.
    fn of(&self, key: &Key) -> Result<Arc<Workspace>, Fault> {
        // The lock is not held while files are read, because the actors' thread takes it, too.
        let open = || self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(workspace) = open().get(key) {
            return Ok(Arc::clone(workspace));
        }
        let (target, caller) = key;
        let workspace = Arc::new(Workspace::open(&self.paths, target, caller.as_deref(), &self.executable)?);
        if self.seen.lock().unwrap_or_else(PoisonError::into_inner).insert(target.clone()) {
            // An earlier supervisor may have been killed while it wrote these refs.
            holders::clear_stale_locks(&workspace.own_locks(), None);
            deletion::clear_abandoned(&workspace.common);
            gc_lock::clear_stale(&workspace.common);
            let boot = durable::boot_time();
            if journal::last_written(&workspace.own).is_some_and(|at| at < boot) {
                durable::clear_torn(&workspace.common, Path::new(build::CANDIDATES), boot);
            }
        }
        Ok(Arc::clone(open().entry(key.clone()).or_insert(workspace)))
    }

    /// Notes that candidates of this queue are not durable yet.
    fn note_built(&self, target: &Target) {
        self.unsynced.lock().unwrap_or_else(PoisonError::into_inner).insert(target.clone());
    }

    /// Makes the candidates of this queue durable. One sync serves all that were built since the last one.
    fn make_durable(&self, target: &Target) -> io::Result<()> {
        let unsynced = || self.unsynced.lock().unwrap_or_else(PoisonError::into_inner);
        if !unsynced().remove(target) {
            return Ok(());
        }
        // If the repository is gone, so are the candidates, and the next step says so.
        let synced = admin::ignore_missing(files::sync_file_system(Path::new(&target.repository)));
        if synced.is_err() {
            unsynced().insert(target.clone());
        }
        synced.map(drop)
    }

    /// Drops the cached workspaces, so that the next step reads the caller and git's configuration again.
    fn forget(&self, target: &Target) {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).retain(|(known, _), _| known != target);
    }
}

impl GitLandings {
    pub fn new(paths: Paths, executable: PathBuf) -> Self {
        let (open, seen, unsynced) = (Mutex::default(), Mutex::default(), Mutex::default());
        let workspaces = Arc::new(Workspaces { paths: paths.clone(), executable, open, seen, unsynced });
        Self { paths, workspaces, tidied: Arc::new(Once::new()) }
    }

    /// Runs one blocking step outside of the actors' thread, as the caller of the item or as the last one.
    async fn step<T: Send + 'static>(
        &self,
        target: &Target,
        item: Option<&Item>,
        work: impl Fn(&Workspace) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, Fault> {
        let (workspaces, key) = (Arc::clone(&self.workspaces), key(target, item));
        off_thread(move || {
            let locks = || workspaces.of(&key).map(|workspace| workspace.locks()).unwrap_or_default();
            with_retries(&locks, || work(&*workspaces.of(&key)?))
        })
        .await
    }

    async fn workspace(&self, target: &Target, item: Option<&Item>) -> Result<Arc<Workspace>, Fault> {
        let (workspaces, key) = (Arc::clone(&self.workspaces), key(target, item));
        off_thread(move || with_retries(&Vec::new, || workspaces.of(&key))).await
    }
}

fn key(target: &Target, item: Option<&Item>) -> Key {
    (target.clone(), item.and_then(|item| item.caller.clone()))
}

/// Maximum number of attempts of a step whose git gets killed or that lacks system resources.
const TRIES_MAX: u32 = 4;
/// Pause before the second attempt; each further pause is four times as long.
const PAUSE: Duration = Duration::from_millis(50);

/// Runs a step and retries it after a transient failure. Removes the locks of a git that was
/// killed.
fn with_retries<T>(locks: &dyn Fn() -> Vec<PathBuf>, attempt: impl Fn() -> Result<T, Fault>) -> Result<T, Fault> {
    let mut pause = PAUSE;
    for _ in 1..TRIES_MAX {
        let since = SystemTime::now();
        match attempt() {
            Err(fault) if fault.killed => clear_locks(&locks(), since),
            Err(fault) if fault.transient => {}
            done => return done,
        }
        std::thread::sleep(pause);
        pause *= 4;
    }
    attempt()
}

/// Removes the locks that a git which was killed has left in a repository since a time, unless another git works there.
fn clear_locks(locks: &[PathBuf], since: SystemTime) {
    // In the common directory.
    let common = locks.iter().find(|lock| lock.ends_with("packed-refs.lock")).and_then(|lock| lock.parent());
    if let Some(dirs) = common.and_then(|common| admin::dirs(common).ok()) {
        holders::clear_locks_of_killed(&dirs, locks, Some(since));
    }
}

/// Reads, and retries if the system lacks resources.
fn read_with_retries<T>(read: impl Fn() -> io::Result<T>) -> io::Result<T> {
    let mut pause = PAUSE;
    for _ in 1..TRIES_MAX {
        match read() {
            Err(error) if error.raw_os_error().is_some() && error.kind() != io::ErrorKind::NotFound => {
                std::thread::sleep(pause);
            }
            done => return done,
        }
        pause *= 4;
    }
    read()
}

/// Formats cause and remedy as one reason for an item.
fn reason_of(fault: Fault) -> String {
    match fault.remedy {
        Some(remedy) => format!("{} ({remedy})", fault.cause),
        None => fault.cause,
    }
}

async fn off_thread<T: Send + 'static>(work: impl FnOnce() -> Result<T, Fault> + Send + 'static) -> Result<T, Fault> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(Fault::new(format!("git task failed: {error}"))))
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(io::Error::other(error)))
}

impl Landings for GitLandings {
    fn targets(&self) -> BoxFuture<'_, io::Result<Survey<Target>>> {
        let (paths, tidied) = (self.paths.clone(), Arc::clone(&self.tidied));
        Box::pin(blocking(move || {
            tidied.call_once(|| journal::remove_torn(&paths));
            read_with_retries(|| journal::targets(&paths))
        }))
    }

    fn set_damaged_aside(&self) -> BoxFuture<'_, io::Result<Vec<DamagedJournal>>> {
        let paths = self.paths.clone();
        Box::pin(async move {
            let moved = blocking(move || damaged::set_aside(&paths)).await?;
            let named = |queue: DamagedQueue| DamagedJournal {
                base: queue.target.as_ref().map(|target| target.base().to_owned()),
                cause: [Some(queue.what()), queue.remedy()].into_iter().flatten().collect::<Vec<_>>().join("; "),
                file: queue.file.to_string_lossy().into_owned(),
            };
            Ok(moved.into_iter().map(named).collect())
        })
    }

    fn complete(&self, completion: Completion) -> BoxFuture<'_, Result<Completed, Refusal>> {
        let paths = self.paths.clone();
        Box::pin(async move {
            let done = tokio::task::spawn_blocking(move || complete::complete(&paths, &completion)).await;
            let failed = |error: tokio::task::JoinError| Refusal::new(RefusalKind::Internal, error.to_string());
            let completed = done.map_err(failed)??;
            self.workspaces.forget(&completed.target);
            Ok(completed)
        })
    }

    fn rules_of<'a>(&'a self, root: &'a str, caller: &'a Caller) -> BoxFuture<'a, Result<MergeSettings, Refusal>> {
        let (root, caller) = (PathBuf::from(root), caller.clone());
        Box::pin(async move {
            let found = tokio::task::spawn_blocking(move || complete::rules_of(&root, &caller)).await;
            found.map_err(|error| Refusal::new(RefusalKind::Internal, error.to_string()))?
        })
    }

    fn complete_all(&self, completions: Vec<Completion>) -> BoxFuture<'_, Vec<Result<Completed, Refusal>>> {
        let (paths, count) = (self.paths.clone(), completions.len());
        Box::pin(async move {
            let done = tokio::task::spawn_blocking(move || complete::complete_all(&paths, &completions)).await;
            let failed = |error: tokio::task::JoinError| {
                vec![Err(Refusal::new(RefusalKind::Internal, error.to_string())); count]
            };
            let completed = done.unwrap_or_else(failed);
            completed.iter().flatten().for_each(|done| self.workspaces.forget(&done.target));
            completed
        })
    }

    fn remember<'a>(&'a self, target: &'a Target, caller: &'a Caller) -> BoxFuture<'a, io::Result<String>> {
        let (paths, target, caller) = (self.paths.clone(), target.clone(), caller.clone());
        Box::pin(async move { blocking(move || journal::remember(&paths, &target, &caller)).await })
    }

    fn load<'a>(&'a self, target: &'a Target) -> BoxFuture<'a, io::Result<Option<Queue>>> {
        let (paths, about) = (self.paths.clone(), target.clone());
        Box::pin(async move {
            let queue = blocking(move || read_with_retries(|| journal::load(&paths, &about))).await?;
            // Without items, nobody has added anything yet, so that there is no caller.
            if let Some(known) = queue.clone().filter(|known| !known.items.is_empty()) {
                // Done in the background: a slow repository must not delay the start.
                let (workspaces, target, paths) = (Arc::clone(&self.workspaces), target.clone(), self.paths.clone());
                tokio::task::spawn_blocking(move || {
                    if let Err(error) = journal::forget_callers(&paths, &target, &known) {
                        tracing::warn!(%error, "cannot forget the callers of landed items");
                    }
                    discarded::sweep(&journal::place(&paths, &target));
                    let tidied = workspaces.of(&key(&target, None));
                    if let Err(fault) = tidied.and_then(|workspace| land::tidy_kept(&workspace, &known)) {
                        tracing::warn!(cause = %fault.cause, "cannot remove the refs of landed items");
                    }
                });
            }
            Ok(queue)
        })
    }

    fn save<'a>(&'a self, target: &'a Target, queue: &'a Queue) -> BoxFuture<'a, io::Result<()>> {
        let (paths, target, queue) = (self.paths.clone(), target.clone(), queue.clone());
        let workspaces = Arc::clone(&self.workspaces);
        Box::pin(blocking(move || {
            // The queue records only candidates that are whole after a power cut.
            if matches!(queue.phase, Phase::Landing { .. }) {
                workspaces.make_durable(&target)?;
            }
            journal::save(&paths, &target, &queue)
        }))
    }

    fn read_base<'a>(&'a self, target: &'a Target) -> BoxFuture<'a, Result<String, String>> {
        self.workspaces.forget(target);
        Box::pin(async move { self.step(target, None, land::base).await.map_err(reason_of) })
    }

    fn build<'a>(&'a self, target: &'a Target, item: &'a Item, onto: &'a str) -> BoxFuture<'a, Build> {
        let (item, strategy, onto) = (item.clone(), item.rules.strategy, onto.to_owned());
        Box::pin(async move {
            let (of, work) = (item.clone(), move |at: &Workspace| build::build(at, strategy, &item, &onto));
            let built = self.step(target, Some(&of), work).await;
            self.workspaces.note_built(target);
            built.unwrap_or_else(|fault| Build::Failed(reason_of(fault)))
        })
    }

    fn verify<'a>(
        &'a self,
        target: &'a Target,
        item: &'a Item,
        commit: &'a str,
        kind: Verification,
    ) -> BoxFuture<'a, Verdict> {
        Box::pin(async move {
            let workspace = match self.workspace(target, Some(item)).await {
                Ok(workspace) => workspace,
                Err(fault) => return Verdict::Unknown(reason_of(fault)),
            };
            let (workspaces, of) = (Arc::clone(&self.workspaces), target.clone());
            if let Err(error) = blocking(move || workspaces.make_durable(&of)).await {
                return Verdict::Unknown(format!("cannot write the candidate to the disk: {error}"));
            }
            let verdict = verify::verify(workspace, item, commit, kind).await;
            verdict.unwrap_or_else(|fault| Verdict::Unknown(reason_of(fault)))
        })
    }

    fn land<'a>(&'a self, target: &'a Target, item: &'a Item, from: &'a str, to: &'a str) -> BoxFuture<'a, Landing> {
        let (from, to) = (from.to_owned(), to.to_owned());
        Box::pin(async move {
            let landed = self.step(target, Some(item), move |workspace| land::land(workspace, &from, &to)).await;
            let fault = match landed {
                Ok(landing) => return landing,
                Err(fault) => fault,
            };
            match self.step(target, Some(item), land::roll_back).await {
                Ok(()) => Landing::Failed(reason_of(fault)),
                Err(left) => {
                    tracing::error!(cause = %left.cause, "cannot roll back a failed landing; trying again");
                    Landing::Stuck(reason_of(fault))
                }
            }
        })
    }

    fn resolve<'a>(
        &'a self,
        target: &'a Target,
        item: &'a Item,
        onto: &'a str,
        files: &'a [String],
    ) -> BoxFuture<'a, Resolution> {
        Box::pin(async move {
            let workspace = match self.workspace(target, Some(item)).await {
                Ok(workspace) => workspace,
                Err(fault) => return Resolution::Failed(reason_of(fault)),
            };
            let resolved = resolve::resolve(workspace, item, onto, files).await;
            resolved.unwrap_or_else(|fault| Resolution::Failed(reason_of(fault)))
        })
    }

    fn cleared<'a>(&'a self, target: &'a Target, obstacle: &'a Obstacle) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(async move {
            if *obstacle == Obstacle::Leftovers {
                // Nothing else removes them.
                return self.step(target, None, land::roll_back).await.map_err(reason_of);
            }
            let workspace = self.workspace(target, None).await.map_err(reason_of)?;
            cleared::cleared(workspace, obstacle).await.map_err(reason_of)
        })
    }

    fn tidy<'a>(&'a self, target: &'a Target, items: &'a [Item]) -> BoxFuture<'a, ()> {
        let items = items.to_vec();
        Box::pin(async move {
            if let Err(fault) = self.step(target, None, move |workspace| land::tidy(workspace, items.iter())).await {
                tracing::warn!(cause = %fault.cause, "cannot remove the refs of an item");
            }
        })
    }
}
