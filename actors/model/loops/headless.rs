//! Agents that take their prompt from the command line, work, print their answer and end. Pure.

use std::path::Path;

/// Returns the command of a headless agent with its prompt: `claude -p`, `codex exec`, `gemini -p` or `opencode run`.
/// `None` for any other command, into whose window the prompt is typed.
pub fn with_prompt(argv: &[String], prompt: &str) -> Option<Vec<String>> {
    let at = place(argv)?;
    let (before, after) = argv.split_at(at);
    Some([before, &[prompt.to_owned()], after].concat())
}

/// Reports whether the prompt of this command is given on its command line.
pub fn is_headless(argv: &[String]) -> bool {
    place(argv).is_some()
}

/// Returns where the prompt belongs among the words. Flags with any number of values may stand at the end, so the prompt
/// of claude and gemini follows its flag.
fn place(argv: &[String]) -> Option<usize> {
    let (program, words) = argv.split_first()?;
    let flag = |names: &[&str]| words.iter().position(|word| names.contains(&word.as_str())).map(|at| at + 2);
    match Path::new(program).file_name()?.to_str()? {
        "claude" => flag(&["-p", "--print"]),
        "gemini" | "qwen" => flag(&["-p", "--prompt"]),
        "codex" => matches!(words.first()?.as_str(), "exec" | "e").then_some(argv.len()),
        "opencode" => (words.first()? == "run").then_some(argv.len()),
        _ => None,
    }
}

/// Reports whether the command is an agent that draws its own screen, so that its log is not text.
pub fn draws(argv: &[String]) -> bool {
    let program = argv.first().and_then(|program| Path::new(program).file_name()).and_then(|name| name.to_str());
    let is_agent = program.is_some_and(|name| ["claude", "codex", "gemini", "qwen", "opencode"].contains(&name));
    is_agent && !is_headless(argv)
}

/// Ends of the output of headless agents that could not start, in lower case, and why not.
const REFUSED: [(&str, &str); 5] = [
    ("please run /login", "is not logged in"),
    ("failed to authenticate. api error", "is not logged in"),
    ("not inside a trusted directory", "asks whether to trust this directory"),
    ("not running in a trusted directory", "asks whether to trust this directory"),
    ("please set an auth method", "asks how to log in"),
];
/// Number of last lines that say why an agent could not start.
const LINES_MAX: usize = 4;

/// Returns why a headless agent with this output could not start, if that needs a person.
pub fn refused(output: &str) -> Option<&'static str> {
    let lines = output.lines().rev().filter(|line| !line.trim().is_empty()).take(LINES_MAX);
    let last = lines.map(str::to_lowercase).collect::<Vec<_>>().join(" ");
    REFUSED.iter().find(|(words, _)| last.contains(words)).map(|(_, why)| *why)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(command: &str) -> Option<String> {
        let argv: Vec<String> = command.split(' ').map(str::to_owned).collect();
        with_prompt(&argv, "PROMPT").map(|argv| argv.join(" "))
    }

    #[test]
    fn headless_agents_get_their_prompt_on_the_command_line() {
        for (command, expected) in [
            ("claude -p", "claude -p PROMPT"),
            ("/opt/claude --print --allowedTools Bash Edit", "/opt/claude --print PROMPT --allowedTools Bash Edit"),
            ("claude --model x -p", "claude --model x -p PROMPT"),
            ("codex exec", "codex exec PROMPT"),
            ("codex exec --full-auto", "codex exec --full-auto PROMPT"),
            ("gemini --yolo -p", "gemini --yolo -p PROMPT"),
            ("opencode run", "opencode run PROMPT"),
        ] {
            assert_eq!(given(command).as_deref(), Some(expected));
        }
        for command in ["claude", "codex", "codex --model exec", "sh -p", "my-agent exec", "opencode"] {
            assert_eq!(given(command), None, "{command}");
        }
    }

    #[test]
    fn an_agent_that_could_not_start_says_why_at_the_end() {
        assert_eq!(refused("Not logged in · Please run /login\n"), Some("is not logged in"));
        assert_eq!(refused("Failed to authenticate. API Error: 401 invalid x-api-key\n"), Some("is not logged in"));
        let trust = "Not inside a trusted directory and --skip-git-repo-check was not specified.\n";
        assert_eq!(refused(trust), Some("asks whether to trust this directory"));
        assert_eq!(refused("please run /login\na\nb\nc\nd\n"), None);
        assert_eq!(refused(""), None);
    }
}
