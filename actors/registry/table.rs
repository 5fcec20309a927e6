//! `state.json` in memory: the original text of each row, byte for byte, plus a typed view of it.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};
use serde_json::value::RawValue;

use swarm_model::{Row, RowError, Wire, WireStatus};

/// Newest schema version of the file that this program may modify.
pub const SCHEMA_VERSION_MAX: u64 = 1;

/// Members of a JSON object in their original order, with unparsed values.
struct Members<'a>(Vec<(String, &'a RawValue)>);

/// The file's text, split into the rows and the members before and after `workers`.
struct Parts<'a> {
    before: Vec<(String, &'a RawValue)>,
    rows: Vec<&'a RawValue>,
    after: Vec<(String, &'a RawValue)>,
}

/// Selection of the rows that a reader needs.
#[derive(Clone, Copy, Debug)]
pub enum Pick<'a> {
    All,
    Named(&'a [&'a str]),
}

/// A row that cannot be parsed: its name or position, and the cause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    pub label: String,
    pub error: RowError,
}

/// One row: its original text, and its parsed form or the parse error.
#[derive(Clone, Debug)]
pub struct Entry {
    pub raw: Arc<str>,
    pub row: Result<Arc<Row>, RowError>,
}

/// Names about which the file says nothing, because rows in it cannot be read. Their workers may have a row, so nothing
/// may be removed or inserted for them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unjudged {
    /// Whether this may be any name: a row has no readable name, or the whole file has a newer format.
    any: bool,
    names: BTreeSet<String>,
}

impl Unjudged {
    /// Reports whether this name may have a row that cannot be read.
    pub fn covers(&self, name: &str) -> bool {
        self.any || self.names.contains(name)
    }
}

/// Content of the whole file.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// Top-level members before `workers`.
    before: Vec<(String, Box<RawValue>)>,
    /// Top-level members after `workers`.
    after: Vec<(String, Box<RawValue>)>,
    schema_version: Option<u64>,
    pub entries: Vec<Entry>,
}

impl Pick<'_> {
    pub fn takes(self, name: &str) -> bool {
        match self {
            Self::All => true,
            Self::Named(names) => names.contains(&name),
        }
    }
}

impl Entry {
    pub fn of(row: Row) -> Self {
        let raw = Wire::render(&row, 2).expect("a row has only what JSON can hold");
        Self { raw: raw.into(), row: Ok(Arc::new(row)) }
    }

    /// Returns the entry of the next generation of a worker. Members that other programs added to the
    /// earlier row are kept, after the known ones.
    pub fn after(earlier: &Self, row: Row) -> Self {
        let new = Self::of(row);
        let (Ok(Members(known)), Ok(Members(before))) = (members(&new.raw), members(&earlier.raw)) else { return new };
        let theirs: Vec<_> =
            before.into_iter().filter(|(key, _)| known.iter().all(|(other, _)| other != key)).collect();
        if theirs.is_empty() {
            return new;
        }
        let mut raw = new.raw.trim_end_matches('}').trim_end().to_owned();
        for (key, value) in theirs {
            raw.push(',');
            member(&mut raw, &key, 3);
            raw.push_str(value.get());
        }
        raw.push_str("\n    }");
        Self { raw: raw.into(), row: new.row }
    }

    /// Returns the entry with this text.
    pub fn parse(raw: &str) -> Self {
        Self { raw: raw.into(), row: Row::parse(raw).map(Arc::new) }
    }

    /// Returns the number of bytes that the entry takes in the file.
    pub fn size(&self) -> u64 {
        self.raw.len() as u64 + 8
    }

    pub fn name(&self) -> Option<&str> {
        self.row.as_ref().ok().map(|row| row.name.as_str())
    }

