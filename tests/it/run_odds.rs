//! Runs in unusual situations of the repository, the specs, the agent or the state file.

use std::fs;

use serde_json::{Value, json};

use crate::common::proc;
use crate::common::{Rig, SOON, wait_until};
use crate::run::{Site, events, text, told};

#[test]
fn an_impossible_run_is_refused_before_anything_is_created() {
    let site = Site::new();
    site.swarm(&["run"]).refused(1, &format!("no plan in {}", site.repo.display()));
    site.swarm(&["plan", "--specs", "specs"]).refused(1, &format!("no specs in {}", site.repo.join("specs").display()));
    site.write("specs/a.md", "\n");
    site.swarm(&["plan", "--specs", "specs"])
        .refused(1, &format!("{}: the spec is empty", site.repo.join("specs/a.md").display()));
    site.spec("a", "after: b\n", "true");
    site.swarm(&["plan", "--specs", "specs"]).refused(1, "job 'a': unknown dependency 'b'");
    site.spec("b", "after: a\n", "true");
    site.swarm(&["plan", "--specs", "specs"]).refused(1, "jobs depend on each other: a, b");
    assert!(!site.repo.join(".arial").exists(), "something was created");
    let rig = Rig::new();
    fs::create_dir(rig.path("cwd/specs")).expect("made");
    fs::write(rig.path("cwd/specs/a.md"), "# A").expect("written");
    let said = rig.swarm(&["plan", "--specs", "specs"]);
    assert_eq!(said.code, Some(1), "not a repository: {said:?}");
}

#[test]
fn a_base_that_cannot_be_landed_on_is_named() {
    let site = Site::new();
    site.spec("a", "", "echo a > a");
    site.commit();
    site.git(&["checkout", "-q", "--detach"]);
    let said = site.swarm(&["plan", "--specs", "specs", "-y"]);
    let said = said.refused(1, "HEAD is detached, so there is no branch to land finished work on");
    assert!(said.err.contains("--base"), "{said:?}");
    site.swarm(&["plan", "--specs", "specs", "-y", "--base", "none"]).refused(1, "branch 'none' not found");
    site.swarm(&["plan", "--specs", "specs", "-y", "--base", "main"]).ok();
    site.run(0, &[]);
    assert_eq!(site.landed("a"), "a");
    let bare = site.rig.path("bare.git");
    site.git(&["clone", "-q", "--bare", ".", bare.to_str().expect("text")]);
    let said = site.rig.swarm_in(&bare, &["plan", "--specs", "../repo/specs"]);
    assert!(said.code == Some(1) && said.err.contains("is in a bare repository"), "{said:?}");
    let empty = site.rig.path("empty");
    fs::create_dir(&empty).expect("made");
    site.rig.git(&empty, &["init", "-q"]);
    let said = site.rig.swarm_in(&empty, &["plan", "--specs", "../repo/specs"]);
    assert!(said.code == Some(1) && said.err.contains("has no commit yet"), "{said:?}");
}

#[test]
fn misbehaving_agents_are_detected() {
    let site = Site::new();
    site.spec("nothing", "retries: 0\n", "true");
    site.spec("gone", "retries: 0\n", "rm -rf \"$PWD\"");
    site.spec("endless", "retries: 0\ntimeout: 1\n", "while :; do :; done");
    site.spec("children", "", "echo c > c.txt; (trap '' HUP TERM; exec sleep 600) &");
    site.spec("garbage", "", "head -c 3000000 /dev/urandom; printf '\\033[31m\\0'; echo g > g.txt");
    site.write(
        "specs/needs.md",
        "---\nadapter: shell\nrequiredCapabilities: [web_search]\n---\n# Needs\n\n```sh\ntrue\n```\n",
    );
    site.commit();
    site.plan();
    let events = site.run(1, &[]);
    let expected = ["children done", "endless failed", "garbage done", "gone failed", "needs failed", "nothing failed"];
    assert_eq!(site.statuses(), expected);
    assert_eq!(site.row("nothing")["lastError"], "ended with success but left nothing to land");
    assert_eq!(site.row("endless")["lastError"], "timed out after 1 s");
    assert_eq!(site.row("needs")["lastError"], "agent 'shell' lacks required capabilities: web_search");
    assert!(!site.repo.join(".arial/worktrees/needs").exists(), "a refused workstream has a worktree");
    assert_eq!(told(&events, "children").last().map(String::as_str), Some("workstream.done"));
    let left = site.rig.processes().into_iter().filter(|pid| proc::words(*pid).join(" ") == "sleep 600");
    assert_eq!(left.count(), 0, "a child of the agent survived");
}

