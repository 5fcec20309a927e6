//! What may be typed after `swarm merge`.

use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use swarm_actors::merge::queue::Strategy;
use swarm_actors::model::MergeSettings;

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
    /// Queue finished work of workers or branches
    #[command(after_help = examples::MERGE_ADD)]
    Add(AddArgs),
    /// List what waits, is under way or needs somebody
    Ls(LsArgs),
    /// Tell everything about one item (exit code 0 landed or noop, 1 not, 2 unknown)
    Status(ItemArgs),
    /// Give an item that did not land its turn again
    Retry(ItemArgs),
    /// Take an item out; its work stays where it is
    Drop(ItemArgs),
    /// Land nothing until resumed; what is under way is finished
    Pause(QueueArgs),
    /// Go on
    Resume(QueueArgs),
    /// Tell what happened: who, what, when, by which verification, how long
    Log(LogArgs),
    /// Wait until items are settled (exit code 0 when all landed)
    Wait(WaitArgs),
}

#[derive(Debug, Args)]
pub struct AddArgs {
    /// Workers or branches
    #[arg(value_name = "NAME", required_unless_present = "tags", conflicts_with = "tags")]
    pub names: Vec<String>,
    #[command(flatten)]
    pub tagged: Tagged,
    /// Branch to land on [default: the one it was started from]
    #[arg(long, value_name = "BRANCH")]
    pub base: Option<String>,
    /// Higher goes first
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    pub priority: i32,
    #[command(flatten)]
    pub rules: RuleArgs,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// The rules of the queue from now on; `swarm.toml` has the others.
#[derive(Debug, Args)]
pub struct RuleArgs {
    /// Command that says whether a commit is good, run by `sh -c` ('' for none)
    #[arg(long, value_name = "COMMAND")]
    pub verify: Option<String>,
    /// Items that are verified together
    #[arg(long, value_name = "N")]
    pub batch: Option<usize>,
    /// Verify each item of a batch, not only the last
    #[arg(long)]
    pub verify_each: bool,
    /// Longest verification: 90, 90s, 5m, 1h30m
    #[arg(long, value_name = "DURATION", value_parser = duration::parse_positive)]
    pub timeout: Option<Duration>,
    /// Command that resolves conflicts, run by `sh -c` ('' for none)
    #[arg(long, value_name = "COMMAND")]
    pub resolver: Option<String>,
    /// Its tries for one item
    #[arg(long, value_name = "N")]
    pub max_retries: Option<u32>,
    /// What lands
    #[arg(long, value_enum)]
    pub strategy: Option<Landed>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Landed {
    /// A merge commit
    Merge,
    /// One commit
    Squash,
    /// Each commit on top of the base
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
    /// Also what landed or was dropped
    #[arg(short, long)]
    pub all: bool,
    /// Only the queue of this branch
    #[arg(long, value_name = "BRANCH")]
    pub base: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct ItemArgs {
    /// Number, or name of a worker or branch (its newest item)
    pub item: String,
    /// In the queue of this branch
    #[arg(long, value_name = "BRANCH")]
    pub base: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct QueueArgs {
    /// The queue of this branch
    #[arg(long, value_name = "BRANCH")]
    pub base: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct LogArgs {
    /// Only the queue of this branch
    #[arg(long, value_name = "BRANCH")]
    pub base: Option<String>,
    /// Only the last LINES
    #[arg(short = 'n', long, value_name = "LINES")]
    pub lines: Option<usize>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct WaitArgs {
    /// Numbers or names [default: everything that is queued]
    #[arg(value_name = "ITEM")]
    pub items: Vec<String>,
    /// In the queue of this branch
    #[arg(long, value_name = "BRANCH")]
    pub base: Option<String>,
    /// Longest time to wait: 90, 90s, 5m, 1h30m; 0 is no limit
    #[arg(long, value_name = "SEC", value_parser = duration::parse)]
    pub timeout: Option<Duration>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}
