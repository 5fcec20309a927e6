//! Turns finished work into a commit that can land: commits what a worker left uncommitted to
//! its branch, never to the base, and pins the tip.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use swarm_model::merge::queue::Rules;
use swarm_model::{Caller, MergeSettings, Refusal, RefusalKind, RowWorktree, Target};
use swarm_ports::{Completed, Completion, Unfinished};

use super::site::CompletionRepo;
use super::{agreed, config, fork, journal, reason_of, with_retries};
use crate::repository::cli::Cli;
use crate::repository::draft::Draft;
use crate::repository::durable::sync_file_systems;
use crate::repository::fault::Fault;
use crate::repository::gc_lock::Hold;
use crate::repository::{holders, index, objects, recorded};
use crate::trash::absent;
use crate::trash::save::{DURABLE, Place};
use crate::worktrees::topic::{Objects, snapshot};
use crate::worktrees::{admin, branches, identity, moved, submodules};
use swarm_sys::files::list;
use swarm_sys::paths::Paths;

/// Namespace of the refs that pin tips which have not landed; each is named after its commit.
pub(crate) const DONE: &str = "refs/swarm/done";
/// Body of our commit messages, by which these commits are recognized later.
const LEFT: &str = "Committed by swarm: it was left uncommitted.";

/// Message in the reflog of a branch.
const MOVED: &str = "swarm: uncommitted work";

/// State files of git operations that wait for a person.
const UNFINISHED: [(&str, &str); 5] = [
    ("MERGE_HEAD", "merge"),
    ("rebase-merge", "rebase"),
    ("rebase-apply", "rebase"),
    ("CHERRY_PICK_HEAD", "cherry-pick"),
    ("REVERT_HEAD", "revert"),
];

pub(crate) fn complete(paths: &Paths, completion: &Completion) -> Result<Completed, Refusal> {
    prepared(paths, completion, sync)
}

/// Completes branches, with one sync for all.
pub(crate) fn complete_all(paths: &Paths, branches: &[Completion]) -> Vec<Result<Completed, Refusal>> {
    let done = branches.iter().map(|completion| prepared(paths, completion, |_| Ok(())));
    let mut done: Vec<_> = done.collect();
    let repositories: BTreeSet<_> = done.iter().flatten().map(|done| done.target.repository.clone()).collect();
    for repository in repositories {
        if let Err(refusal) = sync(Path::new(&repository)) {
            let of_this = |done: &&mut Result<Completed, Refusal>| {
                done.as_ref().is_ok_and(|done| done.target.repository == repository)
            };
            done.iter_mut().filter(of_this).for_each(|done| *done = Err(refusal.clone()));
        }
    }
    done
}

/// Makes the work durable: neither the agent's git nor libgit2 syncs what it writes, and the caller is told that this
/// work is queued.
pub(super) fn sync(common: &Path) -> Result<(), Refusal> {
    with_retries(&Vec::new, || sync_file_systems([common])).map_err(tool)
}

