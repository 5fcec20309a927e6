use super::*;
use crate::views::load_one;
use swarm_actors::registry::replay::Unsynced;
use swarm_actors::registry::store::Store;
use swarm_actors::registry::{Mutation, reconcile};
use swarm_model::{Contract, FineState, Machine, ProcessId, WantedState};

fn spec_of(boot: &str) -> Spec {
    Spec {
        name: "a".to_owned(),
        generation: 1,
        token: "token".to_owned(),
        request: "r".to_owned(),
        started: "2026-01-01T00:00:00.000001".to_owned(),
        contract: Contract { argv: vec!["true".to_owned()], cwd: "/".to_owned(), ..Contract::default() },
        worktree: None,
        logs: Vec::new(),
        resume: None,
        hooked: None,
        machine: Some(Machine { id: String::new(), boot: boot.to_owned(), host: "host".to_owned() }),
        exit_slot: None,
    }
}

/// Starts a worker in another boot, with its contract in the journal only, and returns its state for readers.
fn state_after(lose: impl FnOnce(&Paths)) -> (FineState, bool) {
    let home = tempfile::tempdir().expect("a directory");
    let paths = Paths::new(home.path());
    let before = "00000000-0000-4000-8000-000000000001";
    let spec = spec_of(before);
    let text = serde_json::to_string(&spec).expect("is JSON");
    std::fs::create_dir_all(paths.worker("a", 1)).expect("made");
    std::fs::write(paths.worker("a", 1).join("spec.json"), &text).expect("written");
    let row = Box::new(reconcile::row_of(&spec, 77, "host"));
    let contract = Some(Unsynced { dir: worker_dir_name("a", 1), text });
    let start = Mutation::Start { expect: None, row, contract };
    let mut writer = Store::of_boot(home.path(), before.to_owned());
    assert_eq!(writer.commit(vec![start], &|| Ok(Vec::new())).expect("commits"), vec![Ok(())]);
    lose(&paths);
    let view = load_one(&paths, "a").expect("readable").expect("has a row");
    let facts = DiskRecords::new(paths).read("a", 1).expect("readable").expect("has a contract");
    (view.state, matches!(facts.spec, SpecFacts::Pending(_)))
}

