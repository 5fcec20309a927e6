//! Arguments of `swarm ls`.

use clap::{Args, ValueEnum};

use super::{Format, StatusFilter};
use crate::cli::screen::Colour;

#[derive(Debug, Args)]
pub struct LsArgs {
    /// Output format
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub format: Format,
    /// Show only workers with this status
    #[arg(long, value_enum, default_value_t = StatusFilter::All)]
    pub status: StatusFilter,
    /// Show only workers of the repository of the current directory
    #[arg(long)]
    pub here: bool,
    /// Show only workers with this tag (may be repeated to require several tags)
    #[arg(long = "tag", value_name = "TAG")]
    pub tags: Vec<String>,
    /// Show more columns: detailed state, pid, window, exit, restarts
    #[arg(short, long, conflicts_with = "format")]
    pub long: bool,
    /// Print only names, as --format names does
    #[arg(short, long, conflicts_with_all = ["format", "long", "json"])]
    pub quiet: bool,
    /// Sort by this key [default: order of start; on a terminal state]
    #[arg(long, value_name = "KEY", value_enum)]
    pub sort: Option<Sort>,
    /// Reverse the order
    #[arg(short, long)]
    pub reverse: bool,
    /// Show at most N workers
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,
    /// Skip the first N workers
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub offset: usize,
    /// When to use colours [default: on a terminal, unless NO_COLOR is set]
    #[arg(long, value_name = "WHEN", value_enum)]
    pub color: Option<Colour>,
    /// Print one JSON object (detailed states and exits; values of variables hidden)
    #[arg(long, conflicts_with = "format")]
    pub json: bool,
}

/// Sort key of a list; the sort is stable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Sort {
    Name,
    /// Oldest first
    Started,
    /// Running workers first, failed ones last
    State,
    /// Shortest uptime first
    Uptime,
    /// Fewest restarts first
    Restarts,
}
