//! Derives from the facts why a worker is in its state, and what to do next.

use swarm_model::{Doing, Ended, ExitRecord, FineState, Reason, RestartPolicy, WorkerView};

use swarm_ports::pid_list;

use super::facts::Evidence;
use crate::cli::jobs;
use crate::cli::render::{Clock, signal_name, words};
use swarm_store::runs::given_up::place_of;
use swarm_store::runs::order::attempt_of;
use swarm_sys::quoting::command_line;

/// Returns the cause of the state of a worker.
pub fn because(view: &WorkerView, evidence: &Evidence, clock: &Clock) -> String {
    if let Some(ask) = view.ask.as_ref().filter(|_| view.is_parked()) {
        return format!("its agent asks a person and has ended; it continues after the answer: {}", ask.text);
    }
    if let Some(cause) = jobs::because(view) {
        return cause;
    }
    match view.state {
        FineState::Queued => "its job waits in the queue".to_owned(),
        FineState::Starting => "its command has not been executed yet".to_owned(),
        FineState::Running => running(view, evidence),
        FineState::Suspended => "its process is alive, but suspended by a signal (SIGSTOP, Ctrl-Z)".to_owned(),
        FineState::Unsupervised => {
            "its process is alive, but its shim was killed: the exit will be unknown and the time limit is not enforced"
                .to_owned()
        }
        FineState::Stopping if !view.survivors.is_empty() => {
            let end = view.exit.as_ref().map_or_else(|| "it was asked to end".to_owned(), how);
            format!("{end}; some of its processes cannot be ended: {}", pid_list(&view.survivors))
        }
        FineState::Stopping => "it has ended or was asked to end; its last processes are being ended".to_owned(),
        FineState::Stopped if view.exit.is_none() => {
            "stopped on request; its shim did not record how it ended: it was killed, or could not end it".to_owned()
        }
        FineState::Exited if view.given_up.is_some() => {
            let why = view.given_up.as_deref().unwrap_or_default();
            format!("{}, but its run has given up its workstream: {why}", ended(view))
        }
        FineState::Exited if view.retry_ms.is_some() => {
            let due = view.retry_ms.and_then(|at| left(at, clock)).unwrap_or_else(|| "soon".to_owned());
            format!("{}; the next attempt of its run is due {due}", ended(view))
        }
        FineState::Exited | FineState::Stopped | FineState::OutOfMemory => ended(view),
        FineState::Backoff => {
            let due = view.next_start_ms.and_then(|at| left(at, clock)).unwrap_or_else(|| "soon".to_owned());
            let policy = policy(view.restart);
            format!("{}; restart {} is due {due} ({policy})", ended(view), view.restarts + 1)
        }
        FineState::Failed => match &evidence.failure {
            Some(cause) => format!("given up: {cause}"),
            None => format!("given up; the last start {}", ended(view)),
        },
        FineState::Lost => "it ended without an exit record: its shim was killed first, or could not end it".to_owned(),
        FineState::Elsewhere => format!(
            "it was started on machine '{}', which shares this state directory; whether it runs is only known there",
            view.elsewhere.as_deref().unwrap_or("unknown")
        ),
        FineState::Interrupted if view.exit.is_some() => ended(view),
        FineState::Interrupted => "the machine went down while the worker was running".to_owned(),
    }
}

fn running(view: &WorkerView, evidence: &Evidence) -> String {
    let activity = view.activity.as_ref();
    let what = activity.and_then(|activity| activity.what.as_deref());
    match (view.doing(), &view.stuck) {
        (Some(Doing::Waiting), _) => {
            format!("its agent waits for a person: {}", what.unwrap_or("its reason is unknown"))
        }
        (_, Some(cause)) if evidence.is_given_up() => {
            format!("its process is alive but stuck, and every remedy failed: {cause}")
        }
        (_, Some(cause)) => format!("its process is alive and needs attention: {cause}"),
        (Some(Doing::Idle), None) if view.broken_turn().is_some() => {
            format!("its agent waits, and has not finished its work: {}", what.unwrap_or("its last turn broke off"))
        }
        (Some(Doing::Idle), None) => {
            format!("its agent waits for its next task: {}", what.unwrap_or("its turn is over"))
        }
        (Some(Doing::Working), None) => {
            what.map_or_else(|| "its agent is at work".to_owned(), |what| format!("its agent is at work: {what}"))
        }
        (None, None) => "its process is alive and supervised".to_owned(),
    }
}

