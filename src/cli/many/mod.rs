//! `swarm spawn --file`: starts many workers. All of them are checked, and all mistakes reported, before the first one
//! starts; then they start in parallel, and each is reported as soon as it runs.

mod file;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use serde_json::{Map, Value};
use swarm_model::{Caller, NudgeSettings, Refusal, RefusalKind, SpawnRequest, Spawned};

use self::file::{Entry, Fault};
use super::answers::{refusal_object, spawned_line, spawned_object};
use super::args::SpawnArgs;
use super::caller;
use super::error::Failure;
use super::json;
use super::screen::Screen;
use super::trust::again::question;
use super::{spawn, terminal};
use crate::api::client;
use swarm_store::views::load;
use swarm_sys::paths::Paths;

/// Maximum number of concurrent starts.
const AT_ONCE_MAX: usize = 16;
/// Maximum size of a file of workers, in bytes.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// A checked worker that can be started.
struct Ready {
    args: Box<SpawnArgs>,
    request: SpawnRequest,
    nudge: Option<NudgeSettings>,
}

/// Result of one start.
struct Outcome {
    at: usize,
    warnings: Vec<String>,
    started: Result<Spawned, Failure>,
    /// Set if its prompt appeared in time, or nobody asked to wait for it.
    /// Why the agent is not ready, if that was waited for.
    unready: Option<String>,
}

pub fn run(path: &Path, as_json: bool, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    let text = read(path)?;
    let entries = file::read(&text).map_err(|faults| told(&faults, path, screen))?;
    require_trust(&entries, path, screen)?;
    let workers = match check(entries, path, paths, screen) {
        Ok(workers) => workers,
        Err(faults) => return Err(told(&faults, path, screen)),
    };
    if let Some(first) = workers.iter().find(|worker| worker.args.worktree) {
        let caller = &first.request.caller;
        let whole = Caller { environment: first.request.contract.environment.clone(), ..caller.clone() };
        spawn::repair_bare(Path::new(&caller.cwd), &whole, screen);
    }
    // Start the supervisor once, before the threads need it.
    client::ensure(paths)?;
    let mut objects: BTreeMap<usize, Map<String, Value>> = BTreeMap::new();
    let mut code = 0;
    let next = AtomicUsize::new(0);
    let (sender, outcomes) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE_MAX.min(workers.len()) {
            let (sender, workers, next) = (sender.clone(), &workers, &next);
            scope.spawn(move || start_each(workers, next, paths, &sender));
        }
        drop(sender);
        for outcome in outcomes {
            let worker = &workers[outcome.at];
            let at = outcome.at;
            let (object, failed) = tell(worker, outcome, as_json, paths, screen)?;
            code |= u8::from(failed);
            objects.insert(at, object);
        }
        Ok::<(), Failure>(())
    })?;
    if as_json {
        json::print_list(screen, "swarm.fleet/1", "workers", objects.into_values().collect())?;
    }
    Ok(code)
}

fn read(path: &Path) -> Result<String, Failure> {
    let refused =
        |cause: String| Failure::new(RefusalKind::Invalid, format!("cannot read {}: {cause}", path.display()));
    let meta = std::fs::metadata(path).map_err(|error| refused(error.to_string()))?;
    // Paths in the file are relative to its directory, and a pipe has none.
    if !meta.is_file() {
        return Err(refused("not a regular file".to_owned()));
    }
    if meta.len() > FILE_BYTES_MAX {
        return Err(refused(format!("larger than {FILE_BYTES_MAX} bytes")));
    }
    std::fs::read_to_string(path).map_err(|error| refused(error.to_string()))
}

/// Reports all mistakes but the last one, which it returns as the failure of the verb.
fn told(faults: &[Fault], path: &Path, screen: &mut Screen) -> Failure {
    let refusal = |fault: &Fault| {
        let cause = format!("{}:{}: {}", path.display(), fault.line, fault.cause);
        Refusal::new(RefusalKind::Invalid, cause)
    };
    let (last, others) = faults.split_last().expect("a file is refused for something");
    others.iter().for_each(|fault| screen.refusal(&refusal(fault)));
    refusal(last).remedy("fix the file; nothing was started").into()
}

/// Makes sure that a person agreed to what the configuration adds to the workers. What cannot be read is reported later.
fn require_trust(entries: &[Entry], path: &Path, screen: &mut Screen) -> Result<(), Failure> {
    let Ok(home) = home_of(path) else { return Ok(()) };
    let root = swarm_config::root_above(Path::new(&home));
    let Ok(sections) = swarm_config::as_written(root) else { return Ok(()) };
    let filled = entries.iter().filter_map(|entry| spawn::defaults::over(&entry.args, &sections).ok());
    let mut used: Vec<&'static str> = filled.flat_map(|args| spawn::defaults::used_by(&args)).collect();
    used.sort_unstable();
    used.dedup();
    question(root, &used)?.require(screen).map(drop)
}

