//! The supervisor process: `swarm __supervisor ROOT GUARD_PID`. Holds its lock for life, starts the actors, serves the
//! API, keeps a guard running, and exits if there is nothing left to do or its directory is gone.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use nix::sys::inotify::{AddWatchFlags, Inotify};
use swarm_actors::registry::reconcile;
use swarm_actors::supervisor::{Exit, SupervisorHandle};
use swarm_model::{Event, EventKind, FineState, Lease, Machine, ProcessId};
use swarm_ports::{DirFacts, Events as _, Records as _, Scan, SpecFacts};
use swarm_store::asks::Asks;
use swarm_store::records::{self, DiskRecords};
use tokio::sync::broadcast::{self, error::RecvError};

use crate::api::server;
use crate::notify::Notifier;
use crate::processes::{guard, memory};
use crate::wiring::{self, Wired};
use swarm_sys::files::lock;
use swarm_sys::paths::Paths;
use swarm_sys::readable::Readable;
use swarm_sys::{attributes, machine, procfs, watching};

/// Environment variable with which a service unit keeps the supervisor running even if there is nothing to do.
pub const STAY: &str = "SWARM_STAY";
/// First words of the refusal of a second supervisor. The client recognizes it by them.
pub const ANOTHER: &str = "another supervisor";
/// Maximum time for which a dying predecessor may still hold the lock.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(2);
/// Maximum time for which blocking work may delay the exit.
const SHUTDOWN_MAX: Duration = Duration::from_secs(2);
/// Idle threads of the pool are kept: with one thread, the pool can always do work, even if the system refuses to
/// create another one.
const THREAD_KEEP: Duration = Duration::from_hours(24 * 365);

/// Inherited descriptors: the pipe to the guard, and the pipe on which readiness is reported.
struct Inherited {
    life: File,
    ready: File,
}

pub fn main(mut arguments: impl Iterator<Item = OsString>) -> u8 {
    let (Some(root), guard) = (arguments.next(), arguments.next()) else { return 2 };
    let guard = guard.and_then(|pid| pid.to_str()?.parse().ok());
    let paths = Paths::new(Path::new(&root));
    wiring::trace(&paths);
    memory::one_arena();
    let Ok(mut inherited) = Inherited::take() else { return 1 };
    match run(&paths, guard, &mut inherited) {
        Ok((Exit::GaveUp, _)) => 70,
        Ok((Exit::Idle | Exit::Asked | Exit::Replaced | Exit::Abandoned, successor)) => {
            inherited.farewell(successor.as_deref());
            0
        }
        Err(StartError::Taken(reason)) => {
            tracing::error!(error = %reason, "the supervisor cannot start");
            inherited.say(&format!("error {reason}"));
            inherited.farewell(None);
            1
        }
        // Its guard starts another one, unless somebody has heard the reason.
        Err(StartError::Failed(error)) => {
            tracing::error!(%error, "the supervisor cannot start");
            inherited.say(&format!("error {error}"));
            guard::NOT_STARTED
        }
    }
}

/// Why a supervisor cannot start.
enum StartError {
    /// The place is taken, and another start in it would fail as well.
    Taken(String),
    /// Something failed. It may succeed later: there may be memory, threads or space on the disk again.
    Failed(io::Error),
}

