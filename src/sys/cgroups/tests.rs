//! Tests with control groups of the kernel, if this process may create some, else of the warnings.

use std::io::Write as _;
use std::process::{Child, Command};

use super::*;

fn asked() -> Limits {
    Limits { memory_bytes: Some(256 << 20), cpu_milli: Some(1000), pids: Some(20), max_output_bytes: None }
}

/// Returns groups for one test, and the token in their names.
fn groups(limits: &Limits) -> (Groups, String) {
    let token = std::fs::read_to_string("/proc/sys/kernel/random/uuid").expect("readable").trim().replace('-', "");
    let planned = Groups::plan(limits, &leaf("test.1", &token));
    (planned.make(limits), token)
}

/// Starts a process that enters the groups, and then executes the script.
fn inside(groups: &Groups, script: &str) -> Child {
    let enter: String =
        groups.0.iter().map(|group| format!("echo 0 > {}/cgroup.procs; ", group.dir.display())).collect();
    Command::new("sh").arg("-c").arg(format!("{enter}exec {script}")).spawn().expect("started")
}

fn wait_members(groups: &Groups, count: usize) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while groups.members().len() != count {
        assert!(Instant::now() < deadline, "{:?}", groups.members());
        std::thread::park_timeout(PAUSE);
    }
}

/// Says on standard error what cannot be tried here. Written past the test harness, which keeps what a
/// passing test prints to itself.
fn skipped(what: &str) {
    let _ = writeln!(std::io::stderr(), "skipped: {what}: this process can make no such control group");
}

fn lease(held: Held, token: &str) -> Lease {
    let process = swarm_model::ProcessId::default();
    Lease {
        token: token.to_owned(),
        started: String::new(),
        worker: process.clone(),
        shim: process,
        pane: None,
        restart: swarm_model::RestartPolicy::Never,
        limits: Some(held),
        machine: None,
        process_namespace: None,
        survivors: Vec::new(),
    }
}

#[test]
fn created_groups_enforce_limits_and_others_are_reported() {
    let (groups, _) = groups(&asked());
    let held = groups.held(asked(), 0);
    // Memory is always limited by something; the others only by a group.
    assert_eq!(held.warnings().len(), usize::from(held.cpu.is_none()) + usize::from(held.pids.is_none()));
    assert_eq!(held.memory == Some(By::Rlimit), !held.notes().is_empty());
    assert_eq!(held.groups.len(), groups.0.len());
    for group in &groups.0 {
        let read = |file: &str| std::fs::read_to_string(group.dir.join(file)).unwrap_or_default().trim().to_owned();
        for controller in &group.holds {
            let (file, value) = match (controller, group.version) {
                (Controller::Memory, Version::V1) => ("memory.limit_in_bytes", "268435456"),
                (Controller::Memory, Version::V2) => ("memory.max", "268435456"),
                (Controller::Cpu, Version::V1) => ("cpu.cfs_quota_us", "100000"),
                (Controller::Cpu, Version::V2) => ("cpu.max", "100000 100000"),
                (Controller::Pids, _) => ("pids.max", "20"),
            };
            assert_eq!(read(file), value);
        }
    }
    groups.remove();
    assert!(groups.dirs().all(|dir| !dir.exists()));
}

#[test]
fn everything_in_a_group_is_ended_and_nothing_else() {
    let (groups, token) = groups(&asked());
    if groups.is_none() {
        assert_eq!(groups.held(asked(), 0).warnings().len(), 2);
        return skipped("the end of everything in a group");
    }
    let mut other = Command::new("sleep").arg("100").spawn().expect("started");
    let mut one = inside(&groups, "sleep 100");
    let mut deaf = inside(&groups, "sh -c 'trap \"\" TERM; while :; do sleep 100; done'");
    wait_members(&groups, 3);
    // Find them from the lease alone, as the supervisor does.
    let found = Groups::of(&lease(groups.held(asked(), 0), &token));
    assert_eq!(found.members(), groups.members());
    let reaper = std::thread::spawn(move || (one.wait(), deaf.wait()));
    assert_eq!(found.end(), Vec::<i32>::new());
    found.remove();
    reaper.join().expect("reaped").0.expect("ended");
    assert!(groups.dirs().all(|dir| !dir.exists()));
    assert!(other.try_wait().expect("asked").is_none(), "a process outside was ended");
    other.kill().expect("ended");
    other.wait().expect("reaped");
}

