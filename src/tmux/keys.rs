//! Typing into a pane: text by paste buffer, keys one by one. Each is typed only if the pane exists and its command
//! runs. tmux checks that and acts in one step, so that nothing can come between.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use swarm_model::clearing::{Clearing, clearing};
use swarm_model::dialog::dialog;
use swarm_model::drafts;
use tmux_interface::{DeleteBuffer, IfShell};

use super::{Tmux, TmuxError, words};

/// What is pressed before a text, so that it is typed on an empty line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clear {
    Nothing,
    /// Nothing, and no text is typed if the input line of an agent holds one already.
    Refuse,
    /// C-u.
    Line,
    /// C-u, and what closes what lies over the line: Escape, unless an agent may be at work.
    Whole,
}

/// How to type a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendOptions {
    pub clear: Clear,
    /// Press Enter afterwards.
    pub enter: bool,
}

/// Key that can be typed into a pane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// C-c
    Interrupt,
    /// C-d
    Eof,
    Enter,
    Escape,
    /// C-u
    ClearLine,
    Backspace,
}

impl Key {
    fn tmux(self) -> &'static str {
        match self {
            Self::Interrupt => "C-c",
            Self::Eof => "C-d",
            Self::Enter => "Enter",
            Self::Escape => "Escape",
            Self::ClearLine => "C-u",
            Self::Backspace => "BSpace",
        }
    }
}

/// Key that a person names, as tmux writes it. Only names of the list can be put into a command of tmux.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedKey(String);

/// Names of keys, as tmux writes them.
pub const KEY_NAMES: [&str; 27] = [
    "Enter", "Escape", "Tab", "BTab", "Space", "BSpace", "Up", "Down", "Left", "Right", "Home", "End", "PageUp",
    "PageDown", "DC", "F1", "F2", "F3", "F4", "F5", "F6", "F7", "F8", "F9", "F10", "F11", "F12",
];
/// Other usual names of these keys, in lower case.
const KEY_ALIASES: [(&str, &str); 6] = [
    ("return", "Enter"),
    ("esc", "Escape"),
    ("backspace", "BSpace"),
    ("delete", "DC"),
    ("pgup", "PageUp"),
    ("pgdn", "PageDown"),
];

impl NamedKey {
    /// Returns the key with this name: one of [`KEY_NAMES`] in any case, `C-x` or `M-x` with a letter, or one letter,
    /// digit or sign. `None` for any other name.
    pub fn parse(name: &str) -> Option<Self> {
        let is_plain = |c: &char| c.is_ascii_alphanumeric() || "/?+-.,:=!@".contains(*c);
        let mut chars = name.chars();
        if let (Some(only), None) = (chars.next(), chars.next()) {
            return is_plain(&only).then(|| Self(name.to_owned()));
        }
        if let Some((held, letter)) = name.split_once('-') {
            let held = ["C", "M"].into_iter().find(|known| known.eq_ignore_ascii_case(held))?;
            let is_letter = letter.len() == 1 && letter.chars().all(|c| c.is_ascii_alphabetic());
            return is_letter.then(|| Self(format!("{held}-{}", letter.to_ascii_lowercase())));
        }
        let alias = KEY_ALIASES.iter().find(|(alias, _)| alias.eq_ignore_ascii_case(name)).map(|(_, key)| *key);
        let known = || KEY_NAMES.into_iter().find(|key| key.eq_ignore_ascii_case(name));
        alias.or_else(known).map(|key| Self(key.to_owned()))
    }

    pub fn name(&self) -> &str {
        &self.0
    }
}

/// Pause before Enter in milliseconds. Programs that draw their own screen take a key that follows at once for part
/// of the paste.
const BEFORE_ENTER_MS: u64 = 100;
/// Pause before Enter in milliseconds after a text of several lines, which takes longer to draw.
const BEFORE_ENTER_LINES_MS: u64 = 500;
/// Pause after Escape in milliseconds. Read together with the next key, Escape would mean Alt.
const AFTER_ESCAPE_MS: u64 = 20;

