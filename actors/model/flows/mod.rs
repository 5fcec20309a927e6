//! Values of a running flow: turns of its roles, and the requests of people.

mod names;
mod request;
mod turn;

pub use names::{TAG, request_of, request_prefix, worker_name};
pub use request::{FlowLine, FlowOrder, FlowPlace, FlowRequest, FlowRules};
pub use turn::{Begin, Ended, How, News, Standing, Turn};
