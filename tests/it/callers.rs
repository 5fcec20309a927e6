//! Callers of one state directory with different limits, priorities and users: none of them restricts the workers of the
//! others, and nobody else gets what they send.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::{Resource, geteuid, getrlimit};

use crate::common::{Rig, SOON, Said, proc, run, skipped, wait_until};
use crate::crash::{both, kill_keepers};
use crate::keepers::{HANDS, assert_outside, by_hand, newer, spawn_hands, spawn_inside};

const BINARY: &str = env!("CARGO_BIN_EXE_swarm");
/// Shell command that restricts itself and executes its arguments.
const RESTRICTED: &str = "ulimit -n 256; ulimit -c 0; exec nice -n 10 \"$@\"";
/// Prints what [`RESTRICTED`] changes.
const LOOK: &str = "nice; ulimit -Hn; ulimit -Hc";

/// Users of a rig with a copy of the program that all of them may execute.
struct Users {
    rig: Rig,
    program: PathBuf,
}

impl Users {
    fn new() -> Self {
        let rig = Rig::new();
        let program = rig.path("swarm");
        fs::copy(BINARY, &program).expect("copied");
        Self { rig, program }
    }

    /// Gives the rig to a user.
    fn give(&self, uid: u32) {
        chown(&format!("{uid}:{uid}"), &self.rig.path(""));
    }

    /// Prepares a command of a user: this one, if there is no number.
    fn command(&self, uid: Option<u32>, words: &[&str]) -> Command {
        let Some(uid) = uid.map(|uid| uid.to_string()) else {
            let mut command = self.rig.program(words[0]);
            command.args(&words[1..]);
            return command;
        };
        let mut command = self.rig.program("setpriv");
        command.args(["--reuid", &uid, "--regid", &uid, "--clear-groups", "--"]).args(words);
        command
    }
}

fn chown(owner: &str, path: &Path) {
    let status = Command::new("chown").args(["-R", owner]).arg(path).status().expect("run");
    assert!(status.success(), "chown {owner} {}", path.display());
}

/// Returns a user who exists nowhere, and a different one for each of several test programs.
fn nobody(more: u32) -> u32 {
    100_000 + 2 * (std::process::id() % 1_000_000) + more
}

/// Checks the workers of a restricted caller, who comes first, and of another one after it.
#[track_caller]
fn check_two_callers(uid: Option<u32>) {
    let users = Users::new();
    if let Some(uid) = uid {
        users.give(uid);
    }
    let program = users.program.to_str().expect("text");
    let spawn = |before: &[&str], name: &str| -> (Said, String) {
        let words = [program, "spawn", "--name", name, "--", "sh", "-c", LOOK];
        let said = run(users.command(uid, &[before, &words].concat()));
        run(users.command(uid, &[program, "wait", name])).ok();
        (said, users.rig.log(name, "stdout"))
    };
    let restricted = ["sh", "-c", RESTRICTED, "sh"];
    let look = |before: &[&str]| run(users.command(uid, &[before, &["sh", "-c", LOOK]].concat())).ok();
    let (said, seen) = spawn(&restricted, "first");
    said.ok();
    let (own, least) = (look(&[]), look(&restricted));
    assert_eq!(seen, least);
    // Privileges come one by one: a container may give its root some of them, and a user a range of priorities.
    let raises = ["renice -n 9 -p $$ > /dev/null", "ulimit -Hn 257", "ulimit -Hc 1"];
    let raises = raises.map(|raise| run(users.command(uid, &[&restricted[..], &["sh", "-c", raise]].concat())).code);
    assert!(uid.is_none() || (raises[1] != Some(0) && raises[2] != Some(0)), "a user without privileges");
    let (said, seen) = spawn(&[], "second");
    assert_eq!(said.code, Some(0), "{said:?}");
    let niceness = format!("niceness ({}): ", own.lines().next().expect("a number"));
    let all = own.lines().zip(least.lines()).zip(raises).zip([niceness.as_str(), "limit 'nofile': ", "limit 'core': "]);
    let (mut expected, mut warned) = (String::new(), 0);
    for (((own, least), raise), what) in all {
        let is_own = raise == Some(0) || own == least;
        expected += &format!("{}\n", if is_own { own } else { least });
        let start = format!("swarm: warning: the worker does not have the caller's {what}");
        assert_eq!(said.err.lines().any(|line| line.starts_with(&start)), !is_own, "{what}: {said:?}");
        warned += usize::from(!is_own);
    }
    assert_eq!((seen, said.err.lines().count()), (expected, warned), "{said:?}");
}

#[test]
fn a_restricted_caller_who_comes_first_restricts_no_other_or_they_are_told() {
    check_two_callers(None);
    if geteuid().is_root() {
        check_two_callers(Some(nobody(0)));
    } else {
        assert_ne!(getrlimit(Resource::Nofile).maximum, Some(256), "the first caller must be restricted");
    }
}

/// A directory that is removed in the end.
struct Left(PathBuf);

