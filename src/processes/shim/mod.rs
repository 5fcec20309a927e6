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
use swarm_model::{Contract, Ended, ExitRecord, Held, Hits, Lease, Reason, TmuxPane, Usage};

use self::child::Child;
use self::files::{ExitFile, LeaseFile, Terms};
pub use self::link::SOCKET_NAME;
use self::link::{Link, Verdict};
use self::signals::{Signals, Wake};
use crate::processes::memory;
use swarm_store::records;
use swarm_sys::cgroups::{self, Groups};
use swarm_sys::procfs;

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

/// Touches what [`run_in`] will need, for a fork that has time now: the first
/// touch of every page costs as much as a system call.
pub fn rehearse() {
    let boot = procfs::boot_id();
    let me = procfs::identity(nix::unistd::getpid().as_raw(), &boot);
    let text = serde_json::to_vec(&Contract::default()).unwrap_or_default();
    let _ = (serde_json::from_slice::<serde::de::IgnoredAny>(&text), serde_json::to_string(&me));
}

fn run(dir: &Path, is_prepared: impl FnOnce()) -> io::Result<()> {
    let signals = Signals::block()?;
    std::env::set_current_dir(dir)?;
    let lease = LeaseFile::take()?;
    let terms = Terms::read()?;
    let in_tmux = terms.in_tmux();
    if !in_tmux {
        nix::unistd::setsid()?;
    }
    prctl::set_child_subreaper(true)?;
    let mut link = Link::open(in_tmux)?;
    let prepared = prepare(dir, &terms, &lease);
    let (mut child, groups, exit_file, prepared) = match prepared {
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
        Verdict::EndOfFile => files::is_committed(dir, &terms.token),
    };
    if !go {
        child.give_up();
        groups.remove();
        return Ok(());
    }
    match child.open_gate() {
        Ok(()) => link.say("started"),
        Err(failure) => {
            groups.remove();
            link.say(&format!("failed {failure}"));
            return Ok(());
        }
    }
    drop(link);
    let life = Life { terms, groups, signals, lease, exit_file };
    life.supervise(&mut child)
}

type Prepared = (Child, Groups, ExitFile, Lease);

/// Everything that can fail is done before the start is promised.
fn prepare(dir: &Path, terms: &Terms, lease: &LeaseFile) -> io::Result<Prepared> {
    let boot = procfs::known_boot_id()?;
    let exit_file = ExitFile::reserve()?;
    let groups = make_groups(dir, terms)?;
    let mut child = Child::fork(dir, terms.in_tmux(), &groups)?;
    let mut content = lease_of(terms, &child, &boot)?;
    // As a rule it is in them before the start is committed, and nobody waits for that here.
    let groups = if child.may_be_refused() { groups.entered(child.entered()) } else { groups };
    content.limits = held(terms, &groups);
    lease.write(&content)?;
    Ok((child, groups, exit_file, content))
}

/// The groups of a worker with limits, listed before they are there: killed in between, they go
/// with its directory.
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
    // A lease that names nobody would make a living worker look dead.
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
    })
}

/// Nothing to tell of a worker without limits.
fn held(terms: &Terms, groups: &Groups) -> Option<Held> {
    let asked = terms.limits();
    let logged_bytes = if asked.max_output_bytes.is_some() { terms.logged_bytes() } else { 0 };
    (!asked.is_none()).then(|| groups.held(asked, logged_bytes))
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

/// A worker that was executed.
struct Life {
    terms: Terms,
    groups: Groups,
    signals: Signals,
    lease: LeaseFile,
    exit_file: ExitFile,
}

impl Life {
    /// From the exec to the exit record.
    fn supervise(self, child: &mut Child) -> io::Result<()> {
        let timer = signals::deadline(self.terms.timeout_ms())?;
        let abandoned = signals::watch_removal();
        if self.signals.stay_away(memory::CALM, timer.as_ref()) {
            memory::trim();
        }
        let mut order = None;
        while order.is_none() && !has_ended(child) {
            order = self.order(self.signals.wait(timer.as_ref())?);
        }
        // In a terminal the polite word is hang-up: an interactive shell ignores SIGTERM.
        let hangup = order.is_some() && self.terms.in_tmux();
        // What is refused while the tree is being ended is no fact about the worker.
        let refused = self.groups.hits().pids_refused;
        let ended_before = child.ended();
        let first = hangup.then_some(nix::sys::signal::Signal::SIGHUP);
        let survivors = tree::end(child, &self.signals, &self.groups, first);
        drop(abandoned);
        let hits = Hits { pids_refused: refused, ..self.groups.hits() };
        let reason = order.unwrap_or_else(|| by_itself(ended_before, hits));
        let record = ExitRecord { survivors, hits, ..record(&self.terms, child, reason) };
        self.groups.remove();
        self.exit_file.write(&record)?;
        wake_supervisor(&self.terms, reason);
        // Only now may the lease go: whoever finds it free finds the record too.
        drop(self.lease);
        Ok(())
    }

    /// Why it is to be ended; nothing for what only had to be looked at.
    fn order(&self, wake: Wake) -> Option<Reason> {
        match wake {
            Wake::Terminate => Some(Reason::Stopped),
            Wake::Hangup if self.terms.in_tmux() => Some(Reason::Closed),
            Wake::Deadline => Some(Reason::Timeout),
            Wake::Output => Some(Reason::Output),
            Wake::Removal if self.lease.is_removed() => Some(Reason::Abandoned),
            Wake::Child | Wake::Hangup | Wake::Removal => None,
        }
    }
}

fn has_ended(child: &mut Child) -> bool {
    child.reap();
    child.ended().is_some()
}

/// A command that the kernel killed while its groups were out of memory was killed for that. One
/// that outlived a child of its own has another reason, and the child is a fact beside it.
fn by_itself(ended: Option<Ended>, hits: Hits) -> Reason {
    match ended {
        Some(Ended::Signal(nix::libc::SIGKILL)) if hits.oom_kills > 0 => Reason::OutOfMemory,
        _ => Reason::Exited,
    }
}

fn record(terms: &Terms, child: &Child, reason: Reason) -> ExitRecord {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).ok();
    let micros = |time: nix::sys::time::TimeVal| u64::try_from(time.num_microseconds()).unwrap_or(0);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    ExitRecord {
        token: terms.token.clone(),
        started: terms.started.clone(),
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
        survivors: Vec::new(),
        hits: Hits::default(),
    }
}

/// A restart or a landing may be due and nobody there to do it, when guard and supervisor
/// died together: then this is where the next supervisor comes from.
fn wake_supervisor(terms: &Terms, reason: Reason) {
    let stays_ended = matches!(reason, Reason::Stopped | Reason::Abandoned);
    if stays_ended || !terms.has_sequel() {
        return;
    }
    // Resolved now: the working directory may be removed before the guard ends.
    if let Ok(root) = std::fs::canonicalize("../..") {
        crate::processes::guard::start_late(&root);
    }
}
