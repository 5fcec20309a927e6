//! Arguments of `swarm hosts`.

use clap::{Args, Subcommand};

#[derive(Debug, Args)]
pub struct HostsArgs {
    #[command(subcommand)]
    pub action: Option<HostsAction>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Subcommand)]
pub enum HostsAction {
    /// List the hosts of your configuration, and how they are
    Ls(HostsLsArgs),
    /// Check everything that work on a host needs (exit code 1: something is wrong)
    Check(HostsCheckArgs),
    /// Install this program on a host
    Install(HostsInstallArgs),
}

#[derive(Debug, Args)]
pub struct HostsLsArgs {
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct HostsCheckArgs {
    /// Names of your configuration, or destinations for ssh; all of your configuration by default
    #[arg(value_name = "HOST")]
    pub hosts: Vec<String>,
    /// Also check that this agent is installed and logged in there (may be repeated)
    #[arg(long = "agent", value_name = "AGENT")]
    pub agents: Vec<String>,
}

#[derive(Debug, Args)]
pub struct HostsInstallArgs {
    /// Name of your configuration, or destination for ssh
    #[arg(value_name = "HOST")]
    pub host: String,
    /// Replace a newer version, or a program that was not installed by this verb
    #[arg(long)]
    pub force: bool,
}
