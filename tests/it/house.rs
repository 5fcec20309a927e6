//! Idle processes do not wake, everything ends with the state directory, files are private; and the rules of the
//! code that no compiler checks.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::common::{Rig, SOON, holds_for, proc, wait_quiet, wait_until};

const LINES_MAX: usize = 500;

#[test]
fn everything_ends_when_the_state_directory_is_removed() {
    let rig = Rig::new();
    rig.spawn("p", &[], &["sleep", "600"]);
    rig.spawn("t", &["--tmux"], &["sleep", "600"]);
    assert!(rig.processes().len() >= 6);
    // The first try may fail if a process writes there at that moment.
    wait_until("directory removed", SOON, || std::fs::remove_dir_all(rig.root()).is_ok() || !rig.root().exists());
    wait_until("nothing of it runs any more", SOON, || rig.processes().is_empty());
    assert!(!rig.root().exists(), "the state directory was created again");
}

#[test]
fn files_are_private_for_any_umask() {
    let rig = Rig::new();
    let mut command = rig.program("sh");
    command
        .args(["-c", "umask 0; exec \"$0\" spawn --name p -- sh -c 'echo x; exec sleep 600'"])
        .arg(env!("CARGO_BIN_EXE_swarm"));
    crate::common::run(command).ok();
    rig.spawn_sh("t", &["--tmux"], "echo x; exec sleep 600");
    rig.spawn("e", &["--restart", "on-failure"], &["true"]);
    rig.wait("e");
    wait_until("output is there", SOON, || rig.log("t", "tmux").contains('x'));
    let mut seen = 0;
    let mut look = vec![rig.root()];
    while let Some(path) = look.pop() {
        let meta = std::fs::symlink_metadata(&path).expect("there");
        let mode = meta.permissions().mode() & 0o7777;
        assert_eq!(mode, if meta.is_dir() { 0o700 } else { 0o600 }, "{}: {mode:o}", path.display());
        if meta.is_dir() {
            look.extend(std::fs::read_dir(&path).expect("readable").flatten().map(|entry| entry.path()));
        }
        seen += 1;
    }
    assert!(seen > 15, "{seen}");
}

#[test]
fn the_inherited_environment_is_in_the_contract_only_and_goes_with_it() {
    let rig = Rig::new();
    let mut command = rig.command(&["spawn", "--name", "p", "--", "true"]);
    command.env("API_TOKEN", "very-secret-value");
    crate::common::run(command).ok();
    rig.wait("p");
    let with_secret = || {
        let (mut look, mut found) = (vec![rig.root()], Vec::new());
        while let Some(path) = look.pop() {
            if path.is_dir() {
                look.extend(std::fs::read_dir(&path).expect("readable").flatten().map(|entry| entry.path()));
            } else if path.is_file() {
                let text = std::fs::read(&path).expect("readable");
                found.extend(String::from_utf8_lossy(&text).contains("very-secret-value").then_some(path));
            }
        }
        found
    };
    let journal = rig.root().join("state.journal");
    let places = with_secret();
    assert!(places.iter().all(|path| path.ends_with("spec.json") || *path == journal), "{places:?}");
    assert_eq!(std::fs::metadata(&journal).expect("there").permissions().mode() & 0o777, 0o600);
    for words in [&["ls", "--format", "json"][..], &["ls", "--json"], &["status", "p", "--json"], &["events", "--json"]]
    {
        assert!(!rig.swarm(words).out.contains("very-secret-value"), "{words:?}");
    }
    rig.swarm(&["clean", "p"]).ok();
    rig.swarm(&["supervisor", "stop"]).ok();
    assert_eq!(with_secret(), Vec::<PathBuf>::new());
}

#[test]
fn idle_processes_do_not_wake() {
    // In the original, everything polls.
    let rig = Rig::new();
    rig.spawn("p", &[], &["sleep", "600"]);
    rig.spawn("t", &["--tmux", "--restart", "always"], &["sleep", "600"]);
    let (supervisor, guard) = rig.keepers();
    let watched = [supervisor.expect("runs"), guard.expect("runs"), rig.shim("p"), rig.shim("t")];
    wait_quiet(&watched);
}

