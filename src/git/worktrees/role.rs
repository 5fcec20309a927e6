//! The worktree of a flow role: merges commits that other roles handed over, and commits the
//! role's own work. Runs the user's git without hooks.

use std::fs;
use std::io::{Seek as _, Write as _};
use std::path::{Path, PathBuf};

use git2::{Oid, Repository, RepositoryState, StatusOptions};
use swarm_model::{Caller, Refusal, RefusalKind};

use super::{admin, generated, identity, topic};
use crate::repository::cli::Cli;
use crate::repository::fault::Fault;
use crate::repository::{holders, objects, recorded};
use crate::trash::save;

/// Outcome of a merge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MergeOutcome {
    Merged,
    /// The merge is in progress; these files contain conflict markers.
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

/// Worktree of a role, and the branch that was recorded for it.
#[derive(Clone, Copy, Debug)]
pub struct RoleTree<'a> {
    pub dir: &'a Path,
    pub branch: &'a str,
}

/// Merges a commit into the worktree. Commits uncommitted work first, so that a git
/// that is killed leaves behind nothing but its own changes.
///
/// # Errors
/// Returns why the merge cannot start.
pub fn merge_handoff(tree: RoleTree<'_>, commit: &str, from: &str, caller: &Caller) -> Result<MergeOutcome, Refusal> {
    let cli = Cli::new(caller).map_err(|error| refusal(error.into()))?;
    let dir = tree.dir;
    recorded::check_branch(&cli, dir, tree.branch).map_err(refusal)?;
    let marker = marker_path(dir).map_err(refusal)?;
    roll_back(&cli, dir, &marker).map_err(refusal)?;
    if has(dir, commit) {
        return Ok(MergeOutcome::Merged);
    }
    // A merge that an earlier turn started and the role has to resolve.
    if merge_head(dir).as_deref() == Some(commit) {
        let files = unmerged(&cli, dir).map_err(refusal)?;
        if files.iter().any(|file| has_conflict_markers(&dir.join(file))) {
            return Ok(MergeOutcome::Conflict(files));
        }
    }
    commit_work(tree, "Commit work in progress", caller)?;
    if has(dir, commit) {
        return Ok(MergeOutcome::Merged);
    }
    let outcome = || -> Result<MergeOutcome, Fault> {
        fs::write(&marker, commit).map_err(Fault::at(&marker))?;
        let message = format!("Merge the handoff of {from}");
        // The user's settings for merges are meant for merges by hand.
        let own = ["--ff", "--commit", "--no-squash", "--no-verify-signatures", "--no-autostash", "--no-signoff"];
        let call = cli.write(dir).args(["merge", "--quiet", "--no-gpg-sign"]).args(own);
        let merged = call.args(["-m", &message, commit]).run();
        let Err(error) = merged else { return Ok(MergeOutcome::Merged) };
        let files = unmerged(&cli, dir)?;
        if files.is_empty() { Err(error.into()) } else { Ok(MergeOutcome::Conflict(files)) }
    };
    let outcome = outcome();
    match fs::remove_file(&marker) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(refusal(Fault::at(&marker)(error))),
        _ => outcome.map_err(refusal),
    }
}

fn marker_path(dir: &Path) -> Result<PathBuf, Fault> {
    let entry = admin::link_of(dir).map_err(Fault::at(dir))?;
    Ok(entry.unwrap_or_else(|| dir.join(".git")).join(MERGE_MARKER))
}

/// Rolls back a merge whose git was killed. All other work was committed before the merge.
fn roll_back(cli: &Cli, dir: &Path, marker: &Path) -> Result<(), Fault> {
    let commit = match fs::read_to_string(marker) {
        Ok(commit) => commit,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(Fault::at(marker)(error)),
    };
    // The marker is empty if it was written only in part, before the merge started.
    if !commit.is_empty() && !has(dir, &commit) {
        cli.write(dir).args(["reset", "--hard", "--quiet"]).run()?;
        let added = ["diff", "--name-only", "--diff-filter=A", "--no-renames", "--no-ext-diff", "-z", "HEAD", &commit];
        for path in fields(&cli.read(dir).args(added).run()?) {
            match fs::remove_file(dir.join(&path)) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(Fault::at(&dir.join(&path))(error));
                }
                _ => {}
            }
        }
    }
    fs::remove_file(marker).map_err(Fault::at(marker))
}

/// Reports whether `commit` is HEAD or an ancestor of it; `false` if libgit2 cannot tell.
fn has(dir: &Path, commit: &str) -> bool {
    let known = || -> Result<bool, git2::Error> {
        let repo = Repository::open(dir)?;
        let (head, commit) = (repo.head()?.peel_to_commit()?.id(), Oid::from_str(commit)?);
        Ok(head == commit || repo.graph_descendant_of(head, commit)?)
    };
    known().unwrap_or(false)
}

/// Removes the locks that a git killed together with an earlier turn left behind. Nobody else
/// works in the worktree at `dir`.
pub fn clear_stale_locks(dir: &Path) {
    let (Ok(Some(entry)), Ok(common)) = (admin::link_of(dir), admin::common_dir(dir)) else { return };
    let head = fs::read_to_string(entry.join("HEAD")).unwrap_or_default();
    let branch = head.trim().strip_prefix("ref: ").map(|name| common.join(format!("{name}.lock")));
    let own = ["index.lock", "HEAD.lock", "AUTO_MERGE.lock", "ORIG_HEAD.lock", "MERGE_HEAD.lock"];
    let mut locks: Vec<PathBuf> = own.iter().map(|name| entry.join(name)).chain(branch).collect();
    locks.push(common.join("packed-refs.lock"));
    for left in holders::clear_stale_locks(&locks, None) {
        println!("blocked by a lock file: {}", left.display());
    }
}

