//! Values of a merge queue: its items, the results of git, and the requests of people.

mod answer;
pub mod queue;
mod request;
mod rules;

pub use answer::{Build, Landing, NOT_EXECUTED, RESOLVER_LATER, Resolution, Verdict};
pub use request::{MergeLine, MergeOrder, MergeRequest, MergeSettings, QueueView, Target};
