//! `swarm run status` and `--dry-run`: the progress of a run, and what a run would do.

use serde_json::{Value, json};
use swarm_model::merge::BASE_FAILS;
use swarm_model::run::plan::{Job, Plan, Work};
use swarm_model::run::progress::{Mode, Progress, Run, Spent, Stage};
use swarm_model::{Activity, Doing, Refusal, RefusalKind};

use super::args::Plain;
use super::batch::Jobs;
use super::queue::RunQueue;
use super::{given_up, left, waits};
use crate::board::run::{self as board, denied, mode, unheard, waiting};
use crate::cli::diff::left_out as left_out_words;
use crate::cli::error::Failure;
use crate::cli::json;
use crate::cli::render::{Clock, escape, table};
use crate::cli::screen::Screen;
use swarm_store::runs::denied::{Denial, Denials};
use swarm_store::runs::home::Home;
use swarm_store::runs::{before_the_next, journal, origin, wire};
use swarm_store::sessions;
use swarm_sys::paths::Paths;
use swarm_sys::quoting::command_line;

pub fn status(args: &Plain, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    let home = super::home(args.home.as_deref())?;
    let invalid = |cause: String| Failure::new(RefusalKind::Invalid, cause);
    super::check_version(&home)?;
    if let Some(journal) = journal::read_all(&home).map_err(invalid)? {
        let damage: Vec<String> = journal.damage.iter().map(|one| journal::shown(&home, one)).collect();
        for one in &damage {
            screen.warning(&format!("damaged journal: {one}; the state is rebuilt from the rest"));
        }
        let mut run = journal.present();
        let queue = RunQueue::of(&run.plan, paths);
        queue.bring_up_to_date(&mut run);
        queue.warn_held(&run.plan, screen);
        let counts = origin::foreign(paths, &home).is_none();
        if !counts {
            let text = format!(
                "{} is in a worktree, where an agent may have written it; if you began that run yourself, run 'swarm trust --run'",
                home.journal().display()
            );
            screen.aside("note: ", &text);
        }
        return match args.json {
            true => print(&run, &queue, &Jobs::of(&run, paths), counts, &damage, screen),
            false => show(&run, &queue, &Jobs::of(&run, paths), counts, screen),
        };
    }
    // No journal: only planned, or started by the original program.
    let state = wire::load(&home).map_err(|fault| invalid(fault.into()))?.filter(|state| !state.workstreams.is_empty());
    let Some(state) = state else {
        let refusal = Refusal::new(RefusalKind::NotFound, format!("no plan in {}", home.path().display()));
        return Err(refusal.remedy("run 'swarm plan --specs DIR' first").into());
    };
    if args.json {
        let rows: Vec<_> = state
            .workstreams
            .iter()
            .map(|row| json!({"id": row.id, "status": row.status, "title": row.title}))
            .collect();
        let body = json!({"home": home.path(), "status": state.status, "workstreams": rows});
        json::print(screen, "swarm.run/1", &body)?;
    } else {
        let rows = state.workstreams.iter().map(|row| vec![row.id.clone(), row.status.clone(), row.title.clone()]);
        lines(&["ID", "STATUS", "TITLE"], rows, screen)?;
    }
    Ok(0)
}

fn lines(head: &[&str], rows: impl Iterator<Item = Vec<String>>, screen: &mut Screen) -> Result<(), Failure> {
    let head = head.iter().map(ToString::to_string).collect();
    let rows = rows.map(|row| row.iter().map(|text| escape(text).into_owned()).collect());
    let all: Vec<Vec<String>> = std::iter::once(head).chain(rows).collect();
    screen.line(&without_trails(&table(&all, |_, _, _| None)))
}

/// Removes trailing blanks from the lines of a table.
pub fn without_trails(table: &str) -> String {
    table.lines().map(str::trim_end).collect::<Vec<_>>().join("\n")
}

/// Returns the status of a run as the rest of a sentence about it.
fn sentence(run: &Run) -> String {
    use swarm_model::run::progress::Verdict;
    match run.mode {
        Mode::Over(Verdict::Completed | Verdict::Failed) => mode(run).to_owned(),
        Mode::Over(Verdict::Interrupted) => format!("was {}", mode(run)),
        Mode::Running | Mode::Held | Mode::Stopping => format!("is {}", mode(run)),
    }
}

