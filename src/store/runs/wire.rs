//! `.arial/state.json`, schema version 2, with the field names and the field order of its specification. Fields of
//! other programs are preserved.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use swarm_model::json::Members as _;
use swarm_model::run::plan::{Job, Work};
use swarm_model::run::progress::{Mode, Progress, Run, Stage};

use super::home::{Home, from_iso, iso};
use super::records;
use swarm_sys::files::replace_durably;

const VERSION: u64 = 2;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
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

/// Reason why the file cannot be used, as a message for users.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateFault {
    /// The content is not a state of any version. It may be replaced once it was moved aside.
    #[error("{0}")]
    Damaged(String),
    /// The file cannot be read, or has a newer version. It must not be touched.
    #[error("{0}")]
    Unusable(String),
}

impl From<StateFault> for String {
    fn from(fault: StateFault) -> Self {
        fault.to_string()
    }
}

/// Reads the file; `None` if there is none.
///
/// # Errors
/// Fails if the file cannot be read, is damaged, or has a newer version.
pub fn load(home: &Home) -> Result<Option<ArialState>, StateFault> {
    let path = home.state();
    let message = |cause: String| format!("{}: {cause}", path.display());
    let named = |cause: String| StateFault::Damaged(message(cause));
    let unusable = |cause: String| StateFault::Unusable(message(cause));
    let text = match records::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unusable(error.to_string())),
    };
    let mut value: Value =
        serde_json::from_slice(&text).map_err(|error| named(format!("corrupt: {}", plain(&error))))?;
    let version = value.get("version").map_or(Some(1), Value::as_u64);
    match version {
        Some(VERSION) => {}
        Some(0 | 1) => migrate(&mut value, &modified(&path)),
        Some(newer) => return Err(unusable(format!("unsupported version {newer} (this program supports {VERSION})"))),
        None => return Err(named("version is not a number".to_owned())),
    }
    accept_both_spellings(&mut value);
    serde_json::from_value(value).map(Some).map_err(|error| named(plain(&error)))
}

/// Returns `line 3: expected a string, found integer 7` for an error of the parser.
fn plain(error: &serde_json::Error) -> String {
    let place = format!(" at line {} column {}", error.line(), error.column());
    let text = error.to_string();
    let text = text.strip_suffix(&place).unwrap_or(&text);
    let text = if error.is_eof() { "the file ends too early".to_owned() } else { swarm_config::words::plain(text) };
    if error.line() == 0 { text } else { format!("line {}: {text}", error.line()) }
}