/// Commits all work in the worktree and returns the last commit. Leaves out untracked
/// files that are typically generated by tools.
///
/// # Errors
/// Fails if HEAD is not on the role's branch, if a file contains conflict markers, if there are too many untracked files, or if git fails.
pub fn commit_work(tree: RoleTree<'_>, message: &str, caller: &Caller) -> Result<String, Refusal> {
    let dir = tree.dir;
    let committed = || -> Result<String, Fault> {
        let cli = Cli::new(caller)?;
        recorded::check_branch(&cli, dir, tree.branch)?;
        if let Some(head) = clean_head(dir) {
            return Ok(head);
        }
        let status = ["status", "--porcelain=v1", "-z", "--untracked-files=all"];
        let changes = parse_status(&cli.read(dir).args(status).run()?);
        let head = || {
            let head = objects::commit(&cli, dir, "HEAD")?;
            head.ok_or_else(|| Fault::new(format!("{} has no commit", dir.display())))
        };
        let merging = is_merging(dir);
        if changes.is_empty() && !merging {
            return head();
        }
        if let Some(path) =
            changes.iter().find(|(code, path)| is_unmerged(*code) && has_conflict_markers(&dir.join(path)))
        {
            return Err(Fault::new(format!("{} contains conflict markers", path.1)));
        }
        cli.write(dir).args(["add", "-u"]).run()?;
        let untracked = changes.iter().filter(|(code, _)| *code == *b"??").map(|(_, path)| path.as_str());
        let (_, new) = generated::split(untracked, || cli.read(dir).args(["ls-files", "-z"]).run())?;
        if new.len() > topic::UNTRACKED_MAX {
            let cause = format!("{} untracked files, more than {}", new.len(), topic::UNTRACKED_MAX);
            return Err(Fault::new(cause).remedy("commit the files that matter and add the others to .gitignore"));
        }
        if !new.is_empty() {
            let git_dir = cli.read(dir).args(["rev-parse", "--absolute-git-dir"]).line()?;
            let list = save::Scratch::new(Path::new(&git_dir), "list");
            let mut file = list.create()?;
            let written = file.write_all(new.join("\0").as_bytes()).and_then(|()| file.rewind());
            written.map_err(Fault::at(dir))?;
            let add = ["add", "--pathspec-from-file=-", "--pathspec-file-nul"];
            cli.write(dir).env("GIT_LITERAL_PATHSPECS", "1").args(add).input(file).run()?;
        }
        let staged = cli.read(dir).args(["diff", "--cached", "--name-only", "-z", "--no-ext-diff"]).run()?;
        if !staged.is_empty() || merging {
            cli.write(dir).args(["commit", "--quiet", "--no-verify", "--no-gpg-sign", "-m", message]).run()?;
        }
        head()
    };
    committed().map_err(refusal)
}

/// Returns HEAD's commit if the worktree is clean, and `None` if it is not or libgit2 cannot tell.
/// Most turns change nothing, and this check is faster than starting git.
fn clean_head(dir: &Path) -> Option<String> {
    let repo = Repository::open(dir).ok()?;
    let mut options = StatusOptions::new();
    options.include_untracked(true).include_ignored(false).exclude_submodules(false);
    let clean = repo.state() == RepositoryState::Clean && repo.statuses(Some(&mut options)).ok()?.is_empty();
    if !clean {
        return None;
    }
    Some(repo.head().ok()?.peel_to_commit().ok()?.id().to_string())
}

fn is_merging(dir: &Path) -> bool {
    merge_head(dir).is_some()
}

/// Returns the commit that is being merged.
fn merge_head(dir: &Path) -> Option<String> {
    let place = admin::link_of(dir).ok().flatten().unwrap_or_else(|| dir.join(".git"));
    let text = fs::read_to_string(place.join("MERGE_HEAD")).ok()?;
    Some(text.trim().to_owned())
}

fn refusal(fault: Fault) -> Refusal {
    Refusal { remedy: fault.remedy, ..Refusal::new(RefusalKind::Tool, fault.cause) }
}

fn unmerged(cli: &Cli, dir: &Path) -> Result<Vec<String>, Fault> {
    let listed = cli.read(dir).args(["diff", "--name-only", "--diff-filter=U", "-z", "--no-ext-diff"]).run()?;
    Ok(fields(&listed))
}

fn fields(bytes: &[u8]) -> Vec<String> {
    let fields = bytes.split(|byte| *byte == 0).filter(|field| !field.is_empty());
    fields.map(|field| String::from_utf8_lossy(field).into_owned()).collect()
}

/// Parses `git status --porcelain -z`: two letters and the path; after a renamed path follows the old one.
fn parse_status(bytes: &[u8]) -> Vec<([u8; 2], String)> {
    let mut all = fields(bytes).into_iter();
    let mut changes = Vec::new();
    while let Some(field) = all.next() {
        let (Some(code), Some(path)) = (field.as_bytes().first_chunk::<2>().copied(), field.get(3..)) else { continue };
        if code.contains(&b'R') || code.contains(&b'C') {
            all.next();
        }
        changes.push((code, path.to_owned()));
    }
    changes
}

fn is_unmerged(code: [u8; 2]) -> bool {
    code.contains(&b'U') || code == *b"AA" || code == *b"DD"
}

fn has_conflict_markers(path: &Path) -> bool {
    let text = fs::read(path).unwrap_or_default();
    let begins = |marker: &[u8]| text.split(|byte| *byte == b'\n').any(|line| line.starts_with(marker));
    begins(b"<<<<<<< ") && begins(b">>>>>>> ")
}

#[cfg(test)]
#[path = "role_tests.rs"]
mod tests;
