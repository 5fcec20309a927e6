//! Callers that the supervisor cannot trust to be where it is: they start nothing, and choose no program for its guard.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

use crate::common::{Rig, SOON, proc, run, skipped, wait_until};
use crate::crash::both;

/// Sends a request as a client does. The first argument is the route, the second the build, the third the body.
const POST: &str = r#"
import os, socket, sys
def post(s):
    route, build, body = sys.argv[1:]
    head = f"POST {route} HTTP/1.0\r\nHost: x\r\nx-swarm-build: {build}\r\nContent-Length: {len(body)}\r\n\r\n"
    s.sendall((head + body).encode())
    print(b"".join(iter(lambda: s.recv(4096), b"")).decode())
s = socket.socket(socket.AF_UNIX)
place = os.environ["SWARM_DIR"] + "/supervisor.sock"
"#;

#[test]
fn the_guard_executes_only_what_the_caller_executes_itself() {
    let rig = Rig::new();
    rig.spawn("x", &[], &["sleep", "600"]);
    let keepers = both(&rig);
    let (script, ran) = (rig.path("evil.sh"), rig.path("ran"));
    std::fs::write(&script, format!("#!/bin/sh\ntouch {}\n", ran.display())).expect("written");
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).expect("set");
    let meta = std::fs::metadata(&script).expect("there");
    let build = format!("9.9.9 {}{:09}", meta.mtime(), meta.mtime_nsec());
    let body = serde_json::json!({"program": script, "again": true}).to_string();
    let post = format!("{POST}s.connect(place); post(s)");
    let asks = |before: &[&str]| {
        let words = [before, &["env", "python3", "-c", &post, "/v1/replace", &build, &body]].concat();
        let mut command = rig.program(words[0]);
        command.args(&words[1..]);
        run(command)
    };
    let here = asks(&[]).ok();
    assert!(here.starts_with("HTTP/1.0 403") && here.contains("is not the program that asks"), "{here}");
    let elsewhere = asks(&["unshare", "--mount", "--"]);
    if elsewhere.code == Some(0) {
        let said = &elsewhere.out;
        assert!(said.starts_with("HTTP/1.0 403") && said.contains("is not where its own program is"), "{said}");
    } else {
        skipped("programs of callers in other namespaces: no namespace can be made here");
    }
    // The next request would wait for the next supervisor.
    rig.swarm(&["kill", "x"]).is(0, "killed x\n", "");
    assert_eq!((both(&rig), ran.exists()), (keepers, false));
}

#[test]
fn nothing_starts_for_a_connection_whose_process_has_ended() {
    let rig = Rig::new();
    rig.spawn("x", &[], &["sleep", "600"]);
    let caller = serde_json::json!(
        {"request": "r", "cwd": "/", "environment": [], "umask": 18, "rlimits": [], "nice": 0, "namespaces": null}
    );
    let body =
        serde_json::json!({"caller": caller, "name": "x", "clean_first": false, "force_dirty": false}).to_string();
    let cause = "the supervisor cannot examine the process that connected";
    for (connects, refused) in [
        ("s.connect(place)", false),
        ("if os.fork() == 0: s.connect(place); os._exit(0)\nos.wait()", true),
        // A process that is not reaped has no namespaces any more.
        (
            "pid = os.fork()\nif pid == 0: s.connect(place); os._exit(0)\nos.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)",
            true,
        ),
    ] {
        let mut command = rig.program("python3");
        command.args(["-c", &format!("{POST}\n{connects}\npost(s)"), "/v1/respawn", "0.0.1 1", &body]);
        let said = run(command).ok();
        assert_eq!(said.contains(cause), refused, "{connects}: {said}");
    }
}

/// The namespaces are those of the supervisor, and the files are others.
#[test]
fn nothing_starts_for_a_caller_with_another_root_directory() {
    let rig = Rig::new();
    rig.spawn("x", &[], &["sleep", "600"]);
    let caller = serde_json::json!(
        {"request": "r", "cwd": "/", "environment": [], "umask": 18, "rlimits": [], "nice": 0, "namespaces": null}
    );
    let body =
        serde_json::json!({"caller": caller, "name": "x", "clean_first": false, "force_dirty": false}).to_string();
    let moves = "try: os.chroot(os.environ['SWARM_DIR'])\nexcept PermissionError: sys.exit(9)";
    let mut command = rig.program("python3");
    command.args([
        "-c",
        &format!("{POST}\n{moves}\ns.connect('/supervisor.sock')\npost(s)"),
        "/v1/respawn",
        "0.0.1 1",
        &body,
    ]);
    let said = run(command);
    if said.code == Some(9) {
        skipped("callers with another root directory: only root can make one");
        return;
    }
    let cause = "this command runs in another root directory than the supervisor, where its work would start";
    let said = said.ok();
    assert!(said.contains(cause), "{said}");
    assert_eq!(rig.view("x")["generation"], 1);
}

