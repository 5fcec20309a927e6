//! Plans a worktree: its path, branch and base commit. Refuses what cannot be created.
//! Changes nothing.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use swarm_model::{BaseRef, Caller, WorktreePlan, WorktreeRequest};
use swarm_sys::files::list;

use super::usage;
use super::{admin, branches, identity, owner, record};
use crate::repository::cli::Cli;
use crate::repository::durable::boot_time;
use crate::repository::fault::Fault;
use crate::repository::objects::{self, Facts, Question};
use crate::repository::parse::{self, Listed};
use crate::trash::absent;

pub(crate) fn plan(cli: &Cli, name: &str, asked: &WorktreeRequest, caller: &Caller) -> Result<WorktreePlan, Fault> {
    let branch = asked.branch.as_deref().unwrap_or(name);
    if !objects::is_branch_name(branch) {
        return Err(
            Fault::new(format!("'{branch}' is not a valid branch name")).remedy("choose another branch with --branch")
        );
    }
    if let Some(base) = asked.base.as_deref().filter(|base| base.is_empty() || base.starts_with('-')) {
        return Err(Fault::new(format!("'{base}' is not a valid base")));
    }
    let cwd = Path::new(&caller.cwd).join(&asked.cwd);
    let facts = objects::read_facts(cli, &Question { cwd: &cwd, branch, base: asked.base.as_deref() })?;
    let Some(toplevel) = facts.toplevel.as_deref() else {
        return Err(Fault::new(format!("{} is in a bare repository", cwd.display()))
            .remedy("run the command in a worktree of the repository (git worktree add)"));
    };
    let toplevel = toplevel.canonicalize().map_err(Fault::at(toplevel))?;
    let base = base(&toplevel, asked, &facts)?;
    let path = path(&toplevel, name, asked)?;
    let base_repo = anchor(&toplevel, &asked.trees)?;
    let makes_branch = check_branch(branch, asked, &base, &facts)?;
    let mut plan = WorktreePlan {
        path: utf8(&path)?,
        branch: branch.to_owned(),
        base_repo: utf8(&base_repo)?,
        base,
        makes_branch,
        made_at: None,
        makes_tree: true,
    };
    let common = admin::common_dir(&base_repo).map_err(Fault::at(&base_repo))?;
    admin::complete_torn(&common, boot_time()).map_err(Fault::at(&common))?;
    settle_tree(cli, &base_repo, &path, asked.is_known, &mut plan)?;
    if !plan.makes_branch {
        plan.made_at = owner::branch_origin(&common, &path, branch);
        if plan.makes_tree && plan.made_at.is_none() {
            continue_branch(&common, asked, &mut plan);
        }
    }
    if plan.makes_tree {
        usage::check_quota(&base_repo)?;
    } else if asked.base.is_none()
        && let Some(base) = owner::base_of(&common, &path)
    {
        // The work in it started there, whatever is checked out now.
        plan.base = base;
    }
    Ok(plan)
}

/// Takes over what is on record of a branch that was made for an earlier worktree.
fn continue_branch(common: &Path, asked: &WorktreeRequest, plan: &mut WorktreePlan) {
    let Some(known) = branches::known(common, &plan.branch) else { return };
    plan.made_at = Some(known.made_at);
    if asked.base.is_none() {
        plan.base = known.base;
    }
}

/// Returns the repository of a worktree that starts from `toplevel`. An agent can write the `.git` of its worktree: if
/// `toplevel` is the worktree of a worker, that worker's own repository is returned.
fn anchor(toplevel: &Path, trees: &[(String, String)]) -> Result<PathBuf, Fault> {
    let around = trees.iter().filter(|(tree, _)| toplevel.starts_with(tree)).max_by_key(|(tree, _)| tree.len());
    let Some((tree, base_repo)) = around else { return Ok(toplevel.to_owned()) };
    let base_repo = Path::new(base_repo);
    if toplevel != Path::new(tree) {
        let cause = format!("the repository {} lies within the worktree of a worker", toplevel.display());
        return Err(Fault::new(cause).remedy(format!("run the command in {}", base_repo.display())));
    }
    identity::verified(toplevel, base_repo)?;
    base_repo.canonicalize().map_err(Fault::at(base_repo))
}

fn base(toplevel: &Path, asked: &WorktreeRequest, facts: &Facts) -> Result<BaseRef, Fault> {
    match (&asked.base, &facts.base, &facts.head) {
        (Some(_), Some(base), _) => Ok(base.clone()),
        (None, _, Some(head)) => Ok(head.clone()),
        (_, _, None) => Err(Fault::new(format!("the repository at {} has no commit yet", toplevel.display()))
            .remedy("run 'git commit --allow-empty -m start' to create a first commit")),
        (Some(asked), None, _) => {
            Err(Fault::new(format!("'{asked}' is not a commit in the repository at {}", toplevel.display())))
        }
    }
}

/// Returns the name of the directory for worktrees, which is next to the repository `repository`.
pub(crate) fn folder_of(repository: &OsStr) -> String {
    format!("{}-worktrees", repository.to_string_lossy())
}

/// Returns where the worktree of a branch usually is, next to the base checkout or the bare repository.
pub(crate) fn place_of(common: &Path, branch: &str) -> Option<PathBuf> {
    let repository = admin::checkout_of(common).unwrap_or(common);
    Some(repository.parent()?.join(folder_of(repository.file_name()?)).join(branch.rsplit('/').next()?))
}

