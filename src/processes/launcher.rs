//! Start of shims: detached shims by the fork server, those in tmux as the command of their window. Both use the same
//! handshake.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use swarm_model::{Caller, Contract, Lease, ProcessId, Refusal, Spec, TmuxPlace};
use swarm_ports::{BoxFuture, LaunchError, Launcher, Prepared};

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::sync::Mutex;

use crate::api::Enclosing;
use crate::processes::forkserver::ForkServer;
use swarm_store::records;
use swarm_sys::files::{Durability, list_if_present, replace_private};
use swarm_sys::paths::Paths;
use swarm_sys::{lookup, processes, procfs};
use swarm_tmux::{Order, Server, Tmux, TmuxError};

/// Maximum time for a shim to get ready, even on a machine under load.
const PREPARE_MAX: Duration = Duration::from_secs(10);
/// Time without an answer after which the fork server is assumed to be suspended.
const STUCK: Duration = Duration::from_secs(1);
/// Pause before another try to open a handle of a shim.
const PIDFD_PAUSE: Duration = Duration::from_millis(100);
/// Maximum number of fork servers that may die during one start.
const TRIES_MAX: u32 = 3;
/// Maximum time of an exec; long because the binary may be on a slow network disk.
const EXEC_MAX: Duration = Duration::from_secs(30);

#[derive(Clone)]
pub struct ShimLauncher {
    paths: Paths,
    executable: PathBuf,
    boot: String,
    /// Current fork server. Locked while one is started, so that there is at most one.
    server: Arc<Mutex<Option<Arc<ForkServer>>>>,
}

/// Supervisor's side of the handshake.
struct Gate {
    link: Link,
    shim: ProcessId,
    boot: String,
    /// Contract's file under the name that it has once the command was executed.
    executed: PathBuf,
}

type Link = BufReader<UnixStream>;

impl ShimLauncher {
    /// Creates the launcher and starts the fork server. `executable` is this program: shims run the same file even
    /// after it was replaced or removed.
    pub fn new(paths: Paths, executable: PathBuf) -> Self {
        // Started in advance for the first worker. On failure, that worker's start retries and reports the error.
        let server = ForkServer::start(&executable, &paths.workers()).ok().map(Arc::new);
        Self { paths, executable, boot: procfs::boot_id(), server: Arc::new(Mutex::new(server)) }
    }

    /// Returns the fork server, and starts a new one if the last one is gone.
    async fn server(&self) -> io::Result<Arc<ForkServer>> {
        let mut kept = self.server.lock().await;
        if let Some(server) = kept.as_ref().filter(|server| !server.is_gone()) {
            return Ok(Arc::clone(server));
        }
        let (gone, executable, workers) = (kept.take(), self.executable.clone(), self.paths.workers());
        let started = tokio::task::spawn_blocking(move || {
            drop(gone);
            ForkServer::start(&executable, &workers)
        });
        let server = Arc::new(started.await.map_err(io::Error::other)??);
        *kept = Some(Arc::clone(&server));
        Ok(server)
    }

    async fn detached(&self, dir: &Path, spec: &Spec) -> Result<Prepared, LaunchError> {
        let mut tries = 0;
        loop {
            tries += 1;
            let server = self.server().await.map_err(|error| system("start the fork server", &error))?;
            let link = fork(&server, dir).await.map_err(|error| system("start the shim", &error))?;
            let mut link = BufReader::new(link);
            let line = match tokio::time::timeout(STUCK, read_line(&mut link, PREPARE_MAX)).await {
                Ok(line) => line,
                Err(_) => {
                    server.wake();
                    read_line(&mut link, PREPARE_MAX).await
                }
            };
            // The fork server died before it read the order: nothing was started.
            let lost = line.as_ref().is_ok_and(String::is_empty) && server.is_gone();
            if !lost || tries >= TRIES_MAX {
                return self.prepared(line, link, spec, None);
            }
        }
    }

