//! The worker's parent process: a fork of the fork server in a session of its own,
//! or `swarm __shim DIR` as the first process of a tmux pane. It outlives the supervisor, holds the
//! lease, ends the process tree and writes the exit record. No runtime and no
//! thread: it forks.
//!
//! ```text
//!   lease locked ─▶ child at its gate ─▶ prepared ─▶ go ─▶ running ─▶ ended
//!                                          │ no / end of file without a row
//!                                          └─▶ nothing was executed
//! ```

mod child;
mod files;
mod link;
mod signals;
mod tree;

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::path::Path;

use nix::sys::prctl;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;
use swarm_actors::model::{Contract, Ended, ExitRecord, Lease, Reason, RestartPolicy, Spec, TmuxPane, Usage};

use self::child::Child;
use self::files::{ExitFile, LeaseFile};
pub use self::link::SOCKET_NAME;
use self::link::{Link, Verdict};
use self::signals::{Signals, Wake};
use crate::adapters::procfs;

/// Runs one worker from its gate to its exit record.
pub fn main(dir: Option<&OsString>) -> u8 {
    let Some(dir) = dir else { return 2 };
    run_in(Path::new(dir), || {})
}

/// The same, for a fork that is one already; calls `prepared` when it stands at
/// the gate. Returns the exit code.
pub fn run_in(dir: &Path, prepared: impl FnOnce()) -> u8 {
    match run(dir, prepared) {
        Ok(()) => 0,
        Err(error) => {
            // In a pane this is seen for a moment; a supervisor that waits for
            // the handshake sees end of file.
            let _ = writeln!(io::stderr(), "swarm: error: cannot start the worker: {error}");
            1
        }
    }
}

/// Touches the memory that [`run_in`] will need, for a fork that has time now:
/// the first touch of every page costs as much as a system call.
pub fn rehearse() {
    let environment =
        std::env::vars_os().filter_map(|(key, value)| Some((key.into_string().ok()?, value.into_string().ok()?)));
    let spec = Spec {
        name: String::new(),
        generation: 1,
        token: String::new(),
        request: String::new(),
        started: String::new(),
        contract: Contract { environment: environment.collect::<Vec<_>>().into(), ..Contract::default() },
        worktree: None,
        logs: Vec::new(),
    };
    let text = serde_json::to_vec(&spec).unwrap_or_default();
    let _ = serde_json::from_slice::<Spec>(&text);
    let boot = procfs::boot_id();
    let _ = procfs::identity(nix::unistd::getpid().as_raw(), &boot);
}

fn run(dir: &Path, is_prepared: impl FnOnce()) -> io::Result<()> {
    let signals = Signals::block()?;
    std::env::set_current_dir(dir)?;
    let lease = LeaseFile::take()?;
    let mut spec = files::read_spec()?;
    let in_tmux = spec.contract.tmux.is_some();
    if !in_tmux {
        nix::unistd::setsid()?;
    }
    prctl::set_child_subreaper(true)?;
    let mut link = Link::open(in_tmux)?;
    let prepared = prepare(dir, &spec, &lease);
    let (mut child, exit_file, prepared) = match prepared {
        Ok(prepared) => prepared,
        Err(error) => {
            link.say(&format!("failed {error}"));
            return Err(error);
        }
    };
    link.say(&format!("prepared {}", serde_json::to_string(&prepared)?));
    is_prepared();
    let go = match link.verdict(&signals) {
        Verdict::Go => true,
        Verdict::No => false,
        // The supervisor died: the row is the promise, its token the proof.
        Verdict::EndOfFile => files::is_committed(dir, &spec.token),
    };
    if !go {
        child.give_up();
        return Ok(());
    }
    match child.open_gate() {
        Ok(()) => link.say("started"),
        Err(failure) => {
            link.say(&format!("failed {failure}"));
            return Ok(());
        }
    }
    drop(link);
    give_back(&mut spec);
    supervise(&spec, &mut child, &signals, lease, exit_file)
}

/// A shim lives as long as its worker, and there are many: what only the start
/// needed goes back to the system.
fn give_back(spec: &mut Spec) {
    spec.contract = Contract {
        tmux: spec.contract.tmux.take(),
        restart: spec.contract.restart,
        timeout_ms: spec.contract.timeout_ms,
        ..Contract::default()
    };
    crate::allocator::trim();
}

type Prepared = (Child, ExitFile, Lease);

