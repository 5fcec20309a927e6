//! Text with colours, as windows and verbs write it, as runs of one style each. Colours and the like are kept (SGR); whatever
//! else could move a cursor, set a title or make a link is dropped. A captured window has no movements of the cursor.

use std::iter::Peekable;
use std::str::Chars;

/// Columns between two stops of a tabulator.
const TAB: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colour {
    /// Number of a colour in the palette of the terminal.
    Indexed(u8),
    Rgb(u8, u8, u8),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style {
    pub front: Option<Colour>,
    pub back: Option<Colour>,
    pub bold: bool,
    pub dim: bool,
    pub italic: bool,
    pub underlined: bool,
    pub reversed: bool,
    pub struck: bool,
}

/// Text of one style, without control characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    pub style: Style,
    pub text: String,
}

pub type Line = Vec<Run>;

/// Returns the lines of a text.
pub fn lines(text: &str) -> Vec<Line> {
    let mut style = Style::default();
    text.lines().map(|text| line(text, &mut style)).collect()
}

/// Reads one line. The style goes on in the next one.
fn line(text: &str, style: &mut Style) -> Line {
    let (mut runs, mut columns): (Line, usize) = (Vec::new(), 0);
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\x1b' => escape(&mut chars, style),
            '\u{9b}' => control(&mut chars, style),
            '\u{90}' | '\u{98}' | '\u{9d}'..='\u{9f}' => skip_text(&mut chars),
            '\t' => {
                let blanks = TAB - columns % TAB;
                columns += blanks;
                push(&mut runs, *style, &" ".repeat(blanks));
            }
            c if c.is_control() => {}
            c => {
                columns += 1;
                push(&mut runs, *style, c.encode_utf8(&mut [0; 4]));
            }
        }
    }
    runs
}

fn push(runs: &mut Line, style: Style, text: &str) {
    match runs.last_mut() {
        Some(run) if run.style == style => run.text.push_str(text),
        _ => runs.push(Run { style, text: text.to_owned() }),
    }
}

fn escape(chars: &mut Peekable<Chars>, style: &mut Style) {
    match chars.next() {
        Some('[') => control(chars, style),
        Some(']' | 'P' | 'X' | '^' | '_') => skip_text(chars),
        // A character set, for example.
        Some(' '..='/') => while chars.next().is_some_and(|c| matches!(c, ' '..='/')) {},
        _ => {}
    }
}

/// Skips a text up to its end: BEL, or ST.
fn skip_text(chars: &mut Peekable<Chars>) {
    while let Some(c) = chars.next() {
        if c == '\x07' || c == '\u{9c}' || (c == '\x1b' && chars.next_if_eq(&'\\').is_some()) {
            return;
        }
    }
}

fn control(chars: &mut Peekable<Chars>, style: &mut Style) {
    let mut parameters = String::new();
    for c in chars.by_ref() {
        match c {
            '\x40'..='\x7e' => {
                if c == 'm' && parameters.bytes().all(|byte| byte.is_ascii_digit() || byte == b';' || byte == b':') {
                    select(&parameters, style);
                }
                return;
            }
            c => parameters.push(c),
        }
    }
}

fn select(parameters: &str, style: &mut Style) {
    let mut codes = parameters.split(';').map(|part| {
        let mut numbers = part.split(':').map(|number| number.parse::<u16>().unwrap_or(0));
        (numbers.next().unwrap_or(0), numbers.collect::<Vec<u16>>())
    });
    while let Some((code, more)) = codes.next() {
        match code {
            0 => *style = Style::default(),
            1 => style.bold = true,
            2 => style.dim = true,
            3 => style.italic = true,
            4 => style.underlined = more.first() != Some(&0),
            7 => style.reversed = true,
            9 => style.struck = true,
            22 => (style.bold, style.dim) = (false, false),
            23 => style.italic = false,
            24 => style.underlined = false,
            27 => style.reversed = false,
            29 => style.struck = false,
            30..=37 => style.front = indexed(code - 30),
            40..=47 => style.back = indexed(code - 40),
            90..=97 => style.front = indexed(code - 90 + 8),
            100..=107 => style.back = indexed(code - 100 + 8),
            38 | 48 | 58 => {
                let colour =
                    if more.is_empty() { after(&mut codes.by_ref().map(|(code, _)| code)) } else { inside(&more) };
                match code {
                    38 => style.front = colour.or(style.front),
                    48 => style.back = colour.or(style.back),
                    _ => {}
                }
            }
            39 => style.front = None,
            49 => style.back = None,
            _ => {}
        }
    }
}

