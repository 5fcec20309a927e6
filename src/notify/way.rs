//! The ways by which people are notified. Each has its own position in the queue and its own pace: a slow or broken way
//! delays only itself.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::sync::broadcast::{self, error::RecvError};

use super::pace::Notice;

/// Maximum number of attempts to deliver a notice.
const TRIES_MAX: u32 = 4;
/// Pause before the second attempt; it doubles before each further one.
const AGAIN: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Way {
    Command,
    Desktop,
    Webhook,
}

impl Way {
    pub const ALL: [Self; 3] = [Self::Command, Self::Desktop, Self::Webhook];

    pub fn name(self) -> &'static str {
        match self {
            Self::Command => "command",
            Self::Desktop => "desktop",
            Self::Webhook => "webhook",
        }
    }
}

/// Error of a delivery.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failed {
    /// Message without secrets: no arguments, no path of an address.
    pub cause: String,
    /// Output of a command, shown by `swarm notify test` only, not logged.
    pub output: String,
    /// Whether another attempt may succeed.
    pub may_pass: bool,
}

impl Failed {
    pub fn for_good(cause: impl Into<String>) -> Self {
        Self { cause: cause.into(), ..Self::default() }
    }

    pub fn for_now(cause: impl Into<String>) -> Self {
        Self { cause: cause.into(), may_pass: true, ..Self::default() }
    }
}

/// Delivers the notices of one way, one after the other, until the queue is closed.
pub(super) async fn serve<F, Done>(way: Way, mut queue: broadcast::Receiver<Arc<Notice>>, deliver: &F)
where
    F: Fn(Way, Arc<Notice>) -> Done,
    Done: Future<Output = Result<(), Failed>>,
{
    let way_name = way.name();
    // Cause of the last failure, and the number of notices that failed for it.
    let mut failing: Option<(String, usize)> = None;
    loop {
        let notice = match queue.recv().await {
            Ok(notice) => notice,
            Err(RecvError::Lagged(dropped)) => {
                tracing::warn!(way = way_name, dropped, "dropped the oldest of too many waiting notifications");
                continue;
            }
            Err(RecvError::Closed) => return,
        };
        match attempt(way, &notice, deliver).await {
            Ok(()) => {
                if let Some((_, missed)) = failing.take() {
                    tracing::info!(way = way_name, missed, "notifications are delivered again");
                }
            }
            Err(Failed { cause, .. }) => match &mut failing {
                // Logged once per cause, not per notice.
                Some((told, missed)) if *told == cause => *missed += 1,
                _ => {
                    tracing::warn!(way = way_name, cause, "cannot deliver a notification");
                    failing = Some((cause, 1));
                }
            },
        }
    }
}

/// Delivers a notice, and retries temporary failures.
async fn attempt<F, Done>(way: Way, notice: &Arc<Notice>, deliver: &F) -> Result<(), Failed>
where
    F: Fn(Way, Arc<Notice>) -> Done,
    Done: Future<Output = Result<(), Failed>>,
{
    let mut pause = AGAIN;
    for _ in 1..TRIES_MAX {
        match deliver(way, Arc::clone(notice)).await {
            Err(failed) if failed.may_pass => {}
            done => return done,
        }
        tokio::time::sleep(pause).await;
        pause *= 2;
    }
    deliver(way, Arc::clone(notice)).await
}
