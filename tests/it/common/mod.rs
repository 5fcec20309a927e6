//! Rig of a test: its own home, state directory, tmux server and processes. Nothing outside the rig is read or
//! ended.

pub mod proc;
pub mod schema;

use std::ffi::OsStr;
use std::io::{Read, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde_json::Value;

/// Maximum time for one command.
const COMMAND_MAX: Duration = Duration::from_secs(30);
/// Maximum time for something that should happen soon, with room for a loaded machine.
pub const SOON: Duration = Duration::from_secs(20);
/// Output of `supervisor stop` while one worker runs.
pub const STOPPED_BESIDE_ONE: &str = "supervisor stopped\n1 worker still runs; nothing is restarted or landed until a command that needs the supervisor starts it\n";
/// Number of measurements that [`quick`] makes.
const QUICK_ROUNDS: usize = 3;
/// Pause between two checks of a condition.
const LOOK: Duration = Duration::from_millis(10);
const MARKER: &str = "SWARM_RIG";

/// Output and exit code of a command.
#[derive(Debug)]
pub struct Said {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Said {
    /// Asserts success and an empty standard error; returns standard output.
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!((self.code, self.err.as_str()), (Some(0), ""), "stdout: {}", self.out);
        self.out
    }

    /// Asserts exit code and both streams.
    #[track_caller]
    pub fn is(self, code: i32, out: &str, err: &str) {
        assert_eq!((self.out.as_str(), self.err.as_str(), self.code), (out, err, Some(code)));
    }

    /// Asserts a refusal whose first line is `swarm: error: ` and this cause.
    #[track_caller]
    pub fn refused(self, code: i32, cause: &str) -> Self {
        let first = self.err.lines().next().unwrap_or_default();
        assert_eq!((first, self.code), (format!("swarm: error: {cause}").as_str(), Some(code)), "{self:?}");
        assert_eq!(self.out, "");
        self
    }
}

/// Private environment for one test: swarm sees nothing outside it but the programs in PATH.
pub struct Rig {
    dir: tempfile::TempDir,
    marker: String,
}

impl Rig {
    pub fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let dir = tempfile::Builder::new().prefix("rig").tempdir().expect("a directory");
        let marker = format!("{}-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed), random());
        for name in ["home", "tmux", "cwd"] {
            std::fs::create_dir(dir.path().join(name)).expect("made");
        }
        let config = "[user]\n\tname = Rig\n\temail = rig@example.invalid\n[init]\n\tdefaultBranch = main\n[commit]\n\tgpgsign = false\n";
        std::fs::write(dir.path().join("home/.gitconfig"), config).expect("written");
        Self { dir, marker }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn home(&self) -> PathBuf {
        self.path("home")
    }

    /// Variable by which the processes of this rig are found, with its value.
    pub fn marker(&self) -> String {
        format!("{MARKER}={}", self.marker)
    }

    /// Default working directory of commands.
    pub fn cwd(&self) -> PathBuf {
        self.path("cwd")
    }

    /// `SWARM_DIR`.
    pub fn root(&self) -> PathBuf {
        self.path("state")
    }

    pub fn state(&self) -> PathBuf {
        self.root().join("state.json")
    }

    /// Prepares a program in this rig's environment, with nothing but PATH from the outer one.
    pub fn program(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.env_clear().current_dir(self.cwd()).stdin(Stdio::null());
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.env("HOME", self.path("home")).env("SWARM_DIR", self.root());
        command.env("TMUX_TMPDIR", self.path("tmux")).env("TERM", "xterm-256color");
        command.env("TZ", "UTC").env("LANG", "C.UTF-8").env("GIT_CONFIG_NOSYSTEM", "1");
        command.env(MARKER, &self.marker);
        command
    }

    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = self.program(env!("CARGO_BIN_EXE_swarm"));
        command.args(words);
        command
    }

    pub fn swarm(&self, words: &[&str]) -> Said {
        run(self.command(words))
    }

    pub fn swarm_in(&self, cwd: &Path, words: &[&str]) -> Said {
        let mut command = self.command(words);
        command.current_dir(cwd);
        run(command)
    }

    /// Agrees, as a person would, to what the files of the project in `dir` execute or set. A file that is invalid is
    /// left to the test.
    pub fn trust(&self, dir: &Path) {
        self.swarm_in(dir, &["trust", "--yes"]);
    }

    /// Runs `swarm spawn --name NAME FLAGS -- WORDS`, which must succeed.
    #[track_caller]
    pub fn spawn(&self, name: &str, flags: &[&str], words: &[&str]) -> String {
        self.swarm(&[&["spawn", "--name", name], flags, &["--"], words].concat()).ok()
    }

    /// Runs [`Rig::spawn`] with a script for `sh`.
    #[track_caller]
    pub fn spawn_sh(&self, name: &str, flags: &[&str], script: &str) -> String {
        self.spawn(name, flags, &["sh", "-c", script])
    }

    #[track_caller]
    pub fn wait(&self, name: &str) {
        self.swarm(&["wait", name, "--timeout", "25"]).is(0, &format!("{name}: exited\n"), "");
    }

    /// Output of `status --json` for a worker.
    #[track_caller]
    pub fn view(&self, name: &str) -> Value {
        let said = self.swarm(&["status", name, "--json"]);
        serde_json::from_str(&said.out).unwrap_or_else(|error| panic!("{error}: {said:?}"))
    }

    /// Fine state of a worker.
    #[track_caller]
    pub fn fine(&self, name: &str) -> String {
        self.view(name)["state"].as_str().expect("a state").to_owned()
    }

    /// End of a worker as `code 0`, `signal SIGKILL`, `unknown` or `none`, followed by the reason.
    #[track_caller]
    pub fn exit(&self, name: &str) -> String {
        let exit = &self.view(name)["exit"];
        let reason = exit["reason"].as_str().map(|reason| format!(", {reason}")).unwrap_or_default();
        match exit["outcome"].as_str() {
            Some("code") => format!("code {}{reason}", exit["code"]),
            Some("signal") => format!("signal {}{reason}", exit["signal"].as_str().expect("a name")),
            Some(other) => other.to_owned(),
            None => "none".to_owned(),
        }
    }

    /// Pid of the worker's own process.
    #[track_caller]
    pub fn pid(&self, name: &str) -> i32 {
        let view = self.view(name);
        let pid = view["pid"].as_i64().unwrap_or_else(|| panic!("no pid: {view}"));
        i32::try_from(pid).expect("a pid")
    }

    /// Names that `ls` lists.
    #[track_caller]
    pub fn names(&self) -> Vec<String> {
        self.swarm(&["ls", "--format", "names"]).ok().lines().map(str::to_owned).collect()
    }

    /// Rows of the registry on disk.
    #[track_caller]
    pub fn rows(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.state()).expect("a registry");
        let value: Value = serde_json::from_str(&text).expect("JSON");
        value["workers"].as_array().expect("a list").clone()
    }

    /// Writes `state.json` as another program would.
    pub fn put_state(&self, text: impl AsRef<[u8]>) {
        std::fs::create_dir_all(self.root()).expect("made");
        std::fs::write(self.state(), text).expect("written");
    }

    pub fn log(&self, name: &str, kind: &str) -> String {
        let path = self.root().join("logs").join(format!("{name}.{kind}.log"));
        String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned()
    }

    /// Pid of a worker's shim, from its lease.
    #[track_caller]
    pub fn shim(&self, name: &str) -> i32 {
        let dirs = std::fs::read_dir(self.root().join("w")).expect("records");
        let generations = dirs.flatten().filter_map(|dir| {
            let leaf = dir.file_name().into_string().ok()?;
            let (own, generation) = leaf.rsplit_once('.')?;
            (own == name).then(|| (generation.parse::<u64>().expect("a number"), dir.path()))
        });
        let (_, newest) = generations.max().expect("a generation");
        let lease: Value =
            serde_json::from_slice(&std::fs::read(newest.join("lease")).expect("a lease")).expect("JSON");
        i32::try_from(lease["shim"]["pid"].as_i64().expect("a pid")).expect("a pid")
    }

    /// Pids of supervisor and guard, if they run.
    pub fn keepers(&self) -> (Option<i32>, Option<i32>) {
        let find =
            |word: &str| self.processes().into_iter().find(|pid| proc::words(*pid).get(1).is_some_and(|at| at == word));
        (find("__supervisor"), find("__guard"))
    }

    /// Kills supervisor and guard. The supervisor is stopped before the guard is killed: it would start another guard,
    /// which would start another supervisor.
    pub fn kill_keepers(&self) {
        let (supervisor, guard) = self.keepers();
        if let Some(supervisor) = supervisor {
            proc::signal(supervisor, rustix::process::Signal::STOP);
            wait_until("the supervisor stands still", SOON, || {
                !proc::alive(supervisor) || proc::is_stopped(supervisor)
            });
        }
        [guard, supervisor].into_iter().flatten().for_each(proc::kill);
    }

    /// Runs tmux on the default server of this rig's workers.
    pub fn tmux(&self, words: &[&str]) -> Said {
        let mut command = self.program("tmux");
        command.args(words);
        run(command)
    }

    /// Makes a git repository with one commit.
    pub fn repo(&self) -> PathBuf {
        self.repo_named("repo")
    }

    pub fn repo_named(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(&path).expect("made");
        self.git(&path, &["init", "-q"]);
        std::fs::write(path.join("file"), "one\n").expect("written");
        self.git(&path, &["add", "."]);
        self.git(&path, &["commit", "-q", "-m", "one"]);
        path
    }

    /// Runs git, which must succeed, and returns its output without the last line end.
    #[track_caller]
    pub fn git(&self, cwd: &Path, words: &[&str]) -> String {
        let said = self.git_says(cwd, words);
        assert_eq!(said.code, Some(0), "git {words:?}: {said:?}");
        said.out.trim_end().to_owned()
    }

    pub fn git_says(&self, cwd: &Path, words: &[&str]) -> Said {
        let mut command = self.program("git");
        command.current_dir(cwd).args(words);
        run(command)
    }

    /// Writes a script for the workers of a test and returns its path.
    pub fn file(&self, name: &str, text: &str) -> String {
        let path = self.path(name);
        std::fs::write(&path, text).expect("written");
        path.to_str().expect("text").to_owned()
    }

    /// Pids of all processes of this rig.
    pub fn processes(&self) -> Vec<i32> {
        let marker = format!("{MARKER}={}", self.marker);
        proc::all().into_iter().filter(|pid| proc::has_variable(*pid, &marker)).collect()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if self.root().join("supervisor.sock").exists() && !std::thread::panicking() {
            let _ = run_within(self.command(&["supervisor", "stop"]), Duration::from_secs(3));
        }
        let marker = format!("{MARKER}={}", self.marker);
        let deadline = Instant::now() + Duration::from_secs(5);
        while Instant::now() < deadline {
            let left = self.processes();
            if left.is_empty() {
                break;
            }
            left.into_iter().for_each(|pid| proc::end_marked(pid, &marker));
            std::thread::park_timeout(LOOK);
        }
        // Shims that were killed left their control groups behind.
        for dir in std::fs::read_dir(self.root().join("w")).into_iter().flatten().flatten() {
            let groups = std::fs::read_to_string(dir.path().join("groups")).unwrap_or_default();
            for group in groups.lines().map(Path::new) {
                // The kernel releases a group a moment after its last process.
                while group.exists() && std::fs::remove_dir(group).is_err() && Instant::now() < deadline {
                    std::thread::park_timeout(LOOK);
                }
            }
        }
        for socket in std::fs::read_dir(self.path("tmux"))
            .into_iter()
            .flatten()
            .flatten()
            .flat_map(|dir| std::fs::read_dir(dir.path()))
            .flatten()
            .flatten()
        {
            let mut command = self.program("tmux");
            command.arg("-S").arg(socket.path()).arg("kill-server");
            let _ = run_within(command, Duration::from_secs(3));
        }
    }
}

