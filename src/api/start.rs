//! Start and replacement of the supervisor by a client.
//!
//! - No supervisor, and the client is in no worker: it starts a guard.
//! - No supervisor, and the client is in a worker: the shim starts a guard beside itself, outside of the worker.
//! - An older supervisor: its guard executes the client's program. If the guard cannot, a client in no worker ends the
//!   supervisor and starts a guard; a client in a worker, in other namespaces or in a sandbox, is refused.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, Inotify};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use rustix::process::{Signal, pidfd_send_signal};
use swarm_actors::registry::store;
use swarm_model::{Machine, ProcessId, Refusal, RefusalKind};

use super::client::{After, connect, hello, internal, nobody, post_replace, stop};
use super::enclosing::Enclosing;
use crate::processes::{shim, supervisor};
use swarm_sys::allocation::Allocation;
use swarm_sys::files::lock;
use swarm_sys::paths::Paths;
use swarm_sys::quoting::command_line;
use swarm_sys::restraints::Restraints;
use swarm_sys::{attributes, logind, machine, processes, procfs, watching};

/// Maximum time for a supervisor to start and to adopt all workers.
const START_MAX: Duration = Duration::from_secs(20);
/// Maximum time for which another command may hold the start lock: it ends a supervisor, and then starts one, again if
/// that was killed at once.
const TURN_MAX: Duration = Duration::from_secs(END_MAX.as_secs() + 2 * START_MAX.as_secs());
/// Pause before a supervisor is started again.
const AGAIN_PAUSE: Duration = Duration::from_millis(20);
/// Minimum file size limit of a supervisor in bytes, for the registry and the records.
const SUPERVISOR_FILE_BYTES_MIN: u64 = 64 << 20;
/// Maximum time for the old supervisor to end.
const END_MAX: Duration = Duration::from_secs(10);

/// Starts a supervisor unless another command has started one in the meantime. A lock serializes concurrent commands.
pub fn start(paths: &Paths) -> Result<UnixStream, Refusal> {
    let failed = |step: &str, error: &io::Error| Refusal::new(RefusalKind::Internal, format!("cannot {step}: {error}"));
    check_owner(paths)?;
    make_dirs(paths).map_err(|error| failed(&format!("create {}", paths.root().display()), &error))?;
    if is_in_step() {
        return await_allocation(paths);
    }
    let enclosing = Enclosing::find(paths);
    // The shim has the limits of its supervisor, not those of its worker.
    if enclosing == Enclosing::None {
        check_limits()?;
    }
    let _turn = take_turn(paths).map_err(|error| failed("lock the start of the supervisor", &error))?;
    let deadline = Instant::now() + START_MAX;
    loop {
        match connect(paths) {
            Ok(stream) => return Ok(stream),
            Err(error) if nobody(&error) => {}
            Err(error) => return Err(internal(&error.to_string())),
        }
        let said = match &enclosing {
            Enclosing::None => start_here(paths).map_err(|error| failed("start the supervisor", &error))?,
            Enclosing::Worker { name, dir, shim } => start_beside(name, dir, shim)?,
            Enclosing::Sandbox { name } => return Err(refused_in(name, "its process namespace is not the shim's")),
        };
        // Retry if a supervisor that another guard has just started holds the lock, or if the new one was killed before
        // it printed anything.
        let again = said.is_empty() || said.contains(supervisor::ANOTHER);
        if said != "ready" && (!again || Instant::now() > deadline) {
            // An unreadable registry is reported with the same message as by commands that only read.
            if let Err(error) = store::load(&paths.state()) {
                return Err(swarm_actors::worker::of_store(&error));
            }
            if let Ok(Some(other)) = machine::other_holder(paths) {
                return Err(held_by(&other, paths));
            }
            let cause = said.strip_prefix("error ").unwrap_or("no reason given").to_owned();
            let remedy = format!("see {}", paths.supervisor_log().display());
            return Err(
                Refusal::new(RefusalKind::Internal, format!("the supervisor cannot start: {cause}")).remedy(remedy)
            );
        }
        if said != "ready" {
            // A shim that cannot start a guard answers at once.
            std::thread::sleep(AGAIN_PAUSE);
        }
    }
}

/// Reports whether this process belongs to an allocation of a batch system, and is not the job that keeps its supervisor. What
/// it starts may end with it.
fn is_in_step() -> bool {
    Allocation::of_this().is_some() && std::env::var_os(supervisor::STAY).is_none()
}

