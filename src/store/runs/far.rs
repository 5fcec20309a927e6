//! What a run and another host tell each other about an attempt there: calls, each with one answer. Every call may be
//! repeated, and then finds what the first one did.

use std::collections::BTreeMap;
use std::fmt;

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

/// Ignored file that the worktree of an attempt gets.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FarFile {
    /// Path from the root of the worktree.
    pub path: String,
    /// Permissions.
    pub mode: u32,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub text: String,
    /// Content that is not text.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bytes: Vec<u8>,
}

impl FarFile {
    pub fn new(path: String, mode: u32, content: Vec<u8>) -> Self {
        let file = Self { path, mode, ..Self::default() };
        match String::from_utf8(content) {
            Ok(text) => Self { text, ..file },
            Err(error) => Self { bytes: error.into_bytes(), ..file },
        }
    }

    /// Returns the content.
    pub fn content(&self) -> &[u8] {
        if self.bytes.is_empty() { self.text.as_bytes() } else { &self.bytes }
    }
}

impl fmt::Debug for FarFile {
    /// Without the content, which may be secret.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} ({} bytes)", self.path, self.content().len())
    }
}

/// Worktree in which an attempt works.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FarTree {
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
    /// Ignored files for the worktree.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub include: Vec<FarFile>,
}

/// Message of a person to the agent of an attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FarText {
    /// Digits, in the order of which messages are delivered.
    pub name: String,
    pub text: String,
}

/// What an attempt executes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FarWork {
    /// An agent. The paths of its order are those of the controller, and are replaced.
    Agent {
        order: Box<Order>,
        prompt: String,
    },
    Command(FarCommand),
}

/// Command of a file of jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FarCommand {
    pub argv: Vec<String>,
    /// Variables that the file sets.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Directory in which it is executed, relative to an empty one. Empty: that one, or the worktree.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub dir: String,
}

/// An attempt that is to be started.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FarStart {
    pub at: FarAttempt,
    /// `None`: it works in an empty directory of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tree: Option<FarTree>,
    pub work: FarWork,
    pub session: SessionRules,
    /// Tags of the worker.
    pub tags: Vec<String>,
    /// Time limit in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    pub log_limit_bytes: u64,
    /// Messages that the agent gets at its first turn.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<FarText>,
}

/// Call of a controller.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FarCall {
    /// Makes the clone, unless it is there. `format` is `sha1` or `sha256`.
    Clone { clone: FarClone, format: String },
    /// Answers `Done`.
    Hail {},
    /// Starts the attempt, or finds the worker that it has started. Base and tip are in the clone.
    Start(Box<FarStart>),
    /// Answers once the attempt has ended, and its work is committed and pinned. `subject` is that of the commit for what
    /// is uncommitted. `base` is empty if it has no worktree.
    End {
        at: FarAttempt,
        #[serde(default, skip_serializing_if = "String::is_empty")]
        base: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        subject: Option<String>,
    },
    /// Ends the attempt.
    Stop(FarAttempt),
    /// Keeps a commit of the attempt for good, because it cannot be fetched.
    Withhold { at: FarAttempt, commit: String },
    /// Removes worker, worktree, branch and files of all attempts of the job. Their work is not needed any more.
    Forget(FarAttempt),
}

/// Answer of a host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FarAnswer {
    /// `Clone`, `Hail`, `Stop`, `Withhold` and `Forget` are done.
    Done,
    Started {
        generation: u64,
        /// Id of the state directory there.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        host: Option<String>,
        /// Load there, in halves per processor.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        load: Option<u32>,
    },
    Ended(Box<FarResult>),
    /// The host has no room now. Nothing was done.
    Busy(String),
    /// The host cannot do it, for this reason. Nothing was done.
    Refused(String),
    /// The host cannot start this attempt. Nothing was done. It may start others, unless they need the same program.
    Unfit {
        /// Program that is missing. `None`: something else is in the way.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        program: Option<String>,
        cause: String,
    },
    /// The clone, or a commit of the attempt, is not there.
    Gone(String),
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
    /// Last part of the standard error of the worker.
    #[serde(default)]
    pub stderr: String,
    /// Last part of the output of a command.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub stdout: String,
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
    /// Whether the machine was restarted during the attempt, which ended it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_restarted: bool,
    /// Commit with what the worktree has in that case: its files, and what is checked out or being merged there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub also: Option<String>,
    /// Commits that it has made on the base branch there, and that neither of these contains.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub strays: Vec<String>,
    /// Ignored files that it has made in the worktree. They go with it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ignored: Vec<String>,
    /// Names of the messages that the agent has got.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub delivered: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_arrive_as_they_are_and_are_not_shown() {
        for content in [b"SECRET=1\n".as_slice(), b"", b"\xff\0"] {
            let file = FarFile::new("a/.env".into(), 0o600, content.to_vec());
            let text = serde_json::to_string(&file).expect("JSON");
            let came: FarFile = serde_json::from_str(&text).expect("a file");
            assert_eq!((came.content(), &came), (content, &file));
            assert_eq!(format!("{file:?}"), format!("a/.env ({} bytes)", content.len()));
        }
    }

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
            (FarAnswer::Started { generation: 3, host: None, load: None }, r#"{"started":{"generation":3}}"#),
            (FarAnswer::Busy("full".into()), r#"{"busy":"full"}"#),
            (FarAnswer::Unfit { program: None, cause: "x".into() }, r#"{"unfit":{"cause":"x"}}"#),
            (FarAnswer::Gone("x".into()), r#"{"gone":"x"}"#),
            (FarAnswer::Unknown("cut".into()), r#"{"unknown":"cut"}"#),
        ] {
            assert_eq!(serde_json::to_string(&answer).expect("JSON"), text);
        }
    }
}
