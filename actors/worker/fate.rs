//! Decides what `swarm recover` does about a worker that does not run: a pure function, used by the
//! command to show the decision and by the worker's actor to carry it out.

use crate::registry::reconcile;
use swarm_model::Recovery;
use swarm_model::{Ended, ExitRecord, FineState, Reason, TmuxPane, WantedState};
use swarm_ports::DirFacts;

/// Facts about a worker that this program started.
#[derive(Clone, Debug)]
pub struct Facts {
    pub state: FineState,
    pub exit: Option<ExitRecord>,
    pub wanted: WantedState,
    /// Whether it ended in an earlier boot, its row was never set to stopped, and its shim was of a version that did not
    /// record interruptions. Then swarm did not stop it; the machine may have, which ends all processes before it shuts
    /// down.
    pub swept: bool,
    /// The request that started it.
    pub request: String,
    /// Whether a loop of this name is not over and starts the next worker.
    pub in_loop: bool,
    /// Whether its window was closed because the tmux server was lost. `None` if its window was not closed.
    pub server_lost: Option<bool>,
    /// Recovery state of its session. `None` if it has no session.
    pub session: Option<Recovery>,
    /// Number of recoveries since a person started it.
    pub recoveries: u32,
    /// Maximum number of recoveries.
    pub recoveries_max: u32,
}

impl Facts {
    /// Returns the facts that follow from its records. The caller adds loop and session, and the tmux server if
    /// [`unjudged_pane`] names one.
    pub fn of(dir: &DirFacts, is_said_to_run: bool, recoveries_max: i64) -> Self {
        // A shim that names its machine also records that it was interrupted.
        let records_interruptions = dir.lease.content.as_ref().is_some_and(|lease| lease.machine.is_some());
        Self {
            state: reconcile::fine_state(dir),
            exit: dir.exit.clone(),
            wanted: dir.wanted.state,
            swept: !dir.lease.this_boot && is_said_to_run && !records_interruptions,
            request: dir.spec.spec().map(|spec| spec.request.clone()).unwrap_or_default(),
            in_loop: false,
            server_lost: dir.exit.as_ref().and_then(|exit| exit.server_lost),
            session: None,
            recoveries: dir.wanted.recoveries,
            recoveries_max: u32::try_from(recoveries_max).unwrap_or(u32::MAX),
        }
    }
}

/// Returns the pane of a worker whose window was closed, if its record does not say whether the tmux server was lost, as
/// those of older versions. Then a server that is gone must count as lost.
pub fn unjudged_pane(dir: &DirFacts) -> Option<&TmuxPane> {
    dir.exit.as_ref().filter(|exit| exit.reason == Reason::Closed && exit.server_lost.is_none())?;
    dir.lease.content.as_ref()?.pane.as_ref()
}

/// Reason why a worker does not run although nobody ended it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// The machine went down while it ran.
    Machine,
    /// Its tmux server is gone.
    Server,
    /// The worker and its shim were killed.
    Killed,
    /// A signal that no supervisor sent ended it.
    Signal,
}

/// Decision about a worker that does not run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Start it again.
    Recover(Lost),
    /// Do not recover it, for this reason.
    Leave(String),
}

impl Lost {
    pub fn words(self) -> &'static str {
        match self {
            Self::Machine => "the machine went down while the worker was running",
            Self::Server => "its tmux server is gone",
            Self::Killed => "killed together with its parent process",
            Self::Signal => "ended by a signal that swarm did not send, such as that of a shutdown",
        }
    }
}

/// Signal that a machine sends to all processes before it shuts down.
pub(super) const SIGTERM: i32 = 15;

