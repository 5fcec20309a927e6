//! Runs that meet what is not theirs, or what was left behind: branches of others, files that are left out, damaged and
//! newer states, orphaned worktrees, and a conversation that is gone.

use std::fs;

use serde_json::{Value, json};

use crate::run::{Site, text, told};

#[test]
fn a_branch_of_somebody_else_is_neither_taken_over_nor_landed() {
    let site = Site::new();
    site.spec("a", "", "echo a > a.txt");
    site.spec("b", "retries: 2\n", "echo b > b.txt");
    site.commit();
    site.git(&["branch", "arial/a"]);
    let mine = |name: &str, branch: &str| {
        site.git(&["switch", "-q", branch]);
        site.write(name, "mine\n");
        site.git(&["add", name]);
        site.git(&["commit", "-q", "-m", "mine"]);
        site.git(&["switch", "-q", "main"]);
    };
    mine("mine.txt", "arial/a");
    let tip = site.git(&["rev-parse", "arial/a"]);
    let said = site.swarm(&["plan", "--specs", "specs", "-y"]);
    assert!(said.err.contains("branch 'arial/a' exists; workstream 'a' will use 'arial/a-2'"), "{said:?}");
    // One that appears after the plan.
    site.git(&["branch", "arial/b"]);
    mine("other.txt", "arial/b");
    let all = site.run(1, &[]);
    assert_eq!(site.statuses(), ["a done", "b failed"]);
    assert_eq!((site.landed("a.txt").as_str(), site.git(&["rev-parse", "arial/a"])), ("a", tip));
    assert_eq!(site.git(&["ls-tree", "--name-only", "main"]), "a.txt\nfile\nspecs");
    let starts = told(&all, "b").iter().filter(|event| *event == "workstream.started").count();
    assert_eq!(starts, 1, "a further attempt would find the same branch");
    let error = site.row("b")["lastError"].clone();
    assert!(
        text(&error).starts_with("branch 'arial/b' exists and has work that this workstream did not begin"),
        "{error}"
    );
    assert_eq!(site.git(&["log", "-1", "--format=%s", "arial/b"]), "mine");
    // Planned again, it uses another one.
    let said = site.swarm(&["plan", "--specs", "specs", "-y"]);
    assert!(
        said.err.contains("workstream 'b' will use 'arial/b-2'") && !said.err.contains("workstream 'a'"),
        "{said:?}"
    );
    site.run(0, &["--retry-failed"]);
    assert_eq!(site.landed("b.txt"), "b");
}

#[test]
fn work_of_an_earlier_version_of_a_spec_does_not_land() {
    let site = Site::new();
    site.spec("y", "retries: 0\n", "echo old > old.txt; git add old.txt; git commit -qm old; exit 1");
    site.commit();
    site.plan();
    site.run(1, &[]);
    site.spec("y", "retries: 0\n", "echo new > new.txt");
    let said = site.swarm(&["plan", "--specs", "specs", "-y"]);
    assert!(said.err.contains("workstream 'y' will use 'arial/y-2'"), "{said:?}");
    site.run(0, &[]);
    assert_eq!(site.landed("new.txt"), "new");
    assert_eq!(site.git(&["ls-tree", "--name-only", "main"]), "file\nnew.txt\nspecs");
    assert_eq!(site.git(&["log", "-1", "--format=%s", "arial/y"]), "old", "the old work is kept");
}

#[test]
fn a_retry_continues_on_the_branch_that_its_run_began() {
    let site = Site::new();
    let script = "test -e half.txt || { echo half > half.txt; git add half.txt; git commit -qm half; exit 1; }\n\
                  echo whole > whole.txt";
    site.spec("a", "retries: 0\n", script);
    site.commit();
    site.plan();
    site.run(1, &[]);
    site.plan();
    site.run(0, &["--retry-failed"]);
    assert_eq!((site.landed("half.txt").as_str(), site.landed("whole.txt").as_str()), ("half", "whole"));
}

