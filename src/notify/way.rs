//! The ways by which people are told, each with its own place in the queue and its own
//! pace: what is slow or broken delays itself and no other.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::sync::broadcast::{self, error::RecvError};

use super::pace::Notice;

/// How often a notice is tried …
const TRIES_MAX: u32 = 4;
/// … and how long before the second time; twice as long before each one after.
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

/// Why a notice did not arrive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failed {
    /// In a sentence that holds nothing secret: no arguments, no path of an address.
    pub cause: String,
    /// What a command printed: for who tries it, not for the log.
    pub output: String,
    /// Whether it may arrive when it is sent again.
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

/// Delivers what waits for one way, one after the other, until nothing more comes.
pub(super) async fn serve<F, Done>(way: Way, mut queue: broadcast::Receiver<Arc<Notice>>, deliver: &F)
where
    F: Fn(Way, Arc<Notice>) -> Done,
    Done: Future<Output = Result<(), Failed>>,
{
    let way_name = way.name();
    // Why the last one did not arrive, and how many did not for that reason.
    let mut failing: Option<(String, usize)> = None;
    loop {
        let notice = match queue.recv().await {
            Ok(notice) => notice,
            Err(RecvError::Lagged(dropped)) => {
                tracing::warn!(way = way_name, dropped, "too many notices waited, the oldest were dropped");
                continue;
            }
            Err(RecvError::Closed) => return,
        };
        match tried(way, &notice, deliver).await {
            Ok(()) => {
                if let Some((_, missed)) = failing.take() {
                    tracing::info!(way = way_name, missed, "notifications are delivered again");
                }
            }
            Err(Failed { cause, .. }) => match &mut failing {
                // Once for each cause, not for each notice.
                Some((told, missed)) if *told == cause => *missed += 1,
                _ => {
                    tracing::warn!(way = way_name, cause, "a notification was not delivered");
                    failing = Some((cause, 1));
                }
            },
        }
    }
}

async fn tried<F, Done>(way: Way, notice: &Arc<Notice>, deliver: &F) -> Result<(), Failed>
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
