//! `record.yaml`: under which name and summary a flow is known.
//!
//! What stands there wins; what is missing is taken from the workflow, unless that is
//! one of those that every flow begins with.

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

/// Whether the file has to be written anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rewrite {
    Needed,
    NotNeeded,
}

/// What a flow is called. `existing` is the record's document, none where there is no
/// file or it cannot be read; `workflow` is the workflow's document.
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
    /// What the file says.
    pub fn document(&self) -> Json {
        let text = |text: &Option<String>| text.as_deref().map_or(Json::Null, Json::from);
        Json::from([("record", Json::from([("name", text(&self.name)), ("summary", text(&self.summary))]))])
    }
}
