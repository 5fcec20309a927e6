//! One scenario with one fault: what was acknowledged, and what must be true at the end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use swarm_actors::supervisor::Request;
use swarm_model::{Answer, Ended, EventKind, RespawnRequest, SpawnRequest};
use tokio::sync::mpsc::UnboundedReceiver;

use super::faulty::{self, Faults, Kind, Plan};
use super::scenarios::Scenario;
use crate::fixture::{Rig, clean, kill, request, respawn};

/// Maximum time until any request is answered. The longest limit is that of the commit of a large worktree.
const ANSWER_MAX: Duration = Duration::from_secs(20 * 60);
pub const NOT_MET: &str = "the fault never struck";
pub const NO_ANSWER: &str = " has no answer";
pub const NOT_SERVED: &str = "other workers are not served";
pub const START_HANGS: &str = "the start of the supervisor hangs";
/// Maximum time until a request about another worker is answered.
const PROBE_MAX: Duration = Duration::from_secs(60);

/// What is known of a worker by the answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ack {
    Started,
    Stopped,
    Cleaned,
    /// No start of this name was ever acknowledged, and each was refused.
    Refused,
}

pub struct Stage {
    pub rig: Rig,
    faults: Arc<Faults>,
    acks: BTreeMap<String, Ack>,
    violations: Vec<String>,
    began: tokio::time::Instant,
}

/// Runs a scenario, and returns the calls of methods and all violations.
pub fn run(scenario: &Scenario, plan: Option<Plan>) -> (BTreeMap<&'static str, usize>, Vec<String>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime").block_on(async {
        let faults = Arc::<Faults>::default();
        plan.into_iter().for_each(|plan| faults.plan(plan));
        let (rig, began) = (Rig::in_memory(), tokio::time::Instant::now());
        let mut stage = Stage { rig, faults, acks: BTreeMap::new(), violations: Vec::new(), began };
        let mut calls = BTreeMap::new();
        if stage.up().await {
            (scenario.play)(&mut stage).await;
            // The start of the other worker below is not a part of the scenario.
            calls = stage.faults.calls();
            // A step that hangs is still under way, and what could not be taken back is for the next supervisor.
            if plan.is_none_or(|plan| plan.kind != Kind::Hang && plan.method != "worktrees.undo") {
                stage.refused_left_nothing();
            }
            stage.probe().await;
            let struck = stage.faults.end();
            if plan.is_some() && !struck {
                stage.violations.push(NOT_MET.to_owned());
            }
            if stage.rig.is_up() {
                stage.rig.crash().await;
            }
            stage.rig.up().await;
            stage.rig.swarm().stay();
            stage.seconds(60).await;
            (scenario.finish)(&mut stage).await;
            stage.check();
        }
        let hangs = stage.violations.iter().any(|what| what == START_HANGS);
        // The supervisor that hangs in its start cannot be killed here, and so acts beside the next one.
        (calls, if hangs { vec![START_HANGS.to_owned()] } else { stage.violations })
    })
}

impl Stage {
    /// Starts a supervisor, again if it fails. Returns false if its start hangs.
    pub async fn up(&mut self) -> bool {
        for _ in 0..3 {
            let ports = faulty::ports(self.rig.world.ports(), &self.faults);
            match self.rig.try_up(ports, ANSWER_MAX).await {
                Some(Ok(())) => {
                    self.rig.swarm().stay();
                    self.seconds(5).await;
                    return true;
                }
                Some(Err(_)) => {}
                None => {
                    self.violations.push(START_HANGS.to_owned());
                    self.faults.end();
                    self.rig.up().await;
                    return false;
                }
            }
        }
        self.violations.push("the supervisor does not start".to_owned());
        false
    }

    pub async fn seconds(&self, seconds: u64) {
        self.rig.world.pass(Duration::from_secs(seconds)).await;
    }

    pub fn violated(&mut self, is: bool, what: impl FnOnce() -> String) {
        if is {
            self.violations.push(what());
        }
    }

    /// Returns whether a request was done; `None` if it was not answered in time.
    pub async fn done(&mut self, what: &str, mut answers: UnboundedReceiver<Answer>) -> Option<bool> {
        let mut done = None;
        let read = async {
            while let Some(answer) = answers.recv().await {
                match answer {
                    Answer::Done => break,
                    Answer::Accepted | Answer::Warning(_) => {}
                    Answer::Refused(_) => done = Some(false),
                    _ => done = done.or(Some(true)),
                }
            }
        };
        let _ = tokio::time::timeout(ANSWER_MAX, read).await;
        self.violated(done.is_none(), || format!("{what}{NO_ANSWER}"));
        done
    }

    pub async fn ask(&mut self, what: &str, request: Request) -> Option<bool> {
        let answers = self.rig.swarm().request(request);
        self.done(what, answers).await
    }

    pub async fn spawn(&mut self, request: SpawnRequest) {
        let name = request.name.clone();
        let done = self.ask("spawn", Request::Spawn(Box::new(request))).await;
        match done {
            Some(true) => drop(self.acks.insert(name, Ack::Started)),
            Some(false) => drop(self.acks.entry(name).or_insert(Ack::Refused)),
            None => drop(self.acks.remove(&name)),
        }
    }