impl From<io::Error> for StartError {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

/// How a supervisor ends, and the program that its guard must execute then.
type Ended = (Exit, Option<PathBuf>);

fn run(paths: &Paths, guard: Option<i32>, inherited: &mut Inherited) -> Result<Ended, StartError> {
    let lock = take_lock(paths)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .thread_keep_alive(THREAD_KEEP)
        .build()?;
    first_thread(&runtime)?;
    let exit = runtime.block_on(supervise(paths, guard, inherited));
    // Before the lock is released, so that its next holder sees this.
    match exit {
        Ok((Exit::Asked, _)) => guard::mark_stopped(&lock),
        Ok((Exit::Idle, _)) => guard::mark_idle(&lock),
        _ => {}
    }
    if matches!(exit, Ok((Exit::Asked | Exit::Idle, _))) && !is_anything_left(paths, |_| true) {
        machine::release(paths);
    }
    runtime.shutdown_timeout(SHUTDOWN_MAX);
    exit
}

fn held_by(other: &Machine, paths: &Paths) -> StartError {
    StartError::Taken(format!("the supervisor of machine '{}' serves {}", other.host, paths.root().display()))
}

/// Reports whether the last supervisor was stopped on request, and nothing on another machine is left to supervise.
fn is_over_elsewhere(paths: &Paths) -> bool {
    guard::is_stopped(paths.root()) && !is_anything_left(paths, |facts| facts.lease.elsewhere.is_some())
}

/// Reports whether a worker whose records satisfy `meant` may still run or be restarted.
fn is_anything_left(paths: &Paths, meant: impl Fn(&DirFacts) -> bool) -> bool {
    let may_run = |facts: &DirFacts| {
        let state = reconcile::fine_state(facts);
        state.is_running() || state == FineState::Backoff
    };
    let scan = DiskRecords::new(paths.clone()).scan_now().and_then(Scan::complete);
    scan.map_or(true, |dirs| dirs.iter().any(|facts| meant(facts) && may_run(facts)))
}

/// Returns a worker of this boot that runs, or may run, and whose processes are not visible here. A supervisor that takes it
/// for dead would start it twice. If records cannot be read, the actors of their workers try again.
fn hidden_worker(paths: &Paths) -> Option<String> {
    let boot = procfs::boot_id();
    let scan = DiskRecords::new(paths.clone()).scan_now().ok()?;
    let is_hidden = |facts: &&DirFacts| {
        let lease = &facts.lease;
        let is_visible = |process: &ProcessId| procfs::alive(process, &boot).map_or(true, |stat| stat.is_some());
        // A job has no process here.
        let may_be = lease.this_boot && lease.elsewhere.is_none() && lease.job.is_none();
        // The child of a killed shim holds the lease until it ends, which takes a while if it waits for a disk.
        let is_elsewhere = |lease: &Lease| !is_visible(&lease.shim) && !is_visible(&lease.worker);
        may_be
            && lease.content.as_ref().is_some_and(is_elsewhere)
            && match lease.held {
                true => !records::wait_let_go(&paths.worker(&facts.name, facts.generation).join("lease")),
                false => may_be_above(facts),
            }
    };
    scan.dirs.iter().find(is_hidden).map(|facts| facts.name.clone())
}

/// Reports whether a worker without a shim and without an exit record may run in the process namespace of the machine, of
/// which a process in another one sees nothing. That of a container that was started again ended with all its processes.
fn may_be_above(facts: &DirFacts) -> bool {
    let first = Some(attributes::FIRST_PROCESS_NAMESPACE);
    let of_worker = facts.lease.content.as_ref().and_then(|lease| lease.process_namespace);
    let is_open = matches!(facts.spec, SpecFacts::Executed(_)) && facts.exit.is_none();
    is_open && of_worker == first && attributes::process_namespace() != first
}

/// Creates the pool's first thread. Tokio panics if that is impossible, so it is done here, where it can be reported.
fn first_thread(runtime: &tokio::runtime::Runtime) -> io::Result<()> {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let made = std::panic::catch_unwind(|| drop(runtime.spawn_blocking(|| ())));
    std::panic::set_hook(hook);
    made.map_err(|_| io::Error::other("cannot create a thread (see ulimit -u)"))
}

async fn supervise(paths: &Paths, guard: Option<i32>, inherited: &mut Inherited) -> Result<Ended, StartError> {
    let gone = watch_root(paths);
    // Before the first event of this process: what agents asked later was not told.
    let told_ms = swarm_store::events::last_at_ms(paths);
    let Wired { ports, events } = wiring::ports(paths)?;
    if let Some(name) = hidden_worker(paths) {
        let place = "run this where it was started, or set SWARM_DIR to another directory";
        return Err(StartError::Taken(format!(
            "worker '{name}' runs in another process namespace, and a supervisor in this one cannot see it ({place})"
        )));
    }
    let started = SupervisorHandle::start(paths.root().to_owned(), ports.clone()).await;
    let handle = started.map_err(io::Error::other)?;
    if std::env::var_os(STAY).is_some_and(|value| !value.is_empty()) {
        handle.stay();
    }
    let listener = listen(paths)?;
    let me = i32::try_from(std::process::id()).unwrap_or(0);
    let guard_pid = Arc::new(std::sync::atomic::AtomicI32::new(guard.unwrap_or(0)));
    let successor = Arc::new(OnceLock::new());
    let context = server::Context {
        handle: handle.clone(),
        events: Arc::clone(&events),
        paths: paths.clone(),
        guard: Arc::clone(&guard_pid),
        successor: Arc::clone(&successor),
        started_ms: ports.clock.wall_ms(),
    };
    tokio::spawn(server::serve(listener, context.clone()));
    let socket = tokio::spawn(keep_socket(paths.clone(), context));
    tokio::spawn(rest(events.listen()));
    let notifier = Notifier::start(paths.clone(), Arc::clone(&ports.clock), events.listen());
    events.emit(Event {
        at_ms: ports.clock.wall_ms(),
        worker: None,
        generation: None,
        request: None,
        kind: EventKind::SupervisorStarted { pid: me },
    });
    let emit = Arc::clone(&events);
    tokio::spawn(swarm_store::asks::watch::tell(Asks::new(paths), told_ms, move |event| emit.emit(event)));
    inherited.say("ready");
    let exit = tokio::select! {
        exit = handle.ended() => exit,
        () = gone => Exit::Abandoned,
        error = keep_guard(paths, &ports, guard_pid, inherited) => return Err(error.into()),
    };
    tracing::info!(?exit, "the supervisor ends");
    socket.abort();
    // The socket before the lock: a client that finds no socket starts a supervisor, which waits for the lock.
    let _ = std::fs::remove_file(paths.socket());
    notifier.end().await;
    Ok((exit, successor.get().cloned().filter(|_| exit == Exit::Replaced)))
}

/// Returns free memory to the system whenever there were no events for a while.
async fn rest(mut told: broadcast::Receiver<Event>) {
    while !matches!(told.recv().await, Err(RecvError::Closed)) {
        while tokio::time::timeout(memory::CALM, told.recv()).await.is_ok_and(|told| told != Err(RecvError::Closed)) {}
        memory::trim();
    }
}

/// Starts a new guard whenever the old one is gone.
async fn keep_guard(
    paths: &Paths,
    ports: &swarm_ports::Ports,
    guard: Arc<std::sync::atomic::AtomicI32>,
    inherited: &mut Inherited,
) -> io::Error {
    let boot = procfs::boot_id();
    loop {
        let pid = guard.load(std::sync::atomic::Ordering::Relaxed);
        let found = if pid > 1 { procfs::read_stat(pid) } else { Ok(None) };
        match found.map(|stat| stat.filter(procfs::Stat::is_alive)) {
            Ok(None) => {}
            Ok(Some(stat)) => {
                let identity = ProcessId { pid, start_ticks: stat.start_ticks, boot: boot.clone() };
                ports.processes.gone(identity).await;
            }
            Err(error) => {
                tracing::warn!(%error, "cannot examine the guard; trying again");
                tokio::time::sleep(Duration::from_secs(1)).await;
                continue;
            }
        }
        match inherited.new_guard(paths) {
            Ok(pid) => guard.store(pid, std::sync::atomic::Ordering::Relaxed),
            Err(error) => {
                tracing::error!(%error, "cannot start a guard; retrying");
                tokio::time::sleep(Duration::from_secs(1)).await;
                guard.store(0, std::sync::atomic::Ordering::Relaxed);
            }
        }
    }
}

impl Inherited {
    fn take() -> io::Result<Self> {
        let life = io::stdin().as_fd().try_clone_to_owned()?;
        let ready = io::stdout().as_fd().try_clone_to_owned()?;
        let null = OpenOptions::new().read(true).write(true).open("/dev/null")?;
        nix::unistd::dup2_stdin(&null)?;
        nix::unistd::dup2_stdout(&null)?;
        Ok(Self { life: File::from(life), ready: File::from(ready) })
    }

