//! Directories in which workers run or are being started, and worktrees that are being removed. No worktree is removed
//! under a worker, and no worker is started in a worktree that is being removed.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::record::WorkerRecord;
use crate::registry::RegistryHandle;
use swarm_model::{Refusal, RefusalKind, Row, WireStatus};
use swarm_ports::{Ports, WorktreeError};

/// Maximum time to find the real names of directories.
const LOOK_MAX: Duration = Duration::from_secs(5);

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
    pub async fn enter(&self, worker: &str, dir: &str) -> Result<Claim, Refusal> {
        let names = names_of(dir.to_owned()).await;
        self.enter_named(worker, names)
    }

    fn enter_named(&self, worker: &str, names: Vec<PathBuf>) -> Result<Claim, Refusal> {
        let dirs = names.clone();
        let removed = |entry: &Entry| {
            let tree = entry.paths.iter().find(|tree| dirs.iter().any(|dir| dir.starts_with(tree)));
            tree.filter(|_| entry.purpose == Purpose::Removal).cloned()
        };
        match self.claim(worker, names, Purpose::Start, |claims| claims.iter().find_map(removed)) {
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
    let others: Vec<_> = rows.iter().filter(|row| row.name != worker).collect();
    let real = real_dirs(others.iter().map(|row| row.cwd.clone()).collect()).await;
    for row in others {
        let near = nearness(ports, row, &real, &paths);
        if near == Nearness::Away {
            continue;
        }
        let record = WorkerRecord::read(ports, registry, &row.name).await.map_err(|refusal| unknown(refusal.cause))?;
        let is_in = || near == Nearness::In || is_below(record.pid().and_then(|pid| ports.processes.dir(pid)), &paths);
        if (record.is_running() || record.will_be_restarted()) && is_in() {
            return Err(WorktreeError::Used(row.name.clone()));
        }
        if near == Nearness::Unknown && (record.is_running() || record.will_be_restarted()) {
            return Err(unknown(format!("the directory of worker '{}' does not answer", row.name)));
        }
    }
    Ok(claim)
}

/// Whether a worker is in the worktree if it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Nearness {
    Away,
    In,
    /// The row does not name the process, which may have gone elsewhere.
    ByProcess,
    /// The disk of its directory does not answer.
    Unknown,
}

/// Compares a row with the names of a worktree. The directory in the row may be written with links, and with `..`.
fn nearness(ports: &Ports, row: &Row, real: &RealDirs, paths: &[PathBuf]) -> Nearness {
    let pid = row.usable_pid().filter(|_| row.status == WireStatus::Running);
    if paths.iter().any(|tree| row.works_in(tree))
        || is_below(real.get(&row.cwd).cloned().flatten(), paths)
        || is_below(pid.and_then(|pid| ports.processes.dir(pid)), paths)
    {
        return Nearness::In;
    }
    match real.contains_key(&row.cwd) {
        false => Nearness::Unknown,
        true if row.tmux.is_some() => Nearness::ByProcess,
        true => Nearness::Away,
    }
}

fn is_below(dir: Option<PathBuf>, trees: &[PathBuf]) -> bool {
    dir.is_some_and(|dir| trees.iter().any(|tree| dir.starts_with(tree)))
}

/// Real names of directories by the names that rows have for them. `None` for one that does not exist. Those whose disk
/// does not answer are missing.
type RealDirs = HashMap<String, Option<PathBuf>>;

/// Returns the real names that the disks tell within the limit.
async fn real_dirs(dirs: Vec<String>) -> RealDirs {
    let found = Arc::new(Mutex::new(RealDirs::new()));
    let dirs: BTreeSet<String> = dirs.into_iter().collect();
    let mut looks = tokio::task::JoinSet::new();
    for dir in dirs {
        let found = Arc::clone(&found);
        looks.spawn_blocking(move || {
            // Only the program that wrote a relative name knows what it is relative to.
            let real = Path::new(&dir).is_absolute().then(|| Path::new(&dir).canonicalize().ok()).flatten();
            found.lock().unwrap_or_else(PoisonError::into_inner).insert(dir, real);
        });
    }
    let all = async { while looks.join_next().await.is_some() {} };
    // A look that takes longer goes on in its thread, and nobody waits for it.
    let _ = tokio::time::timeout(LOOK_MAX, all).await;
    looks.detach_all();
    found.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Returns the name of a directory and, if it is another one, its real name.
async fn names_of(dir: String) -> Vec<PathBuf> {
    let path = PathBuf::from(&dir);
    let real = real_dirs(vec![dir.clone()]).await.remove(&dir).flatten().filter(|real| *real != path);
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
        let start = sites.enter_named("b", paths("/trees/a/sub")).expect("is free");
        assert_eq!(sites.vacate("a", paths("/trees/a")).err(), Some(WorktreeError::Used("b".to_owned())));
        // A directory whose name only begins alike is another one.
        drop(sites.vacate("ab", paths("/trees/a/su")).expect("is free"));
        drop(start);
        let removal = sites.vacate("a", vec![PathBuf::from("/link/a"), PathBuf::from("/trees/a")]).expect("is free");
        for dir in ["/trees/a", "/trees/a/sub", "/link/a/sub"] {
            let refusal = sites.enter_named("b", paths(dir)).expect_err("is being removed");
            assert!(
                refusal.kind == RefusalKind::Running && refusal.cause.ends_with("/a is being removed"),
                "{refusal:?}"
            );
        }
        for dir in ["/trees", "/trees/ab"] {
            drop(sites.enter_named("b", paths(dir)).expect("is free"));
        }
        drop(removal);
        drop(sites.enter_named("b", paths("/trees/a")).expect("is free again"));
    }

    #[tokio::test]
    async fn a_start_claims_the_real_directory_too() {
        let root = tempfile::tempdir().expect("a directory");
        let real = root.path().canonicalize().expect("is there");
        std::fs::create_dir_all(real.join("trees/a")).expect("made");
        std::fs::create_dir_all(real.join("r")).expect("made");
        std::os::unix::fs::symlink(real.join("trees"), real.join("link")).expect("made");
        let sites = Sites::default();
        for dir in ["r/../trees/a", "link/a"] {
            let dir = real.join(dir).to_string_lossy().into_owned();
            let start = sites.enter("b", &dir).await.expect("is free");
            let tree = vec![real.join("trees/a")];
            assert_eq!(sites.vacate("a", tree.clone()).err(), Some(WorktreeError::Used("b".to_owned())), "{dir}");
            drop(start);
            let _removal = sites.vacate("a", tree).expect("is free");
            sites.enter("b", &dir).await.expect_err("is being removed");
        }
        assert_eq!(names_of("r".to_owned()).await, [PathBuf::from("r")], "nobody knows what it is relative to");
    }

    #[test]
    fn a_worker_removes_what_its_own_failed_start_has_made() {
        let sites = Sites::default();
        let _start = sites.enter_named("a", paths("/trees/a")).expect("is free");
        sites.vacate("a", paths("/trees/a")).expect("the start is its own");
    }
}
