//! What `swarm recover` does about a worker that does not run: one pure function, used
//! by the command to show it and by the worker's actor to do it.

use crate::registry::reconcile;
use swarm_model::Recovery;
use swarm_model::{Ended, ExitRecord, FineState, Reason, TmuxPane, WantedState};
use swarm_ports::DirFacts;

/// What is known of a worker of ours.
#[derive(Clone, Debug)]
pub struct Facts {
    pub state: FineState,
    pub exit: Option<ExitRecord>,
    pub wanted: WantedState,
    /// It ended in an earlier boot, and its row was never set to stopped: a stop of it was
    /// not ours but the machine's, which ends everything before it goes down.
    pub swept: bool,
    /// The request that started it.
    pub request: String,
    /// Whether a loop of its name is not over, and starts the next one.
    pub in_loop: bool,
    /// Whether the tmux server that its window was in still runs; none for others.
    pub server_lives: Option<bool>,
    /// What the session says; none without one.
    pub session: Option<Recovery>,
    /// How often it was recovered since a person started it, and how often at most.
    pub recoveries: u32,
    pub recoveries_max: u32,
}

impl Facts {
    /// What its records say. What else there is to know is for whoever can look at it.
    pub fn of(dir: &DirFacts, is_said_to_run: bool, recoveries_max: i64) -> Self {
        Self {
            state: reconcile::fine_state(dir),
            exit: dir.exit.clone(),
            wanted: dir.wanted.state,
            swept: !dir.lease.this_boot && is_said_to_run,
            request: dir.spec.spec().map(|spec| spec.request.clone()).unwrap_or_default(),
            in_loop: false,
            server_lives: None,
            session: None,
            recoveries: dir.wanted.recoveries,
            recoveries_max: u32::try_from(recoveries_max).unwrap_or(u32::MAX),
        }
    }
}

/// The window that was closed, perhaps with its whole server.
pub fn closed_pane(dir: &DirFacts) -> Option<&TmuxPane> {
    dir.exit.as_ref().filter(|exit| exit.reason == Reason::Closed)?;
    dir.lease.content.as_ref()?.pane.as_ref()
}

/// Why it does not run although nobody ended it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// The machine went down under it.
    Machine,
    /// Its tmux server is gone.
    Server,
    /// It and its shim were killed.
    Killed,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is to be started again.
    Recover(Lost),
    /// It is left as it is, and why.
    Leave(String),
}

impl Lost {
    pub fn words(self) -> &'static str {
        match self {
            Self::Machine => "the machine went down under it",
            Self::Server => "its tmux server is gone",
            Self::Killed => "it was killed together with its shim",
        }
    }
}

/// What a machine sends to everything before it goes down.
const SIGTERM: i32 = 15;

pub fn decide(facts: &Facts) -> Fate {
    let lost = match lost(facts) {
        Ok(lost) => lost,
        Err(why) => return Fate::Leave(why),
    };
    let leave = |why: &str| Fate::Leave(why.to_owned());
    if facts.wanted == WantedState::Stopped {
        return leave("it was being stopped");
    }
    // Whoever started it looks after it.
    if facts.request.starts_with("run/") {
        return leave("its run goes on with it: swarm run");
    }
    if facts.in_loop && facts.request.starts_with("loop/") {
        return leave("its loop goes on with it: swarm ralph resume");
    }
    match &facts.session {
        Some(Recovery::IdentifierMismatch { found }) => {
            return Fate::Leave(format!("its session is that of '{found}' by now"));
        }
        Some(Recovery::AgentAlive) => return leave("an agent is at work in its session"),
        Some(Recovery::Finished { .. }) => return leave("its session says that the work is done"),
        Some(Recovery::MaxAttempts { attempts }) => {
            return Fate::Leave(format!("it was recovered {attempts} times already: swarm respawn starts it afresh"));
        }
        Some(Recovery::NoState | Recovery::InvalidState | Recovery::Recoverable { .. }) | None => {}
    }
    if facts.recoveries >= facts.recoveries_max {
        let times = facts.recoveries;
        return Fate::Leave(format!("it was recovered {times} times already: swarm respawn starts it afresh"));
    }
    Fate::Recover(lost)
}

/// Whether nobody ended it, whoever starts it again and whether anybody does.
pub fn is_lost(facts: &Facts) -> bool {
    facts.wanted != WantedState::Stopped && lost(facts).is_ok()
}

