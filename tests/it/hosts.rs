//! `--host` and `swarm hosts`. A host is a home of its own, reached by a command instead of ssh.

use std::fs;
use std::path::PathBuf;

use crate::common::{Rig, SOON, Said, proc, run, wait_until};

/// Two rigs: a person's, and a machine on which that person has an account.
pub struct Site {
    pub here: Rig,
    pub there: Rig,
}

/// Way to a host: closed while there is a file of its name with `.closed`.
const GATE: &str = "[ ! -e \"$0.closed\" ] || exit 1\nexec \"$@\"\n";

impl Site {
    pub fn new() -> Self {
        let site = Self { here: Rig::new(), there: Rig::new() };
        site.configure("");
        site
    }

    /// Writes the person's configuration: `box`, which can be reached, and `dead`, which cannot.
    pub fn configure(&self, more: &str) {
        let home = self.there.home();
        let state = self.there.root();
        let reach = format!(
            "command = ['sh', '{}', 'env', '-i', 'PATH={}', 'HOME={}', 'TMUX_TMPDIR={}', 'LANG=C.UTF-8', 'TZ=UTC', '{}']\n\
             swarm = '{}'\nstate = '{}'\n",
            self.here.file("gate", GATE),
            std::env::var("PATH").expect("set"),
            home.display(),
            self.there.path("tmux").display(),
            self.there.marker(),
            env!("CARGO_BIN_EXE_swarm"),
            state.display(),
        );
        let text = format!("[hosts.box]\n{reach}{more}\n[hosts.dead]\ncommand = ['false']\n");
        let dir = self.here.home().join(".config/swarm");
        fs::create_dir_all(&dir).expect("made");
        fs::write(dir.join("config.toml"), text).expect("written");
    }

    /// Cuts all connections to `box`, which is out of reach until [`Site::open`].
    pub fn cut(&self) {
        self.here.file("gate.closed", "");
        self.ends().into_iter().for_each(proc::kill);
        wait_until("no connection is left", SOON, || self.ends().is_empty());
    }

    pub fn open(&self) {
        fs::remove_file(self.here.path("gate.closed")).expect("closed before");
    }

    /// Pids of the far ends of connections.
    pub fn ends(&self) -> Vec<i32> {
        let is_end = |pid: &i32| proc::words(*pid).get(1).is_some_and(|verb| verb == "__stdio");
        self.there.processes().into_iter().filter(is_end).collect()
    }

    pub fn on_box(&self, words: &[&str]) -> Said {
        self.here.swarm(&[&["--host", "box"], words].concat())
    }
}

#[test]
fn a_verb_on_a_host_has_the_words_and_the_exit_code_of_that_host() {
    let site = Site::new();
    assert_eq!(site.on_box(&["ls"]).ok(), "");
    let spawned = site.on_box(&["spawn", "--name", "w", "--", "sh", "-c", "echo out; echo err >&2; exit 7"]).ok();
    assert!(spawned.starts_with("spawned w (pid: "), "{spawned}");
    assert_eq!(site.on_box(&["wait", "w", "--exit-code"]).code, Some(7));
    for words in [
        &["ls"][..],
        &["ls", "--json"],
        &["status", "w"],
        &["logs", "w"],
        &["logs", "w", "--stderr"],
        &["history", "w"],
        &["status", "nobody"],
        &["diff", "w"],
        &["clean", "nobody"],
        &["run", "status"],
        &["approvals"],
        &["config"],
        &["spawn", "--name", "w", "--", "true"],
    ] {
        let (far, near) = (site.on_box(words), site.there.swarm_in(&site.there.home(), words));
        assert_eq!((far.code, far.out, far.err), (near.code, near.out, near.err), "{words:?}");
    }
    assert_eq!(site.here.swarm(&["ls"]).ok(), "", "something was started here");
}

#[test]
fn hosts_are_asked_side_by_side_and_a_dead_one_is_named() {
    let site = Site::new();
    site.there.spawn("w", &[], &["sleep", "600"]);
    let said = site.here.swarm(&["ls", "--host", "dead,box"]);
    assert_eq!(said.code, Some(1));
    assert!(said.out.starts_with("box:\nNAME") && said.out.contains("w     running"), "{said:?}");
    assert_eq!(said.err, "swarm: error: no swarm answers on dead: the command ended with code 1 and no hello\n");
    let list = site.here.swarm(&["--host", "box,dead", "ls", "--json"]).out;
    let list: serde_json::Value = serde_json::from_str(&list).expect("json");
    assert_eq!((list["host"].as_str(), list["workers"][0]["name"].as_str()), (Some("box"), Some("w")));
    site.here
        .swarm(&["--host", "box,dead", "kill", "w"])
        .refused(1, "only verbs that read can be executed on several hosts");
    site.here.swarm(&["--host", "box,dead", "logs", "w", "-f"]).refused(1, "only one host can be followed");
    assert_eq!(site.here.swarm(&["status", "box:w", "--json"]).code, Some(0));
    let cause = "'w' is on another machine than the workers of box";
    site.here.swarm(&["wait", "box:w", "w"]).refused(1, cause);
    let mut command = site.here.command(&["ls"]);
    command.env("SWARM_HOST", "box");
    assert_eq!(run(command).ok(), site.there.swarm(&["ls"]).ok());
    assert_eq!(site.there.fine("w"), "running");
}

