//! The guard: the supervisor's parent, which restarts the supervisor whenever it dies.
//!
//! The two watch each other. The guard reads a pipe whose writing end only the supervisor has: a message is an intended
//! end, end of file is a death. The supervisor watches the guard by a pidfd, and starts a new guard with a new pipe if
//! it dies. Therefore either may be killed at any instant, any number of times.
//!
//! A newer program replaces both: the supervisor ends with the path of that program as its message, and the guard
//! executes it. The new supervisor therefore has the place of the old one: its ancestors, control group and limits.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigHandler, SigSet, Signal, signal};

use swarm_sys::paths::Paths;
use swarm_sys::variables::{HOSTS, OF_A_WORKER};

/// Maximum number of failures of the supervisor within [`WINDOW`], after which the guard gives up. Kills do not count.
const FAILURES_MAX: usize = 5;
/// Period in which failures are counted.
const WINDOW: Duration = Duration::from_secs(10);
/// Number of kills within [`WINDOW`] after which restarts are delayed by [`KILLS_PAUSE`].
const KILLS_FREE: usize = 50;
/// Maximum time for which a killed supervisor may still hold its lock.
const DYING_MAX: Duration = Duration::from_secs(1);
/// Size in bytes at which `supervisor.log` is rotated.
const LOG_BYTES_MAX: u64 = 8 << 20;
/// Delay of restarts after many kills.
const KILLS_PAUSE: Duration = Duration::from_millis(500);
/// First and longest delay after a start that failed, for example because no process or thread can be created.
const START_PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(10)];

/// Exit code of a supervisor that could not start. A later start may succeed.
pub const NOT_STARTED: u8 = 75;

/// Content of the lock file, instead of the holder's pid, after a stop that a person requested.
const STOPPED: &[u8] = b"stopped\n";
/// The same after a stop because there was nothing left to supervise.
const IDLE: &[u8] = b"idle\n";
/// First byte of the message of an intended end.
const FAREWELL: u8 = b'b';
/// First byte of the message that another program must be executed. Its path follows.
const SUCCESSOR: u8 = b'p';

/// Runs `swarm __guard ROOT [adopt|late]`. With `adopt`, standard input is the pipe of a supervisor that is already
/// running. With `late`, the guard exits unless supervisor and guard have died.
pub fn main(mut arguments: impl Iterator<Item = OsString>) -> u8 {
    let Some(root) = arguments.next() else { return 2 };
    let mode = arguments.next();
    match run(Path::new(&root), mode.as_deref().and_then(OsStr::to_str)) {
        Ok(()) => 0,
        Err(error) => {
            let _ = writeln!(io::stderr(), "{{\"level\":\"ERROR\",\"message\":\"the guard ends: {error}\"}}");
            1
        }
    }
}

fn run(root: &Path, mode: Option<&str>) -> io::Result<()> {
    leave_the_caller()?;
    if mode == Some("late") && !is_needed(root) {
        return Ok(());
    }
    let adopts = mode == Some("adopt");
    let mut deaths = Deaths::default();
    let mut life = if adopts { Some((take_stdin()?, None)) } else { None };
    // The client that starts a guard reads from this pipe why the first supervisor cannot start. In that case the client
    // decides whether to try again, and the guard exits.
    let mut ready = Some(Stdio::inherit()).filter(|_| mode.is_none());
    loop {
        let is_first = ready.is_some();
        let (mut pipe, child) = match life.take() {
            Some(life) => life,
            None => match start_supervisor(root, ready.take().unwrap_or_else(Stdio::null)) {
                Ok((pipe, child)) => {
                    // The starter also waits for end of file on this pipe.
                    replace_stdout()?;
                    (pipe, Some(child))
                }
                Err(error) if is_first => return Err(error),
                Err(_) if swarm_sys::files::is_absent(root) => return Ok(()),
                Err(_) => {
                    std::thread::sleep(deaths.not_started());
                    continue;
                }
            },
        };
        crate::processes::memory::trim();
        let end = read_end(&mut pipe);
        let status = child.and_then(|mut child: Child| child.wait().ok());
        if end == End::Farewell || swarm_sys::files::is_absent(root) || is_stopped(root) {
            return Ok(());
        }
        if status.is_some_and(|status| status.code() == Some(NOT_STARTED.into())) {
            if is_first {
                return Ok(());
            }
            std::thread::sleep(deaths.not_started());
            continue;
        }
        if let End::ReplacedBy(program) = end {
            // Returns only on failure. This program then goes on.
            let error = Command::new(&program).arg0("swarm").arg("__guard").arg(root).stdin(Stdio::null()).exec();
            let _ = writeln!(
                io::stderr(),
                "{{\"level\":\"ERROR\",\"message\":\"cannot execute {}: {error}\"}}",
                program.display()
            );
            continue;
        }
        let killed = status.is_none_or(|status| status.signal() == Some(9));
        match deaths.verdict(killed, Instant::now()) {
            RestartDecision::Now => {}
            RestartDecision::Later(pause) => std::thread::sleep(pause),
            RestartDecision::GiveUp => return Err(io::Error::other("the supervisor failed too often")),
        }
    }
}

