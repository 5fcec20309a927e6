//! The joblog of a job file: one line for each attempt.

use std::io;

use swarm_model::run::plan::CommandWork;
use swarm_model::run::progress::Now;
use swarm_model::{Ended, ExitRecord};

use super::home::{self, Home};
use super::prepare::end_of;

/// Appends a line in the format of GNU parallel's `--joblog`; an unknown end has the exit value -1. Writes one line per
/// attempt, even if the outcome is determined again.
pub(super) fn write(home: &Home, now: &Now, work: &CommandWork, exit: Option<&ExitRecord>) -> io::Result<()> {
    let seconds = |ms: u64| format!("{}.{:03}", ms / 1000, ms % 1000);
    let (code, signal) = match exit.map(|exit| exit.ended) {
        Some(Ended::Code(code)) => (code, 0),
        Some(Ended::Signal(signal)) => (0, signal),
        None => (-1, 0),
    };
    let (ended_ms, took_ms) = exit.map_or((0, 0), |exit| (exit.ended_at_ms, exit.duration_ms));
    let started = seconds(ended_ms.saturating_sub(took_ms));
    let command = work.argv.join(" ").replace(['\t', '\n'], " ");
    let line = format!("{}\t:\t{started}\t{}\t0\t0\t{code}\t{signal}\t{command}\n", now.at + 1, seconds(took_ms));
    let path = home.joblog();
    let known = end_of(&path).unwrap_or_default();
    // Only the last lines need to be searched: earlier ends were journaled.
    if exit.is_some() && known.lines().any(|known| known == line.trim_end_matches('\n')) {
        return Ok(());
    }
    let head = "Seq\tHost\tStarttime\tJobRuntime\tSend\tReceive\tExitval\tSignal\tCommand\n";
    // Other jobs may end at the same moment.
    home::create_with(&path, head)?;
    home::append_lines(&path, &line).map(drop)
}