/// Everything that can fail is done before the start is promised.
fn prepare(dir: &Path, spec: &Spec, lease: &LeaseFile) -> io::Result<Prepared> {
    let boot = procfs::known_boot_id()?;
    let exit_file = ExitFile::reserve()?;
    let child = Child::fork(dir, spec)?;
    let content = lease_of(spec, &child, &boot)?;
    lease.write(&content)?;
    Ok((child, exit_file, content))
}

fn lease_of(spec: &Spec, child: &Child, boot: &str) -> io::Result<Lease> {
    // A lease that names nobody would make a living worker look dead.
    let unknown = |pid| io::Error::other(format!("cannot read the identity of process {pid}"));
    let identity = |pid| procfs::identity(pid, boot).ok_or_else(|| unknown(pid));
    Ok(Lease {
        token: spec.token.clone(),
        started: spec.started.clone(),
        worker: identity(child.pid())?,
        shim: identity(nix::unistd::getpid().as_raw())?,
        pane: spec.contract.tmux.as_ref().and_then(|_| pane()),
        restart: spec.contract.restart,
    })
}

/// Where this pane is, from what tmux puts into its environment
/// (`TMUX=socket,server pid,session`).
fn pane() -> Option<TmuxPane> {
    let tmux = std::env::var("TMUX").ok()?;
    let mut parts = tmux.rsplitn(3, ',');
    let (_, server, socket) = (parts.next()?, parts.next()?, parts.next()?);
    Some(TmuxPane {
        pane: std::env::var("TMUX_PANE").ok()?,
        socket_path: socket.to_owned(),
        server_pid: server.parse().ok()?,
    })
}

/// From the exec to the exit record.
fn supervise(
    spec: &Spec,
    child: &mut Child,
    signals: &Signals,
    lease: LeaseFile,
    exit_file: ExitFile,
) -> io::Result<()> {
    let timer = signals::deadline(spec.contract.timeout_ms)?;
    let abandoned = signals::watch_removal();
    let mut reason = Reason::Exited;
    let mut survivors = Vec::new();
    loop {
        child.reap();
        if child.ended().is_some() {
            survivors = tree::end(child, signals, None);
            break;
        }
        let order = match signals.wait(timer.as_ref())? {
            Wake::Child => continue,
            Wake::Terminate => Reason::Stopped,
            Wake::Hangup if spec.contract.tmux.is_some() => Reason::Closed,
            Wake::Hangup => continue,
            Wake::Deadline => Reason::Timeout,
            Wake::Removal if lease.is_removed() => Reason::Abandoned,
            Wake::Removal => continue,
        };
        reason = order;
        // In a terminal the polite word is hang-up: an interactive shell ignores SIGTERM.
        let first = spec.contract.tmux.is_some().then_some(nix::sys::signal::Signal::SIGHUP);
        survivors.extend(tree::end(child, signals, first));
        break;
    }
    drop(abandoned);
    let record = record(spec, child, reason, survivors);
    exit_file.write(&record)?;
    wake_supervisor(spec, reason);
    // Only now may the lease go: whoever finds it free finds the record too.
    drop(lease);
    Ok(())
}

fn record(spec: &Spec, child: &Child, reason: Reason, survivors: Vec<i32>) -> ExitRecord {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).ok();
    let micros = |time: nix::sys::time::TimeVal| u64::try_from(time.num_microseconds()).unwrap_or(0);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    ExitRecord {
        token: spec.token.clone(),
        started: spec.started.clone(),
        pid: child.pid(),
        // A process that outlived SIGKILL has not ended; that is as bad as the signal.
        ended: child.ended().unwrap_or(Ended::Signal(9)),
        reason,
        ended_at_ms: u64::try_from(now.as_millis()).unwrap_or(0),
        duration_ms: child.up_ms(),
        usage: usage.map_or_else(Usage::default, |usage| Usage {
            user_us: micros(usage.user_time()),
            system_us: micros(usage.system_time()),
            rss_max_kb: u64::try_from(usage.max_rss()).unwrap_or(0),
        }),
        survivors,
    }
}

/// A restart may be due and nobody there to do it, when guard and supervisor
/// died together: then this is where the next supervisor comes from.
fn wake_supervisor(spec: &Spec, reason: Reason) {
    let stays_ended = matches!(reason, Reason::Stopped | Reason::Abandoned);
    if stays_ended || spec.contract.restart == RestartPolicy::Never {
        return;
    }
    // Resolved now: the working directory may be removed before the guard ends.
    if let Ok(root) = std::fs::canonicalize("../..") {
        crate::guard::start_late(&root);
    }
}
