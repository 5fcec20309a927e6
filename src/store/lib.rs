//! The state directory: reads and writes its files, and builds the views that combine them.

pub mod asks;
mod changes;
pub mod events;
pub mod flows;
pub mod legacy_process;
pub mod lines;
pub mod log_parts;
pub mod logs;
pub mod loops;
pub mod nudges;
pub mod processes;
pub mod records;
pub mod recovery_view;
pub mod replay;
pub mod repositories;
pub mod runs;
pub mod sessions;
pub mod starting;
pub mod strangers;
pub mod summary;
pub mod tenants;
pub mod terminals;
pub mod views;
pub mod window_log;
pub mod window_sizes;
pub mod windows;
