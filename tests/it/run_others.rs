//! Runs beside other programs, runs of earlier plans, and repeated interrupts.

use std::fs;
use std::io::Write as _;
use std::process::Stdio;
use std::time::Duration;

use serde_json::json;

use crate::common::proc::{self, Signal};
use crate::common::{SOON, quick, timed, wait_until};
use crate::run::{Site, events, text, told};

#[test]
fn a_workstream_of_another_program_is_left_to_it() {
    let site = Site::new();
    site.spec("a", "", "echo a > a.txt");
    site.commit();
    let tree = site.repo.join(".arial/worktrees/a");
    fs::create_dir_all(&tree).expect("made");
    let mut sleeper = site.rig.program("cat").current_dir(&tree).stdin(Stdio::piped()).spawn().expect("started");
    let row = json!({"id": "a", "specFile": "specs/a.md", "title": "a", "status": "running", "branch": "arial/a",
        "worktreePath": ".arial/worktrees/a", "pid": sleeper.id()});
    let state = json!({"version": 2, "specsDir": "./specs", "baseBranch": "main", "status": "running",
        "createdAt": "2026-01-01T00:00:00.000Z", "updatedAt": "2026-01-01T00:00:00.000Z", "workstreams": [row]});
    site.write(".arial/state.json", &state.to_string());
    let cause = format!("workstream 'a' is in use by process {} of another program", sleeper.id());
    site.swarm(&["run"]).refused(1, &cause);
    drop(sleeper.stdin.take());
    sleeper.wait().expect("ended");
    fs::remove_dir(&tree).expect("removed");
    site.run(0, &[]);
    assert_eq!(site.landed("a.txt"), "a");
}

#[test]
fn a_branch_keeps_the_name_that_another_program_gave_it() {
    let site = Site::new();
    site.spec("a", "", "echo a > a.txt");
    site.commit();
    site.plan();
    let mut state = site.state();
    state["workstreams"][0]["branch"] = "arial/a-1a2b3c4d".into();
    site.write(".arial/state.json", &state.to_string());
    let all = site.run(0, &[]);
    assert_eq!(told(&all, "a").last().map(String::as_str), Some("workstream.done"));
    assert_eq!(text(&site.row("a")["branch"]), "arial/a-1a2b3c4d");
}

