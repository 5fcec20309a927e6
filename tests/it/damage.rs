//! A registry that is damaged, odd or missing is reported, moved aside and rebuilt, and never costs a worker.

use std::os::unix::fs::symlink;
use std::time::Duration;

use crate::common::{Rig, Said, proc, quick, skipped, timed};

const ROW: &str =
    r#"{"name":"good","status":"stopped","cmd":["true"],"started":"2020-01-01T00:00:00.000001","cwd":"/"}"#;

#[test]
fn a_damaged_file_is_quarantined_and_rebuilt() {
    // With the original, nothing can be spawned until a user repairs the file.
    let rig = Rig::new();
    rig.spawn("keep", &["--env", "A=b", "--tag", "t"], &["sleep", "600"]);
    let row = rig.rows()[0].clone();
    let pid = rig.pid("keep");
    let whole = std::fs::read(rig.state()).expect("there");
    let deep = format!("{{\"workers\":{}", "[".repeat(300_000));
    let kinds: [(&str, &[u8]); 11] = [
        ("torn", &whole[..whole.len() / 2]),
        ("empty", b""),
        ("blank", b" \n"),
        ("binary", b"\x00\x01\xff\xfe{\"workers\":[]}"),
        ("zeros", &[0; 4096]),
        ("list", b"[]"),
        ("text", b"\"x\""),
        ("no workers", b"{}"),
        ("workers no list", b"{\"workers\":{}}"),
        ("two files", b"{\"workers\":[]}{\"workers\":[]}"),
        ("deep", deep.as_bytes()),
    ];
    for (number, (kind, bytes)) in kinds.into_iter().enumerate() {
        std::fs::write(rig.root().join("new"), bytes).expect("written");
        std::fs::rename(rig.root().join("new"), rig.state()).expect("renamed");
        let said = rig.swarm(&["ls", "--format", "names"]);
        assert_eq!((said.out.as_str(), said.code), ("keep\n", Some(0)), "{kind}: {said:?}");
        assert!(
            said.err.starts_with("swarm: warning: corrupt state file") && said.err.lines().count() == 1,
            "{kind}: {said:?}"
        );
        assert_eq!(std::fs::read(rig.state()).expect("there"), bytes, "{kind}: a reader wrote");
        let aside =
            if number == 0 { "state.json.corrupted".to_owned() } else { format!("state.json.corrupted.{number}") };
        assert_eq!(std::fs::read(rig.root().join(&aside)).expect(&aside), bytes, "{kind}");
        // A second read makes no second copy.
        rig.swarm(&["ls"]);
        assert!(!rig.root().join(format!("state.json.corrupted.{}", number + 1)).exists(), "{kind}");
        let name = format!("w{number}");
        let said = rig.swarm(&["spawn", "--name", &name, "--", "true"]);
        assert_eq!(said.code, Some(0), "{kind}: {said:?}");
        assert_eq!(rig.rows()[0], row, "{kind}: the row was not rebuilt unchanged");
        rig.wait(&name);
        rig.swarm(&["clean", &name]).is(0, &format!("cleaned {name}\n"), "");
        assert_eq!(rig.pid("keep"), pid, "{kind}");
    }
}

#[test]
fn kill_all_and_clean_all_lose_nothing_to_damage() {
    let rig = Rig::new();
    rig.spawn("up", &[], &["sleep", "600"]);
    rig.spawn("down", &[], &["true"]);
    rig.wait("down");
    rig.put_state("{\"workers\": [");
    let said = rig.swarm(&["clean", "--all"]);
    assert_eq!((said.out.as_str(), said.code), ("cleaned down\n", Some(0)), "{said:?}");
    rig.put_state("");
    let said = rig.swarm(&["kill", "--all"]);
    assert_eq!((said.out.as_str(), said.code), ("killed up\n", Some(0)), "{said:?}");
    assert_eq!(rig.names(), ["up"]);
}

#[test]
fn a_registry_that_is_not_a_regular_file_is_named_and_left_alone() {
    let rig = Rig::new();
    std::fs::create_dir_all(rig.root()).expect("made");
    let state = rig.root().canonicalize().expect("there").join("state.json");
    let refuses = |what: &str| {
        for words in [
            &["ls"][..],
            &["status", "x"],
            &["kill", "--all"],
            &["clean", "--all"],
            &["spawn", "--name", "x", "--", "touch", "ran"],
        ] {
            let cause = format!("{} is {what}, not a regular file", state.display());
            quick(&format!("{what} {words:?}"), Duration::from_secs(5), || {
                timed(|| {
                    let said = rig.swarm(words);
                    assert!(
                        said.err.starts_with("swarm: error: ") && said.err.contains(&cause) && said.code == Some(1),
                        "{words:?}: {said:?}"
                    );
                })
            });
        }
        assert!(!rig.cwd().join("ran").exists());
        assert!(
            std::fs::read_dir(rig.root().join("w")).map_or(0, Iterator::count) == 0,
            "records of a refused start stay"
        );
    };
    std::fs::create_dir(&state).expect("made");
    refuses("a directory");
    std::fs::remove_dir(&state).expect("removed");
    symlink("nowhere", &state).expect("linked");
    refuses("a symbolic link");
    std::fs::remove_file(&state).expect("removed");
    nix::unistd::mkfifo(&state, nix::sys::stat::Mode::S_IRWXU).expect("made");
    refuses("a special file");
    std::fs::remove_file(&state).expect("removed");
    rig.spawn("x", &[], &["true"]);
}