fn show(run: &Run, queue: &RunQueue, at_work: &Jobs, counts: bool, screen: &mut Screen) -> Result<u8, Failure> {
    let consent = run.plan.rules.consent.map(|consent| format!(" with consent {}", consent.word()));
    screen.line(&format!("run {} {}{}", run.plan.id, sentence(run), consent.unwrap_or_default()))?;
    let (without_place, clock) = (waits::of(run), Clock::system());
    let row = |(at, (job, progress)): (usize, (&Job, &Progress))| {
        let waits = waiting(run, job, progress).map(|cause| match progress.stage {
            Stage::Asking { .. } => cause,
            _ => format!("waiting: {cause}"),
        });
        let what = waits.or_else(|| to_land(progress)).or_else(|| super::on::where_it_is(run, progress, &clock));
        let what = what.or_else(|| at_work.words(run, job, progress));
        let what = what.or_else(|| without_place.get(&at).map(|hosts| waits::words(hosts, &clock)));
        let what = what.or_else(|| progress.error.clone());
        let what = what.or_else(|| queue.still_lands(run, progress));
        let what = what.or_else(|| left::advice(run, job, progress, queue, counts));
        let what = with_left_out(what.or_else(|| progress.summary.clone()), &progress.left_out);
        let what = what.or_else(|| doing(run, job, progress));
        // While it works, it is shown as waiting until it goes on.
        let unheard = unheard(run, job, progress).filter(|_| progress.stage != Stage::Working);
        let noted = |what: Option<String>, note: Option<String>| match (what, note) {
            (Some(what), Some(note)) => Some(format!("{what} ({note})")),
            (what, note) => what.or(note),
        };
        let what = noted(noted(what, unheard), denied_words(&denied(run, job, progress)));
        vec![
            job.id.clone(),
            progress.stage.word().to_owned(),
            progress.attempt.to_string(),
            cost(&progress.spent),
            what.unwrap_or_else(|| "-".to_owned()),
        ]
    };
    lines(
        &["ID", "STAGE", "ATTEMPT", "COST", "LAST"],
        run.plan.jobs.iter().zip(&run.jobs).enumerate().map(row),
        screen,
    )?;
    given_up::of(run)?.iter().try_for_each(|one| screen.line(&escape(&one.line())))?;
    Ok(0)
}

/// Returns what the agent of a workstream that works here does.
fn doing(run: &Run, job: &Job, progress: &Progress) -> Option<String> {
    let is_here = progress.stage == Stage::Working && progress.host.is_none() && matches!(job.work, Work::Spec(_));
    let tree = Home::new(&run.plan.home).worktrees().join(job.leaf());
    let activity = is_here.then(|| sessions::activity(&tree)).flatten().map(Activity::from)?;
    activity.what.filter(|_| activity.doing == Doing::Working)
}

fn denied_words(denials: &Denials) -> Option<String> {
    let Denial { what, reason, .. } = denials.last.as_ref()?;
    Some(format!("{} denied, last: {what}: {reason}", denials.count))
}

/// Returns the reason why finished work cannot land, with the command that continues.
fn to_land(progress: &Progress) -> Option<String> {
    let error = progress.error.as_ref().filter(|_| progress.stage == Stage::Waiting)?;
    let files = if progress.files.is_empty() { String::new() } else { format!(": {}", progress.files.join(", ")) };
    let next = match progress.continues {
        true if error.starts_with(BASE_FAILS) => {
            "continues by itself when that is gone; if the command is wrong, run 'swarm run stop', then 'swarm run --verify \
             COMMAND'"
        }
        true => "continues by itself when that is gone",
        false => "then run 'swarm run' or 'swarm merge retry'",
    };
    Some(format!("{error}{files} ({next})"))
}

/// Adds the new files that did not land, unless the text names them already.
fn with_left_out(what: Option<String>, left_out: &[String]) -> Option<String> {
    let Some(first) = left_out.first() else { return what };
    Some(match what {
        Some(what) if what.contains(first.as_str()) => what,
        Some(what) => format!("{what} ({})", left_out_words(left_out)),
        None => left_out_words(left_out),
    })
}

/// Returns the cost of a job. Unknown parts are shown as `?`, not as zero.
fn cost(spent: &Spent) -> String {
    match spent.usd {
        Some(usd) if spent.unpriced => format!("{usd:.2}+? USD"),
        Some(usd) => format!("{usd:.2} USD"),
        None if spent.unpriced && spent.input_tokens > 0 => "?".to_owned(),
        None => "-".to_owned(),
    }
}

