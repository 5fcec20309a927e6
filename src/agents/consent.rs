//! Arguments that make agents ask before, or keep them from, what a flow does not allow.

use std::path::Path;

use serde_json::json;

use super::traits::{CLAUDE_DEFERS, is_before};
use super::{Agent, Kind, resume};
use swarm_model::asks::judge::Consent;

/// Timeout of the hook in seconds: long, because a person answers. The agent ignores a hook that takes longer, so the
/// hook itself must deny before that.
pub const SECONDS_MAX: u32 = 7 * 24 * 3600;

/// Returns arguments that make `claude` ask `program` before each use of a tool. Without an answer it only reads. Servers
/// that a file of the repository defines are not started: `claude` would do that without asking.
pub fn claude(program: &str) -> Vec<String> {
    asked_by(&format!("{} flow consent-check", quoted(program)), SECONDS_MAX)
}

/// Returns arguments that make `claude` execute a command before each use of a tool, which decides about it.
fn asked_by(command: &str, seconds: u32) -> Vec<String> {
    // Only exit code 2 blocks the tool; any other failure of the hook is ignored.
    let command = format!("{command} || exit 2");
    let hook = json!([{ "matcher": "*", "hooks": [{ "type": "command", "command": command, "timeout": seconds }] }]);
    let settings = json!({ "disableAllHooks": false, "hooks": { "PreToolUse": hook } });
    let settings = settings.to_string();
    ["--permission-mode", "default", "--strict-mcp-config", "--settings", &settings].map(str::to_owned).to_vec()
}

/// Returns a word as a shell reads it.
pub fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Arguments that keep `claude` from loading servers, hooks and variables from files of the repository.
pub const OWN_SETTINGS_ONLY: [&str; 3] = ["--strict-mcp-config", "--setting-sources", "user"];

/// Returns arguments that keep an agent from loading what the repository in `dir` defines: servers, hooks and variables.
/// `None` for other programs.
pub fn own_settings_only(kind: Kind, dir: &Path) -> Option<Vec<String>> {
    match kind {
        Kind::Claude => Some(OWN_SETTINGS_ONLY.map(str::to_owned).to_vec()),
        Kind::Codex => {
            // It loads `.codex` of trusted directories only. The nearest directory that has an entry decides, and an
            // entry that is given keeps it from adding one itself. Dots in a path would divide a key.
            let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
            let entry = format!("projects={{{}={{trust_level=\"untrusted\"}}}}", json!(dir.to_string_lossy()));
            // Skills of the repository count all the same. The servers that they name would be installed for all projects.
            Some(["-c", "features.skill_mcp_dependency_install=false", "-c", &entry].map(str::to_owned).to_vec())
        }
        _ => None,
    }
}

/// Returns the agent that a command line executes directly, if it loads files of the repository.
pub fn agent_of(argv: &[String]) -> Option<Kind> {
    match resume::program(argv)? {
        "claude" => Some(Kind::Claude),
        "codex" => Some(Kind::Codex),
        "gemini" => Some(Kind::Gemini),
        "qwen" => Some(Kind::Qwen),
        "aider" => Some(Kind::Aider),
        "opencode" => Some(Kind::Opencode),
        _ => None,
    }
}

/// Returns the section of the files that an agent loads from a repository, if it loads any.
pub fn loads(agent: &Agent) -> Option<&'static str> {
    loader(agent).loads()
}

/// Returns the agent that loads files: what a configured command executes directly, and otherwise the one that it is
/// configured as.
pub fn loader(agent: &Agent) -> Kind {
    agent_of(agent.config.command.as_deref().unwrap_or_default()).unwrap_or(agent.kind)
}

/// Keeps an agent from loading the configuration of a repository by a variable, if that is possible.
pub fn set_own_settings_only(agent: &mut Agent) {
    if loader(agent) == Kind::Opencode {
        let (name, value) = super::opencode::OWN_SETTINGS_ONLY;
        agent.config.env.entry(name.to_owned()).or_insert_with(|| value.to_owned());
    }
}

/// Adds arguments to the command line of an agent.
pub fn add_arguments(agent: &mut Agent, ours: Vec<String>) {
    match &mut agent.config.command {
        // Directly after the program: later words may belong to a subcommand.
        Some(command) if matches!(agent.kind, Kind::Command | Kind::Acp) => *command = with_arguments(command, ours),
        _ => agent.config.arguments.extend(ours),
    }
}

