//! `swarm ralph run`: shows the lines of a loop in the original program's words until the loop ends or is paused. The
//! viewer may be killed at any time, because the loop belongs to the supervisor.

use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::json;
use swarm_model::loops::progress::{FAILURES_MAX, Status};
use swarm_model::{LoopOrder, Refusal, RefusalKind};

use crate::api::supervision::Supervision;
use crate::cli::error::Failure;
use crate::cli::json;
use crate::cli::render::escape;
use crate::cli::screen::Screen;
use crate::cli::tail::{From, Pending, Tail};
use crate::cli::watch::{Changes, Interrupt, Until, wait_any};
use swarm_store::loops::{self, LOG};
use swarm_sys::paths::Paths;

/// Maximum interval between two checks of the loop: another supervisor may have adopted it without writing anything.
const LOOK: Duration = Duration::from_secs(30);

/// View of a running loop.
pub struct View {
    name: String,
    dir: PathBuf,
    /// Offset in the log from which lines are shown, in bytes.
    from: u64,
    json: bool,
}

impl View {
    /// Returns a view of what is logged from now on.
    ///
    /// # Errors
    /// Fails if there is no loop of this name.
    pub fn from_here(name: &str, paths: &Paths, json: bool) -> Result<Self, Failure> {
        let dir = loops::dir(paths, name).ok_or_else(|| super::no_state(name))?;
        let from = std::fs::metadata(dir.join(LOG)).map_or(0, |meta| meta.len());
        Ok(Self { name: name.to_owned(), dir, from, json })
    }

    /// Returns a view of a loop that has just started, from its first iteration on.
    pub fn of_whole_loop(name: &str, paths: &Paths) -> Self {
        let record = loops::read(paths, name).ok().flatten().and_then(|known| known.record);
        let text = std::fs::read_to_string(paths.loops().join(name).join(LOG)).unwrap_or_default();
        let mark = "[START] iteration 1/";
        let begun = text.rfind(mark).and_then(|at| text[at..].find('\n').map(|end| at + end + 1)).unwrap_or(0);
        let from = record.map_or(0, |_| begun as u64);
        Self { name: name.to_owned(), dir: paths.loops().join(name), from, json: false }
    }

    pub fn follow(self, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
        let changes = Changes::new()?;
        let interrupt = Interrupt::catch_all(&[Signal::SIGINT, Signal::SIGTERM])?;
        changes.add_dir(&self.dir)?;
        let mut supervision = Supervision::ensure(paths)?;
        let mut tail = Tail::new(self.dir.join(LOG));
        let mut pending = Pending::default();
        tail.start(From::Byte(self.from), &mut |bytes: &[u8]| self.give(bytes, &mut pending, screen))?;
        loop {
            changes.add_file(&self.dir.join(LOG))?;
            // Read the status before the log, so that the last lines are shown as well.
            let status = self.status(paths)?;
            while tail.drain(&mut |bytes: &[u8]| self.give(bytes, &mut pending, screen))?.more {}
            if let Some(status) = status.filter(|status| *status != Status::Running) {
                return self.end(status, paths, screen);
            }
            let stdout = std::io::stdout();
            let sources = [
                (changes.as_fd(), Until::Readable),
                (interrupt.as_fd(), Until::Readable),
                (stdout.as_fd(), Until::HungUp),
            ];
            let supervisor = supervision.fd().map(|supervisor| (supervisor, Until::Readable));
            let sources: Vec<_> = sources.into_iter().chain(supervisor).collect();
            let ready = wait_any(&sources, Some(Instant::now() + LOOK))?;
            changes.take()?;
            if ready[2] {
                return Ok(0);
            }
            if ready[1] {
                self.interrupted(interrupt.take(), paths, screen)?;
            }
            let is_over = || self.status(paths).is_ok_and(|status| status.is_some_and(|word| word != Status::Running));
            if ready.get(3) == Some(&true) && !is_over() {
                // If the supervisor and its guard died together, only a command starts them again.
                supervision.renew()?;
            }
        }
    }

    fn status(&self, paths: &Paths) -> Result<Option<Status>, Failure> {
        match loops::read(paths, &self.name) {
            // `state.json` is written last, so the log already has the lines that belong to it.
            Ok(Some(known)) => Ok(Some(known.state.status)),
            Ok(None) => Err(super::no_state(&self.name)),
            Err(cause) => Err(Failure::new(RefusalKind::Registry, cause)),
        }
    }

    fn end(&self, status: Status, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
        let known = loops::read(paths, &self.name).ok().flatten();
        let is_blocked = known.is_some_and(|known| known.record.is_some_and(|record| record.blocked.is_some()));
        if self.json {
            let body = json!({"name": self.name, "status": status.word()});
            json::print(screen, "swarm.ralph.ended/1", &body)?;
        }
        if is_blocked && status == Status::Paused {
            screen.aside("hint: ", &super::unblock(&self.name));
            return Ok(1);
        }
        Ok(u8::from(status == Status::Failed))
    }

