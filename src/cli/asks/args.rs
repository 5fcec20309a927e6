//! Arguments of the verbs about requests of agents.

use std::path::PathBuf;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand};

use super::which::Which;
use crate::cli::examples;

#[derive(Debug, Args)]
pub struct ApprovalsArgs {
    /// Show this request in full: its number, or FLOW/N
    #[arg(value_name = "N", conflicts_with_all = ["run", "all", "follow"])]
    pub request: Option<Which>,
    /// Show only requests of this run
    #[arg(long, value_name = "RUN")]
    pub run: Option<String>,
    /// Also show requests that were answered or are over
    #[arg(long)]
    pub all: bool,
    /// Keep printing new requests of workers until interrupted
    #[arg(short, long)]
    pub follow: bool,
    /// Print one JSON object (with --follow one for each request)
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct ApproveArgs {
    /// Requests: numbers, or FLOW/N
    #[arg(value_name = "N", required = true)]
    pub requests: Vec<Which>,
    /// Also add a rule, so that this command or tool is not asked about again
    #[arg(long)]
    pub always: bool,
    /// Pattern of the rule, for example 'cargo test' [default: exactly this command]
    #[arg(long = "as", value_name = "PATTERN", requires = "always")]
    pub pattern: Option<String>,
    /// The rule applies in all repositories instead of this one
    #[arg(long, requires = "always")]
    pub everywhere: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct DenyArgs {
    /// Requests: numbers, or FLOW/N
    #[arg(value_name = "N", required = true)]
    pub requests: Vec<Which>,
    /// What the agent is told
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct AnswerArgs {
    /// Request: its number, or FLOW/NODE
    #[arg(value_name = "N")]
    pub request: Which,
    /// Answer: a text, or the label or number of an option; one for each question
    #[arg(value_name = "ANSWER", required = true)]
    pub answers: Vec<String>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct AskArgs {
    /// Question
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub text: String,
    /// Possible answer (may be repeated); a person may answer something else
    #[arg(long = "option", value_name = "LABEL", value_parser = NonEmptyStringValueParser::new())]
    pub options: Vec<String>,
    /// Wait for the answer and print it (exit code 1: denied, or nobody can answer any more)
    #[arg(long, required = true)]
    pub wait: bool,
}

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct RulesArgs {
    #[command(subcommand)]
    pub action: Option<RulesAction>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Subcommand)]
pub enum RulesAction {
    /// Add a rule
    #[command(after_help = examples::RULES_ADD)]
    Add(RulesAddArgs),
    /// Remove a rule that was added by a verb
    Rm(RulesRmArgs),
    /// Show what the rules say about a command
    Test(RulesTestArgs),
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("effect").required(true))]
pub struct RulesAddArgs {
    /// Allow what matches this pattern
    #[arg(long, value_name = "PATTERN", group = "effect")]
    pub allow: Option<String>,
    /// Deny what matches this pattern
    #[arg(long, value_name = "PATTERN", group = "effect")]
    pub deny: Option<String>,
    /// Ask a person about what matches this pattern, whatever is allowed otherwise
    #[arg(long, value_name = "PATTERN", group = "effect")]
    pub ask: Option<String>,
    /// What the agent is told if the rule denies
    #[arg(long, value_name = "TEXT", requires = "deny")]
    pub reason: Option<String>,
    /// The rule applies in all repositories instead of the one of the current directory
    #[arg(long)]
    pub everywhere: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct RulesRmArgs {
    /// Number of the rule
    #[arg(value_name = "N")]
    pub number: u64,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct RulesTestArgs {
    /// Command of a shell
    #[arg(value_name = "COMMAND_LINE")]
    pub line: String,
    /// Directory in which an agent would execute it [default: the current directory]
    #[arg(long, value_name = "DIR")]
    pub cwd: Option<PathBuf>,
}
