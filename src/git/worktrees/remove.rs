//! Decides whether a worktree may be removed, and removes it. What changes meanwhile is seen by a
//! second look right before the first file is deleted.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use swarm_ports::{Force, Saved, WorktreeError};

use super::admin;
use super::hook::{self, Home, Hook};
use super::{branches, copies, identity, record, removable, settings, submodules};
use crate::repository::borrowed;
use crate::repository::cli::Cli;
use crate::repository::fault::Fault;
use crate::repository::lock::{self, LOCK_WAIT_MS_MAX};
use crate::repository::parse::Change;
use crate::trash::absent;
use crate::trash::only_here;
use crate::trash::restore;
use crate::trash::save::{self, Place};

/// Marker in the worktree's entry while a removal is in progress. The worktree was clean or
/// saved at that time, so files that are missing now are not lost work.
pub(crate) const REMOVING: &str = "swarm-removing";

/// How messages name changed files that `git status` does not list.
pub(crate) const HIDDEN_CHANGES: &str = "changed file(s) marked assume-unchanged or skip-worktree";

const IN_PROGRESS: [(&str, &str); 7] = [
    ("rebase-merge", "a rebase"),
    ("rebase-apply", "a rebase or am"),
    ("MERGE_HEAD", "a merge"),
    ("CHERRY_PICK_HEAD", "a cherry-pick"),
    ("REVERT_HEAD", "a revert"),
    ("sequencer", "a cherry-pick or revert"),
    ("BISECT_LOG", "a bisect"),
];

/// A worktree that may be removed.
struct Removable {
    place: Place,
    /// Whether it holds work that must be saved first.
    has_work: bool,
    /// Whether only it keeps commits that are not checked out. They are no work in progress, and are saved unasked.
    has_commits: bool,
    /// Whether an earlier removal was killed.
    is_resumed: bool,
}

/// Checks whether the worktree may be removed once its worker has ended. Whether somebody else uses it is only known then:
/// the session of a living worker does not tell.
pub(crate) fn check(cli: &Cli, path: &Path, base_repo: &Path, force: Force) -> Result<(), WorktreeError> {
    match assess(cli, path, base_repo, force)? {
        Some(_) => Ok(()),
        None => assess_entry(cli, path, base_repo, force).map(drop),
    }
}

/// Fails if a worker of another state directory or an agent of another program uses the worktree.
fn check_strangers(found: &Removable, home: Option<&Home>) -> Result<(), WorktreeError> {
    home.map_or(Ok(()), |home| (home.strangers)(&found.place.tree, &found.place.git_dir, &home.state_dir))
}

/// Removes the worktree. `is_free` is asked right before the first file is deleted.
pub(crate) fn remove(
    cli: &Cli,
    name: &str,
    path: &Path,
    base_repo: &Path,
    force: Force,
    home: Option<&Home>,
    is_free: &dyn Fn() -> Result<(), WorktreeError>,
) -> Result<Option<Saved>, WorktreeError> {
    let Some(mut found) = assess(cli, path, base_repo, force)? else {
        return remove_entry(cli, name, path, base_repo, force);
    };
    check_strangers(&found, home)?;
    if let Some(lent) = borrowed::below(&found.place.common(), || vec![path.to_owned(), found.place.git_dir.clone()]) {
        // Neither a save nor the base would be whole without them.
        return Err(lent.fault(&found.place.common()).unknown());
    }
    if let Err(fault) = run_pre_remove(cli, path, base_repo, home) {
        match force {
            Force::No => return Err(fault.unknown()),
            // A forced removal happens even if the hook fails.
            Force::SaveFirst => {
                tracing::warn!(path = %path.display(), cause = %fault.cause, "removing despite failed hook")
            }
        }
    }
    // git reads the entries of all worktrees and fails if one disappears meanwhile.
    // If the lock is not available, the removal is tried without it. Before the save, because what is
    // written after it is lost.
    let common = found.place.common();
    let turn = lock::acquire(&common, Duration::from_millis(LOCK_WAIT_MS_MAX)).ok();
    if turn.is_some() && restore::is_complete(&found.place.git_dir) {
        // git would refuse to remove it.
        restore::complete(&common);
    }
    if !found.has_work && !found.is_resumed {
        // The command may have created work, or somebody may have during the wait.
        let Some(again) = assess(cli, path, base_repo, force)? else { return Ok(None) };
        found = again;
    }
    let saved = match found.has_work || found.has_commits {
        true => Some(save::save(cli, &found.place, name).map_err(Fault::unknown)?),
        false => None,
    };
    // Saving and the command take time, in which a worker in the worktree may have started another one.
    check_inside(&common, path)?;
    is_free()?;
    check_strangers(&found, home)?;
    branches::keep(&common, &found.place.git_dir);
    match delete(cli, &found, saved.is_some()) {
        Ok(()) => {
            hook::remove_logs(home, path);
            Ok(saved)
        }
        Err(WorktreeError::Tool(cause)) if let Some(saved) = &saved => {
            Err(WorktreeError::Tool(format!("{cause} (its work is saved as {})", saved.reference)))
        }
        Err(error) => Err(error),
    }
}

