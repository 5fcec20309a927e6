//! `swarm ralph status`, `list` and `logs`: read-only views of loops.

use std::fs;
use std::path::Path;
use std::time::UNIX_EPOCH;

use jiff::Timestamp;
use jiff::civil::DateTime;
use serde_json::{Map, Value, json};
use swarm_model::loops::progress::{ExitReason, Stage, Status};
use swarm_model::loops::words::duration;
use swarm_model::{RefusalKind, Wire, WorkerView};

use super::args::{ListArgs, LogsArgs, NameArgs};
use super::run::object;
use crate::cli::args::Format;
use crate::cli::error::Failure;
use crate::cli::follow::Follow;
use crate::cli::render::{self, escape};
use crate::cli::screen::Screen;
use crate::cli::tail::{From, Pending, Tail};
use crate::cli::{json, terminal};
use swarm_store::loops::wire::WireState;
use swarm_store::loops::{self, Known, LOG};
use swarm_store::views::{Registry, load, load_one};
use swarm_sys::paths::Paths;

/// Time without a change of the window after which a loop counts as possibly stuck, in seconds.
const STILL_S: u64 = 60;
/// Number of output lines shown for a possibly stuck loop.
const STILL_LINES: usize = 5;

pub fn status(args: &NameArgs, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    let known = super::known(&args.name, paths, screen)?;
    let worker = load_one(paths, &args.name)?;
    if args.json {
        json::print(screen, "swarm.ralph/1", &view(&known, worker_status(worker.as_ref())))?;
        return Ok(0);
    }
    let (state, still) = (&known.state, still_s(&known, paths));
    screen.line(&format!("Ralph Loop: {}", escape(&state.worker_name)))?;
    let is_at_work = state.status == Status::Running && worker.as_ref().is_some_and(|view| view.state.is_running());
    let blocked = known.record.as_ref().and_then(|record| record.blocked.as_deref());
    let stuck = still.filter(|still| is_at_work && *still > STILL_S);
    let aside = stuck.map(|still| format!(" (possibly stuck — no output change for {still}s)")).unwrap_or_default();
    screen.line(&format!("Status: {}{aside}", state.status.word()))?;
    if let Some(cause) = blocked {
        screen.line(&format!("Blocked: the agent {}", escape(cause)))?;
    }
    screen.line(&iterations(state))?;
    for (label, time) in [("Started", &state.started), ("Current iteration started", &state.last_iteration_started)] {
        time_line(label, time, screen)?;
    }
    if state.status == Status::Stopped {
        time_line("Last iteration ended", &state.last_iteration_ended, screen)?;
    }
    screen.line(&format!("Consecutive failures: {}", state.consecutive_failures))?;
    screen.line(&format!("Total failures: {}", state.total_failures))?;
    screen.line(&format!("Inactivity timeout: {}s", state.inactivity_timeout))?;
    let change = match (still, &state.last_screen_change) {
        (Some(still), _) => format!("{still}s ago"),
        (None, Some(_)) => "(unknown)".to_owned(),
        (None, None) => "(none)".to_owned(),
    };
    screen.line(&format!("Last screen change: {change}"))?;
    if let Some(pattern) = &state.done_pattern {
        screen.line(&format!("Done pattern: {}", escape(pattern)))?;
    }
    if let (Some(_), Some(worker)) = (stuck, &worker) {
        last_output(worker, screen)?;
    }
    exit_reason(state, worker.as_ref(), screen)?;
    if blocked.is_some() {
        screen.aside("hint: ", &super::unblock(&args.name));
    }
    Ok(0)
}

fn iterations(state: &WireState) -> String {
    let (count, at) = (state.iteration_durations.len() as u64, state.current_iteration);
    let line = format!("Iteration: {at}/{}", state.max_iterations);
    let sum: u64 = state.iteration_durations.iter().sum();
    let Some(average) = sum.checked_div(count) else { return line };
    let left = u64::from(state.max_iterations.saturating_sub(at));
    let rest = match left > 0 && state.status == Status::Running {
        true => format!(", ~{} remaining", duration(sum * left / count)),
        false => String::new(),
    };
    format!("{line} (avg {}/iter{rest})", duration(average))
}

