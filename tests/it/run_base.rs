//! Work of runs and its base: what the base has already, what waits without a commit, and names that are ambiguous.

use std::fs;

use crate::common::{SOON, wait_until};
use crate::run::{Site, told};

#[test]
fn work_that_the_base_has_already_is_done_and_its_dependents_start() {
    let site = Site::new();
    for id in ["a", "b"] {
        site.spec(id, "", "sleep 1; echo '*.o' > .gitignore");
    }
    site.spec("c", "after: b\n", "echo c > c.txt");
    site.spec("idle", "retries: 0\n", "git commit -q --allow-empty -m nothing");
    let tries = "echo x > x; git add x; git commit -qm try; git revert --no-edit HEAD";
    site.spec("taken-back", "retries: 0\n", tries);
    site.commit();
    site.plan();
    let said = site.swarm(&["run"]);
    assert_eq!(said.code, Some(1), "only 'idle' and 'taken-back' failed: {said:?}");
    assert!(said.out.contains(": done: already on the base\n"), "{said:?}");
    assert!(said.out.contains("taken-back: failed: ended with success but left nothing to land"), "{said:?}");
    assert_eq!(site.statuses(), ["a done", "b done", "c done", "idle failed", "taken-back failed"]);
    // The branch of the one that did not land stays, because the base does not contain its commits.
    let branches = site.git(&["branch", "--list", "arial/[ab]"]);
    assert_eq!((site.landed("c.txt").as_str(), branches.lines().count()), ("c", 1), "{branches}");
}

#[test]
fn work_whose_conflict_was_resolved_for_the_base_is_done() {
    let site = Site::new();
    let resolves = "git merge -q main || { git checkout main -- file; git commit -qam merged; }; exit 0";
    for id in ["a", "b"] {
        let script = format!("if [ \"$SWARM_ATTEMPT\" -gt 1 ]; then {resolves}; fi\nsleep 1; echo {id} > file");
        site.spec(id, "retries: 2\n", &script);
    }
    site.commit();
    site.plan();
    let said = site.swarm(&["run"]);
    assert_eq!((said.code, site.statuses()), (Some(0), vec!["a done".to_owned(), "b done".to_owned()]), "{said:?}");
}

