//! The guard: the supervisor's parent, which starts it again whenever it dies.
//!
//! The two watch each other. A pipe whose writing end only the supervisor has
//! tells the guard: one byte is a farewell, end of file is a death. A pidfd
//! tells the supervisor of the guard's death, and it starts a new guard with a
//! new pipe. So either may be killed at any instant, any number of times.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use swarm_sys::paths::Paths;

/// Restart intensity: more deaths of its own making than this …
const FAILURES_MAX: usize = 5;
/// … within this time, and the guard gives up. Being killed does not count.
const WINDOW: Duration = Duration::from_secs(10);
/// Kills in the window after which a restart waits a moment.
const KILLS_FREE: usize = 50;
/// How long a killed supervisor may hold its lock still.
const DYING_MAX: Duration = Duration::from_secs(1);
/// Size at which `supervisor.log` is put aside when the next guard starts.
const LOG_BYTES_MAX: u64 = 8 << 20;
const KILLS_PAUSE: Duration = Duration::from_millis(500);

/// What the lock's file says after a stop that a person asked for, in the place of
/// the holder's number.
const STOPPED: &[u8] = b"stopped\n";

/// `swarm __guard ROOT [adopt|late]`: with `adopt`, standard input is the pipe of
/// a supervisor that runs already; with `late` it is only for the case that the
/// others died.
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
    let mut ready = Some(Stdio::inherit());
    loop {
        let (mut pipe, child) = match life.take() {
            Some(life) => life,
            None => {
                let (pipe, child) = start_supervisor(root, ready.take().unwrap_or_else(Stdio::null))?;
                // The starter waits for end of file on this pipe, too.
                replace_stdout()?;
                (pipe, Some(child))
            }
        };
        crate::processes::memory::trim();
        let said_farewell = matches!(read_byte(&mut pipe), Ok(1));
        let killed = child.is_none_or(|mut child: Child| child.wait().is_ok_and(|status| status.signal() == Some(9)));
        if said_farewell || !root.is_dir() || is_stopped(root) {
            return Ok(());
        }
        match deaths.verdict(killed, Instant::now()) {
            Verdict::Now => {}
            Verdict::Later(pause) => std::thread::sleep(pause),
            Verdict::GiveUp => return Err(io::Error::other("the supervisor ended too often by itself")),
        }
    }
}

/// A session of its own, so that no terminal's signals arrive; and limits that
/// are the user's, not the first caller's.
fn leave_the_caller() -> io::Result<()> {
    let _ = nix::unistd::setsid();
    nix::unistd::chdir("/")?;
    nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o077));
    for resource in [
        Resource::RLIMIT_NOFILE,
        Resource::RLIMIT_FSIZE,
        Resource::RLIMIT_CPU,
        Resource::RLIMIT_AS,
        Resource::RLIMIT_DATA,
    ] {
        if let Ok((soft, hard)) = getrlimit(resource) {
            // Only who may raise a hard limit can; then the soft one goes up to it.
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

fn start_supervisor(root: &Path, ready: Stdio) -> io::Result<(File, Child)> {
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

fn read_byte(pipe: &mut File) -> io::Result<usize> {
    loop {
        match pipe.read(&mut [0_u8; 1]) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            read => return read,
        }
    }
}

/// Deaths within the window.
#[derive(Default)]
struct Deaths(VecDeque<(Instant, bool)>);

#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Now,
    Later(Duration),
    GiveUp,
}

impl Deaths {
    fn verdict(&mut self, killed: bool, now: Instant) -> Verdict {
        self.0.push_back((now, killed));
        self.0.retain(|(at, _)| now.duration_since(*at) < WINDOW);
        let kills = self.0.iter().filter(|(_, killed)| *killed).count();
        if self.0.len() - kills > FAILURES_MAX {
            return Verdict::GiveUp;
        }
        if kills > KILLS_FREE { Verdict::Later(KILLS_PAUSE) } else { Verdict::Now }
    }
}

/// Starts a guard, which starts a supervisor. `ready` is where the supervisor
/// says that it listens, or why it cannot.
///
/// # Errors
/// When no process can be made.
pub fn start(root: &Path, ready: Stdio) -> io::Result<Child> {
    command(root)?.stdin(Stdio::null()).stdout(ready).spawn()
}

/// Starts a guard for a supervisor that runs already, over the pipe it holds.
///
/// # Errors
/// When no process can be made.
pub fn start_for(root: &Path, pipe: Stdio) -> io::Result<Child> {
    command(root)?.arg("adopt").stdin(pipe).stdout(Stdio::null()).spawn()
}

fn command(root: &Path) -> io::Result<Command> {
    let path = Paths::new(root).supervisor_log();
    if std::fs::metadata(&path).is_ok_and(|meta| meta.len() > LOG_BYTES_MAX) {
        let _ = std::fs::rename(&path, path.with_extension("log.1"));
    }
    let log = OpenOptions::new().append(true).create(true).mode(0o600).open(&path)?;
    let mut command = Command::new("/proc/self/exe");
    command.arg0("swarm").arg("__guard").arg(root).stderr(Stdio::from(log)).current_dir("/");
    Ok(command)
}

/// Starts a guard that stays only when it finds no supervisor: the others died
/// together, and something is due.
pub fn start_late(root: &Path) {
    let started =
        command(root).and_then(|mut command| command.arg("late").stdin(Stdio::null()).stdout(Stdio::null()).spawn());
    if let Err(error) = started {
        let _ = writeln!(io::stderr(), "swarm: error: no supervisor could be started: {error}");
    }
}

/// Says in the lock's file that the end of its holder was asked for. It stands until
/// the next supervisor has the lock. Over what is there, so that a full disk has
/// room for it.
pub fn mark_stopped(mut lock: &File) {
    if let Err(error) = lock.seek(SeekFrom::Start(0)).and_then(|_| lock.write_all(STOPPED)) {
        tracing::warn!(%error, "a worker's end may start a supervisor again");
    }
}

/// Whether the last supervisor ended because a person wanted that.
pub fn is_stopped(root: &Path) -> bool {
    std::fs::read(Paths::new(root).supervisor_lock()).is_ok_and(|text| text.starts_with(STOPPED))
}

/// Whether there is no supervisor although nobody wanted that.
fn is_needed(root: &Path) -> bool {
    is_alone(root) && !is_stopped(root)
}

/// Whether the supervisor's lock is free, or becomes so while a supervisor that
/// was killed is still being taken apart.
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
    fn a_worker_that_ends_starts_a_supervisor_only_where_one_is_missed() {
        let dir = tempfile::tempdir().unwrap();
        let path = Paths::new(dir.path()).supervisor_lock();
        assert!(!is_needed(dir.path()), "there was never one");
        std::fs::write(&path, "4194304\n").unwrap();
        assert!(is_needed(dir.path()));
        mark_stopped(&OpenOptions::new().write(true).open(&path).unwrap());
        assert!(is_alone(dir.path()) && !is_needed(dir.path()));
    }

    #[test]
    fn kills_are_forgiven_and_crashes_are_counted() {
        let mut deaths = Deaths::default();
        let now = Instant::now();
        for _ in 0..KILLS_FREE {
            assert_eq!(deaths.verdict(true, now), Verdict::Now);
        }
        assert_eq!(deaths.verdict(true, now), Verdict::Later(KILLS_PAUSE));
        for _ in 0..FAILURES_MAX {
            assert_ne!(deaths.verdict(false, now), Verdict::GiveUp);
        }
        assert_eq!(deaths.verdict(false, now), Verdict::GiveUp);
        assert_eq!(deaths.verdict(false, now + WINDOW), Verdict::Now);
    }
}