/// Starts a new session, so that no signals of a terminal arrive, and replaces the first caller's limits and attributes
/// by the user's.
fn leave_the_caller() -> io::Result<()> {
    let _ = nix::unistd::setsid();
    nix::unistd::chdir("/")?;
    nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o077));
    swarm_sys::attributes::reset();
    reset_signals()?;
    for resource in [
        Resource::RLIMIT_NOFILE,
        Resource::RLIMIT_FSIZE,
        Resource::RLIMIT_CPU,
        Resource::RLIMIT_AS,
        Resource::RLIMIT_DATA,
    ] {
        if let Ok((soft, hard)) = getrlimit(resource) {
            // If the hard limit cannot be raised, the soft limit is raised to it.
            let raised = resource != Resource::RLIMIT_NOFILE
                && hard != nix::libc::RLIM_INFINITY
                && setrlimit(resource, nix::libc::RLIM_INFINITY, nix::libc::RLIM_INFINITY).is_ok();
            if !raised && soft != hard {
                let _ = setrlimit(resource, hard, hard);
            }
        }
    }
    Ok(())
}

/// Undoes what the first caller, or the shim beside which the guard was started, blocks and ignores: the supervisor, tmux
/// servers and every command of a hook would inherit it.
fn reset_signals() -> io::Result<()> {
    // Not those that the runtime of the language handles or ignores itself.
    let own = [Signal::SIGPIPE, Signal::SIGSEGV, Signal::SIGBUS];
    let set = |each: Signal, handler: SigHandler| {
        // SAFETY: ignores, or restores the default; installs nothing. KILL and STOP refuse, rightly.
        #[expect(unsafe_code, reason = "sigaction is unsafe for handlers, of which this has none")]
        let _ = unsafe { signal(each, handler) };
    };
    // Discards those that a terminal sent while they were blocked: they are not for a process that has left it.
    for of_terminals in [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTSTP] {
        set(of_terminals, SigHandler::SigIgn);
    }
    SigSet::empty().thread_set_mask()?;
    Signal::iterator().filter(|each| !own.contains(each)).for_each(|each| set(each, SigHandler::SigDfl));
    Ok(())
}

fn start_supervisor(root: &Path, ready: Stdio) -> io::Result<(File, Child)> {
    // The supervisor inherits standard error, and an earlier one may have moved that log aside.
    let _ = bound_log(&Paths::new(root).supervisor_log());
    let (reader, writer) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC)?;
    let child = Command::new("/proc/self/exe")
        .arg0("swarm")
        .arg("__supervisor")
        .arg(root)
        .arg(std::process::id().to_string())
        .stdin(Stdio::from(writer))
        .stdout(ready)
        .spawn()?;
    Ok((File::from(reader), child))
}

fn take_stdin() -> io::Result<File> {
    Ok(File::from(io::stdin().as_fd().try_clone_to_owned()?))
}

fn replace_stdout() -> io::Result<()> {
    let null = OpenOptions::new().write(true).open("/dev/null")?;
    nix::unistd::dup2_stdout(&null)?;
    Ok(())
}

