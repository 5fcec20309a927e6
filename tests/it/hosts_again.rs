//! Verbs that change something, over a connection that is cut before the answer: they are executed once.

use std::fs;

use crate::common::{SOON, proc, wait_until};
use crate::hosts::Site;
use crate::hosts_cut::Going;
use crate::trust::set;

/// Way to a host that drops the first connection as soon as the far end answers. `$0.cut` says that it has.
const DROPS: &str = "\
if mkdir \"$0.cut\" 2>/dev/null; then
    mkfifo \"$0.cut/answer\"
    exec 3<&0
    \"$@\" <&3 >\"$0.cut/answer\" 3<&- &
    exec 3<&-
    exec head -n 1 <\"$0.cut/answer\"
fi
exec \"$@\"
";

fn site() -> Site {
    let site = Site::new();
    site.here.file("gate", DROPS);
    site
}

fn is_cut(site: &Site) -> bool {
    site.here.path("gate.cut").is_dir()
}

/// Directories of the requests that the host knows.
fn requests(site: &Site) -> Vec<std::path::PathBuf> {
    let dir = site.there.home().join(".cache/swarm/requests");
    fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

#[test]
fn a_worker_is_spawned_once_although_the_answer_was_lost() {
    let site = site();
    let said = site.on_box(&["spawn", "--name", "w", "--", "sh", "-c", "echo begun; exec sleep 600"]);
    assert!(is_cut(&site) && said.code == Some(0), "{said:?}");
    assert!(said.out.starts_with("spawned w (pid: ") && said.out.lines().count() == 1, "{said:?}");
    assert!(said.err.contains("box is out of reach") && said.err.contains("box answers again"), "{said:?}");
    assert_eq!(site.there.names(), ["w"]);
    assert_eq!(requests(&site).len(), 1);
    // Another command is another request.
    site.on_box(&["spawn", "--name", "w", "--", "true"]).refused(1, "worker 'w' already exists");
    assert_eq!(requests(&site).len(), 2);
}

#[test]
fn a_text_is_typed_once_although_the_answer_was_lost() {
    let site = site();
    site.there.spawn("w", &["--tmux"], &["cat"]);
    let said = site.on_box(&["send", "w", "hello there"]);
    assert!(is_cut(&site) && said.code == Some(0), "{said:?}");
    site.on_box(&["send", "w", "the last one"]).ok();
    let log = || site.there.swarm(&["logs", "w"]).out;
    wait_until("it is typed", SOON, || log().matches("the last one").count() == 2);
    // Once by the terminal, and once by the program.
    assert_eq!(log().matches("hello there").count(), 2, "{}", log());
}

/// Makes a repository on the host whose worktrees are complete once there is a file `hook.go`; then `hook.begun` is there.
fn slow(site: &Site) {
    let repo = site.there.repo_named("home/repo");
    let hook = site.there.file("hook", "touch \"$0.begun\"; until [ -e \"$0.go\" ]; do sleep 0.01; done\n");
    set(&site.there, &repo, &format!("[worktree]\npost_create = 'sh {hook}'\n"));
    site.there.trust(&repo);
}

#[test]
fn a_request_whose_process_was_killed_says_so() {
    let site = Site::new();
    slow(&site);
    let words = ["-C", "repo", "spawn", "--name", "w", "--worktree", "--", "true"];
    let mut going = Going::on_box(&site, &words);
    wait_until("it is at work", SOON, || site.there.path("hook.begun").exists());
    site.cut();
    going.says("box is out of reach");
    let keepers = || -> Vec<i32> {
        let is_keeper = |pid: &i32| proc::words(*pid).get(1).is_some_and(|verb| verb == "__keep");
        site.there.processes().into_iter().filter(is_keeper).collect()
    };
    assert_eq!(keepers().len(), 1);
    keepers().into_iter().for_each(proc::kill);
    wait_until("it is gone", SOON, || keepers().is_empty());
    site.open();
    assert_eq!(going.code(), Some(255));
    let cause = "swarm: error: 'spawn' was begun on box, and its end is not known: its process there was killed";
    assert!(going.err().contains(cause), "{}", going.err());
    site.there.file("hook.go", "");
}

#[test]
fn a_verb_goes_on_without_its_connection_and_its_answer_is_kept() {
    let site = Site::new();
    slow(&site);
    let words = ["-C", "repo", "spawn", "--name", "w", "--worktree", "--", "sleep", "600"];
    let mut going = Going::on_box(&site, &words);
    wait_until("it is at work", SOON, || site.there.path("hook.begun").exists());
    site.cut();
    going.says("box is out of reach");
    site.there.file("hook.go", "");
    wait_until("it has ended there", SOON, || requests(&site).iter().any(|dir| dir.join("end").exists()));
    site.open();
    assert_eq!(going.code(), Some(0));
    assert!(going.out().starts_with("spawned w (pid: "), "{}", going.out());
    assert_eq!(site.there.names(), ["w"]);
}

/// Way to a host whose first connection is to a machine in an earlier boot, and is cut before its answer.
const RESTARTS: &str = "\
if mkdir \"$0.cut\" 2>/dev/null; then
    echo 'swarm-stdio {\"protocol\":2,\"min\":1,\"version\":\"0.1.0\",\"boot\":\"an earlier one\"}'
    exec head -n 1 >\"$0.cut/asked\"
fi
exec \"$@\"
";

/// Way to a host that drops the first three connections as soon as the far end answers, before it hears anything.
const ENDS: &str = "\
for n in 1 2 3; do
    if mkdir \"$0.cut$n\" 2>/dev/null; then
        \"$@\" </dev/null | head -n 1
        exit
    fi
done
exec \"$@\"
";

#[test]
fn a_request_of_an_earlier_boot_is_not_executed_again() {
    let site = Site::new();
    site.here.file("gate", RESTARTS);
    let said = site.on_box(&["spawn", "--name", "w", "--", "true"]);
    let cause =
        "swarm: error: box was restarted, or is another machine now; it is not known whether 'spawn' was executed";
    assert!(said.code == Some(255) && said.err.contains(cause), "{said:?}");
    assert!(fs::read_to_string(site.here.path("gate.cut/asked")).expect("asked").contains("an earlier one"));
    assert_eq!((site.there.names().len(), requests(&site).len()), (0, 0));
    // The next command is another request.
    site.on_box(&["spawn", "--name", "w", "--", "true"]).ok();
}

#[test]
fn a_host_that_answers_and_ends_the_connection_each_time_is_asked_after_growing_pauses_and_told_once() {
    let site = Site::new();
    site.here.file("gate", ENDS);
    site.there.spawn("w", &[], &["true"]);
    let said = site.on_box(&["wait", "w"]);
    assert!(site.here.path("gate.cut3").is_dir() && said.code == Some(0), "{said:?}");
    for note in ["box is out of reach", "box answers again", "box answers, and then ends the connection"] {
        assert_eq!(said.err.matches(note).count(), 1, "{note}: {said:?}");
    }
}

#[test]
fn a_request_whose_note_is_gone_is_not_executed_once_more() {
    let site = Site::new();
    slow(&site);
    let words = ["-C", "repo", "spawn", "--name", "w", "--worktree", "--", "sleep", "600"];
    let mut going = Going::on_box(&site, &words);
    wait_until("it is at work", SOON, || site.there.path("hook.begun").exists());
    site.cut();
    going.says("box is out of reach");
    site.there.file("hook.go", "");
    wait_until("it has ended there", SOON, || requests(&site).iter().any(|dir| dir.join("end").exists()));
    // Its time is over, there are too many others, or somebody has emptied the directory.
    requests(&site).iter().for_each(|dir| fs::remove_dir_all(dir).expect("removed"));
    site.open();
    assert_eq!(going.code(), Some(255));
    let cause = "box knows nothing of 'spawn' any more; it is not known whether it was executed";
    assert!(going.err().contains(cause), "{}", going.err());
    assert_eq!((site.there.names(), requests(&site).len()), (vec!["w".to_owned()], 0));
}
