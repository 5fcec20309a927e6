//! State machine of one worker: a pure function of phase, event and time that returns effects.

use super::backoff::{self, Verdict};
use super::fate;
use swarm_model::{Ended, ExitRecord, FineState, Hits, Reason, RestartPolicy, Rungs, Wanted, WantedState};

/// Phase of a worker. The wanted state is kept separately, in [`Wanted`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Not running, and no restart is due.
    Ended,
    /// A start is in progress.
    Starting,
    /// Its shim lives.
    Running,
    /// Its shim is gone, but its own process lives.
    Unsupervised,
    /// A restart is due.
    BackingOff,
    /// The restart limit was reached.
    Failed,
}

impl Phase {
    /// Reports whether the worker's own process lives, as far as is known.
    pub fn has_process(self) -> bool {
        match self {
            Self::Running | Self::Unsupervised => true,
            Self::Ended | Self::Starting | Self::BackingOff | Self::Failed => false,
        }
    }
}

/// How a generation ended. An unknown end has neither code nor reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    pub ended: Option<Ended>,
    pub reason: Option<Reason>,
    /// Uptime in milliseconds. `None` if the end was only found later and nothing recorded it.
    pub up_ms: Option<u64>,
    pub hits: Hits,
    /// Whether a signal that no supervisor sent ended it.
    pub interrupted: bool,
    /// Whether it ended with its tmux server. `None` if its window was not closed or that is unknown.
    pub server_lost: Option<bool>,
}

impl End {
    /// Returns the recorded end. Without a record, only an upper bound of the uptime, `up_ms`, may be
    /// known.
    pub fn of(exit: Option<&ExitRecord>, up_ms: Option<u64>) -> Self {
        Self {
            ended: exit.map(|exit| exit.ended),
            reason: exit.map(|exit| exit.reason),
            up_ms: exit.map(|exit| exit.duration_ms).or(up_ms),
            hits: exit.map_or_else(Hits::default, |exit| exit.hits),
            interrupted: exit.is_some_and(|exit| exit.interrupted),
            server_lost: exit.and_then(|exit| exit.server_lost),
        }
    }

    /// Reports whether only the wanted state can say that the worker was stopped: from its end alone,
    /// [`fate`] may conclude that it was lost.
    fn may_be_lost(&self) -> bool {
        match (self.ended, self.reason) {
            _ if self.interrupted => true,
            (None, _) | (_, Some(Reason::Closed)) => true,
            (Some(Ended::Signal(signal)), Some(Reason::Exited)) => signal == fate::SIGTERM,
            _ => false,
        }
    }

    /// Reports whether the worker ended by itself and with success.
    fn is_finished(&self) -> bool {
        self.reason == Some(Reason::Exited) && self.ended.is_some_and(Ended::is_success)
    }
}

/// One generation that an earlier supervisor started, as described by its records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adoption {
    pub generation: u64,
    pub policy: RestartPolicy,
    pub wanted: Wanted,
    /// State that [`reconcile`](crate::registry::reconcile) derives from the records.
    pub state: FineState,
    /// The recorded end. Unknown in every part if there is no exit record.
    pub end: End,
}

/// Event in the life of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A start begins. Earlier stops and failures no longer count; the value is the part of the
    /// history that still does.
    StartBegins(Wanted),
    /// The start succeeded.
    Started { generation: u64, policy: RestartPolicy },
    /// The start failed and was rolled back. If it `passes`, the cause says nothing about the worker, for example a full
    /// disk.
    StartFailed { passes: bool },
    /// A generation ended. All of its processes are gone.
    LifeEnded(End),
    /// The shim is gone while the worker's process lives.
    ShimLost,
    /// The restart timer fired.
    RestartDue,
    /// The worker must be stopped and stay stopped.
    StopAsked,
    /// The worker is adopted from an earlier supervisor.
    Adopted(Adoption),
    /// An earlier supervisor committed a start that was never executed.
    PromiseFound { policy: RestartPolicy, wanted: Wanted },
    /// The worker makes no progress, and these steps of the ladder were taken.
    Escalated(Rungs),
    /// The worker is about to be stopped in order to be started again.
    RenewalBegins,
    /// The worker could not be stopped or started again. Its restart policy applies again.
    RenewalFailed,
    /// The worker's row is gone, or belongs to another program.
    Forgotten,
}

