//! inotify, of which each user may have a limited number of instances and watches. Whoever gets none looks from time to
//! time instead: a supervisor must start, and end workers, whatever other programs have used up.

use std::io;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::inotify::{InitFlags, Inotify};

/// Pause between two looks at what cannot be watched.
pub const LOOK_PAUSE: Duration = Duration::from_secs(5);

/// Returns an instance that does not block.
///
/// # Errors
/// Fails if the kernel refuses; the error names the limit.
pub fn start() -> io::Result<Inotify> {
    Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK).map_err(explained)
}

/// Returns an error of inotify with the name of the limit that was reached.
pub fn explained(error: Errno) -> io::Error {
    let limit = match error {
        Errno::EMFILE => "fs.inotify.max_user_instances",
        Errno::ENOSPC => "fs.inotify.max_user_watches",
        _ => return error.into(),
    };
    io::Error::other(format!("{} (raise {limit} with sysctl)", io::Error::from(error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_limit_that_was_reached() {
        assert!(explained(Errno::EMFILE).to_string().contains("fs.inotify.max_user_instances"));
        assert!(explained(Errno::ENOSPC).to_string().contains("fs.inotify.max_user_watches"));
        assert_eq!(explained(Errno::ENOENT).kind(), io::ErrorKind::NotFound);
    }
}