/// Moves a damaged file aside, never over an earlier one, and returns its new path. Requires the lock of the home.
///
/// # Errors
/// Returns any I/O error; the file is then still there.
pub fn move_aside(home: &Home) -> io::Result<PathBuf> {
    let path = home.state();
    for number in 0.. {
        let end = if number == 0 { String::new() } else { format!(".{number}") };
        let aside = home.path().join(format!("state.json.corrupted{end}"));
        let flags = rustix::fs::RenameFlags::NOREPLACE;
        let moved = || rustix::fs::renameat_with(rustix::fs::CWD, &path, rustix::fs::CWD, &aside, flags);
        match rustix::io::retry_on_intr(moved) {
            Ok(()) => return Ok(aside),
            Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
    }
    unreachable!("a directory has fewer files than there are numbers")
}

/// Returns the file's content as the journal of the run has it.
pub fn rebuilt(run: &Run, now_ms: u64) -> ArialState {
    let row = |job: &Job| {
        let Work::Spec(work) = &job.work else { return None };
        Some(Workstream {
            id: job.id.clone(),
            spec_file: work.file.clone(),
            title: work.title.clone(),
            status: "pending".to_owned(),
            branch: job.branch.clone().unwrap_or_default(),
            worktree_path: format!("{}/worktrees/{}", super::home::ARIAL, job.leaf()),
            adapter: work.adapter.clone(),
            required_capabilities: Some(work.capabilities.clone()).filter(|required| !required.is_empty()),
            ..Workstream::default()
        })
    };
    let mut state = ArialState {
        version: VERSION,
        specs_dir: run.plan.specs.clone().unwrap_or_default(),
        base_branch: run.plan.base.clone().unwrap_or_default(),
        status: "planning".to_owned(),
        created_at: iso(now_ms),
        workstreams: run.plan.jobs.iter().filter_map(row).collect(),
        ..ArialState::default()
    };
    state.take(run, now_ms);
    state
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
    let dir = state.text("specsDir").unwrap_or_default();
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
    let Some(state) = value.as_object_mut() else { return };
    respell(state, &[("pending", "planning"), ("done", "completed")]);
    let rows = state.get_mut("workstreams").and_then(Value::as_array_mut).into_iter().flatten();
    for row in rows.filter_map(Value::as_object_mut) {
        // `paused` is an interrupted workstream that can resume.
        respell(row, &[("paused", "pending"), ("completed", "done")]);
    }
}

/// Replaces a status word by the one that is written, if the list of both has it.
fn respell(members: &mut Map<String, Value>, words: &[(&str, &'static str)]) {
    if let Some(status) = members.get_mut("status")
        && let Some((_, ours)) = words.iter().find(|(theirs, _)| status.as_str() == Some(*theirs))
    {
        *status = (*ours).into();
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
        Stage::Working | Stage::Asking { .. } | Stage::Finishing | Stage::Merging | Stage::Waiting if !over => {
            "running"
        }
        Stage::Pending
        | Stage::Paused
        | Stage::BackingOff { .. }
        | Stage::Working
        | Stage::Asking { .. }
        | Stage::Finishing
        | Stage::Merging
        | Stage::Waiting => "pending",
        Stage::Done => "done",
        Stage::Failed => "failed",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn respelled(mut value: Value) -> Value {
        migrate(&mut value, "2030-01-31T14:05:00.000Z");
        accept_both_spellings(&mut value);
        value
    }

    #[test]
    fn values_of_the_wrong_type_are_left_for_the_parser_to_refuse() {
        for value in [json!(null), json!([]), json!([{"status": "done"}]), json!("done"), json!(7)] {
            assert_eq!(respelled(value.clone()), value);
            assert!(serde_json::from_value::<ArialState>(value).is_err());
        }
        for rows in [json!(null), json!("x"), json!([null, 7, [], "paused"]), json!({"status": "paused"})] {
            let value = respelled(json!({"specsDir": 7, "status": ["done"], "workstreams": rows}));
            assert_eq!((&value["workstreams"], &value["status"]), (&rows, &json!(["done"])));
            assert!(serde_json::from_value::<ArialState>(value).is_err());
        }
    }

    #[test]
    fn errors_say_what_was_expected_in_plain_words() {
        for (text, words) in [
            ("{\n  \"version\": 2,\n", "state.json: corrupt: line 3: the file ends too early"),
            ("{\"version\": 2, x}", "state.json: corrupt: line 1: key must be a string"),
            ("[]", "state.json: expected an object, found a list"),
            ("{\"version\": 2, \"workstreams\": 7}", "state.json: expected a list, found integer 7"),
        ] {
            let dir = tempfile::tempdir().expect("a directory");
            let home = Home::new(dir.path());
            fs::write(home.state(), text).expect("written");
            let fault = load(&home).expect_err("is refused").to_string();
            assert!(fault.ends_with(words), "{fault}");
        }
    }

    #[test]
    fn the_status_is_derived_from_the_rows() {
        let cases: [(&[&str], &str, &str); 6] = [
            // Every one of none is done.
            (&[], "running", "completed"),
            (&["done", "done"], "running", "completed"),
            (&["done", "failed", "running"], "running", "failed"),
            (&["pending", "running"], "planning", "running"),
            (&["pending", "done"], "running", "running"),
            (&["pending"], "planning", "planning"),
        ];
        for (rows, before, after) in cases {
            let row = |status: &&str| Workstream { status: (*status).to_owned(), ..Workstream::default() };
            let workstreams = rows.iter().map(row).collect();
            let mut state = ArialState { status: before.to_owned(), workstreams, ..ArialState::default() };
            state.derive();
            assert_eq!(state.status, after, "{rows:?}");
        }
    }

    #[test]
    fn both_spellings_of_a_status_are_read() {
        let rows = ["paused", "completed", "running"].map(|status| json!({"id": status, "status": status}));
        let value = respelled(json!({"status": "done", "workstreams": rows}));
        let rows = value["workstreams"].as_array().expect("rows");
        let statuses: Vec<_> = rows.iter().filter_map(|row| row["status"].as_str()).collect();
        assert_eq!((value["status"].as_str(), statuses), (Some("completed"), vec!["pending", "done", "running"]));
    }
}
