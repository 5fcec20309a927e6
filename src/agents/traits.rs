//! Traits of each adapter, as data: what its program offers, and how it is used.

use serde::Serialize;

use super::Kind;

/// Capabilities that the front matter of a spec may require.
pub const CAPABILITIES: [&str; 8] = [
    "file_read",
    "file_write",
    "file_search",
    "bash_execute",
    "web_search",
    "web_fetch",
    "code_analysis",
    "git_operations",
];

/// What an adapter knows of its agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Traits {
    pub name: &'static str,
    /// Program that is looked up on `PATH`. `None` if the agent is part of swarm, or a command of the user.
    pub program: Option<&'static str>,
    /// Version with which the adapter was tested.
    pub tested: Option<&'static str>,
    pub output: Output,
    pub session: Conversations,
    pub asks: Asks,
    pub totals: Totals,
    /// Whether the agent reports the price of its work.
    pub price: bool,
    /// Whether the program accepts a JSON schema for its result.
    pub schema: bool,
    /// Whether the program accepts MCP servers for a single start.
    pub mcp: bool,
    /// Whether the program accepts messages while it works.
    pub mail: bool,
    /// Variables that select the account: its directory, or its key.
    pub accounts: &'static [&'static str],
    /// Capabilities, unless the configuration has others.
    pub capabilities: &'static [&'static str],
    /// What `swarm run` adds so that the agent asks for no permission.
    pub unattended: &'static str,
    /// What is missing in versions before the named one.
    #[serde(skip)]
    pub losses: &'static [Loss],
}

/// How a program says whether it is logged in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Login {
    /// Words after the program. The exit code is 0 if it is logged in. Nothing is asked of the provider.
    pub status: &'static [&'static str],
    /// Command by which a person logs in.
    pub remedy: &'static str,
}

impl Traits {
    /// Returns how the program says whether it is logged in; `None` if it does not.
    pub fn login(&self) -> Option<Login> {
        match self.name {
            "claude" => Some(Login { status: &["auth", "status"], remedy: "claude auth login" }),
            "codex" => Some(Login { status: &["login", "status"], remedy: "codex login" }),
            _ => None,
        }
    }
}

/// Format of an agent's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Output {
    /// JSON events, one per line.
    Lines,
    /// Text for people.
    Text,
    /// JSON messages in both directions, one per line.
    Dialogue,
}

/// How a conversation is named, to continue it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Conversations {
    /// The caller chooses the id.
    Pinned,
    /// The agent reports the id.
    Learned,
    /// Conversations are not continued.
    None,
}

/// How the program can ask a person while it runs without a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Asks {
    /// It ends at the question, and continues there later.
    Defer,
    /// It waits for the answer in a protocol of its own.
    Dialogue,
    /// A hook may refuse or stop the turn.
    Hook,
    Never,
}

/// Period for which an agent reports its usage of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Totals {
    /// The conversation so far, with its earlier turns.
    Conversation,
    /// One start of the program.
    Run,
    /// One request to the provider.
    Step,
    /// Usage is not reported.
    None,
}

/// Feature that versions before `since` do not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    pub since: &'static str,
    pub what: &'static str,
}

/// First version of `claude` whose hooks can defer the use of a tool.
pub const CLAUDE_DEFERS: &str = "2.1.89";

const EDITS_AND_SHELL: &[&str] =
    &["file_read", "file_write", "file_search", "bash_execute", "web_search", "code_analysis", "git_operations"];

