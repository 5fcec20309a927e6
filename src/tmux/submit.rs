//! Enter after a text, pressed again if the program did not take it: some agents show what is typed while they start, and
//! ignore Enter until they have started.

use std::time::{Duration, Instant};

use super::keys::Key;
use super::{Tmux, TmuxError};

/// Time limit in milliseconds for an input line to give up its text after Enter.
const SUBMIT_MS_MAX: u64 = 15_000;
/// Time without a change of the window, in milliseconds, after which Enter is pressed again.
const AGAIN_MS: u64 = 700;
/// Pause between two checks of the window, in milliseconds.
const LOOK_MS: u64 = 50;
/// Marks in front of the input lines of agents.
const MARKS: [char; 5] = ['>', '❯', '›', '*', '!'];
/// Number of characters of a text that are looked for.
const BEGIN_CHARS: usize = 24;
/// Text, in lower case, in the empty input lines of gemini and qwen.
const PLACEHOLDER: &str = "type your message";
/// Text that agents show in place of a long one.
const PASTED: &str = "[Pasted ";

/// Reports whether the input line of an agent, which is the last one, shows this text.
fn holds(screen: &str, text: &str) -> bool {
    let input = screen.lines().rev().find_map(|line| {
        let rest = line.trim().strip_prefix(MARKS)?;
        (rest.is_empty() || rest.starts_with([' ', '\u{a0}'])).then_some(rest)
    });
    let begin: String = text.trim().lines().next().unwrap_or_default().chars().take(BEGIN_CHARS).collect();
    let begin = begin.trim_end();
    input.is_some_and(|input| !begin.is_empty() && (input.contains(begin) || input.contains(PASTED)))
}

/// Reports whether the input line of gemini or qwen, which is the last one, shows that it is empty.
fn is_empty_input(screen: &str) -> bool {
    let input = screen.lines().rev().find_map(|line| line.trim().strip_prefix(MARKS));
    input.is_some_and(|input| input.trim_start().to_lowercase().starts_with(PLACEHOLDER))
}

impl Tmux {
    /// Presses Enter, and again as long as the input line of an agent holds `text` and the window does not change. Never
    /// presses Enter into a dialog.
    ///
    /// # Errors
    /// Returns [`TmuxError::NotSubmitted`] if the input line still holds the text after [`SUBMIT_MS_MAX`], and otherwise
    /// fails as [`Tmux::send_key`] does.
    pub(super) fn submit(&self, pane: &str, text: &str) -> Result<(), TmuxError> {
        let deadline = Instant::now() + Duration::from_millis(SUBMIT_MS_MAX);
        if !text.trim().is_empty() {
            self.await_input(pane, deadline)?;
        }
        let mut before = self.typed(pane, text)?.filter(|_| self.reads_keys(pane));
        self.send_key(pane, Key::Enter)?;
        let mut since = Instant::now();
        while let Some(last) = before {
            std::thread::sleep(Duration::from_millis(LOOK_MS));
            before = match self.typed(pane, text) {
                Ok(now) => now,
                // The text made the command end, or the agent ask: it was taken.
                Err(error)
                    if error.is_absence() || matches!(error, TmuxError::Asks(_) | TmuxError::NotDelivered { .. }) =>
                {
                    None
                }
                Err(error) => return Err(error),
            };
            if before.is_some() && Instant::now() >= deadline {
                return Err(TmuxError::NotSubmitted { pane: pane.to_owned(), limit_ms: SUBMIT_MS_MAX });
            }
            if before.as_ref() != Some(&last) {
                since = Instant::now();
            } else if since.elapsed() >= Duration::from_millis(AGAIN_MS) {
                self.send_key(pane, Key::Enter)?;
                since = Instant::now();
            }
        }
        Ok(())
    }

    /// Waits until the input line of an agent shows the text that was typed. An agent that has just started draws it late, and
    /// takes Enter before that for a part of the text.
    ///
    /// # Errors
    /// Returns [`TmuxError::NotSubmitted`] if the input line is still empty at the deadline, and otherwise fails as
    /// [`Tmux::capture`] does.
    fn await_input(&self, pane: &str, deadline: Instant) -> Result<(), TmuxError> {
        while is_empty_input(&self.refuse_dialog(pane)?) {
            if Instant::now() >= deadline {
                return Err(TmuxError::NotSubmitted { pane: pane.to_owned(), limit_ms: SUBMIT_MS_MAX });
            }
            std::thread::sleep(Duration::from_millis(LOOK_MS));
        }
        Ok(())
    }

    /// Returns the screen of a pane if its input line holds this text.
    ///
    /// # Errors
    /// Returns [`TmuxError::Asks`] if the pane shows a dialog, and otherwise fails as [`Tmux::capture`] does.
    fn typed(&self, pane: &str, text: &str) -> Result<Option<String>, TmuxError> {
        let screen = self.refuse_dialog(pane)?;
        Ok(holds(&screen, text).then_some(screen))
    }
}

