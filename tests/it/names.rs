//! Names and paths that an intermediate tool could misread.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::common::{Rig, run};

/// Everything below a directory.
fn tree(dir: &Path, found: &mut BTreeSet<PathBuf>) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            tree(&entry.path(), found);
        }
        found.insert(entry.path());
    }
}

#[test]
fn hostile_names_are_refused_and_nothing_is_created() {
    // In the original, such names write logs outside the state directory or are misread by tmux.
    let rig = Rig::new();
    let repo = rig.repo();
    let long = "n".repeat(300);
    let names = [
        "",
        "../x",
        "..",
        ".",
        "a/b",
        "/abs",
        "-x",
        "--all",
        "#(touch pwned)",
        ";",
        "a;b",
        "$(touch pwned)",
        "a\nb",
        "a b",
        "a:b",
        "a=b",
        "=a",
        "@1",
        "%1",
        ".hidden",
        "x.lock",
        "x..y",
        "dot.",
        "é",
        "\u{202e}gnp",
        "a\x1b[2Jb",
        "{end}",
        "~",
        "*",
        &long,
    ];
    let mut before = BTreeSet::new();
    tree(&rig.path(""), &mut before);
    for name in names {
        for flags in [&[][..], &["--tmux"], &["--worktree"], &["--tmux", "--worktree"]] {
            let name = format!("--name={name}");
            let words = [&["spawn", &name], flags, &["--", "touch", "ran"]].concat();
            let said = rig.swarm_in(&repo, &words);
            assert!(
                said.err.starts_with("swarm: error: invalid worker name '") && said.code == Some(1),
                "{name:?}: {said:?}"
            );
            assert!(
                said.err.ends_with('\n') && said.err.lines().count() == 2 && !said.err.contains(['\x1b', '\u{202e}']),
                "{said:?}"
            );
        }
    }
    let mut after = BTreeSet::new();
    tree(&rig.path(""), &mut after);
    assert_eq!(after, before);
    assert_eq!(rig.git(&repo, &["branch", "--format=%(refname:short)"]), "main");
}

#[test]
fn unusual_but_valid_names_work_everywhere() {
    let rig = Rig::new();
    let repo = rig.repo();
    let longest = "n".repeat(64);
    for name in ["a.b", "1", "1.2.3", "a-_-b", "0", &longest, "HEAD2", "x.1"] {
        let flags = ["spawn", "--name", name, "--tmux", "--worktree", "--", "sh", "-c", "pwd; exit 4"];
        let said = rig.swarm_in(&repo, &flags);
        assert_eq!(said.code, Some(0), "{name}: {said:?}");
        rig.wait(name);
        assert_eq!(rig.exit(name), "code 4, exited", "{name}");
        let tree = rig.path("repo-worktrees").join(name);
        assert_eq!(rig.git(&tree, &["branch", "--show-current"]), name);
    }
    let said = rig.swarm(&["clean", "--all"]);
    assert_eq!((said.code, said.out.lines().count()), (Some(0), 8), "{said:?}");
}

#[test]
fn rows_with_hostile_names_can_be_listed_killed_and_cleaned() {
    let rig = Rig::new();
    let names = ["../../victim", "a/b", "-x", "#(touch pwned)", ";", "a\nb", "\u{202e}gnp", "\x1b[2J", "a:b", ""];
    let long = "n".repeat(300);
    let rows: Vec<String> = names
        .iter()
        .chain([&long.as_str()])
        .map(|name| serde_json::json!({"name": name, "status": "running", "cmd": ["true"], "started": "2020-01-01T00:00:00.000001", "cwd": "/"}).to_string())
        .collect();
    rig.put_state(format!("{{\"workers\":[{}]}}", rows.join(",")));
    std::fs::create_dir_all(rig.root().join("logs")).expect("made");
    let victim = rig.path("victim.stdout.log");
    std::fs::write(&victim, "precious").expect("written");
    for format in [&["ls"][..], &["ls", "-l"], &["ls", "--format", "names"]] {
        let said = rig.swarm(format);
        assert!(said.code == Some(0) && !said.out.contains(['\x1b', '\u{202e}']), "{said:?}");
        assert_eq!(
            said.out.lines().count(),
            rows.len() + usize::from(format.len() == 1 || format[1] == "-l"),
            "{said:?}"
        );
    }
    for name in names.iter().chain([&long.as_str()]) {
        let said = rig.swarm(&["kill", "--", name]);
        assert_eq!((said.code, said.err.as_str()), (Some(0), ""), "{name:?}");
        assert_eq!(rig.swarm(&["status", "--", name]).code, Some(1), "{name:?}");
        let said = rig.swarm(&["respawn", "--", name]);
        assert!(
            said.code == Some(1) && said.err.starts_with("swarm: error: invalid worker name "),
            "{name:?}: {said:?}"
        );
        let said = rig.swarm(&["clean", "--", name]);
        assert_eq!((said.code, said.err.as_str()), (Some(0), ""), "{name:?}");
    }
    assert_eq!(rig.names().len(), 0);
    assert_eq!(std::fs::read_to_string(&victim).expect("still there"), "precious");
}

