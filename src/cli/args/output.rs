//! Arguments of the verbs that show what was written or has happened.

use clap::Args;

use crate::cli::datetime;
use crate::cli::tagged::Tagged;

#[derive(Debug, Args)]
pub struct LogsArgs {
    /// Name of the worker
    #[arg(required_unless_present = "tags", conflicts_with = "tags")]
    pub name: Option<String>,
    #[command(flatten)]
    pub tagged: Tagged,
    /// Show the last LINES lines of a tmux worker instead of its last screenful
    #[arg(long)]
    pub history: bool,
    /// Show only the last LINES lines [default with --history: 1000]
    #[arg(short = 'n', long, value_name = "LINES")]
    pub lines: Option<u64>,
    /// Keep printing new output, of claude and codex in a window their conversation, until the worker has ended
    #[arg(short, long)]
    pub follow: bool,
    /// Show only standard error (not for tmux workers)
    #[arg(long)]
    pub stderr: bool,
    /// Print the bytes that a tmux worker wrote, with its terminal control sequences
    #[arg(long)]
    pub raw: bool,
    /// Print one JSON object per line
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct EventsArgs {
    /// Show only events of this worker
    pub name: Option<String>,
    /// Keep printing new events until interrupted
    #[arg(short, long)]
    pub follow: bool,
    /// Show only the last LINES events [default: all; 10 with --follow]
    #[arg(short = 'n', long, value_name = "LINES")]
    pub lines: Option<u64>,
    /// Show only events since this time: 10m (ago), 12:30 (the last one), 2026-01-31, 2026-01-31T12:30:05+01:00
    #[arg(long, value_name = "TIME", value_parser = datetime::parse_begin)]
    pub since: Option<u64>,
    /// Show only events before this time, written as for --since
    #[arg(long, value_name = "TIME", value_parser = datetime::parse, conflicts_with = "follow")]
    pub until: Option<u64>,
    /// Print one JSON object per line, as recorded
    #[arg(long)]
    pub json: bool,
}
