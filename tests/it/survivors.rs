//! Processes that a worker's user may not signal, such as those that an agent starts with sudo.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

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
        let owner = format!("{USER}:{USER}");
        let given = rig.program("chown").args(["-R", &owner]).arg(rig.path("")).status().expect("run");
        assert!(given.success());
        std::os::unix::fs::chown(&sudo, Some(0), Some(0)).expect("is root");
        fs::set_permissions(&sudo, fs::Permissions::from_mode(0o4755)).expect("is root");
        Some(Self { binary, sudo: format!("{} --reuid 0", sudo.display()), rig })
    }

    fn swarm(&self, words: &[&str]) -> Said {
        let mut command = self.rig.program("setpriv");
        command.args(["--reuid", USER, "--regid", USER, "--clear-groups"]).arg(&self.binary).args(words);
        run(command)
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