/// Waits for the supervisor that the job of the allocation keeps running.
fn await_allocation(paths: &Paths) -> Result<UnixStream, Refusal> {
    let deadline = Instant::now() + START_MAX;
    loop {
        match connect(paths) {
            Err(error) if nobody(&error) && Instant::now() < deadline => std::thread::sleep(AGAIN_PAUSE),
            connected => {
                let gone = "the supervisor of the allocation does not answer";
                let remedy = format!("see {}", paths.supervisor_log().display());
                return connected.map_err(|error| internal(&format!("{gone}: {error}")).remedy(remedy));
            }
        }
    }
}

/// Refusal while the supervisor of another machine serves a shared state directory.
pub fn held_by(other: &Machine, paths: &Paths) -> Refusal {
    let Machine { host, .. } = other;
    let cause = format!("the supervisor of machine '{host}' serves {}", paths.root().display());
    Refusal::new(RefusalKind::Internal, cause).remedy(format!(
        "run this on '{host}', set SWARM_DIR to a directory of this machine, or run 'swarm recover --gone {host}' if \
         that machine is gone for good"
    ))
}

fn start_here(paths: &Paths) -> io::Result<String> {
    let (reader, writer) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC)?;
    crate::processes::guard::start(paths.root(), Stdio::from(writer))?;
    Ok(read_ready(&File::from(reader), None))
}

/// Has the shim start a guard as its sibling. Returns the supervisor's first line.
///
/// # Errors
/// Fails if the shim does not know the request, is stopped, or does not answer in time.
fn start_beside(name: &str, dir: &Path, shim: &ProcessId) -> Result<String, Refusal> {
    let failed = |error: io::Error| internal(&format!("worker '{name}': {error}"));
    let boot = procfs::boot_id();
    let Some(fd) = processes::pidfd(shim, &boot).map_err(failed)? else {
        return Err(refused_in(name, "its shim has just ended"));
    };
    if !shim::starts_supervisors(shim.pid) {
        return Err(refused_in(name, "its shim is an older build"));
    }
    if procfs::stat(shim.pid).is_some_and(|stat| stat.is_suspended()) {
        return Err(refused_in(name, &format!("its shim (pid {}) is stopped", shim.pid)));
    }
    let ready = ReadyPipe::make(dir).map_err(failed)?;
    pidfd_send_signal(&fd, Signal::USR1).map_err(|error| failed(error.into()))?;
    Ok(read_ready(&ready.reader, Some(&fd)))
}

/// Refuses to start a supervisor that would end with the worker.
fn refused_in(name: &str, why: &str) -> Refusal {
    let cause = format!("no supervisor can be started from inside worker '{name}': {why}");
    Refusal::new(RefusalKind::Internal, cause)
        .remedy(format!("run 'swarm supervisor start' outside of worker '{name}'"))
}

/// Named pipe in the directory of a generation, on which a supervisor that the shim starts reports its readiness.
/// Removed when dropped.
struct ReadyPipe {
    reader: File,
    path: std::path::PathBuf,
}

impl ReadyPipe {
    fn make(dir: &Path) -> io::Result<Self> {
        let path = dir.join(shim::READY_PIPE);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRUSR | nix::sys::stat::Mode::S_IWUSR)?;
        let reader = OpenOptions::new().read(true).custom_flags(nix::libc::O_NONBLOCK).open(&path)?;
        Ok(Self { reader, path })
    }
}

