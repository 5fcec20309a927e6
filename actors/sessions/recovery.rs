//! Decides whether a session that was left can be resumed: a pure function.
//!
//! The answers and their order are those of the program that defined the files. Its errors are
//! corrected: finished work is not started again, a process is identified by more than its pid, and attempts are limited.

use swarm_model::{Recovery, Session, SessionStatus};

/// Default maximum number of recovery attempts of a session.
pub const ATTEMPTS_MAX: i64 = 3;
/// Age at which a beat no longer counts, in milliseconds.
pub const STALE_MS: u64 = 30_000;

/// Facts about the directory of a session.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// State of the session. `None` if the directory or the file is missing or the file is malformed.
    pub state: Option<&'a Session>,
    /// Identifier that the session must have, if any.
    pub expected: Option<&'a str>,
    /// Time at which `heartbeat.json` says that it was written, in Unix milliseconds.
    pub beat_ms: Option<i64>,
    pub process: Known,
    pub attempts_max: i64,
    pub now_ms: i64,
    pub stale_ms: i64,
}

/// State of the process that a session records by more than its pid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// The process lives, whatever the heartbeat says.
    Alive,
    /// The process is gone, and so is the writer of its beats.
    Gone,
    /// No process was recorded, or it was recorded on another machine.
    Unknown,
}

/// Decides whether the session can be resumed, and why not.
pub fn decide(facts: &Facts<'_>) -> Recovery {
    let Some(state) = facts.state else { return Recovery::NoState };
    let (Some(found), true) = (state.identifier(), state.issue_id().is_some()) else {
        return Recovery::InvalidState;
    };
    if facts.expected.is_some_and(|expected| expected != found) {
        return Recovery::IdentifierMismatch { found };
    }
    if is_alive(facts) {
        return Recovery::AgentAlive;
    }
    // A session that a person stopped may be resumed; only completed work is final.
    if let Some(status @ SessionStatus::Completed) = state.status() {
        return Recovery::Finished { status };
    }
    let attempts = state.recoveries();
    if attempts >= facts.attempts_max {
        return Recovery::MaxAttempts { attempts };
    }
    Recovery::Recoverable { attempts }
}

/// Maximum time by which a heartbeat may lie ahead to count, in milliseconds.
const AHEAD_MS_MAX: i64 = 24 * 60 * 60 * 1000;

/// Reports whether an agent is running in the session, no matter which program started it.
pub fn is_alive(facts: &Facts<'_>) -> bool {
    match facts.process {
        Known::Alive => true,
        Known::Gone => false,
        Known::Unknown => facts.beat_ms.is_some_and(|beat_ms| {
            // A beat in the future proves nothing about the age of the agent: a clock was set, or two clocks differ.
            // The original program takes it for alive, and dead needs evidence. No clock that is in use is wrong by more.
            let age_ms = facts.now_ms.saturating_sub(beat_ms);
            age_ms < facts.stale_ms && age_ms >= -AHEAD_MS_MAX
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_800_000_000_000;

    fn session(text: &str) -> Session {
        Session::parse(text).expect("parses")
    }

    fn facts(state: Option<&Session>) -> Facts<'_> {
        Facts {
            state,
            expected: None,
            beat_ms: None,
            process: Known::Unknown,
            attempts_max: ATTEMPTS_MAX,
            now_ms: NOW,
            stale_ms: 30_000,
        }
    }

    #[test]
    fn answers_come_in_the_order_of_the_original() {
        let good = session(r#"{"issueId": "u", "issueIdentifier": "A-1", "recoveryAttempts": 3, "status": "running"}"#);
        let fresh = Facts { beat_ms: Some(NOW), ..facts(Some(&good)) };
        assert_eq!(decide(&facts(None)), Recovery::NoState);
        for text in ["{}", r#"{"issueId": "u"}"#, r#"{"issueId": "", "issueIdentifier": "A-1"}"#] {
            let bad = session(text);
            assert_eq!(decide(&Facts { beat_ms: Some(NOW), ..facts(Some(&bad)) }), Recovery::InvalidState, "{text}");
        }
        let other = Facts { expected: Some("B-2"), ..fresh };
        assert_eq!(decide(&other), Recovery::IdentifierMismatch { found: "A-1".into() });
        assert_eq!(decide(&Facts { expected: Some("A-1"), ..fresh }), Recovery::AgentAlive);
        assert_eq!(decide(&facts(Some(&good))), Recovery::MaxAttempts { attempts: 3 });
        let more = Facts { attempts_max: 4, ..facts(Some(&good)) };
        assert_eq!(decide(&more), Recovery::Recoverable { attempts: 3 });
    }

    #[test]
    fn a_beat_is_fresh_for_less_than_its_time_and_in_the_future() {
        let good = session(r#"{"issueId": "u", "issueIdentifier": "A-1"}"#);
        let ahead = [(-3_600_000, true), (-AHEAD_MS_MAX, true), (-AHEAD_MS_MAX - 1, false), (NOW - i64::MAX, false)];
        let cases = [(0, true), (29_999, true), (30_000, false), (-29_999, true), (-30_000, true)];
        for (age, alive) in cases.into_iter().chain(ahead) {
            let facts = Facts { beat_ms: Some(NOW - age), ..facts(Some(&good)) };
            assert_eq!(is_alive(&facts), alive, "{age} ms old");
        }
        assert!(!is_alive(&facts(Some(&good))));
    }

    #[test]
    fn a_known_process_state_takes_precedence_over_any_beat() {
        let good = session(r#"{"issueId": "u", "issueIdentifier": "A-1"}"#);
        let gone = Facts { process: Known::Gone, beat_ms: Some(NOW), ..facts(Some(&good)) };
        assert_eq!(decide(&gone), Recovery::Recoverable { attempts: 0 });
        let alive = Facts { process: Known::Alive, beat_ms: None, ..facts(Some(&good)) };
        assert_eq!(decide(&alive), Recovery::AgentAlive);
    }

    #[test]
    fn finished_work_is_not_restarted() {
        for (status, finished) in [("completed", true), ("failed", false), ("stopped", false), ("running", false)] {
            let text = format!(r#"{{"issueId": "u", "issueIdentifier": "A-1", "status": "{status}"}}"#);
            let state = session(&text);
            let answer = decide(&facts(Some(&state)));
            assert_eq!(matches!(answer, Recovery::Finished { .. }), finished, "{status}: {answer:?}");
        }
    }

    #[test]
    fn attempts_of_the_original_program_count_too() {
        let go = session(r#"{"issueId": "u", "issueIdentifier": "A-1", "attemptCount": 4}"#);
        assert_eq!(decide(&facts(Some(&go))), Recovery::MaxAttempts { attempts: 3 });
    }
}
