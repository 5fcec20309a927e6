//! Workers that are jobs of a batch system: what follows from its answers and from the records of the worker. `machine`
//! decides; who asks is outside of this crate.

mod machine;

pub use machine::{ASK_MS, Found, Stage, Told, Verdict, Watch};
