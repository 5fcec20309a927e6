//! Conversion of terminal output to plain text. Control sequences are removed, and those that move the cursor leave a
//! space or a line break, so that words do not run together.

/// Maximum number of spaces for a cursor movement to the right.
const GAP_MAX: usize = 200;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Text,
    /// After a carriage return, which may be part of a line break.
    Return,
    /// After the first byte of a two-byte UTF-8 character, which may be a C1 control.
    Lead,
    Escape,
    /// Between `ESC (` or a similar sequence and its last byte.
    Charset,
    /// In `ESC [ …`, with its first number.
    Sequence(usize),
    /// In `ESC ] …` or another string, up to BEL or `ESC \`.
    Words,
    WordsEscape,
}

/// Filter that keeps its state between blocks.
#[derive(Debug)]
pub struct Plain {
    state: State,
    /// Whether text was written since the last line break.
    midline: bool,
}

impl Default for Plain {
    fn default() -> Self {
        Self::new()
    }
}

impl Plain {
    pub fn new() -> Self {
        Self { state: State::Text, midline: false }
    }

    /// Appends the plain text of `bytes` to `out`.
    pub fn feed(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        for &byte in bytes {
            self.state = match self.state {
                State::Text => self.text(byte, out),
                State::Return => {
                    if byte != b'\r' {
                        self.end_line(out);
                    }
                    match byte {
                        b'\n' => State::Text,
                        b'\r' => State::Return,
                        _ => self.text(byte, out),
                    }
                }
                State::Lead => {
                    if !(0x80..0xa0).contains(&byte) {
                        out.extend([0xc2, byte]);
                        self.midline = true;
                    }
                    State::Text
                }
                State::Escape => after_escape(byte),
                State::Charset => {
                    if (0x20..0x30).contains(&byte) {
                        State::Charset
                    } else {
                        State::Text
                    }
                }
                State::Sequence(number) => self.sequence(number, byte, out),
                State::Words => match byte {
                    0x07 => State::Text,
                    0x1b => State::WordsEscape,
                    _ => State::Words,
                },
                State::WordsEscape => {
                    if byte == b'\\' {
                        State::Text
                    } else {
                        after_escape(byte)
                    }
                }
            };
        }
    }

    fn text(&mut self, byte: u8, out: &mut Vec<u8>) -> State {
        match byte {
            0x1b => return State::Escape,
            b'\r' => return State::Return,
            0xc2 => return State::Lead,
            b'\n' => {
                out.push(byte);
                self.midline = false;
            }
            b'\t' | 0x20..=0x7e | 0x80..=0xff => {
                out.push(byte);
                self.midline = true;
            }
            _ => {}
        }
        State::Text
    }

    fn sequence(&mut self, number: usize, byte: u8, out: &mut Vec<u8>) -> State {
        match byte {
            b'0'..=b'9' => return State::Sequence(number.saturating_mul(10).saturating_add(usize::from(byte - b'0'))),
            b'C' => out.resize(out.len() + number.clamp(1, GAP_MAX), b' '),
            b'E' | b'F' | b'H' | b'f' if self.midline => self.end_line(out),
            // More numbers continue the sequence; an escape or a line break aborts it; any other byte ends it.
            0x20..0x40 => return State::Sequence(number),
            0x1b => return State::Escape,
            b'\n' => self.end_line(out),
            _ => {}
        }
        State::Text
    }

    fn end_line(&mut self, out: &mut Vec<u8>) {
        out.push(b'\n');
        self.midline = false;
    }
}

fn after_escape(byte: u8) -> State {
    match byte {
        b'[' => State::Sequence(0),
        b']' | b'P' | b'X' | b'^' | b'_' => State::Words,
        0x20..0x30 => State::Charset,
        0x1b => State::Escape,
        _ => State::Text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(text: &str) -> String {
        let mut out = Vec::new();
        Plain::new().feed(text.as_bytes(), &mut out);
        let mut by_byte = Vec::new();
        let mut filter = Plain::new();
        text.as_bytes().iter().for_each(|byte| filter.feed(&[*byte], &mut by_byte));
        assert_eq!(out, by_byte, "the result depends on blocks for {text:?}");
        String::from_utf8(out).expect("text stays text")
    }

    #[test]
    fn colours_titles_and_charsets_are_removed() {
        assert_eq!(plain("\x1b[1;31mred\x1b[0m é 漢\n"), "red é 漢\n");
        assert_eq!(plain("\x1b]0;title\x07a\x1b]8;;http://x\x1b\\b"), "ab");
        assert_eq!(plain("\x1b(Ba\x1b=b\x1bPsecret\x1b\\c"), "abc");
        assert_eq!(plain("a\u{9b}b\x07\x08\x00c\u{a0}d"), "abc\u{a0}d");
        assert_eq!(plain("\x1b[?2004h$ \x1b[K"), "$ ");
    }

    #[test]
    fn each_line_break_of_the_terminal_becomes_one() {
        assert_eq!(plain("a\r\nb\r\r\nc\n"), "a\nb\nc\n");
        assert_eq!(plain("10%\r20%\rdone\r\n"), "10%\n20%\ndone\n");
    }

    #[test]
    fn movements_keep_words_apart() {
        assert_eq!(plain("a\x1b[3Cb"), "a   b");
        assert_eq!(plain("a\x1b[5;1Hb\x1b[H\x1b[2Jc"), "a\nb\nc");
        assert!(plain("\x1b[99999999999999999999C").len() <= GAP_MAX);
    }
}
