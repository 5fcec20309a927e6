//! Arguments of `swarm recover`.

use std::time::Duration;

use clap::Args;

use crate::cli::duration;
use crate::cli::tagged::Tagged;

#[derive(Debug, Args)]
pub struct RecoverArgs {
    /// Workers to list or restart [default: all]
    #[arg(value_name = "NAME", conflicts_with = "tags")]
    pub names: Vec<String>,
    #[command(flatten)]
    pub tagged: Tagged,
    /// Declare that HOST, a machine that shares the state directory, is gone for good; its workers count as interrupted
    #[arg(long, value_name = "HOST")]
    pub gone: Option<String>,
    /// Restart the workers instead of listing them
    #[arg(long)]
    pub apply: bool,
    /// Number of workers to start at a time, after the first one
    #[arg(long, value_name = "N", default_value_t = 5, requires = "apply", value_parser = clap::value_parser!(u32).range(1..))]
    pub at_once: u32,
    /// Time to watch started workers before starting the next ones: 2 (seconds), 1m
    #[arg(long, value_name = "DURATION", default_value = "2", value_parser = duration::parse, requires = "apply")]
    pub settle: Duration,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}
