//! Notifications: what concerns people is told to a command, the desktop or a webhook of
//! theirs. A task beside the events; nothing waits for it, and where nothing is
//! configured it starts nothing.

pub mod config;
pub mod deliver;
mod pace;

use std::sync::Arc;
use std::time::Duration;

use swarm_actors::model::Event;
use swarm_actors::ports::Clock;
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::sync::mpsc;

use self::config::Notify;
pub use self::pace::Notice;
use self::pace::Pace;
use crate::paths::Paths;

/// Notices that wait for those before them to be delivered.
const QUEUE_MAX: usize = 64;
/// How often a webhook is tried …
const TRIES_MAX: u32 = 4;
/// … and how long before the second time; twice as long before each one after.
const AGAIN: Duration = Duration::from_secs(1);

/// Listens for as long as there are events.
pub async fn serve(paths: Paths, clock: Arc<dyn Clock>, mut events: broadcast::Receiver<Event>) {
    let (queue, waiting) = mpsc::channel(QUEUE_MAX);
    tokio::spawn(deliver_all(paths, waiting));
    let mut pace = Pace::default();
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
        };
        match heard {
            Some(Ok(event)) => pace.take(&event, clock.boot_ms()),
            Some(Err(RecvError::Lagged(missed))) => tracing::warn!(missed, "some events were not looked at"),
            Some(Err(RecvError::Closed)) => return,
            None => {
                for notice in pace.due(clock.boot_ms()) {
                    if queue.try_send(notice).is_err() {
                        tracing::warn!("too many notices wait, one is dropped");
                    }
                }
            }
        }
    }
}

async fn deliver_all(paths: Paths, mut waiting: mpsc::Receiver<Notice>) {
    let (mut told_of, mut has_said) = (String::new(), false);
    while let Some(notice) = waiting.recv().await {
        // As it is now: an edit counts at once.
        let read = config::path().map_or_else(|| Ok(Notify::default()), |path| config::read(&path));
        match read {
            Ok(notify) => {
                if notify.desktop && !has_said && !deliver::has_desktop() {
                    has_said = true;
                    tracing::warn!("[notify] asks for the desktop, and there is no notify-send in PATH");
                }
                if notify.wants(notice.group) {
                    tell(&paths, &notify, &Arc::new(notice)).await;
                }
            }
            // Once for each mistake, not for each notice.
            Err(cause) if cause != told_of => {
                tracing::error!(cause, "notifications cannot be sent");
                told_of = cause;
            }
            Err(_) => {}
        }
    }
}

/// All ways side by side, so that one that fails slowly delays no other.
async fn tell(paths: &Paths, notify: &Notify, notice: &Arc<Notice>) {
    let by_command = async {
        if let Some(command) = notify.command.clone() {
            let (paths, notice) = (paths.clone(), Arc::clone(notice));
            warn("command", off_thread(move || deliver::command(&paths, &command, &notice)).await);
        }
        if notify.desktop && deliver::has_desktop() {
            let (paths, notice) = (paths.clone(), Arc::clone(notice));
            warn("desktop", off_thread(move || deliver::desktop(&paths, &notice)).await);
        }
    };
    let by_webhook = async {
        if let Some(url) = notify.webhook.clone() {
            warn("webhook", tried(url, notice).await);
        }
    };
    tokio::join!(by_command, by_webhook);
}

async fn tried(url: String, notice: &Arc<Notice>) -> Result<(), String> {
    let mut pause = AGAIN;
    for attempt in 1.. {
        let (url, notice) = (url.clone(), Arc::clone(notice));
        let done = off_thread(move || deliver::webhook(&url, &notice)).await;
        if done.is_ok() || attempt == TRIES_MAX {
            return done;
        }
        tokio::time::sleep(pause).await;
        pause *= 2;
    }
    Ok(())
}

async fn off_thread(work: impl FnOnce() -> Result<(), String> + Send + 'static) -> Result<(), String> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(error.to_string()))
}

fn warn(way: &str, done: Result<(), String>) {
    if let Err(cause) = done {
        tracing::warn!(way, cause, "a notification was not delivered");
    }
}
