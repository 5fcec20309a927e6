//! The joblog of a job file: one line for each attempt.

use std::io;
use std::path::Path;

use swarm_model::run::plan::CommandWork;
use swarm_model::run::progress::Now;
use swarm_model::{Ended, ExitRecord};

use super::home::{self, Home};

/// Number of lines that are searched for a line that is already there, as if all were as long as that line.
const SEARCHED_LINES: u64 = 256;
/// Minimum number of bytes that are searched.
const SEARCHED_BYTES_MIN: u64 = 16 << 10;

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
    // `:` is this machine.
    let (number, host) = (now.at + 1, now.progress.host.as_deref().unwrap_or(":"));
    let line = format!("{number}\t{host}\t{started}\t{}\t0\t0\t{code}\t{signal}\t{command}\n", seconds(took_ms));
    append(&home.joblog(), &line, exit.is_some())
}

/// Appends a line, unless `is_once` and it is there already.
fn append(path: &Path, line: &str, is_once: bool) -> io::Result<()> {
    // Only the last lines need to be searched: earlier ends were journaled. All jobs that were at work may have ended since.
    let searched = SEARCHED_BYTES_MIN.max(SEARCHED_LINES * line.len() as u64);
    if is_once && home::end_of(path, searched).is_ok_and(|known| has_line(&known, line)) {
        return Ok(());
    }
    let head = "Seq\tHost\tStarttime\tJobRuntime\tSend\tReceive\tExitval\tSignal\tCommand\n";
    // Other jobs may end at the same moment.
    home::create_with(path, head)?;
    home::append_lines(path, line).map(drop)
}

fn has_line(known: &[u8], line: &str) -> bool {
    known.split_inclusive(|byte| *byte == b'\n').any(|known| known == line.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_found_behind_those_of_all_jobs_that_were_at_work() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("joblog");
        let line = |number: u32| format!("{number}\t:\t{}\n", "x".repeat(2000));
        (0..200).for_each(|number| append(&path, &line(number), true).expect("written"));
        append(&path, &line(0), true).expect("read");
        append(&path, &line(7), false).expect("written");
        let text = std::fs::read_to_string(&path).expect("text");
        let count = |number| text.lines().filter(|known| **known == *line(number).trim_end()).count();
        assert_eq!((count(0), count(7), text.lines().count()), (1, 2, 202));
    }
}