/// Traits of all adapters, in the order in which they are listed.
pub const ALL: [Traits; 11] = [
    Traits {
        name: "claude",
        program: Some("claude"),
        tested: Some("2.1.328"),
        output: Output::Lines,
        session: Conversations::Pinned,
        asks: Asks::Defer,
        totals: Totals::Conversation,
        price: true,
        schema: true,
        mcp: true,
        mail: true,
        accounts: &["CLAUDE_CONFIG_DIR", "ANTHROPIC_API_KEY", "CLAUDE_CODE_OAUTH_TOKEN"],
        capabilities: &CAPABILITIES,
        unattended: "--permission-mode acceptEdits --allowedTools Bash(*)",
        losses: &[
            Loss { since: CLAUDE_DEFERS, what: "hooks cannot defer a tool use" },
            Loss { since: "2.1.234", what: "in a window, it does not wait for the end of a limit by itself" },
        ],
    },
    Traits {
        name: "codex",
        program: Some("codex"),
        tested: Some("0.169.0"),
        output: Output::Lines,
        session: Conversations::Learned,
        asks: Asks::Dialogue,
        totals: Totals::Conversation,
        price: false,
        schema: true,
        mcp: true,
        mail: true,
        accounts: &["CODEX_HOME"],
        capabilities: EDITS_AND_SHELL,
        unattended: "-c sandbox_mode=\"workspace-write\"",
        losses: &[],
    },
    Traits {
        name: "gemini",
        program: Some("gemini"),
        tested: Some("0.61.0"),
        output: Output::Lines,
        session: Conversations::Pinned,
        asks: Asks::Hook,
        totals: Totals::Run,
        price: false,
        schema: false,
        mcp: false,
        mail: false,
        accounts: &["GEMINI_CLI_HOME", "GEMINI_API_KEY"],
        capabilities: &CAPABILITIES,
        unattended: "--approval-mode yolo",
        losses: &[],
    },
    Traits {
        name: "opencode",
        program: Some("opencode"),
        tested: Some("1.18.33"),
        output: Output::Lines,
        session: Conversations::Learned,
        asks: Asks::Dialogue,
        totals: Totals::Step,
        price: true,
        schema: false,
        mcp: false,
        mail: false,
        accounts: &["XDG_DATA_HOME"],
        capabilities: &CAPABILITIES,
        unattended: "OPENCODE_PERMISSION={\"bash\":\"allow\",\"edit\":\"allow\"}",
        losses: &[],
    },
    Traits {
        name: "aider",
        program: Some("aider"),
        tested: Some("0.86.2"),
        output: Output::Text,
        session: Conversations::None,
        asks: Asks::Never,
        totals: Totals::Step,
        price: true,
        schema: false,
        mcp: false,
        mail: false,
        accounts: &["OPENAI_API_KEY", "ANTHROPIC_API_KEY"],
        capabilities: &["file_read", "file_write", "code_analysis"],
        unattended: "--yes-always --no-auto-commits",
        losses: &[],
    },
    Traits {
        name: "acp",
        program: None,
        tested: None,
        output: Output::Dialogue,
        session: Conversations::Learned,
        asks: Asks::Dialogue,
        totals: Totals::Run,
        price: false,
        schema: false,
        mcp: true,
        mail: false,
        accounts: &[],
        capabilities: &CAPABILITIES,
        unattended: "",
        losses: &[],
    },
    Traits {
        name: "gemini-acp",
        program: Some("gemini"),
        tested: Some("0.61.0"),
        output: Output::Dialogue,
        session: Conversations::Learned,
        asks: Asks::Dialogue,
        totals: Totals::Run,
        price: false,
        schema: false,
        mcp: true,
        mail: false,
        accounts: &["GEMINI_CLI_HOME", "GEMINI_API_KEY"],
        capabilities: &CAPABILITIES,
        unattended: "the answer 'allow once'",
        losses: &[],
    },
    Traits {
        name: "opencode-acp",
        program: Some("opencode"),
        tested: Some("1.18.33"),
        output: Output::Dialogue,
        session: Conversations::Learned,
        asks: Asks::Dialogue,
        totals: Totals::Step,
        price: true,
        schema: false,
        mcp: true,
        mail: false,
        accounts: &["XDG_DATA_HOME"],
        capabilities: &CAPABILITIES,
        unattended: "the answer 'allow once'",
        losses: &[],
    },
    Traits {
        name: "qwen",
        program: Some("qwen"),
        tested: Some("0.15.10"),
        output: Output::Dialogue,
        session: Conversations::Learned,
        asks: Asks::Dialogue,
        totals: Totals::Step,
        price: false,
        schema: false,
        mcp: true,
        mail: false,
        accounts: &["OPENAI_API_KEY"],
        capabilities: &CAPABILITIES,
        unattended: "the answer 'allow once'",
        losses: &[],
    },
    Traits {
        name: "shell",
        program: None,
        tested: None,
        output: Output::Text,
        session: Conversations::None,
        asks: Asks::Never,
        totals: Totals::None,
        price: false,
        schema: false,
        mcp: false,
        mail: false,
        accounts: &[],
        capabilities: &["file_read", "file_write", "file_search", "bash_execute", "git_operations"],
        unattended: "",
        losses: &[],
    },
    Traits {
        name: "command",
        program: None,
        tested: None,
        output: Output::Text,
        session: Conversations::None,
        asks: Asks::Never,
        totals: Totals::None,
        price: false,
        schema: false,
        mcp: false,
        mail: false,
        accounts: &[],
        capabilities: &CAPABILITIES,
        unattended: "",
        losses: &[],
    },
];

