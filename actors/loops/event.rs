//! Events of a loop and their effects: plain values.

use super::sight::Sight;
use swarm_model::loops::progress::{ExitReason, Wire};
use swarm_model::loops::words::{Code, Word};

/// Event of a loop. Events of an iteration other than the present one are ignored.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    Began,
    /// The loop was adopted from another program.
    Adopted,
    /// The worker of this iteration runs.
    Started {
        iteration: u32,
        generation: u64,
    },
    /// The worker cannot be started. If it `passes`, the cause says nothing about the worker, for example a disk that is
    /// not mounted.
    NotStarted {
        iteration: u32,
        cause: String,
        passes: bool,
    },
    /// The prompt file cannot be read.
    NoPrompt {
        iteration: u32,
        cause: String,
    },
    /// The prompt is about to be typed.
    Typing {
        iteration: u32,
    },
    /// The prompt is typed but not entered. `baseline` is the content of the window, `log_from` the
    /// length of the worker's log in bytes. Enter is next.
    Prompted {
        iteration: u32,
        baseline: String,
        log_from: u64,
    },
    Entered {
        iteration: u32,
    },
    /// The prompt could not be typed, although the window exists.
    NotPrompted {
        iteration: u32,
        cause: String,
    },
    /// The agent cannot work before a person acts.
    Blocked {
        iteration: u32,
        cause: String,
    },
    Seen {
        iteration: u32,
        sight: Sight,
    },
    /// The worker ended. `asked`: somebody other than this loop ended it. `done`: its output
    /// matches the done pattern.
    Ended {
        iteration: u32,
        code: Code,
        asked: bool,
        done: bool,
    },
    /// The worker was lost with its machine or its tmux server.
    Lost {
        iteration: u32,
    },
    /// The worker that the loop ended is gone. `done`: its output matches the done pattern.
    Gone {
        iteration: u32,
        done: bool,
    },
    /// The pause before the next start is over.
    Due {
        iteration: u32,
    },
    Pause {
        reason: String,
    },
    Resume,
    /// The loop is to be supervised from now on.
    Attend,
    /// A person kills or cleans the worker.
    Killed,
    /// Another program wrote this to `state.json`.
    Others(Wire),
}

/// Effect of an event. Effects are carried out in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Start the worker of this iteration, or find it; type the prompt, watch the window and report
    /// the worker's end. Replaces the task that did so before.
    Attend,
    /// Stop the task that attends the worker.
    Abandon,
    /// End the worker and report when it is gone. `drop` also cleans it.
    End {
        drop: bool,
    },
    /// Type this text into the worker's window.
    Type {
        text: String,
    },
    /// Report when this time (Unix milliseconds) has come.
    Arm {
        at_ms: u64,
    },
    Tell(Word),
    /// Emit an event for subscribers.
    Announce(News),
    /// No worker of the loop ever ran: remove its files.
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
