//! Runs that resume, are retried or planned again: earlier settings still hold, and changes by the user in between are
//! noticed.

use std::fs;

use crate::common::{Rig, SOON, wait_until};
use crate::run::{Site, told};

#[test]
fn a_retry_keeps_the_flags_of_the_first_run() {
    let site = Site::new();
    site.spec("a", "retries: 0\n", "echo bad > a.txt");
    site.commit();
    site.plan();
    let rejects = ["--verify", "test ! -e a.txt", "-j", "3"];
    site.run(1, &rejects);
    let said = site.swarm(&["run", "--retry-failed"]);
    assert_eq!(said.code, Some(1), "the work was not rejected again: {said:?}");
    assert!(said.err.contains("note: continuing with earlier flags: --verify 'test ! -e a.txt' -j 3"), "{said:?}");
    assert_eq!(site.git(&["log", "--merges", "--format=%s", "main"]), "");
    // Until another value is given.
    let said = site.swarm(&["run", "--retry-failed", "--verify", ""]);
    assert_eq!((said.code, site.landed("a.txt").as_str()), (Some(0), "bad"), "{said:?}");
}

#[test]
fn a_run_waits_until_edits_are_gone_and_work_that_depends_on_it_starts() {
    let site = Site::new();
    site.spec("a", "", "echo theirs >> file");
    site.spec("b", "after: [a]\n", "cp file b.txt");
    site.commit();
    site.plan();
    site.write("file", "mine\n");
    site.swarm(&["run", "--detach"]).ok();
    let events = site.repo.join(".arial/events.jsonl");
    let waits = || fs::read_to_string(&events).unwrap_or_default().matches("merge.waiting").count();
    wait_until("the work waits", SOON, || waits() == 1);
    let status = site.swarm(&["run", "status"]).ok();
    assert!(
        status.contains("uncommitted edits are in the way: file (continues by itself when that is gone)"),
        "{status}"
    );
    // By the name that the user gave to the workstream.
    assert!(site.swarm(&["merge", "status", "a"]).out.starts_with("repo.a (item 0 of main): waiting"));
    assert!(site.swarm(&["run", "stop"]).ok().starts_with("stopped run "));
    assert!(site.swarm(&["run", "status"]).out.contains("was interrupted"), "it returns when the run is over");
    let all = std::thread::scope(|scope| {
        let resumed = scope.spawn(|| site.run(0, &[]));
        wait_until("it was checked again, and is still blocked", SOON, || waits() == 2);
        site.git(&["checkout", "-q", "file"]);
        resumed.join().expect("it ends")
    });
    assert_eq!(told(&all, "a"), ["merge.started", "merge.waiting", "merge.completed", "workstream.done"]);
    assert_eq!((site.landed("file"), site.landed("b.txt")), ("one\ntheirs".into(), "one\ntheirs".into()));
}

#[test]
fn a_run_whose_files_were_deleted_can_be_stopped_and_continued() {
    let site = Site::new();
    let go = site.rig.path("go");
    site.spec("a", "", &format!("while ! test -e {}; do sleep 0.1; done\necho a > a.txt", go.display()));
    site.under_way(&[]);
    site.git(&["clean", "-fdxq"]);
    assert!(!site.repo.join(".arial/run.jsonl").exists());
    site.swarm(&["run", "stop"]).ok();
    wait_until("the run is over", SOON, || site.swarm(&["run", "status"]).out.contains("was interrupted"));
    site.rig.file("go", "");
    site.run(0, &[]);
    assert_eq!(site.landed("a.txt"), "a");
}