/// Completes the work of a worker or branch. Calls `sync` once the work is pinned, before it may be pruned.
fn prepared(
    paths: &Paths,
    completion: &Completion,
    sync: impl Fn(&Path) -> Result<(), Refusal>,
) -> Result<Completed, Refusal> {
    let cli = Cli::new(&completion.caller).map_err(|error| tool(error.into()))?;
    let repo = match &completion.worker {
        Some((worktree, _)) => PathBuf::from(&worktree.base_repo),
        None => PathBuf::from(&completion.caller.cwd),
    };
    let site = CompletionRepo::open(&cli, &repo);
    let target = target(&site, completion)?;
    if completion.worker.is_none() && site.resolved(full(&completion.name)) == target.branch {
        let cause = format!("branch '{}' is its own base", target.base());
        let remedy = format!("run 'swarm merge add {} --base BRANCH'", completion.name);
        return Err(Refusal::new(RefusalKind::Invalid, cause).remedy(remedy));
    }
    let mut is_mendable = false;
    let (work, rules, waits) = match work(&cli, &site, &target, completion, sync) {
        Ok((work, rules)) => (work, Some(rules), None),
        // The worker's item is still queued, so that a person finds out why it waits.
        Err(refusal)
            if completion.worker.is_some() && completion.unfinished.is_none() && !is_answered(completion, &refusal) =>
        {
            is_mendable = refusal.kind == RefusalKind::Worktree;
            let why = Fault { remedy: refusal.remedy, ..Fault::new(refusal.cause) };
            (Work::default(), None, Some(reason_of(why)))
        }
        Err(refusal) => return Err(refusal),
    };
    let failed = |error| Refusal::new(RefusalKind::Registry, format!("cannot write the merge queue: {error}"));
    let caller = Some(journal::remember(paths, &target, &completion.caller).map_err(failed)?);
    let fork = fork::fork(&site, &target, completion, &work.tip).map_err(tool)?;
    Ok(Completed { target, tip: work.tip, rules, waits, is_mendable, fork, caller, left_out: work.left_out })
}

/// Reports whether the refusal answers a person's request. A fault in the worktree does not: it is resolved there, and
/// the item shows it until then.
fn is_answered(completion: &Completion, refusal: &Refusal) -> bool {
    completion.attended && matches!(refusal.kind, RefusalKind::Invalid | RefusalKind::NotFound)
}

/// Work to land.
#[derive(Default)]
pub(super) struct Work {
    pub(super) tip: String,
    /// Paths whose changes do not land.
    pub(super) left_out: Vec<String>,
}

fn tool(fault: Fault) -> Refusal {
    let kind = if fault.is_mendable { RefusalKind::Worktree } else { RefusalKind::Tool };
    Refusal { remedy: fault.remedy, ..Refusal::new(kind, fault.cause) }
}

/// Returns the commit to land, pinned, and the rules of the queue.
fn work(
    cli: &Cli,
    site: &CompletionRepo<'_>,
    target: &Target,
    completion: &Completion,
    sync: impl Fn(&Path) -> Result<(), Refusal>,
) -> Result<(Work, Rules), Refusal> {
    if site.tip(target.base()).map_err(tool)?.is_none() {
        let cause = format!("base branch '{}' not found", target.base());
        return Err(Refusal::new(RefusalKind::NotFound, cause).remedy("choose another branch with --base"));
    }
    let common = Path::new(&target.repository);
    let root = root_of(site, common);
    let mut rules = agreed::rules(site, target, completion, root.as_deref())?;
    if admin::checkout_of(common).is_none() {
        rules.checkout = root.as_deref().and_then(Path::to_str).map(|root| root.trim_end_matches('/').to_owned());
    }
    let (locks, own) = (Path::new(&target.repository), completion.worker.as_ref());
    let locks = || locks_of(locks, own.map(|(worktree, _)| worktree));
    let (work, hold) = match &completion.worker {
        Some((worktree, _)) => {
            let lock = exclusive(&worktree.path);
            let _alone = lock.lock().unwrap_or_else(PoisonError::into_inner);
            with_retries(&locks, || of_worker(cli, completion, worktree, target)).map_err(tool)?
        }
        None => (Work { tip: of_branch(site, &completion.name)?, left_out: Vec::new() }, None),
    };
    with_retries(&locks, || site.pin(&work.tip)).map_err(tool)?;
    sync(common)?;
    drop(hold);
    Ok((work, rules))
}

/// Returns the directory with the configuration. It is that of the base checkout, and not of a worker's branch.
fn root_of(site: &CompletionRepo<'_>, common: &Path) -> Option<PathBuf> {
    match common.file_name() {
        Some(name) if name == ".git" => common.parent().map(Path::to_owned),
        _ => site.toplevel(),
    }
}