/// Checks what depends on this machine: names in use, missing commands and directories.
fn check(entries: Vec<Entry>, path: &Path, paths: &Paths, screen: &mut Screen) -> Result<Vec<Ready>, Vec<Fault>> {
    let at_all = |cause: String| vec![Fault { line: 1, cause }];
    let collected = caller::collect().map_err(|refusal| at_all(refusal.cause))?;
    for variable in &collected.dropped {
        screen.warning(&format!("environment variable '{variable}' is not valid UTF-8 and is not passed on"));
    }
    let home = home_of(path).map_err(at_all)?;
    let registry = load(paths).map_err(|refusal| at_all(refusal.cause))?;
    let sections = swarm_config::load(swarm_config::root_above(Path::new(&home))).map_err(at_all)?;
    let log_limit = std::env::var("SWARM_LOG_MAX_BYTES").ok();
    let (mut ready, mut faults): (Vec<Ready>, Vec<Fault>) = (Vec::new(), Vec::new());
    let mut lines: BTreeMap<String, usize> = BTreeMap::new();
    for Entry { line, args } in entries {
        let name = args.name.clone();
        let mut wrong = |cause: String| faults.push(Fault { line, cause: format!("worker '{name}': {cause}") });
        if let Some(first) = lines.insert(name.clone(), line) {
            wrong(format!("duplicate name, first used in line {first}"));
            continue;
        }
        if registry.find(&name).is_some() {
            wrong("already exists".to_owned());
            continue;
        }
        let request = caller::request_id().map_err(|error| error.to_string()).map(|request| Caller {
            cwd: home.clone(),
            request,
            ..collected.caller.clone()
        });
        let built = request.and_then(|caller| {
            spawn::check_name(&name).map_err(|refusal| refusal.cause)?;
            let filled = spawn::defaults::over(&args, &sections)?;
            let args = Box::new(spawn::on::adjusted(&args, &filled).map_err(|refusal| refusal.cause)?);
            let nudge = spawn::nudge(&args)?;
            let request = spawn::build(&args, caller, &paths.session(), log_limit.as_deref());
            Ok((args, request.map_err(|refusal| refusal.cause)?, nudge))
        });
        match built {
            Ok((args, request, nudge)) => ready.push(Ready { args, request, nudge }),
            Err(cause) => wrong(cause),
        }
    }
    if faults.is_empty() { Ok(ready) } else { Err(faults) }
}

/// Returns the directory of the file, which relative paths in it refer to.
fn home_of(path: &Path) -> Result<String, String> {
    let file = path.canonicalize().map_err(|error| error.to_string())?;
    let home = file.parent().and_then(Path::to_str).map(str::to_owned);
    home.ok_or_else(|| "the path of the file's directory is not valid UTF-8".to_owned())
}

/// Starts the next worker until none is left.
fn start_each(workers: &[Ready], next: &AtomicUsize, paths: &Paths, outcomes: &mpsc::Sender<Outcome>) {
    loop {
        let at = next.fetch_add(1, Ordering::Relaxed);
        let Some(worker) = workers.get(at) else { return };
        let mut warnings = Vec::new();
        let started = spawn::start(&worker.request, paths, &mut |text| warnings.push(text));
        let place = &worker.args.place;
        let limit = Duration::from_secs(place.ready_timeout);
        let unready = |spawned: &Spawned| match terminal::unready(spawned, paths, limit) {
            Ok(warning) => warning,
            Err(failure) => Some(format!("agent '{}' is not ready: {}", spawned.name, failure.cause())),
        };
        let waits = |spawned: &&Spawned| place.ready_wait && spawned.window.is_some();
        let unready = started.as_ref().ok().filter(waits).and_then(unready);
        if outcomes.send(Outcome { at, warnings, started, unready }).is_err() {
            return;
        }
    }
}

/// Reports the result of one start. Returns its JSON object, and whether something failed.
fn tell(
    worker: &Ready,
    outcome: Outcome,
    as_json: bool,
    paths: &Paths,
    screen: &mut Screen,
) -> Result<(Map<String, Value>, bool), Failure> {
    let name = &worker.args.name;
    outcome.warnings.iter().for_each(|text| screen.warning(text));
    let spawned = match outcome.started {
        Ok(spawned) => spawned,
        Err(failure) => {
            let refusal = failure.into_refusal().of(name);
            screen.refusal(&Refusal { cause: format!("{name}: {}", refusal.cause), ..refusal.clone() });
            return Ok((refusal_object(&refusal), true));
        }
    };
    spawned.notes.iter().for_each(|note| screen.aside("note: ", &format!("{name}: {note}")));
    if let Some(hint) = spawn::first_questions(&worker.args, &spawned) {
        screen.aside("hint: ", &hint);
    }
    if let Some(warning) = &outcome.unready {
        screen.warning(warning);
    }
    if !as_json {
        screen.line(&spawned_line("spawned", &spawned))?;
        screen.flush()?;
    }
    let nudged = spawn::begin_nudge(&worker.args, worker.nudge.clone(), paths, screen);
    let failed = nudged.is_err();
    if let Err(failure) = nudged {
        screen.refusal(&failure.into_refusal().of(name));
    }
    Ok((spawned_object(&spawned), failed))
}
