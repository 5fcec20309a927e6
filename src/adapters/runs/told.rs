//! `events.jsonl`: what a run told, and what its agents report while they work. Lines
//! are only ever added, so that whoever reads on can say how many it has seen.

use std::fs;
use std::io;
use std::path::Path;

use swarm_actors::ports::Telling;
use swarm_actors::run::machine::{Effect, Event};
use swarm_actors::run::plan::Plan;
use swarm_actors::run::progress::Run;
use swarm_actors::run::words::{Line, Word};

use super::home::{Home, append_lines, iso};

/// Adds what a run tells.
///
/// # Errors
/// What the system says.
pub fn tell(plan: &Plan, words: Vec<Telling>) -> io::Result<()> {
    let mut lines = String::new();
    for Telling { at_ms, number, job, word } in words {
        let workstream = job.map(|job| plan.jobs[job].id.clone());
        let line = Line { time: iso(at_ms), run: plan.id.clone(), number: Some(number), workstream, word };
        lines.push_str(&serde_json::to_string(&line)?);
        lines.push('\n');
    }
    append_lines(&Home::new(&plan.home).events(), &lines).map(drop)
}

/// Adds what the agent of a job reports.
///
/// # Errors
/// What the system says.
pub fn report(events: &Path, run: &str, job: &str, at_ms: u64, word: Word) -> io::Result<()> {
    let line = Line { time: iso(at_ms), run: run.to_owned(), number: None, workstream: Some(job.to_owned()), word };
    append_lines(events, &format!("{}\n", serde_json::to_string(&line)?)).map(drop)
}

/// Replays what has happened, and adds what was cut off before it was told.
pub fn catch_up(home: &Home, run: &mut Run, events: &[(u64, Event)]) {
    let told = count(home, &run.plan.id);
    for (at_ms, event) in events {
        let missing = run.on(event, *at_ms).into_iter().filter_map(|effect| match effect {
            Effect::Tell(number, job, word) if number >= told => Some(Telling { at_ms: *at_ms, number, job, word }),
            _ => None,
        });
        let missing: Vec<Telling> = missing.collect();
        if !missing.is_empty()
            && let Err(error) = tell(&run.plan, missing)
        {
            tracing::warn!(home = %run.plan.home, %error, "what a run told could not be recorded");
        }
    }
}

/// How many words of this run are on record.
pub fn count(home: &Home, run: &str) -> u64 {
    let text = fs::read(home.events()).unwrap_or_default();
    let of_run = |line: &[u8]| {
        let line: Line = serde_json::from_slice(line).ok()?;
        line.number.filter(|_| line.run == run)
    };
    text.rsplit(|byte| *byte == b'\n').find_map(of_run).map_or(0, |number| number + 1)
}