#[test]
fn specs_added_or_removed_since_the_plan_are_named() {
    let site = Site::new();
    site.spec("a", "", "echo a > a.txt");
    site.commit();
    site.plan();
    site.spec("new", "", "true");
    let said = site.swarm(&["run"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(said.err.contains("spec 'new' is not planned; run 'swarm plan' to add it"), "{said:?}");
    fs::remove_file(site.repo.join("specs/a.md")).expect("removed");
    let gone = format!("workstream 'a': spec not found: {}", site.repo.join("specs/a.md").display());
    let said = site.swarm(&["run"]).refused(1, &gone);
    assert!(said.err.contains("to plan again"), "{said:?}");
}

#[test]
fn a_spec_changed_during_an_attempt_is_noticed_by_the_next_attempt() {
    let site = Site::new();
    site.spec("a", "retries: 1\n", "echo more >> ../../../specs/a.md; exit 1");
    site.commit();
    site.plan();
    let all = site.run(1, &[]);
    // The preparation of the next attempt reports this change at any time, so its position says nothing.
    let mut words = told(&all, "a");
    words.retain(|word| *word != "workstream.spec_changed");
    assert_eq!(words[..3], ["workstream.started", "workstream.retrying", "workstream.started"]);
    let changed = all.iter().find(|event| event["event"] == "workstream.spec_changed").expect("it is told");
    assert_eq!((text(&changed["file"]), changed["attempt"].as_u64()), ("specs/a.md", Some(2)));
}

#[test]
fn cleanup_removes_leftovers_of_an_earlier_plan() {
    let site = Site::new();
    site.spec("old", "retries: 0\n", "exit 1");
    site.spec("kept", "", "echo k > k.txt");
    site.commit();
    site.plan();
    site.run(1, &[]);
    fs::remove_file(site.repo.join("specs/old.md")).expect("removed");
    site.commit();
    site.plan();
    site.run(0, &[]);
    let tree = site.repo.join(".arial/worktrees/old");
    assert!(tree.exists());
    let said = site.swarm(&["run", "cleanup"]).ok();
    assert_eq!(said, format!("removed {}\nremoved arial/old\n", tree.display()));
    assert!(!tree.exists() && site.rig.names().is_empty());
}

#[test]
fn a_second_interrupt_kills_at_once() {
    // Less than the five seconds of grace that a shim gives.
    quick("the end", Duration::from_secs(4), interrupt_twice);
}

/// Interrupts a run twice, and returns the time from the second interrupt to the end of the command.
fn interrupt_twice() -> Duration {
    let site = Site::new();
    site.spec("a", "", "trap '' TERM HUP INT; echo on > ../../../on; while :; do sleep 600; done");
    site.git(&["add", "specs"]);
    site.git(&["commit", "-q", "-m", "specs"]);
    site.plan();
    let mut command = site.rig.command(&["run", "--headless"]);
    let mut client =
        command.current_dir(&site.repo).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("started");
    wait_until("the agent works", SOON, || site.repo.join("on").exists());
    let pid = i32::try_from(client.id()).expect("a pid");
    let agents =
        || site.rig.processes().into_iter().filter(|pid| proc::words(*pid).iter().any(|word| word.contains("trap")));
    proc::signal(pid, Signal::INT);
    wait_until("the run is stopping", SOON, || site.swarm(&["run", "status"]).ok().contains("stopping"));
    // A fork of the shell that becomes its `sleep` has the same words for a moment.
    assert!(agents().count() >= 1, "the agent ignores the polite signals");
    let took = timed(|| {
        proc::signal(pid, Signal::INT);
        assert_eq!(client.wait().expect("ended").code(), Some(130));
    });
    assert_eq!(agents().count(), 0);
    took
}

#[test]
fn a_job_has_a_worktree_variables_and_a_time_limit() {
    let site = Site::new();
    let jobs = "[[job]]\nname = 'lands'\ncommand = 'echo $WHO > who.txt'\nenv = { WHO = 'ada' }\nworktree = true\n\
                merge = true\n[[job]]\nname = 'late'\ncommand = 'sleep 600'\ntimeout = 1\nretries = 0\n\
                [[job]]\nname = 'behind'\ncommand = 'true'\nafter = 'late'\n";
    site.write("jobs.toml", jobs);
    site.commit();
    let said = site.swarm(&["run", "./jobs.toml", "--headless"]);
    assert_eq!(said.code, Some(1), "{said:?}");
    let all = events(&said.out);
    assert_eq!(site.landed("who.txt"), "ada");
    let why = |id: &str| {
        let failed = all.iter().find(|event| event["event"] == "workstream.failed" && event["workstream"] == id);
        text(&failed.unwrap_or_else(|| panic!("{id} did not fail: {all:?}"))["error"]).to_owned()
    };
    assert_eq!(why("late"), "timed out after 1 s");
    assert_eq!(why("behind"), "dependency 'late' failed");
}

#[test]
fn fail_fast_starts_nothing_after_a_failure() {
    let site = Site::new();
    site.spec("a", "retries: 0\npriority: 1\n", "exit 3");
    site.spec("b", "", "echo b > b.txt");
    site.commit();
    site.plan();
    let all = site.run(1, &["--fail-fast", "-j", "1"]);
    assert_eq!((told(&all, "b").len(), site.statuses()), (0, vec!["a failed".to_owned(), "b pending".to_owned()]));
    assert_eq!(text(&site.row("a")["lastError"]), "exited with code 3");
}

#[test]
fn context_is_read_from_standard_input_and_kept_for_the_next_attempt() {
    let site = Site::new();
    site.agent("cat > prompt\nwhile [ ! -e ../../../go ]; do :; done\ngrep -q 'mind the gap' prompt\n", "");
    site.write("specs/a.md", "---\nretries: 0\n---\n# A\n");
    site.under_way(&["--agent", "mine"]);
    let mut command = site.rig.command(&["run", "context", "a", "-"]);
    let mut client =
        command.current_dir(&site.repo).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("started");
    let mut input = client.stdin.take().expect("piped");
    input.write_all(b"mind the gap\n").expect("said");
    drop(input);
    assert_eq!(client.wait().expect("ended").code(), Some(0));
    site.write("go", "");
    // The first attempt failed without having read the context; the retry gets it.
    assert_eq!(site.swarm(&["run", "attach", "--headless"]).code, Some(1));
    let all = site.run(0, &["--agent", "mine", "--retry-failed"]);
    let context = all.iter().find(|event| event["event"] == "workstream.context").expect("it is told");
    assert_eq!((context["delivered"].as_bool(), text(&context["text"])), (Some(true), "mind the gap"));
}

#[test]
fn run_init_creates_a_home_without_a_plan() {
    let site = Site::new();
    site.swarm(&["run", "init"]).ok();
    assert!(site.repo.join(".arial/worktrees").is_dir() && site.repo.join(".arial/logs").is_dir());
    assert_eq!(site.git(&["status", "--porcelain"]), "", "git shows the home");
    site.swarm(&["run", "init"]).ok();
    site.swarm(&["run"]).refused(1, &format!("no plan in {}", site.repo.display()));
}