    pub async fn respawn(&mut self, name: &str) {
        let done = self.ask("respawn", Request::Respawn(Box::new(respawn(name)))).await;
        self.acknowledged(name, done, Ack::Started);
    }

    /// Starts a worker again in a new worktree.
    pub async fn replace(&mut self, name: &str) {
        let asked = RespawnRequest { clean_first: true, ..respawn(name) };
        let done = self.ask("respawn", Request::Respawn(Box::new(asked))).await;
        self.acknowledged(name, done, Ack::Started);
    }

    /// Returns the time since the start of the scenario, in minutes.
    pub fn elapsed_minutes(&self) -> u64 {
        self.began.elapsed().as_secs() / 60
    }

    pub async fn kill(&mut self, name: &str) {
        let done = self.ask("kill", kill(name)).await;
        self.acknowledged(name, done, Ack::Stopped);
    }

    pub async fn clean(&mut self, name: &str) {
        let done = self.ask("clean", Request::Clean(Box::new(clean(name)))).await;
        self.acknowledged(name, done, Ack::Cleaned);
    }

    /// Notes an answer. After a refusal, nothing is known of a worker that had been started.
    fn acknowledged(&mut self, name: &str, done: Option<bool>, ack: Ack) {
        match done {
            Some(true) => drop(self.acks.insert(name.to_owned(), ack)),
            Some(false) if self.acks.get(name) == Some(&Ack::Refused) => {}
            _ => drop(self.acks.remove(name)),
        }
    }

    /// Notes that a worker ended by itself.
    pub fn end(&mut self, name: &str, code: i32) {
        if self.rig.world.records.newest(name).is_some() {
            self.rig.world.end(name, Ended::Code(code));
            self.acks.remove(name);
        }
    }

    pub fn forget(&mut self, name: &str) {
        self.acks.remove(name);
    }

    /// Reports whether the last start that was executed is alive.
    pub fn is_alive(&self, name: &str) -> bool {
        let newest = self.rig.world.records.newest(name).and_then(|key| self.rig.world.records.facts(&key));
        newest.is_some_and(|facts| facts.lease.worker_alive)
    }

    fn living(&self, name: &str) -> usize {
        self.rig.world.records.all().iter().filter(|facts| facts.name == name && facts.lease.worker_alive).count()
    }

    /// Returns how often commands of this name were executed.
    pub fn executed(&self, name: &str) -> usize {
        let call = format!("open {name}.");
        self.rig.world.script.calls().iter().filter(|made| made.starts_with(&call)).count()
    }

    /// A request about another worker is answered, whatever hangs.
    async fn probe(&mut self) {
        if !self.rig.is_up() {
            return;
        }
        let answers = self.rig.swarm().request(Request::Spawn(Box::new(request("probe"))));
        let read = async {
            let mut answers = answers;
            while answers.recv().await.is_some_and(|answer| answer != Answer::Done) {}
        };
        let served = tokio::time::timeout(PROBE_MAX, read).await.is_ok();
        self.violated(!served, || NOT_SERVED.to_owned());
    }

    /// Checks, while the supervisor lives, that starts that were refused are taken back.
    fn refused_left_nothing(&mut self) {
        let refused: Vec<String> =
            self.acks.iter().filter(|(_, ack)| **ack == Ack::Refused).map(|(name, _)| name.clone()).collect();
        for name in refused {
            let trees = self.rig.world.worktrees.paths();
            let has_tree = trees.contains(&self.rig.world.worktrees.path(&name));
            let (living, has_row) = (self.living(&name), self.rig.world.row(&name).is_some());
            self.violated(living > 0 || has_row || has_tree, || {
                format!("{name} was refused, but is half made: {living} alive, row {has_row}, worktree {has_tree}")
            });
        }
    }

    /// Checks what was acknowledged, and the exits that were recorded.
    fn check(&mut self) {
        if let Err(broken) = self.rig.world.check() {
            self.violations.push(broken);
        }
        for (name, ack) in self.acks.clone() {
            let (living, has_row) = (self.living(&name), self.rig.world.row(&name).is_some());
            let has_dir = self.rig.world.records.keys().iter().any(|key| key.0 == name);
            let holds = match ack {
                Ack::Started => living == 1 && has_row,
                Ack::Stopped => living == 0 && has_row,
                Ack::Cleaned | Ack::Refused => living == 0 && !has_row && !has_dir,
            };
            self.violated(!holds, || format!("{name} was {ack:?}: {living} alive, row {has_row}, records {has_dir}"));
        }
        for event in self.rig.world.events.all() {
            let EventKind::WorkerExited { ended, .. } = event.kind else { continue };
            let key = (event.worker.unwrap_or_default(), event.generation.unwrap_or_default());
            let recorded = self.rig.world.records.facts(&key).and_then(|facts| facts.exit).map(|exit| exit.ended);
            self.violated(recorded.is_some() && ended != recorded, || {
                format!("{key:?} ended with {recorded:?}, told {ended:?}")
            });
        }
    }
}
