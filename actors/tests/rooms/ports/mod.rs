//! Each method of each port fails before its effect, fails after it, or never returns, in every scenario that calls it.
//! Whatever happens: the other workers are served meanwhile, every request is answered, and after the death of the
//! supervisor the next one finds everything that was acknowledged still true, and the scenario reaches its end.

mod faulty;
mod remote;
mod scenarios;
mod stage;

use std::collections::{BTreeMap, BTreeSet};

use faulty::{Kind, Method, Plan};
use scenarios::{SCENARIOS, Scenario};

/// Methods that no limit of ours ends, so that a request about the same files may have no answer. They read and write
/// local files, which no program can give up; after the death of the supervisor all must be right. A start that hangs is
/// bounded by the client, which waits for the supervisor for a limited time.
const FILES: [&str; 20] = [
    "flows.active",
    "flows.open",
    "landings.load",
    "landings.set_damaged_aside",
    "landings.targets",
    "loops.active",
    "loops.earlier",
    "loops.forget",
    "loops.found",
    "loops.load",
    "loops.log_length",
    "loops.save",
    "nudges.load",
    "records.scan",
    "records.tidy",
    "runs.active",
    "runs.begin",
    "runs.began_by",
    "runs.open",
    "runs.resume",
];

/// Methods that hold up the requests about all workers as well.
const OF_ALL: [&str; 1] = ["records.scan"];

/// Faults that the contract of a method excludes, with the place that sees to it.
const EXCLUDED: [(&str, Kind, &str); 4] = [
    (
        "launcher.open",
        Kind::ErrorAfter,
        "Gate::without_answer takes the contract away, which succeeds only if it was not executed",
    ),
    ("launcher.open", Kind::Hang, "EXEC_MAX in src/processes/gate.rs"),
    ("processes.stop_by_shim", Kind::ErrorAfter, "one system call: the signal is sent, or the call fails"),
    ("landings.complete", Kind::Hang, "every git command has a deadline in src/git"),
];

/// Methods that no scenario calls, with the tests that do.
const ELSEWHERE: [(&str, &str); 14] = [
    ("flows.keep_refusal", "tests/it/flow_odds.rs: a result that could not be queued is named"),
    ("launcher.withdraw", "worker::a_step_that_fails_leaves_nothing: the registry refuses the commit"),
    (
        "processes.end_survivors",
        "survivors::a_kill_that_leaves_processes_fails_and_nothing_starts_or_is_removed_beside_them",
    ),
    ("landings.rules_of", "landing_origin::the_first_run_of_an_agent_cannot_replace_the_rules_of_the_configuration"),
    ("landings.remember", "run_rules::work_that_waits_lands_in_the_environment_of_the_run_that_continues"),
    ("runs.agreed", "landing::work_of_a_run_is_verified_as_its_run_asked"),
    ("runs.changed_rules", "run_rules::work_that_waits_lands_by_a_verification_that_was_corrected"),
    ("runs.has_landed", "run::work_that_conflicted_and_was_merged_by_hand_is_done_without_its_worker"),
    ("runs.has_work", "run_left::only_the_worker_of_a_command_that_left_work_is_kept"),
    ("runs.is_own", "run::an_item_of_another_repository_under_the_same_key_is_not_the_work_of_the_run"),
    ("runs.place", "run::work_that_conflicted_and_was_merged_by_hand_is_done_without_its_worker"),
    ("runs.settled", "run::a_job_that_asks_leaves_its_place_to_others_and_continues_after_the_answer"),
    ("terminals.keep_output", "loop_theirs::a_running_worker_is_followed_to_its_end"),
    ("terminals.has_server", "recover::a_record_that_does_not_say_it_is_judged_by_its_tmux_server"),
];

/// Returns the kinds of faults that a method can have.
fn kinds((name, can_fail, can_hang): Method) -> Vec<Kind> {
    let is_excluded = |kind: &Kind| EXCLUDED.iter().any(|(method, of, _)| *method == name && of == kind);
    let errors = [Kind::ErrorBefore, Kind::ErrorAfter].into_iter().filter(|_| can_fail);
    errors.chain([Kind::Hang].into_iter().filter(|_| can_hang)).filter(|kind| !is_excluded(kind)).collect()
}

/// Runs a scenario with a fault. If threads ran in another order, so that the call did not occur, runs it again, and in
/// the end with the call before: several calls may become one.
fn violations(scenario: &Scenario, plan: Plan) -> Vec<String> {
    for _ in 0..5 {
        let run = std::panic::catch_unwind(|| stage::run(scenario, Some(plan)).1);
        let said = run.unwrap_or_else(|_| vec!["panics".to_owned()]);
        if !said.iter().any(|what| what == stage::NOT_MET) {
            let is_file = plan.kind == Kind::Hang && FILES.contains(&plan.method);
            let is_hang = |what: &String| {
                let is_of_all = OF_ALL.contains(&plan.method) && what == stage::NOT_SERVED;
                what == stage::START_HANGS || what.ends_with(stage::NO_ANSWER) || is_of_all
            };
            return said.into_iter().filter(|what| !is_file || !is_hang(what)).collect();
        }
    }
    match plan.nth.checked_sub(1) {
        Some(nth) => violations(scenario, Plan { nth, ..plan }),
        None => vec![stage::NOT_MET.to_owned()],
    }
}

#[test]
fn what_was_acknowledged_stays_true_whatever_port_fails_or_hangs() {
    let (mut broken, mut met) = (BTreeSet::new(), BTreeMap::<&str, usize>::new());
    let methods = faulty::methods();
    for scenario in &SCENARIOS {
        let (calls, said) = stage::run(scenario, None);
        assert_eq!(said, Vec::<String>::new(), "{} without a fault", scenario.name);
        for method in methods.iter().filter(|method| calls.contains_key(method.0)) {
            // The first call and the last one: of what starts, and of what ends.
            let numbers = BTreeSet::from([0, calls[method.0] - 1]);
            for (nth, kind) in numbers.iter().flat_map(|nth| kinds(*method).into_iter().map(move |kind| (*nth, kind))) {
                let said = violations(scenario, Plan { method: method.0, nth, kind });
                *met.entry(method.0).or_default() += 1;
                let place = format!("{} {nth} {kind:?} in {}", method.0, scenario.name);
                broken.extend(said.into_iter().map(|what| format!("{place}: {what}")));
            }
        }
    }
    let is_elsewhere = |name: &str| ELSEWHERE.iter().any(|(method, _)| *method == name);
    let never: Vec<&str> = methods.iter().map(|method| method.0).filter(|name| !met.contains_key(name)).collect();
    println!("{} faults at {} of {} methods", met.values().sum::<usize>(), met.len(), methods.len());
    let broken: Vec<String> = broken.into_iter().collect();
    assert!(broken.is_empty(), "{} violations:\n{}\nnever called: {never:?}", broken.len(), broken.join("\n"));
    let unknown: Vec<&str> = never.into_iter().filter(|name| !is_elsewhere(name)).collect();
    assert_eq!(unknown, Vec::<&str>::new(), "no scenario calls these methods");
    assert!(ELSEWHERE.iter().all(|(method, _)| !met.contains_key(method)), "a listed method is called");
}