    /// Returns the row with another status. All other members keep their text.
    pub fn with_status(&self, status: WireStatus) -> Self {
        let (Ok(row), Ok(Members(members))) = (&self.row, members(&self.raw)) else {
            return self.clone();
        };
        let row = Row { status, ..row.as_ref().clone() };
        let word = match status {
            WireStatus::Running => "\"running\"",
            WireStatus::Stopped => "\"stopped\"",
        };
        let mut raw = String::with_capacity(self.raw.len() + 8);
        raw.push('{');
        for (index, (key, value)) in members.iter().enumerate() {
            raw.push_str(if index == 0 { "" } else { "," });
            member(&mut raw, key, 3);
            raw.push_str(if key == "status" { word } else { value.get() });
        }
        raw.push_str("\n    }");
        Self { raw: raw.into(), row: Ok(Arc::new(row)) }
    }
}

impl Table {
    /// Returns a table that contains only these rows.
    pub fn of(rows: Vec<Row>) -> Self {
        Self { entries: rows.into_iter().map(Entry::of).collect(), ..Self::default() }
    }

    /// Parses the text of the file.
    ///
    /// # Errors
    /// Returns a message if the file as a whole cannot be parsed. A single bad row is not an error:
    /// it is kept as an [`Entry`] without a typed view.
    pub fn parse(text: &str) -> Result<Self, String> {
        let parts: Parts<'_> = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let version = parts.before.iter().chain(&parts.after).rfind(|(key, _)| key == "schema_version");
        let owned = |members: &[(String, &RawValue)]| {
            members.iter().map(|(key, value)| (key.clone(), (*value).to_owned())).collect()
        };
        Ok(Self {
            schema_version: version.and_then(|(_, value)| serde_json::from_str(value.get()).ok()),
            before: owned(&parts.before),
            after: owned(&parts.after),
            entries: parts.rows.into_iter().map(|raw| Entry::parse(raw.get())).collect(),
        })
    }

    /// Returns the schema version if it is newer than [`SCHEMA_VERSION_MAX`].
    pub fn newer_schema(&self) -> Option<u64> {
        self.schema_version.filter(|version| *version > SCHEMA_VERSION_MAX)
    }

    /// Returns the row of this name. Of several, which only another program writes, that of our latest start counts, and
    /// otherwise the first one.
    pub fn find(&self, name: &str) -> Option<&Arc<Row>> {
        let rows = self.entries.iter().filter_map(|entry| entry.row.as_ref().ok()).filter(|row| row.name == name);
        rows.reduce(|first, other| if other.is_later_than(first) { other } else { first })
    }

    /// Returns the names about which this table says nothing.
    pub fn unjudged(&self) -> Unjudged {
        let mut unjudged = Unjudged { any: self.newer_schema().is_some(), names: BTreeSet::new() };
        for entry in self.entries.iter().filter(|entry| entry.row.is_err()) {
            match name_of(&entry.raw) {
                Some(name) => drop(unjudged.names.insert(name)),
                None => unjudged.any = true,
            }
        }
        unjudged
    }

    /// Returns why the row of this name cannot be read. `None` if it can, or if there is none.
    pub fn damage(&self, name: &str) -> Option<&RowError> {
        let damaged = self.entries.iter().filter_map(|entry| Some((entry.row.as_ref().err()?, &entry.raw)));
        damaged.filter(|(_, raw)| name_of(raw).as_deref() == Some(name)).map(|(error, _)| error).next()
    }

    pub fn position(&self, name: &str) -> Option<usize> {
        self.entries.iter().position(|entry| entry.name() == Some(name))
    }

    /// Returns how long the text of the file may be, in bytes.
    pub fn size(&self) -> u64 {
        let theirs = self.before.iter().chain(&self.after).map(|(key, value)| 2 * key.len() + value.get().len() + 16);
        theirs.sum::<usize>() as u64 + self.entries.iter().map(Entry::size).sum::<u64>() + 256
    }

    /// Returns the text of the file. Parts that other programs wrote are kept byte for byte.
    pub fn render(&self) -> String {
        let mut text = String::with_capacity(usize::try_from(self.size()).unwrap_or(0));
        text.push('{');
        for (key, value) in &self.before {
            member(&mut text, key, 1);
            text.push_str(value.get());
            text.push(',');
        }
        member(&mut text, "workers", 1);
        text.push('[');
        for (index, entry) in self.entries.iter().enumerate() {
            text.push_str(if index == 0 { "\n    " } else { ",\n    " });
            text.push_str(&entry.raw);
        }
        text.push_str(if self.entries.is_empty() { "]" } else { "\n  ]" });
        for (key, value) in &self.after {
            text.push(',');
            member(&mut text, key, 1);
            text.push_str(value.get());
        }
        text.push_str("\n}");
        text
    }
}

