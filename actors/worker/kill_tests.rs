//! Checks for every way in which a worker can end that `recover` does not start it after a kill.

use super::fate::{self, Facts, Fate};
use super::machine::{Adoption, Effect, End, Event, Machine};
use crate::registry::reconcile::fine_state;
use swarm_model::{
    Contract, Ended, ExitRecord, FineState, Hits, Lease, ProcessId, Reason, RestartPolicy, Spec, Usage, Wanted,
    WantedState,
};
use swarm_ports::{DirFacts, LeaseFacts, SpecFacts};

const REASONS: [Reason; 7] = [
    Reason::Exited,
    Reason::Stopped,
    Reason::Closed,
    Reason::Timeout,
    Reason::OutOfMemory,
    Reason::Output,
    Reason::Abandoned,
];

/// Returns all exit records, and that there is none.
fn exits() -> Vec<Option<ExitRecord>> {
    let mut all = vec![None];
    for ended in [Ended::Code(0), Ended::Code(3), Ended::Signal(1), Ended::Signal(9), Ended::Signal(15)] {
        for reason in REASONS {
            for server_lost in [None, Some(false), Some(true)] {
                for interrupted in [false, true] {
                    all.push(Some(ExitRecord {
                        token: "t".to_owned(),
                        started: "s".to_owned(),
                        pid: 7,
                        ended,
                        reason,
                        ended_at_ms: 0,
                        duration_ms: 0,
                        usage: Usage::default(),
                        survivors: Vec::new(),
                        hits: Hits::default(),
                        interrupted,
                        server_lost,
                    }));
                }
            }
        }
    }
    all
}

/// Returns the records of a worker without a policy that has ended, written by this version or by an older one.
fn records(exit: Option<ExitRecord>, this_boot: bool, is_older: bool) -> DirFacts {
    let process = ProcessId { pid: 7, start_ticks: 1, boot: "b".to_owned() };
    let machine =
        (!is_older).then(|| swarm_model::Machine { id: "m".to_owned(), boot: "b".to_owned(), host: "h".to_owned() });
    let spec = Spec {
        name: "a".to_owned(),
        generation: 1,
        token: "t".to_owned(),
        request: "r".to_owned(),
        started: "s".to_owned(),
        contract: Contract::default(),
        worktree: None,
        logs: Vec::new(),
        resume: None,
        hooked: None,
        machine: machine.clone(),
        exit_slot: None,
    };
    let lease = Lease {
        token: "t".to_owned(),
        started: "s".to_owned(),
        worker: process.clone(),
        shim: process,
        pane: None,
        restart: RestartPolicy::Never,
        limits: None,
        machine,
        process_namespace: None,
        survivors: Vec::new(),
    };
    DirFacts {
        name: "a".to_owned(),
        generation: 1,
        spec: SpecFacts::Executed(Box::new(spec)),
        lease: LeaseFacts { content: Some(lease), this_boot, ..LeaseFacts::default() },
        exit,
        wanted: Wanted::default(),
    }
}

/// Returns its fate if its row still says that it runs and the tmux server of an older record is gone.
fn fate_of(dir: &DirFacts) -> Fate {
    let known = Facts::of(dir, true, 3);
    fate::decide(&Facts { server_lost: known.server_lost.or(Some(true)), ..known })
}

fn writes_stop(effects: &[Effect]) -> bool {
    effects.iter().any(|it| matches!(it, Effect::WriteWanted(wanted) if wanted.state == WantedState::Stopped))
}

#[test]
fn a_kill_of_a_worker_that_may_be_recovered_is_recorded_and_holds() {
    let mut recovered = 0;
    for exit in exits() {
        for (this_boot, is_older) in [(true, false), (true, true), (false, false), (false, true)] {
            let mut dir = records(exit.clone(), this_boot, is_older);
            if matches!(fate_of(&dir), Fate::Leave(_)) {
                continue;
            }
            recovered += 1;
            let end = End::of(exit.as_ref(), None);
            let policy = RestartPolicy::Never;
            let mut found = Machine::default();
            let (wanted, state) = (Wanted::default(), fine_state(&dir));
            found.on(Event::Adopted(Adoption { generation: 1, policy, wanted, state, end }), 0);
            let mut seen = Machine::default();
            seen.on(Event::StartBegins(Wanted::default()), 0);
            seen.on(Event::Started { generation: 1, policy }, 0);
            seen.on(Event::LifeEnded(end), 0);
            // Nobody saw an end in an earlier boot.
            for mut machine in [Some(found), this_boot.then_some(seen)].into_iter().flatten() {
                assert!(writes_stop(&machine.on(Event::StopAsked, 1)), "{exit:?}, {this_boot}, {is_older}");
            }
            dir.wanted.state = WantedState::Stopped;
            assert_eq!(fine_state(&dir), FineState::Stopped, "{exit:?}, {this_boot}, {is_older}");
            assert_eq!(fate_of(&dir), Fate::Leave("stopped on request".to_owned()), "{exit:?}");
        }
    }
    assert!(recovered > 100, "{recovered}");
}

/// A shim of this version records whether it was interrupted, so that nothing else ends a worker for its machine.
#[test]
fn an_end_that_was_recorded_as_no_interruption_outlasts_reboots() {
    for exit in exits().into_iter().flatten().filter(|exit| !exit.interrupted) {
        let is_recovered = matches!(fate_of(&records(Some(exit.clone()), false, false)), Fate::Recover(_));
        let is_server_lost = exit.reason == Reason::Closed && exit.server_lost != Some(false);
        assert_eq!(is_recovered, is_server_lost, "{exit:?}");
        // Older shims did not record it.
        let is_terminated = exit.reason == Reason::Exited && exit.ended == Ended::Signal(15);
        let is_swept = is_terminated || exit.reason == Reason::Stopped;
        let is_recovered = matches!(fate_of(&records(Some(exit.clone()), false, true)), Fate::Recover(_));
        assert_eq!(is_recovered, is_server_lost || is_swept, "older: {exit:?}");
    }
}
