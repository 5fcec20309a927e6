//! What lands is what was meant: the recorded branch, everything that a resolver made, in the environment of those who
//! added it, and verified in a directory like the worker's.

use std::fs;
use std::path::Path;

use crate::common::{Rig, SOON, Said, run, wait_until};
use crate::landing::{CHECK, Site};
use crate::run;

#[test]
fn parallel_work_that_meets_in_one_file_lands_completely() {
    let site = run::Site::new();
    // The resolver keeps the lines of both sides.
    let resolver = "sed -i '/^[<=>][<=>]* *[A-Za-z0-9]*/{/^[<=>]\\{7\\}/d}' CHANGELOG; touch made-by-$SWARM_MERGE_ITEM";
    site.write(
        "swarm.toml",
        &format!("[merge]\nresolver = \"\"\"{}\"\"\"\nmax_retries = 1\n", resolver.replace('\\', "\\\\")),
    );
    site.write("CHANGELOG", "first\n");
    for id in ["a", "b", "c", "d"] {
        site.spec(id, "retries: 0\n", &format!("echo {id} >> CHANGELOG; echo {id} > {id}.txt"));
    }
    site.commit();
    site.plan();
    let events = site.run(0, &["-j", "4"]);
    assert_eq!(site.statuses(), ["a done", "b done", "c done", "d done"]);
    let log = site.landed("CHANGELOG");
    let mut lines: Vec<&str> = log.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["a", "b", "c", "d", "first"], "{log}");
    let resolutions = events.iter().filter(|event| event["event"] == "merge.resolving").count();
    assert_eq!(resolutions, 3, "one for each item but the first");
    // A file that the resolver made and did not stage.
    assert_eq!(site.git(&["ls-tree", "--name-only", "main"]).matches("made-by-").count(), 3);
}

#[test]
fn an_agent_that_left_its_branch_is_told_and_nothing_else_lands() {
    let site = run::Site::new();
    let switch = "if [ $SWARM_ATTEMPT = 1 ]; then echo work > a.txt; git add a.txt; git commit -qm work; git checkout -q wip; \
                  else git checkout -q arial/a; cat \"$SWARM_PROMPT\" > told; fi";
    site.spec("a", "retries: 1\n", switch);
    site.commit();
    site.git(&["switch", "-q", "-c", "wip"]);
    site.write("unfinished", "not meant to land\n");
    site.git(&["add", "unfinished"]);
    site.git(&["commit", "-q", "-m", "WIP"]);
    let wip = site.git(&["rev-parse", "wip"]);
    site.git(&["switch", "-q", "main"]);
    site.plan();
    site.run(0, &[]);
    assert_eq!((site.landed("a.txt"), site.git(&["rev-parse", "wip"])), ("work".into(), wip));
    assert_eq!(site.git(&["ls-tree", "--name-only", "main", "unfinished"]), "");
    assert_eq!(site.row("a")["status"], "done");
}

#[test]
fn a_worker_that_left_its_branch_waits() {
    let site = Site::new();
    site.git(&["branch", "wip"]);
    site.worker("w", &[], "echo w > w; git add w; git commit -qm w; git checkout -q wip; echo x > f");
    let said = site.swarm(&["merge", "add", "w"]);
    let why = "its worktree has branch 'wip' checked out instead of 'w'";
    assert!(said.out.starts_with("waiting w for main") && said.err.contains(why), "{said:?}");
    assert_eq!(site.git(&["rev-parse", "wip"]), site.git(&["rev-parse", "main"]));
    let said = site.swarm(&["diff", "w"]);
    assert!(said.err.contains(why), "{said:?}");
    let tree = site.rig.path("repo-worktrees/w");
    fs::remove_file(tree.join("f")).expect("removed");
    site.rig.git(&tree, &["switch", "-q", "w"]);
    site.swarm(&["merge", "add", "w"]).ok();
    site.merge_wait();
    assert_eq!(site.state("w"), "landed");
}