    /// Opens the window, and returns the handshake with its shim and the window's name.
    fn in_tmux(
        &self,
        dir: &Path,
        spec: &Spec,
        place: &TmuxPlace,
        caller: &Caller,
    ) -> Result<(std::os::unix::net::UnixStream, String), LaunchError> {
        let listener = listen(dir).map_err(|error| system("listen for the shim", &error))?;
        let log = self.paths.logs().join(&spec.logs[0]);
        let made = std::fs::OpenOptions::new().append(true).create(true).mode(0o600).open(&log);
        made.map_err(|error| system("create the log", &error))?;
        let server = match (&place.socket_path, &place.socket) {
            (Some(path), _) => Server::Path(path.clone()),
            (None, Some(name)) => Server::Name(name.clone()),
            (None, None) => Server::Default,
        };
        let tmux = Tmux::new(server, &caller.environment).with_umask(caller.umask);
        let executable = self.executable.to_string_lossy().into_owned();
        let dir_text = dir.to_string_lossy().into_owned();
        let cwd = spec.worktree.as_ref().map_or(spec.contract.cwd.as_str(), |tree| tree.path.as_str());
        let argv = [executable.as_str(), "__shim", dir_text.as_str()];
        let known = || self.known_servers();
        let order = Order { session: &place.session, name: &spec.name, cwd, argv: &argv, log: &log };
        let opened = tmux.open_window(&order, &known);
        let window = opened.map_err(|error: TmuxError| LaunchError::Tmux(error.to_string()))?;
        // A shim is the subreaper of its worker: what the worker started ends with it, however it was detached.
        if let Some(owner) = Enclosing::worker_of(window.pane.server_pid, &self.paths) {
            let _ = tmux.kill_window(&window.window_id);
            return Err(LaunchError::Tmux(format!(
                "the tmux server on {} was started by worker '{owner}' and ends with it (end that server with 'tmux -S {} \
                 kill-server', or choose another with --tmux-socket)",
                window.pane.socket_path, window.pane.socket_path
            )));
        }
        let link = accept(&listener).map_err(|error| {
            let _ = tmux.kill_window(&window.window_id);
            LaunchError::NotStarted(format!("the window's process did not answer: {error}"))
        })?;
        let _ = std::fs::remove_file(dir.join(crate::processes::shim::SOCKET_NAME));
        Ok((link, format!("{}:{}", place.session, spec.name)))
    }

    async fn in_window(
        &self,
        dir: &Path,
        spec: &Spec,
        place: &TmuxPlace,
        caller: &Caller,
    ) -> Result<Prepared, LaunchError> {
        let (this, dir, owned, place, caller) =
            (self.clone(), dir.to_owned(), spec.clone(), place.clone(), caller.clone());
        let (link, window) = blocking(move || this.in_tmux(&dir, &owned, &place, &caller)).await?;
        let link = nonblocking(link).map_err(|error| system("talk to the shim", &error))?;
        let mut link = BufReader::new(link);
        let line = read_line(&mut link, PREPARE_MAX).await;
        self.prepared(line, link, spec, Some(window))
    }

    /// Returns the sockets and pids of tmux servers with living workers. Their sockets may have been removed, and a
    /// second server must never be started beside them.
    ///
    /// # Errors
    /// Fails if a lease exists and cannot be read, or its process cannot be examined.
    fn known_servers(&self) -> io::Result<Vec<(String, i32)>> {
        let mut servers = Vec::new();
        for dir in list_if_present(&self.paths.workers())? {
            let lease = match std::fs::read(dir.path().join("lease")) {
                Ok(text) => serde_json::from_slice::<Lease>(&text).ok(),
                // Not a worker's directory, or one without a shim.
                Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => None,
                Err(error) => return Err(error),
            };
            if let Some(Lease { pane: Some(pane), shim, .. }) = lease
                && procfs::alive(&shim, &self.boot)?.is_some()
            {
                servers.push((pane.socket_path, pane.server_pid));
            }
        }
        servers.sort();
        servers.dedup();
        Ok(servers)
    }

    fn prepared(
        &self,
        line: io::Result<String>,
        link: Link,
        spec: &Spec,
        window: Option<String>,
    ) -> Result<Prepared, LaunchError> {
        let line = line.map_err(|error| LaunchError::NotStarted(format!("the shim did not get ready: {error}")))?;
        if let Some(cause) = line.strip_prefix("failed ") {
            return Err(LaunchError::System(cause.to_owned()));
        }
        let lease = line.strip_prefix("prepared ").and_then(|json| serde_json::from_str::<Lease>(json).ok());
        let lease = lease.filter(|lease| lease.token == spec.token);
        let lease = lease.ok_or_else(|| LaunchError::NotStarted("the shim ended before it was ready".to_owned()))?;
        let executed = self.paths.worker(&spec.name, spec.generation).join("spec.json");
        let gate = Gate { link, shim: lease.shim.clone(), boot: self.boot.clone(), executed };
        Ok(Prepared { lease, window, gate: Box::new(gate) })
    }
}

