//! `swarm logs`: the output of a worker, read from disk for windows and processes alike: while the worker runs, after
//! it ended, and after its window is gone.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use serde::{Deserialize, Serialize};
use serde_json::json;
use swarm_model::{Refusal, RefusalKind};

use super::args::LogsArgs;
use super::error::{Failure, suggestion, unknown_worker};
use super::follow::{Beside, Beyond, Follow, Followed, Places};
use super::json;
use super::life::{WatchedWorker, has_ended};
use super::logs_many;
use super::logs_talk::{self, Talk};
use super::logs_window::{self, End, Window};
use super::screen::Screen;
use super::tail::{From, Place, Sink, Tail};
use super::watch::Changes;
use swarm_store::views::Registry;
use swarm_sys::paths::Paths;

/// Default number of lines of `--history`, as in the original.
const HISTORY_LINES: u64 = 1000;
/// Lines shown of a window if standard output is not a terminal.
const SCREEN_LINES: u64 = 24;
/// Past lines that `--follow` shows first, as `tail -f` does.
const FOLLOW_LINES: u64 = 10;
/// Maximum line length of `--json` in bytes; longer lines are split.
const LINE_BYTES_MAX: usize = 1024 * 1024;

pub fn run(args: &LogsArgs, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    let registry = super::read_for(paths, args.name.as_deref(), screen)?;
    match &args.name {
        Some(name) => show(args, name, paths, registry, Errors::Apart, screen).map(|()| 0),
        None => logs_many::run(args, paths, &registry, screen),
    }
}

/// How far the log of a worker was followed.
#[derive(Debug, Serialize, Deserialize)]
struct Mark {
    /// Start of the life that is followed.
    started: String,
    in_tmux: bool,
    places: Places,
    /// Incomplete lines of `--json`.
    pending: [String; 2],
    open: bool,
    window: Option<logs_window::Mark>,
    talk: Option<logs_talk::Mark>,
}

/// Prints the log of one worker. Standard error goes to `errors`.
pub fn show(
    args: &LogsArgs,
    name: &str,
    paths: &Paths,
    registry: Registry,
    errors: Errors,
    screen: &mut Screen,
) -> Result<(), Failure> {
    let mark: Option<Mark> = screen.goes_on();
    let view = match registry.find(name) {
        Some(view) => view,
        // Cleaned while the connection was cut.
        None if mark.is_some() => return Ok(()),
        None => return Err(unknown(name, &registry)),
    };
    let in_tmux = mark.as_ref().map_or(view.row.tmux.is_some(), |mark| mark.in_tmux);
    let kind = kind(args, name, in_tmux)?;
    let file = paths.log(name, kind);
    let tail = Tail::new(file.clone());
    let beside = (kind == "stdout").then(|| Beside::of(paths, name));
    let exists = tail.exists() || beside.as_ref().is_some_and(|beside| beside.tail.exists());
    if !exists && (!args.follow || has_ended(view)) && mark.is_none() {
        return Err(Failure::said(format!("no logs found for {name}"), None));
    }
    let life = match &mark {
        Some(mark) => WatchedWorker::since(name, &mark.started),
        None => WatchedWorker::of(view),
    };
    let mut follow = if args.follow { Some(Follow::new(paths, &file)?) } else { None };
    if let Some(follow) = follow.as_mut().filter(|_| screen.is_marked()) {
        follow.places = Some(Rc::default());
    }
    let shown = Shown { args, name, from: from(args, in_tmux, screen.rows), mark, tail };
    if in_tmux && !args.raw {
        return shown.window(paths, view.dir.clone(), follow.map(|follow| (follow, life, registry)), screen);
    }
    shown.log(kind, beside, errors, follow.map(|follow| (follow, life, registry, in_tmux)), screen)
}

/// A log that is shown.
struct Shown<'a> {
    args: &'a LogsArgs,
    name: &'a str,
    from: From,
    /// How far it was followed before.
    mark: Option<Mark>,
    tail: Tail,
}