/// Returns `<parent>/<repo>-worktrees/<name>`, or `<parent>/<dir>/<name>` for a requested
/// directory; `<parent>` contains the repository.
fn path(toplevel: &Path, name: &str, asked: &WorktreeRequest) -> Result<PathBuf, Fault> {
    let (Some(parent), Some(own)) = (toplevel.parent(), toplevel.file_name()) else {
        return Err(Fault::new("the repository is the root directory").remedy("choose a directory with --worktree-dir"));
    };
    let dir = asked.dir.clone().unwrap_or_else(|| folder_of(own));
    Ok(parent.join(dir).join(name))
}

/// Returns whether the branch has to be created. Fails if its name conflicts with another
/// branch, or if it exists at a commit other than the requested base.
fn check_branch(branch: &str, asked: &WorktreeRequest, base: &BaseRef, facts: &Facts) -> Result<bool, Fault> {
    let Some(tip) = &facts.tip else {
        return match &facts.clash {
            Some(clash) => Err(Fault::new(format!("branch '{branch}' conflicts with the existing branch '{clash}'"))
                .remedy("choose another branch with --branch")),
            None => Ok(true),
        };
    };
    if asked.base.is_some() && !asked.resume && *tip != base.commit {
        let (tip, commit) = (short(tip), short(&base.commit));
        return Err(Fault::new(format!("branch '{branch}' already exists at {tip}, which is not the base {commit}"))
            .remedy("omit the base to use the branch as it is, or choose another branch"));
    }
    Ok(false)
}

/// Adopts an existing worktree at the path. Fails if the path or the branch is in use
/// otherwise.
fn settle_tree(cli: &Cli, toplevel: &Path, path: &Path, is_known: bool, plan: &mut WorktreePlan) -> Result<(), Fault> {
    let common = admin::common_dir(toplevel).map_err(Fault::at(toplevel))?;
    let there = match fs::symlink_metadata(path) {
        Ok(_) => !is_empty_dir(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => false,
        Err(error) => return Err(Fault::at(path)(error)),
    };
    let entry = admin::entry_of(&common, path).map_err(Fault::at(path))?;
    if !there && let Some(entry) = &entry {
        if is_known {
            check_disk(toplevel, path)?;
        }
        check_abandoned(cli, &common, entry, path)?;
    }
    if !there && plan.makes_branch {
        return Ok(());
    }
    let listed = parse::worktrees(&cli.read(toplevel).args(["worktree", "list", "--porcelain", "-z"]).run()?);
    let full = format!("refs/heads/{}", plan.branch);
    let real = admin::resolved(path);
    let is_here = |one: &Listed| admin::resolved(Path::new(&one.path)) == real;
    let holder = listed.iter().find(|one| one.branch.as_deref() == Some(&full));
    if there {
        if entry.is_some() && holder.is_some_and(is_here) {
            identity::verified(path, toplevel)?;
            plan.makes_branch = false;
            plan.makes_tree = false;
            return Ok(());
        }
        return Err(Fault::new(format!("{} already exists", path.display()))
            .remedy("move it away, or choose another directory with --worktree-dir"));
    }
    match holder.filter(|one| !is_here(one)) {
        Some(one) => Err(Fault::new(format!("branch '{}' is checked out at {}", plan.branch, one.path))
            .remedy("choose another branch with --branch")),
        None => Ok(()),
    }
}

/// Fails if the disk of a missing worktree may not be mounted: the directory above it is missing or empty, too. Made again
/// below the mount point, the worktree would not have what the worker has not committed. The directory beside the
/// repository is on the repository's disk, unless it is a link.
fn check_disk(toplevel: &Path, path: &Path) -> Result<(), Fault> {
    let Some(above) = path.parent() else { return Ok(()) };
    let usual = toplevel.file_name().map(|own| toplevel.with_file_name(folder_of(own)));
    if usual.as_deref() == Some(above) && !above.is_symlink() {
        return Ok(());
    }
    if above.is_dir() && !is_empty_dir(&admin::resolved(above)) {
        return Ok(());
    }
    let cause = format!("the worktree at {} is missing, with all of {}", path.display(), above.display());
    let fault = Fault::new(cause).remedy("mount its disk, or give what it held up with 'git worktree prune'");
    Err(Fault { passes: true, ..fault })
}

/// Checks that the entry of a worktree whose directory is missing may be replaced.
pub(crate) fn check_abandoned(cli: &Cli, common: &Path, entry: &Path, path: &Path) -> Result<(), Fault> {
    let tree = path;
    let path = path.display();
    if let Some(reason) = admin::lock_reason(entry) {
        let reason = if reason.is_empty() { String::new() } else { format!(": {reason}") };
        return Err(Fault::new(format!("the worktree at {path} is missing and locked{reason}"))
            .remedy(format!("run 'git worktree unlock {path}'")));
    }
    // A branch keeps its commits; the commit of a detached HEAD may be referenced only here.
    let head = record::read_text(&entry.join("HEAD")).unwrap_or_default();
    if !head.is_empty() && !head.starts_with("ref: ") {
        return Err(Fault::new(format!("the worktree at {path} is missing; it was at commit {}", short(head.trim())))
            .remedy("keep that commit with 'git branch', then run 'git worktree prune'"));
    }
    match absent::unsaved(cli, common, entry)? {
        Some(what) => {
            Err(absent::refusal(tree, &what).remedy("bring it back, or give that up with 'git worktree prune'"))
        }
        None => Ok(()),
    }
}

pub(crate) fn is_empty_dir(path: &Path) -> bool {
    let is_dir = fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_dir());
    is_dir && list(path).is_ok_and(|files| files.is_empty())
}

pub(crate) fn short(commit: &str) -> &str {
    commit.get(..12).unwrap_or(commit)
}

fn utf8(path: &Path) -> Result<String, Fault> {
    path.to_str().map(str::to_owned).ok_or_else(|| Fault::new(format!("{} is not valid UTF-8", path.display())))
}
