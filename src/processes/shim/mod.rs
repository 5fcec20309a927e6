//! The worker's parent process: a fork of the fork server in its own session, or `swarm __shim DIR` as the first
//! process of a tmux pane. The shim outlives the supervisor, holds the lease, ends the process tree and writes the
//! exit record. It has no runtime and no threads, because it forks.
//!
//! ```text
//!   lease locked ─▶ child at its gate ─▶ prepared ─▶ go ─▶ running ─▶ ended
//!                                          │ no / end of file without a row
//!                                          └─▶ nothing was executed
//! ```

pub mod alone;
mod beside;
mod child;
mod closing;
mod files;
mod link;
mod signals;
mod tree;
mod worktree;

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::path::Path;
use std::time::Duration;

use nix::sys::prctl;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;
use swarm_model::{Contract, Ended, ExitRecord, Held, Hits, Lease, ProcessId, Reason, TmuxPane, Usage};

pub use self::beside::{READY_PIPE, starts_supervisors};
use self::child::Child;
use self::closing::Closing;
use self::files::{ExitFile, LeaseFile, Terms};
pub use self::link::SOCKET_NAME;
use self::link::{Link, StartDecision};
use self::signals::{Deadline, Signals, Wake};
use crate::processes::memory;
use swarm_store::exits::Slot;
use swarm_store::windows::Size;
use swarm_store::{records, window_sizes};
use swarm_sys::cgroups::{self, Groups};
use swarm_sys::{attributes, procfs};

/// Time for which a pane stays open after its command has ended. tmux drops output that it has read, but not yet written
/// to the log, when a pane closes, and it does not report what it has written. The end is recorded after that, so that the
/// log of an ended worker is complete and its window gone.
const LOG_MAX: Duration = Duration::from_millis(20);

/// How a command ends that a shutdown signals before its shim: by the signal, or, as `claude` does, with the code by which
/// shells describe it.
const TERMINATED: [Ended; 2] = [Ended::Signal(nix::libc::SIGTERM), Ended::Code(128 + nix::libc::SIGTERM)];
/// Time for which the shim of such a command waits for its own signal.
const SIGNAL_MAX: Duration = Duration::from_millis(50);

/// Runs one worker from its gate to its exit record.
pub fn main(dir: Option<&OsString>) -> u8 {
    let Some(dir) = dir else { return 2 };
    run_in(Path::new(dir), || {})
}

/// Like [`main`], in a process that is already forked. Calls `prepared` when the child waits at its gate. Returns the
/// exit code.
pub fn run_in(dir: &Path, prepared: impl FnOnce()) -> u8 {
    match run_as(dir, false, prepared) {
        Ok(_) => 0,
        Err(error) => {
            // Visible in a pane for a moment; a supervisor that waits for the handshake sees end of file.
            let _ = writeln!(io::stderr(), "swarm: error: cannot start the worker: {error}");
            1
        }
    }
}

/// Touches the memory that [`run_in`] will need while the process is idle: the first access to a page costs as much
/// as a system call.
pub fn rehearse() {
    let boot = procfs::boot_id();
    let me = procfs::identity(nix::unistd::getpid().as_raw(), &boot);
    let text = serde_json::to_vec(&Contract::default()).unwrap_or_default();
    let _ = (serde_json::from_slice::<serde::de::IgnoredAny>(&text), serde_json::to_string(&me));
}

