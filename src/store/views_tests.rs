use std::fs;

use swarm_actors::registry::table::Table;
use swarm_model::{
    Contract, Ended, ExitRecord, Hits, Lease, NeedKind, Reason, RestartPolicy, Spec, Usage, worker_dir_name,
};

use super::*;

fn spec(number: usize) -> Spec {
    Spec {
        name: format!("w{number}"),
        generation: 1,
        token: format!("token{number}"),
        request: String::new(),
        started: "2026-01-01T00:00:00.000000".to_owned(),
        contract: Contract::default(),
        worktree: None,
        logs: Vec::new(),
        resume: None,
        hooked: None,
        machine: None,
        exit_slot: None,
    }
}

/// Writes the records of a worker that ended in an earlier boot.
fn write_records(paths: &Paths, spec: &Spec, is_recorded: bool, is_readable: bool) {
    let dir = paths.workers().join(worker_dir_name(&spec.name, 1));
    fs::create_dir_all(&dir).expect("made");
    let process = ProcessId { pid: 1, start_ticks: 1, boot: "an earlier one".to_owned() };
    let lease = Lease {
        token: spec.token.clone(),
        started: spec.started.clone(),
        worker: process.clone(),
        shim: process,
        pane: None,
        restart: RestartPolicy::Never,
        limits: None,
        machine: None,
        process_namespace: None,
        survivors: Vec::new(),
    };
    let exit = ExitRecord {
        token: spec.token.clone(),
        started: spec.started.clone(),
        pid: 1,
        ended: Ended::Code(0),
        reason: Reason::Exited,
        ended_at_ms: 0,
        duration_ms: 0,
        usage: Usage::default(),
        survivors: Vec::new(),
        hits: Hits::default(),
        interrupted: false,
        server_lost: None,
    };
    if is_readable {
        fs::write(dir.join("lease"), serde_json::to_vec(&lease).expect("JSON")).expect("written");
    } else {
        std::os::unix::fs::symlink("lease", dir.join("lease")).expect("linked");
    }
    if is_recorded {
        fs::write(dir.join("exit.json"), serde_json::to_vec(&exit).expect("JSON")).expect("written");
    }
}

#[test]
fn many_workers_are_listed_in_order_with_a_warning_for_each_that_cannot_be_read() {
    let dir = tempfile::tempdir().expect("a directory");
    let paths = Paths::new(dir.path());
    let (is_recorded, is_readable) = (|number: usize| number.is_multiple_of(3), |number: usize| number % 100 != 50);
    let all: Vec<usize> = (0..3 * PART_MIN + 7).collect();
    let mut rows = Vec::new();
    for &number in &all {
        let spec = spec(number);
        write_records(&paths, &spec, is_recorded(number), is_readable(number));
        rows.push(reconcile::row_of(&spec, 1, "host"));
    }
    fs::write(paths.state(), Table::of(rows).render()).expect("written");
    for taken in [&all[..], &all[..1], &[]] {
        let names: Vec<String> = taken.iter().map(|number| format!("w{number}")).collect();
        let picked: Vec<&str> = names.iter().map(String::as_str).collect();
        let pick = if taken.len() == all.len() { Pick::All } else { Pick::Named(&picked) };
        let found = load_where(&paths, Detail::Exit, pick).expect("readable");
        assert_eq!(found.workers.iter().map(|worker| worker.row.name.clone()).collect::<Vec<_>>(), names);
        for (worker, &number) in found.workers.iter().zip(taken) {
            let expected = (!is_readable(number), is_recorded(number) && is_readable(number));
            assert_eq!((worker.state.is_running(), worker.exit.is_some()), expected, "{}", worker.row.name);
        }
        let unread: Vec<String> =
            taken.iter().filter(|number| !is_readable(**number)).map(|number| format!("'w{number}'")).collect();
        assert_eq!(found.warnings.len(), unread.len(), "{:?}", found.warnings);
        assert!(
            found.warnings.iter().zip(&unread).all(|(warning, name)| warning.contains(name)),
            "{:?}",
            found.warnings
        );
    }
}

#[test]
fn workers_with_records_are_listed_although_the_state_file_is_missing() {
    let dir = tempfile::tempdir().expect("a directory");
    let paths = Paths::new(dir.path());
    let empty = load(&paths).expect("readable");
    assert!(empty.workers.is_empty() && empty.warnings.is_empty());
    let executed = |number| {
        write_records(&paths, &spec(number), true, true);
        let text = serde_json::to_vec(&spec(number)).expect("JSON");
        fs::write(paths.worker(&spec(number).name, 1).join("spec.json"), text).expect("written");
    };
    executed(1);
    executed(2);
    let found = load(&paths).expect("readable");
    assert_eq!(found.workers.iter().map(|worker| worker.row.name.as_str()).collect::<Vec<_>>(), ["w1", "w2"]);
    assert_eq!(found.warnings, ["missing state file, rebuilt from the workers' own records"]);
    assert_eq!(load_one(&paths, "w2").expect("readable").map(|worker| worker.row.name.clone()), Some("w2".to_owned()));
}

