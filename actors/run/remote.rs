//! Attempts on other hosts. The order of one attempt:
//!
//! | step | write | if everything is killed, or the line is cut, right after it |
//! |---|---|---|
//! | 1 | base and earlier work on the host, as references that are named after their commits | sent again: they are there |
//! | 2 | `run.jsonl`: *sent*. From here on the attempt belongs to this host | asked again there, and only there |
//! | 3 | on the host: order and prompt, then an ordinary start under a request that names the attempt | found under that request |
//! | 4 | on the host: result and exit record | read whenever there is a line |
//! | 5 | on the host: what is uncommitted, in a commit that is pinned | the same commit again |
//! | 6 | here: that commit, pinned, and the evidence | fetched again: nothing to do |
//! | 7 | `run.jsonl`: *fetched* and *ended* | judged again from the same evidence |
//! | 8 | the branch of the job here | moved already |
//! | 9 | the merge queue, as for work that was done here | the queue knows the key |
//! | 10 | on the host: worker, worktree and branch are removed | removed at the next contact |

use std::time::Duration;

use super::attend::EffectRunner;
use super::message::RunMessage;
use crate::alarm::until;
use swarm_model::run::plan::Work;
use swarm_model::run::progress::{ClosedKind, Now, Progress, Spent};
use swarm_model::run::{Event, FaultKind, Merged, Outcome};
use swarm_ports::{FarEnd, HostFault};

/// First pause before a host is asked again about an attempt that belongs to it, in milliseconds. Each further one is twice
/// as long.
const PAUSE_MS: u64 = 1_000;
/// Longest such pause.
const PAUSE_MS_MAX: u64 = 60_000;
/// Such a pause if the host refuses: servers shut out whom they refuse too often.
const REFUSED_MS: u64 = 300_000;
/// Time for a stop to reach the host.
const STOP_MAX: Duration = Duration::from_secs(10);
/// Number of tries to move the branch of a job, with a pause before each but the first.
const TAKE_TRIES: u32 = 5;
const TAKE_PAUSE: Duration = Duration::from_secs(1);
/// Pause before the journal is asked again to record an event.
const RECORD_PAUSE: Duration = Duration::from_secs(1);

impl EffectRunner {
    pub(super) async fn attend_on(&self, now: &Now, attempt: u32, host: &str) {
        let job = now.at;
        let over = |outcome, spent| Event::Ended { job, attempt, outcome, spent };
        let lasting = |cause| Outcome::Failure { cause, evidence: None, fault: FaultKind::Lasting };
        if matches!(now.job().work, Work::Command(_)) {
            let cause = "commands are not executed on other hosts".to_owned();
            return self.tell(over(lasting(cause), Spent::default()));
        }
        // This attempt begins with the work of the one before it.
        if !now.progress.sent
            && let Err(cause) = self.take(now).await
        {
            return self.tell(over(lasting(cause), Spent::default()));
        }
        let request = match self.ports.runs.prepare(now, &self.caller).await {
            Ok(request) => request,
            Err(outcome) => return self.tell(over(outcome, Spent::default())),
        };
        let hosts = &self.ports.hosts;
        if !now.progress.sent {
            if let Err(fault) = hosts.bring(now, host, &self.caller).await {
                return self.unplaced(now, attempt, host, fault);
            }
            self.record(Event::Sent { job, attempt, host: host.to_owned() }).await;
            if !self.is_sent(job, attempt).await {
                // The run was stopped meanwhile.
                return;
            }
        }
        let mut tries = Tries::new(self, host);
        loop {
            match hosts.start(now, host, &request, &self.caller).await {
                Ok(()) => break,
                // Nothing was started if the host refuses the first request. Later ones may follow a start.
                Err(fault @ (HostFault::Busy { .. } | HostFault::Refused { .. }))
                    if tries.count == 0 && !now.progress.sent =>
                {
                    return self.unplaced(now, attempt, host, fault);
                }
                Err(fault) => tries.wait(fault).await,
            }
        }
        tries.over();
        self.tell(Event::Started { job, attempt, pid: 0 });
        let end = loop {
            // The end may be hours away, so find out first whether the host answers again.
            if tries.count > 0 {
                match hosts.hail(now, host, &self.caller).await {
                    Ok(()) => tries.over(),
                    Err(fault) => {
                        tries.wait(fault).await;
                        continue;
                    }
                }
            }
            match hosts.end(now, host, &self.caller).await {
                Ok(end) => break end,
                Err(fault) => tries.wait(fault).await,
            }
        };
        let FarEnd { exit, tip, left_out, waits } = end;
        let (outcome, spent) = self.ports.runs.outcome(now, exit.as_ref()).await;
        let outcome = match (outcome, waits) {
            (Outcome::Success { .. }, Some(cause)) => {
                Outcome::Failure { evidence: Some(cause.clone()), cause, fault: FaultKind::Task }
            }
            (outcome, _) => outcome,
        };
        self.tell(Event::Fetched { job, attempt, tip: tip.clone(), left_out });
        let outcome = match outcome {
            Outcome::Success { .. } if !now.job().merge || now.plan.flags.no_merge => {
                // A person looks at the branch next.
                let done = Now { progress: Progress { tip, ..now.progress.clone() }, ..now.clone() };
                self.take(&done).await.map_or_else(lasting, |()| outcome)
            }
            outcome => outcome,
        };
        self.tell(over(outcome, spent));
    }

