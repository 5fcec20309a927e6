use swarm_model::RestartPolicy;

use super::*;
use crate::cli::sample;

fn parsed(words: &[&str]) -> SpawnArgs {
    match sample::command(&[&["spawn"], words].concat()) {
        crate::cli::args::Command::Spawn(args) => *args,
        other => panic!("{other:?}"),
    }
}

fn caller_in(cwd: &Path) -> Caller {
    let environment = vec![("PATH".to_owned(), "/bin:/usr/bin".to_owned()), ("HOME".to_owned(), "/h".to_owned())];
    Caller {
        cwd: cwd.to_str().expect("text").into(),
        environment: environment.into(),
        umask: 0o27,
        nice: 5,
        ..Caller::default()
    }
}

fn built(words: &[&str]) -> Result<SpawnRequest, String> {
    build(&parsed(words), caller_in(Path::new("/")), "swarm-12345678", None).map_err(|refusal| refusal.cause)
}

#[test]
fn the_contract_combines_the_caller_and_the_arguments() {
    let words =
        ["--name", "x", "--env", "A=1=2", "--env", "B=", "--tag", "t", "--timeout", "90", "--", "sh", "-c", "exit 3"];
    let request = built(&words).expect("valid");
    let contract = &request.contract;
    assert_eq!(contract.argv, ["sh", "-c", "exit 3"]);
    assert_eq!(contract.env, [("A".into(), "1=2".into()), ("B".into(), String::new())].into());
    assert_eq!((contract.cwd.as_str(), contract.umask, contract.nice), ("/", 0o27, 5));
    assert_eq!((contract.timeout_ms, contract.restart), (Some(90_000), RestartPolicy::Never));
    assert_eq!((contract.environment.len(), request.caller.environment.len()), (2, 0), "it travels once");
    assert_eq!((contract.log_limit_bytes, request.worktree, contract.tmux.as_ref()), (LOG_LIMIT_BYTES, None, None));
}

#[test]
fn options_without_their_prerequisite_are_ignored() {
    let words = ["--name", "x", "--session", "a:b", "--tmux-socket", "/s", "--ready-wait", "--branch", "b", "--", "sh"];
    let request = built(&words).expect("valid");
    assert!(request.contract.tmux.is_none() && request.worktree.is_none());
    let words = ["--name", "x", "--worktree", "--cwd", "/nowhere", "--branch", "b", "--base", "main", "--", "./run"];
    let request = built(&words).expect("valid");
    let tree = request.worktree.expect("asked for");
    assert_eq!((tree.cwd.as_str(), tree.branch.as_deref(), tree.base.as_deref()), ("/", Some("b"), Some("main")));
}

#[test]
fn windows_go_to_the_session_of_the_state_directory_or_the_given_one() {
    let place = |words: &[&str]| built(words).map(|request| request.contract.tmux.expect("tmux"));
    assert_eq!(place(&["--name", "x", "--tmux", "--", "sh"]).expect("valid").session, "swarm-12345678");
    let given =
        place(&["--name", "x", "--tmux", "--session", "mine", "--tmux-socket", "s", "--", "sh"]).expect("valid");
    assert_eq!((given.session.as_str(), given.socket.as_deref()), ("mine", Some("s")));
    for session in ["a:b", "a.b", "", "=a", "#(cmd)", "$1", "a\nb"] {
        assert!(place(&["--name", "x", "--tmux", "--session", session, "--", "sh"]).is_err(), "{session:?}");
    }
    for socket in ["", "../s", "/s", ".."] {
        assert!(place(&["--name", "x", "--tmux", "--tmux-socket", socket, "--", "sh"]).is_err(), "{socket:?}");
    }
}

#[test]
fn mistakes_are_reported_in_the_original_words_and_order() {
    let cause = |words: &[&str]| built(words).expect_err("taken");
    for pair in ["A", "=1", ""] {
        let words = ["--name", "x", "--env", pair, "--cwd", "/nowhere", "--", "no-such-tool"];
        assert_eq!(cause(&words), format!("invalid env format '{pair}' (expected KEY=VAL)"));
    }
    let words = ["--name", "x", "--cwd", "nowhere-at-all", "--", "no-such-tool"];
    assert_eq!(cause(&words), "working directory does not exist: nowhere-at-all");
    assert_eq!(
        cause(&["--name", "x", "--cwd", "/dev/null", "--", "sh"]),
        "working directory is not a directory: /dev/null"
    );
    assert_eq!(cause(&["--name", "x", "--", "no-such-tool"]), "command not found: no-such-tool");
    assert_eq!(cause(&["--name", "x", "--env", "PATH=/nowhere", "--", "sh"]), "command not found: sh");
}

#[test]
fn a_relative_directory_becomes_absolute() {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::create_dir(dir.path().join("sub")).expect("made");
    let args = parsed(&["--name", "x", "--cwd", "sub", "--", "sh"]);
    let request = build(&args, caller_in(dir.path()), "s", None).expect("valid");
    assert_eq!(Path::new(&request.contract.cwd), dir.path().join("sub"));
}

#[test]
fn hostile_names_are_refused_with_the_rule() {
    assert!(check_name("job-1").is_ok());
    for name in ["", "../x", "-x", "a b", "#(cmd)", "a\nb", "\u{202e}x", &"n".repeat(300)] {
        let refusal = check_name(name).expect_err("taken");
        assert!(refusal.cause.starts_with("invalid worker name '") && refusal.remedy.is_some());
    }
}

#[test]
fn an_empty_command_is_refused_without_touching_the_state() {
    let dir = tempfile::tempdir().expect("a directory");
    let paths = Paths::new(dir.path().join("none"));
    let (out, err, code) = sample::said(|screen| run(&parsed(&["--name", "../x", "--"]), &paths, screen));
    assert_eq!((out.as_str(), err.as_str(), code), ("", "swarm: error: no command provided (use -- command...)\n", 1));
    assert!(!dir.path().join("none").exists());
}

#[test]
fn the_log_limit_is_a_positive_number() {
    assert_eq!(parse_log_limit(Some("1000")), Ok(1000));
    assert_eq!(parse_log_limit(Some("")), Ok(LOG_LIMIT_BYTES));
    for text in ["0", "-1", "1k", " 1"] {
        assert!(parse_log_limit(Some(text)).is_err(), "{text:?}");
    }
}

#[test]
fn next_steps_fit_the_kind_of_worker() {
    let spawned = |window: Option<&str>, worktree: Option<&str>| Spawned {
        name: "fix".into(),
        generation: 1,
        pid: 7,
        window: window.map(str::to_owned),
        pane: None,
        socket_path: None,
        worktree: worktree.map(str::to_owned),
        job: None,
        notes: Vec::new(),
        warnings: Vec::new(),
    };
    let steps = next_steps(&spawned(Some("s:fix"), Some("/w/fix")));
    assert!(steps.contains("swarm attach fix") && steps.ends_with("'swarm diff fix' for its changes"), "{steps}");
    let steps = next_steps(&spawned(None, None));
    assert!(steps.contains("swarm logs fix --follow") && !steps.contains("attach"), "{steps}");
}
