//! Start of shims: detached shims by the fork server, those in tmux as the command of their window. Both use the same
//! handshake.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use swarm_model::{Caller, Contract, Lease, Refusal, Spec, TmuxPlace};
use swarm_ports::{BoxFuture, LaunchError, Launcher, Prepared};

use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::sync::Mutex;

use crate::api::Enclosing;
use crate::jobs::{self, JobGate};
use crate::processes::forkserver::ForkServer;
use crate::processes::gate::Gate;
use swarm_store::sessions::RECOVERY_PROMPT as PROMPT;
use swarm_store::{leases, records};
use swarm_sys::files::{Durability, list_if_present, make_dirs, replace_private};
use swarm_sys::paths::Paths;
use swarm_sys::{lookup, processes, procfs};
use swarm_tmux::{Order, Server, Tmux, TmuxError};

/// Maximum time for a shim to get ready, even on a machine under load.
pub(super) const PREPARE_MAX: Duration = Duration::from_secs(10);
/// Time without an answer after which the fork server is assumed to be suspended.
const STUCK: Duration = Duration::from_secs(1);
/// Maximum number of fork servers that may die during one start.
const TRIES_MAX: u32 = 3;

#[derive(Clone)]
pub struct ShimLauncher {
    paths: Paths,
    executable: PathBuf,
    boot: String,
    /// Current fork server. Locked while one is started, so that there is at most one.
    server: Arc<Mutex<Option<Arc<ForkServer>>>>,
}

pub(super) type Link = BufReader<UnixStream>;

/// Refuses a contract that nobody could read again.
fn check_size(contract: &[u8]) -> Result<(), LaunchError> {
    if contract.len() as u64 <= records::RECORD_BYTES_MAX {
        return Ok(());
    }
    Err(LaunchError::NotStarted(format!(
        "command and environment are recorded in {} bytes, which is more than the limit of {} (shorten them, or pass long \
         values in a file)",
        contract.len(),
        records::RECORD_BYTES_MAX
    )))
}

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
            let lease = match leases::read(&dir.path()) {
                Ok(lease) => lease,
                // Not a worker's directory, or one without a shim.
                Err(error) if error.kind() == io::ErrorKind::NotADirectory => None,
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
        let (shim, worker) = (lease.shim.clone(), lease.worker.clone());
        let dir = self.paths.worker(&spec.name, spec.generation);
        let gate = Gate { link, shim, worker, boot: self.boot.clone(), dir };
        Ok(Prepared { lease, window, gate: Box::new(gate) })
    }
}

impl Launcher for ShimLauncher {
    fn check<'a>(&'a self, contract: &'a Contract, dir: Option<&'a str>) -> BoxFuture<'a, Result<(), Refusal>> {
        let (contract, dir) = (contract.clone(), dir.map(PathBuf::from));
        if contract.job.is_some() {
            // Its command is looked for on a node.
            return Box::pin(std::future::ready(Ok(())));
        }
        Box::pin(async move {
            let checked = tokio::task::spawn_blocking(move || lookup::check_start(&contract, dir.as_deref())).await;
            // If the check itself fails, the start is tried.
            checked.unwrap_or(Ok(()))
        })
    }

    fn reserve<'a>(&'a self, spec: &'a Spec) -> BoxFuture<'a, Result<(), LaunchError>> {
        if spec.is_synced() {
            let (paths, spec) = (self.paths.clone(), spec.clone());
            return blocking(move || reserved(&paths, &spec));
        }
        // A few writes to the page cache are cheaper than a thread.
        Box::pin(async move { reserved(&self.paths, spec) })
    }

    fn prepare<'a>(&'a self, spec: &'a Spec, caller: &'a Caller) -> BoxFuture<'a, Result<Prepared, LaunchError>> {
        let dir = self.paths.worker(&spec.name, spec.generation);
        Box::pin(async move {
            if spec.contract.job.is_some() {
                let (paths, spec) = (self.paths.clone(), spec.clone());
                return blocking(move || jobs::prepare(&paths, dir, &spec)).await;
            }
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
            let gate = match prepared.gate.downcast::<JobGate>() {
                Ok(job) => return blocking(move || jobs::open(*job)).await,
                Err(gate) => gate,
            };
            let gate =
                gate.downcast::<Gate>().map_err(|_| LaunchError::System("not a gate of this launcher".to_owned()))?;
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

/// Makes the directory of a start, and writes its contract.
fn reserved(paths: &Paths, spec: &Spec) -> Result<(), LaunchError> {
    let text = serde_json::to_vec(spec).map_err(|error| LaunchError::System(error.to_string()))?;
    check_size(&text)?;
    let made = records::make_worker_dir(paths, spec);
    let dir = made.map_err(|error| system("create the worker's directory", &error))?;
    if let Some(text) = spec.resume.as_ref().and_then(|resume| resume.text.as_ref()) {
        replace_private(&dir, PROMPT, text.as_bytes(), Durability::None)
            .map_err(|error| system("write the recovery prompt", &error))?;
    }
    // Somebody may have deleted it to free space.
    make_dirs(&paths.logs()).map_err(|error| system("create the directory of the logs", &error))?;
    // A contract that is not synced is in the registry's journal as well.
    let durability = if spec.is_synced() { Durability::Synced } else { Durability::None };
    let written = replace_private(&dir, "spec.pending", &text, durability);
    written.map_err(|error| system("write the launch contract", &error))
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
pub(super) async fn read_line(link: &mut Link, limit: Duration) -> io::Result<String> {
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

pub(super) fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, LaunchError> + Send + 'static,
) -> BoxFuture<'static, Result<T, LaunchError>> {
    Box::pin(async move {
        tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(LaunchError::System(error.to_string())))
    })
}
