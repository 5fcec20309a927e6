//! Enter on the terminal of `swarm web`, by which a person gets a further address.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::termios::tcgetpgrp;
use swarm_sys::processes::wait_readable;
use swarm_sys::readable::Readable;

use super::codes::Codes;
use super::notice::{Notice, Tell};

/// Maximum length of a line that is read at once in bytes, as terminals have it.
const LINE_BYTES_MAX: usize = 4096;

/// Makes a code for each empty line, until the terminal is gone. Other lines are ignored. In the background nothing is
/// read: what is typed is for the shell then, and the kernel would stop this process.
pub async fn renew(terminal: OwnedFd, codes: Arc<Codes>, tell: Tell) {
    // The kernel tells of each line once, so that one for the shell wakes nobody again and again.
    let Ok(readable) = terminal.try_clone().and_then(Readable::new) else { return };
    let terminal = Arc::new(terminal);
    while readable.wait().await.is_ok() {
        let terminal = Arc::clone(&terminal);
        // Another process may take the line away, and this one would wait for the next.
        let Ok(Some(count)) = tokio::task::spawn_blocking(move || empty_lines(&*terminal)).await else { return };
        if count > 0
            && let Ok(code) = codes.renew()
        {
            tell(Notice::Address { code });
        }
    }
}

/// Reads the lines that are there, and returns the number of those that are empty. `None` if the terminal is gone.
fn empty_lines(terminal: &impl AsFd) -> Option<usize> {
    let mut count = 0;
    let mut line = [0; LINE_BYTES_MAX];
    while is_in_foreground(terminal) && wait_readable(terminal, Duration::ZERO) {
        match rustix::io::read(terminal, &mut line) {
            Ok(0) | Err(rustix::io::Errno::IO) => return None,
            Ok(length) => count += usize::from(line[..length].trim_ascii().is_empty()),
            Err(_) => break,
        }
    }
    Some(count)
}

/// Reports whether what is typed is for this process. Only its controlling terminal has a background.
fn is_in_foreground(terminal: &impl AsFd) -> bool {
    tcgetpgrp(terminal).map_or(true, |group| group == rustix::process::getpgrp())
}
