use std::io::Write as _;
use std::sync::Arc;

use swarm_model::run::plan::{Job, Plan};
use swarm_model::run::progress::{Progress, Spent, Stage};
use swarm_model::run::words::Word;
use swarm_model::run::{FaultKind, Merged, Outcome};
use swarm_ports::Telling;

use super::*;
use crate::runs::events;

/// A run of three jobs, one at a time; the last one needs the first one.
struct Rig {
    _dir: tempfile::TempDir,
    home: Home,
    run: Run,
}

impl Rig {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let job = |id: &str, after: &[&str]| Job {
            id: id.to_owned(),
            after: after.iter().map(ToString::to_string).collect(),
            merge: id == "c",
            retries: 1,
            ..Job::default()
        };
        let home = dir.path().to_str().expect("text").to_owned();
        let jobs = vec![job("a", &[]), job("b", &[]), job("c", &["a"])];
        let plan = Plan { id: "r".into(), home: home.clone(), jobs, ..Plan::default() };
        let run = Run { plan: Arc::new(plan), jobs: vec![Progress::default(); 3], ..Run::default() };
        let home = Home::new(&home);
        begin(&home, &run, "request").expect("begun");
        Self { _dir: dir, home, run }
    }

    /// Writes events, and reports of them as a run does; lines with this text are damaged.
    fn happen(&self, all: &[Event], damaged: &[usize]) -> Run {
        let mut machine = Machine::new(self.run.clone());
        for (at, event) in all.iter().enumerate() {
            let words = machine.on(event, 5).into_iter().filter_map(|effect| match effect {
                swarm_actors::run::machine::Effect::Tell(number, job, word) => {
                    Some(Telling { at_ms: 5, number: Some(number), job, word })
                }
                _ => None,
            });
            events::append(&self.run.plan, words.collect()).expect("reported");
            let mut line = format!("{}\n", serde_json::to_string(&(5, event)).expect("text"));
            if damaged.contains(&at) {
                line.replace_range(3..4, "~");
            }
            let mut file = OpenOptions::new().append(true).open(self.home.journal()).expect("opened");
            file.write_all(line.as_bytes()).expect("written");
        }
        Run::clone(&machine)
    }

    fn stages(run: &Run) -> Vec<(Stage, u32)> {
        run.jobs.iter().map(|job| (job.stage.clone(), job.attempt)).collect()
    }
}

fn started(job: usize, attempt: u32) -> Event {
    Event::Started { job, attempt, pid: 7 }
}

fn ended(job: usize, attempt: u32, well: bool) -> Event {
    let failure = || Outcome::Failure { cause: "no".into(), evidence: None, fault: FaultKind::Task };
    let outcome = if well { Outcome::Success { summary: None } } else { failure() };
    Event::Ended { job, attempt, outcome, spent: Spent::default() }
}

fn story() -> Vec<Event> {
    let merged = Merged::Landed { commit: "f".repeat(40) };
    vec![
        Event::Began,
        started(0, 1),
        ended(0, 1, false),
        started(0, 2),
        ended(0, 2, true),
        started(1, 1),
        ended(1, 1, true),
        started(2, 1),
        ended(2, 1, true),
        Event::Queued { job: 2, attempt: 1, left_out: Vec::new() },
        Event::Merged { job: 2, attempt: 1, merged, spent: Spent::default() },
    ]
}

#[test]
fn what_is_recorded_as_done_stays_done_whichever_line_is_damaged() {
    for with_reports in [true, false] {
        for lost in 0..story().len() {
            let rig = Rig::new();
            let whole = rig.happen(&story(), &[lost]);
            let last = lost + 1 == story().len();
            if !with_reports {
                fs::remove_file(rig.home.events()).expect("removed");
            }
            // Without a later line, the last one looks like damage of its own.
            append(&rig.home, &[(6, Event::Hold)]).expect("appended");
            let journal = read_all(&rig.home).expect("readable").expect("there");
            assert_eq!((journal.damage.len(), journal.damage[0].line), (1, lost + 2));
            let run = journal.present();
            let (now, then) = (Rig::stages(&run), Rig::stages(&whole));
            if with_reports {
                assert_eq!(now, then, "line {lost}");
                assert!(run.told >= whole.told, "{} {}", run.told, whole.told);
                continue;
            }
            // Without reports, an end that nothing after it proves is judged again from the worker's own record.
            let unproven = [6, 10].contains(&lost);
            let is_again =
                |(now, then): (&(Stage, u32), &(Stage, u32))| now.1 == then.1 && (now.0 == then.0 || unproven);
            assert!(now.iter().zip(&then).all(is_again) || last, "line {lost}: {now:?} {then:?}");
        }
    }
}

