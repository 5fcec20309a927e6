//! Creates a worktree with one `git worktree add` under the creation lock, and rolls
//! it back on failure.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use swarm_model::WorktreePlan;

use super::hook::Home;
use super::{admin, copies, identity, owner, plan, record, undo};
use crate::repository::cli::{Cli, CliError};
use crate::repository::durable::sync_file_systems;
use crate::repository::fault::Fault;
use crate::repository::lock::{self, CreationLock, LOCK_WAIT_MS_MAX};
use crate::repository::{holders, objects};
use crate::trash::restore;
use crate::worktrees::setup;

/// Hooks that `git worktree add` runs; the last one if it fetches objects of a partial clone.
const HOOKS: [&str; 4] = ["post-checkout", "reference-transaction", "post-index-change", "pre-auto-gc"];

pub(crate) fn make(cli: &Cli, plan: &WorktreePlan, home: Option<&Home>) -> Result<(), Fault> {
    let (repo, path) = (Path::new(&plan.base_repo), Path::new(&plan.path));
    let common = || admin::common_dir(repo).map_err(Fault::at(repo));
    if !plan.makes_tree {
        identity::ensure(path, repo)?;
        let common = common()?;
        record_branch(&common, plan);
        return owner::record_base(&common, path, &plan.base).map_err(Fault::at(path));
    }
    let made = make_tree(cli, plan)?;
    let common = common()?;
    if let Some(home) = home {
        owner::record_owner(&common, path, &home.state_dir);
    }
    record_branch(&common, plan);
    // Without it, landing asks for the base once the worker is forgotten.
    if let Err(error) = owner::record_base(&common, path, &plan.base) {
        tracing::warn!(path = plan.path, %error, "cannot record the base of the worktree");
    }
    // Done without the lock, because a command of the user may take long.
    let set_up = setup::set_up(cli, plan, home).and_then(|done| {
        // git syncs nothing of a worktree: after a power cut, an agent would start in empty files.
        let places = [Path::new(&plan.path), Path::new(&plan.base_repo)];
        sync_file_systems(places).map(|()| done)
    });
    if let (Ok(()), Ok(common)) = (&set_up, admin::common_dir(Path::new(&plan.base_repo))) {
        copies::note_set_up(&common, Path::new(&plan.path));
    }
    set_up.map_err(|fault| {
        let rolled_back = undo::undo(cli, plan);
        made.iter().rev().for_each(|dir| drop(fs::remove_dir(dir)));
        match rolled_back {
            Ok(()) => fault,
            Err(more) => Fault { cause: format!("{}; {}", fault.cause, more.cause), ..fault },
        }
    })
}

/// Records at which commit the branch was made, if it was. Without it, the branch stays once the worker is forgotten.
fn record_branch(common: &Path, plan: &WorktreePlan) {
    let Some(commit) = plan.branch_origin() else { return };
    if let Err(error) = owner::record_branch(common, Path::new(&plan.path), &plan.branch, commit) {
        tracing::warn!(path = plan.path, %error, "cannot record that the branch was made");
    }
}

/// Creates the worktree. Returns the parent directories that did not exist before.
fn make_tree(cli: &Cli, plan: &WorktreePlan) -> Result<Vec<PathBuf>, Fault> {
    let repo = Path::new(&plan.base_repo);
    let path = Path::new(&plan.path);
    let common = admin::common_dir(repo).map_err(Fault::at(repo))?;
    let lock = lock::acquire(&common, Duration::from_millis(LOCK_WAIT_MS_MAX))?;
    restore::complete(&common);
    let was_empty_dir = plan::is_empty_dir(path);
    if !was_empty_dir && fs::symlink_metadata(path).is_ok() {
        let fault = Fault::new(format!("{} already exists", path.display()));
        return Err(fault.remedy("choose another name for the worker, or move what is there"));
    }
    if plan.makes_branch && objects::has_branch(cli, repo, &plan.branch)? {
        let fault = Fault::new(format!("a branch named '{}' already exists in {}", plan.branch, repo.display()));
        return Err(fault.remedy("choose another name or --branch, or rename or delete that branch"));
    }
    if let Some(entry) = admin::entry_of(&common, path).map_err(Fault::at(path))? {
        // The directory is missing or empty; git would require `--force`.
        plan::check_abandoned(cli, &common, &entry, path)?;
        admin::remove(&entry).map_err(Fault::at(&entry))?;
    }
    record::check_reference(&common, &format!("refs/heads/{}", plan.branch))?;
    let made = make_parents(path)?;
    let since = SystemTime::now();
    let Err(error) = add(cli, &common, plan) else { return Ok(made) };
    let rolled_back = roll_back(cli, &common, plan, &lock, since, &error);
    for dir in made.iter().rev() {
        // Fails for directories that are not empty, which must stay.
        let _ = fs::remove_dir(dir);
    }
    if was_empty_dir {
        let _ = fs::create_dir(path);
    }
    let fault = Fault::from(error);
    match rolled_back {
        Ok(()) => Err(fault),
        Err(more) => Err(Fault {
            remedy: more.remedy.or(fault.remedy),
            is_tool_failure: true,
            ..Fault::new(format!("{}; {}", fault.cause, more.cause))
        }),
    }
}

