//! Text of others on a terminal.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Escapes characters that could move the cursor, change colours or reverse the reading direction: control characters
/// become `\x1b`, others `\u{202e}`.
pub fn escape(text: &str) -> Cow<'_, str> {
    if !text.contains(is_hostile) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        let written = match c {
            '\n' => write!(safe, "\\n"),
            '\r' => write!(safe, "\\r"),
            '\t' => write!(safe, "\\t"),
            c if c.is_control() => write!(safe, "\\x{:02x}", u32::from(c)),
            c if is_hostile(c) => write!(safe, "\\u{{{:x}}}", u32::from(c)),
            c => write!(safe, "{c}"),
        };
        written.expect("writing to a string cannot fail");
    }
    Cow::Owned(safe)
}

/// Reports whether `c` is a control character (C0, DEL, C1), a line separator, a mark that changes the direction of text, or
/// a character without a width. The two joiners stay: words of some scripts, and many symbols, consist of joined parts.
fn is_hostile(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}'
        )
        || matches!(c, '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn untrusted_text_cannot_control_the_terminal() {
        assert_eq!(escape("plain é 漢"), "plain é 漢");
        assert_eq!(escape("\x1b[31m\u{9b}2J\u{7f}"), "\\x1b[31m\\x9b2J\\x7f");
        assert_eq!(escape("a\n\t\r\u{202e}b\u{2066}"), "a\\n\\t\\r\\u{202e}b\\u{2066}");
        assert_eq!(escape("a\u{200b}b\u{feff}\u{e0061}c\u{200d}"), "a\\u{200b}b\\u{feff}\\u{e0061}c\u{200d}");
    }
}
