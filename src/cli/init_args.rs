//! Arguments of `swarm init`.

use clap::{Args, ValueEnum};

#[derive(Debug, Args)]
pub struct InitArgs {
    /// Show what would be done without changing anything
    #[arg(long)]
    pub dry_run: bool,
    /// File for the instructions [default: the existing one, else AGENTS.md]
    #[arg(long, value_enum, value_name = "FILE")]
    pub file: Option<GuideFile>,
    /// Replace existing instructions
    #[arg(long)]
    pub force: bool,
    /// Also write files for running agents in a container
    #[arg(long)]
    pub with_sandbox: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum GuideFile {
    #[value(name = "AGENTS.md")]
    Agents,
    #[value(name = "CLAUDE.md")]
    Claude,
}

impl GuideFile {
    pub fn name(self) -> &'static str {
        match self {
            Self::Agents => "AGENTS.md",
            Self::Claude => "CLAUDE.md",
        }
    }
}
