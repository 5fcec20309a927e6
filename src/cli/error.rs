//! Failures of verbs: the line on standard error, the hint below it, and the exit code. No other layer prints errors or
//! chooses exit codes.

use std::fmt;
use std::io::{self, Write};

use swarm_model::{Refusal, RefusalKind, nearest};

use super::render::escape;
use swarm_store::views::Registry;

/// Exit code for a closed output pipe, as shells report it (128 + SIGPIPE). A reader that left is not worth a message.
const CLOSED_PIPE: u8 = 128 + 13;

#[derive(Debug)]
pub enum Failure {
    /// Printed as `swarm: error: <cause>` and, if there is a remedy, `swarm: hint: …`.
    Refused { refusal: Box<Refusal>, code: u8 },
    /// Printed as `swarm: <line>`, the format of `logs`, with an optional hint.
    Said { line: String, hint: Option<String> },
    /// Printed without a prefix, for verbs whose original prints none.
    Plain { line: String, hint: Option<String> },
    /// Standard output cannot be written.
    Output(io::Error),
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self::Refused { refusal: Box::new(refusal), code: 1 }
    }
}

impl Failure {
    pub fn new(kind: RefusalKind, cause: impl Into<String>) -> Self {
        Refusal::new(kind, cause).into()
    }

    /// Returns the failure of a system call; `doing` says what could not be done.
    pub fn system(doing: impl fmt::Display, error: &io::Error) -> Self {
        Self::new(RefusalKind::Internal, format!("{doing}: {error}"))
    }

    pub fn said(line: impl Into<String>, hint: Option<String>) -> Self {
        Self::Said { line: line.into(), hint }
    }

    /// Sets the exit code to 2 if a name was not found, as `status` and `peek` report it.
    #[must_use]
    pub fn unknown_is_two(self) -> Self {
        match self {
            Self::Refused { refusal, .. } if refusal.kind == RefusalKind::NotFound => {
                Self::Refused { refusal, code: 2 }
            }
            other => other,
        }
    }

    /// Returns the cause in one sentence.
    pub fn cause(&self) -> String {
        match self {
            Self::Refused { refusal, .. } => refusal.cause.clone(),
            Self::Said { line, .. } | Self::Plain { line, .. } => line.clone(),
            Self::Output(error) => error.to_string(),
        }
    }

    /// Converts the failure into a refusal of one worker among several.
    pub fn into_refusal(self) -> Refusal {
        match self {
            Self::Refused { refusal, .. } => *refusal,
            other => Refusal::new(RefusalKind::Internal, other.cause()),
        }
    }

    /// Writes the failure to `err` and returns the exit code.
    pub fn report(&self, err: &mut dyn Write) -> u8 {
        // If standard error is closed too, the exit code must suffice.
        match self {
            Self::Refused { refusal, code } => {
                let _ = refuse(refusal, err);
                *code
            }
            Self::Said { line, hint } => {
                let _ = writeln!(err, "swarm: {}", escape(line));
                if let Some(hint) = hint {
                    let _ = writeln!(err, "swarm: hint: {}", escape(hint));
                }
                1
            }
            Self::Plain { line, hint } => {
                let _ = writeln!(err, "{}", escape(line.trim_end()));
                if let Some(hint) = hint {
                    let _ = writeln!(err, "swarm: hint: {}", escape(hint));
                }
                1
            }
            Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => CLOSED_PIPE,
            Self::Output(error) => {
                let _ = writeln!(err, "swarm: error: cannot write to standard output: {error}");
                1
            }
        }
    }
}

/// Writes the error line and the hint of a refusal.
pub fn refuse(refusal: &Refusal, err: &mut dyn Write) -> io::Result<()> {
    writeln!(err, "swarm: error: {}", escape(refusal.cause.trim_end()))?;
    match &refusal.remedy {
        Some(remedy) => writeln!(err, "swarm: hint: {}", escape(remedy.trim_end())),
        None => Ok(()),
    }
}

/// Returns `worker 'X' not found` with the nearest name as hint. If the worker is registered but its row is
/// unreadable, returns the reason instead.
pub fn unknown_worker(name: &str, registry: &Registry) -> Failure {
    if let Some((_, cause)) = registry.unreadable.iter().find(|(row, _)| row == name) {
        let cause = format!("cannot read the registry entry of worker '{name}': {cause}");
        return Refusal::new(RefusalKind::Registry, cause).of(name).into();
    }
    let mut refusal = Refusal::new(RefusalKind::NotFound, format!("worker '{name}' not found")).of(name);
    refusal.remedy = suggestion(name, registry);
    refusal.into()
}

/// Returns `did you mean 'Y'?` if a similar name exists.
pub fn suggestion(name: &str, registry: &Registry) -> Option<String> {
    let known = registry.workers.iter().map(|worker| worker.row.name.as_str());
    nearest(name, known).map(|near| format!("did you mean '{near}'?"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::sample;

    fn told(failure: &Failure) -> (String, u8) {
        let mut err = Vec::new();
        let code = failure.report(&mut err);
        (String::from_utf8(err).expect("text"), code)
    }

    #[test]
    fn an_unknown_name_suggests_the_nearest_and_keeps_its_first_line() {
        let registry = sample::registry(vec![sample::process("builder"), sample::process("tester")]);
        let failure = unknown_worker("bulider", &registry);
        let text = "swarm: error: worker 'bulider' not found\nswarm: hint: did you mean 'builder'?\n";
        assert_eq!(told(&failure), (text.to_owned(), 1));
        assert_eq!(told(&failure.unknown_is_two()).1, 2);
        assert_eq!(told(&unknown_worker("zebra", &registry)).0, "swarm: error: worker 'zebra' not found\n");
    }

    #[test]
    fn an_unreadable_row_is_not_reported_as_not_found() {
        let mut registry = sample::registry(Vec::new());
        registry.unreadable.push(("odd".into(), "missing field `cmd`".into()));
        let (text, code) = told(&unknown_worker("odd", &registry).unknown_is_two());
        assert!(text.contains("missing field `cmd`") && code == 1, "{text} {code}");
    }

    #[test]
    fn a_hostile_name_cannot_write_lines_or_move_the_cursor() {
        let registry = sample::registry(Vec::new());
        let (text, _) = told(&unknown_worker("a\n\x1b[2Jb", &registry));
        assert_eq!(text, "swarm: error: worker 'a\\n\\x1b[2Jb' not found\n");
    }

    #[test]
    fn a_closed_pipe_is_silent_and_a_full_disk_is_reported() {
        assert_eq!(told(&Failure::Output(io::ErrorKind::BrokenPipe.into())), (String::new(), 141));
        let (text, code) = told(&Failure::Output(io::Error::from_raw_os_error(28)));
        assert!(text.starts_with("swarm: error: cannot write to standard output: No space left"), "{text}");
        assert_eq!(code, 1);
    }
}
