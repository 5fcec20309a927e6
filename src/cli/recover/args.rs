//! Arguments of `swarm recover`.

use std::time::Duration;

use clap::Args;

use crate::cli::duration;
use crate::cli::tagged::Tagged;

#[derive(Debug, Args)]
pub struct RecoverArgs {
    /// Workers to recover [default: all that need it]
    #[arg(value_name = "NAME", conflicts_with = "tags")]
    pub names: Vec<String>,
    #[command(flatten)]
    pub tagged: Tagged,
    /// Start the workers instead of only listing them
    #[arg(long)]
    pub apply: bool,
    /// Number of workers to start at a time, after the first one
    #[arg(long, value_name = "N", default_value_t = 5, requires = "apply", value_parser = clap::value_parser!(u32).range(1..))]
    pub at_once: u32,
    /// Time to watch started workers before the next ones follow: 2, 10s, 1m
    #[arg(long, value_name = "SEC", default_value = "2", value_parser = duration::parse, requires = "apply")]
    pub settle: Duration,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}
