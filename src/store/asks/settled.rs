//! Waits until requests are settled. One inotify watch serves all that wait, so a thousand of them cost nothing.

use std::io;
use std::os::fd::AsFd as _;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use swarm_model::asks::AskRecord;
use swarm_ports::Settled;
use swarm_sys::readable::Readable;
use tokio::sync::Notify;

use super::Asks;

/// Pause before the next look if the kernel refuses to watch.
const LOOK_PAUSE: Duration = Duration::from_secs(60);

pub struct Settlements {
    asks: Asks,
    /// Notified of each new file. `None` if the kernel refuses to watch.
    changed: OnceLock<Option<Arc<Notify>>>,
}

impl Settlements {
    pub fn new(asks: Asks) -> Self {
        Self { asks, changed: OnceLock::new() }
    }

    /// Resolves once the request is answered, over or gone. Must be called within a runtime.
    pub async fn settled(&self, number: u64) -> Settled {
        let changed = self.changed.get_or_init(|| {
            let watched = watch(&self.asks);
            watched.inspect_err(|error| tracing::warn!(%error, "cannot watch the requests of agents")).ok()
        });
        loop {
            let Some(changed) = changed else {
                if let Some(settled) = self.look(number) {
                    return settled;
                }
                tokio::time::sleep(LOOK_PAUSE).await;
                continue;
            };
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

/// Starts the task that reports new files.
fn watch(asks: &Asks) -> io::Result<Arc<Notify>> {
    let inotify = asks.watch()?;
    let readable = Readable::new(inotify.as_fd().try_clone_to_owned()?)?;
    let changed = Arc::new(Notify::new());
    let told = Arc::clone(&changed);
    tokio::spawn(async move {
        while readable.wait().await.is_ok() {
            while inotify.read_events().is_ok_and(|events| !events.is_empty()) {}
            told.notify_waiters();
        }
    });
    Ok(changed)
}

#[cfg(test)]
mod tests {
    use swarm_sys::paths::Paths;

    use super::super::tests::{answer, draft};
    use super::*;

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
