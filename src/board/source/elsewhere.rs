//! Runs and flows, whose files are in the repositories of people and not in the state directory.
//!
//! | what changes | what tells it |
//! |---|---|
//! | a run begins or is over | `caller.json` or `over.json` in `run/*` |
//! | a workstream | `run.jsonl` in the home of its run |
//! | what its agent waits for | a file in the directory of the attempt |
//! | a flow is run or stopped | `caller.json` in `flow/*` |
//! | a node, a request | `flow.json` or `swarm.json` of the flow |

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::errno::Errno;
use nix::sys::inotify::{Inotify, WatchDescriptor};
use serde_json::{Map, Value, json};
use swarm_model::run::progress::{Mode, Run, Stage};
use swarm_model::{FlowPlace, QueueView, WorkerView};
use swarm_store::flows::place::Workspace;
use swarm_store::flows::registered;
use swarm_store::flows::store::{FLOW, FlowFiles};
use swarm_store::runs::home::Home;
use swarm_store::runs::{self, journal, order};
use swarm_sys::files;
use swarm_sys::paths::Paths;

use super::super::{Key, Kind, flow, item, run};
use super::{About, Board, END, Flags, NAMES, Source};

/// The journal of a run.
const JOURNAL: &str = "run.jsonl";
/// Files that register a run or a flow.
const REGISTRATION: [&str; 2] = ["caller.json", "over.json"];
/// Files of a flow that say where it stands.
const OF_FLOW: [&str; 2] = [FLOW, "swarm.json"];
/// Number of times that directories are watched while others appear.
const TRIES: usize = 4;
/// Prefix of the tag that names the run of a worker.
const TAG: &str = "run:";

/// Directories that are watched for flows, each with the only name that counts there, if not all do.
type Places = Vec<(WatchDescriptor, Option<&'static str>)>;
/// Rows of one run or flow, or why there are none.
type Rows = Vec<(Key, String)>;

/// Runs and flows that the board shows.
#[derive(Default)]
pub(super) struct Elsewhere {
    /// Current directory: the run and the flows of its repository are shown also if they are not under way.
    here: Option<PathBuf>,
    /// Merge queues, which say what became of the work of runs.
    pub queues: Arc<Vec<QueueView>>,
    /// Homes of the runs of each worker, and the id of its run.
    of_workers: BTreeMap<String, (Option<PathBuf>, Option<String>)>,
    /// Watches of the homes of runs, and of the folders of flows by their keys.
    runs: BTreeMap<PathBuf, Option<WatchDescriptor>>,
    flows: BTreeMap<String, (FlowFiles, Option<WatchDescriptor>)>,
    reads: super::super::bounded::Reads,
    /// Directories in which flows of the current directory may appear.
    places: Vec<WatchDescriptor>,
    /// Whether something could not be read or watched at the last look, so that the kernel may not tell its changes.
    pub is_doubtful: bool,
}

/// Runs and flows to read at the next look.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    /// Whether the list of runs, and each run, is to be read again.
    pub runs: bool,
    pub homes: BTreeSet<PathBuf>,
    pub flows: bool,
    pub keys: BTreeSet<String>,
}

impl Wanted {
    pub fn is_any(&self) -> bool {
        self.runs || self.flows || !self.homes.is_empty() || !self.keys.is_empty()
    }
}

impl Elsewhere {
    pub fn new(here: Option<PathBuf>) -> Self {
        Self { here, ..Self::default() }
    }

    /// Notes to which runs workers belong; `is_all`: there are no others. Reports whether that has changed.
    pub fn note_workers<'a>(&mut self, views: impl Iterator<Item = &'a WorkerView>, is_all: bool) -> bool {
        let earlier = self.of_workers.clone();
        if is_all {
            self.of_workers.clear();
        }
        for view in views {
            let place = home_of(view);
            match place == (None, None) {
                true => drop(self.of_workers.remove(&view.row.name)),
                false => drop(self.of_workers.insert(view.row.name.clone(), place)),
            }
        }
        self.of_workers != earlier
    }

    pub fn forget_worker(&mut self, name: &str) {
        self.of_workers.remove(name);
    }

    /// Returns the home of the run of a worker.
    pub fn home_of_worker(&self, name: &str) -> Option<&Path> {
        self.of_workers.get(name)?.0.as_deref()
    }
}

