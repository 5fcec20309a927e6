//! Records of runs that are not the user's own: those that came with the repository, and those of a run of another one.

use std::path::{Path, PathBuf};

use swarm_model::run::progress::Run;
use swarm_model::{Caller, Refusal, RefusalKind};

use super::identity::slug;
use crate::cli::error::Failure;
use swarm_store::repositories::tracked;
use swarm_store::runs::home::{ARIAL, Home};
use swarm_store::runs::origin;
use swarm_store::runs::wire::Workstream;
use swarm_sys::paths::Paths;

/// Refuses a home that is a symbolic link of the repository: a run would write wherever it leads.
pub fn refuse_tracked_link(root: &Path, caller: &Caller) -> Result<(), Failure> {
    let path = Home::of(root).path().to_owned();
    // If git cannot tell, the link may be that of the repository.
    if !path.is_symlink() || tracked(root, ARIAL, caller).is_ok_and(|entries| entries.is_empty()) {
        return Ok(());
    }
    let cause = format!("{} is a symbolic link that is tracked by git", path.display());
    Err(Refusal::new(RefusalKind::Invalid, cause).remedy(format!("run 'git rm --cached {ARIAL}' and remove it")).into())
}

/// Refuses records that came with the repository, or that an agent may have written in its worktree. They say which
/// workstreams are left, with which flags, and what belongs to the run, so that a run would execute what nobody here was
/// asked about, and a cleanup would remove what it names.
pub fn refuse_brought_along(home: &Home, records: &[&str], caller: &Caller, paths: &Paths) -> Result<(), Failure> {
    let name = home.path().file_name().unwrap_or_default().to_string_lossy();
    let invalid = |cause: String| Refusal::new(RefusalKind::Invalid, cause);
    if let Some(journal) = origin::foreign(paths, home) {
        let journal = journal.display();
        let cause = format!("{journal} is in a worktree, where an agent may have written it: swarm began no run there");
        let root = home.path().parent().unwrap_or(home.path());
        let main = swarm_store::repositories::main_tree(root).filter(|main| main != root);
        let main = main.map(|main| format!("run it in the main checkout {}; or, ", main.display())).unwrap_or_default();
        let own = format!("{main}if you began that run yourself, run 'swarm trust --run'");
        return Err(invalid(cause).remedy(format!("{own}; or delete {journal} to begin anew")).into());
    }
    match origin::brought_along(home, records, caller) {
        Ok(None) => Ok(()),
        Ok(Some(path)) => {
            let cause = format!("{} is tracked by git, and decides what a run does", path.display());
            let below = path.strip_prefix(home.path()).ok().filter(|below| !below.as_os_str().is_empty());
            let record = below.map_or_else(|| name.to_string(), |below| format!("{name}/{}", below.display()));
            let remedy =
                format!("run 'git rm -r --cached {name}', and delete {record} unless you began that run yourself");
            Err(invalid(cause).remedy(remedy).into())
        }
        Err(cause) => Err(invalid(cause).into()),
    }
}

/// Returns the root of the repository that a recorded run belongs to.
///
/// # Errors
/// Fails if the records in a repository are those of a run of another one: its branches, worktrees and workers have
/// nothing to do with this one.
pub fn root_of(home: &Home, run: &Run) -> Result<PathBuf, Failure> {
    let recorded = PathBuf::from(&run.plan.root);
    if !origin::is_of_repository(home) {
        return Ok(recorded);
    }
    let root = home.path().parent().unwrap_or(home.path()).to_owned();
    let real = |path: &Path| path.canonicalize().ok();
    let is_here = real(&root).is_some_and(|root| real(&recorded) == Some(root));
    let plain = slug(&recorded);
    if is_here && (run.plan.slug == plain || run.plan.slug == format!("{plain}-{}", run.plan.id)) {
        return Ok(root);
    }
    let cause = format!("{} is of a run in {}", home.journal().display(), recorded.display());
    let remedy = "if the repository was moved, run 'swarm run' first, which continues the run here";
    Err(Refusal::new(RefusalKind::Invalid, cause).remedy(remedy).into())
}

/// Returns the process of another program that runs in the worktree of this workstream, if any.
pub fn at_work(row: &Workstream, home: &Home) -> Option<i32> {
    let pid = row.pid.filter(|pid| row.status == "running" && *pid > 1)?;
    let at = std::fs::read_link(format!("/proc/{pid}/cwd")).ok()?;
    let tree = home.worktrees().join(&row.id).canonicalize().ok()?;
    // Workers of this program are excluded: the registry knows them.
    let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let is_ours = environment.split(|byte| *byte == 0).any(|one| one.starts_with(b"SWARM_WORKER="));
    // A process without an environment is just ending.
    (at.starts_with(tree) && !environment.is_empty() && !is_ours).then_some(pid)
}