#[test]
fn work_landed_on_another_base_is_planned_again() {
    let site = Site::new();
    site.spec("a", "", "echo a > a.txt");
    site.spec("bad", "retries: 0\n", "exit 1");
    site.commit();
    site.git(&["branch", "develop"]);
    site.swarm(&["plan", "--specs", "specs", "--base", "develop", "-y"]).ok();
    site.run(1, &[]);
    let cause = "workstream 'bad' was started for develop and its branch arial/bad still exists";
    site.swarm(&["plan", "--specs", "specs", "--base", "main", "-y"]).refused(1, cause);
    site.swarm(&["run", "cleanup"]).ok();
    fs::remove_file(site.repo.join("specs/bad.md")).expect("removed");
    let said = site.swarm(&["plan", "--specs", "specs", "--base", "main", "-y"]).ok();
    assert!(said.contains("planned 1 workstream for main, 1 pending; next: swarm run\n"), "{said}");
    site.run(0, &[]);
    assert_eq!(site.landed("a.txt"), "a");
    // A base that contains the work does not need it.
    site.git(&["branch", "next", "main"]);
    let said = site.swarm(&["plan", "--specs", "specs", "--base", "next", "-y"]).ok();
    assert!(said.contains("planned 1 workstream for next, 0 pending\n"), "{said}");
}

#[test]
fn a_failed_run_names_the_command_that_retries_it() {
    let site = Site::new();
    site.spec("bad", "retries: 0\n", "exit 1");
    site.commit();
    site.plan();
    let hint = "swarm: hint: run 'swarm run --retry-failed' to retry what failed\n";
    let said = site.swarm(&["run"]);
    assert_eq!((said.code, said.err.as_str()), (Some(1), hint), "{said:?}");
    assert!(site.swarm(&["run", "status"]).ok().lines().next().is_some_and(|line| line.ends_with(" failed")));
    let home = site.repo.join(".arial").to_string_lossy().into_owned();
    let said = site.rig.swarm(&["run", "attach", "--home", &home]);
    let command = format!("cd {} && swarm run --retry-failed", site.repo.display());
    assert_eq!(said.err, format!("swarm: hint: run '{command}' to retry what failed\n"));
    let said = site.swarm(&["plan", "--specs", "specs", "-y"]).ok();
    assert!(said.contains("planned 1 workstream for main, 0 pending; next: swarm run --retry-failed\n"), "{said}");
}

#[test]
fn unknown_capabilities_and_an_unknown_default_agent_are_refused_before_anything_starts() {
    let site = Site::new();
    site.write(
        "specs/a.md",
        "---\nadapter: shell\nrequiredCapabilities: [file_wrte, file_read, zzzzzzzzzz]\n---\n# Spec a\n",
    );
    site.commit();
    let said = site.swarm(&["plan", "--specs", "specs", "-y"]);
    let first = "swarm: error: specs/a.md: unknown capability 'file_wrte'\nswarm: hint: did you mean 'file_write'?\n\
                 swarm: error: specs/a.md: unknown capability 'zzzzzzzzzz'\nswarm: hint: use one of bash_execute, ";
    assert!(said.code == Some(1) && said.err.starts_with(first), "{said:?}");
    site.write("specs/a.md", "---\nadapter: shell\nrequiredCapabilities: [file_write]\n---\n# Spec a\n");
    let config = std::fs::read_to_string(site.repo.join("swarm.toml")).unwrap_or_default();
    site.write("swarm.toml", &format!("{config}\n[run]\nagent = 'nope'\n"));
    site.commit();
    let known =
        "agent 'nope' not found (known: claude, codex, gemini, opencode, aider, gemini-acp, opencode-acp, qwen, shell";
    let said = site.swarm(&["plan", "--specs", "specs", "-y"]);
    assert!(said.code == Some(1) && said.err.starts_with(&format!("swarm: error: run.agent: {known}")), "{said:?}");
    assert!(!site.repo.join(".arial/state.json").exists());
}

