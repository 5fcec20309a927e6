//! What the agents of a run were denied, by rules and by people: lines of `denied.jsonl` in the directory of each attempt.
//! The lines are only shown to people. A crash may lose the last one or cut it short, and such a line is skipped.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};
use swarm_agents::short;
use swarm_model::asks::AskWish;
use swarm_sys::clock::wall_ms;

use super::home::{Home, append_lines};
use super::records;

/// File of the denials of one attempt.
pub(super) const FILE: &str = "denied.jsonl";

/// Beginning of the activity that tells those who follow the run of a denial.
pub const DENIED: &str = "denied: ";

/// A use of a tool, or a question, to which the agent was told no.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Denial {
    pub at_ms: u64,
    /// Id of the use of a tool.
    pub call: String,
    /// What the agent wanted, in one line.
    pub what: String,
    /// What the agent was told.
    pub reason: String,
}

/// Denials of a workstream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Denials {
    /// Number of uses that were denied, in all attempts.
    pub count: usize,
    pub last: Option<Denial>,
}

/// Records a denial in the directory of an attempt.
///
/// # Errors
/// Returns any I/O error.
pub fn record(dir: &Path, call: &str, tool: &str, wish: &AskWish, reason: &str) -> io::Result<()> {
    let (call, what, reason) = (call.to_owned(), wish.summary(tool), short(reason));
    let line = serde_json::to_string(&Denial { at_ms: wall_ms(), call, what, reason })?;
    append_lines(&dir.join(FILE), &format!("{line}\n")).map(drop)
}

/// Returns the denials of a workstream in its attempts up to this one. A use that was denied again counts once.
pub fn of_job(home: &Home, job: &str, attempt: u32) -> Denials {
    let mut denials = Denials::default();
    for attempt in 1..=attempt {
        let text = records::read(home.attempt(job, attempt).join(FILE)).unwrap_or_default();
        let lines = text.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice::<Denial>(line).ok());
        let mut calls = BTreeSet::new();
        for denial in lines {
            calls.insert(denial.call.clone());
            denials.last = Some(denial);
        }
        denials.count += calls.len();
    }
    denials
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn denials_of_all_attempts_are_counted_once_each_and_the_last_one_is_known() {
        let dir = tempfile::tempdir().expect("a directory");
        let home = Home::new(dir.path());
        assert_eq!(of_job(&home, "a", 3), Denials::default());
        let push = AskWish::Command { command: "git push\n--force".to_owned() };
        for (attempt, call) in [(1, "t1"), (1, "t1"), (1, "t2"), (3, "t1")] {
            let dir = home.attempt("a", attempt);
            fs::create_dir_all(&dir).expect("made");
            record(&dir, call, "Bash", &push, &format!("no {attempt}\nmore")).expect("recorded");
        }
        append_lines(&home.attempt("a", 3).join(FILE), "{\"at_ms\":").expect("torn");
        let denials = of_job(&home, "a", 3);
        let last = denials.last.expect("the last one");
        assert_eq!((denials.count, last.what.as_str(), last.reason.as_str()), (3, "git push … (2 lines)", "no 3"));
        assert_eq!(of_job(&home, "a", 2).count, 2, "an attempt that is to come has none");
    }
}
