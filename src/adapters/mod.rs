//! The edge's hands: one file or folder per outside tool.

pub mod git;
pub mod tmux;
pub mod views;