#[test]
fn work_that_a_person_has_merged_after_a_conflict_is_done() {
    let site = Site::new();
    let count = site.repo.join("count");
    // The base changes the same line before the work lands.
    let theirs = format!("cd {} && echo theirs > file && git commit -qm theirs file", site.repo.display());
    site.spec("a", "retries: 0\n", &format!("echo run >> {}; echo ours > file; {theirs}", count.display()));
    site.git(&["add", "specs"]);
    site.git(&["commit", "-q", "-m", "specs"]);
    site.plan();
    site.run(1, &[]);
    assert!(text(&site.row("a")["lastError"]).starts_with("conflicts with the base"), "{}", site.row("a"));
    let runs = fs::read_to_string(&count).expect("read");
    let merged = site.rig.git_says(&site.repo, &["merge", "-q", "arial/a"]);
    assert_eq!(merged.code, Some(1), "{merged:?}");
    site.write("file", "both\n");
    site.git(&["add", "file"]);
    site.git(&["commit", "-q", "-m", "by hand"]);
    site.swarm(&["clean", "repo.a", "--rm-worktree"]).ok();
    site.run(0, &["--retry-failed"]);
    assert_eq!(site.statuses(), ["a done"]);
    assert_eq!(fs::read_to_string(&count).expect("read"), runs, "the agent was started again");
}

#[test]
fn a_branch_that_was_reset_after_a_conflict_is_not_done() {
    let site = Site::new();
    let count = site.rig.path("count");
    let theirs = format!("cd {} && echo theirs > file && git commit -qm theirs file", site.repo.display());
    let first = format!("test -e {0} || {{ touch {0}; echo ours > file; {theirs}; exit; }}", count.display());
    site.spec("a", "retries: 0\n", &format!("{first}\necho ours >> file"));
    site.git(&["add", "specs"]);
    site.git(&["commit", "-q", "-m", "specs"]);
    site.plan();
    site.run(1, &[]);
    assert!(text(&site.row("a")["lastError"]).starts_with("conflicts with the base"), "{}", site.row("a"));
    site.rig.git(&site.repo.join(".arial/worktrees/a"), &["reset", "-q", "--hard", "main"]);
    site.run(0, &["--retry-failed"]);
    assert_eq!((site.statuses(), site.landed("file")), (vec!["a done".to_owned()], "theirs\nours".into()));
}

#[test]
fn an_agent_that_left_too_many_new_files_is_told_and_commits_them() {
    let site = Site::new();
    let script = "if [ $SWARM_ATTEMPT = 1 ]; then mkdir new; for n in $(seq 201); do echo $n > new/$n; done; \
                  else git add new; git commit -qm new; fi";
    site.spec("a", "retries: 1\n", script);
    site.commit();
    site.plan();
    let all = site.run(0, &[]);
    assert_eq!(site.git(&["ls-tree", "--name-only", "main:new"]).lines().count(), 201);
    let says = |one: &Value| {
        let error = one["error"].as_str().unwrap_or_default();
        error.contains("201 untracked files in ") && error.contains("more than 200") && one["attempt"] == 1
    };
    assert!(all.iter().any(says), "{all:?}");
    assert_eq!(site.row("a")["status"], "done");
}

#[test]
fn files_that_are_left_out_are_reported_and_nothing_else_is_a_failure() {
    let site = Site::new();
    site.spec("some", "", "mkdir -p pkg/dist; echo x > pkg/dist/x.go; echo m > main.go");
    site.spec("only", "retries: 1\n", "mkdir -p tests; echo x > tests/in.log");
    site.commit();
    site.plan();
    let all = site.run(1, &[]);
    assert_eq!(site.statuses(), ["only failed", "some done"]);
    let started = all.iter().find(|one| one["event"] == "merge.started" && one["workstream"] == "some").expect("told");
    assert_eq!(started["left_out"], json!(["pkg/dist/x.go"]));
    let cause = "ended with success but left only files that are not committed: tests/in.log";
    assert_eq!(site.row("only")["lastError"], cause);
    let said = site.swarm(&["run", "status", "--json"]).ok();
    let status: Value = serde_json::from_str(&said).expect("JSON");
    let of = |id: &str| {
        let rows = status["workstreams"].as_array().expect("rows");
        rows.iter().find(|row| row["id"] == id).expect("a row")["left_out"].clone()
    };
    assert_eq!((of("some"), of("only")), (json!(["pkg/dist/x.go"]), json!(["tests/in.log"])));
    let shown = site.swarm(&["run", "status"]).ok();
    assert!(shown.contains("1 uncommitted path(s) will not land: pkg/dist/x.go"), "{shown}");
}