#[test]
fn work_from_a_rewritten_base_waits_for_a_person() {
    let site = Site::new();
    site.git(&["stash", "-q"]);
    site.write("secret", "1234\n");
    site.git(&["add", "secret"]);
    site.git(&["commit", "-q", "-m", "oops"]);
    site.worker("w", &[], "echo w > w");
    site.git(&["reset", "-q", "--hard", "HEAD~1"]);
    site.swarm(&["merge", "add", "w"]).ok();
    site.merge_wait();
    let why = site.reason("w");
    assert!(
        site.state("w") == "waiting" && why.starts_with("the base was rewritten: 'main' no longer contains "),
        "{why}"
    );
    assert!(!site.repo.join("secret").exists());
    site.swarm(&["merge", "retry", "w"]).ok();
    site.merge_wait();
    assert_eq!(site.state("w"), "landed");
}

#[test]
fn a_continued_branch_from_a_rewritten_base_waits_for_a_person() {
    let site = Site::new();
    site.git(&["stash", "-q"]);
    site.write("secret", "1234\n");
    site.git(&["add", "secret"]);
    site.git(&["commit", "-q", "-m", "oops"]);
    site.worker("w", &[], "echo w > w; git add w; git commit -qm w");
    site.swarm(&["clean", "w"]).ok();
    site.git(&["reset", "-q", "--hard", "HEAD~1"]);
    let said = site.swarm(&["spawn", "--name", "w", "--worktree", "--merge", "--", "sh", "-c", "echo more > more"]);
    assert!(said.code == Some(0) && said.err.contains("branch 'w' already exists and is continued"), "{said:?}");
    site.rig.wait("w");
    site.swarm(&["merge", "wait", "w", "--timeout", "25"]);
    assert!(site.reason("w").starts_with("the base was rewritten: 'main' no longer contains "), "{}", site.reason("w"));
    assert!(!site.repo.join("secret").exists());
}

#[test]
fn a_post_create_that_changes_a_tracked_file_fails_no_verification() {
    let site = Site::new();
    site.write("swarm.toml", "[worktree]\npost_create = 'echo made >> file'\n");
    site.git(&["add", "swarm.toml"]);
    site.git(&["commit", "-q", "-m", "config", "--", "swarm.toml"]);
    site.git(&["switch", "-q", "-c", "topic"]);
    site.write("new", "new\n");
    site.git(&["add", "new"]);
    site.git(&["commit", "-q", "-m", "new", "--", "new"]);
    site.git(&["switch", "-q", "main"]);
    site.swarm(&["merge", "add", "topic", "--base", "main", "--verify", "grep made file"]).ok();
    site.merge_wait();
    assert_eq!(site.state("topic"), "landed", "{}", site.item("topic"));
    assert_eq!(site.git(&["show", "main:file"]), "one");
    // The verification itself still must not change any.
    site.git(&["branch", "other", "HEAD~1"]);
    site.git(&["switch", "-q", "other"]);
    site.write("another", "x\n");
    site.git(&["add", "another"]);
    site.git(&["commit", "-q", "-m", "another", "--", "another"]);
    site.git(&["switch", "-q", "main"]);
    site.swarm(&["merge", "add", "other", "--base", "main", "--verify", "test ! -e another || echo >> health"]).ok();
    site.merge_wait();
    assert!(site.reason("other").contains("passed, but changed 1 tracked file(s): health"), "{}", site.item("other"));
}

#[test]
fn a_base_that_fails_is_named_and_its_items_continue_when_it_is_mended() {
    let site = Site::new();
    site.write("health", "ill\n");
    site.git(&["commit", "-q", "-m", "broken", "--", "health"]);
    for name in ["a", "b"] {
        site.worker(name, &[], &format!("echo {name} > {name}"));
    }
    site.swarm(&["merge", "add", "a", "b", "--verify", CHECK]).ok();
    site.merge_wait();
    for name in ["a", "b"] {
        let why = site.reason(name);
        assert!(site.state(name) == "waiting" && why.starts_with("the base itself does not pass: '"), "{why}");
    }
    site.write("health", "good\n");
    site.git(&["commit", "-q", "-m", "mended", "--", "health"]);
    wait_until("both land", SOON, || ["a", "b"].iter().all(|name| site.state(name) == "landed"));
    site.assert_untouched();
}