fn print(
    run: &Run,
    queue: &RunQueue,
    at_work: &Jobs,
    counts: bool,
    damage: &[String],
    screen: &mut Screen,
) -> Result<u8, Failure> {
    let jobs = run.plan.jobs.iter().zip(&run.jobs).zip(board::workstreams(run));
    let rows: Vec<_> = jobs
        .map(|((job, progress), mut row)| {
            row.insert("to_land".to_owned(), json!(left::advice(run, job, progress, queue, counts)));
            if let Some(queued) =
                at_work.queued(run, job, progress).filter(|_| row.get("waiting").is_none_or(Value::is_null))
            {
                row.insert("waiting".to_owned(), json!(queued));
            }
            row
        })
        .collect();
    let given_up: Vec<_> = given_up::of(run)?.iter().map(given_up::GivenUp::json).collect();
    let mut body = board::run_object(run, damage);
    body.extend([("given_up".to_owned(), json!(given_up)), ("workstreams".to_owned(), json!(rows))]);
    json::print(screen, "swarm.run/1", &body)?;
    Ok(0)
}

/// Prints the jobs of a plan as a tree of dependencies, with the number of pending jobs (`--dry-run`).
pub fn tree(plan: Plan, retry_failed: bool, screen: &mut Screen) -> Result<u8, Failure> {
    let mut order: Vec<usize> = (0..plan.jobs.len()).collect();
    order.sort_by_key(|job| (std::cmp::Reverse(plan.jobs[*job].priority), *job));
    let earlier = before_the_next(&Home::new(&plan.home)).ok().flatten();
    let run = Run::begin(plan, earlier.as_ref(), retry_failed);
    let mut lines = Vec::new();
    for job in order.iter().filter(|job| run.plan.jobs[**job].after.is_empty()) {
        branch(&run, &order, *job, 0, &mut lines);
    }
    let (all, to_do) = (run.jobs.len(), run.count(|stage| !matches!(stage, Stage::Done | Stage::Failed)));
    let to_do = if to_do == all { String::new() } else { format!(", {to_do} pending") };
    screen.line(&format!("{all} jobs{to_do}, at most {} at a time", run.plan.rules.limit))?;
    lines.iter().try_for_each(|line| screen.line(line))?;
    Ok(0)
}

/// Returns the command of a job: the first line of a script for `sh`, or the whole list of words.
fn shown(argv: &[String]) -> String {
    match argv {
        [shell, flag, script] if shell == "/bin/sh" && flag == "-c" => swarm_agents::short(script),
        _ => command_line(argv.iter().map(String::as_str)),
    }
}

/// Adds the line of a job and those of its dependents. A job with several dependencies appears below the last of them.
fn branch(run: &Run, order: &[usize], job: usize, depth: usize, lines: &mut Vec<String>) {
    let asked = &run.plan.jobs[job];
    let what = match &asked.work {
        Work::Spec(work) => swarm_agents::short(&work.title),
        Work::Command(work) => shown(&work.argv),
    };
    let at = match run.jobs[job].stage {
        Stage::Pending => String::new(),
        Stage::Failed => " (failed; use --retry-failed to retry)".to_owned(),
        ref stage => format!(" ({})", stage.word()),
    };
    let on = if asked.on.is_empty() { String::new() } else { format!(" (on {})", asked.on.join(", ")) };
    lines.push(format!("{}{}{}{at}  {}", "  ".repeat(depth), escape(&asked.id), escape(&on), escape(&what)));
    for next in order.iter().filter(|next| run.plan.jobs[**next].after.last() == Some(&asked.id)) {
        branch(run, order, *next, depth + 1, lines);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_shown_whole_and_a_script_by_its_first_line() {
        let line = |words: &[&str]| shown(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
        assert_eq!(line(&["make", "-j4", "CC=gcc", "all"]), "make -j4 CC=gcc all");
        assert_eq!(line(&["echo", "it's", "", "a b"]), r"echo 'it'\''s' '' 'a b'");
        assert_eq!(line(&["sh", "-c", "make && make test"]), "sh -c 'make && make test'");
        assert_eq!(line(&["/bin/sh", "-c", "make\nmake test"]), "make");
    }
}
