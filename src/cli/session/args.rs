//! Arguments of `swarm session`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::cli::examples;
use swarm_sys::variables::RECORDS;

#[derive(Debug, Args)]
pub struct SessionArgs {
    #[command(subcommand)]
    pub action: SessionAction,
}

#[derive(Debug, Subcommand)]
pub enum SessionAction {
    /// Show the state of a session and its last heartbeat
    Show(ShowArgs),
    /// Check whether a session can be resumed (exit code 0: yes, 1: no)
    #[command(after_help = examples::SESSION_CHECK)]
    Check(CheckArgs),
    /// Change single keys of the state
    #[command(after_help = examples::SESSION_UPDATE)]
    Update(UpdateArgs),
    /// Replace the whole state by a JSON object from standard input
    Write(WriteArgs),
    /// For programs in a session: report the current activity
    #[command(after_help = examples::SESSION_NOTE)]
    Note(NoteArgs),
    /// For hooks of agents: report the activity from JSON on standard input; never fails, prints nothing
    #[command(after_help = examples::SESSION_HOOK)]
    Hook(HookArgs),
}

/// Selection of a session.
#[derive(Debug, Args)]
pub struct Which {
    /// Worker whose session to use [default: the session of the current directory]
    #[arg(value_name = "NAME")]
    pub name: Option<String>,
    /// Directory that contains .agent/
    #[arg(long, value_name = "DIR", conflicts_with = "name")]
    pub dir: Option<String>,
    /// Fail unless the session belongs to this issue
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
    /// Maximum number of resumes [default: AGENT_MAX_RECOVERY_ATTEMPTS, else 3]
    #[arg(long, value_name = "N")]
    pub max_attempts: Option<u32>,
}

#[derive(Debug, Args)]
#[command(override_usage = "swarm session update [OPTIONS] <KEY=TEXT | KEY:=JSON | KEY:->...")]
pub struct UpdateArgs {
    /// Changes: KEY=TEXT, KEY:=JSON, or KEY:- to remove a key
    #[arg(value_name = "CHANGE", required = true)]
    pub changes: Vec<String>,
    /// Worker whose session to use [default: the session of the current directory]
    #[arg(long, value_name = "NAME")]
    pub worker: Option<String>,
    /// Directory that contains .agent/
    #[arg(long, value_name = "DIR", conflicts_with = "worker")]
    pub dir: Option<String>,
    /// Fail unless the session belongs to this issue
    #[arg(long, value_name = "ID")]
    pub expect: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("word").required(true).args(["operation", "waiting", "idle", "working"]))]
pub struct NoteArgs {
    /// Worker whose session to use [default: the calling worker, else the session of the current directory]
    #[arg(value_name = "NAME")]
    pub name: Option<String>,
    /// Directory that contains .agent/
    #[arg(long, value_name = "DIR", conflicts_with = "name")]
    pub dir: Option<String>,
    /// The program starts this operation (adds one to the operation count)
    #[arg(long, value_name = "TEXT")]
    pub operation: Option<String>,
    /// The program waits for a person to do this
    #[arg(long, value_name = "TEXT")]
    pub waiting: Option<String>,
    /// The program has finished its task and waits for the next one
    #[arg(long)]
    pub idle: bool,
    /// The program is working on something unnamed
    #[arg(long)]
    pub working: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct HookArgs {
    /// Directory of the worker's records, where listings read the activity
    #[arg(long, value_name = "DIR", hide = true)]
    pub records: Option<PathBuf>,
    /// Beginning of the keys of the worker's requests: worker/NAME/GENERATION
    #[arg(long, value_name = "KEY", requires = "records", hide = true)]
    pub asks: Option<String>,
    /// Take records and keys from the environment of a worker, and wait only while nobody looks at its window
    #[arg(long, conflicts_with_all = ["records", "asks"], hide = true)]
    pub window: bool,
    /// Wait for the answer to a request, and print it
    #[arg(long, hide = true)]
    pub wait: bool,
    /// Further arguments of the agent; the last one is parsed as JSON instead of standard input
    #[arg(value_name = "JSON", trailing_var_arg = true, allow_hyphen_values = true)]
    pub words: Vec<String>,
}

impl HookArgs {
    /// Returns the directory of the worker's records. `None` if it is unknown.
    pub fn records(&self) -> Option<PathBuf> {
        let told = || std::env::var_os(RECORDS).filter(|dir| self.window && !dir.is_empty()).map(PathBuf::from);
        self.records.clone().or_else(told)
    }

    /// Returns the beginning of the keys of the worker's requests. `None` if its hooks record none.
    pub fn keys(&self) -> Option<String> {
        let told = || {
            let generation = self.records()?.extension()?.to_str()?.to_owned();
            Some(format!("worker/{}/{generation}", std::env::var("SWARM_WORKER").ok()?))
        };
        self.asks.clone().or_else(|| if self.window { told() } else { None })
    }
}

#[derive(Debug, Args)]
pub struct WriteArgs {
    #[command(flatten)]
    pub which: Which,
}
