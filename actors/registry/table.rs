//! `state.json` in memory: foreign text kept as it was, with a typed view
//! beside each row.

use std::fmt;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::model::{Row, RowError, Wire, WireStatus};

/// The newest form of the file that this program may change.
pub const SCHEMA_VERSION_MAX: u64 = 1;

/// An object's members in their order, values untouched.
struct Members(Vec<(String, Box<RawValue>)>);

/// One row: its text as found, and what could be read of it.
#[derive(Clone, Debug)]
pub struct Entry {
    pub raw: Arc<str>,
    pub row: Result<Arc<Row>, RowError>,
}

/// The whole file.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// Top-level members other than `workers`, which stand before it or after it.
    before: Vec<(String, Box<RawValue>)>,
    after: Vec<(String, Box<RawValue>)>,
    schema_version: Option<u64>,
    pub entries: Vec<Entry>,
}

impl Entry {
    pub fn of(row: Row) -> Self {
        let raw = Wire::render(&row, 2).expect("a row has only what JSON can hold");
        Self { raw: raw.into(), row: Ok(Arc::new(row)) }
    }

    fn read(raw: &RawValue) -> Self {
        Self { raw: raw.get().into(), row: Row::parse(raw.get()).map(Arc::new) }
    }

    pub fn name(&self) -> Option<&str> {
        self.row.as_ref().ok().map(|row| row.name.as_str())
    }

    /// The same row with another status; every other byte of it stays.
    pub fn with_status(&self, status: WireStatus) -> Self {
        let (Ok(row), Ok(Members(members))) = (&self.row, serde_json::from_str::<Members>(&self.raw)) else {
            return self.clone();
        };
        let row = Row { status, ..row.as_ref().clone() };
        let word = match status {
            WireStatus::Running => "\"running\"",
            WireStatus::Stopped => "\"stopped\"",
        };
        let value =
            |key: &str, value: &RawValue| if key == "status" { word.to_owned() } else { value.get().to_owned() };
        let raw = object(members.iter().map(|(key, raw)| (key.as_str(), value(key, raw))), 2);
        Self { raw: raw.into(), row: Ok(Arc::new(row)) }
    }
}

impl Table {
    /// A table of our own rows only.
    pub fn of(rows: Vec<Row>) -> Self {
        Self { entries: rows.into_iter().map(Entry::of).collect(), ..Self::default() }
    }

    /// Reads the file's text.
    ///
    /// # Errors
    /// A sentence about what makes the whole file unreadable. A single bad row
    /// does not: it is kept as an [`Entry`] without a typed view.
    pub fn parse(text: &str) -> Result<Self, String> {
        let Members(members) = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let mut table = Self::default();
        let mut rows = None;
        for (key, value) in members {
            if key == "workers" {
                let list: Vec<&RawValue> =
                    serde_json::from_str(value.get()).map_err(|_| "\"workers\" is not a list".to_owned())?;
                rows = Some(list.into_iter().map(Entry::read).collect());
                continue;
            }
            if key == "schema_version" {
                table.schema_version = serde_json::from_str(value.get()).ok();
            }
            let side = if rows.is_none() { &mut table.before } else { &mut table.after };
            side.push((key, value));
        }
        table.entries = rows.ok_or_else(|| "it has no \"workers\"".to_owned())?;
        Ok(table)
    }

    /// The version of a newer program that wrote it, when it was one.
    pub fn newer_schema(&self) -> Option<u64> {
        self.schema_version.filter(|version| *version > SCHEMA_VERSION_MAX)
    }

    pub fn find(&self, name: &str) -> Option<&Arc<Row>> {
        self.entries.iter().filter_map(|entry| entry.row.as_ref().ok()).find(|row| row.name == name)
    }

    pub fn position(&self, name: &str) -> Option<usize> {
        self.entries.iter().position(|entry| entry.name() == Some(name))
    }

    /// The text of the file, foreign parts byte for byte.
    pub fn render(&self) -> String {
        let size = self.entries.iter().map(|entry| entry.raw.len() + 8).sum::<usize>() + 256;
        let mut rows = String::with_capacity(size);
        rows.push('[');
        for (index, entry) in self.entries.iter().enumerate() {
            rows.push_str(if index == 0 { "\n    " } else { ",\n    " });
            rows.push_str(&entry.raw);
        }
        rows.push_str(if self.entries.is_empty() { "]" } else { "\n  ]" });
        if self.before.is_empty() && self.after.is_empty() {
            return format!("{{\n  \"workers\": {rows}\n}}");
        }
        let raw = |(key, value): &(String, Box<RawValue>)| (key.clone(), value.get().to_owned());
        let members: Vec<(String, String)> = (self.before.iter().map(raw))
            .chain([("workers".to_owned(), rows)])
            .chain(self.after.iter().map(raw))
            .collect();
        object(members.iter().map(|(key, value)| (key.as_str(), value.clone())), 0)
    }
}

/// An object whose values are rendered already, at `depth` levels of indent.
fn object<'a>(members: impl Iterator<Item = (&'a str, String)>, depth: usize) -> String {
    let indent = "  ".repeat(depth);
    let lines: Vec<String> = members
        .map(|(key, value)| {
            let key = Wire::render(&key, 0).expect("a string is JSON");
            format!("{indent}  {key}: {value}")
        })
        .collect();
    format!("{{\n{}\n{indent}}}", lines.join(",\n"))
}

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = Members;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Collect)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORIGINAL: &str = r#"{
  "workers": [
    {
      "name": "a",
      "status": "running",
      "cmd": [
        "sleep",
        "9"
      ],
      "started": "2026-01-01T00:00:00.000001",
      "cwd": "/tmp",
      "env": {},
      "tags": [],
      "tmux": null,
      "worktree": null,
      "pid": 4242,
      "metadata": {
        "zebra": 1,
        "apple": 2
      },
      "theirs": [1,2]
    }
  ]
}"#;

    #[test]
    fn a_file_of_the_original_comes_back_byte_for_byte() {
        let table = Table::parse(ORIGINAL).expect("parses");
        assert_eq!(table.render(), ORIGINAL);
    }

    #[test]
    fn a_changed_status_changes_nothing_else() {
        let mut table = Table::parse(ORIGINAL).expect("parses");
        table.entries[0] = table.entries[0].with_status(WireStatus::Stopped);
        assert_eq!(table.render(), ORIGINAL.replace("\"running\"", "\"stopped\""));
        assert_eq!(table.find("a").map(|row| row.status), Some(WireStatus::Stopped));
    }

    #[test]
    fn foreign_top_level_keys_stay_where_they_were() {
        let text = "{\n  \"x\": {\"deep\": [1]},\n  \"workers\": [],\n  \"y\": 2\n}";
        assert_eq!(Table::parse(text).expect("parses").render(), text);
    }

    #[test]
    fn damage_is_told_from_one_bad_row() {
        for damaged in ["", "[]", "\"x\"", "{}", "{\"workers\":{}}", "{\"workers\":[", "\0\0"] {
            assert!(Table::parse(damaged).is_err(), "{damaged:?} was taken");
        }
        let one_bad = Table::parse(r#"{"workers":[{"nam":"a"}, 7]}"#).expect("parses");
        assert_eq!(one_bad.entries.iter().filter(|entry| entry.row.is_err()).count(), 2);
    }

    #[test]
    fn a_newer_schema_is_noticed() {
        let table =
            |version| Table::parse(&format!("{{\"schema_version\":{version},\"workers\":[]}}")).expect("parses");
        assert_eq!(table(1).newer_schema(), None);
        assert_eq!(table(2).newer_schema(), Some(2));
    }
}
