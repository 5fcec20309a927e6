//! Consent of verbs that start existing workers again. Command and variables of such a worker were given or agreed to
//! when it was first started; everything else is read from its repository and its worktree again.

use std::path::{Path, PathBuf};

use swarm_agents::consent::agent_of;
use swarm_config::trust::{AGENTS, agent_files};
use swarm_model::{RefusalKind, Spec, WorkerView};

use super::gate::Use;
use crate::cli::error::Failure;
use crate::cli::screen::Screen;
use swarm_store::records::DiskRecords;
use swarm_sys::paths::Paths;

/// Returns the section of the files that a command loads from its worktree, if it is an agent.
pub fn loads_of(argv: &[String]) -> Option<&'static str> {
    agent_of(argv)?.loads()
}

/// Returns the question about these sections, and about the files of `root` that agents load.
///
/// # Errors
/// Fails if such a file cannot be read.
pub fn question<'a>(root: Option<&'a Path>, sections: &[&'static str]) -> Result<Use<'a>, Failure> {
    let of_agents: Vec<&str> = sections.iter().copied().filter(|one| AGENTS.contains(one)).collect();
    let more = root.map(|root| agent_files(root, &of_agents)).transpose();
    let more = more.map_err(|cause| Failure::new(RefusalKind::Invalid, cause))?.unwrap_or_default();
    Ok(Use { more, ..Use::new(root, sections) })
}

/// Makes sure that a person agreed to what a start of these workers executes from their repositories, now that a person
/// asks for it. `removes` says that their worktrees are removed first.
///
/// # Errors
/// Fails if something is not trusted and nobody agrees, or if the files or the book cannot be read.
pub fn require(workers: &[&WorkerView], removes: bool, paths: &Paths, screen: &mut Screen) -> Result<(), Failure> {
    let mut all: Vec<(PathBuf, Vec<&'static str>)> = Vec::new();
    for worker in workers {
        let Some(tree) = &worker.row.worktree else { continue };
        let mut sections = Vec::new();
        if removes || !Path::new(&tree.path).is_dir() {
            sections.push("worktree");
        }
        let spec = spec_of(worker, paths);
        let contract = spec.as_ref().map(|spec| &spec.contract);
        sections.extend(contract.filter(|contract| contract.merge).map(|_| "merge"));
        sections.extend(loads_of(contract.map_or(&worker.row.cmd, |contract| &contract.argv)));
        all.push((PathBuf::from(&tree.base_repo), sections));
    }
    all.sort_unstable();
    all.dedup();
    for (root, sections) in all.iter().filter(|(root, sections)| !sections.is_empty() && is_readable(root)) {
        question(Some(root), sections)?.require(screen)?;
    }
    Ok(())
}

/// Makes sure that somebody was ever asked about what a recovery of this worker executes from its repository. What was
/// agreed to stays in force, so that changed files do not keep an interrupted worker from continuing.
///
/// # Errors
/// Fails as [`require`] does.
pub fn require_once(spec: &Spec, screen: &mut Screen) -> Result<(), Failure> {
    let Some(plan) = &spec.worktree else { return Ok(()) };
    let root = Path::new(&plan.base_repo);
    let mut sections: Vec<&'static str> = loads_of(&spec.contract.argv).into_iter().collect();
    if !Path::new(&plan.path).is_dir() {
        sections.push("worktree");
    }
    if sections.is_empty() || !is_readable(root) {
        return Ok(());
    }
    question(Some(root), &sections)?.require_once(screen)
}

/// Reports whether a root and its configuration can be read. The supervisor reports the mistake otherwise.
fn is_readable(root: &Path) -> bool {
    root.is_dir() && swarm_config::as_written(Some(root)).is_ok()
}

/// Returns the contract of a worker; `None` for one of the original `swarm` and for one whose records are gone.
fn spec_of(worker: &WorkerView, paths: &Paths) -> Option<Spec> {
    let generation = worker.row.swarm()?.generation;
    let facts = DiskRecords::new(paths.clone()).read(&worker.row.name, generation).ok()??;
    facts.spec.spec().cloned()
}
