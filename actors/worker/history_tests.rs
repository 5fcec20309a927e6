//! Tests of random histories of one worker, including crashes of its supervisor: the machine runs
//! against a small model of the disk and of the worker's processes.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::machine::{Adoption, Effect, End, Event, Machine};
use crate::registry::reconcile;
use swarm_model::{
    Contract, Ended, ExitRecord, Hits, Lease, ProcessId, Reason, RestartPolicy, Rungs, Spec, Usage, Wanted, WantedState,
};
use swarm_ports::{DirFacts, LeaseFacts, SpecFacts};

#[derive(Clone, Copy, Debug)]
enum Step {
    /// The worker ends by itself. The shim records it, unless the shim was lost before.
    End(Ended),
    /// The shim is killed, and the worker keeps running.
    LoseShim,
    /// The restart timer fires, or fired before it was cancelled.
    Due {
        starts: bool,
    },
    Stop,
    /// A user starts the worker.
    Start,
    /// The watch and a stop both report the end.
    EndAgain,
    AdoptAgain,
    Climb,
    /// The ladder renews the worker. The supervisor may be killed before or after the stop.
    Renew {
        killed_before: bool,
        killed_after: bool,
    },
    /// The supervisor is killed, and the next one adopts the worker.
    Crash {
        ends: Option<Ended>,
        reboots: bool,
    },
    /// The supervisor is killed right after it committed a start.
    CrashWithPromise,
}

struct World {
    machine: Machine,
    policy: RestartPolicy,
    now_ms: u64,
    /// `wanted.json` of the current generation.
    disk: Wanted,
    generation: u64,
    alive: bool,
    has_shim: bool,
    exit: Option<(Ended, Reason)>,
    this_boot: bool,
    /// Whether a request asked for the worker to stay stopped.
    stopped: bool,
    /// Generations whose end the present supervisor reported.
    reported: BTreeSet<u64>,
    armed: bool,
    /// Result of the next start that the machine asks for.
    starts: bool,
}

impl World {
    fn new(policy: RestartPolicy) -> Self {
        let mut world = Self {
            machine: Machine::default(),
            policy,
            now_ms: 1_000_000_000,
            disk: Wanted::default(),
            generation: 0,
            alive: false,
            has_shim: false,
            exit: None,
            this_boot: true,
            stopped: false,
            reported: BTreeSet::new(),
            armed: false,
            starts: true,
        };
        world.step(Step::Start);
        world
    }

    fn step(&mut self, step: Step) {
        self.now_ms += 7_000;
        match step {
            Step::End(ended) => {
                if self.ends(ended) {
                    self.feed(Event::LifeEnded(self.end()));
                }
            }
            Step::LoseShim => {
                if self.alive && std::mem::take(&mut self.has_shim) {
                    self.feed(Event::ShimLost);
                }
            }
            Step::Due { starts } => {
                (self.starts, self.armed) = (starts, false);
                self.feed(Event::RestartDue);
            }
            Step::Stop => {
                self.stopped = true;
                self.feed(Event::StopAsked);
                assert!(!self.alive && !self.armed, "it still runs after a stop");
                assert!(self.policy == RestartPolicy::Never || self.disk.state == WantedState::Stopped);
            }
            Step::Start => {
                if !self.alive && !self.machine.is_live() {
                    self.start(Wanted::default());
                }
            }
            Step::EndAgain => {
                if !self.alive {
                    self.feed(Event::LifeEnded(self.end()));
                }
            }
            Step::AdoptAgain => {
                let adoption = self.adoption();
                let effects = self.machine.on(Event::Adopted(adoption), self.now_ms);
                assert!(effects.is_empty(), "a known generation was adopted again: {effects:?}");
            }
            Step::Climb => self.feed(Event::Escalated(Rungs { nudges: 1, ..Rungs::default() })),
            Step::Renew { killed_before, killed_after } => self.renew(killed_before, killed_after),
            Step::Crash { ends, reboots } => {
                if let Some(ended) = ends {
                    self.ends(ended);
                }
                if reboots {
                    (self.alive, self.has_shim, self.this_boot) = (false, false, false);
                }
                self.crash();
            }
            Step::CrashWithPromise => self.crash_with_promise(),
        }
        assert_eq!(self.machine.phase().has_process(), self.alive, "the machine is wrong about the process: {step:?}");
    }

