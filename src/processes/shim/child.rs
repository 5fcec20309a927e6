//! The worker's own process: forked early, executed only after the start is committed.

use std::ffi::{CString, OsStr};
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::{SigHandler, SigSet, Signal, signal};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid};
use rustix::process::{WaitOptions, wait};
use swarm_model::{Ended, Rlimit, Spec};

use super::worktree;
use swarm_sys::attributes;
use swarm_sys::cgroups::Groups;
use swarm_sys::variables::{OF_A_WORKER, RECORDS};

/// Variables of git that would point the worker at its caller's repository.
const GIT_POINTERS: [&str; 3] = ["GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE"];
/// Variable with the directory of the worker's own session, not that of its caller.
const SESSION: &str = "SWARM_SESSION";
/// Variable with a port that no other worker has.
const PORT: &str = "SWARM_PORT";
/// Variables that are taken from the pane, not from the caller.
const OF_THE_PANE: [&str; 3] = ["TERM", "TMUX", "TMUX_PANE"];

/// Variable with the directory of tmux's sockets. It names no window, and without it a worker finds other servers than
/// its caller.
const TMUX_DIRECTORY: &str = "TMUX_TMPDIR";

/// First character of a line of the child's report that is only a warning.
const WARNING: char = '\u{1}';
/// Names of the resource limits, by number.
const LIMITS: [&str; 16] = [
    "cpu",
    "fsize",
    "data",
    "stack",
    "core",
    "rss",
    "nproc",
    "nofile",
    "memlock",
    "as",
    "locks",
    "sigpending",
    "msgqueue",
    "nice",
    "rtprio",
    "rttime",
];

pub struct Child {
    pid: Pid,
    gate: Option<File>,
    report: File,
    ended: Option<Ended>,
    opened: Option<Instant>,
    /// The child leads its own session and process group.
    leads: bool,
    /// First byte of the report if the child could enter all of its control groups; `None` once that was checked.
    entry: Option<u8>,
    /// A control group may refuse the child.
    may_be_refused: bool,
}

/// Everything that the child needs, prepared while the start is being committed.
struct Launch {
    argv: Vec<CString>,
    environment: Vec<CString>,
    /// Possible paths of the command, in the order of PATH.
    candidates: Vec<CString>,
    cwd: PathBuf,
    pending: PathBuf,
    spec: PathBuf,
    /// Standard input, output and error; `None` in a pane, which has its own.
    streams: Option<[File; 3]>,
    umask: u32,
    rlimits: Vec<Rlimit>,
    nice: i32,
    /// Messages about attributes of the caller that the child could not take over.
    warnings: Vec<String>,
    /// Limit of the address space of each process in bytes, if no control group limits the memory.
    memory_bytes: Option<u64>,
}

impl Child {
    /// Forks the child, which enters its groups and waits at its gate.
    pub fn fork(dir: &Path, in_tmux: bool, groups: &Groups) -> io::Result<Self> {
        let (gate_in, gate_out) = pipe()?;
        let (report_in, report_out) = pipe()?;
        let (forked, born) = groups.fork()?;
        match forked {
            ForkResult::Child => {
                drop((gate_out, report_in));
                let mut report = File::from(report_out);
                let entered = groups.enter(&born);
                if !groups.is_none() {
                    let _ = report.write_all(&[entered]);
                }
                let launch = super::files::read_spec()
                    .map_err(|error| format!("cannot read the launch contract: {error}"))
                    .and_then(|spec| Launch::of(dir, &spec, groups, entered).map_err(|error| error.to_string()));
                let failure = match launch {
                    Ok(launch) => launch.run(File::from(gate_in), &mut report),
                    Err(failure) => failure,
                };
                let _ = report.write_all(failure.as_bytes());
                // SAFETY: ends the child without running the parent's exit handlers.
                #[expect(unsafe_code, reason = "the standard library runs them")]
                unsafe {
                    libc::_exit(127)
                }
            }
            ForkResult::Parent { child } => Ok(Self {
                pid: child,
                gate: Some(File::from(gate_out)),
                report: File::from(report_in),
                ended: None,
                opened: None,
                leads: !in_tmux,
                entry: (!groups.is_none()).then(|| groups.all()),
                may_be_refused: groups.may_refuse(&born),
            }),
        }
    }

    pub fn pid(&self) -> i32 {
        self.pid.as_raw()
    }

    pub fn may_be_refused(&self) -> bool {
        self.may_be_refused
    }

    /// Waits for the child's report, and returns the control groups that it could enter as bits; 0 if it is gone
    /// already.
    pub fn entered(&mut self) -> u8 {
        let mut bits = [0_u8];
        self.entry = None;
        self.report.read_exact(&mut bits).map_or(0, |()| bits[0])
    }