#[test]
fn a_home_of_two_hundred_characters_works() {
    let rig = Rig::new();
    let home = rig.path(&format!("{}/{}", "h".repeat(120), "i".repeat(100)));
    std::fs::create_dir_all(&home).expect("made");
    let swarm = |words: &[&str]| {
        let mut command = rig.command(words);
        command.env_remove("SWARM_DIR").env("HOME", &home);
        run(command)
    };
    assert_eq!(swarm(&["spawn", "--name", "p", "--", "sleep", "600"]).code, Some(0));
    assert_eq!(swarm(&["spawn", "--name", "t", "--tmux", "--", "sleep", "600"]).code, Some(0));
    assert_eq!(swarm(&["supervisor", "status"]).code, Some(0));
    swarm(&["kill", "--all"]).is(0, "killed p\nkilled t\n", "");
    swarm(&["clean", "--all"]).is(0, "cleaned p\ncleaned t\n", "");
    assert!(home.join(".swarm/state.json").exists());
    swarm(&["supervisor", "stop"]).is(0, "supervisor stopped\n", "");
}

#[test]
fn hostile_directories_and_arguments_are_passed_unchanged() {
    let rig = Rig::new();
    let dir = rig.path("a b #(touch pwned) $(touch pwned) ;'\"é %H #{pid}");
    std::fs::create_dir(&dir).expect("made");
    let arguments =
        ["", " ", "#(touch pwned)", "$(touch pwned)", ";", "a;", "\\", "'\"", "é\n", "%H", "#{pid}", "--", "*"];
    for (name, flags) in [("p", &[][..]), ("t", &["--tmux"])] {
        let script = "pwd > \"$0\"; printf '<%s>' \"$@\" >> \"$0\"";
        let out = rig.path(name);
        let words =
            [&["spawn", "--name", name], flags, &["--", "sh", "-c", script, out.to_str().expect("text")], &arguments]
                .concat();
        let said = rig.swarm_in(&dir, &words);
        assert_eq!(said.code, Some(0), "{said:?}");
        rig.wait(name);
        let expected: String = arguments.iter().map(|word| format!("<{word}>")).collect();
        assert_eq!(std::fs::read_to_string(&out).expect("there"), format!("{}\n{expected}", dir.display()));
    }
    let mut found = BTreeSet::new();
    tree(&rig.path(""), &mut found);
    assert!(!found.iter().any(|path| path.ends_with("pwned")), "something was executed");
}

#[test]
fn sessions_and_sockets_that_tmux_would_misread_are_refused() {
    let rig = Rig::new();
    for session in ["", "a.b", "a:b", "=a", "@1", "$1", "%1", "a\nb", "{end}", "-x", "!", "+", "~"] {
        let said = rig.swarm(&["spawn", "--name", "x", "--tmux", &format!("--session={session}"), "--", "true"]);
        assert!(said.code == Some(1) && said.err.starts_with("swarm: error: "), "{session:?}: {said:?}");
    }
    for socket in ["", ".", "..", "a/b", "/tmp/x"] {
        let said = rig.swarm(&["spawn", "--name", "x", "--tmux", &format!("--tmux-socket={socket}"), "--", "true"]);
        assert!(said.code == Some(1) && said.err.starts_with("swarm: error: "), "{socket:?}: {said:?}");
    }
    assert_eq!(rig.names().len(), 0);
    assert_eq!(rig.tmux(&["list-sessions"]).code, Some(1), "a server was started");
}