impl Gate {
    async fn open(mut self) -> Result<Vec<String>, LaunchError> {
        let said = match self.link.write_all(b"go\n").await {
            Ok(()) => read_line(&mut self.link, EXEC_MAX).await,
            Err(error) => Err(error),
        };
        match said.as_deref() {
            Ok(line) if line.starts_with("started ") => {
                Ok(serde_json::from_str(&line["started ".len()..]).unwrap_or_default())
            }
            Ok(line) if line.starts_with("failed ") => {
                let failure = LaunchError::Exec(line["failed ".len()..].to_owned());
                blocking(move || {
                    self.wait_gone();
                    Err(failure)
                })
                .await
            }
            _ => blocking(move || self.without_answer()).await,
        }
    }

    /// Ends a shim that died or hung after the commit, or that could not be told to go. It must end before the
    /// handshake is closed: end of file would mean "go", because the row still exists. Afterwards the name of the
    /// contract's file shows whether the command was executed, which cannot be undone: then the worker runs, with or
    /// without its shim.
    fn without_answer(self) -> Result<Vec<String>, LaunchError> {
        let ended = self.end_shim();
        if self.was_executed() {
            return Ok(Vec::new());
        }
        if !ended {
            // The shim waits at its gate. It exits when this process does, because the row is withdrawn by then.
            std::mem::forget(self.link);
        }
        Err(LaunchError::NotStarted("the shim ended before it could start the worker".to_owned()))
    }

    /// Reports whether the command was executed. If that cannot be found out, it counts as executed: its records then
    /// decide what became of it.
    fn was_executed(&self) -> bool {
        self.executed.try_exists().unwrap_or(true)
    }

    async fn withdraw(mut self) {
        let told = self.link.write_all(b"no\n").await.is_ok();
        let ended = tokio::task::spawn_blocking(move || if told { self.wait_gone() } else { self.end_shim() });
        let _ = ended.await;
    }

    /// Ends a shim that has not started its command: by SIGTERM, else by SIGKILL. Its child then exits by itself.
    /// Reports whether the shim is gone.
    fn end_shim(&self) -> bool {
        for signal in [rustix::process::Signal::TERM, rustix::process::Signal::KILL] {
            match self.pidfd() {
                Ok(None) => return true,
                Ok(Some(fd)) => {
                    let _ = rustix::process::pidfd_send_signal(&fd, signal);
                    if processes::wait_all_gone(&[fd], PREPARE_MAX) {
                        return true;
                    }
                }
                Err(error) => tracing::error!(pid = self.shim.pid, %error, "cannot end a shim"),
            }
        }
        self.wait_gone()
    }

    /// Waits until the shim is gone, and reports whether it is.
    fn wait_gone(&self) -> bool {
        match self.pidfd() {
            Ok(None) => true,
            Ok(Some(fd)) => processes::wait_all_gone(&[fd], PREPARE_MAX),
            Err(_) => false,
        }
    }

    /// Returns a pidfd of the shim; `None` if it is gone. Tries again for a while if that cannot be decided, for
    /// example because no descriptor is free.
    fn pidfd(&self) -> io::Result<Option<OwnedFd>> {
        let deadline = Instant::now() + PREPARE_MAX;
        loop {
            match processes::pidfd(&self.shim, &self.boot) {
                Err(_) if Instant::now() < deadline => std::thread::sleep(PIDFD_PAUSE),
                opened => return opened,
            }
        }
    }
}

