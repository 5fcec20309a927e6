//! The worktree of a flow role: merges commits that other roles handed over, and commits the
//! role's own work. Runs the user's git without hooks. Agents can write to the worktree, also to its
//! `.git` file: each call checks it against the record first, and git is pointed at both.

mod added;
mod committed;
mod merge;
mod stopped;

use std::fs;
use std::path::{Path, PathBuf};

use git2::Oid;
use swarm_model::{Caller, Refusal, RefusalKind};

use super::{admin, generated, identity, record, topic};
use crate::repository::cli::{Call, Cli};
use crate::repository::fault::Fault;
use crate::repository::markers::{self, Conflict};
use crate::repository::parse::{self, Change};
use crate::repository::{holders, objects, recorded};
use crate::trash::raw;
use crate::trash::save::{self, DURABLE, Place};
use crate::trash::saved::PREFIX;
use swarm_sys::files::replace_durably;

/// Outcome of a merge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MergeOutcome {
    Merged,
    /// The merge is in progress; these files have conflicts, with markers if both sides are text.
    Conflict(Vec<String>),
}

/// Checks that `dir` is a worktree of `base_repo`, before git runs there.
///
/// # Errors
/// Returns what is wrong with the directory.
pub fn verify(dir: &Path, base_repo: &Path) -> Result<(), Refusal> {
    identity::verified(dir, base_repo).map(drop).map_err(refusal)
}

/// Marker file that exists during a merge. If it is found later, git was killed in the middle.
const MERGE_MARKER: &str = "swarm-taking";

/// Worktree of a role, its repository, and the branch that was recorded for it.
#[derive(Clone, Copy, Debug)]
pub struct RoleTree<'a> {
    pub dir: &'a Path,
    pub base_repo: &'a Path,
    pub branch: &'a str,
}

/// git in a worktree whose identity is known.
struct Git {
    cli: Cli,
    place: Place,
}

impl Git {
    /// Fails if the worktree is not the recorded one, has another branch checked out, or has one that leads to another.
    fn open(tree: RoleTree<'_>, caller: &Caller) -> Result<Self, Fault> {
        let cli = Cli::new(caller)?;
        let place = identity::open(&cli, tree.dir, tree.base_repo)?;
        let place = place.ok_or_else(|| Fault::new(format!("{} is empty", tree.dir.display())))?;
        // git gets a view for each call: what one of them leaves in the record, the next one sees.
        let place = Place { view: None, ..place };
        recorded::check_place(&cli, tree.base_repo, &place, tree.branch)?;
        recorded::check_own(&cli, &place)?;
        Ok(Self { cli, place })
    }

    fn read(&self) -> Call<'_> {
        self.place.call(self.cli.read(&self.place.tree))
    }

    fn write(&self) -> Call<'_> {
        // A turn that a power cut interrupts must not leave an index or a branch that git cannot read.
        self.place.call(self.cli.write(&self.place.tree)).args(DURABLE)
    }

    /// Returns a call on the repository and HEAD of the worktree that does not see the worktree.
    fn apart(&self) -> Call<'_> {
        let git_dir = &self.place.git_dir;
        let call = self.cli.write(git_dir).args(DURABLE).env("GIT_DIR", git_dir);
        call.env("GIT_IMPLICIT_WORK_TREE", "false")
    }

    fn head(&self) -> Result<String, Fault> {
        let head = objects::commit(&self.cli, &self.place.git_dir, "HEAD")?;
        head.ok_or_else(|| Fault::new(format!("{} has no commit", self.place.tree.display())))
    }
}

/// Merges a commit into the worktree. Commits uncommitted work first, so that a git
/// that is killed leaves behind nothing but its own changes.
///
/// # Errors
/// Returns why the merge cannot start.
pub fn merge_handoff(tree: RoleTree<'_>, commit: &str, from: &str, caller: &Caller) -> Result<MergeOutcome, Refusal> {
    let git = Git::open(tree, caller).map_err(refusal)?;
    let (dir, git_dir) = (tree.dir, &git.place.git_dir);
    let marker = git_dir.join(MERGE_MARKER);
    roll_back(&git, &marker).map_err(refusal)?;
    if has(git_dir, commit) {
        return Ok(MergeOutcome::Merged);
    }
    // A merge that an earlier turn started and the role has to resolve.
    if merge_head(git_dir).as_deref() == Some(commit) {
        let conflicts = unmerged(&git).map_err(refusal)?;
        let is_untouched = stopped::untouched(&git, &conflicts).map_err(refusal)?.is_some();
        if is_untouched || conflicts.iter().any(|conflict| is_unresolved(conflict, dir)) {
            return Ok(MergeOutcome::Conflict(shown(&conflicts)));
        }
    }
    commit_work(tree, "Commit work in progress", caller)?;
    if has(git_dir, commit) {
        return Ok(MergeOutcome::Merged);
    }
    let started = replace_durably(git_dir, MERGE_MARKER, commit.as_bytes()).map_err(Fault::at(&marker));
    let outcome = started.and_then(|()| merge::merge(&git, commit, &format!("Merge the handoff of {from}")));
    if outcome.is_err() && (merge_head(git_dir).is_some() || is_changed(&git).map_err(refusal)?) {
        // git stopped in the middle.
        roll_back(&git, &marker).map_err(refusal)?;
    }
    match fs::remove_file(&marker) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(refusal(Fault::at(&marker)(error))),
        _ => outcome.map_err(refusal),
    }
}