/// Returns the home of the run of a worker if its command or its worktree says it, and the id of its run.
fn home_of(view: &WorkerView) -> (Option<PathBuf>, Option<String>) {
    let above = |path: &Path| Some(path.parent()?.parent()?.to_owned());
    let id = view.row.tags.iter().find_map(|tag| tag.strip_prefix(TAG)).map(str::to_owned);
    let tree = view.row.worktree.as_ref().filter(|_| id.is_some()).map(|tree| Path::new(&tree.path));
    let tree = tree.filter(|path| path.parent().is_some_and(|above| above.ends_with("worktrees")));
    (order::attempt_of(&view.row.cmd).and_then(above).or_else(|| tree.and_then(above)), id)
}

impl Source {
    /// Notes an event in a directory of runs or flows.
    pub(super) fn take_elsewhere(&mut self, about: &About, name: &OsStr, is_over: bool) {
        let is_in = |names: &[&str]| is_over || names.iter().any(|one| name == *one);
        let wanted = &mut self.wanted.elsewhere;
        match about {
            About::Runs => wanted.runs = true,
            About::RunPlace => wanted.runs |= is_in(&REGISTRATION),
            About::Home(home) => {
                if is_in(&[JOURNAL]) {
                    wanted.homes.insert(home.clone());
                }
                if let Some(watch) = self.elsewhere.runs.get_mut(home).filter(|_| is_over) {
                    *watch = None;
                }
                // The files of a run of a job file are where it is registered.
                wanted.runs |= is_in(&REGISTRATION);
            }
            About::Flows => wanted.flows = true,
            About::FlowPlace => wanted.flows |= is_in(&REGISTRATION),
            About::Flow(key) => {
                if is_in(&OF_FLOW) {
                    wanted.keys.insert(key.clone());
                }
                if let Some((_, watch)) = self.elsewhere.flows.get_mut(key).filter(|_| is_over) {
                    *watch = None;
                }
                wanted.flows |= is_over;
            }
            About::Here(only) => wanted.flows |= only.is_none_or(|only| is_in(&[only])),
            _ => {}
        }
    }

    /// Reads the runs and flows that have changed.
    pub(super) fn read_elsewhere(&mut self, wanted: Wanted, board: &mut Board) -> Vec<String> {
        let mut warnings = Vec::new();
        if wanted.runs && wanted.flows {
            self.elsewhere.is_doubtful = false;
        }
        let mut homes = wanted.homes;
        if wanted.runs {
            homes = self.find_runs(board);
        }
        for home in homes {
            // One that is not shown has an event of an earlier watch.
            if self.elsewhere.runs.contains_key(&home) {
                self.read_run(&home, board);
            }
        }
        let mut keys = wanted.keys;
        if wanted.flows {
            keys = self.find_flows(board);
        }
        keys.iter().for_each(|key| warnings.extend(self.read_flow(key, board)));
        warnings
    }

    /// Finds out which runs are shown: those that are registered, those that have a worker, and that of the current directory.
    fn find_runs(&mut self, board: &mut Board) -> BTreeSet<PathBuf> {
        let place = self.paths.runs();
        if self.watch(&place, NAMES | END, About::Runs).is_some() {
            for entry in files::list(&place).into_iter().flatten().map(|entry| entry.path()) {
                if !self.elsewhere.runs.contains_key(&entry) && files::is_absent(&entry.join(JOURNAL)) {
                    self.watch(&entry, NAMES, About::RunPlace);
                }
            }
        }
        let mut homes: BTreeSet<PathBuf> = runs::shown(&self.paths).into_iter().collect();
        homes.extend(self.elsewhere.of_workers.values().filter_map(|(home, _)| home.clone()));
        let here = self
            .elsewhere
            .here
            .as_deref()
            .and_then(swarm_config::root_above)
            .map(|root| Home::of(root).path().to_owned());
        homes.extend(here);
        homes.extend(self.homes_by_id(&homes));
        let gone: Vec<PathBuf> = self.elsewhere.runs.keys().filter(|home| !homes.contains(*home)).cloned().collect();
        for home in gone {
            let watch = self.elsewhere.runs.remove(&home).flatten();
            self.unwatch(watch);
            board.replace(|key| is_of(key, &home), Vec::new());
        }
        for home in &homes {
            self.elsewhere.runs.entry(home.clone()).or_default();
        }
        homes
    }

