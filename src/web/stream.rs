//! The stream of a tab: the board, then what changes, and the window that the tab shows. Each line is made when the tab has
//! read the one before: a tab that is slow gets the latest, and nothing is queued for it.

use std::convert::Infallible;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use nix::sys::inotify::{AddWatchFlags, Inotify};
use serde::Deserialize;
use serde_json::{Value, json};
use swarm_sys::paths::Paths;
use swarm_sys::readable::Readable;
use swarm_sys::watching;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::{Sender, channel};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};
use tokio_stream::wrappers::ReceiverStream;

use super::hub::Listening;
use super::routes::Site;
use super::text;
use crate::board::screen;

/// Time of silence after which an empty line is sent, by which both sides notice that the other is gone.
const SILENCE: Duration = Duration::from_secs(30);
/// Shortest time between two captures of a window.
const CAPTURE_PAUSE: Duration = Duration::from_millis(150);
/// The time between two captures is at least this many times what the last one took.
const PAUSE_FACTOR: u32 = 3;

/// State of a tab: the revision that it has, and the rows and texts that it wants.
#[derive(Debug, Default, Deserialize)]
pub struct Wanted {
    #[serde(default)]
    pub since: u64,
    pub board: Option<String>,
    /// Worker whose window is shown.
    pub screen: Option<String>,
    pub generation: Option<u64>,
}

/// Returns the body of the answer. It keeps its place until the tab is gone.
pub fn body(site: &Arc<Site>, wanted: Wanted, place: OwnedSemaphorePermit) -> Body {
    let (sender, receiver) = channel(1);
    let listening = site.hub.listen();
    let window = wanted.screen.map(|name| Window::new(site.paths.clone(), name, wanted.generation));
    let tab = Tab { listening, board: wanted.board, rev: wanted.since, warned: 0, window };
    tokio::spawn(async move {
        tab.tell(sender).await;
        drop(place);
    });
    Body::from_stream(ReceiverStream::new(receiver))
}

type Line = Result<Bytes, Infallible>;

struct Tab {
    listening: Listening,
    board: Option<String>,
    rev: u64,
    warned: u64,
    window: Option<Window>,
}

impl Tab {
    async fn tell(mut self, tab: Sender<Line>) {
        loop {
            let silent = Instant::now() + SILENCE;
            let line = tokio::select! {
                () = self.listening.wait() => None,
                line = shown(&mut self.window) => Some(line),
                () = sleep_until(silent) => Some(String::new()),
                () = tab.closed() => return,
            };
            // Only when the tab has read what came before.
            let Ok(room) = tab.reserve().await else { return };
            let text = match line {
                Some(line) => line + "\n",
                None => self.news(),
            };
            if !text.is_empty() {
                room.send(Ok(text.into()));
            }
        }
    }

    /// Returns what is newer than what the tab has.
    fn news(&mut self) -> String {
        let (rev, changes) = self.listening.since(self.board.as_deref(), self.rev);
        self.board = Some(self.listening.board().to_owned());
        self.rev = rev;
        let mut text = changes.map(|line| line + "\n").unwrap_or_default();
        let (warned, warnings) = self.listening.warnings();
        if std::mem::replace(&mut self.warned, warned) != warned {
            text += &json!({"kind": "warnings", "warnings": warnings}).to_string();
            text.push('\n');
        }
        text
    }
}

async fn shown(window: &mut Option<Window>) -> String {
    match window {
        Some(window) => window.next().await,
        None => std::future::pending().await,
    }
}

/// The window of a worker. It is captured when its log has grown, one capture at a time.
struct Window {
    paths: Paths,
    name: String,
    generation: Option<u64>,
    growth: Option<(Inotify, Readable)>,
    not_before: Instant,
    /// Message that was sent last.
    last: Option<Value>,
    is_due: bool,
    /// The capture that is under way.
    capture: Option<(Instant, JoinHandle<Result<String, String>>)>,
}

impl Window {
    fn new(paths: Paths, name: String, generation: Option<u64>) -> Self {
        // Without it the window is looked at from time to time.
        let growth = watching::start().ok().and_then(|inotify| {
            let readable = Readable::new(inotify.as_fd().try_clone_to_owned().ok()?).ok()?;
            Some((inotify, readable))
        });
        Self { paths, name, generation, growth, not_before: Instant::now(), last: None, is_due: true, capture: None }
    }