impl Shown<'_> {
    /// Prints the log of a window as the window showed it.
    fn window(
        mut self,
        paths: &Paths,
        dir: Option<String>,
        follow: Option<(Follow, WatchedWorker, Registry)>,
        screen: &mut Screen,
    ) -> Result<(), Failure> {
        let file = self.tail.path().to_owned();
        let printer = Printer::of(self.args, self.name, "tmux");
        let end = match self.from {
            From::LastLines(count) => {
                let count = usize::try_from(count).unwrap_or(usize::MAX);
                let is_screen = self.args.lines.is_none() && !self.args.history;
                if is_screen { End::Worded(count) } else { End::Lines(count) }
            }
            From::Start | From::Byte(_) => End::Lines(usize::MAX),
        };
        let (was, talked) =
            self.mark.map_or((None, None), |mark| (mark.window.map(|it| (mark.places.log, it)), mark.talk));
        let mut lines = |line: &str| printer.line(line, screen);
        let mut window = match was {
            Some((place, was)) => Window::go_on(&file, &mut self.tail, &place, was, &mut lines)?,
            None => Window::start(&file, &mut self.tail, end, &mut lines)?,
        };
        let Some((mut follow, life, registry)) = follow else { return Ok(()) };
        let beyond = Rc::new(Beyond { changes: Changes::new()?, due: Cell::default(), dir: RefCell::new(dir) });
        follow.beyond = Some(Rc::clone(&beyond));
        let mut talk = match talked {
            Some(talked) => Talk::go_on(paths, Rc::clone(&beyond), talked)?,
            None => Talk::start(paths, Rc::clone(&beyond))?,
        };
        let (places, started) = (follow.places.clone(), life.started().to_owned());
        let followed = Followed { life, through_tmux: true };
        follow.run(&mut self.tail, Some(followed), Some(registry), &mut |bytes: &[u8]| {
            window.talks = talk.is_known();
            window.feed(bytes, &mut |line| printer.line(line, screen))?;
            if !bytes.is_empty() {
                return Ok(());
            }
            talk.look(&mut |line| printer.line(line, screen))?;
            beyond.due.set(window.due());
            if let Some(places) = &places {
                let talk = talk.mark()?;
                screen.mark(|| Mark {
                    started: started.clone(),
                    in_tmux: true,
                    places: places.borrow().clone(),
                    pending: Default::default(),
                    open: false,
                    window: Some(window.mark()),
                    talk,
                })?;
            }
            screen.flush()
        })?;
        window.end(&mut |line| printer.line(line, screen))
    }

    /// Prints the log of a process, and its standard error `beside` it.
    fn log(
        self,
        kind: &'static str,
        mut beside: Option<Beside>,
        errors: Errors,
        follow: Option<(Follow, WatchedWorker, Registry, bool)>,
        screen: &mut Screen,
    ) -> Result<(), Failure> {
        let Self { args, name, from, mark, mut tail } = self;
        let mut printer = Printer::of(args, name, kind);
        let mut second = beside.as_ref().map(|_| Printer::of(args, name, "stderr").to(errors));
        let was = mark.map(|mark| {
            let [pending, pending_second] = mark.pending.map(String::into_bytes);
            (printer.pending, printer.open) = (pending, mark.open);
            second.iter_mut().for_each(|second| second.pending.clone_from(&pending_second));
            mark.places
        });
        begin(&mut tail, from, was.as_ref().map(|was| &was.log), &mut |bytes: &[u8]| printer.give(bytes, screen))?;
        if let (Some(beside), Some(second)) = (&mut beside, &mut second) {
            screen.flush()?;
            let was = was.as_ref().and_then(|was| was.beside.as_ref());
            begin(&mut beside.tail, from, was, &mut |bytes: &[u8]| printer.give_other(bytes, second, screen))?;
        }
        if let Some((mut follow, life, registry, through_tmux)) = follow {
            let told = beside.as_ref().map(|beside| Rc::clone(&beside.told));
            follow.beside = beside;
            let (places, started) = (follow.places.clone(), life.started().to_owned());
            let followed = Followed { life, through_tmux };
            follow.run(&mut tail, Some(followed), Some(registry), &mut |bytes: &[u8]| {
                printer.give(bytes, screen)?;
                if let (Some(told), Some(second), true) = (&told, &mut second, bytes.is_empty()) {
                    printer.give_other(&told.take(), second, screen)?;
                }
                let Some(places) = places.as_ref().filter(|_| bytes.is_empty()) else { return Ok(()) };
                let pending = second.as_ref().map(|second| second.pending.as_slice()).unwrap_or_default();
                // A line whose bytes are no text has no mark before its end.
                let texts = (String::from_utf8(printer.pending.clone()), String::from_utf8(pending.to_vec()));
                let (Ok(first), Ok(second)) = texts else { return Ok(()) };
                screen.mark(|| Mark {
                    started: started.clone(),
                    in_tmux: through_tmux,
                    places: places.borrow().clone(),
                    pending: [first, second],
                    open: printer.open,
                    window: None,
                    talk: None,
                })
            })?;
        }
        printer.end(screen)?;
        second.map_or(Ok(()), |second| second.end(screen))
    }
}

/// Passes on a log from where it begins, or goes on after an earlier reader, to its present end.
fn begin(tail: &mut Tail, from: From, was: Option<&Place>, sink: &mut Sink) -> Result<(), Failure> {
    match was {
        Some(was) => tail.go_on(was, sink)?,
        None => tail.start(from, sink)?,
    }
    while tail.drain(sink)?.more {}
    Ok(())
}

