//! `swarm session update`: changes of single keys, safe beside concurrent writers.

use std::path::Path;

use serde_json::value::{RawValue, to_raw_value};
use swarm_model::{Refusal, RefusalKind, Session, session_fault};

use super::args::Which;
use super::{failed, show};
use crate::cli::error::Failure;
use crate::cli::screen::Screen;
use swarm_store::sessions::{self, Change, StoreError};

/// Keys that identify the session and its writer, and cannot be changed by hand.
const OURS: [&str; 8] = [
    "issueId",
    "issueIdentifier",
    "sessionId",
    "linearSessionId",
    "startedAt",
    "attemptCount",
    "recoveryAttempts",
    "swarm",
];

#[derive(Debug)]
enum Edit {
    Text(String),
    Json(Box<RawValue>),
    Remove,
}

pub fn update(changes: &[String], which: &Which, base: &Path, screen: &mut Screen) -> Result<u8, Failure> {
    let edits = changes.iter().map(|change| parse(change)).collect::<Result<Vec<_>, _>>()?;
    // A malformed state is an error here: an update must not replace it silently.
    if let Err(error @ StoreError::Malformed { .. }) = sessions::read(base) {
        return Err(failed(error));
    }
    let changed = sessions::update::<_, Failed>(base, |session| {
        if let (Some(wanted), Some(found)) = (&which.expect, session.identifier())
            && found != *wanted
        {
            return Err(Failed(mismatch(base, &found, wanted)));
        }
        for (key, edit) in &edits {
            apply(session, key, edit);
        }
        Ok(Change::Write(()))
    });
    let (session, ()) = changed.map_err(|Failed(failure)| failure)?;
    show::state(&session, base, which.json, screen)
}

struct Failed(Failure);

impl From<StoreError> for Failed {
    fn from(error: StoreError) -> Self {
        Self(failed(error))
    }
}

fn mismatch(base: &Path, found: &str, wanted: &str) -> Failure {
    let cause = format!("the session in {} belongs to '{found}', not to '{wanted}'", base.display());
    Failure::new(RefusalKind::Exists, cause)
}

fn apply(session: &mut Session, key: &str, edit: &Edit) {
    match edit {
        Edit::Text(text) => session.set(key, text),
        Edit::Json(value) => session.set_raw(key, value.clone()),
        Edit::Remove => session.remove(key),
    }
}

fn parse(change: &str) -> Result<(String, Edit), Refusal> {
    let invalid = |cause: String| Refusal::new(RefusalKind::Invalid, cause);
    let (key, edit) = match (change.split_once(":="), change.split_once('='), change.strip_suffix(":-")) {
        (Some((key, json)), Some((before, _)), _) if key.len() < before.len() => {
            let value = RawValue::from_string(json.to_owned())
                .map_err(|error| invalid(format!("invalid JSON after '{key}:=': {error}")))?;
            (key, Edit::Json(value))
        }
        (_, Some((key, text)), _) => (key, Edit::Text(text.to_owned())),
        (_, None, Some(key)) => (key, Edit::Remove),
        _ => {
            let refusal = invalid(format!("invalid change '{change}'"));
            return Err(refusal.remedy("use KEY=TEXT, KEY:=JSON, or KEY:- to remove a key"));
        }
    };
    if key.is_empty() || key.contains(char::is_control) {
        return Err(invalid(format!("invalid change '{change}': empty or invalid key")));
    }
    if OURS.iter().any(|ours| ours.eq_ignore_ascii_case(key)) {
        let refusal = invalid(format!("'{key}' identifies the session and cannot be changed"));
        return Err(refusal.remedy("run 'swarm session write' to replace the whole state"));
    }
    let fault = match &edit {
        Edit::Json(value) => session_fault(key, value),
        Edit::Text(text) => session_fault(key, &to_raw_value(text).expect("text is JSON")),
        Edit::Remove => None,
    };
    if let Some(fault) = fault {
        return Err(invalid(fault).remedy(format!("use {key}=TEXT for text, or {key}:=NUMBER for a number")));
    }
    Ok((key.to_owned(), edit))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edit(change: &str) -> String {
        format!("{:?}", parse(change).expect("parses"))
    }

    #[test]
    fn changes_are_texts_json_or_removals() {
        assert_eq!(edit("currentPhase=a:=b"), r#"("currentPhase", Text("a:=b"))"#);
        assert_eq!(edit("x:=[1, 2]"), r#"("x", Json(RawValue([1, 2])))"#);
        assert_eq!(edit("x="), r#"("x", Text(""))"#);
        assert_eq!(edit("errorMessage:-"), r#"("errorMessage", Remove)"#);
        assert_eq!(edit("pid:=null"), r#"("pid", Json(RawValue(null)))"#);
    }

    #[test]
    fn invalid_changes_are_refused() {
        for (change, cause) in [
            ("word", "invalid change 'word'"),
            ("=x", "empty or invalid key"),
            ("x:={", "invalid JSON after 'x:='"),
            ("pid=7", "'pid' must be a whole number"),
            ("lastHeartbeat:=1.5", "must be a whole number"),
            ("prompt:=3", "'prompt' must be a string"),
            ("status=nonsense", "'status' must be one of initializing, running"),
            ("status:=5", "'status' must be one of"),
            ("workType=zzz", "'workType' must be one of"),
            ("currentPhase:={}", "'currentPhase' must be a string"),
            ("sessionId=x", "identifies the session"),
            ("STARTEDAT:=1", "identifies the session"),
        ] {
            let refusal = parse(change).expect_err("was taken");
            assert!(refusal.cause.contains(cause), "{change}: {}", refusal.cause);
        }
    }
}