#[test]
fn groups_are_found_by_their_list_and_only_with_their_name() {
    let dir = tempfile::tempdir().expect("a directory");
    let [ours, other, worker] = ["swarm-x.1-abc", "swarm-x.11-abc", "somebody"].map(|name| dir.path().join(name));
    for made in [&ours, &other, &worker] {
        std::fs::create_dir(made).expect("made");
    }
    let listed: String = [&ours, &other, &worker].map(|path| format!("{}\n", path.display())).concat();
    remove_listed(&listed, "x.1");
    assert!(!ours.exists() && other.exists() && worker.exists());
    let held = |path: &Path| Held { groups: vec![path.to_str().expect("text").to_owned()], ..Held::default() };
    assert!(Groups::of(&lease(held(&worker), "abc")).is_none() && Groups::of(&lease(held(&other), "")).is_none());
    assert!(!Groups::of(&lease(held(&other), "abc")).is_none());
}

#[test]
fn a_plan_prefers_version_two_and_uses_version_one_for_the_rest() {
    let place = |controller: Controller| (controller, PathBuf::from(format!("/old/{}", controller.name())));
    let old = Places { v1: Controller::ALL.map(place).into(), v2: None };
    let dirs = |groups: &Groups| groups.dirs().map(|dir| dir.to_str().expect("text").to_owned()).collect::<Vec<_>>();
    assert_eq!(dirs(&Groups::at(&old, &asked(), "l")), ["/old/memory/l", "/old/cpu/l", "/old/pids/l"]);
    // The pids controller, which keeps a tree from growing while it is ended, is always included.
    let memory = Limits { memory_bytes: Some(1 << 20), ..Limits::default() };
    assert_eq!(dirs(&Groups::at(&old, &memory, "l")), ["/old/memory/l", "/old/pids/l"]);
    let new = tempfile::tempdir().expect("a directory");
    for file in ["controllers", "subtree_control"] {
        std::fs::write(new.path().join(format!("cgroup.{file}")), "memory").expect("written");
    }
    let both = Places { v2: Some(new.path().to_owned()), ..old };
    let made = Groups::at(&both, &asked(), "l");
    assert_eq!(dirs(&made)[1..], ["/old/cpu/l", "/old/pids/l"]);
    assert_eq!((made.0[0].dir.as_path(), made.0[0].version), (new.path().join("l").as_path(), Version::V2));
    let output = Limits { max_output_bytes: Some(1), ..Limits::default() };
    assert!(Groups::plan(&output, "l").is_none());
    // The directories do not exist, so no group accepts a process.
    assert_eq!((made.all(), made.enter(&Born(None)), made.enter(&Born(Some(0)))), (7, 0, 1));
    assert!(made.entered(0).is_none());
}

/// Returns a group of version 2, if this process may create one. Next to version 1 it limits nothing, but its
/// processes can be killed at once.
fn new_group(name: &str) -> Option<Groups> {
    let read = |file| std::fs::read_to_string(file).expect("readable");
    let places = Places::of(&read("/proc/self/mountinfo"), &read("/proc/self/cgroup"));
    let dir = places.v2?.join(leaf(name, &std::process::id().to_string()));
    let mut group = Group::new(dir, Version::V2, Vec::new());
    group.make(&Limits::default()).ok()?;
    Some(Groups(vec![group]))
}

#[test]
fn a_child_is_created_in_a_group_and_killed_with_it() {
    let Some(groups) = new_group("born.1") else {
        // A system without version 2: the fork fails, and there is no child.
        assert!(birth::fork_in(Path::new("/proc")).is_err());
        return skipped("a child that is born in a group of version 2");
    };
    let child = match birth::fork_in(&groups.0[0].dir).expect("forked") {
        ForkResult::Parent { child } => child,
        // The parent has many threads, so the child may only wait for its end.
        ForkResult::Child => loop {
            nix::unistd::pause();
        },
    };
    assert_eq!(groups.members(), [child.as_raw()].into());
    assert!(groups.0[0].remove().is_err(), "a group with a process was removed");
    groups.kill();
    let ended = nix::sys::wait::waitpid(child, None).expect("it is ours");
    assert!(matches!(ended, nix::sys::wait::WaitStatus::Signaled(_, nix::sys::signal::Signal::SIGKILL, _)));
    groups.remove();
    assert!(!groups.0[0].dir.exists());
}

#[test]
fn all_processes_of_a_group_move_into_its_leaf() {
    let Some(groups) = new_group("moved.1") else {
        // An unreadable list of processes counts as empty.
        assert!(delegated::moved_to_leaf(Path::new("/nowhere/at/all")));
        return skipped("moving into a leaf of a group of version 2");
    };
    let mut child = inside(&groups, "sleep 100");
    wait_members(&groups, 1);
    let dir = &groups.0[0].dir;
    assert!(delegated::moved_to_leaf(dir));
    assert_eq!(std::fs::read_to_string(dir.join("cgroup.procs")).expect("readable"), "");
    // The members of a group include those of groups below, which are killed and removed with it.
    assert_eq!(groups.members(), [i32::try_from(child.id()).expect("a pid")].into());
    groups.kill();
    child.wait().expect("reaped");
    groups.remove();
    assert!(!dir.exists());
}