impl Launcher for ShimLauncher {
    fn check<'a>(&'a self, contract: &'a Contract, dir: Option<&'a str>) -> BoxFuture<'a, Result<(), Refusal>> {
        let (contract, dir) = (contract.clone(), dir.map(PathBuf::from));
        Box::pin(async move {
            let checked = tokio::task::spawn_blocking(move || lookup::check_start(&contract, dir.as_deref())).await;
            // If the check itself fails, the start is tried.
            checked.unwrap_or(Ok(()))
        })
    }

    fn reserve<'a>(&'a self, spec: &'a Spec) -> BoxFuture<'a, Result<(), LaunchError>> {
        let (paths, spec) = (self.paths.clone(), spec.clone());
        blocking(move || {
            let dir = records::make_worker_dir(&paths, &spec)
                .map_err(|error| system("create the worker's directory", &error))?;
            let text = serde_json::to_vec(&spec).map_err(|error| LaunchError::System(error.to_string()))?;
            // Otherwise the registry's journal contains the contract.
            let durability = if spec.is_synced() { Durability::Synced } else { Durability::None };
            replace_private(&dir, "spec.pending", &text, durability)
                .map_err(|error| system("write the launch contract", &error))
        })
    }

    fn prepare<'a>(&'a self, spec: &'a Spec, caller: &'a Caller) -> BoxFuture<'a, Result<Prepared, LaunchError>> {
        let dir = self.paths.worker(&spec.name, spec.generation);
        Box::pin(async move {
            let prepared = match &spec.contract.tmux {
                None => self.detached(&dir, spec).await,
                Some(place) => self.in_window(&dir, spec, place, caller).await,
            };
            if prepared.is_err() {
                // The handshake is closed, so a shim that came up exits. Its directory cannot be removed before that.
                let lease = dir.join("lease");
                let _ = tokio::task::spawn_blocking(move || records::wait_let_go(&lease)).await;
            }
            prepared
        })
    }

    fn open(&self, prepared: Prepared) -> BoxFuture<'_, Result<Vec<String>, LaunchError>> {
        Box::pin(async move {
            let gate = prepared
                .gate
                .downcast::<Gate>()
                .map_err(|_| LaunchError::System("not a gate of this launcher".to_owned()))?;
            gate.open().await
        })
    }

    fn withdraw(&self, prepared: Prepared) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            if let Ok(gate) = prepared.gate.downcast::<Gate>() {
                gate.withdraw().await;
            }
        })
    }
}

/// Binds the handshake's socket by a short path, because a socket's path is limited to 107 bytes.
fn listen(dir: &Path) -> io::Result<UnixListener> {
    use std::os::fd::AsRawFd as _;
    let handle = std::fs::File::open(dir)?;
    let short = format!("/proc/self/fd/{}/{}", handle.as_raw_fd(), crate::processes::shim::SOCKET_NAME);
    UnixListener::bind(short)
}

fn accept(listener: &UnixListener) -> io::Result<std::os::unix::net::UnixStream> {
    if !processes::wait_readable(listener, PREPARE_MAX) {
        return Err(io::Error::from(io::ErrorKind::TimedOut));
    }
    listener.accept().map(|(stream, _)| stream)
}

/// Reads one line; an empty string means end of file.
async fn read_line(link: &mut Link, limit: Duration) -> io::Result<String> {
    let mut line = String::new();
    match tokio::time::timeout(limit, link.read_line(&mut line)).await {
        Ok(read) => read.map(|_| line.trim_end().to_owned()),
        Err(_) => Err(io::Error::other(format!("no answer within {} s", limit.as_secs()))),
    }
}

fn nonblocking(link: std::os::unix::net::UnixStream) -> io::Result<UnixStream> {
    link.set_nonblocking(true)?;
    UnixStream::from_std(link)
}

/// Orders a shim, and returns the supervisor's end of the handshake.
async fn fork(server: &Arc<ForkServer>, dir: &Path) -> io::Result<UnixStream> {
    let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
    let theirs = OwnedFd::from(theirs);
    match server.fork(dir, &theirs) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            let (server, dir) = (Arc::clone(server), dir.to_owned());
            let ordered = tokio::task::spawn_blocking(move || server.fork_in_turn(&dir, &theirs, PREPARE_MAX));
            ordered.await.map_err(io::Error::other)??;
        }
        ordered => ordered?,
    }
    nonblocking(ours)
}

fn system(step: &str, error: &io::Error) -> LaunchError {
    LaunchError::System(format!("cannot {step}: {error}"))
}

fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, LaunchError> + Send + 'static,
) -> BoxFuture<'static, Result<T, LaunchError>> {
    Box::pin(async move {
        tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(LaunchError::System(error.to_string())))
    })
}