#[test]
fn what_a_rejected_candidate_left_decides_nothing() {
    let site = Site::new();
    site.write(".gitignore", "target/\n");
    site.git(&["add", ".gitignore"]);
    site.git(&["commit", "-q", "-m", "ignore", "--", ".gitignore"]);
    // An ill candidate leaves a cache that makes every later verification fail.
    let verify = format!("mkdir -p target; {CHECK} || touch target/ill; ! test -e target/ill");
    site.worker("bad", &[], "echo ill > health");
    site.worker("good", &[], "echo good > good");
    site.swarm(&["merge", "add", "bad", "good", "--verify", &verify]).ok();
    site.merge_wait();
    assert_eq!((site.state("bad").as_str(), site.state("good").as_str()), ("rejected", "landed"));
}

#[test]
fn each_item_keeps_the_environment_of_those_who_added_it() {
    let site = Site::new();
    let seen = site.rig.path("seen");
    site.worker("first", &[], "echo first > first");
    site.swarm(&["merge", "add", "first"]).ok();
    site.merge_wait();
    site.swarm(&["merge", "pause"]).ok();
    for name in ["alice", "bob"] {
        site.worker(name, &[], &format!("echo {name} > {name}"));
        let verify = format!("echo $SWARM_MERGE_NAME $WHO >> {}", seen.display());
        let mut add = site.rig.command(&["merge", "add", name, "--verify", &verify, "--batch", "2"]);
        add.current_dir(&site.repo).env("WHO", name);
        for role in ["AUTHOR", "COMMITTER"] {
            add.env(format!("GIT_{role}_NAME"), name).env(format!("GIT_{role}_EMAIL"), format!("{name}@example.org"));
        }
        run(add).ok();
    }
    site.swarm(&["merge", "resume"]).ok();
    site.merge_wait();
    assert_eq!(fs::read_to_string(seen).expect("there"), "alice alice\nbob bob\n");
    let log = site.git(&["log", "--first-parent", "-2", "--format=%s %an %cn", "main"]);
    assert_eq!(log, "Merge bob bob bob\nMerge alice alice alice");
}

#[test]
fn a_verification_finds_what_a_worker_finds() {
    let rig = Rig::new();
    let module = rig.repo_named("module");
    let repo = rig.repo();
    let site = Site { rig, repo };
    site.git(&[
        "-c",
        "protocol.file.allow=always",
        "submodule",
        "--quiet",
        "add",
        module.to_str().expect("text"),
        "lib",
    ]);
    site.write(".gitignore", "node_modules\n.env\nmade\n");
    site.write(
        "swarm.toml",
        "[worktree]\nsubmodules = true\ninclude = ['.env']\nlink = ['node_modules']\npost_create = 'echo made > made'\n",
    );
    for dir in ["in", "out"] {
        fs::create_dir(site.repo.join(dir)).expect("made");
        site.write(&format!("{dir}/test"), "test\n");
    }
    site.git(&["add", "-A"]);
    site.git(&["commit", "-q", "-m", "set up"]);
    site.write(".env", "SECRET=1\n");
    fs::create_dir(site.repo.join("node_modules")).expect("made");
    site.write("node_modules/index.js", "x\n");
    site.git(&["sparse-checkout", "set", "in"]);
    assert!(!site.repo.join("out").exists());
    let verify = "test -e lib/file && cat .env node_modules/index.js made out/test";
    for name in ["a", "b"] {
        site.worker(name, &[], &format!("echo {name} > in/{name}"));
        site.swarm(&["merge", "add", name, "--verify", verify]).ok();
        site.merge_wait();
        assert_eq!(site.state(name), "landed", "{}", site.item(name));
    }
    // The second verification, which rejects, is in a directory that is set up again.
    site.worker("c", &[], "echo c > in/c");
    let seen = site.rig.path("seen");
    let verify = format!("{verify} >> {}; test ! -e in/c", seen.display());
    site.swarm(&["merge", "add", "c", "--verify", &verify]).ok();
    site.merge_wait();
    assert_eq!((site.state("c").as_str(), fs::read_to_string(seen).expect("there").lines().count()), ("rejected", 12));
}

