//! In-memory journals of runs, and agents whose exit code determines the outcome.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use super::script::Script;
use crate::run::machine::Machine;
use swarm_model::merge::Agreed;
use swarm_model::merge::queue::{Item, ItemId, Rules};
use swarm_model::run::plan::Plan;
use swarm_model::run::progress::{Now, Run, Spent};
use swarm_model::run::{Event, FaultKind, Outcome};
use swarm_model::run::{request_of, request_prefix};
use swarm_model::{
    Caller, Contract, Ended, ExitRecord, MergeSettings, NeedKind, RowWorktree, SpawnRequest, Target, WorktreeRequest,
};
use swarm_ports::{BoxFuture, Journaled, Runs, Saved, Settled, Survey, Telling};

pub struct FakeRuns {
    script: Arc<Script>,
    homes: Mutex<BTreeMap<String, Home>>,
    /// Requests by their numbers, with what became of them.
    asks: Mutex<BTreeMap<u64, Settled>>,
    /// Rules by which runs land the work on branches.
    agreed: Mutex<BTreeMap<String, Agreed>>,
    changed: tokio::sync::Notify,
}

/// Exit code of an agent that asks a person. The number of the request is the number of the attempt.
pub const ASKS: i32 = 75;

#[derive(Default)]
struct Home {
    /// Snapshot of the run at its start, and later events, as text.
    snapshot: String,
    events: Vec<String>,
    caller: Caller,
    active: bool,
    /// Over, but not forgotten.
    closed: bool,
    told: Vec<Telling>,
    /// A person merged all work that conflicted.
    is_merged: bool,
    /// Queue items that are not of this run's repository.
    foreign: BTreeSet<ItemId>,
    /// Jobs whose branches have work that is not on the base.
    unlanded: BTreeSet<String>,
}

impl FakeRuns {
    pub fn new(script: Arc<Script>) -> Self {
        Self {
            script,
            homes: Mutex::default(),
            asks: Mutex::default(),
            agreed: Mutex::default(),
            changed: tokio::sync::Notify::new(),
        }
    }

    /// Returns the state of the run, replayed from its journal.
    ///
    /// # Panics
    /// Panics if no run was started there.
    pub fn run(&self, home: &str) -> Run {
        self.with(home, |home| {
            let mut run = Machine::new(serde_json::from_str(&home.snapshot).expect("a run was begun there"));
            for line in &home.events {
                let (at_ms, event): (u64, Event) = serde_json::from_str(line).expect("a journaled event");
                run.on(&event, at_ms);
            }
            Run::clone(&run)
        })
    }

    /// Returns everything that was reported about the run.
    pub fn told(&self, home: &str) -> Vec<Telling> {
        self.with(home, |home| home.told.clone())
    }

    /// Answers a request, or ends it, as a person would.
    pub fn settle(&self, ask: u64, settled: Settled) {
        self.asks.lock().unwrap_or_else(PoisonError::into_inner).insert(ask, settled);
        self.changed.notify_waiters();
    }

    /// Says that a queue item is of another repository.
    pub fn disown(&self, home: &str, item: ItemId) {
        self.with(home, |home| home.foreign.insert(item));
    }

    /// Leaves work of a job on its branch, as a person would see it in git.
    pub fn leave_work(&self, home: &str, job: &str) {
        self.with(home, |home| home.unlanded.insert(job.to_owned()));
    }

    /// Sets the command by which a run verifies the work on a branch.
    pub fn verify(&self, branch: &str, command: &str) {
        let settings = MergeSettings { verify: Some(command.to_owned()), ..MergeSettings::default() };
        let agreed = Agreed { settings, base: Some("main".to_owned()), lands: true, is_of_work: true };
        self.agreed.lock().unwrap_or_else(PoisonError::into_inner).insert(branch.to_owned(), agreed);
    }

    /// Merges all work that conflicted, as a person would.
    pub fn merge_by_hand(&self, home: &str) {
        self.with(home, |home| home.is_merged = true);
    }

    fn with<T>(&self, home: &str, work: impl FnOnce(&mut Home) -> T) -> T {
        let mut homes = self.homes.lock().unwrap_or_else(PoisonError::into_inner);
        work(homes.entry(home.to_owned()).or_default())
    }
}