/// Returns the rules of the configuration to which a person agreed, of the main checkout of the repository around `dir`.
///
/// # Errors
/// Fails if the repository cannot be found, or its configuration cannot be read.
pub(super) fn rules_of(dir: &Path, caller: &Caller) -> Result<MergeSettings, Refusal> {
    let cli = Cli::new(caller).map_err(|error| tool(error.into()))?;
    let site = CompletionRepo::open(&cli, dir);
    let common = site.common().map_err(tool)?;
    config::of_file(root_of(&site, Path::new(&common)).as_deref())
}

/// Returns the locks that a git started by us may leave behind here.
pub(super) fn locks_of(common: &Path, worktree: Option<&RowWorktree>) -> Vec<PathBuf> {
    let mut locks = vec![common.join("packed-refs.lock")];
    locks.extend(pin_locks(common));
    if let Some(worktree) = worktree {
        locks.push(common.join(format!("refs/heads/{}.lock", worktree.branch)));
        let entry = admin::entry_of(common, Path::new(&worktree.path)).ok().flatten();
        let names = ["HEAD.lock", "index.lock"];
        locks.extend(entry.iter().flat_map(|entry| names.map(|name| entry.join(name))));
    }
    locks
}

/// Returns the locks of refs that pin tips.
pub(crate) fn pin_locks(common: &Path) -> impl Iterator<Item = PathBuf> {
    let pinned = list(&common.join(DONE)).into_iter().flatten().map(|entry| entry.path());
    pinned.filter(|path| path.extension().is_some_and(|end| end == "lock"))
}

/// Returns the queue for a branch of the caller's repository, which need not exist yet.
///
/// # Errors
/// Returns a refusal outside of a repository, and if there is no such branch.
pub fn target_of(caller: &Caller, base: &str) -> Result<Target, Refusal> {
    let cli = Cli::new(caller).map_err(|error| tool(error.into()))?;
    let site = CompletionRepo::open(&cli, Path::new(&caller.cwd));
    let base = base.strip_prefix("refs/heads/").unwrap_or(base);
    let invalid = |fault: Fault| Refusal::new(RefusalKind::Invalid, format!("{}: {}", site.dir.display(), fault.cause));
    let repository = site.common().map_err(invalid)?;
    if site.tip(base).map_err(tool)?.is_none() {
        return Err(Refusal::new(
            RefusalKind::NotFound,
            format!("branch '{base}' not found in {}", site.dir.display()),
        ));
    }
    Ok(Target { repository, branch: site.resolved(format!("refs/heads/{base}")) })
}

/// Reports whether a queue is that of this base in the repository around `root`; of any base if none is given. False if
/// git cannot tell.
pub fn is_queue_of(root: &Path, base: Option<&str>, queue: &Target, caller: &Caller) -> bool {
    let Ok(cli) = Cli::new(caller) else { return false };
    let site = CompletionRepo::open(&cli, root);
    site.common().is_ok_and(|common| common == queue.repository)
        && base.is_none_or(|base| site.resolved(format!("refs/heads/{base}")) == queue.branch)
}

/// Returns the repository and base branch of a completion.
fn target(site: &CompletionRepo<'_>, completion: &Completion) -> Result<Target, Refusal> {
    let invalid = |cause: String| Refusal::new(RefusalKind::Invalid, cause);
    let common = site.common().map_err(|fault| invalid(format!("{}: {}", site.dir.display(), fault.cause)))?;
    let asked = completion.base.as_deref().map(|base| base.strip_prefix("refs/heads/").unwrap_or(base).to_owned());
    let name = &completion.name;
    let (recorded, why) = match &completion.worker {
        _ if asked.is_some() => (None, String::new()),
        Some((worktree, None)) if completion.is_kept => {
            let started = fork::is_from_head(site, &worktree.branch).map_err(tool)?;
            (site.head().filter(|_| started), format!("it is not known from which branch '{name}' started"))
        }
        worker => {
            let why = format!("'{name}' started from a commit and not from a branch, so it has no base to land on");
            let recorded = match worker {
                Some((_, base)) => base.as_ref().and_then(|base| base.branch.clone()),
                None => {
                    let branch = name.strip_prefix("refs/heads/").unwrap_or(name);
                    let known = branches::known(Path::new(&common), branch);
                    known.map_or_else(|| site.head(), |known| known.base.branch)
                }
            };
            (recorded, why)
        }
    };
    let Some(base) = asked.or(recorded) else {
        return Err(invalid(why).remedy(format!("run 'swarm merge add {name} --base BRANCH'")));
    };
    Ok(Target { repository: common, branch: site.resolved(format!("refs/heads/{base}")) })
}