impl Drop for Left {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Becomes a user, listens at a path, and prints the number of bytes that each connection brings.
const LISTENER: &str = "
import os, socket, sys
uid = int(sys.argv[2])
os.umask(0)
os.setgroups([])
os.setresgid(uid, uid, uid)
os.setresuid(uid, uid, uid)
with socket.socket(socket.AF_UNIX) as s:
    s.bind(sys.argv[1])
    s.listen()
    print('ready', flush=True)
    while True:
        one, _ = s.accept()
        one.settimeout(10)
        print(len(one.recv(1 << 16)), flush=True)
        one.close()
";

#[test]
fn another_user_who_listens_in_place_of_the_supervisor_receives_nothing() {
    if !geteuid().is_root() {
        return skipped("listeners of another user: only root can be two users");
    }
    let users = Users::new();
    let (victim, thief) = (nobody(0), nobody(1));
    users.give(victim);
    // Too long for the name of a socket, which is then below /tmp.
    let root = users.rig.path(&"long".repeat(30));
    let swarm = |words: &[&str]| {
        let words = [&[users.program.to_str().expect("text")], words].concat();
        let mut command = users.command(Some(victim), &words);
        command.env("SWARM_DIR", &root);
        run(command)
    };
    swarm(&["supervisor", "start"]).ok();
    let left = Left(PathBuf::from(format!("/tmp/swarm-{victim}")));
    let place = &left.0;
    let sockets: Vec<PathBuf> = fs::read_dir(place).expect("there").map(|entry| entry.expect("read").path()).collect();
    let socket = sockets.iter().find(|path| path.extension().is_some_and(|end| end == "sock")).expect("a socket");
    swarm(&["supervisor", "stop"]).ok();
    let _ = fs::remove_file(socket);
    chown(&thief.to_string(), place);
    fs::set_permissions(place, fs::Permissions::from_mode(0o755)).expect("set");
    // The interpreter may be where only root can read it.
    let mut listener = users.rig.program("python3");
    listener.args(["-c", LISTENER]).arg(socket).arg(thief.to_string());
    let mut listener = listener.stdout(Stdio::piped()).spawn().expect("started");
    let mut lines = BufReader::new(listener.stdout.take().expect("piped")).lines();
    let mut next = || lines.next().expect("a line").expect("text");
    assert_eq!(next(), "ready");
    let said = swarm(&["spawn", "--name", "x", "--env", "KEY=secret", "--", "true"]);
    // Connections are accepted in order, and this one is the last.
    UnixStream::connect(socket).expect("it listens").write_all(b"end").expect("written");
    let received: Vec<String> = std::iter::from_fn(|| Some(next()).filter(|bytes| bytes != "3")).collect();
    listener.kill().expect("ours");
    listener.wait().expect("ended");
    let cause = format!("{} is served by another user (uid {thief})", socket.display());
    assert!(said.code == Some(1) && said.err.contains(&cause), "{said:?}");
    assert!(!received.is_empty() && received.iter().all(|bytes| bytes == "0"), "{received:?}");
}

#[test]
fn a_supervisor_that_a_limited_worker_starts_has_neither_its_groups_nor_its_limits() {
    let rig = Rig::new();
    rig.spawn("other", &[], &["sleep", "600"]);
    let of =
        |pid: i32| ["cgroup", "limits"].map(|file| fs::read_to_string(format!("/proc/{pid}/{file}")).expect("alive"));
    let (supervisor, guard) = both(&rig);
    let usual = (of(supervisor), of(guard));
    let mut command = rig.program("sh");
    let words = ["-c", "ulimit -n 256; exec \"$@\"", "sh", BINARY, "spawn", "--name", "outer", "--pids", "64", "--"];
    command.args(words).args(["sh", "-c", HANDS]);
    let said = run(command);
    assert_eq!(said.code, Some(0), "{said:?}");
    let inside = of(rig.pid("outer"));
    assert_ne!(inside[1], usual.0[1], "its limits");
    // Without the right to make a control group, the limit is a warning.
    assert_eq!(inside[0] != usual.0[0], said.err.is_empty(), "{said:?} {inside:?}");
    kill_keepers(&rig);
    wait_until("supervisor and guard are gone", SOON, || rig.keepers() == (None, None));
    spawn_inside(&rig, Path::new(BINARY), "inner");
    assert_outside(&rig, &["other", "outer", "inner"]);
    let (supervisor, guard) = both(&rig);
    assert_eq!((of(supervisor), of(guard)), usual);
    assert!(proc::alive(rig.pid("other")));
}

#[test]
fn a_program_that_an_agent_has_built_in_a_repository_is_not_executed_by_the_guard() {
    let rig = Rig::new();
    spawn_hands(&rig, "outer", &[]);
    let keepers = both(&rig);
    let new = newer(&rig, "built");
    let root = rig.path("built");
    rig.git(&root, &["init", "-q"]);
    let (code, err) = by_hand(&rig, &format!("{} spawn --name inner -- sleep 600", new.display()));
    let cause = format!(
        "swarm: error: the supervisor is an older build and cannot be replaced from inside worker 'outer': {} is in the \
         repository {}\nswarm: hint: run 'swarm supervisor restart' outside of worker 'outer'\n",
        new.display(),
        root.display()
    );
    assert_eq!((code.as_str(), err), ("1", cause));
    assert_eq!((both(&rig), rig.names()), (keepers, vec!["outer".to_owned()]));
}
