//! Loops with small scripts as agents in a private tmux: real exit codes, and processes that are killed meanwhile.

use std::fs;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;

use crate::coexist::original;
use crate::common::proc::{self, Signal};
use crate::common::{Rig, SOON, Said, wait_until};

/// Twenty iterations on a loaded machine.
const LONG: Duration = Duration::from_secs(120);

/// A repository with a prompt and an agent.
pub struct Site {
    pub rig: Rig,
    pub repo: PathBuf,
}

impl Site {
    /// Plants a loop that the original program started, in a worktree at `repo-worktrees/dev`.
    pub fn begin_theirs(&self, max: &str) {
        let agent = self.rig.path("agent");
        let (tree, prompt) = (self.rig.path("repo-worktrees/dev"), self.repo.join("PROMPT.md"));
        let text = |path: &PathBuf| path.to_str().expect("text").to_owned();
        let (agent, tree, prompt, repo) = (text(&agent), text(&tree), text(&prompt), text(&self.repo));
        let words = ["ralph", "begin", "dev", "theirs", &prompt, max, "--worktree", &tree, &repo, "--", "sh", &agent];
        original(&self.rig, &words).ok();
    }

    /// Writes the state file as the original program does.
    pub fn theirs(&self, members: &[&str]) {
        original(&self.rig, &[&["ralph", "set", "dev"], members].concat()).ok();
    }

    /// Creates a repository with a prompt and an agent. The agent reads the prompt into `$line`, counts its starts in
    /// `$n`, and runs `script`.
    pub fn new(script: &str) -> Self {
        let rig = Rig::new();
        let repo = rig.repo();
        fs::write(repo.join("PROMPT.md"), "go on\n").expect("written");
        let count = rig.path("count");
        let count = count.to_str().expect("text");
        let agent = format!(
            "n=$(($(cat {count} 2>/dev/null || echo 0) + 1)); echo $n > {count}\nprintf '> '\nread line\n{script}\n"
        );
        rig.file("agent", &agent);
        Self { rig, repo }
    }

    pub fn swarm(&self, words: &[&str]) -> Said {
        self.rig.swarm_in(&self.repo, words)
    }

    /// `swarm ralph spawn --name dev FLAGS -- sh AGENT`.
    pub fn begin(&self, flags: &[&str]) -> Said {
        let agent = self.rig.path("agent");
        let agent = ["--", "sh", agent.to_str().expect("text")];
        let head = ["ralph", "spawn", "--name", "dev", "--prompt-file", "PROMPT.md"];
        self.swarm(&[&head[..], flags, &agent].concat())
    }

    pub fn starts(&self) -> u32 {
        let count = fs::read_to_string(self.rig.path("count")).unwrap_or_default();
        count.trim().parse().unwrap_or(0)
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.rig.root().join("ralph/dev").join(name)
    }

    pub fn state(&self) -> Value {
        serde_json::from_slice(&fs::read(self.file("state.json")).expect("there")).expect("JSON")
    }

    /// Lines of the log without their times.
    pub fn lines(&self) -> Vec<String> {
        let text = fs::read_to_string(self.file("iterations.log")).unwrap_or_default();
        text.lines().filter_map(|line| Some(line.split_once(' ')?.1.to_owned())).collect()
    }

    #[track_caller]
    pub fn wait_line(&self, wanted: &str) {
        self.wait_line_within(wanted, SOON);
    }

    #[track_caller]
    pub fn wait_line_within(&self, wanted: &str, limit: Duration) {
        let has = || self.lines().iter().any(|line| line.starts_with(wanted));
        let end = std::time::Instant::now() + limit;
        while !has() {
            assert!(std::time::Instant::now() < end, "no line {wanted:?} in {:?}", self.lines());
            std::thread::park_timeout(Duration::from_millis(20));
        }
    }

    #[track_caller]
    pub fn is_over(&self, status: &str, reason: &str) {
        wait_until("the loop is over", SOON, || self.state()["exit_reason"] == reason);
        assert_eq!(self.state()["status"], status);
    }
}

