//! The life of one worker as a pure function: phase, event, now → effects.

use super::backoff::{self, Verdict};
use swarm_model::{Ended, ExitRecord, Hits, Reason, RestartPolicy, Rungs, Wanted, WantedState};

/// Where a worker is. What is wanted of it is kept apart, in [`Wanted`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Not running, nothing due.
    Ended,
    /// A start is under way.
    Starting,
    /// Its shim lives.
    Running,
    /// Its shim is gone, its own process lives.
    Unsupervised,
    /// A restart is due.
    BackingOff,
    /// Restarts reached their limit.
    Failed,
}

impl Phase {
    /// Whether its own process lives, as far as is known.
    pub fn has_process(self) -> bool {
        match self {
            Self::Running | Self::Unsupervised => true,
            Self::Ended | Self::Starting | Self::BackingOff | Self::Failed => false,
        }
    }
}

/// How a life ended; an unknown end has neither code nor reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    pub ended: Option<Ended>,
    pub reason: Option<Reason>,
    /// Unknown for an end that was found later and recorded by nobody.
    pub up_ms: Option<u64>,
    pub hits: Hits,
}

impl End {
    /// What the record says; of an end without one only how long it was up, at most.
    pub fn of(exit: Option<&ExitRecord>, up_ms: Option<u64>) -> Self {
        Self {
            ended: exit.map(|exit| exit.ended),
            reason: exit.map(|exit| exit.reason),
            up_ms: exit.map(|exit| exit.duration_ms).or(up_ms),
            hits: exit.map_or_else(Hits::default, |exit| exit.hits),
        }
    }
}

/// What happens to a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A start was asked for, by a person or by the timer.
    StartBegins,
    Started,
    /// The start failed and everything of it was taken back.
    StartFailed,
    /// A life ended; all of its processes are gone.
    LifeEnded(End),
    /// The shim is gone while the worker's process lives.
    ShimLost,
    /// The restart timer fired.
    RestartDue,
    /// It is to be stopped and to stay stopped.
    StopAsked,
    /// A person starts it: earlier stops and failures no longer count.
    StartAsked,
}

/// What is to be done, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Make `wanted` durable before anything that follows.
    WriteWanted(Wanted),
    /// Watch the shim, and tell when it is gone.
    WatchShim,
    /// Watch the worker's own process, and end it at its time limit.
    WatchWorker,
    /// Tell of the end.
    ReportEnd(End),
    /// Fire `RestartDue` after so many milliseconds.
    ArmRestart {
        delay_ms: u64,
        restarts: u32,
    },
    CancelRestart,
    /// Start the next generation.
    StartAgain,
    /// End the process tree.
    StopTree,
    ReportGivenUp,
}

#[derive(Clone, Debug)]
pub struct Machine {
    pub phase: Phase,
    pub wanted: Wanted,
    pub policy: RestartPolicy,
}

impl Machine {
    pub fn new(policy: RestartPolicy, wanted: Wanted) -> Self {
        Self { phase: Phase::Ended, wanted, policy }
    }

    /// Whether the supervisor has anything to do for it by itself.
    pub fn is_live(&self) -> bool {
        match self.phase {
            Phase::Starting | Phase::Running | Phase::Unsupervised | Phase::BackingOff => true,
            Phase::Ended | Phase::Failed => false,
        }
    }

    /// Takes one event at `now_ms` (wall clock).
    pub fn on(&mut self, event: Event, now_ms: u64) -> Vec<Effect> {
        match event {
            Event::StartBegins => self.go(Phase::Starting, Vec::new()),
            Event::Started => {
                self.wanted.next_start_ms = None;
                self.go(Phase::Running, vec![Effect::WatchShim])
            }
            Event::StartFailed => match self.wanted.next_start_ms {
                // A restart that failed is one more life that ended at once.
                Some(_) => self.end(End::of(None, Some(0)), now_ms),
                None => self.go(Phase::Ended, Vec::new()),
            },
            Event::ShimLost => self.go(Phase::Unsupervised, vec![Effect::WatchWorker]),
            Event::LifeEnded(end) => match self.phase {
                Phase::Starting | Phase::Running | Phase::Unsupervised => {
                    let mut effects = vec![Effect::ReportEnd(end)];
                    effects.extend(self.end(end, now_ms));
                    effects
                }
                // Told twice, by the watch and by a stop.
                Phase::Ended | Phase::BackingOff | Phase::Failed => Vec::new(),
            },
            Event::RestartDue => match self.phase {
                Phase::BackingOff => self.go(Phase::Starting, vec![Effect::StartAgain]),
                Phase::Ended | Phase::Starting | Phase::Running | Phase::Unsupervised | Phase::Failed => Vec::new(),
            },
            Event::StopAsked => self.stop(),
            Event::StartAsked => {
                self.wanted = Wanted::default();
                Vec::new()
            }
        }
    }

    fn go(&mut self, phase: Phase, effects: Vec<Effect>) -> Vec<Effect> {
        self.phase = phase;
        effects
    }

    fn stop(&mut self) -> Vec<Effect> {
        self.wanted.state = WantedState::Stopped;
        self.wanted.next_start_ms = None;
        let mut effects = Vec::new();
        // Without a policy nothing would start it again. Also when it is known
        // already: the last write of it may have failed, and then only this
        // process remembers.
        if self.policy != RestartPolicy::Never || std::mem::take(&mut self.wanted.renewed) {
            effects.push(Effect::WriteWanted(self.wanted.clone()));
        }
        match self.phase {
            Phase::Running | Phase::Unsupervised => effects.push(Effect::StopTree),
            Phase::BackingOff => {
                self.phase = Phase::Ended;
                effects.push(Effect::CancelRestart);
            }
            // A stop is handled after a start, never within one.
            Phase::Starting | Phase::Ended | Phase::Failed => {}
        }
        effects
    }