#[test]
fn an_unknown_agent_is_reported_for_each_spec() {
    let site = Site::new();
    for (id, agent) in [("a", "cladue"), ("b", "shell"), ("c", "codx")] {
        site.write(&format!("specs/{id}.md"), &format!("---\nadapter: {agent}\n---\n# Spec {id}\n"));
    }
    site.commit();
    let known = "(known: claude, codex, gemini, opencode, aider, gemini-acp, opencode-acp, qwen, shell)";
    let all = format!(
        "swarm: error: specs/a.md: agent 'cladue' not found {known}\nswarm: hint: did you mean 'claude'?\n\
         swarm: error: specs/c.md: agent 'codx' not found {known}\nswarm: hint: did you mean 'codex'?\n"
    );
    site.swarm(&["plan", "--specs", "specs", "-y"]).is(1, "", &all);
    // A name that became wrong after the plan does not hold up the others.
    site.write("specs/a.md", "# Spec a\n");
    site.write("specs/b.md", "---\nadapter: shell\n---\n# Spec b\n\n```sh\necho b > b.txt\n```\n");
    site.write("specs/c.md", "---\nadapter: shell\n---\n# Spec c\n");
    fs::remove_file(site.repo.join("specs/a.md")).expect("removed");
    site.commit();
    site.plan();
    site.write("specs/c.md", "---\nadapter: codx\nretries: 0\n---\n# Spec c\n");
    let said = site.swarm(&["run"]);
    assert_eq!((said.code, site.statuses()), (Some(1), vec!["b done".to_owned(), "c failed".to_owned()]), "{said:?}");
    assert!(said.err.contains("specs/c.md: agent 'codx' not found") && said.err.contains("did you mean 'codex'?"));
    fs::remove_file(site.repo.join("specs/c.md")).expect("removed");
    fs::remove_file(site.repo.join("specs/b.md")).expect("removed");
    site.write("specs/a.md", "# Spec a\n");
    site.commit();
    site.plan();
    // An agent of the command line belongs to no spec.
    let said = site.swarm(&["run", "--agent", "shel"]);
    let all = format!("swarm: error: agent 'shel' not found {known}\nswarm: hint: did you mean 'shell'?\n");
    assert_eq!((said.code, said.err.as_str()), (Some(1), all.as_str()), "{said:?}");
}

