//! `swarm merge wait`: watches the directories of the journals until all items are settled. A worker with `--merge` is
//! waited for from its start on, before it has an item. Without names, items that settled earlier and still need a person
//! count as well, so that success means that nothing is left to land.

use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::{Duration, Instant};

use serde_json::json;
use swarm_model::merge::queue::{Item, ItemId};
use swarm_model::{Caller, Ended, QueueView, Reason, Target, WorkerView};

use super::args::WaitArgs;
use super::progress::Progress;
use super::queues::{Queues, none_for, short};
use super::show::{is_held, item_object, warn_held};
use crate::api::supervision::Supervision;
use crate::cli::diff::left_out;
use crate::cli::error::Failure;
use crate::cli::json;
use crate::cli::render::escape;
use crate::cli::screen::Screen;
use crate::cli::watch::{Changes, Until, open_process, wait_any};
use crate::cli::{caller, watch};
use swarm_store::views::{Detail, Pick, load_where};
use swarm_store::{events, records};
use swarm_sys::clock::wall_ms;
use swarm_sys::files::list;
use swarm_sys::paths::Paths;

/// Maximum time between the end of a worker, whenever that was, and its item in the queue, unless the supervisor says that there
/// will be none: it tries several times, and a git that commits what the worker left may take ten minutes.
const ENTRY_MAX: Duration = Duration::from_secs(60 * 60);
/// The same if no supervisor is at work, or if the item was there already.
const ENTRY_SOON: Duration = Duration::from_secs(10);

/// Message about a worker whose refusal is no longer among the last events.
const UNQUEUED: &str = "was not queued (run 'swarm events' to see why)";

/// Something that is still waited for.
#[derive(Clone, Debug, PartialEq)]
enum Wanted {
    Item(Target, ItemId),
    /// Worker that will land and is not queued yet.
    Worker {
        name: String,
        /// Launch token, which is the key of the future item.
        token: String,
        /// Time until which its item may come. `None` before its end was seen.
        until: Option<Instant>,
    },
}

pub fn run(args: &WaitArgs, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    let deadline = args.timeout.filter(|limit| !limit.is_zero()).map(|limit| Instant::now() + limit);
    watch::allow_many_descriptors();
    // Workers before queues: a worker that is queued in between is found in one of the two.
    let workers = workers(paths, args.base.as_deref())?;
    let queues = Queues::read_any(paths, args.base.as_deref())?;
    let left = wanted(args, &queues, workers)?;
    if let Some(base) = args.base.as_deref().filter(|_| queues.0.is_empty() && left.is_empty()) {
        return Err(none_for(base));
    }
    // Items settle only while a supervisor runs.
    let is_open = left.iter().any(|one| !is_settled(one, &queues));
    let supervision = is_open.then(|| Supervision::ensure(paths)).transpose()?;
    let (changes, progress) = (Changes::new()?, Progress::new(args.json));
    let (done, lost, warned) = (Vec::new(), false, false);
    let mut wait = Wait { args, paths, supervision, changes, progress, left, done, lost, warned };
    loop {
        // Watch before reading, so that no change is missed, and so that what an ended supervisor did counts.
        wait.watch()?;
        let unsupervised = wait.supervision.as_ref().is_some_and(Supervision::has_ended);
        let queues = Queues::read_any(paths, args.base.as_deref())?;
        let processes = wait.look(&queues, screen)?;
        wait.warn(&queues, screen);
        let is_late = deadline.is_some_and(|deadline| Instant::now() >= deadline);
        if wait.left.is_empty() || is_late {
            return wait.end(&queues, screen);
        }
        if unsupervised {
            wait.supervision.as_mut().map_or(Ok(()), Supervision::renew)?;
        }
        wait.show(&queues);
        wait.sleep(&processes, deadline)?;
    }
}

struct Wait<'a> {
    args: &'a WaitArgs,
    paths: &'a Paths,
    supervision: Option<Supervision<'a>>,
    changes: Changes,
    progress: Progress,
    left: Vec<Wanted>,
    done: Vec<(Target, ItemId)>,
    /// Something that was waited for will never settle.
    lost: bool,
    /// The warning about a paused or blocked queue was printed.
    warned: bool,
}

