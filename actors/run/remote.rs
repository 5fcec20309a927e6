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
use super::tries::{Fault, PAUSE_MS, PAUSE_MS_MAX, Tries, parts};
use crate::alarm::until;
use swarm_model::SpawnRequest;
use swarm_model::run::plan::Plan;
use swarm_model::run::progress::{Now, Progress, Run, Spent};
use swarm_model::run::{Abandoned, Event, FaultKind, Merged, Outcome};
use swarm_ports::{FarEnd, HostFault, Reclaimed};

/// Time after which a host that answers is believed to do so, if it answered before and then failed at once, in milliseconds.
const SETTLED_MS: u64 = 5_000;
/// Time for a stop to reach the host.
const STOP_MAX: Duration = Duration::from_secs(10);
/// Number of tries to move the branch of a job, with a pause before each but the first.
const TAKE_TRIES: u32 = 5;
const TAKE_PAUSE: Duration = Duration::from_secs(1);
/// Number of tries to record what is owed to a host.
const OWE_TRIES: u32 = 30;
/// Pause before the journal is asked again to record an event, or what is owed.
const RECORD_PAUSE: Duration = Duration::from_secs(1);

impl EffectRunner {
    pub(super) async fn attend_on(&self, now: &Now, attempt: u32, host: &str) {
        let job = now.at;
        let over = |outcome, spent| Event::Ended { job, attempt, outcome, spent };
        let lasting = |cause| Outcome::Failure { cause, evidence: None, fault: FaultKind::Lasting };
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
        let mut known = None;
        if !now.progress.sent {
            if let Err(fault) = hosts.bring(now, host, &self.caller).await {
                return self.unplaced(now, attempt, host, fault);
            }
            self.record(Event::Sent { job, attempt, host: host.to_owned() }).await;
            let Some(run) = self.sent(job, attempt).await else {
                // The run was stopped meanwhile.
                return;
            };
            known = run.loads.get(host).copied();
        }
        let mut tries = Tries::new(self, host, Some((job, attempt)));
        if self.start_on(now, (attempt, host), &request, (&mut tries, known)).await {
            tokio::select! {
                biased;
                () = self.over.notified() => {}
                () = self.end_on(now, (attempt, host), tries) => {}
            }
        }
    }

