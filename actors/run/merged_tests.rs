//! Tables of the machine for work on its way to the base: what is left out, what conflicts, what the agent has to fix.

use super::machine::{Effect, Machine};
use super::machine_tests::{begun, ended, job, queued, run, stages, well, words};
use swarm_model::run::plan::Job;
use swarm_model::run::progress::{Run, Spent};
use swarm_model::run::words::Word;
use swarm_model::run::{Event, FaultKind, Merged, Outcome};

#[test]
fn files_that_are_left_out_are_told_of_and_are_evidence() {
    let mut run = run(vec![Job { retries: 2, ..job("a") }], 1);
    run.on(&Event::Began, 0);
    run.on(&well(0), 0);
    let left_out = vec!["pkg/dist/x.go".to_owned(), "in.log".to_owned()];
    let effects = run.on(&Event::Queued { job: 0, attempt: 1, left_out: left_out.clone() }, 0);
    assert_eq!(words(&effects), [&Word::MergeStarted { base: String::new(), left_out: left_out.clone() }]);
    assert_eq!(run.jobs[0].left_out, left_out);
    // Nothing else remains.
    let nothing = |attempt| Event::Merged { job: 0, attempt, merged: Merged::Nothing, spent: Spent::default() };
    run.on(&nothing(1), 0);
    let cause = "ended with success but left only files that are not committed: pkg/dist/x.go, in.log";
    assert_eq!(run.jobs[0].error.as_deref(), Some(cause));
    let evidence = run.jobs[0].evidence.clone().expect("evidence");
    assert!(evidence.starts_with(cause) && evidence.contains("Commit them yourself ('git add -f')"), "{evidence}");
    // The next attempt starts without them, and is told of its own, however its work is judged.
    assert_eq!((run.jobs[0].attempt, run.jobs[0].left_out.len()), (2, 0));
    run.on(&ended(0, 2, Outcome::Success { summary: None }), 0);
    run.on(&Event::Queued { job: 0, attempt: 2, left_out: vec!["b.tmp".to_owned()] }, 0);
    let merged = Merged::Rejected { reason: "red".to_owned() };
    run.on(&Event::Merged { job: 0, attempt: 2, merged, spent: Spent::default() }, 0);
    let evidence = run.jobs[0].evidence.clone().expect("evidence");
    assert!(evidence.starts_with("red\n") && evidence.contains("b.tmp") && !evidence.contains("in.log"), "{evidence}");
    // Work in a submodule needs another advice.
    run.on(&ended(0, 3, Outcome::Success { summary: None }), 0);
    run.on(&Event::Queued { job: 0, attempt: 3, left_out: vec!["lib/".to_owned()] }, 0);
    run.on(&nothing(3), 0);
    let evidence = run.jobs[0].evidence.clone().expect("evidence");
    let advice = "submodules or repositories was not committed for you: lib/. ";
    assert!(evidence.contains(advice) && !evidence.contains("git add -f"), "{evidence}");
}

#[test]
fn a_run_that_is_stopped_names_what_still_lands() {
    let mut run = run(["a", "b", "c", "d"].map(job).to_vec(), 9);
    run.on(&Event::Began, 0);
    for job in 0..3 {
        run.on(&well(job), 0);
        run.on(&queued(job, 1), 0);
    }
    for (job, continues) in [(1, true), (2, false)] {
        let merged = Merged::Waiting { reason: "edits".to_owned(), files: Vec::new(), continues, is_empty: false };
        run.on(&Event::Merged { job, attempt: 1, merged, spent: Spent::default() }, 0);
    }
    run.on(&Event::Stop, 0);
    let effects = run.on(&ended(3, 1, Outcome::Stopped), 0);
    let named = effects.iter().filter_map(|effect| match effect {
        Effect::Tell(_, Some(job), Word::MergeContinues { .. }) => Some(*job),
        _ => None,
    });
    assert_eq!(named.collect::<Vec<_>>(), [0, 1]);
    assert!(matches!(words(&effects).last(), Some(Word::RunCompleted { status, .. }) if status == "interrupted"));
}

#[test]
fn an_agent_that_left_nothing_may_have_asked_and_is_heard() {
    let mut run = run(vec![Job { retries: 1, ..job("a") }], 1);
    run.on(&Event::Began, 0);
    let summary = Some("There are two ways.\nWhich one do you want?".to_owned());
    run.on(&ended(0, 1, Outcome::Success { summary }), 0);
    run.on(&queued(0, 1), 0);
    run.on(&Event::Merged { job: 0, attempt: 1, merged: Merged::Nothing, spent: Spent::default() }, 0);
    let cause = "ended with success but left nothing to land";
    let told = format!("{cause}; the agent said last: There are two ways. Which one do you want?");
    assert_eq!(run.jobs[0].error.as_deref(), Some(told.as_str()));
    assert_eq!(run.jobs[0].evidence.as_deref(), Some(cause), "it knows what it has said");
}

