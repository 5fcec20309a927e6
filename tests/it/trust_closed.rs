//! What nobody was ever asked about is not executed: not by a run, the merge queue, a removal, or a supervisor with
//! another book of consents.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use serde_json::Value;

use crate::common::{Rig, SOON, Said, wait_until};
use crate::run::Site;
use crate::trust::{refusal, run_alone, set};

fn program(rig: &Rig, name: &str, script: &str) -> String {
    let path = rig.file(name, &format!("#!/bin/sh\n{script}\n"));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("executable");
    path
}

/// Writes the person's own configuration.
fn set_own(rig: &Rig, text: &str) {
    fs::create_dir_all(rig.path("home/.config/swarm")).expect("made");
    fs::write(rig.path("home/.config/swarm/config.toml"), text).expect("written");
}

/// Keeps only these sections of what was agreed to.
fn keep_sections(rig: &Rig, kept: &[&str]) {
    let path = rig.path("home/.config/swarm/trust.json");
    let mut book: Value = serde_json::from_slice(&fs::read(&path).expect("there")).expect("JSON");
    for project in book["projects"].as_object_mut().expect("projects").values_mut() {
        project["sections"].as_object_mut().expect("sections").retain(|name, _| kept.contains(&name.as_str()));
    }
    fs::write(&path, book.to_string()).expect("written");
}

fn forget(rig: &Rig) {
    fs::remove_file(rig.path("home/.config/swarm/trust.json")).expect("it was there");
}

/// Script that commits this configuration.
fn lands(rig: &Rig, config: &str) -> String {
    format!("cp '{}' swarm.toml; git add swarm.toml; git commit -qm config", rig.file("hostile", config))
}

/// Plans `one`, a script, and `two`, which an agent does afterwards.
fn one_and_two(site: &Site, script: &str, two: &str) {
    let write = |name: &str, text: &str| fs::write(site.repo.join("specs").join(name), text).expect("written");
    write("one.md", &format!("---\nadapter: shell\n---\n# One\n\n```sh\n{script}\n```\n"));
    write("two.md", two);
    site.commit();
    site.rig.swarm_in(&site.repo, &["plan", "--specs", "specs", "-y"]).ok();
}

const DOES: &str = "cat > /dev/null; echo ok > ok\n\
                    echo '{\"type\":\"result\",\"subtype\":\"success\",\"is_error\":false,\"result\":\"done\"}'";

#[test]
fn a_run_settles_each_section_so_that_landed_agents_and_rules_do_not_count() {
    let site = Site::new();
    let rig = &site.rig;
    set_own(rig, &format!("[agents.claude]\ncommand = ['{}']\n", program(rig, "mine", DOES)));
    fs::write(site.repo.join("swarm.toml"), "[worktree]\npost_create = 'true'\n").expect("written");
    let pwned = rig.path("pwned");
    let evil = program(rig, "evil", &format!("touch '{}'; {DOES}", pwned.display()));
    let hostile = format!("[agents.claude]\ncommand = ['{evil}']\n[merge]\nverify = \"touch '{}'\"\n", pwned.display());
    one_and_two(&site, &lands(rig, &hostile), "---\nafter: one\n---\n# Two\n");
    rig.trust(&site.repo);
    // As if a person had only been asked by `swarm spawn --worktree`, and by an earlier run about the specs.
    keep_sections(rig, &["spawn", "worktree", "specs"]);
    let said = run_alone(&site, &[]);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(site.landed("swarm.toml").contains("evil") && site.landed("ok") == "ok");
    assert!(!pwned.exists(), "{said:?}");
}