/// Returns a colour whose numbers follow as further parameters.
fn after(codes: &mut impl Iterator<Item = u16>) -> Option<Colour> {
    match codes.next()? {
        5 => indexed(codes.next()?),
        2 => rgb(codes.next()?, codes.next()?, codes.next()?),
        _ => None,
    }
}

/// Returns a colour whose numbers are parts of one parameter, with or without a colour space.
fn inside(numbers: &[u16]) -> Option<Colour> {
    match *numbers {
        [5, index, ..] => indexed(index),
        [2, _, red, green, blue, ..] | [2, red, green, blue] => rgb(red, green, blue),
        _ => None,
    }
}

fn indexed(index: u16) -> Option<Colour> {
    u8::try_from(index).ok().map(Colour::Indexed)
}

fn rgb(red: u16, green: u16, blue: u16) -> Option<Colour> {
    let part = |number: u16| u8::try_from(number).ok();
    Some(Colour::Rgb(part(red)?, part(green)?, part(blue)?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(text: &str) -> Vec<(Style, String)> {
        lines(text).concat().into_iter().map(|run| (run.style, run.text)).collect()
    }

    fn plain(text: &str) -> String {
        of(text).into_iter().map(|(_, text)| text).collect()
    }

    #[test]
    fn colours_are_kept_until_they_are_reset() {
        let red = Style { front: Some(Colour::Indexed(1)), bold: true, ..Style::default() };
        let expected = [(red, "a".to_owned()), (Style::default(), "b".to_owned())];
        assert_eq!(of("\x1b[1;31ma\x1b[mb"), expected);
        assert_eq!(lines("\x1b[1;31ma\nb")[1][0].style, red, "a style goes on in the next line");
        for (codes, front) in [
            ("38;5;200", Colour::Indexed(200)),
            ("38:5:200", Colour::Indexed(200)),
            ("38;2;1;2;3", Colour::Rgb(1, 2, 3)),
            ("38:2::1:2:3", Colour::Rgb(1, 2, 3)),
            ("38:2:1:2:3", Colour::Rgb(1, 2, 3)),
            ("97", Colour::Indexed(15)),
        ] {
            let said = of(&format!("\x1b[{codes}mx"));
            assert_eq!(said[0].0, Style { front: Some(front), ..Style::default() }, "{codes}");
        }
        let all = of("\x1b[2;3;4;7;9;41mx\x1b[22;23;24;27;29;49my");
        assert!(all[0].0.dim && all[0].0.italic && all[0].0.underlined && all[0].0.reversed && all[0].0.struck);
        assert_eq!(all[1].0, Style::default());
    }

    #[test]
    fn nothing_else_gets_through() {
        for hostile in [
            "\x1b]0;title\x07a",
            "\x1b]8;;http://x\x1b\\a\x1b]8;;\x1b\\",
            "\x1bPq#0\x1b\\a",
            "\x1b[2J\x1b[1;1Ha",
            "\x1b[?1049ha",
            "\x1b(Ba\x0e\x0f\x07",
            "\u{9b}31ma",
            "\u{9d}52;c;x\u{9c}a",
            "\x1b[201~a",
            "a\x1b",
            "a\x1b[38;5",
            "a\x1b]never ends",
        ] {
            assert_eq!(plain(hostile), "a", "{hostile:?}");
        }
        assert_eq!(plain("ab\tc"), "ab      c");
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_control_characters(text in "[\x00-\x7f\u{80}-\u{a0}\u{4e00}]{0,60}") {
            prop_assert!(!plain(&text).contains(char::is_control));
        }
    }
}
