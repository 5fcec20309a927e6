//! Limits of workers: the mechanism behind each is reported, hits are reported, and nothing is left behind. If no
//! control group can be made, that is reported instead.

use std::path::PathBuf;

use serde_json::Value;

use crate::common::{Rig, SOON, proc, skipped, wait_until};

/// Allocates memory until something stops it, at the latest its own limit.
const EATER: &str = "ulimit -v 1000000; exec tail /dev/zero";
/// Reserves more address space than it may have memory, as Node.js does, and then allocates too much memory.
const RESERVER: &str = "import mmap
mmap.mmap(-1, 4 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=0)
print('reserved', flush=True)
bytearray(200 << 20)
print('allocated')";
/// Starts five hundred processes that ignore SIGTERM.
const BOMB: &str =
    "trap '' TERM; bomb() { [ $1 -gt 0 ] && { bomb $(($1 - 1)) & bomb $(($1 - 1)) & }; sleep 600; }; bomb 8";
/// Chain of processes: each forks the next one and ends.
const COMET: &str = "trap '' TERM; hop() { [ $1 -gt 0 ] && hop $(($1 - 1)) & }; hop 30000; echo begun; sleep 600";

/// Mechanism that enforces a limit.
fn by(view: &Value, limit: &str) -> Option<String> {
    view["limits"][limit]["by"].as_str().map(str::to_owned)
}

fn is_group(by: Option<&str>) -> bool {
    by.is_some_and(|by| by.starts_with("cgroup-"))
}

/// Starts a worker and asserts a warning for each limit that is not in force, and for no other.
#[track_caller]
fn limited(rig: &Rig, name: &str, flags: &[&str], script: &str) -> Value {
    let said = rig.swarm(&[&["spawn", "--name", name], flags, &["--", "sh", "-c", script]].concat());
    assert_eq!(said.code, Some(0), "{said:?}");
    let view = rig.view(name);
    for limit in ["cpu", "pids"] {
        let is_missing = !view["limits"][limit].is_null() && by(&view, limit).is_none();
        assert_eq!(said.err.contains(&format!("swarm: warning: --{limit} is not in force")), is_missing, "{said:?}");
    }
    let is_weak = by(&view, "memory").as_deref() == Some("rlimit");
    assert_eq!(said.err.contains("swarm: note: --memory applies to each process separately"), is_weak, "{said:?}");
    view
}

/// Control groups that the lease in `dir` lists.
fn groups(rig: &Rig, dir: &str) -> Vec<PathBuf> {
    let lease = std::fs::read(rig.root().join("w").join(dir).join("lease")).expect("a lease");
    let lease: Value = serde_json::from_slice(&lease).expect("JSON");
    let list = lease["limits"]["groups"].as_array().cloned().unwrap_or_default();
    list.iter().map(|path| PathBuf::from(path.as_str().expect("text"))).collect()
}

/// Waits for an event, which is written after the record that `wait` waits for.
#[track_caller]
fn is_told(rig: &Rig, name: &str, words: &str) {
    wait_until("the events contain the line", SOON, || rig.swarm(&["events", name]).ok().contains(words));
}

fn are_gone(groups: &[PathBuf]) -> bool {
    groups.iter().all(|dir| !dir.exists())
}

