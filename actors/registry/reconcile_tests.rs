//! Tests of the derived state over all combinations of lease, boot, exit record and contract.

use std::sync::Arc;

use super::reconcile::{Evidence, Launch, WORKER, belongs, fine_state, judge, row_of};
use swarm_model::{
    Contract, Ended, ExitRecord, FineState, Hits, Lease, ProcessId, Reason, RestartPolicy, Row, RowTmux, Spec, Usage,
    Wanted, WantedState, WireStatus,
};
use swarm_ports::LeaseFacts;

const WORKER_PID: i32 = 70;
const SHIM_PID: i32 = 71;

/// Lock of the lease, and the state of the worker's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lock {
    Held,
    /// Held, and a signal has suspended the worker.
    HeldSuspended,
    /// Free, but the worker's own process lives.
    FreeAlive,
    Free,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Boot {
    This,
    Earlier,
    /// The lease was never written.
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Missing,
    Pending(RestartPolicy),
    Executed(RestartPolicy),
}

type Exit = Option<(Ended, Reason)>;

const DONE: Exit = Some((Ended::Code(0), Reason::Exited));
const BAD: Exit = Some((Ended::Code(3), Reason::Exited));
const STOPPED: Exit = Some((Ended::Signal(15), Reason::Stopped));
const ABANDONED: Exit = Some((Ended::Signal(15), Reason::Abandoned));
const OUT_OF_MEMORY: Exit = Some((Ended::Signal(9), Reason::OutOfMemory));

struct Records {
    spec: Spec,
    asked: Asked,
    lease: LeaseFacts,
    exit: Option<ExitRecord>,
    wanted: Wanted,
}

impl Records {
    fn new(lock: Lock, boot: Boot, exit: Exit, asked: Asked) -> Self {
        let process = |pid| ProcessId { pid, start_ticks: 1, boot: "b".to_owned() };
        let spec = Spec {
            name: "a".to_owned(),
            generation: 4,
            token: "t".to_owned(),
            request: String::new(),
            started: "s".to_owned(),
            contract: Contract::default(),
            worktree: None,
            logs: Vec::new(),
            resume: None,
            hooked: None,
            machine: None,
            exit_slot: None,
        };
        let content = Lease {
            token: "t".to_owned(),
            started: "s".to_owned(),
            worker: process(WORKER_PID),
            shim: process(SHIM_PID),
            pane: None,
            restart: RestartPolicy::Never,
            limits: None,
            machine: None,
            process_namespace: None,
            survivors: Vec::new(),
        };
        let exit = exit.map(|(ended, reason)| ExitRecord {
            token: "t".to_owned(),
            started: "s".to_owned(),
            pid: WORKER_PID,
            ended,
            reason,
            ended_at_ms: 0,
            duration_ms: 0,
            usage: Usage::default(),
            survivors: Vec::new(),
            hits: Hits::default(),
            interrupted: false,
            server_lost: None,
        });
        let lease = LeaseFacts {
            held: matches!(lock, Lock::Held | Lock::HeldSuspended),
            content: (boot != Boot::Unknown).then_some(content),
            this_boot: boot == Boot::This,
            worker_alive: lock != Lock::Free,
            suspended: lock == Lock::HeldSuspended,
            elsewhere: None,
            survivors: Vec::new(),
            job: None,
        };
        Self { spec, asked, lease, exit, wanted: Wanted::default() }
    }

    fn evidence(&self) -> Evidence<'_> {
        let (restart, executed) = match self.asked {
            Asked::Missing => (None, false),
            Asked::Pending(restart) => (Some(restart), false),
            Asked::Executed(restart) => (Some(restart), true),
        };
        let Spec { name, token, started, .. } = &self.spec;
        let launch = restart.map(|restart| Launch { name, token, started, restart, executed });
        Evidence { name, generation: 4, launch, lease: &self.lease, exit: self.exit.as_ref(), wanted: &self.wanted }
    }

    fn state(&self) -> FineState {
        fine_state(self.evidence())
    }

    fn row(&self) -> Row {
        row_of(&self.spec, WORKER_PID, "h")
    }
}

