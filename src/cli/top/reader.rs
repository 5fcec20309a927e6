//! The text of the detail: the screen of a window, or what a verb prints. One is read at a time; what is late is dropped,
//! never queued.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use swarm_actors::top::{Reading, Want};
use swarm_sys::paths::Paths;

use super::super::watch::{Changes, Until, wait_any};
use super::children::{Ended, Verb};
use super::draw::Text;
use crate::board::{screen, sgr};

/// Shortest time between two captures of a window, and between two reads of a log.
const CAPTURE_PAUSE: Duration = Duration::from_millis(100);
const READ_PAUSE: Duration = Duration::from_millis(300);
/// The time between two is at least this many times what the last one took.
const PAUSE_FACTOR: u32 = 3;
/// Longest time for which a verb may read.
const READ_MAX: Duration = Duration::from_secs(30);

pub struct Reader {
    paths: Paths,
    want: Option<Want>,
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
            is_due: false,
            not_before: Instant::now(),
            verb: None,
            camera: None,
            growth: None,
        }
    }

    /// Reads this from now on.
    pub fn show(&mut self, want: Option<Want>) {
        if let Some(verb) = self.verb.take() {
            verb.drop_it();
        }
        let is_other = self.want.as_ref().map(|want| &want.id) != want.as_ref().map(|want| &want.id);
        let from = |want: &Option<Want>| want.as_ref().map(|want| want.from.clone());
        if is_other || from(&self.want) != from(&want) {
            self.growth = None;
        }
        self.not_before = if is_other { Instant::now() } else { self.not_before.min(Instant::now() + READ_PAUSE) };
        self.is_due = want.is_some();
        self.want = want;
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
                    Ok(shown) => screen::lines(&shown),
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
        match want.from.clone() {
            Reading::Window(name) => {
                self.watch(Some(&name), None);
                if self.camera.is_none() {
                    self.camera = Camera::start(&self.paths).ok();
                }
                if let Some(camera) = &mut self.camera {
                    camera.ask(want, name);
                }
            }
            Reading::Log { words, worker, file } => {
                self.watch(worker.as_deref(), file.as_deref());
                self.verb = Verb::start(&words, None, None).ok();
            }
            Reading::Verb(words) => self.verb = Verb::start(&words, None, None).ok(),
        }
    }

    /// Watches the logs of a worker, and a file, before they are read.
    fn watch(&mut self, worker: Option<&str>, file: Option<&str>) {
        if self.growth.is_some() {
            return;
        }
        let Ok(growth) = Changes::new() else { return };
        let of_worker =
            worker.into_iter().flat_map(|name| ["tmux", "stdout", "stderr"].map(|kind| self.paths.log(name, kind)));
        for path in of_worker.chain(file.map(PathBuf::from)) {
            // Without a watch the text is as it was when it was asked for.
            let _ = growth.add_file(&path);
        }
        self.growth = Some(growth);
    }
}

type Shot = (Want, Result<String, String>, Duration);

/// A thread that captures windows, because tmux may not answer for a while.
struct Camera {
    asked: Sender<(Want, String)>,
    shots: Receiver<Shot>,
    ready: std::sync::Arc<OwnedFd>,
    is_busy: bool,
}

impl Camera {
    fn start(paths: &Paths) -> io::Result<Self> {
        let ready = std::sync::Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (asked, orders) = channel::<(Want, String)>();
        let (sender, shots) = channel();
        let (paths, bell) = (paths.clone(), ready.clone());
        std::thread::Builder::new().name("camera".to_owned()).spawn(move || {
            for (want, name) in orders {
                let began = Instant::now();
                let said = screen::capture(&paths, &name, None);
                if sender.send((want, said, began.elapsed())).is_err() {
                    return;
                }
                let _ = rustix::io::write(&*bell, &1u64.to_ne_bytes());
            }
        })?;
        Ok(Self { asked, shots, ready, is_busy: false })
    }

    /// Captures the window of a worker.
    fn ask(&mut self, want: Want, name: String) {
        self.is_busy = self.asked.send((want, name)).is_ok();
    }

    fn take(&mut self) -> Option<Shot> {
        let shot = self.shots.try_recv().ok()?;
        let _ = rustix::io::read(&*self.ready, &mut [0; 8]);
        self.is_busy = false;
        Some(shot)
    }
}
