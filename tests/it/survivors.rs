//! Processes that a worker's user may not signal, such as those that an agent starts with sudo.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::common::{Rig, SOON, Said, proc, run, skipped, wait_until};

const BIN: &str = env!("CARGO_BIN_EXE_swarm");
/// User without a name.
const USER: &str = "54321";

/// Rig of another user than root, who may execute a program as root.
struct Site {
    rig: Rig,
    binary: PathBuf,
    sudo: String,
}

impl Site {
    fn new() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            skipped("processes of another user: only root can make a program that changes its user");
            return None;
        }
        let rig = Rig::new();
        let (binary, sudo) = (rig.path("swarm"), rig.path("sudo"));
        fs::copy(BIN, &binary).expect("copied");
        let setpriv = rig.program("sh").args(["-c", "command -v setpriv"]).output().expect("run").stdout;
        fs::copy(String::from_utf8_lossy(&setpriv).trim(), &sudo).expect("copied");
        let site = Self { binary, sudo: format!("{} --reuid 0", sudo.display()), rig };
        site.give(&site.rig.path(""));
        std::os::unix::fs::chown(&sudo, Some(0), Some(0)).expect("is root");
        fs::set_permissions(&sudo, fs::Permissions::from_mode(0o4755)).expect("is root");
        Some(site)
    }

    fn swarm(&self, words: &[&str]) -> Said {
        self.swarm_in(&self.rig.cwd(), words)
    }

    fn swarm_in(&self, cwd: &Path, words: &[&str]) -> Said {
        let mut command = self.rig.program("setpriv");
        command.args(["--reuid", USER, "--regid", USER, "--clear-groups"]).arg(&self.binary).args(words);
        command.current_dir(cwd);
        run(command)
    }

    /// Returns a repository of the user.
    fn repo(&self) -> PathBuf {
        let repo = self.rig.repo();
        self.give(&repo);
        repo
    }

    fn give(&self, path: &Path) {
        let owner = format!("{USER}:{USER}");
        let given = self.rig.program("chown").args(["-R", &owner]).arg(path).status().expect("run");
        assert!(given.success());
    }

    /// Returns the pid of the process of root that a worker has started.
    fn survivor(&self, name: &str) -> i32 {
        let marker = format!("SWARM_WORKER={name}");
        let is_one =
            |pid: &i32| proc::has_variable(*pid, &marker) && proc::words(*pid).first().is_some_and(|it| it == "sleep");
        let mut found = None;
        wait_until("it runs as root", SOON, || {
            found = self.rig.processes().into_iter().find(is_one);
            found.is_some()
        });
        found.expect("there is one")
    }
}

#[test]
fn a_kill_names_the_processes_that_live_on_and_invents_no_end() {
    let Some(site) = Site::new() else { return };
    // The command itself, and a process that it leaves behind.
    let (itself, child) = (format!("exec {} sleep 600", site.sudo), format!("{} sleep 600 & wait", site.sudo));
    for (name, script) in [("itself", &itself), ("child", &child)] {
        site.swarm(&["spawn", "--name", name, "--", "sh", "-c", script]).ok();
    }
    let (itself, child) = (site.survivor("itself"), site.survivor("child"));
    let said = site.swarm(&["kill", "--all", "--everywhere"]);
    assert_eq!((said.code, said.out.as_str()), (Some(1), ""), "{said:?}");
    for (name, pid) in [("itself", itself), ("child", child)] {
        let cause = format!("processes of worker '{name}' cannot be ended: {pid}");
        assert!(said.err.contains(&format!("swarm: error: {cause}\n")), "{said:?}");
        assert!(proc::alive(pid) && site.rig.fine(name) == "stopping", "{name}");
        let listed = site.swarm(&["ls", "-l"]).ok();
        assert!(listed.contains(&format!("stopping: {pid} cannot be ended")), "{listed}");
        let said = site.swarm(&["doctor"]);
        assert!(format!("{said:?}").contains(&cause), "{said:?}");
        site.swarm(&["clean", name]).refused(1, &format!("cannot clean running worker '{name}'"));
    }
    assert!(site.rig.view("itself")["exit"].is_null(), "nobody knows how it will end");
    assert_eq!(site.rig.exit("child"), "signal SIGTERM, stopped");
    let cause = format!("processes of worker 'child' cannot be ended: {child}");
    site.swarm(&["respawn", "child"]).refused(1, &cause);
    for (name, pid) in [("itself", itself), ("child", child)] {
        proc::kill(pid);
        site.swarm(&["wait", name]).is(0, &format!("{name}: exited\n"), "");
    }
    assert_eq!((site.rig.fine("itself").as_str(), site.rig.fine("child").as_str()), ("stopped", "stopped"));
    assert_eq!(site.rig.exit("itself"), "unknown");
    site.swarm(&["clean", "itself", "child"]).is(0, "cleaned itself\ncleaned child\n", "");
    site.swarm(&["supervisor", "stop"]).ok();
}

#[test]
fn work_lands_although_processes_of_its_worker_cannot_be_ended() {
    let Some(site) = Site::new() else { return };
    let repo = site.repo();
    let spawn = |name: &str, flags: &[&str]| {
        // The command ends when the process is one of root.
        let ready = site.rig.path(&format!("ready-{name}"));
        let (sudo, ready) = (&site.sudo, ready.display());
        let child = format!("{sudo} sh -c 'echo > {ready}; exec sleep 600 >/dev/null 2>&1 </dev/null'");
        let script = format!("mkfifo {ready}; {child} & read line < {ready}; echo one > one");
        let words = [&["spawn", "--name", name, "--worktree"], flags, &["--", "sh", "-c", &script]].concat();
        site.swarm_in(&repo, &words).ok();
        site.survivor(name)
    };
    let (own, added) = (spawn("own", &["--merge"]), spawn("added", &[]));
    site.swarm_in(&repo, &["merge", "wait", "own"]).is(0, "own: landed (main)\n", "");
    assert_eq!(fs::read_to_string(repo.join("one")).expect("landed"), "one\n");
    let told = site.swarm(&["events"]).ok();
    assert!(
        told.contains(&format!("queued for main (item 0); some of its processes cannot be ended: {own}")),
        "{told}"
    );

    let left = format!("stopping: {added} cannot be ended");
    wait_until("its shim has given up", SOON, || site.swarm(&["ls", "-l"]).ok().contains(&left));
    let said = site.swarm_in(&repo, &["merge", "add", "added"]);
    let note = format!("swarm: note: processes of worker 'added' cannot be ended: {added}\n");
    said.is(0, "queued added for main (item 1)\n", &note);
    let note = format!("swarm: note: processes of worker 'own' cannot be ended: {own}\n");
    site.swarm(&["wait", "own", "--timeout", "1"]).is(1, "own: still running (timeout)\n", &note);
    site.swarm_in(&repo, &["clean", "own"]).refused(1, "cannot clean running worker 'own'");
    for pid in [own, added] {
        assert!(proc::alive(pid));
        proc::kill(pid);
    }
    site.swarm(&["wait", "own", "added"]).ok();
    site.swarm(&["supervisor", "stop"]).ok();
}
