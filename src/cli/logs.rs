//! `swarm logs`: the output of a worker, read from disk for windows and processes alike: while the worker runs, after
//! it ended, and after its window is gone.

use serde_json::json;
use swarm_model::{Refusal, RefusalKind, WorkerView};

use super::args::LogsArgs;
use super::error::{Failure, suggestion, unknown_worker};
use super::follow::{Follow, Followed};
use super::json;
use super::life::{WatchedWorker, has_ended};
use super::logs_many;
use super::screen::Screen;
use super::tail::{From, Tail};
use swarm_store::views::Registry;
use swarm_sys::paths::Paths;
use swarm_sys::strip_ansi::Plain;

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
        Some(name) => show(args, name, paths, registry, screen).map(|()| 0),
        None => logs_many::run(args, paths, &registry, screen),
    }
}

pub fn show(
    args: &LogsArgs,
    name: &str,
    paths: &Paths,
    registry: Registry,
    screen: &mut Screen,
) -> Result<(), Failure> {
    let view = registry.find(name).ok_or_else(|| unknown(name, &registry))?;
    let in_tmux = view.row.tmux.is_some();
    let kind = kind(args, name, in_tmux)?;
    let file = paths.log(name, kind);
    let mut tail = Tail::new(file.clone());
    if !tail.exists() && (!args.follow || has_ended(view)) {
        return Err(Failure::said(format!("no logs found for {name}"), None));
    }
    let from = from(args, in_tmux, screen.rows);
    let mut shape = Shape::of(args, name, in_tmux, kind);
    let life = followed(view, in_tmux);
    let follow = if args.follow { Some(Follow::new(paths, &file)?) } else { None };
    let mut sink = |bytes: &[u8]| shape.give(bytes, screen);
    tail.start(from, &mut sink)?;
    match follow {
        Some(mut follow) => follow.run(&mut tail, Some(life), Some(registry), &mut sink)?,
        None => while tail.drain(&mut sink)?.more {},
    }
    shape.end(screen)
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

/// Converts bytes of the log for output.
struct Shape {
    plain: Option<Plain>,
    /// For `--json`: the source and the incomplete last line.
    lines: Option<(Source, Vec<u8>)>,
    text: Vec<u8>,
}

/// Worker and stream that a line comes from.
struct Source {
    name: String,
    stream: &'static str,
}

impl Shape {
    fn of(args: &LogsArgs, name: &str, in_tmux: bool, stream: &'static str) -> Self {
        let plain = (in_tmux && !args.raw).then(Plain::new);
        let source = || Source { name: name.to_owned(), stream };
        Self { plain, lines: args.json.then(|| (source(), Vec::new())), text: Vec::new() }
    }

    /// Prints `bytes`; an empty slice means that no more are available for now, and flushes.
    fn give(&mut self, bytes: &[u8], screen: &mut Screen) -> Result<(), Failure> {
        if bytes.is_empty() {
            return screen.flush();
        }
        let mut text = std::mem::take(&mut self.text);
        text.clear();
        let shown = match &mut self.plain {
            Some(plain) => {
                plain.feed(bytes, &mut text);
                text.as_slice()
            }
            None => bytes,
        };
        let result = match &mut self.lines {
            Some((source, pending)) => json_lines(source, pending, shown, screen),
            None => screen.bytes(shown),
        };
        self.text = text;
        result
    }

    /// Prints an incomplete last line.
    fn end(self, screen: &mut Screen) -> Result<(), Failure> {
        match self.lines {
            Some((source, pending)) if !pending.is_empty() => json_line(&source, &pending, screen),
            _ => Ok(()),
        }
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