#[test]
fn the_mechanism_of_each_limit_is_shown() {
    let rig = Rig::new();
    let flags = ["--memory", "512M", "--cpu", "1.5", "--pids", "100", "--max-output", "1G"];
    let view = limited(&rig, "x", &flags, "exec sleep 600");
    assert_eq!(view["limits"]["memory"]["bytes"], 512 << 20);
    assert_eq!(view["limits"]["cpu"]["cores"], 1.5);
    assert_eq!(view["limits"]["pids"]["max"], 100);
    assert_eq!(
        (view["limits"]["output"]["bytes"].as_u64(), by(&view, "output")),
        (Some(1 << 30), Some("swarm".into()))
    );
    assert!(by(&view, "memory").is_some());
    let all: Value = serde_json::from_str(&rig.swarm(&["ls", "--json"]).ok()).expect("JSON");
    assert_eq!(all["workers"][0]["limits"], view["limits"]);
    let line = rig.swarm(&["status", "x"]).ok();
    assert_eq!(line.lines().count(), 1, "{line}");
    let pid = rig.pid("x");
    for group in groups(&rig, "x.1") {
        let members = std::fs::read_to_string(group.join("cgroup.procs")).expect("a group");
        assert_eq!(members, format!("{pid}\n"), "the worker, and not its shim");
    }
    rig.spawn("free", &[], &["sleep", "600"]);
    assert!(rig.view("free")["limits"].is_null() && groups(&rig, "free.1").is_empty());
}

#[test]
fn invalid_limits_are_refused_and_nothing_is_created() {
    let rig = Rig::new();
    let sizes = [["--memory", "much"], ["--memory", "1K"], ["--cpu", "0"], ["--pids", "few"], ["--max-output", "0"]];
    for [flag, value] in sizes {
        let said = rig.swarm(&["spawn", "--name", "x", flag, value, "--", "true"]);
        assert_eq!((said.code, said.out.as_str()), (Some(2), ""), "{said:?}");
        assert!(said.err.starts_with("swarm: error: ") && said.err.contains(flag), "{said:?}");
    }
    assert!(!rig.root().join("state.json").exists());
}

#[test]
fn an_out_of_memory_exit_is_reported_and_other_workers_live() {
    let rig = Rig::new();
    rig.spawn("sibling", &[], &["sleep", "600"]);
    let (supervisor, sibling) = (rig.keepers().0, rig.pid("sibling"));
    let view = limited(&rig, "x", &["--memory", "64M"], EATER);
    rig.wait("x");
    if is_group(by(&view, "memory").as_deref()) {
        assert_eq!((rig.exit("x"), rig.fine("x")), ("signal SIGKILL, out-of-memory".into(), "out-of-memory".into()));
        assert!(rig.swarm(&["ls", "-l"]).ok().contains("out-of-memory"));
        is_told(&rig, "x", "killed by SIGKILL (out of memory)");
        assert_eq!(rig.view("x")["exit"]["hits"]["oom_kills"], 1);
        assert_eq!(rig.swarm(&["status", "x"]).code, Some(1));
    } else {
        assert_eq!((by(&view, "memory").as_deref(), rig.fine("x").as_str()), (Some("rlimit"), "exited"));
        assert_ne!(rig.exit("x"), "code 0, exited", "the limit stopped it");
    }
    assert_eq!((rig.keepers().0, rig.pid("sibling"), rig.fine("sibling")), (supervisor, sibling, "running".into()));
    assert!(are_gone(&groups(&rig, "x.1")), "the groups outlived the report of the exit");
}

#[test]
fn a_command_that_survives_an_out_of_memory_child_has_its_own_exit_and_the_hit() {
    let rig = Rig::new();
    let view = limited(&rig, "x", &["--memory", "64M"], &format!("({EATER}); echo went on; exit 3"));
    rig.wait("x");
    assert_eq!((rig.exit("x"), rig.log("x", "stdout")), ("code 3, exited".into(), "went on\n".into()));
    if is_group(by(&view, "memory").as_deref()) {
        assert_eq!(rig.view("x")["exit"]["hits"]["oom_kills"], 1);
        is_told(&rig, "x", "; 1 process out of memory");
    }
}

