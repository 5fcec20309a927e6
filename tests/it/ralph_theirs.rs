//! Loops that the original program started, with the files that it writes.

use std::fs;

use crate::coexist::{original, original_command};
use crate::common::{SOON, proc, wait_until};
use crate::ralph::Site;

const TAKEN: &str = "[WARN] iteration 1: loop adopted from another program";

/// Member `monitor_pid` of a state file, with the pid of a process that has ended.
fn gone(site: &Site) -> String {
    let mut child = site.rig.program("true").spawn().expect("started");
    let pid = child.id();
    child.wait().expect("waited");
    format!("monitor_pid={pid}")
}

fn wait_stopped(site: &Site) {
    wait_until("their worker has ended", SOON, || site.swarm(&["status", "dev"]).code == Some(1));
}

#[test]
fn an_abandoned_loop_continues_in_its_worktree_from_any_status() {
    for left in [
        &["status=\"stopped\"", "exit_reason=\"monitor_disconnected\""][..],
        &["status=\"paused\""],
        &["status=\"running\"", "theirs={\"a\": 1}"],
    ] {
        let site = Site::new("echo $n >> work; exit 0");
        site.begin_theirs("3");
        wait_stopped(&site);
        site.theirs(&[left, &[&gone(&site)]].concat());
        let (before, started) = (site.rig.rows(), site.state()["started"].clone());
        site.swarm(&["ralph", "resume", "dev"]).is(0, "resumed ralph loop for dev\n", "");
        site.wait_line("[DONE]");
        site.is_over("stopped", "max_iterations");
        let lines = site.lines();
        assert_eq!((lines[0].as_str(), lines.len()), ("[START] iteration 1/3", 7), "{lines:?}");
        assert_eq!(lines[1], format!("{TAKEN}; the exit code of its worker is unknown"));
        assert_eq!(lines[2], "[START] iteration 2/3");
        let work = site.rig.path("repo-worktrees/dev/work");
        assert_eq!(fs::read_to_string(work).expect("kept"), "1\n2\n3\n", "uncommitted work was lost");
        let rows = site.rig.rows();
        for key in ["name", "cmd", "cwd", "env", "worktree"] {
            assert_eq!(rows[0][key], before[0][key], "{key}");
        }
        assert_eq!((rows.len(), &rows[0]["metadata"]["ralph_iteration"]), (1, &3.into()));
        assert_eq!(site.state()["started"], started, "the start time is unchanged");
        assert_eq!(site.state()["theirs"].is_object(), left.len() == 2 && left[0].contains("running"));
        assert_eq!(original(&site.rig, &["ls"]).ok(), "dev stopped\n");
    }
}

#[test]
fn a_running_agent_is_followed_in_its_window() {
    let site = Site::new("[ $n = 1 ] && { read more; exit 5; }; echo ALL'' DONE; exec sleep 600");
    site.begin_theirs("9");
    wait_until("the agent has its prompt", SOON, || site.starts() == 1);
    site.theirs(&["done_pattern=\"ALL DONE\"", "check_done_continuous=true", &gone(&site)]);
    site.swarm(&["ralph", "resume", "dev"]).is(0, "resumed ralph loop for dev\n", "");
    assert_eq!(site.lines().last().map(String::as_str), Some(TAKEN));
    // The supervisor may be killed meanwhile.
    site.rig.kill_keepers();
    site.swarm(&["supervisor", "restart"]);
    assert_eq!(site.starts(), 1);
    site.swarm(&["send", "dev", "leave"]).ok();
    site.wait_line("[END] iteration 1 exit=unknown duration=");
    site.wait_line("[START] iteration 2/9");
    site.wait_line("[DONE] loop complete after 2 iterations reason=done_pattern");
    site.is_over("stopped", "done_pattern");
    assert_eq!((site.starts(), &site.state()["total_failures"]), (2, &0.into()));
    wait_stopped(&site);
}