/// How the supervisor ended.
#[derive(Debug, PartialEq, Eq)]
enum End {
    /// It ended without a message.
    Death,
    Farewell,
    ReplacedBy(PathBuf),
}

fn read_end(pipe: &mut impl io::Read) -> End {
    let mut message = Vec::new();
    loop {
        let mut bytes = [0_u8; 512];
        match pipe.read(&mut bytes) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(0) | Err(_) => break,
            Ok(count) => message.extend_from_slice(&bytes[..count]),
        }
        if message.first() != Some(&SUCCESSOR) {
            break;
        }
    }
    match message.split_first() {
        None => End::Death,
        Some((&SUCCESSOR, path)) if !path.is_empty() => End::ReplacedBy(PathBuf::from(OsStr::from_bytes(path))),
        Some(_) => End::Farewell,
    }
}

/// Returns the message with which a supervisor tells its guard that it ends on purpose. With a `successor`, the guard
/// executes that program.
pub fn message(successor: Option<&Path>) -> Vec<u8> {
    match successor {
        None => vec![FAREWELL],
        Some(program) => [&[SUCCESSOR], program.as_os_str().as_bytes()].concat(),
    }
}

/// Checks that a guard may execute `program` in its place: a file of this user or of root, which others cannot write
/// and which was last written at `built_ns`, in nanoseconds since the Unix epoch.
///
/// # Errors
/// Returns the reason why it must not be executed.
pub fn check_program(program: &Path, built_ns: u64) -> Result<(), String> {
    let shown = program.display();
    let meta = std::fs::metadata(program).map_err(|error| format!("cannot read {shown}: {error}"))?;
    let (me, group) = (nix::unistd::getuid().as_raw(), nix::unistd::getgid().as_raw());
    if !program.is_absolute() || !meta.is_file() || meta.mode() & 0o111 == 0 {
        return Err(format!("{shown} is not a program"));
    }
    if meta.uid() != me && meta.uid() != 0 {
        return Err(format!("{shown} belongs to another user (uid {})", meta.uid()));
    }
    // The group of the user itself may write: many systems have one for each user.
    if meta.mode() & 0o002 != 0 || (meta.mode() & 0o020 != 0 && meta.gid() != group && meta.gid() != 0) {
        return Err(format!("{shown} is writable by other users"));
    }
    if crate::api::modified_ns(&meta) != built_ns {
        return Err(format!("{shown} has changed since it was started"));
    }
    Ok(())
}

/// Ends of supervisors that were not intended.
#[derive(Default)]
struct Deaths {
    /// Deaths within [`WINDOW`]: time, and whether the supervisor was killed.
    recent: VecDeque<(Instant, bool)>,
    /// Number of starts that failed, since the last one that did not.
    not_started: u32,
}

#[derive(Debug, PartialEq, Eq)]
enum RestartDecision {
    Now,
    Later(Duration),
    GiveUp,
}

impl Deaths {
    /// Counts a start that failed, and returns the time until the next one.
    fn not_started(&mut self) -> Duration {
        let [first, longest] = START_PAUSES;
        let pause = first.saturating_mul(1 << self.not_started.min(8)).min(longest);
        self.not_started += 1;
        pause
    }

    fn verdict(&mut self, killed: bool, now: Instant) -> RestartDecision {
        self.not_started = 0;
        self.recent.push_back((now, killed));
        self.recent.retain(|(at, _)| now.duration_since(*at) < WINDOW);
        let kills = self.recent.iter().filter(|(_, killed)| *killed).count();
        if self.recent.len() - kills > FAILURES_MAX {
            return RestartDecision::GiveUp;
        }
        if kills > KILLS_FREE { RestartDecision::Later(KILLS_PAUSE) } else { RestartDecision::Now }
    }
}

/// Starts a guard, which starts a supervisor. The supervisor writes to `ready` that it is listening, or why it cannot.
///
/// # Errors
/// Fails if no process can be created.
pub fn start(root: &Path, ready: Stdio) -> io::Result<Child> {
    command(root)?.stdin(Stdio::null()).stdout(ready).spawn()
}

