//! Judges whether a worktree may go, and removes it when it may: `git worktree
//! remove` without force looks once more itself.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use swarm_ports::{Force, Saved, WorktreeError};

use super::admin;
use super::hook::{self, Home, Hook};
use super::{copies, settings, submodules};
use crate::repository::cli::{Cli, CliError};
use crate::repository::fault::Fault;
use crate::repository::lock::{self, LOCK_WAIT_MS_MAX};
use crate::repository::parse::Change;
use crate::trash::save::{self, Place};

/// Lies in git's record while a removal is under way: the tree was clean or
/// saved, so files that are missing now are no work of anybody.
const REMOVING: &str = "swarm-removing";

const IN_PROGRESS: [(&str, &str); 7] = [
    ("rebase-merge", "a rebase"),
    ("rebase-apply", "a rebase or am"),
    ("MERGE_HEAD", "a merge"),
    ("CHERRY_PICK_HEAD", "a cherry-pick"),
    ("REVERT_HEAD", "a revert"),
    ("sequencer", "a cherry-pick or revert"),
    ("BISECT_LOG", "a bisect"),
];

/// A worktree that may go.
struct Removable {
    place: Place,
    /// It holds something that is to be saved first.
    has_work: bool,
    /// An earlier removal was cut off.
    is_resumed: bool,
}

pub(crate) fn check(cli: &Cli, path: &Path, base_repo: &Path, force: Force) -> Result<(), WorktreeError> {
    judge(cli, path, base_repo, force).map(|_| ())
}

pub(crate) fn remove(
    cli: &Cli,
    name: &str,
    path: &Path,
    base_repo: &Path,
    force: Force,
    home: Option<&Home>,
) -> Result<Option<Saved>, WorktreeError> {
    let Some(mut found) = judge(cli, path, base_repo, force)? else {
        // Only its record may be left. git refuses when that is locked, and
        // when there is none there is nothing to do.
        let _ = cli.write(base_repo).args(["worktree", "remove", "--"]).arg(path).run();
        return Ok(None);
    };
    if let Err(fault) = before(cli, path, base_repo, home) {
        match force {
            Force::No => return Err(fault.unknown()),
            // Who forces it wants it gone.
            Force::SaveFirst => tracing::warn!(path = %path.display(), cause = %fault.cause, "removed all the same"),
        }
    }
    if !found.has_work && !found.is_resumed {
        // The command may have made something.
        let Some(again) = judge(cli, path, base_repo, force)? else { return Ok(None) };
        found = again;
    }
    let saved = match found.has_work {
        true => Some(save::save(cli, &found.place, name).map_err(Fault::unknown)?),
        false => None,
    };
    let marker = found.place.git_dir.join(REMOVING);
    fs::write(&marker, b"").map_err(|error| Fault::at(&marker)(error).unknown())?;
    let has_force = saved.is_some() || found.is_resumed;
    let mut removed = delete(cli, path, base_repo, has_force);
    if let Err(CliError::Exit { message, .. }) = &removed
        && message.contains("submodules")
    {
        // git refuses them even when none is initialised; that was looked at.
        removed = delete(cli, path, base_repo, true);
    }
    match removed {
        Ok(()) => {
            hook::forget(home, path);
            Ok(saved)
        }
        Err(error) => {
            if !error.was_cut_off() {
                let _ = fs::remove_file(&marker);
            }
            // What git refuses now it should have let pass: not a word about the work in it.
            let mut fault = Fault { broken: true, ..Fault::from(error) };
            if let Some(saved) = saved {
                fault.cause = format!("{}; its work is saved as {}", fault.cause, saved.reference);
            }
            Err(fault.unknown())
        }
    }
}

/// What the user wants done before it goes.
fn before(cli: &Cli, path: &Path, base_repo: &Path, home: Option<&Home>) -> Result<(), Fault> {
    let settings = settings::worktree(base_repo)?;
    let Some(command) = &settings.pre_remove else { return Ok(()) };
    hook::run(home, cli, &Hook { key: "pre_remove", command, limit: settings.limit(), tree: path, base_repo })
}

fn delete(cli: &Cli, path: &Path, base_repo: &Path, has_force: bool) -> Result<(), CliError> {
    // git reads the records of all worktrees, and takes one that goes meanwhile for an
    // error. Where the lock cannot be had it is tried all the same.
    let common = admin::common_dir(base_repo).ok();
    let _turn = common.and_then(|common| lock::acquire(&common, Duration::from_millis(LOCK_WAIT_MS_MAX)).ok());
    // The user's setting would hide untracked files from git's own look.
    let call = cli.write(base_repo).args(["-c", "status.showUntrackedFiles=normal", "worktree", "remove"]);
    let call = if has_force { call.arg("--force") } else { call };
    call.arg("--").arg(path).run().map(|_| ())
}

