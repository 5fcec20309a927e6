//! Typing with a check that the window accepted the text. tmux only passes a text to the terminal of a pane. Whether
//! the program behind it reads the text, only the pane can show, by the echo of the terminal or by what the program
//! draws. A line that is typed without echo, such as a password, cannot be checked.

use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags, open};
use rustix::termios::{LocalModes, tcgetattr};
use swarm_model::dialog::dialog;
use tmux_interface::{CapturePane, DisplayMessage};

#[cfg(test)]
use super::keys::Clear;
use super::keys::SendOptions;
use super::{Tmux, TmuxError, words};

/// Time limit in milliseconds for a window to change after a text was typed.
pub const PROOF_MS_MAX: u64 = 2_000;
/// Pause between two checks of the window, in milliseconds.
const LOOK_MS: u64 = 20;

/// Time limit in milliseconds for a window to show a key, and the pause between two checks.
const KEY_MS_MAX: u64 = 1_000;
const KEY_LOOK_MS: u64 = 60;

/// Content of a pane, with the position of its cursor.
#[derive(PartialEq, Eq)]
pub(super) struct Sight(String);

/// What a pane showed before a key was typed.
pub(super) struct BeforeKey {
    /// The dialog that it showed, if any; see [`asked`].
    asked: Option<String>,
    sight: Sight,
}

/// Returns the dialog that a screen shows, with everything below it: an effect of a key changes this.
fn asked(screen: &str) -> Option<String> {
    let dialog = dialog(screen)?;
    let lines: Vec<&str> = screen.lines().collect();
    let is_first = |line: &&str| dialog.choices.first().is_some_and(|choice| line.contains(choice));
    let first = lines.iter().rposition(is_first).unwrap_or(0);
    Some(format!("{}\n{}", dialog.title, lines[first..].join("\n")))
}

impl Tmux {
    /// Types a text like [`Tmux::send_text`], but does not press Enter if the window does not change.
    ///
    /// # Errors
    /// Returns [`TmuxError::NotShown`] if the window does not change, and otherwise fails as [`Tmux::send_text`]
    /// does.
    pub fn send_proven(&self, pane: &str, text: &str, options: SendOptions) -> Result<(), TmuxError> {
        let screen = self.refuse_dialog(pane)?;
        self.clear_line(pane, &screen, options)?;
        let pasted = words::pasteable(text);
        if !pasted.is_empty() {
            let absent = |error: TmuxError| match error.is_absence() {
                true => TmuxError::NotDelivered { pane: pane.to_owned() },
                false => error,
            };
            let before = self.look(pane).map_err(absent)?;
            self.paste(pane, &pasted)?;
            self.prove(pane, &before)?;
        }
        self.press_enter(pane, text, options)
    }

    /// Waits until the pane differs from `before`.
    fn prove(&self, pane: &str, before: &Sight) -> Result<(), TmuxError> {
        let deadline = Instant::now() + Duration::from_millis(PROOF_MS_MAX);
        loop {
            match self.look(pane) {
                Ok(now) if now != *before => return Ok(()),
                // The text made the command end.
                Err(error) if error.is_absence() => return Ok(()),
                Err(error) => return Err(error),
                Ok(_) => {}
            }
            if self.types_unseen(pane) {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(TmuxError::NotShown { pane: pane.to_owned(), limit_ms: PROOF_MS_MAX });
            }
            std::thread::sleep(Duration::from_millis(LOOK_MS));
        }
    }

    /// Returns what the pane shows before a key is typed.
    ///
    /// # Errors
    /// Returns [`TmuxError::NotDelivered`] if the pane does not exist, or any other error of tmux.
    pub(super) fn before_key(&self, pane: &str) -> Result<BeforeKey, TmuxError> {
        let looked = self.capture(pane, 0, false).and_then(|screen| Ok((asked(&screen), self.look(pane)?)));
        looked.map(|(asked, sight)| BeforeKey { asked, sight }).map_err(|error| match error.is_absence() {
            true => TmuxError::NotDelivered { pane: pane.to_owned() },
            false => error,
        })
    }

