//! Pauses between the tries to reach the host of an attempt.

use super::attend::EffectRunner;
use super::machine::refused_ms;
use crate::alarm::until;
use swarm_model::run::Event;
use swarm_model::run::progress::ClosedKind;
use swarm_ports::{BoxFuture, HostFault};

/// First pause before a host is asked again about an attempt that belongs to it, in milliseconds. Each further one is twice
/// as long.
pub(super) const PAUSE_MS: u64 = 1_000;
/// Longest such pause.
pub(super) const PAUSE_MS_MAX: u64 = 60_000;

/// Tries to reach the host of an attempt that belongs to it.
pub(super) struct Tries<'a> {
    runner: &'a EffectRunner,
    host: &'a str,
    /// Job and number of the attempt. `None`: it was given up.
    of: Option<(usize, u32)>,
    pub(super) count: u32,
    /// Number of them that the host refused. Some servers block an address after a few failed logins.
    refusals: u32,
    /// Whether the host was reported as out of reach.
    is_lost: bool,
    /// Number of times that the host answered, and something was in the way.
    blocks: u32,
    /// Obstacle that was reported last.
    pub(super) told: Option<String>,
    /// Resolves when the network has changed. `None` before the first pause of an outage.
    changed: Option<BoxFuture<'static, ()>>,
}

impl<'a> Tries<'a> {
    pub(super) fn new(runner: &'a EffectRunner, host: &'a str, of: Option<(usize, u32)>) -> Self {
        Self { runner, host, of, count: 0, refusals: 0, is_lost: false, blocks: 0, told: None, changed: None }
    }

    /// Reports that the host is out of reach, or what is in the way although it answers, and waits before the next try.
    pub(super) async fn wait(&mut self, fault: HostFault) {
        let is_refused = matches!(fault, HostFault::Refused { .. });
        match parts(fault) {
            Fault::Closed(ClosedKind::Busy, cause) | Fault::Unfit(_, cause) => return self.blocked(cause).await,
            Fault::Closed(_, cause) if !self.is_lost => {
                self.is_lost = true;
                self.runner.tell(Event::Lost { host: self.host.to_owned(), cause, of: self.of });
            }
            Fault::Closed(..) => {}
        }
        self.pause(is_refused).await;
    }

    /// Reports what is in the way of the attempt, and waits. These pauses grow although the host answers in between: each try
    /// may transfer everything again.
    async fn blocked(&mut self, cause: String) {
        tracing::warn!(host = %self.host, %cause, "cannot take an attempt of a host yet");
        self.found();
        if let Some((job, attempt)) = self.of
            && self.told.as_ref() != Some(&cause)
        {
            self.told = Some(cause.clone());
            self.runner.tell(Event::Stuck { job, attempt, cause });
        }
        let pause_ms = pause_ms(self.blocks);
        self.blocks += 1;
        sleep(self.runner, pause_ms).await;
    }

    /// Waits before the next try. If the host is out of reach, the pauses begin again when the network has changed, or this
    /// machine has slept. What happens during a try counts, too.
    pub(super) async fn pause(&mut self, is_refused: bool) {
        if is_refused {
            self.count += 1;
            self.refusals += 1;
            return sleep(self.runner, refused_ms(self.refusals)).await;
        }
        let pause_ms = pause_ms(self.count);
        self.count += 1;
        let runner = self.runner;
        let hosts = &runner.ports.hosts;
        let mut changed = self.changed.take().unwrap_or_else(|| hosts.network_changed());
        let is_changed = tokio::select! {
            () = sleep(runner, pause_ms) => false,
            () = &mut changed => true,
        };
        if !is_changed {
            self.changed = Some(changed);
            return;
        }
        self.changed = Some(hosts.network_changed());
        self.count = 1;
        // A route often follows an address.
        sleep(self.runner, PAUSE_MS).await;
    }

    /// Ends the pauses of an outage.
    pub(super) fn over(&mut self) {
        (self.count, self.refusals, self.changed) = (0, 0, None);
        self.found();
    }

    /// Reports that the host answers about an attempt that was given up: the first time, and after each outage.
    pub(super) fn answered(&mut self) {
        self.is_lost |= self.count == 0;
        self.found();
    }

    /// Reports that the host answered.
    fn found(&mut self) {
        if std::mem::take(&mut self.is_lost) {
            self.runner.tell(Event::Found { host: self.host.to_owned(), of: self.of });
        }
    }
}

async fn sleep(runner: &EffectRunner, pause_ms: u64) {
    let clock = runner.ports.clock.as_ref();
    until(clock, clock.wall_ms().saturating_add(pause_ms)).await;
}

/// Returns the pause after this number of failures, in milliseconds.
fn pause_ms(count: u32) -> u64 {
    (PAUSE_MS << count.min(16)).min(PAUSE_MS_MAX)
}

/// Fault, by whom it concerns.
pub(super) enum Fault {
    /// The host.
    Closed(ClosedKind, String),
    /// The job, or those that need the same program.
    Unfit(Option<String>, String),
}

pub(super) fn parts(fault: HostFault) -> Fault {
    match fault {
        HostFault::Away { cause } => Fault::Closed(ClosedKind::Away, cause),
        HostFault::Refused { cause } => Fault::Closed(ClosedKind::Refused, cause),
        HostFault::Busy { cause } => Fault::Closed(ClosedKind::Busy, cause),
        HostFault::Unfit { program, cause } => Fault::Unfit(program, cause),
    }
}