/// `None` when there is nothing at `path`.
fn judge(cli: &Cli, path: &Path, base_repo: &Path, force: Force) -> Result<Option<Removable>, WorktreeError> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Fault::at(path)(error).unknown()),
        Ok(_) => {}
    }
    let (common, entry) = find(path, base_repo).map_err(Fault::unknown)?;
    let place = Place::of(cli, &common, &entry, path, "").map_err(Fault::unknown)?;
    let shown = path.display();
    let unknown = |cause: String| Fault::new(cause).unknown();
    if let Some(reason) = admin::locked(&entry) {
        let reason = if reason.is_empty() { String::new() } else { format!(": {reason}") };
        return Err(unknown(format!("worktree is locked{reason}")));
    }
    if !place.is_whole {
        return Err(unknown(format!("git's record of {shown} is incomplete")));
    }
    let mut changes = save::status(cli, &place, "normal").map_err(Fault::unknown)?;
    let is_resumed = entry.join(REMOVING).exists() && changes.iter().all(Change::is_plain_deletion);
    if has_initialised_submodules(&entry)
        && let Some(why) = submodules::in_the_way(cli, &common, &entry, path).map_err(Fault::unknown)?
    {
        return Err(unknown(why));
    }
    if is_resumed {
        // Everything else is looked at again: commits may have come since.
        changes.clear();
    }
    let doing = in_progress(&entry);
    let lost = unreachable_head(cli, &place).map_err(Fault::unknown)?;
    let hidden = save::hidden_changes(cli, &place).map_err(Fault::unknown)?;
    let copies = copies::changed(path, &entry);
    let has_work = !changes.is_empty() || doing.is_some() || lost.is_some() || hidden > 0 || !copies.is_empty();
    match force {
        Force::SaveFirst if has_work => drop(save::check(cli, &place).map_err(Fault::unknown)?),
        Force::SaveFirst => {}
        Force::No if !changes.is_empty() => return Err(WorktreeError::Dirty(changes.len())),
        Force::No => {
            if let Some(doing) = doing {
                return Err(unknown(format!("{doing} is in progress in the worktree")));
            }
            if hidden > 0 {
                let what = "changed file(s) marked assume-unchanged or skip-worktree";
                return Err(unknown(format!("worktree has {hidden} {what}")));
            }
            if let Some(copy) = copies::paths(&copies).first() {
                let what = format!("{} changed since it was copied from the base checkout", copy.display());
                return Err(unknown(what));
            }
            if let Some(commit) = lost {
                return Err(WorktreeError::Unreachable(commit));
            }
        }
    }
    Ok(Some(Removable { place, has_work, is_resumed }))
}

/// The common directory and git's record, when `path` is a linked worktree of
/// `base_repo`.
fn find(path: &Path, base_repo: &Path) -> Result<(PathBuf, PathBuf), Fault> {
    let common = admin::common_dir(base_repo).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Fault::new(format!("its repository {} is gone", base_repo.display())),
        _ => Fault::at(base_repo)(error),
    })?;
    let shown = path.display();
    if path.join(".git").is_dir() {
        return Err(Fault::new(format!("{shown} is a repository of its own, not a worktree")));
    }
    if admin::resolved(path) == admin::resolved(base_repo) {
        return Err(Fault::new(format!("{shown} is the repository that its workers start from")));
    }
    let foreign = || Fault::new(format!("{shown} is not a worktree of {}", base_repo.display()));
    let entry = admin::entry_of(&common, path).map_err(Fault::at(path))?.ok_or_else(foreign)?;
    match admin::link_of(path).map_err(Fault::at(path))? {
        Some(link) if admin::resolved(&link) == admin::resolved(&entry) => {}
        Some(_) => return Err(foreign()),
        // A removal that was cut off may have taken this file first.
        None if entry.join(REMOVING).exists() => {
            let text = format!("gitdir: {}\n", entry.display());
            fs::write(path.join(".git"), text).map_err(Fault::at(path))?;
        }
        None => {
            return Err(Fault::new(format!("{shown} has lost its .git file"))
                .remedy(format!("git -C {} worktree repair {shown}", base_repo.display())));
        }
    }
    Ok((common, entry))
}

/// What git is in the middle of.
pub(crate) fn in_progress(git_dir: &Path) -> Option<&'static str> {
    IN_PROGRESS.iter().find(|(file, _)| git_dir.join(file).exists()).map(|(_, what)| *what)
}

/// Submodules of a worktree keep their repositories in git's record of it,
/// commits that were never pushed included.
pub(crate) fn has_initialised_submodules(entry: &Path) -> bool {
    fs::read_dir(entry.join("modules")).is_ok_and(|mut modules| modules.next().is_some())
}

/// HEAD's commit, when neither branch nor tag nor remote holds it.
fn unreachable_head(cli: &Cli, place: &Place) -> Result<Option<String>, Fault> {
    let (Some(head), None) = (&place.head, &place.branch) else {
        // A branch holds its own commit.
        return Ok(None);
    };
    let contains = format!("--contains={head}");
    let args =
        ["for-each-ref", "--count=1", "--format=%(refname)", &contains, "refs/heads", "refs/tags", "refs/remotes"];
    let holder = place.call(cli.read(&place.tree)).args(args).line()?;
    Ok(holder.is_empty().then(|| head.clone()))
}