#[test]
fn the_latest_of_what_an_agent_reports_and_shows_counts() {
    let tool = |waiting: Option<&str>, idle| Tool {
        since_ms: 10,
        operation: Some("make".to_owned()),
        waiting: waiting.map(str::to_owned),
        idle,
        kind: waiting.filter(|_| !idle).map(|_| NeedKind::Question),
        ..Tool::default()
    };
    let shown = |doing, what: &str, since_ms| {
        let kind = (doing == Doing::Waiting).then_some(NeedKind::Login);
        Some(Activity { doing, what: Some(what.to_owned()), since_ms, kind, turn: None })
    };
    let (asks, rests, works) = (tool(Some("which?"), false), tool(Some("over"), true), tool(None, false));
    for (told, shown, doing, what) in [
        (Some(asks.clone()), None, Doing::Waiting, "which?"),
        (Some(rests.clone()), None, Doing::Idle, "over"),
        (Some(works.clone()), None, Doing::Working, "make"),
        (None, shown(Doing::Idle, "seen", 5), Doing::Idle, "seen"),
        (Some(works.clone()), shown(Doing::Waiting, "asks how to log in", 5), Doing::Working, "make"),
        (Some(works), shown(Doing::Waiting, "asks how to log in", 15), Doing::Waiting, "asks how to log in"),
        (Some(rests.clone()), shown(Doing::Waiting, "asks how to log in", 15), Doing::Waiting, "asks how to log in"),
        (Some(rests), shown(Doing::Working, "", 15), Doing::Idle, "over"),
        // Its dialog was dismissed, which no agent reports.
        (Some(asks.clone()), shown(Doing::Idle, "seen", 15), Doing::Idle, "seen"),
        (Some(asks.clone()), shown(Doing::Idle, "seen", 5), Doing::Waiting, "which?"),
        (Some(asks.clone()), shown(Doing::Working, "", 15), Doing::Working, "make"),
    ] {
        let case = format!("{told:?} {shown:?}");
        let found = latest(told, shown).expect("known");
        assert_eq!((found.doing, found.what.as_deref()), (doing, Some(what)), "{case}");
    }
    let answered = Tool { since_ms: 12, waited: Some("which?".to_owned()), ..tool(None, false) };
    let late = latest(Some(answered), shown(Doing::Waiting, "which?", 15)).expect("known");
    assert_eq!(late.doing, Doing::Working, "the supervisor repeats what was answered meanwhile");
    let same = latest(Some(asks), shown(Doing::Waiting, "which?", 15)).expect("known");
    assert_eq!((same.kind, same.since_ms), (Some(NeedKind::Question), 10), "the supervisor only repeats it");
    assert_eq!(latest(None, None), None);
}

#[test]
fn a_screen_that_only_shows_work_does_not_say_at_what() {
    let dir = tempfile::tempdir().expect("a directory");
    for (leaf, text, doing, what) in [(WORKS, "", Doing::Working, None), (IDLE, "over", Doing::Idle, Some("over"))] {
        fs::write(dir.path().join(leaf), text).expect("written");
        let found = seen(dir.path(), leaf, doing).expect("known");
        assert_eq!((found.doing, found.what.as_deref()), (doing, what));
    }
}

#[test]
fn a_worker_that_is_being_forgotten_is_read_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let paths = Paths::new(dir.path());
    let rows = |numbers: &[usize]| {
        let rows = numbers.iter().map(|number| reconcile::row_of(&spec(*number), 1, "host")).collect();
        fs::write(paths.state(), Table::of(rows).render()).expect("written");
    };
    rows(&[1, 2]);
    write_records(&paths, &spec(2), true, true);
    let seen = load_once(&paths, Detail::Exit, Pick::All).expect("read");
    assert!(!is_being_forgotten(&paths, &seen), "its row is still there");
    rows(&[1]);
    assert!(!is_being_forgotten(&paths, &seen), "the other one has an exit record");
    rows(&[2]);
    assert!(is_being_forgotten(&paths, &seen));
    assert_eq!(load_where(&paths, Detail::Exit, Pick::All).expect("read").workers.len(), 1);
}