    /// Reports a line to the starter. Only the first call has an effect, because nobody reads afterwards.
    fn say(&mut self, line: &str) {
        let _ = self.ready.write_all(format!("{line}\n").as_bytes());
        if let Ok(null) = OpenOptions::new().write(true).open("/dev/null") {
            self.ready = null;
        }
    }

    /// Tells the guard that this exit is intended and needs no restart, and which program it must execute instead.
    fn farewell(&mut self, successor: Option<&Path>) {
        let _ = self.life.write_all(&guard::message(successor));
    }

    fn new_guard(&mut self, paths: &Paths) -> io::Result<i32> {
        let (reader, writer): (OwnedFd, OwnedFd) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC)?;
        let child = guard::start_for(paths.root(), Stdio::from(reader))?;
        // If the old guard is still alive, it must not take the closed pipe for a death.
        self.farewell(None);
        self.life = File::from(writer);
        Ok(i32::try_from(child.id()).unwrap_or(0))
    }
}

fn take_lock(paths: &Paths) -> Result<File, StartError> {
    // Root would execute the workers of another user.
    if let Some(uid) = swarm_sys::owner::other_user(paths)? {
        return Err(StartError::Taken(format!("{} belongs to user #{uid}", paths.root().display())));
    }
    if let Some(exposed) = swarm_sys::owner::exposed(paths)? {
        return Err(StartError::Taken(exposed.to_string()));
    }
    // Before the lock, which a supervisor of another machine may hold for ever.
    if let Some(other) = machine::other_holder(paths)?.filter(|_| !is_over_elsewhere(paths)) {
        return Err(held_by(&other, paths));
    }
    let path = paths.supervisor_lock();
    let mut lock = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path)?;
    if lock.try_lock().is_err() {
        // The kernel wakes the waiting thread. If that is too late, this process has already exited.
        let (sender, receiver) = std::sync::mpsc::channel();
        let waiting = lock.try_clone()?;
        std::thread::Builder::new().spawn(move || sender.send(lock::lock(&waiting).is_ok()))?;
        if !receiver.recv_timeout(LOCK_WAIT_MAX).unwrap_or(false) {
            let holder = std::fs::read_to_string(&path).unwrap_or_default();
            return Err(StartError::Taken(format!("{ANOTHER} (pid {}) holds {}", holder.trim(), path.display())));
        }
        if guard::is_stopped(paths.root()) {
            // A later command starts another one if it needs it.
            return Err(StartError::Taken(format!("{ANOTHER} was stopped while this one waited")));
        }
    }
    // Before the content is replaced, which tells whether the last supervisor was stopped.
    if let Some(other) = machine::hold(paths, || is_over_elsewhere(paths))? {
        return Err(held_by(&other, paths));
    }
    lock.set_len(0)?;
    writeln!(lock, "{}", std::process::id())?;
    Ok(lock)
}

