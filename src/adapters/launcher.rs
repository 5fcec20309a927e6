//! Starting shims: detached ones by `posix_spawn`, those in tmux as the command
//! of their window. Both speak the same handshake.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use swarm_actors::model::{Caller, Lease, ProcessId, Spec, TmuxPlace};
use swarm_actors::ports::{BoxFuture, LaunchError, Launcher, Prepared};

use super::tmux::{Order, Server, Tmux, TmuxError};
use super::{process, procfs, records};
use crate::paths::Paths;

/// How long a shim has to stand at its gate: a machine under load included.
const PREPARE_MAX: Duration = Duration::from_secs(10);
/// How long an exec may take; a binary on a slow network disk is the longest.
const EXEC_MAX: Duration = Duration::from_secs(30);

pub struct ShimLauncher {
    paths: Paths,
    executable: PathBuf,
    boot: String,
}

/// The supervisor's end of the handshake.
struct Gate {
    stream: BufReader<UnixStream>,
    shim: ProcessId,
    boot: String,
}

impl ShimLauncher {
    /// `executable` is this program: shims run the same file, also after it was
    /// replaced or removed.
    pub fn new(paths: Paths, executable: PathBuf) -> Self {
        Self { paths, executable, boot: procfs::boot_id() }
    }

    fn detached(&self, dir: &Path, spec: &Spec) -> Result<Prepared, LaunchError> {
        let (ours, theirs) = UnixStream::pair().map_err(|error| system("make a socket", &error))?;
        let child = Command::new(&self.executable)
            .arg("__shim")
            .arg(dir)
            .stdin(Stdio::from(std::os::fd::OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // No directory and nothing else that would make this a fork: a
            // supervisor with much memory would pay for copying its page tables.
            .arg0("swarm")
            .spawn();
        let child = child.map_err(|error| system("start the shim", &error))?;
        self.prepared(ours, spec, None).inspect_err(|_| reap(child.id()))
    }

    fn in_tmux(&self, dir: &Path, spec: &Spec, place: &TmuxPlace, caller: &Caller) -> Result<Prepared, LaunchError> {
        let listener = listen(dir).map_err(|error| system("listen for the shim", &error))?;
        let log = self.paths.logs().join(&spec.logs[0]);
        let made = std::fs::OpenOptions::new().append(true).create(true).mode(0o600).open(&log);
        made.map_err(|error| system("make the log", &error))?;
        let server = match (&place.socket_path, &place.socket) {
            (Some(path), _) => Server::Path(path.clone()),
            (None, Some(name)) => Server::Name(name.clone()),
            (None, None) => Server::Default,
        };
        let tmux = Tmux::new(server, &caller.environment);
        let executable = self.executable.to_string_lossy().into_owned();
        let dir_text = dir.to_string_lossy().into_owned();
        let cwd = spec.worktree.as_ref().map_or(spec.contract.cwd.as_str(), |tree| tree.path.as_str());
        let argv = [executable.as_str(), "__shim", dir_text.as_str()];
        let known = || self.known_servers();
        let order = Order { session: &place.session, name: &spec.name, cwd, argv: &argv, log: &log };
        let opened = tmux.open_window(&order, &known);
        let window = opened.map_err(|error: TmuxError| LaunchError::Tmux(error.to_string()))?;
        let stream = accept(&listener).map_err(|error| {
            let _ = tmux.kill_window(&window.window_id);
            LaunchError::NotStarted(format!("the window's process did not answer: {error}"))
        })?;
        let _ = std::fs::remove_file(dir.join(crate::shim::SOCKET_NAME));
        self.prepared(stream, spec, Some(format!("{}:{}", place.session, spec.name)))
    }

    /// Servers that hold living workers: their sockets may have been removed,
    /// and a second server must never be started beside them.
    fn known_servers(&self) -> Vec<(String, i32)> {
        let Ok(dirs) = std::fs::read_dir(self.paths.workers()) else { return Vec::new() };
        let leases = dirs.flatten().filter_map(|dir| {
            let lease: Lease = serde_json::from_slice(&std::fs::read(dir.path().join("lease")).ok()?).ok()?;
            procfs::alive(&lease.shim, &self.boot)?;
            lease.pane.map(|pane| (pane.socket_path, pane.server_pid))
        });
        let mut servers: Vec<(String, i32)> = leases.collect();
        servers.sort();
        servers.dedup();
        servers
    }

    fn prepared(&self, stream: UnixStream, spec: &Spec, window: Option<String>) -> Result<Prepared, LaunchError> {
        let mut stream = BufReader::new(stream);
        let line = read_line(&mut stream, PREPARE_MAX)
            .map_err(|error| LaunchError::NotStarted(format!("its shim did not get ready: {error}")))?;
        if let Some(cause) = line.strip_prefix("failed ") {
            return Err(LaunchError::System(cause.to_owned()));
        }
        let lease = line.strip_prefix("prepared ").and_then(|json| serde_json::from_str::<Lease>(json).ok());
        let lease = lease.filter(|lease| lease.token == spec.token);
        let lease = lease.ok_or_else(|| LaunchError::NotStarted("its shim ended before it was ready".to_owned()))?;
        let gate = Gate { stream, shim: lease.shim.clone(), boot: self.boot.clone() };
        Ok(Prepared { lease, window, gate: Box::new(gate) })
    }
}

impl Gate {
    fn open(mut self) -> Result<(), LaunchError> {
        let said = self.stream.get_mut().write_all(b"go\n").and_then(|()| read_line(&mut self.stream, EXEC_MAX));
        match said.as_deref() {
            Ok("started") => Ok(()),
            Ok(line) if line.starts_with("failed ") => {
                self.wait_gone();
                Err(LaunchError::Exec(line["failed ".len()..].to_owned()))
            }
            _ => self.without_answer(),
        }
    }

    /// The shim died or is stuck after the promise, or it could not be told. It
    /// is ended before the handshake is cut: end of file would be a go, because
    /// the row is still there. Then the contract's name tells whether the command
    /// was executed.
    fn without_answer(self) -> Result<(), LaunchError> {
        self.end_shim();
        Err(LaunchError::NotStarted("the worker's shim ended before it could start it".to_owned()))
    }

    fn withdraw(mut self) {
        if self.stream.get_mut().write_all(b"no\n").is_err() {
            self.end_shim();
        }
        self.wait_gone();
    }

    /// A shim at its gate leaves on SIGTERM; one that does not is killed, and the
    /// child at the gate leaves by itself.
    fn end_shim(&self) {
        for signal in [rustix::process::Signal::TERM, rustix::process::Signal::KILL] {
            let Some(fd) = process::pidfd(&self.shim, &self.boot) else { break };
            let _ = rustix::process::pidfd_send_signal(&fd, signal);
            if process::wait_all_gone(&[fd], PREPARE_MAX) {
                break;
            }
        }
        self.wait_gone();
    }

    fn wait_gone(&self) {
        if let Some(fd) = process::pidfd(&self.shim, &self.boot) {
            process::wait_all_gone(&[fd], PREPARE_MAX);
        }
        reap(u32::try_from(self.shim.pid).unwrap_or(0));
    }
}

impl Launcher for ShimLauncher {
    fn reserve<'a>(&'a self, spec: &'a Spec) -> BoxFuture<'a, Result<(), LaunchError>> {
        let (paths, spec) = (self.paths.clone(), spec.clone());
        blocking(move || {
            let dir = records::make_worker_dir(&paths, &spec)
                .map_err(|error| system("make the worker's directory", &error))?;
            let text = serde_json::to_vec(&spec).map_err(|error| LaunchError::System(error.to_string()))?;
            records::write_durably(&dir, "spec.pending", &text)
                .map_err(|error| system("write the launch contract", &error))
        })
    }

    fn prepare<'a>(&'a self, spec: &'a Spec, caller: &'a Caller) -> BoxFuture<'a, Result<Prepared, LaunchError>> {
        let (this, spec, caller) = (self.clone(), spec.clone(), caller.clone());
        blocking(move || {
            let dir = this.paths.worker(&spec.name, spec.generation);
            let prepared = match spec.contract.tmux.clone() {
                None => this.detached(&dir, &spec),
                Some(place) => this.in_tmux(&dir, &spec, &place, &caller),
            };
            if prepared.is_err() {
                // The handshake is cut, so a shim that came up leaves; until then
                // its directory cannot be taken back.
                records::wait_let_go(&dir.join("lease"));
            }
            prepared
        })
    }