/// Parses the selected rows for readers that do not write: the text is not kept, and rows that are
/// not selected are not parsed.
///
/// # Errors
/// As [`Table::parse`].
pub fn rows(text: &str, pick: Pick<'_>) -> Result<Vec<Result<Arc<Row>, Unreadable>>, String> {
    #[derive(Deserialize)]
    struct Sound {
        workers: Vec<Row>,
    }
    // One pass is enough if all rows are requested and all are valid.
    if matches!(pick, Pick::All)
        && let Ok(Sound { workers }) = serde_json::from_str(text)
    {
        return Ok(workers.into_iter().map(|row| Ok(Arc::new(row))).collect());
    }
    let parts: Parts<'_> = serde_json::from_str(text).map_err(|error| error.to_string())?;
    // The name may contain JSON escapes.
    let may_be = |raw: &str| match pick {
        Pick::All => true,
        Pick::Named(names) => raw.contains('\\') || names.iter().any(|name| raw.contains(name)),
    };
    let read = |(position, raw): (usize, &&RawValue)| {
        may_be(raw.get()).then(|| Row::parse(raw.get()).map_err(|error| unreadable(raw.get(), position, error)))
    };
    let picked = parts
        .rows
        .iter()
        .enumerate()
        .filter_map(read)
        .filter(|row| row.as_ref().map_or(true, |row| pick.takes(&row.name)));
    Ok(picked.map(|row| row.map(Arc::new)).collect())
}

/// Labels a bad row with its name if that can be read, else with its position.
fn unreadable(raw: &str, position: usize, error: RowError) -> Unreadable {
    let label = name_of(raw).unwrap_or_else(|| format!("row {}", position + 1));
    Unreadable { label, error }
}

/// Returns the name of a row of which the rest may be malformed.
fn name_of(raw: &str) -> Option<String> {
    let value: serde_json::Value = serde_json::from_str(raw).ok()?;
    value.get("name")?.as_str().map(str::to_owned)
}

fn members(raw: &str) -> Result<Members<'_>, serde_json::Error> {
    serde_json::from_str(raw)
}

/// Starts a member on its own line, indented by `depth` levels.
fn member(text: &mut String, key: &str, depth: usize) {
    text.push('\n');
    (0..depth).for_each(|_| text.push_str("  "));
    text.push_str(&Wire::render(&key, 0).expect("a string is JSON"));
    text.push_str(": ");
}

