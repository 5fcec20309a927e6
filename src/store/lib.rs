//! The state directory: what lies in its files, who may write each, and the views that read them.

pub mod events;
pub mod flows;
pub mod legacy_process;
pub mod logs;
pub mod loops;
pub mod nudges;
pub mod processes;
pub mod records;
pub mod recovery_view;
pub mod runs;
pub mod sessions;
pub mod summary;
pub mod terminals;
pub mod views;