    /// Returns the line of the next change. Nothing is lost if the future is dropped.
    async fn next(&mut self) -> String {
        loop {
            if !self.is_due && self.capture.is_none() {
                match &self.growth {
                    Some((inotify, readable)) => {
                        if readable.wait().await.is_err() {
                            return std::future::pending().await;
                        }
                        while inotify.read_events().is_ok_and(|events| !events.is_empty()) {}
                    }
                    None => sleep_until(Instant::now() + watching::LOOK_PAUSE).await,
                }
                self.is_due = true;
            }
            if self.capture.is_none() {
                sleep_until(self.not_before).await;
                self.begin();
            }
            let Some((began, capture)) = &mut self.capture else { continue };
            let captured = capture.await.unwrap_or_else(|error| Err(error.to_string()));
            self.not_before = Instant::now() + (began.elapsed() * PAUSE_FACTOR).max(CAPTURE_PAUSE);
            self.capture = None;
            let (key, value) = match captured {
                Ok(shown) => ("lines", text::of(&screen::lines(&shown))),
                Err(cause) => ("error", Value::from(cause)),
            };
            let object = json!({"kind": "screen", "name": self.name, "generation": self.generation, key: value});
            if self.last.as_ref() != Some(&object) {
                let line = object.to_string();
                self.last = Some(object);
                return line;
            }
        }
    }

    /// Begins to capture the window. Its log is watched before that, again each time, because it may have been replaced.
    fn begin(&mut self) {
        if let Some((inotify, _)) = &self.growth {
            let flags = AddWatchFlags::IN_MODIFY | AddWatchFlags::IN_MOVE_SELF | AddWatchFlags::IN_DELETE_SELF;
            let _ = inotify.add_watch(&self.paths.log(&self.name, "tmux"), flags);
        }
        self.is_due = false;
        let (paths, name, generation) = (self.paths.clone(), self.name.clone(), self.generation);
        // tmux may not answer for some seconds.
        let capture = tokio::task::spawn_blocking(move || screen::capture(&paths, &name, generation));
        self.capture = Some((Instant::now(), capture));
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::hub::Hub;
    use super::*;

    /// Limit of each wait.
    const SOON: Duration = Duration::from_secs(20);

    fn put(root: &Path, name: &str) {
        let row = format!(r#"{{"name":"{name}","status":"stopped","cmd":["x"],"started":"s","cwd":"/"}}"#);
        std::fs::write(root.join("new"), format!("{{\"workers\":[{row}]}}")).expect("written");
        std::fs::rename(root.join("new"), root.join("state.json")).expect("renamed");
    }

    /// A connection that stops for a minute, for example.
    #[tokio::test]
    async fn a_tab_that_does_not_read_gets_the_latest_when_it_does_and_nothing_is_queued() {
        let dir = tempfile::tempdir().expect("a directory");
        put(dir.path(), "w0");
        let hub = Hub::start(&Paths::new(dir.path())).expect("starts");
        let tab = Tab { listening: hub.listen(), board: None, rev: 0, warned: 0, window: None };
        let mut changes = hub.listen();
        let (sender, mut lines) = channel(1);
        let task = tokio::spawn(tab.tell(sender));
        for number in 1..=5 {
            let name = format!("w{number}");
            put(dir.path(), &name);
            let told = async {
                let is_told = |text: Option<String>| text.is_some_and(|text| text.contains(&format!("\"{name}\"")));
                while !is_told(changes.since(None, 0).1) {
                    changes.wait().await;
                }
            };
            tokio::time::timeout(SOON, told).await.expect("the board has the change");
        }
        let mut got = Vec::new();
        while got.last().is_none_or(|line: &String| !line.contains("\"w5\"")) {
            let line = tokio::time::timeout(SOON, lines.recv()).await.expect("in time").expect("a line");
            got.push(String::from_utf8(line.expect("sent").to_vec()).expect("text"));
        }
        assert!(got.len() <= 2, "{got:?}");
        let last: Value = serde_json::from_str(got[got.len() - 1].trim_end()).expect("one line");
        let names: Vec<&str> =
            last["workers"].as_array().into_iter().flatten().filter_map(|row| row["name"].as_str()).collect();
        assert_eq!(names, ["w5"], "what came in between is not told");
        drop(lines);
        tokio::time::timeout(SOON, task).await.expect("it ends with the tab").expect("finished");
    }
}