/// The entry of a worktree whose directory is missing.
struct LeftEntry {
    common: PathBuf,
    entry: PathBuf,
    /// Whether it must be saved first.
    has_work: bool,
    /// Whether its worktree may be elsewhere and go on working: it was moved, or its disk is not mounted.
    may_live: bool,
}

/// Returns the entry of a missing worktree. A locked one stays, as git does not remove it either.
fn assess_entry(cli: &Cli, path: &Path, base_repo: &Path, force: Force) -> Result<Option<LeftEntry>, WorktreeError> {
    let common =
        admin::ignore_missing(admin::common_dir(base_repo)).map_err(|error| Fault::at(base_repo)(error).unknown())?;
    let Some(common) = common else { return Ok(None) };
    let entry = admin::entry_of(&common, path).map_err(|error| Fault::at(path)(error).unknown())?;
    let Some(entry) = entry.filter(|entry| admin::lock_reason(entry).is_none()) else { return Ok(None) };
    // A removal that was killed had saved what is in it.
    let is_resumed = entry.join(REMOVING).exists();
    let unsaved = if is_resumed { None } else { absent::unsaved(cli, &common, &entry).map_err(Fault::unknown)? };
    match unsaved {
        Some(what) if force == Force::No => {
            let remedy = format!("bring it back, then run 'git -C {} worktree repair PATH'", base_repo.display());
            Err(absent::refusal(path, &what).remedy(remedy).unknown())
        }
        unsaved => {
            let may_live = !is_resumed && ["HEAD", "commondir"].iter().all(|file| entry.join(file).exists());
            Ok(Some(LeftEntry { common, entry, has_work: unsaved.is_some(), may_live }))
        }
    }
}

/// Removes the entry of a worktree whose directory is missing.
fn remove_entry(
    cli: &Cli,
    name: &str,
    path: &Path,
    base_repo: &Path,
    force: Force,
) -> Result<Option<Saved>, WorktreeError> {
    let Some(left) = assess_entry(cli, path, base_repo, force)? else { return Ok(None) };
    // Without it, the worktree would be none any more. Once the directory is gone for good, `git worktree prune` removes it.
    if force == Force::No && left.may_live {
        return Ok(None);
    }
    forget(cli, name, path, &left)
}

/// Removes what git knows about a worktree whose directory is missing, unless that holds something that exists nowhere else.
pub(crate) fn forget_missing(cli: &Cli, name: &str, path: &Path, base_repo: &Path) -> Result<(), WorktreeError> {
    if !swarm_sys::files::is_absent(path) {
        return Ok(());
    }
    let left = assess_entry(cli, path, base_repo, Force::No)?;
    left.map_or(Ok(()), |left| forget(cli, name, path, &left).map(drop))
}

fn forget(cli: &Cli, name: &str, path: &Path, left: &LeftEntry) -> Result<Option<Saved>, WorktreeError> {
    let _turn = lock::acquire(&left.common, Duration::from_millis(LOCK_WAIT_MS_MAX)).ok();
    let saved = left.has_work.then(|| absent::save(cli, &left.common, &left.entry, path, name));
    let saved = saved.transpose().map_err(Fault::unknown)?;
    branches::keep(&left.common, &left.entry);
    admin::remove(&left.entry).map_err(|error| Fault::at(&left.entry)(error).unknown())?;
    Ok(saved)
}

