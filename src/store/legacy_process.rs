//! Workers started by the original `swarm`: a row with a pid or a window, and no records.
//!
//! A process that started when the row says is that worker; a recycled pid started later. The row names a local time
//! without its zone, and neither machine nor container, and clocks are set: if the process started at another time, its
//! command line and working directory decide. One that started later, but not by whole quarters of an hour, is the worker
//! only if it has both.

use std::io;

use swarm_model::{ProcessId, Row};

use swarm_sys::procfs;
use swarm_tmux::{Server, Tmux};

/// Tolerance for clocks and rounding, in milliseconds. The original `swarm` notes the time after starting the process.
const SLACK_MS: i64 = 2_000;

/// Offsets of time zones are whole quarters of an hour, in milliseconds.
const QUARTER_MS: i64 = 15 * 60 * 1000;
/// Maximum difference between the zones of two programs, in milliseconds.
const ZONES_MS_MAX: i64 = 26 * 60 * 60 * 1000;
/// Maximum time that the original `swarm` takes between the start of a process and its row, in milliseconds.
const NOTED_MS_MAX: i64 = 60_000;

/// Process of a row of the original `swarm`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sighting {
    /// The worker does not run.
    Gone,
    Worker(ProcessId),
    /// This process has the worker's pid. It may be the worker, or another process.
    Doubtful(ProcessId),
}

/// Returns the living process of a row, or `None`. A doubtful one counts as alive.
///
/// # Errors
/// Fails if tmux cannot be queried.
pub fn alive(row: &Row, boot: &str) -> Result<Option<ProcessId>, String> {
    Ok(match sight(row, boot)? {
        Sighting::Gone => None,
        Sighting::Worker(process) | Sighting::Doubtful(process) => Some(process),
    })
}

/// Finds the process of a row.
///
/// # Errors
/// Fails if tmux cannot be queried, or the process cannot be examined.
pub fn sight(row: &Row, boot: &str) -> Result<Sighting, String> {
    if row.tmux.is_some() {
        return Ok(window_process(row, boot)?.map_or(Sighting::Gone, Sighting::Worker));
    }
    let Some(pid) = row.usable_pid() else { return Ok(Sighting::Gone) };
    let unknown = |error| format!("cannot examine process {pid}: {error}");
    let stat = procfs::read_stat(pid).map_err(unknown)?;
    let Some(stat) = stat.filter(procfs::Stat::is_alive) else { return Ok(Sighting::Gone) };
    let Some(noted_ms) = started_ms(&row.started) else { return Ok(Sighting::Gone) };
    let process = ProcessId { pid, start_ticks: stat.start_ticks, boot: boot.to_owned() };
    let later_ms = procfs::process_start_ms(stat.start_ticks) - noted_ms;
    if (-NOTED_MS_MAX..=SLACK_MS).contains(&later_ms) {
        return Ok(Sighting::Worker(process));
    }
    let is_recycled = later_ms > SLACK_MS && !is_difference_of_zones(later_ms);
    Ok(match (is_recycled, has_words(row, pid)) {
        // Many processes are in the directory of a repository.
        (true, false) => Sighting::Gone,
        (true, true) if is_in_directory(row, pid) => Sighting::Worker(process),
        (false, words) if words || (row.cwd != "/" && is_in_directory(row, pid)) => Sighting::Worker(process),
        _ => Sighting::Doubtful(process),
    })
}

/// Reports whether a process that started this much later than its row says may have started then in another time zone,
/// or in the other pass of an hour that the end of summer time repeats.
fn is_difference_of_zones(later_ms: i64) -> bool {
    let beyond_ms = (later_ms + NOTED_MS_MAX).rem_euclid(QUARTER_MS);
    later_ms + NOTED_MS_MAX >= QUARTER_MS && later_ms <= ZONES_MS_MAX && beyond_ms <= NOTED_MS_MAX + SLACK_MS
}

/// Reports whether a process has the command line of a row.
fn has_words(row: &Row, pid: i32) -> bool {
    let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words: Vec<&[u8]> = command.strip_suffix(b"\0").unwrap_or(&command).split(|byte| *byte == 0).collect();
    // A script has its interpreter before its own words.
    !row.cmd.is_empty()
        && words.len() >= row.cmd.len()
        && words.iter().rev().zip(row.cmd.iter().rev()).all(|(word, typed)| *word == typed.as_bytes())
}

/// Reports whether a process has the working directory of a row.
fn is_in_directory(row: &Row, pid: i32) -> bool {
    let cwd = std::fs::read_link(format!("/proc/{pid}/cwd")).ok();
    cwd.is_some() && std::path::Path::new(&row.cwd).canonicalize().ok() == cwd
}

fn window_process(row: &Row, boot: &str) -> Result<Option<ProcessId>, String> {
    let Some((tmux, session, window)) = window(row) else { return Ok(None) };
    let panes = tmux.find_window(session, window).map_err(|error| error.to_string())?;
    let living = panes.iter().find(|pane| !pane.dead);
    Ok(living.and_then(|pane| procfs::identity(pane.pane_pid, boot)))
}

/// Closes the row's window, which is found by its exact names.
///
/// # Errors
/// Fails if tmux refuses or cannot be queried.
pub fn kill_window(row: &Row) -> Result<(), String> {
    let Some((tmux, session, window)) = window(row) else { return Ok(()) };
    let panes = tmux.find_window(session, window).map_err(|error| error.to_string())?;
    let Some(pane) = panes.first() else { return Ok(()) };
    tmux.kill_window(&pane.window_id).map_err(|error| error.to_string())
}

