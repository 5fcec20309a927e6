//! `flock(2)`, repeated when a signal interrupts it, which the standard library
//! leaves to its caller.

use std::fs::File;
use std::io;

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
