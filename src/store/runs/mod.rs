//! Runs on disk: journals, `.arial/state.json`, prompts, and the results of attempts.

pub mod asking;
mod batch;
mod behind;
pub mod denied;
mod earlier;
pub mod ends;
pub mod events;
pub mod far;
pub mod given_up;
pub mod home;
mod joblog;
pub mod journal;
pub mod kept;
pub mod order;
pub mod origin;
pub mod prepare;
pub mod prompt;
mod queued;
pub mod records;
mod registration;
mod rejection;
mod seal;
pub mod specs;
mod verification;
pub mod wire;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use swarm_actors::run::machine::Machine;
use swarm_model::merge::Agreed;
use swarm_model::merge::queue::{Item, Rules};
use swarm_model::run::plan::{Job, Plan, Topic, Work};
use swarm_model::run::progress::{Now, Progress, Run, Spent};
use swarm_model::run::{Event, Outcome};
use swarm_model::{Caller, ExitRecord, RowWorktree, SpawnRequest, Target};
use swarm_ports::{BoxFuture, Journaled, Runs, Saved, Settled, Survey, Telling};

use self::home::Home;
use self::registration::{Active, CALLER, Looks, OVER, place, read_active, read_any, unregister};
pub use self::registration::{is_under_way, registered, shown};
use self::seal::Seals;
use self::wire::{ArialState, StateFault};
use crate::asks::Asks;
use crate::asks::settled::Settlements;
use swarm_sys::clock::wall_ms;
use swarm_sys::files;
use swarm_sys::files::{blocking, replace_durably};
use swarm_sys::paths::{Paths, digest};

pub struct DiskRuns {
    paths: Paths,
    executable: PathBuf,
    open: Arc<OpenRuns>,
    looks: Looks,
    settlements: Settlements,
}

/// A run whose lock this process holds.
struct Open {
    /// Held as long as the run is open.
    lock: File,
    state: Option<ArialState>,
}

impl DiskRuns {
    pub fn new(paths: Paths, executable: PathBuf) -> Self {
        let settlements = Settlements::new(Asks::new(&paths));
        Self { paths, executable, open: Arc::default(), looks: Looks::default(), settlements }
    }

    fn place(&self, home: &str) -> PathBuf {
        place(&self.paths, home)
    }
}

type OpenRuns = Mutex<BTreeMap<String, Open>>;

/// Takes the lock of a run, unless this process holds it already, and returns the content of `state.json`.
fn take(open: &OpenRuns, home: &Home) -> Result<Option<ArialState>, String> {
    let name = home.path().to_string_lossy().into_owned();
    let opened = || open.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = opened().get(&name) {
        return Ok(known.state.clone());
    }
    // Not under the mutex, which all runs need: the disk of this home may not answer.
    home.make().map_err(|error| format!("{}: {error}", home.path().display()))?;
    let lock = home.take_lock()?;
    home.tidy();
    let (state, note) = load_repaired(home)?;
    if let Some(note) = note {
        tracing::warn!("{note}");
    }
    opened().insert(name, Open { lock, state: state.clone() });
    Ok(state)
}

/// Reads `state.json`. A damaged file is moved aside and rebuilt from the journal, if there is one; the second value then
/// says so. Requires the lock of the home.
///
/// # Errors
/// Fails with a message for users if the file cannot be read or rebuilt, or has a newer version.
pub fn load_repaired(home: &Home) -> Result<(Option<ArialState>, Option<String>), String> {
    let cause = match wire::load(home) {
        Ok(state) => return Ok((state, None)),
        Err(StateFault::Unusable(cause)) => return Err(cause),
        Err(StateFault::Damaged(cause)) => cause,
    };
    let failed = |error: io::Error| format!("{cause}, and it cannot be replaced: {error}");
    // Read first: without it nothing can be rebuilt, and the damaged file stays where it is.
    let run = journal::replay(home)?.filter(|run| run.plan.specs.is_some());
    let aside = wire::move_aside(home).map_err(failed)?;
    let state = run.map(|run| wire::rebuilt(&run, wall_ms()));
    state.iter().try_for_each(|state| wire::save(home, state)).map_err(failed)?;
    let how = if state.is_some() { "; rebuilt from run.jsonl" } else { "; planned anew" };
    Ok((state, Some(format!("{cause}; moved to {}{how}", aside.display()))))
}