#[test]
fn a_new_run_waits_for_a_run_that_is_stopping() {
    let site = Site::new();
    let script =
        "test -e go || { trap '' TERM; touch began; while test ! -e go; do sleep 0.05; done; }; echo a > a.txt";
    site.spec("a", "", script);
    site.commit();
    site.plan();
    site.swarm(&["run", "--detach"]).ok();
    let tree = site.repo.join(".arial/worktrees/a");
    wait_until("the agent works", SOON, || tree.join("began").exists());
    site.swarm(&["run", "stop"]).ok();
    fs::write(tree.join("go"), "").expect("written");
    let said = site.swarm(&["run", "--headless"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert_eq!(site.landed("a.txt"), "a");
}

#[test]
fn a_jobs_file_restarts_only_after_it_has_completed() {
    let rig = Rig::new();
    let job = |name: &str, command: &str| format!("[[job]]\nname = '{name}'\ncommand = '{command}'\n");
    let file = rig.file("jobs.toml", &(job("a", "echo a >> ran") + &job("b", "exit 1")));
    let hint = format!("swarm: hint: run 'swarm run {file} --retry-failed' to retry what failed\n");
    let said = rig.swarm(&["run", &file]);
    assert_eq!((said.code, said.err.as_str()), (Some(1), hint.as_str()), "{said:?}");
    assert_eq!(rig.swarm(&["run", "attach", "--home", &file]).err, hint);
    assert_eq!(rig.swarm(&["run", "attach", "--home", &file, "--json"]).err, "");
    let plan = rig.swarm(&["run", &file, "--dry-run"]).ok();
    let failed = "2 jobs, 0 pending, at most 20 at a time\na (done)  echo a >> ran\nb (failed; use --retry-failed to retry)  exit 1\n";
    assert_eq!(plan, failed);
    // A changed command makes it another job.
    rig.file("jobs.toml", &(job("a", "echo a >> ran") + &job("b", "echo b >> ran")));
    let plan = rig.swarm(&["run", &file, "--dry-run"]).ok();
    assert_eq!(plan, "2 jobs, 1 pending, at most 20 at a time\na (done)  echo a >> ran\nb  echo b >> ran\n");
    assert_eq!(rig.swarm(&["run", &file]).code, Some(0));
    // No job has failed, so there is nothing to retry.
    assert_eq!(rig.swarm(&["run", &file, "--retry-failed", "-j", "3"]).code, Some(0));
    let ran = || fs::read_to_string(rig.path("ran")).expect("made");
    assert_eq!(ran(), "a\nb\n");
    let dropped = "swarm: note: not using the flags of the completed run: -j 3 (give them again to use them)\n";
    let said = rig.swarm(&["run", &file]);
    assert_eq!((said.code, said.err.as_str()), (Some(0), dropped), "{said:?}");
    assert_eq!(ran().lines().count(), 4);
}

#[test]
fn work_of_a_run_without_landing_is_reviewed_and_landed_later() {
    let site = Site::new();
    site.spec("a", "", "echo a > a");
    site.commit();
    site.plan();
    let said = site.swarm(&["run", "--no-merge"]);
    let hint = "swarm: hint: review with 'swarm diff repo.a', land with 'swarm merge add repo.a'\n";
    assert!(said.code == Some(0) && said.err == hint, "{said:?}");
    assert!(!site.repo.join("a").exists() && site.statuses() == ["a done"]);
    assert!(site.swarm(&["diff", "repo.a"]).ok().contains("+a"));
    site.swarm(&["merge", "add", "repo.a"]).ok();
    site.swarm(&["merge", "wait", "repo.a", "--timeout", "25"]).is(0, "repo.a: landed (main)\n", "");
    assert_eq!(fs::read_to_string(site.repo.join("a")).expect("landed"), "a\n");
}

#[test]
fn work_that_nothing_verifies_is_warned_of_without_a_terminal() {
    let site = Site::new();
    site.spec("a", "", "echo a > a");
    site.commit();
    site.plan();
    let warns =
        |words: &[&str]| site.swarm_says_all(words).err.contains("nothing verifies the work before it lands on main");
    assert!(warns(&["run", "--dry-run"]) && warns(&["run", "--detach"]));
    wait_until("it has landed", SOON, || site.statuses() == ["a done"]);
    assert!(!warns(&["run", "--verify", "true"]) && !warns(&["run", "--json"]));
}

#[test]
fn work_that_a_run_has_left_lands_when_a_person_says_so() {
    let site = Site::new();
    site.spec("a", "", "echo a > a");
    site.spec("b", "", "echo b > b");
    site.commit();
    site.plan();
    let ends = |words: &[&str]| assert_eq!(site.swarm(words).code, Some(0), "{words:?}");
    ends(&["run", "--no-merge"]);
    let note = |id: &str| format!("not landed; run 'swarm merge add repo.{id}' or 'swarm run --merge'");
    let status = site.swarm(&["run", "status"]).ok();
    assert!(status.contains(&note("a")) && status.contains(&note("b")), "{status}");
    // One of them lands by hand; without a word the other one stays.
    site.swarm(&["merge", "add", "repo.a"]).ok();
    site.swarm(&["merge", "wait", "repo.a", "--timeout", "25"]).is(0, "repo.a: landed (main)\n", "");
    ends(&["run"]);
    let status = site.swarm(&["run", "status"]).ok();
    assert!(!status.contains(&note("a")) && status.contains(&note("b")), "{status}");
    assert!(site.repo.join("a").exists() && !site.repo.join("b").exists());
    ends(&["run", "--merge"]);
    assert_eq!(fs::read_to_string(site.repo.join("b")).expect("landed"), "b\n");
    assert_eq!(site.statuses(), ["a done", "b done"]);
    assert!(!site.swarm(&["run", "status"]).ok().contains("not landed"));
}

#[test]
fn work_that_a_person_has_squashed_onto_the_base_is_not_left() {
    let site = Site::new();
    site.write("swarm.toml", "[merge]\nstrategy = \"squash\"\n");
    site.spec("a", "", "echo a > a; git add a; git commit -qm a; echo more >> a");
    site.spec("b", "", "echo b > b");
    site.commit();
    site.plan();
    assert_eq!(site.swarm(&["run", "--no-merge"]).code, Some(0));
    site.swarm(&["merge", "add", "repo.a"]).ok();
    site.swarm(&["merge", "wait", "repo.a", "--timeout", "25"]).is(0, "repo.a: landed (main)\n", "");
    assert_eq!(site.landed("a"), "a\nmore");
    let status = site.swarm(&["run", "status"]).ok();
    assert!(status.contains("merge add repo.b'") && !status.contains("merge add repo.a'"), "{status}");
    assert_eq!(
        (site.swarm(&["diff", "repo.a"]).ok().as_str(), site.swarm(&["diff", "repo.b"]).ok().is_empty()),
        ("", false)
    );
    // What is written after that is left.
    let tree = site.repo.join(".arial/worktrees/a");
    fs::write(tree.join("later"), "later\n").expect("written");
    assert!(site.swarm(&["run", "status"]).ok().contains("merge add repo.a'"));
    fs::remove_file(tree.join("later")).expect("removed");
    let cleaned = site.swarm(&["clean", "--all"]);
    assert!(cleaned.out == "cleaned repo.a\n" && !cleaned.err.contains("repo.a"), "{cleaned:?}");
    assert!(site.swarm(&["run", "cleanup"]).err.contains("merge add repo.b'") && !tree.exists());
}

#[test]
fn work_is_left_whatever_a_reviewer_has_checked_out_in_its_worktree() {
    let site = Site::new();
    for id in ["a", "b"] {
        site.spec(id, "", &format!("echo {id} > {id}; git add {id}; git commit -qm {id}"));
    }
    site.commit();
    site.plan();
    assert_eq!(site.swarm(&["run", "--no-merge"]).code, Some(0));
    let tree = |id: &str| format!(".arial/worktrees/{id}");
    site.git(&["-C", &tree("a"), "switch", "-q", "-c", "review"]);
    site.git(&["-C", &tree("b"), "checkout", "-q", "--detach", "HEAD~1"]);
    let left = || {
        let status = site.swarm(&["run", "status"]).ok();
        ["a", "b"].map(|id| status.contains(&format!("'swarm merge add repo.{id}'")))
    };
    assert_eq!(left(), [true, true]);
    let cleaned = site.swarm(&["clean", "--all"]);
    assert!(cleaned.out.is_empty() && cleaned.err.contains("repo.a") && cleaned.err.contains("repo.b"), "{cleaned:?}");
    // A person lands one of them without swarm.
    site.git(&["merge", "-q", "--no-edit", "arial/a"]);
    assert_eq!(left(), [false, true]);
    // Its project is moved, and git cannot tell.
    let moved = site.repo.with_file_name("moved");
    fs::rename(&site.repo, &moved).expect("moved");
    let status = site.rig.swarm_in(&moved, &["run", "status"]);
    assert!(status.out.contains("'swarm merge add repo.b'"), "{status:?}");
}

#[test]
fn a_retry_without_work_starts_from_the_base_as_it_is_now() {
    let site = Site::new();
    site.spec("empty", "retries: 0\n", "test -e mended && echo ok > ok");
    site.spec("works", "retries: 0\n", "echo work >> work; git add work; git commit -qm work; test -e mended");
    site.commit();
    site.plan();
    site.run(1, &[]);
    assert_eq!(site.statuses(), ["empty failed", "works failed"]);
    site.write("mended", "yes\n");
    site.commit();
    let said = site.swarm(&["run", "--retry-failed"]);
    assert!(said.err.contains("note: workstream 'empty' starts again from main as it is now\n"), "{said:?}");
    let tree = site.repo.join(".arial/worktrees/works");
    let kept = format!(
        "note: workstream 'works' continues its earlier work on arial/works, without what is new on main; to bring it up \
         to date: git -C {} merge main\n",
        tree.display()
    );
    assert!(said.err.contains(&kept), "{said:?}");
    assert_eq!(site.statuses(), ["empty done", "works failed"]);
    site.rig.git(&tree, &["merge", "-q", "--no-edit", "main"]);
    assert_eq!(site.swarm(&["run", "--retry-failed"]).code, Some(0));
    assert_eq!(site.statuses(), ["empty done", "works done"]);
}

#[test]
fn work_that_continues_has_what_it_comes_after_or_its_agent_is_told() {
    let site = Site::new();
    let (seen, go) = (site.rig.path("seen"), site.rig.path("go"));
    fs::create_dir(&seen).expect("made");
    // Of the two agents, only that of c has work when it is stopped.
    let script = format!(
        "id=$(basename \"$PWD\"); prompt={}/$id.$SWARM_ATTEMPT; cat > $prompt.new\n[ $id = b ] || echo draft > draft\n\
         mv $prompt.new $prompt; [ -e {} ] || exec tail -f /dev/null\n\
         if grep -q 'git merge main' $prompt; then git merge -q main; fi; cp schema seen-$id\n",
        seen.display(),
        go.display()
    );
    site.agent(&script, "");
    site.spec("a", "", "echo old > schema");
    for id in ["b", "c"] {
        site.write(&format!("specs/{id}.md"), "---\nadapter: mine\nafter: [a]\n---\n# Use the schema\n");
    }
    site.commit();
    site.plan();
    site.swarm(&["run", "--detach"]).ok();
    let has = |name: &str| seen.join(name).exists();
    wait_until("both agents work", SOON, || has("b.1") && has("c.1"));
    site.swarm(&["run", "stop"]).ok();
    site.spec("a", "", "echo new > schema");
    site.plan();
    fs::write(&go, "").expect("written");
    let all = site.run(0, &[]);
    assert_eq!(
        (site.landed("seen-b"), site.landed("seen-c"), site.landed("draft")),
        ("new".into(), "new".into(), "draft".into())
    );
    let tree = site.repo.join(".arial/worktrees/c");
    for (id, tree, words) in
        [("b", None, "was made anew from main"), ("c", tree.to_str(), "Run 'git merge main' first")]
    {
        let is_it = |event: &&serde_json::Value| event["event"] == "workstream.behind" && event["workstream"] == id;
        let told: Vec<_> = all.iter().filter(is_it).collect();
        let found = (told.len(), told[0]["after"][0].as_str(), told[0]["base"].as_str(), told[0]["worktree"].as_str());
        assert_eq!(found, (1, Some("a"), Some("main"), tree), "{id}");
        let prompt = fs::read_to_string(seen.join(format!("{id}.2"))).expect("a prompt");
        assert!(prompt.contains("You were interrupted") && prompt.contains(words), "{prompt}");
    }
}

#[test]
fn a_spec_that_changed_after_it_was_done_is_not_taken_for_done() {
    let site = Site::new();
    let changed = |id: &str, what: &str| format!("swarm: warning: spec '{id}' changed {what}\n");
    site.spec("a", "", "echo a > a.txt");
    site.spec("b", "retries: 0\n", "exit 1");
    site.commit();
    site.plan();
    // A change before the work is used.
    site.spec("a", "", "echo a2 > a.txt");
    let said = site.swarm(&["run"]);
    assert!(said.code == Some(1) && said.err.contains(&changed("a", "after it was planned; using the new version")));
    site.spec("b", "retries: 0\n", "echo $SWARM_ATTEMPT > b.txt");
    let said = site.swarm(&["run"]);
    let failed = changed("b", "after it has failed; --retry-failed uses the new version");
    assert!(said.code == Some(1) && said.err.starts_with(&failed), "{said:?}");
    let said = site.swarm(&["run", "--retry-failed"]);
    let used = changed("b", "after it was planned; using the new version");
    assert!(said.code == Some(0) && said.err.starts_with(&used) && !said.err.contains("'a'"), "{said:?}");
    assert_eq!(site.landed("a.txt"), "a2");
    // A change after the work is not.
    site.spec("a", "", "echo a3 > a.txt");
    for _ in 0..2 {
        let said = site.swarm(&["run"]);
        let not = changed("a", "after it was done; this run does not do it again")
            + "swarm: hint: run 'swarm plan --specs specs', then 'swarm run' to do it again\n";
        assert_eq!((said.code, said.err.as_str()), (Some(1), not.as_str()), "{said:?}");
    }
    site.plan();
    let said = site.swarm(&["run"]);
    assert_eq!((said.code, site.landed("a.txt").as_str()), (Some(0), "a3"), "{said:?}");
    assert!(!said.err.contains("changed after"), "{said:?}");
}

#[test]
fn what_was_planned_again_is_shown_and_treated_as_pending() {
    let site = Site::new();
    site.spec("a", "", "echo a > a");
    site.spec("b", "retries: 0\n", "echo b > b; exit 1");
    site.commit();
    site.plan();
    site.run(1, &[]);
    let shown = || site.swarm(&["run", "--dry-run"]).ok();
    let lines =
        "2 jobs, 0 pending, at most 20 at a time\na (done)  Spec a\nb (failed; use --retry-failed to retry)  Spec b\n";
    assert_eq!(shown(), lines);
    site.spec("a", "", "echo again > a");
    site.spec("b", "", "echo b > b");
    assert_eq!(site.swarm(&["plan", "--specs", "specs", "-y"]).code, Some(0));
    site.rig.trust(&site.repo);
    assert_eq!(shown(), "2 jobs, at most 20 at a time\na  Spec a\nb  Spec b\n");
    // It does not go on with what the failed attempt left.
    let said = site.swarm(&["run", "--retry-failed"]);
    assert!(said.code == Some(0) && !said.err.contains("continues its earlier work"), "{said:?}");
    assert_eq!((site.landed("a"), site.landed("b")), ("again".into(), "b".into()));
}

#[test]
fn cleaning_takes_away_nothing_that_waits_for_a_review() {
    let site = Site::new();
    site.spec("c", "", "echo c > c; git add c; git commit -qm c");
    site.spec("d", "", "echo d > d");
    site.spec("e", "", "echo e > e");
    site.commit();
    site.plan();
    assert_eq!(site.swarm(&["run", "--no-merge"]).code, Some(0));
    // What a person has landed and cleaned is done.
    site.swarm(&["merge", "add", "repo.e"]).ok();
    site.swarm(&["merge", "wait", "repo.e", "--timeout", "25"]).ok();
    site.swarm(&["clean", "repo.e"]).ok();
    let said = site.swarm(&["run", "cleanup"]);
    let tree = |id: &str| site.repo.join(".arial/worktrees").join(id).display().to_string();
    let why = |id: &str| {
        let land = format!("run 'swarm merge add repo.{id}' or 'swarm run --merge'");
        format!("swarm: note: kept {}: its work has not landed; {land}\n", tree(id))
    };
    assert_eq!((said.out.as_str(), said.err), ("", why("c") + &why("d")));
    let kept = |id: &str| {
        let next =
            format!("run 'swarm merge add repo.{id}' to land it, or 'swarm clean repo.{id}' to forget the worker");
        format!("swarm: note: kept 'repo.{id}': its work has not landed; {next}\n")
    };
    site.swarm(&["spawn", "--name", "w", "--", "true"]).ok();
    site.rig.wait("w");
    site.swarm(&["clean", "--all"]).is(0, "cleaned w\n", &(kept("c") + &kept("d")));
    assert!(site.swarm(&["diff", "repo.c"]).ok().contains("+c"));
    // The branch has the work of a worker that was cleaned by name.
    site.swarm(&["clean", "repo.c"]).ok();
    assert!(!std::path::Path::new(&tree("c")).exists());
    let all = site.run(0, &["--merge"]);
    assert_eq!(told(&all, "c").last().map(String::as_str), Some("workstream.done"));
    assert_eq!((site.landed("c"), site.landed("d")), ("c".into(), "d".into()));
    assert_eq!(site.statuses(), ["c done", "d done", "e done"]);
    site.swarm(&["run", "cleanup"]).ok();
    assert_eq!(site.git(&["branch", "--list", "arial/*"]), "");
}
