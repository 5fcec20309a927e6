//! Texts as a page gets them: lines of runs of one style. A line without styles is a string; else it is a list of strings
//! and of pairs `[text, style]`. Escape sequences and control characters are gone.

use serde_json::{Map, Value, json};

use crate::board::sgr::{self, Colour, Line, Run, Style};

/// Maximum length of a text in bytes.
const BYTES_MAX: usize = 512 * 1024;
/// Maximum length of one line in characters.
const LINE_MAX: usize = 4_000;

/// Part of a long text that is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Begin,
    End,
}

/// Returns the lines of a text, and whether some of it was left out.
pub fn lines(text: &str, part: Part) -> (Value, bool) {
    let (shown, is_cut) = match part {
        _ if text.len() <= BYTES_MAX => (text, false),
        Part::Begin => (&text[..text.floor_char_boundary(BYTES_MAX)], true),
        Part::End => (&text[text.ceil_char_boundary(text.len() - BYTES_MAX)..], true),
    };
    (of(&sgr::lines(shown)), is_cut)
}

/// Returns lines as JSON.
pub fn of(lines: &[Line]) -> Value {
    lines.iter().map(line).collect()
}

fn line(line: &Line) -> Value {
    let mut left = LINE_MAX;
    let mut runs = Vec::new();
    for run in line {
        let count = run.text.chars().count();
        if count <= left {
            left -= count;
            runs.push(run.clone());
            continue;
        }
        let kept: String = run.text.chars().take(left).chain(['…']).collect();
        runs.push(Run { style: run.style, text: kept });
        break;
    }
    match runs.as_slice() {
        [] => "".into(),
        [only] if only.style == Style::default() => only.text.as_str().into(),
        runs => runs.iter().map(styled).collect(),
    }
}

fn styled(run: &Run) -> Value {
    if run.style == Style::default() {
        return run.text.as_str().into();
    }
    let mut style = Map::new();
    let colour = |colour: Colour| match colour {
        Colour::Indexed(index) => json!(index),
        Colour::Rgb(red, green, blue) => json!(format!("#{red:02x}{green:02x}{blue:02x}")),
    };
    for (key, value) in [("f", run.style.front), ("b", run.style.back)] {
        if let Some(value) = value {
            style.insert(key.to_owned(), colour(value));
        }
    }
    let marks = [
        ('b', run.style.bold),
        ('d', run.style.dim),
        ('i', run.style.italic),
        ('u', run.style.underlined),
        ('r', run.style.reversed),
        ('s', run.style.struck),
    ];
    let marks: String = marks.into_iter().filter_map(|(mark, is_set)| is_set.then_some(mark)).collect();
    if !marks.is_empty() {
        style.insert("a".to_owned(), marks.into());
    }
    json!([run.text, style])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_lines_are_strings_and_others_are_runs() {
        let (said, is_cut) = lines("a\n\n\x1b[1;31mred\x1b[m b\x1b[48;2;1;2;255mc\x1b]0;title\x07", Part::Begin);
        let expected = json!(["a", "", [["red", {"f": 1, "a": "b"}], " b", ["c", {"b": "#0102ff"}]]]);
        assert_eq!((said, is_cut), (expected, false));
    }

    #[test]
    fn long_texts_and_lines_are_cut() {
        let text = format!("first\n{}\nlast\n", "ä\n".repeat(BYTES_MAX));
        let (begin, is_cut) = lines(&text, Part::Begin);
        assert!(is_cut && begin[0] == "first" && begin.to_string().len() < BYTES_MAX * 3);
        let (end, is_cut) = lines(&text, Part::End);
        assert!(is_cut && end.as_array().and_then(|lines| lines.last()) == Some(&json!("last")));
        let (long, _) = lines(&"ä".repeat(LINE_MAX + 1), Part::Begin);
        assert_eq!(long[0], json!(format!("{}…", "ä".repeat(LINE_MAX))));
        let styled = format!("{}\x1b[1m{}\x1b[mx", "a".repeat(LINE_MAX - 1), "b".repeat(5));
        assert_eq!(lines(&styled, Part::Begin).0[0], json!(["a".repeat(LINE_MAX - 1), ["b…", {"a": "b"}]]));
    }
}