impl Runs for FakeRuns {
    fn active(&self) -> BoxFuture<'_, io::Result<Survey<String>>> {
        Box::pin(async move {
            let active = {
                let homes = self.homes.lock().unwrap_or_else(PoisonError::into_inner);
                // A start that failed before its journal began left nothing.
                let begun = homes.iter().filter(|(_, home)| !home.snapshot.is_empty());
                begun.filter(|(_, home)| home.active || home.closed).map(|(name, _)| name.clone()).collect()
            };
            self.script.survey("run.active", active, String::clone).await
        })
    }

    fn open<'a>(&'a self, home: &'a str) -> BoxFuture<'a, Result<Option<Run>, String>> {
        Box::pin(async move {
            self.script.before("run.open", home).await?;
            let begun = self.with(home, |home| !home.snapshot.is_empty());
            Ok(begun.then(|| self.run(home)))
        })
    }

    fn begin<'a>(&'a self, run: &'a Run, caller: &'a Caller) -> BoxFuture<'a, io::Result<()>> {
        Box::pin(async move {
            let name = &run.plan.home;
            self.script.before("run.begin", name).await.map_err(io::Error::other)?;
            let snapshot = serde_json::to_string(run)?;
            self.with(name, |home| {
                let (told, is_merged) = (std::mem::take(&mut home.told), home.is_merged);
                let (foreign, unlanded) = (std::mem::take(&mut home.foreign), std::mem::take(&mut home.unlanded));
                let (caller, active) = (caller.clone(), true);
                *home = Home { snapshot, caller, active, told, is_merged, foreign, unlanded, ..Home::default() };
            });
            self.script.after("run.begin").await.map_err(io::Error::other)
        })
    }

    fn began_by<'a>(&'a self, home: &'a str, request: &'a str) -> BoxFuture<'a, io::Result<bool>> {
        Box::pin(async move {
            self.script.before("run.began_by", home).await.map_err(io::Error::other)?;
            Ok(self.with(home, |home| !home.snapshot.is_empty() && home.caller.request == request))
        })
    }

    fn resume<'a>(&'a self, home: &'a str) -> BoxFuture<'a, Result<Journaled, String>> {
        Box::pin(async move {
            self.script.before("run.resume", home).await?;
            Ok(self.with(home, |home| Journaled {
                run: serde_json::from_str(&home.snapshot).expect("a run was begun there"),
                events: home.events.iter().map(|line| serde_json::from_str(line).expect("an event")).collect(),
                caller: home.caller.clone(),
                told: home.told.iter().filter_map(|telling| telling.number).map(|number| number + 1).max().unwrap_or(0),
            }))
        })
    }

    fn append<'a>(&'a self, run: &'a Run, events: &'a [(u64, Event)]) -> BoxFuture<'a, io::Result<()>> {
        Box::pin(async move {
            let home = &run.plan.home;
            self.script.before("run.append", home).await.map_err(io::Error::other)?;
            for event in events {
                let line = serde_json::to_string(event)?;
                self.with(home, |home| home.events.push(line));
            }
            self.script.after("run.append").await.map_err(io::Error::other)
        })
    }

    fn tell<'a>(&'a self, plan: &'a Plan, words: Vec<Telling>) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let _ = self.script.before("run.tell", &plan.home).await;
            self.with(&plan.home, |home| home.told.extend(words));
            let _ = self.script.after("run.tell").await;
        })
    }

    fn prepare<'a>(&'a self, now: &'a Now, caller: &'a Caller) -> BoxFuture<'a, Result<SpawnRequest, Outcome>> {
        Box::pin(async move {
            let (asked, attempt) = (now.job(), now.progress.attempt);
            if let Err(cause) = self.script.before("run.prepare", &asked.id).await {
                return Err(Outcome::Failure { cause, evidence: None, fault: FaultKind::Lasting });
            }
            if now.progress.conflicted && self.has_landed(now, caller).await {
                return Err(Outcome::Success { summary: None });
            }
            let request = request_of(&now.plan.id, &asked.id, attempt);
            Ok(SpawnRequest {
                caller: Caller { request, ..caller.clone() },
                name: now.worker(),
                contract: Contract {
                    argv: vec!["agent".to_owned()],
                    job: now.plan.rules.order_of(asked).cloned(),
                    ..Contract::default()
                },
                worktree: asked.branch.clone().map(|branch| WorktreeRequest {
                    cwd: now.plan.root.clone(),
                    branch: Some(branch),
                    leaf: Some(asked.id.clone()),
                    ..WorktreeRequest::default()
                }),
                replaces: Some(request_prefix(&now.plan.id, &asked.id)),
                takes_over: None,
            })
        })
    }

    fn has_landed<'a>(&'a self, now: &'a Now, _: &'a Caller) -> BoxFuture<'a, bool> {
        let is_merged = now.progress.conflict_tip.is_some() && self.with(&now.plan.home, |home| home.is_merged);
        Box::pin(std::future::ready(is_merged))
    }

    fn is_own<'a>(&'a self, now: &'a Now, _: &'a Target, item: &'a Item, _: &'a Caller) -> BoxFuture<'a, bool> {
        let is_own = self.with(&now.plan.home, |home| !home.foreign.contains(&item.id));
        Box::pin(std::future::ready(is_own))
    }

    fn changed_rules<'a>(&'a self, now: &'a Now, item: &'a Item, _: &'a Caller) -> BoxFuture<'a, Option<Rules>> {
        let verify = now.plan.verification_of(now.job());
        let has_changed = verify.is_some() && verify != item.rules.verify;
        Box::pin(std::future::ready(has_changed.then(|| Rules { verify, ..item.rules.clone() })))
    }

    fn agreed<'a>(
        &'a self,
        branch: &'a str,
        _: Option<&'a str>,
        _: &'a Caller,
    ) -> BoxFuture<'a, Result<Option<Agreed>, String>> {
        Box::pin(async move {
            self.script.before("run.agreed", branch).await?;
            Ok(self.agreed.lock().unwrap_or_else(PoisonError::into_inner).get(branch).cloned())
        })
    }

    fn place<'a>(&'a self, now: &'a Now, _: &'a Caller) -> BoxFuture<'a, Option<RowWorktree>> {
        // Work that was done on a host is on a branch without a worktree.
        let branch = now.progress.tip.as_ref().and(now.job().branch.clone());
        let place =
            branch.map(|branch| RowWorktree { path: "/gone".to_owned(), branch, base_repo: "/repo".to_owned() });
        Box::pin(std::future::ready(place))
    }

    fn outcome<'a>(&'a self, now: &'a Now, exit: Option<&'a ExitRecord>) -> BoxFuture<'a, (Outcome, Spent)> {
        Box::pin(async move {
            let failure =
                |cause: &str| Outcome::Failure { cause: cause.to_owned(), evidence: None, fault: FaultKind::Task };
            let outcome = match exit {
                Some(exit) if exit.is_ordered() => Outcome::Stopped,
                Some(exit) if exit.interrupted => {
                    Outcome::Failure { cause: "interrupted".to_owned(), evidence: None, fault: FaultKind::Lost }
                }
                Some(exit) if exit.ended == Ended::Code(ASKS) => {
                    let ask = u64::from(now.progress.attempt);
                    Outcome::Parked { ask, what: "Bash: make".to_owned(), kind: NeedKind::Permission }
                }
                Some(exit) if exit.ended.is_success() => Outcome::Success { summary: None },
                Some(_) => failure("it failed"),
                None if now.plan.rules.order_of(now.job()).is_some() => {
                    Outcome::Failure { cause: "lost".to_owned(), evidence: None, fault: FaultKind::Lost }
                }
                None => failure("ended with an unknown result"),
            };
            (outcome, Spent::default())
        })
    }

    fn settled(&self, ask: u64) -> BoxFuture<'_, Settled> {
        Box::pin(async move {
            self.script.note(format!("run.settled {ask}"));
            loop {
                let changed = self.changed.notified();
                let settled = self.asks.lock().unwrap_or_else(PoisonError::into_inner).get(&ask).cloned();
                if let Some(settled) = settled {
                    return settled;
                }
                changed.await;
            }
        })
    }

    fn resolutions<'a>(&'a self, _: &'a Now) -> BoxFuture<'a, Spent> {
        Box::pin(std::future::ready(Spent::default()))
    }

    fn keep<'a>(&'a self, now: &'a Now) -> BoxFuture<'a, ()> {
        Box::pin(async move { self.script.note(format!("run.keep {}", now.job().id)) })
    }

    fn has_work<'a>(&'a self, now: &'a Now, _: &'a Caller) -> BoxFuture<'a, bool> {
        let has_work = self.with(&now.plan.home, |home| home.unlanded.contains(&now.job().id));
        Box::pin(std::future::ready(has_work))
    }

    fn tidy<'a>(&'a self, now: &'a Now, _: &'a Caller) -> BoxFuture<'a, Option<Saved>> {
        Box::pin(async move {
            self.script.note(format!("run.tidy {}", now.job().id));
            None
        })
    }

    fn close<'a>(&'a self, home: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let _ = self.script.before("run.close", home).await;
            self.with(home, |home| (home.active, home.closed) = (false, true));
        })
    }

    fn forget<'a>(&'a self, run: &'a Run) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let home = &run.plan.home;
            let _ = self.script.before("run.forget", home).await;
            self.with(home, |home| home.closed = false);
        })
    }
}
