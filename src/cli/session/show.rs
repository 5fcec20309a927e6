//! `swarm session show` and `check`: the state of a session, and whether it can be resumed.

use std::path::Path;

use serde_json::{Value, json};
use swarm_actors::heartbeat::recovery::decide;
use swarm_model::Recovery;
use swarm_model::Session;

use super::args::{CheckArgs, Which};
use super::failed;
use crate::cli::error::Failure;
use crate::cli::json;
use crate::cli::render::{escape, words};
use crate::cli::screen::Screen;
use swarm_store::sessions::{self, Checked};
use swarm_sys::clock::wall_ms;

pub fn show(which: &Which, base: &Path, screen: &mut Screen) -> Result<u8, Failure> {
    let read = match &which.expect {
        Some(wanted) => sessions::read_expect(base, wanted),
        None => sessions::read(base),
    };
    state(&read.map_err(failed)?, base, which.json, screen)
}

pub fn state(session: &Session, base: &Path, as_json: bool, screen: &mut Screen) -> Result<u8, Failure> {
    let checked = sessions::check(base).map_err(|error| Failure::system("cannot check the session", &error))?;
    let activity = sessions::activity(base);
    if as_json {
        let body = json!({
            "dir": base,
            "state": serde_json::from_str::<Value>(&session.render()).unwrap_or_default(),
            "activity": activity,
            "heartbeat_age_ms": age_ms(&checked),
        });
        json::print(screen, "swarm.session/1", &body)?;
        return Ok(0);
    }
    let now = activity.unwrap_or_default();
    let text = |key: &str| session.text(key).unwrap_or_else(|| "-".to_owned());
    let ago = |at_ms: Option<i64>| at_ms.filter(|at_ms| *at_ms > 0).map_or_else(|| "never".to_owned(), since);
    for (label, value) in [
        ("Issue", text("issueIdentifier")),
        ("Status", text("status")),
        ("Phase", text("currentPhase")),
        ("Work type", text("workType")),
        ("Provider", text("providerName")),
        ("Conversation", text("providerSessionId")),
        ("Attempt", (session.recoveries() + 1).to_string()),
        ("Started", ago(session.integer("startedAt"))),
        ("Updated", ago(session.integer("lastUpdatedAt"))),
        ("Last beat", ago(checked.beat_ms.or(session.integer("lastHeartbeat")))),
        ("Process", session.integer("pid").map_or_else(|| "-".to_owned(), |pid| pid.to_string())),
        ("Operation", now.operation.unwrap_or_else(|| "-".to_owned())),
        ("Waiting for", now.waiting.unwrap_or_else(|| "-".to_owned())),
        ("Error", text("errorMessage")),
        ("Task", text("prompt")),
    ] {
        if !(matches!(label, "Operation" | "Waiting for" | "Error") && value == "-") {
            screen.line(&format!("{:<14}{}", format!("{label}:"), escape(value.trim_end())))?;
        }
    }
    Ok(0)
}

fn since(at_ms: i64) -> String {
    let now = i64::try_from(wall_ms()).unwrap_or(i64::MAX);
    if at_ms > now {
        return "in the future".to_owned();
    }
    format!("{} ago", words(now.abs_diff(at_ms) / 1000))
}

fn age_ms(checked: &Checked) -> Option<i64> {
    checked.beat_ms.map(|beat_ms| i64::try_from(wall_ms()).unwrap_or(i64::MAX).saturating_sub(beat_ms))
}

pub fn check(args: &CheckArgs, base: &Path, screen: &mut Screen) -> Result<u8, Failure> {
    let mut checked = sessions::check(base).map_err(|error| Failure::system("cannot check the session", &error))?;
    if let Some(max) = args.max_attempts {
        checked.attempts_max = i64::from(max);
    }
    let answer = decide(&checked.facts(args.which.expect.as_deref()));
    let session = checked.state.as_ref();
    let attempts = session.map(Session::recoveries);
    if args.which.json {
        let body = json!({
            "dir": base,
            "decision": answer.word(),
            "identifier": session.and_then(Session::identifier),
            "attempts": attempts,
            "max_attempts": checked.attempts_max,
            "heartbeat_age_ms": age_ms(&checked),
            "malformed": checked.malformed,
        });
        json::print(screen, "swarm.session.check/1", &body)?;
    } else {
        screen.line(&format!("{}: {}", answer.word(), escape(&sentence(&answer, &checked))))?;
    }
    Ok(u8::from(!matches!(answer, Recovery::Recoverable { .. })))
}

fn sentence(answer: &Recovery, checked: &Checked) -> String {
    match answer {
        Recovery::NoState => checked.malformed.clone().unwrap_or_else(|| "no session".to_owned()),
        Recovery::InvalidState => "state.json has no issueId".to_owned(),
        Recovery::IdentifierMismatch { found } => format!("the session belongs to '{found}'"),
        Recovery::AgentAlive => "an agent is running".to_owned(),
        Recovery::Finished { .. } => "the work is finished".to_owned(),
        Recovery::MaxAttempts { attempts } => {
            format!("resumed {attempts} times (limit {})", checked.attempts_max)
        }
        Recovery::Recoverable { attempts } => {
            format!("resumed {attempts} times (limit {})", checked.attempts_max)
        }
    }
}
