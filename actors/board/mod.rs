//! The board: everything that a face shows, as rows with revisions. `machine` decides what has changed; who fills it from
//! files, and who shows it, is outside of this crate.

mod machine;

pub use machine::{Board, Since, TOMBSTONES_MAX};
