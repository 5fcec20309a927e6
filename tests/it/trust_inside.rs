//! Consent from what the supervisor or git executes: it may be written by agents, so it is refused like that of a worker.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use crate::common::{Rig, SOON, Said, proc, run, wait_until};
use crate::trust::set;

/// Returns commands that agree for the person, without the variables of a worker, and append what was said to `said`.
fn agrees(rig: &Rig, repo: &Path) -> String {
    let bin = env!("CARGO_BIN_EXE_swarm");
    let said = rig.path("said");
    format!(
        "( cd '{}' && env -u SWARM_TOKEN -u SWARM_WORKER '{bin}' trust --yes >> '{}' 2>&1 < /dev/null )",
        repo.display(),
        said.display()
    )
}

fn said(rig: &Rig) -> String {
    fs::read_to_string(rig.path("said")).unwrap_or_default()
}

fn show(rig: &Rig, repo: &Path) -> Said {
    rig.swarm_in(repo, &["trust", "--show"])
}

/// Makes a repository with a setting that nobody agreed to, and a filter of the user's own that executes a script of the
/// worktree.
fn filtered() -> (Rig, PathBuf) {
    let rig = Rig::new();
    let repo = rig.repo();
    rig.git(&repo, &["config", "filter.z.clean", "./z.sh"]);
    fs::write(repo.join(".gitattributes"), "*.z filter=z\n").expect("written");
    set(&rig, &repo, "[run]\nconsent = 'full-access'\n");
    rig.git(&repo, &["add", "."]);
    rig.git(&repo, &["commit", "-qm", "filter"]);
    (rig, repo)
}

/// Returns the script of a worker that leaves work for the filter, whose script agrees.
fn leaves_a_filter(rig: &Rig, repo: &Path) -> String {
    let script = rig.file("z.sh", &format!("#!/bin/sh\n{}\ncat\n", agrees(rig, repo)));
    format!("cp '{script}' z.sh; chmod +x z.sh; echo new > b.z")
}

#[test]
fn a_filter_that_the_supervisor_executes_cannot_agree() {
    let (rig, repo) = filtered();
    let script = leaves_a_filter(&rig, &repo);
    rig.swarm_in(&repo, &["spawn", "--name", "agent", "--worktree", "--", "sh", "-c", &script]).ok();
    rig.wait("agent");
    rig.swarm_in(&repo, &["merge", "add", "agent", "--verify", "true"]).ok();
    rig.swarm_in(&repo, &["merge", "wait", "agent", "--timeout", "25"]).ok();
    let refused = format!("swarm: error: a process that the supervisor started cannot trust {}\n", repo.display());
    assert!(said(&rig).contains(&refused), "{}", said(&rig));
    assert_eq!(show(&rig, &repo).code, Some(1));
}

#[test]
fn a_filter_that_git_executes_for_a_verb_cannot_agree() {
    let (rig, repo) = filtered();
    let script = leaves_a_filter(&rig, &repo);
    rig.swarm_in(&repo, &["spawn", "--name", "agent", "--worktree", "--", "sh", "-c", &script]).ok();
    rig.wait("agent");
    rig.swarm_in(&repo, &["diff", "agent"]).ok();
    let refused = format!("cannot trust {}\n", repo.display());
    assert!(said(&rig).contains(&refused), "{}", said(&rig));
    assert_eq!(show(&rig, &repo).code, Some(1));
}

#[test]
fn a_git_of_the_callers_choice_cannot_agree_for_the_supervisor() {
    let rig = Rig::new();
    let repo = rig.repo();
    rig.git(&repo, &["branch", "topic"]);
    set(&rig, &repo, "[run]\nconsent = 'full-access'\n");
    fs::create_dir(rig.path("bin")).expect("made");
    let path = std::env::var("PATH").expect("a path");
    let git = rig.file("bin/git", &format!("#!/bin/sh\n{}\nPATH='{path}' exec git \"$@\"\n", agrees(&rig, &repo)));
    fs::set_permissions(&git, fs::Permissions::from_mode(0o755)).expect("executable");
    // The supervisor is already there, so that only the request has the path.
    rig.spawn("w", &[], &["true"]);
    let mut add = rig.command(&["merge", "add", "topic", "--base", "main", "--verify", "true"]);
    add.current_dir(&repo).env("PATH", format!("{}:{path}", rig.path("bin").display()));
    run(add);
    wait_until("git was executed for the supervisor", SOON, || said(&rig).contains("that the supervisor started"));
    assert_eq!(show(&rig, &repo).code, Some(1), "{}", said(&rig));
}

