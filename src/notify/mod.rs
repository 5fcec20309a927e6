//! Notifications: what concerns people is told to a command, the desktop or a webhook of
//! theirs. Tasks beside the events; nothing waits for them, and where nothing is
//! configured they start nothing.
//!
//! ```text
//! events -> pace -> notices -+-> command
//!                            +-> desktop    (each at its own place in the queue)
//!                            +-> webhook
//! ```

pub mod config;
pub mod deliver;
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

/// Notices that wait for one way; of more, its oldest are dropped. (A power of two, as
/// the channel has it.)
const QUEUE_MAX: usize = 64;
/// How long notices under way may delay the supervisor's end. A successor waits longer
/// than that for its lock.
const END_MAX: Duration = Duration::from_secs(1);

/// What tells people, for as long as the supervisor runs.
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

    /// Tells what is still to be told, as far as that is quick.
    pub async fn end(self) {
        drop(self.over);
        if tokio::time::timeout(END_MAX, self.task).await.is_err() {
            tracing::warn!("the supervisor ends before all notices were delivered");
        }
    }
}

/// Returns when it is over and all that waited was told.
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

/// Makes notices of events.
async fn listen(
    clock: Arc<dyn Clock>,
    mut events: broadcast::Receiver<Event>,
    mut is_over: oneshot::Receiver<()>,
    queue: broadcast::Sender<Arc<Notice>>,
) {
    let mut pace = Pace::default();
    let tell = |notices: Vec<Notice>| {
        for notice in notices {
            // Where nobody takes it any more, nobody is to be told.
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
            Some(Err(RecvError::Lagged(missed))) => tracing::warn!(missed, "some events were not looked at"),
            Some(Err(RecvError::Closed)) => break,
            None => tell(pace.due(clock.boot_ms())),
        }
    }
    // What happened until now is told, and what waited for its time.
    loop {
        match events.try_recv() {
            Ok(event) => pace.take(&event, clock.boot_ms()),
            Err(TryRecvError::Lagged(_)) => {}
            Err(TryRecvError::Empty | TryRecvError::Closed) => break,
        }
    }
    tell(pace.due(u64::MAX));
}

/// On a thread of its own: the end of the process waits for those of the runtime's pool.
async fn off_thread(work: impl FnOnce() -> Result<(), Failed> + Send + 'static) -> Result<(), Failed> {
    let (done, is_done) = oneshot::channel();
    let started = std::thread::Builder::new().name("notify".to_owned()).spawn(move || done.send(work()));
    match started {
        Ok(_) => is_done.await.unwrap_or_else(|_| Err(Failed::for_good("swarm failed, see the panic in this log"))),
        Err(error) => Err(Failed::for_now(format!("the machine gives no thread: {error}"))),
    }
}

#[cfg(test)]
mod tests;
