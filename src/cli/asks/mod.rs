//! Requests of agents to people: the verbs that list and answer them, and rules that answer in advance.

pub mod args;
mod ask;
mod flows;
mod list;
mod respond;
mod rules;
mod which;

pub use self::ask::run as ask;
pub use self::list::run as list;
pub use self::respond::{answer, approve, deny};
pub use self::rules::run as rules;

use serde_json::{Value, json};
use swarm_model::asks::{AskRecord, AskWish, Verdict};
use swarm_model::{Refusal, RefusalKind};

use super::error::Failure;

/// Schema of everything that lists requests.
const SCHEMA: &str = "swarm.approvals/1";

/// Returns a failure with the remedy.
fn refused(kind: RefusalKind, cause: impl Into<String>, remedy: impl Into<String>) -> Failure {
    Refusal::new(kind, cause).remedy(remedy).into()
}

fn unreadable(error: &std::io::Error) -> Failure {
    Failure::system("cannot read the requests", error)
}

/// Returns a request as JSON.
fn json_of(record: &AskRecord) -> Value {
    let AskRecord { ask, answer, over, .. } = record;
    let questions = match &ask.wish {
        AskWish::Question { questions } => questions.as_slice(),
        _ => &[],
    };
    let questions: Vec<Value> = questions
        .iter()
        .map(|one| json!({"id": one.id, "text": one.text, "options": one.options, "several": one.several}))
        .collect();
    let answer = answer.as_ref().map(|answer| {
        let (reason, answers) = match &answer.verdict {
            Verdict::Allow { .. } => (None, Vec::new()),
            Verdict::Deny { reason } => (Some(reason), Vec::new()),
            Verdict::Answer { answers } => (None, answers.iter().map(|(_, text)| text).collect()),
        };
        json!({
            "verdict": answer.verdict.word(), "reason": reason, "answers": answers, "by": answer.by,
            "at_ms": answer.at_ms,
        })
    });
    json!({
        "id": ask.number.to_string(), "state": record.state().word(), "kind": ask.kind().word(),
        "worker": ask.who.worker, "run": ask.who.run, "workstream": ask.who.job, "agent": ask.who.agent, "flow": null,
        "node": null, "tool": ask.tool, "text": ask.text(), "questions": questions, "cwd": ask.cwd,
        "waits": ask.waits, "digest": ask.digest, "asked_at_ms": ask.asked_at_ms,
        "expires_at_ms": ask.expires_at_ms, "answer": answer,
        "over": over.as_ref().map(|over| json!({"why": over.why, "at_ms": over.at_ms})),
        "command": list::command(record),
    })
}
