//! `swarm doctor`: each kind of trouble is created for real, found and explained, and repaired only if that was
//! requested and cannot lose anything.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;

use serde_json::Value;

use crate::common::{Rig, SOON, proc, remove_worktree, wait_until};

/// Findings as `check: what`, without those about the machine that runs the test.
fn found(rig: &Rig, flags: &[&str]) -> Vec<String> {
    found_in(rig, &rig.cwd(), flags)
}

fn found_in(rig: &Rig, cwd: &std::path::Path, flags: &[&str]) -> Vec<String> {
    let said = rig.swarm_in(cwd, &[&["doctor", "--json"], flags].concat());
    let body: Value = serde_json::from_str(&said.out).unwrap_or_else(|error| panic!("{error}: {said:?}"));
    assert_eq!(body["schema"], "swarm.doctor/1");
    let all = body["findings"].as_array().expect("a list");
    let of_the_machine = |one: &&Value| !matches!(one["check"].as_str(), Some("disk" | "login" | "clock"));
    let those: Vec<&Value> = all.iter().filter(of_the_machine).collect();
    let open = all.iter().any(|one| one["repaired"] == false);
    assert_eq!(said.code, Some(i32::from(open)), "{said:?}");
    let text = |one: &Value, key: &str| one[key].as_str().unwrap_or_default().to_owned();
    those
        .into_iter()
        .map(|one| {
            let mended = if one["repaired"] == true { " (mended)" } else { "" };
            format!("{}: {}{mended}", text(one, "check"), text(one, "what"))
        })
        .collect()
}

#[track_caller]
fn one(found: &[String], parts: &[&str]) {
    let [finding] = found else { panic!("one finding was expected: {found:#?}") };
    assert!(parts.iter().all(|part| finding.contains(part)), "{finding}");
}

#[test]
fn a_healthy_directory_has_nothing_wrong_and_is_not_touched() {
    let rig = Rig::new();
    assert!(found(&rig, &[]).is_empty());
    assert!(!rig.root().exists(), "doctor created the directory");
    rig.repo();
    rig.spawn("p", &[], &["sleep", "600"]);
    rig.spawn("t", &["--tmux"], &["sleep", "600"]);
    assert_eq!(found(&rig, &[]), Vec::<String>::new());
}

#[test]
fn files_accessible_to_others_are_made_private() {
    let rig = Rig::new();
    rig.spawn("p", &[], &["true"]);
    rig.wait("p");
    let log = rig.root().join("logs/p.stdout.log");
    fs::set_permissions(&log, Permissions::from_mode(0o644)).expect("set");
    one(&found(&rig, &[]), &["modes: ", "p.stdout.log is accessible to other users (mode 644)"]);
    let said = rig.swarm(&["doctor", "--repair"]);
    assert!(
        said.code == Some(1) && said.err.contains("cannot ask for confirmation: standard input is not a terminal"),
        "{said:?}"
    );
    assert_eq!(fs::metadata(&log).expect("there").permissions().mode() & 0o777, 0o644, "the repair was not confirmed");
    one(&found(&rig, &["--repair", "--yes"]), &["(mended)"]);
    assert_eq!(fs::metadata(&log).expect("there").permissions().mode() & 0o777, 0o600);
    assert!(found(&rig, &[]).is_empty());
}

#[test]
fn temporary_files_of_dead_processes_are_removed() {
    let rig = Rig::new();
    rig.spawn("p", &[], &["sleep", "600"]);
    let litter = rig.root().join(format!("state.json.tmp.{}.1", i32::MAX));
    fs::write(&litter, "{").expect("written");
    fs::set_permissions(&litter, Permissions::from_mode(0o600)).expect("set");
    let ours = rig.root().join(format!("state.json.tmp.{}.1", std::process::id()));
    fs::write(&ours, "{").expect("written");
    fs::set_permissions(&ours, Permissions::from_mode(0o600)).expect("set");
    one(&found(&rig, &["--repair", "--yes"]), &["leftovers: ", "(mended)"]);
    assert!(!litter.exists() && ours.exists());
}

