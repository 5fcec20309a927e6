//! Hosts where something is wrong: a line that is cut early, another version, another clock, hostile answers, a supervisor that
//! was killed, a program that was replaced. The far end is a script where a real one cannot be had.

use std::fs;

use crate::common::Said;
use crate::crash::both;
use crate::elsewhere::{has_id, move_away};
use crate::hosts::Site;
use crate::hosts_cut::Going;
use crate::keepers::{executable, newer};

const HELLO: &str = r#"swarm-stdio {"protocol":2,"min":1,"version":"0.1.0"}"#;

/// Makes a site whose host is this script. It may use `$HELLO`.
fn scripted(script: &str) -> Site {
    let site = Site::new();
    site.here.file("gate", &format!("HELLO='{HELLO}'\n{script}\n"));
    site
}

/// Asserts that the host counts as one that does not answer, for this reason, in few and plain words.
#[track_caller]
fn is_away(said: &Said, cause: &str) {
    assert!(said.code == Some(255) && said.out.is_empty(), "{said:?}");
    assert!(said.err.starts_with("swarm: error: ") && said.err.contains(cause), "{said:?}");
    assert!(said.err.len() < 3000 && !said.err.contains('\u{1b}'), "{said:?}");
}

#[test]
fn nothing_is_sent_over_a_line_that_is_cut_before_its_hello_or_within_it() {
    for beginning in ["", "Welcome", "swarm-stdio {\"proto", "swarm-stdio {\"protocol\":2}"] {
        let site = scripted(&format!("printf '%s' '{beginning}'\nexec >&-\ncat >\"$0.got\""));
        for words in [&["spawn", "--name", "w", "--", "true"][..], &["ls"]] {
            is_away(&site.on_box(words), "no swarm answers on box: ");
            assert_eq!(fs::read_to_string(site.here.path("gate.got")).expect("read"), "", "{beginning}");
        }
    }
}

#[test]
fn what_a_hostile_far_end_sends_is_limited_and_harmless() {
    let red = "\u{1b}[31m";
    for (script, cause) in [
        ("exec yes noise", "and no hello"),
        ("exec cat /dev/zero", "and no hello"),
        ("printf '\\033[31mWelcome\\n'; exit 1", "it printed '"),
        ("echo \"$HELLO\"; exec cat /dev/zero", "the connection to box was cut"),
        ("echo \"$HELLO\"; printf '{\"mark\":1}\\nnonsense\\n[]\\n\\n{\"later\":{}}\\n'; exit 0", "was cut"),
        (
            "echo 'swarm-stdio {\"protocol\":9,\"min\":9,\"version\":\"\\u001b[31m9\"}'; exec cat",
            "speaks protocol 9 to 9",
        ),
    ] {
        is_away(&scripted(script).on_box(&["ls"]), cause);
    }
    let site = scripted("echo \"$HELLO\"; echo '{\"refused\":\"\\u001b[31mno\"}'; exec cat");
    let said = site.on_box(&["ls"]);
    assert!(said.code == Some(1) && said.err.contains("box: ") && !said.err.contains(red), "{said:?}");
    let odd = r#"swarm-stdio {"protocol":2,"min":1,"version":"\u001b[31m","machine":"\u001b[31m"}"#;
    let site = scripted(&format!("echo '{odd}'; read ask; exit 0"));
    for words in [&["hosts"][..], &["hosts", "check", "box"]] {
        let said = site.here.swarm(words);
        assert!(!said.out.contains(red) && !said.err.contains(red), "{said:?}");
    }
    // It answers for another request than was asked, and names files of this machine.
    let answers = r#"{"answer":{"id":7,"answer":{"path":"../../etc/passwd"}}}\n{"out":"text\\n"}\n{"exit":3}\n"#;
    let said = scripted(&format!("echo \"$HELLO\"; printf '{answers}'; exec cat")).on_box(&["ls"]);
    assert_eq!((said.code, said.out.as_str()), (Some(3), "text\n"), "{said:?}");
}

#[test]
fn a_program_that_cannot_be_used_there_is_named_with_what_to_do() {
    for (script, cause, hint) in [
        (
            "echo 'swarm-stdio {\"protocol\":9,\"min\":9,\"version\":\"9.0.0\"}'; exec cat",
            "swarm 9.0.0 on box speaks protocol 9 to 9, this one 1 to 2",
            "swarm hosts install box",
        ),
        ("echo 'sh: 1: swarm: Exec format error' >&2; exit 126", "cannot execute ", "swarm hosts install box"),
        ("echo 'sh: 1: swarm: Permission denied' >&2; exit 126", "cannot execute ", "swarm hosts install box"),
        ("echo 'sh: 1: swarm: not found' >&2; exit 127", "cannot execute ", "swarm hosts install box"),
        ("echo \"error: unrecognized subcommand '__stdio'\" >&2; exit 2", "too old", "swarm hosts install box"),
    ] {
        let site = scripted(script);
        let said = site.on_box(&["spawn", "--name", "w", "--", "true"]);
        is_away(&said, cause);
        assert!(said.err.contains(hint), "{said:?}");
        assert!(!site.there.home().join(".cache").exists() && site.there.names().is_empty());
    }
}