fn unlock(open: &OpenRuns, home: &str) {
    open.lock().unwrap_or_else(PoisonError::into_inner).remove(home);
}

/// Runs blocking work on another thread: the files of an old run may be large.
fn off_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> BoxFuture<'static, Result<T, String>> {
    Box::pin(async move {
        tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(format!("internal error: {error}")))
    })
}

fn journaled(home: &Home, registered: &Path) -> Result<Journaled, String> {
    let journal = journal::read_all(home)?.ok_or_else(|| format!("{} does not exist", home.journal().display()))?;
    let journal::Journal { run, events, damage, is_repaired_now } = journal;
    for one in &damage {
        tracing::error!("damaged journal of a run: {}", journal::shown(home, one));
    }
    let failed = |error: io::Error| format!("{}: {error}", home.journal().display());
    if is_repaired_now {
        // From here on, the damaged lines do not matter any more.
        journal::append(home, &events).map_err(failed)?;
        events::report_damage(home, &run.plan.id, &damage).map_err(failed)?;
    }
    let active = read_any(registered);
    let active = active.map_err(|error| error.to_string())?;
    let caller = active.ok_or("the caller of the run is not recorded")?.caller;
    let told = events::count(home, &run.plan.id);
    Ok(Journaled { run, events, caller, told })
}

/// Updates `state.json`. A failure is only logged: an outdated file is rebuilt from the journal.
fn save_state(home: &Home, state: Option<ArialState>) {
    if let Some(state) = state
        && let Err(error) = wire::save(home, &state)
    {
        tracing::warn!(home = %home.path().display(), %error, "cannot update state.json of a run");
    }
}

/// Writes the journal of a run anew that somebody deleted while the run went on, for example by `git clean -fdx`, and takes
/// the lock again if it was deleted too.
///
/// # Errors
/// Fails if the repository is not there either: it may be on a disk that is not mounted now.
fn restore(open: &OpenRuns, home: &Home, run: &Run, place: &Path) -> io::Result<()> {
    let above = home.path().parent().unwrap_or(home.path());
    let sign = if home.path().ends_with(home::ARIAL) { above.join(".git") } else { above.to_owned() };
    fs::symlink_metadata(sign)?;
    let active = read_active(place)?.ok_or_else(|| io::Error::other("the run is not registered"))?;
    home.make()?;
    let opened = || open.lock().unwrap_or_else(PoisonError::into_inner);
    let held = opened().get(&run.plan.home).map(|open| open.lock.try_clone()).transpose()?;
    if let Some(held) = held {
        let (held, found) = (held.metadata()?, fs::metadata(home.lock()));
        if !found.is_ok_and(|found| (found.dev(), found.ino()) == (held.dev(), held.ino())) {
            let lock = home.take_lock().map_err(io::Error::other)?;
            opened().entry(run.plan.home.clone()).and_modify(|open| open.lock = lock);
        }
    }
    tracing::warn!(home = %home.path().display(), "the journal of a run was deleted; it is written anew");
    journal::restart(home, run, &active.caller.request, wall_ms())
}

/// Reports whether a row was reset because its spec changed; the recorded progress then belongs to the old spec.
fn is_reset(row: &wire::Workstream, job: &Progress) -> bool {
    row.status == "pending" && row.started_at.is_none() && job.started_ms.is_some()
}

/// Returns the state of an earlier run: its journal, overridden by `state.json`, which people and other programs may
/// have edited. If `state.json` is older than the journal, it could not be written and is ignored.
fn earlier(home: &Home, state: Option<&ArialState>) -> Result<Option<Run>, String> {
    let (journaled, last_ms) = match journal::read(home)? {
        Some((run, events)) => {
            let mut run = Machine::new(run);
            events::append_missing(home, &mut run, &events);
            (Some(Run::clone(&run)), events.last().map_or(0, |(at_ms, _)| *at_ms))
        }
        None => (None, 0),
    };
    Ok(overridden(journaled, last_ms, state))
}