    /// Returns the homes of runs of job files of which workers are left.
    fn homes_by_id(&self, known: &BTreeSet<PathBuf>) -> Vec<PathBuf> {
        let of_workers = self.elsewhere.of_workers.values();
        let ids: BTreeSet<&str> =
            of_workers.filter(|(home, _)| home.is_none()).filter_map(|(_, id)| id.as_deref()).collect();
        if ids.is_empty() {
            return Vec::new();
        }
        let places = files::list(&self.paths.runs()).into_iter().flatten().map(|entry| entry.path());
        let is_meant = |place: &PathBuf| {
            !known.contains(place)
                && journal::begun(&Home::new(place)).is_ok_and(|run| ids.contains(run.plan.id.as_str()))
        };
        places.filter(is_meant).collect()
    }

    fn read_run(&mut self, home: &Path, board: &mut Board) {
        let earlier = self.elsewhere.runs.get(home).copied().flatten();
        let inotify = self.inotify.clone();
        let (queues, place) = (self.elsewhere.queues.clone(), home.to_owned());
        let read = move || {
            // Before it is read. The disk may not answer to this, either.
            let flags = NAMES | END | Flags::IN_MODIFY;
            let watch = match (earlier, inotify) {
                (None, Some(inotify)) => inotify.add_watch(&place, flags).ok(),
                (earlier, _) => earlier,
            };
            (watch, run_rows(&place, &queues))
        };
        let (watch, rows) = match self.elsewhere.reads.read(home, read) {
            Ok((watch, rows)) => (watch, rows.unwrap_or_else(|cause| unreadable(home, &cause))),
            Err(cause) => {
                self.elsewhere.is_doubtful = true;
                (earlier, unreadable(home, &cause))
            }
        };
        // The home of the current directory may not exist. It is registered when a run begins there.
        self.elsewhere.is_doubtful |= watch.is_none() && !rows.is_empty();
        if let Some(watch) = watch.filter(|_| earlier.is_none()) {
            self.about.insert(watch, About::Home(home.to_owned()));
            self.elsewhere.runs.insert(home.to_owned(), Some(watch));
        }
        board.replace(|key| is_of(key, home), rows);
    }

    fn find_flows(&mut self, board: &mut Board) -> BTreeSet<String> {
        let place = self.paths.flows();
        if self.watch(&place, NAMES | END, About::Flows).is_some() {
            for entry in files::list(&place).into_iter().flatten() {
                self.watch(&entry.path(), NAMES, About::FlowPlace);
            }
        }
        let mut found: BTreeMap<String, FlowFiles> = BTreeMap::new();
        let (paths, here, inotify) = (self.paths.clone(), self.elsewhere.here.clone(), self.inotify.clone());
        let read = move || {
            let space = here.and_then(|here| Workspace::find(None, &here).ok());
            // Before they are read. The disk may not answer to this, either.
            let watches = space.as_ref().map_or(Some(Places::new()), |space| watched(space, inotify.as_deref()?));
            (watches, all_flows(&paths, space.as_ref()))
        };
        match self.elsewhere.reads.read(&place, read) {
            Ok((watches, all)) => {
                self.watch_here(watches);
                found.extend(all.into_iter().map(|files| (flow_key(&files), files)));
            }
            // The board keeps the flows that it has.
            Err(_) => {
                self.elsewhere.is_doubtful = true;
                return self.elsewhere.flows.keys().cloned().collect();
            }
        }
        let gone: Vec<String> = self.elsewhere.flows.keys().filter(|key| !found.contains_key(*key)).cloned().collect();
        for key in gone {
            let watch = self.elsewhere.flows.remove(&key).and_then(|(_, watch)| watch);
            self.unwatch(watch);
            board.remove(&Key { kind: Kind::Flow, name: key });
        }
        for (key, files) in &found {
            self.elsewhere.flows.entry(key.clone()).or_insert_with(|| (files.clone(), None));
        }
        found.into_keys().collect()
    }

