//! Many connections to one supervisor: none of them keeps it from its work.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Stdio;

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

use crate::common::{Rig, SOON, run, wait_until};
use crate::crash::both;

/// Maximum size of the log.
const LOG_BYTES: u64 = 8 << 20;

fn connect(rig: &Rig) -> UnixStream {
    UnixStream::connect(rig.root().join("supervisor.sock")).expect("connected")
}

fn inode(path: &str) -> Option<u64> {
    std::fs::metadata(path).map(|meta| meta.ino()).ok()
}

fn supervisor_log(rig: &Rig) -> String {
    std::fs::read_to_string(rig.root().join("supervisor.log")).expect("there")
}

/// Starts a supervisor that may have 64 descriptors, and therefore 16 connections.
fn start_small(rig: &Rig) {
    let mut command = rig.program("sh");
    command.args(["-c", "ulimit -n 64; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_swarm"), "supervisor", "start"]);
    assert_eq!(run(command).code, Some(0));
}

/// Sends a request and returns the connection after the status, with that status.
fn ask(rig: &Rig, request: &str) -> (BufReader<UnixStream>, String) {
    let mut stream = connect(rig);
    stream.write_all(request.as_bytes()).expect("written");
    let mut reply = BufReader::new(stream);
    let mut status = String::new();
    reply.read_line(&mut status).expect("answered");
    (reply, status.split(' ').nth(1).unwrap_or_default().to_owned())
}

#[test]
fn streams_of_events_leave_places_for_other_requests() {
    let rig = Rig::new();
    start_small(&rig);
    assert_eq!(rig.swarm(&["spawn", "--name", "x", "--", "sleep", "600"]).code, Some(0));
    let events = "GET /v1/events HTTP/1.1\r\nhost: swarm\r\n\r\n";
    let (mut streams, mut refused) = (Vec::new(), None);
    while refused.is_none() {
        let (stream, status) = ask(&rig, events);
        if status == "200" { streams.push(stream) } else { refused = Some((stream, status)) }
    }
    let (mut refused, status) = refused.expect("one too many");
    let mut answer = String::new();
    refused.read_to_string(&mut answer).expect("readable");
    let text = answer.lines().last().unwrap_or_default();
    let cause = "all 12 connections that may wait for events are in use";
    assert_eq!((streams.len(), status.as_str(), text), (12, "429", cause));
    rig.swarm(&["kill", "x"]).is(0, "killed x\n", "");
    rig.swarm(&["supervisor", "stop"]).is(0, "supervisor stopped\n", "");
}

#[test]
fn a_stop_that_waited_for_too_long_is_not_carried_out() {
    let rig = Rig::new();
    rig.spawn("x", &[], &["sleep", "600"]);
    let keepers = both(&rig);
    for route in ["/v1/stop", "/v1/replace"] {
        // Sent right after the start of the machine.
        let (mut reply, status) = ask(&rig, &format!("POST {route} HTTP/1.0\r\nx-swarm-sent: 1\r\n\r\n"));
        let mut answer = String::new();
        reply.read_to_string(&mut answer).expect("readable");
        let cause = "the supervisor was busy for too long, and the request was not carried out";
        assert_eq!((status.as_str(), answer.lines().last()), ("408", Some(cause)), "{route}");
    }
    rig.swarm(&["kill", "x"]).is(0, "killed x\n", "");
    assert_eq!(both(&rig), keepers);
}

#[test]
fn connections_that_ask_nothing_do_not_keep_others_from_the_supervisor() {
    let rig = Rig::new();
    start_small(&rig);
    // What one supervisor writes during its life is bounded, not only what it finds at its start.
    let (log, keepers) = (rig.root().join("supervisor.log"), both(&rig));
    std::fs::OpenOptions::new().append(true).open(&log).expect("there").set_len(LOG_BYTES + 1).expect("enlarged");
    let idle: Vec<_> = (0..80).map(|_| connect(&rig)).collect();
    // The worker's caller has other limits, which is a warning.
    assert_eq!(rig.swarm(&["spawn", "--name", "x", "--", "sleep", "600"]).code, Some(0));
    rig.swarm(&["kill", "x"]).is(0, "killed x\n", "");
    let aside =
        String::from_utf8_lossy(&std::fs::read(rig.root().join("supervisor.log.1")).expect("moved")).into_owned();
    let line = aside.trim_start_matches('\0').to_owned() + &supervisor_log(&rig);
    assert!(line.contains("the oldest connection without a request was closed"), "{line}");
    let stderr = inode(&format!("/proc/{}/fd/2", keepers.0));
    assert_eq!((both(&rig), stderr), (keepers, inode(log.to_str().expect("text"))));
    assert!(std::fs::metadata(&log).expect("there").len() < LOG_BYTES);
    drop(idle);
}