#[test]
fn the_parent_of_a_worker_is_that_of_its_callers_environment() {
    let parent = |value: Option<&str>| {
        let mut records = Records::new(Lock::Held, Boot::This, None, Asked::Executed(RestartPolicy::Never));
        let variables = value.map(|value| (WORKER.to_owned(), value.to_owned()));
        records.spec.contract.environment = Arc::new(variables.into_iter().collect());
        records.row().swarm().expect("has one").parent.clone()
    };
    assert_eq!(parent(Some("lead")).as_deref(), Some("lead"));
    let own = Records::new(Lock::Held, Boot::This, None, Asked::Executed(RestartPolicy::Never)).spec.name;
    let long = "l".repeat(65);
    for none in [None, Some(""), Some("../x"), Some(long.as_str()), Some(own.as_str())] {
        assert_eq!(parent(none), None, "{none:?}");
    }
}

#[test]
fn records_of_another_machine_prove_only_a_recorded_end() {
    use FineState as S;
    let far = |lock, boot, exit, asked| {
        let mut records = Records::new(lock, boot, exit, asked);
        records.lease.elsewhere = Some("far".to_owned());
        records
    };
    let executed = Asked::Executed(RestartPolicy::Always);
    let failed = Some((Ended::Code(1), Reason::Exited));
    let stopped = Some((Ended::Signal(15), Reason::Stopped));
    // It may not have ended yet.
    let mut to_stop = far(Lock::Free, Boot::Earlier, None, executed);
    to_stop.wanted.state = WantedState::Stopped;
    for (records, state) in [
        (far(Lock::Held, Boot::Earlier, None, executed), S::Elsewhere),
        (far(Lock::Free, Boot::Earlier, None, executed), S::Elsewhere),
        (far(Lock::Free, Boot::Unknown, None, Asked::Pending(RestartPolicy::Never)), S::Elsewhere),
        // Its own supervisor restarts it.
        (far(Lock::Free, Boot::Earlier, failed, executed), S::Elsewhere),
        (far(Lock::Free, Boot::Earlier, failed, Asked::Executed(RestartPolicy::Never)), S::Exited),
        (far(Lock::Free, Boot::Earlier, stopped, executed), S::Stopped),
        (to_stop, S::Elsewhere),
    ] {
        assert_eq!(records.state(), state, "{:?}", records.exit);
        let row = Row { status: WireStatus::Stopped, ..records.row() };
        let view = judge(Arc::new(row), Some(records.evidence()), None);
        assert_eq!((view.state, view.pid, &view.watch), (state, None, &None));
        assert_eq!(view.elsewhere.is_some(), state == S::Elsewhere);
        assert_eq!(view.row.status, WireStatus::Stopped, "the row stays as its machine wrote it");
    }
}

