//! Values of a run: its plan, the progress of each job, its events, and its reports.

mod abandoned;
pub mod beginning;
mod event;
mod names;
mod outcome;
pub mod plan;
pub mod progress;
mod request;
mod wish;
pub mod words;

pub use abandoned::{Abandoned, RETURNED};
pub use event::Event;
pub use names::{far_worker_name, key_of, parse_key, request_of, request_prefix, worker_name};
pub use outcome::{FaultKind, Merged, Outcome};
pub use request::{RunLine, RunOrder, RunRequest};
pub use wish::Wish;