fn listen(paths: &Paths) -> io::Result<tokio::net::UnixListener> {
    let path = paths.socket();
    if path.parent() != Some(paths.root()) {
        private_dir(path.parent().unwrap_or(Path::new("/tmp")))?;
    }
    // This process holds the lock, so the process that bound the old socket is gone.
    let _ = std::fs::remove_file(&path);
    let listener = tokio::net::UnixListener::bind(&path)?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Creates a directory for this user only.
///
/// # Errors
/// Fails if it exists and belongs to another user or is accessible to others, as may happen below `/tmp`.
fn private_dir(dir: &Path) -> io::Result<()> {
    use std::os::unix::fs::MetadataExt as _;
    match swarm_sys::files::make_dir(dir) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let meta = std::fs::symlink_metadata(dir)?;
    let ours = meta.is_dir() && meta.uid() == nix::unistd::getuid().as_raw() && meta.mode() & 0o077 == 0;
    if ours {
        Ok(())
    } else {
        Err(io::Error::other(format!("{} is not a private directory of this user", dir.display())))
    }
}

/// Listens again whenever somebody has deleted the socket: those who clean up `/tmp`, or the state directory, do not know
/// that this process could neither be reached nor stopped without it.
async fn keep_socket(paths: Paths, context: server::Context) {
    let socket = paths.socket();
    let dir = socket.parent().unwrap_or_else(|| paths.root());
    loop {
        let watched = Watched::deletions(dir);
        while !swarm_sys::files::is_absent(&socket) {
            watched.wait().await;
        }
        match listen(&paths) {
            Ok(listener) => {
                tracing::warn!(path = %socket.display(), "somebody has deleted the socket; there is a new one");
                tokio::spawn(server::serve(listener, context.clone()));
            }
            Err(error) => {
                tracing::warn!(path = %socket.display(), %error, "cannot create the socket that was deleted");
                tokio::time::sleep(watching::LOOK_PAUSE).await;
            }
        }
    }
}

/// Returns a future that resolves when the lock file is no longer at its path: the state directory was removed or
/// moved, or another supervisor could start. (The removal of the directory itself is not reported while files in it
/// are open.)
fn watch_root(paths: &Paths) -> impl Future<Output = ()> + use<> {
    let (watched, lock) = (Watched::deletions(paths.root()), paths.supervisor_lock());
    async move {
        while !swarm_sys::files::is_absent(&lock) {
            watched.wait().await;
        }
    }
}

/// Directory in which something may be deleted.
struct Watched(io::Result<(Inotify, Readable)>);

impl Watched {
    /// Watches a directory. If that is impossible, whoever waits looks every few seconds.
    fn deletions(dir: &Path) -> Self {
        // Moves are not watched, because each commit renames a file to state.json.
        let flags = AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_DELETE_SELF
            | AddWatchFlags::IN_MOVE_SELF
            | AddWatchFlags::IN_ONLYDIR;
        let watched = watching::start().and_then(|inotify| {
            inotify.add_watch(dir, flags).map_err(watching::explained)?;
            let readable = Readable::new(inotify.as_fd().try_clone_to_owned()?)?;
            Ok((inotify, readable))
        });
        if let Err(error) = &watched {
            let dir = dir.display();
            tracing::warn!(%dir, %error, "cannot watch a directory, and looks every few seconds instead");
        }
        Self(watched)
    }

    async fn wait(&self) {
        match &self.0 {
            Ok((inotify, readable)) if readable.wait().await.is_ok() => {
                while inotify.read_events().is_ok_and(|events| !events.is_empty()) {}
            }
            _ => tokio::time::sleep(watching::LOOK_PAUSE).await,
        }
    }
}