#[test]
fn a_damaged_state_is_moved_aside_and_rebuilt_from_the_journal() {
    let site = Site::new();
    site.spec("a", "", "echo a > a.txt");
    site.spec("b", "retries: 0\n", "test -e ../../../go && echo b > b.txt");
    site.commit();
    site.plan();
    site.run(1, &[]);
    let state = site.repo.join(".arial/state.json");
    let aside = |end: &str| site.repo.join(format!(".arial/state.json.corrupted{end}"));
    site.write("go", "");
    for (number, damage) in ["{\"version\": 2, \"works", "[]", "\0\0\0\0"].into_iter().enumerate() {
        fs::write(&state, damage).expect("written");
        let said = match number {
            0 => site.swarm(&["run", "--retry-failed"]),
            _ => site.swarm(&["plan", "--specs", "specs", "-y"]),
        };
        assert_eq!(said.code, Some(0), "{said:?}");
        let end = if number == 0 { String::new() } else { format!(".{number}") };
        assert_eq!(fs::read_to_string(aside(&end)).expect("kept"), damage);
        let word = format!("moved to {}; rebuilt from run.jsonl", aside(&end).display());
        assert!(said.err.contains(&word), "{said:?}");
        assert_eq!(site.statuses(), ["a done", "b done"], "{damage:?}");
    }
    // Without a journal, planning starts over.
    fs::remove_file(site.repo.join(".arial/run.jsonl")).expect("removed");
    fs::write(&state, "").expect("written");
    let said = site.swarm(&["plan", "--specs", "specs", "-y"]);
    assert!(said.code == Some(0) && said.err.contains("state.json.corrupted.3; planned anew"), "{said:?}");
    assert_eq!(site.statuses(), ["a pending", "b pending"]);
}

#[test]
fn a_state_of_a_newer_version_is_refused_by_all_verbs_and_left_alone() {
    let site = Site::new();
    site.spec("a", "", "echo a > a.txt");
    site.commit();
    site.plan();
    site.run(0, &[]);
    let newer = r#"{"version": 3, "workstreams": {"new": "form"}}"#;
    site.write(".arial/state.json", newer);
    let path = site.repo.join(".arial/state.json");
    let cause = format!("{}: unsupported version 3 (this program supports 2)", path.display());
    let below = site.swarm(&["__complete", "fish", "run", ""]).ok();
    let below = below.lines().filter_map(|line| line.split('\t').next()).map(|verb| vec!["run", verb]);
    let verbs: Vec<Vec<&str>> =
        [vec!["plan", "--specs", "specs", "-y"], vec!["run"]].into_iter().chain(below).collect();
    assert!(verbs.len() > 10, "{verbs:?}");
    for mut words in verbs {
        let verb = words.get(1).copied().unwrap_or_default();
        words.extend::<&[&str]>(match verb {
            "give-up" | "logs" => &["a"],
            "context" => &["a", "text"],
            _ => &[],
        });
        let said = site.swarm(&words);
        assert_eq!(fs::read_to_string(&path).expect("read"), newer, "{words:?}");
        // These read or make other files.
        if !matches!(verb, "attach" | "logs" | "init") {
            said.refused(1, &cause);
        }
    }
}

#[test]
fn work_whose_worktree_has_lost_its_link_waits_in_a_run() {
    let site = Site::new();
    site.spec("a", "", "echo a > a.txt; rm .git");
    site.commit();
    site.plan();
    site.run(1, &[]);
    let status = site.swarm(&["run", "status", "--json"]).ok();
    let row = serde_json::from_str::<Value>(&status).expect("JSON")["workstreams"][0].clone();
    let tree = site.repo.join(".arial/worktrees/a");
    let repair = format!("git -C {} worktree repair", site.repo.display());
    let cause = format!("{} has lost its .git file (run '{repair}')", tree.display());
    assert_eq!((text(&row["stage"]), text(&row["error"]), &row["failures"]), ("waiting", cause.as_str(), &json!(0)));
    assert_eq!(site.git(&["ls-tree", "--name-only", "main"]), "file\nspecs");
    site.git(&["worktree", "repair"]);
    site.run(0, &[]);
    assert_eq!(site.landed("a.txt"), "a");
}

