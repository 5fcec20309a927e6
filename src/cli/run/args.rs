//! What may be typed after `swarm plan` and `swarm run`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use crate::cli::duration;
use crate::cli::examples;

#[derive(Debug, Args)]
pub struct PlanArgs {
    /// Folder of specs, one *.md for each workstream
    #[arg(long, value_name = "DIR")]
    pub specs: String,
    /// Ask nothing
    #[arg(short = 'y', long)]
    pub yes: bool,
    /// Branch on which finished work lands [default: the one that is checked out]
    #[arg(long, value_name = "BRANCH")]
    pub base: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct RunArgs {
    #[command(subcommand)]
    pub action: Option<RunAction>,
    #[command(flatten)]
    pub begin: BeginArgs,
}

#[derive(Clone, Debug, Args)]
pub struct BeginArgs {
    /// A file of jobs (with .toml or a / in its name) instead of what is planned
    #[arg(value_name = "FILE.toml")]
    pub file: Option<PathBuf>,
    /// Workstreams at work at the same time [default: 20]
    #[arg(short = 'j', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: Option<u32>,
    /// Agent of specs that name none [default: claude]
    #[arg(long, value_name = "NAME")]
    pub agent: Option<String>,
    /// Attempts after the first [default: 1]
    #[arg(long, value_name = "N")]
    pub retries: Option<u32>,
    /// Longest attempt: 90, 90s, 5m, 1h30m
    #[arg(long, value_name = "DURATION", value_parser = duration::parse_positive)]
    pub timeout: Option<Duration>,
    /// Command that says whether work may land, run by `sh -c` ('' for none)
    #[arg(long, value_name = "COMMAND")]
    pub verify: Option<String>,
    /// Begin nothing more once a workstream has failed
    #[arg(long)]
    pub fail_fast: bool,
    /// Also what failed before
    #[arg(long)]
    pub retry_failed: bool,
    /// Only show what would be done
    #[arg(long)]
    pub dry_run: bool,
    /// Do not wait for it
    #[arg(short, long)]
    pub detach: bool,
    /// One JSON object a line, also on a terminal
    #[arg(long, visible_alias = "no-tui")]
    pub headless: bool,
}

#[derive(Debug, Subcommand)]
pub enum RunAction {
    /// Make .arial/ in this repository
    Init(Plain),
    /// Show how far it is
    Status(Plain),
    /// Show it from its last start on, or all of it
    #[command(after_help = examples::RUN_ATTACH)]
    Attach(AttachArgs),
    /// Stop what is at work and keep it for later
    Stop(Plain),
    /// Begin nothing new; what is at work goes on
    Pause(Plain),
    /// Go on after a pause
    Resume(Plain),
    /// Remove worktrees and branches that nothing needs any more
    Cleanup(Plain),
    /// Tell the agent of a workstream something, at its next turn
    #[command(after_help = examples::RUN_CONTEXT)]
    Context(ContextArgs),
}

#[derive(Debug, Args)]
pub struct Plain {
    /// Directory of the run, or its file of jobs [default: .arial of this repository]
    #[arg(long, value_name = "PATH")]
    pub home: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct AttachArgs {
    /// Directory of the run, or its file of jobs [default: .arial of this repository]
    #[arg(long, value_name = "PATH")]
    pub home: Option<PathBuf>,
    /// Show what follows the line of this number (`seq`); 0 for all
    #[arg(long, value_name = "SEQ")]
    pub since: Option<u64>,
    /// One JSON object a line, also on a terminal
    #[arg(long, visible_alias = "no-tui")]
    pub headless: bool,
}

#[derive(Debug, Args)]
pub struct ContextArgs {
    /// The workstream
    pub id: String,
    /// What is to be said; - reads it from standard input
    #[arg(allow_hyphen_values = true)]
    pub text: String,
    /// Directory of the run, or its file of jobs [default: .arial of this repository]
    #[arg(long, value_name = "PATH")]
    pub home: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}
