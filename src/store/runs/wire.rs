//! `.arial/state.json`, schema version 2, with the field names and the field order of its specification. Fields of
//! other programs are preserved.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use swarm_model::run::progress::{Mode, Progress, Run, Stage};

use super::home::{Home, from_iso, iso};
use swarm_sys::files::replace_durably;

const VERSION: u64 = 2;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ArialState {
    pub version: u64,
    pub specs_dir: String,
    pub base_branch: String,
    pub status: String,
    pub created_at: String,
    pub updated_at: String,
    pub workstreams: Vec<Workstream>,
    #[serde(flatten)]
    pub others: Map<String, Value>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Workstream {
    pub id: String,
    pub spec_file: String,
    pub title: String,
    #[serde(default)]
    pub description: String,
    pub status: String,
    pub branch: String,
    pub worktree_path: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<String>,
    #[serde(default)]
    pub retry_count: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adapter: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub required_capabilities: Option<Vec<String>>,
    #[serde(flatten)]
    pub others: Map<String, Value>,
}

/// Reads the file; `None` if there is none.
///
/// # Errors
/// Fails with a message for users if the file cannot be read, is corrupt, or has a newer version.
pub fn load(home: &Home) -> Result<Option<ArialState>, String> {
    let path = home.state();
    let named = |cause: String| format!("{}: {cause}", path.display());
    let text = match fs::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(named(error.to_string())),
    };
    let mut value: Value = serde_json::from_slice(&text).map_err(|error| named(format!("corrupt: {error}")))?;
    let version = value.get("version").map_or(Some(1), Value::as_u64);
    match version {
        Some(VERSION) => {}
        Some(0 | 1) => migrate(&mut value, &modified(&path)),
        Some(newer) => return Err(named(format!("unsupported version {newer} (this program supports {VERSION})"))),
        None => return Err(named("version is not a number".to_owned())),
    }
    accept_both_spellings(&mut value);
    serde_json::from_value(value).map(Some).map_err(|error| named(error.to_string()))
}

/// Returns the modification time of the file, which stands in for the times that version 1 did not have.
fn modified(path: &Path) -> String {
    let since = fs::metadata(path).and_then(|meta| meta.modified()).ok();
    let since = since.and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok()).unwrap_or_default();
    iso(u64::try_from(since.as_millis()).unwrap_or(0))
}

/// Converts version 1, which is not documented: fills in the fields required by version 2 that may be missing.
fn migrate(value: &mut Value, modified: &str) {
    let Some(state) = value.as_object_mut() else { return };
    state.insert("version".to_owned(), VERSION.into());
    for (key, missing) in [
        ("specsDir", "./specs"),
        ("baseBranch", "main"),
        ("status", "planning"),
        ("createdAt", modified),
        ("updatedAt", modified),
    ] {
        state.entry(key).or_insert_with(|| missing.into());
    }
    let dir = state["specsDir"].as_str().unwrap_or_default();
    let dir = dir.strip_prefix("./").unwrap_or(dir).trim_end_matches('/').to_owned();
    let rows = state.entry("workstreams").or_insert_with(|| Value::Array(Vec::new()));
    for row in rows.as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
        let id = row.get("id").and_then(Value::as_str).unwrap_or_default().to_owned();
        for (key, missing) in [
            ("specFile", format!("{dir}/{id}.md")),
            ("title", id.clone()),
            ("description", String::new()),
            ("status", "pending".to_owned()),
            ("branch", format!("arial/{id}")),
            ("worktreePath", format!("{}/worktrees/{id}", super::home::ARIAL)),
        ] {
            row.entry(key).or_insert_with(|| missing.into());
        }
    }
}

/// Normalizes status words. The specification contradicts itself: both spellings are read, one is written.
fn accept_both_spellings(value: &mut Value) {
    let status = match value["status"].as_str() {
        Some("pending") => Some("planning"),
        Some("done") => Some("completed"),
        _ => None,
    };
    if let Some(status) = status {
        value["status"] = status.into();
    }
    for row in value["workstreams"].as_array_mut().into_iter().flatten() {
        match row["status"].as_str() {
            // An interrupted workstream that can resume.
            Some("paused") => row["status"] = "pending".into(),
            Some("completed") => row["status"] = "done".into(),
            _ => {}
        }
    }
}

/// Writes the file durably.
///
/// # Errors
/// Returns any I/O error; the file is then unchanged.
pub fn save(home: &Home, state: &ArialState) -> io::Result<()> {
    let mut text = serde_json::to_vec_pretty(state)?;
    text.push(b'\n');
    replace_durably(home.path(), "state.json", &text)
}

impl ArialState {
    /// Derives the status of the run from its rows, with the precedence of the specification.
    pub fn derive(&mut self) {
        let any = |status: &str| self.workstreams.iter().any(|row| row.status == status);
        if self.workstreams.iter().all(|row| row.status == "done") {
            self.status = "completed".to_owned();
        } else if any("failed") {
            self.status = "failed".to_owned();
        } else if any("running") {
            self.status = "running".to_owned();
        }
    }

    /// Updates the file's content from our state of the run.
    pub fn take(&mut self, run: &Run, now_ms: u64) {
        if matches!(run.mode, Mode::Running) && self.status == "planning" {
            self.status = "running".to_owned();
        }
        let over = matches!(run.mode, Mode::Over(_));
        // Indexed by name: a run may have a thousand jobs, and this happens at each step.
        let known = run.plan.jobs.iter().map(|job| job.id.as_str()).zip(&run.jobs);
        let known: BTreeMap<&str, &Progress> = known.collect();
        for row in &mut self.workstreams {
            if let Some(progress) = known.get(row.id.as_str()) {
                row.take(progress, over);
            }
        }
        self.updated_at = iso(now_ms);
        self.derive();
    }

    pub fn row(&self, id: &str) -> Option<&Workstream> {
        self.workstreams.iter().find(|row| row.id == id)
    }
}

impl Workstream {
    fn take(&mut self, progress: &Progress, over: bool) {
        self.status = word(&progress.stage, over).to_owned();
        self.pid = progress.pid;
        self.started_at = progress.started_ms.map(iso);
        self.completed_at = progress.ended_ms.map(iso);
        // Counts retries, not failures.
        self.retry_count = progress.failures.min(progress.attempt.saturating_sub(1));
        self.last_error.clone_from(&progress.error);
        self.summary.clone_from(&progress.summary);
    }

    /// Returns the progress of a workstream if only this file is available.
    pub fn progress(&self) -> Progress {
        let stage = match self.status.as_str() {
            "done" => Stage::Done,
            "failed" => Stage::Failed,
            "running" => Stage::Paused,
            _ => Stage::Pending,
        };
        Progress {
            stage,
            attempt: self.retry_count,
            failures: self.retry_count,
            started_ms: self.started_at.as_deref().and_then(from_iso),
            ended_ms: self.completed_at.as_deref().and_then(from_iso),
            summary: self.summary.clone(),
            error: self.last_error.clone(),
            ..Progress::default()
        }
    }
}

/// Maps a stage to one of the four status words of the file.
pub fn word(stage: &Stage, over: bool) -> &'static str {
    match stage {
        Stage::Working | Stage::Finishing | Stage::Merging | Stage::Waiting if !over => "running",
        Stage::Pending
        | Stage::Paused
        | Stage::BackingOff { .. }
        | Stage::Working
        | Stage::Finishing
        | Stage::Merging
        | Stage::Waiting => "pending",
        Stage::Done => "done",
        Stage::Failed => "failed",
    }
}