impl Tmux {
    /// Types `text` with the given options. Never types into a dialog of an agent, which the text would answer.
    ///
    /// # Errors
    /// Returns [`TmuxError::Asks`] if the pane shows a dialog, [`TmuxError::Drafted`] if the input line holds a text that
    /// [`Clear::Refuse`] protects, [`TmuxError::NotDelivered`] if the pane ended before tmux had passed on the whole text,
    /// or any other error of tmux.
    pub fn send_text(&self, pane: &str, text: &str, options: SendOptions) -> Result<(), TmuxError> {
        let screen = self.refuse_dialog(pane)?;
        self.clear_line(pane, &screen, options)?;
        let pasted = words::pasteable(text);
        if !pasted.is_empty() {
            self.paste(pane, &pasted)?;
        }
        self.press_enter(pane, text, options)
    }

    /// Clears the input line on this screen before a text, if the options say so.
    pub(super) fn clear_line(&self, pane: &str, screen: &str, options: SendOptions) -> Result<(), TmuxError> {
        let keys = match options.clear {
            Clear::Nothing => return Ok(()),
            Clear::Refuse => return self.refuse_draft(pane),
            Clear::Line => Clearing::Line,
            Clear::Whole => clearing(screen),
        };
        if keys == Clearing::Whole {
            self.send_key(pane, Key::Escape)?;
            std::thread::sleep(Duration::from_millis(AFTER_ESCAPE_MS));
        }
        self.send_key(pane, Key::ClearLine)?;
        if keys == Clearing::Mode { self.send_key(pane, Key::Backspace) } else { Ok(()) }
    }

    /// Returns the text that the input line of an agent holds, `None` if it is empty or not recognised.
    ///
    /// # Errors
    /// Fails as [`Tmux::capture`] does.
    pub fn draft(&self, pane: &str) -> Result<Option<String>, TmuxError> {
        Ok(drafts::draft(&self.capture(pane, 0, true)?))
    }

    fn refuse_draft(&self, pane: &str) -> Result<(), TmuxError> {
        match self.draft(pane) {
            Ok(None) => Ok(()),
            Ok(Some(draft)) => Err(TmuxError::Drafted(draft)),
            Err(error) if error.is_absence() => Err(TmuxError::NotDelivered { pane: pane.to_owned() }),
            Err(error) => Err(error),
        }
    }

    /// Presses Enter after a text, if the options say so.
    pub(super) fn press_enter(&self, pane: &str, text: &str, options: SendOptions) -> Result<(), TmuxError> {
        if options.enter {
            let pause = if text.contains('\n') { BEFORE_ENTER_LINES_MS } else { BEFORE_ENTER_MS };
            std::thread::sleep(Duration::from_millis(pause));
            // The agent may have begun to ask since the text was typed.
            self.submit(pane, text)?;
        }
        Ok(())
    }

    /// Returns the screen of a pane. Fails if the pane shows a dialog of an agent.
    pub(super) fn refuse_dialog(&self, pane: &str) -> Result<String, TmuxError> {
        match self.capture(pane, 0, false) {
            Ok(screen) => match dialog(&screen) {
                Some(dialog) => Err(TmuxError::Asks(Box::new(dialog))),
                None => Ok(screen),
            },
            Err(error) if error.is_absence() => Err(TmuxError::NotDelivered { pane: pane.to_owned() }),
            Err(error) => Err(error),
        }
    }

    /// Types keys one after the other, each after the window has shown the one before: programs that draw their own
    /// screen take keys that arrive together for one. Waits for the effect of the last key only if it answers a dialog:
    /// agents ignore the keys of the first moment after a dialog appears.
    ///
    /// # Errors
    /// Returns [`TmuxError::KeyIgnored`] if a dialog shows no effect of a key, and otherwise fails as
    /// [`Tmux::send_key`] does.
    pub fn send_named(&self, pane: &str, keys: &[NamedKey]) -> Result<(), TmuxError> {
        check_pane(pane)?;
        for (at, NamedKey(name)) in keys.iter().enumerate() {
            let is_last = at + 1 == keys.len();
            let before = self.before_key(pane)?;
            self.guarded(pane, &format!("copy-mode -q -t {pane} ; send-keys -t {pane} -- '{name}'"), None)?;
            match self.await_key(pane, &before, name, is_last) {
                // The answer made the command end.
                Err(error) if is_last && error.is_absence() => {}
                awaited => awaited?,
            }
        }
        Ok(())
    }

