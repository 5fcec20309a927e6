//! Arguments of `swarm hosts`.

use clap::{Args, Subcommand};
use swarm_config::hosts::time_limit;

use crate::cli::examples;

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
    /// Let runs start nothing new on a host; what works there goes on
    Drain(HostsNameArgs),
    /// Let runs use a host again that was drained
    Resume(HostsNameArgs),
    /// Forget what a host is still to be told: work to bring back, files to remove (refused without --force if there is any)
    Forget(HostsForgetArgs),
    #[command(after_help = examples::HOSTS_START)]
    /// Submit a job of Slurm that is the host for as long as it runs
    Start(HostsStartArgs),
    #[command(after_help = examples::HOSTS_STOP)]
    /// End the allocation of a host: its workers are ended and recorded, their work stays
    Stop(HostsStopArgs),
}

#[derive(Debug, Args)]
pub struct HostsNameArgs {
    /// Name of your configuration, or destination for ssh
    #[arg(value_name = "HOST")]
    pub host: String,
}

#[derive(Debug, Args)]
pub struct HostsForgetArgs {
    /// Name of your configuration, or destination for ssh
    #[arg(value_name = "HOST")]
    pub host: String,
    /// Forget it although work there is not here, or files of runs are still there
    #[arg(long)]
    pub force: bool,
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
    /// Submit a job that shows what works on a node (engine = "slurm")
    #[arg(long)]
    pub job: bool,
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

#[derive(Debug, Args)]
pub struct HostsStartArgs {
    /// Name of your configuration, with engine = "slurm-pilot"
    #[arg(value_name = "HOST")]
    pub host: String,
    /// Time limit of the allocation: 8h, 90m, 08:00:00
    #[arg(short, long, value_name = "TIME", value_parser = time_limit)]
    pub time: Option<String>,
    /// CPUs of the allocation
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub cpus: Option<u32>,
    /// Partition
    #[arg(short, long, value_name = "PARTITION")]
    pub partition: Option<String>,
    /// Wait until the host answers
    #[arg(long)]
    pub wait: bool,
    /// The node of an earlier allocation is down for good, although Slurm does not reach it
    #[arg(long)]
    pub gone: bool,
    /// Further arguments for sbatch
    #[arg(last = true, value_name = "SBATCH ARGS")]
    pub arguments: Vec<String>,
}

#[derive(Debug, Args)]
pub struct HostsStopArgs {
    /// Name of your configuration
    #[arg(value_name = "HOST")]
    pub host: String,
}
