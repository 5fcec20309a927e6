//! Tests of the worker's machine, including adoption: tables and properties.

use super::backoff::DELAY_MS_MAX;
use super::machine::{Adoption, Effect, End, Event, Machine, Phase};
use swarm_model::{Ended, FineState, Reason, RestartPolicy, Rungs, Wanted, WantedState};

fn running(policy: RestartPolicy) -> Machine {
    let mut machine = Machine::default();
    machine.on(Event::StartBegins(Wanted::default()), 0);
    machine.on(Event::Started { generation: 1, policy }, 0);
    machine
}

fn end(ended: Option<Ended>, reason: Option<Reason>) -> Event {
    Event::LifeEnded(End { ended, reason, ..End::of(None, Some(5)) })
}

#[test]
fn each_policy_restarts_the_right_exits() {
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
            assert_eq!(machine.phase(), phase, "{policy:?} after {ended:?}");
        }
    }
}

#[test]
fn a_stop_is_durable_before_the_first_signal() {
    let mut machine = running(RestartPolicy::Always);
    let effects = machine.on(Event::StopAsked, 1);
    assert!(matches!(&effects[..], [Effect::WriteWanted(w), Effect::StopTree] if w.state == WantedState::Stopped));
    assert_eq!(machine.on(end(Some(Ended::Signal(15)), None), 2).len(), 1);
    assert_eq!(machine.phase(), Phase::Ended);
}

#[test]
fn a_stop_without_a_policy_is_durable_too() {
    let mut machine = running(RestartPolicy::Never);
    let effects = machine.on(Event::StopAsked, 1);
    assert!(matches!(&effects[..], [Effect::WriteWanted(w), Effect::StopTree] if w.state == WantedState::Stopped));
    machine.on(end(Some(Ended::Code(0)), Some(Reason::Stopped)), 2);
    assert_eq!(machine.on(Event::StopAsked, 3).len(), 1, "the first write may have failed");

    let mut machine = running(RestartPolicy::Never);
    machine.on(end(Some(Ended::Code(0)), Some(Reason::Exited)), 1);
    assert_eq!(machine.on(Event::StopAsked, 2), Vec::new(), "it ended by itself and stays `exited`");
}

#[test]
fn a_stop_that_no_exit_record_can_prove_is_written() {
    let is_stop = |effect: &Effect| matches!(effect, Effect::WriteWanted(w) if w.state == WantedState::Stopped);
    let mut machine = running(RestartPolicy::Never);
    machine.on(Event::ShimLost, 1);
    let effects = machine.on(Event::StopAsked, 2);
    assert!(is_stop(&effects[0]) && effects[1] == Effect::StopTree, "unsupervised: {effects:?}");

    let mut machine = running(RestartPolicy::Never);
    machine.on(end(None, None), 1);
    assert!(machine.on(Event::StopAsked, 2).iter().any(is_stop), "it was killed together with its shim");

    let mut machine = running(RestartPolicy::Never);
    machine.on(Event::StopAsked, 1);
    assert!(machine.on(end(None, None), 2).iter().any(is_stop), "its shim was killed during the stop");

    for state in [FineState::Lost, FineState::Interrupted] {
        let mut machine = Machine::default();
        let (policy, wanted) = (RestartPolicy::Never, Wanted::default());
        machine.on(Event::Adopted(Adoption { generation: 1, policy, wanted, state, end: End::of(None, None) }), 1);
        assert!(machine.on(Event::StopAsked, 2).iter().any(is_stop), "{state:?}");
    }
}

#[test]
fn a_repeated_stop_is_written_again() {
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
    machine.on(Event::StartFailed { passes: false }, 3);
    assert_eq!((machine.phase(), machine.wanted().restarts), (Phase::BackingOff, 2));
}

