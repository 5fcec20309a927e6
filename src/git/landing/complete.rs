//! From "finished" to a commit that can land: what a worker left uncommitted
//! becomes a commit on its branch, never on the base, and the tip is pinned.

use std::path::{Path, PathBuf};

use swarm_model::merge::queue::Rules;
use swarm_model::{BaseRef, Refusal, RefusalKind, RowWorktree, Target};
use swarm_ports::{Completed, Completion};

use super::site::Site;
use super::{config, journal, patiently, told};
use crate::repository::cli::Cli;
use crate::repository::fault::Fault;
use crate::repository::gc_lock::Hold;
use crate::repository::index;
use crate::repository::objects;
use crate::trash::save::DURABLE;
use crate::worktrees::admin;
use crate::worktrees::topic::{Objects, snapshot};
use swarm_sys::paths::Paths;

/// Where tips wait that have not landed; a reference is named after its commit.
pub(crate) const DONE: &str = "refs/swarm/done";
/// What the message of a commit of ours says.
const LEFT: &str = "Committed by swarm: it was left uncommitted.";

/// What git keeps while it waits for a person.
const UNFINISHED: [(&str, &str); 5] = [
    ("MERGE_HEAD", "merge"),
    ("rebase-merge", "rebase"),
    ("rebase-apply", "rebase"),
    ("CHERRY_PICK_HEAD", "cherry-pick"),
    ("REVERT_HEAD", "revert"),
];

pub(crate) fn complete(paths: &Paths, completion: &Completion) -> Result<Completed, Refusal> {
    let cli = Cli::new(&completion.caller).map_err(|error| tool(error.into()))?;
    let repo = match &completion.worker {
        Some((worktree, _)) => PathBuf::from(&worktree.base_repo),
        None => PathBuf::from(&completion.caller.cwd),
    };
    let site = Site::open(&cli, &repo);
    let target = target(&site, completion)?;
    let (work, rules, waits) = match work(&cli, &site, &target, completion) {
        Ok((work, rules)) => (work, Some(rules), None),
        // A worker's work has its place in the list, where a person finds out why.
        Err(refusal) if completion.worker.is_some() => {
            let why = Fault { remedy: refusal.remedy, ..Fault::new(refusal.cause) };
            (Work::default(), None, Some(told(why)))
        }
        Err(refusal) => return Err(refusal),
    };
    let failed = |error: std::io::Error| Refusal::new(RefusalKind::Registry, format!("the merge queue: {error}"));
    journal::remember(paths, &target, &completion.caller).map_err(failed)?;
    Ok(Completed { target, tip: work.tip, rules, waits, left_out: work.left_out })
}

/// What of somebody's work is to land.
#[derive(Default)]
struct Work {
    tip: String,
    /// Untracked paths of a kind that is not landed.
    left_out: Vec<String>,
}

fn tool(fault: Fault) -> Refusal {
    Refusal { remedy: fault.remedy, ..Refusal::new(RefusalKind::Tool, fault.cause) }
}

/// The commit to land, pinned, and the rules by which.
fn work(cli: &Cli, site: &Site<'_>, target: &Target, completion: &Completion) -> Result<(Work, Rules), Refusal> {
    if site.tip(target.base()).map_err(tool)?.is_none() {
        let cause = format!("there is no branch '{}' to land on", target.base());
        return Err(Refusal::new(RefusalKind::NotFound, cause).remedy("--base BRANCH names another"));
    }
    // The file as the person has it, not as some worker's branch does.
    let common = Path::new(&target.repository);
    let root = match common.file_name() {
        Some(name) if name == ".git" => common.parent().map(Path::to_owned),
        _ => site.toplevel(),
    };
    let rules = config::rules(root.as_deref(), &completion.settings)?;
    let (locks, own) = (Path::new(&target.repository), completion.worker.as_ref());
    let locks = || locks_of(locks, own.map(|(worktree, _)| worktree));
    let (work, hold) = match &completion.worker {
        Some((worktree, _)) => patiently(&locks, || of_worker(cli, completion, worktree, target)).map_err(tool)?,
        None => (Work { tip: of_branch(site, &completion.name)?, left_out: Vec::new() }, None),
    };
    patiently(&locks, || site.pin(&work.tip)).map_err(tool)?;
    drop(hold);
    Ok((work, rules))
}

/// The locks that a git of ours may leave behind here.
fn locks_of(common: &Path, worktree: Option<&RowWorktree>) -> Vec<PathBuf> {
    let mut locks = vec![common.join("packed-refs.lock")];
    locks.extend(pin_locks(common));
    if let Some(worktree) = worktree {
        locks.push(common.join(format!("refs/heads/{}.lock", worktree.branch)));
        let entry = admin::link_of(Path::new(&worktree.path)).ok().flatten();
        let names = ["HEAD.lock", "index.lock"];
        locks.extend(entry.iter().flat_map(|entry| names.map(|name| entry.join(name))));
    }
    locks
}

/// The locks of references to tips.
pub(crate) fn pin_locks(common: &Path) -> impl Iterator<Item = PathBuf> {
    let pinned = std::fs::read_dir(common.join(DONE)).into_iter().flatten().flatten().map(|entry| entry.path());
    pinned.filter(|path| path.extension().is_some_and(|end| end == "lock"))
}