#[test]
fn work_that_has_landed_as_another_commit_does_not_land_again() {
    for strategy in ["squash", "rebase"] {
        let site = Site::new();
        let land = |expected: &str| {
            site.swarm(&["merge", "add", "w", "--strategy", strategy]).ok();
            site.merge_wait();
            assert_eq!(site.state("w"), expected, "{strategy}: {}", site.item("w"));
        };
        let tree = site.rig.path("repo-worktrees/w");
        let commit = |name: &str, text: &str| {
            fs::write(tree.join(name), text).expect("written");
            site.rig.git(&tree, &["add", name]);
            site.rig.git(&tree, &["commit", "-q", "-m", name]);
        };
        site.worker("w", &[], "echo one > one; echo common > common; git add .; git commit -qm one");
        land("landed");
        site.rig.git(&site.repo, &["rm", "-q", "one"]);
        fs::write(site.repo.join("common"), "of the base\n").expect("written");
        site.rig.git(&site.repo, &["commit", "-q", "-a", "-m", "remove one"]);
        land("noop");
        commit("two", "two\n");
        land("landed");
        commit("three", "three\n");
        land("landed");
        let names = site.rig.git(&site.repo, &["ls-files"]);
        let has = |name: &str| names.lines().any(|line| line == name);
        assert!(!has("one") && has("two") && has("three"), "{strategy}: {names}");
        assert_eq!(fs::read_to_string(site.repo.join("common")).expect("read"), "of the base\n");
    }
}

#[test]
fn a_name_that_is_a_branch_here_and_a_worker_elsewhere_is_refused() {
    let site = Site::new();
    site.worker("fix", &[], "echo fix > fix");
    site.worker("other", &[], "echo other > other");
    let here = site.rig.path("q");
    let repo = here.to_str().expect("text");
    site.rig.git(&site.rig.cwd(), &["clone", "-q", site.repo.to_str().expect("text"), repo]);
    site.rig.git(&here, &["switch", "-q", "-c", "fix"]);
    site.rig.git(&here, &["commit", "-q", "--allow-empty", "-m", "fix"]);
    fs::write(here.join("q"), "q\n").expect("written");
    site.rig.git(&here, &["add", "q"]);
    site.rig.git(&here, &["commit", "-q", "-m", "q"]);
    site.rig.git(&here, &["switch", "-q", "main"]);
    let cause = format!("'fix' is a worker of {} and a branch of {repo}", site.repo.display());
    site.rig.swarm_in(&here, &["merge", "add", "fix"]).refused(1, &cause);
    assert!(site.swarm(&["merge", "ls"]).out.is_empty(), "nothing was queued");
    let said = site.rig.swarm_in(&here, &["merge", "add", "refs/heads/fix"]).ok();
    assert_eq!(said, "queued refs/heads/fix for main (item 0)\n");
    // A worker of another repository may be added, and the answer says where it lands.
    let said = site.rig.swarm_in(&here, &["merge", "add", "other"]).ok();
    assert_eq!(said, format!("queued other for main of {} (item 0)\n", site.repo.display()));
}

#[test]
fn squashed_work_does_not_land_again_under_another_name() {
    let site = Site::new();
    site.worker("w", &["--branch", "feature"], "echo two > file; git commit -qam two");
    for (name, expected) in [("w", "landed"), ("feature", "noop"), ("w", "noop")] {
        site.swarm(&["merge", "add", name, "--strategy", "squash"]).ok();
        site.merge_wait();
        assert_eq!(site.state(name), expected, "{}", site.item(name));
        // A person takes it back on the base.
        fs::write(site.repo.join("file"), "one\n").expect("written");
        site.rig.git(&site.repo, &["commit", "-q", "-a", "--allow-empty", "-m", "back"]);
    }
    assert_eq!(fs::read_to_string(site.repo.join("file")).expect("read"), "one\n");
}

