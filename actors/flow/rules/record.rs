//! `record.yaml`: name and summary of a flow.
//!
//! Existing values win. Missing ones are taken from the workflow unless they are reserved names of
//! drafts.

use serde_json::Value;

use super::json::{Json, trim};

const RESERVED_NAMES: [&str; 2] = ["Draft Owner Intake", "Runtime Project Initialization"];
const RESERVED_SUMMARIES: [&str; 2] = [
    "Runtime-created draft flow for the first Owner conversation.",
    "Runtime-created single-node Owner flow for project initialization.",
];

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    pub name: Option<String>,
    pub summary: Option<String>,
}

/// Whether `record.yaml` has to be rewritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rewrite {
    Needed,
    NotNeeded,
}

/// Returns name and summary of a flow. `existing` is the document of `record.yaml`, `None` if the
/// file is absent or unreadable; `workflow` is the workflow's document.
pub fn sync(existing: Option<&Value>, workflow: Option<&Value>) -> (Record, Rewrite) {
    let known = existing.map(|document| Record {
        name: text(document, "record", "name"),
        summary: text(document, "record", "summary"),
    });
    let offered =
        |key, reserved: [&str; 2]| text(workflow?, "workflow", key).filter(|text| !reserved.contains(&text.as_str()));
    let Record { name, summary } = known.clone().unwrap_or_default();
    let record = Record {
        name: name.or_else(|| offered("name", RESERVED_NAMES)),
        summary: summary.or_else(|| offered("summary", RESERVED_SUMMARIES)),
    };
    let rewrite = if known.as_ref() == Some(&record) { Rewrite::NotNeeded } else { Rewrite::Needed };
    (record, rewrite)
}

fn text(document: &Value, part: &str, key: &str) -> Option<String> {
    let text = trim(document.get(part)?.get(key)?.as_str()?);
    (!text.is_empty()).then(|| text.to_owned())
}

impl Record {
    /// Returns the content of `record.yaml`.
    pub fn document(&self) -> Json {
        let text = |text: &Option<String>| text.as_deref().map_or(Json::Null, Json::from);
        Json::from([("record", Json::from([("name", text(&self.name)), ("summary", text(&self.summary))]))])
    }
}