    /// Pauses the loop, as the original program does; the current agent continues.
    fn interrupted(&self, signal: Option<Signal>, paths: &Paths, screen: &mut Screen) -> Result<(), Failure> {
        let signal = signal.map_or("SIGINT", Signal::as_str);
        if !self.json {
            let name = escape(&self.name);
            screen.line(&format!("[ralph] {name}: received {signal}, pausing loop (current agent will complete)"))?;
            screen.flush()?;
        }
        let reason = signal.to_lowercase();
        match super::send(LoopOrder::Pause { name: self.name.clone(), reason }, paths, screen) {
            // The loop has just ended by itself; its last lines say so.
            Err(Failure::Refused { refusal, .. }) if refusal.kind == RefusalKind::NotFound => Ok(()),
            sent => sent.map(drop),
        }
    }

    fn give(&self, bytes: &[u8], pending: &mut Pending, screen: &mut Screen) -> Result<(), Failure> {
        for line in pending.whole(bytes) {
            let line = String::from_utf8_lossy(&line);
            let Some((event, text)) = parts(line.trim_end()) else { continue };
            if self.json {
                json::print(screen, "swarm.ralph.log/1", &object(line.trim_end()))?;
            } else if event == "ERROR" {
                let cause = text.strip_prefix("iteration 1: ").unwrap_or(text);
                screen.refusal(&Refusal::new(RefusalKind::Start, cause));
            } else {
                screen.line(&format!("[ralph] {}: {}", escape(&self.name), escape(&spoken(event, text))))?;
            }
        }
        screen.flush()
    }
}

/// Converts a line of the log to a JSON object.
pub fn object(line: &str) -> serde_json::Value {
    let at = line.split_once(' ').map(|(at, _)| at);
    let (event, text) = parts(line).map_or((None, line), |(event, text)| (Some(event), text));
    json!({"at": at, "event": event, "text": text})
}

/// Splits a line of the log into its event, such as `START`, and the text after it.
fn parts(line: &str) -> Option<(&str, &str)> {
    let (_, rest) = line.split_once(" [")?;
    rest.split_once("] ")
}

/// Returns the original program's foreground message for an event.
fn spoken(event: &str, text: &str) -> String {
    let field = |key: &str| text.split(&format!("{key}=")).nth(1).map(|rest| rest.split(' ').next().unwrap_or(rest));
    let number = || text.split(' ').nth(1).unwrap_or("?");
    let words = match event {
        "START" => Some(format!("starting {text}")),
        "END" => field("exit")
            .zip(text.split("duration=").nth(1))
            .map(|(exit, duration)| format!("iteration {} completed (exit: {exit}, duration: {duration})", number())),
        "FAIL" => field("exit").zip(field("attempt").zip(field("backoff"))).map(|(exit, (attempt, backoff))| {
            format!("iteration {} failed (exit: {exit}), retrying in {backoff} (attempt {attempt})", number())
        }),
        "TIMEOUT" => field("inactivity_timeout").map(|time| format!("inactivity timeout ({time}), restarting")),
        "DONE" => field("reason").map(|reason| match reason {
            "done_pattern" => "done pattern matched, stopping loop".to_owned(),
            "failed" => format!("{FAILURES_MAX} consecutive failures, stopping loop"),
            "max_iterations" => text.split(" reason=").next().unwrap_or(text).to_owned(),
            reason => format!("stopping loop: {reason}"),
        }),
        "PAUSE" => Some("paused, exiting loop".to_owned()),
        _ => None,
    };
    words.unwrap_or_else(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_shown_in_the_words_of_the_original() {
        for (line, said) in [
            ("[START] iteration 2/5", "starting iteration 2/5"),
            ("[END] iteration 1 exit=0 duration=5m 12s", "iteration 1 completed (exit: 0, duration: 5m 12s)"),
            (
                "[FAIL] iteration 3 exit=1 attempt=3/5 backoff=4s",
                "iteration 3 failed (exit: 1), retrying in 4s (attempt 3/5)",
            ),
            ("[TIMEOUT] iteration 1 inactivity_timeout=60s", "inactivity timeout (60s), restarting"),
            ("[DONE] loop complete after 5 iterations reason=max_iterations", "loop complete after 5 iterations"),
            ("[DONE] loop complete after 1 iterations reason=done_pattern", "done pattern matched, stopping loop"),
            ("[PAUSE] loop paused reason=sigterm", "paused, exiting loop"),
            ("[WARN] iteration 1: x", "iteration 1: x"),
            ("[END]", ""),
        ] {
            let line = format!("2026-01-01T00:00:00 {line}");
            let said_so = parts(&line).map(|(event, text)| spoken(event, text)).unwrap_or_default();
            assert_eq!(said_so, said, "{line}");
        }
    }
}