#[cfg(test)]
mod tests {
    use super::super::keys::{Clear, SendOptions};
    use super::super::testing::{Private, wait_until};
    use super::*;

    const PLAIN: SendOptions = SendOptions { clear: Clear::Nothing, enter: true };

    #[test]
    fn only_the_input_line_of_an_agent_holds_a_text() {
        let gemini = include_str!("../../tests/data/screens/gemini/typed.txt");
        assert!(holds(gemini, "[[as t]] [[say done]]"), "{gemini}");
        for (agent, text, screen) in [
            ("gemini", "GO PLEASE RUN", include_str!("../../tests/data/screens/gemini/working.txt")),
            ("gemini", "GO PLEASE RUN", include_str!("../../tests/data/screens/gemini/idle.txt")),
            ("codex", "[[as t]] [[bash echo one]]", include_str!("../../tests/data/screens/codex/interrupted.txt")),
            ("claude", "[[as t]] [[bash echo one]]", include_str!("../../tests/data/screens/claude/interrupted.txt")),
        ] {
            assert!(screen.contains(text) && !holds(screen, text), "{agent}\n{screen}");
        }
        assert!(!holds("❯ make test\n\n❯\n", "make test"), "an empty input line");
        assert!(holds(" *   [Pasted Text: 12 lines]\n", "one\ntwo"));
        assert!(!holds("$ make test\n", "make test") && !holds("", "x") && !holds("> ", ""));
    }

    #[test]
    fn an_input_line_is_empty_while_it_says_what_to_type() {
        for (screen, is_empty) in [
            (include_str!("../../tests/data/screens/gemini/start.txt"), true),
            (include_str!("../../tests/data/screens/qwen/start.txt"), true),
            (include_str!("../../tests/data/screens/gemini/typed.txt"), false),
            (include_str!("../../tests/data/screens/claude/idle.txt"), false),
            ("> ", false),
            ("", false),
        ] {
            assert_eq!(is_empty_input(screen), is_empty, "{screen}");
        }
    }

    #[test]
    fn enter_waits_for_a_text_that_is_shown_late() {
        let server = Private::new();
        // Takes three characters, but shows none of them at first, and ignores an Enter before it does.
        let script = "stty raw -echo; printf 'ready\\r\\n >   Type your message'; dd bs=1 count=3 >/dev/null 2>&1; \
            printf ' '; sleep 1; stty min 0 time 0; dd bs=1 count=9 >/dev/null 2>&1; stty min 1; \
            printf '\\r > one\\033[K'; dd bs=1 count=1 >/dev/null 2>&1; printf '\\r\\n > \\r\\ntaken'; sleep 9";
        let window = server.open("job", script);
        wait_until("it reads", || server.logged("job").contains("Type"));
        let began = Instant::now();
        assert_eq!(server.tmux().send_proven(&window.pane.pane, "one", PLAIN), Ok(()));
        wait_until("it is taken", || server.logged("job").contains("taken"));
        assert!(began.elapsed() < Duration::from_millis(SUBMIT_MS_MAX), "Enter was pressed when it could be taken");
    }

    #[test]
    fn enter_is_pressed_once_if_the_terminal_takes_it() {
        let server = Private::new();
        let script = "printf 'ready\\n> '; read line; sleep 2; read more && printf again; sleep 1";
        let window = server.open("job", script);
        wait_until("it reads", || server.logged("job").contains("ready"));
        let began = Instant::now();
        assert_eq!(server.tmux().send_proven(&window.pane.pane, "one", PLAIN), Ok(()));
        assert!(began.elapsed() < Duration::from_millis(SUBMIT_MS_MAX), "it does not wait for another input line");
        assert!(!server.logged("job").contains("again"));
    }

    #[test]
    fn enter_that_an_agent_ignored_is_pressed_again_and_only_then() {
        let server = Private::new();
        let key = "dd bs=1 count=1 >/dev/null 2>&1";
        // Takes three characters, ignores the first Enter, takes the second one, and reports a third.
        let script = format!(
            "stty raw -echo; printf 'ready\\r\\n> '; dd bs=1 count=3 2>/dev/null; {key}; {key}; printf '\\r\\n> \\r\\ntaken\\r\\n'; {key}; printf again; sleep 1"
        );
        let window = server.open("job", &script);
        wait_until("it reads", || server.logged("job").contains("ready"));
        assert_eq!(server.tmux().send_proven(&window.pane.pane, "one", PLAIN), Ok(()));
        wait_until("it is taken", || server.logged("job").contains("taken"));
        assert!(!server.logged("job").contains("again"));
    }
}
