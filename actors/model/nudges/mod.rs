//! Values of a nudge: its schedule, its state, and the requests of people.

mod nudge;
mod request;

pub use nudge::{Moment, Now, Nudge, Status};
pub use request::{Every, NudgeLine, NudgeOrder, NudgeRequest, NudgeSettings};
