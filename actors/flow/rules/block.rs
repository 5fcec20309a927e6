//! The `handoff` block that ends an agent's turn: extraction from free text, and parsing.

use std::sync::LazyLock;

use regex::Regex;
use serde_json::Value;

use super::json::{Json, trim};

/// Maximum size of a block in bytes. Longer blocks are refused without being parsed.
pub const BLOCK_BYTES_MAX: usize = 64 << 10;

/// Selects the block that counts if a text has several. The original runtime takes the first one,
/// although its own contract asks for the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    First,
    Last,
}

/// Parsed content of a handoff block.
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

/// Reason why an agent's signal was refused. A refusal leaves the flow unchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub code: Code,
    /// Short text for events and logs.
    pub summary: String,
    /// Text for the agent: the problem and how to fix it.
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

/// Matches the original runtime's pattern: its set of white space, then at least one line break.
static OPENING: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"(?i)```handoff(?:[\s\x{FEFF}--\x{85}])*[\n\r]+").expect("the pattern is right"));
const FENCE: &str = "```";

/// Returns the text of the block that `which` selects. `None` if there is no block or it is not
/// closed.
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

/// Extracts the block from `text` and interprets it. `yaml` parses the block's text into a value.
///
/// # Errors
/// Returns a refusal if there is no block, or it is too long, not valid YAML or not a valid signal.
pub fn parse(text: &str, which: Which, yaml: impl Fn(&str) -> Result<Value, String>) -> Result<Signal, Refusal> {
    let block = extract(text, which).ok_or_else(missing_block)?;
    if block.len() > BLOCK_BYTES_MAX {
        return Err(yaml_parse(&format!("It is longer than {BLOCK_BYTES_MAX} bytes.")));
    }
    let value = yaml(block).map_err(|error| yaml_parse(&format!("Parser error: {error}.")))?;
    interpret(&value)
}

/// Interprets a block that was already parsed into a value.
///
/// # Errors
/// Returns a refusal if the value is not a valid signal.
pub fn interpret(value: &Value) -> Result<Signal, Refusal> {
    match value {
        Value::Array(entries) if entries.is_empty() => Err(Refusal::new(
            Code::InvalidTargetShape,
            "Malformed handoff block",
            "Error: The handoff block has no targets. Name at least one.",
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
        let message = format!("Error: {label}the entry is empty. Set target_node_id and artifact_path, or remove it.");
        return Err(Refusal::new(Code::InvalidTargetShape, "Malformed handoff block", message));
    }
    let node = filled(entry, "target_node_id").ok_or_else(|| {
        missing_field(&format!("{label}\"target_node_id\" is required and must be a non-empty string."))
    })?;
    // Any truthy value counts as a path, as in the original runtime.
    let artifact = entry.get("artifact_path").map(Json::from).filter(Json::is_truthy).map(|path| path.to_text());
    Ok(Target { node: node.to_owned(), artifact })
}

fn signal(kind: &Value, block: &Value) -> Result<Signal, Refusal> {
    let path = |key: &str| {
        let absent =
            || missing_field(&format!("\"{key}\" is required for this signal: the path of the file that you wrote."));
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
                    "Error: Unknown handoff signal \"{kind}\". Valid signals: forward-pass-closed, meta-analysis-complete, backward-pass-complete, prompt-human, await-handoff."
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
        "Error: No handoff block found. End your answer with a fenced code block tagged `handoff` that has either target_node_id and artifact_path, or the type of a signal.",
    )
}

fn yaml_parse(detail: &str) -> Refusal {
    let message = format!("Error: The handoff block is not valid YAML. {detail} Correct it and restate it.");
    Refusal::new(Code::YamlParse, "Malformed handoff block", message)
}

fn missing_field(detail: &str) -> Refusal {
    Refusal::new(Code::MissingRequiredField, "Handoff block missing required field", format!("Error: {detail}"))
}