#[test]
fn commits_of_an_agent_to_the_base_stay_there() {
    let site = Site::new();
    site.spec("a", "", "echo a > a.txt; cd ../../.. && echo x > x.txt && git add x.txt && git commit -q -m sneaked");
    site.commit();
    site.plan();
    site.run(0, &[]);
    assert_eq!((site.landed("a.txt"), site.landed("x.txt")), ("a".into(), "x".into()));
}

#[test]
fn an_agent_survives_its_shim_and_never_runs_beside_another() {
    let site = Site::new();
    // Each attempt records its start and its end, and waits for its own signal to end.
    let script = "echo begin $SWARM_ATTEMPT >> ../../../ledger\nwhile [ ! -e ../../../go$SWARM_ATTEMPT ]; do :; done\n\
                  echo end $SWARM_ATTEMPT >> ../../../ledger; echo a > a.txt";
    site.spec("a", "", script);
    site.git(&["add", "specs"]);
    site.git(&["commit", "-q", "-m", "specs"]);
    site.plan();
    site.swarm(&["run", "--detach"]).ok();
    let ledger = || fs::read_to_string(site.repo.join("ledger")).unwrap_or_default();
    wait_until("the agent works", SOON, || ledger() == "begin 1\n");
    proc::kill(site.rig.shim("repo.a"));
    wait_until("the agent has no shim", SOON, || site.rig.fine("repo.a") == "unsupervised");
    assert_eq!(site.row("a")["status"], "running");
    // Now also the process that talks to the agent: the agent itself must end before the next one starts.
    proc::kill(site.rig.pid("repo.a"));
    wait_until("the next one is at work", SOON, || ledger() == "begin 1\nbegin 2\n");
    let agents = |pid: &i32| proc::words(*pid).iter().any(|word| word.contains("SWARM_ATTEMPT"));
    assert_eq!(site.rig.processes().iter().filter(|pid| agents(pid)).count(), 1);
    site.write("go2", "");
    assert_eq!(site.swarm(&["run", "attach", "--headless"]).code, Some(0));
    assert_eq!((ledger().as_str(), site.row("a")["retryCount"].as_u64()), ("begin 1\nbegin 2\nend 2\n", Some(0)));
}

#[test]
fn attach_shows_exactly_the_requested_events() {
    let site = Site::new();
    site.spec("a", "retries: 0\n", "test -e ../../../go && echo a > a.txt");
    site.git(&["add", "specs"]);
    site.git(&["commit", "-q", "-m", "specs"]);
    site.plan();
    let first = site.run(1, &[]);
    site.write("go", "");
    let second = site.run(0, &["--retry-failed"]);
    let all = events(&site.swarm(&["run", "attach", "--headless", "--since", "0"]).ok());
    assert_eq!(all.len(), first.len() + second.len());
    assert_eq!(events(&site.swarm(&["run", "attach", "--headless"]).ok()), second, "the last run by default");
    // Attach waits for a run in progress that has reported nothing yet.
    site.spec("b", "", "echo b > b.txt");
    site.plan();
    site.swarm(&["supervisor", "stop"]).ok();
    site.swarm(&["run", "--detach"]).ok();
    let third = events(&site.swarm(&["run", "attach", "--headless"]).ok());
    assert_eq!(told(&third, "b").last().map(String::as_str), Some("workstream.done"));
    let all = events(&site.swarm(&["run", "attach", "--headless", "--since", "0"]).ok());
    let last = all.len().to_string();
    assert_eq!(site.swarm(&["run", "attach", "--headless", "--since", &last]).ok(), "");
}

#[test]
fn a_second_run_in_a_repository_is_refused() {
    let site = Site::new();
    site.spec("a", "", "while [ ! -e ../../../go ]; do :; done; echo a > a.txt");
    site.commit();
    site.plan();
    site.swarm(&["run", "--detach"]).ok();
    let home = site.repo.join(".arial");
    let said = site.swarm(&["run"]);
    let said = said.refused(1, &format!("a run is in progress in {}", home.display()));
    assert!(said.err.contains("swarm run attach"), "{said:?}");
    let said = site.swarm(&["plan", "--specs", "specs", "-y"]);
    assert!(said.code == Some(1) && said.err.contains("a run is in progress"), "{said:?}");
    site.swarm(&["run", "pause"]).ok();
    site.write("go", "");
    wait_until("a has landed", SOON, || site.row("a")["status"] == "done");
    assert_eq!(site.swarm(&["run", "attach"]).code, Some(0));
    // Nothing is left to hold: a pause ends with the last job.
    let said = site.swarm(&["run", "resume"]);
    let said = said.refused(1, &format!("no run is in progress in {}", home.display()));
    assert!(said.err.contains("swarm: hint: run 'swarm run'"), "{said:?}");
}