#[test]
fn a_verb_that_is_about_this_machine_is_refused_or_executed_here() {
    let site = Site::new();
    let refused = site.on_box(&["completions", "bash"]);
    refused.refused(1, "--host cannot be used here: this verb writes files for this machine");
    let mut command = site.here.command(&["completions", "bash"]);
    command.env("SWARM_HOST", "box");
    assert_eq!(run(command).code, Some(0));
    assert_eq!(site.here.swarm(&["--host", "local", "ls"]).ok(), "");
    for words in [&["attach", "w"][..], &["top"]] {
        site.on_box(words).refused(1, "box is not reached by ssh, so there is no terminal to attach");
    }
    site.here
        .swarm(&["--host", "-oProxyCommand=x", "ls"])
        .refused(1, "invalid host '-oProxyCommand=x': must not begin with '-'");
    assert_eq!(site.here.swarm(&["ls", "--host"]).code, Some(2));
    assert_eq!(site.here.swarm(&["--host", "box", "lss"]).code, Some(2));
}

#[test]
fn verbs_are_executed_in_the_directory_of_the_host_with_the_environment_of_a_login() {
    let site = Site::new();
    fs::create_dir(site.there.home().join("work")).expect("made");
    fs::write(site.there.home().join(".profile"), "echo welcome\nexport FROM_PROFILE=1 SSH_CLIENT=x\n")
        .expect("written");
    site.configure("dir = 'work'\n");
    let mut command = site.here.command(&["--host", "box", "spawn", "--name", "w", "--", "sh", "-c", "env; pwd"]);
    command.env("ONLY_HERE", "1");
    run(command).ok();
    site.there.wait("w");
    let printed = site.there.log("w", "stdout");
    let has = |line: &str| printed.lines().any(|printed| printed == line);
    assert!(has("FROM_PROFILE=1") && has(&site.there.home().join("work").display().to_string()), "{printed}");
    assert!(!printed.contains("ONLY_HERE") && !printed.contains("SSH_CLIENT"), "{printed}");
    fs::write(site.there.home().join(".profile"), "export FROM_PROFILE=22\n").expect("written");
    site.on_box(&["spawn", "--name", "v", "--", "sh", "-c", "env"]).ok();
    site.there.wait("v");
    assert!(site.there.log("v", "stdout").contains("FROM_PROFILE=22"), "the environment was not read again");
    let repo = site.there.repo_named("home/work/repo");
    assert_eq!(site.here.swarm(&["--host", "box", "-C", "repo", "ls", "--here"]).ok(), "");
    site.here.swarm(&["--host", "box", "ls", "--here"]).code.filter(|code| *code != 0).expect("no repository");
    assert!(repo.ends_with("home/work/repo"));
    site.configure("dir = 'nowhere'\n");
    let cause = format!("box: there is no directory {}", site.there.home().join("nowhere").display());
    site.on_box(&["ls"]).refused(1, &cause);
}

#[test]
fn followers_and_waiters_there_end_with_those_here() {
    let site = Site::new();
    site.there.spawn("w", &[], &["sh", "-c", "echo begun; exec sleep 600"]);
    let verbs = || {
        let all = site.there.processes();
        all.into_iter().filter(|pid| proc::words(*pid).iter().any(|verb| verb == "logs")).count()
    };
    let mut follower = site.here.command(&["--host", "box", "logs", "w", "-f"]);
    let mut child = follower.stdout(std::process::Stdio::null()).spawn().expect("started");
    wait_until("it follows", SOON, || verbs() == 1);
    child.kill().expect("killed");
    child.wait().expect("ended");
    wait_until("the verb there has ended", SOON, || verbs() == 0);
    assert_eq!(site.there.fine("w"), "running");
}

#[test]
fn hosts_are_listed_and_checked() {
    let site = Site::new();
    let said = site.here.swarm(&["hosts"]);
    assert_eq!(said.code, Some(1));
    let lines: Vec<&str> = said.out.lines().collect();
    assert!(lines[1].starts_with("box   up") && lines[2].starts_with("dead  away"), "{said:?}");
    let json = site.here.swarm(&["hosts", "ls", "--json"]).out;
    assert!(json.starts_with("{\"schema\":\"swarm.hosts/1\""), "{json}");
    let said = site.here.swarm(&["hosts", "check", "box"]);
    assert!(said.out.starts_with("box: swarm ") && said.err.is_empty(), "{said:?}");
    let said = site.here.swarm(&["hosts", "check", "dead"]);
    assert_eq!((said.code, said.out.as_str()), (Some(1), ""));
    fs::remove_file(site.here.home().join(".config/swarm/config.toml")).expect("removed");
    let said = site.here.swarm(&["hosts"]);
    assert_eq!((said.code, said.out.as_str()), (Some(0), ""));
    assert!(said.err.contains("no hosts are configured"), "{said:?}");
}

#[test]
fn a_program_is_installed_in_an_empty_account() {
    let site = Site::new();
    let empty = site.here.path("empty");
    fs::create_dir(&empty).expect("made");
    let text = format!("[hosts.new]\ncommand = ['env', '-u', 'SWARM_DIR', 'HOME={}']\n", empty.display());
    let config = site.here.home().join(".config/swarm/config.toml");
    fs::write(&config, text).expect("written");
    let said = site.here.swarm(&["--host", "new", "ls"]);
    assert_eq!(said.code, Some(255), "{said:?}");
    let said = site.here.swarm(&["hosts", "install", "new"]);
    assert!(said.code == Some(0) && said.out.starts_with("installed swarm "), "{said:?}");
    let program: PathBuf = empty.join(".local/bin/swarm");
    assert!(program.is_file());
    assert_eq!(site.here.swarm(&["--host", "new", "ls"]).ok(), "");
    fs::remove_file(&program).expect("removed");
    fs::write(&program, "mine").expect("written");
    let said = site.here.swarm(&["hosts", "install", "new"]);
    assert!(said.code == Some(1) && said.err.contains("was not installed by swarm"), "{said:?}");
    assert_eq!(fs::read(&program).expect("kept"), b"mine");
}