impl Drop for ReadyPipe {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Returns the supervisor's first line; empty if the supervisor or its `starter` died, or it took too long.
fn read_ready(mut pipe: &File, starter: Option<&OwnedFd>) -> String {
    let deadline = Instant::now() + START_MAX;
    let mut line = Vec::new();
    while !line.ends_with(b"\n") {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut bytes = [0_u8; 1024];
        match if wait_either(pipe, starter, left) { pipe.read(&mut bytes) } else { Ok(0) } {
            Ok(0) => break,
            Ok(count) => line.extend_from_slice(&bytes[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    String::from_utf8_lossy(&line).lines().next().unwrap_or_default().to_owned()
}

/// Waits until one of the descriptors is readable or at its end. Returns false at the limit.
fn wait_either(one: &impl AsFd, other: Option<&OwnedFd>, limit: Duration) -> bool {
    let deadline = Instant::now() + limit;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut waits = vec![PollFd::new(one.as_fd(), PollFlags::POLLIN)];
        waits.extend(other.map(|other| PollFd::new(other.as_fd(), PollFlags::POLLIN)));
        match poll(&mut waits, PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)) {
            Err(nix::errno::Errno::EINTR) => {}
            ready => return ready.is_ok_and(|count| count > 0),
        }
    }
}

fn make_dirs(paths: &Paths) -> io::Result<()> {
    for dir in [paths.root().to_owned(), paths.logs(), paths.workers()] {
        swarm_sys::files::make_dirs(&dir)?;
    }
    Ok(())
}

/// Makes sure that nobody else has written what a supervisor would execute, and that root does not serve the state of
/// another user. That user's agents would be executed as root, and the
/// user could read nothing that such a supervisor writes. Root's commands to a supervisor of the user are served.
fn check_owner(paths: &Paths) -> Result<(), Refusal> {
    let owner = swarm_sys::owner::other_user(paths);
    let unknown = |error: io::Error| internal(&format!("cannot examine {}: {error}", paths.root().display()));
    let Some(uid) = owner.map_err(unknown)? else {
        let exposed = swarm_sys::owner::exposed(paths).map_err(unknown)?;
        return exposed.map_or(Ok(()), |exposed| {
            let cause = format!("no supervisor is started: {exposed}");
            Err(Refusal::new(RefusalKind::Invalid, cause).remedy(exposed.remedy()))
        });
    };
    let user = logind::name_of(uid).unwrap_or_else(|| format!("#{uid}"));
    let cause = format!("{} belongs to user {user}, and no supervisor of that user is running", paths.root().display());
    let remedy = command_line(["sudo", "-u", &user, "swarm", "supervisor", "start"]);
    Err(Refusal::new(RefusalKind::Invalid, cause).remedy(format!("run '{remedy}', then this again")))
}

/// Checks that the inherited file size limit allows a supervisor to write its files.
fn check_limits() -> Result<(), Refusal> {
    use nix::libc::RLIM_INFINITY;
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let (soft, hard) = getrlimit(Resource::RLIMIT_FSIZE).unwrap_or((RLIM_INFINITY, RLIM_INFINITY));
    if hard >= SUPERVISOR_FILE_BYTES_MIN {
        return Ok(());
    }
    // The guard raises the limit if that is allowed; here it is only tested.
    if setrlimit(Resource::RLIMIT_FSIZE, soft, RLIM_INFINITY).is_ok() {
        let _ = setrlimit(Resource::RLIMIT_FSIZE, soft, hard);
        return Ok(());
    }
    let cause = format!("the file size limit of {hard} bytes is too small for a supervisor");
    let remedy = "raise it with 'ulimit -f', or run 'swarm supervisor restart' in another shell first";
    Err(Refusal::new(RefusalKind::Internal, cause).remedy(remedy))
}

fn take_turn(paths: &Paths) -> io::Result<File> {
    let path = paths.root().join("start.lock");
    let lock = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
    if lock.try_lock().is_ok() {
        return Ok(lock);
    }
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::Builder::new().spawn(move || sender.send(lock::lock(&lock).map(|()| lock)))?;
    match receiver.recv_timeout(TURN_MAX) {
        Ok(locked) => locked,
        Err(_) => Err(io::Error::other(format!(
            "another command has been starting the supervisor for {}s",
            TURN_MAX.as_secs()
        ))),
    }
}

/// Answer of a supervisor that is asked to end for the caller's program.
pub enum Replacement {
    /// It ends, and its guard executes the program.
    Begun,
    /// It is not older than this program: another command was first.
    NotOlder,
    /// The guard cannot execute the program, for this reason.
    Impossible(String),
}

/// Replaces a supervisor of an older build by one of this program.
///
/// # Errors
/// Fails if that is impossible, or would make the supervisor a part of the worker in which this process runs.
pub fn replace(paths: &Paths) -> Result<(), Refusal> {
    replace_by_guard(paths, false)?.map_or(Ok(()), |why| match Enclosing::find(paths).worker() {
        None => match (apart(paths), other_user(paths)) {
            (None, None) => stop(paths, After::Another).map(drop),
            (None, Some(uid)) => {
                let cause = format!("the supervisor of user {uid} is an older build and cannot be replaced: {why}");
                Err(Refusal::new(RefusalKind::Internal, cause).remedy("run 'swarm supervisor restart' as that user"))
            }
            (Some(place), _) => Err(refused_apart("is an older build and cannot be replaced", &place, &why)),
        },
        Some(name) => {
            let cause =
                format!("the supervisor is an older build and cannot be replaced from inside worker '{name}': {why}");
            let remedy = format!("run 'swarm supervisor restart' outside of worker '{name}'");
            Err(Refusal::new(RefusalKind::Internal, cause).remedy(remedy))
        }
    })
}

/// Ends the supervisor and starts another one, with this process's environment if it runs in no worker.
///
/// # Errors
/// Fails as [`start`] and [`stop`] do. A supervisor that could not be started again is not stopped.
pub fn restart(paths: &Paths) -> Result<(), Refusal> {
    match Enclosing::find(paths) {
        Enclosing::None => match apart(paths) {
            None => drop(stop(paths, After::Another)?),
            Some(place) => {
                if let Some(why) = replace_by_guard(paths, true)? {
                    return Err(refused_apart("cannot be restarted", &place, &why));
                }
            }
        },
        Enclosing::Sandbox { name } => return Err(refused_in(&name, "its process namespace is not the shim's")),
        Enclosing::Worker { name, shim, .. } => {
            if let Some(why) = replace_by_guard(paths, true)? {
                if !shim::starts_supervisors(shim.pid) {
                    return Err(refused_in(&name, &why));
                }
                stop(paths, After::Another)?;
            }
        }
    }
    super::client::ensure(paths)
}

/// Returns where this process is, if that is another namespace than that of the supervisor, or a sandbox. `None` if it is
/// neither, or there is no supervisor.
fn apart(paths: &Paths) -> Option<String> {
    let peer = getsockopt(&connect(paths).ok()?, PeerCredentials).ok()?;
    let kind = match attributes::namespace_apart(peer.pid()) {
        Ok(kind) => kind,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        // The kernel hides those of a process in a user namespace above.
        Err(_) => Some("user"),
    };
    let restraint = || Restraints::own().ok()?.beyond(Restraints::of(peer.pid()).ok()?);
    kind.map(attributes::place_apart).or_else(|| restraint().map(|restraint| format!("a sandbox ({restraint})")))
}

/// Returns the user of the supervisor if it is not that of this process, in whose place its next one would run.
fn other_user(paths: &Paths) -> Option<u32> {
    let peer = getsockopt(&connect(paths).ok()?, PeerCredentials).ok()?;
    Some(peer.uid()).filter(|uid| *uid != nix::unistd::getuid().as_raw())
}

/// Refuses to move the supervisor to where it sees other files and processes than its workers.
fn refused_apart(what: &str, place: &str, why: &str) -> Refusal {
    let cause = format!("the supervisor {what} from {place}: {why}");
    Refusal::new(RefusalKind::Internal, cause).remedy("run 'swarm supervisor restart' where the supervisor runs")
}

/// Has the guard execute this program, and waits until the new supervisor listens. Returns why the guard cannot do
/// that; `None` if it did, or if there is nothing to replace.
fn replace_by_guard(paths: &Paths, again: bool) -> Result<Option<String>, Refusal> {
    let turn = take_turn(paths).map_err(|error| internal(&error.to_string()))?;
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return Ok(Some(format!("cannot find this program: {error}"))),
    };
    let Some(old) = hello(paths)? else { return Ok(None) };
    let boot = procfs::boot_id();
    let open = |pid| processes::pidfd(&procfs::identity(pid, &boot)?, &boot).ok().flatten();
    let (supervisor, guard) = (open(old.pid), old.guard.and_then(open));
    match post_replace(paths, &program, again)? {
        Replacement::Begun => {}
        Replacement::NotOlder => return Ok(None),
        Replacement::Impossible(why) => return Ok(Some(why)),
    }
    if supervisor.is_some_and(|fd| !processes::wait_all_gone(&[fd], END_MAX)) {
        return Err(internal(&format!("the supervisor (pid {}) did not end within 10 s", old.pid)));
    }
    await_socket(paths, guard.as_ref());
    drop(turn);
    Ok(None)
}

/// Waits until a supervisor listens, as long as its guard lives. After that, the next request starts a supervisor, or
/// says why there is none.
pub fn await_socket(paths: &Paths, guard: Option<&OwnedFd>) {
    let watch = watch_socket(paths);
    let deadline = Instant::now() + START_MAX;
    while connect(paths).is_err_and(|error| nobody(&error)) {
        let left = deadline.saturating_duration_since(Instant::now());
        let guard_is_gone = guard.is_none_or(|guard| processes::wait_readable(guard, Duration::ZERO));
        if left.is_zero() || guard_is_gone {
            break;
        }
        match &watch {
            Ok(watch) => {
                wait_either(watch, guard, left);
                let _ = watch.read_events();
            }
            // The kernel refuses: look again soon.
            Err(_) => std::thread::sleep(AGAIN_PAUSE),
        }
    }
}

/// Watches for the socket of a new supervisor. Its mode is set after it listens.
fn watch_socket(paths: &Paths) -> io::Result<Inotify> {
    let inotify = watching::start()?;
    let socket = paths.socket();
    let dir = socket.parent().unwrap_or_else(|| paths.root());
    inotify.add_watch(dir, AddWatchFlags::IN_CREATE | AddWatchFlags::IN_ATTRIB | AddWatchFlags::IN_ONLYDIR)?;
    Ok(inotify)
}