#[test]
fn a_queue_can_be_paused_before_anything_is_added() {
    let site = Site::new();
    site.swarm(&["merge", "pause", "--base", "main"]).is(0, "paused the queue of main\n", "");
    site.worker("w", &["--merge"], "echo w > w");
    wait_until("it is queued", SOON, || site.swarm(&["merge", "ls"]).out.contains("queued"));
    let paused = "swarm: warning: the queue of main is paused\n";
    assert_eq!(site.swarm(&["merge", "ls"]).err, paused);
    let hint = "swarm: hint: run 'swarm merge resume --base main'\n";
    let waited = site.swarm(&["merge", "wait", "--timeout", "1"]);
    waited.is(1, "w: still queued (timeout)\n", &[paused, hint].concat());
    site.worker("v", &[], "echo v > v");
    site.swarm(&["merge", "add", "v"]).ok();
    site.swarm(&["merge", "resume", "--base", "main"]).is(0, "resumed the queue of main\n", "");
    site.merge_wait();
    assert_eq!((site.state("w").as_str(), site.state("v").as_str()), ("landed", "landed"));
    let said: Said = site.swarm(&["merge", "pause", "--base", "mian"]);
    assert!(said.code != Some(0) && said.err.contains("branch 'mian' not found"), "{said:?}");
}

#[test]
fn a_damaged_journal_is_named_and_its_work_can_be_added_again() {
    let site = Site::new();
    site.worker("w", &[], "echo w > w");
    site.swarm(&["merge", "pause", "--base", "main"]).ok();
    site.swarm(&["merge", "add", "w"]).ok();
    site.rig.kill_keepers();
    let queues = fs::read_dir(site.rig.root().join("merge")).expect("queues");
    let file = queues.flatten().map(|queue| queue.path().join("queue.json")).find(|file| file.exists()).expect("one");
    let text = fs::read(&file).expect("read");
    fs::write(&file, &text[..text.len() / 2]).expect("written");
    let tip = site.git(&["rev-parse", "w"]);
    let shows = |file: &Path| {
        let what =
            format!("the journal of the merge queue of main is damaged, its items are lost: {}: ", file.display());
        let hint = format!("then delete {}: w ({})", file.display(), &tip[..12]);
        let said = site.swarm(&["merge", "ls"]);
        assert!(said.code == Some(0) && said.err.contains(&what) && said.err.contains(&hint), "{said:?}");
        let said = site.swarm(&["doctor", "--json"]);
        assert!(said.out.contains(&what) && said.out.contains(&hint), "{said:?}");
    };
    shows(&file);
    site.swarm(&["supervisor", "start"]).ok();
    let aside = file.with_file_name("queue.json.corrupted");
    assert_eq!(fs::read(&aside).expect("kept"), text[..text.len() / 2]);
    shows(&aside);
    let events = site.swarm(&["events", "--json"]).ok();
    let event = events.lines().find(|line| line.contains("\"merge.damaged\"")).expect("an event");
    assert!(event.contains(aside.to_str().expect("text")) && event.contains("\"base\":\"main\""), "{event}");
    site.swarm(&["merge", "add", "w", "--base", "main"]).ok();
    site.merge_wait();
    assert_eq!(site.state("w"), "landed");
    fs::remove_file(aside).expect("deleted");
    let said = site.swarm(&["merge", "ls"]);
    assert!(!said.err.contains("damaged"), "{said:?}");
}

