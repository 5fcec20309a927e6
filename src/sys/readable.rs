//! Waiting for a descriptor in a task: pidfds and inotify.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A descriptor that the runtime watches.
pub struct Readable(AsyncFd<OwnedFd>);

impl Readable {
    /// Within a runtime.
    ///
    /// # Errors
    /// When the kernel cannot watch the descriptor.
    pub fn new(fd: OwnedFd) -> io::Result<Self> {
        // SAFETY: the descriptor is owned by the value that is registered, so it
        // stays open and the same until that value is dropped and deregistered.
        #[expect(unsafe_code, reason = "registration asks for I/O safety, which an OwnedFd has")]
        let watched = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) };
        watched.map(Self).map_err(io::Error::from)
    }

    /// Resolves when there is something to read, at once when there still is.
    pub async fn wait(&self) -> io::Result<()> {
        let mut ready = self.0.readable().await?;
        ready.clear_ready();
        Ok(())
    }
}