    pub fn ended(&self) -> Option<Ended> {
        self.ended
    }

    /// Signals the worker's process group, and wakes stopped processes. Returns false if the group is not certainly
    /// this worker's: once the leader was waited for, its pid may be reused.
    pub fn signal_group(&self, to_send: Signal) -> bool {
        use nix::sys::signal::killpg;
        self.leads
            && self.ended.is_none()
            && killpg(self.pid, to_send).is_ok()
            && killpg(self.pid, Signal::SIGCONT).is_ok()
    }

    pub fn up_ms(&self) -> u64 {
        self.opened.map_or(0, |at| u64::try_from(at.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    /// Lets the child execute, and waits for the result: the report pipe closes by itself when the exec succeeds.
    /// Returns the child's warnings.
    ///
    /// # Errors
    /// Returns the child's description of the failure; nothing was executed.
    pub fn open_gate(&mut self) -> Result<Vec<String>, String> {
        if let Some(all) = self.entry
            && self.entered() != all
        {
            // The child exits when the gate is closed.
            drop(self.gate.take());
            let _ = waitpid(self.pid, None);
            return Err("the worker's process could not enter its control groups".to_owned());
        }
        let gate = self.gate.take().ok_or("the gate was opened before")?;
        self.opened = Some(Instant::now());
        let mut gate = gate;
        // A child that is gone already has reported why.
        let _ = gate.write_all(b"g");
        drop(gate);
        let mut report = String::new();
        self.report.read_to_string(&mut report).map_err(|error| error.to_string())?;
        let (warnings, mut failure) = parts(&report);
        // The report is empty after an exec, and also if the child was killed at its gate. Only an exec gives the contract
        // this name.
        if failure.is_empty() && Path::new("spec.json").exists() {
            return Ok(warnings);
        }
        if failure.is_empty() {
            failure.push_str("the worker's process was killed before it could start");
        }
        let _ = waitpid(self.pid, None);
        Err(failure)
    }

    /// Closes the gate: the child exits without executing.
    pub fn give_up(mut self) {
        drop(self.gate.take());
        let _ = waitpid(self.pid, None);
    }

    /// Reaps every child that has ended, including orphans of the tree, because the shim is their subreaper. Returns
    /// false if there are no children.
    pub fn reap(&mut self) -> bool {
        loop {
            // Not nix's waitpid: it reaps a child that died by a real-time signal and then returns an error.
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid.as_raw_nonzero().get() == self.pid.as_raw() => {
                    let signalled = status.terminating_signal().map(Ended::Signal);
                    self.ended = signalled.or(status.exit_status().map(Ended::Code)).or(self.ended);
                }
                Ok(Some(_)) | Err(rustix::io::Errno::INTR) => {}
                Ok(None) => return true,
                Err(error) => return error != rustix::io::Errno::CHILD,
            }
        }
    }
}

impl Launch {
    fn of(dir: &Path, spec: &Spec, groups: &Groups, entered: u8) -> io::Result<Self> {
        let contract = &spec.contract;
        let in_tmux = contract.tmux.is_some();
        let cwd = spec.worktree.as_ref().map_or_else(|| PathBuf::from(&contract.cwd), |tree| PathBuf::from(&tree.path));
        let mut environment = environment(spec, &cwd);
        if spec.hooked.is_some() {
            environment.push((RECORDS.to_owned(), dir.to_string_lossy().into_owned()));
        }
        if spec.worktree.is_some() {
            worktree::set_ceiling(&cwd, &mut environment);
        }
        let path =
            environment.iter().find(|(key, _)| key == "PATH").map_or("/usr/bin:/bin", |(_, value)| value.as_str());
        let (argv, held_back) = match worktree::held_back(spec).map_err(io::Error::other)? {
            Some((argv, warning)) => (argv, Some(warning)),
            None => (spec.argv().to_vec(), None),
        };
        let program = argv.first().ok_or_else(|| io::Error::other("no command provided"))?;
        let text = |text: String| CString::new(text).map_err(io::Error::other);
        let streams = if in_tmux { None } else { Some(streams(dir, spec)?) };
        Ok(Self {
            candidates: candidates(program, path).into_iter().map(text).collect::<io::Result<_>>()?,
            argv: argv.into_iter().map(text).collect::<io::Result<_>>()?,
            environment: environment
                .into_iter()
                .map(|(key, value)| text(format!("{key}={value}")))
                .collect::<io::Result<_>>()?,
            cwd,
            pending: dir.join("spec.pending"),
            spec: dir.join("spec.json"),
            streams,
            umask: contract.umask,
            rlimits: contract.rlimits.clone(),
            nice: contract.nice,
            // Now, while the start is being committed. Nothing that the child still does depends on it.
            warnings: held_back.into_iter().chain(attributes::assume(&contract.attributes)).collect(),
            memory_bytes: contract.limits.memory_bytes.filter(|_| !groups.hold_memory(entered)),
        })
    }

    /// Runs in the child. Returns only on failure, with the reason, which is empty if the gate was never opened.
    fn run(mut self, mut gate: File, report: &mut File) -> String {
        let said = |step: &str, error: Errno| format!("cannot {step}: {}", error.desc());
        if self.streams.is_some()
            && let Err(error) = nix::unistd::setsid()
        {
            return said("start a session", error);
        }
        let mut byte = [0_u8; 1];
        if gate.read_exact(&mut byte).is_err() {
            return String::new();
        }
        drop(gate);
        if let Err(error) = nix::unistd::chdir(&self.cwd) {
            return said(&format!("enter {}", self.cwd.display()), error);
        }
        if let Some([input, output, errors]) = &self.streams {
            for (file, number) in [(input, 0), (output, 1), (errors, 2)] {
                // SAFETY: replaces a standard stream of this child, which nothing else uses.
                #[expect(unsafe_code, reason = "dup2 onto a fixed number has no owner")]
                if unsafe { libc::dup2(file.as_raw_fd(), number) } < 0 {
                    return said("connect the standard streams", Errno::last());
                }
            }
        }
        if let Err(failure) = self.become_the_caller() {
            return failure;
        }
        for warning in &self.warnings {
            let _ = report.write_all(format!("{WARNING}{warning}\n").as_bytes());
        }
        // Last step before the exec: from here on the command counts as executed.
        if let Err(error) = std::fs::rename(&self.pending, &self.spec) {
            return format!("cannot mark the start: {error}");
        }
        let error = self.exec();
        let _ = std::fs::rename(&self.spec, &self.pending);
        match error {
            Errno::ENOENT => format!("command not found: {}", self.argv[0].to_string_lossy()),
            error => format!("cannot execute {}: {}", self.argv[0].to_string_lossy(), error.desc()),
        }
    }

    /// Restores the caller's limits, priority and umask, and the default signal dispositions.
    fn become_the_caller(&mut self) -> Result<(), String> {
        self.warnings.extend(self.rlimits.iter().filter_map(set_limit));
        if let Some(bytes) = self.memory_bytes {
            limit_memory(bytes);
        }
        // Also if it is 0: the supervisor may have been started with another niceness.
        if let Err(error) = rustix::process::setpriority_process(None, self.nice) {
            self.warnings.push(format!("the worker does not have the caller's niceness ({}): {error}", self.nice));
        }
        nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(self.umask));
        for each in Signal::iterator() {
            // SAFETY: restores the default, installs nothing. KILL and STOP refuse, rightly.
            #[expect(unsafe_code, reason = "sigaction is unsafe for handlers, of which this has none")]
            let _ = unsafe { signal(each, SigHandler::SigDfl) };
        }
        SigSet::empty().thread_set_mask().map_err(|error| format!("cannot unblock signals: {}", error.desc()))
    }

    /// Searches PATH as `execvp` does: a file that may not be executed is remembered, and the search continues.
    fn exec(&self) -> Errno {
        let mut worst = Errno::ENOENT;
        for candidate in &self.candidates {
            let Err(error) = nix::unistd::execve(candidate, &self.argv, &self.environment);
            match error {
                Errno::ENOENT | Errno::ENOTDIR => {}
                Errno::EACCES => worst = error,
                _ => return error,
            }
        }
        worst
    }
}

/// Sets a limit, or the nearest value that is allowed. Returns a message if the limit is lower than it was asked for: a
/// limit that may not be raised is no reason to run nothing.
fn set_limit(limit: &Rlimit) -> Option<String> {
    let set = |value: &libc::rlimit| {
        // SAFETY: the structure is complete and lives through the call.
        #[expect(unsafe_code, reason = "limits travel by number, which nix has no call for")]
        let done = unsafe { libc::setrlimit(limit.resource, value) };
        if done == 0 { Ok(()) } else { Err(Errno::last()) }
    };
    let Err(error) = set(&libc::rlimit { rlim_cur: limit.soft, rlim_max: limit.hard }) else { return None };
    let mut now = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure is complete and lives through the call.
    #[expect(unsafe_code, reason = "limits travel by number, which nix has no call for")]
    let read = unsafe { libc::getrlimit(limit.resource, &raw mut now) };
    if read == 0 {
        let hard = now.rlim_max.min(limit.hard);
        let _ = set(&libc::rlimit { rlim_cur: limit.soft.min(hard), rlim_max: hard });
    }
    let name = usize::try_from(limit.resource).ok().and_then(|at| LIMITS.get(at)).unwrap_or(&"unknown");
    Some(format!("the worker does not have the caller's limit '{name}': {}", error.desc()))
}

/// Separates the child's warnings from its description of a failure.
fn parts(report: &str) -> (Vec<String>, String) {
    let (warnings, rest): (Vec<&str>, Vec<&str>) =
        report.split_inclusive('\n').partition(|line| line.starts_with(WARNING));
    let warnings = warnings.iter().map(|line| line.trim_start_matches(WARNING).trim_end().to_owned()).collect();
    (warnings, rest.concat())
}

/// Limits the writable private memory of this process and its descendants; never raises the present limit.
///
/// The address space (`RLIMIT_AS`) is not limited: Node.js reserves gigabytes of it that it never uses, and would not
/// start.
fn limit_memory(bytes: u64) {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let (soft, hard) = getrlimit(Resource::RLIMIT_DATA).unwrap_or((libc::RLIM_INFINITY, libc::RLIM_INFINITY));
    let _ = setrlimit(Resource::RLIMIT_DATA, soft.min(bytes), hard.min(bytes));
}

fn candidates(program: &str, path: &str) -> Vec<String> {
    if program.contains('/') {
        return vec![program.to_owned()];
    }
    path.split(':')
        .map(|dir| if dir.is_empty() { format!("./{program}") } else { format!("{dir}/{program}") })
        .collect()
}

/// Returns the environment of the worker: the caller's without misleading variables, and that of `--env`.
fn environment(spec: &Spec, cwd: &Path) -> Vec<(String, String)> {
    let contract = &spec.contract;
    let in_tmux = contract.tmux.is_some();
    let foreign = |key: &str| {
        // A worker may have started this one: its task, its run and its session are not this one's.
        GIT_POINTERS.contains(&key)
            || OF_A_WORKER.contains(&key)
            || (key.starts_with("TMUX") && key != TMUX_DIRECTORY)
            || (in_tmux && OF_THE_PANE.contains(&key))
    };
    let mut all: Vec<(String, String)> =
        contract.environment.iter().filter(|(key, _)| !foreign(key)).cloned().collect();
    let mut set = |key: &str, value: String| {
        all.retain(|(other, _)| other != key);
        all.push((key.to_owned(), value));
    };
    for (key, value) in super::alone::variables(spec).iter().chain(contract.private.iter()) {
        set(key, value.clone());
    }
    set("PWD", cwd.to_string_lossy().into_owned());
    for (key, value) in &contract.env {
        set(key, value.clone());
    }
    if in_tmux {
        for key in OF_THE_PANE {
            if let Ok(value) = std::env::var(key) {
                set(key, value);
            }
        }
    }
    if let Some(prompt) = spec.resume.as_ref().and_then(|resume| resume.prompt.clone()) {
        set("SWARM_RECOVERY", prompt);
    }
    if let Some(port) = contract.port.filter(|_| !contract.env.contains_key(PORT)) {
        set(PORT, port.to_string());
    }
    if let Some(session) = spec.session() {
        set(SESSION, session.dir);
    }
    if let Some(origin) = &contract.origin {
        set("SWARM_DEPTH", origin.depth.to_string());
    }
    set("SWARM_WORKER", spec.name.clone());
    set("SWARM_TOKEN", spec.token.clone());
    all
}

/// Opens the standard streams. The child writes directly to files, so the death of the shim breaks no pipe.
fn streams(dir: &Path, spec: &Spec) -> io::Result<[File; 3]> {
    let logs = dir.parent().and_then(Path::parent).ok_or_else(|| io::Error::other("no state directory"))?.join("logs");
    let open = |name: Option<&String>| {
        let name = name.ok_or_else(|| io::Error::other("the contract names no log"))?;
        let path = logs.join(OsStr::from_bytes(name.as_bytes()));
        let opened = OpenOptions::new().append(true).create(true).mode(0o600).open(&path);
        let told = |error: io::Error| io::Error::new(error.kind(), format!("cannot open {}: {error}", path.display()));
        opened.map_err(told)
    };
    Ok([File::open("/dev/null")?, open(spec.logs.first())?, open(spec.logs.get(1))?])
}

fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_may_not_be_set_is_a_warning() {
        // The kernel allows nobody so many files.
        let files = Rlimit { resource: 7, soft: u64::MAX, hard: u64::MAX };
        let warning = set_limit(&files).expect("a warning");
        assert!(warning.starts_with("the worker does not have the caller's limit 'nofile': "), "{warning}");
    }

    #[test]
    fn warnings_of_the_child_are_no_failure() {
        let report = format!("{WARNING}one\n{WARNING}two\ncannot execute x: y");
        assert_eq!(parts(&report), (vec!["one".to_owned(), "two".to_owned()], "cannot execute x: y".to_owned()));
        assert_eq!(parts(""), (Vec::new(), String::new()));
    }
}