#[test]
fn twenty_iterations_run_in_one_worktree_and_are_all_logged() {
    let site = Site::new("echo $n >> work; git add work; git commit -qm \"step $n\"; exit 0");
    site.begin(&["--max-iterations", "20"]).ok();
    site.wait_line_within("[DONE]", LONG);
    site.is_over("stopped", "max_iterations");
    let lines = site.lines();
    assert_eq!(lines.len(), 41, "{lines:?}");
    for i in 1..=20 {
        assert_eq!(lines[2 * i - 2], format!("[START] iteration {i}/20"));
        assert!(lines[2 * i - 1].starts_with(&format!("[END] iteration {i} exit=0 duration=")), "{lines:?}");
    }
    assert_eq!(lines[40], "[DONE] loop complete after 20 iterations reason=max_iterations");
    assert_eq!(site.starts(), 20);
    assert_eq!(site.rig.git(&site.repo, &["rev-list", "--count", "main..dev"]), "20");
    let row = &site.rig.rows()[0];
    assert_eq!((&row["metadata"]["ralph"], &row["metadata"]["ralph_iteration"]), (&true.into(), &20.into()));
    assert_eq!(row["metadata"]["swarm"]["generation"], 20);
    assert!(site.state()["monitor_pid"].is_null());
    assert_eq!(site.state()["iteration_durations"].as_array().map(Vec::len), Some(20));
}

#[test]
fn an_abandoned_paused_killed_and_resumed_loop_ends_with_a_complete_log() {
    let site = Site::new("[ $n = 18 ] && exit 4; exit 0");
    let agent = site.rig.path("agent");
    let head = ["ralph", "spawn", "--name", "dev", "--prompt-file", "PROMPT.md", "--max-iterations", "20"];
    let rest = ["--no-worktree", "--foreground", "--", "sh", agent.to_str().expect("text")];
    let mut command = site.rig.command(&[&head[..], &rest].concat());
    let mut viewer = command.current_dir(&site.repo).stdout(Stdio::null()).spawn().expect("started");
    site.wait_line("[START] iteration 3/20");
    // The terminal goes away without notice.
    viewer.kill().expect("killed");
    viewer.wait().expect("waited");
    site.wait_line("[START] iteration 6/20");
    site.swarm(&["ralph", "pause", "dev"]).ok();
    site.rig.kill_keepers();
    site.swarm(&["ralph", "resume", "dev"]).ok();
    site.wait_line("[START] iteration 12/20");
    let (supervisor, _) = site.rig.keepers();
    supervisor.into_iter().for_each(proc::kill);
    site.wait_line_within("[DONE]", LONG);
    site.is_over("stopped", "max_iterations");
    let lines = site.lines();
    let of = |mark: &str| lines.iter().filter(|line| line.starts_with(mark)).count();
    assert_eq!([of("[START]"), of("[END]"), of("[PAUSE]"), of("[FAIL]"), of("[DONE]")], [20, 20, 1, 1, 1], "{lines:?}");
    assert_eq!((lines.len(), site.starts()), (43, 20), "{lines:?}");
}

#[test]
fn exit_codes_and_signals_count() {
    let site = Site::new("case $n in 1) exit 3;; 2) kill -9 $$;; *) exit 0;; esac");
    site.begin(&["--max-iterations", "3", "--no-worktree"]).ok();
    site.wait_line_within("[DONE]", LONG);
    let lines = site.lines();
    assert!(lines[1].starts_with("[END] iteration 1 exit=3 "), "{lines:?}");
    assert_eq!(lines[2], "[FAIL] iteration 1 exit=3 attempt=1/5 backoff=1s");
    assert!(lines[4].starts_with("[END] iteration 2 exit=137 "), "{lines:?}");
    assert_eq!(lines[5], "[FAIL] iteration 2 exit=137 attempt=2/5 backoff=2s");
    assert!(lines[7].starts_with("[END] iteration 3 exit=0 "), "{lines:?}");
    // The log lines are written before the state.
    site.is_over("stopped", "max_iterations");
    let state = site.state();
    assert_eq!((&state["consecutive_failures"], &state["total_failures"]), (&0.into(), &2.into()));
}