impl Kind {
    pub fn traits(self) -> &'static Traits {
        let at = match self {
            Self::Claude => 0,
            Self::Codex => 1,
            Self::Gemini => 2,
            Self::Opencode => 3,
            Self::Aider => 4,
            Self::Acp => 5,
            Self::GeminiAcp => 6,
            Self::OpencodeAcp => 7,
            Self::Qwen => 8,
            Self::Shell => 9,
            Self::Command => 10,
        };
        &ALL[at]
    }
}

impl Traits {
    /// Returns what is missing in this version of the program, in words.
    pub fn lost(&self, version: &str) -> Vec<String> {
        let has = parts(version);
        let missing = self.losses.iter().filter(|loss| has < parts(loss.since));
        let mut lost: Vec<String> = missing.map(|loss| format!("{} (since {})", loss.what, loss.since)).collect();
        if let Some(tested) = self.tested.filter(|tested| has < parts(tested)) {
            lost.push(format!("older than {tested}, the version that this adapter was tested with"));
        }
        lost
    }
}

/// Returns the version in the output of `--version`: the first word that consists of at least two numbers.
pub fn version_in(output: &str) -> Option<&str> {
    let mut words = output.split(|c: char| !c.is_ascii_alphanumeric() && c != '.' && c != '-');
    words.find_map(|word| {
        let word = word.strip_prefix('v').unwrap_or(word);
        let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        let mut numbers = word.split(['.', '-']);
        (word.contains('.') && numbers.by_ref().take(2).filter(|part| is_number(part)).count() == 2).then_some(word)
    })
}

/// Reports whether a version comes before another one.
pub fn is_before(version: &str, other: &str) -> bool {
    parts(version) < parts(other)
}

/// Returns the numbers of a version.
fn parts(version: &str) -> Vec<u64> {
    let release = version.split('-').next().unwrap_or_default();
    release.split('.').map_while(|part| part.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_found_in_what_each_program_prints() {
        for (output, version) in [
            ("2.1.328 (Claude Code)\n", Some("2.1.328")),
            ("codex-cli 0.169.0\n", Some("0.169.0")),
            ("0.61.0\n", Some("0.61.0")),
            ("aider 0.86.2\n", Some("0.86.2")),
            ("warning: x\nv1.18.33-beta.1\n", Some("1.18.33-beta.1")),
            ("no version", None),
            ("a.b 7", None),
        ] {
            assert_eq!(version_in(output), version, "{output}");
        }
    }

    #[test]
    fn an_older_version_names_what_it_lacks() {
        let claude = Kind::Claude.traits();
        assert_eq!(claude.lost("2.1.328"), Vec::<String>::new());
        assert_eq!(claude.lost("2.2.0"), Vec::<String>::new());
        let lost = claude.lost("2.1.9");
        assert_eq!(lost.len(), 3, "{lost:?}");
        assert_eq!(lost[0], "hooks cannot defer a tool use (since 2.1.89)");
        assert_eq!(claude.lost("2.1.100").len(), 2);
    }

    #[test]
    fn each_adapter_has_its_own_traits() {
        for name in ALL.map(|traits| traits.name) {
            let kind: Kind = serde_json::from_value(name.into()).expect("a kind");
            let name = serde_json::to_value(kind).expect("a name");
            assert_eq!(name, kind.traits().name);
            assert!(kind.traits().losses.iter().all(|loss| parts(loss.since).len() == 3));
        }
    }
}
