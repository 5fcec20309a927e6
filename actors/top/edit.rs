//! A line of text that is being typed.

use super::keys::Key;

/// Longest text in characters. More is not typed at a list, and belongs into a file.
const LENGTH_MAX: usize = 4096;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Edit {
    text: String,
}

impl Edit {
    pub fn with(text: &str) -> Self {
        Self { text: text.to_owned() }
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    /// Takes a key. Returns whether it changed the text.
    pub fn take(&mut self, key: Key) -> bool {
        let before = self.text.len();
        match key {
            Key::Char(c) => self.push(c),
            Key::Backspace => {
                self.text.pop();
            }
            Key::Ctrl('u') => self.text.clear(),
            Key::Ctrl('w') => {
                let rest = self.text.trim_end();
                let kept = rest.rfind(char::is_whitespace).map_or(0, |at| at + 1);
                self.text.truncate(kept);
            }
            _ => {}
        }
        self.text.len() != before
    }

    /// Takes pasted text, as one line.
    pub fn paste(&mut self, text: &str) {
        text.chars().map(|c| if c == '\n' || c == '\r' { ' ' } else { c }).for_each(|c| self.push(c));
    }

    fn push(&mut self, c: char) {
        if !c.is_control() && self.text.len() < LENGTH_MAX {
            self.text.push(c);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_edit_the_end_of_the_line() {
        let mut edit = Edit::with("state:");
        for key in "failed now".chars().map(Key::Char).chain([Key::Ctrl('w'), Key::Backspace]) {
            assert!(edit.take(key), "{key:?}");
        }
        assert_eq!(edit.text(), "state:failed");
        assert!(!edit.take(Key::Left));
        edit.paste(" a\nb\x1b[31m");
        assert_eq!(edit.text(), "state:failed a b[31m");
        assert!(edit.take(Key::Ctrl('u')) && edit.text().is_empty());
        assert!(!edit.take(Key::Backspace));
    }
}
