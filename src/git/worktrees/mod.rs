//! Worktrees of workers: plan, create, set up, check, roll back and remove.

pub(crate) mod admin;
pub(crate) mod branches;
pub(crate) mod copies;
pub(crate) mod generated;
pub mod hook;
pub(crate) mod identity;
pub mod include;
pub(crate) mod make;
mod module_view;
pub(crate) mod moved;
mod own_settings;
pub(crate) mod owner;
pub(crate) mod plan;
pub(crate) mod port;
pub(crate) mod record;
pub(crate) mod record_view;
pub(crate) mod removable;
pub(crate) mod remove;
pub mod role;
pub(crate) mod settings;
pub(crate) mod setup;
pub(crate) mod submodules;
pub mod topic;
pub(crate) mod undo;
pub mod usage;

#[cfg(test)]
mod branch_tests;
#[cfg(test)]
mod inside_tests;
#[cfg(test)]
mod known_tests;
#[cfg(test)]
mod module_view_tests;
#[cfg(test)]
mod own_refs_tests;
#[cfg(test)]
mod removable_tests;
#[cfg(test)]
mod remove_tests;
#[cfg(test)]
mod setup_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod undo_tests;

use std::path::Path;
use std::sync::Arc;

use swarm_model::{BaseRef, Caller, RowWorktree, WorktreePlan, WorktreeRequest};
use swarm_ports::{BoxFuture, DroppedBranch, Expired, Force, Kept, Saved, WorktreeError, Worktrees};

pub use owner::{is_abandoned_by, maker};

use crate::repository::cli::Cli;
use crate::repository::fault::Fault;
use crate::repository::{common_dir, drop_landed_branch};
use crate::trash::{list, reflog};
use hook::{Home, Strangers};
use swarm_sys::paths::Paths;

/// Implements the `Worktrees` port with the git in the caller's PATH.
#[derive(Clone, Debug, Default)]
pub struct Git {
    /// `None` if the user's commands cannot be run.
    home: Option<Arc<Home>>,
    reservations: Arc<port::Reservations>,
}

impl Git {
    /// Creates an instance that cannot run the user's commands.
    pub fn new() -> Self {
        Self::default()
    }

    pub fn with(home: Home) -> Self {
        Self { home: Some(Arc::new(home)), ..Self::default() }
    }
}

/// Removes a worktree that is clean. `is_free` fails if somebody uses it; it is asked first, and once more right before
/// the first file is deleted.
///
/// # Errors
/// Returns why the worktree stays.
pub fn remove_worktree_if_clean(
    name: &str,
    path: &Path,
    root: &Path,
    paths: &Paths,
    caller: &Caller,
    is_free: &dyn Fn() -> Result<(), WorktreeError>,
    strangers: Strangers,
) -> Result<(), WorktreeError> {
    remove_worktree(name, path, root, paths, caller, is_free, strangers, Force::No).map(drop)
}

/// Removes a worktree as [`remove_worktree_if_clean`] does. With force, its work is saved first, and the save is returned.
///
/// # Errors
/// Returns why the worktree stays.
#[expect(clippy::too_many_arguments, reason = "a removal has to know all of this")]
pub fn remove_worktree(
    name: &str,
    path: &Path,
    root: &Path,
    paths: &Paths,
    caller: &Caller,
    is_free: &dyn Fn() -> Result<(), WorktreeError>,
    strangers: Strangers,
    force: Force,
) -> Result<Option<Saved>, WorktreeError> {
    is_free()?;
    let cli = cli(caller).map_err(Fault::unknown)?;
    let executable = std::env::current_exe();
    let executable = executable.map_err(|error| WorktreeError::Tool(format!("cannot find the program: {error}")))?;
    let home = Home { executable, state_dir: paths.root().to_owned(), logs: paths.hooks(), strangers };
    let saved = remove::remove(&cli, name, path, root, force, Some(&home), is_free)?;
    // Worktrees of a run lie in the repository, from where nobody moves them.
    remove::forget_missing(&cli, name, path, root)?;
    Ok(saved)
}