#[test]
fn the_last_output_of_a_foreign_agent_ends_the_loop() {
    let site = Site::new("read more; echo ALL'' DONE; exit 0");
    site.begin_theirs("9");
    wait_until("the agent has its prompt", SOON, || site.starts() == 1);
    site.theirs(&["done_pattern=\"^ALL DONE\"", &gone(&site)]);
    site.swarm(&["ralph", "resume", "dev"]).ok();
    let log = site.rig.root().join("logs/dev.tmux.log");
    wait_until("the log exists", SOON, || log.exists());
    // The pipe of the window must exist before the agent prints anything.
    let piped = || site.rig.tmux(&["list-panes", "-t", "=theirs:dev", "-F", "#{pane_pipe}"]).out == "1\n";
    wait_until("the window is piped", SOON, piped);
    site.swarm(&["send", "dev", "leave"]).ok();
    site.wait_line("[DONE] loop complete after 1 iterations reason=done_pattern");
    assert_eq!(site.starts(), 1);
}

#[test]
fn a_loop_run_by_the_original_is_left_alone_until_the_original_exits() {
    let site = Site::new("read more; exit 0");
    site.begin_theirs("2");
    wait_until("the agent has its prompt", SOON, || site.starts() == 1);
    let mut keeper = original_command(&site.rig, &["ralph", "run", "dev"]).spawn().expect("started");
    wait_until("the state names the original", SOON, || site.state()["monitor_pid"] == keeper.id());
    // Even if the file does not name the process.
    for noted in [keeper.id().to_string(), "null".to_owned()] {
        site.theirs(&[&format!("monitor_pid={noted}")]);
        let before = site.state();
        for verb in ["pause", "resume", "run", "stop", "clean"] {
            let said = site.swarm(&["ralph", verb, "dev"]);
            let cause = format!("the loop of 'dev' is run by another program (pid {})", keeper.id());
            let said = said.refused(1, &cause);
            assert!(said.err.contains("then 'swarm ralph resume dev' to continue it here"), "{said:?}");
        }
        assert_eq!((site.state(), site.file("loop.json").exists()), (before, false));
        assert_eq!(site.swarm(&["status", "dev"]).code, Some(0), "the agent still runs");
    }
    proc::signal(i32::try_from(keeper.id()).expect("a pid"), proc::Signal::TERM);
    keeper.wait().expect("waited");
    assert_eq!(site.state()["status"], "paused");
    site.swarm(&["ralph", "pause", "dev"]).is(0, "", "swarm: warning: worker 'dev' is already paused\n");
    site.swarm(&["ralph", "resume", "dev"]).is(0, "resumed ralph loop for dev\n", "");
    site.swarm(&["send", "dev", "leave"]).ok();
    site.wait_line("[START] iteration 2/2");
}

#[test]
fn an_abandoned_loop_is_paused_stopped_and_cleaned_like_ours() {
    let site = Site::new("read more; exit 0");
    site.begin_theirs("5");
    wait_until("the agent has its prompt", SOON, || site.starts() == 1);
    site.theirs(&[&gone(&site)]);
    site.swarm(&["ralph", "pause", "dev"]).is(0, "paused ralph loop for dev\n", "");
    assert_eq!((&site.state()["status"], site.swarm(&["status", "dev"]).code), (&"paused".into(), Some(0)));
    site.swarm(&["ralph", "stop", "dev"]).is(0, "killed dev\n", "");
    site.is_over("stopped", "killed");
    assert_eq!(site.lines().last().map(String::as_str), Some("[DONE] loop complete after 1 iterations reason=killed"));
    wait_stopped(&site);
    site.swarm(&["ralph", "clean", "dev"]).is(0, "cleaned ralph state for dev\n", "");
    assert!(!site.file("").exists());
    assert_eq!(site.rig.names(), ["dev"], "the worker stays for inspection");
}
