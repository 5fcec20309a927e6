//! Routes of the API that carry out a request: where each is sent, and what answers it. On the
//! wire every reply is a stream of [`Answer`] lines.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{
    Answer, CleanRequest, FlowLine, FlowRequest, KillRequest, LoopLine, LoopRequest, MergeLine, MergeRequest,
    NudgeLine, NudgeRequest, RecoverRequest, Refusal, RespawnRequest, RunLine, RunRequest, SpawnRequest, Spawned,
    WorkerLine,
};

/// Body of a `POST`.
pub trait Route: Serialize + DeserializeOwned {
    const PATH: &'static str;
    /// What this route answers besides warnings and refusals.
    type Answer;

    /// The answer in a line of the wire. `None` if the line has none of this route.
    fn answer(line: Answer) -> Option<Self::Answer>;
}

/// What a caller is told by one line of a reply.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply<T> {
    Answer(T),
    /// For stderr, while the request is carried out.
    Warning(String),
    /// Refused or failed; nothing (more) was done for the name in it.
    Refused(Refusal),
}

impl<T> Reply<T> {
    /// Reads one line. `None` for a line that only concerns the connection.
    pub fn of<R: Route<Answer = T>>(line: Answer) -> Option<Self> {
        match line {
            Answer::Warning(text) => Some(Self::Warning(text)),
            Answer::Refused(refusal) => Some(Self::Refused(refusal)),
            line => R::answer(line).map(Self::Answer),
        }
    }
}

/// A loop was changed, or its first worker runs.
#[derive(Clone, Debug, PartialEq)]
pub enum LoopAnswer {
    Line(LoopLine),
    Spawned(Spawned),
}

macro_rules! routes {
    ($($request:ty, $path:literal, $answer:ty: $($line:pat => $value:expr),+;)+) => {$(
        impl Route for $request {
            const PATH: &'static str = $path;
            type Answer = $answer;

            fn answer(line: Answer) -> Option<$answer> {
                match line {
                    $($line => Some($value),)+
                    _ => None,
                }
            }
        }
    )+};
}

routes! {
    SpawnRequest, "/v1/workers", Spawned: Answer::Spawned(spawned) => spawned;
    RespawnRequest, "/v1/respawn", Spawned: Answer::Spawned(spawned) => spawned;
    RecoverRequest, "/v1/recover", Spawned: Answer::Spawned(spawned) => spawned;
    KillRequest, "/v1/kill", WorkerLine: Answer::Worker(line) => line;
    CleanRequest, "/v1/clean", WorkerLine: Answer::Worker(line) => line;
    MergeRequest, "/v1/merge", MergeLine: Answer::Merge(line) => line;
    RunRequest, "/v1/run", RunLine: Answer::Run(line) => line;
    LoopRequest, "/v1/loop", LoopAnswer:
        Answer::Loop(line) => LoopAnswer::Line(line), Answer::Spawned(spawned) => LoopAnswer::Spawned(spawned);
    FlowRequest, "/v1/flow", FlowLine: Answer::Flow(line) => line;
    NudgeRequest, "/v1/nudges", NudgeLine: Answer::Nudge(line) => line;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RefusalKind;

    #[test]
    fn a_route_takes_its_own_answers_and_those_that_every_route_gives() {
        let line = WorkerLine { name: "a".to_owned(), done: "killed".to_owned(), notes: Vec::new() };
        let refusal = Refusal::new(RefusalKind::NotFound, "gone");
        assert_eq!(Reply::of::<KillRequest>(Answer::Worker(line.clone())), Some(Reply::Answer(line.clone())));
        assert_eq!(Reply::of::<KillRequest>(Answer::Warning("w".to_owned())), Some(Reply::Warning("w".to_owned())));
        assert_eq!(Reply::of::<KillRequest>(Answer::Refused(refusal.clone())), Some(Reply::Refused(refusal)));
        assert_eq!(Reply::of::<SpawnRequest>(Answer::Worker(line)), None);
        assert_eq!(Reply::of::<SpawnRequest>(Answer::Accepted), None);
        assert_eq!(Reply::of::<SpawnRequest>(Answer::Done), None);
    }
}