/// Decides whether a worker is recovered.
pub fn decide(facts: &Facts) -> Fate {
    let lost = match lost(facts) {
        Ok(lost) => lost,
        Err(why) => return Fate::Leave(why),
    };
    let leave = |why: &str| Fate::Leave(why.to_owned());
    if facts.wanted == WantedState::Stopped {
        return leave("was being stopped");
    }
    // A run or loop recovers its own workers.
    if facts.request.starts_with("run/") {
        return leave("part of a run: run 'swarm run' to resume it");
    }
    if facts.request.starts_with("far/") {
        return leave("part of a run of another machine, which starts it again");
    }
    if facts.in_loop && facts.request.starts_with("loop/") {
        return leave("part of a ralph loop: run 'swarm ralph resume' to continue it");
    }
    match &facts.session {
        Some(Recovery::IdentifierMismatch { found }) => {
            return Fate::Leave(format!("its session belongs to '{found}'"));
        }
        Some(Recovery::AgentAlive) => return leave("its session is in use by a running agent"),
        Some(Recovery::Finished { .. }) => return leave("its session is marked as completed"),
        Some(Recovery::MaxAttempts { attempts }) => {
            return Fate::Leave(exhausted(attempts));
        }
        Some(Recovery::NoState | Recovery::InvalidState | Recovery::Recoverable { .. }) | None => {}
    }
    if facts.recoveries >= facts.recoveries_max {
        return Fate::Leave(exhausted(facts.recoveries));
    }
    Fate::Recover(lost)
}

fn exhausted(recoveries: impl std::fmt::Display) -> String {
    format!("recovered {recoveries} times already: run 'swarm respawn' to start it from scratch")
}

/// Reports whether nobody ended the worker, regardless of what may start it again.
pub fn is_lost(facts: &Facts) -> bool {
    facts.wanted != WantedState::Stopped && lost(facts).is_ok()
}

fn lost(facts: &Facts) -> Result<Lost, String> {
    match facts.state {
        FineState::Interrupted if facts.exit.is_some() => Ok(Lost::Signal),
        FineState::Interrupted => Ok(Lost::Machine),
        FineState::Lost => Ok(Lost::Killed),
        FineState::Exited | FineState::OutOfMemory => ended(facts),
        FineState::Stopped if facts.swept && facts.wanted != WantedState::Stopped => Ok(Lost::Machine),
        FineState::Stopped => Err("stopped on request".to_owned()),
        FineState::Failed => Err("restarted too often: run 'swarm respawn' to start it from scratch".to_owned()),
        FineState::Elsewhere => Err("on another machine, which supervises it".to_owned()),
        FineState::Backoff => Err("its restart policy starts it again".to_owned()),
        FineState::Starting
        | FineState::Queued
        | FineState::Running
        | FineState::Suspended
        | FineState::Unsupervised
        | FineState::Stopping => Err("already running".to_owned()),
    }
}

