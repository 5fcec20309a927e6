//! Arguments of `swarm ralph`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use swarm_model::loops::progress::Status;

use crate::cli::args::{Format, PlaceFlags};
use crate::cli::duration;
use crate::cli::examples;

#[derive(Debug, Args)]
pub struct RalphArgs {
    #[command(subcommand)]
    pub action: RalphAction,
}

#[derive(Debug, Subcommand)]
pub enum RalphAction {
    /// Start a loop: an agent that is restarted with a fresh context until its work is done
    #[command(after_help = examples::RALPH_SPAWN)]
    Spawn(Box<SpawnArgs>),
    /// Continue a loop started with --no-run, and show it until it ends (exit code 1 if it failed)
    Run(NameArgs),
    /// Write the prompt template to PROMPT.md
    Init(InitArgs),
    /// Print the prompt template
    Template(TemplateArgs),
    /// Show the progress of a loop
    #[command(after_help = examples::RALPH_MONITOR)]
    Status(NameArgs),
    /// Start no further iteration; the current agent continues
    #[command(after_help = examples::RALPH_INTERVENE)]
    Pause(NameArgs),
    /// Resume a loop that is paused or has no monitor
    #[command(after_help = examples::RALPH_INTERVENE)]
    Resume(NameArgs),
    /// List loops
    #[command(visible_alias = "ls", after_help = examples::RALPH_MONITOR)]
    List(ListArgs),
    /// Delete the state of loops; workers and worktrees are kept
    Clean(CleanArgs),
    /// Show the iteration log of a loop
    #[command(after_help = examples::RALPH_MONITOR)]
    Logs(LogsArgs),
    /// End a loop and its agent, like 'swarm kill'
    #[command(after_help = examples::RALPH_INTERVENE)]
    Stop(StopArgs),
}

#[derive(Debug, Args)]
#[command(override_usage = "swarm ralph spawn --name <NAME> --prompt-file <FILE> [OPTIONS] -- <COMMAND>...")]
pub struct SpawnArgs {
    /// Name of the worker: letters, digits, '.', '_' and '-'
    #[arg(long)]
    pub name: String,
    /// File with the prompt for the agent, read again before each iteration
    #[arg(long, value_name = "FILE")]
    pub prompt_file: PathBuf,
    /// Maximum number of iterations
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    pub max_iterations: u32,
    /// End an iteration after this time without output: 180 (seconds), 5m (0 for no limit)
    #[arg(long, value_name = "DURATION", default_value = "180", value_parser = duration::parse)]
    pub inactivity_timeout: Duration,
    /// End the loop if the agent's output matches this regular expression
    #[arg(long, value_name = "REGEX")]
    pub done_pattern: Option<String>,
    /// Check the done pattern continuously (default)
    #[arg(long, overrides_with = "no_check_done_continuous")]
    pub check_done_continuous: bool,
    /// Check the done pattern only at the end of an iteration
    #[arg(long, overrides_with = "check_done_continuous")]
    pub no_check_done_continuous: bool,
    /// Maximum context use in percent: warn the agent once at PCT, end it at PCT + 15
    #[arg(long, value_name = "PCT", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub max_context: Option<u32>,
    /// Start only the agent and type the prompt; continue later with 'swarm ralph run'
    #[arg(long, conflicts_with = "foreground")]
    pub no_run: bool,
    /// Show the loop until it ends
    #[arg(long)]
    pub foreground: bool,
    /// Replace an existing worker of this name; its worktree is saved under refs/swarm/trash/
    #[arg(long)]
    pub replace: bool,
    /// Delete the state of an earlier loop of this name
    #[arg(long)]
    pub clean_state: bool,
    /// Create a git worktree for the worker (default)
    #[arg(long, overrides_with = "no_worktree")]
    pub worktree: bool,
    /// Run in the current directory or that of --cwd, without a worktree
    #[arg(long, overrides_with = "worktree")]
    pub no_worktree: bool,
    #[command(flatten)]
    pub place: PlaceFlags,
    /// Accepted for compatibility: loops always run in tmux
    #[arg(long)]
    pub tmux: bool,
    /// Print one JSON object
    #[arg(long, conflicts_with = "foreground")]
    pub json: bool,
    /// Command and its arguments
    #[arg(value_name = "COMMAND", trailing_var_arg = true)]
    pub command: Vec<String>,
}

impl SpawnArgs {
    pub fn wants_worktree(&self) -> bool {
        !self.no_worktree
    }

    /// Reports whether the done pattern is checked continuously, which is the default if there is one.
    pub fn checks_done_continuously(&self) -> bool {
        self.check_done_continuous || (self.done_pattern.is_some() && !self.no_check_done_continuous)
    }
}

#[derive(Debug, Args)]
pub struct NameArgs {
    /// Name of the loop's worker
    pub name: String,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct InitArgs {
    /// Overwrite an existing PROMPT.md
    #[arg(long)]
    pub force: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct TemplateArgs {
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct ListArgs {
    /// Output format
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub format: Format,
    /// List only loops with this status
    #[arg(long, value_enum, default_value_t = StatusFilter::All)]
    pub status: StatusFilter,
    /// Print one JSON object
    #[arg(long, conflicts_with = "format")]
    pub json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StatusFilter {
    All,
    Running,
    Paused,
    Stopped,
    Failed,
}

impl StatusFilter {
    pub fn takes(self, status: Status) -> bool {
        match self {
            Self::All => true,
            Self::Running => status == Status::Running,
            Self::Paused => status == Status::Paused,
            Self::Stopped => status == Status::Stopped,
            Self::Failed => status == Status::Failed,
        }
    }
}

#[derive(Debug, Args)]
pub struct CleanArgs {
    /// Names of the loops' workers
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,
    /// Delete the state of all loops
    #[arg(long)]
    pub all: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct LogsArgs {
    /// Name of the loop's worker
    pub name: String,
    /// Keep printing new lines until interrupted
    #[arg(long)]
    pub live: bool,
    /// Show only the last LINES lines
    #[arg(long, value_name = "LINES")]
    pub lines: Option<u64>,
    /// Print one JSON object per line
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct StopArgs {
    /// Name of the loop's worker
    pub name: String,
    /// Also delete the loop's state, and the worktree unless it has unsaved work
    #[arg(long)]
    pub rm_worktree: bool,
    /// Remove the worktree even with unsaved work, which is saved under refs/swarm/trash/ first
    #[arg(long)]
    pub force_dirty: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}