/// Prints a label and a time such as `2026-01-31 12:00:05`; prints nothing if there is no time.
fn time_line(label: &str, text: &str, screen: &mut Screen) -> Result<(), Failure> {
    match text.parse::<DateTime>() {
        Ok(time) => screen.line(&format!("{label}: {}", time.strftime("%Y-%m-%d %H:%M:%S"))),
        Err(_) if text.is_empty() => Ok(()),
        Err(_) => screen.line(&format!("{label}: {}", escape(text))),
    }
}

/// Returns the time since the window last changed, in seconds: since the recorded change or since the last write to the
/// window's log, whichever is newer. `None` if no change is recorded.
fn still_s(known: &Known, paths: &Paths) -> Option<u64> {
    let recorded: Timestamp = known.state.last_screen_change.as_ref()?.parse().ok()?;
    let log = fs::metadata(paths.log(&known.state.worker_name, "tmux")).and_then(|meta| meta.modified());
    let written = log.ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    let written = written.and_then(|since| Timestamp::from_second(i64::try_from(since.as_secs()).ok()?).ok());
    let newest = written.filter(|_| known.state.status == Status::Running).map_or(recorded, |at| at.max(recorded));
    u64::try_from(Timestamp::now().duration_since(newest).as_secs()).ok().or(Some(0))
}

fn last_output(worker: &WorkerView, screen: &mut Screen) -> Result<(), Failure> {
    // The window may have closed just now.
    let Some(text) = terminal::shown(worker) else { return Ok(()) };
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let last = &lines[lines.len().saturating_sub(STILL_LINES)..];
    if !last.is_empty() {
        screen.line("Last output:")?;
    }
    last.iter().try_for_each(|line| screen.line(&format!("  {}", escape(line))))
}

fn exit_reason(state: &WireState, worker: Option<&WorkerView>, screen: &mut Screen) -> Result<(), Failure> {
    match state.exit_reason {
        Some(ExitReason::MonitorDisconnected) => {
            let status = worker.map_or("unknown", render::status_word);
            screen.line(&format!("Exit reason: monitor_disconnected (worker {status})"))?;
            screen.line(&format!("Worker status: {status}"))
        }
        Some(reason) => screen.line(&format!("Exit reason: {}", reason.word())),
        None if state.status == Status::Running => screen.line("Exit reason: (none - still running)"),
        None => Ok(()),
    }
}

/// Returns `running`, `stopped` or `removed`.
fn worker_status(worker: Option<&WorkerView>) -> &'static str {
    worker.map_or("removed", render::status_word)
}

fn view(known: &Known, worker_status: &str) -> Value {
    let (state, record) = (&known.state, known.record.as_ref());
    let next = record.and_then(|record| match record.stage {
        Stage::BackingOff { until_ms, .. } => Some(until_ms),
        _ => None,
    });
    json!({
        "name": state.worker_name,
        "status": state.status,
        "exit_reason": state.exit_reason,
        "worker_status": worker_status,
        "blocked": record.and_then(|record| record.blocked.as_deref()),
        "iteration": state.current_iteration,
        "max_iterations": state.max_iterations,
        "consecutive_failures": state.consecutive_failures,
        "total_failures": state.total_failures,
        "prompt_file": state.prompt_file,
        "done_pattern": state.done_pattern,
        "check_done_continuous": state.check_done_continuous,
        "inactivity_timeout_s": state.inactivity_timeout,
        "max_context": state.max_context,
        "context_nudge_sent": state.context_nudge_sent,
        "started_at_ms": record.map(|record| record.started_ms),
        "iteration_started_at_ms": record.map(|record| record.iteration_started_ms),
        "iteration_ended_at_ms": record.and_then(|record| record.iteration_ended_ms),
        "iteration_durations_s": state.iteration_durations,
        "next_start_ms": next,
        "looked_after": record.is_some_and(swarm_model::loops::progress::Loop::is_active),
    })
}

