//! Arguments of `swarm supervisor`.

use clap::{Args, Subcommand};

#[derive(Debug, Args)]
pub struct SupervisorArgs {
    #[command(subcommand)]
    pub action: SupervisorAction,
}

#[derive(Debug, Subcommand)]
pub enum SupervisorAction {
    /// Show whether the supervisor is running (exit code 0: yes, 1: no)
    Status(SupervisorFlags),
    /// Start the supervisor unless it is running
    Start(SupervisorFlags),
    /// Stop the supervisor until the next command that needs it; workers continue
    Stop(SupervisorFlags),
    /// Restart the supervisor with the installed program; workers continue
    Restart(SupervisorFlags),
    /// Install a systemd user unit that starts the supervisor at login or boot
    Install(InstallFlags),
    /// Remove the systemd user unit; the supervisor and workers continue
    Uninstall(SupervisorFlags),
}

#[derive(Debug, Args)]
pub struct InstallFlags {
    /// Also restart the workers that were running when the machine went down
    #[arg(long)]
    pub recover: bool,
    /// Print the unit instead of installing it
    #[arg(long)]
    pub print: bool,
    /// Print one JSON object
    #[arg(long, conflicts_with = "print")]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct SupervisorFlags {
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}