/// Returns the command line of an agent with these arguments, which come before its own.
pub fn with_arguments(argv: &[String], ours: Vec<String>) -> Vec<String> {
    let (program, words) = argv.split_at(argv.len().min(1));
    program.iter().cloned().chain(ours).chain(words.iter().cloned()).collect()
}

/// Returns arguments for the sandbox of `codex`, which refuses without asking. `roots` are writable in addition to the
/// worktree.
pub fn codex(reads_only: bool, all: bool, roots: &[&str]) -> Vec<String> {
    if all {
        return Vec::new();
    }
    let mode = if reads_only { "read-only" } else { "workspace-write" };
    let roots = json!(roots);
    let settings = [format!("sandbox_mode=\"{mode}\""), format!("sandbox_workspace_write.writable_roots={roots}")];
    settings.into_iter().flat_map(|setting| ["-c".to_owned(), setting]).collect()
}

/// Arguments that select a sandbox of `codex`.
const SANDBOX: [&str; 4] = ["-s", "--sandbox", "--full-auto", "--dangerously-bypass-approvals-and-sandbox"];

/// Options of `claude` that select what it may do, or keep it from calling hooks or from keeping its conversation.
const PERMISSIONS: [&str; 9] = [
    "--permission-mode",
    "--dangerously-skip-permissions",
    "--allow-dangerously-skip-permissions",
    "--permission-prompt-tool",
    "--permission-prompts",
    "--settings",
    "--bare",
    "--safe-mode",
    "--no-session-persistence",
];
/// Timeout in seconds of a hook that asks nobody.
const SECONDS: u32 = 600;

/// Returns why an agent cannot work in a run with this consent, and the remedy.
pub fn refusal(agent: &Agent, consent: Option<Consent>) -> Option<(String, String)> {
    let consent = consent.filter(|consent| *consent != Consent::FullAccess)?;
    let (name, word) = (&agent.name, consent.word());
    let remedy =
        || "use --consent full-access, or an agent that asks: claude, codex, gemini-acp, opencode-acp, qwen".to_owned();
    match agent.kind {
        // It executes only the script in the spec, which a person wrote.
        Kind::Shell => None,
        Kind::Codex if selects_sandbox(agent) => {
            let cause = format!("agents.{name}.arguments selects a sandbox, which consent '{word}' would replace");
            Some((cause, "remove these arguments, or use --consent full-access".to_owned()))
        }
        Kind::Claude => {
            let chosen = permission(agent)?;
            let cause = format!("the command line of agents.{name} has {chosen}, which consent '{word}' would replace");
            Some((cause, format!("remove {chosen}, or use --consent full-access")))
        }
        // They ask a person.
        Kind::Codex | Kind::Acp | Kind::GeminiAcp | Kind::OpencodeAcp | Kind::Qwen => None,
        Kind::Gemini | Kind::Opencode | Kind::Aider | Kind::Command => {
            let cause = format!("agent '{name}' can neither ask a person in a run nor be restricted to '{word}'");
            Some((cause, remedy()))
        }
    }
}

/// Returns why a version of `claude` cannot work with this consent, and the remedy. An empty version is one that it does
/// not tell.
pub fn too_old(version: &str, consent: Option<Consent>) -> Option<(String, String)> {
    let consent = consent.filter(|consent| *consent != Consent::FullAccess && is_before(version, CLAUDE_DEFERS))?;
    let which = if version.is_empty() { "of an unknown version".to_owned() } else { version.to_owned() };
    let cause = format!("claude {which} cannot stop to ask, which consent '{}' needs", consent.word());
    Some((cause, format!("update claude to {CLAUDE_DEFERS} or later, or use --consent full-access")))
}

/// Returns the option on an agent's own command line that selects what it may do.
fn permission(agent: &Agent) -> Option<&'static str> {
    let command = agent.config.command.iter().flatten();
    let words: Vec<&String> = command.chain(&agent.config.arguments).collect();
    let is_of = |word: &str, option: &str| {
        word.strip_prefix(option).is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
    };
    let is_there = |option: &&str| words.iter().any(|word| is_of(word, option));
    PERMISSIONS.into_iter().find(is_there)
}

/// Options with which a user restricts or extends what an agent may do.
const LIMITS: [&str; 12] = [
    "--permission-mode",
    "--dangerously-skip-permissions",
    "--settings",
    "--allowedTools",
    "--allowed-tools",
    "--disallowedTools",
    "--disallowed-tools",
    "--tools",
    "--approval-mode",
    "--ask-for-approval",
    "--sandbox",
    "--full-auto",
];