#[test]
fn a_fork_bomb_stays_within_its_limit_and_leaves_nothing() {
    let rig = Rig::new();
    let view = limited(&rig, "x", &["--pids", "50"], BOMB);
    let (groups, is_held) = (groups(&rig, "x.1"), is_group(by(&view, "pids").as_deref()));
    let pids = groups.iter().find(|group| group.join("pids.events").exists());
    if let Some(group) = pids {
        let refused = || std::fs::read_to_string(group.join("pids.events")).is_ok_and(|text| text.trim() != "max 0");
        wait_until("a fork is refused", SOON, refused);
        let members = std::fs::read_to_string(group.join("cgroup.procs")).expect("there");
        assert!(members.lines().count() <= 50);
    }
    rig.swarm(&["kill", "x"]).is(0, "killed x\n", "");
    let others = |pid: &i32| proc::words(*pid).first().is_some_and(|word| word == "sleep" || word == "sh");
    assert_eq!(rig.processes().into_iter().filter(others).count(), 0);
    assert!(are_gone(&groups));
    assert_eq!(rig.view("x")["exit"]["hits"]["pids_refused"].as_u64().is_some_and(|refused| refused > 0), is_held);
    assert!(rig.view("x")["exit"]["survivors"].as_array().is_some_and(Vec::is_empty));
}

#[test]
fn processes_that_fork_faster_than_they_are_killed_still_end() {
    let rig = Rig::new();
    limited(&rig, "x", &["--memory", "1G"], COMET);
    wait_until("the worker has started", SOON, || rig.log("x", "stdout").contains("begun"));
    rig.swarm(&["kill", "x"]).is(0, "killed x\n", "");
    let others = |pid: &i32| proc::words(*pid).first().is_some_and(|word| word == "sleep" || word == "sh");
    assert_eq!(rig.processes().into_iter().filter(others).count(), 0);
}

#[test]
fn two_thousand_processes_end_without_any_limit() {
    let rig = Rig::new();
    rig.spawn_sh("x", &[], "i=0; while [ $i -lt 2000 ]; do sleep 600 & i=$((i + 1)); done; echo all; wait");
    wait_until("all are there", SOON * 3, || rig.log("x", "stdout").contains("all"));
    rig.swarm(&["kill", "x"]).is(0, "killed x\n", "");
    assert_eq!(rig.exit("x"), "signal SIGTERM, stopped");
    let others = |pid: &i32| proc::words(*pid).first().is_some_and(|word| word == "sleep");
    assert_eq!(rig.processes().into_iter().filter(others).count(), 0);
}

#[test]
fn a_worker_over_its_output_limit_is_ended() {
    let rig = Rig::new();
    let endless = "while :; do echo 0123456789012345678901234567890123456789; done";
    for (name, place) in [("p", &[][..]), ("t", &["--tmux"])] {
        let mut command = rig.command(&[&["spawn", "--name", name, "--max-output", "50K"], place].concat());
        // The rotated part of the log counts too.
        command.env("SWARM_LOG_MAX_BYTES", "20000").args(["--", "sh", "-c", endless]);
        crate::common::run(command).ok();
        rig.wait(name);
        assert!(rig.exit(name).ends_with(", output"), "{}", rig.exit(name));
        is_told(&rig, name, "(output limit reached)");
    }
}

#[test]
fn a_worker_below_its_output_limit_ends_normally() {
    let rig = Rig::new();
    let mut command = rig.command(&["spawn", "--name", "x", "--max-output", "50K", "--", "sh", "-c"]);
    command.env("SWARM_LOG_MAX_BYTES", "10000");
    command.arg("i=0; while [ $i -lt 4 ]; do head -c 12000 /dev/zero; i=$((i + 1)); done; until [ -e end ]; do sleep 0.02; done");
    crate::common::run(command).ok();
    wait_until("a part was put aside", SOON, || rig.root().join("logs/x.stdout.log.1").exists());
    std::fs::write(rig.cwd().join("end"), "").expect("written");
    rig.wait("x");
    assert_eq!(rig.exit("x"), "code 0, exited");
}

