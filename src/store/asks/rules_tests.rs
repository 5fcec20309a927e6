use std::fs;
use std::process::{Command, Stdio};

use proptest::prelude::*;
use swarm_model::asks::rules::Effect;

use super::*;

fn rule(effect: Effect, pattern: &str) -> AskRule {
    AskRule::new(effect, pattern, None).expect("a rule")
}

fn wish(command: &str) -> AskWish {
    AskWish::Command { command: command.to_owned() }
}

fn repository(at: &Path) {
    fs::create_dir_all(at.join(".git")).expect("made");
    fs::write(at.join(".git/HEAD"), "ref: refs/heads/main\n").expect("written");
}

#[test]
fn a_rule_applies_in_its_project_until_it_is_removed() {
    let dir = tempfile::tempdir().expect("a directory");
    let paths = Paths::new(dir.path().join("state"));
    let (one, other) = (dir.path().join("one"), dir.path().join("other"));
    repository(&one);
    repository(&other);
    fs::create_dir(one.join("sub")).expect("made");
    let of = |cwd: &Path, command: &str| rule_for(&paths, cwd, &wish(command)).expect("read");
    assert_eq!(of(&one, "make"), Rule::None, "there is no file yet");

    let key = project_of(&one).expect("a project").key;
    let allow = rule(Effect::Allow, "make");
    assert_eq!(add(&paths, std::slice::from_ref(&allow), Some(&key)), Ok(vec![1]));
    assert_eq!(add(&paths, &[allow, rule(Effect::Allow, "cargo test")], Some(&key)), Ok(vec![1, 2]));
    assert_eq!(add(&paths, &[rule(Effect::Deny, "rm")], None), Ok(vec![3]));
    assert_eq!(
        (of(&one, "make"), of(&one.join("sub"), "make"), of(&other, "make")),
        (Rule::Allow, Rule::Allow, Rule::None)
    );
    assert!(matches!(of(&other, "rm -rf x"), Rule::Deny { .. }));

    assert_eq!(remove(&paths, 3).expect("removed").map(|made| made.rule.pattern).as_deref(), Some("rm"));
    assert_eq!(remove(&paths, 3), Ok(None));
    assert_eq!(of(&other, "rm -rf x"), Rule::None);
    assert_eq!(add(&paths, &[rule(Effect::Ask, "rm")], None), Ok(vec![4]), "numbers are not used again");
}

#[test]
fn a_worktree_cannot_take_away_what_the_repository_denies() {
    let dir = tempfile::tempdir().expect("a directory");
    let paths = Paths::new(dir.path().join("state"));
    let (main, tree) = (dir.path().join("main"), dir.path().join("tree"));
    fs::create_dir_all(main.join(".git/worktrees/tree")).expect("made");
    fs::write(main.join(".git/worktrees/tree/commondir"), "../..\n").expect("written");
    fs::create_dir(&tree).expect("made");
    fs::write(tree.join(".git"), format!("gitdir: {}\n", main.join(".git/worktrees/tree").display())).expect("written");
    fs::write(main.join("swarm.toml"), "[[approvals.rule]]\ndeny = 'git push'\nreason = 'it lands'\n")
        .expect("written");
    let denied = Rule::Deny { reason: "it lands".to_owned() };
    assert_eq!(rule_for(&paths, &tree, &wish("git push")), Ok(denied));
    fs::write(tree.join("swarm.toml"), "[approvals]\nallow = ['git']\n").expect("written");
    let cause = rule_for(&paths, &tree, &wish("git status")).expect_err("a repository cannot allow");
    assert!(cause.contains("rules that allow are possible only in the user's own file"), "{cause}");
}

#[test]
fn damaged_rules_are_an_error_and_not_no_rules() {
    let dir = tempfile::tempdir().expect("a directory");
    let paths = Paths::new(dir.path());
    add(&paths, &[rule(Effect::Deny, "rm")], None).expect("added");
    let file = dir.path().join(FILE);
    let whole = fs::read(&file).expect("read");
    fs::write(&file, &whole[..whole.len() / 2]).expect("cut");
    let cause = rule_for(&paths, dir.path(), &wish("rm x")).expect_err("damaged");
    assert!(cause.contains("rules.jsonl: line 1 is damaged; move the file aside"), "{cause}");
    add(&paths, &[rule(Effect::Deny, "mv")], None).expect_err("nothing is written over it");
}

/// Runs a line with bash where only `cargo` exists, as a function, and returns what else it tried to execute.
fn others(line: &str, empty: &Path) -> String {
    let script = "PATH=/nonexistent\ncargo() { if [ \"$1\" = test ]; then :; else printf 'cargo %s\\n' \"$1\" >&2; fi; }\n\
                  command_not_found_handle() { printf 'no %s\\n' \"$1\" >&2; }\n\
                  eval() { printf 'eval\\n' >&2; }\neval_line=$1\nbuiltin eval \"$eval_line\"\n";
    let run = Command::new("bash")
        .args(["--norc", "-c", script, "bash", line])
        .current_dir(empty)
        .stdin(Stdio::null())
        .output()
        .expect("bash runs");
    String::from_utf8_lossy(&run.stderr).into_owned()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    /// The real shell is the judge: of a line that `cargo test` allows, it executes nothing but `cargo test`, and writes
    /// no file.
    #[test]
    fn a_line_that_is_allowed_executes_nothing_else(
        parts in proptest::collection::vec(proptest::sample::select(vec![
            "cargo test", "cargo test", "cargo test", "cargo test ", " && ", "; ", " | ", " || ", " ", "rm x", "'", "\"",
            "\\", "$(rm x)", "`rm`", "$", "(", ")", "{", "}", "{}", ",", "<", "> f", ">f", "&", "\n", "#", "=", "!", "~", "2>&1",
            " 2>/dev/null", " >/dev/null", "-p a", " --all ", "cargo build", "A=1 ", "\t", "*", "é",
        ]), 1..7),
    ) {
        let line = parts.concat();
        let rules = [rule(Effect::Allow, "cargo test")];
        if rule_of(&rules, &wish(&line)) == Rule::Allow {
            let empty = tempfile::tempdir().expect("a directory");
            prop_assert_eq!(others(&line, empty.path()), "", "{:?}", line);
            prop_assert_eq!(fs::read_dir(empty.path()).expect("read").count(), 0, "{:?}", line);
        }
    }
}

#[test]
fn a_change_removes_what_a_killed_one_has_left() {
    let dir = tempfile::tempdir().expect("a directory");
    let paths = Paths::new(dir.path());
    let torn = dir.path().join("rules.jsonl.tmp.4711");
    fs::write(&torn, "{").expect("written");
    assert_eq!(add(&paths, &[rule(Effect::Deny, "rm")], None), Ok(vec![1]));
    assert!(!torn.exists());
    assert_eq!(made(&paths).map(|made| made.len()), Ok(1));
}
