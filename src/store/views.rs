//! The registry as readers see it: combines rows, leases and exit records.
//!
//! Takes no lock, asks no supervisor, and writes nothing except a quarantine link if `state.json` is corrupt.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::OpenOptions;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use swarm_actors::registry::store::{self, Loaded};
use swarm_actors::registry::table::{self, Unreadable};
use swarm_actors::registry::{StoreError, reconcile};
use swarm_actors::sessions::kind_of;
use swarm_model::asks::Waits;
use swarm_model::{
    Activity, Doing, FineState, ProcessId, Refusal, RefusalKind, Row, RowKey, SwarmMeta, TurnEnd, WireStatus,
    WorkerView,
};
use swarm_ports::{Records as _, Scan};

use super::asks::Asks;
use super::asks::present::ATTEMPT;
use super::records::{DiskRecords, IDLE, STUCK, WAITS, WORKS};
use super::runs::{given_up, order};
use super::sessions::{self, Tool};
use crate::legacy_process;
use crate::summary;
pub use crate::summary::Detail;
use crate::unlisted::{self, Known, Listed};
pub use swarm_actors::registry::table::Pick;
use swarm_sys::files::open_regular;
use swarm_sys::paths::Paths;
use swarm_sys::{attributes, clock, procfs};
use swarm_tmux::{PaneLine, Server, Tmux};

/// Minimum number of workers for a thread of its own, which takes as long to start as some tens of workers to read.
const PART_MIN: usize = 150;

/// Result of reading the registry.
#[derive(Default)]
pub struct Registry {
    /// Workers in the order of the file.
    pub workers: Vec<WorkerView>,
    /// Unreadable rows: (name or position, cause).
    pub unreadable: Vec<(String, String)>,
    /// Names of the workers above that have no row in the file, and run.
    pub unlisted: Vec<String>,
    /// Warnings to print to stderr as `swarm: warning: …`.
    pub warnings: Vec<String>,
}

impl Registry {
    /// Returns the worker of this name; of several rows, the one that the supervisor means, too.
    pub fn find(&self, name: &str) -> Option<&WorkerView> {
        let workers = self.workers.iter().filter(|worker| worker.row.name == name);
        workers.reduce(|first, other| if other.row.is_later_than(&first.row) { other } else { first })
    }
}

/// Maximum number of times that workers are read again because one of them was being forgotten.
const LOADS_MAX: usize = 3;

/// Reads all workers, for `ls`, `wait --all` and similar verbs.
///
/// # Errors
/// Fails if `state.json` cannot be read at all (a directory, no permission, …). Corrupt JSON is not an error.
pub fn load(paths: &Paths) -> Result<Registry, Refusal> {
    load_where(paths, Detail::Fine, Pick::All)
}

/// Reads one worker, without checking the processes of the others.
///
/// # Errors
/// Fails as [`load`] does.
pub fn load_one(paths: &Paths, name: &str) -> Result<Option<WorkerView>, Refusal> {
    let workers = load_where(paths, Detail::Fine, Pick::Named(&[name]))?.workers.into_iter();
    Ok(workers.reduce(|first, other| if other.row.is_later_than(&first.row) { other } else { first }))
}

/// Returns the evidence in a marker file of the generation in `dir`; `None` if it has no such mark.
fn marked(dir: &Path, leaf: &str) -> Option<String> {
    open_regular(OpenOptions::new().read(true), &dir.join(leaf)).and_then(io::read_to_string).ok()
}

/// Returns the activity that the supervisor saw on the agent's screen and recorded in a marker file.
fn seen(dir: &Path, leaf: &str, doing: Doing) -> Option<Activity> {
    let what = marked(dir, leaf)?;
    let modified = std::fs::metadata(dir.join(leaf)).and_then(|meta| meta.modified()).ok()?;
    let since_ms = modified.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
    let kind = (doing == Doing::Waiting).then(|| kind_of(&what));
    let turn = TurnEnd::of_text(&what).filter(|_| doing == Doing::Idle);
    // Of an agent that works, a screen says no more.
    let what = Some(what).filter(|what| !what.is_empty());
    Some(Activity { doing, what, since_ms, kind, turn })
}

