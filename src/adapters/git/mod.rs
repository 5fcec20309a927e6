//! git: worktrees that are never lost.
//!
//! This room owns the worktrees of workers: it plans, makes, takes back, judges
//! and removes them, and saves what is in them under `refs/swarm/trash/`. It
//! never changes a configuration, never deletes a branch that a start did not
//! make, and never removes work that was not saved.
//!
//! `plan` → `make` → (`undo` when it never executed | `check`, `remove`)

pub(super) mod admin;
pub(super) mod cli;
mod copies;
pub mod expiry;
pub(super) mod fault;
pub(super) mod gc_lock;
pub(super) mod holders;
pub mod hook;
pub(super) mod index;
mod listed;
pub(super) mod lock;
mod make;
pub(super) mod objects;
mod outfit;
mod owner;
pub(super) mod parse;
mod particulars;
mod plan;
mod port;
mod raw;
mod remove;
pub mod restore;
pub mod role;
pub mod saved;
mod settings;
mod site;
mod stale;
mod submodules;
pub mod topic;
pub(super) mod trash;
pub mod trove;
mod undo;
pub mod usage;
mod version;

#[cfg(test)]
pub(super) mod fixture;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_outfit;
#[cfg(test)]
mod tests_restore;
#[cfg(test)]
mod tests_undo;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use swarm_model::{Caller, WorktreePlan, WorktreeRequest};
use swarm_ports::{BoxFuture, Expired, Force, Saved, WorktreeError, Worktrees};

pub use listed::{Listed, branch_of, default_dir, main_tree, worktrees_of};
pub use owner::is_left_by;
pub use site::{Site, exclude, root, site};
pub use stale::{remove_stale_lock, stale_locks};

use cli::Cli;
use fault::{CliError, Fault};
use hook::Home;

/// Worktrees by the git in the caller's PATH.
#[derive(Clone, Debug, Default)]
pub struct Git {
    /// None where no command of the user can be run.
    home: Option<Arc<Home>>,
    ports: Arc<port::Given>,
}

impl Git {
    #[cfg(test)]
    pub fn new() -> Self {
        Self::default()
    }

    pub fn with(home: Home) -> Self {
        Self { home: Some(Arc::new(home)), ..Self::default() }
    }
}

/// What git says in `dir`, by lines; none where it refuses or takes too long.
pub fn lines(dir: &Path, words: &[&str], caller: &Caller) -> Option<Vec<String>> {
    const ANSWER_MAX: Duration = Duration::from_secs(10);
    let said = Cli::new(caller).ok()?.read(dir).args(words).limit(ANSWER_MAX).run().ok()?;
    Some(String::from_utf8_lossy(&said).lines().map(str::to_owned).collect())
}

/// Whether git takes this for the name of a branch.
pub fn is_branch_name(branch: &str) -> bool {
    objects::is_branch_name(branch)
}

/// Whether there is such a branch, as far as git can tell.
pub fn has_branch(root: &Path, branch: &str, caller: &Caller) -> bool {
    let tip = Cli::new(caller).and_then(|cli| objects::branch_tip(&cli, root, branch));
    tip.is_ok_and(|tip| tip.is_some())
}

/// Whether a branch holds this commit, as far as git can tell.
pub fn contains(root: &Path, branch: &str, commit: &str, caller: &Caller) -> bool {
    Cli::new(caller).and_then(|cli| is_on(&cli, root, branch, commit)).unwrap_or(false)
}

fn is_on(cli: &Cli, root: &Path, branch: &str, commit: &str) -> Result<bool, CliError> {
    let branch = format!("refs/heads/{branch}");
    let (code, _) = cli.read(root).args(["merge-base", "--is-ancestor", commit, &branch]).run_for(&[0, 1])?;
    Ok(code == 0)
}

