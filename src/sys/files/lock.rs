//! `flock(2)`, repeated when a signal interrupts it, which the standard library
//! leaves to its caller.

use std::fs::File;
use std::io;
use std::sync::mpsc;
use std::time::Duration;

/// Waits for the lock.
///
/// # Errors
/// What the system says.
pub fn lock(file: &File) -> io::Result<()> {
    loop {
        match file.lock() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            locked => return locked,
        }
    }
}

/// Waits for the lock at most `limit`; `None` when it was not to be had. A thread of its
/// own blocks in the kernel, and lets a lock that comes too late go by itself.
///
/// # Errors
/// What the system says.
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