#[test]
fn an_overridden_rule_does_not_leave_the_other_sections_open() {
    let site = Site::new();
    let rig = &site.rig;
    set_own(rig, &format!("[agents.claude]\ncommand = ['{}']\n", program(rig, "mine", DOES)));
    fs::write(site.repo.join("swarm.toml"), "[merge]\nverify = 'false'\n").expect("written");
    let pwned = rig.path("pwned");
    let hostile = format!("[worktree]\npost_create = \"touch '{}'\"\n", pwned.display());
    one_and_two(&site, &lands(rig, &hostile), "---\nafter: one\n---\n# Two\n");
    rig.trust(&site.repo);
    keep_sections(rig, &["specs"]);
    let said = run_alone(&site, &["--verify", "true"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(site.landed("swarm.toml").contains("post_create") && !pwned.exists(), "{said:?}");
}

#[test]
fn work_that_an_earlier_version_started_waits_for_consent() {
    let rig = Rig::new();
    let repo = rig.repo();
    let (gate, pwned) = (rig.path("gate"), rig.path("pwned"));
    let commits = "echo x > new; git add new; git commit -qm new";
    let waits = format!("while ! test -e '{}'; do sleep 0.05; done; {commits}", gate.display());
    rig.swarm_in(&repo, &["spawn", "--name", "late", "--worktree", "--merge", "--", "sh", "-c", &waits]).ok();
    // As if nobody had been asked when it was started.
    forget(&rig);
    let touch = format!("touch '{}'", pwned.display());
    set(&rig, &repo, &format!("[merge]\nverify = \"{touch}\"\n[worktree]\npre_remove = \"{touch}\"\n"));
    fs::write(&gate, "").expect("written");
    rig.wait("late");
    let status = || rig.swarm_in(&repo, &["merge", "status", "late"]).out;
    wait_until("the item waits", SOON, || status().contains("is not trusted: merge.verify not in "));
    assert!(!pwned.exists() && rig.git(&repo, &["ls-tree", "--name-only", "main"]).lines().all(|name| name != "new"));
    let said = rig.swarm(&["clean", "late"]);
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(said.err.contains("is not trusted: worktree.pre_remove not in "), "{said:?}");
    assert!(rig.path("repo-worktrees/late/new").exists() && !pwned.exists());

    rig.trust(&repo);
    rig.swarm_in(&repo, &["merge", "add", "late"]).ok();
    rig.swarm_in(&repo, &["merge", "wait", "late", "--timeout", "25"]).ok();
    assert!(pwned.exists());
    fs::remove_file(&pwned).expect("removed");
    rig.swarm(&["clean", "late"]).ok();
    assert!(pwned.exists() && !rig.path("repo-worktrees/late").exists());
}

#[test]
fn an_attempt_does_not_start_an_agent_of_which_nobody_was_asked() {
    let site = Site::new();
    let rig = &site.rig;
    let (gate, pwned) = (rig.path("gate"), rig.path("pwned"));
    let evil = program(rig, "evil", &format!("touch '{}'; {DOES}", pwned.display()));
    let hostile = format!("[agents.claude]\ncommand = ['{evil}']\n");
    let script = format!("while ! test -e '{}'; do sleep 0.05; done; {}", gate.display(), lands(rig, &hostile));
    one_and_two(&site, &script, "---\nafter: one\n---\n# Two\n");
    rig.trust(&site.repo);
    rig.swarm_in(&site.repo, &["run", "--detach", "--verify", "true"]).ok();
    forget(rig);
    fs::write(&gate, "").expect("written");
    wait_until("the attempt fails", SOON, || site.row("two")["status"] == "failed");
    let error = site.row("two")["lastError"].as_str().unwrap_or_default().to_owned();
    assert!(error.starts_with("swarm.toml of ") && error.contains("agents.claude.command not in "), "{error}");
    assert!(error.ends_with(&format!("(run 'swarm trust {}')", site.repo.display())) && !pwned.exists(), "{error}");
    rig.trust(&site.repo);
    let said = run_alone(&site, &["--retry-failed"]);
    assert!(said.code == Some(0) && pwned.exists(), "{said:?}");
}

#[test]
fn adding_to_the_queue_asks_about_the_commands_of_its_worktrees() {
    let rig = Rig::new();
    let repo = rig.repo();
    set(&rig, &repo, &format!("[worktree]\npost_create = \"touch '{}'\"\n", rig.path("pwned").display()));
    rig.git(&repo, &["branch", "topic"]);
    let add = || rig.swarm_in(&repo, &["merge", "add", "topic", "--base", "main", "--verify", "true"]);
    add().refused(1, &refusal(&repo, "execute 1 command").0);
    assert!(!rig.path("pwned").exists());
    rig.trust(&repo);
    add().ok();
}

#[test]
fn a_supervisor_with_another_book_executes_nothing() {
    let rig = Rig::new();
    let repo = rig.repo();
    set(&rig, &repo, &format!("[worktree]\npost_create = \"touch '{}'\"\n", rig.path("pwned").display()));
    rig.trust(&repo);
    let other = rig.path("other");
    let mut starts = rig.command(&["spawn", "--name", "first", "--", "true"]);
    starts.env("XDG_CONFIG_HOME", &other);
    crate::common::run(starts).ok();
    let said = rig.swarm_in(&repo, &["spawn", "--name", "x", "--worktree", "--", "true"]);
    assert_eq!(said.code, Some(1), "{said:?}");
    let named = other.join("swarm/trust.json");
    assert!(said.err.contains(&format!("worktree.post_create not in {}", named.display())), "{said:?}");
    assert!(!rig.path("pwned").exists() && !rig.path("repo-worktrees/x").exists());
}

#[test]
fn consent_is_not_withdrawn_below_a_worker_and_later_work_waits_afterwards() {
    let rig = Rig::new();
    let repo = rig.repo();
    set(&rig, &repo, "[merge]\nverify = 'test ! -e bad'\n");
    rig.trust(&repo);
    let bin = env!("CARGO_BIN_EXE_swarm");
    let script = format!("'{bin}' trust --revoke '{}'; exit 0", repo.display());
    rig.spawn_sh("agent", &[], &script);
    rig.wait("agent");
    let said = rig.log("agent", "stderr");
    let cause = format!("worker 'agent' cannot withdraw the consent for {}", repo.display());
    assert!(said.contains(&cause), "{said}");
    assert_eq!(rig.swarm_in(&repo, &["trust", "--show"]).code, Some(0), "still trusted");

    let gate = rig.path("gate");
    let waits = format!("while ! test -e '{}'; do sleep 0.05; done; touch bad", gate.display());
    rig.swarm_in(&repo, &["spawn", "--name", "late", "--worktree", "--merge", "--", "sh", "-c", &waits]).ok();
    rig.swarm_in(&repo, &["trust", "--revoke"]).ok();
    fs::write(&gate, "").expect("written");
    let status = || rig.swarm_in(&repo, &["merge", "status", "late"]).out;
    wait_until("the item waits", SOON, || status().contains("is not trusted"));
}

#[test]
fn a_worker_cannot_land_by_rules_of_its_own() {
    let rig = Rig::new();
    let repo = rig.repo();
    set(&rig, &repo, "[merge]\nverify = 'test ! -e bad'\n");
    rig.trust(&repo);
    let bin = env!("CARGO_BIN_EXE_swarm");
    // Neither by a flag nor by a file of jobs.
    let jobs =
        "base = 'main'\nverify = 'true'\n[[job]]\nname = 'j'\ncommand = 'touch worse'\nworktree = true\nmerge = true\n";
    let jobs = rig.file("jobs.toml", jobs);
    let script = format!(
        "touch bad; git add bad; git commit -qm bad; '{bin}' merge add refs/heads/a --base main --verify true
         cp '{jobs}' jobs.toml; '{bin}' run ./jobs.toml; exit 0"
    );
    rig.swarm_in(&repo, &["spawn", "--name", "a", "--worktree", "--", "sh", "-c", &script]).ok();
    rig.wait("a");
    let said = rig.log("a", "stderr");
    let cause = format!("worker 'a' cannot replace merge.verify of {}", repo.display());
    assert!(said.matches(&cause).count() == 2 && said.contains("run the command without --verify"), "{said}");
    assert_eq!(rig.swarm_in(&repo, &["merge", "ls"]).out.matches("refs/heads/a").count(), 0);
    // A person may.
    rig.swarm_in(&repo, &["merge", "add", "a", "--verify", "true"]).ok();
}

#[test]
fn landing_the_removal_of_a_wrapper_does_not_take_the_agent_out_of_it() {
    let site = Site::new();
    let rig = &site.rig;
    let told = rig.path("told");
    set_own(rig, &format!("[agents.claude]\ncommand = ['{}']\n", program(rig, "plain", DOES)));
    let wrapper = program(rig, "wrapper", &format!("echo \"$SECRET\" >> '{}'; {DOES}", told.display()));
    let config = format!("[agents.claude]\ncommand = ['{wrapper}']\nevents = 'claude'\nenv = {{ SECRET = 'kept' }}\n");
    fs::write(site.repo.join("swarm.toml"), config).expect("written");
    one_and_two(&site, "git rm -q swarm.toml; git commit -qm gone", "---\nafter: one\n---\n# Two\n");
    rig.trust(&site.repo);
    let said = run_alone(&site, &[]);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(!site.repo.join("swarm.toml").exists(), "the removal landed");
    assert_eq!(fs::read_to_string(told).unwrap_or_default(), "kept\n");
}

#[test]
fn landed_limits_of_the_trash_delete_nothing() {
    let rig = Rig::new();
    let repo = rig.repo();
    let spawn = |name: &str| {
        rig.swarm_in(&repo, &["spawn", "--name", name, "--worktree", "--", "sh", "-c", "echo x > new"]).ok();
        rig.wait(name);
    };
    ["x", "y"].iter().for_each(|name| spawn(name));
    set(&rig, &repo, "[trash]\nmax_size = '1'\n");
    for name in ["x", "y"] {
        assert_eq!(rig.swarm(&["clean", name, "--force-dirty"]).code, Some(0));
    }
    let count = || rig.git(&repo, &["for-each-ref", "refs/swarm/trash"]).lines().count();
    assert_eq!(count(), 2);
    rig.swarm_in(&repo, &["restore", "--expire"]).is(0, "", "");
    assert_eq!(count(), 2);
    rig.trust(&repo);
    assert_eq!(rig.swarm_in(&repo, &["restore", "--expire"]).code, Some(0));
    assert_eq!(count(), 1);
}

#[test]
fn a_typed_shell_executes_only_the_scripts_with_which_the_run_began() {
    let site = Site::new();
    let pwned = site.rig.path("pwned");
    let second = |script: &str| format!("---\nafter: one\n---\n# Two\n\n```sh\n{script}\n```\n");
    let changed = second(&format!("echo b > b; touch '{}'", pwned.display()));
    let changed = site.rig.file("changed", &changed);
    let write = |name: &str, text: &str| fs::write(site.repo.join("specs").join(name), text).expect("written");
    write("one.md", &format!("# One\n\n```sh\ncp '{changed}' specs/two.md\n```\n"));
    write("two.md", &second("echo b > b"));
    site.commit();
    site.rig.swarm_in(&site.repo, &["plan", "--specs", "specs", "-y"]).ok();
    let said: Said = run_alone(&site, &["--agent", "shell"]);
    assert_eq!(said.code, Some(1), "{said:?}");
    let error = site.row("two")["lastError"].as_str().unwrap_or_default().to_owned();
    assert!(error.starts_with("the commands in specs/two.md changed and are not trusted"), "{error}");
    assert!(!pwned.exists());
}

#[test]
fn a_worker_cannot_agree_by_another_name_of_the_configuration_directory() {
    let rig = Rig::new();
    let repo = rig.repo();
    set(&rig, &repo, "[merge]\nverify = 'true'\n");
    let bin = env!("CARGO_BIN_EXE_swarm");
    let script = format!(
        "mkdir -p \"$HOME/s\"; XDG_CONFIG_HOME=\"$HOME/s/../.config\" '{bin}' trust --yes '{}'; exit 0",
        repo.display()
    );
    rig.spawn_sh("agent", &[], &script);
    rig.wait("agent");
    let said = rig.log("agent", "stderr");
    assert!(said.contains(&format!("worker 'agent' cannot trust {}", repo.display())), "{said}");
    assert_eq!(rig.swarm_in(&repo, &["trust", "--show"]).code, Some(1));
}

#[test]
fn the_hint_names_a_root_in_which_it_works() {
    let rig = Rig::new();
    let repo = rig.repo();
    rig.git(&repo, &["init", "-q", "--separate-git-dir", rig.path("git").to_str().expect("text")]);
    set(&rig, &repo, "[spawn]\nenv = { A = '1' }\n");
    let (cause, hint) = refusal(&repo, "set 1 variable");
    let said = rig.swarm_in(&repo, &["spawn", "--name", "x", "--", "true"]).refused(1, &cause);
    assert_eq!(said.err.lines().nth(1), Some(hint.as_str()));
    rig.swarm(&["trust", "--yes", repo.to_str().expect("text")]).ok();
    rig.swarm_in(&repo, &["spawn", "--name", "x", "--", "true"]).ok();
}

#[test]
fn the_cleanup_of_a_run_executes_the_command_before_a_removal() {
    let site = Site::new();
    let gone = site.rig.path("gone");
    site.write("swarm.toml", &format!("[worktree]\npre_remove = \"touch '{}'\"\n", gone.display()));
    site.spec("bad", "retries: 0\n", "exit 1");
    site.commit();
    site.plan();
    site.run(1, &[]);
    let tree = site.repo.join(".arial/worktrees/bad");
    assert!(tree.exists() && !gone.exists());
    let said = site.swarm(&["run", "cleanup"]);
    assert!(said.code == Some(0) && !Path::new(&tree).exists() && gone.exists(), "{said:?}");
}

#[test]
fn work_cannot_agree_while_it_is_verified() {
    let rig = Rig::new();
    let (repo, other) = (rig.repo(), rig.repo_named("other"));
    set(&rig, &repo, "[merge]\nverify = 'sh check'\n[worktree]\npost_create = 'sh check'\n");
    set(&rig, &other, "[merge]\nverify = 'true'\n");
    rig.trust(&repo);
    let bin = env!("CARGO_BIN_EXE_swarm");
    let told = rig.path("told");
    // The trace shows that the check was executed.
    let check =
        format!("echo x >> '{0}'; '{bin}' trust --yes '{1}' 2>> '{0}'; exit 0", told.display(), other.display());
    let script = format!("echo \"{check}\" > check");
    fs::write(repo.join("check"), ":\n").expect("written");
    rig.git(&repo, &["add", "check"]);
    rig.git(&repo, &["commit", "-q", "-m", "check"]);
    rig.swarm_in(&repo, &["spawn", "--name", "b", "--worktree", "--merge", "--", "sh", "-c", &script]).ok();
    rig.wait("b");
    rig.swarm_in(&repo, &["merge", "wait", "b", "--timeout", "25"]).ok();
    let cause = format!("worker 'b' cannot trust {}", other.display());
    assert!(fs::read_to_string(&told).expect("verified").contains(&cause));
    // The landed check is the hook of the next worktree.
    rig.swarm_in(&repo, &["spawn", "--name", "c", "--worktree", "--", "true"]).ok();
    assert!(fs::read_to_string(&told).expect("made").contains("worker 'c' cannot trust"));
    assert_eq!(rig.swarm_in(&other, &["trust", "--show"]).code, Some(1), "nobody agreed");
}

#[test]
fn a_recovery_asks_about_commands_of_which_nobody_was_ever_asked() {
    let rig = Rig::new();
    let repo = rig.repo();
    rig.swarm_in(&repo, &["spawn", "--name", "w", "--worktree", "--", "sleep", "1000"]).ok();
    let tree = rig.view("w")["worktree"]["path"].as_str().expect("a path").to_owned();
    crate::recover::reboot(&rig);
    set(&rig, &repo, &format!("[worktree]\npost_create = 'touch {}'\n", rig.path("pwned").display()));
    // As if an earlier version, which asked nobody, had started the worker.
    fs::remove_dir_all(rig.path("home/.config")).expect("removed");
    fs::remove_dir_all(&tree).expect("removed");
    let said = rig.swarm(&["recover", "--apply"]);
    assert!(said.code == Some(1) && said.err.contains(&refusal(&repo, "execute 1 command").0), "{said:?}");
    assert!(!Path::new(&tree).exists() && !rig.path("pwned").exists());
    rig.trust(&repo);
    rig.swarm(&["recover", "--apply", "--settle", "0s"]);
    assert!(Path::new(&tree).exists() && rig.path("pwned").exists());
}

#[test]
fn landing_the_removal_of_a_verification_does_not_land_what_it_rejects() {
    let site = Site::new();
    let two = "---\nadapter: shell\nafter: one\nretries: 0\nverify: test -e never\n---\n# Two\n\n```sh\necho two > two\n```\n";
    one_and_two(&site, "sed -i '/^verify/d' specs/two.md", two);
    site.rig.trust(&site.repo);
    let said = run_alone(&site, &[]);
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(!site.landed("specs/two.md").contains("verify"), "{said:?}");
    let shown = site.rig.swarm_in(&site.repo, &["trust", "--show"]).out;
    assert!(shown.contains("  specs/two.md verify:  (no longer set)\n"), "{shown}");
    let said = run_alone(&site, &["--retry-failed"]);
    assert!(
        said.code == Some(1) && said.err.contains(" has no verification any more, although you agreed to one"),
        "{said:?}"
    );
    assert!(!site.repo.join("two").exists());
    site.rig.trust(&site.repo);
    let said = run_alone(&site, &["--retry-failed"]);
    assert_eq!((said.code, site.landed("two").as_str()), (Some(0), "two"), "{said:?}");
    let shown = site.rig.swarm_in(&site.repo, &["trust", "--show"]).out;
    assert!(!shown.contains("verify"), "{shown}");
}

#[test]
fn a_worker_cannot_choose_what_its_verification_executes_by_its_environment() {
    let rig = Rig::new();
    let repo = rig.repo();
    set(&rig, &repo, "[merge]\nverify = 'chk'\n");
    rig.trust(&repo);
    for (name, text) in [("real", "! test -e bad"), ("fake", "exit 0")] {
        let file = rig.file(&format!("{name}-chk"), &format!("#!/bin/sh\n{text}\n"));
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("executable");
        fs::create_dir(rig.path(name)).expect("made");
        fs::rename(&file, rig.path(name).join("chk")).expect("moved");
    }
    let path = |name: &str| format!("{}:{}", rig.path(name).display(), std::env::var("PATH").expect("set"));
    let bin = env!("CARGO_BIN_EXE_swarm");
    let script = format!(
        "echo bad > bad; git add bad; git commit -qm bad; PATH='{}' '{bin}' merge add ag; '{bin}' merge wait ag; exit 0",
        path("fake")
    );
    let words = ["spawn", "--name", "ag", "--worktree", "--", "sh", "-c", &script];
    let mut command = rig.command(&words);
    command.current_dir(&repo).env("PATH", path("real"));
    crate::common::run(command).ok();
    rig.wait("ag");
    let said = rig.log("ag", "stdout");
    assert!(said.contains("ag: rejected (main)") && !repo.join("bad").exists(), "{said}");
}