pub fn list(args: &ListArgs, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    let (loops, unreadable) = all(args, paths, screen)?;
    let registry = if loops.is_empty() { Registry::default() } else { load(paths)? };
    let status = |known: &Known| worker_status(registry.find(&known.state.worker_name));
    if args.json {
        let views: Vec<Value> = loops.iter().map(|known| view(known, status(known))).collect();
        json::print_list(screen, "swarm.ralph.loops/1", "loops", views)?;
        return Ok(u8::from(unreadable));
    }
    match args.format {
        Format::Json => {
            let entry = |known: &Known| -> Result<Value, Failure> {
                let plain = serde_json::to_value(&known.state);
                let mut entry = plain.map_err(|error| Failure::new(RefusalKind::Internal, error.to_string()))?;
                if let Some(members) = entry.as_object_mut() {
                    members.insert("worker_status".to_owned(), status(known).into());
                }
                Ok(entry)
            };
            let entries: Vec<Value> = loops.iter().map(entry).collect::<Result<_, _>>()?;
            let text = Wire::render(&entries, 0);
            screen.line(&text.map_err(|error| Failure::new(RefusalKind::Internal, error.to_string()))?)?;
        }
        Format::Names => {
            for known in &loops {
                screen.line(&escape(&known.state.worker_name))?;
            }
        }
        Format::Table if loops.is_empty() => {}
        Format::Table => {
            let header = ["NAME", "RALPH_STATUS", "WORKER_STATUS", "ITERATION", "FAILURES"];
            let mut rows = vec![header.map(str::to_owned).to_vec()];
            rows.extend(loops.iter().map(|known| row(known, status(known))));
            screen.bytes(render::table(&rows, |_, _, _| None).as_bytes())?;
        }
    }
    Ok(u8::from(unreadable))
}

fn row(known: &Known, worker_status: &str) -> Vec<String> {
    let state = &known.state;
    vec![
        escape(&state.worker_name).into_owned(),
        state.status.word().to_owned(),
        worker_status.to_owned(),
        format!("{}/{}", state.current_iteration, state.max_iterations),
        format!("{}/{}", state.consecutive_failures, state.total_failures),
    ]
}

/// Returns the loops with the wanted status, and whether any loop could not be read (which is warned of).
fn all(args: &ListArgs, paths: &Paths, screen: &mut Screen) -> Result<(Vec<Known>, bool), Failure> {
    let names = loops::names(paths)
        .map_err(|error| Failure::system(format!("cannot list '{}'", paths.loops().display()), &error))?;
    let (mut all, mut unreadable) = (Vec::new(), false);
    for name in names {
        match loops::read(paths, &name) {
            Ok(Some(known)) => {
                if let Some(warning) = &known.warning {
                    screen.warning(warning);
                }
                if args.status.takes(known.state.status) {
                    all.push(known);
                }
            }
            Ok(None) => {}
            Err(cause) => {
                unreadable = true;
                screen.warning(&cause);
            }
        }
    }
    Ok((all, unreadable))
}

pub fn logs(args: &LogsArgs, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    let dir = loops::dir(paths, &args.name).filter(|dir| dir.exists()).ok_or_else(|| super::no_state(&args.name))?;
    let log = dir.join(LOG);
    if !log.exists() {
        let cause = format!("no iteration log found for worker '{}'", args.name);
        return Err(Failure::new(RefusalKind::NotFound, cause));
    }
    let mut pending = Pending::default();
    let mut give = |bytes: &[u8]| -> Result<(), Failure> {
        for line in pending.whole(bytes) {
            let line = String::from_utf8_lossy(&line);
            match args.json {
                true => json::print(screen, "swarm.ralph.log/1", &as_map(line.trim_end()))?,
                false => screen.line(&escape(line.trim_end()))?,
            }
        }
        screen.flush()
    };
    show(&log, args, paths, &mut give)?;
    Ok(0)
}

fn show(
    log: &Path,
    args: &LogsArgs,
    paths: &Paths,
    give: &mut dyn FnMut(&[u8]) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut follow = args.live.then(|| Follow::new(paths, log)).transpose()?;
    let mut tail = Tail::new(log.to_owned());
    tail.start(args.lines.map_or(From::Start, From::LastLines), give)?;
    match &mut follow {
        Some(follow) => follow.run(&mut tail, None, None, give),
        None => {
            while tail.drain(give)?.more {}
            Ok(())
        }
    }
}

fn as_map(line: &str) -> Map<String, Value> {
    object(line).as_object().cloned().unwrap_or_default()
}
