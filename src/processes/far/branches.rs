//! Branches and worktree of an attempt in the clone. Agents may have committed on any branch there, also on the base.

use std::fs;
use std::path::{Path, PathBuf};

use swarm_git::clones;
use swarm_model::Caller;
use swarm_store::runs::far::{FarAnswer, FarTree};

use super::host::{Found, Host, answer_to};
use super::place::{Attempt, Begun};
use super::start::{io_failed, remove_tree};

/// Sets the branches, and removes the worktree of an earlier attempt unless this one goes on in it: a conversation belongs
/// to the path of its worktree. The caller holds the lock of the clone.
pub fn prepare(host: &Host, attempt: &Attempt, asked: &FarTree, caller: &Caller) -> Result<(), FarAnswer> {
    set(host, attempt, asked, caller).map_err(|answer| match missing(attempt, asked, caller) {
        Some(commit) => FarAnswer::Gone(format!("the clone does not have the commit {commit}")),
        None => answer,
    })
}

/// Returns a commit of the attempt that the clone does not have.
fn missing<'a>(attempt: &Attempt, tree: &'a FarTree, caller: &Caller) -> Option<&'a str> {
    let has = |commit: &str| clones::has_commit(&attempt.clone, commit, caller).unwrap_or(true);
    [&tree.tip, &tree.base_commit].into_iter().find(|commit| !has(commit)).map(String::as_str)
}

fn set(host: &Host, attempt: &Attempt, asked: &FarTree, caller: &Caller) -> Result<(), FarAnswer> {
    let (clone, tree) = (&attempt.clone, attempt.tree(&asked.leaf));
    // Git lists paths without symbolic links.
    let own = fs::canonicalize(&tree).unwrap_or_else(|_| tree.clone());
    let astray = astray(attempt, asked, &own, caller)?;
    let present = clones::branch_tip(clone, &asked.branch, caller).map_err(answer_to)?;
    let earlier = present.clone().filter(|tip| *tip != asked.tip);
    let begun = Begun {
        branch: asked.branch.clone(),
        leaf: asked.leaf.clone(),
        tip: asked.tip.clone(),
        base: asked.base.clone(),
        base_commit: asked.base_commit.clone(),
        before: earlier.clone().or_else(|| Begun::read(&attempt.dir)?.before),
        ..Begun::here()
    };
    begun.write(&attempt.dir).map_err(|error| io_failed(&attempt.dir, &error))?;
    if let Some(earlier) = &earlier {
        clones::pin(clone, earlier, caller).map_err(answer_to)?;
        if let Found::Again(_) = host.worker(attempt)? {
            // A person's work is not forgotten with the job.
            clones::withhold(clone, earlier, caller).map_err(answer_to)?;
        }
    }
    // Its agent may have checked out another branch.
    let is_on_it = clones::users(clone, &asked.branch, caller).map_err(answer_to)?.contains(&own);
    let goes_on = present.as_ref() == Some(&asked.tip) && is_on_it;
    if !goes_on {
        remove_tree(host, attempt, &tree, caller)?;
    }
    for user in astray {
        clones::move_aside(clone, &user, caller).map_err(answer_to)?;
    }
    clones::keep_stray(clone, &asked.base, &asked.base_commit, caller).map_err(answer_to)?;
    clones::set_branch(clone, &asked.base, &asked.base_commit, caller).map_err(answer_to)?;
    if goes_on {
        return Ok(());
    }
    clones::set_branch(clone, &asked.branch, &asked.tip, caller).map_err(answer_to)
}

/// Returns the worktrees of other jobs that keep a branch from being moved although it is not theirs: an agent has checked it
/// out. Fails if a branch that would be moved is that of another job.
fn astray(attempt: &Attempt, asked: &FarTree, own: &Path, caller: &Caller) -> Result<Vec<PathBuf>, FarAnswer> {
    let mut astray = Vec::new();
    let base = clones::branch_tip(&attempt.clone, &asked.base, caller).map_err(answer_to)?;
    let base = Some(&asked.base).filter(|_| base.as_ref() != Some(&asked.base_commit));
    for branch in [&asked.branch].into_iter().chain(base) {
        for user in clones::other_users(&attempt.clone, branch, own, caller).map_err(answer_to)? {
            let branches = branches_of(attempt, &user)?;
            // A worktree that no attempt has made is that of a person.
            if branches.is_empty() || branches.contains(branch) {
                return Err(answer_to(clones::in_use(branch)));
            }
            astray.push(user);
        }
    }
    Ok(astray)
}

/// Returns the branches of the attempts that work in a worktree.
fn branches_of(attempt: &Attempt, tree: &Path) -> Result<Vec<String>, FarAnswer> {
    let others = attempt.others().map_err(|error| io_failed(attempt.site.dir(), &error))?;
    let begun = others.into_iter().filter_map(|dir| {
        let run = dir.ancestors().nth(2)?.file_name()?.to_str()?.to_owned();
        let begun = Begun::read(&dir).filter(Begun::has_tree)?;
        let path = fs::canonicalize(attempt.site.worktrees(&run).join(&begun.leaf)).ok()?;
        (path == tree).then_some(begun.branch)
    });
    Ok(begun.collect())
}