#[test]
fn cleanup_of_a_planned_home_removes_orphans_without_work_and_names_the_others() {
    let site = Site::new();
    site.spec("a", "", "echo a > a.txt");
    site.commit();
    site.plan();
    let trees = site.repo.join(".arial/worktrees");
    for id in ["empty", "work", "gone", "lost", "dirty"] {
        site.git(&["worktree", "add", "-q", "-b", &format!("arial/{id}"), &format!(".arial/worktrees/{id}")]);
    }
    for id in ["work", "lost"] {
        site.rig.git(&trees.join(id), &["commit", "-q", "--allow-empty", "-m", "work"]);
    }
    fs::write(trees.join("dirty/new.txt"), "new\n").expect("written");
    for id in ["gone", "lost"] {
        fs::remove_dir_all(trees.join(id)).expect("removed");
    }
    fs::create_dir(trees.join("plain")).expect("made");
    fs::create_dir(trees.join("full")).expect("made");
    fs::write(trees.join("full/notes"), "mine\n").expect("written");
    let said = site.swarm(&["run", "cleanup", "--json"]).ok();
    let said: Value = serde_json::from_str(&said).expect("JSON");
    let tree = |id: &str| trees.join(id).to_str().expect("text").to_owned();
    let removed =
        [&tree("empty"), "arial/empty", &tree("gone"), "arial/gone", &tree("lost"), &tree("plain"), &tree("work")];
    assert_eq!(said["removed"], json!(removed), "{said}");
    let kept: Vec<&str> = said["kept"].as_array().expect("a list").iter().map(|one| text(&one["path"])).collect();
    assert_eq!(kept, [tree("dirty").as_str(), "arial/dirty", &tree("full"), "arial/lost", "arial/work"], "{said}");
    assert!(trees.join("dirty/new.txt").exists() && trees.join("full/notes").exists());
    assert_eq!(
        site.git(&["branch", "--list", "--format=%(refname:short)", "arial/*"]),
        "arial/dirty\narial/lost\narial/work"
    );
}

#[test]
fn a_conversation_that_is_gone_is_replaced_within_the_same_attempt() {
    let site = Site::new();
    // A stand-in that knows no conversation but its own, and fails its first attempt.
    let script = r#"
prompt=$(cat)
case "$*" in
*--resume*) echo '{"type":"result","subtype":"error_during_execution","is_error":true,"total_cost_usd":0,"errors":["No conversation found with session ID: x"]}'; exit 1;;
esac
echo '{"type":"system","subtype":"init","session_id":"x"}'
printf '%s' "$prompt" > ../../../prompt.$SWARM_ATTEMPT
if [ $SWARM_ATTEMPT = 1 ]; then
  echo '{"type":"result","subtype":"error_during_execution","is_error":true,"result":"broken","total_cost_usd":0}'; exit 1
fi
echo a > a.txt
echo '{"type":"result","subtype":"success","is_error":false,"result":"did it","total_cost_usd":0}'
"#;
    site.agent(script, "events = 'claude'\n");
    site.write("specs/a.md", "---\nretries: 1\n---\n# Do it\n\nThe whole task.\n");
    site.commit();
    site.plan();
    let all = site.run(0, &["--agent", "mine"]);
    assert_eq!(site.landed("a.txt"), "a");
    let said = |event: &Value| {
        event["event"] == "workstream.activity" && event["text"] == "the conversation is gone; starting a new one"
    };
    assert!(all.iter().any(said), "{all:?}");
    let prompt = fs::read_to_string(site.repo.join("prompt.2")).expect("the second attempt began afresh");
    assert!(prompt.contains("The whole task.") && prompt.contains("broken"), "{prompt}");
}