/// Returns the option on an agent's own command line that says what it may do, in place of what is said for all agents.
pub fn own_limits(agent: &Agent) -> Option<&'static str> {
    let mut words = agent.config.command.iter().flatten().chain(&agent.config.arguments);
    let is_of = |word: &str, option: &str| {
        word.strip_prefix(option).is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
    };
    let sandbox = (agent.kind == Kind::Codex && selects_sandbox(agent)).then_some("its sandbox");
    words.find_map(|word| LIMITS.into_iter().find(|option| is_of(word, option))).or(sandbox)
}

fn selects_sandbox(agent: &Agent) -> bool {
    let selects = |word: &String| {
        SANDBOX.contains(&word.as_str()) || word.starts_with("--sandbox=") || word.starts_with("sandbox_mode=")
    };
    agent.config.arguments.iter().any(selects)
}

/// Restricts an agent of a run to what it may do without asking. `roots` are the directories with git's files of its
/// worktree, without which it cannot commit. `hook` is the command that decides about the uses of tools of `claude`.
pub fn restrict(agent: &mut Agent, consent: Option<Consent>, roots: &[&str], hook: &str) {
    if agent.kind == Kind::Claude && consent.is_some_and(|consent| consent != Consent::FullAccess) {
        // Without it, it does not offer its tool for questions. Nothing reaches this prompt: the hook decides before.
        agent.config.arguments.extend(["--permission-prompt-tool", "stdio"].map(str::to_owned));
        agent.config.arguments.extend(asked_by(hook, SECONDS));
    }
    if agent.kind == Kind::Codex && consent != Some(Consent::FullAccess) && !selects_sandbox(agent) {
        agent.config.arguments.extend(codex(consent == Some(Consent::NoAccess), false, roots));
    }
}

/// Tools of `claude` for which a spec must require one of these capabilities, if it requires any. It reads and searches in any
/// case.
const NARROWED: [(&str, &[&str]); 4] = [
    ("Edit,Write,NotebookEdit", &["file_write"]),
    ("Bash", &["bash_execute", "git_operations"]),
    ("WebSearch", &["web_search"]),
    ("WebFetch", &["web_fetch"]),
];

/// Reports whether [`narrow`] keeps this agent from what a spec does not require. A script does what is written in the spec.
pub fn is_narrowed(agent: &Agent) -> bool {
    matches!(agent.kind, Kind::Claude | Kind::Shell)
}

