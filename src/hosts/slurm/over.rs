//! Whether an allocation that holds a directory has ended, with all of its processes.
//!
//! A job whose node is out of reach counts as ended although its processes work on. They are ended when the node answers
//! again, before it gets another job. So an allocation is over if Slurm says so, and its node answers.

use std::time::Duration;

use super::jobs::{Job, State};
use super::look::said;
use super::{Look, Slurm};
use crate::host::{Host, Way};

const ANSWER_MAX: Duration = Duration::from_secs(30);

/// Whether an allocation may still have processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The job works, or may.
    Works,
    /// Slurm is ending the job.
    Ends,
    /// It has ended, with all of its processes.
    Over,
    /// Slurm says that it has ended, and its node does not answer.
    Unproven,
}

/// Returns what has become of the allocation with this token, and whose node was `node`.
pub fn fate_of(host: &Host, look: &Look, token: &str, node: &str) -> Fate {
    let job = look.jobs.iter().rev().find(|job| job.token == token);
    match fate(job, None) {
        Fate::Unproven => fate(job, responds(host, node)),
        fate => fate,
    }
}

fn fate(job: Option<&Job>, node_responds: Option<bool>) -> Fate {
    match job.map(|job| job.state) {
        Some(State::Ending) => Fate::Ends,
        Some(State::Pending | State::Running | State::Suspended | State::Unknown) => Fate::Works,
        Some(State::Over | State::Lost) | None if node_responds == Some(true) => Fate::Over,
        Some(State::Over | State::Lost) | None => Fate::Unproven,
    }
}

/// Reports whether Slurm reaches a node; `None` if it is not known.
fn responds(host: &Host, node: &str) -> Option<bool> {
    let Way::Slurm(slurm) = &host.way else { return None };
    let slurm = Slurm { login: None, ..slurm.clone() };
    let is_name = |it: char| it.is_ascii_alphanumeric() || "._-".contains(it);
    if node.is_empty() || node.starts_with('-') || !node.chars().all(is_name) {
        return None;
    }
    let script = format!("exec sinfo --noheader --Node --nodes={node} --format=%T");
    is_reached(&said(host, &slurm, &script, None, ANSWER_MAX).ok()?)
}

/// Reads the states of a node, one for each partition. A star says that it does not answer.
pub(super) fn is_reached(text: &str) -> Option<bool> {
    let mut states = text.split_whitespace().peekable();
    states.peek()?;
    Some(states.all(|state| {
        let word = state.trim_end_matches(|it: char| !it.is_ascii_alphabetic());
        !state.contains('*')
            && ["idle", "mixed", "allocated", "completing", "draining", "drained", "reserved", "planned"]
                .contains(&word)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slurm::jobs;

    #[test]
    fn an_allocation_is_over_if_slurm_says_so_and_its_node_answers() {
        for (word, responds, expected) in [
            ("RUNNING", Some(true), Fate::Works),
            ("PENDING", Some(true), Fate::Works),
            ("SUSPENDED", Some(true), Fate::Works),
            ("A_NEW_ONE", Some(true), Fate::Works),
            ("COMPLETING", Some(true), Fate::Ends),
            ("COMPLETED", Some(true), Fate::Over),
            ("TIMEOUT", Some(true), Fate::Over),
            ("NODE_FAIL", Some(true), Fate::Over),
            ("NODE_FAIL", Some(false), Fate::Unproven),
            ("CANCELLED by 0", Some(false), Fate::Unproven),
            ("PREEMPTED", None, Fate::Unproven),
        ] {
            let line = format!("12|{word}|None|n1|1|2|swarm.cluster.0123456789ab");
            let job = jobs::jobs(&line, "cluster").remove(0);
            assert_eq!(fate(Some(&job), responds), expected, "{word} {responds:?}");
        }
        assert_eq!((fate(None, Some(true)), fate(None, None)), (Fate::Over, Fate::Unproven));
    }

    #[test]
    fn a_node_is_reached_if_no_state_of_it_says_otherwise() {
        for (text, expected) in [
            ("idle\n", Some(true)),
            ("mixed\nmixed\n", Some(true)),
            ("drained\n", Some(true)),
            ("mixed-\n", Some(true)),
            ("idle*\n", Some(false)),
            ("down*\n", Some(false)),
            ("down\n", Some(false)),
            ("idle~\n", Some(true)),
            ("unknown\n", Some(false)),
            ("\n", None),
        ] {
            assert_eq!(is_reached(text), expected, "{text}");
        }
    }
}
