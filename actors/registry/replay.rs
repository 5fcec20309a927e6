//! Records of the registry's journal, and what they tell about `state.json` after a power cut. Pure.
//!
//! Each record describes one commit: the version of the file that it made, and how. The file itself is not synced, so
//! that a power cut may leave any of its versions, or a torn one. [`replay`] brings the file that is left to the last
//! version.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::table::{Entry, Table};

/// One commit of the registry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Version of the file after the commit.
    pub version: Version,
    pub change: Change,
    /// Contracts whose files may not be durable.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub contracts: Vec<Unsynced>,
    /// Whether the registry was closed: the file was synced, and every later version is that of another program.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub closed: bool,
    /// Time of the commit in Unix milliseconds. Not before that of an earlier record, nor before the file was modified.
    #[serde(default)]
    pub at_ms: u64,
}

/// Identity of a version of the file. Equal texts have equal versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Version {
    length: u64,
    checksum: u32,
}

/// How a commit changed the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// The whole text. It replaced the version `after`, which was durable; `None` if there was no file.
    Whole { after: Option<Version>, text: String },
    /// The rows, in order, as parts of the previous version and new texts.
    Rows(Vec<Piece>),
}

/// Part of the rows of a new version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Piece {
    /// Rows of the previous version: the position of the first one, and their number.
    Kept(usize, usize),
    /// The text of a new row.
    New(String),
}

/// Contract of a start whose file was not synced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unsynced {
    /// Name of the directory below `w/`.
    pub dir: String,
    /// Text of the contract.
    pub text: String,
}

impl Version {
    pub fn of(text: &str) -> Self {
        Self { length: text.len() as u64, checksum: crc32fast::hash(text.as_bytes()) }
    }
}

impl Change {
    /// Returns the change from `old` to `new`. The rows that `new` keeps must be in their old order.
    pub fn between(old: &Table, new: &Table) -> Self {
        let (mut pieces, mut next) = (Vec::new(), 0);
        for entry in &new.entries {
            let rest = old.entries.get(next..).unwrap_or_default();
            let Some(skipped) = rest.iter().position(|other| Arc::ptr_eq(&other.raw, &entry.raw)) else {
                pieces.push(Piece::New(entry.raw.to_string()));
                continue;
            };
            match pieces.last_mut() {
                Some(Piece::Kept(first, count)) if *first + *count == next + skipped => *count += 1,
                _ => pieces.push(Piece::Kept(next + skipped, 1)),
            }
            next += skipped + 1;
        }
        Self::Rows(pieces)
    }

    /// Returns the content after the change.
    ///
    /// # Errors
    /// Returns the reason if the change cannot be based on `before`.
    fn apply(&self, before: Content) -> Result<Content, String> {
        let pieces = match self {
            Self::Whole { text, .. } => return Ok(Content::Text(text.clone())),
            Self::Rows(pieces) => pieces,
        };
        let mut table = match before {
            Content::Text(text) => Table::parse(&text)?,
            Content::Table(table) => table,
        };
        let old = std::mem::take(&mut table.entries);
        for piece in pieces {
            match piece {
                Piece::New(raw) => table.entries.push(Entry::parse(raw)),
                Piece::Kept(first, count) => {
                    let end = first.checked_add(*count).ok_or("a row that does not exist")?;
                    let kept = old.get(*first..end).ok_or("a row that does not exist")?;
                    table.entries.extend_from_slice(kept);
                }
            }
        }
        Ok(Content::Table(table))
    }
}

/// Content of the file while changes are applied: many changes are applied to the same rows.
enum Content {
    Text(String),
    Table(Table),
}

/// Returns the text that the file must have after a power cut, and `None` if it has that text already, or was changed
/// by another program later. `found` is the text that the file has now, if it exists and is text.
///
/// # Errors
/// Returns the reason if the records contradict each other. The file then stays as it is.
pub fn replay(records: &[Record], found: Option<&str>) -> Result<Option<String>, String> {
    let Some(last) = records.last() else { return Ok(None) };
    let version = found.map(Version::of);
    if version == Some(last.version) {
        return Ok(None);
    }
    let is_table = found.is_some_and(|text| Table::parse(text).is_ok());
    // Closing syncs the file, so that a missing one was removed.
    if last.closed && (is_table || found.is_none()) {
        return Ok(None);
    }
    let made = records.iter().rposition(|record| Some(record.version) == version).map(|at| at + 1);
    let replaced = || records.iter().rposition(|record| record.replaces(version));
    let (start, text) = match (made.or_else(replaced), found) {
        (Some(start), Some(found)) => (start, found.to_owned()),
        // Another program wrote the file after the last commit.
        (None, Some(_)) if is_table => return Ok(None),
        // The file is torn or missing.
        _ => {
            let whole = |record: &Record| matches!(record.change, Change::Whole { .. });
            let start = records.iter().rposition(whole).ok_or("the journal does not begin with the whole file")?;
            (start, String::new())
        }
    };
    let mut content = Content::Text(text);
    for record in &records[start..] {
        content = record.change.apply(content)?;
    }
    let text = match content {
        Content::Text(text) => text,
        Content::Table(table) => table.render(),
    };
    if Version::of(&text) == last.version {
        Ok(Some(text))
    } else {
        Err("the records contradict each other".to_owned())
    }
}

/// Returns the contracts of the records, without those that a later one of the same directory replaced.
pub fn contracts(records: &[Record]) -> Vec<Unsynced> {
    let mut newest: Vec<Unsynced> = Vec::new();
    for contract in records.iter().rev().flat_map(|record| record.contracts.iter().rev()) {
        if newest.iter().all(|other| other.dir != contract.dir) {
            newest.push(contract.clone());
        }
    }
    newest.reverse();
    newest
}

impl Record {
    fn replaces(&self, version: Option<Version>) -> bool {
        matches!(self.change, Change::Whole { after, .. } if after.is_some() && after == version)
    }
}

#[cfg(test)]
#[path = "replay_tests.rs"]
mod tests;