    /// Starts an attempt, or finds the worker that was started. Returns false if nobody waits for its end: it was not
    /// started, or is given up. A call that is under way is not left: it may start the attempt.
    async fn start_on(
        &self,
        now: &Now,
        (attempt, host): (u32, &str),
        request: &SpawnRequest,
        (tries, known): (&mut Tries<'_>, Option<u32>),
    ) -> bool {
        let load = loop {
            let fault = match self.ports.hosts.start(now, host, request, &self.caller).await {
                Ok(load) => break load,
                // Nothing was started if the host refuses the first request. Later ones may follow a start.
                Err(fault @ (HostFault::Busy { .. } | HostFault::Refused { .. } | HostFault::Unfit { .. }))
                    if tries.count == 0 && !now.progress.sent =>
                {
                    self.unplaced(now, attempt, host, fault);
                    return false;
                }
                Err(fault) => fault,
            };
            tokio::select! {
                biased;
                () = self.over.notified() => return false,
                () = tries.wait(fault) => {}
            }
        };
        tries.over();
        tries.told = None;
        self.tell(Event::Started { job: now.at, attempt, pid: 0 });
        if let Some(level) = load.filter(|_| load != known) {
            self.tell(Event::Loaded { host: host.to_owned(), level });
        }
        true
    }

    /// Waits for the end of an attempt, and reports it.
    async fn end_on(&self, now: &Now, (attempt, host): (u32, &str), mut tries: Tries<'_>) {
        let job = now.at;
        let end = self.end_of(now, host, &mut tries).await;
        let FarEnd { exit, tip, left_out, waits, is_restarted, kept, ignored } = end;
        let (outcome, spent) = self.ports.runs.outcome(now, exit.as_ref()).await;
        let outcome = match outcome {
            Outcome::Failure { evidence, fault: FaultKind::Lost, .. } if is_restarted => {
                let cause = format!("{host} was restarted during the attempt");
                Outcome::Failure { cause, evidence, fault: FaultKind::Lost }
            }
            outcome => outcome,
        };
        let left = Some(kept.join(" and ")).filter(|_| !kept.is_empty());
        let outcome = in_view_of(outcome, waits, left);
        self.tell(Event::Fetched { job, attempt, tip: tip.clone(), left_out, ignored, kept });
        let outcome = match outcome {
            Outcome::Success { .. } if !now.job().merge || now.plan.flags.no_merge => {
                // A person looks at the branch next.
                let done = Now { progress: Progress { tip, ..now.progress.clone() }, ..now.clone() };
                self.take(&done).await.map_or_else(
                    |cause| Outcome::Failure { cause, evidence: None, fault: FaultKind::Lasting },
                    |()| outcome,
                )
            }
            outcome => outcome,
        };
        self.tell(Event::Ended { job, attempt, outcome, spent });
    }

    /// Waits until an attempt has ended and its work is here.
    async fn end_of(&self, now: &Now, host: &str, tries: &mut Tries<'_>) -> FarEnd {
        let (hosts, clock) = (&self.ports.hosts, self.ports.clock.as_ref());
        // Whether the host answered, and then failed at once. That it answers again does not end the outage then.
        let mut is_doubted = false;
        loop {
            // The end may be hours away, so find out first whether the host answers again.
            let is_hailed = tries.count > 0;
            if is_hailed {
                match hosts.hail(now, host, &self.caller).await {
                    Ok(()) if is_doubted => {}
                    Ok(()) => tries.over(),
                    Err(fault) => {
                        tries.wait(fault).await;
                        continue;
                    }
                }
            }
            let settled_ms = clock.wall_ms().saturating_add(SETTLED_MS);
            let mut ended = hosts.end(now, host, &self.caller);
            let early = tokio::select! {
                biased;
                early = &mut ended => Some(early),
                () = until(clock, settled_ms) => None,
            };
            is_doubted = is_hailed && early.is_some();
            let end = match early {
                Some(end) => end,
                None => {
                    tries.over();
                    ended.await
                }
            };
            match end {
                Ok(end) => return end,
                Err(fault) => tries.wait(fault).await,
            }
        }
    }

    fn unplaced(&self, now: &Now, attempt: u32, host: &str, fault: HostFault) {
        let (job, host) = (now.at, host.to_owned());
        self.tell(match parts(fault) {
            Fault::Closed(kind, cause) => Event::Unplaced { job, attempt, host, kind, cause },
            Fault::Unfit(program, cause) => Event::Unfit { job, attempt, host, program, cause },
        });
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

    /// Returns the run if the attempt belongs to its host.
    async fn sent(&self, job: usize, attempt: u32) -> Option<Run> {
        let run = ractor::call!(self.actor, RunMessage::Look).ok()?;
        let is_sent = run.jobs.get(job).is_some_and(|job| job.sent && job.attempt == attempt);
        is_sent.then_some(run)
    }

    /// Resolves at this time, in Unix milliseconds, and reports the event.
    pub(super) async fn arm(&self, event: Event, at_ms: u64) {
        until(self.ports.clock.as_ref(), at_ms).await;
        self.tell(event);
    }

    /// Sends [`Event::HostDue`] at `at_ms`, in Unix milliseconds, or soon after a change of the network if the host is out of reach.
    pub(super) async fn arm_host(&self, host: String, at_ms: u64, is_away: bool) {
        let clock = self.ports.clock.as_ref();
        let changed = async {
            match is_away {
                true => self.ports.hosts.network_changed().await,
                false => std::future::pending().await,
            }
        };
        tokio::select! {
            () = until(clock, at_ms) => {}
            () = changed => until(clock, at_ms.min(clock.wall_ms().saturating_add(PAUSE_MS))).await,
        }
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

    /// Records what is owed to an attempt that was given up. Reports whether that is on record.
    pub(super) async fn owe(&self, plan: &Plan, abandoned: &Abandoned) -> bool {
        for _ in 0..OWE_TRIES {
            match self.ports.hosts.owe(plan, abandoned, &self.caller).await {
                Ok(()) => return true,
                Err(cause) => {
                    tracing::warn!(job = %abandoned.job, host = %abandoned.host, %cause, "cannot record what is owed to a host");
                    tokio::time::sleep(RECORD_PAUSE).await;
                }
            }
        }
        false
    }

    /// Ends an attempt that was given up once its host answers, and brings back its work. Another machine under the name of the
    /// host does not have it; the one that has it may return while the run goes on.
    pub(super) async fn reclaim(&self, plan: &Plan, abandoned: &Abandoned) {
        let Abandoned { job, attempt, host, .. } = abandoned;
        let (id, attempt, mut is_gone) = (job.clone(), *attempt, abandoned.is_gone);
        let mut tries = Tries::new(self, host, None);
        let references = loop {
            match self.ports.hosts.reclaim(plan, abandoned, &self.caller).await {
                Ok(Reclaimed::Back(references)) => break references,
                Ok(Reclaimed::Gone) => {
                    tries.answered();
                    if !std::mem::replace(&mut is_gone, true) {
                        self.tell(Event::Gone { id: id.clone(), attempt, host: host.clone() });
                    }
                    tries.pause(true).await;
                }
                Err(HostFault::Busy { cause } | HostFault::Unfit { cause, .. }) => {
                    tracing::info!(%host, %cause, "the work of an attempt that was given up is not back yet");
                    tries.answered();
                    if tries.told.as_ref() != Some(&cause) {
                        tries.told = Some(cause.clone());
                        self.tell(Event::Held { id: id.clone(), attempt, host: host.clone(), cause });
                    }
                    tries.pause(false).await;
                }
                Err(fault) => tries.wait(fault).await,
            }
        };
        self.tell(Event::Found { host: host.clone(), of: None });
        let mut references = references.into_iter();
        let (reference, more) = (references.next(), references.collect());
        self.tell(Event::Returned { id, attempt, host: host.clone(), reference, more });
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

/// Returns the outcome of an attempt some of whose work could not be committed. `left` names what is kept of it.
fn in_view_of(outcome: Outcome, waits: Option<String>, left: Option<String>) -> Outcome {
    let named = |cause: String| match &left {
        Some(left) => format!("{cause} (what is there is kept as {left})"),
        None => cause,
    };
    match (outcome, waits) {
        (Outcome::Success { .. }, Some(cause)) => {
            Outcome::Failure { evidence: Some(cause.clone()), cause: named(cause), fault: FaultKind::Task }
        }
        (Outcome::Failure { cause, evidence, fault }, waits) => {
            // It has failed for another reason, and some of its work is not in its commit either.
            let also = |text: String| waits.iter().fold(text, |text, waits| format!("{text}; also, {waits}"));
            let evidence = evidence.or_else(|| Some(cause.clone()).filter(|_| left.is_some()));
            Outcome::Failure { evidence: evidence.map(also), cause: named(also(cause)), fault }
        }
        (outcome, _) => outcome,
    }
}
