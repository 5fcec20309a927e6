//! Asynchronous waiting for a descriptor, such as a pidfd or inotify.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Descriptor that the runtime watches.
pub struct Readable(AsyncFd<OwnedFd>);

impl Readable {
    /// Registers a descriptor with the runtime. Must be called within one.
    ///
    /// # Errors
    /// Fails if the kernel cannot watch the descriptor.
    pub fn new(fd: OwnedFd) -> io::Result<Self> {
        // SAFETY: the registered value owns the descriptor, so the descriptor stays open and the same until that
        // value is dropped and deregistered.
        #[expect(unsafe_code, reason = "registration asks for I/O safety, which an OwnedFd has")]
        let watched = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) };
        watched.map(Self).map_err(io::Error::from)
    }

    /// Resolves when a descriptor that stays readable becomes readable, such as the pidfd of a process that ends. Any
    /// number of tasks may wait, also after it has.
    pub async fn wait_for_end(&self) -> io::Result<()> {
        self.0.readable().await?.retain_ready();
        Ok(())
    }

    /// Resolves when the descriptor is readable, at once if it still is.
    pub async fn wait(&self) -> io::Result<()> {
        let mut ready = self.0.readable().await?;
        ready.clear_ready();
        Ok(())
    }
}