fn unknown(name: &str, registry: &Registry) -> Failure {
    if registry.unreadable.iter().any(|(row, _)| row == name) {
        return unknown_worker(name, registry);
    }
    Failure::said(format!("no worker named '{name}'"), suggestion(name, registry))
}

fn kind(args: &LogsArgs, name: &str, in_tmux: bool) -> Result<&'static str, Failure> {
    match (in_tmux, args.stderr) {
        (false, false) => Ok("stdout"),
        (false, true) => Ok("stderr"),
        (true, false) => Ok("tmux"),
        (true, true) => {
            let cause =
                format!("worker '{name}' is a tmux worker: its log contains both standard output and standard error");
            Err(Refusal::new(RefusalKind::Invalid, cause).remedy(format!("run 'swarm logs {name}'")).into())
        }
    }
}

/// Returns where to begin. The original shows the whole log of a process and the screen of a window. `--lines` for a
/// process is an addition; with `--history` it is ignored, as in the original.
fn from(args: &LogsArgs, in_tmux: bool, rows: Option<u16>) -> From {
    match (in_tmux, args.history, args.lines) {
        (true, true, lines) => From::LastLines(lines.unwrap_or(HISTORY_LINES)),
        (false, true, _) => From::Start,
        (_, false, Some(lines)) => From::LastLines(lines),
        (true, false, None) => From::LastLines(rows.map_or(SCREEN_LINES, |rows| u64::from(rows.max(2)) - 1)),
        (false, false, None) if args.follow => From::LastLines(FOLLOW_LINES),
        (false, false, None) => From::Start,
    }
}

/// Where `logs` writes the standard error of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Errors {
    /// To its own standard error.
    Apart,
    /// Between the lines of the standard output.
    Among,
}

/// Prints one stream of a worker.
struct Printer {
    source: Source,
    as_json: bool,
    errors: Errors,
    /// Incomplete last line of `--json`.
    pending: Vec<u8>,
    /// Set while the last printed line is incomplete.
    open: bool,
}

/// Worker and stream that a line comes from.
struct Source {
    name: String,
    stream: &'static str,
}

impl Printer {
    fn of(args: &LogsArgs, name: &str, stream: &'static str) -> Self {
        let source = Source { name: name.to_owned(), stream };
        Self { source, as_json: args.json, errors: Errors::Among, pending: Vec::new(), open: false }
    }

    fn to(self, errors: Errors) -> Self {
        Self { errors, ..self }
    }

    /// Prints bytes unchanged; an empty slice means that no more are available for now, and flushes.
    fn give(&mut self, bytes: &[u8], screen: &mut Screen) -> Result<(), Failure> {
        match self.errors {
            _ if bytes.is_empty() => screen.flush(),
            _ if self.as_json => json_lines(&self.source, &mut self.pending, bytes, screen),
            Errors::Among => {
                self.open = !bytes.ends_with(b"\n");
                screen.bytes(bytes)
            }
            Errors::Apart => {
                screen.errors(bytes);
                Ok(())
            }
        }
    }

    /// Prints a part of the other stream, `bytes`, by `second`. Lines of both do not mix.
    fn give_other(&mut self, bytes: &[u8], second: &mut Self, screen: &mut Screen) -> Result<(), Failure> {
        if !bytes.is_empty() && second.errors == Errors::Among && std::mem::take(&mut self.open) {
            screen.bytes(b"\n")?;
        }
        second.give(bytes, screen)?;
        self.open |= second.errors == Errors::Among && second.open;
        Ok(())
    }

    fn line(&self, text: &str, screen: &mut Screen) -> Result<(), Failure> {
        if self.as_json { json_line(&self.source, text.as_bytes(), screen) } else { screen.line(text) }
    }

    /// Prints an incomplete last line.
    fn end(self, screen: &mut Screen) -> Result<(), Failure> {
        if self.pending.is_empty() { Ok(()) } else { json_line(&self.source, &self.pending, screen) }
    }
}

fn json_lines(source: &Source, pending: &mut Vec<u8>, bytes: &[u8], screen: &mut Screen) -> Result<(), Failure> {
    for part in bytes.split_inclusive(|byte| *byte == b'\n') {
        pending.extend_from_slice(part);
        if pending.ends_with(b"\n") {
            pending.pop();
        } else if pending.len() < LINE_BYTES_MAX {
            continue;
        }
        json_line(source, pending, screen)?;
        pending.clear();
    }
    Ok(())
}

fn json_line(source: &Source, line: &[u8], screen: &mut Screen) -> Result<(), Failure> {
    let text = String::from_utf8_lossy(line);
    let body = [("name", json!(source.name)), ("stream", json!(source.stream)), ("text", json!(text))];
    json::print(screen, "swarm.log/1", &json::object(body))
}

#[cfg(test)]
#[path = "logs_tests.rs"]
mod tests;