#[test]
fn a_restart_that_fails_for_another_reason_than_the_worker_is_tried_for_ever() {
    let mut machine = running(RestartPolicy::OnFailure);
    machine.on(end(Some(Ended::Code(1)), Some(Reason::Exited)), 1);
    for now_ms in 2..30 {
        assert_eq!(machine.on(Event::RestartDue, now_ms), vec![Effect::StartAgain]);
        let effects = machine.on(Event::StartFailed { passes: true }, now_ms);
        let [Effect::RearmRestart { delay_ms }, Effect::WriteWanted(wanted)] = effects.as_slice() else {
            panic!("{effects:?}")
        };
        assert_eq!((wanted.restarts, wanted.next_start_ms), (1, Some(now_ms + delay_ms)));
        assert_eq!(machine.phase(), Phase::BackingOff);
    }
}

const NOW_MS: u64 = 1_000_000;

fn adoption(state: FineState, wanted: Wanted, end: End) -> Adoption {
    Adoption { generation: 7, policy: RestartPolicy::OnFailure, wanted, state, end }
}

fn unknown() -> End {
    End::of(None, None)
}

#[test]
fn each_state_resumes_where_the_earlier_supervisor_stopped() {
    let due = |at_ms| Wanted { next_start_ms: Some(at_ms), restarts: 3, ..Wanted::default() };
    let done = End { ended: Some(Ended::Code(0)), reason: Some(Reason::Exited), ..unknown() };
    let failed = End { ended: Some(Ended::Code(3)), ..done };
    let told = |end| vec![Effect::TellEnd(end), Effect::ReportEnd(end)];
    let and = |mut effects: Vec<Effect>, more: &[Effect]| {
        effects.extend_from_slice(more);
        effects
    };
    let watched = |watch| vec![Effect::KeepLogs, Effect::TellLife, watch];
    let rearm = |delay_ms| [Effect::RearmRestart { delay_ms }];
    use FineState as S;
    for (state, wanted, end, phase, effects) in [
        (S::Starting, Wanted::default(), unknown(), Phase::Running, watched(Effect::WatchShim)),
        (S::Running, Wanted::default(), unknown(), Phase::Running, watched(Effect::WatchShim)),
        (S::Suspended, Wanted::default(), unknown(), Phase::Running, watched(Effect::WatchShim)),
        (S::Stopping, Wanted::default(), done, Phase::Running, watched(Effect::WatchShim)),
        (S::Unsupervised, Wanted::default(), unknown(), Phase::Unsupervised, watched(Effect::WatchWorker)),
        (S::Backoff, due(NOW_MS + 40), failed, Phase::BackingOff, and(told(failed), &rearm(40))),
        (S::Backoff, due(NOW_MS - 40), failed, Phase::BackingOff, and(told(failed), &rearm(0))),
        (S::Backoff, due(u64::MAX), failed, Phase::BackingOff, and(told(failed), &rearm(DELAY_MS_MAX))),
        (S::Backoff, Wanted::default(), failed, Phase::Running, and(told(failed), &[Effect::SettleEnd])),
        (S::Failed, Wanted::default(), failed, Phase::Failed, told(failed)),
        (S::Exited, Wanted::default(), failed, Phase::Ended, told(failed)),
        (S::Exited, Wanted::default(), done, Phase::Ended, and(told(done), &[Effect::ReportFinished])),
        (S::OutOfMemory, Wanted::default(), failed, Phase::Ended, told(failed)),
        (S::Stopped, Wanted::default(), failed, Phase::Ended, told(failed)),
        (S::Interrupted, Wanted::default(), unknown(), Phase::Ended, told(unknown())),
        (S::Lost, Wanted::default(), unknown(), Phase::Ended, and(told(unknown()), &[Effect::EndLeftovers])),
        (S::Stopped, Wanted::default(), unknown(), Phase::Ended, and(told(unknown()), &[Effect::EndLeftovers])),
    ] {
        let mut machine = Machine::default();
        let adoption = adoption(state, wanted, end);
        assert_eq!(machine.on(Event::Adopted(adoption.clone()), NOW_MS), effects, "{state:?}");
        assert_eq!(machine.phase(), phase, "{state:?}");
        assert_eq!(machine.on(Event::Adopted(adoption), NOW_MS), Vec::new(), "{state:?} is known");
    }
}