/// Rolls back a merge whose git was killed. All other work was committed before the merge, but somebody may have changed
/// files since, so everything uncommitted is saved first.
fn roll_back(git: &Git, marker: &Path) -> Result<(), Fault> {
    let commit = match record::read_text(marker) {
        Ok(commit) => commit,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(Fault::at(marker)(error)),
    };
    // Older versions wrote the marker in place: then a kill or a power cut before the merge leaves it without content.
    // Other text was written by somebody else, and git could take it as an option.
    let is_id = !commit.is_empty() && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_id && !has(&git.place.git_dir, &commit) {
        save_changes(git)?;
        git.write().args(["read-tree", "--reset", "-u", "HEAD"]).run()?;
        committed::forget_merge(&git.place.git_dir)?;
        let begun = fs::symlink_metadata(marker).map_err(Fault::at(marker))?;
        added::remove(git, &commit, &begun)?;
    }
    fs::remove_file(marker).map_err(Fault::at(marker))
}

/// Saves the worktree if a tracked file in it differs from HEAD, and names the save in the log of the turn. Untracked
/// files alone are no reason: a rollback removes only those of the merge.
fn save_changes(git: &Git) -> Result<(), Fault> {
    if !is_changed(git)? {
        return Ok(());
    }
    let name = git.place.tree.file_name().unwrap_or_default().to_string_lossy();
    let saved = save::save(&git.cli, &git.place, &name)?;
    let id = saved.reference.strip_prefix(PREFIX).unwrap_or(&saved.reference);
    swarm_sys::say!(
        "a merge was interrupted; what was in the worktree is saved: 'swarm restore {id} --to DIR' shows it"
    );
    Ok(())
}

/// Reports whether a tracked file differs from HEAD.
fn is_changed(git: &Git) -> Result<bool, Fault> {
    let status = ["status", "--porcelain=v1", "-z", "--untracked-files=no", "--ignore-submodules=dirty"];
    Ok(!git.read().args(status).strict().run()?.is_empty())
}

/// Reports whether `commit` is HEAD or an ancestor of it; `false` if libgit2 cannot tell.
fn has(git_dir: &Path, commit: &str) -> bool {
    let known = || -> Result<bool, git2::Error> {
        let repo = objects::open(git_dir)?;
        let (head, commit) = (repo.head()?.peel_to_commit()?.id(), Oid::from_str(commit)?);
        Ok(head == commit || repo.graph_descendant_of(head, commit)?)
    };
    known().unwrap_or(false)
}

/// Removes the locks that a git killed together with an earlier turn left behind, unless a git works in the worktree at
/// `dir`, or anywhere in the repository for the lock of the branch. That of `packed-refs` says nothing about its owner:
/// only a deletion leaves proof (see `deletion`).
pub fn clear_stale_locks(dir: &Path, base_repo: &Path) {
    let Ok(Some(identity::Verified { common, entry })) = identity::verified(dir, base_repo) else { return };
    let head = record::read_text(&entry.join("HEAD")).unwrap_or_default();
    let branch = head.trim().strip_prefix("ref: ").map(|name| common.join(format!("{name}.lock")));
    let own = ["index.lock", "HEAD.lock", "AUTO_MERGE.lock", "ORIG_HEAD.lock", "MERGE_HEAD.lock"];
    let own: Vec<PathBuf> = own.iter().map(|name| entry.join(name)).collect();
    let here = vec![dir.to_owned(), entry];
    let everywhere = admin::dirs(&common).unwrap_or_else(|_| vec![common]);
    for (dirs, locks) in [(here, own), (everywhere, branch.into_iter().collect())] {
        let left = holders::clear_locks_of_killed(&dirs, &locks, None);
        for left in left.unwrap_or(locks).iter().filter(|lock| lock.exists()) {
            swarm_sys::say!("blocked by a lock file: {}", left.display());
        }
    }
}