#[test]
fn context_for_a_running_workstream_is_accepted() {
    let site = Site::new();
    site.agent("cat > /dev/null\nwhile [ ! -e ../../../go ]; do :; done\necho a > a.txt\n", "");
    site.write("specs/a.md", "# A\n");
    site.under_way(&["--agent", "mine"]);
    let said = site.swarm(&["run", "context", "a", "mind the gap"]).ok();
    assert_eq!(said, "a gets this at its next turn: mind the gap\n");
    site.swarm(&["run", "context", "b", "x"]).refused(1, "workstream 'b' not found");
    site.write("go", "");
    let said = site.swarm(&["run", "attach", "--headless"]);
    // A command has only one turn, so the context comes too late, which is reported.
    let all = events(&said.out);
    let context = all.iter().find(|event| event["event"] == "workstream.context").expect("it is told");
    assert_eq!((context["delivered"].as_bool(), text(&context["text"])), (Some(false), "mind the gap"));
    site.swarm(&["run", "context", "a", "x"]).refused(1, "workstream 'a' is done: its agent has no further turn");
}

#[test]
fn context_that_comes_too_late_is_reported() {
    let site = Site::new();
    // During the queue's verification no agent has a turn left.
    let verify = "d=$(cat where)/.arial/context/a; mkdir -p $d; echo too late > $d/1.md";
    site.write("swarm.toml", &format!("[merge]\nverify = '{verify}'\n"));
    site.write("where", site.repo.to_str().expect("text"));
    site.spec("a", "", "echo a > a.txt");
    site.commit();
    site.plan();
    let all = site.run(0, &[]);
    let context = all.iter().find(|event| event["event"] == "workstream.context").expect("it is told");
    assert_eq!((context["delivered"].as_bool(), text(&context["text"])), (Some(false), "too late"));
    assert_eq!(text(&all.last().expect("told")["event"]), "run.completed");
}