/// Returns what the agent of a running worker does. What the agent itself reports counts, unless its screen showed later
/// that it asks something, for example for a login, or that it works although it had asked.
fn activity_of(view: &WorkerView, dir: Option<&Path>) -> Option<Activity> {
    if let Some(attempt) = order::attempt_of(&view.row.cmd) {
        let told = || sessions::activity(Path::new(&view.row.cwd)).map(Activity::from);
        return seen(attempt, order::WAITING, Doing::Waiting).or_else(told);
    }
    last_turn(dir?)
}

/// Returns how the last turn of the agent of the generation in `dir` ended, in words, if it failed or was interrupted. Also
/// after the end of its worker.
pub fn broken_turn(dir: &Path) -> Option<String> {
    last_turn(dir).filter(|last| last.turn.is_some())?.what
}

/// Returns the last activity of the agent of the generation in `dir`, also after its end. `None` if none is recorded.
fn last_turn(dir: &Path) -> Option<Activity> {
    let marks = [(WAITS, Doing::Waiting), (IDLE, Doing::Idle), (WORKS, Doing::Working)];
    latest(sessions::recorded(dir), marks.into_iter().find_map(|(leaf, doing)| seen(dir, leaf, doing)))
}

/// Returns the activity that counts: what the agent reported, or what its screen showed.
fn latest(told: Option<Tool>, shown: Option<Activity>) -> Option<Activity> {
    let operation = told.as_ref().and_then(|tool| tool.operation.clone());
    let waited = told.as_ref().and_then(|tool| tool.waited.clone());
    match (told.map(Activity::from), shown) {
        (Some(told), Some(shown)) if shown.since_ms > told.since_ms => match (told.doing, shown.doing) {
            // No agent reports that it was answered before the step is done about which it asked.
            (Doing::Waiting, Doing::Working) => Some(Activity { what: operation, ..shown }),
            // Nor does it report that its dialog was dismissed.
            (Doing::Waiting, Doing::Idle) if shown.what != waited => Some(shown),
            // claude reports no end of a turn that is interrupted before its first output.
            (Doing::Working, Doing::Idle) => Some(shown),
            (_, Doing::Waiting) if shown.what != told.what && shown.what != waited => Some(shown),
            _ => Some(told),
        },
        (told, shown) => told.or(shown),
    }
}

/// Returns the row of this name as stored on disk.
pub fn row(paths: &Paths, name: &str) -> Option<Arc<Row>> {
    let records = DiskRecords::new(paths.clone());
    let rows = read_rows(paths, &records, Pick::Named(&[name]), &mut Vec::new()).ok()?;
    rows.into_iter().find_map(Result::ok)
}

/// Returns the names of the workers whose rows, as stored on disk, say `running`. Empty if the registry cannot be read.
pub fn stored_as_running(paths: &Paths) -> BTreeSet<String> {
    let rows = read_rows(paths, &DiskRecords::new(paths.clone()), Pick::All, &mut Vec::new()).unwrap_or_default();
    let running = rows.into_iter().flatten().filter(|row| row.status == WireStatus::Running);
    running.map(|row| row.name.clone()).collect()
}

/// Returns the directory of a worker's session, or `None` if it has no session.
pub fn session_dir(paths: &Paths, worker: &WorkerView) -> Option<PathBuf> {
    let generation = worker.row.swarm()?.generation;
    let facts = DiskRecords::new(paths.clone()).read(&worker.row.name, generation).ok().flatten()?;
    Some(facts.spec.spec()?.session()?.dir.into())
}

/// Reads the selected workers.
///
/// # Errors
/// Fails as [`load`] does.
pub fn load_where(paths: &Paths, detail: Detail, pick: Pick<'_>) -> Result<Registry, Refusal> {
    let mut registry = load_once(paths, detail, pick)?;
    for _ in 0..LOADS_MAX {
        if detail == Detail::Word || !is_being_forgotten(paths, &registry) {
            break;
        }
        registry = load_once(paths, detail, pick)?;
    }
    Ok(registry)
}