/// Removes a branch all of which is on `base`, unless something else was put on it
/// meanwhile or somebody has it checked out.
///
/// # Errors
/// A sentence, when git cannot tell; the branch is there then.
pub fn remove_landed_branch(root: &Path, branch: &str, base: &str, caller: &Caller) -> Result<bool, String> {
    if let Ok(removed) = objects::remove_merged_branch(root, branch, base) {
        return Ok(removed);
    }
    remove_by_command(root, branch, base, caller).map_err(|fault| fault.cause)
}

fn remove_by_command(root: &Path, branch: &str, base: &str, caller: &Caller) -> Result<bool, Fault> {
    let cli = Cli::new(caller)?;
    let Some(tip) = objects::branch_tip(&cli, root, branch)? else { return Ok(false) };
    let is_landed = is_on(&cli, root, base, &tip)?;
    let full = format!("refs/heads/{branch}");
    let listed = parse::worktrees(&cli.read(root).args(["worktree", "list", "--porcelain", "-z"]).run()?);
    if !is_landed || listed.iter().any(|one| one.branch.as_deref() == Some(&full)) {
        return Ok(false);
    }
    cli.write(root).args(["update-ref", "-d", &full, &tip]).run()?;
    Ok(true)
}

/// Removes a worktree that holds no work.
///
/// # Errors
/// Why it stays.
pub fn remove_worktree_if_spare(name: &str, path: &Path, root: &Path, caller: &Caller) -> Result<(), String> {
    let cli = Cli::new(caller).map_err(|error| Fault::from(error).cause)?;
    let removed = remove::remove(&cli, name, path, root, Force::No, None);
    removed.map(drop).map_err(|fault| fault.to_string())
}

/// Whether a worktree holds no work that only it has.
///
/// # Errors
/// What it holds, or why it cannot be told.
pub fn is_spare(path: &Path, root: &Path, caller: &Caller) -> Result<(), String> {
    let cli = Cli::new(caller).map_err(|error| Fault::from(error).cause)?;
    remove::check(&cli, path, root, Force::No).map_err(|fault| fault.to_string())
}

/// Whether there is a git that answers and is new enough.
///
/// # Errors
/// What is wrong with it, and the remedy.
pub fn is_usable(caller: &Caller) -> Result<(), (String, Option<String>)> {
    let told = |error: CliError| (error.to_string(), error.remedy());
    Cli::new(caller).and_then(|cli| version::check(&cli)).map_err(told)
}

/// Moves `work` off the actors' thread. Once begun it goes on to its end, even
/// when nobody waits for it any more.
fn blocking<'a, T: Send + 'static>(
    work: impl FnOnce() -> Result<T, WorktreeError> + Send + 'static,
) -> BoxFuture<'a, Result<T, WorktreeError>> {
    Box::pin(async move {
        match tokio::task::spawn_blocking(work).await {
            Ok(result) => result,
            Err(error) => Err(WorktreeError::Tool(format!("git work broke off: {error}"))),
        }
    })
}

/// The common directory of the repository that the caller is in.
pub fn common_dir(caller: &Caller) -> Option<String> {
    let cli = Cli::new(caller).ok()?;
    objects::common_dir(&cli, Path::new(&caller.cwd)).ok()
}

fn cli(caller: &Caller) -> Result<Cli, Fault> {
    Ok(Cli::new(caller)?)
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
        let (plan, taken, given) = (plan.clone(), taken.to_vec(), Arc::clone(&self.ports));
        blocking(move || {
            let settings = settings::worktree(Path::new(&plan.base_repo)).map_err(Fault::create)?;
            Ok(given.choose(&plan, settings.port_range(), &taken))
        })
    }

    fn expire<'a>(
        &'a self,
        base_repo: &'a str,
        now_ms: u64,
        caller: &'a Caller,
    ) -> BoxFuture<'a, Result<Vec<Expired>, WorktreeError>> {
        let (base_repo, caller) = (base_repo.to_owned(), caller.clone());
        blocking(move || trove::expire_by_settings(&caller, Path::new(&base_repo), now_ms).map_err(Fault::unknown))
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
            remove::remove(&cli, &name, Path::new(&path), Path::new(&base_repo), force, home.as_deref())
        })
    }
}
