//! `swarm ralph` in the original's words.

use std::fs;

use serde_json::Value;

use crate::common::{Rig, SOON, wait_until};
use crate::ralph::Site;
use crate::words::session;

#[test]
fn spawn_reports_the_place_and_status_shows_the_loop() {
    let site = Site::new("exec sleep 600");
    let out = site.begin(&["--no-worktree", "--max-iterations", "5"]).ok();
    let place = session(&site.rig);
    let expected = format!(
        "spawned dev (tmux: {place}:dev) [ralph mode: iteration 1/5]

Monitor:
  swarm ralph status dev    # loop progress
  swarm peek dev            # terminal output
  swarm ralph logs dev      # iteration history
  swarm kill dev            # stop worker
"
    );
    assert_eq!(out, expected);
    wait_until("the prompt is typed", SOON, || site.state()["last_screen_change"].is_string());
    let status = site.swarm(&["ralph", "status", "dev"]).ok();
    let lines: Vec<&str> = status.lines().collect();
    assert_eq!(lines[..3], ["Ralph Loop: dev", "Status: running", "Iteration: 1/5"]);
    assert!(lines[3].starts_with("Started: 20") && lines[4].starts_with("Current iteration started: 20"), "{status}");
    assert_eq!(lines[5..8], ["Consecutive failures: 0", "Total failures: 0", "Inactivity timeout: 180s"]);
    assert!(lines[8].starts_with("Last screen change: ") && lines[8].ends_with("s ago"), "{status}");
    assert_eq!(lines[9..], ["Exit reason: (none - still running)"]);
    assert_eq!(site.swarm(&["ralph", "list", "--format", "names"]).ok(), "dev\n");
    assert_eq!(site.swarm(&["ralph", "list", "--format", "names", "--status", "paused"]).ok(), "");
    let list: Value = serde_json::from_str(&site.swarm(&["ralph", "list", "--format", "json"]).ok()).expect("JSON");
    assert_eq!((&list[0]["worker_status"], &list[0]["current_iteration"]), (&"running".into(), &1.into()));
    let log = site.swarm(&["ralph", "logs", "dev", "--lines", "1"]).ok();
    assert!(log.ends_with(" [START] iteration 1/5\n"), "{log}");
}

#[test]
fn json_output_has_the_same_content() {
    let site = Site::new("exec sleep 600");
    let one = |words: &[&str]| -> Value { serde_json::from_str(&site.swarm(words).ok()).expect("one object") };
    let begun: Value = serde_json::from_str(&site.begin(&["--no-worktree", "--json"]).ok()).expect("JSON");
    assert_eq!((&begun["schema"], &begun["max_iterations"]), (&"swarm.ralph.spawned/1".into(), &50.into()));
    let status = one(&["ralph", "status", "dev", "--json"]);
    assert_eq!((&status["schema"], &status["looked_after"]), (&"swarm.ralph/1".into(), &true.into()));
    assert_eq!(one(&["ralph", "list", "--json"])["loops"][0]["name"], "dev");
    assert_eq!(one(&["ralph", "pause", "dev", "--json"])["done"], "paused");
    let line = one(&["ralph", "logs", "dev", "--lines", "1", "--json"]);
    assert_eq!((&line["event"], &line["text"]), (&"PAUSE".into(), &"loop paused reason=user".into()));
    assert_eq!(one(&["ralph", "stop", "dev", "--json"])["workers"][0]["done"], "killed");
    assert_eq!(one(&["ralph", "clean", "--all", "--json"])["names"][0], "dev");
    assert_eq!(one(&["ralph", "init", "--force", "--json"])["action"], "overwritten");
}