/// Action that the actor carries out. Effects are carried out in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Make `wanted` durable before the following effects.
    WriteWanted(Wanted),
    /// Make durable that the worker is being renewed, or no longer is.
    WriteRenewal(Wanted),
    /// Make `wanted` durable without a renewal that was interrupted. A failure is only logged; the
    /// next adoption tries again.
    ForgetRenewal(Wanted),
    /// Keep the logs of the running worker within their limit.
    KeepLogs,
    /// Tell the supervisor that the worker runs, if it has a session.
    TellLife,
    /// Tell the supervisor that the worker has ended, if it has a session.
    TellEnd(End),
    /// Watch the shim and report when it is gone.
    WatchShim,
    /// Watch the worker's own process and end it at its time limit.
    WatchWorker,
    /// Publish the end.
    ReportEnd(End),
    /// Report that the worker's work is complete and may land.
    ReportFinished,
    /// End the processes that the worker left behind.
    EndLeftovers,
    /// Read the records again and report `LifeEnded`.
    SettleEnd,
    /// Announce the restart, and fire `RestartDue` after `delay_ms` milliseconds.
    ArmRestart {
        delay_ms: u64,
        restarts: u32,
    },
    /// Fire `RestartDue` after `delay_ms` milliseconds. The restart was announced before.
    RearmRestart {
        delay_ms: u64,
    },
    CancelRestart,
    /// Start the next generation.
    StartAgain,
    /// End the process tree.
    StopTree,
    ReportGivenUp,
}

/// State of one worker. Only events change it.
#[derive(Clone, Debug)]
pub struct Machine {
    phase: Phase,
    wanted: Wanted,
    policy: RestartPolicy,
    /// Generation that `phase` describes. `None` before the first start or adoption.
    generation: Option<u64>,
    /// Whether the end of that generation was reported.
    reported: bool,
    /// Whether that generation has ended in a way that may be a loss, so that only `wanted` can say that it was stopped.
    unproven: bool,
}

impl Default for Machine {
    fn default() -> Self {
        Self {
            phase: Phase::Ended,
            wanted: Wanted::default(),
            policy: RestartPolicy::Never,
            generation: None,
            reported: false,
            unproven: false,
        }
    }
}

impl Machine {
    pub fn phase(&self) -> Phase {
        self.phase
    }

    pub fn wanted(&self) -> &Wanted {
        &self.wanted
    }

    /// Reports whether this machine started or adopted the generation.
    pub fn knows(&self, generation: u64) -> bool {
        self.generation == Some(generation)
    }

    /// Reports whether the worker needs the supervisor: it runs, or a start or restart is pending.
    pub fn is_live(&self) -> bool {
        match self.phase {
            Phase::Starting | Phase::Running | Phase::Unsupervised | Phase::BackingOff => true,
            Phase::Ended | Phase::Failed => false,
        }
    }

