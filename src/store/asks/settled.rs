//! Waits until requests are settled. One inotify watch serves all that wait, so a thousand of them cost nothing.

use std::io;
use std::os::fd::AsFd as _;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use nix::sys::inotify::AddWatchFlags;
use swarm_model::asks::AskRecord;
use swarm_ports::Settled;
use swarm_sys::readable::Readable;
use tokio::sync::Notify;

use super::{Asks, DIR_GONE};

/// Pause before the next look if the directory cannot be watched.
const LOOK_PAUSE: Duration = Duration::from_secs(60);

pub struct Settlements {
    asks: Asks,
    /// Notified of each change of the directory. Set by the first that waits.
    changed: OnceLock<Arc<Notify>>,
}

impl Settlements {
    pub fn new(asks: Asks) -> Self {
        Self { asks, changed: OnceLock::new() }
    }

    /// Resolves once the request is answered, over or gone. Must be called within a runtime.
    pub async fn settled(&self, number: u64) -> Settled {
        let changed = self.changed.get_or_init(|| {
            let changed = Arc::new(Notify::new());
            tokio::spawn(follow(self.asks.clone(), Arc::clone(&changed)));
            changed
        });
        loop {
            let mut next = std::pin::pin!(changed.notified());
            // Before the look, so that no change is missed.
            next.as_mut().enable();
            if let Some(settled) = self.look(number) {
                return settled;
            }
            next.await;
        }
    }

    /// Returns what became of the request. `None` if it is open, or cannot be read now.
    fn look(&self, number: u64) -> Option<Settled> {
        match self.asks.find(number) {
            Ok(None | Some(AskRecord { over: None, answer: Some(_), .. })) => Some(Settled::Answered),
            Ok(Some(AskRecord { over: Some(over), .. })) => Some(Settled::Over { why: over.why }),
            Ok(Some(AskRecord { over: None, answer: None, .. })) => None,
            Err(error) => {
                tracing::warn!(number, %error, "cannot read a request");
                None
            }
        }
    }
}

/// Reports the changes of the directory for ever. If it cannot be watched, or is gone, looks again from time to time.
async fn follow(asks: Asks, changed: Arc<Notify>) {
    loop {
        if let Err(error) = watch(&asks, &changed).await {
            tracing::warn!(%error, "cannot watch the requests of agents");
        }
        changed.notify_waiters();
        tokio::time::sleep(LOOK_PAUSE).await;
    }
}

/// Reports the changes of the directory until it is gone.
async fn watch(asks: &Asks, changed: &Notify) -> io::Result<()> {
    let inotify = asks.watch()?;
    let readable = Readable::new(inotify.as_fd().try_clone_to_owned()?)?;
    // What happened before.
    changed.notify_waiters();
    loop {
        readable.wait().await?;
        while let Ok(events) = inotify.read_events() {
            if events.is_empty() {
                break;
            }
            if events.iter().any(|event| event.mask.intersects(DIR_GONE | AddWatchFlags::IN_IGNORED)) {
                return Ok(());
            }
        }
        changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use swarm_sys::paths::Paths;

    use super::super::tests::{answer, draft};
    use super::*;

    #[tokio::test]
    async fn a_request_that_is_removed_no_longer_waits() {
        let dir = tempfile::tempdir().expect("a directory");
        let asks = Asks::new(&Paths::new(dir.path()));
        let settlements = Settlements::new(asks.clone());
        let [one, two] = ["1", "2"].map(|key| asks.ask(&draft(key, "make")).expect("asked").number);
        let removing = async {
            tokio::task::yield_now().await;
            std::fs::remove_file(asks.path(one, "ask")).expect("removed");
        };
        assert_eq!(tokio::join!(settlements.settled(one), removing).0, Settled::Answered);
        let moving = async {
            tokio::task::yield_now().await;
            std::fs::rename(asks.dir(), dir.path().join("elsewhere")).expect("moved");
        };
        assert_eq!(tokio::join!(settlements.settled(two), moving).0, Settled::Answered);
    }

    #[tokio::test]
    async fn each_that_waits_hears_of_its_own_request() {
        let dir = tempfile::tempdir().expect("a directory");
        let asks = Asks::new(&Paths::new(dir.path()));
        let settlements = Settlements::new(asks.clone());
        assert_eq!(settlements.settled(7).await, Settled::Answered, "it is gone");
        let (one, two, three) = (draft("1", "make"), draft("2", "make"), draft("3", "make"));
        let [one, two, three] = [one, two, three].map(|draft| asks.ask(&draft).expect("asked"));
        let answering = async {
            tokio::task::yield_now().await;
            asks.end(two.number, "the run was stopped").expect("ended");
            asks.answer(one.number, &answer(&one, 1)).expect("answered");
        };
        let (first, second, ()) =
            tokio::join!(settlements.settled(one.number), settlements.settled(two.number), answering);
        assert_eq!(first, Settled::Answered);
        assert_eq!(second, Settled::Over { why: "the run was stopped".to_owned() });
        let open = tokio::time::timeout(Duration::from_millis(20), settlements.settled(three.number)).await;
        assert!(open.is_err(), "nobody has answered");
    }
}