/// Reports whether a worker without an exit record has been forgotten or started again since it was read. A removal takes
/// the row first and then the records, so that a row that was read before it seems to have no end.
fn is_being_forgotten(paths: &Paths, registry: &Registry) -> bool {
    let is_open = |view: &&WorkerView| view.state == FineState::Exited && view.exit.is_none();
    let open: Vec<&WorkerView> = registry.workers.iter().filter(is_open).collect();
    if open.is_empty() {
        return false;
    }
    let names: Vec<&str> = open.iter().map(|view| view.row.name.as_str()).collect();
    let records = DiskRecords::new(paths.clone());
    let now = read_rows(paths, &records, Pick::Named(&names), &mut Vec::new()).unwrap_or_default();
    let now: Vec<RowKey> = now.into_iter().flatten().map(|row| row.key()).collect();
    !open.iter().all(|view| now.contains(&view.row.key()))
}

fn load_once(paths: &Paths, detail: Detail, pick: Pick<'_>) -> Result<Registry, Refusal> {
    let records = DiskRecords::new(paths.clone());
    let mut registry = Registry::default();
    let mut windows = Windows::default();
    let mut rows = Vec::new();
    for row in read_rows(paths, &records, pick, &mut registry.warnings)? {
        match row {
            Ok(row) => rows.push(row),
            Err(bad) => registry.unreadable.push((bad.label, bad.error.to_string())),
        }
    }
    let unopened = |error: io::Error| unread(&format!("cannot read {}: {error}", paths.workers().display()));
    let seen = summarize_rows(paths, &rows, detail, &mut registry.warnings).map_err(unopened)?;
    let mut rows: Vec<(Arc<Row>, Seen)> = rows.into_iter().zip(seen).collect();
    let lost = unlisted_rows(paths, &records, &rows, &registry.unreadable, pick).map_err(unopened)?;
    if !lost.is_empty() {
        rows.retain(|(row, _)| lost.iter().all(|lost| lost.name != row.name));
        registry.unlisted = lost.iter().map(|row| row.name.clone()).collect();
        let lost: Vec<Arc<Row>> = lost.into_iter().map(Arc::new).collect();
        let seen = summarize_rows(paths, &lost, detail, &mut registry.warnings).map_err(unopened)?;
        rows.extend(lost.into_iter().zip(seen));
    }
    let views = rows.into_iter().map(|(row, seen)| {
        match &seen {
            Seen::Records(summary) => reconcile::judge(row, Some(summary.into()), None),
            Seen::Nothing => {
                let foreign = windows.process(&row, records.boot());
                reconcile::judge(row, None, foreign)
            }
            // Without a directory, so that whoever waits for its end reads its records again instead of watching them.
            Seen::Unread(summary) => WorkerView { dir: None, ..reconcile::judge(row, Some(summary.into()), None) },
        }
    });
    registry.workers = views.collect();
    if detail == Detail::Fine {
        add_activity(paths, &mut registry);
        given_up::mark(&mut registry.workers);
    }
    registry.warnings.extend(windows.failed.into_values());
    Ok(registry)
}

/// Adds what the agents of these workers do, are stuck at, or ask for, as [`Detail::Fine`] does.
pub fn add_activity(paths: &Paths, registry: &mut Registry) {
    for view in registry.workers.iter_mut().filter(|view| view.state.is_running()) {
        let dir = view.dir.as_ref().map(|dir| paths.workers().join(dir));
        view.activity = activity_of(view, dir.as_deref());
        view.stuck = dir.as_deref().and_then(|dir| marked(dir, STUCK)).filter(|_| view.doing() != Some(Doing::Waiting));
    }
    ask_all(paths, registry);
}