impl Wait<'_> {
    fn watch(&self) -> Result<(), Failure> {
        self.changes.add_dir(self.paths.root())?;
        self.changes.add_dir(&self.paths.merges())?;
        if self.progress.is_seen() || self.left.iter().any(|one| matches!(one, Wanted::Worker { .. })) {
            // Phases and refusals are reported as events and are not journaled.
            self.changes.add_file(&self.paths.events())?;
        }
        let entries = list(&self.paths.merges()).into_iter().flatten();
        entries.map(|entry| entry.path()).try_for_each(|dir| self.changes.add_dir(&dir))
    }

    /// Prints what has settled since, and returns the processes of workers that still run.
    fn look(&mut self, queues: &Queues, screen: &mut Screen) -> Result<Vec<OwnedFd>, Failure> {
        let (mut open, mut processes) = (Vec::new(), Vec::new());
        for one in std::mem::take(&mut self.left) {
            let one = self.queued(one, queues, &mut processes, screen)?;
            match one {
                Some(Wanted::Item(target, id)) => match find(queues, &target, id) {
                    Some((_, item)) if !item.state.is_settled() => open.push(Wanted::Item(target, id)),
                    Some((view, item)) => {
                        if !self.args.json {
                            self.progress.above(|| say(view, item, screen))?;
                        }
                        self.done.push((target, id));
                    }
                    None => self.lost = true,
                },
                Some(worker) => open.push(worker),
                None => self.lost = true,
            }
        }
        self.left = open;
        Ok(processes)
    }

    /// Warns once about queues from which nothing lands, although an item in them is waited for.
    fn warn(&mut self, queues: &Queues, screen: &mut Screen) {
        let is_waited_for = |view: &&QueueView| {
            self.left.iter().any(|one| matches!(one, Wanted::Item(target, _) if *target == view.target))
        };
        let held: Vec<&QueueView> = queues.0.iter().filter(|view| is_held(view)).filter(is_waited_for).collect();
        if !std::mem::replace(&mut self.warned, !held.is_empty()) {
            self.progress.above(|| {
                for view in held {
                    warn_held(view, screen);
                    if view.queue.paused {
                        screen.aside("hint: ", &format!("run 'swarm merge resume --base {}'", view.target.base()));
                    }
                }
            });
        }
    }

    /// Replaces a worker by its item as soon as there is one. Returns `None`, after a warning, if there will be none.
    fn queued(
        &self,
        one: Wanted,
        queues: &Queues,
        processes: &mut Vec<OwnedFd>,
        screen: &mut Screen,
    ) -> Result<Option<Wanted>, Failure> {
        let Wanted::Worker { name, token, until } = one else { return Ok(Some(one)) };
        for view in &queues.0 {
            if let Some(item) = view.queue.of_key(&token) {
                return Ok(Some(Wanted::Item(view.target.clone(), item.id)));
            }
        }
        let seen = load_where(self.paths, Detail::Exit, Pick::Named(&[&name]))?;
        let Some(view) = seen.find(&name).filter(|view| token_of(view) == Some(&token)) else { return Ok(None) };
        if view.is_at_work() || view.next_start_ms.is_some() {
            if let Some(process) = &view.watch {
                processes.extend(open_process(process)?);
            }
            return Ok(Some(Wanted::Worker { name, token, until: None }));
        }
        let generation = view.row.swarm().map_or(0, |meta| meta.generation);
        let why = match events::refused(self.paths, &name, generation) {
            _ if !has_succeeded(view) => "did not succeed, nothing to land".to_owned(),
            Some(cause) => format!("was not queued: {cause}"),
            None if records::is_refused(self.paths, &name, generation) => UNQUEUED.to_owned(),
            None => {
                let is_supervised = self.supervision.as_ref().is_some_and(Supervision::is_watching);
                let may_come = is_supervised && !records::is_queued(self.paths, &name, generation);
                let limit = Instant::now()
                    + if may_come {
                        entry_max(view.exit.as_ref().map(|exit| exit.ended_at_ms), wall_ms())
                    } else {
                        ENTRY_SOON
                    };
                let until = until.map_or(limit, |until| until.min(limit));
                if Instant::now() < until {
                    return Ok(Some(Wanted::Worker { name, token, until: Some(until) }));
                }
                UNQUEUED.to_owned()
            }
        };
        self.progress.above(|| screen.warning(&format!("'{name}' {why}")));
        Ok(None)
    }

    fn show(&self, queues: &Queues) {
        let items = self.left.iter().filter_map(|one| match one {
            Wanted::Item(target, id) => find(queues, target, *id),
            Wanted::Worker { .. } => None,
        });
        let workers = self.left.iter().filter(|one| matches!(one, Wanted::Worker { .. })).count();
        self.progress.show(items, workers);
    }

    fn sleep(&self, processes: &[OwnedFd], deadline: Option<Instant>) -> Result<(), Failure> {
        let entry = self.left.iter().filter_map(|wanted| match wanted {
            Wanted::Worker { until, .. } => *until,
            _ => None,
        });
        let deadline = entry.chain(deadline).min();
        let mut sources = vec![(self.changes.as_fd(), Until::Readable)];
        sources.extend(processes.iter().map(|process| (process.as_fd(), Until::Readable)));
        let supervisor = self.supervision.as_ref().and_then(Supervision::fd);
        sources.extend(supervisor.map(|supervisor| (supervisor, Until::Readable)));
        wait_any(&sources, deadline)?;
        self.changes.take().map(drop)
    }

    fn end(&self, queues: &Queues, screen: &mut Screen) -> Result<u8, Failure> {
        let done: Vec<_> = self.done.iter().filter_map(|(target, id)| find(queues, target, *id)).collect();
        let mut objects: Vec<_> = done.iter().map(|(view, item)| item_object(view, item)).collect();
        for one in &self.left {
            let (name, state) = match one {
                Wanted::Item(target, id) => match find(queues, target, *id) {
                    Some((view, item)) => {
                        objects.push(item_object(view, item));
                        (item.name.clone(), item.state.word())
                    }
                    None => continue,
                },
                Wanted::Worker { name, .. } => {
                    objects.push(json!({"item": null, "name": name, "state": "working"}));
                    (name.clone(), "working")
                }
            };
            if !self.args.json {
                screen.line(&format!("{}: still {state} (timeout)", escape(&name)))?;
            }
        }
        if self.args.json {
            json::print_list(screen, "swarm.merge.waited/1", "items", objects)?;
        }
        let all_landed = done.iter().all(|(_, item)| item.is_complete());
        Ok(u8::from(!self.left.is_empty() || self.lost || !all_landed))
    }
}