    /// Types Ctrl-C, unless the pane shows a dialog of an agent.
    ///
    /// # Errors
    /// Fails as [`Tmux::send_text`] does.
    pub fn interrupt(&self, pane: &str) -> Result<(), TmuxError> {
        self.refuse_dialog(pane)?;
        self.send_key(pane, Key::Interrupt)
    }

    /// Types one key. Ends copy mode first if a person scrolls in the pane, because that mode would swallow the key.
    ///
    /// # Errors
    /// Fails as [`Tmux::send_text`] does.
    pub fn send_key(&self, pane: &str, key: Key) -> Result<(), TmuxError> {
        check_pane(pane)?;
        self.guarded(pane, &format!("copy-mode -q -t {pane} ; send-keys -t {pane} {}", key.tmux()), None)
    }

    /// Pastes a text. Line ends stay as they are (`-r`). A program that supports bracketed paste is told where the
    /// text ends (`-p`), so that a line break submits nothing there.
    pub(super) fn paste(&self, pane: &str, text: &str) -> Result<(), TmuxError> {
        check_pane(pane)?;
        let buffer = buffer_name();
        let commands = format!("load-buffer -b {buffer} - ; paste-buffer -d -p -r -b {buffer} -t {pane}");
        let pasted = self.guarded(pane, &commands, Some(text.as_bytes()));
        if pasted.is_err() {
            // The buffer may not exist. The first error is the one to report.
            let _ = self.ask([DeleteBuffer::new().buffer_name(buffer).build()]);
        }
        pasted
    }

    /// Runs `commands` inside tmux if the pane exists on the expected server and its command runs.
    fn guarded(&self, pane: &str, commands: &str, input: Option<&[u8]>) -> Result<(), TmuxError> {
        let same = format!("#{{&&:#{{==:#{{pane_id}},{pane}}},#{{?pane_dead,0,1}}}}");
        let condition = match self.server_pid {
            Some(pid) => format!("#{{&&:#{{==:#{{pid}},{pid}}},{same}}}"),
            None => same,
        };
        let mut guard = IfShell::new()
            .not_execute()
            .target_pane(pane)
            .shell_command(condition)
            .command(format!("{commands} ; display-message -p delivered"))
            .build();
        guard.push_param("display-message -p ended");
        let absent = || TmuxError::NotDelivered { pane: pane.to_owned() };
        match self.ask_with([guard], input) {
            Ok(said) if said.trim() == "delivered" => Ok(()),
            Ok(said) if said.trim() == "ended" => Err(absent()),
            Ok(said) => Err(TmuxError::Answer(said)),
            Err(error) if error.is_absence() => Err(absent()),
            Err(error) => Err(error),
        }
    }
}

/// Checks a pane id, which comes from a file and is put into commands that tmux parses.
fn check_pane(pane: &str) -> Result<(), TmuxError> {
    let digits = pane.strip_prefix('%').unwrap_or("");
    if digits.is_empty() || !digits.chars().all(|c| c.is_ascii_digit()) {
        return Err(TmuxError::NotFound(format!("invalid pane id {pane:?}")));
    }
    Ok(())
}

/// Returns a buffer name that no other call uses, in this process or in another one.
fn buffer_name() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    format!("swarm-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_keys_of_the_list_have_names() {
        let name = |text: &str| NamedKey::parse(text).map(|key| key.name().to_owned());
        for (text, key) in [("Down", "Down"), ("enter", "Enter"), ("esc", "Escape"), ("1", "1"), ("c-C", "C-c")] {
            assert_eq!(name(text).as_deref(), Some(key));
        }
        for text in ["", "Dwon", ";", "'", "C-", "C-ab", "C-é", "kill-server", "yes", "#{pid}", "ä", "X-a"] {
            assert_eq!(name(text), None, "{text:?}");
        }
    }

    #[test]
    fn only_valid_ids_are_put_into_commands() {
        assert!(check_pane("%7").is_ok() && check_pane("%1234").is_ok());
        for pane in ["", "%", "7", "%7 ; kill-server", "=a:b", "%7x"] {
            assert!(check_pane(pane).is_err(), "{pane:?}");
        }
        assert_ne!(buffer_name(), buffer_name());
    }
}
