//! Arguments of `swarm merge`.

use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use swarm_model::MergeSettings;
use swarm_model::merge::queue::Strategy;

use crate::cli::duration;
use crate::cli::examples;
use crate::cli::tagged::Tagged;

#[derive(Debug, Args)]
pub struct MergeArgs {
    #[command(subcommand)]
    pub action: MergeAction,
}

#[derive(Debug, Subcommand)]
pub enum MergeAction {
    /// Add the work of workers or of branches to the merge queue
    #[command(after_help = examples::MERGE_ADD)]
    Add(AddArgs),
    /// List items that are queued, in progress or need attention
    Ls(LsArgs),
    /// Show the details of one item (exit code 0: landed or noop, 1: not landed, 2: unknown)
    Status(ItemArgs),
    /// Queue items again that did not land
    Retry(ItemsArgs),
    /// Remove items from the queue; their branches and worktrees are kept
    Drop(ItemsArgs),
    /// Pause a queue after the landing in progress
    Pause(QueueArgs),
    /// Resume a paused queue
    Resume(QueueArgs),
    /// Show settled items with time, result, duration and verification
    Log(LogArgs),
    /// Wait until items are settled (exit code 0 if all landed)
    Wait(WaitArgs),
}

#[derive(Debug, Args)]
pub struct AddArgs {
    /// Names of workers or branches
    #[arg(value_name = "NAME", required_unless_present = "tags", conflicts_with = "tags")]
    pub names: Vec<String>,
    #[command(flatten)]
    pub tagged: Tagged,
    /// Branch to land on [default: the branch that the work started from]
    #[arg(long, value_name = "BRANCH")]
    pub base: Option<String>,
    /// Priority: higher numbers land first
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    pub priority: i32,
    /// Commit what a running worker has not committed, even if its agent may be at work or its last turn broke off
    #[arg(long)]
    pub uncommitted: bool,
    #[command(flatten)]
    pub rules: RuleArgs,
    /// Generation that the worker must have: 'swarm web' means the one that it shows
    #[arg(long, value_name = "N", requires = "names", conflicts_with_all = ["tags"], hide = true)]
    pub generation: Option<u64>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Rules of the queue from now on. Rules that are not given come from `swarm.toml`.
#[derive(Debug, Args)]
pub struct RuleArgs {
    /// Shell command that verifies a commit before it lands ('' for none)
    #[arg(long, value_name = "COMMAND")]
    pub verify: Option<String>,
    /// Maximum number of items that are verified together
    #[arg(long, value_name = "N")]
    pub batch: Option<usize>,
    /// Verify each item of a batch, not only the last
    #[arg(long)]
    pub verify_each: bool,
    /// Maximum time of one verification: 90 (seconds), 5m, 1h30m
    #[arg(long, value_name = "DURATION", value_parser = duration::parse_positive)]
    pub timeout: Option<Duration>,
    /// Shell command that resolves conflicts ('' for none)
    #[arg(long, value_name = "COMMAND")]
    pub resolver: Option<String>,
    /// Maximum number of resolver runs for one item
    #[arg(long, value_name = "N")]
    pub max_retries: Option<u32>,
    /// How work lands on the base branch
    #[arg(long, value_enum)]
    pub strategy: Option<Landed>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Landed {
    /// As a merge commit
    Merge,
    /// As one commit
    Squash,
    /// As its commits, rebased onto the base
    Rebase,
}

impl RuleArgs {
    pub fn settings(&self) -> MergeSettings {
        MergeSettings {
            verify: self.verify.clone(),
            verify_each: self.verify_each.then_some(true),
            batch: self.batch,
            timeout: self.timeout.map(|limit| limit.as_secs().max(1)),
            resolver: self.resolver.clone(),
            max_retries: self.max_retries,
            strategy: self.strategy.map(|landed| match landed {
                Landed::Merge => Strategy::Merge,
                Landed::Squash => Strategy::Squash,
                Landed::Rebase => Strategy::Rebase,
            }),
        }
    }
}

#[derive(Debug, Args)]
pub struct LsArgs {
    /// Include items that landed or were dropped
    #[arg(short, long)]
    pub all: bool,
    /// Show only the queue of this branch
    #[arg(long, value_name = "BRANCH")]
    pub base: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct ItemArgs {
    /// Item: its number, or the name of its worker or branch (newest item)
    pub item: String,
    /// Search only the queue of this branch
    #[arg(long, value_name = "BRANCH")]
    pub base: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct ItemsArgs {
    /// Items: their numbers, or the names of their workers or branches (newest item)
    #[arg(value_name = "ITEM", required = true)]
    pub items: Vec<String>,
    /// Search only the queue of this branch
    #[arg(long, value_name = "BRANCH")]
    pub base: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct QueueArgs {
    /// Queue of this branch; required if there are several
    #[arg(long, value_name = "BRANCH")]
    pub base: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct LogArgs {
    /// Show only the queue of this branch
    #[arg(long, value_name = "BRANCH")]
    pub base: Option<String>,
    /// Show only the last LINES items
    #[arg(short = 'n', long, value_name = "LINES")]
    pub lines: Option<usize>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct WaitArgs {
    /// Numbers or names of items [default: all queued items and workers that will land]
    #[arg(value_name = "ITEM")]
    pub items: Vec<String>,
    /// Search only the queue of this branch
    #[arg(long, value_name = "BRANCH")]
    pub base: Option<String>,
    /// Maximum time to wait: 90 (seconds), 5m, 1h30m (0 for no limit)
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub timeout: Option<Duration>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}