/// Returns the rows of running workers that the file does not have.
fn unlisted_rows(
    paths: &Paths,
    records: &DiskRecords,
    rows: &[(Arc<Row>, Seen)],
    unreadable: &[(String, String)],
    pick: Pick<'_>,
) -> io::Result<Vec<Row>> {
    let mut listed = Listed::new();
    for (row, seen) in rows {
        let has_records = !matches!(seen, Seen::Nothing);
        let start =
            row.swarm().map(|SwarmMeta { generation, id, .. }| Known { generation: *generation, has_records, id });
        let known = listed.entry(row.name.as_str()).or_insert(start);
        *known = (*known).max(start);
    }
    listed.extend(unreadable.iter().map(|(label, _)| (label.as_str(), None)));
    let is_present = |name: &&str| match listed.get(name) {
        Some(Some(known)) => !known.may_be_outdated(name, records),
        Some(None) => true,
        None => false,
    };
    match pick {
        Pick::Named(names) if names.iter().all(is_present) => Ok(Vec::new()),
        pick => unlisted::rows(paths, records, &listed, pick),
    }
}

/// Adds what the agents ask for in requests that are open. An agent that runs waits meanwhile, whatever else it was seen
/// doing; what it says itself about its wait stays.
fn ask_all(paths: &Paths, registry: &mut Registry) {
    let open = match Asks::new(paths).open() {
        Ok(open) => open,
        Err(error) => return registry.warnings.push(format!("cannot read the requests of agents: {error}")),
    };
    for ask in &open {
        let asks = |view: &&mut WorkerView| view.row.name == ask.who.worker && view.ask.is_none();
        let Some(view) = registry.workers.iter_mut().find(asks) else { continue };
        let generation = view.row.swarm().map(|meta| meta.generation);
        let is_other = ask.who.generation.is_some() && generation.is_some() && ask.who.generation != generation;
        let runs = view.state.is_running();
        // The requests of a run's attempts outlive their processes: the run ends them.
        let outlives = ask.waits == Waits::Parked || (ask.key.starts_with(ATTEMPT) && !runs);
        if !outlives && (is_other || !runs) {
            continue;
        }
        let needs = ask.needs();
        if runs && view.doing() != Some(Doing::Waiting) {
            let (what, kind) = (Some(needs.text.clone()), Some(needs.kind));
            view.activity = Some(Activity { doing: Doing::Waiting, what, since_ms: needs.since_ms, kind, turn: None });
            view.stuck = None;
        }
        view.ask = Some(needs);
    }
}

fn read_rows(
    paths: &Paths,
    records: &DiskRecords,
    pick: Pick<'_>,
    warnings: &mut Vec<String>,
) -> Result<Vec<Result<Arc<Row>, Unreadable>>, Refusal> {
    let refused = |error: &StoreError| Refusal { remedy: error.remedy(), ..unread(&error.to_string()) };
    match store::load_with(&paths.state(), |text| table::rows(text, pick)).map_err(|error| refused(&error))? {
        Loaded::Table(rows) => Ok(rows),
        Loaded::Absent => {
            let rebuilt = rebuilt(records, "missing")?;
            if !rebuilt.is_empty() {
                warnings.push("missing state file, rebuilt from the workers' own records".to_owned());
            }
            Ok(picked(rebuilt, pick))
        }
        Loaded::Damaged(cause) => {
            if let Err(error) = store::quarantine(&paths.state()) {
                warnings.push(error.to_string());
            }
            warnings.push(format!("corrupt state file, rebuilt from the workers' own records ({cause})"));
            Ok(picked(rebuilt(records, "corrupt")?, pick))
        }
    }
}

/// Returns the rows that the records prove, as the supervisor does for such a file.
fn rebuilt(records: &DiskRecords, state: &str) -> Result<Vec<Row>, Refusal> {
    let scan = records.scan_now().and_then(Scan::complete);
    let scan = scan.map_err(|error| unread(&format!("cannot rebuild the {state} state file: {error}")))?;
    Ok(reconcile::rebuild(&scan, &clock::host()))
}

fn picked(rows: Vec<Row>, pick: Pick<'_>) -> Vec<Result<Arc<Row>, Unreadable>> {
    rows.into_iter().filter(|row| pick.takes(&row.name)).map(|row| Ok(Arc::new(row))).collect()
}