/// Returns the state of an earlier run as the next one finds it, `plan` included. Only reads, without the lock of the home.
///
/// # Errors
/// Fails if the journal cannot be read.
pub fn before_the_next(home: &Home) -> Result<Option<Run>, String> {
    let state = wire::load(home).ok().flatten();
    let Some(journal) = journal::read_all(home)? else { return Ok(overridden(None, 0, state.as_ref())) };
    let last_ms = journal.events.last().map_or(0, |(at_ms, _)| *at_ms);
    Ok(overridden(Some(journal.present()), last_ms, state.as_ref()))
}

/// Returns a run as journaled up to `last_ms`, overridden by a newer `state.json`.
fn overridden(journaled: Option<Run>, last_ms: u64, state: Option<&ArialState>) -> Option<Run> {
    let written_ms = state.and_then(|state| home::from_iso(&state.updated_at)).unwrap_or(u64::MAX);
    let (Some(state), known) = (state.filter(|_| written_ms >= last_ms), journaled.as_ref()) else {
        return journaled;
    };
    let mut run = known.cloned().unwrap_or_default();
    let over = true;
    for row in &state.workstreams {
        let at = run.plan.position(&row.id);
        let has_changed = at.is_some_and(|at| is_reset(row, &run.jobs[at]));
        match at {
            Some(at) if wire::word(&run.jobs[at].stage, over) == row.status && !has_changed => {}
            Some(_) if row.status == "running" => {}
            Some(at) => {
                // Attempt numbers continue, because other records refer to the earlier ones.
                let attempt = run.jobs[at].attempt.max(row.retry_count);
                // The branch of a spec that has changed since has the work of the old one.
                let begun = run.jobs[at].begun.take().filter(|_| !has_changed);
                // Nobody waits for an attempt that is out on a host. It is ended there, and its work comes back.
                let (out, visited) = (run.jobs[at].out(&row.id), std::mem::take(&mut run.jobs[at].visited));
                run.abandoned.extend(out);
                run.jobs[at] = Progress { attempt, begun, visited, ..row.progress() };
            }
            None => {
                Arc::make_mut(&mut run.plan).jobs.push(Job { id: row.id.clone(), ..Job::default() });
                // Another program, or a run whose journal is lost, has begun the branch.
                let topic = Topic { branch: row.branch.clone(), base: state.base_branch.clone() };
                run.jobs.push(Progress { begun: row.started_at.as_ref().map(|_| topic), ..row.progress() });
            }
        }
    }
    Some(run)
}