/// Starts a guard for a running supervisor, which holds the other end of `pipe`.
///
/// # Errors
/// Fails if no process can be created.
pub fn start_for(root: &Path, pipe: Stdio) -> io::Result<Child> {
    command(root)?.arg("adopt").stdin(pipe).stdout(Stdio::null()).spawn()
}

fn command(root: &Path) -> io::Result<Command> {
    let log = open_log(&Paths::new(root).supervisor_log())?;
    let mut command = Command::new("/proc/self/exe");
    command.arg0("swarm").arg("__guard").arg(root).stderr(Stdio::from(log)).current_dir("/");
    for variable in OF_A_WORKER.into_iter().chain([HOSTS]) {
        command.env_remove(variable);
    }
    Ok(command)
}

/// Opens `supervisor.log`, and moves a large one aside before.
fn open_log(path: &Path) -> io::Result<File> {
    if std::fs::metadata(path).is_ok_and(|meta| meta.len() > LOG_BYTES_MAX) {
        let _ = std::fs::rename(path, aside(path));
    }
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}

/// Continues standard error in `supervisor.log` if it is an earlier one that was moved aside or deleted, and in a new
/// file if it has become too large.
///
/// # Errors
/// Fails if the new file cannot be opened; the old one is then still in use.
pub fn bound_log(path: &Path) -> io::Result<()> {
    let used = File::from(io::stderr().as_fd().try_clone_to_owned()?).metadata()?;
    let is_at =
        |path: &Path| std::fs::metadata(path).is_ok_and(|meta| (meta.dev(), meta.ino()) == (used.dev(), used.ino()));
    let is_stale = match is_at(path) {
        true => used.len() > LOG_BYTES_MAX,
        false => used.is_file() && (used.nlink() == 0 || is_at(&aside(path))),
    };
    if is_stale {
        nix::unistd::dup2_stderr(open_log(path)?)?;
    }
    Ok(())
}

fn aside(path: &Path) -> PathBuf {
    path.with_extension("log.1")
}

/// Becomes a guard: executes one in this process. The supervisor reports readiness to `ready`. Returns only on failure.
pub fn become_one(root: &Path, ready: Stdio) -> io::Error {
    command(root).map_or_else(|error| error, |mut command| command.stdin(Stdio::null()).stdout(ready).exec())
}

/// Starts a guard that stays only if there is no supervisor: used when work is due and both may have died. It leaves the
/// terminal of this process before that ends: the kernel then tells the processes of the terminal to end, too.
pub fn start_late(root: &Path) {
    let started = command(root).and_then(|mut command| {
        command.arg("late").stdin(Stdio::null()).stdout(Stdio::null());
        // SAFETY: setsid is async-signal-safe, and the closure does nothing else.
        #[expect(unsafe_code, reason = "the standard library has no stable call for this")]
        unsafe {
            command.pre_exec(|| nix::unistd::setsid().map(drop).map_err(io::Error::from))
        };
        command.spawn()
    });
    if let Err(error) = started {
        let _ = writeln!(io::stderr(), "swarm: error: cannot start a supervisor: {error}");
    }
}

/// Records in the lock file that its holder was stopped on request. The record stays until the next supervisor takes
/// the lock. Overwrites the existing content, so that a full disk has room for it.
pub fn mark_stopped(lock: &File) {
    if let Err(error) = mark(lock, STOPPED) {
        tracing::warn!(%error, "a worker's end may start a supervisor again");
    }
}

/// Records in the lock file that its holder ended because it was idle.
pub fn mark_idle(lock: &File) {
    if let Err(error) = mark(lock, IDLE) {
        tracing::warn!(%error, "a waiting command may start a supervisor again");
    }
}

fn mark(mut lock: &File, text: &[u8]) -> io::Result<()> {
    lock.seek(SeekFrom::Start(0)).and_then(|_| lock.write_all(text))
}

/// Reports whether the last supervisor ended because it was idle.
pub fn is_idle(root: &Path) -> bool {
    std::fs::read(Paths::new(root).supervisor_lock()).is_ok_and(|text| text.starts_with(IDLE))
}