#[test]
fn a_command_for_notifications_is_the_word_of_a_person() {
    let rig = Rig::new();
    let repo = rig.repo();
    set(&rig, &repo, "[merge]\nverify = 'true'\n");
    fs::create_dir_all(rig.path("home/.config/swarm")).expect("made");
    let script = rig.file("told.sh", &agrees(&rig, &repo));
    let own = format!("[notify]\ncommand = \"sh '{script}'\"\nevents = ['failed']\n");
    fs::write(rig.path("home/.config/swarm/config.toml"), own).expect("written");
    rig.spawn("w", &[], &["false"]);
    wait_until("the command has agreed", SOON, || show(&rig, &repo).code == Some(0));
}

#[test]
fn what_is_left_of_a_worker_whose_shim_was_killed_cannot_agree() {
    let rig = Rig::new();
    let repo = rig.repo();
    rig.git(&repo, &["branch", "topic"]);
    let rule = "[merge]\nverify = 'false'\n";
    set(&rig, &repo, rule);
    rig.trust(&repo);
    set(&rig, &repo, &format!("{rule}[run]\nconsent = 'full-access'\n"));
    let fifo = rig.path("next");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::from_bits_truncate(0o600)).expect("made");
    let bin = env!("CARGO_BIN_EXE_swarm");
    let adds = format!(
        "( cd '{}' && env -u SWARM_TOKEN -u SWARM_WORKER '{bin}' merge add topic --base main --verify true >> '{}' 2>&1; \
         echo \"code $?\" >> '{1}' )",
        repo.display(),
        rig.path("added").display(),
    );
    let tries = format!("{}; {adds}; read next < '{}'", agrees(&rig, &repo), fifo.display());
    let script = format!(
        "read next < '{}'; shim=$PPID; kill -9 $shim; while [ -d /proc/$shim ]; do :; done; {tries}; {tries}",
        fifo.display()
    );
    rig.spawn_sh("agent", &[], &script);
    let go_on = || {
        let tell = || OpenOptions::new().write(true).custom_flags(nix::libc::O_NONBLOCK).open(&fifo)?.write_all(b"\n");
        wait_until("it reads", SOON, || tell().is_ok());
    };
    go_on();
    let has_tried = |times: usize| {
        let added = || fs::read_to_string(rig.path("added")).unwrap_or_default();
        wait_until("it has tried", SOON, || added().matches("code ").count() == times);
        assert_eq!((added().matches(" cannot ").count(), added().matches("code 0").count()), (times, 0), "{}", added());
    };
    has_tried(1);
    let refused = || said(&rig).matches("worker 'agent' cannot trust").count();
    assert_eq!(refused(), 1, "{}", said(&rig));
    // Also after a change of supervisor.
    proc::kill(rig.keepers().0.expect("a supervisor"));
    go_on();
    has_tried(2);
    assert_eq!(refused(), 2, "{}", said(&rig));
    assert_eq!(show(&rig, &repo).code, Some(1));
}

#[test]
fn a_person_agrees_in_a_window_beside_those_of_workers() {
    let rig = Rig::new();
    let repo = rig.repo();
    set(&rig, &repo, "[merge]\nverify = 'true'\n");
    // The supervisor starts the tmux server.
    rig.spawn("w", &["--tmux"], &["sleep", "600"]);
    let done = rig.path("done");
    let types = format!("{}; touch '{}'", agrees(&rig, &repo), done.display());
    assert_eq!(rig.tmux(&["new-window", "-d", &types]).code, Some(0));
    wait_until("the window has ended", SOON, || done.exists());
    assert_eq!(show(&rig, &repo).code, Some(0), "{}", said(&rig));
}