#[test]
fn what_keeps_work_from_its_commit_is_the_agents_to_mend() {
    let site = Site::new();
    let first = "echo x > x.txt; git add x.txt; git commit -qm x; git switch -qc tmp HEAD~1; echo y > x.txt; \
                 git add x.txt; git commit -qm y; git switch -q arial/merging; git merge tmp || true";
    let again = "echo z > x.txt; git add x.txt; git commit -qm merged";
    let script =
        |first: &str, again: &str| format!("if [ \"$SWARM_ATTEMPT\" -gt 1 ]; then {again}; exit 0; fi\n{first}");
    site.spec("merging", "retries: 1\n", &script(first, again));
    site.spec("named", "retries: 1\n", &script("echo n > n.txt; echo y > 'git~1'", "rm 'git~1'"));
    site.spec("after", "after: [merging, named]\n", "cat x.txt n.txt > after.txt");
    site.commit();
    site.plan();
    let said = site.swarm(&["run"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(said.out.contains("attempt 1 failed, retrying: a merge is in progress in its worktree"), "{said:?}");
    assert!(said.out.contains("attempt 1 failed, retrying: invalid path 'git~1'"), "{said:?}");
    assert_eq!(site.landed("after.txt"), "z\nn");
}

#[test]
fn work_that_a_person_finished_and_added_is_done() {
    let site = Site::new();
    let script = "if [ \"$SWARM_ATTEMPT\" -gt 1 ]; then exit 0; fi\necho n > n.txt; echo y > 'git~1'";
    site.spec("a", "retries: 0\n", script);
    site.spec("b", "after: a\n", "cat n.txt > b.txt");
    site.commit();
    site.plan();
    let said = site.swarm(&["run"]);
    assert!(said.code == Some(1) && said.out.contains("a: failed: invalid path 'git~1'"), "{said:?}");
    fs::remove_file(site.repo.join(".arial/worktrees/a/git~1")).expect("removed");
    site.swarm(&["merge", "add", "repo.a"]).ok();
    site.swarm(&["merge", "wait", "repo.a"]).ok();
    assert_eq!(site.landed("n.txt"), "n");
    let said = site.swarm(&["run", "--retry-failed"]);
    assert!(said.code == Some(0) && said.out.contains("a: landed as "), "{said:?}");
    assert!(said.out.contains(" by 'swarm merge add' (item 0), not by the run, not verified\n"), "{said:?}");
    assert_eq!(site.landed("b.txt"), "n");
}

#[test]
fn work_lands_once_its_base_is_back() {
    let site = Site::new();
    site.spec("a", "", "git branch -m main trunk; echo a > a.txt");
    site.spec("b", "after: a\n", "cp a.txt b.txt");
    site.commit();
    site.plan();
    let said = site.swarm(&["run"]);
    assert!(said.code == Some(1) && said.out.contains("base branch 'main' not found"), "{said:?}");
    site.git(&["branch", "-m", "trunk", "main"]);
    let all = site.run(0, &[]);
    assert_eq!(told(&all, "a").last().map(String::as_str), Some("workstream.done"));
    assert_eq!((site.landed("b.txt").as_str(), site.row("a")["retry_count"].as_u64().unwrap_or(0)), ("a", 0));
}

#[test]
fn a_tag_with_the_name_of_the_base_is_not_the_base() {
    let site = Site::new();
    site.git(&["tag", "main"]);
    site.spec("a", "", "echo a > a.txt");
    site.spec("b", "after: a\nretries: 0\n", "cat a.txt > b.txt");
    site.commit();
    site.plan();
    site.run(0, &["--verify", "test -e a.txt"]);
    assert_eq!(site.git(&["show", "refs/heads/main:b.txt"]), "a");
    // Nor is it for a worker that starts from the branch.
    site.rig
        .swarm_in(&site.repo, &["spawn", "--name", "w", "--worktree", "--base", "main", "--", "test", "-e", "b.txt"])
        .ok();
    site.rig.wait("w");
    let status: serde_json::Value =
        serde_json::from_str(&site.rig.swarm(&["status", "w", "--json"]).out).expect("JSON");
    assert_eq!(status["exit"]["code"], 0, "{status}");
}

#[test]
fn ignored_files_that_go_with_a_worktree_are_named() {
    let site = Site::new();
    site.write(".gitignore", "*.csv\n/out/\nmade\n");
    site.write("swarm.toml", "[worktree]\ninclude = ['*.csv']\npost_create = 'touch made'\n");
    site.write("copied.csv", "of the base checkout\n");
    site.spec("a", "", "echo a > a.txt; echo data > data.csv; mkdir out; echo r > out/report");
    site.spec("kept", "merge: false\n", "echo k > k.txt; git add k.txt; git commit -qm k");
    site.commit();
    site.plan();
    let all = site.run(0, &[]);
    let named: Vec<_> = all.iter().filter(|event| event["event"] == "workstream.ignored").collect();
    assert_eq!((named.len(), named[0]["files"].to_string().as_str()), (1, "[\"data.csv\"]"), "{named:?}");
    // Work that does not land stays where it is.
    assert!(site.repo.join(".arial/worktrees/kept/k.txt").exists());
    assert!(site.swarm(&["ls"]).ok().contains("repo.kept"));
    site.rig.swarm_in(&site.repo, &["spawn", "--name", "w", "--worktree", "--", "touch", "w.csv", "v.csv"]).ok();
    site.rig.wait("w");
    site.rig.swarm(&["clean", "w"]).is(0, "cleaned w\n", "swarm: note: removed 2 ignored files: v.csv, w.csv\n");
}

#[test]
fn with_one_place_a_resolver_waits_for_the_workstream_at_work() {
    let site = Site::new();
    let script = "cat > /dev/null\ncase $SWARM_WORKSTREAM$SWARM_MERGE_NAME in\n\
                  *repo.a) touch REPO/resolved; printf 'both\\n' > file;;\n\
                  a) echo ours > file; cd REPO && echo theirs > file && git commit -qm theirs file;;\n\
                  b) cat REPO/pipe > b.txt;;\nesac\n";
    site.agent(&script.replace("REPO", site.repo.to_str().expect("text")), "");
    for id in ["a", "b"] {
        site.write(&format!("specs/{id}.md"), "# Do it\n");
    }
    let made = site.rig.program("mkfifo").arg(site.repo.join("pipe")).status().expect("mkfifo");
    assert!(made.success());
    site.commit();
    site.plan();
    site.swarm(&["run", "--detach", "-j", "1", "--agent", "mine"]).ok();
    let item = || site.swarm(&["merge", "status", "repo.a"]).out;
    let why = "its resolver waits until an agent of the run ends ('-j')";
    wait_until("the resolver waits", SOON, || item().contains(why));
    let listed = site.swarm(&["merge", "ls"]).ok();
    assert!(listed.contains(&format!("paused: {why}")) && !site.repo.join("resolved").exists(), "{listed}");
    fs::write(site.repo.join("pipe"), "b\n").expect("written");
    let said = site.swarm(&["run", "attach", "--headless"]);
    assert_eq!((said.code, site.statuses()), (Some(0), vec!["a done".to_owned(), "b done".to_owned()]), "{said:?}");
    assert!(site.repo.join("resolved").exists());
    assert_eq!((site.landed("file").as_str(), site.landed("b.txt").as_str()), ("both", "b"));
}