fn ended(view: &WorkerView) -> String {
    view.exit.as_ref().map_or_else(|| "ended without an exit record".to_owned(), how)
}

fn how(exit: &ExitRecord) -> String {
    let after = words(exit.duration_ms / 1000);
    let by = match exit.ended {
        Ended::Code(code) => format!("code {code}"),
        Ended::Signal(signal) => signal_name(signal),
    };
    match (exit.reason, exit.ended) {
        (Reason::Stopped, _) if exit.interrupted => format!(
            "ended with {by} after {after}, because its shim got a signal that swarm did not send, as at a shutdown"
        ),
        (Reason::Stopped, _) => format!("stopped on request (swarm kill, respawn) after {after}, ended with {by}"),
        (Reason::Closed, _) => format!("ended with {by} after {after}, because its window was closed"),
        (Reason::Timeout, _) => format!("reached its time limit (--timeout) after {after}, ended with {by}"),
        (Reason::Abandoned, _) => format!("ended with {by} after {after}, because its state directory was removed"),
        (Reason::Output, _) => format!("wrote more than --max-output allows, ended with {by} after {after}"),
        (Reason::OutOfMemory, _) => format!("killed by the kernel after {after}: it exceeded --memory"),
        (Reason::Exited, Ended::Code(0)) => format!("exited successfully after {after}"),
        (Reason::Exited, Ended::Code(127)) => {
            format!("exited with code 127 after {after}, which in shells means 'command not found'")
        }
        (Reason::Exited, Ended::Code(_)) => format!("exited with {by} after {after}"),
        (Reason::Exited, Ended::Signal(9)) => {
            format!("killed by SIGKILL after {after}, not sent by swarm: by a person, or by the kernel out of memory")
        }
        (Reason::Exited, Ended::Signal(_)) => format!("killed by {by} after {after}, not sent by swarm"),
    }
}