fn window(row: &Row) -> Option<(Tmux, &str, &str)> {
    let place = row.tmux.as_ref()?;
    let server = place.socket.clone().map_or(Server::Default, Server::Name);
    let environment: Vec<(String, String)> = std::env::vars().collect();
    Some((Tmux::new(server, &environment), &place.session, &place.window))
}

/// Returns the living processes of the leader's tree: the leader, its session if it leads one, and all descendants.
///
/// # Errors
/// Fails if the processes cannot be listed.
pub fn tree(leader: &ProcessId) -> io::Result<Vec<ProcessId>> {
    let own_session = procfs::read_stat(leader.pid)?.is_some_and(|stat| stat.session == leader.pid);
    let mut pids = vec![leader.pid];
    pids.extend(procfs::descendants(leader.pid)?);
    if own_session {
        for pid in procfs::all()? {
            pids.extend(procfs::living(pid)?.filter(|stat| stat.session == leader.pid).map(|_| pid));
        }
    }
    pids.sort_unstable();
    pids.dedup();
    let mut tree = Vec::new();
    for pid in pids {
        let stat = procfs::living(pid)?;
        tree.extend(stat.map(|stat| ProcessId { pid, start_ticks: stat.start_ticks, boot: leader.boot.clone() }));
    }
    Ok(tree)
}

/// Reports whether a process is alive. One that cannot be examined counts as alive.
fn lives(process: &ProcessId, boot: &str) -> bool {
    procfs::alive(process, boot).map_or(true, |stat| stat.is_some())
}

/// Returns the pids that are left of a tree, including the children forked since.
///
/// # Errors
/// Fails if the processes cannot be listed.
pub fn survivors(tree: &[ProcessId], leader: &ProcessId, boot: &str) -> io::Result<Vec<i32>> {
    let mut living: Vec<i32> = tree.iter().filter(|process| lives(process, boot)).map(|process| process.pid).collect();
    let mut below = Vec::new();
    for pid in &living {
        for descendant in procfs::descendants(*pid)? {
            below.extend(procfs::living(descendant)?.map(|_| descendant));
        }
    }
    living.extend(below);
    if lives(leader, boot) {
        living.push(leader.pid);
    }
    living.sort_unstable();
    living.dedup();
    Ok(living)
}

/// Parses the row's naive local time into Unix milliseconds.
fn started_ms(started: &str) -> Option<i64> {
    let naive: jiff::civil::DateTime = started.parse().ok()?;
    let zoned = naive.to_zoned(jiff::tz::TimeZone::system()).ok()?;
    Some(zoned.timestamp().as_millisecond())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(pid: i64, started: &str) -> Row {
        Row::parse(&format!(
            r#"{{"name":"a","status":"running","cmd":["x"],"started":"{started}","cwd":"/","pid":{pid}}}"#
        ))
        .expect("parses")
    }

    #[test]
    fn a_process_that_started_after_the_row_is_another_one() {
        let me = i64::from(std::process::id());
        let boot = procfs::boot_id();
        let future = jiff::Zoned::now().datetime().to_string();
        assert!(alive(&row(me, &future), &boot).expect("no tmux").is_some());
        assert_eq!(alive(&row(me, "2001-01-01T00:00:00.000001"), &boot), Ok(None));
        let start_ms =
            procfs::process_start_ms(procfs::stat(i32::try_from(me).expect("fits")).expect("me").start_ticks);
        let here = jiff::tz::TimeZone::system();
        let noted = |hours_ms: i64| {
            let at = jiff::Timestamp::from_millisecond(start_ms - hours_ms).expect("a time").to_zoned(here.clone());
            at.datetime().to_string()
        };
        // Older than its row: a process of another container, or one that was noted ahead of this zone.
        let early = noted(-10 * NOTED_MS_MAX);
        assert!(matches!(sight(&row(me, &early), &boot), Ok(Sighting::Doubtful(_))));
        let own: Vec<String> = std::env::args().collect();
        assert!(matches!(sight(&Row { cmd: own, ..row(me, &early) }, &boot), Ok(Sighting::Worker(_))));
        // Noted nine hours behind this zone, by a program with other words in another place.
        let hour_ms = 4 * QUARTER_MS;
        assert!(matches!(sight(&row(me, &noted(9 * hour_ms)), &boot), Ok(Sighting::Doubtful(_))));
        assert_eq!(sight(&row(me, &noted(9 * hour_ms + QUARTER_MS / 2)), &boot), Ok(Sighting::Gone));
        let own: Vec<String> = std::env::args().collect();
        let same = Row { cmd: own, ..row(me, &noted(9 * hour_ms)) };
        assert!(matches!(sight(&same, &boot), Ok(Sighting::Worker(_))));
        let cwd = std::env::current_dir().expect("there is one").to_string_lossy().into_owned();
        let there = Row { cwd, ..row(me, &noted(hour_ms)) };
        assert!(matches!(sight(&there, &boot), Ok(Sighting::Worker(_))));
        // The clock was set back, or forward, since it was noted.
        let own: Vec<String> = std::env::args().collect();
        let stepped = Row { cmd: own, cwd: there.cwd, ..row(me, &noted(5 * NOTED_MS_MAX)) };
        assert!(matches!(sight(&stepped, &boot), Ok(Sighting::Worker(_))));
        let elsewhere = Row { cwd: "/nowhere".to_owned(), ..stepped.clone() };
        assert!(matches!(sight(&elsewhere, &boot), Ok(Sighting::Doubtful(_))));
        let other = Row { cmd: vec!["x".to_owned()], ..stepped };
        assert_eq!(sight(&other, &boot), Ok(Sighting::Gone), "others work in the same directory");
        for pid in [0, 1, -1] {
            assert_eq!(alive(&row(pid, &future), &boot), Ok(None));
        }
    }
}
