//! What a run does beside its actor: it starts workers and waits for their end, and
//! brings finished work into the merge queue. All of it may be done again after a
//! crash, and finds what is there.

use std::sync::Arc;
use std::time::Duration;

use ractor::ActorRef;

use super::fleet::Fleet;
use super::machine::Effect;
use super::message::RunMessage;
use crate::worker::{ended, is_final, tried};
use swarm_model::merge::queue::{Item, State};
use swarm_model::run::Wish;
use swarm_model::run::plan::Work;
use swarm_model::run::progress::{Now, Spent};
use swarm_model::run::request_of;
use swarm_model::run::{Event, FaultKind, Merged, Outcome};
use swarm_model::{Caller, MergeSettings, Refusal, RefusalKind};
use swarm_ports::Ports;

pub struct Attendant {
    pub ports: Ports,
    pub fleet: Arc<dyn Fleet>,
    pub caller: Caller,
    pub actor: ActorRef<RunMessage>,
}

impl Attendant {
    pub async fn carry_out(&self, now: &Now, effect: Effect) {
        match effect {
            Effect::Attend { attempt, .. } => self.attend(now, attempt).await,
            Effect::Stop { .. } => self.stop(now).await,
            Effect::Land { attempt, .. } => self.land(now, attempt).await,
            Effect::Arm { job, attempt, at_ms } => {
                let wait = at_ms.saturating_sub(self.ports.clock.wall_ms());
                tokio::time::sleep(Duration::from_millis(wait)).await;
                self.tell(Event::Due { job, attempt });
            }
            Effect::Tidy { .. } => self.tidy(now).await,
            Effect::Tell(..) | Effect::End(_) => {}
        }
    }

    fn tell(&self, event: Event) {
        let _ = self.actor.cast(RunMessage::Happened(event));
    }

    async fn attend(&self, now: &Now, attempt: u32) {
        let job = now.at;
        let over = |outcome, spent| Event::Ended { job, attempt, outcome, spent };
        let request = match self.ports.runs.prepare(now, &self.caller).await {
            Ok(request) => request,
            Err(outcome) => return self.tell(over(outcome, Spent::default())),
        };
        let name = request.name.clone();
        let spawned = tried(|| self.fleet.spawn(request.clone())).await;
        let spawned = match spawned {
            Ok(spawned) => spawned,
            Err(refusal) => return self.tell(over(not_started(&refusal), Spent::default())),
        };
        self.tell(Event::Started { job, attempt, pid: spawned.pid });
        let exit = ended(&self.ports, &name, spawned.generation).await;
        let (outcome, spent) = self.ports.runs.outcome(now, exit.as_ref()).await;
        self.tell(over(outcome, spent));
    }

    async fn stop(&self, now: &Now) {
        let name = now.worker();
        let caller = Caller { request: self.ports.clock.token(), ..self.caller.clone() };
        // It may just be starting, and then there is nothing to end yet; or it has
        // ended by itself, and that is told by who attends it.
        if let Err(refusal) = tried(|| self.fleet.kill(&name, &caller)).await {
            tracing::warn!(worker = %name, cause = %refusal.cause, "it could not be stopped");
        }
    }

    async fn land(&self, now: &Now, attempt: u32) {
        let job = now.at;
        let key = request_of(&now.plan.id, &now.job().id, attempt);
        let event = match self.fleet.item(&key).await {
            None => {
                if let Err(refusal) = tried(|| self.fleet.land(self.wish(now, key.clone()))).await {
                    let merged = Merged::Refused { cause: refusal.cause };
                    return self.tell(Event::Merged { job, attempt, merged, spent: Spent::default() });
                }
                Event::Queued { job, attempt }
            }
            // Whoever has the run go on may have made way for it.
            Some(item) if matches!(item.state, State::Waiting { .. }) => match self.fleet.retry(&key).await {
                Ok(()) => Event::Retried { job, attempt },
                Err(refusal) => {
                    tracing::info!(worker = %now.worker(), cause = %refusal.cause, "it goes on waiting to land");
                    Event::Queued { job, attempt }
                }
            },
            Some(_) => Event::Queued { job, attempt },
        };
        self.tell(event);
        // It may have settled before anybody listened for it.
        if let Some(item) = self.fleet.item(&key).await {
            self.settled(now, attempt, &item).await;
        }
    }

    /// Tells what has become of an item, where something has.
    pub async fn settled(&self, now: &Now, attempt: u32, item: &Item) {
        let job = now.at;
        if let Some(merged) = merged(item) {
            // Who hears of the end has to have heard of the beginning.
            self.tell(Event::Queued { job, attempt });
            let spent = self.ports.runs.resolutions(now).await;
            self.tell(Event::Merged { job, attempt, merged, spent });
        }
    }

    fn wish(&self, now: &Now, key: String) -> Wish {
        let asked = now.job();
        let rules = now.plan.rules.merge.clone();
        let verify = asked.verify.clone().or_else(|| rules.verify.clone());
        Wish {
            key,
            worker: now.worker(),
            base: now.plan.base.clone(),
            priority: asked.priority,
            settings: MergeSettings { verify, ..rules },
            subject: match &asked.work {
                Work::Spec(work) => Some(format!("{} ({})", work.title, asked.id)),
                Work::Command(_) => None,
            },
            caller: self.caller.clone(),
        }
    }

    async fn tidy(&self, now: &Now) {
        let name = now.worker();
        let caller = Caller { request: self.ports.clock.token(), ..self.caller.clone() };
        self.ports.runs.keep(now).await;
        match tried(|| self.fleet.clean(&name, &caller)).await {
            Ok(()) => {}
            Err(refusal) if refusal.kind == RefusalKind::NotFound => {}
            Err(refusal) => {
                return tracing::warn!(worker = %name, cause = %refusal.cause, "it is done and stays");
            }
        }
        if matches!(now.job().work, Work::Spec(_)) && now.job().merge {
            self.ports.runs.tidy(now, &caller).await;
        }
    }
}

/// What the queue says of an item that has settled.
pub fn merged(item: &Item) -> Option<Merged> {
    Some(match &item.state {
        State::Landed { commit } => Merged::Landed { commit: commit.clone() },
        State::Noop => Merged::Nothing,
        State::Conflict { files } => Merged::Conflict { files: files.clone() },
        State::Rejected { reason } => Merged::Rejected { reason: reason.clone() },
        State::Waiting { reason, files } => Merged::Waiting { reason: reason.clone(), files: files.clone() },
        State::Dropped => Merged::Dropped,
        State::Queued | State::Active | State::Resolving => return None,
    })
}

fn not_started(refusal: &Refusal) -> Outcome {
    let cause = match &refusal.remedy {
        Some(remedy) => format!("{} ({remedy})", refusal.cause),
        None => refusal.cause.clone(),
    };
    // A full disk, or a git that holds a lock, may be over by the next time.
    let fault = if is_final(refusal.kind) { FaultKind::Lasting } else { FaultKind::Passing };
    Outcome::Failure { cause: format!("it could not be started: {cause}"), evidence: None, fault }
}
