//! Directories in which workers run or are being started, and worktrees that are being removed. No worktree is removed
//! under a worker, and no worker is started in a worktree that is being removed.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::record::WorkerRecord;
use crate::registry::RegistryHandle;
use swarm_model::{Refusal, RefusalKind, Row, WireStatus};
use swarm_ports::{Ports, WorktreeError};

/// Starts and removals in progress of all workers of this supervisor. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Sites(Arc<Mutex<Claims>>);

#[derive(Debug, Default)]
struct Claims {
    last: u64,
    all: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    id: u64,
    worker: String,
    /// Its name as it was given, and its real one.
    paths: Vec<PathBuf>,
    purpose: Purpose,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    Start,
    Removal,
}

/// Claim on a directory. Ends when it is dropped.
#[derive(Debug)]
pub struct Claim {
    sites: Sites,
    id: u64,
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.sites.with(|claims| claims.all.retain(|entry| entry.id != self.id));
    }
}

impl Sites {
    /// Claims a directory for the start of a worker, until its row is written or the start has failed.
    ///
    /// # Errors
    /// Fails if the directory lies in a worktree that is being removed.
    pub fn enter(&self, worker: &str, dir: &str) -> Result<Claim, Refusal> {
        let dir = PathBuf::from(dir);
        let removed = |entry: &Entry| {
            let tree = entry.paths.iter().find(|tree| dir.starts_with(tree));
            tree.filter(|_| entry.purpose == Purpose::Removal).cloned()
        };
        match self.claim(worker, vec![dir.clone()], Purpose::Start, |claims| claims.iter().find_map(removed)) {
            Ok(claim) => Ok(claim),
            Err(tree) => {
                let cause = format!("the worktree {} is being removed", tree.display());
                Err(Refusal::new(RefusalKind::Running, cause).remedy("use another directory, or try again").of(worker))
            }
        }
    }

    /// Claims a worktree for its removal on behalf of `worker`, whose own start does not count.
    fn vacate(&self, worker: &str, paths: Vec<PathBuf>) -> Result<Claim, WorktreeError> {
        let trees = paths.clone();
        let enters = |entry: &Entry| {
            let is_inside = |dir: &PathBuf| trees.iter().any(|tree| dir.starts_with(tree));
            let is_other = entry.purpose == Purpose::Start && entry.worker != worker;
            (is_other && entry.paths.iter().any(is_inside)).then(|| entry.worker.clone())
        };
        let claimed = self.claim(worker, paths, Purpose::Removal, |claims| claims.iter().find_map(enters));
        claimed.map_err(WorktreeError::Used)
    }

    fn claim<T>(
        &self,
        worker: &str,
        paths: Vec<PathBuf>,
        purpose: Purpose,
        obstacle: impl FnOnce(&[Entry]) -> Option<T>,
    ) -> Result<Claim, T> {
        self.with(|claims| {
            if let Some(obstacle) = obstacle(&claims.all) {
                return Err(obstacle);
            }
            claims.last += 1;
            let id = claims.last;
            claims.all.push(Entry { id, worker: worker.to_owned(), paths, purpose });
            Ok(Claim { sites: self.clone(), id })
        })
    }

    fn with<T>(&self, work: impl FnOnce(&mut Claims) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Claims a worktree for its removal. While the claim is held, no worker is started in it.
///
/// # Errors
/// Fails if another worker than `worker` runs in it, is being started there, or will be restarted.
pub async fn vacated(
    ports: &Ports,
    registry: &RegistryHandle,
    sites: &Sites,
    worker: &str,
    tree: &str,
) -> Result<Claim, WorktreeError> {
    let paths = names_of(tree.to_owned()).await;
    // Before the rows are read: a start claims its directory until its row is written.
    let claim = sites.vacate(worker, paths.clone())?;
    let unknown =
        |cause: String| WorktreeError::Unknown(format!("cannot tell which workers use the worktree: {cause}"));
    let rows = registry.rows().await.map_err(|error| unknown(error.to_string()))?;
    for row in rows.iter().filter(|row| row.name != worker && is_near(ports, row, &paths)) {
        let record = WorkerRecord::read(ports, registry, &row.name).await.map_err(|refusal| unknown(refusal.cause))?;
        if record.is_running() || record.will_be_restarted() {
            return Err(WorktreeError::Used(row.name.clone()));
        }
    }
    Ok(claim)
}

/// Reports whether a worker would be in one of these directories if it runs, by its row or by its process: the directory
/// in its row may be written with links.
fn is_near(ports: &Ports, row: &Row, paths: &[PathBuf]) -> bool {
    let real =
        || row.usable_pid().filter(|_| row.status == WireStatus::Running).and_then(|pid| ports.processes.dir(pid));
    paths.iter().any(|tree| row.works_in(tree))
        || real().is_some_and(|dir| paths.iter().any(|tree| dir.starts_with(tree)))
}

/// Returns the name of a directory and, if it is another one, its real name.
async fn names_of(tree: String) -> Vec<PathBuf> {
    let path = PathBuf::from(&tree);
    let real = tokio::task::spawn_blocking(move || Path::new(&tree).canonicalize()).await;
    let real = real.ok().and_then(Result::ok).filter(|real| *real != path);
    std::iter::once(path).chain(real).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(tree: &str) -> Vec<PathBuf> {
        vec![PathBuf::from(tree)]
    }

    #[test]
    fn a_start_and_a_removal_exclude_each_other() {
        let sites = Sites::default();
        let start = sites.enter("b", "/trees/a/sub").expect("is free");
        assert_eq!(sites.vacate("a", paths("/trees/a")).err(), Some(WorktreeError::Used("b".to_owned())));
        // A directory whose name only begins alike is another one.
        drop(sites.vacate("ab", paths("/trees/a/su")).expect("is free"));
        drop(start);
        let removal = sites.vacate("a", vec![PathBuf::from("/link/a"), PathBuf::from("/trees/a")]).expect("is free");
        for dir in ["/trees/a", "/trees/a/sub", "/link/a/sub"] {
            let refusal = sites.enter("b", dir).expect_err("is being removed");
            assert!(
                refusal.kind == RefusalKind::Running && refusal.cause.ends_with("/a is being removed"),
                "{refusal:?}"
            );
        }
        for dir in ["/trees", "/trees/ab"] {
            drop(sites.enter("b", dir).expect("is free"));
        }
        drop(removal);
        drop(sites.enter("b", "/trees/a").expect("is free again"));
    }

    #[test]
    fn a_worker_removes_what_its_own_failed_start_has_made() {
        let sites = Sites::default();
        let _start = sites.enter("a", "/trees/a").expect("is free");
        sites.vacate("a", paths("/trees/a")).expect("the start is its own");
    }
}
