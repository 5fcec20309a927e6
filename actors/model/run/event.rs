//! Events of a run, as its journal stores them.

use serde::{Deserialize, Serialize};

use super::outcome::{Merged, Outcome};
use super::progress::{ClosedKind, Run, Spent};

/// Event of a run. Events about an attempt other than the present one have no effect.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Event {
    Began,
    /// The worker of the attempt runs. Its pid is 0 if it runs on another host.
    Started {
        job: usize,
        attempt: u32,
        pid: i32,
    },
    /// The attempt is about to be started on this host. From here on it belongs to it, and is started nowhere else.
    Sent {
        job: usize,
        attempt: u32,
        host: String,
    },
    /// The attempt was certainly not started on the host, which has no room for it, or is not there.
    Unplaced {
        job: usize,
        attempt: u32,
        host: String,
        kind: ClosedKind,
        cause: String,
    },
    /// The attempt was certainly not started on the host, which cannot execute this job. It may execute others.
    Unfit {
        job: usize,
        attempt: u32,
        host: String,
        /// Program that is missing there. `None`: something else is in the way of this job.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        program: Option<String>,
        cause: String,
    },
    /// The jobs that the host could not execute until this time may be tried there again.
    FitDue {
        host: String,
        at_ms: u64,
    },
    /// The host at which an attempt works is out of reach.
    Lost {
        host: String,
        cause: String,
        /// Job and number of the attempt. `None`: it was given up.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        of: Option<(usize, u32)>,
    },
    /// The host answers, and something is in the way of starting the attempt there, or of taking its work.
    Stuck {
        job: usize,
        attempt: u32,
        cause: String,
    },
    /// The host answers again.
    Found {
        host: String,
        /// Job and number of the attempt about which it was asked, as in `Lost`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        of: Option<(usize, u32)>,
    },
    /// The host has reported its load, in halves per processor. Only written if it has changed.
    Loaded {
        host: String,
        level: u32,
    },
    /// The host may be tried again.
    HostDue {
        host: String,
    },
    /// The attempts that cannot be reached at the host since this time, in Unix milliseconds, are waited for no longer.
    LostDue {
        host: String,
        since_ms: u64,
    },
    /// A stop could not be delivered to the host of the attempt.
    Unreached {
        job: usize,
        attempt: u32,
    },
    /// The attempt is given up, because its host is out of reach. It is over for the run, and does not count as a failure.
    Abandoned {
        job: usize,
        attempt: u32,
        host: String,
    },
    /// An attempt that was given up is ended on its host, and its work is here, under this reference. Its job need not be in
    /// the plan.
    Returned {
        id: String,
        attempt: u32,
        host: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reference: Option<String>,
        /// References to what that one does not contain.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        more: Vec<String>,
    },
    /// Another machine or state directory is under the name of the host, which never had this attempt that was given up. It is
    /// waited for no longer.
    Gone {
        id: String,
        attempt: u32,
        host: String,
    },
    /// The host answers, and something is in the way of bringing back the work of an attempt that was given up.
    Held {
        id: String,
        attempt: u32,
        host: String,
        cause: String,
    },
    /// The work of an attempt on a host is here, in this commit.
    Fetched {
        job: usize,
        attempt: u32,
        tip: Option<String>,
        /// Uncommitted paths that the commit does not contain, as in `Queued`.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        left_out: Vec<String>,
        /// Ignored files that the attempt has made there.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        ignored: Vec<String>,
        /// References here to what else it has left.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        kept: Vec<String>,
    },
    Ended {
        job: usize,
        attempt: u32,
        outcome: Outcome,
        spent: Spent,
    },
    /// The work of the attempt is in the merge queue.
    Queued {
        job: usize,
        attempt: u32,
        /// Uncommitted paths that do not land: files of kinds that tools generate, and the
        /// places of submodules and other repositories with uncommitted work (with a slash at the end).
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        left_out: Vec<String>,
    },
    /// The work waited for a person, and is now queued again.
    Retried {
        job: usize,
        attempt: u32,
    },
    /// The merge queue has settled the work. `spent` is the usage of agents that resolved conflicts.
    Merged {
        job: usize,
        attempt: u32,
        merged: Merged,
        #[serde(default)]
        spent: Spent,
    },
    /// The next attempt is due; or see [`Event::resolvers`].
    Due {
        job: usize,
        attempt: u32,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        resolvers: Option<usize>,
    },
    /// A person has answered the request for which the attempt ended.
    Answered {
        job: usize,
        attempt: u32,
        /// Number of the request.
        ask: u64,
    },
    /// Nobody waits for the answer to the request any more.
    Withdrawn {
        job: usize,
        attempt: u32,
        why: String,
    },
    Stop,
    Hold,
    Resume,
    /// The state was rebuilt, because events before this one cannot be read. What they did counts as in `run`.
    Repaired {
        run: Box<Run>,
    },
}

impl Event {
    /// So many resolvers of the run's work are running or wait for a place. On record because it decides when attempts
    /// start: a replay must start the same ones. Written as an attempt that is due of a job that does not exist, which has
    /// no effect on older programs; an event that they do not know would be damage to them.
    pub fn resolvers(count: usize) -> Self {
        Self::Due { job: usize::MAX, attempt: 0, resolvers: Some(count) }
    }
}