fn is_settled(one: &Wanted, queues: &Queues) -> bool {
    match one {
        Wanted::Item(target, id) => find(queues, target, *id).is_some_and(|(_, item)| item.state.is_settled()),
        Wanted::Worker { .. } => false,
    }
}

/// Returns what the arguments name; without names, every item that has neither landed nor been dropped or replaced, and
/// every worker that will add one.
fn wanted(args: &WaitArgs, queues: &Queues, workers: Vec<Wanted>) -> Result<Vec<Wanted>, Failure> {
    if args.items.is_empty() {
        let open = queues.0.iter().flat_map(|view| {
            let open = view.queue.items.iter().filter(|item| !item.is_past());
            open.map(|item| Wanted::Item(view.target.clone(), item.id))
        });
        let queued = |one: &Wanted| match one {
            Wanted::Worker { token, .. } => queues.0.iter().any(|view| view.queue.of_key(token).is_some()),
            Wanted::Item(..) => false,
        };
        return Ok(open.chain(workers.into_iter().filter(|one| !queued(one))).collect());
    }
    let one = |name: &String| {
        let is_named = |worker: &&Wanted| matches!(worker, Wanted::Worker { name: known, .. } if known == name);
        match workers.iter().find(is_named) {
            Some(worker) => Ok(worker.clone()),
            None => queues.find(name).map(|(target, item)| Wanted::Item(target.clone(), item.id)),
        }
    };
    args.items.iter().map(one).collect()
}