    /// Waits until a dialog has reacted to `key`, and until the pane differs from `before` and then stays the same, at most
    /// [`KEY_MS_MAX`]. Fails if a dialog shows no effect of the key: the next key would choose something else. After the
    /// last key only a dialog is waited for.
    pub(super) fn await_key(&self, pane: &str, before: &BeforeKey, key: &str, is_last: bool) -> Result<(), TmuxError> {
        let deadline = Instant::now() + Duration::from_millis(KEY_MS_MAX);
        let mut last = None;
        loop {
            if is_last && before.asked.is_none() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(KEY_LOOK_MS));
            // Only the dialog counts if there is one: what else is on the screen may change by itself.
            let is_ignored = before.asked.is_some() && before.asked == asked(&self.capture(pane, 0, false)?);
            let now = self.look(pane)?;
            let is_settled = is_last || now != before.sight && last.as_ref() == Some(&now);
            if !is_ignored && is_settled {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return if is_ignored { Err(TmuxError::KeyIgnored { key: key.to_owned() }) } else { Ok(()) };
            }
            last = Some(now);
        }
    }

    pub(super) fn look(&self, pane: &str) -> Result<Sight, TmuxError> {
        let cursor = DisplayMessage::new().print().target_pane(pane).message("#{cursor_x},#{cursor_y} #{history_size}");
        let shown = CapturePane::new().stdout().target_pane(pane);
        self.ask([self.identity(pane), cursor.build(), shown.build()]).map(Sight)
    }

    /// Reports whether the terminal reads lines without echo. Also true if that cannot be determined, so that an
    /// unreadable terminal does not count against the window.
    fn types_unseen(&self, pane: &str) -> bool {
        let hides = |modes: LocalModes| modes.contains(LocalModes::ICANON) && !modes.contains(LocalModes::ECHO);
        self.terminal_modes(pane).is_none_or(hides)
    }

    /// Reports whether the program reads each key itself. The terminal takes Enter for any other program.
    pub(super) fn reads_keys(&self, pane: &str) -> bool {
        self.terminal_modes(pane).is_some_and(|modes| !modes.contains(LocalModes::ICANON))
    }

    /// Returns the modes of a pane's terminal, `None` if they cannot be read.
    fn terminal_modes(&self, pane: &str) -> Option<LocalModes> {
        let name = DisplayMessage::new().print().target_pane(pane).message("#{pane_tty}");
        let path = self.ask([name.build()]).ok()?;
        let flags = OFlags::RDONLY | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let terminal = open(path.trim(), flags, Mode::empty()).ok()?;
        tcgetattr(&terminal).ok().map(|state| state.local_modes)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Private, wait_until};
    use super::*;

    const PLAIN: SendOptions = SendOptions { clear: Clear::Nothing, enter: true };

    #[test]
    fn a_window_that_shows_the_text_accepted_it() {
        let server = Private::new();
        let window = server.open("job", "printf 'ready '; while read line; do echo \"got $line\"; done");
        wait_until("it reads", || server.logged("job").contains("ready"));
        let pane = &window.pane.pane;
        assert_eq!(server.tmux().send_proven(pane, "one", PLAIN), Ok(()));
        wait_until("it came", || server.logged("job").contains("got one"));
    }

    #[test]
    fn nothing_is_typed_into_a_dialog() {
        let server = Private::new();
        let menu = "Do you want to proceed?\\n ❯ 1. Yes\\n   2. No\\n\\n Esc to cancel\\n";
        let script = format!("printf '{menu}'; read -r key; printf 'got %s' \"$key\"; read more");
        let window = server.open("job", &script);
        wait_until("it asks", || server.logged("job").contains("Esc to cancel"));
        let (tmux, pane) = (server.tmux(), &window.pane.pane);
        for text in ["1", "yes, go on", ""] {
            for sent in [tmux.send_proven(pane, text, PLAIN), tmux.send_text(pane, text, PLAIN)] {
                assert!(
                    matches!(&sent, Err(TmuxError::Asks(dialog)) if dialog.choices == ["1. Yes", "2. No"]),
                    "{sent:?}"
                );
            }
        }
        assert!(matches!(tmux.interrupt(pane), Err(TmuxError::Asks(_))));
        // Named keys answer it.
        let keys = ["1", "Enter"].map(|name| super::super::NamedKey::parse(name).expect("a key"));
        assert_eq!(tmux.send_named(pane, &keys), Ok(()));
        wait_until("it is answered", || server.logged("job").contains("got 1"));
        assert!(!server.logged("job").contains("got 11"));
    }

    #[test]
    fn a_draft_is_not_submitted_with_a_text_that_refuses_drafts() {
        let server = Private::new();
        let line = "────\\n❯ \\033[2mTry it\\033[0m\\n────\\nidle\\n";
        let script = format!(
            "printf '{line}'; read -r one; printf '\\033[2J\\033[H────\\n❯ a draft\\n────\\ndrafted'; read -r two"
        );
        let window = server.open("job", &script);
        wait_until("it is idle", || server.logged("job").contains("idle"));
        let (tmux, pane) = (server.tmux(), &window.pane.pane);
        let options = SendOptions { clear: Clear::Refuse, enter: true };
        assert_eq!(tmux.send_text(pane, "go on", options), Ok(()), "a placeholder is no draft");
        wait_until("it shows a draft", || server.logged("job").contains("drafted"));
        assert_eq!(tmux.send_text(pane, "more", options), Err(TmuxError::Drafted("a draft".to_owned())));
        assert!(!server.logged("job").contains("more"));
    }

    #[test]
    fn keys_after_one_that_a_dialog_ignores_are_not_pressed() {
        let server = Private::new();
        let menu = "Do you want to proceed?\\n ❯ 1. Yes\\n   2. No\\n\\n Esc to cancel\\n";
        let script = format!("stty -echo; printf '{menu}'; read -r key; printf 'got %s' \"$key\"; read more");
        let window = server.open("job", &script);
        wait_until("it asks", || server.logged("job").contains("Esc to cancel"));
        let keys = ["2", "Enter"].map(|name| super::super::NamedKey::parse(name).expect("a key"));
        let ignored = TmuxError::KeyIgnored { key: "2".to_owned() };
        assert_eq!(server.tmux().send_named(&window.pane.pane, &keys), Err(ignored));
        assert!(!server.logged("job").contains("got"));
    }

    #[test]
    fn a_last_key_that_a_dialog_ignores_is_an_error() {
        let server = Private::new();
        let menu = "Do you want to proceed?\\n ❯ 1. Yes\\n   2. No\\n\\n Esc to cancel\\n";
        let ticks = "i=0; while sleep 0.05; do i=$((i+1)); printf '\\033[1;1H%s\\033[9;1H' $i; done";
        let script = format!("stty -echo; printf '\\n\\n{menu}'; {ticks}");
        let window = server.open("job", &script);
        wait_until("it asks", || server.logged("job").contains("Esc to cancel"));
        let keys = ["y"].map(|name| super::super::NamedKey::parse(name).expect("a key"));
        let ignored = TmuxError::KeyIgnored { key: "y".to_owned() };
        assert_eq!(server.tmux().send_named(&window.pane.pane, &keys), Err(ignored));
    }

    #[test]
    fn a_last_key_that_ends_the_command_has_an_effect() {
        let server = Private::new();
        let menu = "Do you want to proceed?\\n ❯ 1. Yes\\n   2. No\\n\\n Esc to cancel\\n";
        let window = server.open("job", &format!("stty raw -echo; printf '{menu}'; head -c 1 >/dev/null"));
        wait_until("it asks", || server.logged("job").contains("Esc to cancel"));
        let keys = ["y"].map(|name| super::super::NamedKey::parse(name).expect("a key"));
        assert_eq!(server.tmux().send_named(&window.pane.pane, &keys), Ok(()));
    }

    #[test]
    fn a_password_is_not_checked() {
        let server = Private::new();
        let window = server.open("job", "stty -echo; printf 'ready '; read line; echo \"got $line\"; read more");
        wait_until("it reads", || server.logged("job").contains("ready"));
        assert_eq!(server.tmux().send_proven(&window.pane.pane, "secret", PLAIN), Ok(()));
        wait_until("it came", || server.logged("job").contains("got secret"));
    }

    #[test]
    fn a_program_that_reads_no_keys_is_an_error_and_enter_is_not_pressed() {
        let server = Private::new();
        let window = server.open("job", "stty raw -echo; printf 'ready '; exec tail -f /dev/null");
        wait_until("it is deaf", || server.logged("job").contains("ready"));
        let pane = &window.pane.pane;
        let refused = TmuxError::NotShown { pane: pane.clone(), limit_ms: PROOF_MS_MAX };
        assert_eq!(server.tmux().send_proven(pane, "one", PLAIN), Err(refused));
    }
}