#[track_caller]
fn refused(said: Said, cause: &str) {
    assert!(said.err.starts_with("swarm: error: ") && said.err.contains(cause) && said.code == Some(1), "{said:?}");
}

#[test]
fn a_file_of_a_hundred_megabytes_is_refused() {
    let rig = Rig::new();
    rig.put_state("{\"workers\":[]}");
    std::fs::OpenOptions::new().write(true).open(rig.state()).and_then(|file| file.set_len(100 << 20)).expect("grown");
    refused(rig.swarm(&["ls"]), "is larger than the limit of");
    refused(rig.swarm(&["spawn", "--name", "x", "--", "touch", "ran"]), "is larger than the limit of");
    assert!(!rig.cwd().join("ran").exists());
    assert_eq!(std::fs::metadata(rig.state()).expect("there").len(), 100 << 20);
}

#[test]
fn a_newer_registry_is_read_and_not_written() {
    let rig = Rig::new();
    let text = format!("{{\"schema_version\":2,\"workers\":[{ROW}]}}");
    rig.put_state(&text);
    assert_eq!(rig.names(), ["good"]);
    for words in [
        &["spawn", "--name", "x", "--", "touch", "ran"][..],
        &["kill", "good"],
        &["clean", "good"],
        &["respawn", "good"],
    ] {
        refused(rig.swarm(words), "was written by a newer swarm (schema version 2)");
    }
    assert_eq!(std::fs::read_to_string(rig.state()).expect("there"), text);
    assert!(!rig.cwd().join("ran").exists());
}

#[test]
fn a_bad_row_is_named_and_hides_no_other() {
    let rig = Rig::new();
    let metadata = format!("{}{}", "[".repeat(1000), "]".repeat(1000));
    let bad = [
        r#"{"status":"stopped","cmd":["true"],"started":"2020-01-01T00:00:00.000001","cwd":"/"}"#.to_owned(),
        r#"{"name":7}"#.to_owned(),
        "7".to_owned(),
        "null".to_owned(),
        r#"{"name":"typed","status":"stopped","cmd":"true","started":"x","cwd":"/"}"#.to_owned(),
        r#"{"name":"word","status":"asleep","cmd":["true"],"started":"x","cwd":"/"}"#.to_owned(),
        format!(
            "{{\"name\":\"deep\",\"status\":\"stopped\",\"cmd\":[],\"started\":\"x\",\"cwd\":\"/\",\"metadata\":{{\"a\":{metadata}}}}}"
        ),
    ];
    rig.put_state(format!("{{\"workers\":[{},{ROW}]}}", bad.join(",")));
    let said = rig.swarm(&["ls", "--format", "names"]);
    assert_eq!((said.out.as_str(), said.code), ("good\n", Some(1)), "{said:?}");
    assert_eq!(said.err.lines().count(), bad.len(), "{said:?}");
    assert!(
        ["row 1", "typed", "word", "row 7"].iter().all(|name| said.err.contains(&format!("entry {name} of "))),
        "{said:?}"
    );
    refused(rig.swarm(&["status", "typed"]), "cannot read the registry entry of worker 'typed'");
    rig.spawn("x", &[], &["true"]);
    rig.wait("x");
    let text = std::fs::read_to_string(rig.state()).expect("there");
    assert!(bad.iter().all(|row| text.contains(row)), "{text}");
    let listed = rig.swarm(&["ls", "--format", "names"]);
    assert_eq!(listed.out, "good\nx\n");
    assert!(!rig.root().join("state.json.corrupted").exists());
}