#[test]
fn the_state_follows_from_lease_boot_exit_record_and_contract() {
    use Asked::{Executed, Missing, Pending};
    use Boot::{Earlier, This, Unknown};
    use FineState as S;
    use Lock::{Free, FreeAlive, Held, HeldSuspended};
    use RestartPolicy::{Always, Never, OnFailure};
    for (lock, boot, exit, asked, state) in [
        (Held, Unknown, None, Pending(Never), S::Starting),
        (Held, This, None, Pending(Always), S::Starting),
        (Held, This, None, Missing, S::Starting),
        (HeldSuspended, This, None, Pending(Never), S::Starting),
        (Held, This, None, Executed(Never), S::Running),
        (HeldSuspended, This, None, Executed(Never), S::Suspended),
        (Held, This, DONE, Executed(Always), S::Stopping),
        (HeldSuspended, This, BAD, Executed(Never), S::Stopping),
        (Held, This, STOPPED, Pending(Never), S::Stopping),
        (FreeAlive, This, None, Executed(Always), S::Unsupervised),
        (FreeAlive, This, None, Pending(Always), S::Lost),
        (FreeAlive, This, BAD, Executed(Never), S::Exited),
        (Free, This, None, Executed(Never), S::Lost),
        (Free, This, None, Executed(OnFailure), S::Backoff),
        (Free, This, None, Executed(Always), S::Backoff),
        (Free, This, None, Pending(Always), S::Lost),
        (Free, Unknown, None, Pending(Always), S::Lost),
        (Free, This, None, Missing, S::Lost),
        (Free, Earlier, None, Executed(Never), S::Interrupted),
        (Free, Earlier, None, Executed(OnFailure), S::Backoff),
        (FreeAlive, Earlier, None, Executed(Never), S::Interrupted),
        (Free, Earlier, None, Pending(Never), S::Interrupted),
        (Free, Earlier, None, Pending(Always), S::Backoff),
        (Free, Earlier, None, Missing, S::Interrupted),
        (Free, This, DONE, Executed(Never), S::Exited),
        (Free, This, DONE, Executed(OnFailure), S::Exited),
        (Free, This, DONE, Executed(Always), S::Backoff),
        (Free, Earlier, DONE, Executed(OnFailure), S::Exited),
        (Free, This, BAD, Executed(Never), S::Exited),
        (Free, Earlier, BAD, Executed(OnFailure), S::Backoff),
        (Free, This, STOPPED, Executed(Never), S::Stopped),
        (Free, This, STOPPED, Executed(Always), S::Stopped),
        (Free, This, ABANDONED, Executed(Always), S::Exited),
        (Free, This, OUT_OF_MEMORY, Executed(Never), S::OutOfMemory),
        (Free, This, OUT_OF_MEMORY, Executed(OnFailure), S::Backoff),
        (Free, This, BAD, Missing, S::Exited),
    ] {
        let records = Records::new(lock, boot, exit, asked);
        assert_eq!(records.state(), state, "{lock:?}, {boot:?}, {exit:?}, {asked:?}");
    }
}

#[test]
fn what_is_wanted_decides_about_restarts() {
    use FineState as S;
    let (this, earlier) = (Boot::This, Boot::Earlier);
    for (wanted, renewed, boot, exit, state) in [
        (WantedState::Failed, false, this, BAD, S::Failed),
        (WantedState::Failed, false, this, None, S::Failed),
        (WantedState::Failed, false, earlier, None, S::Failed),
        (WantedState::Stopped, false, this, BAD, S::Stopped),
        (WantedState::Stopped, false, this, None, S::Stopped),
        (WantedState::Stopped, false, earlier, None, S::Stopped),
        (WantedState::Stopped, true, this, STOPPED, S::Stopped),
        (WantedState::Running, true, this, STOPPED, S::Backoff),
        (WantedState::Running, true, this, BAD, S::Backoff),
        (WantedState::Running, true, this, DONE, S::Exited),
        (WantedState::Running, true, earlier, None, S::Backoff),
    ] {
        let policy = if renewed { RestartPolicy::Never } else { RestartPolicy::OnFailure };
        let mut records = Records::new(Lock::Free, boot, exit, Asked::Executed(policy));
        records.wanted = Wanted { state: wanted, renewed, ..Wanted::default() };
        assert_eq!(records.state(), state, "{wanted:?}, renewed {renewed}, {boot:?}, {exit:?}");
    }
}

#[test]
fn an_interrupted_worker_was_not_stopped_unless_that_was_wanted() {
    use FineState as S;
    use RestartPolicy::{Always, Never, OnFailure};
    for (policy, wanted, state) in [
        (Never, WantedState::Running, S::Interrupted),
        (OnFailure, WantedState::Running, S::Backoff),
        (Always, WantedState::Running, S::Backoff),
        (Always, WantedState::Stopped, S::Stopped),
        (Always, WantedState::Failed, S::Failed),
    ] {
        // Its command may handle the signal and end with success.
        for ended in [Ended::Code(0), Ended::Signal(15)] {
            let exit = Some((ended, Reason::Stopped));
            let mut records = Records::new(Lock::Free, Boot::This, exit, Asked::Executed(policy));
            records.exit.as_mut().expect("recorded").interrupted = true;
            records.wanted.state = wanted;
            assert_eq!(records.state(), state, "{policy:?}, {wanted:?}, {ended:?}");
        }
    }
}

