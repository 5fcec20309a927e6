//! Taking over a worker that an earlier supervisor started, or that ended while
//! there was none: the same facts and the same machine as for a worker that was
//! watched all along.

use super::actor::{Life, State};
use super::machine::{End, Event, Phase};
use super::{backoff, subject::Subject};
use crate::registry::reconcile;
use swarm_model::{EventKind, FineState, Wanted};
use swarm_ports::{DirFacts, SpecFacts};

impl State {
    /// Brings the actor up to what is on disk, when it does not know it yet.
    pub(super) async fn sync(&mut self, facts: &DirFacts) {
        let known = self.life.as_ref().is_some_and(|life| life.generation == facts.generation);
        let (Some(spec), Some(lease)) = (facts.spec.spec(), facts.lease.content.clone()) else { return };
        if known {
            return;
        }
        self.abort_tasks();
        self.machine.policy = spec.contract.restart;
        self.machine.wanted = facts.wanted.clone();
        self.life = Some(Life::of(spec, lease, facts.wanted.rungs));
        let state = reconcile::fine_state(facts);
        if state.is_running() {
            self.keep_logs(spec);
            self.forget_renewal(facts).await;
            self.tell_life();
        } else {
            self.tell_end(facts.exit.as_ref());
            let exit = facts.exit.as_ref();
            self.report_end(&End::of(exit, None)).await;
        }
        match state {
            FineState::Starting | FineState::Running | FineState::Suspended | FineState::Stopping => {
                self.machine.phase = Phase::Starting;
                let _ = self.feed(Event::Started).await;
            }
            FineState::Unsupervised => {
                self.machine.phase = Phase::Running;
                let _ = self.feed(Event::ShimLost).await;
            }
            FineState::Backoff => self.resume_backoff().await,
            FineState::Failed => self.machine.phase = Phase::Failed,
            FineState::Exited
            | FineState::OutOfMemory
            | FineState::Stopped
            | FineState::Lost
            | FineState::Interrupted => {
                self.machine.phase = Phase::Ended;
                if state == FineState::Lost
                    && let Some(lease) = &facts.lease.content
                {
                    self.end_leftovers(lease).await;
                }
                self.tell_finished(facts).await;
            }
        }
    }

    /// It was to be ended and started again, and the supervisor went before that.
    async fn forget_renewal(&mut self, facts: &DirFacts) {
        if !std::mem::take(&mut self.machine.wanted.renewed) {
            return;
        }
        self.machine.wanted.next_start_ms = None;
        let wanted = self.machine.wanted.clone();
        if let Err(error) = self.ports().records.write_wanted(self.name(), facts.generation, &wanted).await {
            tracing::warn!(worker = self.name(), %error, "it is still noted that it is to be started again");
        }
    }

    /// A restart was due when the last supervisor went: at its time, or now.
    async fn resume_backoff(&mut self) {
        let Some(due_ms) = self.machine.wanted.next_start_ms else {
            // It ended while nobody looked: decided as if it had ended just now.
            let generation = self.life.as_ref().map_or(0, |life| life.generation);
            self.machine.phase = Phase::Running;
            self.worker_gone(generation).await;
            return;
        };
        let delay_ms = due_ms.saturating_sub(self.ports().clock.wall_ms()).min(backoff::DELAY_MS_MAX);
        self.machine.phase = Phase::BackingOff;
        self.arm_restart(delay_ms);
    }

    /// Takes over what an earlier supervisor left of this name.
    pub(super) async fn adopt(&mut self) {
        match self.subject().await {
            Ok(Subject::Ours { facts, .. }) => self.adopt_ours(&facts).await,
            Ok(Subject::None | Subject::Foreign { .. }) => {}
            Err(refusal) => {
                tracing::error!(worker = self.name(), cause = %refusal.cause, "a worker could not be adopted");
            }
        }
    }

    async fn adopt_ours(&mut self, facts: &DirFacts) {
        if matches!(facts.spec, SpecFacts::Pending(_)) {
            // Promised by a supervisor that is gone: its shim, alone, reads the row and decides.
            self.ports().records.lease_is_let_go(self.name(), facts.generation).await;
        }
        let Some(facts) = self.observe(facts.generation).await else { return };
        if matches!(facts.spec, SpecFacts::Pending(_)) && !facts.lease.held {
            tracing::warn!(worker = self.name(), "a committed start was never executed, starting it again");
            self.life = None;
            self.machine.policy = facts.spec.spec().map_or_else(Default::default, |spec| spec.contract.restart);
            self.machine.wanted = Wanted { next_start_ms: Some(self.ports().clock.wall_ms()), ..facts.wanted.clone() };
            self.machine.phase = Phase::BackingOff;
            let _ = self.feed(Event::RestartDue).await;
            return;
        }
        self.sync(&facts).await;
        if self.machine.phase.has_process()
            && let Some(life) = &self.life
        {
            self.emit(EventKind::WorkerAdopted { pid: life.lease.worker.pid });
        }
    }
}