#[test]
fn a_waiting_agent_is_shown_as_waiting() {
    let site = Site::new();
    let say = |line: &str| format!("echo '{line}'\n");
    let until = |file: &str| format!("while [ ! -e ../../../{file} ]; do :; done\n");
    let script = [
        "cat > /dev/null\n".to_owned(),
        say(r#"{"type":"system","subtype":"init","session_id":"7"}"#),
        // The answer ends the operation as well, and follows at once: nothing more is printed until `go2`.
        say(
            r#"{"type":"assistant","message":{"content":[{"type":"tool_use","id":"1","name":"Bash","input":{"command":"rm"}}]}}"#,
        ),
        say(r#"{"type":"system","subtype":"permission_denied","tool_use_id":"1","tool_name":"Bash"}"#),
        until("go1"),
        say(r#"{"type":"assistant","message":{"content":[{"type":"text","text":"then without"}]}}"#),
        until("go2"),
        "echo a > a.txt\n".to_owned(),
        say(r#"{"type":"result","subtype":"success","is_error":false,"result":"done"}"#),
    ];
    site.agent(&script.concat(), "events = 'claude'\n");
    site.write("specs/a.md", "# A\n");
    site.under_way(&["--agent", "mine"]);
    let cause = "nobody could be asked to allow Bash: rm";
    let waits = || site.swarm(&["ls", "-l"]).ok().contains(&format!("waiting: {cause}"));
    wait_until("the agent is shown as waiting", SOON, waits);
    assert_eq!(text(&site.rig.view("repo.a")["waiting"]), cause);
    assert!(site.swarm(&["run", "status"]).ok().contains(&format!("waiting: {cause}")));
    site.write("go1", "");
    wait_until("the agent is no longer shown as waiting", SOON, || !waits());
    assert!(!site.swarm(&["run", "status"]).ok().contains("waiting: "));
    site.write("go2", "");
    assert_eq!(site.swarm(&["run", "attach", "--headless"]).code, Some(0));
    // What was denied is not forgotten at the end.
    assert!(site.swarm(&["run", "status"]).ok().contains(&format!("({cause})")));
    let status: Value = serde_json::from_str(&site.swarm(&["run", "status", "--json"]).ok()).expect("JSON");
    assert_eq!(text(&status["workstreams"][0]["unheard"]), cause);
}

#[test]
fn planning_and_cleanup_are_refused_during_an_unsupervised_run() {
    let site = Site::new();
    site.spec("a", "", "while [ ! -e ../../../go ]; do :; done; echo a > a.txt");
    site.under_way(&[]);
    site.swarm(&["supervisor", "stop"]).ok();
    for words in [&["plan", "--specs", "specs", "-y"][..], &["run", "cleanup"]] {
        let said = site.swarm(words);
        assert!(said.code == Some(1) && said.err.contains("a run is in progress"), "{said:?}");
    }
    site.write("go", "");
    // The run only lacks a supervisor; a new one finds and continues it.
    site.swarm(&["run"]).refused(1, &format!("a run is in progress in {}", site.repo.join(".arial").display()));
    assert_eq!(site.swarm(&["run", "attach", "--headless"]).code, Some(0));
    assert_eq!(site.landed("a.txt"), "a");
}

#[test]
fn foreign_state_files_are_read_kept_and_refused_by_version() {
    let site = Site::new();
    site.spec("a", "", "echo a > a.txt");
    site.spec("b", "", "echo b > b.txt");
    site.commit();
    fs::create_dir(site.repo.join(".arial")).expect("made");
    let row = |id: &str, status: &str| json!({"id": id, "specFile": format!("specs/{id}.md"), "title": id, "status": status, "branch": format!("arial/{id}"), "theirs": 7});
    // Version 1, with the status words of that version.
    let first = json!({"version": 1, "specsDir": "./specs", "baseBranch": "main", "status": "pending", "theirs": "kept",
        "workstreams": [row("a", "done"), row("b", "paused")]});
    site.write(".arial/state.json", &first.to_string());
    let status: Value = serde_json::from_str(&site.swarm(&["run", "status", "--json"]).ok()).expect("JSON");
    assert_eq!((text(&status["status"]), text(&status["workstreams"][1]["status"])), ("planning", "pending"));
    let all = site.run(0, &[]);
    assert_eq!((told(&all, "a").len(), site.statuses()), (0, vec!["a done".to_owned(), "b done".to_owned()]));
    let state = site.state();
    assert_eq!((&state["version"], &state["theirs"], &site.row("b")["theirs"]), (&json!(2), &json!("kept"), &json!(7)));
    assert_eq!(site.git_says_a(), "main has b.txt only");
    let newer = json!({"version": 3, "workstreams": []}).to_string();
    site.write(".arial/state.json", &newer);
    let cause =
        format!("{}: unsupported version 3 (this program supports 2)", site.repo.join(".arial/state.json").display());
    site.swarm(&["run"]).refused(1, &cause);
    site.swarm(&["plan", "--specs", "specs", "-y"]).refused(1, &cause);
    assert_eq!(fs::read_to_string(site.repo.join(".arial/state.json")).expect("there"), newer);
}

#[test]
fn repositories_of_the_same_name_do_not_share_workers() {
    let mut first = Site::new();
    fs::create_dir(first.rig.path("other")).expect("made");
    let other = first.rig.repo_named("other/repo");
    first.spec("a", "", "while [ ! -e ../../../go ]; do :; done; echo a > a.txt");
    first.under_way(&[]);
    let pid = first.rig.pid("repo.a");
    let ours = std::mem::replace(&mut first.repo, other);
    fs::create_dir(first.repo.join("specs")).expect("made");
    first.spec("a", "retries: 0\n", "test -e go && echo a > a.txt");
    first.commit();
    first.plan();
    let all = first.run(1, &[]);
    let worker = all.iter().find_map(|event| event["worker"].as_str()).expect("it was started").to_owned();
    assert!(worker.starts_with("repo-") && worker.ends_with(".a"), "{worker}");
    first.swarm(&["run", "cleanup"]).ok();
    assert_eq!(first.rig.pid("repo.a"), pid, "the worker of the first repository was affected");
    first.repo = ours;
    first.write("go", "");
    assert_eq!(first.swarm(&["run", "attach", "--headless"]).code, Some(0));
}

#[test]
fn attach_refuses_a_run_without_a_supervisor() {
    let site = Site::new();
    site.spec("a", "", "while [ ! -e ../../../go ]; do :; done; echo a > a.txt");
    site.under_way(&[]);
    // As if the repository had been copied to another machine.
    site.swarm(&["supervisor", "stop"]).ok();
    let registered = fs::read_dir(site.rig.root().join("run")).expect("listed").flatten().next().expect("it is there");
    fs::rename(registered.path(), site.rig.path("elsewhere")).expect("moved");
    let home = site.repo.join(".arial");
    let said = site.swarm(&["run", "attach"]);
    let said = said.refused(1, &format!("the run in {} has no supervisor", home.display()));
    assert!(said.err.contains("run 'swarm run' to continue it"), "{said:?}");
    site.write("go", "");
    site.run(0, &[]);
    assert_eq!(site.landed("a.txt"), "a");
}

#[test]
fn cleanup_removes_finished_leftovers_and_keeps_work() {
    let site = Site::new();
    site.spec("good", "", "echo g > g.txt");
    site.spec("bad", "retries: 0\n", "echo half > half.txt; exit 1");
    site.commit();
    site.plan();
    site.run(1, &[]);
    let said = site.swarm(&["run", "cleanup"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    let tree = site.repo.join(".arial/worktrees/bad");
    assert!(said.err.contains(&format!("kept {}: worktree has 1 uncommitted change(s)", tree.display())), "{said:?}");
    assert!(tree.join("half.txt").exists());
    assert_eq!(site.rig.names(), [""; 0]);
    fs::remove_file(tree.join("half.txt")).expect("removed");
    let said = site.swarm(&["run", "cleanup"]).ok();
    assert_eq!(said, format!("removed {}\nremoved arial/bad\n", tree.display()));
    // A worktree that a person has made there.
    site.git(&["worktree", "add", "-q", "-b", "release", ".arial/worktrees/release"]);
    let said = site.swarm(&["run", "cleanup"]);
    assert!(said.out.is_empty() && said.err.contains("is on branch 'release', which no run has made"), "{said:?}");
    assert!(site.repo.join(".arial/worktrees/release").exists());
    site.git(&["rev-parse", "--verify", "-q", "release"]);
}

#[test]
fn a_landed_worktree_that_contains_another_one_stays() {
    let site = Site::new();
    site.write(".gitignore", ".claude/\n");
    let inner = "git worktree add -q -b inner .claude/worktrees/inner && echo unsaved > .claude/worktrees/inner/work";
    site.spec("a", "", &format!("echo a > a.txt; {inner}"));
    site.commit();
    site.plan();
    site.run(0, &[]);
    assert_eq!(site.landed("a.txt"), "a");
    let tree = site.repo.join(".arial/worktrees/a");
    let inner = tree.join(".claude/worktrees/inner");
    assert_eq!(fs::read_to_string(inner.join("work")).expect("kept"), "unsaved\n");
    let said = site.swarm(&["run", "cleanup"]);
    let kept = format!("kept {}: worktree contains the worktree {}\n", tree.display(), inner.display());
    assert!(said.code == Some(0) && said.err.contains(&kept), "{said:?}");
    assert!(inner.join("work").exists());
    site.git(&["worktree", "remove", "--force", inner.to_str().expect("text")]);
    let said = site.swarm(&["run", "cleanup"]).ok();
    assert_eq!(said, format!("removed {}\nremoved arial/a\n", tree.display()));
}

impl Site {
    fn git_says_a(&self) -> &'static str {
        let has =
            |name: &str| self.rig.git_says(&self.repo, &["cat-file", "-e", &format!("main:{name}")]).code == Some(0);
        match (has("a.txt"), has("b.txt")) {
            (false, true) => "main has b.txt only",
            _ => "main has something else",
        }
    }
}

#[test]
fn a_worktree_that_cannot_be_set_up_at_the_moment_is_tried_again_after_a_pause() {
    let site = Site::new();
    site.spec("a", "retries: 0\n", "echo a > a");
    site.commit();
    site.plan();
    site.write("swarm.toml", "[worktree]\npost_create = 'echo no network; exit 1'\n");
    site.swarm(&["run", "--detach"]).ok();
    let events = || fs::read_to_string(site.repo.join(".arial/events.jsonl")).unwrap_or_default();
    wait_until("it is to be tried again", SOON, || events().contains("worktree.post_create exited with code 1"));
    assert!(events().contains("workstream.retrying") && !events().contains("workstream.failed"), "{}", events());
    site.swarm(&["run", "stop"]).ok();
    site.write("swarm.toml", "[worktree]\npost_create = 'no-such-command'\n");
    let said = site.swarm(&["run"]);
    assert!(said.code == Some(1) && said.out.contains("exited with code 127"), "another try would not help: {said:?}");
}