#[test]
fn the_done_pattern_matches_the_agents_output_and_not_the_prompt() {
    let site = Site::new("echo \"got <$line>\"; [ $n = 2 ] && echo ALL DONE && exec sleep 600; exit 0");
    fs::write(site.repo.join("PROMPT.md"), "say ALL DONE when you are through\n").expect("written");
    site.begin(&["--no-worktree", "--done-pattern", "^ALL (TASKS )?DONE|(?m)^ALL DONE$"]).ok();
    site.wait_line("[DONE] loop complete after 2 iterations reason=done_pattern");
    site.is_over("stopped", "done_pattern");
    wait_until("the agent is ended", SOON, || site.rig.fine("dev") == "stopped");
    assert!(site.rig.exit("dev").ends_with(", stopped"), "{}", site.rig.exit("dev"));
    assert_eq!(site.starts(), 2);
}

#[test]
fn the_last_output_of_an_agent_is_checked_after_its_exit() {
    let site = Site::new("echo working; echo FINISHED; exit 0");
    site.begin(&["--no-worktree", "--done-pattern", "FINISHED", "--no-check-done-continuous"]).ok();
    site.wait_line("[DONE] loop complete after 1 iterations reason=done_pattern");
    assert!(site.lines()[1].starts_with("[END] iteration 1 exit=0 "), "{:?}", site.lines());
}

#[test]
fn silence_ends_an_iteration() {
    let site = Site::new("exec sleep 600");
    site.begin(&["--no-worktree", "--max-iterations", "2", "--inactivity-timeout", "2"]).ok();
    site.wait_line_within("[DONE] loop complete after 2 iterations reason=max_iterations", LONG);
    let timeouts = site.lines().iter().filter(|line| line.starts_with("[TIMEOUT]")).count();
    assert_eq!((timeouts, site.starts()), (2, 2));
}

#[test]
fn a_killed_supervisor_changes_nothing() {
    let site = Site::new("while [ ! -e go$n ]; do read more; done; exit 0");
    site.begin(&["--no-worktree", "--max-iterations", "3"]).ok();
    for n in 1..=3 {
        let is_given = || site.starts() == n && site.rig.log("dev", "tmux").contains("go on");
        wait_until("the agent has its prompt", SOON, is_given);
        site.wait_line(&format!("[START] iteration {n}/3"));
        site.rig.kill_keepers();
        let pid = site.rig.pid("dev");
        // Any command wakes the next supervisor.
        site.swarm(&["supervisor", "restart"]);
        assert_eq!(site.rig.pid("dev"), pid, "the agent was replaced");
        fs::write(site.repo.join(format!("go{n}")), "").expect("written");
        site.swarm(&["send", "dev", "look"]);
        site.wait_line(&format!("[END] iteration {n} exit=0"));
    }
    site.wait_line("[DONE] loop complete after 3 iterations reason=max_iterations");
    assert_eq!((site.starts(), site.lines().len()), (3, 7), "{:?}", site.lines());
}

#[test]
fn each_prompt_is_typed_once_however_often_the_supervisor_is_killed() {
    let site = Site::new("echo \"<$line>\" >> got; exit 0");
    site.begin(&["--no-worktree", "--max-iterations", "8"]).ok();
    for n in 1..=8 {
        // Just while its worker is being started or gets its prompt.
        site.wait_line(&format!("[START] iteration {n}/8"));
        site.rig.kill_keepers();
        site.swarm(&["supervisor", "restart"]);
    }
    site.wait_line_within("[DONE]", LONG);
    let got = fs::read_to_string(site.repo.join("got")).expect("written");
    assert_eq!(got, "<go on>\n".repeat(8));
    assert_eq!((site.starts(), site.lines().len()), (8, 17), "{:?}", site.lines());
}