/// Runs a command until it and its output streams have ended: a process that the command left behind with one of
/// the streams open would hang every `$(swarm …)`.
#[track_caller]
pub fn run(command: Command) -> Said {
    let text = format!("{command:?}");
    let said = run_within(command, COMMAND_MAX);
    let said = said.unwrap_or_else(|step| panic!("{step} took over {COMMAND_MAX:?}: {text}"));
    schema::check_lines(&said.out);
    said
}

/// Runs a command as [`run`] does, with another limit, after which the child alone is killed.
pub fn run_within(mut command: Command, limit: Duration) -> Result<Said, &'static str> {
    let deadline = Instant::now() + limit;
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("started");
    let out = read_aside(child.stdout.take().expect("piped"));
    let err = read_aside(child.stderr.take().expect("piped"));
    let pid = i32::try_from(child.id()).expect("a pid");
    if !proc::wait_end(pid, limit) {
        let _ = child.kill();
        let _ = child.wait();
        return Err("the command");
    }
    let status = child.wait().expect("waited");
    let text = |stream: &mpsc::Receiver<Vec<u8>>, which| {
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_secs(1));
        stream.recv_timeout(left).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).map_err(|_| which)
    };
    Ok(Said {
        code: status.code(),
        out: text(&out, "the end of standard output")?,
        err: text(&err, "the end of standard error")?,
    })
}

