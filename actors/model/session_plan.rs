//! Settings of a session, fixed before it starts.

use std::path::Path;

use serde::{Deserialize, Serialize};

/// Name of the folder that holds a session's files.
pub const SESSION_FOLDER: &str = ".agent";
/// Files that sessions have in their folder; `*` stands for any text. A repository may track other files there.
pub const SESSION_FILES: [&str; 13] = [
    "state.json",
    "state.json.malformed",
    "state.json.malformed.*",
    "state.lock",
    "heartbeat.json",
    "progress.log",
    "progress.log.old",
    "todos.json",
    "preserved.json",
    "recovery.md",
    "activity.json",
    "verification.log",
    ".*.tmp-*",
];

/// Reports whether a file with this name in the folder belongs to a session.
pub fn is_session_file(name: &str) -> bool {
    SESSION_FILES.iter().any(|pattern| matches(pattern, name))
}

fn matches(pattern: &str, name: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(tail) = name.strip_prefix(head) else { return false };
    let ends = tail.char_indices().map(|(at, _)| at).chain([tail.len()]);
    ends.into_iter().any(|at| matches(rest, &tail[at..]))
}

/// Session options of a start (`--issue`, `--work-type`, `--prompt`, `--session-dir`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionRules {
    /// Directory that contains `.agent`. `None`: the worktree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dir: Option<String>,
    /// Identifier of the issue. `None`: the worker's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub issue: Option<String>,
    /// Kind of work, one of [`WORK_TYPES`]. `None`: `development`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub work_type: Option<String>,
    /// Prompt of the agent. `None`: the words of the command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// Agent program, if the command does not show it. `None`: the command's program, if it is a known agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
}

/// When a worker counts as stuck, and the text that is then typed into its window (`--stuck-after`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchRules {
    /// Milliseconds without a sign of life.
    pub after_ms: u64,
    pub message: String,
}

/// Session of one start, with all defaults filled in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionPlan {
    /// Directory that contains `.agent`.
    pub dir: String,
    /// Identifier of the issue, or the worker's name.
    pub identifier: String,
    pub work_type: String,
    pub prompt: String,
    pub provider: Option<String>,
}

impl SessionPlan {
    /// Returns the path of the session's `.agent` folder.
    pub fn folder(&self) -> String {
        Path::new(&self.dir).join(SESSION_FOLDER).display().to_string()
    }
}

impl super::Spec {
    /// Returns the session of this start. `None` if the start has neither a session directory nor a worktree, or is a job:
    /// nobody here sees its processes.
    pub fn session(&self) -> Option<SessionPlan> {
        if self.contract.job.is_some() {
            return None;
        }
        let (rules, argv) = (&self.contract.session, &self.contract.argv);
        let dir = rules.dir.clone().or_else(|| self.worktree.as_ref().map(|worktree| worktree.path.clone()))?;
        let program = argv.first().and_then(|program| program.rsplit('/').next()).unwrap_or_default();
        let known = PROVIDERS.contains(&program).then(|| program.to_owned());
        Some(SessionPlan {
            dir,
            identifier: rules.issue.clone().unwrap_or_else(|| self.name.clone()),
            work_type: rules.work_type.clone().unwrap_or_else(|| DEVELOPMENT.to_owned()),
            prompt: rules.prompt.clone().unwrap_or_else(|| argv.join(" ")),
            provider: rules.provider.clone().filter(|name| PROVIDERS.contains(&name.as_str())).or(known),
        })
    }

    /// Reports whether the command is an agent whose screens are known.
    pub fn is_agent(&self) -> bool {
        let program = self.contract.argv.first().and_then(|program| program.rsplit('/').next());
        program.is_some_and(|program| AGENTS.contains(&program))
    }

    /// Returns the id of the launch: its token as a UUID.
    pub fn session_id(&self) -> String {
        launch_id(&self.token)
    }
}

/// Default kind of work.
const DEVELOPMENT: &str = "development";
/// Agents that all readers of a session know by these names.
const PROVIDERS: [&str; 3] = ["claude", "codex", "amp"];
/// Agents whose screens are known. Some are no providers of a session: its other readers do not know them.
const AGENTS: [&str; 7] = ["claude", "codex", "amp", "gemini", "qwen", "opencode", "aider"];
/// Kinds of work, each with the suffix of its task list id.
pub const WORK_TYPES: [(&str, &str); 18] = [
    ("research", "RES"),
    ("backlog-creation", "BC"),
    ("backlog-groomer", "BG"),
    ("development", "DEV"),
    ("inflight", "INF"),
    ("qa", "QA"),
    ("acceptance", "AC"),
    ("refinement", "REF"),
    ("refinement-coordination", "REF-COORD"),
    ("merge", "MRG"),
    ("security", "SEC"),
    ("outcome-auditor", "OA"),
    ("improvement-loop", "IMP"),
    ("ga-readiness", "GA"),
    ("documentation-steward", "DS"),
    ("operational-scanner-vercel", "OSV"),
    ("operational-scanner-audit", "OSA"),
    ("operational-scanner-ci", "OSC"),
];

/// Returns the id of the launch with this token: 128 bits in hex become a UUID, any other text is unchanged.
pub fn launch_id(token: &str) -> String {
    if token.len() != 32 || !token.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return token.to_owned();
    }
    let (a, b, c, d, e) = (&token[..8], &token[8..12], &token[13..16], &token[17..20], &token[20..]);
    // Set version 4 and its variant, as in random UUIDs.
    format!("{a}-{b}-4{c}-a{d}-{e}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_sessions_are_told_from_others_in_the_folder() {
        let own =
            ["state.json", "state.json.malformed", "state.json.malformed.2", ".state.json.tmp-12-é", "recovery.md"];
        assert!(own.into_iter().all(is_session_file));
        let others = ["rules.md", "state.json.bak", "my-state.json", "tmp-1", "é.tmp-1", "recovery.md.old", ""];
        assert!(!others.into_iter().any(is_session_file));
    }
}
