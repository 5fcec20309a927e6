//! `events.jsonl`: the events of a run, and the reports of its agents. Lines are only appended, so that a reader can
//! continue where it stopped.

use std::io;
use std::path::Path;

use swarm_actors::run::machine::{Effect, Machine, ReportedEnd};
use swarm_model::run::Event;
use swarm_model::run::plan::Plan;
use swarm_model::run::words::{Line, Word};
use swarm_ports::Telling;

use super::home::{Home, append_lines, end_of, iso};
use super::records;
use crate::lines::Damage;
use swarm_sys::clock::wall_ms;

/// Appends events of a run.
///
/// # Errors
/// Returns any I/O error.
pub fn append(plan: &Plan, words: Vec<Telling>) -> io::Result<()> {
    report(&Home::new(&plan.home).events(), &lines(plan, words)?)
}

/// Formats events of a run as lines.
///
/// # Errors
/// Fails if one cannot be serialized.
pub fn lines(plan: &Plan, words: Vec<Telling>) -> io::Result<String> {
    let mut lines = String::new();
    for Telling { at_ms, number, job, word } in words {
        let workstream = job.map(|job| plan.jobs[job].id.clone());
        let line = Line { time: iso(at_ms), run: plan.id.clone(), number, workstream, word };
        lines.push_str(&serde_json::to_string(&line)?);
        lines.push('\n');
    }
    Ok(lines)
}

/// Formats a report of a job's agent as a line.
///
/// # Errors
/// Fails if it cannot be serialized.
pub fn line(run: &str, job: &str, at_ms: u64, word: Word) -> io::Result<String> {
    let line = Line { time: iso(at_ms), run: run.to_owned(), number: None, workstream: Some(job.to_owned()), word };
    Ok(format!("{}\n", serde_json::to_string(&line)?))
}

/// Appends formatted lines.
///
/// # Errors
/// Returns any I/O error.
pub fn report(events: &Path, lines: &str) -> io::Result<()> {
    append_lines(events, lines).map(drop)
}

/// Replays the events of the journal, and appends those that a crash kept from being reported.
pub fn append_missing(home: &Home, run: &mut Machine, events: &[(u64, Event)]) {
    let told = count(home, &run.plan.id);
    for (at_ms, event) in events {
        let missing = run.on(event, *at_ms).into_iter().filter_map(|effect| match effect {
            Effect::Tell(number, job, word) if number >= told => {
                Some(Telling { at_ms: *at_ms, number: Some(number), job, word })
            }
            _ => None,
        });
        let missing: Vec<Telling> = missing.collect();
        if !missing.is_empty()
            && let Err(error) = append(&run.plan, missing)
        {
            tracing::warn!(home = %run.plan.home, %error, "cannot record the events of a run");
        }
    }
}

/// Returns how the jobs of a run ended by its reports with these numbers and above. A job about which something else was
/// reported later has not ended.
pub fn ends(home: &Home, plan: &Plan, since: u64) -> Vec<(usize, ReportedEnd)> {
    let text = records::read(home.events()).unwrap_or_default();
    let mut ends = std::collections::BTreeMap::new();
    for line in text.split(|byte| *byte == b'\n') {
        let Ok(line) = serde_json::from_slice::<Line>(line) else { continue };
        let is_ours = line.run == plan.id && line.number.is_some_and(|number| number >= since);
        let Some(job) = line.workstream.filter(|_| is_ours).and_then(|id| plan.position(&id)) else { continue };
        match line.word {
            Word::Done { commit, .. } => ends.insert(job, ReportedEnd::Done(commit)),
            Word::Failed { error, .. } => ends.insert(job, ReportedEnd::Failed(error)),
            _ => ends.remove(&job),
        };
    }
    ends.into_iter().collect()
}

/// Reports each damaged line of the journal once.
///
/// # Errors
/// Returns any I/O error.
pub fn report_damage(home: &Home, run: &str, damage: &[Damage]) -> io::Result<()> {
    let known = records::read(home.events()).unwrap_or_default();
    // Most lines are about something else.
    let lines = known.split(|byte| *byte == b'\n').filter(|line| line.windows(11).any(|part| part == b"run.journal"));
    let known: Vec<Word> = lines.filter_map(|line| Some(serde_json::from_slice::<Line>(line).ok()?.word)).collect();
    let file = home.journal().to_string_lossy().into_owned();
    for Damage { line, cause } in damage {
        let word = Word::JournalDamaged { file: file.clone(), line: *line, error: cause.clone() };
        if !known.contains(&word) {
            let line = Line { time: iso(wall_ms()), run: run.to_owned(), number: None, workstream: None, word };
            append_lines(&home.events(), &format!("{}\n", serde_json::to_string(&line)?))?;
        }
    }
    Ok(())
}

/// Returns the number of recorded events of this run, without the reports of agents. Searches from the end, because
/// the file may be large.
pub fn count(home: &Home, run: &str) -> u64 {
    let of_run = |line: &[u8]| {
        let line: Line = serde_json::from_slice(line).ok()?;
        line.number.filter(|_| line.run == run)
    };
    let mut span = 64 << 10;
    loop {
        let text = end_of(&home.events(), span).unwrap_or_default();
        // The first line of the span may be cut, and does not parse then.
        if let Some(number) = text.rsplit(|byte| *byte == b'\n').find_map(of_run) {
            return number + 1;
        }
        if (text.len() as u64) < span {
            return 0;
        }
        span *= 8;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_counted_before_many_reports_of_agents() {
        let dir = tempfile::tempdir().expect("a directory");
        let home = Home::new(dir.path());
        assert_eq!(count(&home, "r"), 0, "there are no events");
        let plan = Plan { id: "r".into(), home: dir.path().to_str().expect("text").into(), ..Plan::default() };
        let word = |number| Telling { at_ms: 0, number: Some(number), job: None, word: Word::RunPaused };
        append(&plan, vec![word(0), word(1)]).expect("appended");
        assert_eq!((count(&home, "r"), count(&home, "other")), (2, 0));
        let activity = || line("r", "a", 0, Word::Activity { text: "x".repeat(1000) }).expect("a line");
        for _ in 0..200 {
            report(&home.events(), &activity()).expect("appended");
        }
        assert_eq!((count(&home, "r"), count(&home, "other")), (2, 0));
        append(&plan, vec![word(2)]).expect("appended");
        assert_eq!(count(&home, "r"), 3);
    }
}
