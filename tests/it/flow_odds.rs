//! Running flows in unusual situations: the example of `docs/flows.md`, other programs, work that cannot land, waiting.

use std::fs;
use std::path::PathBuf;

use crate::common::{Rig, SOON, wait_until};
use crate::flow_run::{Site, line};

/// Returns the text of `page` between two lines, after `from`, and where it ends.
fn block<'a>(page: &'a str, from: usize, open: &str, close: &str) -> (&'a str, usize) {
    let begin = from + page[from..].find(open).expect("a block") + open.len();
    let end = begin + page[begin..].find(close).expect("its end");
    (&page[begin..end], end)
}

#[test]
fn the_example_of_the_document_runs_unchanged() {
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/flows.md")).expect("there");
    let (workflow, end) = block(&page, 0, "\n````yaml workflow.yaml\n", "````\n");
    let (script, _) = block(&page, end, "\n```sh\n", "```\n");
    let rig = Rig::new();
    let repo = rig.repo();
    fs::write(repo.join("workflow.yaml"), workflow).expect("written");
    let programs = PathBuf::from(env!("CARGO_BIN_EXE_swarm"));
    let path = format!("{}:{}", programs.parent().expect("a folder").display(), std::env::var("PATH").expect("set"));
    let mut command = rig.program("sh");
    command.args(["-e", "-c", script]).current_dir(&repo).env("PATH", path);
    let said = crate::common::run(command);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(said.out.contains(": Add rate limiting, completed\n"), "{said:?}");
    let landed = || rig.git_says(&repo, &["show", "main:limit.txt"]).out;
    wait_until("the work lands", SOON, || landed() == "a limit, turn 1\na limit, turn 2\n");
}

#[test]
fn foreign_answers_are_read_and_a_removed_flow_is_released() {
    let script = "if [ -z \"$SWARM_ANSWER\" ]; then swarm flow emit --ask 'which?'\n\
                  else echo \"$SWARM_ANSWER\" > done.md; swarm flow emit --to owner-close --artifact done.md; fi";
    let site = Site::new(&line(script, ""));
    assert_eq!(site.run(), "waiting");
    // In place and without a lock, as A-Society writes.
    let mut flow = site.file();
    flow["pendingHumanInputs"]["build"] = serde_json::json!({"text": "this", "receivedAt": "2026-05-27T14:30:00.123Z"});
    fs::write(site.dir().join("flow.json"), flow.to_string()).expect("written");
    wait_until("the flow continues", SOON, || site.status() == "awaiting_improvement_choice");
    let history = site.file()["historyHandoff"]["build=>owner-close"][0].as_str().expect("a path").to_owned();
    assert_eq!(fs::read_to_string(site.repo.join(history)).expect("there"), "this\n");
    assert_eq!(site.run(), "waiting");
    fs::rename(site.dir(), site.rig.path("gone")).expect("moved away");
    let registered = || fs::read_dir(site.rig.root().join("flow")).map_or(0, Iterator::count);
    wait_until("the flow is unregistered", SOON, || registered() == 0);
}

#[test]
fn flows_that_could_not_land_or_run_are_refused_before_anything_is_created() {
    let site = Site::new(&line("true", ""));
    let new = |words: &[&str]| {
        let file = site.rig.path("w.yaml").to_string_lossy().into_owned();
        site.rig.swarm_in(&site.repo, &[&["flow", "new", "demo", "--workflow", &file], words].concat())
    };
    let flows = || site.rig.swarm_in(&site.repo, &["flow", "ls"]).ok().lines().count();
    let before = flows();
    for (words, cause) in [
        (&["--base", "nobranch"][..], "'nobranch' is not a commit, branch or tag"),
        (&["--base", "HEAD", "--merge"], "'HEAD' is not a valid branch name"),
    ] {
        let said = new(words);
        assert!(said.code == Some(1) && said.err.contains(cause), "{said:?}");
    }
    site.rig.git(&site.repo, &["checkout", "-q", "--detach"]);
    let said = new(&["--merge"]);
    assert!(said.code == Some(1) && said.err.contains("HEAD is detached"), "{said:?}");
    fs::write(site.repo.join("swarm.toml"), "[flow]\nagent = 'nobody'\n").expect("written");
    site.rig.trust(&site.repo);
    let said = new(&["--start"]);
    assert!(said.code == Some(1) && said.err.contains("agent 'nobody' not found"), "{said:?}");
    assert_eq!(flows(), before);
    // The workflow of a flow that was not started yet, edited meanwhile.
    let workflow = site.dir().join("record/workflow.yaml");
    let text = fs::read_to_string(&workflow).expect("there").replace("role: dev", "role: Dev");
    fs::write(&workflow, text).expect("written");
    let said = site.flow("run", &[]);
    assert!(said.code == Some(1) && said.err.contains("invalid workflow: "), "{said:?}");
    assert!(said.err.contains("(run 'swarm flow check "), "{said:?}");
}