    fn end(&mut self, end: End, now_ms: u64) -> Vec<Effect> {
        if !self.restarts_after(end) {
            return self.go(Phase::Ended, Vec::new());
        }
        // By itself: nobody has done anything about the next one yet.
        self.wanted.rungs = Rungs::default();
        match backoff::after_end(&self.wanted, end.up_ms.unwrap_or(0), now_ms) {
            Verdict::Restart { wanted, delay_ms } => {
                self.wanted = wanted;
                let restarts = self.wanted.restarts;
                let write = Effect::WriteWanted(self.wanted.clone());
                // The timer first: it starts nothing, and where the record fails
                // the worker must not be forgotten. A start records again.
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
        let ordered = matches!(end.reason, Some(Reason::Stopped | Reason::Abandoned));
        if ordered || self.wanted.state != WantedState::Running {
            return false;
        }
        match self.policy {
            RestartPolicy::Never => false,
            RestartPolicy::OnFailure => !end.ended.is_some_and(Ended::is_success),
            RestartPolicy::Always => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn running(policy: RestartPolicy) -> Machine {
        let mut machine = Machine::new(policy, Wanted::default());
        machine.on(Event::StartBegins, 0);
        machine.on(Event::Started, 0);
        machine
    }

    fn end(ended: Option<Ended>, reason: Option<Reason>) -> Event {
        Event::LifeEnded(End { ended, reason, ..End::of(None, Some(5)) })
    }

    #[test]
    fn policies_restart_what_they_say() {
        let (ok, bad) = (Some(Ended::Code(0)), Some(Ended::Code(3)));
        let exited = Some(Reason::Exited);
        for (policy, after_success, after_failure, after_unknown) in [
            (RestartPolicy::Never, Phase::Ended, Phase::Ended, Phase::Ended),
            (RestartPolicy::OnFailure, Phase::Ended, Phase::BackingOff, Phase::BackingOff),
            (RestartPolicy::Always, Phase::BackingOff, Phase::BackingOff, Phase::BackingOff),
        ] {
            for (ended, reason, phase) in
                [(ok, exited, after_success), (bad, exited, after_failure), (None, None, after_unknown)]
            {
                let mut machine = running(policy);
                machine.on(end(ended, reason), 9);
                assert_eq!(machine.phase, phase, "{policy:?} after {ended:?}");
            }
        }
    }

    #[test]
    fn a_stop_is_durable_before_the_first_signal() {
        let mut machine = running(RestartPolicy::Always);
        let effects = machine.on(Event::StopAsked, 1);
        assert!(matches!(&effects[..], [Effect::WriteWanted(w), Effect::StopTree] if w.state == WantedState::Stopped));
        assert_eq!(machine.on(end(Some(Ended::Signal(15)), None), 2).len(), 1);
        assert_eq!(machine.phase, Phase::Ended);
    }

    #[test]
    fn a_stop_without_a_policy_needs_no_record() {
        let mut machine = running(RestartPolicy::Never);
        assert_eq!(machine.on(Event::StopAsked, 1), vec![Effect::StopTree]);
    }

    #[test]
    fn a_stop_that_is_asked_for_again_is_written_again() {
        let mut machine = running(RestartPolicy::Always);
        machine.on(end(Some(Ended::Code(1)), Some(Reason::Exited)), 1);
        machine.on(Event::StopAsked, 2);
        let again = machine.on(Event::StopAsked, 3);
        assert!(matches!(&again[..], [Effect::WriteWanted(w)] if w.state == WantedState::Stopped));
    }

    #[test]
    fn a_stop_while_backing_off_cancels_the_restart() {
        let mut machine = running(RestartPolicy::Always);
        machine.on(end(Some(Ended::Code(1)), Some(Reason::Exited)), 1);
        let effects = machine.on(Event::StopAsked, 2);
        assert!(effects.contains(&Effect::CancelRestart));
        assert_eq!(machine.on(Event::RestartDue, 3), Vec::new());
        assert!(!machine.is_live());
    }

    #[test]
    fn a_restart_that_fails_backs_off_further() {
        let mut machine = running(RestartPolicy::OnFailure);
        machine.on(end(Some(Ended::Code(1)), Some(Reason::Exited)), 1);
        assert_eq!(machine.on(Event::RestartDue, 2), vec![Effect::StartAgain]);
        machine.on(Event::StartFailed, 3);
        assert_eq!((machine.phase, machine.wanted.restarts), (Phase::BackingOff, 2));
    }

    fn any_event() -> impl Strategy<Value = Event> {
        let life = |ended, reason| Event::LifeEnded(End { ended, reason, ..End::of(None, Some(1)) });
        prop_oneof![
            Just(Event::StartFailed),
            Just(life(Some(Ended::Code(1)), Some(Reason::Exited))),
            Just(life(None, None)),
            Just(Event::ShimLost),
            Just(Event::RestartDue),
            Just(Event::StopAsked),
        ]
    }

    proptest! {
        /// Once a stop was asked for, nothing starts the worker again but a person.
        #[test]
        fn stopped_stays_stopped(before in proptest::collection::vec(any_event(), 0..20),
                                 after in proptest::collection::vec(any_event(), 0..20)) {
            let mut machine = running(RestartPolicy::Always);
            for event in before {
                machine.on(event, 1);
            }
            machine.on(Event::StopAsked, 1);
            for event in after {
                let effects = machine.on(event, 2);
                prop_assert!(!effects.contains(&Effect::StartAgain));
                let armed = effects.iter().any(|effect| matches!(effect, Effect::ArmRestart { .. }));
                prop_assert!(!armed, "a restart was armed");
            }
        }
    }
}
