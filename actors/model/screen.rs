//! Recognition of screens on which an agent or a shell waits for input, or asks a question of a first start. Pure.

/// Kind of a screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Screen {
    /// Waits for a task.
    Ready,
    /// Asks a question of a first start. Enter accepts the default.
    Asks,
    Other,
}

/// Phrases, in lower case, that agents show when they are ready.
const READY_WORDS: [&str; 6] = [
    "bypass permissions",
    "permission mode",
    "permissions mode",
    "shift+tab to cycle",
    "tab switch agent",
    "ctrl+p commands",
];
/// Phrases, in lower case, that precede a version number on the screen of a ready agent.
const READY_VERSIONS: [&str; 2] = ["claude code v", "opencode v"];
/// Prompts at the start of a line.
const PROMPTS: [&str; 3] = [">", "$", ">>>"];
/// Phrases, in lower case, of questions of a first start.
const ASKING_WORDS: [&str; 4] =
    ["choose the text style", "looks best with your terminal", "select login method", "paste code here"];

/// Returns the kind of a screen. A question takes precedence, because it may show a prompt next to its choices.
pub fn judge(screen: &str) -> Screen {
    let lines: Vec<String> = screen.lines().map(spaced).collect();
    if lines.iter().any(|line| ASKING_WORDS.iter().any(|words| line.to_lowercase().contains(words))) {
        return Screen::Asks;
    }
    if screen.lines().zip(&lines).any(|(raw, line)| is_ready(raw, &line.to_lowercase())) {
        return Screen::Ready;
    }
    Screen::Other
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
    fn screens_of_agents_and_shells_are_recognised() {
        for (screen, judged) in [
            ("  \u{23f5}\u{23f5} bypass permissions on (shift+tab to cycle)\n", Screen::Ready),
            ("Bypass  Permissions", Screen::Ready),
            ("permission mode: plan", Screen::Ready),
            ("permissions mode", Screen::Ready),
            ("\u{256d} Claude Code v2.1.0 \u{256e}", Screen::Ready),
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
            ("Choose the text style that looks best with your terminal\n> 1. Dark", Screen::Asks),
            ("Select login method:\n \u{276f} 1. Claude account", Screen::Asks),
            ("Paste code here if prompted >", Screen::Asks),
        ] {
            assert_eq!(judge(screen), judged, "{screen:?}");
        }
    }
}