/// The repository and base branch that a completion is for.
fn target(site: &Site<'_>, completion: &Completion) -> Result<Target, Refusal> {
    let invalid = |cause: String| Refusal::new(RefusalKind::Invalid, cause);
    let common = site.common().map_err(|fault| invalid(format!("{}: {}", site.dir.display(), fault.cause)))?;
    let recorded = match &completion.worker {
        Some((_, base)) => base.as_ref().and_then(|BaseRef { branch, .. }| branch.clone()),
        None => site.head(),
    };
    let base = completion.base.as_deref().map(|base| base.strip_prefix("refs/heads/").unwrap_or(base).to_owned());
    let Some(base) = base.or(recorded) else {
        let cause = format!(
            "'{}' began at a commit and not at a branch, so it is not known where it is to land",
            completion.name
        );
        return Err(invalid(cause).remedy(format!("swarm merge add {} --base BRANCH", completion.name)));
    };
    Ok(Target { repository: common, branch: site.resolved(format!("refs/heads/{base}")) })
}

fn of_branch(site: &Site<'_>, name: &str) -> Result<String, Refusal> {
    let branch = name.strip_prefix("refs/heads/").unwrap_or(name);
    site.tip(branch).map_err(tool)?.ok_or_else(|| {
        let cause = format!("there is no worker '{name}', and no such branch in {}", site.dir.display());
        Refusal::new(RefusalKind::NotFound, cause).remedy("swarm ls, git branch")
    })
}

/// The tip of a worker's work, with what it left uncommitted; and what keeps that
/// until the tip is pinned.
fn of_worker(
    cli: &Cli,
    completion: &Completion,
    worktree: &RowWorktree,
    target: &Target,
) -> Result<(Work, Option<Hold>), Fault> {
    let name = completion.name.as_str();
    let (repo, tree) = (Path::new(&worktree.base_repo), Path::new(&worktree.path));
    let none = || Fault::new(format!("branch '{}' has no commit", worktree.branch));
    if !tree.join(".git").exists() {
        let tip = objects::branch_tip(cli, repo, &worktree.branch)?.ok_or_else(none)?;
        return Ok((Work { tip, left_out: Vec::new() }, None));
    }
    let git_dir = admin::link_of(tree).map_err(Fault::at(tree))?;
    if let Some(git_dir) = &git_dir {
        index::clear_own_lock(git_dir).map_err(Fault::at(git_dir))?;
    }
    if let Some(git_dir) = &git_dir
        && let Some(what) = UNFINISHED.iter().find(|(file, _)| git_dir.join(file).exists())
    {
        let cause = format!("its worktree is in the middle of a {}", what.1);
        return Err(Fault::new(cause)
            .remedy(format!("finish or abort that in {}, then swarm merge add {name}", tree.display())));
    }
    let tip = objects::commit(cli, tree, "HEAD")?.ok_or_else(none)?;
    let head = objects::head_ref(cli, tree)?;
    let seen = snapshot(cli, tree, &tip, Objects::Keep)?;
    let write = || cli.write(tree).args(DURABLE);
    let (left_out, hold, made) = (seen.left_out, seen.hold, seen.index);
    let Some(uncommitted) = seen.tree else { return Ok((Work { tip, left_out }, hold)) };
    if is_tree_of(cli, tree, &tip, &uncommitted) {
        // Cut off after the commit, the index is still of before.
        if cli.read(tree).args(["log", "-1", "--format=%b", &tip]).line()?.trim() == LEFT {
            renew_index(cli, tree, &tip)?;
        }
        return Ok((Work { tip, left_out }, hold));
    }
    if head.as_deref() == Some(target.branch.as_str()) {
        let cause = format!("its worktree has the base '{}' itself checked out, with uncommitted work", target.base());
        return Err(Fault::new(cause).remedy(format!("git -C {} switch -c BRANCH, then add it again", tree.display())));
    }
    let subject = completion.subject.clone().unwrap_or_else(|| format!("Work of {name}"));
    let message = format!("{subject}\n\n{LEFT}\n");
    let plain = ["-c", "commit.gpgSign=false", "commit-tree", "-m", &message, "-p", &tip, &uncommitted];
    let commit = write().args(plain).line()?;
    if head.is_some() {
        let update = ["-c", "core.filesRefLockTimeout=5000", "update-ref", "-m", "swarm: uncommitted work", "HEAD"];
        write().args(update).args([&commit, &tip]).run()?;
        // Its files are as in the index that the tree was made of.
        if made.is_none_or(|made| index::install(&made, &seen.git_dir).is_err()) {
            renew_index(cli, tree, &commit)?;
        }
    }
    Ok((Work { tip: commit, left_out }, hold))
}

/// The files are as committed; only the index is still of before.
fn renew_index(cli: &Cli, tree: &Path, commit: &str) -> Result<(), Fault> {
    cli.write(tree).args(DURABLE).args(["read-tree", commit]).run()?;
    // Exit code 1 says that something is left that is not committed.
    cli.write(tree).args(["update-index", "-q", "--refresh"]).run_for(&[0, 1])?;
    Ok(())
}

fn is_tree_of(cli: &Cli, at: &Path, commit: &str, tree: &str) -> bool {
    let known = || {
        let repo = objects::discover(cli, at)?;
        let commit = repo.find_commit(git2::Oid::from_str(commit)?)?;
        Ok::<_, git2::Error>(commit.tree_id().to_string() == tree)
    };
    if let Ok(known) = known() {
        return known;
    }
    let named = cli.read(at).args(["rev-parse", "--verify", "-q", &format!("{commit}^{{tree}}")]).line();
    named.is_ok_and(|named| named == tree)
}

/// The reference that keeps a tip.
pub(crate) fn pinned(tip: &str) -> String {
    format!("{DONE}/{tip}")
}
