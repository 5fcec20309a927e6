//! Names of workers. A name becomes a file name, a tmux window, a directory and a git branch, so it may have only
//! characters that none of the four treats specially.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Valid name for a *new* worker: `[A-Za-z0-9][A-Za-z0-9._-]{0,63}`, without `..`, and not ending in `.` or `.lock`
/// (git refuses such branches).
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct WorkerName(String);

/// Reason why a name is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    #[error("the name is empty")]
    Empty,
    #[error("the name has {0} bytes (maximum 64)")]
    TooLong(usize),
    #[error("the name contains {0:?}")]
    Character(char),
    #[error("the name starts with {0:?}, not with a letter or digit")]
    Start(char),
    #[error("the name {0}, which git or tmux would misread")]
    Sequence(&'static str),
}

impl WorkerName {
    /// What a valid name looks like, worded as a hint for the user.
    pub const RULE: &str = "names have up to 64 of A-Z a-z 0-9 . _ -, begin with a letter or digit, \
                            do not contain '..', and do not end in '.' or '.lock'";

    /// Maximum length of a name in bytes.
    pub const LENGTH_MAX: usize = 64;

    /// Checks that `text` is a valid name for a new worker.
    ///
    /// # Errors
    /// Returns the first rule that the text breaks.
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
            return Err(NameError::Sequence("contains '..'"));
        }
        if text.ends_with('.') {
            return Err(NameError::Sequence("ends with '.'"));
        }
        if text.ends_with(".lock") {
            return Err(NameError::Sequence("ends with '.lock'"));
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

/// Returns the known name nearest to `wanted`. `None` if no name is near enough to be meant: at most a third of the
/// letters may differ, at least one and at most three.
pub fn nearest<'a>(wanted: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let limit = (wanted.chars().count() / 3).clamp(1, 3);
    known
        .into_iter()
        .map(|name| (distance(wanted, name), name))
        .filter(|(far, _)| *far <= limit)
        .min()
        .map(|(_, name)| name)
}

/// Returns the edit distance in insertions, deletions, substitutions and swaps of neighbours (optimal string
/// alignment). Keeps three rows of the table.
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
    fn portable_names_are_accepted() {
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
            assert!(WorkerName::parse(name).is_err(), "{name:?} was accepted");
        }
    }

    fn n300() -> String {
        "n".repeat(300)
    }

    #[test]
    fn a_typo_finds_the_nearest_name_and_an_unrelated_word_none() {
        assert_eq!(nearest("bulider", ["builder", "tester"]), Some("builder"));
        assert_eq!(nearest("job", ["jab", "tester"]), Some("jab"));
        assert_eq!(nearest("spwan", ["merge", "spawn"]), Some("spawn"));
        assert_eq!(nearest("zebra", ["builder", "tester"]), None);
    }
}
