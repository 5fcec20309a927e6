//! `swarm logs`: the output of a worker, read from disk for windows and processes alike: while the worker runs, after
//! it ended, and after its window is gone.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use serde_json::json;
use swarm_model::{Refusal, RefusalKind, WorkerView};

use super::args::LogsArgs;
use super::error::{Failure, suggestion, unknown_worker};
use super::follow::{Beside, Beyond, Follow, Followed};
use super::json;
use super::life::{WatchedWorker, has_ended};
use super::logs_many;
use super::logs_talk::Talk;
use super::logs_window::Window;
use super::screen::Screen;
use super::tail::{From, Tail};
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

/// Prints the log of one worker. Standard error goes to `errors`.
pub fn show(
    args: &LogsArgs,
    name: &str,
    paths: &Paths,
    registry: Registry,
    errors: Errors,
    screen: &mut Screen,
) -> Result<(), Failure> {
    let view = registry.find(name).ok_or_else(|| unknown(name, &registry))?;
    let in_tmux = view.row.tmux.is_some();
    let kind = kind(args, name, in_tmux)?;
    let file = paths.log(name, kind);
    let mut tail = Tail::new(file.clone());
    let mut beside = (kind == "stdout").then(|| Beside::of(paths, name));
    let exists = tail.exists() || beside.as_ref().is_some_and(|beside| beside.tail.exists());
    if !exists && (!args.follow || has_ended(view)) {
        return Err(Failure::said(format!("no logs found for {name}"), None));
    }
    let from = from(args, in_tmux, screen.rows);
    let mut printer = Printer::of(args, name, kind);
    let life = followed(view, in_tmux);
    let mut follow = if args.follow { Some(Follow::new(paths, &file)?) } else { None };
    if in_tmux && !args.raw {
        let count = match from {
            From::LastLines(count) => count,
            From::Start | From::Byte(_) => u64::MAX,
        };
        let mut window = Window::start(&file, &mut tail, count, &mut |line| printer.line(line, screen))?;
        let Some(mut follow) = follow else { return Ok(()) };
        let (changes, dir) = (Changes::new()?, RefCell::new(view.dir.clone()));
        let beyond = Rc::new(Beyond { changes, due: Cell::default(), dir });
        follow.beyond = Some(Rc::clone(&beyond));
        let mut talk = Talk::start(paths, Rc::clone(&beyond))?;
        follow.run(&mut tail, Some(life), Some(registry), &mut |bytes: &[u8]| {
            window.talks = talk.is_known();
            window.feed(bytes, &mut |line| printer.line(line, screen))?;
            if !bytes.is_empty() {
                return Ok(());
            }
            talk.look(&mut |line| printer.line(line, screen))?;
            beyond.due.set(window.due());
            screen.flush()
        })?;
        return window.end(&mut |line| printer.line(line, screen));
    }
    let mut second = beside.as_ref().map(|_| Printer::of(args, name, "stderr").to(errors));
    tail.start(from, &mut |bytes: &[u8]| printer.give(bytes, screen))?;
    while tail.drain(&mut |bytes: &[u8]| printer.give(bytes, screen))?.more {}
    if let (Some(beside), Some(second)) = (&mut beside, &mut second) {
        screen.flush()?;
        beside.tail.start(from, &mut |bytes: &[u8]| printer.give_other(bytes, second, screen))?;
        while beside.tail.drain(&mut |bytes: &[u8]| printer.give_other(bytes, second, screen))?.more {}
    }
    if let Some(follow) = &mut follow {
        let told = beside.as_ref().map(|beside| Rc::clone(&beside.told));
        follow.beside = beside;
        follow.run(&mut tail, Some(life), Some(registry), &mut |bytes: &[u8]| {
            printer.give(bytes, screen)?;
            match (&told, &mut second) {
                (Some(told), Some(second)) if bytes.is_empty() => printer.give_other(&told.take(), second, screen),
                _ => Ok(()),
            }
        })?;
    }
    printer.end(screen)?;
    second.map_or(Ok(()), |second| second.end(screen))
}

fn followed(view: &WorkerView, through_tmux: bool) -> Followed {
    Followed { life: WatchedWorker::of(view), through_tmux }
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
