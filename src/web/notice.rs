//! Messages to the person at the terminal of `swarm web`.

use std::sync::Arc;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A further address has this code.
    Address { code: String },
    /// A process has exchanged the code of an address.
    Opened { by: String },
    /// A process wanted to use a code that another one had used before.
    Again { by: String, first: String },
    /// A process below a worker was refused.
    Below { worker: String, process: String },
    /// A process was refused that must not be examined, and may be one below this worker.
    Perhaps { worker: String },
}

/// Tells a notice. Must not wait.
pub type Tell = Arc<dyn Fn(Notice) + Send + Sync>;