#[test]
fn links_in_the_home_of_a_hostile_repository_are_refused() {
    let site = Site::new();
    site.spec("git", "", "echo a > a.txt");
    site.commit();
    let outside = site.rig.path("outside");
    fs::create_dir(&outside).expect("made");
    fs::write(outside.join("keys"), "mine\n").expect("written");
    let lead = |link: &str, to: &str| {
        let path = site.repo.join(link);
        fs::create_dir_all(path.parent().expect("has one")).expect("made");
        std::os::unix::fs::symlink(outside.join(to), path).expect("linked");
        site.git(&["add", "-f", link]);
        site.git(&["commit", "-q", "-m", "a link"]);
    };
    for (link, to) in [(".arial/worktrees", ""), (".arial/lock", "keys"), (".arial", "")] {
        lead(link, to);
        for words in [&["plan", "--specs", "specs", "-y"][..], &["run"], &["run", "cleanup"]] {
            let said = site.swarm(words);
            assert!(said.code == Some(1), "{link}: {words:?}: {said:?}");
            assert_eq!(fs::read_to_string(outside.join("keys")).expect("read"), "mine\n", "{link}: {words:?}");
            assert_eq!(fs::read_dir(&outside).expect("read").count(), 1, "{link}: {words:?}");
        }
        let said = site.swarm(&["plan", "--specs", "specs", "-y"]);
        assert!(said.err.contains(&format!("{link} is a symbolic link")), "{said:?}");
        site.git(&["reset", "-q", "--hard", "HEAD~1"]);
        let _ = fs::remove_dir_all(site.repo.join(".arial"));
    }
}

#[test]
fn a_link_that_lands_during_a_run_is_refused_before_the_next_attempt() {
    let site = Site::new();
    let outside = site.rig.path("outside");
    fs::create_dir(&outside).expect("made");
    let lead = format!(
        "mkdir -p .arial/attempts; ln -s '{}' .arial/attempts/b.1; git add -f .arial; git commit -q -m link",
        outside.display()
    );
    site.spec("a", "", &lead);
    site.spec("b", "after: a\n", "echo b > b.txt");
    site.commit();
    site.plan();
    let all = site.run(1, &[]);
    let cause = ".arial/attempts/b.1 is a symbolic link";
    assert!(all.iter().any(|event| event.to_string().contains(cause)), "{all:?}");
    assert_eq!(fs::read_dir(&outside).expect("read").count(), 0);
}

#[test]
fn a_home_that_is_tracked_by_mistake_is_reported_by_plan() {
    let site = Site::new();
    site.spec("a", "", "echo a > a.txt");
    site.commit();
    let said = site.swarm(&["plan", "--specs", "specs", "-y"]);
    assert!(said.code == Some(0) && !said.err.contains("tracked"), "{said:?}");
    site.git(&["add", "-f", ".arial/state.json"]);
    site.git(&["commit", "-q", "-m", "by mistake"]);
    let said = site.swarm(&["plan", "--specs", "specs", "-y"]);
    assert!(said.code == Some(0) && said.err.contains(".arial is tracked by git"), "{said:?}");
}

#[test]
fn a_new_workstream_with_an_earlier_name_is_refused() {
    let site = Site::new();
    site.spec("a", "", "echo old > old.txt");
    site.spec("b", "", "echo b > b.txt");
    site.commit();
    site.plan();
    site.run(0, &[]);
    fs::remove_file(site.repo.join("specs/a.md")).expect("removed");
    site.spec("c", "", "echo c > c.txt");
    site.commit();
    site.plan();
    site.run(0, &[]);
    site.spec("a", "", "echo new > new.txt");
    site.commit();
    site.plan();
    let said = site.swarm(&["run", "--agent", "shell"]);
    assert!(
        said.code == Some(1) && said.err.contains("workstream 'a' is new, but this run had another one"),
        "{said:?}"
    );
    fs::rename(site.repo.join("specs/a.md"), site.repo.join("specs/a2.md")).expect("renamed");
    site.commit();
    site.plan();
    site.run(0, &[]);
    assert!(site.repo.join("new.txt").exists());
}
