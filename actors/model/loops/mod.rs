//! Values of a loop: its plan, its progress, and the lines of its log.

pub mod headless;
pub mod progress;
mod request;
pub mod words;

pub use request::{LoopLine, LoopOrder, LoopRequest};
