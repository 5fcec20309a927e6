//! What may be typed after `swarm session`.

use clap::{Args, Subcommand};

use crate::cli::examples;

#[derive(Debug, Args)]
pub struct SessionArgs {
    #[command(subcommand)]
    pub action: SessionAction,
}

#[derive(Debug, Subcommand)]
pub enum SessionAction {
    /// Show the state of a session, and when it was last alive
    Show(ShowArgs),
    /// Say whether a session can be gone on with (exit code 0) and if not, why (1)
    #[command(after_help = examples::SESSION_CHECK)]
    Check(CheckArgs),
    /// Change members of the state, beside whoever else changes it
    #[command(after_help = examples::SESSION_UPDATE)]
    Update(UpdateArgs),
    /// Replace the whole state by a JSON object from standard input
    Write(WriteArgs),
    /// Say what you are at: for the program that is at work in the session
    #[command(after_help = examples::SESSION_NOTE)]
    Note(NoteArgs),
    /// The same from an agent's hook, whose JSON is on standard input: never fails, says nothing
    #[command(after_help = examples::SESSION_HOOK)]
    Hook(HookArgs),
}

/// Whose session.
#[derive(Debug, Args)]
pub struct Which {
    /// The worker [default: the session of the directory this is run in]
    #[arg(value_name = "NAME")]
    pub name: Option<String>,
    /// The directory that has the .agent folder
    #[arg(long, value_name = "DIR", conflicts_with = "name")]
    pub dir: Option<String>,
    /// The issue that it must be of
    #[arg(long, value_name = "ID")]
    pub expect: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct ShowArgs {
    #[command(flatten)]
    pub which: Which,
}

#[derive(Debug, Args)]
pub struct CheckArgs {
    #[command(flatten)]
    pub which: Which,
    /// Attempts after which it is left alone [default: 3, or AGENT_MAX_RECOVERY_ATTEMPTS]
    #[arg(long, value_name = "N")]
    pub max_attempts: Option<u32>,
}

#[derive(Debug, Args)]
#[command(override_usage = "swarm session update [OPTIONS] <KEY=TEXT | KEY:=JSON | KEY:->...")]
pub struct UpdateArgs {
    /// KEY=TEXT, KEY:=JSON, or KEY:- to remove one
    #[arg(value_name = "CHANGE", required = true)]
    pub changes: Vec<String>,
    /// The worker [default: the session of the directory this is run in]
    #[arg(long, value_name = "NAME")]
    pub worker: Option<String>,
    /// The directory that has the .agent folder
    #[arg(long, value_name = "DIR", conflicts_with = "worker")]
    pub dir: Option<String>,
    /// The issue that it must be of
    #[arg(long, value_name = "ID")]
    pub expect: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("word").required(true).args(["operation", "waiting", "idle", "working"]))]
pub struct NoteArgs {
    /// The worker [default: the session of this worker, else of the directory this is run in]
    #[arg(value_name = "NAME")]
    pub name: Option<String>,
    /// The directory that has the .agent folder
    #[arg(long, value_name = "DIR", conflicts_with = "name")]
    pub dir: Option<String>,
    /// It begins this, which counts as one more
    #[arg(long, value_name = "TEXT")]
    pub operation: Option<String>,
    /// It waits for a person to do this
    #[arg(long, value_name = "TEXT")]
    pub waiting: Option<String>,
    /// It has done what it was told, and waits for what is next
    #[arg(long)]
    pub idle: bool,
    /// It is at work, at nothing that has a name
    #[arg(long)]
    pub working: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct HookArgs {
    /// What else the agent gives; of several the last is taken for the JSON
    #[arg(value_name = "JSON", trailing_var_arg = true, allow_hyphen_values = true)]
    pub words: Vec<String>,
}

#[derive(Debug, Args)]
pub struct WriteArgs {
    #[command(flatten)]
    pub which: Which,
}