#[test]
fn limits_apply_to_every_start_and_output_counts_per_start() {
    let rig = Rig::new();
    let script = "echo 0123456789; echo run >> runs; [ $(wc -l < runs) -ge 3 ] && exec sleep 600; exit 1";
    let flags = ["--memory", "256M", "--max-output", "20", "--restart", "on-failure"];
    let first = limited(&rig, "x", &flags, script)["limits"].clone();
    let runs = || std::fs::read_to_string(rig.cwd().join("runs")).unwrap_or_default().lines().count();
    wait_until("the third life", SOON, || runs() == 3 && rig.fine("x") == "running");
    assert_eq!(rig.view("x")["limits"], first, "output of earlier starts counted");
    let before = groups(&rig, "x.3");
    assert!(before.iter().all(|dir| dir.exists()));
    rig.swarm(&["respawn", "x"]);
    assert_eq!(rig.view("x")["limits"], first);
    assert!(are_gone(&before) && groups(&rig, "x.4").iter().all(|dir| dir.exists()));
}

#[test]
fn groups_of_a_killed_shim_are_removed_with_its_worker() {
    let rig = Rig::new();
    let flags = ["--memory", "256M", "--pids", "50"];
    for name in ["killed", "ended"] {
        limited(&rig, name, &flags, "trap '' TERM; while :; do sleep 600; done");
        let (pid, groups) = (rig.pid(name), groups(&rig, &format!("{name}.1")));
        proc::signal(rig.shim(name), proc::Signal::KILL);
        wait_until("the worker has no shim", SOON, || rig.fine(name) == "unsupervised");
        assert!(groups.iter().all(|dir| dir.exists()), "the limits no longer hold");
        if name == "killed" {
            rig.swarm(&["kill", name]).is(0, "killed killed\n", "");
        } else {
            proc::signal(pid, proc::Signal::KILL);
            wait_until("the exit is noticed", SOON, || rig.fine(name) == "lost");
        }
        wait_until("the groups are gone", SOON, || are_gone(&groups));
        assert!(!proc::alive(pid));
        rig.swarm(&["clean", name]).is(0, &format!("cleaned {name}\n"), "");
    }
}

#[test]
fn groups_of_a_killed_shim_and_supervisor_are_removed_by_the_next_supervisor() {
    let rig = Rig::new();
    limited(&rig, "x", &["--memory", "256M"], "exec sleep 600");
    let (pid, shim, groups) = (rig.pid("x"), rig.shim("x"), groups(&rig, "x.1"));
    for end in [rig.keepers().1, rig.keepers().0, Some(shim), Some(pid)].into_iter().flatten() {
        proc::signal(end, proc::Signal::KILL);
    }
    wait_until("the worker has ended", SOON, || !proc::alive(pid) && !proc::alive(shim));
    let said = rig.swarm(&["clean", "x"]);
    assert_eq!((said.code, said.out.as_str()), (Some(0), "cleaned x\n"), "{said:?}");
    assert!(are_gone(&groups));
}

/// Reports whether the name of any control group begins with `prefix`.
fn is_there(prefix: &str) -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("readable");
    let points = mounts.lines().filter(|line| line.contains(" - cgroup")).filter_map(|line| line.split(' ').nth(4));
    let mut look: Vec<PathBuf> = points.map(PathBuf::from).collect();
    while let Some(dir) = look.pop() {
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(prefix) {
                return true;
            }
            look.extend(entry.file_type().is_ok_and(|kind| kind.is_dir()).then(|| entry.path()));
        }
    }
    false
}

#[test]
fn a_start_that_fails_leaves_no_group() {
    let rig = Rig::new();
    let file = rig.file("broken", "#!/no/such/interpreter\n");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    std::fs::set_permissions(&file, mode).expect("changed");
    let name = crate::common::random();
    let said = rig.swarm(&["spawn", "--name", &name, "--memory", "256M", "--pids", "5", "--", &file]);
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(rig.names().is_empty() && !is_there(&format!("swarm-{name}")));
    // The test checks for groups of exactly this name.
    let view = limited(&rig, &name, &["--pids", "5"], "exec sleep 600");
    assert_eq!(is_there(&format!("swarm-{name}")), is_group(by(&view, "pids").as_deref()));
}

