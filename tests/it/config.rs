//! Configuration files: precedence, the origin of each value, and the messages about mistakes.

use std::fs;

use serde_json::Value;

use crate::common::{Rig, Said};

fn set_user(rig: &Rig, text: &str) {
    let dir = rig.path("home").join(".config/swarm");
    fs::create_dir_all(&dir).expect("made");
    fs::write(dir.join("config.toml"), text).expect("written");
}

/// Asserts a refusal whose message contains this text.
fn refused(said: &Said, part: &str) {
    assert!(said.code == Some(1) && said.err.starts_with("swarm: error: ") && said.err.contains(part), "{said:?}");
}

#[test]
fn each_value_is_shown_with_the_file_that_sets_it() {
    let rig = Rig::new();
    let repo = rig.repo();
    set_user(&rig, "[merge]\nverify = 'make'\nbatch = 3\n[notify]\nwebhook = 'http://127.0.0.1:9/hidden'\n");
    fs::write(repo.join("swarm.toml"), "[merge]\nbatch = 5\n").expect("written");
    let shown = rig.swarm_in(&repo, &["config", "merge", "notify.webhook"]).ok();
    let line =
        |key: &str| shown.lines().find(|line| line.starts_with(key)).map(str::trim_end).expect("there").to_owned();
    assert!(
        line("merge.batch ").contains(" 5 ")
            && line("merge.batch ").ends_with(&format!(" {}/swarm.toml:2", repo.display())),
        "{shown}"
    );
    assert!(line("merge.verify ").contains("\"make\"") && line("merge.verify ").ends_with("config.toml:2"), "{shown}");
    assert!(line("merge.strategy").ends_with("default") && line("notify.webhook").contains("***"), "{shown}");
    assert!(!shown.contains("hidden") && !shown.contains("run.limit"), "{shown}");
    // From a directory below, and from a worktree of it.
    fs::create_dir(repo.join("deep")).expect("made");
    let set = rig.swarm_in(&repo.join("deep"), &["config", "--set", "--json"]).ok();
    let set: Value = serde_json::from_str(&set).expect("JSON");
    let keys: Vec<&str> =
        set["values"].as_array().expect("a list").iter().filter_map(|one| one["key"].as_str()).collect();
    assert_eq!(keys, ["merge.batch", "merge.verify", "notify.webhook"]);
    // What needs consent and has none is shown, and does not apply.
    fs::write(repo.join("swarm.toml"), "[merge]\nverify = 'evil'\n").expect("written");
    let verify = |is_trusted: bool| {
        let said = rig.swarm_in(&repo, &["config", "merge.verify"]);
        let is_marked = said.out.trim_end().ends_with("/swarm.toml:2 (not trusted)");
        assert_eq!((is_marked, said.err.as_str()), (!is_trusted, ""), "{said:?}");
        let set = rig.swarm_in(&repo, &["config", "merge.verify", "--json"]).ok();
        let set: Value = serde_json::from_str(&set).expect("JSON");
        assert_eq!(set["values"][0]["in_force"], Value::Bool(is_trusted), "{set}");
    };
    verify(false);
    rig.trust(&repo);
    verify(true);
    rig.swarm_in(&repo, &["config", "merge.bach"]).refused(1, "key 'merge.bach' not found");
}

#[test]
fn workers_start_with_the_configured_values_and_flags_win() {
    let rig = Rig::new();
    let repo = rig.repo();
    set_user(&rig, "[spawn]\ntags = ['mine']\n[spawn.env]\nCOLOUR = 'blue'\n");
    fs::write(repo.join("swarm.toml"), "[spawn]\nworktree = true\nrestart = 'on-failure'\ntimeout = '1h'\n")
        .expect("written");
    rig.swarm_in(&repo, &["spawn", "--name", "a", "--tag", "t", "--", "sh", "-c", "echo $COLOUR > colour"]).ok();
    rig.wait("a");
    let view = rig.view("a");
    assert_eq!((view["tags"].to_string(), view["restart"].as_str()), ("[\"mine\",\"t\"]".into(), Some("on-failure")));
    assert_eq!(fs::read_to_string(rig.path("repo-worktrees/a/colour")).expect("there"), "blue\n");
    let typed = ["spawn", "--name", "b", "--no-worktree", "--restart", "never", "--env", "COLOUR=red", "--"];
    rig.swarm_in(&repo, &[&typed[..], &["sh", "-c", "echo $COLOUR; pwd"]].concat()).ok();
    rig.wait("b");
    assert_eq!(rig.log("b", "stdout"), format!("red\n{}\n", repo.display()));
    assert_eq!(rig.view("b")["worktree"], Value::Null);
    // Outside the repository only the user's configuration applies.
    rig.spawn("c", &[], &["true"]);
    assert_eq!(rig.view("c")["tags"].to_string(), "[\"mine\"]");
}

#[test]
fn all_mistakes_are_reported_and_nothing_starts() {
    let rig = Rig::new();
    let repo = rig.repo();
    set_user(&rig, "[spwan]\ntmux = true\n");
    fs::write(repo.join("swarm.toml"), "[spawn]\ntmx = true\nrestart = 'often'\n").expect("written");
    let said = rig.swarm_in(&repo, &["config"]);
    assert_eq!((said.code, said.out.as_str()), (Some(1), ""));
    assert!(said.err.contains("/config.toml, line 1: unknown key 'spwan' (did you mean 'spawn'?)"), "{said:?}");
    assert!(said.err.contains("/swarm.toml, line 2: unknown key 'spawn.tmx' (did you mean 'tmux'?)"), "{said:?}");
    let spawn = || rig.swarm_in(&repo, &["spawn", "--name", "a", "--", "true"]);
    refused(&spawn(), "/config.toml, line 1: unknown key 'spwan'");
    refused(&spawn(), "(and 1 more; run 'swarm config' to see them)");
    assert!(rig.names().is_empty());
    set_user(&rig, "");
    fs::write(repo.join("swarm.toml"), "[spawn]\nrestart = 'often'\n").expect("written");
    refused(&spawn(), "/swarm.toml, line 2: spawn.restart: unknown variant `often`");
    fs::write(repo.join("swarm.toml"), "[notify]\ncommand = 'x'\n").expect("written");
    refused(&spawn(), "/swarm.toml, line 1: 'notify' is allowed only in");
    assert!(rig.names().is_empty());
}
