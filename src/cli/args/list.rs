//! What may be typed after `swarm ls`.

use clap::{Args, ValueEnum};

use super::{Format, StatusFilter};
use crate::cli::screen::Colour;

#[derive(Debug, Args)]
pub struct LsArgs {
    /// Shape of the list
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub format: Format,
    /// Only workers of this status
    #[arg(long, value_enum, default_value_t = StatusFilter::All)]
    pub status: StatusFilter,
    /// Only workers with exactly this tag (may be repeated: those that have all of them)
    #[arg(long = "tag", value_name = "TAG")]
    pub tags: Vec<String>,
    /// More columns: fine state, pid, exit, restarts
    #[arg(short, long, conflicts_with = "format")]
    pub long: bool,
    /// Only names, as --format names
    #[arg(short, long, conflicts_with_all = ["format", "long", "json"])]
    pub quiet: bool,
    /// Order of the list [default: as they were started]
    #[arg(long, value_name = "KEY", value_enum)]
    pub sort: Option<Sort>,
    /// The other way round
    #[arg(short, long)]
    pub reverse: bool,
    /// At most so many
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,
    /// Without the first so many
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub offset: usize,
    /// Colours [default: on a terminal, unless NO_COLOR is set]
    #[arg(long, value_name = "WHEN", value_enum)]
    pub color: Option<Colour>,
    /// Print one JSON object (fine states, exits; values of variables hidden)
    #[arg(long, conflicts_with_all = ["format", "long"])]
    pub json: bool,
}

/// What a list is ordered by; what is equal stays as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Sort {
    Name,
    /// The oldest first
    Started,
    /// Those that run first, those that went wrong last
    State,
    /// The shortest life first
    Uptime,
    /// The fewest first
    Restarts,
}
