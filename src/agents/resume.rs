//! Command lines that resume a conversation, derived from the one that started it.
//!
//! Only direct command lines of an agent are changed, and in those only the conversation and the prompt.

/// Options of `claude` that take a value.
const CLAUDE_VALUES: [&str; 21] = [
    "--model",
    "--fallback-model",
    "--permission-mode",
    "--permission-prompt-tool",
    "--append-system-prompt",
    "--append-system-prompt-file",
    "--system-prompt",
    "--system-prompt-file",
    "--output-format",
    "--input-format",
    "--max-turns",
    "--max-budget-usd",
    "--settings",
    "--setting-sources",
    "--agent",
    "--agents",
    "--json-schema",
    "--name",
    "-n",
    "--effort",
    "--plugin-dir",
];
/// Options of `claude` that take all arguments up to the next option.
const CLAUDE_LISTS: [&str; 8] = [
    "--allowedTools",
    "--allowed-tools",
    "--disallowedTools",
    "--disallowed-tools",
    "--tools",
    "--add-dir",
    "--mcp-config",
    "--betas",
];
/// Subcommands of `claude`, as opposed to a prompt.
const CLAUDE_VERBS: [&str; 23] = [
    "agents",
    "attach",
    "auth",
    "auto-mode",
    "config",
    "doctor",
    "gateway",
    "import",
    "install",
    "kill",
    "logs",
    "mcp",
    "migrate-installer",
    "plugin",
    "plugins",
    "purge",
    "respawn",
    "rm",
    "setup-token",
    "stop",
    "ultrareview",
    "update",
    "upgrade",
];
/// Options of `codex` that take a value.
const CODEX_VALUES: [&str; 24] = [
    "-c",
    "--config",
    "-i",
    "--image",
    "-m",
    "--model",
    "-p",
    "--profile",
    "-s",
    "--sandbox",
    "-a",
    "--ask-for-approval",
    "-C",
    "--cd",
    "--add-dir",
    "--enable",
    "--disable",
    "--local-provider",
    "--color",
    "--output-schema",
    "-o",
    "--output-last-message",
    "--remote",
    "--remote-auth-token-env",
];
/// Subcommands of `codex`, as opposed to a prompt.
const CODEX_VERBS: [&str; 15] = [
    "login",
    "logout",
    "mcp",
    "mcp-server",
    "app-server",
    "app",
    "completion",
    "update",
    "sandbox",
    "debug",
    "apply",
    "cloud",
    "features",
    "review",
    "fork",
];

/// Parsed command line of an agent.
#[derive(Debug, Default, PartialEq, Eq)]
struct Parsed {
    /// Options with their values.
    options: Vec<String>,
    /// Id of the named conversation.
    conversation: Option<String>,
    prompt: Option<String>,
    /// The agent runs without a terminal (`-p`, `exec`).
    alone: bool,
}

/// Reports whether a text is a valid id of a conversation, which cannot be mistaken for an option.
pub fn is_id(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    text.len() <= 128 && text.starts_with(|c: char| c.is_ascii_alphanumeric()) && text.chars().all(plain)
}

/// Returns the conversation that a command line names.
pub fn named(argv: &[String]) -> Option<String> {
    match program(argv)? {
        "claude" => claude(argv)?.conversation,
        "codex" => codex(argv)?.conversation,
        _ => None,
    }
}

/// Returns the prompt in a command line.
pub fn task(argv: &[String]) -> Option<String> {
    match program(argv)? {
        "claude" => claude(argv)?.prompt,
        "codex" => codex(argv)?.prompt,
        _ => None,
    }
}

/// Returns the command line that continues with `prompt`: in conversation `id` if known, else in a new one. `None` for
/// commands that are not an agent's.
pub fn command(argv: &[String], id: Option<&str>, prompt: &str) -> Option<Vec<String>> {
    with_prompt(argv, id, Some(prompt))
}

