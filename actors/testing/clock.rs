//! Clock of a [`World`](super::World): durations follow tokio's clock, the wall clock can jump.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use swarm_model::Machine;
use swarm_ports::{Alarm, BoxFuture, Clock};

/// Initial wall clock time, in milliseconds since the Unix epoch.
const WALL_MS: u64 = 1_700_000_000_000;
/// Initial uptime of the machine, in milliseconds.
const BOOT_MS: u64 = 3_600_000;

pub struct FakeClock {
    began: Instant,
    jumped_ms: AtomicI64,
    jumps: Notify,
    starts: AtomicU64,
    tokens: AtomicU64,
}

impl Default for FakeClock {
    fn default() -> Self {
        Self {
            began: Instant::now(),
            jumped_ms: AtomicI64::new(0),
            jumps: Notify::new(),
            starts: AtomicU64::new(0),
            tokens: AtomicU64::new(0),
        }
    }
}

impl FakeClock {
    /// Sets the wall clock forward or back.
    pub fn jump_wall_ms(&self, by: i64) {
        self.jumped_ms.fetch_add(by, Ordering::SeqCst);
        self.jumps.notify_waiters();
    }

    /// Resolves once the wall clock reaches `wall_ms`, or as soon as it is set.
    async fn reaches(&self, wall_ms: u64) {
        let jumped = self.jumps.notified();
        let left = Duration::from_millis(wall_ms.saturating_sub(self.wall_ms()));
        tokio::select! { () = jumped => {}, () = tokio::time::sleep(left) => {} }
    }

    fn elapsed_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

impl Clock for FakeClock {
    fn wall_ms(&self) -> u64 {
        (WALL_MS + self.elapsed_ms()).saturating_add_signed(self.jumped_ms.load(Ordering::SeqCst))
    }

    fn boot_ms(&self) -> u64 {
        BOOT_MS + self.elapsed_ms()
    }

    fn alarm(&self, alarm: Alarm) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let boot = async {
                match alarm.boot_ms {
                    Some(at) => tokio::time::sleep(Duration::from_millis(at.saturating_sub(self.boot_ms()))).await,
                    None => std::future::pending().await,
                }
            };
            let wall = async {
                match alarm.wall_ms {
                    Some(at) => self.reaches(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! { () = boot => {}, () = wall => {} }
        })
    }

    /// Returns a different value at every call; the values sort in call order.
    fn started(&self) -> String {
        format!("2026-01-01T00:00:00.{:06}", self.starts.fetch_add(1, Ordering::SeqCst))
    }

    fn token(&self) -> String {
        format!("{:032x}", self.tokens.fetch_add(1, Ordering::SeqCst) + 1)
    }

    fn machine(&self) -> Machine {
        Machine { id: "m".to_owned(), boot: "b".to_owned(), host: self.host() }
    }

    fn host(&self) -> String {
        "testhost".to_owned()
    }
}
