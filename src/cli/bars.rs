//! What lines that live on a terminal have in common.

use std::time::Duration;

use indicatif::ProgressStyle;

/// How often a line shows that it lives.
pub const TICK: Duration = Duration::from_millis(120);

pub fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_spinner())
}
