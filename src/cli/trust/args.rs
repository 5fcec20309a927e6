//! Arguments of `swarm trust`.

use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Args)]
pub struct TrustArgs {
    /// Directory of the project [default: the current directory]
    #[arg(value_name = "DIR", conflicts_with = "list")]
    pub dir: Option<PathBuf>,
    /// Agree without asking
    #[arg(long, conflicts_with_all = ["show", "list", "revoke"])]
    pub yes: bool,
    /// Only show what would be executed, set or permitted (exit code 1: not all of it is trusted)
    #[arg(long, conflicts_with_all = ["list", "revoke"])]
    pub show: bool,
    /// Agree to continue the run whose records are in this worktree, where an agent may have written them
    #[arg(long, conflicts_with_all = ["list", "revoke"])]
    pub run: bool,
    /// List the projects that are trusted
    #[arg(long, conflicts_with = "revoke")]
    pub list: bool,
    /// Withdraw the consent
    #[arg(long)]
    pub revoke: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}
