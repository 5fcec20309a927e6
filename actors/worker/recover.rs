//! Recovery of a worker that nobody ended (after a reboot, a lost tmux server, or a machine that ran
//! out of memory), and renewal of one that makes no progress.

use super::actor::State;
use super::error;
use super::fate::{self, Facts, Fate};
use super::launch::Start;
use super::machine::Event;
use super::record::WorkerRecord;
use super::verbs::answered;
use swarm_model::{Caller, Reason, Refusal, RefusalKind, Row, Rungs, Spawned, Wanted, WireStatus};
use swarm_ports::DirFacts;

impl State {
    pub(super) async fn recover(&mut self, caller: &Caller) -> Result<Spawned, Refusal> {
        let name = self.name().to_owned();
        let subject = self.subject().await?;
        let (row, facts) = match &subject {
            WorkerRecord::None => return Err(error::not_found(&name)),
            WorkerRecord::Foreign { .. } => {
                let cause = format!("worker '{name}' was started by another program");
                let refusal = Refusal::new(RefusalKind::Invalid, cause);
                return Err(refusal.remedy(format!("run 'swarm respawn {name}'")).of(&name));
            }
            WorkerRecord::Ours { row, facts } => (row, facts),
        };
        if let Some(spawned) = answered(row, facts, caller) {
            return Ok(spawned);
        }
        let spec = facts.spec.spec();
        let contract = spec.map(|spec| spec.contract.clone());
        let contract = contract.ok_or_else(|| error::no_contract(self.name()))?;
        if let Fate::Leave(why) = fate::decide(&self.facts(row, facts).await) {
            let kind = if subject.is_running() { RefusalKind::Running } else { RefusalKind::Invalid };
            return Err(Refusal::new(kind, format!("worker '{name}' not recovered: {why}")).of(&name));
        }
        self.end_earlier(facts).await?;
        let recoveries = facts.wanted.recoveries + 1;
        let tree = subject.tree();
        // Use the environment of the original caller; that of the present caller may differ.
        let by = super::caller_of(&contract, &caller.request);
        let start = Start {
            name: name.clone(),
            contract,
            tree,
            caller: by,
            previous: Some(row.clone()),
            wanted: Some(Wanted { recoveries, ..Wanted::default() }),
            fresh_logs: false,
            recovers: true,
            counts: true,
        };
        let spawned = self.start(start).await?;
        self.remove_leftovers(Some(spawned.generation), Some(spawned.generation)).await;
        Ok(spawned)
    }

    /// Ends a generation that makes no progress and starts the next one. The renewal is recorded
    /// before the worker is ended, so that a supervisor started after a crash completes it.
    pub(super) async fn renew(&mut self, generation: u64) -> Result<Spawned, Refusal> {
        let subject = self.subject().await?;
        let current = match &subject {
            WorkerRecord::Ours { row, facts } if facts.generation == generation => Some((row.clone(), facts.clone())),
            WorkerRecord::Ours { .. } | WorkerRecord::Foreign { .. } | WorkerRecord::None => None,
        };
        let by_itself = |facts: &DirFacts| facts.exit.as_ref().is_some_and(|exit| exit.reason == Reason::Exited);
        let Some((row, facts)) = current.filter(|(_, facts)| subject.is_running() || by_itself(facts)) else {
            return Err(Refusal::new(RefusalKind::Invalid, "this generation is no longer current").of(self.name()));
        };
        self.sync(&facts).await;
        let spec = facts.spec.spec();
        let contract = spec.map(|spec| spec.contract.clone());
        let contract = contract.ok_or_else(|| error::no_contract(self.name()))?;
        let caller = super::caller_of(&contract, spec.map_or("", |spec| &spec.request));
        if !subject.is_running() && self.machine.is_live() {
            return Err(Refusal::new(RefusalKind::Running, "its restart policy starts it again").of(self.name()));
        }
        self.feed(Event::RenewalBegins).await?;
        if subject.is_running()
            && let Err(refusal) = self.stop_tree().await
        {
            // The worker keeps running, and its restart policy applies again.
            self.feed(Event::RenewalFailed).await?;
            return Err(refusal);
        }
        let tree = subject.tree();
        let wanted = Wanted { renewed: false, next_start_ms: None, ..self.machine.wanted().clone() };
        let start = Start {
            name: self.name().to_owned(),
            contract,
            tree,
            caller,
            previous: Some(row),
            wanted: Some(wanted),
            fresh_logs: false,
            recovers: true,
            counts: false,
        };
        match self.start(start).await {
            Ok(spawned) => {
                self.remove_leftovers(Some(spawned.generation), Some(spawned.generation)).await;
                Ok(spawned)
            }
            Err(refusal) => {
                // Only a person can start it now, and is told about it.
                self.feed(Event::RenewalFailed).await?;
                Err(refusal)
            }
        }
    }

    /// Records the steps that were taken for a generation that makes no progress. Best effort: after
    /// a crash, steps that were not recorded are taken once more.
    pub(super) async fn record_escalation(&mut self, generation: u64, rungs: Rungs) {
        let Some(life) = self.life.as_mut().filter(|life| life.generation == generation) else { return };
        if let Some(session) = &mut life.session {
            session.rungs = rungs;
        }
        if let Err(refusal) = self.feed(Event::Escalated(rungs)).await {
            let error = refusal.cause;
            tracing::warn!(worker = self.name(), %error, "cannot record the steps taken about a stuck worker");
        }
    }

    async fn facts(&self, row: &Row, facts: &DirFacts) -> Facts {
        let session = match &facts.spec.spec().and_then(swarm_model::Spec::session) {
            Some(plan) => Some(self.ports().sessions.check(plan).await),
            None => None,
        };
        let known = Facts::of(facts, row.status == WireStatus::Running, self.ports().sessions.attempts_max());
        let server_lost = match fate::unjudged_pane(facts) {
            Some(pane) => Some(!self.ports().terminals.has_server(pane).await),
            None => known.server_lost,
        };
        Facts {
            // A loop that cannot be read does not count as over.
            in_loop: self.ports().loops.load(self.name()).await.map_or(true, |it| it.is_some_and(|it| it.goes_on())),
            server_lost,
            session,
            ..known
        }
    }
}