#[test]
fn a_waiting_run_reports_that_the_flow_needs_a_permission() {
    let script = "printf '{\"tool\": \"run_command\", \"input\": {\"command\": \"make\"}}' | swarm flow consent-check > ../said\n\
                  echo done > done.md; swarm flow emit --to owner-close --artifact done.md";
    let config = "[flow]\nagent = 'shell'\n[flow.roles.owner]\nunsafe = true\n[flow.roles.dev]\nunsafe = true\n";
    let site = Site::with(&line(script, ""), config, &[]);
    let said = site.flow("run", &["--wait"]).ok();
    assert!(said.ends_with(&format!("build: make → swarm flow allow {} 1\n", site.id)), "{said}");
    // A stop discards the question; the restarted turn asks again.
    site.flow("stop", &[]).ok();
    site.flow("allow", &["1"]).refused(1, "request 1 is not open");
    assert!(site.flow("run", &["--wait"]).ok().contains("swarm flow allow"), "the turn asks again");
    let worker = site.worker("dev");
    let said = site.rig.swarm(&["respawn", &worker]);
    assert!(said.code == Some(1) && said.err.contains("plays a role in flow"), "{said:?}");
    site.flow("allow", &["2"]).ok();
    assert_eq!(site.run(), "waiting");
    assert_eq!(site.status(), "awaiting_improvement_choice");
    let said = fs::read_to_string(site.rig.path("repo-worktrees/said")).expect("answered");
    assert_eq!(said, "{\"decision\":\"proceed\"}\n");
}

/// Runs a flow whose result lands until it waits for a choice.
fn waiting() -> Site {
    let build = "echo made > made\nswarm flow emit --to owner-close --artifact made";
    let words = ["--consent", "full-access", "--merge"];
    let site = Site::with(&line(build, ""), "[flow]\nagent = 'shell'\n", &words);
    assert_eq!(site.run(), "waiting");
    assert_eq!(site.status(), "awaiting_improvement_choice");
    site
}

#[test]
fn a_result_lands_although_the_workers_were_cleaned_meanwhile() {
    let site = waiting();
    for role in ["owner", "dev"] {
        site.rig.swarm(&["clean", &site.worker(role)]).ok();
    }
    assert!(!site.rig.path("repo-worktrees").join(site.worker("owner")).exists());
    site.flow("improve", &["none"]).ok();
    site.flow("run", &["--wait"]).ok();
    let landed = || site.rig.git_says(&site.repo, &["show", "main:made"]).out;
    wait_until("the work lands", SOON, || landed() == "made\n");
}

#[test]
fn a_result_that_cannot_be_queued_keeps_the_flow_from_looking_done() {
    let site = waiting();
    let config = site.repo.join("swarm.toml");
    let before = fs::read_to_string(&config).expect("there");
    fs::write(&config, "[flow]\nno-such-key = 1\n").expect("written");
    site.flow("improve", &["none"]).ok();
    // The caller either waits for the end or comes after it, and then the flow is run again, for its result.
    let said = site.flow("run", &["--wait"]);
    assert!(said.code == Some(1) && said.err.contains("no-such-key"), "{said:?}");
    wait_until("it is over", SOON, || !site.json("status", &[])["run"].as_bool().expect("a word"));
    let cause = site.json("status", &[])["not_queued"].as_str().expect("a cause").to_owned();
    assert!(cause.contains("no-such-key"), "{cause}");
    let shown = site.flow("status", &[]).ok();
    assert!(shown.contains(&format!("not queued for landing: {cause}")), "{shown}");
    assert!(shown.contains(&format!("run 'swarm flow run {}'", site.id)), "{shown}");
    let listed = site.rig.swarm_in(&site.repo, &["flow", "ls"]).ok();
    assert!(listed.contains("completed (result not queued)"), "{listed}");
    fs::write(&config, before).expect("written");
    site.flow("run", &[]).ok();
    let landed = || site.rig.git_says(&site.repo, &["show", "main:made"]).out;
    wait_until("the work lands", SOON, || landed() == "made\n");
    assert!(site.json("status", &[])["not_queued"].is_null());
}

#[test]
fn what_a_handoff_leaves_out_is_named_to_the_next_role_and_to_people() {
    let build = "mkdir -p pkg/dist; echo d > pkg/dist/d.go; echo m > main.go; echo b > $SWARM_RECORD/b.md\n\
                 swarm flow emit --to owner-close --artifact $SWARM_RECORD/b.md";
    let site = Site::new(&line(build, ""));
    let said = site.flow("run", &["--wait"]);
    let note = "dev: 1 uncommitted path(s) were not handed over: pkg/dist/d.go";
    assert!(said.code == Some(0) && said.err.contains(note), "{said:?}");
    assert!(site.flow("status", &[]).ok().contains(note));
    let roles = site.json("status", &[])["roles"].clone();
    let dev = roles.as_array().expect("a list").iter().find(|role| role["role"] == "dev").expect("it plays");
    assert_eq!(dev["left_out"], serde_json::json!(["pkg/dist/d.go"]));
    assert_eq!(site.count("work.left_out"), 1);
    let prompt = fs::read_to_string(site.dir().join("turns/owner/2/prompt.md")).expect("kept");
    assert!(prompt.contains("build did not hand over these changes") && prompt.contains("pkg/dist/d.go"), "{prompt}");
}
