//! One row of `state.json`, in the wire form of the original `swarm`.
//!
//! The registry keeps the raw row beside this typed view, so that fields of other programs survive. The view is for
//! decisions and for display.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::job::Place;
use super::metadata::Metadata;
use super::records::BaseRef;

/// Typed view of a row. As in the original reader, the first five fields are required and the others have defaults.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    pub name: String,
    pub status: WireStatus,
    pub cmd: Vec<String>,
    /// Naive local ISO-8601 time with microseconds.
    pub started: String,
    pub cwd: String,
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    #[serde(default)]
    pub tags: Vec<String>,
    #[serde(default)]
    pub tmux: Option<RowTmux>,
    #[serde(default)]
    pub worktree: Option<RowWorktree>,
    #[serde(default)]
    pub pid: Option<i64>,
    #[serde(default)]
    pub metadata: Metadata,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WireStatus {
    Running,
    Stopped,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowTmux {
    pub session: String,
    pub window: String,
    #[serde(default)]
    pub socket: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowWorktree {
    pub path: String,
    pub branch: String,
    pub base_repo: String,
}

impl RowWorktree {
    /// Returns the flags with which `swarm spawn --name NAME` in the base repository continues in this worktree. `None` if
    /// no flags do, because its directory has another name.
    pub fn flags(&self, name: &str) -> Option<String> {
        let (above, leaf) = self.path.rsplit_once('/')?;
        let mut flags = "--worktree".to_owned();
        if self.branch != name {
            flags += &format!(" --branch {}", self.branch);
        }
        if above != format!("{}-worktrees", self.base_repo) {
            flags += &format!(" --worktree-dir {above}");
        }
        (leaf == name).then_some(flags)
    }
}

/// `metadata.swarm`: facts that are fixed when the worker starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwarmMeta {
    /// Launch token of the start.
    pub id: String,
    pub generation: u64,
    pub host: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<BaseRef>,
    /// Whether the work is added to the merge queue once the worker ends with success.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub merge: bool,
    /// Port that the worker finds in `SWARM_PORT`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Name of the worker in which this one was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// Where the worker is, if it is a job of a batch system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<Place>,
}

/// Values that distinguish a row from a later row of the same name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowKey {
    pub started: String,
    pub pid: Option<i64>,
    pub window: Option<(String, String)>,
}

/// Reason why a row cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct RowError(pub String);

impl Row {
    /// Parses one row.
    ///
    /// # Errors
    /// Returns the parser's message about the first invalid field.
    pub fn parse(raw: &str) -> Result<Self, RowError> {
        serde_json::from_str(raw).map_err(|error| RowError(error.to_string()))
    }

    /// Returns the entry `swarm` of the metadata, if this program wrote the row. `reconcile` decides whether the entry
    /// still applies, because the original `swarm` copies it into rows that it writes again.
    pub fn swarm(&self) -> Option<&SwarmMeta> {
        self.metadata.swarm()
    }

    /// Returns where the worker is, if it is a job of a batch system. The original `swarm` copies metadata into rows of its
    /// own processes, which have a pid.
    pub fn place(&self) -> Option<&Place> {
        self.swarm().and_then(|meta| meta.place.as_ref()).filter(|_| self.pid.is_none() && self.tmux.is_none())
    }

    /// Reports whether this program wrote the row for a later start than the other row of the same name, or only this one.
    pub fn is_later_than(&self, other: &Self) -> bool {
        let generation = |row: &Self| row.swarm().map(|meta| meta.generation);
        generation(self) > generation(other)
    }

    /// Returns the values that distinguish this row from a later row of the same name.
    pub fn key(&self) -> RowKey {
        let window = self.tmux.as_ref().map(|tmux| (tmux.session.clone(), tmux.window.clone()));
        RowKey { started: self.started.clone(), pid: self.pid, window }
    }

    /// Reports whether the worker works at or below the directory `tree`, as both are written.
    pub fn works_in(&self, tree: &Path) -> bool {
        let worktree = self.worktree.as_ref().map(|worktree| worktree.path.as_str());
        [Some(self.cwd.as_str()), worktree].into_iter().flatten().any(|dir| Path::new(dir).starts_with(tree))
    }

    /// Returns the pid if it may be inspected and signalled. 0, 1 and negative numbers mean process groups, all
    /// processes, or init.
    pub fn usable_pid(&self) -> Option<i32> {
        self.pid.and_then(|pid| i32::try_from(pid).ok()).filter(|pid| *pid > 1)
    }
}

/// Writer of JSON in the form of the original `swarm`: two-space indent, ASCII only.
pub struct Wire;

impl Wire {
    /// Renders `value` at `depth` levels of indent. The first line is not indented.
    ///
    /// # Errors
    /// Fails only for values that JSON cannot represent, never for a [`Row`].
    pub fn render<T: Serialize>(value: &T, depth: usize) -> Result<String, serde_json::Error> {
        let pretty = serde_json::to_string_pretty(value)?;
        let indent = format!("\n{}", "  ".repeat(depth));
        let mut text = String::with_capacity(pretty.len() + 64);
        for c in pretty.chars() {
            match c {
                '\n' => text.push_str(&indent),
                ' '..='~' => text.push(c),
                other => escape(other, &mut text),
            }
        }
        Ok(text)
    }
}

fn escape(c: char, text: &mut String) {
    use std::fmt::Write as _;
    let mut units = [0_u16; 2];
    for unit in c.encode_utf16(&mut units) {
        write!(text, "\\u{unit:04x}").expect("writing to a string cannot fail");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wire_form_is_ascii_with_two_spaces() {
        let value = serde_json::json!({"a": ["é", "😀", "\u{7f}"], "b": {}, "c": []});
        let text = Wire::render(&value, 1).expect("renders");
        assert_eq!(
            text,
            "{\n    \"a\": [\n      \"\\u00e9\",\n      \"\\ud83d\\ude00\",\n      \"\\u007f\"\n    ],\n    \"b\": {},\n    \"c\": []\n  }"
        );
    }

    #[test]
    fn optional_fields_default_and_odd_pids_are_never_used() {
        let row = Row::parse(
            r#"{"name":"a","status":"running","cmd":["x"],"started":"2026-01-01T00:00:00.000001","cwd":"/","pid":-1}"#,
        )
        .expect("parses");
        assert_eq!(row.usable_pid(), None);
        assert!(row.env.is_empty() && row.tmux.is_none() && row.metadata == Metadata::default());
        for pid in [0, 1, -7, i64::MAX] {
            assert_eq!(Row { pid: Some(pid), ..row.clone() }.usable_pid(), None);
        }
        assert_eq!(Row { pid: Some(2), ..row }.usable_pid(), Some(2));
    }
}
