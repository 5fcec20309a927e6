//! `flock(2)`, repeated if a signal interrupts it. The standard library leaves that to the caller.

use std::fs::File;
use std::io;
use std::sync::mpsc;
use std::time::Duration;

/// Locks the file, and waits as long as necessary.
///
/// # Errors
/// Fails if the system refuses the lock.
pub fn lock(file: &File) -> io::Result<()> {
    loop {
        match file.lock() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            locked => return locked,
        }
    }
}

/// Locks the file, and waits for at most `limit`. Returns `None` if the time is up. A separate thread blocks in the
/// kernel, and releases a lock that it gets too late.
///
/// # Errors
/// Fails if the system refuses the lock or the thread.
pub fn lock_within(file: File, limit: Duration) -> io::Result<Option<File>> {
    if file.try_lock().is_ok() {
        return Ok(Some(file));
    }
    let (sender, receiver) = mpsc::channel();
    std::thread::Builder::new().spawn(move || sender.send(lock(&file).map(|()| file)))?;
    match receiver.recv_timeout(limit) {
        Ok(locked) => locked.map(Some),
        Err(_) => Ok(None),
    }
}