/// Returns the workers of this repository that will land, have no item yet and have not failed. The first worker of a
/// base branch exists before its queue.
fn workers(paths: &Paths, base: Option<&str>) -> Result<Vec<Wanted>, Failure> {
    let caller = caller::collect()?.caller;
    let here = swarm_store::repositories::common_dir(&caller);
    // Queues of other bases as well, because the worker may have landed there.
    let all = Queues::read_all(paths)?;
    let mut homes: BTreeMap<String, Option<String>> = BTreeMap::new();
    let registry = load_where(paths, Detail::Exit, Pick::All)?;
    let known = |token: &str| all.0.iter().any(|view| view.queue.of_key(token).is_some());
    let waiting = registry.workers.iter().filter_map(|view| {
        let token = token_of(view)?;
        let repo = view.row.worktree.as_ref().map(|worktree| worktree.base_repo.as_str())?;
        let home = homes.entry(repo.to_owned()).or_insert_with(|| {
            swarm_store::repositories::common_dir(&Caller { cwd: repo.to_owned(), ..caller.clone() })
        });
        let is_here = here.is_none() || here == *home;
        let of_worker = || view.row.swarm().and_then(|meta| meta.base.as_ref()?.branch.as_deref());
        let is_for_base = base.is_none_or(|base| of_worker() == Some(short(base)));
        let may_come = view.is_at_work() || view.next_start_ms.is_some() || has_succeeded(view);
        let worker = Wanted::Worker { name: view.row.name.clone(), token: token.to_owned(), until: None };
        (is_here && is_for_base && may_come && !known(token)).then_some(worker)
    });
    Ok(waiting.collect())
}

/// Returns the launch token of a worker that was started with `--merge`, else `None`.
fn token_of(view: &WorkerView) -> Option<&str> {
    view.row.swarm().filter(|meta| meta.merge).map(|meta| meta.id.as_str())
}

/// Returns how long the item of a worker may still take to come. `ended_ms` is the end of the worker, if it is known.
fn entry_max(ended_ms: Option<u64>, now_ms: u64) -> Duration {
    let past = Duration::from_millis(now_ms.saturating_sub(ended_ms.unwrap_or(now_ms)));
    ENTRY_MAX.saturating_sub(past).max(ENTRY_SOON)
}

fn has_succeeded(view: &WorkerView) -> bool {
    let by_itself = |ended: Ended, reason: Reason| ended.is_success() && reason == Reason::Exited;
    view.exit.as_ref().is_some_and(|exit| by_itself(exit.ended, exit.reason))
}

fn find<'a>(queues: &'a Queues, target: &Target, id: ItemId) -> Option<(&'a QueueView, &'a Item)> {
    let view = queues.0.iter().find(|view| view.target == *target)?;
    Some((view, view.queue.item(id)?))
}

fn say(view: &QueueView, item: &Item, screen: &mut Screen) -> Result<(), Failure> {
    screen.line(&format!("{}: {} ({})", escape(&item.name), item.state.word(), escape(view.target.base())))?;
    screen.flush()?;
    if !item.left_out.is_empty() {
        screen.aside("note: ", &format!("'{}': {}", item.name, left_out(&item.left_out)));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_ended_long_ago_is_hardly_waited_for() {
        let now = 10_000_000;
        let after = |seconds: u64| entry_max(Some(now - seconds * 1000), now);
        assert_eq!([entry_max(None, now), after(0)], [ENTRY_MAX; 2]);
        assert_eq!(after(600), Duration::from_secs(3000));
        assert_eq!([after(3600), after(9000)], [ENTRY_SOON; 2]);
        // The clock was set back.
        assert_eq!(entry_max(Some(now + 5000), now), ENTRY_MAX);
    }
}