    /// Handles one event at `now_ms` (wall clock, milliseconds) and returns the effects.
    pub fn on(&mut self, event: Event, now_ms: u64) -> Vec<Effect> {
        match event {
            Event::StartBegins(kept) => {
                self.wanted = kept;
                self.go(Phase::Starting, Vec::new())
            }
            Event::Started { generation, policy } => {
                self.take(generation, policy);
                self.wanted.next_start_ms = None;
                self.go(Phase::Running, vec![Effect::WatchShim])
            }
            Event::StartFailed { passes } => match self.wanted.next_start_ms {
                // However long it takes, the worker is not given up for it.
                Some(_) if passes => {
                    self.wanted.next_start_ms = Some(now_ms + backoff::PASSING_MS);
                    let write = Effect::WriteWanted(self.wanted.clone());
                    self.go(Phase::BackingOff, vec![Effect::RearmRestart { delay_ms: backoff::PASSING_MS }, write])
                }
                // A failed restart counts as one more generation, which ended at once.
                Some(_) => self.end(End::of(None, Some(0)), now_ms),
                None => self.go(Phase::Ended, Vec::new()),
            },
            Event::ShimLost => self.go(Phase::Unsupervised, vec![Effect::WatchWorker]),
            Event::LifeEnded(end) => match self.phase {
                Phase::Starting | Phase::Running | Phase::Unsupervised => {
                    let mut effects = self.report(end);
                    // Only `wanted` can say that it was stopped, and the first write may have failed.
                    self.unproven = end.may_be_lost();
                    if self.unproven && self.wanted.state == WantedState::Stopped {
                        effects.push(Effect::WriteWanted(self.wanted.clone()));
                    }
                    effects.extend(self.end(end, now_ms));
                    effects
                }
                // Both the watch and a stop may report the end.
                Phase::Ended | Phase::BackingOff | Phase::Failed => Vec::new(),
            },
            Event::RestartDue => match self.phase {
                Phase::BackingOff => self.go(Phase::Starting, vec![Effect::StartAgain]),
                Phase::Ended | Phase::Starting | Phase::Running | Phase::Unsupervised | Phase::Failed => Vec::new(),
            },
            Event::StopAsked => self.stop(),
            Event::Adopted(adoption) if self.knows(adoption.generation) => Vec::new(),
            Event::Adopted(adoption) => self.adopt(adoption, now_ms),
            Event::PromiseFound { policy, wanted } => {
                self.policy = policy;
                self.wanted = Wanted { next_start_ms: Some(now_ms), ..wanted };
                self.generation = None;
                self.go(Phase::Starting, vec![Effect::StartAgain])
            }
            Event::Escalated(rungs) => {
                self.wanted.rungs = rungs;
                vec![Effect::WriteWanted(self.wanted.clone())]
            }
            Event::RenewalBegins => self.renew(Some(now_ms)),
            Event::RenewalFailed => self.renew(None),
            Event::Forgotten => {
                self.wanted = Wanted::default();
                self.go(Phase::Ended, Vec::new())
            }
        }
    }

    fn take(&mut self, generation: u64, policy: RestartPolicy) {
        (self.generation, self.policy) = (Some(generation), policy);
        (self.reported, self.unproven) = (false, false);
    }

    /// Continues from the state in which the earlier supervisor left the worker.
    fn adopt(&mut self, adoption: Adoption, now_ms: u64) -> Vec<Effect> {
        let Adoption { generation, policy, wanted, state, end } = adoption;
        self.take(generation, policy);
        self.wanted = wanted;
        if state.is_running() {
            return self.adopt_running(state);
        }
        // Shims of older versions recorded the signal of a shutdown as a stop.
        self.unproven = end.may_be_lost() || end.reason == Some(Reason::Stopped);
        let mut effects = vec![Effect::TellEnd(end)];
        effects.extend(self.report(end));
        match (state, self.wanted.next_start_ms) {
            (FineState::Backoff, Some(due_ms)) => {
                self.phase = Phase::BackingOff;
                // A wall clock that was set back must not delay the restart for years.
                let delay_ms = due_ms.saturating_sub(now_ms).min(backoff::DELAY_MS_MAX);
                effects.push(Effect::RearmRestart { delay_ms });
            }
            (FineState::Backoff, None) => {
                // It ended while no supervisor ran. Decide as if it had ended just now.
                self.phase = Phase::Running;
                effects.push(Effect::SettleEnd);
            }
            (FineState::Failed, _) => self.phase = Phase::Failed,
            _ => {
                self.phase = Phase::Ended;
                // Without its shim, nobody may have ended the processes that it left.
                let is_unknown = end.ended.is_none() && matches!(state, FineState::Lost | FineState::Stopped);
                effects.extend(is_unknown.then_some(Effect::EndLeftovers));
                effects.extend(end.is_finished().then_some(Effect::ReportFinished));
            }
        }
        effects
    }