/// Runs the user's `pre_remove` command.
fn run_pre_remove(cli: &Cli, path: &Path, base_repo: &Path, home: Option<&Home>) -> Result<(), Fault> {
    let settings = settings::with_commands(base_repo, cli)?;
    let Some(command) = &settings.pre_remove else { return Ok(()) };
    hook::run(home, cli, &Hook { key: "pre_remove", command, limit: settings.limit(), tree: path, base_repo })
}

/// Deletes the directory, and the entry after it: git deletes the entry also if the directory cannot be deleted, and then
/// nobody knows any more what is left of it.
fn delete(cli: &Cli, found: &Removable, is_saved: bool) -> Result<(), WorktreeError> {
    let (tree, entry) = (&found.place.tree, &found.place.git_dir);
    let marker = entry.join(REMOVING);
    record::write(&marker, b"").map_err(|error| Fault::at(&marker)(error).unknown())?;
    if let Err(error) = prepare(cli, found, is_saved) {
        if !found.is_resumed {
            let _ = fs::remove_file(&marker);
        }
        return Err(error);
    }
    // From here on, the marker tells the next removal that missing files are no work.
    admin::remove_prepared(tree).map_err(|error| Fault::at(tree)(error).unknown())?;
    admin::remove(entry).map_err(|error| Fault::at(entry)(error).unknown())
}

/// Checks a last time that no work is lost, and that everything can be deleted.
fn prepare(cli: &Cli, found: &Removable, is_saved: bool) -> Result<(), WorktreeError> {
    let tree = &found.place.tree;
    if !is_saved && !found.is_resumed {
        let changes = save::status(cli, &found.place, "normal").map_err(Fault::unknown)?;
        if !changes.is_empty() {
            return Err(WorktreeError::Dirty(changes.len()));
        }
    }
    removable::check_mounts(tree).map_err(Fault::unknown)?;
    let remedy = "delete it as that user, then run the command again";
    removable::prepare(tree).map_err(|error| {
        let is_denied = error.kind() == io::ErrorKind::PermissionDenied;
        let fault = Fault::at(tree)(error);
        if is_denied { fault.remedy(remedy).unknown() } else { fault.unknown() }
    })
}

/// Checks whether the worktree may be removed. Returns `None` if nothing exists at `path`.
fn assess(cli: &Cli, path: &Path, base_repo: &Path, force: Force) -> Result<Option<Removable>, WorktreeError> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Fault::at(path)(error).unknown()),
        Ok(_) => {}
    }
    let (common, entry) = find(path, base_repo).map_err(Fault::unknown)?;
    let place = Place::of(cli, &common, &entry, path, "").map_err(Fault::unknown)?;
    let shown = path.display();
    let unknown = |cause: String| Fault::new(cause).unknown();
    if let Some(reason) = admin::lock_reason(&entry).filter(|_| !restore::is_complete(&entry)) {
        let reason = if reason.is_empty() { String::new() } else { format!(": {reason}") };
        return Err(unknown(format!("worktree is locked{reason}")));
    }
    if !place.is_whole {
        return Err(unknown(format!("git's administrative files for {shown} are incomplete")));
    }
    check_inside(&common, path)?;
    removable::check_mounts(path).map_err(Fault::unknown)?;
    let mut changes = save::status(cli, &place, "normal").map_err(Fault::unknown)?;
    let is_resumed = entry.join(REMOVING).exists() && changes.iter().all(Change::is_plain_deletion);
    if has_initialised_submodules(&entry)
        && let Some(why) = submodules::reason_to_keep(cli, &common, &entry, path).map_err(Fault::unknown)?
    {
        return Err(unknown(why));
    }
    if is_resumed {
        // Everything else is checked again: commits may have been added since.
        changes.clear();
    }
    let doing = in_progress(&entry);
    let lost = unreachable_head(cli, &place).map_err(Fault::unknown)?;
    let hidden = save::hidden_changes(cli, &place).map_err(Fault::unknown)?;
    let copies = copies::changed(path, &entry);
    let has_commits = !only_here::commits(cli, &place).map_err(Fault::unknown)?.is_empty();
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
                return Err(unknown(format!("worktree has {hidden} {HIDDEN_CHANGES}")));
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
    Ok(Some(Removable { place, has_work, has_commits, is_resumed }))
}