/// Committed work of a role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    pub commit: String,
    /// Paths whose changes are not in the commit: untracked files of kinds that tools generate, and submodules with
    /// uncommitted work or other repositories (with a slash at the end).
    pub left_out: Vec<String>,
}

/// Commits all work in the worktree, apart from untracked files that are typically generated by tools.
///
/// # Errors
/// Fails if HEAD is not on the role's branch, if a file contains conflict markers or has another conflict that nobody has resolved, if there are too many untracked files, or if git fails.
pub fn commit_work(tree: RoleTree<'_>, message: &str, caller: &Caller) -> Result<Committed, Refusal> {
    let committed = || -> Result<Committed, Fault> {
        let git = Git::open(tree, caller)?;
        let (dir, git_dir) = (tree.dir, &git.place.git_dir);
        // Within submodules, git would use a configuration that the agent can write.
        let status = ["status", "--porcelain=v1", "-z", "--untracked-files=all", "--ignore-submodules=dirty"];
        let changes = parse::status(&git.read().args(status).strict().run()?);
        let merging = merge_head(git_dir).is_some();
        let mut left_out = topic::foreign(&git.cli, &git.place)?;
        if changes.is_empty() && !merging {
            return Ok(Committed { commit: git.head()?, left_out });
        }
        let conflicts = if changes.iter().any(is_unmerged) { unmerged(&git)? } else { Vec::new() };
        if let Some(conflict) = conflicts.iter().find(|conflict| is_unresolved(conflict, dir)) {
            return Err(Fault::new(format!("{} contains conflict markers", conflict.shown())));
        }
        if let Some(path) = stopped::untouched(&git, &conflicts)? {
            return Err(Fault::new(format!("{path} has an unresolved conflict"))
                .remedy("change the file, or run 'git add' or 'git rm' on it"));
        }
        topic::add_tracked(&|| git.write(), git_dir)?;
        let untracked = changes.iter().filter(|change| change.staged == b'?').map(|change| &change.path);
        let (out, new) = generated::split(untracked, || git.read().args(["ls-files", "-z"]).run())?;
        left_out.extend(out.into_iter().map(|path| String::from_utf8_lossy(path).into_owned()));
        if new.len() > topic::UNTRACKED_MAX {
            let cause = format!("{} untracked files, more than {}", new.len(), topic::UNTRACKED_MAX);
            return Err(Fault::new(cause).remedy("commit the files that matter and add the others to .gitignore"));
        }
        if !new.is_empty() {
            let add = ["add", "--sparse", "--pathspec-from-file=-", "--pathspec-file-nul"];
            let add = git.write().env("GIT_LITERAL_PATHSPECS", "1").args(add);
            let paths: Vec<&[u8]> = new.into_iter().map(Vec::as_slice).collect();
            raw::feed(add, git_dir, &paths.join(&0))?;
        }
        let staged = git.read().args(["diff", "--cached", "--name-only", "-z", "--no-ext-diff"]).run()?;
        if !staged.is_empty() || merging {
            committed::commit(&git, message)?;
        }
        Ok(Committed { commit: git.head()?, left_out })
    };
    committed().map_err(refusal)
}

/// Returns the commit that is being merged.
fn merge_head(git_dir: &Path) -> Option<String> {
    let text = record::read_text(&git_dir.join("MERGE_HEAD")).ok()?;
    Some(text.trim().to_owned())
}

fn refusal(fault: Fault) -> Refusal {
    Refusal { remedy: fault.remedy, ..Refusal::new(RefusalKind::Tool, fault.cause) }
}

fn unmerged(git: &Git) -> Result<Vec<Conflict>, Fault> {
    markers::conflicts(&|| git.read(), &git.place.git_dir)
}

fn shown(conflicts: &[Conflict]) -> Vec<String> {
    conflicts.iter().map(Conflict::shown).collect()
}

fn is_unmerged(change: &Change) -> bool {
    let code = [change.staged, change.unstaged];
    code.contains(&b'U') || code == *b"AA" || code == *b"DD"
}

fn is_unresolved(conflict: &Conflict, dir: &Path) -> bool {
    let found = conflict.markers(dir);
    found.begin && found.end
}

#[cfg(test)]
#[path = "role_locks_tests.rs"]
mod locks_tests;

#[cfg(test)]
#[path = "role_tests.rs"]
mod tests;
