//! `flow.json`: the state of one flow, in the format that it shares with the original runtime.
//!
//! The document keeps its key order and unknown fields. Only the fields below are interpreted.

use thiserror::Error;

use super::consent;
use super::json::{Json, Members};
use super::names::FlowRef;

/// The only supported `stateVersion`.
pub const STATE_VERSION: &str = "11";
/// Maximum size of `flow.json` in bytes. Larger files are not loaded.
pub const FLOW_BYTES_MAX: u64 = 32 << 20;

/// State of one flow: the document, and the record's name and summary.
#[derive(Clone, Debug, PartialEq)]
pub struct FlowRun {
    pub(super) doc: Members,
    /// Name from `record.yaml`. Never written to `flow.json`.
    pub record_name: Option<String>,
    pub record_summary: Option<String>,
}

/// A loaded flow, and the names of the fields that had to be filled in or corrected.
#[derive(Clone, Debug, PartialEq)]
pub struct Loaded {
    pub flow: FlowRun,
    pub changed: Vec<String>,
}

/// Reason why a flow cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LoadError {
    #[error("flow.json is not valid JSON: {0}")]
    Corrupt(String),
    #[error(
        "Unsupported persisted flow state version \"{found}\". This runtime only supports flow state version \"{STATE_VERSION}\"."
    )]
    Version { found: String },
    #[error("Persisted flow state is missing required workspaceRoot or recordFolderPath fields.")]
    Paths,
    #[error("Persisted flow identity mismatch: loaded \"{loaded}\" but expected \"{expected}\".")]
    Identity { loaded: String, expected: String },
    #[error("Persisted flow state is missing {0}.")]
    Missing(&'static str),
    #[error("Persisted flow state has {0} of the wrong type.")]
    Malformed(&'static str),
    #[error("Persisted flow workspace root mismatch: loaded \"{loaded}\" but expected \"{expected}\".")]
    Root { loaded: String, expected: String },
}

/// Parameters of a new flow.
#[derive(Clone, Debug)]
pub struct NewFlow<'a> {
    pub id: &'a FlowRef,
    /// Absolute path, as is `record_folder`.
    pub workspace_root: &'a str,
    pub record_folder: &'a str,
    pub first_node: &'a str,
}

/// Row of the list of flows. Flows of an unsupported version have a row too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowSummary {
    pub id: FlowRef,
    pub status: String,
    pub record_folder: String,
    pub openable: bool,
    pub version: String,
    pub record_name: Option<String>,
    pub record_summary: Option<String>,
}

impl FlowRun {
    /// Creates the state of a new flow.
    pub fn new(new: &NewFlow<'_>) -> Self {
        let mut doc = Members::default();
        doc.set("flowId", new.id.flow.as_str());
        doc.set("workspaceRoot", new.workspace_root);
        doc.set("projectNamespace", new.id.project.as_str());
        doc.set("recordFolderPath", new.record_folder);
        doc.set("runningNodes", Json::texts([new.first_node]));
        for key in ["awaitingHumanNodes", "pendingHumanInputs", "pendingHandoffApprovals"] {
            doc.set(key, Json::object());
        }
        for key in ["visitedNodeIds", "completedHandoffs"] {
            doc.set(key, Json::List(Vec::new()));
        }
        for key in ["receivingHandoff", "historyHandoff"] {
            doc.set(key, Json::object());
        }
        doc.set("awaitingHandoff", Json::List(Vec::new()));
        doc.set("status", "running");
        doc.set("stateVersion", STATE_VERSION);
        doc.set("feedbackContext", [("kind", Json::from("standard"))]);
        doc.set("consentState", consent::normalize(None));
        Self { doc, record_name: None, record_summary: None }
    }

    /// Loads a flow, with the original runtime's order of checks. `expected` is the flow that the
    /// file's location implies.
    ///
    /// # Errors
    /// Returns the first reason why the flow cannot be opened.
    pub fn load(text: &str, expected: &FlowRef) -> Result<Loaded, LoadError> {
        let read = Json::parse(text).map_err(LoadError::Corrupt)?;
        let Json::Object(before) = read else {
            return Err(LoadError::Corrupt("not an object".to_owned()));
        };
        check_version(&before)?;
        let mut doc = before.clone();
        for key in ["receivingHandoff", "historyHandoff"] {
            fill_object(&mut doc, key)?;
        }
        match doc.get("awaitingHandoff") {
            Some(Json::List(_)) => {}
            Some(other) if other.is_truthy() => return Err(LoadError::Malformed("awaitingHandoff")),
            _ => doc.set("awaitingHandoff", Json::List(Vec::new())),
        }
        check_paths(&doc)?;
        check_identity(&doc, expected)?;
        let flow_texts = |key| doc.get(key).is_some_and(|value| value.as_list().is_some());
        if !flow_texts("runningNodes") {
            return Err(LoadError::Missing("runningNodes"));
        }
        for key in ["awaitingHumanNodes", "pendingHumanInputs"] {
            if doc.get(key).and_then(Json::as_object).is_none() {
                return Err(LoadError::Missing(key));
            }
        }
        if doc.get("pendingHandoffApprovals").is_some_and(|value| value.is_truthy() && value.as_object().is_none()) {
            return Err(LoadError::Malformed("pendingHandoffApprovals"));
        }
        for key in ["completedHandoffs", "visitedNodeIds"] {
            if doc.get(key).and_then(Json::as_list).is_none() {
                doc.set(key, Json::List(Vec::new()));
            }
        }
        if !doc.get("feedbackContext").is_some_and(Json::is_truthy) {
            doc.set("feedbackContext", [("kind", Json::from("standard"))]);
        }
        let consent = consent::normalize(doc.get("consentState"));
        doc.set("consentState", consent);
        let mut taken = |key| doc.remove(key).and_then(|value| value.as_text().map(str::to_owned));
        let (record_name, record_summary) = (taken("recordName"), taken("recordSummary"));
        let differs = |key: &str| doc.get(key) != before.get(key);
        // Added keys come last, removed keys after them.
        let keys = doc.keys().chain(["recordName", "recordSummary"]).filter(|key| differs(key));
        let changed = keys.map(str::to_owned).collect();
        Ok(Loaded { flow: Self { doc, record_name, record_summary }, changed })
    }

