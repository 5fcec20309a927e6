//! What an agent said, out of what its window shows: without the prompts and without the calls of tools and their output,
//! as claude, codex, gemini and opencode draw them. Pure functions.

/// Marks of a prompt, at the start of a line. Its further lines are indented.
const PROMPTS: [char; 2] = ['❯', '›'];
/// Mark of every line of a prompt, and of what a tool wrote.
const BAR: char = '┃';
/// Lines above and below a prompt.
const EDGES: [char; 2] = ['▄', '▀'];
/// Marks of the output of a tool. Its further lines are indented more than the mark.
const OUTPUTS: [char; 2] = ['⎿', '└'];
/// Marks in front of an answer, and of the call of a tool.
const BULLETS: [char; 3] = ['●', '⏺', '•'];
/// First words of the calls of tools.
const CALLS: [&str; 8] = ["Ran ", "Running ", "Explored", "Exploring", "Edited ", "Added ", "Deleted ", "Called "];
/// Lines between the header of `codex exec` and the prompt, and the lines that begin its parts.
const EXEC: [&str; 2] = ["--------", "user"];
const PARTS: [&str; 6] = ["user", "codex", "thinking", "exec", "apply_patch", "tokens used"];

/// Part of a window that the present line belongs to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Said,
    /// A prompt with its indented lines.
    Prompt,
    /// A prompt between two edges.
    Framed,
    /// Output of a tool whose mark is in this column.
    Output(usize),
}

/// Returns the lines that the agent said. A text of another program is returned as it is.
pub fn said(text: &str) -> String {
    let next = text.lines().skip(1);
    let is_exec = text.lines().zip(next).any(|(line, next)| [line.trim_end(), next.trim_end()] == EXEC);
    if is_exec { said_by_exec(text) } else { said_in_window(text) }
}

fn said_in_window(text: &str) -> String {
    let mut part = Part::Said;
    let is_said = |line: &&str| {
        part = next(part, line);
        let is_mark = line.trim_start().starts_with(BAR) || is_edge(line).is_some() || is_call(line);
        part == Part::Said && !is_mark
    };
    text.lines().filter(is_said).collect::<Vec<_>>().join("\n")
}

/// Returns the part that a line belongs to, which follows `part`.
fn next(part: Part, line: &str) -> Part {
    let bare = line.trim_start();
    let column = line.chars().count() - bare.chars().count();
    if let Some(edge) = is_edge(line) {
        return if edge == EDGES[0] && part != Part::Framed { Part::Framed } else { Part::Said };
    }
    if line.starts_with(PROMPTS) {
        return Part::Prompt;
    }
    if bare.starts_with(OUTPUTS) {
        return Part::Output(column);
    }
    match part {
        Part::Framed => Part::Framed,
        Part::Prompt if column > 0 || bare.is_empty() => Part::Prompt,
        Part::Output(mark) if column > mark || bare.is_empty() => part,
        Part::Said | Part::Prompt | Part::Output(_) => Part::Said,
    }
}

/// Returns the sign of a line that consists of nothing but edges.
fn is_edge(line: &str) -> Option<char> {
    let bare = line.trim();
    EDGES.into_iter().find(|edge| bare.chars().count() > 8 && bare.chars().all(|c| c == *edge))
}

/// Reports whether a line shows the call of a tool: `● Bash(…)` or `• Ran …`.
fn is_call(line: &str) -> bool {
    let Some(text) = line.strip_prefix(BULLETS).map(str::trim_start) else { return false };
    let name = text.len() - text.trim_start_matches(|c: char| c.is_alphanumeric() || "_-".contains(c)).len();
    (name > 0 && text[name..].starts_with('(')) || CALLS.iter().any(|words| text.starts_with(words))
}