/// Returns the command line that opens conversation `id` in a terminal without telling the agent anything. `None` for
/// commands that are not an agent's, or whose agent runs without a terminal.
pub fn reopen(argv: &[String], id: &str) -> Option<Vec<String>> {
    if is_headless(argv) { None } else { with_prompt(argv, Some(id), None) }
}

/// Reports whether the command line starts an agent that runs without a terminal.
pub fn is_headless(argv: &[String]) -> bool {
    parsed(argv).is_some_and(|parsed| parsed.alone)
}

/// Reports whether the command line starts an agent with a terminal, and not another command of its program.
pub fn is_interactive(argv: &[String]) -> bool {
    parsed(argv).is_some_and(|parsed| !parsed.alone)
}

fn parsed(argv: &[String]) -> Option<Parsed> {
    match program(argv) {
        Some("claude") => claude(argv),
        Some("codex") => codex(argv),
        _ => None,
    }
}

fn with_prompt(argv: &[String], id: Option<&str>, prompt: Option<&str>) -> Option<Vec<String>> {
    let mut words = vec![argv.first()?.clone()];
    match program(argv)? {
        "claude" => {
            let parsed = claude(argv)?;
            words.extend(id.into_iter().flat_map(|id| ["--resume".to_owned(), id.to_owned()]));
            // Before the options, because some of them take all arguments that follow.
            words.extend(prompt.map(str::to_owned));
            words.extend(parsed.options);
        }
        "codex" => {
            let parsed = codex(argv)?;
            words.extend(parsed.alone.then(|| "exec".to_owned()));
            // `exec` accepts most of its options only before `resume`.
            let resume = id.into_iter().flat_map(|id| ["resume".to_owned(), id.to_owned()]);
            if parsed.alone {
                words.extend(parsed.options);
                words.extend(resume);
            } else {
                words.extend(resume);
                words.extend(parsed.options);
            }
            words.extend(prompt.map(str::to_owned));
        }
        _ => return None,
    }
    Some(words)
}

pub fn program(argv: &[String]) -> Option<&str> {
    argv.first()?.rsplit('/').next()
}

/// Reports whether a command line of `claude` has this option; `None` if it is a subcommand.
pub fn has_option(argv: &[String], option: &str) -> Option<bool> {
    let is_it = |word: &String| word == option || word.strip_prefix(option).is_some_and(|rest| rest.starts_with('='));
    claude(argv).map(|parsed| parsed.options.iter().any(is_it))
}

fn claude(argv: &[String]) -> Option<Parsed> {
    let mut parsed = Parsed::default();
    let mut words = argv[1..].iter().peekable();
    while let Some(word) = words.next() {
        let is_value = |next: &&String| !next.starts_with('-');
        match word.as_str() {
            "-c" | "--continue" | "--fork-session" => {}
            "-r" | "--resume" => parsed.conversation = words.next_if(is_value).cloned(),
            "--session-id" => parsed.conversation = words.next().cloned(),
            list if CLAUDE_LISTS.contains(&list) => {
                parsed.options.push(word.clone());
                while let Some(value) = words.next_if(is_value) {
                    parsed.options.push(value.clone());
                }
            }
            option if CLAUDE_VALUES.contains(&option) => {
                parsed.options.push(word.clone());
                parsed.options.extend(words.next().cloned());
            }
            "--" => parsed.prompt = words.next().cloned().or(parsed.prompt),
            option if option.starts_with('-') => {
                parsed.alone |= matches!(option, "-p" | "--print");
                if let Some(id) = option.strip_prefix("--session-id=").or(option.strip_prefix("--resume=")) {
                    parsed.conversation = Some(id.to_owned());
                } else {
                    parsed.options.push(word.clone());
                }
            }
            verb if parsed.prompt.is_none() && CLAUDE_VERBS.contains(&verb) => return None,
            _ => parsed.prompt = Some(word.clone()),
        }
    }
    Some(parsed)
}

