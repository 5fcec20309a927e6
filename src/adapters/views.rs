//! The registry as a reader sees it: rows, leases and exit records brought
//! together. Takes no lock, asks no supervisor, writes nothing but a
//! quarantine link when `state.json` is damaged.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use swarm_actors::registry::store::{self, Loaded};
use swarm_actors::registry::table::{self, Unreadable};
use swarm_actors::registry::{StoreError, reconcile};
use swarm_model::{ProcessId, Refusal, RefusalKind, Row, WorkerView};
use swarm_ports::Records as _;

use super::clock;
use super::glance;
pub use super::glance::Detail;
use super::records::{DiskRecords, STUCK};
use super::runs::order;
use super::tmux::{PaneLine, Server, Tmux};
use super::{foreign, procfs};
use crate::paths::Paths;
pub use swarm_actors::registry::table::Pick;

/// What reading the registry gave.
pub struct Registry {
    /// In the order of the file.
    pub workers: Vec<WorkerView>,
    /// Rows that could not be read: (name or position, cause).
    pub unreadable: Vec<(String, String)>,
    /// For stderr, as `swarm: warning: …`.
    pub warnings: Vec<String>,
}

impl Registry {
    pub fn find(&self, name: &str) -> Option<&WorkerView> {
        self.workers.iter().find(|worker| worker.row.name == name)
    }
}

/// Reads everything, for `ls`, `wait --all` and the like.
///
/// # Errors
/// When `state.json` cannot be read at all (a directory, no permission, …).
pub fn load(paths: &Paths) -> Result<Registry, Refusal> {
    load_where(paths, Detail::Fine, Pick::All)
}

/// Reads one worker, without looking at the others' processes.
///
/// # Errors
/// As [`load`].
pub fn load_one(paths: &Paths, name: &str) -> Result<Option<WorkerView>, Refusal> {
    Ok(load_where(paths, Detail::Fine, Pick::Named(&[name]))?.workers.into_iter().next())
}

/// Why it is marked as stuck.
fn stuck(dir: &Path) -> Option<String> {
    std::fs::read_to_string(dir.join(STUCK)).ok()
}

/// The row of this name as it is on disk.
pub fn row(paths: &Paths, name: &str) -> Option<Arc<Row>> {
    let records = DiskRecords::new(paths.clone());
    let rows = read_rows(paths, &records, Pick::Named(&[name]), &mut Vec::new()).ok()?;
    rows.into_iter().find_map(Result::ok)
}

/// The directory of a worker's session; none where it has none.
pub fn session_dir(paths: &Paths, worker: &WorkerView) -> Option<PathBuf> {
    let generation = worker.row.swarm()?.generation;
    let facts = DiskRecords::new(paths.clone()).read(&worker.row.name, generation).ok().flatten()?;
    Some(facts.spec.spec()?.session()?.dir.into())
}

/// Reads the rows that are picked.
///
/// # Errors
/// As [`load`].
pub fn load_where(paths: &Paths, detail: Detail, pick: Pick<'_>) -> Result<Registry, Refusal> {
    let records = DiskRecords::new(paths.clone());
    let mut registry = Registry { workers: Vec::new(), unreadable: Vec::new(), warnings: Vec::new() };
    let mut windows = Windows::default();
    let mut rows = Vec::new();
    for row in read_rows(paths, &records, pick, &mut registry.warnings)? {
        match row {
            Ok(row) => rows.push(row),
            Err(bad) => registry.unreadable.push((bad.label, bad.error.to_string())),
        }
    }
    let seen = match glance::Records::open(paths) {
        Some(records) => glance_all(&records, &rows, detail),
        None => rows.iter().map(|_| None).collect(),
    };
    let views = rows.into_iter().zip(seen).map(|(row, seen)| {
        let foreign = if seen.is_none() { windows.process(&row, records.boot()) } else { None };
        reconcile::judge(row, seen.as_ref().map(Into::into), foreign)
    });
    registry.workers = views.collect();
    if detail == Detail::Fine {
        for view in registry.workers.iter_mut().filter(|view| view.state.is_running()) {
            view.waiting = order::waiting_of(&view.row.cmd);
            view.stuck = view.dir.as_ref().and_then(|dir| stuck(&paths.workers().join(dir)));
        }
    }
    registry.warnings.extend(windows.failed.into_values());
    Ok(registry)
}