impl Runs for DiskRuns {
    fn active(&self) -> BoxFuture<'_, io::Result<Survey<String>>> {
        let (runs, open, looks) = (self.paths.runs(), Arc::clone(&self.open), Arc::clone(&self.looks));
        blocking(move || registration::active(&runs, &open, &looks))
    }

    fn open<'a>(&'a self, home: &'a str) -> BoxFuture<'a, Result<Option<Run>, String>> {
        let (open, home) = (Arc::clone(&self.open), home.to_owned());
        off_thread(move || {
            let place = Home::new(&home);
            let state = take(&open, &place)?;
            earlier(&place, state.as_ref()).inspect_err(|_| unlock(&open, &home))
        })
    }

    fn begin<'a>(&'a self, run: &'a Run, caller: &'a Caller) -> BoxFuture<'a, io::Result<()>> {
        let (run, caller) = (run.clone(), caller.clone());
        let (paths, place) = (self.paths.clone(), self.place(&run.plan.home));
        blocking(move || {
            home::make_all(&paths.runs())?;
            origin::record(&paths, &Home::new(&run.plan.home))?;
            home::make_all(&place)?;
            Seals::of(&place).begin()?;
            let active = Active { home: run.plan.home.clone(), caller };
            replace_durably(&place, CALLER, &serde_json::to_vec(&active)?)?;
            // Commits the start. Until then the registration has no effect, because the journal belongs to another
            // request.
            journal::begin(&Home::new(&run.plan.home), &run, &active.caller.request)
        })
    }

    fn began_by<'a>(&'a self, home: &'a str, request: &'a str) -> BoxFuture<'a, io::Result<bool>> {
        let (home, request) = (Home::new(home), request.to_owned());
        blocking(move || match journal::request(&home) {
            Ok(begun) => Ok(begun.as_deref() == Some(request.as_str())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        })
    }

    fn resume<'a>(&'a self, home: &'a str) -> BoxFuture<'a, Result<Journaled, String>> {
        let (open, home, registered) = (Arc::clone(&self.open), home.to_owned(), self.place(home));
        off_thread(move || {
            let place = Home::new(&home);
            // Created, it would hide the one on a disk that is not mounted now.
            if files::is_absent(place.path()) {
                return Err(format!("{home} does not exist"));
            }
            take(&open, &place)?;
            journaled(&place, &registered).inspect_err(|_| unlock(&open, &home))
        })
    }

    fn append<'a>(&'a self, run: &'a Run, events: &'a [(u64, Event)]) -> BoxFuture<'a, io::Result<()>> {
        let owned = events.to_vec();
        let home = Home::new(&run.plan.home);
        let state = {
            let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
            open.get_mut(&run.plan.home).and_then(|open| open.state.as_mut()).map(|state| {
                // Without new events the run is resuming, and the file may be out of date.
                let at_ms = events.last().map_or_else(wall_ms, |(at_ms, _)| *at_ms);
                state.take(run, at_ms);
                state.clone()
            })
        };
        let (appended_home, appended_state) = (home.clone(), state.clone());
        let appended = blocking(move || {
            journal::append(&appended_home, &owned)?;
            save_state(&appended_home, appended_state);
            Ok(())
        });
        Box::pin(async move {
            match appended.await {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                done => return done,
            }
            let (run, open, place) = (run.clone(), Arc::clone(&self.open), self.place(&run.plan.home));
            blocking(move || {
                restore(&open, &home, &run, &place)?;
                save_state(&home, state);
                Ok(())
            })
            .await
        })
    }

    fn tell<'a>(&'a self, plan: &'a Plan, words: Vec<Telling>) -> BoxFuture<'a, ()> {
        // Not with a copy of the plan: it may have thousands of jobs.
        let lines = events::lines(plan, words);
        let events = Home::new(&plan.home).events();
        Box::pin(async move {
            if let Err(error) = blocking(move || events::report(&events, &lines?)).await {
                tracing::warn!(home = %plan.home, %error, "cannot record the events of a run");
            }
        })
    }

    fn prepare<'a>(&'a self, now: &'a Now, caller: &'a Caller) -> BoxFuture<'a, Result<SpawnRequest, Outcome>> {
        Box::pin(async move {
            // A plain command has no files to read, and a thread would cost more than all the rest.
            if matches!(now.job().work, Work::Command(_)) && now.landed.is_empty() {
                return prepare::prepare(now, caller, &self.executable, &self.paths);
            }
            let (now, caller, executable) = (now.clone(), caller.clone(), self.executable.clone());
            let paths = self.paths.clone();
            let prepare = move || prepare::prepare(&now, &caller, &executable, &paths);
            let prepared = tokio::task::spawn_blocking(prepare).await;
            prepared.unwrap_or_else(|error| Err(prepare::broken(&error.to_string())))
        })
    }

    fn has_landed<'a>(&'a self, now: &'a Now, caller: &'a Caller) -> BoxFuture<'a, bool> {
        let (now, caller) = (now.clone(), caller.clone());
        Box::pin(async move {
            tokio::task::spawn_blocking(move || queued::has_landed(&now, &caller)).await.unwrap_or_default()
        })
    }

    fn is_own<'a>(
        &'a self,
        now: &'a Now,
        target: &'a Target,
        item: &'a Item,
        caller: &'a Caller,
    ) -> BoxFuture<'a, bool> {
        let (now, target, item, caller) = (now.clone(), target.clone(), item.clone(), caller.clone());
        Box::pin(async move {
            let is_own = move || queued::is_own(&now, &target, &item, &caller);
            tokio::task::spawn_blocking(is_own).await.unwrap_or_default()
        })
    }

    fn changed_rules<'a>(&'a self, now: &'a Now, item: &'a Item, caller: &'a Caller) -> BoxFuture<'a, Option<Rules>> {
        let (now, item, caller) = (now.clone(), item.clone(), caller.clone());
        Box::pin(async move {
            let changed = move || queued::changed_rules(&now, &item, &caller);
            tokio::task::spawn_blocking(changed).await.unwrap_or_default()
        })
    }

    fn agreed<'a>(
        &'a self,
        branch: &'a str,
        root: Option<&'a str>,
        caller: &'a Caller,
    ) -> BoxFuture<'a, Result<Option<Agreed>, String>> {
        let (paths, branch, root) = (self.paths.clone(), branch.to_owned(), root.map(str::to_owned));
        let caller = caller.clone();
        off_thread(move || verification::agreed(&paths, &branch, root.as_deref(), &caller))
    }

    fn place<'a>(&'a self, now: &'a Now, caller: &'a Caller) -> BoxFuture<'a, Option<RowWorktree>> {
        let (now, caller) = (now.clone(), caller.clone());
        Box::pin(
            async move { tokio::task::spawn_blocking(move || queued::place(&now, &caller)).await.unwrap_or_default() },
        )
    }

    fn outcome<'a>(&'a self, now: &'a Now, exit: Option<&'a ExitRecord>) -> BoxFuture<'a, (Outcome, Spent)> {
        let (now, exit, paths) = (now.clone(), exit.cloned(), self.paths.clone());
        Box::pin(async move {
            let judged = tokio::task::spawn_blocking(move || prepare::outcome(&now, exit.as_ref(), &paths)).await;
            judged.unwrap_or_else(|error| (prepare::broken(&error.to_string()), Spent::default()))
        })
    }

    fn settled(&self, ask: u64) -> BoxFuture<'_, Settled> {
        Box::pin(self.settlements.settled(ask))
    }

    fn resolutions<'a>(&'a self, now: &'a Now) -> BoxFuture<'a, Spent> {
        let dir = Home::new(&now.plan.home).attempt(&now.job().id, now.progress.attempt);
        Box::pin(async move { tokio::task::spawn_blocking(move || order::resolutions(&dir)).await.unwrap_or_default() })
    }

    fn keep<'a>(&'a self, now: &'a Now) -> BoxFuture<'a, ()> {
        let (now, paths) = (now.clone(), self.paths.clone());
        Box::pin(async move {
            let _ = tokio::task::spawn_blocking(move || kept::keep(&now, &paths)).await;
        })
    }

    fn has_work<'a>(&'a self, now: &'a Now, caller: &'a Caller) -> BoxFuture<'a, bool> {
        let (now, caller) = (now.clone(), caller.clone());
        Box::pin(
            async move { tokio::task::spawn_blocking(move || queued::has_work(&now, &caller)).await.unwrap_or(true) },
        )
    }

    fn tidy<'a>(&'a self, now: &'a Now, caller: &'a Caller) -> BoxFuture<'a, Option<Saved>> {
        let (root, caller) = (PathBuf::from(&now.plan.root), caller.clone());
        let names = now.job().branch.clone().zip(now.plan.base.clone());
        Box::pin(async move {
            let (branch, base) = names?;
            let dropped = blocking(move || {
                swarm_git::repository::drop_landed_branch(&root, &branch, &base, &caller).map_err(io::Error::other)
            });
            let warn = |error: &io::Error| tracing::warn!(%error, "cannot delete a branch that has landed");
            dropped.await.inspect_err(warn).ok()?.saved
        })
    }

    fn close<'a>(&'a self, home: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let place = self.place(home);
            match fs::rename(place.join(CALLER), place.join(OVER)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    tracing::error!(home, %error, "cannot change the registration of a run that is over");
                }
                _ => {}
            }
            unlock(&self.open, home);
        })
    }

    fn forget<'a>(&'a self, run: &'a Run) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let home = &run.plan.home;
            let (of, id, told) = (Home::new(home), run.plan.id.clone(), run.told);
            if !tokio::task::spawn_blocking(move || events::count(&of, &id) >= told).await.unwrap_or_default() {
                return;
            }
            // Held, so that the next run does not register meanwhile.
            let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
            let place = self.place(home);
            let removed = match open.contains_key(home) {
                true => fs::remove_file(place.join(OVER)),
                false => unregister(&place),
            };
            if let Err(error) = removed {
                tracing::error!(home, %error, "cannot remove the registration of a run that is over");
            }
        })
    }
}

/// Returns the id of a run: eight hex digits, which stay the same when the run is resumed.
pub fn run_id(home: &Path, created_at: &str) -> String {
    digest(format!("{}\0{created_at}", home.display()).as_bytes(), 4)
}

#[cfg(test)]
mod tests;
