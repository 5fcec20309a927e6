//! Lease of a generation: the file whose lock its shim holds for life, and whose content names shim and worker.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use swarm_model::{Lease, ProcessId, Spec};
use swarm_sys::files::open_regular;
use swarm_sys::procfs;

use crate::record_text::parse;

/// Name of the file in the directory of a generation.
const FILE: &str = "lease";
/// Maximum wait for a shim to decide a start that its supervisor abandoned.
const LEASE_WAIT_MAX: Duration = Duration::from_secs(3);

/// Returns whether the lease is held, and its content. `None` if there is no lease.
///
/// # Errors
/// Fails if there is a lease that cannot be read, or something else in its place.
pub(crate) fn probe(dir: &Path) -> io::Result<Option<(bool, Option<Lease>)>> {
    let path = dir.join(FILE);
    let named = |error: io::Error| match procfs::lacks_resources(&error) {
        true => error,
        false => io::Error::new(error.kind(), format!("{}: {error}", path.display())),
    };
    let mut file = match open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(named(error)),
    };
    let held = is_held(&file);
    Ok(Some((held, parse(&mut file).map_err(named)?)))
}

/// Opens a lease for reading. Does not wait for the other end of a pipe that is in its place.
///
/// # Errors
/// Fails if the file cannot be opened, or is not a regular file.
pub fn open(path: &Path) -> io::Result<File> {
    open_regular(OpenOptions::new().read(true), path)
}

/// Returns the content of the lease in the directory of a generation; `None` if it is missing or malformed.
///
/// # Errors
/// Fails if there is a lease that cannot be read, or something else in its place.
pub fn read(dir: &Path) -> io::Result<Option<Lease>> {
    match open(&dir.join(FILE)) {
        Ok(mut file) => parse(&mut file),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the lease of an executed start whose file is damaged, by its processes: its shim works in the directory of the
/// generation, and its worker is the first process that was executed with its token. `None` if the worker is not found.
/// A shim that is not found has pid 0.
///
/// # Errors
/// Fails if the processes cannot be examined.
pub(crate) fn of_processes(dir: &Path, spec: &Spec, boot: &str) -> io::Result<Option<Lease>> {
    let place = |dir: &Path| std::fs::metadata(dir).map(|meta| (meta.dev(), meta.ino())).ok();
    let own = place(dir);
    let needle = format!("SWARM_TOKEN={}", spec.token);
    let (mut shims, mut workers) = (Vec::new(), Vec::new());
    for pid in procfs::all()? {
        let Some(stat) = procfs::living(pid)? else { continue };
        let found = (stat.start_ticks, pid);
        if procfs::is_shim(pid)? {
            let works_here = procfs::dir(pid).is_some_and(|dir| own.is_some() && place(&dir) == own);
            shims.extend(works_here.then_some(found));
        } else if procfs::has_variable(pid, needle.as_bytes())? {
            workers.push(found);
        }
    }
    let process = |(start_ticks, pid)| ProcessId { pid, start_ticks, boot: boot.to_owned() };
    let Some(worker) = workers.into_iter().min().map(process) else { return Ok(None) };
    Ok(Some(Lease {
        token: spec.token.clone(),
        started: spec.started.clone(),
        worker,
        // A process that it has forked and that executes nothing yet looks the same, and is younger.
        shim: process(shims.into_iter().min().unwrap_or_default()),
        pane: None,
        restart: spec.contract.restart,
        limits: None,
        machine: spec.machine.clone(),
        process_namespace: None,
        survivors: Vec::new(),
    }))
}

/// Returns the lock that a shim holds on its lease: a write lock on the whole file.
pub fn whole_file_lock() -> libc::flock {
    libc::flock { l_type: libc::F_WRLCK as _, l_whence: libc::SEEK_SET as _, l_start: 0, l_len: 0, l_pid: 0 }
}

/// Reports whether a process holds the lease, without taking it.
pub fn is_held(file: &File) -> bool {
    let mut lock = whole_file_lock();
    match fcntl(file, FcntlArg::F_OFD_GETLK(&mut lock)) {
        Ok(_) => i32::from(lock.l_type) != libc::F_UNLCK,
        // If locks cannot be queried, the lease must count as held: a living worker must not be declared dead.
        Err(_) => true,
    }
}

/// Waits until the lease is released, at most `LEASE_WAIT_MAX`, and reports whether it was.
pub fn wait_let_go(path: &Path) -> bool {
    wait_let_go_within(path, LEASE_WAIT_MAX)
}

/// Waits until the lease is released, at most `limit`, and reports whether it was. The kernel wait runs in its own
/// thread, which releases the read lock as soon as it gets it.
pub fn wait_let_go_within(path: &Path, limit: Duration) -> bool {
    let file = match open(path) {
        Ok(file) => file,
        Err(error) => return error.kind() == io::ErrorKind::NotFound,
    };
    if !is_held(&file) {
        return true;
    }
    let (sender, receiver) = mpsc::channel();
    let waiting = std::thread::Builder::new().spawn(move || {
        let lock = libc::flock { l_type: libc::F_RDLCK as _, ..whole_file_lock() };
        let is_free = fcntl(&file, FcntlArg::F_OFD_SETLKW(&lock)).is_ok();
        // First, because whoever waits may check the lease next.
        drop(file);
        let _ = sender.send(is_free);
    });
    waiting.is_ok() && receiver.recv_timeout(limit).unwrap_or(false)
}