#[test]
fn a_clock_that_is_wrong_there_is_told_once() {
    let ahead = "now=$(( ($(date +%s) + 3 * 3600) * 1000 ))\n\
                 echo 'swarm-stdio {\"protocol\":2,\"min\":1,\"version\":\"0.1.0\",\"wall_ms\":'$now'}'\n\
                 read ask\necho '{\"exit\":0}'";
    let site = scripted(ahead);
    let said = site.here.swarm(&["hosts", "check", "box"]);
    assert_eq!(said.code, Some(1), "{said:?}");
    let told: Vec<&str> =
        said.out.lines().filter(|line| line.contains("its clock differs from this one by 1")).collect();
    assert!(told.len() == 1 && told[0].ends_with(" seconds"), "{said:?}");
    // A verb does not depend on it.
    assert_eq!(site.on_box(&["ls"]).ok(), "");
}

#[test]
fn a_worker_outlives_the_supervisor_there_and_the_next_verb_starts_another_one() {
    let site = Site::new();
    site.on_box(&["spawn", "--name", "w", "--", "sleep", "600"]).ok();
    let pid = site.there.pid("w");
    site.there.kill_keepers();
    assert!(site.on_box(&["ls"]).out.contains("w     running"));
    site.on_box(&["spawn", "--name", "v", "--", "sleep", "600"]).ok();
    assert_eq!(
        (site.there.pid("w"), site.there.fine("w").as_str(), site.there.fine("v").as_str()),
        (pid, "running", "running")
    );
}

#[test]
fn the_program_there_is_replaced_while_workers_run() {
    let site = Site::new();
    site.on_box(&["spawn", "--name", "w", "--", "sleep", "600"]).ok();
    let (pid, old) = (site.there.pid("w"), env!("CARGO_BIN_EXE_swarm"));
    let new = newer(&site.there, "new");
    let config = site.here.home().join(".config/swarm/config.toml");
    let text = fs::read_to_string(&config).expect("there");
    let spawn = |name: &str| site.on_box(&["spawn", "--name", name, "--", "sleep", "600"]).ok();
    fs::write(&config, text.replace(old, &new.to_string_lossy())).expect("written");
    spawn("a");
    assert_eq!(executable(both(&site.there).0), new);
    // Another person still uses the older one. It does not take the supervisor back.
    fs::write(&config, &text).expect("written");
    spawn("b");
    assert_eq!(executable(both(&site.there).0), new);
    fs::write(&config, text.replace(old, &new.to_string_lossy())).expect("written");
    spawn("c");
    assert_eq!((executable(both(&site.there).0), site.there.pid("w")), (new, pid));
    assert!(["w", "a", "b", "c"].iter().all(|name| site.there.fine(name) == "running"));
}

#[test]
fn a_home_that_another_machine_serves_can_be_read_and_nothing_is_started_there() {
    if !has_id() {
        return;
    }
    let site = Site::new();
    site.on_box(&["spawn", "--name", "w", "--", "sleep", "600"]).ok();
    move_away(&site.there);
    assert!(site.on_box(&["ls", "-l"]).out.contains("elsewhere: far"));
    let serves = format!("the supervisor of machine 'far' serves {}", site.there.root().display());
    site.on_box(&["spawn", "--name", "v", "--", "true"]).refused(1, &serves);
    site.on_box(&["kill", "w"]).refused(1, "worker 'w' is on machine 'far'");
    assert_eq!(site.there.names(), ["w"]);
}

#[test]
fn a_verb_that_cannot_go_on_after_a_cut_says_so() {
    let site = Site::new();
    site.there.spawn("w", &["--tag", "t"], &["sh", "-c", "echo begun; exec sleep 600"]);
    let mut going = Going::on_box(&site, &["logs", "-f", "--tag", "t"]);
    going.shows("begun");
    site.cut();
    assert_eq!(going.code(), Some(255));
    let cause = "swarm: error: the connection to box was cut; 'logs' cannot go on where it was\n\
                 swarm: hint: run it again; it begins anew\n";
    assert!(going.err().ends_with(cause), "{}", going.err());
    // Its standard input is read once.
    let site = scripted("echo \"$HELLO\"; read ask; exit 0");
    let mut command = site.here.command(&["--host", "box", "session", "write"]);
    let input = site.here.file("input", "{}");
    command.stdin(fs::File::open(input).expect("there"));
    let said = crate::common::run(command);
    is_away(&said, "it is not known whether 'session' was executed, and its standard input cannot be sent again");
}
