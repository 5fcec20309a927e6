//! Values of a merge queue: its items, the results of git, and the requests of people.

mod agreed;
mod answer;
pub mod queue;
mod request;
mod rules;

/// Words before the path of a verification's output in the reason of a rejection.
pub const OUTPUT_AT: &str = "; its output is in ";

pub use agreed::Agreed;
pub use answer::{BASE_FAILS, Build, Landing, NOT_EXECUTED, RESOLVER_LATER, Resolution, Verdict};
pub use request::{MergeLine, MergeOrder, MergeRequest, MergeSettings, QueueView, Target};
