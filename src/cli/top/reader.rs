//! The text of the detail: the screen of a window, or what a verb prints. One is read at a time; what is late is dropped,
//! never queued.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use swarm_actors::top::{Kind, View, Want, What};
use swarm_store::views::load_one;
use swarm_sys::paths::Paths;

use super::super::watch::{Changes, Until, wait_any};
use super::children::{Ended, Verb};
use super::draw::Text;
use crate::board::sgr;

/// Shortest time between two captures of a window, and between two reads of a log.
const CAPTURE_PAUSE: Duration = Duration::from_millis(100);
const READ_PAUSE: Duration = Duration::from_millis(300);
/// The time between two is at least this many times what the last one took.
const PAUSE_FACTOR: u32 = 3;
/// Longest time for which a verb may read.
const READ_MAX: Duration = Duration::from_secs(30);
/// Lines of a log.
const LOG_LINES: &str = "1000";
/// Lines of a log in place of a screen.
const SCREEN_LINES: &str = "200";

pub struct Reader {
    paths: Paths,
    want: Option<Want>,
    has_window: bool,
    /// Whether `want` is to be read, or again.
    is_due: bool,
    not_before: Instant,
    verb: Option<Verb>,
    camera: Option<Camera>,
    /// Growth of the logs of what is shown.
    growth: Option<Changes>,
}

impl Reader {
    pub fn new(paths: &Paths) -> Self {
        Self {
            paths: paths.clone(),
            want: None,
            has_window: false,
            is_due: false,
            not_before: Instant::now(),
            verb: None,
            camera: None,
            growth: None,
        }
    }

    /// Reads this from now on.
    pub fn show(&mut self, want: Option<Want>, has_window: bool) {
        if let Some(verb) = self.verb.take() {
            verb.drop_it();
        }
        let is_other = self.want.as_ref().map(|want| &want.id) != want.as_ref().map(|want| &want.id);
        if is_other || !matches!(want, Some(Want { what: What::View(View::Screen | View::Log), .. })) {
            self.growth = None;
        }
        self.not_before = if is_other { Instant::now() } else { self.not_before.min(Instant::now() + READ_PAUSE) };
        self.is_due = want.is_some();
        (self.want, self.has_window) = (want, has_window);
    }

    /// Reads it again: it was not seen for a while.
    pub fn again(&mut self) {
        self.is_due = self.want.is_some();
    }

    pub fn fds(&self) -> Vec<BorrowedFd<'_>> {
        let mut fds = Vec::new();
        if let Some(verb) = &self.verb {
            fds.extend(verb.fds());
        }
        if let Some(camera) = self.camera.as_ref().filter(|camera| camera.is_busy) {
            fds.push(camera.ready.as_fd());
        }
        // A log that grows is told once.
        if let Some(growth) = self.growth.as_ref().filter(|_| !self.is_due) {
            fds.push(growth.as_fd());
        }
        fds
    }

    /// Returns when to look although nothing has come.
    pub fn due(&self) -> Option<Instant> {
        if let Some(verb) = &self.verb {
            return Some(verb.began + READ_MAX);
        }
        let is_busy = self.camera.as_ref().is_some_and(|camera| camera.is_busy);
        (self.is_due && !is_busy).then_some(self.not_before)
    }

    /// Takes what has come, and begins what is due. Returns a text that is complete.
    pub fn look(&mut self) -> Option<Text> {
        if let Some(growth) = self.growth.as_ref().filter(|_| !self.is_due) {
            let now = wait_any(&[(growth.as_fd(), Until::Readable)], Some(Instant::now()));
            self.is_due = now.is_ok_and(|ready| ready.first() == Some(&true)) && growth.take().is_ok();
        }
        let text = self.taken();
        let is_busy = self.camera.as_ref().is_some_and(|camera| camera.is_busy);
        if self.is_due && self.verb.is_none() && !is_busy && self.not_before <= Instant::now() {
            self.begin();
        }
        text
    }

    fn taken(&mut self) -> Option<Text> {
        if let Some(camera) = &mut self.camera
            && let Some((want, said, took)) = camera.take()
        {
            self.not_before = Instant::now() + (took * PAUSE_FACTOR).max(CAPTURE_PAUSE);
            if self.want.as_ref() == Some(&want) {
                let lines = match said {
                    Ok(shown) => screen_lines(&shown),
                    Err(cause) => sgr::lines(&format!("cannot show the window: {cause}")),
                };
                return Some(Text { want: Some(want), lines });
            }
        }
        let verb = self.verb.as_mut()?;
        let ended = match verb.look() {
            Some(ended) => ended,
            None if verb.began.elapsed() < READ_MAX => return None,
            None => {
                let output = format!("this took longer than {} s", READ_MAX.as_secs()).into_bytes();
                self.verb.take()?.drop_it();
                self.is_due = false;
                Ended { code: None, output, took: READ_MAX }
            }
        };
        self.verb = None;
        self.not_before = Instant::now() + (ended.took * PAUSE_FACTOR).max(READ_PAUSE);
        Some(Text { want: self.want.clone(), lines: sgr::lines(&String::from_utf8_lossy(&ended.output)) })
    }

    fn begin(&mut self) {
        let Some(want) = self.want.clone() else { return };
        self.is_due = false;
        if want.id.kind == Kind::Worker && matches!(want.what, What::View(View::Screen | View::Log)) {
            self.watch(&want.id.name);
        }
        let is_window = want.what == What::View(View::Screen) && self.has_window;
        if is_window {
            if self.camera.is_none() {
                self.camera = Camera::start(&self.paths).ok();
            }
            if let Some(camera) = &mut self.camera {
                camera.ask(want);
            }
            return;
        }
        self.verb = Verb::start(&words_of(&want), None).ok();
    }

    /// Watches the logs of a worker, before they are read.
    fn watch(&mut self, name: &str) {
        if self.growth.is_some() {
            return;
        }
        let Ok(growth) = Changes::new() else { return };
        for kind in ["tmux", "stdout", "stderr"] {
            // Without a watch the text is as it was when it was asked for.
            let _ = growth.add_file(&self.paths.log(name, kind));
        }
        self.growth = Some(growth);
    }
}

