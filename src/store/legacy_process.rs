//! Workers started by the original `swarm`: a row with a pid or a window, and no records.
//!
//! A process counts as that worker only if it started no later than the row says; a recycled pid started later.

use swarm_model::{ProcessId, Row};

use swarm_sys::procfs;
use swarm_tmux::{Server, Tmux};

/// Tolerance for clocks and rounding, in milliseconds. The original `swarm` notes the time after starting the process.
const SLACK_MS: i64 = 2_000;

/// Returns the living process of a row, or `None`.
///
/// # Errors
/// Fails if tmux cannot be queried.
pub fn alive(row: &Row, boot: &str) -> Result<Option<ProcessId>, String> {
    if row.tmux.is_some() {
        return window_process(row, boot);
    }
    let Some(pid) = row.usable_pid() else { return Ok(None) };
    let stat = procfs::read_stat(pid).map_err(|error| format!("cannot examine process {pid}: {error}"))?;
    let Some(stat) = stat.filter(procfs::Stat::is_alive) else { return Ok(None) };
    let is_it =
        started_ms(&row.started).is_some_and(|noted| procfs::process_start_ms(stat.start_ticks) <= noted + SLACK_MS);
    Ok(is_it.then(|| ProcessId { pid, start_ticks: stat.start_ticks, boot: boot.to_owned() }))
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
pub fn tree(leader: &ProcessId) -> Vec<ProcessId> {
    let own_session = procfs::stat(leader.pid).is_some_and(|stat| stat.session == leader.pid);
    let mut pids = vec![leader.pid];
    pids.extend(procfs::descendants(leader.pid));
    if own_session {
        let all = procfs::all().unwrap_or_default();
        pids.extend(all.into_iter().filter(|pid| procfs::stat(*pid).is_some_and(|stat| stat.session == leader.pid)));
    }
    pids.sort_unstable();
    pids.dedup();
    pids.into_iter().filter_map(|pid| procfs::identity(pid, &leader.boot)).collect()
}

/// Reports whether a process is alive. One that cannot be examined counts as alive.
fn lives(process: &ProcessId, boot: &str) -> bool {
    procfs::alive(process, boot).map_or(true, |stat| stat.is_some())
}

/// Returns the pids that are left of a tree, including the children forked since.
pub fn survivors(tree: &[ProcessId], leader: &ProcessId, boot: &str) -> Vec<i32> {
    let mut living: Vec<i32> = tree.iter().filter(|process| lives(process, boot)).map(|process| process.pid).collect();
    let below: Vec<i32> = living.iter().flat_map(|pid| procfs::descendants(*pid)).collect();
    living.extend(below.into_iter().filter(|pid| procfs::stat(*pid).is_some_and(|stat| stat.is_alive())));
    if lives(leader, boot) {
        living.push(leader.pid);
    }
    living.sort_unstable();
    living.dedup();
    living
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
        for pid in [0, 1, -1] {
            assert_eq!(alive(&row(pid, &future), &boot), Ok(None));
        }
    }
}