fn ended(facts: &Facts) -> Result<Lost, String> {
    let Some(exit) = &facts.exit else { return Ok(Lost::Killed) };
    match (exit.reason, exit.ended) {
        (Reason::Closed, _) if facts.server_lost == Some(true) => Ok(Lost::Server),
        (Reason::Closed, _) => Err("its window was closed".to_owned()),
        (Reason::Timeout, _) => Err("reached its time limit".to_owned()),
        (Reason::OutOfMemory, _) => Err("ran out of memory".to_owned()),
        (Reason::Output, _) => Err("exceeded its output limit".to_owned()),
        (Reason::Stopped, _) => Err("stopped on request".to_owned()),
        (Reason::Abandoned, _) => Err("its state directory was removed".to_owned()),
        (Reason::Exited, Ended::Code(0)) => Err("finished successfully".to_owned()),
        (Reason::Exited, Ended::Code(code)) => Err(format!("exited with code {code}")),
        (Reason::Exited, Ended::Signal(SIGTERM)) if facts.swept => Ok(Lost::Machine),
        (Reason::Exited, Ended::Signal(signal)) => Err(format!("killed by signal {signal}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use swarm_model::{SessionStatus, Usage};

    fn facts(state: FineState) -> Facts {
        Facts {
            state,
            exit: None,
            wanted: WantedState::Running,
            swept: false,
            request: "r".to_owned(),
            in_loop: false,
            server_lost: None,
            session: None,
            recoveries: 0,
            recoveries_max: 3,
        }
    }

    fn ended(ended: Ended, reason: Reason) -> Facts {
        let exit = ExitRecord {
            token: "t".to_owned(),
            started: String::new(),
            pid: 7,
            ended,
            reason,
            ended_at_ms: 0,
            duration_ms: 0,
            usage: Usage::default(),
            survivors: Vec::new(),
            hits: swarm_model::Hits::default(),
            interrupted: false,
            server_lost: None,
        };
        Facts { exit: Some(exit), ..facts(FineState::Exited) }
    }

    #[test]
    fn lost_workers_are_recovered_and_ended_workers_are_not() {
        use FineState as S;
        assert_eq!(decide(&facts(S::Interrupted)), Fate::Recover(Lost::Machine));
        assert_eq!(decide(&facts(S::Lost)), Fate::Recover(Lost::Killed));
        let signalled = ended(Ended::Code(0), Reason::Stopped);
        assert_eq!(decide(&Facts { state: S::Interrupted, ..signalled }), Fate::Recover(Lost::Signal));
        let closed = ended(Ended::Signal(1), Reason::Closed);
        let gone = Facts { server_lost: Some(true), ..closed.clone() };
        assert_eq!(decide(&gone), Fate::Recover(Lost::Server));
        for (facts, why) in [
            (closed, "its window was closed"),
            (ended(Ended::Code(0), Reason::Exited), "finished successfully"),
            (ended(Ended::Code(3), Reason::Exited), "exited with code 3"),
            (ended(Ended::Signal(9), Reason::Exited), "killed by signal 9"),
            (ended(Ended::Signal(15), Reason::Timeout), "reached its time limit"),
            (ended(Ended::Signal(9), Reason::OutOfMemory), "ran out of memory"),
            (ended(Ended::Signal(15), Reason::Output), "exceeded its output limit"),
            (facts(S::Running), "already running"),
            (facts(S::Stopped), "stopped on request"),
            (facts(S::Backoff), "its restart policy starts it again"),
            (Facts { wanted: WantedState::Stopped, ..facts(S::Interrupted) }, "was being stopped"),
        ] {
            assert_eq!(decide(&facts), Fate::Leave(why.to_owned()));
        }
    }

    #[test]
    fn workers_ended_by_an_orderly_shutdown_are_recovered() {
        let swept = |facts| decide(&Facts { swept: true, ..facts });
        assert_eq!(swept(facts(FineState::Stopped)), Fate::Recover(Lost::Machine));
        assert_eq!(swept(ended(Ended::Signal(15), Reason::Exited)), Fate::Recover(Lost::Machine));
        let killed = Facts { wanted: WantedState::Stopped, ..facts(FineState::Stopped) };
        assert_eq!(swept(killed), Fate::Leave("stopped on request".to_owned()));
        for left in [ended(Ended::Code(0), Reason::Exited), ended(Ended::Signal(9), Reason::Exited)] {
            assert!(matches!(swept(left), Fate::Leave(_)));
        }
    }

    #[test]
    fn runs_and_loops_recover_their_own_workers() {
        for (request, who) in
            [("run/r/j/1", "swarm run"), ("far/c/r/j/1", "another machine"), ("loop/l/3", "swarm ralph resume")]
        {
            let of = Facts { request: request.to_owned(), in_loop: true, ..facts(FineState::Lost) };
            assert!(matches!(decide(&of), Fate::Leave(why) if why.contains(who)), "{request}");
        }
        // If the loop is over, nothing else starts the worker again.
        let over = Facts { request: "loop/l/3".to_owned(), ..facts(FineState::Lost) };
        assert_eq!(decide(&over), Fate::Recover(Lost::Killed));
    }

    #[test]
    fn the_session_can_prevent_recovery_and_attempts_are_limited() {
        let with = |session| decide(&Facts { session: Some(session), ..facts(FineState::Interrupted) });
        for session in [
            Recovery::AgentAlive,
            Recovery::IdentifierMismatch { found: "x".to_owned() },
            Recovery::Finished { status: SessionStatus::Completed },
            Recovery::MaxAttempts { attempts: 3 },
        ] {
            assert!(matches!(with(session.clone()), Fate::Leave(_)), "{session:?}");
        }
        for session in [Recovery::NoState, Recovery::InvalidState, Recovery::Recoverable { attempts: 1 }] {
            assert_eq!(with(session.clone()), Fate::Recover(Lost::Machine), "{session:?}");
        }
        assert!(matches!(decide(&Facts { recoveries: 3, ..facts(FineState::Lost) }), Fate::Leave(_)));
    }
}
