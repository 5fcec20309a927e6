//! What is known of a session before it begins.

use std::path::Path;

use serde::{Deserialize, Serialize};

/// The folder of a session, in its directory.
pub const SESSION_FOLDER: &str = ".agent";

/// What was asked about a session (`--issue`, `--work-type`, `--prompt`, `--session-dir`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionRules {
    /// The directory whose `.agent` it is; the worktree by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dir: Option<String>,
    /// The worker's name by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub issue: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub work_type: Option<String>,
    /// The words of the command by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// The program that is at work, where the command does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
}

/// When a worker counts as stuck, and what is said to it (`--stuck-after`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchRules {
    /// Without a word for so long, in milliseconds.
    pub after_ms: u64,
    pub message: String,
}

/// What is known of a session before it begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionPlan {
    pub dir: String,
    pub identifier: String,
    pub work_type: String,
    pub prompt: String,
    pub provider: Option<String>,
}

impl SessionPlan {
    /// The folder that its files are in.
    pub fn folder(&self) -> String {
        Path::new(&self.dir).join(SESSION_FOLDER).display().to_string()
    }
}

impl super::Spec {
    /// The session that this start works on; none without a place for one.
    pub fn session(&self) -> Option<SessionPlan> {
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

    /// Whether it is an agent whose screens are known.
    pub fn is_agent(&self) -> bool {
        let program = self.contract.argv.first().and_then(|program| program.rsplit('/').next());
        program.is_some_and(|program| PROVIDERS.contains(&program))
    }

    /// The name of the launch: its token as a UUID.
    pub fn session_id(&self) -> String {
        launch_id(&self.token)
    }
}

/// The work that is meant where nothing was said.
const DEVELOPMENT: &str = "development";
/// Programs that both readers know by these names.
const PROVIDERS: [&str; 3] = ["claude", "codex", "amp"];
/// Kinds of work and what the task list of one is called after.
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

/// The name of the launch with this token: 128 bits in hex as a UUID; any other text as it is.
pub fn launch_id(token: &str) -> String {
    if token.len() != 32 || !token.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return token.to_owned();
    }
    let (a, b, c, d, e) = (&token[..8], &token[8..12], &token[13..16], &token[17..20], &token[20..]);
    // Of version 4 and its variant, as random ones are.
    format!("{a}-{b}-4{c}-a{d}-{e}")
}
