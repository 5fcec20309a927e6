//! Arguments of `swarm restore`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use swarm_model::parse_size;

use crate::cli::duration;

#[derive(Debug, Args)]
#[command(override_usage = "swarm restore [NAME[@N]] [OPTIONS]")]
pub struct RestoreArgs {
    /// Save to restore: NAME (its newest save), NAME@N or NAME/STAMP [default: list all saves]
    #[arg(value_name = "NAME")]
    pub what: Option<String>,
    /// Directory to restore to [default: the original path; for saved commits, where their branch would have its worktree]
    #[arg(long, value_name = "DIR", requires = "what")]
    pub to: Option<PathBuf>,
    /// Create this branch [default: the original branch unless it has moved or is checked out, else detached HEAD]
    #[arg(long, value_name = "BRANCH", requires = "what")]
    pub branch: Option<String>,
    /// Delete the save after it was restored completely
    #[arg(long, requires = "what")]
    pub drop: bool,
    /// Show the contents of the save without restoring it
    #[arg(long, requires = "what", conflicts_with_all = ["to", "branch", "drop", "diff"])]
    pub show: bool,
    /// Show the save as a patch against its HEAD without restoring it
    #[arg(long, requires = "what", conflicts_with_all = ["to", "branch", "drop", "json"])]
    pub diff: bool,
    /// Delete old saves [default: as [trash] in swarm.toml says, else those older than 90 days]
    #[arg(long, conflicts_with_all = ["what", "all_repos"])]
    pub expire: bool,
    /// With --expire: delete saves older than AGE: 30d, 12h
    #[arg(long, value_name = "AGE", requires = "expire", value_parser = duration::parse_positive)]
    pub older_than: Option<Duration>,
    /// With --expire: delete the oldest saves until the rest takes at most SIZE: 500M, 5G
    #[arg(long, value_name = "SIZE", requires = "expire", value_parser = size)]
    pub max_size: Option<u64>,
    /// With --expire: show what would be deleted without deleting it
    #[arg(long, requires = "expire")]
    pub dry_run: bool,
    /// Repository, or any directory in it or in one of its worktrees [default: current directory]
    #[arg(short = 'C', long, value_name = "DIR", default_value = ".", hide_default_value = true)]
    pub repo: PathBuf,
    /// List the saves of all repositories in which workers have worktrees
    #[arg(long, conflicts_with_all = ["what", "repo"])]
    pub all_repos: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Parses a size in bytes, which may be 0.
fn size(text: &str) -> Result<u64, String> {
    if text == "0" { Ok(0) } else { parse_size(text) }
}
