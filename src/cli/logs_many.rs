//! `swarm logs --tag`: the output of several workers; each line begins with the name of its worker. Prints one worker
//! after the other, or with `--follow` all of them as they write.

use std::io::{self, Write};
use std::sync::mpsc::{SyncSender, sync_channel};

use swarm_model::{Refusal, RefusalKind, WorkerView};

use super::args::LogsArgs;
use super::error::Failure;
use super::logs::{Errors, show};
use super::render::escape;
use super::screen::Screen;
use super::watch::Interrupt;
use swarm_store::views::Registry;
use swarm_sys::paths::Paths;

/// Maximum number of followed workers. Each takes a thread and an inotify instance, of which a user has 128.
const FOLLOWED_MAX: usize = 50;
/// Capacity of the queue of lines for a slow terminal; a follower waits while it is full.
const LINES_MAX: usize = 1024;

pub fn run(args: &LogsArgs, paths: &Paths, registry: &Registry, screen: &mut Screen) -> Result<u8, Failure> {
    let workers = args.tagged.workers(registry)?;
    if !args.follow {
        return one_by_one(args, paths, &workers, screen);
    }
    if workers.len() > FOLLOWED_MAX {
        let cause = format!("cannot follow {} workers: the limit is {FOLLOWED_MAX}", workers.len());
        return Err(Refusal::new(RefusalKind::Invalid, cause).remedy("narrow the selection with another --tag").into());
    }
    side_by_side(args, paths, &workers, screen)
}

fn prefix_of(args: &LogsArgs, view: &WorkerView) -> String {
    if args.json { String::new() } else { format!("{} | ", escape(&view.row.name)) }
}

fn alone(view: &WorkerView) -> Registry {
    Registry { workers: vec![view.clone()], ..Registry::default() }
}

/// Prints one log after the other; a missing log does not stop the others.
fn one_by_one(args: &LogsArgs, paths: &Paths, views: &[&WorkerView], screen: &mut Screen) -> Result<u8, Failure> {
    let mut code = 0;
    for view in views {
        let shown = screen.under(&prefix_of(args, view), |screen| {
            show(args, &view.row.name, paths, alone(view), Errors::Among, screen)
        });
        code |= judged(shown, screen)?;
    }
    Ok(code)
}

/// Follows all logs: one thread per worker, while this one prints.
fn side_by_side(args: &LogsArgs, paths: &Paths, views: &[&WorkerView], screen: &mut Screen) -> Result<u8, Failure> {
    // Block SIGINT before any thread starts, so that every follower sees Ctrl-C through its descriptor.
    let _interrupt = Interrupt::catch()?;
    let (sender, told) = sync_channel(LINES_MAX);
    std::thread::scope(|scope| {
        for view in views {
            let sender = sender.clone();
            scope.spawn(move || {
                let mut out = Lines { prefix: prefix_of(args, view), open: Vec::new(), sender: sender.clone() };
                let mut errors = Vec::new();
                let mut shown = show(
                    args,
                    &view.row.name,
                    paths,
                    alone(view),
                    Errors::Among,
                    &mut Screen::new(&mut out, &mut errors),
                );
                if let Err(error) = out.end() {
                    shown = shown.and(Err(Failure::Output(error)));
                }
                // The receiver is gone only if printing failed.
                let _ = sender.send(Part::End(errors, shown));
            });
        }
        drop(sender);
        let mut code = 0;
        // The loop consumes the receiver, so that an early return ends the threads.
        for told in told {
            match told {
                Part::Line(line) => screen.bytes(&line).and_then(|()| screen.flush())?,
                Part::End(errors, shown) => {
                    screen.errors(&errors);
                    code |= judged(shown, screen)?;
                }
            }
        }
        Ok(code)
    })
}

/// Returns the exit code for one worker; only a failure to write ends the whole verb.
fn judged(shown: Result<(), Failure>, screen: &mut Screen) -> Result<u8, Failure> {
    match shown {
        Ok(()) => Ok(0),
        Err(failure @ Failure::Output(_)) => Err(failure),
        Err(failure) => {
            screen.warning(&failure.cause());
            Ok(1)
        }
    }
}

enum Part {
    Line(Vec<u8>),
    /// Text for standard error, and the result.
    End(Vec<u8>, Result<(), Failure>),
}

/// Collects whole lines, so that lines of several workers do not mix.
struct Lines {
    prefix: String,
    /// Incomplete last line.
    open: Vec<u8>,
    sender: SyncSender<Part>,
}

impl Lines {
    fn give(&mut self) -> io::Result<()> {
        let line = [self.prefix.as_bytes(), &self.open].concat();
        self.open.clear();
        self.sender.send(Part::Line(line)).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    fn end(mut self) -> io::Result<()> {
        if self.open.is_empty() {
            return Ok(());
        }
        self.open.push(b'\n');
        self.give()
    }
}

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.open.extend_from_slice(part);
            if part.ends_with(b"\n") {
                self.give()?;
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
