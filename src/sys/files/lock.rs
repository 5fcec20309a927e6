//! Locks on files with `flock(2)`: with a deadline, and with the name of the process that holds one.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use fs2::FileExt;

/// Waits for the lock without a limit.
///
/// # Errors
/// Returns the error of `flock(2)`. Interrupted calls are repeated.
pub fn lock(file: &File) -> io::Result<()> {
    retried(|| FileExt::lock_exclusive(file))
}

/// Waits for the lock at most `limit`. Returns `None` if it was not free in time.
///
/// The kernel does the waiting: a thread of its own blocks in `flock(2)`, and releases a lock that it gets too late.
///
/// # Errors
/// Returns the error of `flock(2)`, or that of a thread that cannot be started.
pub fn lock_within(file: File, limit: Duration) -> io::Result<Option<File>> {
    match retried(|| FileExt::try_lock_exclusive(&file)) {
        Ok(()) => return Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
        Err(error) => return Err(error),
    }
    let (sender, receiver) = mpsc::channel();
    let wait = move || {
        let locked = lock(&file).map(|()| file);
        // Nobody receives after the limit; the file, and with it the lock, is then dropped.
        let _ = sender.send(locked);
    };
    std::thread::Builder::new().name("file-lock".to_owned()).spawn(wait)?;
    match receiver.recv_timeout(limit) {
        Ok(locked) => locked.map(Some),
        Err(_) => Ok(None),
    }
}

fn retried(mut call: impl FnMut() -> io::Result<()>) -> io::Result<()> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

/// Returns the pid of the process that holds the lock of a file.
fn holder_of(inode: &str) -> Option<String> {
    let locks = fs::read_to_string("/proc/locks").ok()?;
    locks.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let same = fields.get(1) == Some(&"FLOCK") && fields.get(5)?.rsplit(':').next() == Some(inode);
        same.then(|| fields.get(4).map(|pid| (*pid).to_owned())).flatten()
    })
}

/// Number of times that `/proc/locks` is read: a list that changes while it is being read may lack an entry.
const LOOKS_MAX: usize = 5;

/// Names the process that holds the lock, as far as `/proc/locks` tells.
pub fn holder(path: &Path) -> String {
    let inode = fs::metadata(path).map(|meta| meta.ino().to_string()).unwrap_or_default();
    let Some(pid) = (0..LOOKS_MAX).find_map(|_| holder_of(&inode)) else { return "an unknown process".to_owned() };
    let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let command = String::from_utf8_lossy(&command).replace('\0', " ");
    format!("process {pid} ({})", command.trim().chars().take(80).collect::<String>())
}