    fn ends(&mut self, ended: Ended) -> bool {
        if !std::mem::take(&mut self.alive) {
            return false;
        }
        self.exit = std::mem::take(&mut self.has_shim).then_some((ended, Reason::Exited));
        true
    }

    fn end(&self) -> End {
        End { ended: self.exit.map(|exit| exit.0), reason: self.exit.map(|exit| exit.1), ..End::of(None, Some(1_000)) }
    }

    fn start(&mut self, kept: Wanted) {
        self.stopped = false;
        self.feed(Event::StartBegins(kept.clone()));
        self.begin(kept);
    }

    /// A start succeeds: a new generation lives.
    fn begin(&mut self, kept: Wanted) {
        assert!(!self.alive, "two lives at once");
        self.generation += 1;
        (self.alive, self.has_shim, self.this_boot, self.exit) = (true, true, true, None);
        (self.disk, self.armed) = (kept, false);
        self.feed(Event::Started { generation: self.generation, policy: self.policy });
    }

    fn renew(&mut self, killed_before: bool, killed_after: bool) {
        let by_itself = matches!(self.exit, Some((_, Reason::Exited)));
        if !self.alive && (self.machine.is_live() || !by_itself) {
            return;
        }
        // Without a policy, a stop of a worker that has ended leaves no record.
        self.stopped &= self.machine.wanted().state == WantedState::Stopped;
        self.feed(Event::RenewalBegins);
        if killed_before {
            return self.crash();
        }
        if self.alive {
            (self.alive, self.has_shim, self.exit) = (false, false, Some((Ended::Signal(15), Reason::Stopped)));
            if killed_after {
                return self.crash();
            }
            self.feed(Event::LifeEnded(self.end()));
        }
        self.start(Wanted { renewed: false, next_start_ms: None, ..self.machine.wanted().clone() });
    }

    fn crash(&mut self) {
        self.machine = Machine::default();
        self.armed = false;
        self.reported.clear();
        let adoption = self.adoption();
        self.feed(Event::Adopted(adoption));
        assert!(self.machine.knows(self.generation));
    }

    fn crash_with_promise(&mut self) {
        if self.alive || self.machine.is_live() {
            return;
        }
        self.stopped = false;
        self.machine = Machine::default();
        self.reported.clear();
        self.starts = true;
        self.generation += 1;
        self.feed(Event::PromiseFound { policy: self.policy, wanted: Wanted::default() });
        assert!(self.alive, "a committed start was not made");
    }

    fn feed(&mut self, event: Event) {
        for effect in self.machine.on(event, self.now_ms) {
            self.perform(effect);
        }
    }

    fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::WriteWanted(wanted) | Effect::WriteRenewal(wanted) | Effect::ForgetRenewal(wanted) => {
                self.disk = wanted;
            }
            Effect::WatchShim => assert!(self.alive && self.has_shim, "there is no shim to watch"),
            Effect::WatchWorker => assert!(self.alive && !self.has_shim, "there is no process to watch"),
            Effect::KeepLogs | Effect::TellLife => assert!(self.alive),
            Effect::TellEnd(_) | Effect::EndLeftovers | Effect::ReportGivenUp => assert!(!self.alive),
            Effect::ReportEnd(_) => {
                assert!(!self.alive, "the end of a living worker was reported");
                assert!(self.reported.insert(self.generation), "an end was reported twice");
            }
            Effect::ReportFinished => {
                assert!(self.exit.is_some_and(|(ended, reason)| ended.is_success() && reason == Reason::Exited));
            }
            Effect::SettleEnd => self.feed(Event::LifeEnded(self.end())),
            Effect::ArmRestart { .. } | Effect::RearmRestart { .. } => {
                assert!(!self.stopped, "a restart was armed after a stop");
                self.armed = true;
            }
            Effect::CancelRestart => self.armed = false,
            Effect::StartAgain => {
                assert!(!self.stopped, "a stopped worker was started again");
                if std::mem::replace(&mut self.starts, true) {
                    self.begin(Wanted { next_start_ms: None, ..self.machine.wanted().clone() });
                } else {
                    self.feed(Event::StartFailed { passes: false });
                }
            }
            Effect::StopTree => {
                if self.alive {
                    (self.alive, self.has_shim, self.exit) = (false, false, Some((Ended::Signal(15), Reason::Stopped)));
                }
                self.feed(Event::LifeEnded(self.end()));
            }
        }
    }

    fn adoption(&self) -> Adoption {
        let facts = self.facts();
        Adoption {
            generation: self.generation,
            policy: self.policy,
            wanted: self.disk.clone(),
            state: reconcile::fine_state(&facts),
            end: End { up_ms: None, ..self.end() },
        }
    }

    /// Returns the adoption that follows from the records of the current generation.
    fn facts(&self) -> DirFacts {
        let process = ProcessId { pid: 7, start_ticks: 1, boot: "b".to_owned() };
        let spec = Spec {
            name: "a".to_owned(),
            generation: self.generation,
            token: "t".to_owned(),
            request: String::new(),
            started: "s".to_owned(),
            contract: Contract { restart: self.policy, ..Contract::default() },
            worktree: None,
            logs: Vec::new(),
            resume: None,
            hooked: None,
            machine: None,
            exit_slot: None,
        };
        let lease = Lease {
            token: "t".to_owned(),
            started: "s".to_owned(),
            worker: process.clone(),
            shim: process,
            pane: None,
            restart: self.policy,
            limits: None,
            machine: None,
            process_namespace: None,
            survivors: Vec::new(),
        };
        DirFacts {
            name: "a".to_owned(),
            generation: self.generation,
            spec: SpecFacts::Executed(Box::new(spec)),
            lease: LeaseFacts {
                held: self.alive && self.has_shim,
                content: Some(lease),
                this_boot: self.this_boot,
                worker_alive: self.alive,
                suspended: false,
                elsewhere: None,
                survivors: Vec::new(),
                job: None,
            },
            exit: self.exit.map(|(ended, reason)| ExitRecord {
                token: "t".to_owned(),
                started: "s".to_owned(),
                pid: 7,
                ended,
                reason,
                ended_at_ms: 0,
                duration_ms: 1_000,
                usage: Usage::default(),
                survivors: Vec::new(),
                hits: Hits::default(),
                interrupted: false,
                server_lost: None,
            }),
            wanted: self.disk.clone(),
        }
    }
}

fn any_end() -> impl Strategy<Value = Ended> {
    prop_oneof![Just(Ended::Code(0)), Just(Ended::Code(3)), Just(Ended::Signal(9))]
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => any_end().prop_map(Step::End),
        1 => Just(Step::LoseShim),
        3 => any::<bool>().prop_map(|starts| Step::Due { starts }),
        1 => Just(Step::Stop),
        2 => Just(Step::Start),
        1 => Just(Step::EndAgain),
        1 => Just(Step::AdoptAgain),
        1 => Just(Step::Climb),
        1 => any::<(bool, bool)>().prop_map(|(killed_before, killed_after)| Step::Renew { killed_before, killed_after }),
        4 => (proptest::option::of(any_end()), any::<bool>()).prop_map(|(ends, reboots)| Step::Crash { ends, reboots }),
        1 => Just(Step::CrashWithPromise),
    ]
}

proptest! {
    /// There are never two generations at once, a stopped worker is never restarted, each end is
    /// reported once per supervisor and generation, and the machine always knows whether a process
    /// lives.
    #[test]
    fn adoption_in_any_order_keeps_the_invariants(
        policy in prop_oneof![Just(RestartPolicy::Never), Just(RestartPolicy::OnFailure), Just(RestartPolicy::Always)],
        steps in proptest::collection::vec(any_step(), 0..40),
    ) {
        let mut world = World::new(policy);
        for step in steps {
            world.step(step);
        }
    }
}

fn any_event() -> impl Strategy<Value = Event> {
    let life = |ended, reason| Event::LifeEnded(End { ended, reason, ..End::of(None, Some(1)) });
    prop_oneof![
        any::<bool>().prop_map(|passes| Event::StartFailed { passes }),
        Just(life(Some(Ended::Code(1)), Some(Reason::Exited))),
        Just(life(None, None)),
        Just(Event::ShimLost),
        Just(Event::RestartDue),
        Just(Event::StopAsked),
    ]
}

proptest! {
    /// After a requested stop, only a user restarts the worker.
    #[test]
    fn stopped_stays_stopped(before in proptest::collection::vec(any_event(), 0..20),
                             after in proptest::collection::vec(any_event(), 0..20)) {
        let mut machine = Machine::default();
        machine.on(Event::StartBegins(Wanted::default()), 0);
        machine.on(Event::Started { generation: 1, policy: RestartPolicy::Always }, 0);
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