#[test]
fn a_pause_holds_and_a_resume_continues_after_the_supervisor_was_killed() {
    let site = Site::new("read more; exit 0");
    site.begin(&["--no-worktree", "--max-iterations", "3"]).ok();
    site.swarm(&["ralph", "pause", "dev"]).is(0, "paused ralph loop for dev\n", "");
    site.swarm(&["ralph", "pause", "dev"]).is(0, "", "swarm: warning: worker 'dev' is already paused\n");
    assert_eq!(site.state()["status"], "paused");
    wait_until("the agent has its prompt", SOON, || site.rig.log("dev", "tmux").contains("go on"));
    let (supervisor, _) = site.rig.keepers();
    proc::kill(supervisor.expect("runs"));
    site.swarm(&["send", "dev", "leave"]).ok();
    site.wait_line("[END] iteration 1 exit=0");
    assert_eq!(site.state()["status"], "paused");
    site.swarm(&["supervisor", "stop"]);
    site.swarm(&["ralph", "resume", "dev"]).is(0, "resumed ralph loop for dev\n", "");
    site.swarm(&["ralph", "resume", "dev"]).is(0, "", "swarm: warning: worker 'dev' is not paused\n");
    site.wait_line("[START] iteration 2/3");
    assert_eq!(site.lines()[1], "[PAUSE] loop paused reason=user");
    wait_until("the second agent runs", SOON, || site.starts() == 2);
}

#[test]
fn a_kill_ends_the_loop_and_its_history_stays_until_it_is_cleaned() {
    let site = Site::new("exec sleep 600");
    site.begin(&["--no-worktree"]).ok();
    site.swarm(&["ralph", "stop", "dev"]).is(0, "killed dev\n", "");
    assert_eq!(site.lines().last().map(String::as_str), Some("[DONE] loop complete after 1 iterations reason=killed"));
    site.is_over("stopped", "killed");
    site.swarm(&["clean", "dev"]).is(0, "cleaned dev\n", "");
    let status = site.swarm(&["ralph", "status", "dev"]).ok();
    assert!(status.starts_with("Ralph Loop: dev\nStatus: stopped\nIteration: 1/50"), "{status}");
    assert!(status.ends_with("Exit reason: killed\n"), "{status}");
    let list = site.swarm(&["ralph", "ls"]).ok();
    let expected = "NAME  RALPH_STATUS  WORKER_STATUS  ITERATION  FAILURES\ndev   stopped       removed        1/50       0/0     \n";
    assert_eq!(list, expected);
    site.swarm(&["ralph", "clean", "dev"]).is(0, "cleaned ralph state for dev\n", "");
    site.swarm(&["ralph", "status", "dev"]).refused(1, "worker 'dev' not found");
    assert!(!site.file("").exists());
    assert_eq!(site.starts(), 1);
}

