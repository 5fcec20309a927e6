//! Reads the state of an agent from the content of its window. Pure functions.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use regex::{Regex, RegexBuilder};
use serde::{Deserialize, Serialize};
use swarm_model::dialog::obstacle;

use super::said::said;

/// Texts of screens at which an agent is stuck, and the warning for each.
pub const STUCK: [(&str, &str); 4] = [
    ("Select login method", "Worker stuck at login prompt. Check auth credentials."),
    ("Choose the text style", "Worker stuck at theme picker. Check settings.local.json."),
    ("looks best with your terminal", "Worker stuck at theme picker. Check settings.local.json."),
    ("Paste code here", "Worker stuck at OAuth code entry. Use ANTHROPIC_API_KEY instead."),
];
/// Texts that show that the agent is compacting its context.
const FATAL: [&str; 1] = ["Compacting conversation"];
/// Number of last lines whose change shows that the agent is active.
const LIVELY_LINES: usize = 20;
/// Marks at the start of an input line, as agents and shells draw it.
const MARKS: [char; 8] = ['>', '❯', '›', '»', '│', '┃', '$', '%'];
/// Marks at the start of an answer, as claude, codex and gemini draw it.
const ANSWERS: [char; 4] = ['●', '⏺', '•', '✦'];
/// Number of last lines that may show how full the context is.
const CONTEXT_LINES: usize = 3;

/// Result of one read of a window.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sight {
    /// Hash of the last lines. Differs if they differ.
    pub hash: u64,
    pub done: bool,
    /// Indexes into [`STUCK`].
    pub stuck: Vec<usize>,
    /// Why the agent cannot work before a person acts.
    pub obstacle: Option<String>,
    pub fatal: bool,
    /// Context use in percent.
    pub context: Option<u32>,
    /// Time since the last change, in milliseconds.
    pub quiet_ms: u64,
    /// Whether the first iteration's agent has had its time to get past its startup screens.
    pub preflight: bool,
}

/// Evaluates the content of a window. `baseline` is its content when the prompt was typed, mostly
/// the prompt itself.
pub fn look(text: &str, baseline: &str, pattern: Option<&Regex>) -> Sight {
    let text = plain(text);
    let fresh = fresh(&text, baseline);
    let lively = last_lines(&text, LIVELY_LINES);
    let mut hasher = DefaultHasher::new();
    lively.hash(&mut hasher);
    // Not compared with the baseline: stuck screens may be older than the prompt, which was then
    // typed into them.
    let recent = lively.join("\n");
    let is_shown = |(at, (words, _)): (usize, &(&str, &str))| recent.contains(words).then_some(at);
    Sight {
        hash: hasher.finish(),
        done: pattern.is_some_and(|pattern| matches(pattern, &fresh_said(&text, baseline))),
        stuck: STUCK.iter().enumerate().filter_map(is_shown).collect(),
        obstacle: obstacle(&text),
        fatal: FATAL.iter().any(|words| fresh.contains(words)),
        context: context(&text),
        quiet_ms: 0,
        preflight: false,
    }
}

/// Reports whether a worker's output since its prompt matches the done pattern.
pub fn says_done(written: &str, baseline: &str, pattern: &Regex) -> bool {
    matches(pattern, &answered(&said(&plain(written)), baseline))
}

/// Returns what the agent said since its prompt. The prompt is removed first where an agent shows it in its own way, since
/// it may be wrapped differently there.
fn fresh_said(text: &str, baseline: &str) -> String {
    match text.strip_prefix(baseline.trim_end()) {
        Some(rest) => said(rest),
        None => fresh(&said(text), baseline),
    }
}

/// Matches a pattern with or without the marks that agents draw before an answer, so that `^` is the start of the answer.
fn matches(pattern: &Regex, text: &str) -> bool {
    let bare = |line: &str| line.trim().trim_start_matches(ANSWERS).trim_start().to_owned();
    pattern.is_match(text) || pattern.is_match(&text.lines().map(bare).collect::<Vec<_>>().join("\n"))
}

/// Compiles a done pattern; `^` and `$` match at the ends of each line.
///
/// # Errors
/// Returns the reason why the pattern is not valid.
pub fn pattern(text: &str) -> Result<Regex, String> {
    RegexBuilder::new(text).multi_line(true).build().map_err(|error| match error {
        regex::Error::Syntax(said) => said.lines().last().unwrap_or("invalid pattern").trim().to_owned(),
        error => error.to_string(),
    })
}

