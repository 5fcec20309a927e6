//! Choice of the keys that empty an input line before a text is typed. Pure.
//!
//! Escape closes what lies over the line of an idle agent, but ends the turn of one that works. A screen may be late in
//! showing that an agent works. So an agent whose input line is on the screen gets no Escape, whatever else is there.

use crate::screen::shows_work;

/// Keys that empty an input line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clearing {
    /// Ctrl-U, which also closes a menu that completes the line.
    Line,
    /// Ctrl-U, and Backspace on the empty line, which leaves its mode.
    Mode,
    /// Escape and Ctrl-U.
    Whole,
}

/// Sign in front of the input line of claude, and the one in its shell mode.
const INPUT: char = '❯';
const SHELL: char = '!';
/// Line above and below the input line of claude.
const RULE: char = '─';
const RULE_CHARS_MIN: usize = 4;

/// Returns the keys that empty the input line of the program on this screen.
pub fn clearing(screen: &str) -> Clearing {
    match claude_input(screen) {
        Some(INPUT) => Clearing::Line,
        Some(_) => Clearing::Mode,
        None if shows_work(screen) => Clearing::Line,
        None => Clearing::Whole,
    }
}

/// Returns the sign of the input line of claude, which is below the last but one rule. `None` if there is no such line.
fn claude_input(screen: &str) -> Option<char> {
    let is_rule = |line: &str| line.chars().count() >= RULE_CHARS_MIN && line.chars().all(|c| c == RULE);
    let lines: Vec<&str> = screen.lines().map(str::trim_end).collect();
    let below = lines.iter().rposition(|line| is_rule(line))?;
    let above = lines[..below].iter().rposition(|line| is_rule(line))?;
    lines[above + 1].chars().next().filter(|sign| [INPUT, SHELL].contains(sign))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_at_work_gets_no_escape() {
        for (name, screen, keys) in [
            ("claude works", include_str!("../../tests/data/screens/claude/working.txt"), Clearing::Line),
            ("claude runs a tool", include_str!("../../tests/data/screens/claude/working-tool.txt"), Clearing::Line),
            ("a menu at work", include_str!("../../tests/data/screens/claude/slash-working.txt"), Clearing::Line),
            (
                "a shell mode at work",
                include_str!("../../tests/data/screens/claude/shell-mode-working.txt"),
                Clearing::Mode,
            ),
            ("claude may have begun", include_str!("../../tests/data/screens/claude/idle.txt"), Clearing::Line),
            ("a draft", include_str!("../../tests/data/screens/claude/draft.txt"), Clearing::Line),
            ("a menu", include_str!("../../tests/data/screens/claude/slash.txt"), Clearing::Line),
            ("codex works", include_str!("../../tests/data/screens/codex/working.txt"), Clearing::Line),
            ("gemini works", include_str!("../../tests/data/screens/gemini/working.txt"), Clearing::Line),
            ("opencode works", include_str!("../../tests/data/screens/opencode/working-tool.txt"), Clearing::Line),
            ("qwen works", include_str!("../../tests/data/screens/qwen/working.txt"), Clearing::Line),
        ] {
            assert_eq!(clearing(screen), keys, "{name}\n{screen}");
        }
    }

    #[test]
    fn escape_closes_what_hides_the_input_line() {
        for screen in [
            include_str!("../../tests/data/screens/claude/history.txt"),
            include_str!("../../tests/data/screens/gemini/idle.txt"),
            "$ ls",
            "────\n────",
            "────\n! not an input line",
            "",
        ] {
            assert_eq!(clearing(screen), Clearing::Whole, "{screen}");
        }
    }
}