#[test]
fn a_repair_is_recorded_and_the_run_goes_on_from_there() {
    let rig = Rig::new();
    rig.happen(&story()[..7], &[2, 4]);
    let journal = read_all(&rig.home).expect("readable").expect("there");
    assert_eq!(journal.damage.iter().map(|one| one.line).collect::<Vec<_>>(), [4, 6]);
    assert!(journal.is_repaired_now && shown(&rig.home, &journal.damage[0]).contains("run.jsonl, line 4: "));
    append(&rig.home, &journal.events).expect("appended");
    append(&rig.home, &[(9, started(2, 1))]).expect("appended");
    let again = read_all(&rig.home).expect("readable").expect("there");
    assert_eq!((again.damage.len(), again.is_repaired_now, again.events.len()), (2, false, 2));
    let run = again.present();
    assert_eq!((run.jobs[2].stage.clone(), run.jobs[2].pid), (Stage::Working, Some(7)));
    events::report_damage(&rig.home, "r", &journal.damage).expect("reported");
    events::report_damage(&rig.home, "r", &journal.damage).expect("reported");
    let text = fs::read_to_string(rig.home.events()).expect("there");
    assert_eq!(text.matches("run.journal_damaged").count(), 2);
    let word = |line: &str| serde_json::from_str::<swarm_model::run::words::Line>(line).expect("a line").word;
    assert!(matches!(word(text.lines().last().expect("a line")), Word::JournalDamaged { line: 6, .. }));
}

#[test]
fn torn_lines_are_no_damage_and_unknown_events_are() {
    let rig = Rig::new();
    let write = |text: &[u8]| {
        let mut file = OpenOptions::new().append(true).open(rig.home.journal()).expect("opened");
        file.write_all(text).expect("written");
    };
    write(b"[5,\"beg\n");
    append(&rig.home, &[(5, Event::Began)]).expect("appended");
    write(b"[6,{\"star");
    let journal = read_all(&rig.home).expect("readable").expect("there");
    assert_eq!((journal.damage.len(), journal.events.len(), journal.is_repaired_now), (0, 1, false));
    append(&rig.home, &[(7, started(0, 1))]).expect("appended");
    write(b"[8,\"from-the-future\"]\n");
    append(&rig.home, &[(9, ended(0, 1, true))]).expect("appended");
    let journal = read_all(&rig.home).expect("readable").expect("there");
    assert_eq!(journal.damage.iter().map(|one| one.line).collect::<Vec<_>>(), [6]);
    assert_eq!(journal.present().jobs[0].stage, Stage::Done);
}

#[test]
fn names_that_lead_elsewhere_are_refused() {
    let rig = Rig::new();
    let named = |change: &dyn Fn(&mut Plan)| {
        let mut run = rig.run.clone();
        change(Arc::make_mut(&mut run.plan));
        begin(&rig.home, &run, "request").expect("begun");
        let cause = read_all(&rig.home).map(drop);
        assert_eq!(begun(&rig.home).is_err(), cause.is_err());
        // Also if it comes later.
        begin(&rig.home, &rig.run, "request").expect("begun");
        append(&rig.home, &[(5, Event::Repaired { run: Box::new(run) })]).expect("appended");
        assert_eq!(read_all(&rig.home).is_err(), cause.is_err());
        cause.err().and_then(|cause| Some(cause.split_once("line 1: ")?.1.to_owned()))
    };
    assert_eq!(named(&|plan| plan.slug = "repo-1f".to_owned()), None);
    assert_eq!(named(&|plan| plan.base = Some("a/b".to_owned())), None);
    for id in ["../../../mine", "..", ".", "", "a/b", "a\0b"] {
        let cause = named(&|plan| plan.jobs[1].id = id.to_owned());
        assert_eq!(cause, Some(format!("invalid name of a workstream '{id}'")));
    }
    let branch = |name: &str| Some(format!("'{name}' is not a valid branch name"));
    assert_eq!(named(&|plan| plan.jobs[0].branch = Some("../x".to_owned())), branch("../x"));
    assert_eq!(named(&|plan| plan.base = Some("--all".to_owned())), branch("--all"));
    let cause = named(&|plan| plan.slug = "other.run".to_owned());
    assert_eq!(cause.as_deref(), Some("invalid prefix of workers 'other.run'"));
}