fn read_rows(
    paths: &Paths,
    records: &DiskRecords,
    pick: Pick<'_>,
    warnings: &mut Vec<String>,
) -> Result<Vec<Result<Arc<Row>, Unreadable>>, Refusal> {
    let refused = |error: &StoreError| Refusal {
        remedy: error.remedy(),
        ..Refusal::new(RefusalKind::Registry, error.to_string())
    };
    match store::load_with(&paths.state(), |text| table::rows(text, pick)).map_err(|error| refused(&error))? {
        Loaded::Absent => Ok(Vec::new()),
        Loaded::Table(rows) => Ok(rows),
        Loaded::Damaged(cause) => {
            if let Err(error) = store::quarantine(&paths.state()) {
                warnings.push(error.to_string());
            }
            warnings.push(format!("corrupt state file, rebuilt from the workers' own records ({cause})"));
            let rebuilt = reconcile::rebuild(&records.scan_now().unwrap_or_default(), &clock::host());
            let picked = rebuilt.into_iter().filter(|row| pick.takes(&row.name));
            Ok(picked.map(|row| Ok(Arc::new(row))).collect())
        }
    }
}

/// Rows from which on a second processor is worth its start.
const ROWS_FOR_THREADS_MIN: usize = 256;
const THREADS_MAX: usize = 4;

/// The records of each row that has any. Small reads from the page cache, many
/// of them: shared among processors when there are enough.
fn glance_all(records: &glance::Records, rows: &[Arc<Row>], detail: Detail) -> Vec<Option<glance::Glance>> {
    let glance = |row: &Arc<Row>| records.of(row, detail).filter(|seen| reconcile::belongs(row, seen));
    if rows.len() < ROWS_FOR_THREADS_MIN {
        return rows.iter().map(glance).collect();
    }
    // Asking costs a dozen system calls.
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
    if threads == 1 {
        return rows.iter().map(glance).collect();
    }
    let (first, rest) = rows.split_at(rows.len().div_ceil(threads));
    std::thread::scope(|scope| {
        let chunks = rest.chunks(rest.len().div_ceil(threads - 1).max(1));
        let others: Vec<_> = chunks
            .map(|chunk| {
                let work = move || chunk.iter().map(glance).collect::<Vec<_>>();
                // Where no thread is to be had, the work is done all the same.
                std::thread::Builder::new().spawn_scoped(scope, work).map_err(|_| chunk)
            })
            .collect();
        let mut facts: Vec<_> = first.iter().map(glance).collect();
        for other in others {
            facts.extend(match other {
                Ok(task) => task.join().expect("looking at records does not panic"),
                Err(chunk) => chunk.iter().map(glance).collect(),
            });
        }
        facts
    })
}

/// Windows of the other program's workers: one question to tmux per server.
#[derive(Default)]
struct Windows {
    listed: BTreeMap<Option<String>, Vec<PaneLine>>,
    failed: BTreeMap<Option<String>, String>,
}

impl Windows {
    fn process(&mut self, row: &Row, boot: &str) -> Option<ProcessId> {
        let Some(place) = &row.tmux else { return foreign::alive(row, boot).ok().flatten() };
        if !self.listed.contains_key(&place.socket) {
            let server = place.socket.clone().map_or(Server::Default, Server::Name);
            let environment: Vec<(String, String)> = std::env::vars().collect();
            let panes = Tmux::new(server, &environment).list().unwrap_or_else(|error| {
                self.failed.insert(place.socket.clone(), error.to_string());
                Vec::new()
            });
            self.listed.insert(place.socket.clone(), panes);
        }
        let panes = self.listed.get(&place.socket)?;
        let same = |pane: &&PaneLine| pane.session == place.session && pane.window == place.window && !pane.dead;
        panes.iter().find(same).and_then(|pane| procfs::identity(pane.pane_pid, boot))
    }
}