/// Returns the part of `text` that is newer than `baseline`: the rest after it or, if the window
/// was redrawn, the lines that occur more often than in the baseline.
///
/// Lines that scrolled away are no longer in the window. Lines therefore count as old only from the
/// top of the window, from the baseline's first line, or from the mark of an input line.
fn fresh(text: &str, baseline: &str) -> String {
    let baseline = baseline.trim_end();
    if let Some(rest) = text.strip_prefix(baseline) {
        return rest.to_owned();
    }
    let mut known: BTreeMap<&str, usize> = BTreeMap::new();
    for line in shown(baseline) {
        *known.entry(line).or_default() += 1;
    }
    let first = shown(baseline).next();
    let mut is_old = true;
    let is_new = |line: &&str| {
        let line = line.trim();
        if line.is_empty() {
            return true;
        }
        let count = known.get_mut(line).filter(|count| **count > 0);
        match count {
            Some(count) if is_old || Some(line) == first || line.starts_with(MARKS) => {
                *count -= 1;
                is_old = true;
            }
            _ => is_old = false,
        }
        !is_old
    };
    text.lines().filter(is_new).collect::<Vec<_>>().join("\n")
}

/// Returns the output after a prompt without the prompt itself: a full-screen program shows the
/// prompt again, from its mark on. Any other line is the agent's own, even if the prompt has it
/// too.
fn answered(written: &str, baseline: &str) -> String {
    let known: Vec<&str> = shown(baseline).collect();
    let mut next = known.len();
    let is_new = |line: &&str| {
        let line = line.trim();
        if line.is_empty() {
            return true;
        }
        if known.get(next) == Some(&line) {
            next += 1;
            return false;
        }
        let again = known.iter().rposition(|known| *known == line && line.starts_with(MARKS));
        next = again.map_or(known.len(), |at| at + 1);
        again.is_none()
    };
    written.lines().filter(is_new).collect::<Vec<_>>().join("\n")
}

/// Returns the trimmed lines that are not blank.
fn shown(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty())
}

/// Returns the largest of the first percentages of the last lines that are not blank.
fn context(text: &str) -> Option<u32> {
    let lines = text.lines().rev().filter(|line| !line.trim().is_empty()).take(CONTEXT_LINES);
    lines.filter_map(percentage).max()
}

/// Returns the first `NUMBER%` of a line.
fn percentage(line: &str) -> Option<u32> {
    line.match_indices('%').find_map(|(at, _)| {
        let digits = line[..at].len() - line[..at].trim_end_matches(|c: char| c.is_ascii_digit()).len();
        line[at - digits..at].parse().ok()
    })
}

/// Returns the last lines, without the blank rest of the screen.
fn last_lines(text: &str, count: usize) -> Vec<&str> {
    let lines: Vec<&str> = text.trim_end().lines().collect();
    lines[lines.len().saturating_sub(count)..].to_vec()
}