/// Returns the verb that prints a text.
fn words_of(want: &Want) -> Vec<&str> {
    let name = want.id.name.as_str();
    if want.id.kind == Kind::Request {
        return vec!["approvals", name];
    }
    let mut words = match &want.what {
        What::View(View::Screen) => vec!["logs", "-n", SCREEN_LINES],
        What::View(View::Log) => vec!["logs", "-n", LOG_LINES],
        What::View(View::Diff) => vec!["diff"],
        What::View(View::Session) => vec!["session", "show"],
        What::View(View::History) => vec!["history"],
        What::View(View::Explain) => vec!["explain"],
        What::Request(number) => return vec!["approvals", number],
    };
    if name.starts_with('-') {
        words.push("--");
    }
    words.push(name);
    words
}

/// Returns the lines of a window without the empty ones at its end.
fn screen_lines(shown: &str) -> Vec<sgr::Line> {
    let mut lines = sgr::lines(shown);
    let is_blank = |line: &sgr::Line| line.iter().all(|run| run.text.trim().is_empty() && run.style.back.is_none());
    while lines.last().is_some_and(is_blank) {
        lines.pop();
    }
    lines
}

type Shot = (Want, Result<String, String>, Duration);

/// A thread that captures windows, because tmux may not answer for a while.
struct Camera {
    asked: Sender<Want>,
    shots: Receiver<Shot>,
    ready: std::sync::Arc<OwnedFd>,
    is_busy: bool,
}

impl Camera {
    fn start(paths: &Paths) -> io::Result<Self> {
        let ready = std::sync::Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (asked, orders) = channel::<Want>();
        let (sender, shots) = channel();
        let (paths, bell) = (paths.clone(), ready.clone());
        std::thread::Builder::new().name("camera".to_owned()).spawn(move || {
            for want in orders {
                let began = Instant::now();
                let said = capture(&paths, &want.id.name);
                if sender.send((want, said, began.elapsed())).is_err() {
                    return;
                }
                let _ = rustix::io::write(&*bell, &1u64.to_ne_bytes());
            }
        })?;
        Ok(Self { asked, shots, ready, is_busy: false })
    }

    fn ask(&mut self, want: Want) {
        self.is_busy = self.asked.send(want).is_ok();
    }

    fn take(&mut self) -> Option<Shot> {
        let shot = self.shots.try_recv().ok()?;
        let _ = rustix::io::read(&*self.ready, &mut [0; 8]);
        self.is_busy = false;
        Some(shot)
    }
}

fn capture(paths: &Paths, name: &str) -> Result<String, String> {
    let view = load_one(paths, name).map_err(|refusal| refusal.cause)?.ok_or("the worker is gone")?;
    let environment: Vec<(String, String)> = std::env::vars_os()
        .filter_map(|(key, value)| Some((key.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    let target = swarm_store::windows::target(&view, &environment).map_err(|error| error.to_string())?;
    let target = target.ok_or("it has none")?;
    target.tmux.capture(&target.pane, 0, true).map_err(|error| error.to_string())
}
