//! Text for people: tables, times, colours, and escaping of untrusted text.

use std::fmt::Write as _;

use crate::cli::jobs;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use swarm_model::{Doing, Ended, FineState, Reason, RowTmux, TurnEnd, WorkerView};
use swarm_ports::pid_list;

pub use crate::board::worker::{signal_name, state_word, status_word};
use crate::cli::columns;
pub use crate::cli::escape::escape;

/// Returns a count with its noun, for example `1 restart` or `3 restarts`.
pub fn counted(count: u64, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// Reports whether the environment permits colours on a terminal, see <https://no-color.org>.
pub fn colour_wanted() -> bool {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    set("NO_COLOR").is_none() && set("TERM").is_none_or(|term| term != "dumb")
}

/// The current time, and the time zone of the times in rows.
pub struct Clock {
    pub now: Timestamp,
    pub zone: TimeZone,
}

impl Clock {
    pub fn system() -> Self {
        Self { now: Timestamp::now(), zone: swarm_sys::clock::zone() }
    }

    /// Returns the seconds since `started`, which is local time without an offset in our rows and may have an offset in
    /// rows of other writers. Never negative, even if the clock was set back.
    pub fn since(&self, started: &str) -> Option<u64> {
        self.then(started).map(|then| whole_seconds(self.now.duration_since(then)))
    }

    /// Returns that time in milliseconds since the Unix epoch.
    pub fn at_ms(&self, started: &str) -> Option<u64> {
        u64::try_from(self.then(started)?.as_millisecond()).ok()
    }

    fn then(&self, started: &str) -> Option<Timestamp> {
        let local = || started.parse::<DateTime>().ok()?.to_zoned(self.zone.clone()).ok();
        // Our format first: almost all rows have it.
        let then = if started.len() == "2026-01-31T12:00:05.000000".len() { local() } else { None };
        match then {
            Some(then) => Some(then.timestamp()),
            None => started.parse::<Timestamp>().ok().or_else(|| Some(local()?.timestamp())),
        }
    }

    /// Returns the seconds since a time in milliseconds since the Unix epoch.
    pub fn since_ms(&self, at_ms: u64) -> Option<u64> {
        let then = Timestamp::from_millisecond(i64::try_from(at_ms).ok()?).ok()?;
        Some(whole_seconds(self.now.duration_since(then)))
    }

    /// Returns the seconds until a time in milliseconds since the Unix epoch; 0 if it has passed.
    pub fn until_ms(&self, at_ms: u64) -> Option<u64> {
        let then = Timestamp::from_millisecond(i64::try_from(at_ms).ok()?).ok()?;
        Some(whole_seconds(then.duration_since(self.now)))
    }

    /// Formats a time as `2026-01-31 12:00:05` in the local zone.
    pub fn local(&self, at_ms: u64) -> String {
        let at = i64::try_from(at_ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
        at.map_or_else(|| "-".into(), |at| at.to_zoned(self.zone.clone()).strftime("%Y-%m-%d %H:%M:%S").to_string())
    }

    /// Formats a time of today as `12:00`, and another one with its date.
    pub fn brief(&self, at_ms: u64) -> Option<String> {
        let at = Timestamp::from_millisecond(i64::try_from(at_ms).ok()?).ok()?;
        let (at, now) = (at.to_zoned(self.zone.clone()), self.now.to_zoned(self.zone.clone()));
        let form = if at.date() == now.date() { "%H:%M" } else { "%Y-%m-%d %H:%M" };
        Some(at.strftime(form).to_string())
    }

    /// Formats the time since `started` with [`words`]; `-` if it cannot be parsed.
    pub fn age(&self, started: &str) -> String {
        self.since(started).map_or_else(|| "-".into(), words)
    }
}

fn whole_seconds(duration: SignedDuration) -> u64 {
    u64::try_from(duration.as_secs()).unwrap_or(0)
}

/// Formats a duration in one unit, rounded down: `12s`, `5m`, `2h`, `3d`.
pub fn words(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3_600 => format!("{}m", seconds / 60),
        3_600..86_400 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// Formats bytes in the largest fitting unit (powers of 1024): `512`, `1.5K`, `20G`.
pub fn size(bytes: u64) -> String {
    const UNITS: [char; 5] = ['K', 'M', 'G', 'T', 'P'];
    let (mut tenths, mut unit) = (u128::from(bytes) * 10, None);
    for next in UNITS {
        if tenths < 10_240 {
            break;
        }
        (tenths, unit) = (tenths / 1024, Some(next));
    }
    match unit {
        None => bytes.to_string(),
        Some(unit) if tenths < 100 => format!("{}.{}{unit}", tenths / 10, tenths % 10),
        Some(unit) => format!("{}{unit}", tenths / 10),
    }
}

/// Formats rows as left-justified columns joined by two spaces. The last column is padded too, as in the original, so
/// lines end in blanks. `paint` returns the colour of a cell, by column, row and text.
pub fn table(rows: &[Vec<String>], paint: impl Fn(usize, usize, &str) -> Option<&'static str>) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let wide = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(wide).collect();
    let mut text = String::new();
    for (y, row) in rows.iter().enumerate() {
        for (x, (cell, &width)) in row.iter().zip(&widths).enumerate() {
            let gap = if x == 0 { "" } else { "  " };
            let blanks = " ".repeat(width.saturating_sub(cell.chars().count()));
            let written = match paint(x, y, cell) {
                Some(colour) => write!(text, "{gap}{colour}{cell}{blanks}\x1b[0m"),
                None => write!(text, "{gap}{cell}{blanks}"),
            };
            written.expect("writing to a string cannot fail");
        }
        text.push('\n');
    }
    text
}

/// Returns the table of the original, whose status is given by `status`; empty without workers. It is shortened to `columns`.
pub fn plain_table(
    views: &[&WorkerView],
    clock: &Clock,
    status: impl Fn(&WorkerView) -> String,
    colour: bool,
    columns: Option<u16>,
) -> String {
    if views.is_empty() {
        return String::new();
    }
    let mut rows = vec![row(["NAME", "STATUS", "PID/WINDOW", "STARTED", "WORKTREE", "TAG"])];
    for view in views {
        rows.push(vec![
            escape(&view.row.name).into_owned(),
            status(view),
            place(view),
            clock.age(&view.row.started),
            worktree(view),
            tags(view),
        ]);
    }
    columns::to_width(&mut rows, columns);
    painted(&rows, views, colour)
}

/// Returns the table of `ls -l`; empty without workers.
pub fn long_table(views: &[&WorkerView], clock: &Clock, colour: bool, columns: Option<u16>) -> String {
    if views.is_empty() {
        return String::new();
    }
    let header = ["NAME", "STATE", "PID", "WINDOW", "EXIT", "RESTARTS", "UPTIME", "WORKTREE", "TAG"];
    let mut rows = vec![row(header)];
    for view in views {
        rows.push(vec![
            escape(&view.row.name).into_owned(),
            long_state(view),
            view.pid.map_or_else(|| "-".into(), |pid| pid.to_string()),
            view.row.tmux.as_ref().map_or_else(|| "-".into(), window),
            exit_word(view),
            view.restarts.to_string(),
            uptime(view, clock),
            worktree(view),
            tags(view),
        ]);
    }
    columns::to_width(&mut rows, columns);
    painted(&rows, views, colour)
}

/// Formats rows whose second column is the state of the worker, with colours if they are wanted.
fn painted(rows: &[Vec<String>], views: &[&WorkerView], colour: bool) -> String {
    table(rows, |x, y, _| match (x, y) {
        (_, 0) if colour => Some("\x1b[1m"),
        (1, _) if colour => state_colour(views[y - 1]),
        _ => None,
    })
}

fn row<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(str::to_owned).to_vec()
}

/// Returns the state of a worker; for a running agent what it does, waits for or is stuck at, and for a failed worker why.
pub fn long_state(view: &WorkerView) -> String {
    let word = state_word(view.shown_state());
    if let Some(why) = view.given_up.as_ref().filter(|_| view.has_failed()) {
        return format!("failed: {}", escape(why));
    }
    if view.has_failed() {
        // A code or signal is in a column of its own.
        return match failure(view) {
            Some(Cause::Ended(_)) => "failed".into(),
            Some(Cause::Other(cause)) => format!("failed: {cause}"),
            None => word.into(),
        };
    }
    if let Some(host) = &view.elsewhere {
        return format!("elsewhere: {}", escape(host));
    }
    if let Some(said) = view.job.as_ref().and_then(|job| jobs::said(view, job)) {
        return format!("{word}: {said}");
    }
    if !view.survivors.is_empty() {
        return format!("{word}: {} cannot be ended", pid_list(&view.survivors));
    }
    // The agent is started again only after the answer.
    if let Some(ask) = view.ask.as_ref().filter(|_| !view.state.is_running()) {
        return format!("waiting: {}", escape(&ask.text));
    }
    let what = view.activity.as_ref().and_then(|activity| activity.what.as_deref());
    match (view.doing(), &view.stuck) {
        _ if view.state != FineState::Running => word.into(),
        (Some(Doing::Waiting), _) => format!("waiting: {}", escape(what.unwrap_or("a person"))),
        (_, Some(cause)) => format!("stuck: {}", escape(cause)),
        (Some(Doing::Idle), None) if view.broken_turn().is_some() => {
            what.map_or("idle".into(), |what| escape(&broken(view, what)).into_owned())
        }
        (Some(Doing::Idle), None) => "idle".into(),
        (Some(Doing::Working), None) => what.map_or("working".into(), |what| format!("working: {}", escape(what))),
        (None, None) => word.into(),
    }
}

/// Returns the state of a worker in a few words; for one that failed with how it ended.
pub fn short_state(view: &WorkerView) -> String {
    if view.has_failed() {
        return match failure(view) {
            _ if view.given_up.is_some() => "failed (in its run)".into(),
            Some(Cause::Ended(Ended::Code(code))) => format!("failed (exit code {code})"),
            Some(Cause::Ended(ended)) => format!("failed ({})", ended_word(ended)),
            Some(Cause::Other(cause)) => format!("failed ({cause})"),
            None => state_word(view.state).into(),
        };
    }
    match (view.doing(), &view.stuck) {
        _ if view.ask.is_some() => Doing::Waiting.word().into(),
        _ if view.state != FineState::Running => state_word(view.shown_state()).into(),
        (Some(Doing::Waiting), _) => Doing::Waiting.word().into(),
        (_, Some(_)) => "stuck".into(),
        (Some(doing), None) => view.broken_turn().map_or(doing.word(), broken_word).into(),
        (None, None) => state_word(view.state).into(),
    }
}

/// Returns the state of a worker whose agent is idle because its last turn ended so.
pub fn broken_word(end: TurnEnd) -> &'static str {
    match end {
        TurnEnd::Failed => "turn failed",
        TurnEnd::Interrupted => "turn interrupted",
    }
}

/// Returns the state with the cause in `what`, which repeats that the turn broke off.
fn broken(view: &WorkerView, what: &str) -> String {
    let word = view.broken_turn().map_or("idle", broken_word);
    what.split_once(": ").map_or_else(|| word.to_owned(), |(_, cause)| format!("{word}: {cause}"))
}

/// How a failed worker ended.
enum Cause {
    Ended(Ended),
    Other(&'static str),
}

/// Returns how a failed worker ended, `None` if its state says all that is known.
fn failure(view: &WorkerView) -> Option<Cause> {
    let exit = match (view.state, &view.exit) {
        (FineState::Exited, Some(exit)) => exit,
        (FineState::Exited, None) => return Some(Cause::Other("end unknown")),
        (FineState::Failed, _) => return Some(Cause::Other("restarted too often")),
        _ => return None,
    };
    Some(match exit.reason {
        Reason::Timeout => Cause::Other("time limit"),
        Reason::Output => Cause::Other("output limit"),
        Reason::Closed => Cause::Other("window closed"),
        Reason::Abandoned => Cause::Other("state directory removed"),
        Reason::Exited | Reason::Stopped | Reason::OutOfMemory => Cause::Ended(exit.ended),
    })
}

fn state_colour(view: &WorkerView) -> Option<&'static str> {
    const GREEN: &str = "\x1b[32m";
    const YELLOW: &str = "\x1b[33m";
    const RED: &str = "\x1b[31m";
    match view.shown_state() {
        _ if view.has_failed() => Some(RED),
        _ if view.ask.is_some() || view.doing() == Some(Doing::Waiting) => Some(YELLOW),
        _ if view.stuck.is_some() || view.broken_turn() == Some(TurnEnd::Failed) => Some(RED),
        FineState::Running if view.broken_turn().is_some() => Some(YELLOW),
        FineState::Running => Some(GREEN),
        FineState::Starting
        | FineState::Queued
        | FineState::Stopping
        | FineState::Suspended
        | FineState::Unsupervised
        | FineState::Backoff
        | FineState::Elsewhere => Some(YELLOW),
        _ => None,
    }
}

/// Returns `0`, `7` or `SIGKILL`; `unknown` without an exit record; `-` while the worker runs, or its agent has ended to
/// ask a person.
pub fn exit_word(view: &WorkerView) -> String {
    match &view.exit {
        Some(exit) if !view.is_parked() => ended_word(exit.ended),
        None if !view.state.is_running() => "unknown".into(),
        _ => "-".into(),
    }
}

pub fn ended_word(ended: Ended) -> String {
    match ended {
        Ended::Code(code) => code.to_string(),
        Ended::Signal(signal) => signal_name(signal),
    }
}

/// Returns how long the worker has run, or how long ago it ended.
fn uptime(view: &WorkerView, clock: &Clock) -> String {
    if view.state.is_running() {
        return clock.age(&view.row.started);
    }
    let ended = view.exit.as_ref().and_then(|exit| clock.since_ms(exit.ended_at_ms));
    ended.map_or_else(|| "-".into(), |seconds| format!("{} ago", words(seconds)))
}

/// Returns `session:window`, the pid of the row, or `-`.
pub fn place(view: &WorkerView) -> String {
    if let Some(job) = &view.job {
        return jobs::place(job);
    }
    match (&view.row.tmux, view.row.pid) {
        (Some(tmux), _) => window(tmux),
        (None, Some(pid)) => pid.to_string(),
        (None, None) => "-".into(),
    }
}

pub fn window(tmux: &RowTmux) -> String {
    escape(&format!("{}:{}", tmux.session, tmux.window)).into_owned()
}

fn worktree(view: &WorkerView) -> String {
    view.row.worktree.as_ref().map_or_else(|| "-".into(), |tree| escape(&tree.path).into_owned())
}

fn tags(view: &WorkerView) -> String {
    if view.row.tags.is_empty() { "-".into() } else { escape(&view.row.tags.join(",")).into_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::sample;

    #[test]
    fn times_are_rounded_down_to_one_unit() {
        let cases = [(0, "0s"), (59, "59s"), (60, "1m"), (3_599, "59m"), (3_600, "1h"), (86_399, "23h")];
        for (seconds, text) in cases.into_iter().chain([(86_400, "1d"), (8_640_000, "100d")]) {
            assert_eq!(words(seconds), text);
        }
    }

    #[test]
    fn ages_are_computed_for_original_and_unusual_times() {
        let clock = sample::clock("2026-01-02T00:05:00Z");
        assert_eq!(clock.age("2026-01-02T00:00:00.000001"), "4m");
        assert_eq!(clock.age("2026-01-02T00:04:48"), "12s");
        assert_eq!(clock.age("2026-01-02T02:00:00+02:00"), "5m");
        assert_eq!(clock.age("2027-01-01T00:00:00"), "0s");
        assert_eq!(clock.age("yesterday"), "-");
    }

    #[test]
    fn the_plain_table_equals_the_original_including_trailing_blanks() {
        let clock = sample::clock("2026-01-02T00:05:00Z");
        let status = |view: &WorkerView| status_word(view).to_owned();
        let (one, two) = (sample::process("tests"), sample::window("fix"));
        let expected = "\
NAME   STATUS   PID/WINDOW          STARTED  WORKTREE  TAG 
tests  running  4242                5m       -         ci,a
fix    running  swarm-00c0ffee:fix  5m       /r/w/fix  -   
";
        assert_eq!(plain_table(&[&one, &two], &clock, status, false, None), expected);
        assert_eq!(plain_table(&[], &clock, status, false, None), "");
    }

    #[test]
    fn the_long_table_shows_how_workers_ended() {
        let clock = sample::clock("2026-01-02T00:05:00Z");
        let views = [
            sample::process("up"),
            sample::ended("seven", Ended::Code(7)),
            sample::ended("shot", Ended::Signal(9)),
            WorkerView { exit: None, state: FineState::Lost, ..sample::ended("gone", Ended::Code(0)) },
        ];
        let text = long_table(&views.iter().collect::<Vec<_>>(), &clock, false, None);
        let expected = "\
NAME   STATE    PID   WINDOW  EXIT     RESTARTS  UPTIME  WORKTREE  TAG 
up     running  4242  -       -        0         5m      -         ci,a
seven  failed   -     -       7        0         1m ago  -         ci,a
shot   failed   -     -       SIGKILL  0         1m ago  -         ci,a
gone   lost     -     -       unknown  0         -       -         ci,a
";
        assert_eq!(text, expected);
    }

    #[test]
    fn a_cell_may_be_longer_than_any_width_of_a_format() {
        let rows = ["x".repeat(70_000), "é".to_owned()].map(|cell| vec![cell]);
        assert!(table(&rows, |_, _, _| None).lines().all(|line| line.chars().count() == 70_000));
    }

    #[test]
    fn every_failure_is_shown_with_its_cause_and_other_ends_are_not_failures() {
        let end = |state, reason, ended| {
            let mut view = WorkerView { state, ..sample::ended("x", ended) };
            view.exit.as_mut().expect("an exit").reason = reason;
            view
        };
        let killed = Ended::Signal(9);
        for (view, short, long) in [
            (end(FineState::Exited, Reason::Exited, Ended::Code(7)), "failed (exit code 7)", "failed"),
            (end(FineState::Exited, Reason::Exited, killed), "failed (SIGKILL)", "failed"),
            (end(FineState::Exited, Reason::Timeout, Ended::Code(0)), "failed (time limit)", "failed: time limit"),
            (end(FineState::Exited, Reason::Output, killed), "failed (output limit)", "failed: output limit"),
            (
                end(FineState::Exited, Reason::Closed, Ended::Signal(1)),
                "failed (window closed)",
                "failed: window closed",
            ),
            (end(FineState::Exited, Reason::Closed, Ended::Code(0)), "failed (window closed)", "failed: window closed"),
            (
                end(FineState::Failed, Reason::Exited, killed),
                "failed (restarted too often)",
                "failed: restarted too often",
            ),
            (end(FineState::OutOfMemory, Reason::OutOfMemory, killed), "out-of-memory", "out-of-memory"),
            (WorkerView { exit: None, ..sample::ended("x", killed) }, "failed (end unknown)", "failed: end unknown"),
            (
                WorkerView { given_up: Some("rejected: red".into()), ..sample::ended("x", Ended::Code(0)) },
                "failed (in its run)",
                "failed: rejected: red",
            ),
        ] {
            assert_eq!(
                (view.has_failed(), short_state(&view).as_str(), long_state(&view).as_str()),
                (true, short, long)
            );
            assert_eq!(state_colour(&view), Some("\x1b[31m"), "{short}");
        }
        for (view, word) in [
            (sample::process("x"), "running"),
            (sample::ended("x", Ended::Code(0)), "exited"),
            (end(FineState::Stopped, Reason::Stopped, killed), "stopped"),
            (end(FineState::Backoff, Reason::Exited, Ended::Code(1)), "backoff"),
        ] {
            assert_eq!((view.has_failed(), short_state(&view), long_state(&view)), (false, word.into(), word.into()));
        }
    }

    #[test]
    fn colours_do_not_shift_columns() {
        let clock = sample::clock("2026-01-02T00:05:00Z");
        let view = sample::process("up");
        let painted = long_table(&[&view], &clock, true, None);
        assert!(painted.contains("\x1b[32mrunning\x1b[0m"));
        let mut bare = painted;
        for code in ["\x1b[32m", "\x1b[1m", "\x1b[0m"] {
            bare = bare.replace(code, "");
        }
        assert_eq!(bare, long_table(&[&view], &clock, false, None));
    }
}