#[test]
fn mistakes_are_reported_and_nothing_is_created() {
    let site = Site::new("exit 0");
    site.swarm(&["ralph", "spawn", "--name", "dev", "--prompt-file", "PROMPT.md"])
        .refused(1, "no command provided (use -- command...)");
    site.swarm(&["ralph", "spawn", "--name", "dev", "--prompt-file", "none.md", "--", "true"])
        .refused(1, "prompt file not found: none.md");
    site.begin(&["--done-pattern", "a("]).refused(1, "invalid done pattern 'a(': unclosed group");
    site.begin(&["--env", "BAD"]).refused(1, "invalid env format 'BAD' (expected KEY=VAL)");
    let bare = site.rig.swarm(&["ralph", "spawn", "--name", "dev", "--prompt-file", "/dev/null", "--", "true"]);
    bare.refused(1, "not in a git repository (required for --worktree)");
    assert_eq!(site.swarm(&["ralph", "spawn", "--name", "dev", "--", "true"]).code, Some(2));
    assert_eq!(site.swarm(&["ralph"]).code, Some(2));
    for verb in ["status", "pause", "resume", "run", "stop"] {
        site.swarm(&["ralph", verb, "dev"]).refused(1, "worker 'dev' not found");
    }
    site.swarm(&["ralph", "logs", "dev"]).refused(1, "no ralph state found for worker 'dev'");
    site.swarm(&["ralph", "clean", "dev"]).refused(1, "no ralph state found for worker 'dev'");
    site.swarm(&["ralph", "clean"]).refused(1, "must specify worker name or use --all");
    site.swarm(&["ralph", "logs", "../dev"]).refused(1, "no ralph state found for worker '../dev'");
    site.swarm(&["ralph", "ls"]).is(0, "", "");
    assert!(!site.rig.root().join("ralph/dev").exists());
    site.rig.spawn("plain", &[], &["sleep", "600"]);
    site.swarm(&["ralph", "status", "plain"]).refused(1, "worker 'plain' is not a ralph worker");
}

#[test]
fn warnings_and_notes_are_the_original_ones() {
    let site = Site::new("exec sleep 600");
    let said = site.begin(&["--no-worktree", "--max-iterations", "51", "--tmux"]);
    let expected = "swarm: warning: high iteration count (>50) may consume significant resources\n\
                    swarm: note: Ralph workers always use tmux (--tmux flag has no effect)\n";
    assert_eq!((said.err.as_str(), said.code), (expected, Some(0)));
    let said = site.swarm(&["ralph", "clean", "dev"]);
    let warning = "swarm: warning: worker 'dev' is still running (only ralph state removed)\n";
    said.is(0, "cleaned ralph state for dev\n", warning);
    assert_eq!(site.rig.fine("dev"), "running");
}

#[test]
fn the_help_explains_prompts_monitoring_and_intervention() {
    let rig = Rig::new();
    let cases = [
        (&["ralph"][..], "Quick reference:"),
        (&["ralph"], "Prompt design principles:"),
        (&["ralph", "status"], "Monitoring:"),
        (&["ralph", "logs"], "Monitoring:"),
        (&["ralph", "list"], "Monitoring:"),
        (&["ralph", "pause"], "Intervention:"),
        (&["ralph", "resume"], "Intervention:"),
        (&["ralph", "stop"], "Intervention:"),
    ];
    for (words, heading) in cases {
        let said = rig.swarm(&[words, &["--help"]].concat()).ok();
        assert!(said.lines().any(|line| line == heading), "{words:?}: {said}");
    }
    assert!(rig.swarm(&["ralph", "template"]).ok().starts_with("Study the code first"));
}

#[test]
fn an_initial_prompt_is_never_overwritten_by_accident() {
    let rig = Rig::new();
    let template = rig.swarm(&["ralph", "template"]).ok();
    rig.swarm(&["ralph", "init"]).is(0, "created PROMPT.md\n", "");
    assert_eq!(fs::read_to_string(rig.cwd().join("PROMPT.md")).expect("there"), template);
    rig.swarm(&["ralph", "init"]).refused(1, "PROMPT.md already exists (use --force to overwrite)");
    rig.swarm(&["ralph", "init", "--force"]).is(0, "created PROMPT.md (overwritten)\n", "");
}
