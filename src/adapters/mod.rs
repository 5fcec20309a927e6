//! The edge's hands: one file or folder per outside tool.

mod alarm;
pub mod clock;
pub mod events;
pub mod fates;
pub mod flock;
pub mod foreign;
pub mod git;
pub mod glance;
pub mod landing;
pub mod launcher;
pub mod logind;
pub mod logs;
pub mod lookup;
pub mod loops;
pub mod notify;
pub mod nudges;
pub mod plain;
pub mod process;
pub mod procfs;
pub mod readable;
pub mod records;
pub mod reserve;
pub mod runs;
pub mod session;
pub mod terminals;
pub mod tmux;
pub mod views;
