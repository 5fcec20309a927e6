//! What may be typed after `swarm restore`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use swarm_model::parse_size;

use crate::cli::duration;

#[derive(Debug, Args)]
#[command(override_usage = "swarm restore [NAME[@N]] [OPTIONS]")]
pub struct RestoreArgs {
    /// What to bring back: the newest save of NAME, or NAME@N or NAME/STAMP as listed [default: list all]
    #[arg(value_name = "NAME")]
    pub what: Option<String>,
    /// Where to [default: where it was]
    #[arg(long, value_name = "DIR", requires = "what")]
    pub to: Option<PathBuf>,
    /// On a new branch of this name [default: its branch, where that is still there or gone, else none]
    #[arg(long, value_name = "BRANCH", requires = "what")]
    pub branch: Option<String>,
    /// Forget the save when all of it is back [default: it stays]
    #[arg(long, requires = "what")]
    pub drop: bool,
    /// Only show what is in it
    #[arg(long, requires = "what", conflicts_with_all = ["to", "branch", "drop", "diff"])]
    pub show: bool,
    /// Only show it as a patch to its HEAD
    #[arg(long, requires = "what", conflicts_with_all = ["to", "branch", "drop", "json"])]
    pub diff: bool,
    /// Forget what is too old or too much [default: what [trash] of swarm.toml says, else older than 90 days]
    #[arg(long, conflicts_with_all = ["what", "all_repos"])]
    pub expire: bool,
    /// With --expire: what is older than this: 30d, 12h
    #[arg(long, value_name = "AGE", requires = "expire", value_parser = duration::parse_positive)]
    pub older_than: Option<Duration>,
    /// With --expire: the oldest, until all of them take no more than this: 500M, 5G
    #[arg(long, value_name = "SIZE", requires = "expire", value_parser = size)]
    pub max_size: Option<u64>,
    /// With --expire: only say what would go
    #[arg(long, requires = "expire")]
    pub dry_run: bool,
    /// Repository, or any directory in it or in a worktree of it [default: this one]
    #[arg(short = 'C', long, value_name = "DIR", default_value = ".", hide_default_value = true)]
    pub repo: PathBuf,
    /// List those of every repository that a worker has a worktree of
    #[arg(long, conflicts_with_all = ["what", "repo"])]
    pub all_repos: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// A size, which may be none at all.
fn size(text: &str) -> Result<u64, String> {
    if text == "0" { Ok(0) } else { parse_size(text) }
}