    /// Takes the watches of the directories in which flows of the current directory may appear.
    fn watch_here(&mut self, places: Option<Places>) {
        self.elsewhere.is_doubtful |= places.is_none();
        let places = places.unwrap_or_default();
        let earlier = std::mem::replace(&mut self.elsewhere.places, places.iter().map(|(watch, _)| *watch).collect());
        for (watch, only) in &places {
            match self.about.get(watch) {
                // What else it is watched for reads everything.
                Some(about) if !matches!(about, About::Here(_)) => {}
                Some(_) | None => drop(self.about.insert(*watch, About::Here(*only))),
            }
        }
        for watch in earlier.into_iter().filter(|watch| !places.iter().any(|(known, _)| known == watch)) {
            if matches!(self.about.get(&watch), Some(About::Here(_))) {
                self.unwatch(Some(watch));
            }
        }
    }

    /// Reads a flow. Returns a warning if it cannot be opened.
    fn read_flow(&mut self, key: &str, board: &mut Board) -> Option<String> {
        let (files, earlier) = self.elsewhere.flows.get(key).cloned()?;
        let (inotify, paths) = (self.inotify.clone(), self.paths.clone());
        let place = files.clone();
        let read = move || {
            let watch = match (earlier, inotify) {
                (None, Some(inotify)) => inotify.add_watch(place.dir(), NAMES | END).ok(),
                (earlier, _) => earlier,
            };
            (watch, flow_row(&place, &paths))
        };
        let (watch, row) = match self.elsewhere.reads.read(files.dir(), read) {
            Ok((watch, row)) => (watch, row),
            Err(cause) => {
                self.elsewhere.is_doubtful = true;
                (earlier, Err(cause))
            }
        };
        self.elsewhere.is_doubtful |= watch.is_none();
        if let Some(watch) = watch.filter(|_| earlier.is_none()) {
            self.about.insert(watch, About::Flow(key.to_owned()));
            self.elsewhere.flows.insert(key.to_owned(), (files, Some(watch)));
        }
        let name = Key { kind: Kind::Flow, name: key.to_owned() };
        match row {
            Ok(Some(mut row)) => {
                row.insert("key".to_owned(), json!(key));
                board.put(name, Value::Object(row).to_string());
                None
            }
            Ok(None) => {
                board.remove(&name);
                None
            }
            Err(cause) => {
                board.remove(&name);
                Some(format!("cannot read flow {key}: {cause}"))
            }
        }
    }
}

/// Reports whether a key is that of the run at a home, or of one of its workstreams.
fn is_of(key: &Key, home: &Path) -> bool {
    let home = home.to_string_lossy();
    match key.kind {
        Kind::Run => key.name == home,
        Kind::Workstream => key.name.rsplit_once('/').is_some_and(|(of, _)| of == home),
        Kind::Worker | Kind::Item | Kind::Flow => false,
    }
}

/// Returns the rows of the run at a home. None if no run was begun there.
fn run_rows(home: &Path, queues: &[QueueView]) -> Result<Rows, String> {
    let place = Home::new(home);
    let Some(journal) = journal::read_all(&place)? else { return Ok(Vec::new()) };
    let damage: Vec<String> = journal.damage.iter().map(|one| journal::shown(&place, one)).collect();
    let mut now = journal.present();
    run::bring_up_to_date(&mut now, queues);
    let key = home.to_string_lossy().into_owned();
    let mut rows = vec![(Key { kind: Kind::Run, name: key.clone() }, of_run(&now, &key, &damage))];
    for ((job, progress), mut row) in now.plan.jobs.iter().zip(&now.jobs).zip(run::workstreams(&now)) {
        let name = format!("{key}/{}", job.id);
        let found = queues.iter().find_map(|view| Some((view, run::item(view, &now.plan, job, progress.attempt)?)));
        let item = found.filter(|(_, item)| !item.is_past()).map(|(view, item)| item::key_of(view, item));
        let retry_ms = if let Stage::BackingOff { until_ms } = progress.stage { Some(until_ms) } else { None };
        row.extend([
            ("key".to_owned(), json!(name)),
            ("run".to_owned(), json!(now.plan.id)),
            ("home".to_owned(), json!(key)),
            ("item".to_owned(), json!(item)),
            ("needs".to_owned(), json!(run::needs(progress))),
            ("retry_ms".to_owned(), json!(retry_ms)),
        ]);
        rows.push((Key { kind: Kind::Workstream, name }, Value::Object(row).to_string()));
    }
    Ok(rows)
}