/// A worker that cannot be examined for want of descriptors counts as alive. Taken for dead, it would be started again.
#[test]
fn nothing_starts_twice_for_want_of_descriptors() {
    const COUNT: usize = 40;
    let rig = Rig::new();
    start_small(&rig);
    let script = "echo started >> \"$0\"; exec sleep 600";
    let ledger = |at: usize| rig.path(&format!("ledger.{at}"));
    let start = |at: usize| {
        let (name, file) = (format!("w{at}"), ledger(at).display().to_string());
        let words = ["spawn", "--name", &name, "--restart", "always", "--", "sh", "-c", script, &file];
        rig.command(&words).stderr(Stdio::null()).stdout(Stdio::null()).spawn().expect("started")
    };
    let children: Vec<_> = (0..COUNT).map(start).collect();
    let codes: Vec<_> = children.into_iter().map(|mut child| child.wait().expect("ended").code()).collect();
    assert!(codes.contains(&Some(1)), "descriptors were left: {codes:?}");
    // Another supervisor examines all of them, again with too few descriptors.
    let supervisor = both(&rig).0;
    crate::common::proc::kill(supervisor);
    wait_until("another supervisor runs", SOON, || rig.keepers().0.is_some_and(|pid| pid != supervisor));
    rig.swarm(&["supervisor", "status"]);
    let starts = |at: usize| std::fs::read_to_string(ledger(at)).unwrap_or_default().lines().count();
    for (at, code) in codes.iter().enumerate() {
        assert!(
            starts(at) <= 1 && (*code != Some(0) || starts(at) == 1),
            "w{at}: {} starts, code {code:?}",
            starts(at)
        );
    }
}

/// Returns the descriptors of a process with what they refer to.
fn descriptors(pid: i32) -> Vec<(u64, PathBuf)> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("alive").flatten();
    let number = |name: std::ffi::OsString| name.to_str()?.parse().ok();
    entries.filter_map(|entry| Some((number(entry.file_name())?, std::fs::read_link(entry.path()).ok()?))).collect()
}

#[test]
fn a_supervisor_without_a_free_descriptor_says_so() {
    let rig = Rig::new();
    rig.spawn("x", &[], &["sleep", "600"]);
    let supervisor = both(&rig).0;
    let null = |(number, path): &(u64, PathBuf)| (path.as_os_str() == "/dev/null").then_some(*number);
    let limit = 1 + descriptors(supervisor).iter().filter_map(null).max().expect("a reserve");
    let pid = Pid::from_raw(supervisor);
    // The guard has left the hard limit as it was.
    let maximum = getrlimit(Resource::Nofile).maximum;
    let own = prlimit(pid, Resource::Nofile, Rlimit { current: Some(limit), maximum }).expect("limited");
    // Connections in use take the numbers that are free below the limit.
    let mut streams = Vec::new();
    let is_full = || descriptors(supervisor).iter().filter(|(number, _)| *number < limit).count() as u64 == limit;
    while !is_full() {
        let mut stream = connect(&rig);
        stream.write_all(b"GET /v1/events HTTP/1.0\r\n\r\n").expect("written");
        let mut status = String::new();
        BufReader::new(&stream).read_line(&mut status).expect("answered");
        if status.starts_with("HTTP/1.0 200") {
            streams.push(stream);
        }
    }
    let cause = "cannot talk to the supervisor: the supervisor has no descriptor left: Too many open \
                 files (os error 24)";
    rig.swarm(&["kill", "x"]).refused(1, cause);
    assert!(supervisor_log(&rig).contains("no descriptor is left for a connection"));
    prlimit(pid, Resource::Nofile, own).expect("reset");
    drop(streams);
    // With the next connection, the supervisor sets a descriptor aside again.
    rig.swarm(&["supervisor", "status"]).ok();
    let (mut last, mut looks) = (Vec::new(), 0);
    wait_until("the supervisor is at rest", SOON, || {
        let now = descriptors(supervisor);
        looks = if now == last { looks + 1 } else { 0 };
        last = now;
        looks == 20
    });
    // Two are enough for a connection or two, but not to examine who is there.
    let used: BTreeSet<u64> = last.into_iter().map(|(number, _)| number).collect();
    let limit = 1 + (0..).filter(|number| !used.contains(number)).nth(1).expect("two are free");
    prlimit(pid, Resource::Nofile, Rlimit { current: Some(limit), maximum }).expect("limited");
    let cause = "the supervisor cannot examine the process that connected: Too many open files (os error 24)";
    rig.swarm(&["spawn", "--name", "y", "--", "true"]).refused(1, cause);
    assert_eq!(rig.names(), ["x"]);
    prlimit(pid, Resource::Nofile, own).expect("reset");
    rig.swarm(&["kill", "x"]).is(0, "killed x\n", "");
}