/// For every combination: a worker runs if its shim does, or if it was executed in this boot, still
/// lives and has no exit record.
#[test]
fn only_a_held_lease_or_a_living_process_makes_it_run() {
    let policies = [RestartPolicy::Never, RestartPolicy::OnFailure, RestartPolicy::Always];
    let contracts: Vec<Asked> =
        policies.into_iter().flat_map(|it| [Asked::Missing, Asked::Pending(it), Asked::Executed(it)]).collect();
    for lock in [Lock::Held, Lock::HeldSuspended, Lock::FreeAlive, Lock::Free] {
        for boot in [Boot::This, Boot::Earlier, Boot::Unknown] {
            for exit in [None, DONE, BAD, STOPPED, ABANDONED, OUT_OF_MEMORY] {
                for asked in &contracts {
                    let held = matches!(lock, Lock::Held | Lock::HeldSuspended);
                    let executed = matches!(asked, Asked::Executed(_));
                    let alone = lock == Lock::FreeAlive && executed && exit.is_none() && boot != Boot::Earlier;
                    let state = Records::new(lock, boot, exit, *asked).state();
                    assert_eq!(state.is_running(), held || alone, "{lock:?}, {boot:?}, {exit:?}, {asked:?}: {state:?}");
                }
            }
        }
    }
}

#[test]
fn a_row_belongs_to_the_start_that_wrote_it() {
    let records = Records::new(Lock::Held, Boot::This, None, Asked::Executed(RestartPolicy::Never));
    let evidence = records.evidence();
    assert!(belongs(&records.row(), evidence));
    let tmux = Some(RowTmux { session: "s".to_owned(), window: "a".to_owned(), socket: None });
    assert!(belongs(&Row { tmux, pid: None, ..records.row() }, evidence), "a window shows no pid");
    let other = Spec { token: "u".to_owned(), ..records.spec.clone() };
    for (row, what) in [
        (Row { name: "b".to_owned(), ..records.row() }, "name"),
        (Row { started: "later".to_owned(), ..records.row() }, "start time"),
        (Row { pid: Some(99), ..records.row() }, "pid"),
        (Row { metadata: swarm_model::Metadata::default(), ..records.row() }, "metadata"),
        (row_of(&other, WORKER_PID, "h"), "token"),
    ] {
        assert!(!belongs(&row, evidence), "another {what}");
    }
    let missing = Records::new(Lock::Held, Boot::This, None, Asked::Missing);
    assert!(!belongs(&missing.row(), missing.evidence()), "without a contract nothing is known");
}

#[test]
fn a_view_names_the_process_to_wait_for_and_corrects_the_row() {
    let executed = Asked::Executed(RestartPolicy::Never);
    for (lock, exit, status, pid, watch) in [
        (Lock::Held, None, WireStatus::Running, Some(WORKER_PID), Some(SHIM_PID)),
        (Lock::FreeAlive, None, WireStatus::Running, Some(WORKER_PID), Some(WORKER_PID)),
        (Lock::Free, None, WireStatus::Stopped, None, None),
        (Lock::Free, BAD, WireStatus::Stopped, None, None),
    ] {
        let records = Records::new(lock, Boot::This, exit, executed);
        let view = judge(Arc::new(records.row()), Some(records.evidence()), None);
        let watched = view.watch.map(|process| process.pid);
        assert_eq!((view.row.status, view.pid, watched), (status, pid, watch), "{lock:?}, {exit:?}");
        assert_eq!(view.dir.as_deref(), Some("a.4"));
        assert_eq!(view.exit, records.exit);
    }
}

#[test]
fn a_row_without_records_of_its_own_is_judged_by_its_process() {
    let records = Records::new(Lock::Held, Boot::This, None, Asked::Executed(RestartPolicy::Always));
    let remade = Row { started: "later".to_owned(), ..records.row() };
    let process = ProcessId { pid: 5, start_ticks: 1, boot: "b".to_owned() };
    for (foreign, state) in [(Some(process), FineState::Running), (None, FineState::Exited)] {
        let view = judge(Arc::new(remade.clone()), Some(records.evidence()), foreign.clone());
        assert_eq!((view.state, view.watch, view.dir), (state, foreign, None));
    }
}