#[test]
fn what_a_merge_queue_could_not_delete_is_named_and_deleted() {
    let rig = Rig::new();
    rig.spawn("p", &[], &["true"]);
    rig.wait("p");
    let (queue, private) = (rig.root().join("merge/0123456789abcdef"), Permissions::from_mode(0o700));
    fs::create_dir_all(queue.join("discarded-2/a/b")).expect("made");
    fs::create_dir(queue.join("verify")).expect("made");
    for dir in [&rig.root().join("merge"), &queue] {
        fs::set_permissions(dir, private.clone()).expect("set");
    }
    one(&found(&rig, &[]), &["leftovers: ", "/discarded-2 is what a command of a merge queue left"]);
    one(&found(&rig, &["--repair", "--yes"]), &["(mended)"]);
    assert!(!queue.join("discarded-2").exists() && queue.join("verify").exists());
    assert!(found(&rig, &[]).is_empty());
}

#[test]
fn unsupervised_workers_get_a_supervisor() {
    let rig = Rig::new();
    rig.spawn("p", &[], &["sleep", "600"]);
    rig.kill_keepers();
    one(&found(&rig, &[]), &["supervisor: 1 worker(s) running without a supervisor"]);
    one(&found(&rig, &["--repair", "--yes"]), &["(mended)"]);
    assert_eq!(rig.swarm(&["supervisor", "status"]).code, Some(0));
    assert!(found(&rig, &[]).is_empty());
}