/// Returns the refusal if the registry cannot be read.
fn unread(cause: &str) -> Refusal {
    Refusal::new(RefusalKind::Registry, cause)
}

/// What the records say about a row.
enum Seen {
    /// No records belong to the row: another program started the worker.
    Nothing,
    Records(summary::Summary),
    /// The records cannot be read. The worker counts as running, because it may be.
    Unread(summary::Summary),
}

/// Reads the records of each row. If there are many rows, uses several processors: nearly all of the time is spent in the
/// kernel.
///
/// # Errors
/// Fails if the directory of all records exists and cannot be opened.
fn summarize_rows(
    paths: &Paths,
    rows: &[Arc<Row>],
    detail: Detail,
    warnings: &mut Vec<String>,
) -> io::Result<Vec<Seen>> {
    let threads = if rows.len() < 2 * PART_MIN { 1 } else { attributes::usable_cpu_count().min(rows.len() / PART_MIN) };
    let (first, others) = rows.split_at(rows.len().div_ceil(threads.max(1)));
    let summarized = |part: &[Arc<Row>]| summarize_part(paths, part, detail);
    let parts = std::thread::scope(|scope| {
        let begin = |part| {
            let thread = std::thread::Builder::new().spawn_scoped(scope, move || summarized(part));
            // Without a thread, this one reads it.
            thread.map_err(|_| part)
        };
        let begun: Vec<_> = others.chunks(first.len().max(1)).map(begin).collect();
        let mut parts = vec![summarized(first)];
        parts.extend(begun.into_iter().map(|thread| match thread {
            Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            Err(part) => summarized(part),
        }));
        parts
    });
    let mut all = Vec::with_capacity(rows.len());
    let mut damage = None;
    for part in parts {
        let part = part?;
        all.extend(part.seen);
        warnings.extend(part.warnings);
        damage = damage.or(part.damage);
    }
    let lost = |cause: String| format!("{cause}: how workers ended before the machine was restarted may be missing");
    warnings.extend(damage.map(lost));
    Ok(all)
}

/// Records of some of the rows.
#[derive(Default)]
struct Part {
    seen: Vec<Seen>,
    /// Warnings about single workers.
    warnings: Vec<String>,
    /// Why the ends of workers of earlier boots cannot be read, if that is so.
    damage: Option<String>,
}

/// Reads the records of each row.
fn summarize_part(paths: &Paths, rows: &[Arc<Row>], detail: Detail) -> io::Result<Part> {
    let mut part = Part::default();
    match summary::Records::open(paths)? {
        Some(records) => {
            part.seen = summarize_all(&records, rows, detail, &mut part.warnings);
            part.damage = records.damage().map(str::to_owned);
        }
        None => part.seen.extend(rows.iter().map(|_| Seen::Nothing)),
    }
    Ok(part)
}

/// Reads the records of each row.
fn summarize_all(
    records: &summary::Records,
    rows: &[Arc<Row>],
    detail: Detail,
    warnings: &mut Vec<String>,
) -> Vec<Seen> {
    let mut summarize = |row: &Arc<Row>| match records.of(row, detail) {
        Ok(Some(seen)) if reconcile::belongs(row, &seen) => Seen::Records(seen),
        Ok(_) => Seen::Nothing,
        Err(error) => {
            let name = &row.name;
            warnings.push(format!("cannot read the records of worker '{name}', so it counts as running: {error}"));
            Seen::Unread(summary::running(row, row.swarm().map_or(0, |meta| meta.generation)))
        }
    };
    rows.iter().map(&mut summarize).collect()
}

/// Windows of workers started by the original `swarm`; each tmux server is asked once.
#[derive(Default)]
struct Windows {
    listed: BTreeMap<Option<String>, Vec<PaneLine>>,
    failed: BTreeMap<Option<String>, String>,
}

impl Windows {
    fn process(&mut self, row: &Row, boot: &str) -> Option<ProcessId> {
        let Some(place) = &row.tmux else { return legacy_process::alive(row, boot).ok().flatten() };
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

#[cfg(test)]
#[path = "views_tests.rs"]
mod tests;
