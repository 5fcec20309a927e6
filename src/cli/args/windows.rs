//! What may be typed after the verbs about windows.

use clap::Args;

use crate::cli::tagged::Tagged;

#[derive(Debug, Args)]
pub struct PeekArgs {
    /// The worker
    #[arg(conflicts_with = "tags")]
    pub name: Option<String>,
    #[command(flatten)]
    pub tagged: Tagged,
    /// Lines to show
    #[arg(short = 'n', long, default_value_t = 30)]
    pub lines: u32,
    /// Every running tmux worker
    #[arg(long)]
    pub all: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(override_usage = "swarm send [OPTIONS] [NAME] <TEXT>")]
pub struct SendArgs {
    /// The worker; with --all or --tag it is left out
    #[arg(value_name = "NAME", allow_hyphen_values = true)]
    pub first: String,
    /// What to type
    #[arg(value_name = "TEXT", allow_hyphen_values = true, conflicts_with = "tags")]
    pub second: Option<String>,
    #[command(flatten)]
    pub tagged: Tagged,
    /// Do not press Enter afterwards
    #[arg(long)]
    pub no_enter: bool,
    /// Every running tmux worker
    #[arg(long)]
    pub all: bool,
    /// Do not look whether its window shows what was typed
    #[arg(long)]
    pub no_proof: bool,
    /// Do not clear the input line first
    #[arg(long)]
    pub raw: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

impl SendArgs {
    /// A single positional is the text, as in the original.
    pub fn name(&self) -> Option<&str> {
        self.second.as_ref().map(|_| self.first.as_str())
    }

    pub fn text(&self) -> &str {
        self.second.as_deref().unwrap_or(&self.first)
    }
}

#[derive(Debug, Args)]
pub struct InterruptArgs {
    /// The worker
    #[arg(conflicts_with = "tags")]
    pub name: Option<String>,
    #[command(flatten)]
    pub tagged: Tagged,
    /// Every running tmux worker
    #[arg(long)]
    pub all: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct EofArgs {
    /// The worker
    #[arg(required_unless_present = "tags", conflicts_with = "tags")]
    pub name: Option<String>,
    #[command(flatten)]
    pub tagged: Tagged,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct AttachArgs {
    /// The worker
    pub name: String,
}
