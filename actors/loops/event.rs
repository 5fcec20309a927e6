//! What happens to a loop, and what follows from it: plain values.

use super::sight::Sight;
use swarm_model::loops::progress::{ExitReason, Wire};
use swarm_model::loops::words::{Code, Word};

/// What happens to a loop. What is about an iteration that is not the present one is void.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    Began,
    /// It was taken over from another program.
    Adopted,
    /// The worker of this iteration runs.
    Started {
        iteration: u32,
        generation: u64,
    },
    /// It cannot be started.
    NotStarted {
        iteration: u32,
        cause: String,
    },
    /// There is no prompt to give it.
    NoPrompt {
        iteration: u32,
        cause: String,
    },
    /// It is about to be typed.
    Typing {
        iteration: u32,
    },
    /// It is typed; the window shows this, and its log is so long. Enter is next.
    Prompted {
        iteration: u32,
        baseline: String,
        log_from: u64,
    },
    Entered {
        iteration: u32,
    },
    /// It could not be typed into a window that is there.
    NotPrompted {
        iteration: u32,
        cause: String,
    },
    Seen {
        iteration: u32,
        sight: Sight,
    },
    /// The worker ended. `asked` by somebody who is not this loop; `done` says its output.
    Ended {
        iteration: u32,
        code: Code,
        asked: bool,
        done: bool,
    },
    /// The worker went with its machine or its tmux server, not by itself.
    Lost {
        iteration: u32,
    },
    /// The worker that was to be ended is gone. `done` says its output.
    Gone {
        iteration: u32,
        done: bool,
    },
    /// The time of the next one has come.
    Due {
        iteration: u32,
    },
    Pause {
        reason: String,
    },
    Resume,
    /// Somebody wants it looked after.
    Attend,
    /// Its worker is being killed, or cleaned away.
    Killed,
    /// Another program wrote this into the original's file.
    Others(Wire),
}

/// What is to be done, in this order.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Start the worker of this iteration, or find it; give it the prompt, watch it, and
    /// tell how it ends. Whoever did so before stops.
    Attend,
    /// Stop looking at it.
    Forsake,
    /// End its worker and tell when it is gone; `drop` forgets it too.
    End {
        drop: bool,
    },
    /// Type this into its window.
    Type {
        text: String,
    },
    /// Tell when this time has come.
    Arm {
        at_ms: u64,
    },
    Tell(Word),
    /// For those who listen: begun or gone on with, an iteration, paused, resumed, ended.
    Announce(News),
    /// Nothing of it ever ran: it is to be forgotten.
    Withdraw {
        cause: String,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub enum News {
    Started,
    Iteration,
    Paused { reason: String },
    Resumed,
    Ended { reason: ExitReason },
    Warning { text: String },
}