/// Keeps an agent from the tools whose capabilities a spec does not require, if it requires any and the agent has options for
/// that.
pub fn narrow(agent: &mut Agent, required: &[String]) {
    if agent.kind != Kind::Claude || required.is_empty() {
        return;
    }
    let requires = |capability: &str| required.iter().any(|one| one == capability);
    let is_kept = |needs: &[&str]| needs.iter().any(|one| requires(one));
    let mut denied: Vec<&str> = NARROWED.iter().filter(|(_, needs)| !is_kept(needs)).map(|(tools, _)| *tools).collect();
    if requires("git_operations") && !requires("bash_execute") {
        // It executes any command.
        denied.push("Monitor");
        // Configured permissions take precedence.
        if !agent.config.arguments.iter().any(|word| word == "--permission-mode") {
            let mode = if requires("file_write") { "acceptEdits" } else { "default" };
            let words = ["--permission-mode", mode, "--allowedTools", "Bash(git:*)"];
            agent.config.arguments.extend(words.map(str::to_owned));
        }
    }
    if !denied.is_empty() {
        agent.config.arguments.extend(["--disallowedTools".to_owned(), denied.join(",")]);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use swarm_config::sections::AgentConfig;

    use super::*;

    #[test]
    fn claude_has_only_the_tools_that_a_spec_requires() {
        let line = |agent: &str, required: &[&str]| {
            let mut agent = Agent::find(agent, &BTreeMap::new()).expect("built in");
            narrow(&mut agent, &required.iter().map(ToString::to_string).collect::<Vec<_>>());
            let turn = crate::Turn { prompt: "x", fresh_id: "F", ..crate::Turn::default() };
            agent.launch(&turn).argv.join(" ")
        };
        let any = line("claude", &[]);
        assert!(any.ends_with("--permission-mode acceptEdits --allowedTools Bash(*) --session-id F"), "{any}");
        let all = ["file_read", "file_write", "bash_execute", "web_search", "web_fetch"];
        assert_eq!(line("claude", &all), any);
        let (edits, git) = ("--permission-mode acceptEdits --allowedTools Bash(git:*)", "--disallowedTools Edit,Write");
        for (required, words) in [
            (&["file_read"][..], "--disallowedTools Edit,Write,NotebookEdit,Bash,WebSearch,WebFetch"),
            (&["file_write"], "--disallowedTools Bash,WebSearch,WebFetch"),
            (&["file_write", "bash_execute", "web_fetch"], "--disallowedTools WebSearch"),
            (&["file_write", "git_operations"], edits),
            (&["file_write", "git_operations"], "--disallowedTools WebSearch,WebFetch,Monitor"),
            (&["git_operations"], git),
            (&["git_operations"], "--permission-mode default"),
        ] {
            let line = line("claude", required);
            assert!(line.contains(words), "{required:?}: {line}");
            assert_eq!(line.matches("--permission-mode").count(), 1, "{line}");
        }
        assert_eq!(line("codex", &["file_read"]), line("codex", &[]));
    }

    #[test]
    fn codex_works_in_its_sandbox_unless_full_access_or_a_sandbox_is_chosen() {
        let codex = Agent::find("codex", &std::collections::BTreeMap::new()).expect("built in");
        let restricted = |agent: &Agent, consent| {
            let mut agent = agent.clone();
            restrict(&mut agent, consent, &["/r/.git"], "hook");
            let turn = crate::Turn { prompt: "x", fresh_id: "F", ..crate::Turn::default() };
            agent.launch(&turn).argv.join(" ")
        };
        let bypass = "--dangerously-bypass-approvals-and-sandbox";
        for (consent, mode) in [
            (None, "workspace-write"),
            (Some(Consent::PartialAccess), "workspace-write"),
            (Some(Consent::NoAccess), "read-only"),
        ] {
            let line = restricted(&codex, consent);
            assert!(line.contains(&format!("-c sandbox_mode=\"{mode}\"")) && !line.contains(bypass), "{line}");
            assert!(line.contains(r#"writable_roots=["/r/.git"]"#), "{line}");
        }
        assert!(restricted(&codex, Some(Consent::FullAccess)).contains(bypass));
        let mut chosen = codex;
        chosen.config.arguments = words("--sandbox danger-full-access");
        assert!(!restricted(&chosen, None).contains("sandbox_mode="), "what a person configured counts");
        let (cause, _) = refusal(&chosen, Some(Consent::PartialAccess)).expect("both cannot hold");
        assert!(cause.contains("selects a sandbox"), "{cause}");
    }

    #[test]
    fn agents_that_cannot_be_restricted_need_full_access() {
        for (name, is_possible) in [
            ("codex", true),
            ("shell", true),
            ("gemini-acp", true),
            ("opencode-acp", true),
            ("qwen", true),
            ("claude", true),
            ("gemini", false),
            ("opencode", false),
            ("aider", false),
        ] {
            let agent = Agent::find(name, &std::collections::BTreeMap::new()).expect("built in");
            let may = |consent| refusal(&agent, consent).is_none();
            assert!(may(None) && may(Some(Consent::FullAccess)), "{name}");
            assert_eq!(may(Some(Consent::PartialAccess)), is_possible, "{name}");
            assert_eq!(may(Some(Consent::NoAccess)), is_possible, "{name}");
        }
    }

    #[test]
    fn a_hook_decides_what_claude_does_unless_everything_is_allowed() {
        let claude = Agent::find("claude", &std::collections::BTreeMap::new()).expect("built in");
        let line = |consent| {
            let mut agent = claude.clone();
            restrict(&mut agent, consent, &[], "/bin/swarm judge");
            agent.launch(&crate::Turn { prompt: "x", fresh_id: "F", ..crate::Turn::default() }).argv.join(" ")
        };
        for consent in [Consent::NoAccess, Consent::PartialAccess] {
            let line = line(Some(consent));
            assert!(!line.contains("acceptEdits") && !line.contains("Bash(*)"), "{line}");
            assert!(line.contains("--permission-mode default --strict-mcp-config --settings {"), "{line}");
            assert!(line.contains("/bin/swarm judge || exit 2"), "{line}");
        }
        for consent in [None, Some(Consent::FullAccess)] {
            let line = line(consent);
            assert!(line.contains("acceptEdits") && !line.contains("--settings"), "{line}");
        }
    }

    #[test]
    fn an_option_that_would_stay_in_force_is_refused() {
        let refused = |command: Option<&str>, arguments: &str| {
            let mut claude = Agent::find("claude", &std::collections::BTreeMap::new()).expect("built in");
            claude.config.command = command.map(words);
            claude.config.arguments = words(arguments);
            assert_eq!(refusal(&claude, Some(Consent::FullAccess)), None);
            refusal(&claude, Some(Consent::NoAccess)).map(|(_, remedy)| remedy)
        };
        let remedy = |option: &str| Some(format!("remove {option}, or use --consent full-access"));
        assert_eq!(refused(None, "--model opus --max-turns 80"), None);
        assert_eq!(refused(None, "--permission-mode plan"), remedy("--permission-mode"));
        assert_eq!(refused(None, "--settings=x.json"), remedy("--settings"));
        assert_eq!(
            refused(Some("claude --dangerously-skip-permissions"), "--x"),
            remedy("--dangerously-skip-permissions")
        );
    }

    #[test]
    fn a_version_that_cannot_stop_to_ask_is_named() {
        let of = |version: &str, consent| too_old(version, consent).map(|(cause, _)| cause);
        let cause = "claude 2.1.88 cannot stop to ask, which consent 'no-access' needs";
        assert_eq!(of("2.1.88", Some(Consent::NoAccess)).as_deref(), Some(cause));
        assert!(of("", Some(Consent::PartialAccess)).is_some_and(|cause| cause.contains("unknown version")));
        for (version, consent) in
            [("2.1.89", Some(Consent::NoAccess)), ("2.1.88", Some(Consent::FullAccess)), ("2.1.88", None)]
        {
            assert_eq!(of(version, consent), None, "{version}");
        }
    }

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn agents_are_known_by_the_program_that_is_executed() {
        assert_eq!(agent_of(&words("/opt/claude -p x")), Some(Kind::Claude));
        assert_eq!(agent_of(&words("codex exec x")), Some(Kind::Codex));
        assert_eq!(agent_of(&words("qwen --acp")), Some(Kind::Qwen));
        assert_eq!((agent_of(&words("sh -c claude")), agent_of(&[])), (None, None));
    }

    #[test]
    fn an_agent_under_another_name_loads_what_its_program_loads() {
        let of = |command: &str, events: Option<&str>| {
            let (command, events) = (Some(words(command)), events.map(str::to_owned));
            let config = AgentConfig { command, events, ..AgentConfig::default() };
            Agent::find("mine", &BTreeMap::from([("mine".to_owned(), config)])).expect("known")
        };
        for (command, events, section) in [
            ("/opt/claude -p", None, Some("claude")),
            ("qwen --acp", Some("acp"), Some("qwen")),
            ("gemini", Some("claude"), Some("gemini")),
            ("wrapper", Some("aider"), Some("aider")),
            ("wrapper", None, None),
            ("opencode acp", Some("acp"), Some("opencode")),
        ] {
            assert_eq!(loads(&of(command, events)), section, "{command}");
        }
        let mut agent = of("claude -p", None);
        set_own_settings_only(&mut agent);
        assert!(agent.config.env.is_empty());
        add_arguments(&mut agent, words("--x y"));
        assert_eq!(agent.config.command, Some(words("claude --x y -p")));
        let mut agent = of("wrapper", Some("claude"));
        add_arguments(&mut agent, words("--x y"));
        assert_eq!((agent.config.command, agent.config.arguments), (Some(words("wrapper")), words("--x y")));
        let mut agent = of("opencode run", None);
        set_own_settings_only(&mut agent);
        assert_eq!(agent.config.env["OPENCODE_DISABLE_PROJECT_CONFIG"], "1");
    }

    #[test]
    fn a_held_back_agent_gets_its_arguments_before_those_that_were_typed() {
        let ours = own_settings_only(Kind::Claude, Path::new("/w")).expect("arguments");
        assert_eq!(
            with_arguments(&words("claude -p x"), ours),
            words("claude --strict-mcp-config --setting-sources user -p x")
        );
        let ours = own_settings_only(Kind::Codex, Path::new("/no such/a.'b")).expect("arguments");
        let no_servers = "features.skill_mcp_dependency_install=false";
        assert_eq!(ours, ["-c", no_servers, "-c", r#"projects={"/no such/a.'b"={trust_level="untrusted"}}"#]);
        assert_eq!(own_settings_only(Kind::Shell, Path::new("/w")), None);
    }
}