fn inspect(pids: &[i32]) -> String {
    format!("ps -fp {}", pids.iter().map(i32::to_string).collect::<Vec<_>>().join(","))
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

/// Returns the command that shows what the agent of a run's worker says. `None` for other workers.
fn logs_of_run(view: &WorkerView, flag: &str) -> Option<String> {
    let (home, job) = place_of(attempt_of(&view.row.cmd)?)?;
    Some(format!("swarm run logs{flag} {}", command_line([job, "--home", &home.to_string_lossy()])))
}

/// Returns commands that may help, each with its purpose.
pub fn next(view: &WorkerView, evidence: &Evidence) -> Vec<String> {
    let name = &view.row.name;
    let mut next: Vec<(String, &str)> = Vec::new();
    let swarm = |verb: &str| format!("swarm {verb} {name}");
    let logs = |flag: &str| logs_of_run(view, flag).unwrap_or_else(|| swarm(&format!("logs{flag}")));
    if let Some(answer) = view.ask.as_ref().and_then(|ask| ask.answer.clone()) {
        next.push((answer, "answer what its agent asks"));
        next.push(("swarm approvals".to_owned(), "see all of it"));
    }
    match view.state {
        FineState::Running if view.doing() == Some(Doing::Waiting) || view.stuck.is_some() => {
            if view.row.tmux.is_some() {
                next.push((swarm("attach"), "see the window and answer"));
            }
            next.push((logs(""), "show its output"));
        }
        FineState::Running if view.doing() == Some(Doing::Idle) && view.row.tmux.is_some() => {
            next.push(match view.broken_turn() {
                Some(_) => (format!("{} 'go on'", swarm("send")), "have it go on"),
                None => (format!("{} 'TEXT'", swarm("send")), "give it its next task"),
            });
            if evidence.has_tree {
                next.push((swarm("diff"), "show its changes"));
            }
            next.push((swarm("kill"), "end it"));
        }
        FineState::Stopping if !view.survivors.is_empty() => {
            next.push((inspect(&view.survivors), "see whose processes they are; only their user or root can end them"));
            next.push((swarm("kill"), "try again to end them"));
        }
        FineState::Starting | FineState::Queued | FineState::Running | FineState::Stopping | FineState::Backoff => {
            next.push((logs(" --follow"), "follow its output"));
        }
        FineState::Suspended if view.job.is_some() => next.push((logs(""), "show its output")),
        FineState::Suspended => {
            let pid = view.pid.map_or_else(String::new, |pid| pid.to_string());
            next.push((format!("kill -CONT {pid}"), "resume it"));
        }
        FineState::Unsupervised => next.push((swarm("respawn"), "start it again under supervision")),
        FineState::Elsewhere => {
            let host = view.elsewhere.as_deref().unwrap_or("HOST");
            next.push((format!("swarm recover --gone {host}"), "if that machine is gone for good: declare that"));
        }
        FineState::Interrupted => {
            next.push(("swarm recover".to_owned(), "list all interrupted workers"));
            next.push(("swarm recover --apply".to_owned(), "start all of them again"));
        }
        // It is started again after the answer; another start would not hear it.
        FineState::Exited if view.is_parked() => next.push((logs(""), "show its output")),
        FineState::Exited | FineState::Stopped | FineState::Failed | FineState::Lost | FineState::OutOfMemory => {
            if view.row.tags.iter().any(|tag| tag.starts_with("run:")) {
                next.push((
                    "swarm run status".to_owned(),
                    "see what its run says of its work: it may have been rejected",
                ));
            }
            next.push((logs(""), "show its output"));
            next.push((swarm("respawn"), "start it again with the same settings"));
            if evidence.has_tree {
                next.push((swarm("diff"), "show its changes"));
            }
            next.push((swarm("clean"), "remove it, for example to spawn it with other limits"));
        }
    }
    if !evidence.has_supervisor && view.state.is_running() && view.elsewhere.is_none() {
        next.push(("swarm doctor --repair".to_owned(), "start a supervisor; none is running"));
    }
    let width = next.iter().map(|(command, _)| command.chars().count()).max().unwrap_or(0);
    next.iter().map(|(command, what)| format!("{command:<width$}  {what}")).collect()
}

#[cfg(test)]
mod tests {
    use swarm_model::{Activity, NeedKind, Needs, TurnEnd};

    use super::*;
    use crate::cli::sample;

    #[test]
    fn the_run_says_what_became_of_the_work_of_its_worker() {
        let mut view = sample::ended("x", Ended::Code(0));
        let is_first = |view: &WorkerView| next(view, &Evidence::default())[0].starts_with("swarm run status ");
        assert!(!is_first(&view));
        std::sync::Arc::make_mut(&mut view.row).tags = vec!["run:0a1b2c3d".to_owned()];
        assert!(is_first(&view));
    }

    fn said(reason: Reason, ended: Ended) -> String {
        let mut view = sample::ended("x", ended);
        if let Some(exit) = view.exit.as_mut() {
            exit.reason = reason;
        }
        because(&view, &Evidence::default(), &sample::clock("2026-01-02T00:05:00Z"))
    }

    #[test]
    fn every_end_is_explained_with_its_cause() {
        assert!(said(Reason::Exited, Ended::Code(0)).contains("exited successfully"));
        assert!(said(Reason::Exited, Ended::Code(7)).contains("exited with code 7"));
        assert!(said(Reason::Exited, Ended::Code(127)).contains("command not found"));
        assert!(said(Reason::Exited, Ended::Signal(9)).contains("not sent by swarm"));
        assert!(said(Reason::Stopped, Ended::Signal(15)).contains("stopped on request"));
        assert!(said(Reason::Timeout, Ended::Signal(15)).contains("--timeout"));
        assert!(said(Reason::Closed, Ended::Signal(1)).contains("window was closed"));
    }

    #[test]
    fn a_worker_that_waits_for_a_person_is_not_called_stuck() {
        let said = |waiting: Option<&str>, stuck: Option<&str>| {
            let (waiting, stuck) = (waiting.map(str::to_owned), stuck.map(str::to_owned));
            let waits =
                |what| Activity { doing: Doing::Waiting, what: Some(what), since_ms: 0, kind: None, turn: None };
            let view = WorkerView { activity: waiting.map(waits), stuck, ..sample::window("w") };
            because(&view, &Evidence::default(), &sample::clock("2026-01-02T00:05:00Z"))
        };
        let cause = Some("may it push?");
        assert_eq!(said(cause, cause), "its agent waits for a person: may it push?");
        let attention = "its process is alive and needs attention: its context is full to 95 %";
        assert_eq!(said(None, Some("its context is full to 95 %")), attention);
    }

    #[test]
    fn an_agent_whose_last_turn_failed_is_not_said_to_be_done() {
        let activity = Activity {
            doing: Doing::Idle,
            what: Some("its last turn failed: API Error: 429".to_owned()),
            since_ms: 0,
            kind: None,
            turn: Some(TurnEnd::Failed),
        };
        let view = WorkerView { activity: Some(activity), ..sample::window("w") };
        let said = because(&view, &Evidence::default(), &sample::clock("2026-01-02T00:05:00Z"));
        assert_eq!(said, "its agent waits, and has not finished its work: its last turn failed: API Error: 429");
        assert!(next(&view, &Evidence::default())[0].starts_with("swarm send w 'go on' "));
    }

    #[test]
    fn work_that_its_run_has_given_up_is_explained_with_the_reason() {
        let view = WorkerView { given_up: Some("rejected: red".to_owned()), ..sample::ended("x", Ended::Code(0)) };
        let said = because(&view, &Evidence::default(), &sample::clock("2026-01-02T00:05:00Z"));
        assert_eq!(said, "exited successfully after 3m, but its run has given up its workstream: rejected: red");
    }

    #[test]
    fn an_agent_that_ended_to_ask_is_explained_by_its_request() {
        let ask = Needs {
            kind: NeedKind::Permission,
            text: "Bash: make".to_owned(),
            since_ms: 0,
            answer: Some("swarm approve 1".to_owned()),
        };
        let view = WorkerView { ask: Some(ask), ..sample::ended("x", Ended::Code(1)) };
        let said = because(&view, &Evidence::default(), &sample::clock("2026-01-02T00:05:00Z"));
        assert_eq!(said, "its agent asks a person and has ended; it continues after the answer: Bash: make");
        let next = next(&view, &Evidence::default());
        assert!(
            next[0].starts_with("swarm approve 1 ") && !next.iter().any(|line| line.contains("respawn")),
            "{next:?}"
        );
    }

    #[test]
    fn the_output_of_a_runs_worker_is_in_the_logs_of_its_run() {
        let mut view = sample::ended("p.x", Ended::Code(1));
        let attempt = "/repo/.arial/attempts/x.2".to_owned();
        let row = std::sync::Arc::make_mut(&mut view.row);
        row.cmd = vec!["swarm".to_owned(), "__attempt".to_owned(), attempt];
        let next = next(&view, &Evidence::default());
        assert!(next.iter().any(|line| line.starts_with("swarm run logs x --home /repo/.arial ")), "{next:?}");
        assert!(!next.iter().any(|line| line.starts_with("swarm logs")), "{next:?}");
    }

    #[test]
    fn a_next_step_is_always_suggested() {
        for view in [sample::process("p"), sample::window("w"), sample::ended("e", Ended::Code(3))] {
            assert!(!next(&view, &Evidence::default()).is_empty());
        }
    }
}