#[test]
fn an_agent_is_replaced_and_its_work_is_saved() {
    let site = Site::new("echo precious > notes; exec sleep 600");
    site.begin(&[]).ok();
    let tree = site.rig.path("repo-worktrees/dev");
    wait_until("the agent has worked", SOON, || tree.join("notes").exists());
    site.begin(&[]).refused(1, "worker 'dev' already exists");
    let pid = site.rig.pid("dev");
    let cause = format!("'nosuch' is not a commit in the repository at {}", site.repo.display());
    site.begin(&["--replace", "--base", "nosuch"]).refused(1, &format!("failed to create worktree: {cause}"));
    assert_eq!((site.rig.pid("dev"), site.state()["status"].as_str()), (pid, Some("running")));
    let said = site.begin(&["--replace", "--max-iterations", "7"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(said.out.starts_with("replaced existing worker dev\nspawned dev (tmux: "), "{said:?}");
    assert!(said.err.contains("refs/swarm/trash/"), "{said:?}");
    let saved = site.rig.git(&site.repo, &["for-each-ref", "--format=%(refname)", "refs/swarm/trash/"]);
    assert!(!saved.is_empty());
    assert_eq!(site.state()["max_iterations"], 7);
    assert_eq!(site.lines(), ["[START] iteration 1/7"]);
}

#[test]
fn a_loop_started_with_no_run_is_run_and_shown_by_ralph_run() {
    let site = Site::new("exit 0");
    site.begin(&["--no-worktree", "--no-run", "--max-iterations", "2"]).ok();
    site.rig.wait("dev");
    assert_eq!(site.lines(), ["[START] iteration 1/2"]);
    let out = site.swarm(&["ralph", "run", "dev"]).ok();
    let lines: Vec<&str> = out.lines().collect();
    assert!(lines[0].starts_with("[ralph] dev: iteration 1 completed (exit: 0, duration: "), "{out}");
    assert_eq!(lines[1], "[ralph] dev: starting iteration 2/2");
    assert_eq!(lines.last(), Some(&"[ralph] dev: loop complete after 2 iterations"));
    site.swarm(&["ralph", "run", "dev"]).refused(1, "ralph loop for 'dev' has status 'stopped'");
}

#[test]
fn interrupting_ralph_run_pauses_the_loop() {
    for (signal, name) in [(Signal::TERM, "SIGTERM"), (Signal::INT, "SIGINT")] {
        let site = Site::new("exec sleep 600");
        site.begin(&["--no-worktree"]).ok();
        let mut command = site.rig.command(&["ralph", "run", "dev"]);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("started");
        let pid = i32::try_from(child.id()).expect("a pid");
        let caught = || {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:\t")).unwrap_or("0").to_owned();
            u64::from_str_radix(&blocked, 16).unwrap_or(0) & (1 << 14) != 0
        };
        wait_until("the command waits for signals", SOON, caught);
        proc::signal(pid, signal);
        assert!(proc::wait_end(pid, SOON));
        let said = child.wait_with_output().expect("ended");
        let out = String::from_utf8_lossy(&said.stdout).into_owned();
        let line = format!("[ralph] dev: received {name}, pausing loop (current agent will complete)\n");
        assert!(out.contains(&line) && out.ends_with("[ralph] dev: paused, exiting loop\n"), "{out}");
        assert_eq!((said.status.code(), site.state()["status"].as_str()), (Some(0), Some("paused")));
        assert!(site.lines().contains(&format!("[PAUSE] loop paused reason={}", name.to_lowercase())));
        assert_eq!(site.rig.fine("dev"), "running");
    }
}

#[test]
fn files_of_a_loop_are_private_and_its_agent_gets_its_own_environment() {
    use std::os::unix::fs::PermissionsExt as _;
    let site = Site::new("exec sleep 600");
    site.begin(&["--no-worktree", "--env", "KEY=value"]).ok();
    for name in ["", "loop.json", "state.json", "iterations.log"] {
        let mode = fs::metadata(site.file(name)).expect("there").permissions().mode() & 0o777;
        assert_eq!(mode, if name.is_empty() { 0o700 } else { 0o600 }, "{name}");
    }
    assert!(proc::has_variable(site.rig.pid("dev"), "KEY=value"));
}

#[test]
fn a_damaged_state_is_kept_and_the_loop_continues() {
    let site = Site::new("read more; exit 0");
    site.begin(&["--no-worktree", "--max-iterations", "2"]).ok();
    wait_until("the agent has its prompt", SOON, || site.rig.log("dev", "tmux").contains("go on"));
    fs::write(site.rig.path("damaged"), "{\"worker_name\": ").expect("written");
    fs::rename(site.rig.path("damaged"), site.file("state.json")).expect("replaced");
    site.swarm(&["send", "dev", "leave"]).ok();
    site.wait_line("[START] iteration 2/2");
    assert_eq!(fs::read_to_string(site.file("state.json.corrupted")).expect("kept"), "{\"worker_name\": ");
    assert_eq!((&site.state()["max_iterations"], &site.state()["status"]), (&2.into(), &"running".into()));
}