    fn open(&self, prepared: Prepared) -> BoxFuture<'_, Result<(), LaunchError>> {
        let paths = self.paths.clone();
        blocking(move || {
            let token = prepared.lease.token.clone();
            let gate = prepared
                .gate
                .downcast::<Gate>()
                .map_err(|_| LaunchError::System("not a gate of this launcher".to_owned()))?;
            let opened = gate.open();
            // An exec that happened cannot be taken back: the worker runs, with or without its shim.
            match opened {
                Err(LaunchError::NotStarted(_)) if was_executed(&paths, &token) => Ok(()),
                opened => opened,
            }
        })
    }

    fn withdraw(&self, prepared: Prepared) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let withdrawn = tokio::task::spawn_blocking(move || {
                if let Ok(gate) = prepared.gate.downcast::<Gate>() {
                    gate.withdraw();
                }
            });
            let _ = withdrawn.await;
        })
    }
}

impl Clone for ShimLauncher {
    fn clone(&self) -> Self {
        Self { paths: self.paths.clone(), executable: self.executable.clone(), boot: self.boot.clone() }
    }
}

fn was_executed(paths: &Paths, token: &str) -> bool {
    let Ok(dirs) = std::fs::read_dir(paths.workers()) else { return false };
    dirs.flatten().any(|dir| {
        std::fs::read(dir.path().join("spec.json"))
            .is_ok_and(|text| text.windows(token.len()).any(|window| window == token.as_bytes()))
    })
}

/// Binds the handshake's socket by a short name: a socket's path may have 107
/// bytes, the directory's may be longer.
fn listen(dir: &Path) -> io::Result<UnixListener> {
    use std::os::fd::AsRawFd as _;
    let handle = std::fs::File::open(dir)?;
    let short = format!("/proc/self/fd/{}/{}", handle.as_raw_fd(), crate::shim::SOCKET_NAME);
    UnixListener::bind(short)
}

fn accept(listener: &UnixListener) -> io::Result<UnixStream> {
    if !process::wait_readable(listener, PREPARE_MAX) {
        return Err(io::Error::from(io::ErrorKind::TimedOut));
    }
    listener.accept().map(|(stream, _)| stream)
}

fn read_line(stream: &mut BufReader<UnixStream>, limit: Duration) -> io::Result<String> {
    stream.get_ref().set_read_timeout(Some(limit))?;
    let mut line = String::new();
    match stream.read_line(&mut line) {
        Ok(_) => Ok(line.trim_end().to_owned()),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            Err(io::Error::other(format!("no answer within {} s", limit.as_secs())))
        }
        Err(error) => Err(error),
    }
}

/// Collects a shim that ended before anyone watched it; others are left alone.
fn reap(pid: u32) {
    let Ok(pid) = i32::try_from(pid) else { return };
    let _ = nix::sys::wait::waitpid(nix::unistd::Pid::from_raw(pid), Some(nix::sys::wait::WaitPidFlag::WNOHANG));
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
