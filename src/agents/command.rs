//! `command`: any program. The program gets the prompt on standard input and in the file `$SWARM_PROMPT`; its exit code
//! is the result.

use swarm_model::run::progress::Spent;
use swarm_model::run::{FaultKind, Outcome};

use super::{End, Launch, Parser, Report, Seen, Turn, end_words, failure, last_lines, short};
use swarm_config::sections::AgentConfig;

/// Number of output lines that are passed to the next attempt.
const EVIDENCE_LINES: usize = 40;

pub fn launch(config: &AgentConfig, turn: &Turn<'_>) -> Launch {
    let argv = config.command.clone().unwrap_or_default();
    Launch { argv, env: Vec::new(), input: Some(turn.prompt.to_owned()) }
}

/// Parser of plain text; the last line is the summary.
#[derive(Default)]
pub struct Reader {
    last: Option<String>,
}

impl Parser for Reader {
    fn line(&mut self, line: &str) -> Vec<Seen> {
        let line = short(line);
        if line.is_empty() {
            return Vec::new();
        }
        self.last = Some(line.clone());
        vec![Seen::Text(line)]
    }

    fn end(self: Box<Self>, end: End<'_>) -> Report {
        let outcome = if end.ended.is_success() {
            Outcome::Success { summary: self.last }
        } else {
            let said = if end.stderr.trim().is_empty() { end.output } else { end.stderr };
            let why = said.lines().rev().find(|line| !line.trim().is_empty()).map(short);
            let cause = match why {
                Some(why) => format!("{}: {why}", end_words(end.ended)),
                None => end_words(end.ended),
            };
            let evidence =
                format!("{}\n{}", last_lines(end.output, EVIDENCE_LINES), last_lines(end.stderr, EVIDENCE_LINES));
            failure(cause, Some(evidence.trim().to_owned()).filter(|text| !text.is_empty()), FaultKind::Task)
        };
        Report {
            outcome,
            spent: Spent { unpriced: true, ..Spent::default() },
            session: None,
            said: None,
            is_gone: false,
            deferred: None,
        }
    }
}