/// Returns the full name of a branch.
fn full(name: &str) -> String {
    format!("refs/heads/{}", name.strip_prefix("refs/heads/").unwrap_or(name))
}

fn of_branch(site: &CompletionRepo<'_>, name: &str) -> Result<String, Refusal> {
    let branch = name.strip_prefix("refs/heads/").unwrap_or(name);
    site.tip(branch).map_err(tool)?.ok_or_else(|| {
        let cause = format!("worker '{name}' not found, and no such branch in {}", site.dir.display());
        Refusal::new(RefusalKind::NotFound, cause).remedy("run 'swarm ls' or 'git branch' to list names")
    })
}

/// Returns the tip of a worker's work, after committing what it left uncommitted, and the hold
/// that keeps the tip from being pruned until it is pinned.
pub(super) fn of_worker(
    cli: &Cli,
    completion: &Completion,
    worktree: &RowWorktree,
    target: &Target,
) -> Result<(Work, Option<Hold>), Fault> {
    let name = completion.name.as_str();
    let (repo, tree) = (Path::new(&worktree.base_repo), Path::new(&worktree.path));
    let none = || Fault::new(format!("branch '{}' has no commit", worktree.branch));
    let Some(place) = identity::open(cli, tree, repo)? else {
        // Without a directory there is no uncommitted work, unless the directory is only somewhere else.
        absent::check(cli, repo, tree, &worktree.branch)?;
        let tip = objects::branch_tip(cli, repo, &worktree.branch)?.ok_or_else(none)?;
        return Ok((Work { tip, left_out: Vec::new() }, None));
    };
    index::clear_own_lock(&place.git_dir).map_err(Fault::at(&place.git_dir))?;
    let names = ["index.lock", "HEAD.lock", "ORIG_HEAD.lock", "AUTO_MERGE.lock"];
    let mut locks: Vec<PathBuf> = names.iter().map(|name| place.git_dir.join(name)).collect();
    locks.push(place.common().join(format!("refs/heads/{}.lock", worktree.branch)));
    if completion.unfinished.is_none() && completion.survivors.is_empty() {
        holders::clear_locks_of_dead(tree, repo, &locks);
    }
    if let Some(what) = UNFINISHED.iter().find(|(file, _)| place.git_dir.join(file).exists()) {
        let cause = format!("a {} is in progress in its worktree", what.1);
        return Err(Fault { is_mendable: true, ..Fault::new(cause) }
            .remedy(format!("finish or abort it in {}, then run 'swarm merge add {name}'", tree.display())));
    }
    recorded::check_place(cli, repo, &place, &worktree.branch)?;
    let tip = place.head.clone().ok_or_else(none)?;
    let head = place.branch.clone();
    let seen = snapshot(cli, &place, Objects::Keep)?;
    submodules::check_shared(cli, &place, seen.tree.as_deref().unwrap_or(&tip), &worktree.branch)?;
    let write = || place.call(cli.write(tree)).args(DURABLE);
    let (left_out, hold, made) = (seen.left_out, seen.hold, seen.index);
    let Some(uncommitted) = seen.tree else { return Ok((Work { tip, left_out }, hold)) };
    if is_tree_of(cli, &place, &tip, &uncommitted) {
        // An earlier completion was killed after the commit; the index is still the old one.
        if cli.read(repo).args(["log", "-1", "--no-show-signature", "--format=%b", &tip]).line()?.trim() == LEFT {
            renew_index(cli, &place, &tip)?;
        }
        return Ok((Work { tip, left_out }, hold));
    }
    if completion.unfinished == Some(Unfinished::Committed) {
        let cause = format!("worker '{name}' is still running and has uncommitted changes in {}", tree.display());
        return Err(Fault::new(cause).remedy(format!(
            "have its agent commit them, then add it again; or add them as they are now: 'swarm merge add {name} \
             --uncommitted'"
        )));
    }
    if head.as_deref() == Some(target.branch.as_str()) {
        let cause = format!("its worktree has the base '{}' checked out, with uncommitted work", target.base());
        return Err(
            Fault::new(cause).remedy(format!("run 'git -C {} switch -c BRANCH', then add it again", tree.display()))
        );
    }
    recorded::check_own(cli, &place)?;
    let subject = completion.subject.clone().unwrap_or_else(|| format!("Work of {name}"));
    let message = format!("{subject}\n\n{LEFT}\n");
    let plain = ["-c", "commit.gpgSign=false", "commit-tree", "-m", &message, "-p", &tip, &uncommitted];
    let commit = write().args(plain).line()?;
    // Before the branch moves: a power cut could otherwise take the commit from under the branch, or keep the commit and empty
    // the files, and the next completion would commit the empty files on top.
    sync_file_systems([tree, place.common.as_path()])?;
    if let Some(branch) = &head {
        moved::move_branch(cli, &place, branch, [&tip, &commit], MOVED)?;
        // The files match the index from which the tree was written.
        if made.is_none_or(|made| index::install(&made, &place.git_dir).is_err()) {
            renew_index(cli, &place, &commit)?;
        }
    }
    Ok((Work { tip: commit, left_out }, hold))
}