fn lost(facts: &Facts) -> Result<Lost, String> {
    match facts.state {
        FineState::Interrupted => Ok(Lost::Machine),
        FineState::Lost => Ok(Lost::Killed),
        FineState::Exited | FineState::OutOfMemory => ended(facts),
        FineState::Stopped if facts.swept => Ok(Lost::Machine),
        FineState::Stopped => Err("it was stopped".to_owned()),
        FineState::Failed => Err("it was given up after too many restarts: swarm respawn starts it afresh".to_owned()),
        FineState::Backoff => Err("its restart policy starts it again".to_owned()),
        FineState::Starting
        | FineState::Running
        | FineState::Suspended
        | FineState::Unsupervised
        | FineState::Stopping => Err("it runs".to_owned()),
    }
}

fn ended(facts: &Facts) -> Result<Lost, String> {
    let Some(exit) = &facts.exit else { return Ok(Lost::Killed) };
    match (exit.reason, exit.ended) {
        (Reason::Closed, _) if facts.server_lives == Some(false) => Ok(Lost::Server),
        (Reason::Closed, _) => Err("its window was closed".to_owned()),
        (Reason::Timeout, _) => Err("its time limit ended it".to_owned()),
        (Reason::OutOfMemory, _) => Err("it ran out of memory".to_owned()),
        (Reason::Output, _) => Err("it wrote more than it may".to_owned()),
        (Reason::Stopped, _) => Err("it was stopped".to_owned()),
        (Reason::Abandoned, _) => Err("the state directory was removed under it".to_owned()),
        (Reason::Exited, Ended::Code(0)) => Err("it has finished".to_owned()),
        (Reason::Exited, Ended::Code(code)) => Err(format!("it ended by itself with code {code}")),
        (Reason::Exited, Ended::Signal(SIGTERM)) if facts.swept => Ok(Lost::Machine),
        (Reason::Exited, Ended::Signal(signal)) => Err(format!("it was ended by signal {signal}")),
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
            server_lives: None,
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
        };
        Facts { exit: Some(exit), ..facts(FineState::Exited) }
    }

    #[test]
    fn what_nobody_ended_comes_back_and_what_ended_stays() {
        use FineState as S;
        assert_eq!(decide(&facts(S::Interrupted)), Fate::Recover(Lost::Machine));
        assert_eq!(decide(&facts(S::Lost)), Fate::Recover(Lost::Killed));
        let closed = ended(Ended::Signal(1), Reason::Closed);
        let gone = Facts { server_lives: Some(false), ..closed.clone() };
        assert_eq!(decide(&gone), Fate::Recover(Lost::Server));
        for (facts, why) in [
            (closed, "its window was closed"),
            (ended(Ended::Code(0), Reason::Exited), "it has finished"),
            (ended(Ended::Code(3), Reason::Exited), "it ended by itself with code 3"),
            (ended(Ended::Signal(9), Reason::Exited), "it was ended by signal 9"),
            (ended(Ended::Signal(15), Reason::Timeout), "its time limit ended it"),
            (ended(Ended::Signal(9), Reason::OutOfMemory), "it ran out of memory"),
            (ended(Ended::Signal(15), Reason::Output), "it wrote more than it may"),
            (facts(S::Running), "it runs"),
            (facts(S::Stopped), "it was stopped"),
            (facts(S::Backoff), "its restart policy starts it again"),
            (Facts { wanted: WantedState::Stopped, ..facts(S::Interrupted) }, "it was being stopped"),
        ] {
            assert_eq!(decide(&facts), Fate::Leave(why.to_owned()));
        }
    }

    #[test]
    fn an_orderly_shutdown_ends_nobody_for_good() {
        let swept = |facts| decide(&Facts { swept: true, ..facts });
        assert_eq!(swept(facts(FineState::Stopped)), Fate::Recover(Lost::Machine));
        assert_eq!(swept(ended(Ended::Signal(15), Reason::Exited)), Fate::Recover(Lost::Machine));
        for left in [ended(Ended::Code(0), Reason::Exited), ended(Ended::Signal(9), Reason::Exited)] {
            assert!(matches!(swept(left), Fate::Leave(_)));
        }
    }

    #[test]
    fn whoever_else_looks_after_it_does_so() {
        for (request, who) in [("run/r/j/1", "swarm run"), ("loop/l/3", "swarm ralph resume")] {
            let of = Facts { request: request.to_owned(), in_loop: true, ..facts(FineState::Lost) };
            assert!(matches!(decide(&of), Fate::Leave(why) if why.contains(who)), "{request}");
        }
        // Of a loop that is over nobody starts it again.
        let over = Facts { request: "loop/l/3".to_owned(), ..facts(FineState::Lost) };
        assert_eq!(decide(&over), Fate::Recover(Lost::Killed));
    }

    #[test]
    fn the_session_has_its_say_and_attempts_run_out() {
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