/// Returns the contents of `exit.json`; `None` if there is none.
fn exits() -> Vec<Option<String>> {
    let exit = |end: &str, reason: &str, more: &str| {
        Some(format!(
            r#"{{"token":"t","started":"s","pid":77,{end},"reason":"{reason}","ended_at_ms":0,"duration_ms":0,
            "usage":{{"user_us":0,"system_us":0,"rss_max_kb":0}}{more}}}"#
        ))
    };
    vec![
        None,
        exit(r#""code":0"#, "exited", ""),
        exit(r#""code":3"#, "exited", ""),
        exit(r#""signal":15"#, "stopped", ""),
        exit(r#""signal":15"#, "stopped", r#","interrupted":true"#),
        exit(r#""signal":1"#, "closed", r#","server_lost":true"#),
        exit(r#""signal":9"#, "out-of-memory", ""),
    ]
}

/// Returns the processes that a lease may name: one that lives, one that has ended, and one of an earlier boot.
fn processes() -> [ProcessId; 3] {
    let boot = procfs::boot_id();
    let pid = i32::try_from(std::process::id()).expect("pids fit");
    let alive = procfs::identity(pid, &boot).expect("it is me");
    let ended = ProcessId { start_ticks: alive.start_ticks + 1, ..alive.clone() };
    let earlier = ProcessId { boot: "00000000-0000-4000-8000-000000000001".to_owned(), ..alive.clone() };
    [alive, ended, earlier]
}

#[test]
fn a_summary_and_the_records_say_the_same_for_all_combinations_of_files() {
    let home = tempfile::tempdir().expect("a directory");
    let paths = Paths::new(home.path());
    let dir = paths.worker("a", 1);
    std::fs::create_dir_all(&dir).expect("made");
    let spec = spec_of("00000000-0000-4000-8000-000000000001");
    let row = reconcile::row_of(&spec, 77, "host");
    let write = |leaf: &str, text: Option<String>| match text {
        Some(text) => std::fs::write(dir.join(leaf), text).expect("written"),
        None => swarm_sys::files::remove_if_present(&dir.join(leaf)).expect("removed"),
    };
    let json = |value: serde_json::Result<String>| Some(value.expect("is JSON"));
    let wanted = |state, renewed| Wanted { state, renewed, ..Wanted::default() };
    use WantedState::{Failed, Running, Stopped};
    let all_wanted = [
        None,
        Some(wanted(Running, false)),
        Some(wanted(Running, true)),
        Some(wanted(Stopped, false)),
        Some(wanted(Failed, false)),
    ];
    for restart in [RestartPolicy::Never, RestartPolicy::OnFailure, RestartPolicy::Always] {
        let contract = Contract { restart, ..spec.contract.clone() };
        let text = json(serde_json::to_string(&Spec { contract, ..spec.clone() }));
        let [alive, ..] = processes();
        let cases = |it| [(it, false, false), (it, true, false), (it, false, true), (it, true, true)];
        for (process, is_held, survives) in processes().iter().flat_map(cases) {
            let survivors: Vec<_> = survives.then(|| alive.clone()).into_iter().collect();
            let (worker, shim) = (process.clone(), process.clone());
            let (token, started) = (spec.token.clone(), spec.started.clone());
            let (pane, limits, machine) = (None, None, None);
            let process_namespace = None;
            let lease =
                Lease { token, started, worker, shim, pane, restart, limits, machine, process_namespace, survivors };
            write("lease", json(serde_json::to_string(&lease)));
            let file = File::options().write(true).open(dir.join("lease")).expect("there");
            if is_held {
                let lock = super::super::records::whole_file_lock();
                nix::fcntl::fcntl(&file, nix::fcntl::FcntlArg::F_OFD_SETLK(&lock)).expect("locked");
            }
            for (is_executed, exit) in
                [true, false].into_iter().flat_map(|it| exits().into_iter().map(move |e| (it, e)))
            {
                write("spec.json", text.clone().filter(|_| is_executed));
                write("spec.pending", text.clone().filter(|_| !is_executed));
                write("exit.json", exit.clone());
                for wanted in &all_wanted {
                    write("wanted.json", wanted.as_ref().and_then(|it| json(serde_json::to_string(it))));
                    let case =
                        format!("{restart:?}, {process:?}, {is_held}, {survives}, {is_executed}, {exit:?}, {wanted:?}");
                    let facts = DiskRecords::new(paths.clone()).read("a", 1).expect("readable").expect("there");
                    let records = Records::open(&paths).expect("readable").expect("there");
                    let state = |detail| {
                        let summary = records.of(&row, detail).expect("readable").expect("there");
                        reconcile::fine_state(&summary)
                    };
                    let state_of_all = reconcile::fine_state(&facts);
                    assert_eq!(state(Detail::Fine), state_of_all, "{case}");
                    assert_eq!(state(Detail::Word).is_running(), state_of_all.is_running(), "{case}");
                }
            }
        }
    }
}

#[test]
fn an_end_is_told_by_its_record_if_the_lease_is_damaged() {
    let home = tempfile::tempdir().expect("a directory");
    let paths = Paths::new(home.path());
    let dir = paths.worker("a", 1);
    std::fs::create_dir_all(&dir).expect("made");
    let spec = spec_of(&procfs::boot_id());
    let row = reconcile::row_of(&spec, 77, "host");
    std::fs::write(dir.join("spec.json"), serde_json::to_string(&spec).expect("is JSON")).expect("written");
    for lease in [None, Some(""), Some("{ torn")] {
        swarm_sys::files::remove_if_present(&dir.join("lease")).expect("removed");
        lease.iter().for_each(|text| std::fs::write(dir.join("lease"), text).expect("written"));
        for exit in exits() {
            swarm_sys::files::remove_if_present(&dir.join("exit.json")).expect("removed");
            exit.iter().for_each(|text| std::fs::write(dir.join("exit.json"), text).expect("written"));
            let facts = DiskRecords::new(paths.clone()).read("a", 1).expect("readable").expect("there");
            let records = Records::open(&paths).expect("readable").expect("there");
            for detail in [Detail::Fine, Detail::Exit, Detail::Word] {
                let summary = records.of(&row, detail).expect("readable").expect("there");
                assert!(reconcile::belongs(&row, &summary), "{lease:?}, {exit:?}");
                assert_eq!(reconcile::fine_state(&summary), reconcile::fine_state(&facts), "{lease:?}, {exit:?}");
                assert_eq!(summary.exit.is_some(), exit.is_some(), "{lease:?}, {exit:?}");
            }
        }
    }
    std::fs::remove_file(dir.join("lease")).expect("removed");
    nix::unistd::mkfifo(&dir.join("lease"), nix::sys::stat::Mode::S_IRWXU).expect("made");
    assert!(Records::open(&paths).expect("readable").expect("there").of(&row, Detail::Word).is_err());
}

#[test]
fn a_contract_that_a_power_cut_took_is_read_from_the_journal() {
    assert_eq!(state_after(|_| {}), (FineState::Interrupted, false));
    let torn = |paths: &Paths| std::fs::write(paths.worker("a", 1).join("spec.json"), "{ \"na").expect("written");
    assert_eq!(state_after(torn), (FineState::Interrupted, true));
    let gone = |paths: &Paths| std::fs::remove_dir_all(paths.worker("a", 1)).expect("removed");
    assert_eq!(state_after(gone), (FineState::Interrupted, true));
}