fn codex(argv: &[String]) -> Option<Parsed> {
    let mut parsed = Parsed::default();
    let mut resumes = false;
    let mut words = argv[1..].iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "exec" | "e" if parsed.prompt.is_none() && !parsed.alone => parsed.alone = true,
            "resume" if parsed.prompt.is_none() && !resumes => resumes = true,
            "--last" | "--all" if resumes => {}
            "--" => parsed.prompt = words.next().cloned().or(parsed.prompt),
            option if CODEX_VALUES.contains(&option) => {
                parsed.options.push(word.clone());
                parsed.options.extend(words.next().cloned());
            }
            option if option.len() > 1 && option.starts_with('-') => parsed.options.push(word.clone()),
            verb if parsed.prompt.is_none() && !parsed.alone && !resumes && CODEX_VERBS.contains(&verb) => return None,
            _ if resumes && parsed.conversation.is_none() => parsed.conversation = Some(word.clone()),
            _ => parsed.prompt = Some(word.clone()),
        }
    }
    Some(parsed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(|word| word.replace('_', " ")).collect()
    }

    #[test]
    fn the_conversation_is_added_and_the_prompt_replaced() {
        for (argv, resumed, anew) in [
            ("claude", "claude --resume ID go", "claude go"),
            ("/opt/bin/claude fix_it", "/opt/bin/claude --resume ID go", "/opt/bin/claude go"),
            (
                "claude --model opus -p fix_it --allowedTools Bash Edit",
                "claude --resume ID go --model opus -p --allowedTools Bash Edit",
                "claude go --model opus -p --allowedTools Bash Edit",
            ),
            ("claude --session-id X --continue a_b", "claude --resume ID go", "claude go"),
            (
                "claude --dangerously-skip-permissions",
                "claude --resume ID go --dangerously-skip-permissions",
                "claude go --dangerously-skip-permissions",
            ),
            ("codex", "codex resume ID go", "codex go"),
            ("codex -m gpt fix_it", "codex resume ID -m gpt go", "codex -m gpt go"),
            ("codex exec --json -C /x fix_it", "codex exec --json -C /x resume ID go", "codex exec --json -C /x go"),
            ("codex exec resume OLD more", "codex exec resume ID go", "codex exec go"),
        ] {
            let argv = words(argv);
            assert_eq!(command(&argv, Some("ID"), "go"), Some(words(resumed)), "{argv:?}");
            assert_eq!(command(&argv, None, "go"), Some(words(anew)), "{argv:?}");
        }
    }

    #[test]
    fn other_command_lines_are_not_changed() {
        for argv in ["make test", "sh -c claude", "claude mcp list", "codex login", "claude update"] {
            assert_eq!(command(&words(argv), Some("ID"), "go"), None, "{argv}");
        }
        assert_eq!(command(&[], None, "go"), None);
        for (argv, reopened) in [
            ("claude --model x task", Some("claude --resume ID --model x")),
            ("codex --model x task", Some("codex resume ID --model x")),
            ("claude -p task", None),
            ("codex exec task", None),
            ("sh -c task", None),
        ] {
            assert_eq!(reopen(&words(argv), "ID"), reopened.map(words), "{argv}");
        }
    }

    #[test]
    fn an_option_is_not_a_conversation_id() {
        for id in ["--dangerously-skip-permissions", "", "a b", "a/../b", "-x", &"x".repeat(200)] {
            assert!(!is_id(id), "{id}");
        }
        assert!(is_id("0b1c2d3e-0000-4000-a000-000000000000") && is_id("thread_7"));
    }

    #[test]
    fn a_named_conversation_is_found() {
        for (argv, id) in [
            ("claude --session-id A-1 x", Some("A-1")),
            ("claude --resume=B", Some("B")),
            ("claude -r C --model m", Some("C")),
            ("claude --resume --model m", None),
            ("codex resume D", Some("D")),
            ("codex exec resume E -", Some("E")),
            ("codex exec x", None),
            ("make A", None),
        ] {
            assert_eq!(named(&words(argv)).as_deref(), id, "{argv}");
        }
    }
}