    fn adopt_running(&mut self, state: FineState) -> Vec<Effect> {
        let mut effects = vec![Effect::KeepLogs];
        if std::mem::take(&mut self.wanted.renewed) {
            // A renewal was recorded, but the supervisor ended before it stopped the worker.
            self.wanted.next_start_ms = None;
            effects.push(Effect::ForgetRenewal(self.wanted.clone()));
        }
        effects.push(Effect::TellLife);
        if state == FineState::Unsupervised {
            effects.push(Effect::WatchWorker);
            return self.go(Phase::Unsupervised, effects);
        }
        self.wanted.next_start_ms = None;
        effects.push(Effect::WatchShim);
        self.go(Phase::Running, effects)
    }

    fn renew(&mut self, since_ms: Option<u64>) -> Vec<Effect> {
        self.wanted.renewed = since_ms.is_some();
        self.wanted.next_start_ms = since_ms;
        vec![Effect::WriteRenewal(self.wanted.clone())]
    }

    /// Reports the end of a generation once.
    fn report(&mut self, end: End) -> Vec<Effect> {
        if std::mem::replace(&mut self.reported, true) { Vec::new() } else { vec![Effect::ReportEnd(end)] }
    }

    fn go(&mut self, phase: Phase, effects: Vec<Effect>) -> Vec<Effect> {
        self.phase = phase;
        effects
    }

    fn stop(&mut self) -> Vec<Effect> {
        let has_ended = self.phase == Phase::Ended && !self.unproven && self.wanted.state == WantedState::Running;
        self.wanted.state = WantedState::Stopped;
        self.wanted.next_start_ms = None;
        let mut effects = Vec::new();
        // Also without a policy: if the shutdown of the machine ends the worker at the same time, the exit record does not
        // say that it was stopped, and another program may save the row as running again. Write even if the state is already `Stopped`: the
        // previous write may have failed, and then only this process knows. A worker that ended by itself stays
        // `exited`.
        if self.policy != RestartPolicy::Never || std::mem::take(&mut self.wanted.renewed) || !has_ended {
            effects.push(Effect::WriteWanted(self.wanted.clone()));
        }
        match self.phase {
            Phase::Running | Phase::Unsupervised => effects.push(Effect::StopTree),
            Phase::BackingOff => {
                self.phase = Phase::Ended;
                effects.push(Effect::CancelRestart);
            }
            // A stop is handled after a start, never during one.
            Phase::Starting | Phase::Ended | Phase::Failed => {}
        }
        effects
    }

    fn end(&mut self, end: End, now_ms: u64) -> Vec<Effect> {
        if !self.restarts_after(end) {
            let finished = end.is_finished().then_some(Effect::ReportFinished);
            return self.go(Phase::Ended, finished.into_iter().collect());
        }
        // It ended by itself, so the next generation starts at the foot of the ladder.
        self.wanted.rungs = Rungs::default();
        match backoff::after_end(&self.wanted, end.up_ms.unwrap_or(0), now_ms) {
            Verdict::Restart { wanted, delay_ms } => {
                self.wanted = wanted;
                let restarts = self.wanted.restarts;
                let write = Effect::WriteWanted(self.wanted.clone());
                // Arm the timer first: it starts nothing yet, and the worker must not be
                // forgotten if the write fails. The start writes the record again.
                self.go(Phase::BackingOff, vec![Effect::ArmRestart { delay_ms, restarts }, write])
            }
            Verdict::GiveUp { wanted } => {
                self.wanted = wanted;
                let write = Effect::WriteWanted(self.wanted.clone());
                self.go(Phase::Failed, vec![write, Effect::ReportGivenUp])
            }
        }
    }

    fn restarts_after(&self, end: End) -> bool {
        let ordered = matches!(end.reason, Some(Reason::Stopped | Reason::Abandoned)) && !end.interrupted;
        if ordered || self.wanted.state != WantedState::Running {
            return false;
        }
        match self.policy {
            RestartPolicy::Never => false,
            RestartPolicy::OnFailure => end.interrupted || !end.ended.is_some_and(Ended::is_success),
            RestartPolicy::Always => true,
        }
    }
}