/// Fails if another worktree of the repository lies inside the one at `path`. A save of the outer worktree does not hold
/// the work of the inner one, and its worker may still run.
fn check_inside(common: &Path, path: &Path) -> Result<(), WorktreeError> {
    let inside = admin::trees_inside(common, path).map_err(|error| Fault::at(common)(error).unknown())?;
    inside.first().map_or(Ok(()), |tree| Err(WorktreeError::Contains(tree.to_string_lossy().into_owned())))
}

/// Returns the common directory and the entry of `path`. Fails unless `path` is a linked
/// worktree of `base_repo`.
fn find(path: &Path, base_repo: &Path) -> Result<(PathBuf, PathBuf), Fault> {
    let common = admin::common_dir(base_repo).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Fault::new(format!("the repository {} no longer exists", base_repo.display())),
        _ => Fault::at(base_repo)(error),
    })?;
    let shown = path.display();
    // Through a symbolic link, git would work on a directory that only the link names.
    if !fs::symlink_metadata(path).map_err(Fault::at(path))?.is_dir() {
        return Err(Fault::new(format!("{shown} is not a directory")));
    }
    if path.join(".git").is_dir() {
        return Err(Fault::new(format!("{shown} is a separate repository, not a worktree")));
    }
    if admin::resolved(path) == admin::resolved(base_repo) {
        return Err(Fault::new(format!("{shown} is the base checkout of its workers, not a worktree")));
    }
    let foreign = || Fault::new(format!("{shown} is not a worktree of {}", base_repo.display()));
    let entry = admin::entry_of(&common, path).map_err(Fault::at(path))?.ok_or_else(foreign)?;
    match admin::link_of(path).map_err(Fault::at(path))? {
        Some(link) if admin::resolved(&link) == admin::resolved(&entry) => {}
        Some(_) => return Err(foreign()),
        // A removal that was killed may have deleted this file first.
        None if entry.join(REMOVING).exists() => {
            // Whatever took its place since, such as a link, is not written through.
            let dot_git = path.join(".git");
            let mut file = fs::File::create_new(&dot_git).map_err(Fault::at(&dot_git))?;
            file.write_all(&identity::link_text(&entry)).map_err(Fault::at(&dot_git))?;
        }
        None => {
            return Err(Fault::new(format!("{shown} has lost its .git file"))
                .remedy(format!("run 'git -C {} worktree repair {shown}'", base_repo.display())));
        }
    }
    Ok((common, entry))
}

/// Returns the git operation that is in progress.
pub(crate) fn in_progress(git_dir: &Path) -> Option<&'static str> {
    IN_PROGRESS.iter().find(|(file, _)| git_dir.join(file).exists()).map(|(_, what)| *what)
}

/// Reports whether the entry may contain repositories of submodules, which may hold commits that were never pushed.
pub(crate) fn has_initialised_submodules(entry: &Path) -> bool {
    !swarm_sys::files::list_if_present(&entry.join("modules")).is_ok_and(|modules| modules.is_empty())
}

/// Returns HEAD's commit if it is on no branch, but detached or on another ref, and no branch, tag or remote branch has it.
pub(crate) fn unreachable_head(cli: &Cli, place: &Place) -> Result<Option<String>, Fault> {
    let branch = place.branch.as_ref().filter(|name| name.starts_with("refs/heads/"));
    let (Some(head), None) = (&place.head, branch) else {
        // The branch itself contains its commit.
        return Ok(None);
    };
    Ok((!is_held(cli, place, head)?).then(|| head.clone()))
}

/// Reports whether a branch, tag or remote branch contains the commit.
fn is_held(cli: &Cli, place: &Place, commit: &str) -> Result<bool, Fault> {
    let contains = format!("--contains={commit}");
    let args =
        ["for-each-ref", "--count=1", "--format=%(refname)", &contains, "refs/heads", "refs/tags", "refs/remotes"];
    Ok(!place.call(cli.read(&place.tree)).args(args).line()?.is_empty())
}
