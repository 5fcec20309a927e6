//! Recognition of screens on which an agent or a shell waits for input, or shows a dialog. Pure.

use crate::dialog::{Dialog, dialog};

/// Kind of a screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Screen {
    /// Waits for a task.
    Ready,
    /// Shows a dialog, which takes keys and no text.
    Asks,
    Other,
}

/// Phrases, in lower case, that agents show when they are ready.
const READY_WORDS: [&str; 7] = [
    "bypass permissions",
    "permission mode",
    "permissions mode",
    "shift+tab to cycle",
    "tab switch agent",
    "ctrl+p commands",
    "type your message",
];
/// Phrases, in lower case, that precede a version number on the screen of a ready agent.
const READY_VERSIONS: [&str; 1] = ["opencode v"];
/// Prompts at the start of a line.
const PROMPTS: [&str; 3] = [">", "$", ">>>"];
/// Prompt of codex. The line below it that names model and directory, with this sign between them, is drawn when codex
/// takes text.
const CODEX_PROMPT: char = '›';
const CODEX_STATUS: &str = " · ";

/// Number of lines at the end of a screen that are searched for signs of work.
const WORKING_LINES_MAX: usize = 8;
/// Texts, in lower case, that agents show while they work.
const WORKING: [&str; 5] =
    ["esc to interrupt", "(esc to cancel", "· esc to cancel)", "esc interrupt", "esc again to interrupt"];

/// Agents that draw their input line and then ask whether to trust the directory.
const ASK_LATE: [&str; 2] = ["gemini", "qwen"];
/// Time for which the prompt of such an agent must stand, in milliseconds.
const STEADY_MS: u64 = 3_000;

/// Returns for how long the prompt of this command must stand before the program counts as ready, in milliseconds.
pub fn steady_ms(argv: &[String]) -> u64 {
    let program = argv.first().and_then(|program| program.rsplit('/').next());
    if program.is_some_and(|program| ASK_LATE.contains(&program)) { STEADY_MS } else { 0 }
}

/// Returns the kind of a screen. A dialog takes precedence, because it may show a prompt next to its choices.
pub fn judge(screen: &str) -> Screen {
    judge_dialog(screen).0
}

/// Like [`judge`], with the dialog if there is one.
pub fn judge_dialog(screen: &str) -> (Screen, Option<Dialog>) {
    if let Some(dialog) = dialog(screen) {
        return (Screen::Asks, Some(dialog));
    }
    let is_ready = screen.lines().any(|line| is_ready(line, &spaced(line).to_lowercase())) || is_codex_ready(screen);
    (if is_ready { Screen::Ready } else { Screen::Other }, None)
}

/// Reports whether the last lines of a screen show that an agent works.
pub fn shows_work(screen: &str) -> bool {
    last_lines(screen).iter().any(|line| WORKING.iter().any(|text| line.to_lowercase().contains(text)))
}

/// Returns the last lines of a screen that are not empty, the last one first.
pub fn last_lines(screen: &str) -> Vec<&str> {
    screen.lines().rev().filter(|line| !line.trim().is_empty()).take(WORKING_LINES_MAX).collect()
}

fn is_codex_ready(screen: &str) -> bool {
    let lines: Vec<&str> = screen.lines().collect();
    let prompt = lines.iter().rposition(|line| line.starts_with(CODEX_PROMPT));
    prompt.is_some_and(|at| lines[at + 1..].iter().any(|line| line.contains(CODEX_STATUS)))
}

/// Reports whether a line shows that the program is ready. `raw` is the line as captured; `words` is the line in
/// lower case with single spaces.
fn is_ready(raw: &str, words: &str) -> bool {
    READY_WORDS.iter().any(|ready| words.contains(ready))
        || READY_VERSIONS.iter().any(|name| has_version(words, name))
        || has_prompt(raw)
}

fn has_version(words: &str, name: &str) -> bool {
    words.match_indices(name).any(|(at, _)| words[at + name.len()..].starts_with(|c: char| c.is_ascii_digit()))
}

/// Reports whether a prompt is at the start of the line or after a change of colour, followed by white space or the
/// end of the line (tmux strips trailing spaces). A `❯` may be anywhere in the line.
fn has_prompt(raw: &str) -> bool {
    let stands = |rest: &str| rest.is_empty() || rest.starts_with(char::is_whitespace);
    let starts = std::iter::once(raw).chain(after_colours(raw));
    let simple =
        starts.into_iter().any(|text| PROMPTS.iter().any(|prompt| text.strip_prefix(prompt).is_some_and(stands)));
    simple || raw.match_indices('❯').any(|(at, mark)| stands(&raw[at + mark.len()..]))
}

/// Returns the text after each SGR sequence (`ESC [ … m`).
fn after_colours(raw: &str) -> impl Iterator<Item = &str> {
    raw.match_indices("\u{1b}[").filter_map(|(at, mark)| {
        let rest = &raw[at + mark.len()..];
        let numbers = rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == ';');
        numbers.strip_prefix('m')
    })
}

/// Returns the line with single spaces between its words.
fn spaced(line: &str) -> String {
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_agents_that_ask_late_must_show_their_prompt_for_some_time() {
        for (command, steady) in [("gemini", true), ("/opt/qwen -y", true), ("claude", false), ("codex", false)] {
            let argv: Vec<String> = command.split(' ').map(str::to_owned).collect();
            assert_eq!(steady_ms(&argv) > 0, steady, "{command}");
        }
    }

    #[test]
    fn screens_of_agents_and_shells_are_recognised() {
        for (screen, judged) in [
            ("  \u{23f5}\u{23f5} bypass permissions on (shift+tab to cycle)\n", Screen::Ready),
            ("Bypass  Permissions", Screen::Ready),
            ("permission mode: plan", Screen::Ready),
            ("permissions mode", Screen::Ready),
            ("\u{256d} Claude Code v2.1.0 \u{256e}", Screen::Other),
            ("Claude Code vNext", Screen::Other),
            ("opencode v0.3", Screen::Ready),
            ("tab switch agent  ctrl+p commands", Screen::Ready),
            ("x\n$ ", Screen::Ready),
            ("$", Screen::Ready),
            ("$ ls", Screen::Ready),
            (">>> ", Screen::Ready),
            (">>>", Screen::Ready),
            ("> Try \"fix lint\"", Screen::Ready),
            ("\u{276f}", Screen::Ready),
            ("~/src \u{276f} ", Screen::Ready),
            ("\u{1b}[1;32m$ \u{1b}[0m", Screen::Ready),
            ("\u{1b}[0m> x", Screen::Ready),
            ("\u{1b}[2J$ x", Screen::Other),
            ("user@host:~$", Screen::Other),
            ("$HOME is /root", Screen::Other),
            (">>", Screen::Other),
            (">x", Screen::Other),
            ("\u{276f}x", Screen::Other),
            ("costs 5 $ each", Screen::Other),
            ("", Screen::Other),
            ("loading\n\n", Screen::Other),
            ("\u{203a} Ask Codex to do anything\n  ? for shortcuts", Screen::Other),
            ("\u{203a} Ask Codex to do anything\n  gpt \u{b7} ~/src", Screen::Ready),
            ("Select login method:\n \u{276f} 1. Claude account\n   2. Console account", Screen::Asks),
        ] {
            assert_eq!(judge(screen), judged, "{screen:?}");
        }
    }
}
