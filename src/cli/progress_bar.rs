//! Progress lines on a terminal.

use std::time::Duration;

use indicatif::ProgressStyle;

/// Interval between two frames of a spinner.
pub const TICK: Duration = Duration::from_millis(120);

pub fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_spinner())
}