fn of_run(now: &Run, key: &str, damage: &[String]) -> String {
    let mut row = run::run_object(now, damage);
    let mut stages: BTreeMap<&str, usize> = BTreeMap::new();
    now.jobs.iter().for_each(|progress| *stages.entry(progress.stage.word()).or_default() += 1);
    row.extend([
        ("key".to_owned(), json!(key)),
        ("home".to_owned(), json!(key)),
        ("root".to_owned(), json!(now.plan.root)),
        ("name".to_owned(), json!(now.plan.slug)),
        ("specs".to_owned(), json!(now.plan.specs)),
        ("stages".to_owned(), json!(stages)),
        ("over".to_owned(), json!(matches!(now.mode, Mode::Over(_)))),
        ("error".to_owned(), Value::Null),
    ]);
    Value::Object(row).to_string()
}

/// Returns the row of a run that cannot be read.
fn unreadable(home: &Path, cause: &str) -> Rows {
    let key = home.to_string_lossy().into_owned();
    let name = home.parent().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
    let row = json!({
        "key": key, "run": null, "home": key, "base": null, "status": "unreadable", "consent": null, "damage": [],
        "hosts": [], "root": null, "name": name, "specs": null, "stages": {}, "over": false, "error": cause,
    });
    vec![(Key { kind: Kind::Run, name: key }, row.to_string())]
}

/// Watches the directories of a workspace in which flows may appear. Returns `None` if one that exists cannot be watched.
fn watched(space: &Workspace, inotify: &Inotify) -> Option<Places> {
    let mut places = space.places();
    for _ in 0..TRIES {
        let mut found = Places::new();
        for (dir, only) in &places {
            match inotify.add_watch(dir, NAMES | END) {
                Ok(watch) => found.push((watch, *only)),
                Err(Errno::ENOENT | Errno::ENOTDIR) => {}
                Err(_) => return None,
            }
        }
        // One may have been made before that.
        let now = space.places();
        if now.iter().all(|place| places.contains(place)) {
            return Some(found);
        }
        places = now;
    }
    None
}

/// Returns the flows that are run, and those of a workspace that are not completed.
fn all_flows(paths: &Paths, here: Option<&Workspace>) -> Vec<FlowFiles> {
    let mut found = registered::registered(paths);
    if let Some(space) = here {
        let here = space.ids(None).unwrap_or_default().into_iter().map(|id| space.flow(id));
        found.extend(here.filter(is_open));
    }
    found
}

fn flow_key(files: &FlowFiles) -> String {
    format!("{}/{}", files.root().display(), files.id())
}

/// Reports whether a flow can be opened and is not completed.
fn is_open(files: &FlowFiles) -> bool {
    files.read().is_ok_and(|flow| flow.status() != "completed")
}

/// Returns the row of a flow. `None` if there is none any more.
fn flow_row(files: &FlowFiles, paths: &Paths) -> Result<Option<Map<String, Value>>, String> {
    if files::is_absent(&files.dir().join(FLOW)) {
        return Ok(None);
    }
    let open = files.open().map_err(|error| error.to_string())?;
    let id = files.id();
    let root = files.root().to_str().ok_or("its path is not valid UTF-8")?.to_owned();
    let place = FlowPlace { root, project: id.project.clone(), flow: id.flow.clone() };
    Ok(Some(flow::row(&open, registered::is_run(paths, &place))))
}