/// Returns the answers of `codex exec`, which names each part of its output.
fn said_by_exec(text: &str) -> String {
    let mut part = "";
    let is_said = |line: &&str| {
        let begins = PARTS.into_iter().find(|name| line.trim_end() == *name);
        part = begins.unwrap_or(part);
        begins.is_none() && matches!(part, "codex" | "tokens used")
    };
    text.lines().filter(is_said).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::super::sight::{look, pattern};

    const CLAUDE: &str = include_str!("../../tests/data/screens/claude/printed-menu.txt");
    const CODEX: &str = include_str!("../../tests/data/screens/codex/printed-menu.txt");
    const GEMINI: &str = include_str!("../../tests/data/screens/gemini/printed-list.txt");
    const OPENCODE: &str = include_str!("../../tests/data/screens/opencode/printed-list.txt");

    fn done(screen: &str, words: &str) -> bool {
        look(screen, "", Some(&pattern(words).expect("reads"))).done
    }

    #[test]
    fn a_prompt_is_not_what_the_agent_said() {
        for (screen, prompt) in
            [(CLAUDE, "say Options"), (CODEX, "say Options"), (GEMINI, "PLEASE LIST"), (OPENCODE, "say 1. Yes")]
        {
            assert!(screen.contains(prompt) && !done(screen, prompt), "{screen}");
        }
        // Wrapped, and of several paragraphs.
        let prompt = "❯ do the first task, and print\n  ALL TASKS DONE\n\n  ALL TASKS DONE means: nothing left\n";
        assert!(!done(&format!("{prompt}\n✻ Working…\n"), "ALL TASKS DONE"));
        assert!(done(&format!("{prompt}\n● ALL TASKS DONE\n"), "ALL TASKS DONE"));
    }

    #[test]
    fn an_answer_has_any_bullet_or_none_in_front() {
        for (screen, words) in
            [(CLAUDE, "^Options:$"), (CODEX, "^Options:$"), (GEMINI, "^1. Yes"), (OPENCODE, "^1. Yes")]
        {
            assert!(done(screen, words), "{screen}");
        }
        for answer in ["● ALL TASKS DONE", "• ALL TASKS DONE", "✦ ALL TASKS DONE", "● All is done.\n\n  ALL TASKS DONE"]
        {
            for words in ["^ALL TASKS DONE", "ALL TASKS DONE"] {
                assert!(done(&format!("❯ go on\n\n{answer}\n"), words), "{answer}");
            }
        }
    }

    #[test]
    fn tools_say_nothing() {
        for shown in [
            "● Bash(echo ALL TASKS DONE)\n  ⎿  ALL TASKS DONE\n",
            "● Read(PROMPT.md)\n  ⎿  Print\n     ALL TASKS DONE\n",
            "• Ran cat PROMPT.md\n  └ Print\n    ALL TASKS DONE\n",
            "  ┃  $ cat PROMPT.md\n  ┃  ALL TASKS DONE\n",
        ] {
            assert!(!done(shown, "ALL TASKS DONE"), "{shown}");
            assert!(done(&format!("{shown}\n● ALL TASKS DONE\n"), "ALL TASKS DONE"), "{shown}");
        }
    }

    #[test]
    fn the_parts_of_codex_exec_are_told_apart() {
        let head = "OpenAI Codex v0.169.0\n--------\nworkdir: /repo\n--------\nuser\nprint ALL TASKS DONE\n";
        let tool = "exec\nbash -lc 'cat PROMPT.md' in /repo\n succeeded in 9ms:\nALL TASKS DONE\n";
        assert!(!done(&format!("{head}{tool}codex\nnot yet\n"), "ALL TASKS DONE"));
        assert!(done(&format!("{head}{tool}codex\nALL TASKS DONE\ntokens used\n1,200\n"), "^ALL TASKS DONE"));
    }

    #[test]
    fn text_of_another_program_is_kept() {
        for text in ["> go on\nALL DONE\n", "$ say it\nALL DONE\n", "working\n  ALL DONE\n"] {
            assert!(done(text, "ALL DONE"), "{text}");
        }
    }
}
