//! Place of a run: the repository around a directory, and the base branch on which
//! its work lands.

use std::path::{Path, PathBuf};

use swarm_model::{Caller, Refusal, RefusalKind};

use super::cli::Cli;
use super::fault::Fault;
use super::is_branch_name;
use super::objects::{self, Question};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// Root of the worktree.
    pub root: PathBuf,
    /// Name of an existing branch.
    pub base: String,
}

/// Returns the root of the worktree around the caller's working directory.
///
/// # Errors
/// Fails if the caller is not in a worktree.
pub fn root(caller: &Caller) -> Result<PathBuf, Refusal> {
    Ok(locate(caller, None)?.0)
}

/// Returns the root and the base: the requested branch, or else the one that is checked out.
///
/// # Errors
/// Returns why work cannot land here, with a remedy.
pub fn site(caller: &Caller, base: Option<&str>) -> Result<Site, Refusal> {
    let invalid = |cause: String| Refusal::new(RefusalKind::Invalid, cause);
    if let Some(base) = base.filter(|base| !is_branch_name(base)) {
        return Err(invalid(format!("'{base}' is not a valid branch name")));
    }
    let (root, facts) = locate(caller, base)?;
    let Some(head) = facts.head else {
        let cause = format!("the repository at {} has no commit yet", root.display());
        return Err(invalid(cause).remedy("run 'git commit --allow-empty -m start' to create a first commit"));
    };
    let base = match (base, facts.base, head.branch) {
        (Some(base), Some(known), _) if known.branch.is_some() => base.to_owned(),
        (Some(base), ..) => return Err(invalid(format!("branch '{base}' not found"))),
        (None, _, Some(branch)) => branch,
        (None, _, None) => {
            let cause = "HEAD is detached, so there is no branch to land finished work on";
            return Err(invalid(cause.to_owned()).remedy("choose a branch with --base"));
        }
    };
    Ok(Site { root, base })
}

fn locate(caller: &Caller, base: Option<&str>) -> Result<(PathBuf, objects::Facts), Refusal> {
    let tool = |fault: Fault| Refusal { remedy: fault.remedy, ..Refusal::new(RefusalKind::Tool, fault.cause) };
    let cli = Cli::new(caller).map_err(|error| tool(error.into()))?;
    let cwd = Path::new(&caller.cwd);
    let facts = objects::read_facts(&cli, &Question { cwd, branch: "arial/x", base }).map_err(tool)?;
    let Some(root) = facts.toplevel.clone() else {
        let refusal = Refusal::new(RefusalKind::Invalid, format!("{} is in a bare repository", cwd.display()));
        return Err(refusal.remedy("run the command in a worktree of the repository (git worktree add)"));
    };
    Ok((root.canonicalize().unwrap_or(root), facts))
}
