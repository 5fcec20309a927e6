//! Changes of this machine's network, as the kernel tells them.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{SystemTime, UNIX_EPOCH};

use nix::sys::socket::{AddressFamily, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, socket};
use rustix::time::{TimerfdClockId, TimerfdTimerFlags};
use swarm_ports::BoxFuture;

use crate::alarm::timer;
use crate::readable::Readable;

/// Groups of messages: addresses and routes, of IPv4 (0x10, 0x40) and of IPv6 (0x100, 0x400).
const GROUPS: u32 = 0x10 | 0x40 | 0x100 | 0x400;
/// Time for which a timer is set that only rings when the clock is set, in milliseconds.
const YEAR_MS: u64 = 365 * 24 * 3_600_000;

/// Resolves when an address or a route changes after this call, or when the wall clock is set, which the kernel also reports
/// when the machine has slept. Never resolves if the kernel cannot tell. Must be called within a runtime.
pub fn changed() -> BoxFuture<'static, ()> {
    let sources = [routes().and_then(Readable::new), clock_set().and_then(Readable::new)];
    Box::pin(async move {
        let [routes, clock] = sources;
        tokio::select! {
            () = told(routes) => {}
            () = told(clock) => {}
        }
    })
}

async fn told(source: io::Result<Readable>) {
    match source {
        Ok(source) if source.wait().await.is_ok() => {}
        Ok(_) | Err(_) => std::future::pending().await,
    }
}

/// Returns a socket that becomes readable when an address or a route changes.
fn routes() -> io::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkRoute)?;
    bind(std::os::fd::AsRawFd::as_raw_fd(&fd), &NetlinkAddr::new(0, GROUPS))?;
    Ok(fd)
}

/// Returns a timer that becomes readable when the wall clock is set.
fn clock_set() -> io::Result<OwnedFd> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now_ms = u64::try_from(now.as_millis()).unwrap_or(0);
    let flags = TimerfdTimerFlags::ABSTIME | TimerfdTimerFlags::CANCEL_ON_SET;
    timer(TimerfdClockId::Realtime, now_ms.saturating_add(YEAR_MS), flags)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::time::Duration;

    use nix::sched::{CloneFlags, unshare};

    use super::*;

    /// Sets the loopback interface of this thread's network up, which adds an address and routes. Returns false if that is not
    /// permitted here.
    fn loopback_up() -> bool {
        // SIOCSIFFLAGS with IFF_UP. Without `ip`, which a small machine does not have.
        let script = "import fcntl, socket, struct, sys\n\
                      try: fcntl.ioctl(socket.socket(), 0x8914, struct.pack('16sH22x', b'lo', 1))\n\
                      except PermissionError: sys.exit(9)";
        let done = std::process::Command::new("python3").args(["-c", script]).status().expect("python3 is there");
        assert!(matches!(done.code(), Some(0 | 9)), "{done}");
        done.success()
    }

    async fn listens() {
        let mut change = changed();
        let quiet = tokio::time::timeout(Duration::from_millis(100), &mut change).await;
        assert!(quiet.is_err(), "nothing has changed");
        if !loopback_up() {
            let _ = writeln!(io::stderr(), "skipped: a change of the network: it may not be changed here");
            return;
        }
        tokio::time::timeout(Duration::from_secs(10), change).await.expect("the change is told");
        let mut next = changed();
        let waker = std::task::Waker::noop();
        let polled = next.as_mut().poll(&mut std::task::Context::from_waker(waker));
        assert!(polled.is_pending(), "what was before does not count");
    }

    #[test]
    fn a_new_address_is_told() {
        // In a network of its own.
        let run = || {
            if unshare(CloneFlags::CLONE_NEWNET).is_err() {
                return false;
            }
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(listens());
            true
        };
        let has_run = std::thread::scope(|scope| scope.spawn(run).join().expect("finished"));
        assert!(has_run || !nix::unistd::getuid().is_root());
    }
}