/// Runs one worker, with its supervisor or `alone`, as a job. Returns how its command has ended, if that is known.
fn run_as(dir: &Path, alone: bool, is_prepared: impl FnOnce()) -> io::Result<Option<Ended>> {
    let signals = Signals::block()?;
    std::env::set_current_dir(dir)?;
    let lease = if alone { LeaseFile::take_if_possible()? } else { LeaseFile::take()? };
    let terms = Terms::read()?;
    let in_tmux = terms.in_tmux();
    if alone {
        // The batch system may have made the job the leader of a process group.
        let _ = nix::unistd::setsid();
    } else if !in_tmux {
        nix::unistd::setsid()?;
    }
    prctl::set_child_subreaper(true)?;
    let mut link = if alone { Link::none() } else { Link::open(in_tmux)? };
    let prepared = prepare(dir, &terms, &lease);
    let (mut child, groups, exit_file, deadline, prepared) = match prepared {
        Ok(prepared) => prepared,
        Err(error) => {
            link.say(&format!("failed {error}"));
            return Err(error);
        }
    };
    link.say(&format!("prepared {}", serde_json::to_string(&prepared)?));
    is_prepared();
    // While the supervisor commits the start. The child, which was forked before, does not inherit the lock.
    let slot = terms.take_slot(dir);
    let go = match link.verdict(&signals) {
        // Its row was committed before it was submitted.
        _ if alone => Ok(!signals.is_told_to_end()),
        StartDecision::Go => Ok(true),
        StartDecision::No => Ok(false),
        // The supervisor died: the start is committed if the registry has a row with this token.
        StartDecision::EndOfFile => files::is_committed(dir, &terms.token, || std::thread::sleep(files::READ_PAUSE)),
    };
    // If that is unknown, nothing is executed here. The next supervisor starts what is committed.
    if !matches!(go, Ok(true)) {
        child.give_up();
        groups.remove();
        return go.map(|_| None);
    }
    match child.open_gate() {
        Ok(warnings) => link.say(&format!("started {}", serde_json::to_string(&warnings)?)),
        Err(failure) => {
            groups.remove();
            link.say(&format!("failed {failure}"));
            return if alone { Err(io::Error::other(failure)) } else { Ok(None) };
        }
    }
    drop(link);
    if alone {
        alone::tell(dir, "begun");
    }
    let life = RunningWorker { terms, groups, signals, lease, exit_file, slot };
    let ended = life.supervise(&mut child, deadline);
    if alone {
        alone::tell(dir, "ended");
    }
    ended
}

type Prepared = (Child, Groups, ExitFile, Option<Deadline>, Lease);

/// Does everything that can fail before the start is committed.
fn prepare(dir: &Path, terms: &Terms, lease: &LeaseFile) -> io::Result<Prepared> {
    let boot = procfs::known_boot_id()?;
    let exit_file = ExitFile::reserve()?;
    let deadline = Deadline::make(terms.timeout_ms())?;
    let groups = make_groups(dir, terms)?;
    let mut child = Child::fork(dir, terms.in_tmux(), &groups)?;
    let mut content = lease_of(terms, &child, &boot)?;
    // Usually the child enters its groups before the start is committed, so this need not wait.
    let groups = if child.may_be_refused() { groups.entered(child.entered()) } else { groups };
    content.limits = held(terms, &groups);
    lease.write(&content)?;
    Ok((child, groups, exit_file, deadline, content))
}

/// Creates the control groups of a worker with limits. They are listed in a file first: if killed in between, they are
/// removed with the worker's directory.
fn make_groups(dir: &Path, terms: &Terms) -> io::Result<Groups> {
    let name = dir.file_name().unwrap_or_default().to_string_lossy();
    let planned = Groups::plan(&terms.limits(), &cgroups::leaf(&name, &terms.token));
    if planned.is_none() {
        return Ok(planned);
    }
    cgroups::list(&planned, Path::new(records::GROUPS))?;
    Ok(planned.make(&terms.limits()))
}

fn lease_of(terms: &Terms, child: &Child, boot: &str) -> io::Result<Lease> {
    // A lease without an identity would make a living worker look dead.
    let unknown = |pid| io::Error::other(format!("cannot read the identity of process {pid}"));
    let identity = |pid| procfs::identity(pid, boot).ok_or_else(|| unknown(pid));
    Ok(Lease {
        token: terms.token.clone(),
        started: terms.started.clone(),
        worker: identity(child.pid())?,
        shim: identity(nix::unistd::getpid().as_raw())?,
        pane: if terms.in_tmux() { pane() } else { None },
        restart: terms.restart(),
        limits: None,
        machine: Some(swarm_sys::machine::this().clone()),
        process_namespace: attributes::process_namespace(),
        survivors: Vec::new(),
    })
}