    /// Renders the file content: indented by two spaces, no newline at the end, and without the
    /// record's name and summary.
    pub fn render(&self) -> String {
        Json::Object(self.doc.clone()).render()
    }

    /// Returns the document with the record's name and summary.
    pub fn to_json(&self) -> Json {
        let mut doc = self.doc.clone();
        let record = [("recordName", &self.record_name), ("recordSummary", &self.record_summary)];
        for (key, text) in record.into_iter().filter_map(|(key, text)| Some((key, text.as_deref()?))) {
            doc.set(key, text);
        }
        Json::Object(doc)
    }

    /// Adds the fields that a flow of an earlier release lacks and the original runtime requires.
    pub fn complete(&mut self) {
        if !self.doc.get("pendingHandoffApprovals").is_some_and(Json::is_truthy) {
            self.doc.set("pendingHandoffApprovals", Json::object());
        }
    }

    /// Checks that the flow belongs to the workspace at `root`. Paths are compared as text.
    ///
    /// # Errors
    /// Fails if it belongs to another workspace.
    pub fn check_root(&self, root: &str) -> Result<(), LoadError> {
        let loaded = self.workspace_root();
        if loaded == root {
            return Ok(());
        }
        Err(LoadError::Root { loaded: loaded.to_owned(), expected: root.to_owned() })
    }

    pub fn id(&self) -> FlowRef {
        FlowRef { project: self.text("projectNamespace").to_owned(), flow: self.text("flowId").to_owned() }
    }

    pub fn workspace_root(&self) -> &str {
        self.text("workspaceRoot")
    }

    pub fn record_folder(&self) -> &str {
        self.text("recordFolderPath")
    }

    pub fn status(&self) -> &str {
        self.text("status")
    }

    fn text(&self, key: &str) -> &str {
        self.doc.text(key).unwrap_or_default()
    }
}

impl FlowSummary {
    /// Returns the row for the file at `id`. `None` if the file is broken. The caller sets name and
    /// summary from `record.yaml`, if there is a record folder.
    pub fn of(text: &str, id: &FlowRef) -> Option<Self> {
        match FlowRun::load(text, id) {
            Ok(loaded) => Some(Self::of_flow(&loaded.flow)),
            Err(LoadError::Version { found }) => {
                let Ok(Json::Object(doc)) = Json::parse(text) else { return None };
                let own = |key| doc.text(key).map(str::to_owned);
                Some(Self {
                    id: id.clone(),
                    status: own("status")?,
                    record_folder: own("recordFolderPath")?,
                    openable: false,
                    version: found,
                    record_name: own("recordName"),
                    record_summary: own("recordSummary"),
                })
            }
            Err(_) => None,
        }
    }

    pub fn of_flow(flow: &FlowRun) -> Self {
        Self {
            id: flow.id(),
            status: flow.status().to_owned(),
            record_folder: flow.record_folder().to_owned(),
            openable: true,
            version: STATE_VERSION.to_owned(),
            record_name: flow.record_name.clone(),
            record_summary: flow.record_summary.clone(),
        }
    }
}

/// The version must be a string: the number 11 is refused.
fn check_version(doc: &Members) -> Result<(), LoadError> {
    let found = doc.get("stateVersion");
    if found.and_then(Json::as_text) == Some(STATE_VERSION) {
        return Ok(());
    }
    let found = found.filter(|value| **value != Json::Null).map_or_else(|| "missing".to_owned(), Json::to_text);
    Err(LoadError::Version { found })
}

fn fill_object(doc: &mut Members, key: &'static str) -> Result<(), LoadError> {
    match doc.get(key) {
        Some(Json::Object(_)) => {}
        Some(other) if other.is_truthy() => return Err(LoadError::Malformed(key)),
        _ => doc.set(key, Json::object()),
    }
    Ok(())
}

fn check_paths(doc: &Members) -> Result<(), LoadError> {
    let path = |key| match doc.get(key) {
        Some(Json::Text(path)) if !path.is_empty() => Ok(()),
        Some(other) if other.is_truthy() => Err(LoadError::Malformed(key)),
        _ => Err(LoadError::Paths),
    };
    path("workspaceRoot").and_then(|()| path("recordFolderPath"))
}

fn check_identity(doc: &Members, expected: &FlowRef) -> Result<(), LoadError> {
    if doc.text("projectNamespace") == Some(&expected.project) && doc.text("flowId") == Some(&expected.flow) {
        return Ok(());
    }
    let said = |key| doc.get(key).map_or_else(|| "undefined".to_owned(), Json::to_text);
    let loaded = format!("{}/{}", said("projectNamespace"), said("flowId"));
    Err(LoadError::Identity { loaded, expected: expected.to_string() })
}