    fn unplaced(&self, now: &Now, attempt: u32, host: &str, fault: HostFault) {
        let (kind, cause) = parts(fault);
        self.tell(Event::Unplaced { job: now.at, attempt, host: host.to_owned(), kind, cause });
    }

    /// Resolves once the event is durable.
    async fn record(&self, event: Event) {
        loop {
            let recorded = ractor::call!(self.actor, RunMessage::Record, event.clone());
            match recorded {
                Ok(Ok(())) => return,
                // The actor tries to write until it can.
                Ok(Err(_)) => tokio::time::sleep(RECORD_PAUSE).await,
                // The actor is gone, and this task with it.
                Err(_) => std::future::pending().await,
            }
        }
    }

    /// Reports whether the attempt belongs to its host.
    async fn is_sent(&self, job: usize, attempt: u32) -> bool {
        let run = ractor::call!(self.actor, RunMessage::Look);
        run.is_ok_and(|run| run.jobs.get(job).is_some_and(|job| job.sent && job.attempt == attempt))
    }

    /// Resolves at this time, in Unix milliseconds, and reports that the host may be tried again.
    pub(super) async fn arm(&self, host: String, at_ms: u64) {
        until(self.ports.clock.as_ref(), at_ms).await;
        self.tell(Event::HostDue { host });
    }

    /// Ends the attempt on its host. After ten seconds the run ends without it: the host may be out of reach, and the next run
    /// finds the attempt there.
    pub(super) async fn stop_on(&self, now: &Now, host: &str) {
        let stopped = async {
            while self.ports.hosts.stop(now, host, &self.caller).await.is_err() {
                tokio::time::sleep(Duration::from_millis(PAUSE_MS)).await;
            }
            // The task that attends the attempt takes its work.
            std::future::pending::<()>().await;
        };
        let _ = tokio::time::timeout(STOP_MAX, stopped).await;
        self.tell(Event::Unreached { job: now.at, attempt: now.progress.attempt });
    }

    /// Moves the branch of the job to the work that was done on a host, if any was.
    ///
    /// # Errors
    /// Returns why the branch cannot be moved.
    pub(super) async fn take(&self, now: &Now) -> Result<(), String> {
        if now.progress.tip.is_none() {
            return Ok(());
        }
        for _ in 1..TAKE_TRIES {
            match self.ports.hosts.take(now, &self.caller).await {
                Ok(()) => return Ok(()),
                Err(cause) => {
                    tracing::info!(job = %now.job().id, %cause, "cannot move the branch of a workstream yet");
                    tokio::time::sleep(TAKE_PAUSE).await;
                }
            }
        }
        self.ports.hosts.take(now, &self.caller).await
    }

    /// Moves the branch of the job to the work that was done on a host. Waits for as long as something is in the way, and reports it.
    pub(super) async fn take_at_last(&self, now: &Now, attempt: u32) {
        let mut pause_ms = PAUSE_MS;
        while let Err(reason) = self.take(now).await {
            let merged = Merged::Waiting { reason, files: Vec::new(), continues: true, is_empty: false };
            self.tell(Event::Merged { job: now.at, attempt, merged, spent: Spent::default() });
            let clock = self.ports.clock.as_ref();
            until(clock, clock.wall_ms().saturating_add(pause_ms)).await;
            pause_ms = (2 * pause_ms).min(PAUSE_MS_MAX);
        }
    }

    /// Removes what a job that is over has left on its hosts. First makes sure that its work is on its branch here.
    pub(super) async fn forget(&self, now: &Now) {
        if now.progress.visited.is_empty() {
            return;
        }
        // What lands is on the branch since it was queued, and the branch may be gone by now.
        let is_landed = now.job().merge && now.progress.ended_ms.is_some() && now.progress.error.is_none();
        if !is_landed && let Err(cause) = self.take(now).await {
            return tracing::warn!(job = %now.job().id, %cause, "cannot move the branch of a workstream; its files on hosts stay");
        }
        for host in &now.progress.visited {
            self.ports.hosts.forget(now, host, &self.caller).await;
        }
    }
}

/// Tries to reach the host of an attempt that belongs to it.
struct Tries<'a> {
    runner: &'a EffectRunner,
    host: &'a str,
    count: u32,
}

impl<'a> Tries<'a> {
    fn new(runner: &'a EffectRunner, host: &'a str) -> Self {
        Self { runner, host, count: 0 }
    }

    /// Reports that the host is out of reach, and waits before the next try. Wakes after a suspend, because the network may
    /// be another one by then.
    async fn wait(&mut self, fault: HostFault) {
        let is_refused = matches!(fault, HostFault::Refused { .. });
        let (_, cause) = parts(fault);
        if self.count == 0 {
            self.runner.tell(Event::Lost { host: self.host.to_owned(), cause });
        }
        let pause_ms = if is_refused { REFUSED_MS } else { (PAUSE_MS << self.count.min(16)).min(PAUSE_MS_MAX) };
        self.count += 1;
        let clock = self.runner.ports.clock.as_ref();
        until(clock, clock.wall_ms().saturating_add(pause_ms)).await;
    }

    /// Reports that the host answered.
    fn over(&mut self) {
        if std::mem::take(&mut self.count) > 0 {
            self.runner.tell(Event::Found { host: self.host.to_owned() });
        }
    }
}

fn parts(fault: HostFault) -> (ClosedKind, String) {
    match fault {
        HostFault::Away { cause } => (ClosedKind::Away, cause),
        HostFault::Refused { cause } => (ClosedKind::Refused, cause),
        HostFault::Busy { cause } => (ClosedKind::Busy, cause),
    }
}