#[test]
fn an_active_item_cannot_be_dropped_and_the_hint_says_what_to_do() {
    let site = Site::new();
    let (began, go) = (site.rig.path("began"), site.rig.path("go"));
    site.worker("w", &[], "echo w > w");
    let verify = format!("touch {}; while test ! -e {}; do sleep 0.05; done", began.display(), go.display());
    site.swarm(&["merge", "add", "w", "--verify", &verify]).ok();
    wait_until("it is verified", SOON, || began.exists());
    let said = site.swarm(&["merge", "drop", "w"]);
    let hint = "run 'swarm merge wait 0' until it has settled; if it did not land, it can be dropped then";
    assert!(said.err.contains("item 0 is active and cannot be dropped") && said.err.contains(hint), "{said:?}");
    fs::write(go, "").expect("written");
    site.merge_wait();
}

#[test]
fn the_output_of_a_failing_base_does_not_replace_that_of_the_item() {
    let site = Site::new();
    site.worker("w", &[], "echo of the item > w");
    site.swarm(&["merge", "add", "w", "--verify", "cat w || echo of the base; exit 1"]).ok();
    site.merge_wait();
    let reason = site.reason("w");
    let base = std::path::PathBuf::from(reason.rsplit_once("is in ").expect("a path").1);
    assert!(reason.starts_with("the base itself does not pass: "), "{reason}");
    let last = |path: &std::path::Path| fs::read_to_string(path).expect("a log").lines().last().map(str::to_owned);
    assert_eq!(last(&base).as_deref(), Some("of the base"));
    assert_eq!(last(&base.with_file_name("0.log")).as_deref(), Some("of the item"));
}

/// The run's agent is the resolver, and meets the limit of its provider there.
#[test]
fn an_agent_that_meets_a_limit_in_a_conflict_is_asked_again_later() {
    let site = run::Site::new();
    let script = r#"cat > /dev/null
echo '{"type":"system","subtype":"init","session_id":"x"}'
if [ -n "$SWARM_MERGE_NAME" ]; then
  touch REPO/asked
  echo '{"type":"rate_limit_event","rate_limit_info":{"status":"rejected","resetsAt":4000000000}}'
  echo '{"type":"result","subtype":"success","is_error":true,"result":"limit","total_cost_usd":0}'; exit 1
fi
echo ours > file; (cd REPO && echo theirs > file && git commit -qm theirs file)
echo '{"type":"result","subtype":"success","is_error":false,"result":"did it","total_cost_usd":0}'
"#;
    site.agent(&script.replace("REPO", site.repo.to_str().expect("text")), "events = 'claude'\n");
    site.write("specs/a.md", "---\nretries: 0\n---\n# Do it\n");
    site.commit();
    site.plan();
    site.swarm(&["run", "--detach", "--agent", "mine"]).ok();
    let item = || site.swarm(&["merge", "status", "repo.a", "--json"]).out;
    let is_paused = || item().contains("the resolver cannot work now") && site.repo.join("asked").exists();
    wait_until("it is queued again", SOON, is_paused);
    let item: serde_json::Value = serde_json::from_str(&item()).expect("JSON");
    assert_eq!((&item["state"], &item["resolver_tries"]), (&"queued".into(), &0.into()), "{item}");
    assert_eq!(site.row("a")["status"], "running");
    assert_eq!(site.swarm(&["run", "stop"]).code, Some(0));
    site.swarm(&["merge", "drop", "repo.a"]).ok();
}

#[test]
fn a_resolver_that_cannot_work_now_is_no_try() {
    let site = Site::new();
    for name in ["a", "b"] {
        site.worker(name, &[], &format!("echo {name} >> file"));
    }
    site.swarm(&["merge", "add", "a"]).ok();
    site.merge_wait();
    let tried = site.rig.path("tried");
    let resolver = format!("touch {}; exit 75", tried.display());
    site.swarm(&["merge", "add", "b", "--resolver", &resolver]).ok();
    wait_until("it is queued again", SOON, || tried.exists() && site.state("b") == "queued");
    assert_eq!(site.item("b")["resolver_tries"], 0);
    site.swarm(&["merge", "drop", "b"]).ok();
}