fn read_aside(mut stream: impl Read + Send + 'static) -> mpsc::Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        sender.send(bytes)
    });
    receiver
}

/// Removes the worktree of an ended worker, as a person does. The supervisor writes the end of the session into it
/// after it has answered, so a directory may become non-empty while it is being removed.
#[track_caller]
pub fn remove_worktree(path: impl AsRef<Path>) {
    wait_until("the worktree is removed", SOON, || std::fs::remove_dir_all(path.as_ref()).is_ok());
}

/// Waits for a condition.
#[track_caller]
pub fn wait_until(what: &str, limit: Duration, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + limit;
    while !condition() {
        assert!(Instant::now() < deadline, "not within {limit:?}: {what}");
        std::thread::park_timeout(LOOK);
    }
}

/// Asserts that a condition holds all the time.
#[track_caller]
pub fn holds_for(what: &str, time: Duration, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        assert!(condition(), "no longer: {what}");
        std::thread::park_timeout(LOOK * 5);
    }
}

/// Asserts that something takes less than `limit` in one of three measurements. A loaded machine is slow now and
/// then; a defect is slow each time.
#[track_caller]
pub fn quick(what: &str, limit: Duration, mut measure: impl FnMut() -> Duration) {
    let mut slow = Vec::new();
    while slow.len() < QUICK_ROUNDS {
        let took = measure();
        if took < limit {
            return;
        }
        slow.push(took);
    }
    panic!("{what} took {slow:?}, never less than {limit:?}");
}

