//! Secrets: one is planted wherever users put them, and must be found in the launch contract, in the registry's journal,
//! and in no other file or output.

use std::fs;
use std::path::PathBuf;

use crate::common::{Rig, SOON, wait_until};

const SECRET: &str = "hunter2-planted-secret";

fn all_below(root: PathBuf) -> Vec<PathBuf> {
    let (mut found, mut look) = (Vec::new(), vec![root]);
    while let Some(path) = look.pop() {
        match fs::symlink_metadata(&path) {
            Ok(meta) if meta.is_dir() => {
                look.extend(fs::read_dir(&path).expect("readable").flatten().map(|entry| entry.path()));
            }
            Ok(meta) if meta.is_file() => found.push(path),
            _ => {}
        }
    }
    found
}

fn has_it(bytes: &[u8]) -> bool {
    memchr::memmem::find(bytes, SECRET.as_bytes()).is_some()
}

#[test]
fn a_planted_secret_is_in_the_contract_and_its_journal_and_nowhere_else() {
    let rig = Rig::new();
    let repo = rig.repo();
    let file = rig.file("secrets.env", &format!("# ours\nAPI_TOKEN={SECRET}\n"));
    fs::create_dir_all(rig.path("home/.config/swarm")).expect("made");
    let own =
        format!("[notify]\ncommand = \"true {SECRET}\"\n[agents.a.env]\nT = \"{SECRET}\"\n[spawn.env]\nS = \"x\"\n");
    fs::write(rig.path("home/.config/swarm/config.toml"), own).expect("written");
    // The command that starts the tmux server gives the server its environment.
    let works = "test ${#API_TOKEN} = 22 && touch it-has-it";
    let spawn = |name: &str, flags: &[&str], script: &str| {
        let words = [&["spawn", "--name", name, "--env-file", &file], flags, &["--", "sh", "-c", script]].concat();
        rig.swarm_in(&repo, &words).ok();
    };
    spawn("p", &[], works);
    spawn("w", &["--worktree", "--restart", "on-failure"], &format!("{works}; git add -A; git commit -qm x"));
    spawn("t", &["--tmux"], &format!("{works}; exec sleep 600"));
    rig.wait("p");
    rig.wait("w");
    wait_until("the one in a window has begun", SOON, || repo.join("it-has-it").exists());
    assert!(rig.path("repo-worktrees/w/it-has-it").exists(), "the worker got it");
    rig.swarm_in(&repo, &["respawn", "p"]).ok();
    rig.wait("p");
    assert_eq!(rig.exit("p"), "code 0, exited", "the respawned worker got the secret");
    let global = rig.tmux(&["show-environment", "-g"]);
    assert!(!global.out.is_empty() && !has_it(global.out.as_bytes()), "the tmux server has it: {global:?}");
    let verbs: &[&[&str]] = &[
        &["ls"],
        &["ls", "-l"],
        &["ls", "--json"],
        &["ls", "--format", "json"],
        &["status", "p", "--json"],
        &["explain", "w", "--json"],
        &["explain", "t"],
        &["doctor", "--json"],
        &["config", "--json"],
        &["config"],
        &["events"],
        &["events", "--json"],
        &["logs", "p"],
        &["peek", "t"],
        &["diff", "w"],
        &["merge", "ls"],
        &["session", "show", "w"],
        &["recover", "--json"],
        &["supervisor", "status", "--json"],
        &["notify", "test", "--json"],
        &["kill", "t", "--json"],
        &["clean", "p", "--json"],
    ];
    for words in verbs {
        let said = rig.swarm_in(&repo, words);
        assert!(!has_it(format!("{}{}", said.out, said.err).as_bytes()), "{words:?} shows it: {said:?}");
    }
    let mut contracts = 0;
    for path in all_below(rig.root()).into_iter().chain(all_below(repo)).chain(all_below(rig.path("repo-worktrees"))) {
        if has_it(&fs::read(&path).unwrap_or_default()) {
            let is_contract = path.file_name().is_some_and(|name| name == "spec.json");
            assert!(is_contract || path == rig.root().join("state.journal"), "{} has it", path.display());
            contracts += usize::from(is_contract);
        }
    }
    assert!(contracts >= 2, "{contracts}");
}

#[test]
fn a_file_with_mistakes_starts_nothing_and_shows_nothing() {
    let rig = Rig::new();
    let file = rig.file("bad.env", &format!("A=1\nexport TOKEN {SECRET}\n"));
    let said = rig.swarm(&["spawn", "--name", "x", "--env-file", &file, "--", "true"]);
    assert!(
        said.code == Some(1) && said.err.contains("bad.env, line 2: missing '='") && !has_it(said.err.as_bytes()),
        "{said:?}"
    );
    let said = rig.swarm(&["spawn", "--name", "x", "--env-file", "/nonexistent", "--", "true"]);
    assert!(said.code == Some(1) && said.err.contains("/nonexistent: No such file"), "{said:?}");
    assert!(rig.names().is_empty());
}