/// Returns the worktree in the caller's repository that stayed when this worker of a state directory was forgotten.
/// `None` if there is none, or if git cannot tell.
pub fn kept_worktree(name: &str, state_dir: &Path, caller: &Caller) -> Option<Kept> {
    let common = common_dir(caller)?;
    owner::kept(name, Path::new(&common), state_dir).ok().flatten()
}

/// Checks that a worktree holds no work that exists nowhere else.
///
/// # Errors
/// Returns what the worktree holds, or why it cannot be checked.
pub fn check_clean(path: &Path, root: &Path, caller: &Caller) -> Result<(), String> {
    let cli = Cli::new(caller).map_err(|error| Fault::from(error).cause)?;
    remove::check(&cli, path, root, Force::No).map_err(|fault| fault.to_string())
}

/// Runs `work` outside of the actors' thread. Work that has started runs to its end,
/// even if nobody waits for it any more.
fn blocking<'a, T: Send + 'static>(
    work: impl FnOnce() -> Result<T, WorktreeError> + Send + 'static,
) -> BoxFuture<'a, Result<T, WorktreeError>> {
    Box::pin(async move {
        match tokio::task::spawn_blocking(work).await {
            Ok(result) => result,
            Err(error) => Err(WorktreeError::Tool(format!("git task failed: {error}"))),
        }
    })
}

/// Deletes the branch of a plan if swarm made it, it has landed, and nobody made another one of that name since.
fn drop_branch(plan: &WorktreePlan, caller: &Caller) -> Result<DroppedBranch, String> {
    let (Some(base), Some(origin)) = (&plan.base.branch, plan.branch_origin()) else {
        return Ok(DroppedBranch::default());
    };
    let repo = Path::new(&plan.base_repo);
    let common = admin::common_dir(repo).map_err(|error| Fault::at(repo)(error).cause)?;
    let is_other = reflog::begins_elsewhere(&common, &format!("refs/heads/{}", plan.branch), origin);
    if is_other.map_err(|fault| fault.cause)? {
        return Ok(DroppedBranch::default());
    }
    drop_landed_branch(repo, &plan.branch, base, caller)
}

fn cli(caller: &Caller) -> Result<Cli, Fault> {
    Ok(Cli::new(caller)?)
}

/// Returns the ignored files that go with a worktree when it is removed. Empty if git cannot tell.
pub fn ignored_files(tree: &RowWorktree, caller: &Caller) -> Vec<String> {
    let made = |cli: Cli| copies::made_since(&cli, Path::new(&tree.path), Path::new(&tree.base_repo));
    cli(caller).and_then(made).unwrap_or_default()
}

