//! What may be typed after `swarm ralph`.

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
    /// Start an agent in a window, again and again with a fresh context, until it is done
    #[command(after_help = examples::RALPH_SPAWN)]
    Spawn(Box<SpawnArgs>),
    /// Have a loop go on that was begun with --no-run, and show it until it ends (exit code 1 when it failed)
    Run(NameArgs),
    /// Write a PROMPT.md to begin with
    Init(InitArgs),
    /// Print it
    Template(TemplateArgs),
    /// Show how far a loop is
    Status(NameArgs),
    /// Begin no next iteration; the agent at work goes on
    Pause(NameArgs),
    /// Go on after a pause, or with a loop that nobody looks after
    Resume(NameArgs),
    /// List loops
    #[command(visible_alias = "ls")]
    List(ListArgs),
    /// Forget loops that are over; workers and worktrees stay
    Clean(CleanArgs),
    /// Show what a loop did, iteration by iteration
    Logs(LogsArgs),
    /// End a loop and its agent, as `swarm kill`
    Stop(StopArgs),
}

#[derive(Debug, Args)]
#[command(override_usage = "swarm ralph spawn --name <NAME> --prompt-file <FILE> [OPTIONS] -- <COMMAND>...")]
pub struct SpawnArgs {
    /// Name of the worker: letters, digits, `.`, `_` and `-`
    #[arg(long)]
    pub name: String,
    /// What is typed into the agent; read anew before each iteration
    #[arg(long, value_name = "FILE")]
    pub prompt_file: PathBuf,
    /// Iterations after which it ends
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    pub max_iterations: u32,
    /// Silence of its window after which an iteration is over: 180, 90s, 5m; 0 is no limit
    #[arg(long, value_name = "SEC", default_value = "180", value_parser = duration::parse)]
    pub inactivity_timeout: Duration,
    /// Regular expression in the agent's output that ends the loop
    #[arg(long, value_name = "REGEX")]
    pub done_pattern: Option<String>,
    /// Look for it all the time (the default)
    #[arg(long, overrides_with = "no_check_done_continuous")]
    pub check_done_continuous: bool,
    /// Look for it only when an iteration has ended
    #[arg(long, overrides_with = "check_done_continuous")]
    pub no_check_done_continuous: bool,
    /// How full the agent's context may get, in percent: it is told once, and ended 15 above
    #[arg(long, value_name = "PCT", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub max_context: Option<u32>,
    /// Only start the agent and give it its prompt; `swarm ralph run` goes on
    #[arg(long, conflicts_with = "foreground")]
    pub no_run: bool,
    /// Show the loop until it ends
    #[arg(long)]
    pub foreground: bool,
    /// End a worker of that name first; what is in its worktree is saved under refs/swarm/trash/
    #[arg(long)]
    pub replace: bool,
    /// Forget what an earlier loop of that name left
    #[arg(long)]
    pub clean_state: bool,
    /// Give the worker a git worktree of its own (the default)
    #[arg(long, overrides_with = "no_worktree")]
    pub worktree: bool,
    /// Run in this directory, or in that of --cwd
    #[arg(long, overrides_with = "worktree")]
    pub no_worktree: bool,
    #[command(flatten)]
    pub place: PlaceFlags,
    /// Loops always run in tmux
    #[arg(long)]
    pub tmux: bool,
    /// Print one JSON object
    #[arg(long, conflicts_with = "foreground")]
    pub json: bool,
    /// The command and its arguments
    #[arg(value_name = "COMMAND", trailing_var_arg = true)]
    pub command: Vec<String>,
}

impl SpawnArgs {
    pub fn wants_worktree(&self) -> bool {
        !self.no_worktree
    }

    /// Where nothing is said, a pattern is looked for all the time.
    pub fn checks_done_continuously(&self) -> bool {
        self.check_done_continuous || (self.done_pattern.is_some() && !self.no_check_done_continuous)
    }
}

#[derive(Debug, Args)]
pub struct NameArgs {
    pub name: String,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct InitArgs {
    /// Replace a PROMPT.md that is there already
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
    /// Shape of the list
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub format: Format,
    /// Only loops of this status
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
    pub name: Option<String>,
    /// Every loop
    #[arg(long)]
    pub all: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct LogsArgs {
    pub name: String,
    /// Go on until interrupted
    #[arg(long)]
    pub live: bool,
    /// Only the last LINES
    #[arg(long, value_name = "LINES")]
    pub lines: Option<u64>,
    /// Print one JSON object a line
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct StopArgs {
    pub name: String,
    /// Remove the worktree as well, when it holds no unsaved work, and what is known of the loop
    #[arg(long)]
    pub rm_worktree: bool,
    /// Remove it even then; its work is saved under refs/swarm/trash/ first
    #[arg(long)]
    pub force_dirty: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}