/// Returns the limits in force for the lease; `None` for a worker without limits.
fn held(terms: &Terms, groups: &Groups) -> Option<Held> {
    let asked = terms.limits();
    let logged_bytes = if asked.max_output_bytes.is_some() { terms.logged_bytes() } else { 0 };
    (!asked.is_none()).then(|| groups.held(asked, logged_bytes))
}

/// Returns this pane's place from the variables that tmux sets (`TMUX=socket,server pid,session`).
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

/// Running worker.
struct RunningWorker {
    terms: Terms,
    groups: Groups,
    signals: Signals,
    lease: LeaseFile,
    exit_file: ExitFile,
    slot: Option<Slot>,
}

impl RunningWorker {
    /// Supervises the worker from its exec to its exit record.
    fn supervise(self, child: &mut Child, deadline: Option<Deadline>) -> io::Result<Option<Ended>> {
        self.record_size();
        let timer = deadline.map(Deadline::begin).transpose()?;
        let abandoned = signals::watch_removal();
        if self.signals.stay_away(memory::CALM, timer.as_ref()) {
            memory::trim();
        }
        let mut order = None;
        while order.is_none() {
            if has_ended(child) {
                // The lost terminal that ended it may have been reported to this process as well.
                order = self.pending_order();
                break;
            }
            order = self.order(self.signals.wait(timer.as_ref())?);
        }
        let closing = order.filter(|order| order.reason == Reason::Closed).and_then(|_| Closing::look());
        // In a terminal SIGHUP is sent first, because an interactive shell ignores SIGTERM.
        let hangup = order.is_some() && self.terms.in_tmux();
        // Read before the tree is ended: forks that are refused during that must not count.
        let refused = self.groups.hits().pids_refused;
        let ended_before = child.ended();
        let first = hangup.then_some(nix::sys::signal::Signal::SIGHUP);
        let grace = if self.terms.is_job() { tree::GRACE_OF_JOB } else { tree::GRACE };
        let survivors = tree::end(child, &self.signals, &self.groups, first, grace);
        drop(abandoned);
        let hits = Hits { pids_refused: refused, ..self.groups.hits() };
        let server_lost = closing.as_ref().and_then(Closing::is_server_lost);
        // A shutdown may end the command, or the terminal, before it signals the shim.
        let wait = match order.map(|order| order.reason) {
            None => ended_before.is_some_and(|ended| TERMINATED.contains(&ended)).then_some(SIGNAL_MAX),
            Some(Reason::Closed) if closing.is_some_and(|closing| closing.is_last()) => Some(SIGNAL_MAX),
            Some(reason) => (reason == Reason::Closed).then_some(Duration::ZERO),
        };
        if wait.is_some_and(|limit| self.signals.is_terminated_within(limit)) {
            order = Some(Order { reason: Reason::Stopped, interrupted: true });
        }
        let reason = order.map_or_else(|| by_itself(ended_before, hits), |order| order.reason);
        let interrupted = order.is_some_and(|order| order.interrupted);
        let server_lost = server_lost.filter(|_| reason == Reason::Closed);
        let record = record(&self.terms, child, reason).map(|record| ExitRecord {
            survivors: pids(&survivors),
            hits,
            interrupted,
            server_lost,
            ..record
        });
        self.groups.remove();
        if self.terms.in_tmux() && order.is_none() {
            self.signals.stay_quiet(LOG_MAX);
        }
        if !survivors.is_empty() {
            // Before the record. If the disk is full, they are only known by their pids.
            let _ = self.lease.add_survivors(&survivors);
        }
        // Without its status, the end of the command is unknown.
        if let Some(record) = record {
            self.exit_file.write(&record, self.slot)?;
        }
        wake_supervisor(&self.terms, reason);
        // The lease is released last: a reader that finds it free also finds the record.
        drop(self.lease);
        Ok(child.ended())
    }

