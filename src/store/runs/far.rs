//! What a run and another host tell each other about an attempt there: calls, each with one answer. Every call may be
//! repeated, and then finds what the first one did.

use serde::{Deserialize, Serialize};
use swarm_agents::Session;
use swarm_model::{ExitRecord, SessionRules};

use super::order::{AttemptResult, Order};

/// Clone of a repository on a host. Each controller has clones of its own, so that no names collide.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FarClone {
    /// Id of the state directory of the controller: lowercase hex digits.
    pub controller: String,
    /// Digest of the path of the repository there: lowercase hex digits.
    pub repository: String,
}

/// Attempt of a job on a host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FarAttempt {
    pub clone: FarClone,
    /// Id of the run.
    pub run: String,
    /// Id of the job.
    pub job: String,
    pub attempt: u32,
    /// Name of its worker on the host.
    pub worker: String,
    /// Id of the state directory there to which it was sent. `None` if that is not known yet. Another one refuses it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
}

/// Person in whose name agents commit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Committer {
    pub name: String,
    pub email: String,
}

/// An attempt that is to be started.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FarStart {
    pub at: FarAttempt,
    /// Branch of the work, and the commit with which it begins.
    pub branch: String,
    pub tip: String,
    /// Base branch, and its commit here.
    pub base: String,
    pub base_commit: String,
    /// Name of the directory of the worktree.
    pub leaf: String,
    /// Who commits, if git on the host does not know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub committer: Option<Committer>,
    /// Order of the attempt. Its paths are those of the controller, and are replaced.
    pub order: Order,
    pub prompt: String,
    pub session: SessionRules,
    /// Tags of the worker.
    pub tags: Vec<String>,
    /// Time limit in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    pub log_limit_bytes: u64,
}

/// Call of a controller.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FarCall {
    /// Makes the clone, unless it is there. `format` is `sha1` or `sha256`.
    Clone { clone: FarClone, format: String },
    /// Starts the attempt, or finds the worker that it has started. Base and tip are in the clone.
    Start(Box<FarStart>),
    /// Answers once the attempt has ended, and its work is committed and pinned. `subject` is that of the commit for what
    /// is uncommitted.
    End {
        at: FarAttempt,
        base: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        subject: Option<String>,
    },
    /// Ends the attempt.
    Stop(FarAttempt),
    /// Removes worker, worktree, branch and files of all attempts of the job. Their work is not needed any more.
    Forget(FarAttempt),
}

/// Answer of a host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FarAnswer {
    /// `Clone`, `Stop` and `Forget` are done.
    Done,
    Started {
        generation: u64,
        /// Id of the state directory there.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        host: Option<String>,
    },
    Ended(Box<FarResult>),
    /// The host has no room now. Nothing was done.
    Busy(String),
    /// The host cannot do it, for this reason. Nothing was done.
    Refused(String),
    /// It is not known whether it was done; ask again.
    Unknown(String),
}

/// End of an attempt on a host, and the evidence that it left there.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FarResult {
    /// `None` if the end of the worker is unknown.
    pub exit: Option<ExitRecord>,
    /// Result of the attempt by itself.
    pub result: Option<AttemptResult>,
    /// Conversation of the agent.
    pub session: Option<Session>,
    /// Last lines of the standard error of the worker.
    #[serde(default)]
    pub stderr: String,
    /// Last part of the log of the agent.
    #[serde(default)]
    pub log: String,
    /// Last part of the recorded lines of the agent.
    #[serde(default)]
    pub stream: String,
    /// Commit with the work. `None` if the worktree is gone, or cannot be read.
    pub tip: Option<String>,
    /// Uncommitted paths that `tip` does not contain.
    #[serde(default)]
    pub left_out: Vec<String>,
    /// Why uncommitted work is not in `tip`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_and_answers_have_a_fixed_form() {
        let clone = FarClone { controller: "c0".into(), repository: "d0".into() };
        let at = FarAttempt {
            clone: clone.clone(),
            run: "r".into(),
            job: "a".into(),
            attempt: 2,
            worker: "p.a".into(),
            host: None,
        };
        let at_text =
            r#"{"clone":{"controller":"c0","repository":"d0"},"run":"r","job":"a","attempt":2,"worker":"p.a"}"#;
        let text = |call: &FarCall| serde_json::to_string(call).expect("JSON");
        let clone_text = r#"{"clone":{"clone":{"controller":"c0","repository":"d0"},"format":"sha1"}}"#;
        assert_eq!(text(&FarCall::Clone { clone, format: "sha1".into() }), clone_text);
        assert_eq!(text(&FarCall::Stop(at.clone())), format!(r#"{{"stop":{at_text}}}"#));
        let end = FarCall::End { at, base: "main".into(), subject: None };
        assert_eq!(text(&end), format!(r#"{{"end":{{"at":{at_text},"base":"main"}}}}"#));
        for (answer, text) in [
            (FarAnswer::Done, r#""done""#),
            (FarAnswer::Started { generation: 3, host: None }, r#"{"started":{"generation":3}}"#),
            (FarAnswer::Busy("full".into()), r#"{"busy":"full"}"#),
            (FarAnswer::Unknown("cut".into()), r#"{"unknown":"cut"}"#),
        ] {
            assert_eq!(serde_json::to_string(&answer).expect("JSON"), text);
        }
    }
}