impl<'de> Deserialize<'de> for Parts<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = Parts<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Parts<'de>, A::Error> {
                let (mut before, mut rows, mut after) = (Vec::new(), None, Vec::new());
                while let Some(key) = map.next_key::<String>()? {
                    if key == "workers" {
                        rows = Some(map.next_value()?);
                        continue;
                    }
                    let side = if rows.is_none() { &mut before } else { &mut after };
                    side.push((key, map.next_value()?));
                }
                let rows = rows.ok_or_else(|| A::Error::custom("missing key \"workers\""))?;
                Ok(Parts { before, rows, after })
            }
        }
        deserializer.deserialize_map(Collect)
    }
}

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = Members<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<'de>, A::Error> {
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
    fn of_several_rows_with_one_name_that_of_our_latest_start_counts() {
        let row = |started: &str, generation: Option<u64>| {
            let ours = generation.map_or(String::new(), |generation| {
                format!(r#","metadata":{{"swarm":{{"id":"k","generation":{generation},"host":"h"}}}}"#)
            });
            format!(r#"{{"name":"w","status":"running","cmd":["x"],"started":"{started}","cwd":"/"{ours}}}"#)
        };
        for (rows, counts) in [
            (vec![row("a", None), row("b", None)], "a"),
            (vec![row("a", None), row("b", Some(1))], "b"),
            (vec![row("a", Some(2)), row("b", Some(1)), row("c", None)], "a"),
            (vec![row("a", Some(1)), row("b", Some(3)), row("c", Some(2))], "b"),
        ] {
            let table = Table::parse(&format!(r#"{{"workers":[{}]}}"#, rows.join(","))).expect("parses");
            assert_eq!(table.find("w").map(|row| row.started.as_str()), Some(counts));
        }
    }

    #[test]
    fn a_file_of_the_original_comes_back_byte_for_byte() {
        let table = Table::parse(ORIGINAL).expect("parses");
        assert_eq!(table.render(), ORIGINAL);
    }

    #[test]
    fn rows_that_cannot_be_read_are_named_as_far_as_possible() {
        let unjudged = |version: u32, row: &str| {
            let text = format!("{{\"schema_version\":{version},\"workers\":[{row}]}}");
            Table::parse(&text).expect("parses").unjudged()
        };
        let sound = &ORIGINAL[ORIGINAL.find('[').expect("there") + 1..ORIGINAL.rfind(']').expect("there")];
        for (version, row, a, b) in [
            (1, sound, false, false),
            (1, "{\"name\":\"a\",\"env\":[]}", true, false),
            (1, "{\"name\":7}", true, true),
            (1, "[]", true, true),
            (2, sound, true, true),
        ] {
            let unjudged = unjudged(version, row);
            assert_eq!((unjudged.covers("a"), unjudged.covers("b")), (a, b), "{version}: {row}");
        }
    }

    #[test]
    fn a_new_generation_keeps_members_that_others_added_to_the_row() {
        let table = Table::parse(ORIGINAL).expect("parses");
        let row =
            Row { started: "2026-01-02T00:00:00.000001".into(), ..table.find("a").expect("there").as_ref().clone() };
        let after = Entry::after(&table.entries[0], row.clone());
        let text = Table { entries: vec![after.clone()], ..Table::default() }.render();
        assert!(after.raw.ends_with("    },\n      \"theirs\": [1,2]\n    }"), "{}", after.raw);
        assert_eq!(
            Table::parse(&text).expect("parses").find("a").map(|row| row.started.clone()),
            Some(row.started.clone())
        );
        assert_eq!(Entry::after(&after, row.clone()).raw, after.raw);
        assert_eq!(Entry::after(&Entry::of(row.clone()), row.clone()).raw, Entry::of(row).raw);
    }

    #[test]
    fn a_changed_status_changes_nothing_else() {
        let mut table = Table::parse(ORIGINAL).expect("parses");
        table.entries[0] = table.entries[0].with_status(WireStatus::Stopped);
        assert_eq!(table.render(), ORIGINAL.replace("\"running\"", "\"stopped\""));
        assert_eq!(table.find("a").map(|row| row.status), Some(WireStatus::Stopped));
    }

    #[test]
    fn a_reader_gets_what_it_picks_however_it_is_written() {
        let written = ORIGINAL.replace("\"a\",", "\"\\u0061\",");
        for text in [ORIGINAL, written.as_str()] {
            let named = |name: &str| rows(text, Pick::Named(&[name])).expect("parses").len();
            assert_eq!((named("a"), named("b"), named("sleep")), (1, 0, 0), "{text}");
            assert_eq!(rows(text, Pick::All).expect("parses").len(), 1);
        }
        let bad = rows(r#"{"workers":[{"name":"a"}, 7]}"#, Pick::All).expect("parses");
        let labels: Vec<_> = bad.into_iter().filter_map(|row| Some(row.err()?.label)).collect();
        assert_eq!(labels, ["a", "row 2"]);
    }

    #[test]
    fn foreign_top_level_keys_stay_where_they_were() {
        let text = "{\n  \"x\": {\"deep\": [1]},\n  \"workers\": [],\n  \"y\": 2\n}";
        assert_eq!(Table::parse(text).expect("parses").render(), text);
    }

    #[test]
    fn a_damaged_file_differs_from_one_bad_row() {
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