/// Removes color sequences (`ESC [ … m`).
fn plain(text: &str) -> String {
    let mut parts = text.split("\u{1b}[");
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let rest = part.trim_start_matches(|c: char| c.is_ascii_digit() || c == ';');
        match rest.strip_prefix('m') {
            Some(rest) => plain.push_str(rest),
            None => {
                plain.push_str("\u{1b}[");
                plain.push_str(part);
            }
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done(text: &str, baseline: &str) -> bool {
        look(text, baseline, Some(&pattern("All (tasks )?done").expect("reads"))).done
    }

    #[test]
    fn the_prompt_itself_is_not_taken_for_an_answer() {
        let baseline = "$ say All done when through\n";
        assert!(!done(baseline, baseline));
        assert!(done("$ say All done when through\nworking\nAll tasks done\n", baseline));
        // Scrolled or redrawn.
        assert!(!done("banner\n$ say All done when through\nworking\n", baseline));
        assert!(done("banner\n$ say All done when through\nAll done\n", baseline));
        assert!(done("All done\n\n\n", ""));
        // The same line once more.
        assert!(done("x\nAll done\nAll done\n", "All done\n"));
        assert!(!done("x\nAll done\n", "All done\n"));
    }

    #[test]
    fn anchors_match_at_line_ends() {
        let is_done = |pattern: &str, text: &str, baseline: &str| {
            look(text, baseline, Some(&super::pattern(pattern).expect("reads"))).done
        };
        let baseline = "$ go on; say ALL TASKS DONE at last";
        let answer = |text: &str| format!("{baseline}\n{text}\n\n");
        assert!(is_done("^ALL TASKS DONE", &answer("ALL TASKS DONE"), baseline));
        assert!(is_done("^ALL TASKS DONE$", &answer("working\nALL TASKS DONE\n$ "), baseline));
        assert!(!is_done("^ALL TASKS DONE", &answer("not ALL TASKS DONE"), baseline));
        for mark in ["● ", "⏺ ", "•  "] {
            assert!(is_done("^ALL TASKS DONE$", &answer(&format!("{mark}ALL TASKS DONE")), baseline));
            assert!(is_done("^. +ALL TASKS", &answer(&format!("{mark}ALL TASKS DONE")), baseline), "as it is shown");
            assert!(!is_done("^ALL TASKS DONE", &answer(&format!("{mark}not ALL TASKS DONE")), baseline));
        }
        let written = super::pattern("^ALL TASKS DONE").expect("reads");
        assert!(says_done("\nworking\nALL TASKS DONE\n", baseline, &written));
        assert!(says_done("\nworking\n● ALL TASKS DONE\n", baseline, &written));
        assert!(!says_done("\nnot ALL TASKS DONE\n", baseline, &written));
    }

    #[test]
    fn an_answer_that_repeats_the_prompt_counts() {
        let pattern = pattern("^ *ALL DONE").expect("reads");
        for baseline in ["do it, then say\nALL DONE\n", "tip\n> do it, then say\n  ALL DONE\n"] {
            assert!(says_done("\nworking\nALL DONE\n", baseline, &pattern), "{baseline}");
            // The prompt has scrolled away.
            assert!(look("working\nALL DONE\n", baseline, Some(&pattern)).done, "{baseline}");
        }
        // A full-screen program shows the prompt again, once or several times.
        let drawn = "> do it, then say\n\n  ALL DONE\n* Working\n";
        let baseline = "tip\n> do it, then say\n\n  ALL DONE\n";
        assert!(!says_done(&drawn.repeat(3), baseline, &pattern));
        assert!(says_done(&format!("{drawn}  ALL DONE\n"), baseline, &pattern));
        assert!(!look(drawn, baseline, Some(&pattern)).done);
        assert!(look(&format!("{drawn}  ALL DONE\n"), baseline, Some(&pattern)).done);
        assert!(!look("  ALL DONE\nworking\n", baseline, Some(&pattern)).done, "the rest of the prompt at the top");
    }

    #[test]
    fn stuck_and_fatal_screens_are_recognized() {
        let sight = look("\u{1b}[1mSelect login method\u{1b}[0m:\n > 1\n\n\n", "", None);
        assert_eq!((sight.stuck, sight.fatal), (vec![0], false));
        assert!(look("x\n* Compacting conversation…\n", "x\n", None).fatal);
        assert!(
            !look(
                "when you see Compacting conversation, stop\nok",
                "when you see Compacting conversation, stop\n",
                None
            )
            .fatal
        );
    }

    #[test]
    fn the_context_is_read_from_the_last_lines() {
        let context = |text: &str| look(text, "", None).context;
        assert_eq!(context("99%\na\nb\nctx: 72% used\n\n\n"), Some(72));
        assert_eq!(context("99%\na\nb\nc\n"), None);
        assert_eq!(context("% 5 %x\n100 %\n 8%\n"), Some(8));
        assert_eq!(context("999999999999%"), None);
    }

    #[test]
    fn only_the_last_lines_change_the_hash() {
        let hash = |text: &str| look(text, "", None).hash;
        let lines = |first: &str| format!("{first}\n{}", "x\n".repeat(20));
        assert_eq!(hash(&lines("a")), hash(&lines("b")));
        assert_ne!(hash("a\n"), hash("b\n"));
        assert_eq!(hash("a\n\n\n"), hash("\u{1b}[31ma\n"));
    }

    #[test]
    fn a_bad_pattern_has_a_short_message() {
        assert_eq!(pattern("a(").expect_err("is bad"), "error: unclosed group");
        assert!(pattern(r"\d+ (?i)DONE").is_ok());
    }
}