#[test]
fn a_running_worker_whose_row_another_program_dropped_is_listed() {
    let dir = tempfile::tempdir().expect("a directory");
    let paths = Paths::new(dir.path());
    let me = i32::try_from(std::process::id()).expect("pids fit");
    let process = procfs::identity(me, &procfs::boot_id()).expect("it is me");
    let lost = spec(1);
    write_records(&paths, &lost, false, true);
    let records = paths.worker("w1", 1);
    let lease = Lease {
        token: lost.token.clone(),
        started: lost.started.clone(),
        worker: process.clone(),
        shim: process,
        pane: None,
        restart: RestartPolicy::Never,
        limits: None,
        machine: None,
        process_namespace: None,
        survivors: Vec::new(),
    };
    fs::write(records.join("lease"), serde_json::to_vec(&lease).expect("JSON")).expect("written");
    let contract = serde_json::to_vec(&lost).expect("JSON");
    fs::write(records.join("spec.pending"), &contract).expect("written");
    // An ended one that was cleaned, and another one that has a row.
    write_records(&paths, &spec(2), true, true);
    fs::write(paths.worker("w2", 1).join("spec.json"), serde_json::to_vec(&spec(2)).expect("JSON")).expect("written");
    write_records(&paths, &spec(3), true, true);
    let listed = reconcile::row_of(&spec(3), 1, "host");
    fs::write(paths.state(), Table::of(vec![listed]).render()).expect("written");
    let names = |pick: Pick<'_>| -> Vec<String> {
        let registry = load_where(&paths, Detail::Fine, pick).expect("readable");
        assert!(registry.unlisted.iter().all(|name| name == "w1"), "{:?}", registry.unlisted);
        registry.workers.iter().map(|view| view.row.name.clone()).collect()
    };
    assert_eq!(names(Pick::All), ["w3"], "it was not executed");
    fs::rename(records.join("spec.pending"), records.join("spec.json")).expect("renamed");
    assert_eq!(names(Pick::All), ["w3", "w1"]);
    assert_eq!(names(Pick::Named(&["w1"])), ["w1"]);
    assert_eq!((names(Pick::Named(&["w2"])), names(Pick::Named(&["w3"]))), (Vec::new(), vec!["w3".to_owned()]));
    let view = load_one(&paths, "w1").expect("readable").expect("it runs");
    assert_eq!((view.state, view.pid), (FineState::Unsupervised, Some(me)));
    // The row of an earlier generation is none of it.
    let earlier = |generation: u64| {
        let row = reconcile::row_of(&Spec { generation, token: "earlier".to_owned(), ..lost.clone() }, 0, "host");
        fs::write(paths.state(), Table::of(vec![row]).render()).expect("written");
        load_one(&paths, "w1").expect("readable").expect("there").state
    };
    assert_eq!(earlier(1), FineState::Unsupervised, "the same number is another start");
    assert_eq!(names(Pick::All), ["w1"]);
    // The original keeps our id when it starts a worker again.
    let theirs = reconcile::row_of(&Spec { started: "later".to_owned(), ..lost.clone() }, 0, "host");
    fs::write(paths.state(), Table::of(vec![theirs]).render()).expect("written");
    assert_eq!(load_one(&paths, "w1").expect("readable").expect("there").state, FineState::Exited);
    fs::rename(&records, paths.worker("w1", 2)).expect("renamed");
    let later = serde_json::to_vec(&Spec { generation: 2, ..lost.clone() }).expect("JSON");
    fs::write(paths.worker("w1", 2).join("spec.json"), later).expect("written");
    assert_eq!((earlier(1), names(Pick::All)), (FineState::Unsupervised, vec!["w1".to_owned()]));
    // A row that cannot be read is one.
    fs::write(paths.state(), "{\"workers\": [{\"name\": \"w1\", \"cmd\": 7}]}").expect("written");
    assert_eq!(names(Pick::All), Vec::<String>::new());
}

#[test]
fn workers_of_an_earlier_boot_have_ended_also_if_their_ends_cannot_be_read() {
    let dir = tempfile::tempdir().expect("a directory");
    let paths = Paths::new(dir.path());
    for number in [1, 2] {
        write_records(&paths, &spec(number), false, true);
    }
    let rows = [1, 2].map(|number| reconcile::row_of(&spec(number), 1, "host"));
    fs::write(paths.state(), Table::of(rows.to_vec()).render()).expect("written");
    for is_there in [false, true] {
        if is_there {
            fs::create_dir(dir.path().join("exit.slots")).expect("made");
        }
        let registry = load(&paths).expect("readable");
        let states: Vec<FineState> = registry.workers.iter().map(|view| view.state).collect();
        assert_eq!(states, [FineState::Interrupted; 2]);
        assert!(registry.workers.iter().all(|view| view.row.status == WireStatus::Stopped));
        let is_told = registry.warnings.iter().filter(|text| text.contains("exit.slots: not a regular file")).count();
        assert_eq!((is_told, registry.warnings.len()), (usize::from(is_there), usize::from(is_there)));
    }
}