#[test]
fn odd_values_in_valid_rows_are_tolerated() {
    let rig = Rig::new();
    let row = |name: &str, pid: &str, started: &str| {
        format!(r#"{{"name":"{name}","status":"running","cmd":[],"started":"{started}","cwd":"","pid":{pid}}}"#)
    };
    let rows = [
        row("huge", "9223372036854775807", "2020-01-01T00:00:00.000001"),
        row("big", "4294967297", "2020-01-01T00:00:00.000001"),
        row("time", "99999", "yesterday"),
        row("future", "null", "9999-12-31T23:59:59.999999"),
        row("twin", "null", "2020-01-01T00:00:00.000001"),
        row("twin", "null", "2020-01-01T00:00:00.000001"),
        row("", "null", "2020-01-01T00:00:00.000001"),
    ];
    rig.put_state(format!("{{\"workers\":[{}]}}", rows.join(",")));
    assert_eq!(rig.names(), ["huge", "big", "time", "future", "twin", "twin", ""]);
    assert_eq!(rig.swarm(&["ls", "--status", "running"]).ok(), "");
    for format in [&["ls"][..], &["ls", "-l"], &["ls", "--json"], &["ls", "--format", "json"]] {
        assert_eq!(rig.swarm(format).code, Some(0), "{format:?}");
    }
    refused(rig.swarm(&["spawn", "--name", "twin", "--", "true"]), "worker 'twin' already exists");
    for name in ["huge", "big", "time", "future"] {
        rig.swarm(&["kill", name]).is(0, &format!("killed {name}\n"), "");
        rig.swarm(&["clean", name]).is(0, &format!("cleaned {name}\n"), "");
    }
    rig.swarm(&["clean", "twin"]).is(0, "cleaned twin\n", "");
    rig.swarm(&["clean", ""]).is(0, "cleaned \n", "");
    assert_eq!(rig.names(), ["twin"]);
}

#[test]
fn pids_that_address_many_processes_are_never_signalled() {
    let rig = Rig::new();
    // In a private namespace, so that a mistake ends no process outside of it.
    let rows: Vec<String> = [("zero", 0), ("one", 1), ("minus", -1), ("group", -2)]
        .iter()
        .map(|(name, pid)| format!(r#"{{"name":"{name}","status":"running","cmd":["x"],"started":"2999-01-01T00:00:00.000001","cwd":"/","pid":{pid}}}"#))
        .collect();
    rig.put_state(format!("{{\"workers\":[{}]}}", rows.join(",")));
    let script = "sleep 600 & other=$!; \"$0\" ls --status running; \"$0\" spawn --name real -- sleep 600 > /dev/null
        before=$(\"$0\" supervisor status); for name in zero one minus group; do \"$0\" kill $name; done
        [ \"$before\" = \"$(\"$0\" supervisor status)\" ] && kill -0 $other && \"$0\" status real > /dev/null && echo all alive
        \"$0\" clean --all";
    let mut command = rig.program("unshare");
    command.args(["-pf", "--kill-child", "--mount-proc", "sh", "-c", script]).arg(env!("CARGO_BIN_EXE_swarm"));
    let said = crate::common::run(command);
    if said.err.starts_with("unshare: ") {
        // Without the right to create a namespace this cannot be tested safely.
        return skipped(&format!("pids that mean everybody: {}", said.err.trim_end()));
    }
    let killed = "killed zero\nkilled one\nkilled minus\nkilled group\nall alive\n";
    said.is(0, &format!("{killed}cleaned zero\ncleaned one\ncleaned minus\ncleaned group\n"), "");
}

#[test]
fn a_worker_with_a_damaged_lease_is_ended_and_never_started_beside() {
    let rig = Rig::new();
    for (name, text) in [("empty", ""), ("garbage", "{ torn")] {
        let damage = |generation: u32| {
            std::fs::write(rig.root().join(format!("w/{name}.{generation}/lease")), text).expect("written");
            rig.swarm(&["supervisor", "restart"]);
        };
        rig.spawn(name, &["--restart", "always"], &["sleep", "600"]);
        let first = rig.pid(name);
        damage(1);
        assert_eq!(rig.pid(name), first, "{name}: it is found by its processes");
        let said = rig.swarm(&["respawn", name]);
        assert_eq!(said.code, Some(0), "{name}: {said:?}");
        assert!(!proc::alive(first), "{name}: a second instance was started beside it");
        let second = rig.pid(name);
        damage(2);
        rig.swarm(&["kill", name]).is(0, &format!("killed {name}\n"), "");
        assert!(!proc::alive(second), "{name}: the kill did nothing");
    }
}

#[test]
fn a_pipe_in_place_of_a_lease_hides_no_other_worker() {
    let rig = Rig::new();
    rig.spawn("a", &[], &["sleep", "600"]);
    rig.spawn("b", &[], &["sleep", "600"]);
    let lease = rig.root().join("w/a.1/lease");
    std::fs::rename(&lease, rig.root().join("aside")).expect("moved");
    nix::unistd::mkfifo(&lease, nix::sys::stat::Mode::S_IRWXU).expect("made");
    let said = rig.swarm(&["ls", "--format", "names"]);
    assert_eq!((said.out.as_str(), said.code), ("a\nb\n", Some(0)), "{said:?}");
    let said = rig.swarm(&["kill", "a"]);
    assert!(said.code != Some(0) && said.err.contains("w/a.1/lease: not a regular file"), "{said:?}");
    rig.swarm(&["kill", "b"]).is(0, "killed b\n", "");
    std::fs::rename(rig.root().join("aside"), &lease).expect("moved back");
    rig.swarm(&["kill", "a"]).is(0, "killed a\n", "");
}
