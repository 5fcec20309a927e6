//! The block with which an agent ends its turn: found in its text, and read.

use std::sync::LazyLock;

use regex::Regex;
use serde_json::Value;

use super::json::{Json, trim};

/// A block that is longer is none.
pub const BLOCK_BYTES_MAX: usize = 64 << 10;

/// Which block of several counts. The other program takes the first, although its own
/// contract asks for the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    First,
    Last,
}

/// What an agent says that comes next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Signal {
    Targets(Vec<Target>),
    PromptHuman,
    AwaitHandoff,
    ForwardPassClosed,
    MetaAnalysisComplete { findings: String },
    BackwardPassComplete { artifact: String },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    pub node: String,
    pub artifact: Option<String>,
}

/// Why an agent's block is not taken. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub code: Code,
    /// For whoever looks on.
    pub summary: String,
    /// For the agent: what is wrong, and what to do.
    pub message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    MissingBlock,
    YamlParse,
    InvalidTargetShape,
    MissingRequiredField,
    UnknownSignalType,
    UnexpectedSignal,
    InvalidTransition,
    ArtifactUnavailable,
    AssignedFindingsPath,
    MissingFindingsArtifact,
    AssignedFeedbackPath,
    MissingFeedbackArtifact,
    NotRunning,
}

impl Code {
    pub fn word(self) -> &'static str {
        match self {
            Self::MissingBlock => "missing_block",
            Self::YamlParse => "yaml_parse",
            Self::InvalidTargetShape => "invalid_target_shape",
            Self::MissingRequiredField => "missing_required_field",
            Self::UnknownSignalType => "unknown_signal_type",
            Self::UnexpectedSignal => "unexpected_signal",
            Self::InvalidTransition => "invalid_transition",
            Self::ArtifactUnavailable => "artifact_unavailable",
            Self::AssignedFindingsPath => "assigned_findings_path",
            Self::MissingFindingsArtifact => "missing_findings_artifact",
            Self::AssignedFeedbackPath => "assigned_feedback_path",
            Self::MissingFeedbackArtifact => "missing_feedback_artifact",
            Self::NotRunning => "not_running",
        }
    }
}

impl Refusal {
    pub fn new(code: Code, summary: impl Into<String>, message: impl Into<String>) -> Self {
        Self { code, summary: summary.into(), message: message.into() }
    }
}

/// White space as in the other program's patterns, then at least one line's end.
static OPENING: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"(?i)```handoff(?:[\s\x{FEFF}--\x{85}])*[\n\r]+").expect("the pattern is right"));
const FENCE: &str = "```";

/// The text of the block that counts; none where there is none, or it has no end.
pub fn extract(text: &str, which: Which) -> Option<&str> {
    match which {
        Which::First => OPENING.find_iter(text).find_map(|opening| content(text, opening.end())),
        Which::Last => content(text, OPENING.find_iter(text).last()?.end()),
    }
}

fn content(text: &str, from: usize) -> Option<&str> {
    let rest = &text[from..];
    rest.find(FENCE).map(|end| &rest[..end])
}

/// Finds the block and reads it; `yaml` turns its text into a value.
///
/// # Errors
/// What is wrong with it.
pub fn parse(text: &str, which: Which, yaml: impl Fn(&str) -> Result<Value, String>) -> Result<Signal, Refusal> {
    let block = extract(text, which).ok_or_else(missing_block)?;
    if block.len() > BLOCK_BYTES_MAX {
        return Err(yaml_parse("It is far too long."));
    }
    let value = yaml(block).map_err(|error| yaml_parse(&format!("The parser says: {error}")))?;
    interpret(&value)
}

/// Reads a block that is a value by now.
///
/// # Errors
/// What is wrong with it.
pub fn interpret(value: &Value) -> Result<Signal, Refusal> {
    match value {
        Value::Array(entries) if entries.is_empty() => Err(Refusal::new(
            Code::InvalidTargetShape,
            "Malformed handoff block",
            "Error: The handoff block names no target. Name at least one.",
        )),
        Value::Array(entries) => {
            let target = |(at, entry)| target(entry, &format!("Entry {at} of the handoff block: "));
            entries.iter().enumerate().map(target).collect::<Result<_, _>>().map(Signal::Targets)
        }
        Value::Object(members) => match members.get("type") {
            Some(kind) => signal(kind, value),
            None => Ok(Signal::Targets(vec![target(value, "")?])),
        },
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Err(missing_block()),
    }
}

fn target(entry: &Value, label: &str) -> Result<Target, Refusal> {
    if entry.is_null() {
        let message = format!("Error: {label}it is empty. Give it target_node_id and artifact_path, or remove it.");
        return Err(Refusal::new(Code::InvalidTargetShape, "Malformed handoff block", message));
    }
    let node = filled(entry, "target_node_id").ok_or_else(|| {
        missing_field(&format!("{label}\"target_node_id\" is required and must be a non-empty string."))
    })?;
    // Whatever is there counts as a path, as in the other program.
    let artifact = entry.get("artifact_path").map(Json::from).filter(Json::is_truthy).map(|path| path.to_text());
    Ok(Target { node: node.to_owned(), artifact })
}

fn signal(kind: &Value, block: &Value) -> Result<Signal, Refusal> {
    let path = |key: &str| {
        let absent = || missing_field(&format!("This signal needs \"{key}\", the path of the file that you wrote."));
        filled(block, key).map(str::to_owned).ok_or_else(absent)
    };
    match kind.as_str() {
        Some("prompt-human") => Ok(Signal::PromptHuman),
        Some("await-handoff") => Ok(Signal::AwaitHandoff),
        Some("forward-pass-closed") => Ok(Signal::ForwardPassClosed),
        Some("meta-analysis-complete") => Ok(Signal::MetaAnalysisComplete { findings: path("findings_path")? }),
        Some("backward-pass-complete") => Ok(Signal::BackwardPassComplete { artifact: path("artifact_path")? }),
        _ => {
            let kind = Json::from(kind).to_text();
            Err(Refusal::new(
                Code::UnknownSignalType,
                format!("Unsupported handoff signal type \"{kind}\""),
                format!(
                    "Error: \"{kind}\" is no handoff signal. There are: forward-pass-closed, meta-analysis-complete, backward-pass-complete, prompt-human, await-handoff."
                ),
            ))
        }
    }
}

fn filled<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value.get(key)?.as_str().filter(|text| !trim(text).is_empty())
}

fn missing_block() -> Refusal {
    Refusal::new(
        Code::MissingBlock,
        "Malformed handoff block",
        "Error: There is no handoff block. End your answer with a fenced code block tagged `handoff`: either target_node_id with artifact_path, or the type of a signal.",
    )
}

fn yaml_parse(detail: &str) -> Refusal {
    let message = format!("Error: The handoff block is not valid YAML. {detail} Correct it and state it again.");
    Refusal::new(Code::YamlParse, "Malformed handoff block", message)
}

fn missing_field(detail: &str) -> Refusal {
    Refusal::new(Code::MissingRequiredField, "Handoff block missing required field", format!("Error: {detail}"))
}