/// Returns the lock of the worktree at a path, which one completion at a time holds: the next one finds what it committed.
pub(super) fn exclusive(tree: &str) -> Arc<Mutex<()>> {
    static LOCKS: Mutex<BTreeMap<String, Weak<Mutex<()>>>> = Mutex::new(BTreeMap::new());
    let mut locks = LOCKS.lock().unwrap_or_else(PoisonError::into_inner);
    locks.retain(|_, lock| lock.strong_count() > 0);
    if let Some(lock) = locks.get(tree).and_then(Weak::upgrade) {
        return lock;
    }
    let lock = Arc::new(Mutex::new(()));
    locks.insert(tree.to_owned(), Arc::downgrade(&lock));
    lock
}

/// Sets the index to a commit. The files already match the commit.
fn renew_index(cli: &Cli, place: &Place, commit: &str) -> Result<(), Fault> {
    let draft = Draft::empty(&place.git_dir)?;
    let step = || place.call(cli.write(&place.tree)).args(DURABLE).env("GIT_INDEX_FILE", draft.path());
    step().args(["read-tree", commit]).run()?;
    // Exit code 1 means that some uncommitted changes remain.
    step().args(["update-index", "-q", "--refresh"]).run_for(&[0, 1])?;
    draft.install()
}

fn is_tree_of(cli: &Cli, place: &Place, commit: &str, tree: &str) -> bool {
    let known = || {
        let repo = objects::open(&place.common)?;
        let commit = repo.find_commit(git2::Oid::from_str(commit)?)?;
        Ok::<_, git2::Error>(commit.tree_id().to_string() == tree)
    };
    if let Ok(known) = known() {
        return known;
    }
    let named =
        place.call(cli.read(&place.tree)).args(["rev-parse", "--verify", "-q", &format!("{commit}^{{tree}}")]).line();
    named.is_ok_and(|named| named == tree)
}

/// Returns the name of the ref that pins a tip.
pub(crate) fn pinned(tip: &str) -> String {
    format!("{DONE}/{tip}")
}
