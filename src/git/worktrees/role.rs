//! The worktree of a role in a flow: what others handed over comes in, and what the role
//! did is kept as a commit. By the user's git, without their hooks.

use std::fs;
use std::io::{Seek as _, Write as _};
use std::path::{Path, PathBuf};

use git2::{Oid, Repository, RepositoryState, StatusOptions};
use swarm_model::{Caller, Refusal, RefusalKind};

use super::{admin, topic};
use crate::repository::cli::Cli;
use crate::repository::fault::Fault;
use crate::repository::{holders, objects};
use crate::trash::save;

/// How a merge went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Taken {
    Merged,
    /// It has begun, and these files have marks in them.
    Conflict(Vec<String>),
}

/// There while a commit is being brought in: where it is found, a git was killed at it.
const TAKING: &str = "swarm-taking";

/// Brings a commit into the worktree at `dir`. What lies there uncommitted is committed
/// before, so that a git that is killed leaves nothing but its own behind.
///
/// # Errors
/// Why it cannot even begin.
pub fn take(dir: &Path, commit: &str, from: &str, caller: &Caller) -> Result<Taken, Refusal> {
    let cli = Cli::new(caller).map_err(|error| refusal(error.into()))?;
    let mark = mark(dir).map_err(refusal)?;
    undo(&cli, dir, &mark).map_err(refusal)?;
    if has(dir, commit) {
        return Ok(Taken::Merged);
    }
    // Begun by an earlier turn, and the role's to settle.
    if merge_head(dir).as_deref() == Some(commit) {
        let files = unmerged(&cli, dir).map_err(refusal)?;
        if files.iter().any(|file| has_marks(&dir.join(file))) {
            return Ok(Taken::Conflict(files));
        }
    }
    keep(dir, "What was under way", caller)?;
    if has(dir, commit) {
        return Ok(Taken::Merged);
    }
    let taken = || -> Result<Taken, Fault> {
        fs::write(&mark, commit).map_err(Fault::at(&mark))?;
        let message = format!("Take what {from} handed over");
        let merged = cli.write(dir).args(["merge", "--quiet", "--no-gpg-sign", "-m", &message, commit]).run();
        let Err(error) = merged else { return Ok(Taken::Merged) };
        let files = unmerged(&cli, dir)?;
        if files.is_empty() { Err(error.into()) } else { Ok(Taken::Conflict(files)) }
    };
    let taken = taken();
    match fs::remove_file(&mark) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(refusal(Fault::at(&mark)(error))),
        _ => taken.map_err(refusal),
    }
}

fn mark(dir: &Path) -> Result<PathBuf, Fault> {
    let entry = admin::link_of(dir).map_err(Fault::at(dir))?;
    Ok(entry.unwrap_or_else(|| dir.join(".git")).join(TAKING))
}

/// Takes back what a git that was killed had brought in so far: nothing else lay there.
fn undo(cli: &Cli, dir: &Path, mark: &Path) -> Result<(), Fault> {
    let commit = match fs::read_to_string(mark) {
        Ok(commit) => commit,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(Fault::at(mark)(error)),
    };
    // Cut off before anything was done, it may name none.
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
    fs::remove_file(mark).map_err(Fault::at(mark))
}

/// Whether a commit is part of what is there already.
fn has(dir: &Path, commit: &str) -> bool {
    let known = || -> Result<bool, git2::Error> {
        let repo = Repository::open(dir)?;
        let (head, commit) = (repo.head()?.peel_to_commit()?.id(), Oid::from_str(commit)?);
        Ok(head == commit || repo.graph_descendant_of(head, commit)?)
    };
    known().unwrap_or(false)
}

/// Removes the locks that a git of an earlier turn left when it was killed with it: nobody
/// else works in the worktree at `dir`.
pub fn free(dir: &Path) {
    let (Ok(Some(entry)), Ok(common)) = (admin::link_of(dir), admin::common_dir(dir)) else { return };
    let head = fs::read_to_string(entry.join("HEAD")).unwrap_or_default();
    let branch = head.trim().strip_prefix("ref: ").map(|name| common.join(format!("{name}.lock")));
    let own = ["index.lock", "HEAD.lock", "AUTO_MERGE.lock", "ORIG_HEAD.lock", "MERGE_HEAD.lock"];
    let mut locks: Vec<PathBuf> = own.iter().map(|name| entry.join(name)).chain(branch).collect();
    locks.push(common.join("packed-refs.lock"));
    for left in holders::clear_stale_locks(&locks, None) {
        println!("a lock is in the way: {}", left.display());
    }
}

/// Commits what lies in the worktree at `dir`, and gives its last commit. Untracked files
/// of the kinds that tools make stay out.
///
/// # Errors
/// When a file has marks of a conflict in it, or what git says.
pub fn keep(dir: &Path, message: &str, caller: &Caller) -> Result<String, Refusal> {
    let kept = || -> Result<String, Fault> {
        if let Some(head) = clean_head(dir) {
            return Ok(head);
        }
        let cli = Cli::new(caller)?;
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
        if let Some(path) = changes.iter().find(|(code, path)| is_unmerged(*code) && has_marks(&dir.join(path))) {
            return Err(Fault::new(format!("{} has marks of a conflict in it", path.1)));
        }
        cli.write(dir).args(["add", "-u"]).run()?;
        let new: Vec<&str> = changes
            .iter()
            .filter(|(code, path)| *code == *b"??" && !topic::is_never_committed(path))
            .map(|(_, path)| path.as_str())
            .collect();
        if new.len() > topic::UNTRACKED_MAX {
            let cause = format!("{} untracked files, more than {}", new.len(), topic::UNTRACKED_MAX);
            return Err(Fault::new(cause).remedy("commit what is meant, ignore the rest (.gitignore)"));
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
    kept().map_err(refusal)
}

/// The last commit, where nothing lies beside it: most turns change nothing, and git takes
/// longer to start than this to look. None where something does, or cannot be told.
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

/// What is being merged.
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

/// Two letters and the path; behind a path that was renamed comes the old one.
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

fn has_marks(path: &Path) -> bool {
    let text = fs::read(path).unwrap_or_default();
    let begins = |mark: &[u8]| text.split(|byte| *byte == b'\n').any(|line| line.starts_with(mark));
    begins(b"<<<<<<< ") && begins(b">>>>>>> ")
}

#[cfg(test)]
#[path = "role_tests.rs"]
mod tests;