impl Worktrees for Git {
    fn plan<'a>(
        &'a self,
        name: &'a str,
        asked: &'a WorktreeRequest,
        caller: &'a Caller,
    ) -> BoxFuture<'a, Result<WorktreePlan, WorktreeError>> {
        let (name, asked, caller) = (name.to_owned(), asked.clone(), caller.clone());
        blocking(move || cli(&caller).and_then(|cli| plan::plan(&cli, &name, &asked, &caller)).map_err(Fault::create))
    }

    fn make<'a>(&'a self, plan: &'a WorktreePlan, caller: &'a Caller) -> BoxFuture<'a, Result<(), WorktreeError>> {
        let (plan, caller, home) = (plan.clone(), caller.clone(), self.home.clone());
        blocking(move || cli(&caller).and_then(|cli| make::make(&cli, &plan, home.as_deref())).map_err(Fault::create))
    }

    fn undo<'a>(&'a self, plan: &'a WorktreePlan, caller: &'a Caller) -> BoxFuture<'a, Result<(), WorktreeError>> {
        let (plan, caller) = (plan.clone(), caller.clone());
        blocking(move || cli(&caller).and_then(|cli| undo::undo(&cli, &plan)).map_err(Fault::unknown))
    }

    fn port<'a>(
        &'a self,
        plan: &'a WorktreePlan,
        taken: &'a [u16],
    ) -> BoxFuture<'a, Result<Option<u16>, WorktreeError>> {
        let (plan, taken, reservations) = (plan.clone(), taken.to_vec(), Arc::clone(&self.reservations));
        blocking(move || {
            let settings = settings::worktree(Path::new(&plan.base_repo)).map_err(Fault::create)?;
            Ok(reservations.choose(&plan, settings.port_range(), &taken))
        })
    }

    fn expire<'a>(
        &'a self,
        base_repo: &'a str,
        now_ms: u64,
        caller: &'a Caller,
    ) -> BoxFuture<'a, Result<Vec<Expired>, WorktreeError>> {
        let (base_repo, caller) = (base_repo.to_owned(), caller.clone());
        blocking(move || list::expire_by_settings(&caller, Path::new(&base_repo), now_ms).map_err(Fault::unknown))
    }

    fn check<'a>(
        &'a self,
        path: &'a str,
        base_repo: &'a str,
        force: Force,
        caller: &'a Caller,
    ) -> BoxFuture<'a, Result<(), WorktreeError>> {
        let (path, base_repo, caller) = (path.to_owned(), base_repo.to_owned(), caller.clone());
        blocking(move || {
            let cli = cli(&caller).map_err(Fault::unknown)?;
            remove::check(&cli, Path::new(&path), Path::new(&base_repo), force)
        })
    }

    fn remove<'a>(
        &'a self,
        name: &'a str,
        path: &'a str,
        base_repo: &'a str,
        force: Force,
        caller: &'a Caller,
    ) -> BoxFuture<'a, Result<Option<Saved>, WorktreeError>> {
        let (name, path, base_repo) = (name.to_owned(), path.to_owned(), base_repo.to_owned());
        let (caller, home) = (caller.clone(), self.home.clone());
        blocking(move || {
            let cli = cli(&caller).map_err(Fault::unknown)?;
            let (path, base_repo) = (Path::new(&path), Path::new(&base_repo));
            // The caller keeps workers from starting in it meanwhile.
            remove::remove(&cli, &name, path, base_repo, force, home.as_deref(), &|| Ok(()))
        })
    }

    fn ignored<'a>(&'a self, tree: &'a RowWorktree, caller: &'a Caller) -> BoxFuture<'a, Vec<String>> {
        let (tree, caller) = (tree.clone(), caller.clone());
        Box::pin(async move {
            let listed = tokio::task::spawn_blocking(move || ignored_files(&tree, &caller));
            listed.await.unwrap_or_default()
        })
    }

    fn drop_branch<'a>(
        &'a self,
        plan: &'a WorktreePlan,
        caller: &'a Caller,
    ) -> BoxFuture<'a, Result<DroppedBranch, WorktreeError>> {
        let (plan, caller) = (plan.clone(), caller.clone());
        blocking(move || drop_branch(&plan, &caller).map_err(WorktreeError::Tool))
    }

    fn keep<'a>(
        &'a self,
        name: &'a str,
        tree: &'a RowWorktree,
        base: Option<&'a BaseRef>,
    ) -> BoxFuture<'a, Result<(), WorktreeError>> {
        let (name, tree, base) = (name.to_owned(), tree.clone(), base.cloned());
        let failed = |error: std::io::Error| WorktreeError::Tool(error.to_string());
        blocking(move || owner::keep(&name, &tree, base.as_ref()).map_err(failed))
    }

    fn kept<'a>(&'a self, name: &'a str, caller: &'a Caller) -> BoxFuture<'a, Result<Option<Kept>, WorktreeError>> {
        let (name, caller, home) = (name.to_owned(), caller.clone(), self.home.clone());
        blocking(move || {
            let (Some(home), Some(common)) = (home, common_dir(&caller)) else { return Ok(None) };
            let kept = owner::kept(&name, Path::new(&common), &home.state_dir);
            kept.map_err(|error| WorktreeError::Tool(error.to_string()))
        })
    }
}
