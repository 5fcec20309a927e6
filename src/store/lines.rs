//! Damage in append-only files with one JSON value per line. A crash or a full disk may leave the beginning of a line;
//! the next writer ends it with a newline, so such a line is no damage, wherever it is.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader};
use std::path::Path;

use serde::de::IgnoredAny;

/// Line that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Number of the line, from 1.
    pub line: usize,
    pub cause: String,
}

/// Reports whether a line is only the beginning of one.
pub fn is_torn(line: &[u8], error: &serde_json::Error) -> bool {
    error.is_eof() || std::str::from_utf8(line).is_err_and(|error| error.error_len().is_none())
}

/// Returns the damage of a complete line, whose number is given; `None` if it is JSON, or only the beginning of a line.
pub fn damage(line: &[u8], number: usize) -> Option<Damage> {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let cause = match std::str::from_utf8(line) {
        Err(error) => error.error_len().map(|_| error.to_string()),
        Ok(text) => match serde_json::from_str::<IgnoredAny>(text) {
            Err(error) if !error.is_eof() => Some(error.to_string()),
            _ => None,
        },
    };
    cause.map(|cause| Damage { line: number, cause })
}

/// Returns the damaged lines of a file, without an incomplete last line. A missing file has none.
///
/// # Errors
/// Returns any other I/O error.
pub fn damaged(path: &Path) -> io::Result<Vec<Damage>> {
    let mut file = match File::open(path) {
        Ok(file) => BufReader::new(file),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let (mut found, mut line) = (Vec::new(), Vec::new());
    for number in 1.. {
        line.clear();
        if file.read_until(b'\n', &mut line)? == 0 || !line.ends_with(b"\n") {
            break;
        }
        found.extend(damage(&line, number));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_in_the_middle_is_found_and_torn_lines_are_not() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("events.jsonl");
        assert_eq!(damaged(&path).expect("missing"), []);
        let torn_character = b"{\"b\":\"\xc3\n";
        let parts: [&[u8]; 7] = [
            b"{\"a\":1}\n",
            b"{\"a\n",
            torn_character,
            b"{\"a\"~1}\n",
            b"\0\0\0\0\n",
            b"{\"x\":\"\xff\"}\n",
            b"~ last",
        ];
        std::fs::write(&path, parts.concat()).expect("written");
        let lines: Vec<usize> = damaged(&path).expect("readable").into_iter().map(|one| one.line).collect();
        assert_eq!(lines, [4, 5, 6]);
        assert!(damaged(dir.path()).is_err(), "a read error is no absence");
    }
}
