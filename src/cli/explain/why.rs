//! From the facts to the sentence that people ask for, and to what they may do next.

use swarm_model::{Ended, ExitRecord, FineState, Reason, RestartPolicy, WorkerView};

use super::facts::Evidence;
use crate::cli::render::{Clock, signal_name, words};

/// Why it is as it is.
pub fn because(view: &WorkerView, evidence: &Evidence, clock: &Clock) -> String {
    match view.state {
        FineState::Starting => "it is being started, and its command is not executed yet".to_owned(),
        FineState::Running => running(view),
        FineState::Suspended => "it lives, and a signal (SIGSTOP, Ctrl-Z) has stopped it".to_owned(),
        FineState::Unsupervised => {
            "it lives, but its shim was killed: nobody will know how it ends, and its time limit is not watched"
                .to_owned()
        }
        FineState::Stopping => "it has ended or is asked to, and its last processes are being ended".to_owned(),
        FineState::Exited | FineState::Stopped | FineState::OutOfMemory => ended(view),
        FineState::Backoff => {
            let due = view.next_start_ms.and_then(|at| left(at, clock)).unwrap_or_else(|| "soon".to_owned());
            let policy = policy(view.restart);
            format!("{}; it is started again {due} ({policy}, restart {})", ended(view), view.restarts + 1)
        }
        FineState::Failed => match &evidence.failure {
            Some(cause) => format!("it was given up: {cause}"),
            None => format!("it was given up; before that {}", ended(view)),
        },
        FineState::Lost => "it ended and nobody recorded how: its shim was killed before it".to_owned(),
        FineState::Interrupted => "the machine went down while it was at work".to_owned(),
    }
}

fn running(view: &WorkerView) -> String {
    match (&view.waiting, &view.stuck) {
        (Some(cause), _) => format!("it waits for a person: {cause}"),
        (None, Some(cause)) => format!("it stands still, and what was done about it was in vain: {cause}"),
        (None, None) => "its process lives, and its shim holds the lease".to_owned(),
    }
}

fn ended(view: &WorkerView) -> String {
    view.exit.as_ref().map_or_else(|| "it ended, and nobody recorded how".to_owned(), how)
}

fn how(exit: &ExitRecord) -> String {
    let after = words(exit.duration_ms / 1000);
    let by = match exit.ended {
        Ended::Code(code) => format!("code {code}"),
        Ended::Signal(signal) => signal_name(signal),
    };
    match (exit.reason, exit.ended) {
        (Reason::Stopped, _) => format!("it was asked to end (swarm kill, respawn), and ended with {by} after {after}"),
        (Reason::Closed, _) => format!("its window was closed, and it ended with {by} after {after}"),
        (Reason::Timeout, _) => format!("its time was up (--timeout), and it ended with {by} after {after}"),
        (Reason::Abandoned, _) => format!("its state directory was removed, and it ended with {by} after {after}"),
        (Reason::Output, _) => format!("it wrote more than --max-output allows, and ended with {by} after {after}"),
        (Reason::OutOfMemory, _) => format!("the kernel ended it after {after}: it needed more than --memory allows"),
        (Reason::Exited, Ended::Code(0)) => format!("it ended by itself with success after {after}"),
        (Reason::Exited, Ended::Code(127)) => {
            format!("it ended by itself with code 127 after {after}, which shells say of a command that is not there")
        }
        (Reason::Exited, Ended::Code(_)) => format!("it ended by itself with {by} after {after}"),
        (Reason::Exited, Ended::Signal(9)) => {
            format!("SIGKILL ended it after {after}, which swarm did not send: a person, or the kernel short of memory")
        }
        (Reason::Exited, Ended::Signal(_)) => format!("{by} ended it after {after}, which swarm did not send"),
    }
}

fn left(at_ms: u64, clock: &Clock) -> Option<String> {
    let ms = i64::try_from(at_ms).ok()? - clock.now.as_millisecond();
    u64::try_from(ms).ok().map(|ms| format!("in {}", words(ms.div_ceil(1000))))
}

pub fn policy(policy: RestartPolicy) -> &'static str {
    match policy {
        RestartPolicy::Never => "--restart never",
        RestartPolicy::OnFailure => "--restart on-failure",
        RestartPolicy::Always => "--restart always",
    }
}

/// What a person may want to type.
pub fn next(view: &WorkerView, evidence: &Evidence) -> Vec<String> {
    let name = &view.row.name;
    let mut next: Vec<(String, &str)> = Vec::new();
    let swarm = |verb: &str| format!("swarm {verb} {name}");
    match view.state {
        FineState::Running if view.waiting.is_some() || view.stuck.is_some() => {
            if view.row.tmux.is_some() {
                next.push((swarm("attach"), "look at it and answer"));
            }
            next.push((swarm("logs"), "what it wrote"));
        }
        FineState::Starting | FineState::Running | FineState::Stopping | FineState::Backoff => {
            next.push((swarm("logs --follow"), "what it writes"));
        }
        FineState::Suspended => {
            let pid = view.pid.map_or_else(String::new, |pid| pid.to_string());
            next.push((format!("kill -CONT {pid}"), "let it go on"));
        }
        FineState::Unsupervised => next.push((swarm("respawn"), "start it again, looked after")),
        FineState::Interrupted => {
            next.push(("swarm recover".to_owned(), "who else was at work"));
            next.push(("swarm recover --apply".to_owned(), "have them all go on"));
        }
        FineState::Exited | FineState::Stopped | FineState::Failed | FineState::Lost | FineState::OutOfMemory => {
            next.push((swarm("logs"), "all that it wrote"));
            next.push((swarm("respawn"), "start it again as it was"));
            if evidence.has_tree {
                next.push((swarm("diff"), "what it changed"));
            }
            next.push((swarm("clean"), "forget it; a spawn after that may have other limits"));
        }
    }
    if !evidence.has_supervisor && view.state.is_running() {
        next.push(("swarm doctor --repair".to_owned(), "nobody looks after it: start a supervisor"));
    }
    let width = next.iter().map(|(command, _)| command.chars().count()).max().unwrap_or(0);
    next.iter().map(|(command, what)| format!("{command:<width$}  {what}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::sample;

    fn said(reason: Reason, ended: Ended) -> String {
        let mut view = sample::ended("x", ended);
        if let Some(exit) = view.exit.as_mut() {
            exit.reason = reason;
        }
        because(&view, &Evidence::default(), &sample::clock("2026-01-02T00:05:00Z"))
    }

    #[test]
    fn every_end_is_told_with_who_caused_it() {
        assert!(said(Reason::Exited, Ended::Code(0)).contains("by itself with success"));
        assert!(said(Reason::Exited, Ended::Code(7)).contains("by itself with code 7"));
        assert!(said(Reason::Exited, Ended::Code(127)).contains("a command that is not there"));
        assert!(said(Reason::Exited, Ended::Signal(9)).contains("swarm did not send"));
        assert!(said(Reason::Stopped, Ended::Signal(15)).contains("was asked to end"));
        assert!(said(Reason::Timeout, Ended::Signal(15)).contains("--timeout"));
        assert!(said(Reason::Closed, Ended::Signal(1)).contains("window was closed"));
    }

    #[test]
    fn there_is_always_something_to_do() {
        for view in [sample::process("p"), sample::window("w"), sample::ended("e", Ended::Code(3))] {
            assert!(!next(&view, &Evidence::default()).is_empty());
        }
    }
}