    /// Records the size of the window beside its log. A size that cannot be recorded only makes the log wrap otherwise.
    fn record_size(&self) {
        let Some(log) = self.terms.window_log() else { return };
        if let Ok(size) = rustix::termios::tcgetwinsize(io::stdout()) {
            let _ = window_sizes::record(&log, Size { columns: size.ws_col, rows: size.ws_row });
        }
    }

    /// Returns the first order that has arrived and was not read yet.
    fn pending_order(&self) -> Option<Order> {
        std::iter::from_fn(|| self.signals.take()).find_map(|wake| self.order(wake))
    }

    /// Returns why the worker must be ended; `None` if the wake-up needs no action.
    fn order(&self, wake: Wake) -> Option<Order> {
        let reason = match wake {
            Wake::Stop | Wake::Terminate => Some(Reason::Stopped),
            Wake::Hangup if self.terms.in_tmux() => Some(Reason::Closed),
            Wake::Deadline => Some(Reason::Timeout),
            Wake::Output => Some(Reason::Output),
            Wake::Removal if self.lease.is_removed() => Some(Reason::Abandoned),
            // The supervisor of a job is on another machine.
            Wake::Supervisor if self.terms.is_job() => None,
            Wake::Supervisor => {
                beside::start_supervisor();
                None
            }
            Wake::Resize => {
                self.record_size();
                None
            }
            Wake::Child | Wake::Hangup | Wake::Removal => None,
        };
        reason.map(|reason| Order { reason, interrupted: wake == Wake::Terminate })
    }
}

/// Why the shim ends its worker.
#[derive(Clone, Copy)]
struct Order {
    reason: Reason,
    /// Whether somebody other than a supervisor asked for it.
    interrupted: bool,
}

fn has_ended(child: &mut Child) -> bool {
    child.reap();
    child.ended().is_some()
}

/// Returns the reason of an end that was not ordered. A command killed by SIGKILL while its control groups ran out of
/// memory ended for that reason. If only one of its children was killed, the command's own end counts.
fn by_itself(ended: Option<Ended>, hits: Hits) -> Reason {
    match ended {
        Some(Ended::Signal(nix::libc::SIGKILL)) if hits.oom_kills > 0 => Reason::OutOfMemory,
        _ => Reason::Exited,
    }
}

fn pids(processes: &[ProcessId]) -> Vec<i32> {
    processes.iter().map(|process| process.pid).collect()
}

/// Returns the record of the command's end; `None` if it could not be ended, so that it has no status.
fn record(terms: &Terms, child: &Child, reason: Reason) -> Option<ExitRecord> {
    let ended = child.ended()?;
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).ok();
    let micros = |time: nix::sys::time::TimeVal| u64::try_from(time.num_microseconds()).unwrap_or(0);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Some(ExitRecord {
        token: terms.token.clone(),
        started: terms.started.clone(),
        pid: child.pid(),
        ended,
        reason,
        ended_at_ms: u64::try_from(now.as_millis()).unwrap_or(0),
        duration_ms: child.up_ms(),
        usage: usage.map_or_else(Usage::default, |usage| Usage {
            user_us: micros(usage.user_time()),
            system_us: micros(usage.system_time()),
            rss_max_kb: u64::try_from(usage.max_rss()).unwrap_or(0),
        }),
        survivors: Vec::new(),
        hits: Hits::default(),
        interrupted: false,
        server_lost: None,
    })
}

/// Starts a supervisor if a restart or a landing is due, because guard and supervisor may have died together.
fn wake_supervisor(terms: &Terms, reason: Reason) {
    let stays_ended = matches!(reason, Reason::Stopped | Reason::Abandoned);
    if stays_ended || !terms.has_sequel() || terms.is_job() {
        return;
    }
    // Resolved now: the working directory may be removed before the guard ends.
    if let Ok(root) = std::fs::canonicalize("../..") {
        crate::processes::guard::start_late(&root);
    }
}
