//! Log lines of a loop for `iterations.log`, in the original's words.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::progress::{ExitReason, FAILURES_MAX};

/// Exit code of an iteration's worker, as a shell shows it. `None` if it is unknown.
pub type Code = Option<i32>;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Word {
    Start { iteration: u32, max: u32 },
    End { iteration: u32, code: Code, seconds: u64 },
    Fail { iteration: u32, code: Code, attempt: u32, backoff: u64 },
    Timeout { iteration: u32, seconds: u64 },
    Done { iterations: u32, reason: ExitReason },
    Pause { reason: String },
    Warn { iteration: u32, text: String },
    Error { text: String },
    Fatal { iteration: u32, text: String },
}

impl Word {
    /// `START`, `END` …
    pub fn event(&self) -> &'static str {
        match self {
            Self::Start { .. } => "START",
            Self::End { .. } => "END",
            Self::Fail { .. } => "FAIL",
            Self::Timeout { .. } => "TIMEOUT",
            Self::Done { .. } => "DONE",
            Self::Pause { .. } => "PAUSE",
            Self::Warn { .. } => "WARN",
            Self::Error { .. } => "ERROR",
            Self::Fatal { .. } => "FATAL",
        }
    }
}

/// Formats the text after the event name on the line.
impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start { iteration, max } => write!(f, "iteration {iteration}/{max}"),
            Self::End { iteration, code, seconds } => {
                write!(f, "iteration {iteration} exit={} duration={}", exit(*code), duration(*seconds))
            }
            Self::Fail { iteration, code, attempt, backoff } => {
                let exit = exit(*code);
                write!(f, "iteration {iteration} exit={exit} attempt={attempt}/{FAILURES_MAX} backoff={backoff}s")
            }
            Self::Timeout { iteration, seconds } => write!(f, "iteration {iteration} inactivity_timeout={seconds}s"),
            Self::Done { iterations, reason } => {
                write!(f, "loop complete after {iterations} iterations reason={}", reason.word())
            }
            Self::Pause { reason } => write!(f, "loop paused reason={reason}"),
            Self::Warn { iteration, text } => write!(f, "iteration {iteration}: {text}"),
            Self::Error { text } => f.write_str(text),
            Self::Fatal { iteration, text } => write!(f, "iteration {iteration} -- {text}"),
        }
    }
}

fn exit(code: Code) -> String {
    code.map_or_else(|| "unknown".to_owned(), |code| code.to_string())
}

/// `12s`, `5m 30s`, `1h 15m`.
pub fn duration(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m {}s", seconds / 60, seconds % 60),
        _ => format!("{}h {}m", seconds / 3600, seconds % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_the_original_ones() {
        let cases = [
            (Word::Start { iteration: 1, max: 5 }, "START", "iteration 1/5"),
            (Word::End { iteration: 2, code: Some(0), seconds: 342 }, "END", "iteration 2 exit=0 duration=5m 42s"),
            (Word::End { iteration: 2, code: None, seconds: 4500 }, "END", "iteration 2 exit=unknown duration=1h 15m"),
            (
                Word::Fail { iteration: 3, code: Some(1), attempt: 2, backoff: 2 },
                "FAIL",
                "iteration 3 exit=1 attempt=2/5 backoff=2s",
            ),
            (Word::Timeout { iteration: 4, seconds: 180 }, "TIMEOUT", "iteration 4 inactivity_timeout=180s"),
            (
                Word::Done { iterations: 5, reason: ExitReason::MaxIterations },
                "DONE",
                "loop complete after 5 iterations reason=max_iterations",
            ),
            (Word::Pause { reason: "sigterm".into() }, "PAUSE", "loop paused reason=sigterm"),
            (Word::Warn { iteration: 1, text: "x".into() }, "WARN", "iteration 1: x"),
            (Word::Fatal { iteration: 1, text: "x".into() }, "FATAL", "iteration 1 -- x"),
        ];
        for (word, event, text) in cases {
            assert_eq!((word.event(), word.to_string().as_str()), (event, text));
        }
    }
}