#[test]
fn entries_that_cannot_be_read_and_files_with_mistakes_are_named() {
    let rig = Rig::new();
    rig.put_state(r#"{"workers": [{"name": "odd", "pid": "text"}]}"#);
    fs::set_permissions(rig.state(), Permissions::from_mode(0o600)).expect("set");
    fs::set_permissions(rig.root(), Permissions::from_mode(0o700)).expect("set");
    one(&found(&rig, &[]), &["registry: cannot read entry odd of state.json: "]);
    fs::remove_file(rig.state()).expect("removed");
    let repo = rig.repo();
    fs::write(repo.join("swarm.toml"), "[spawn]\ntmx = true\n").expect("written");
    one(&found_in(&rig, &repo, &[]), &["configuration: ", "line 2: unknown key 'spawn.tmx'"]);
}

#[test]
fn processes_of_a_worker_that_has_ended_are_found() {
    let rig = Rig::new();
    rig.spawn_sh("p", &[], "setsid sleep 600 & echo $! > child; exec sleep 600");
    let file = rig.cwd().join("child");
    wait_until("the worker has started", SOON, || fs::read_to_string(&file).is_ok_and(|text| text.ends_with('\n')));
    let child: i32 = fs::read_to_string(&file).expect("there").trim().parse().expect("a pid");
    proc::kill(rig.shim("p"));
    wait_until("the shim is gone", SOON, || rig.fine("p") == "unsupervised");
    one(&found(&rig, &[]), &["processes: worker 'p' is running, but its shim was killed"]);
    // A supervisor would end the process.
    rig.kill_keepers();
    proc::kill(rig.pid("p"));
    wait_until("p has ended", SOON, || rig.swarm(&["status", "p"]).code == Some(1));
    let found = found(&rig, &[]);
    assert!(
        found.iter().any(|one| one.contains(&format!("'p' has ended, but some of its processes still run: {child}"))),
        "{found:?}"
    );
    proc::kill(child);
}

#[test]
fn orphaned_worktrees_are_reported_and_only_those_without_work_are_removed() {
    let rig = Rig::new();
    let repo = rig.repo();
    for name in ["dirty", "spare", "gone", "kept"] {
        let script = if name == "dirty" { "echo x > new" } else { "true" };
        rig.swarm_in(&repo, &["spawn", "--name", name, "--worktree", "--", "sh", "-c", script]).ok();
        rig.wait(name);
    }
    let tree = |name: &str| rig.path("repo-worktrees").join(name);
    // A worktree that the user made, which doctor must ignore.
    rig.git(&repo, &["worktree", "add", "-q", "-b", "mine", tree("mine").to_str().expect("text")]);
    remove_worktree(tree("gone"));
    one(&found(&rig, &[]), &["worktrees: the worktree of worker 'gone' is missing"]);
    // As after the loss of the registry.
    let kept = rig.rows().into_iter().filter(|row| row["name"] == "kept").collect::<Vec<_>>();
    rig.swarm(&["supervisor", "stop"]).ok();
    rig.put_state(serde_json::json!({"workers": kept}).to_string());
    for entry in fs::read_dir(rig.root().join("w")).expect("there").flatten() {
        if !entry.file_name().to_string_lossy().starts_with("kept.") {
            fs::remove_dir_all(entry.path()).expect("removed");
        }
    }
    let told = found(&rig, &["--repair", "--yes"]);
    assert_eq!(told.len(), 3, "{told:#?}");
    let of = |name: &str| {
        let path = tree(name).display().to_string();
        told.iter().find(|finding| finding.contains(&path)).unwrap_or_else(|| panic!("{name}: {told:#?}")).clone()
    };
    assert!(of("dirty").contains("and must be kept: "), "{told:#?}");
    assert!(of("spare").contains("has no unsaved work"), "{told:#?}");
    assert!(of("gone").contains("whose directory is missing"), "{told:#?}");
    // The worktrees are as young as those of a start in progress, so none is touched.
    assert!(told.iter().all(|one| !one.contains("(mended)")), "{told:#?}");
    assert!(["dirty/new", "mine", "kept", "spare"].iter().all(|name| tree(name).exists()));
    assert!(rig.git(&repo, &["worktree", "list"]).contains("/gone"));
    let old = std::time::SystemTime::now() - std::time::Duration::from_secs(7200);
    for name in ["dirty", "spare", "kept"] {
        let mark = repo.join(".git/worktrees").join(name).join("swarm-made");
        fs::File::options().write(true).open(&mark).and_then(|file| file.set_modified(old)).expect("it is marked");
    }
    let mut command = rig.command(&["doctor", "--repair", "--yes"]);
    command.current_dir(&repo).env("SWARM_DIR", rig.path("other"));
    crate::common::run(command);
    assert!(tree("spare").exists(), "the doctor of another state directory removed it");
    let mended: Vec<String> =
        found(&rig, &["--repair", "--yes"]).into_iter().filter(|one| one.contains("(mended)")).collect();
    one(&mended, &["/spare (branch spare)"]);
    assert!(["dirty/new", "mine", "kept"].iter().all(|name| tree(name).exists()) && !tree("spare").exists());
    assert!(rig.git(&repo, &["branch", "--list", "spare"]).contains("spare"), "its branch stays");
}

#[test]
fn the_advice_for_a_worktree_without_a_worker_continues_in_it() {
    let rig = Rig::new();
    let (repo, above) = (rig.repo(), rig.path("trees"));
    let place = ["--worktree", "--branch", "topic", "--worktree-dir", above.to_str().expect("text")];
    let start = |script: &str| {
        let said =
            rig.swarm_in(&repo, &[&["spawn", "--name", "odd"], &place[..], &["--", "sh", "-c", script]].concat());
        assert_eq!(said.code, Some(0), "{said:?}");
        rig.wait("odd");
    };
    start("echo x > left");
    let kept = rig.swarm_in(&repo, &["clean", "odd"]);
    let advice = format!("'swarm spawn --name odd {}' continues in it", place.join(" "));
    assert!(kept.err.contains(&advice), "{kept:?}");
    let told = rig.swarm_in(&repo, &["doctor"]);
    let advice = format!("run 'swarm spawn --name odd {} -- COMMAND' to continue in it", place.join(" "));
    assert!(told.out.contains(&advice), "{told:?}");
    start("cat left");
    assert_eq!(rig.log("odd", "stdout"), "x\n");
}

#[test]
fn worktrees_of_starts_in_progress_and_of_other_state_directories_are_left_alone() {
    let rig = Rig::new();
    let repo = rig.repo();
    rig.swarm_in(&repo, &["spawn", "--name", "mine", "--worktree", "--", "sleep", "600"]).ok();
    let mut command = rig.command(&["doctor", "--repair", "--yes"]);
    command.current_dir(&repo).env("SWARM_DIR", rig.path("other"));
    crate::common::run(command);
    assert!(rig.path("repo-worktrees/mine/.git").exists());
    std::thread::scope(|scope| {
        let starts = scope.spawn(|| {
            for number in 0..10 {
                let name = format!("w{number}");
                rig.swarm_in(&repo, &["spawn", "--name", &name, "--worktree", "--", "sleep", "600"]).ok();
            }
        });
        while !starts.is_finished() {
            let told = found_in(&rig, &repo, &["--repair", "--yes"]);
            assert!(told.iter().all(|one| !one.starts_with("worktrees: ")), "{told:#?}");
        }
    });
    assert!((0..10).all(|number| rig.path("repo-worktrees").join(format!("w{number}/.git")).exists()));
}

#[test]
fn foreign_files_in_the_state_directory_are_not_touched() {
    let rig = Rig::new();
    rig.spawn("a.tmp.999999", &[], &["sh", "-c", "echo x; exec sleep 600"]);
    let make = |name: &str, mode: u32| {
        let path = rig.root().join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        fs::write(&path, "precious").expect("written");
        fs::set_permissions(&path, Permissions::from_mode(mode)).expect("set");
        path
    };
    let dead = i32::MAX;
    let checkout = make("merge/m/verify/run.sh", 0o755);
    let hook = make("hooks/post.sh", 0o755);
    let notes = make(&format!("wt/notes.tmp.{dead}"), 0o644);
    let backup = make(&format!("backup.tmp-{dead}-a"), 0o644);
    for dir in ["merge", "merge/m"] {
        fs::set_permissions(rig.root().join(dir), Permissions::from_mode(0o700)).expect("set");
    }
    assert_eq!(found(&rig, &["--repair", "--yes"]), Vec::<String>::new());
    for (path, mode) in [(checkout, 0o755), (hook, 0o755), (notes, 0o644), (backup, 0o644)] {
        let now = fs::metadata(&path).unwrap_or_else(|_| panic!("{} is gone", path.display()));
        assert_eq!(now.permissions().mode() & 0o777, mode, "{}", path.display());
    }
    assert!(rig.root().join("logs/a.tmp.999999.stdout.log").exists());
}

#[test]
fn locks_of_a_killed_git_are_found_and_removed() {
    let rig = Rig::new();
    let repo = rig.repo();
    rig.swarm_in(&repo, &["spawn", "--name", "w", "--worktree", "--", "true"]).ok();
    rig.wait("w");
    let lock = repo.join(".git/worktrees/w/index.lock");
    fs::write(&lock, "").expect("written");
    assert!(found(&rig, &[]).is_empty(), "a young lock may be in use");
    let old = std::time::SystemTime::now() - std::time::Duration::from_secs(3600);
    fs::File::options().write(true).open(&lock).and_then(|file| file.set_modified(old)).expect("set");
    one(&found(&rig, &[]), &["worktrees: ", "index.lock is the lock of a killed git process"]);
    one(&found(&rig, &["--repair", "--yes"]), &["(mended)"]);
    assert!(!lock.exists());
}

#[test]
fn a_directory_that_is_not_a_state_directory_is_left_alone() {
    let rig = Rig::new();
    let project = rig.root();
    fs::create_dir(&project).expect("made");
    fs::write(project.join("state.json"), "{\"theirs\": 1}").expect("written");
    fs::set_permissions(&project, Permissions::from_mode(0o755)).expect("set");
    let told = |found: &[String], what: &str| assert!(found.iter().any(|one| one.contains(what)), "{found:#?}");
    told(&found(&rig, &["--repair", "--yes"]), "which contains files, but no state of swarm");
    assert_eq!(fs::metadata(&project).expect("there").permissions().mode() & 0o777, 0o755);
    // Once it is also a state directory, our own files are made private, and nothing else.
    fs::write(project.join("state.json"), "{\"workers\": []}").expect("written");
    fs::write(project.join("main.c"), "").expect("written");
    told(&found(&rig, &["--repair", "--yes"]), "has other files too");
    assert_eq!(fs::metadata(&project).expect("there").permissions().mode() & 0o777, 0o755);
    assert_eq!(fs::metadata(project.join("state.json")).expect("there").permissions().mode() & 0o077, 0);
    fs::remove_dir_all(&project).expect("removed");
    std::os::unix::fs::symlink("/dev/null", &project).expect("linked");
    told(&found(&rig, &["--repair", "--yes"]), "/dev/null, which is not a directory");
}

#[test]
fn a_running_worker_without_a_row_is_reported_and_gets_it_back() {
    let rig = Rig::new();
    rig.spawn("a", &[], &["sleep", "600"]);
    let loaded = fs::read(rig.state()).expect("there");
    rig.spawn("b", &[], &["sleep", "600"]);
    fs::write(rig.state(), loaded).expect("written");
    one(&found(&rig, &[]), &["registry: worker 'b' is running but has no row"]);
    one(&found(&rig, &["--repair", "--yes"]), &["(mended)"]);
    assert_eq!(rig.names(), ["a", "b"]);
    assert!(found(&rig, &[]).is_empty());
}

#[test]
fn repositories_whose_settings_wait_for_consent_are_named() {
    let rig = Rig::new();
    let repo = rig.repo();
    let set = |text: &str| fs::write(repo.join("swarm.toml"), text).expect("written");
    set("[merge]\nverify = 'true'\n");
    rig.trust(&repo);
    assert_eq!(found(&rig, &[]), Vec::<String>::new());
    set("[merge]\nverify = 'false'\n[worktree]\npost_create = 'true'\n");
    fs::write(repo.join(".mcp.json"), "{}").expect("written");
    let place = repo.display().to_string();
    one(&found(&rig, &[]), &["trust: ", &format!("{place}: .mcp.json, merge.verify, worktree.post_create changed")]);
    let said = rig.swarm(&["doctor"]);
    assert!(said.out.contains(&format!("  hint: run 'swarm trust {place}'\n")), "{said:?}");
    rig.trust(&repo);
    assert_eq!(found(&rig, &[]), Vec::<String>::new());
    // Nothing is expected of a project that is not trusted any more, except in that project.
    rig.swarm_in(&repo, &["trust", "--revoke"]);
    assert_eq!(found(&rig, &[]), Vec::<String>::new());
    assert_eq!(found_in(&rig, &repo, &[]).len(), 1);
    let book = rig.path("home/.config/swarm/trust.json");
    fs::write(&book, "torn").expect("written");
    one(&found(&rig, &[]), &["trust: ", &book.display().to_string()]);
}

#[test]
fn a_damaged_line_in_the_middle_of_the_events_is_reported() {
    let rig = Rig::new();
    rig.spawn("p", &[], &["true"]);
    rig.wait("p");
    // It would add events meanwhile.
    rig.swarm(&["supervisor", "stop"]).ok();
    let file = rig.root().join("events.jsonl");
    let text = fs::read_to_string(&file).expect("there");
    let torn = format!("{text}{{\"at_ms\":1,\"wor\n{text}{{\"at");
    fs::write(&file, &torn).expect("written");
    assert!(found(&rig, &[]).is_empty(), "a crash tears lines, which is no damage");
    fs::write(&file, torn.replacen("\"worker\":\"p\"", "\"worker\"~\"p\"", 1)).expect("written");
    one(&found(&rig, &[]), &["events: ", "events.jsonl, line ", "damaged lines: 1,"]);
    for verb in [&["events"][..], &["history", "p"]] {
        let said = rig.swarm(verb);
        let is_warned =
            said.err.matches("swarm: warning: ").count() == 1 && said.err.contains("damaged line in the middle");
        assert!(said.code == Some(0) && is_warned, "{said:?}");
    }
}

#[test]
fn a_damaged_journal_of_the_registry_is_reported_and_begun_anew() {
    let rig = Rig::new();
    for name in ["a", "b", "c"] {
        rig.spawn(name, &[], &["sleep", "600"]);
    }
    let path = rig.root().join("state.journal");
    let mut bytes = fs::read(&path).expect("there");
    let second = bytes.windows(8).enumerate().filter(|(_, part)| *part == b"swarmjnl").nth(1).expect("records").0;
    bytes[second + 80] ^= 1;
    fs::write(&path, bytes).expect("written");
    one(&found(&rig, &[]), &["registry: ", "state.journal is damaged"]);
    one(&found(&rig, &["--repair", "--yes"]), &["state.journal is damaged", "(mended)"]);
    assert_eq!(found(&rig, &[]), Vec::<String>::new());
    assert_eq!(rig.names(), ["a", "b", "c"]);
}