#[test]
fn without_control_groups_the_substitute_of_each_limit_is_reported() {
    let rig = Rig::new();
    // On this machine the groups belong to root, and the user `nobody` has none.
    let mut words = vec!["env"];
    if rustix::process::geteuid().is_root() {
        let nobody = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"];
        words.splice(.., nobody);
    }
    let binary = rig.path("swarm");
    std::fs::copy(env!("CARGO_BIN_EXE_swarm"), &binary).expect("copied");
    let mut give = rig.program("chmod");
    give.args(["-R", "a+rwX"]).arg(rig.path("")).output().expect("given");
    let nobody = |more: &[&str]| {
        let mut command = rig.program(words[0]);
        command.args(&words[1..]).arg(&binary).args(more);
        crate::common::run(command)
    };
    let flags = ["--memory", "64M", "--cpu", "1", "--pids", "50", "--max-output", "1M"];
    let said = nobody(&[&["spawn", "--name", "x"], &flags[..], &["--", "sh", "-c", EATER]].concat());
    assert_eq!(said.code, Some(0), "{said:?}");
    let view = nobody(&["wait", "x", "--timeout", "25"]);
    assert_eq!(view.out, "x: exited\n", "{view:?}");
    let view: Value = serde_json::from_str(&nobody(&["status", "x", "--json"]).out).expect("JSON");
    if is_group(by(&view, "pids").as_deref()) {
        assert_eq!(said.err, "", "this user has a delegated group");
        return skipped("limits without control groups: this user has a delegated group");
    }
    let warned = ["--cpu is not in force", "--pids is not in force"].map(|line| said.err.contains(line));
    assert_eq!((warned, said.err.lines().count()), ([true, true], 3), "{}", said.err);
    assert_eq!((by(&view, "memory").as_deref(), by(&view, "cpu")), (Some("rlimit"), None));
    assert_eq!((view["state"].as_str(), view["exit"]["code"].as_i64()), (Some("exited"), Some(1)));
    let python = nobody(&["spawn", "--name", "y", "--memory", "64M", "--", "python3", "-c", RESERVER]);
    assert_eq!(python.code, Some(0), "{python:?}");
    nobody(&["wait", "y", "--timeout", "25"]);
    assert_eq!(nobody(&["logs", "y"]).out.lines().next(), Some("reserved"));
    assert!(nobody(&["logs", "y", "--stderr"]).out.contains("MemoryError"));
}

#[test]
fn a_worker_in_a_window_has_the_same_limits() {
    let rig = Rig::new();
    let view = limited(&rig, "x", &["--tmux", "--memory", "64M", "--pids", "50"], EATER);
    rig.wait("x");
    if is_group(by(&view, "memory").as_deref()) {
        assert_eq!(rig.exit("x"), "signal SIGKILL, out-of-memory");
    }
    assert!(are_gone(&groups(&rig, "x.1")));
}

#[test]
fn a_contract_that_nobody_could_read_again_is_refused_before_anything_starts() {
    let rig = Rig::new();
    let mut command = rig.command(&["spawn", "--name", "big", "--", "sh", "-c", "touch ran"]);
    // JSON writes each of these characters as six bytes.
    let value = "\u{1}".repeat(120_000);
    command.envs((0..14).map(|number| (format!("BIG{number}"), value.clone())));
    let said = crate::common::run(command);
    assert!(said.code == Some(1) && said.err.contains("which is more than the limit of 8388608"), "{said:?}");
    assert_eq!((rig.swarm(&["ls", "-q"]).ok(), rig.path("ran").exists()), (String::new(), false));
    rig.swarm(&["spawn", "--name", "big", "--", "true"]).ok();
}
