//! Names of workers. A name becomes a file name, a tmux window, a directory and
//! a git branch, so the set of characters is the intersection of what all four
//! read without surprise.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A name that a *new* worker may have: `[A-Za-z0-9][A-Za-z0-9._-]{0,63}`,
/// without `..`, not ending in `.` or `.lock` (git refuses such branches).
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct WorkerName(String);

/// Why a name was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    #[error("the name is empty")]
    Empty,
    #[error("the name is {0} bytes long, 64 are allowed")]
    TooLong(usize),
    #[error("the name has {0:?} in it")]
    Character(char),
    #[error("the name begins with {0:?}, not with a letter or digit")]
    Start(char),
    #[error("the name has {0:?} in it, which git or tmux would misread")]
    Sequence(&'static str),
}

impl WorkerName {
    /// Longest name in bytes.
    pub const LENGTH_MAX: usize = 64;

    /// Checks `text` against the rule for new names.
    ///
    /// # Errors
    /// The first rule that the text breaks.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        let Some(first) = text.chars().next() else { return Err(NameError::Empty) };
        if text.len() > Self::LENGTH_MAX {
            return Err(NameError::TooLong(text.len()));
        }
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        if let Some(bad) = text.chars().find(|c| !allowed(*c)) {
            return Err(NameError::Character(bad));
        }
        if !first.is_ascii_alphanumeric() {
            return Err(NameError::Start(first));
        }
        if text.contains("..") {
            return Err(NameError::Sequence(".."));
        }
        if text.ends_with('.') {
            return Err(NameError::Sequence("a dot at its end"));
        }
        if text.ends_with(".lock") {
            return Err(NameError::Sequence(".lock at its end"));
        }
        Ok(Self(text.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for WorkerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for WorkerName {
    type Error = NameError;
    fn try_from(text: String) -> Result<Self, NameError> {
        Self::parse(&text)
    }
}

impl From<WorkerName> for String {
    fn from(name: WorkerName) -> Self {
        name.0
    }
}

/// The known name nearest to `wanted`, when it is near enough to be a slip of
/// the fingers (at most a third of its letters differ).
pub fn nearest<'a>(wanted: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let limit = (wanted.chars().count() / 3).clamp(1, 3);
    known
        .into_iter()
        .map(|name| (distance(wanted, name), name))
        .filter(|(far, _)| *far <= limit)
        .min()
        .map(|(_, name)| name)
}

/// Edit distance (insertions, deletions, substitutions, two neighbours exchanged: the
/// optimal string alignment), three rows at a time.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut above: Vec<usize> = (0..=b.len()).collect();
    let mut higher = above.clone();
    for (i, from) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, to) in b.iter().enumerate() {
            let substitute = above[j] + usize::from(from != to);
            let mut least = substitute.min(above[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *from == b[j - 1] && a[i - 1] == *to {
                least = least.min(higher[j - 1] + 1);
            }
            row.push(least);
        }
        higher = std::mem::replace(&mut above, row);
    }
    above[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_four_tools_read_alike_are_taken() {
        for name in ["a", "7", "job-1", "Job_1.b", "x.y.z", &"n".repeat(64)] {
            assert_eq!(WorkerName::parse(name).map(|n| n.to_string()), Ok(name.to_owned()));
        }
    }

    #[test]
    fn hostile_names_are_refused() {
        let hostile = [
            "",
            "../x",
            "/etc",
            ".",
            "..",
            "-x",
            "a b",
            "a:b",
            "a/b",
            "a\nb",
            "a\0b",
            "#(cmd)",
            "$(x)",
            ";",
            "a..b",
            "a.",
            "a.lock",
            "é",
            "\u{202e}abc",
            "_x",
        ];
        for name in hostile.into_iter().chain([n300().as_str()]) {
            assert!(WorkerName::parse(name).is_err(), "{name:?} was taken");
        }
    }

    fn n300() -> String {
        "n".repeat(300)
    }

    #[test]
    fn a_slip_finds_its_name_and_a_stranger_none() {
        assert_eq!(nearest("bulider", ["builder", "tester"]), Some("builder"));
        assert_eq!(nearest("job", ["jab", "tester"]), Some("jab"));
        assert_eq!(nearest("spwan", ["merge", "spawn"]), Some("spawn"));
        assert_eq!(nearest("zebra", ["builder", "tester"]), None);
    }
}