/// Runs `git worktree add` as the user would: with hooks, filters and settings. Hooks that the repository tracks are left
/// out: nobody agreed to what landed in them.
fn add(cli: &Cli, common: &Path, plan: &WorktreePlan) -> Result<(), CliError> {
    // A branch or an index that is empty or torn after a power cut would make later commands of git fail, also those of
    // the user: `git fsck` reads the index of each worktree.
    let call = cli.user(Path::new(&plan.base_repo)).args(["-c", "core.fsync=reference,index"]);
    let call = match tracked_hooks(cli, common, Path::new(&plan.base_repo))? {
        Some(hook) => {
            tracing::warn!(hook = %hook.display(), "hooks that the repository tracks do not run for a new worktree");
            call.args(["-c", "core.hooksPath=/dev/null"])
        }
        None => call,
    };
    let call = call.args(["worktree", "add", "--quiet"]);
    // After `--`, git takes even names that look like options literally.
    let call = match plan.makes_branch {
        true => call.args(["-b", &plan.branch, "--", &plan.path, &plan.base.commit]),
        false => call.args(["--", &plan.path, &plan.branch]),
    };
    call.run().map(|_| ())
}

/// Returns a hook that `git worktree add` would run and that is among the files of a checkout, where work that lands may
/// change it: by the directory that is configured, or through links.
fn tracked_hooks(cli: &Cli, common: &Path, repo: &Path) -> Result<Option<PathBuf>, CliError> {
    let named = cli.user(repo).args(["config", "--type=path", "--get", "core.hooksPath"]).line_if_any()?;
    let dir = named.map_or_else(|| common.join("hooks"), PathBuf::from);
    // A relative path counts from the root of each worktree.
    if dir.is_relative() {
        return Ok(Some(dir));
    }
    let common = admin::resolved(common);
    let is_ours = |top: &Path| admin::common_dir(top).is_ok_and(|found| found == common);
    // A link whose target does not exist counts: an agent may land a file there before git runs the hook.
    let dangles = |path: &Path| path.is_symlink() && !path.exists();
    let is_tracked = |hook: &PathBuf| {
        let target = admin::resolved(hook);
        let mut above = target.ancestors().take_while(|above| *above != common);
        dangles(&dir) || dangles(hook) || above.any(is_ours)
    };
    Ok(HOOKS.map(|hook| dir.join(hook)).into_iter().find(is_tracked))
}

/// Creates the parent directories of `path` and returns those that did not exist.
pub(crate) fn make_parents(path: &Path) -> Result<Vec<PathBuf>, Fault> {
    let Some(above) = path.parent() else { return Ok(Vec::new()) };
    let missing: Vec<PathBuf> = above.ancestors().take_while(|dir| !dir.exists()).map(Path::to_owned).collect();
    fs::create_dir_all(above).map_err(Fault::at(above))?;
    Ok(missing.into_iter().rev().collect())
}

fn roll_back(
    cli: &Cli,
    common: &Path,
    plan: &WorktreePlan,
    lock: &CreationLock,
    since: SystemTime,
    error: &CliError,
) -> Result<(), Fault> {
    let mut left = Vec::new();
    if error.was_cut_off() {
        let locks = [
            format!("refs/heads/{}.lock", plan.branch),
            "packed-refs.lock".to_owned(),
            "config.lock".to_owned(),
            "HEAD.lock".to_owned(),
            "reftable/tables.list.lock".to_owned(),
        ];
        let locks = locks.map(|name| common.join(name));
        let mut dirs = admin::dirs(common).unwrap_or_else(|_| vec![common.to_owned()]);
        dirs.push(PathBuf::from(&plan.path));
        let cleared = holders::clear_locks_of_killed(&dirs, &locks, Some(since));
        left = cleared.unwrap_or_else(|| locks.into_iter().filter(|lock| lock.exists()).collect());
    }
    undo::undo_locked(cli, common, plan, lock)?;
    if left.is_empty() {
        return Ok(());
    }
    let names: Vec<String> = left.iter().map(|path| path.display().to_string()).collect();
    let names = names.join(", ");
    Err(Fault::new(format!("blocked by a lock file: {names}"))
        .remedy(format!("if no git process is running there, remove {names}")))
}
