//! `events.jsonl`: what a run told, and what its agents report while they work. Lines
//! are only ever added, so that whoever reads on can say how many it has seen.

use std::io;
use std::path::Path;

use swarm_actors::run::machine::{Effect, Machine};
use swarm_model::run::Event;
use swarm_model::run::plan::Plan;
use swarm_model::run::words::{Line, Word};
use swarm_ports::Telling;

use super::home::{Home, append_lines, end_of, iso};

/// Adds what a run tells.
///
/// # Errors
/// What the system says.
pub fn tell(plan: &Plan, words: Vec<Telling>) -> io::Result<()> {
    let mut lines = String::new();
    for Telling { at_ms, number, job, word } in words {
        let workstream = job.map(|job| plan.jobs[job].id.clone());
        let line = Line { time: iso(at_ms), run: plan.id.clone(), number, workstream, word };
        lines.push_str(&serde_json::to_string(&line)?);
        lines.push('\n');
    }
    append_lines(&Home::new(&plan.home).events(), &lines).map(drop)
}

/// What the agent of a job reports, as a line.
///
/// # Errors
/// When it cannot be written as one.
pub fn line(run: &str, job: &str, at_ms: u64, word: Word) -> io::Result<String> {
    let line = Line { time: iso(at_ms), run: run.to_owned(), number: None, workstream: Some(job.to_owned()), word };
    Ok(format!("{}\n", serde_json::to_string(&line)?))
}

/// Adds such lines.
///
/// # Errors
/// What the system says.
pub fn report(events: &Path, lines: &str) -> io::Result<()> {
    append_lines(events, lines).map(drop)
}

/// Replays what has happened, and adds what was cut off before it was told.
pub fn catch_up(home: &Home, run: &mut Machine, events: &[(u64, Event)]) {
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
            && let Err(error) = tell(&run.plan, missing)
        {
            tracing::warn!(home = %run.plan.home, %error, "what a run told could not be recorded");
        }
    }
}

/// How many words of this run are on record. Looked for from the end: what agents
/// reported in between may be much.
pub fn count(home: &Home, run: &str) -> u64 {
    let of_run = |line: &[u8]| {
        let line: Line = serde_json::from_slice(line).ok()?;
        line.number.filter(|_| line.run == run)
    };
    let mut span = 64 << 10;
    loop {
        let text = end_of(&home.events(), span).unwrap_or_default();
        // The first of them may have been cut, and no line is found to be one then.
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
    fn words_are_counted_behind_much_that_agents_reported() {
        let dir = tempfile::tempdir().expect("a directory");
        let home = Home::new(dir.path());
        assert_eq!(count(&home, "r"), 0, "nothing was told");
        let plan = Plan { id: "r".into(), home: dir.path().to_str().expect("text").into(), ..Plan::default() };
        let word = |number| Telling { at_ms: 0, number: Some(number), job: None, word: Word::RunPaused };
        tell(&plan, vec![word(0), word(1)]).expect("told");
        assert_eq!((count(&home, "r"), count(&home, "other")), (2, 0));
        let activity = || line("r", "a", 0, Word::Activity { text: "x".repeat(1000) }).expect("a line");
        for _ in 0..200 {
            report(&home.events(), &activity()).expect("told");
        }
        assert_eq!((count(&home, "r"), count(&home, "other")), (2, 0));
        tell(&plan, vec![word(2)]).expect("told");
        assert_eq!(count(&home, "r"), 3);
    }
}