/// Runs `action` and returns how long it took.
pub fn timed(action: impl FnOnce()) -> Duration {
    let began = Instant::now();
    action();
    began.elapsed()
}

/// Reports on standard error that a test cannot run here. Bypasses the test harness, which hides what passing
/// tests print.
pub fn skipped(why: &str) {
    let _ = writeln!(std::io::stderr(), "skipped: {why}");
}

/// Number of voluntary context switches of a process, over all its threads.
pub fn wakes(pid: i32) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("runs").flatten();
    let count = |text: String| {
        let field = text.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        field.trim().parse::<u64>().ok()
    };
    tasks.filter_map(|task| count(std::fs::read_to_string(task.path().join("status")).ok()?)).sum()
}

/// Waits until none of these processes wakes for two seconds.
#[track_caller]
pub fn wait_quiet(pids: &[i32]) {
    let look = || pids.iter().map(|pid| wakes(*pid)).collect::<Vec<_>>();
    let (mut before, mut steady) = (look(), Instant::now());
    wait_until("nothing wakes for two seconds", SOON, || {
        let now = look();
        if now != before {
            (before, steady) = (now, Instant::now());
        }
        steady.elapsed() > Duration::from_secs(2)
    });
}

pub fn random() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/uuid").expect("readable").trim().replace('-', "")
}