#[test]
fn every_ended_process_is_reaped() {
    let rig = Rig::new();
    for i in 0..5 {
        rig.spawn(&format!("w{i}"), &[], &["true"]);
        rig.wait(&format!("w{i}"));
    }
    let (supervisor, _) = rig.keepers();
    let supervisor = supervisor.expect("runs");
    let zombies = || {
        let is_ours = |pid: &i32| proc::stat(*pid, 4).is_some_and(|parent| parent == supervisor.to_string());
        proc::all()
            .into_iter()
            .filter(|pid| is_ours(pid) && proc::stat(*pid, 3).is_some_and(|state| state == "Z"))
            .count()
    };
    wait_until("no child is left unreaped", SOON, || zombies() == 0);
    holds_for("no zombie appears again", Duration::from_millis(200), || zombies() == 0);
}

fn sources(root: &Path, dirs: &[&str]) -> Vec<(PathBuf, String)> {
    let mut look: Vec<PathBuf> = dirs.iter().map(|dir| root.join(dir)).filter(|dir| dir.exists()).collect();
    let mut found = Vec::new();
    while let Some(path) = look.pop() {
        if path.is_dir() {
            look.extend(std::fs::read_dir(&path).expect("readable").flatten().map(|entry| entry.path()));
        } else if path.extension().is_some_and(|kind| kind == "rs" || kind == "py") {
            let text = std::fs::read_to_string(&path).expect("text");
            found.push((path, text));
        }
    }
    assert!(!found.is_empty(), "{dirs:?} not found below {}", root.display());
    found
}

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn files_are_short() {
    let long: Vec<String> = sources(repository(), &["src", "actors", "tests"])
        .into_iter()
        .filter(|(path, text)| {
            !path.components().any(|part| part.as_os_str() == "target") && text.lines().count() > LINES_MAX
        })
        .map(|(path, text)| format!("{}: {} lines", path.display(), text.lines().count()))
        .collect();
    assert!(long.is_empty(), "{long:?}");
}

#[test]
fn machines_are_pure() {
    let banned = [
        "tokio",
        "ractor",
        "std::fs",
        "std::process",
        "std::net",
        "std::env",
        "std::io",
        "std::time",
        "std::thread",
        "nix::",
        "Instant",
        "SystemTime",
        "crate::ports::Ports",
    ];
    let machines: Vec<_> =
        sources(repository(), &["actors"]).into_iter().filter(|(path, _)| path.ends_with("machine.rs")).collect();
    assert!(machines.len() >= 3, "{}", machines.len());
    for (path, text) in machines {
        let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        let impure: Vec<&str> = code.filter(|line| banned.iter().any(|word| line.contains(word))).collect();
        assert!(impure.is_empty(), "{}: {impure:?}", path.display());
    }
}

#[test]
fn tests_wait_for_conditions_and_not_for_time() {
    let call = concat!("sle", "ep(");
    for (path, text) in sources(repository(), &["tests/it", "tests/data", "actors/tests"]) {
        let found: Vec<&str> = text.lines().filter(|line| line.contains(call)).collect();
        assert!(found.is_empty(), "{}: {found:?}", path.display());
    }
    // Real sleeps only: tests beside the code may use tokio's clock, which can be paused.
    let call = concat!("thread::sle", "ep(");
    for (path, text) in sources(repository(), &["src", "actors"]) {
        let is_test = path.file_stem().is_some_and(|stem| stem.to_string_lossy().contains("test"));
        let tests =
            if is_test { Some(text.as_str()) } else { text.split_once("\nmod tests {").map(|(_, tests)| tests) };
        let found: Vec<&str> = tests.unwrap_or_default().lines().filter(|line| line.contains(call)).collect();
        assert!(found.is_empty(), "{}: {found:?}", path.display());
    }
}

#[test]
fn the_inner_layers_do_not_depend_on_the_outer_ones() {
    let manifest = std::fs::read_to_string(repository().join("actors/Cargo.toml")).expect("readable");
    let names = manifest.lines().filter_map(|line| Some(line.split_once(['=', '.'])?.0.trim().trim_matches('"')));
    let edge = ["git2", "nix", "clap", "tmux_interface", "axum", "rustix", "jiff"];
    let found: Vec<&str> = names.filter(|name| edge.contains(name)).collect();
    assert!(found.is_empty(), "{found:?}");
    for (path, text) in sources(repository(), &["actors"]) {
        let is_test = path.components().any(|part| part.as_os_str() == "tests");
        assert!(is_test || !text.contains("std::process::Command"), "{} starts processes", path.display());
    }
}