/// Reports whether the last supervisor was stopped on request.
pub fn is_stopped(root: &Path) -> bool {
    std::fs::read(Paths::new(root).supervisor_lock()).is_ok_and(|text| text.starts_with(STOPPED))
}

/// Reports whether there is no supervisor although none was stopped on request.
fn is_needed(root: &Path) -> bool {
    is_alone(root) && !is_stopped(root)
}

/// Reports whether the supervisor's lock is free, or becomes free while the kernel still cleans up a killed supervisor.
fn is_alone(root: &Path) -> bool {
    let Ok(lock) = OpenOptions::new().read(true).write(true).open(Paths::new(root).supervisor_lock()) else {
        return false;
    };
    if lock.try_lock().is_ok() {
        return true;
    }
    let (sender, receiver) = std::sync::mpsc::channel();
    let waiting = std::thread::Builder::new().spawn(move || sender.send(swarm_sys::files::lock::lock(&lock).is_ok()));
    waiting.is_ok() && receiver.recv_timeout(DYING_MAX).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ending_worker_starts_a_supervisor_only_if_one_is_missing() {
        let dir = tempfile::tempdir().unwrap();
        let path = Paths::new(dir.path()).supervisor_lock();
        assert!(!is_needed(dir.path()), "there was never one");
        std::fs::write(&path, "4194304\n").unwrap();
        assert!(is_needed(dir.path()));
        mark_stopped(&OpenOptions::new().write(true).open(&path).unwrap());
        assert!(is_alone(dir.path()) && !is_needed(dir.path()));
    }

    #[test]
    fn a_message_tells_an_intended_end_from_a_death() {
        let path = Path::new("/opt/a b/swarm");
        assert_eq!(read_end(&mut io::empty()), End::Death);
        assert_eq!(read_end(&mut message(None).as_slice()), End::Farewell);
        assert_eq!(read_end(&mut message(Some(path)).as_slice()), End::ReplacedBy(path.to_owned()));
    }

    #[test]
    fn only_a_program_of_ours_that_nobody_else_writes_is_executed() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("swarm");
        std::fs::write(&program, "").unwrap();
        let set = |mode| std::fs::set_permissions(&program, std::fs::Permissions::from_mode(mode)).unwrap();
        set(0o755);
        let built_ns = crate::api::modified_ns(&std::fs::metadata(&program).unwrap());
        assert_eq!(check_program(&program, built_ns), Ok(()));
        assert!(check_program(&program, built_ns + 1).is_err(), "another build");
        set(0o757);
        assert!(check_program(&program, built_ns).unwrap_err().ends_with("writable by other users"));
        set(0o644);
        assert!(check_program(&program, built_ns).unwrap_err().ends_with("is not a program"));
        assert!(check_program(&dir.path().join("gone"), built_ns).is_err());
        assert!(check_program(dir.path(), built_ns).is_err());
    }

    #[test]
    fn kills_are_forgiven_and_crashes_are_counted() {
        let mut deaths = Deaths::default();
        let now = Instant::now();
        for _ in 0..KILLS_FREE {
            assert_eq!(deaths.verdict(true, now), RestartDecision::Now);
        }
        assert_eq!(deaths.verdict(true, now), RestartDecision::Later(KILLS_PAUSE));
        for _ in 0..FAILURES_MAX {
            assert_ne!(deaths.verdict(false, now), RestartDecision::GiveUp);
        }
        assert_eq!(deaths.verdict(false, now), RestartDecision::GiveUp);
        assert_eq!(deaths.verdict(false, now + WINDOW), RestartDecision::Now);
    }

    #[test]
    fn starts_that_fail_are_repeated_with_growing_pauses() {
        let mut deaths = Deaths::default();
        let pauses: Vec<u64> = (0..6).map(|_| deaths.not_started().as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 10, 10]);
        assert_eq!(deaths.verdict(true, Instant::now()), RestartDecision::Now);
        assert_eq!(deaths.not_started(), START_PAUSES[0], "after a supervisor that had started");
    }
}
