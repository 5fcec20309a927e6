//! Notifications: sends events that concern people to a command, the desktop or a webhook of the user.
//!
//! The tasks run beside the event log, and nothing waits for them. If nothing is configured, they start nothing.
//!
//! ```text
//! events -> pace -> notices -+-> command
//!                            +-> desktop    (each with its own position in the queue)
//!                            +-> webhook
//! ```

pub mod config;
pub mod deliver;
mod lookup;
pub mod own;
mod pace;
mod way;
mod webhook;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use swarm_model::Event;
use swarm_ports::Clock;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::sync::{broadcast, oneshot};
use tokio::task::JoinHandle;

use self::config::Known;
pub use self::pace::Notice;
use self::pace::Pace;
pub use self::way::{Failed, Way};
use swarm_sys::paths::Paths;

/// Maximum number of notices that wait for one way; beyond that, the oldest are dropped. A power of two, as the channel
/// requires.
const QUEUE_MAX: usize = 64;
/// Maximum time that pending deliveries may delay the end of the supervisor. A successor waits longer than that for the
/// supervisor's lock.
const END_MAX: Duration = Duration::from_secs(1);

/// Sends notifications while the supervisor runs.
pub struct Notifier {
    over: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Notifier {
    pub fn start(paths: Paths, clock: Arc<dyn Clock>, events: broadcast::Receiver<Event>) -> Self {
        let (over, is_over) = oneshot::channel();
        let known = Arc::new(Known::default());
        let deliver = move |way, notice: Arc<Notice>| {
            let (paths, known) = (paths.clone(), Arc::clone(&known));
            async move {
                if !known.is_there() {
                    return Ok(());
                }
                off_thread(move || {
                    let notify = known.now();
                    let is_wanted = notify.wants(notice.group);
                    let done = is_wanted.then(|| deliver::by(way, &paths, &notify, &notice)).flatten();
                    done.unwrap_or(Ok(()))
                })
                .await
            }
        };
        Self { over, task: tokio::spawn(tell_all(clock, events, is_over, deliver)) }
    }

    /// Delivers the pending notices, for at most `END_MAX`.
    pub async fn end(self) {
        drop(self.over);
        if tokio::time::timeout(END_MAX, self.task).await.is_err() {
            tracing::warn!("the supervisor ends before all notifications were delivered");
        }
    }
}

/// Runs until `is_over`, and returns when all pending notices were delivered.
async fn tell_all<F, Done>(
    clock: Arc<dyn Clock>,
    events: broadcast::Receiver<Event>,
    is_over: oneshot::Receiver<()>,
    deliver: F,
) where
    F: Fn(Way, Arc<Notice>) -> Done,
    Done: Future<Output = Result<(), Failed>>,
{
    let (queue, command) = broadcast::channel(QUEUE_MAX);
    let (desktop, webhook) = (queue.subscribe(), queue.subscribe());
    tokio::join!(
        listen(clock, events, is_over, queue),
        way::serve(Way::Command, command, &deliver),
        way::serve(Way::Desktop, desktop, &deliver),
        way::serve(Way::Webhook, webhook, &deliver),
    );
}

/// Converts events to notices.
async fn listen(
    clock: Arc<dyn Clock>,
    mut events: broadcast::Receiver<Event>,
    mut is_over: oneshot::Receiver<()>,
    queue: broadcast::Sender<Arc<Notice>>,
) {
    let mut pace = Pace::default();
    let tell = |notices: Vec<Notice>| {
        for notice in notices {
            // Fails only if all ways have ended.
            let _ = queue.send(Arc::new(notice));
        }
    };
    loop {
        let due = async {
            match pace.next_ms() {
                Some(at) => tokio::time::sleep(Duration::from_millis(at.saturating_sub(clock.boot_ms()))).await,
                None => std::future::pending().await,
            }
        };
        let heard = tokio::select! {
            heard = events.recv() => Some(heard),
            () = due => None,
            _ = &mut is_over => break,
        };
        match heard {
            Some(Ok(event)) => pace.take(&event, clock.boot_ms()),
            Some(Err(RecvError::Lagged(missed))) => tracing::warn!(missed, "missed some events"),
            Some(Err(RecvError::Closed)) => break,
            None => tell(pace.due(clock.boot_ms())),
        }
    }
    // Sends the notices of all events until now, including those that were held back.
    loop {
        match events.try_recv() {
            Ok(event) => pace.take(&event, clock.boot_ms()),
            Err(TryRecvError::Lagged(_)) => {}
            Err(TryRecvError::Empty | TryRecvError::Closed) => break,
        }
    }
    tell(pace.due(u64::MAX));
}

/// Runs a delivery on its own thread: the end of the process would wait for threads of the runtime's pool.
async fn off_thread(work: impl FnOnce() -> Result<(), Failed> + Send + 'static) -> Result<(), Failed> {
    let (done, is_done) = oneshot::channel();
    let started = std::thread::Builder::new().name("notify".to_owned()).spawn(move || done.send(work()));
    match started {
        Ok(_) => is_done.await.unwrap_or_else(|_| Err(Failed::for_good("internal error; see the panic in this log"))),
        Err(error) => Err(Failed::for_now(format!("cannot create a thread: {error}"))),
    }
}

#[cfg(test)]
mod tests;