#[test]
fn nothing_left_to_land_and_a_conflict_are_failures() {
    let mut run = run(vec![Job { retries: 5, ..job("a") }, Job { retries: 1, ..job("b") }], 9);
    run.on(&Event::Began, 0);
    run.on(&well(0), 0);
    run.on(&well(1), 0);
    assert_eq!(
        begun(&run.on(&Event::Merged { job: 0, attempt: 1, merged: Merged::Nothing, spent: Spent::default() }, 0)),
        [(0, 2)]
    );
    let files = vec!["f".to_owned()];
    let conflicts = |attempt| {
        let (merged, spent) = (Merged::Conflict { files: files.clone(), tip: Some("t".to_owned()) }, Spent::default());
        Event::Merged { job: 1, attempt, merged, spent }
    };
    let effects = run.on(&conflicts(1), 0);
    let conflict = Word::MergeConflict { files: files.clone(), branch: "arial/b".to_owned() };
    assert!(words(&effects).contains(&&conflict));
    // The next attempt knows what it has to merge.
    assert_eq!((begun(&effects), stages(&run)), (vec![(1, 2)], vec!["working", "working"]));
    let evidence = run.jobs[1].evidence.clone().expect("is told");
    assert!(evidence.contains("conflicts with") && evidence.contains(" in f."), "{evidence}");
    run.on(&ended(1, 2, Outcome::Success { summary: None }), 0);
    run.on(&conflicts(2), 0);
    assert_eq!(stages(&run), ["working", "failed"]);
    assert_eq!(run.jobs[1].error.as_deref(), Some("conflicts with the base: f"));
    // A retry knows which work conflicted, until its agent has started.
    run.on(&ended(0, 2, Outcome::Failure { cause: "no".to_owned(), evidence: None, fault: FaultKind::Lasting }), 0);
    let mut again = Machine::new(Run::begin((*run.plan).clone(), Some(&run), true));
    again.on(&Event::Began, 0);
    assert_eq!((again.jobs[1].conflicted, again.jobs[1].conflict_tip.as_deref()), (true, Some("t")));
    again.on(&Event::Started { job: 1, attempt: 3, pid: 7 }, 0);
    assert_eq!((again.jobs[1].conflicted, again.jobs[1].conflict_tip.as_deref()), (false, None));
}

#[test]
fn the_agent_mends_what_keeps_its_work_from_the_queue() {
    let mut run = run(vec![Job { retries: 1, ..job("a") }], 1);
    run.on(&Event::Began, 0);
    let refused = |attempt, is_mendable| {
        let merged = Merged::Refused { cause: "branch 'wip' instead of 'a'".to_owned(), is_mendable };
        Event::Merged { job: 0, attempt, merged, spent: Spent::default() }
    };
    run.on(&well(0), 0);
    assert_eq!(begun(&run.on(&refused(1, true), 0)), [(0, 2)]);
    assert_eq!(run.jobs[0].evidence.as_deref(), Some("branch 'wip' instead of 'a'"));
    run.on(&ended(0, 2, Outcome::Success { summary: None }), 0);
    run.on(&refused(2, false), 0);
    assert_eq!(stages(&run), ["failed"]);
}

#[test]
fn work_that_the_base_has_already_is_done() {
    let mut run = run(vec![Job { retries: 1, ..job("a") }, Job { after: vec!["a".to_owned()], ..job("b") }], 9);
    run.on(&Event::Began, 0);
    run.on(&well(0), 0);
    let merged = Event::Merged { job: 0, attempt: 1, merged: Merged::Contained, spent: Spent::default() };
    let effects = run.on(&merged, 0);
    assert!(
        words(&effects).contains(&&Word::Done { commit: None, on_base: true, item: None, verified_by: None }),
        "{effects:?}"
    );
    assert_eq!(stages(&run), ["done", "working"]);
}

/// Returns a run whose only work waits, the report of that, and a report that nothing is left to land.
fn waiting(is_empty: bool) -> (Machine, Event, Event) {
    let mut run = run(vec![job("a")], 9);
    run.on(&Event::Began, 0);
    run.on(&well(0), 0);
    run.on(&queued(0, 1), 0);
    let merged = |merged| Event::Merged { job: 0, attempt: 1, merged, spent: Spent::default() };
    let (reason, files) = ("in the way".to_owned(), Vec::new());
    let waits = merged(Merged::Waiting { reason, files, continues: false, is_empty });
    run.on(&waits, 0);
    (run, waits, merged(Merged::Nothing))
}

/// Continues a run whose work waits. The work is queued again.
fn resumed(run: &Machine) -> Machine {
    let mut run = Machine::new(Run::begin((*run.plan).clone(), Some(run), false));
    run.on(&Event::Began, 0);
    run.on(&Event::Retried { job: 0, attempt: 1 }, 0);
    assert_eq!(stages(&run), ["merging"]);
    run
}

#[test]
fn work_that_waited_and_is_on_the_base_now_is_done() {
    let (mut run, waits, nothing) = waiting(false);
    let before = run.clone();
    run.on(&waits, 0);
    run.on(&queued(0, 1), 0);
    assert_eq!(run, before, "a repeated report changes nothing");
    let mut run = resumed(&run);
    run.on(&nothing, 0);
    assert_eq!(stages(&run), ["done"]);
}

#[test]
fn an_attempt_that_left_nothing_fails_although_its_item_waited() {
    let (run, _, nothing) = waiting(true);
    let mut run = resumed(&run);
    run.on(&nothing, 0);
    assert_ne!(stages(&run), ["done"]);
    assert_eq!(run.jobs[0].failures, 1);
}