/// Landlock and filters of system calls need `no_new_privs`, which the kernel shows.
#[test]
fn nothing_starts_for_a_caller_with_more_restraints_than_the_supervisor() {
    let has_own = std::fs::read_to_string("/proc/self/status").expect("read").contains("NoNewPrivs:\t1");
    if has_own {
        skipped("callers in a sandbox: this process has no_new_privs itself");
        return;
    }
    let held = |rig: &Rig, words: &[&str]| {
        let mut command = rig.program("setpriv");
        command.args(["--no-new-privs", "--", env!("CARGO_BIN_EXE_swarm")]).args(words);
        run(command)
    };
    let rig = Rig::new();
    rig.spawn("x", &[], &["sleep", "600"]);
    let keepers = both(&rig);
    let cause = "this command is restrained (no_new_privs), and the supervisor, where its work would start, is not";
    held(&rig, &["spawn", "--name", "y", "--", "true"]).refused(1, cause);
    held(&rig, &["respawn", "x"]).refused(1, cause);
    assert_eq!(rig.names(), ["x"]);
    let inside = format!("setpriv --no-new-privs -- {} spawn --name z -- true", env!("CARGO_BIN_EXE_swarm"));
    rig.spawn_sh("boxed", &[], &inside);
    rig.wait("boxed");
    assert!(rig.log("boxed", "stderr").contains(cause), "an agent's sandbox in a worker");
    held(&rig, &["kill", "x"]).is(0, "killed x\n", "");
    assert_eq!((both(&rig), rig.names()), (keepers, vec!["x".to_owned(), "boxed".to_owned()]));

    // A supervisor that has the restraint itself serves everybody.
    let rig = Rig::new();
    held(&rig, &["spawn", "--name", "x", "--", "true"]).ok();
    held(&rig, &["spawn", "--name", "y", "--", "true"]).ok();
    rig.spawn("z", &[], &["true"]);
    assert_eq!(rig.names(), ["x", "y", "z"]);
}

#[test]
fn no_process_agrees_that_may_be_below_a_worker_it_cannot_see() {
    let rig = Rig::new();
    let repo = rig.repo();
    std::fs::write(repo.join("swarm.toml"), "[merge]\nverify = \"touch pwned\"\n").expect("written");
    let bin = env!("CARGO_BIN_EXE_swarm");
    let script = format!(
        "cd '{}' || exit; unset SWARM_TOKEN SWARM_WORKER SWARM_SESSION SWARM_RECORDS
         for user in '' -r; do unshare $user -pf --kill-child --mount-proc true && break; done 2> /dev/null || {{ echo none; exit 0; }}
         unshare $user -pf --kill-child --mount-proc '{bin}' trust --yes
         unshare $user -pf --kill-child --mount-proc '{bin}' rules rm 1; exit 0",
        repo.display()
    );
    rig.spawn_sh("agent", &[], &script);
    rig.wait("agent");
    if rig.log("agent", "stdout") == "none\n" {
        return skipped("consent in another process namespace: none can be made here");
    }
    let said = rig.log("agent", "stderr");
    let apart = "swarm: error: a process in another process namespace than the supervisor";
    assert!(said.contains(&format!("{apart} cannot trust {}", repo.display())), "{said}");
    assert!(said.contains(&format!("{apart} cannot answer for a person")), "{said}");
    assert!(rig.swarm_in(&repo, &["trust", "--show"]).code == Some(1));
}

#[test]
fn no_supervisor_starts_beside_an_unsupervised_worker_that_it_cannot_see() {
    let rig = Rig::new();
    let namespace = std::fs::metadata("/proc/self/ns/pid").expect("readable").ino();
    rig.spawn("x", &["--restart", "always"], &["sleep", "600"]);
    let (pid, shim) = (rig.pid("x"), rig.shim("x"));
    rig.swarm(&["supervisor", "stop"]).ok();
    proc::kill(shim);
    wait_until("it is unsupervised", SOON, || rig.fine("x") == "unsupervised");
    let mut command = rig.program("unshare");
    command.args(["-pf", "--kill-child", "--mount-proc", env!("CARGO_BIN_EXE_swarm"), "supervisor", "start"]);
    let said = run(command);
    // Only the namespace of the machine itself surely exists as long as the boot.
    if said.err.starts_with("unshare: ") || namespace != 0xEFFF_FFFC {
        rig.swarm(&["kill", "x"]).ok();
        return skipped("unsupervised workers outside of a container: this is a container, or none can be made here");
    }
    assert!(said.code == Some(1) && said.err.contains("worker 'x' runs in another process namespace"), "{said:?}");
    assert!(proc::alive(pid));
    rig.swarm(&["kill", "x"]).is(0, "killed x\n", "");
    assert!(!proc::alive(pid));
}

#[test]
fn a_supervisor_in_another_time_namespace_knows_the_workers_and_is_understood() {
    let rig = Rig::new();
    rig.spawn_sh("x", &["--restart", "always"], "echo up >> ups; exec sleep 600");
    wait_until("it is up", SOON, || rig.cwd().join("ups").exists());
    let (pid, shim) = (rig.pid("x"), rig.shim("x"));
    rig.swarm(&["supervisor", "stop"]).ok();
    proc::kill(shim);
    wait_until("it is unsupervised", SOON, || rig.fine("x") == "unsupervised");
    let mut command = rig.program("unshare");
    command.args(["--time", "--boottime", "100000", "--fork", env!("CARGO_BIN_EXE_swarm"), "supervisor", "start"]);
    let said = run(command);
    if said.err.starts_with("unshare: ") {
        rig.swarm(&["kill", "x"]).ok();
        return skipped("supervisors in another time namespace: none can be made here");
    }
    said.ok();
    rig.spawn("y", &[], &["sleep", "600"]);
    assert_eq!((rig.fine("x").as_str(), rig.fine("y").as_str()), ("unsupervised", "running"));
    assert_eq!(std::fs::read_to_string(rig.cwd().join("ups")).expect("there"), "up\n", "it was started again");
    rig.swarm(&["kill", "x", "y"]).is(0, "killed x\nkilled y\n", "");
    assert!(!proc::alive(pid));
}
