//! What happens to a run, as its journal has it.

use serde::{Deserialize, Serialize};

use super::outcome::{Merged, Outcome};
use super::progress::Spent;

/// What happens to a run. Those about an attempt that is not the present one are void.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Event {
    Began,
    /// The worker of this attempt runs.
    Started {
        job: usize,
        attempt: u32,
        pid: i32,
    },
    Ended {
        job: usize,
        attempt: u32,
        outcome: Outcome,
        spent: Spent,
    },
    /// Its work is in the queue.
    Queued {
        job: usize,
        attempt: u32,
    },
    /// Its work waited for a person, and has its turn in the queue again.
    Retried {
        job: usize,
        attempt: u32,
    },
    /// `spent` is what resolving its conflicts took.
    Merged {
        job: usize,
        attempt: u32,
        merged: Merged,
        #[serde(default)]
        spent: Spent,
    },
    /// The time of its next attempt has come.
    Due {
        job: usize,
        attempt: u32,
    },
    Stop,
    Hold,
    Resume,
}