#[test]
fn an_adopted_worker_obeys_its_policy_and_a_stop() {
    for (policy, phase) in [(RestartPolicy::OnFailure, Phase::BackingOff), (RestartPolicy::Never, Phase::Ended)] {
        let mut machine = Machine::default();
        let running = Adoption { policy, ..adoption(FineState::Running, Wanted::default(), unknown()) };
        machine.on(Event::Adopted(running), NOW_MS);
        machine.on(end(Some(Ended::Code(3)), Some(Reason::Exited)), NOW_MS);
        assert_eq!(machine.phase(), phase, "{policy:?}");
    }
    let stopped = Wanted { state: WantedState::Stopped, ..Wanted::default() };
    let mut machine = Machine::default();
    machine.on(Event::Adopted(adoption(FineState::Running, stopped, unknown())), NOW_MS);
    machine.on(end(Some(Ended::Code(3)), Some(Reason::Exited)), NOW_MS);
    assert_eq!(machine.phase(), Phase::Ended);
}

#[test]
fn a_renewal_interrupted_before_the_stop_is_forgotten() {
    let renewed = Wanted { renewed: true, next_start_ms: Some(5), restarts: 2, ..Wanted::default() };
    let mut machine = Machine::default();
    let effects = machine.on(Event::Adopted(adoption(FineState::Running, renewed, unknown())), NOW_MS);
    let kept = Wanted { restarts: 2, ..Wanted::default() };
    assert_eq!(
        effects,
        vec![Effect::KeepLogs, Effect::ForgetRenewal(kept.clone()), Effect::TellLife, Effect::WatchShim]
    );
    assert_eq!(machine.wanted(), &kept);
}

#[test]
fn a_promised_start_that_was_never_executed_is_repeated() {
    let mut machine = Machine::default();
    let (policy, wanted) = (RestartPolicy::Never, Wanted::default());
    assert_eq!(machine.on(Event::PromiseFound { policy, wanted }, NOW_MS), vec![Effect::StartAgain]);
    assert_eq!(machine.phase(), Phase::Starting);
    machine.on(Event::Started { generation: 8, policy }, NOW_MS);
    assert!(machine.knows(8));
    assert_eq!(machine.wanted(), &Wanted::default());
}

#[test]
fn a_renewal_is_durable_before_the_stop_and_a_requested_stop_cancels_it() {
    let mut machine = running(RestartPolicy::Never);
    let noted = Wanted { renewed: true, next_start_ms: Some(NOW_MS), ..Wanted::default() };
    assert_eq!(machine.on(Event::RenewalBegins, NOW_MS), vec![Effect::WriteRenewal(noted)]);
    let effects = machine.on(Event::StopAsked, NOW_MS);
    assert!(matches!(&effects[..], [Effect::WriteWanted(w), Effect::StopTree] if !w.renewed));
    assert_eq!(machine.on(Event::RenewalFailed, NOW_MS).len(), 1);
}

#[test]
fn escalation_is_recorded_and_a_restart_resets_it() {
    let mut machine = running(RestartPolicy::Always);
    let rungs = Rungs { nudges: 2, ..Rungs::default() };
    let noted = Wanted { rungs, ..Wanted::default() };
    assert_eq!(machine.on(Event::Escalated(rungs), 1), vec![Effect::WriteWanted(noted)]);
    machine.on(end(Some(Ended::Code(1)), Some(Reason::Exited)), 2);
    assert!(machine.wanted().rungs.is_foot());
}

#[test]
fn a_worker_without_a_row_is_not_restarted() {
    let mut machine = running(RestartPolicy::Always);
    machine.on(end(Some(Ended::Code(1)), Some(Reason::Exited)), 1);
    assert_eq!(machine.on(Event::RestartDue, 2), vec![Effect::StartAgain]);
    machine.on(Event::Forgotten, 2);
    assert_eq!((machine.phase(), machine.is_live()), (Phase::Ended, false));
    assert_eq!(machine.on(Event::RestartDue, 3), Vec::new());
}
