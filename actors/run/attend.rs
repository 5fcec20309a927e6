//! Effects of a run, carried out in tasks: starts workers, waits for their end, and adds finished work to the merge
//! queue. Each effect may be repeated after a crash, and then finds what is there.

use std::sync::Arc;

use ractor::ActorRef;
use tokio::sync::Notify;

use super::fleet::Fleet;
use super::machine::Effect;
use super::message::RunMessage;
use crate::alarm::until;
use crate::merge::Change;
use crate::worker::{is_final, tried};
use swarm_model::merge::queue::{Item, State};
use swarm_model::run::Wish;
use swarm_model::run::plan::Work;
use swarm_model::run::progress::{Now, Spent, Stage};
use swarm_model::run::{Event, FaultKind, Merged, Outcome};
use swarm_model::run::{key_of, parse_key};
use swarm_model::{Caller, Event as Announcement, EventKind, Refusal, RefusalKind, Target};
use swarm_ports::{Ports, Saved, Settled};

/// Carries out the effects of a run.
pub struct EffectRunner {
    pub ports: Ports,
    pub fleet: Arc<dyn Fleet>,
    pub caller: Caller,
    pub actor: ActorRef<RunMessage>,
    /// Says that the attempt which is attended is given up.
    pub over: Arc<Notify>,
}

impl EffectRunner {
    pub async fn carry_out(&self, now: &Now, effect: Effect) {
        match effect {
            Effect::Attend { attempt, .. } => match now.progress.host.as_deref() {
                Some(host) => self.attend_on(now, attempt, host).await,
                None => self.attend(now, attempt).await,
            },
            Effect::Stop { .. } => match now.progress.host.as_deref() {
                Some(host) => self.stop_on(now, host).await,
                None => self.stop(now).await,
            },
            Effect::Land { attempt, .. } => {
                self.take_at_last(now, attempt).await;
                self.land(now, attempt).await;
            }
            Effect::Await { job, attempt, ask } => {
                self.tell(match self.ports.runs.settled(ask).await {
                    Settled::Answered => Event::Answered { job, attempt, ask },
                    Settled::Over { why } => Event::Withdrawn { job, attempt, why },
                });
            }
            Effect::Arm { job, attempt, at_ms } => {
                until(self.ports.clock.as_ref(), at_ms).await;
                self.tell(Event::Due { job, attempt, resolvers: None });
            }
            Effect::Tidy { .. } => {
                self.forget(now).await;
                self.tidy(now).await;
            }
            Effect::Forget { .. } => self.forget(now).await,
            Effect::ArmHost { .. }
            | Effect::ArmLost { .. }
            | Effect::ArmFit { .. }
            | Effect::Reclaim(_)
            | Effect::Tell(..)
            | Effect::End(_) => {}
        }
    }

    pub(super) fn tell(&self, event: Event) {
        let _ = self.actor.cast(RunMessage::Happened(event));
    }

    async fn attend(&self, now: &Now, attempt: u32) {
        let job = now.at;
        let over = |outcome, spent| Event::Ended { job, attempt, outcome, spent };
        // The attempt before this one may have worked on a host.
        if let Err(cause) = self.take(now).await {
            let outcome = Outcome::Failure { cause, evidence: None, fault: FaultKind::Lasting };
            return self.tell(over(outcome, Spent::default()));
        }
        let request = match self.ports.runs.prepare(now, &self.caller).await {
            Ok(request) => request,
            Err(outcome) => return self.tell(over(outcome, Spent::default())),
        };
        let spawned = match self.started(&request).await {
            Ok(spawned) => spawned,
            Err(outcome) => return self.tell(over(outcome, Spent::default())),
        };
        self.tell(Event::Started { job, attempt, pid: spawned.pid });
        let end = self.end_here(now, spawned.generation).await;
        let (outcome, spent) = self.ports.runs.outcome(now, end.exit.as_ref()).await;
        self.tell(over(end.told(outcome), spent));
    }

    async fn stop(&self, now: &Now) {
        let name = now.worker();
        let caller = Caller { request: self.ports.clock.token(), ..self.caller.clone() };
        // The worker may be starting, so that there is nothing to end yet, or it has ended by itself, which the task
        // that attends it reports.
        if let Err(refusal) = tried(|| self.fleet.kill(&name, &caller)).await {
            tracing::warn!(worker = %name, cause = %refusal.cause, "cannot stop the worker");
        }
    }

    async fn land(&self, now: &Now, attempt: u32) {
        let job = now.at;
        if now.progress.conflicted && self.ports.runs.has_landed(now, &self.caller).await {
            // A person merged the work that conflicted. The queue, and the worker, may not know it any more.
            let merged = Merged::Nothing;
            return self.tell(Event::Merged { job, attempt, merged, spent: Spent::default() });
        }
        let (found, next) = self.find(now, attempt).await;
        let key = match found {
            None => self.add(now, attempt, next).await,
            Some((key, target, item)) => self.go_on(now, attempt, (key, next), &target, item).await,
        };
        // The item may have settled before this run listened for it.
        if let Some(key) = key
            && let Some((_, item)) = self.fleet.item(&key).await
        {
            self.settled(now, attempt, &item).await;
        }
    }

    /// Returns the newest queue item of this attempt, with its key and queue, and the key of the next one.
    async fn find(&self, now: &Now, attempt: u32) -> (Option<(String, Target, Item)>, String) {
        let mut found = None;
        let mut again = 0;
        loop {
            let key = key_of(&now.plan.id, &now.job().id, attempt, again);
            let Some((target, item)) = self.fleet.item(&key).await else { return (found, key) };
            if self.ports.runs.is_own(now, &target, &item, &self.caller).await {
                found = Some((key, target, item));
            } else {
                tracing::warn!(%key, repository = %target.repository, "an item of this key is not of this run");
            }
            again += 1;
        }
    }

    /// Adds the work to the queue. Returns the key of its item; `None` if the work was refused.
    async fn add(&self, now: &Now, attempt: u32, key: String) -> Option<String> {
        let job = now.at;
        let mut landed = tried(|| self.fleet.land(self.wish(now, key.clone()))).await;
        let mut is_gone = false;
        if landed.as_ref().is_err_and(|refusal| refusal.kind == RefusalKind::NotFound) && now.progress.host.is_none() {
            // The worker was forgotten, for example because the project was moved. Its worktree or its branch may be there.
            let place = self.ports.runs.place(now, &self.caller).await;
            is_gone = place.is_none();
            if !is_gone {
                landed = tried(|| self.fleet.land(Wish { place: place.clone(), ..self.wish(now, key.clone()) })).await;
            }
        }
        if let Err(refusal) = landed {
            // What an earlier run has left has landed since, and its worker and its branch are gone with it.
            let merged = if is_gone && now.plan.flags.merge && now.progress.waited {
                Merged::Nothing
            } else {
                let is_mendable = refusal.kind == RefusalKind::Worktree;
                Merged::Refused { cause: refusal.cause, is_mendable }
            };
            self.tell(Event::Merged { job, attempt, merged, spent: Spent::default() });
            return None;
        }
        let added = self.fleet.item(&key).await;
        let left_out = added.map(|(_, item)| left_out(now, &item)).unwrap_or_default();
        self.tell(match now.progress.stage {
            Stage::Waiting => Event::Retried { job, attempt },
            _ => Event::Queued { job, attempt, left_out },
        });
        Some(key)
    }

    /// Continues with an item of an earlier time, whose keys are its own and that of the next one. Returns the key of the
    /// item that says how it ends; `None` if that is told.
    async fn go_on(
        &self,
        now: &Now,
        attempt: u32,
        (key, next): (String, String),
        target: &Target,
        item: Item,
    ) -> Option<String> {
        let job = now.at;
        if item.state.may_be_retried()
            && let Some(later) = self.fleet.later(&key).await
            && (later.state.is_done() || (item.replaced && !later.state.is_settled()))
            && self.ports.runs.is_own(now, target, &later, &self.caller).await
        {
            // A person added the work again, for example after finishing a merge in its worktree.
            self.followed(now, attempt, &later).await;
            return None;
        }
        let is_waiting = matches!(item.state, State::Waiting { .. });
        if (is_waiting && item.tip.is_empty()) || (item.replaced && item.state == State::Dropped) {
            // There was no commit to land, and a person may have removed the cause; or a person dropped only this item,
            // after adding the work once more.
            return self.add(now, attempt, next).await;
        }
        // A person may have corrected what verifies the work. The commit of the item lands, not what its worktree has now.
        let may_change = is_waiting || !item.state.is_settled();
        let rules = if may_change { self.ports.runs.changed_rules(now, &item, &self.caller).await } else { None };
        // The run may have been continued from a shell in which the commands work.
        let caller = if may_change { self.changed_caller(now, target, &item).await } else { None };
        let change = Change { rules: rules.map(Box::new), caller };
        // A person who resumes the run may have removed what the item waits for.
        let is_retried = is_waiting || !change.is_none();
        self.tell(match if is_retried { Some(self.fleet.retry(&key, change).await) } else { None } {
            Some(Ok(())) => Event::Retried { job, attempt },
            Some(Err(refusal)) => {
                tracing::info!(worker = %now.worker(), cause = %refusal.cause, "the work still waits to land");
                Event::Queued { job, attempt, left_out: left_out(now, &item) }
            }
            None => Event::Queued { job, attempt, left_out: left_out(now, &item) },
        });
        Some(key)
    }

    /// Returns the key of the run's caller, if it is not that of the item.
    async fn changed_caller(&self, now: &Now, target: &Target, item: &Item) -> Option<String> {
        let caller = self.wish(now, String::new()).caller;
        let known = self.ports.landings.remember(target, &caller).await;
        let known = known.inspect_err(|error| tracing::warn!(%error, "cannot store the environment of a run"));
        known.ok().filter(|known| item.caller.as_ref() != Some(known))
    }

    /// Reports the result of a queue item, if it has settled.
    pub async fn settled(&self, now: &Now, attempt: u32, item: &Item) {
        let job = now.at;
        if item.replaced
            && item.state.may_be_retried()
            && let Some(key) = &item.key
            && let Some(later) = self.fleet.later(key).await
        {
            return self.followed(now, attempt, &later).await;
        }
        if let Some(merged) = self.merged(now, item).await {
            // The machine must know that the work is queued before it hears the result.
            self.tell(Event::Queued { job, attempt, left_out: left_out(now, item) });
            let spent = self.ports.runs.resolutions(now).await;
            self.tell(Event::Merged { job, attempt, merged, spent });
        }
    }

    /// Reports an item that somebody else added, if it is the newest one of the present attempt's worker in the queue in which
    /// the run added the work.
    pub async fn settled_later(&self, now: &Now, attempt: u32, item: &Item) {
        if let (Some((key, _, own)), _) = self.find(now, attempt).await
            && let Some(later) =
                self.fleet.later(&key).await.filter(|later| later.key == item.key && later.id == item.id)
            && (own.replaced || later.state.is_done())
        {
            self.followed(now, attempt, &later).await;
        }
    }

    /// Reports a later item that somebody else added in place of the run's own: its work is that of the job. Whatever keeps
    /// it from the base, the agent is not to mend it: a person chose its rules.
    async fn followed(&self, now: &Now, attempt: u32, later: &Item) {
        let job = now.at;
        let merged = match self.merged(now, later).await {
            // It is in progress.
            None => return self.tell(Event::Retried { job, attempt }),
            Some(Merged::Rejected { reason }) => waiting(format!("verification failed: {reason}"), Vec::new()),
            Some(Merged::Conflict { files, .. }) => {
                waiting(format!("conflicts with the base: {}", files.join(", ")), files)
            }
            Some(Merged::Dropped) => waiting("dropped from the merge queue by a person".to_owned(), Vec::new()),
            Some(merged) => merged,
        };
        self.tell(Event::Queued { job, attempt, left_out: left_out(now, later) });
        let spent = self.ports.runs.resolutions(now).await;
        self.tell(Event::Merged { job, attempt, merged, spent });
    }

    /// Returns the result of a queue item, with the item of somebody else that landed the work. `None` if it has not settled.
    async fn merged(&self, now: &Now, item: &Item) -> Option<Merged> {
        let elsewhere = |other: &Item| {
            let commit = other.state.commit()?.to_owned();
            Some(Merged::Elsewhere { item: other.id, commit, verified_by: other.verified_by.clone() })
        };
        let key = item.key.as_deref().filter(|key| parse_key(&now.plan.id, key).is_some());
        match (key, &item.state) {
            (None, State::Landed { .. }) => elsewhere(item),
            (Some(key), State::Noop) => {
                let lander = self.fleet.lander(key).await.filter(|other| {
                    let is_of_run = |key: &str| parse_key(&now.plan.id, key).is_some();
                    !other.key.as_deref().is_some_and(is_of_run)
                });
                lander.as_ref().and_then(elsewhere).or_else(|| merged(item))
            }
            _ => merged(item),
        }
    }

    fn wish(&self, now: &Now, key: String) -> Wish {
        let asked = now.job();
        // Work that was done on a host is on a local branch. A local worker with the job's name does not belong to this run.
        let branch = asked.branch.clone().filter(|_| now.progress.host.is_some());
        let cwd = if branch.is_some() { now.plan.root.clone() } else { self.caller.cwd.clone() };
        Wish {
            key,
            worker: branch.unwrap_or_else(|| now.worker()),
            place: None,
            base: now.plan.base.clone(),
            priority: asked.priority,
            settings: now.plan.settings_of(asked),
            subject: match &asked.work {
                Work::Spec(work) => Some(format!("{} ({})", work.title, asked.id)),
                Work::Command(_) => None,
            },
            mends: true,
            caller: Caller { cwd, ..self.caller.clone() },
        }
    }

    async fn tidy(&self, now: &Now) {
        if self.is_reviewed(now).await {
            // A person reviews the work, and names the worker to land it.
            return self.ports.runs.keep(now).await;
        }
        let name = now.worker();
        let caller = Caller { request: self.ports.clock.token(), ..self.caller.clone() };
        self.ports.runs.keep(now).await;
        // If the work was done on a host, a local worker with that name does not belong to this run.
        if now.progress.host.is_none() {
            match tried(|| self.fleet.clean(&name, &caller)).await {
                Ok(()) => {}
                Err(refusal) if refusal.kind == RefusalKind::NotFound => {}
                Err(refusal) => {
                    return tracing::warn!(worker = %name, cause = %refusal.cause, "cannot clean finished worker");
                }
            }
        }
        if now.job().branch.is_some() {
            let Some(Saved { reference, commit }) = self.ports.runs.tidy(now, &caller).await else { return };
            self.ports.events.emit(Announcement {
                at_ms: self.ports.clock.wall_ms(),
                worker: Some(name),
                generation: None,
                request: Some(caller.request),
                kind: EventKind::WorktreeSaved { reference, commit },
            });
        }
    }

    /// Reports whether the worktree of a finished job stays for a person. A plain command may have left nothing on purpose.
    async fn is_reviewed(&self, now: &Now) -> bool {
        let job = now.job();
        if job.branch.is_none() || now.plan.flags.no_merge {
            return job.branch.is_some();
        }
        let is_spec = matches!(job.work, Work::Spec(_));
        !job.merge && (is_spec || self.ports.runs.has_work(now, &self.caller).await)
    }
}

/// Returns the uncommitted paths of an attempt that do not land. If it worked on a host, the queue knows only its commit.
fn left_out(now: &Now, item: &Item) -> Vec<String> {
    if now.progress.host.is_some() { now.progress.left_out.clone() } else { item.left_out.clone() }
}

fn waiting(reason: String, files: Vec<String>) -> Merged {
    Merged::Waiting { reason, files, continues: false, is_empty: false }
}

/// Returns the result of a queue item. `None` if it has not settled.
pub fn merged(item: &Item) -> Option<Merged> {
    Some(match &item.state {
        State::Landed { commit } => Merged::Landed { commit: commit.clone() },
        State::Noop if item.contained => Merged::Contained,
        State::Noop => Merged::Nothing,
        State::Conflict { files } => Merged::Conflict { files: files.clone(), tip: Some(item.work().to_owned()) },
        State::Rejected { reason } => Merged::Rejected { reason: reason.clone() },
        State::Waiting { reason, files } => {
            let continues = item.obstacle().is_some();
            let is_empty = item.tip.is_empty();
            Merged::Waiting { reason: reason.clone(), files: files.clone(), continues, is_empty }
        }
        // A person added the work once more, and dropped only this item.
        State::Dropped if item.replaced => return None,
        State::Dropped => Merged::Dropped,
        State::Queued | State::Active | State::Resolving => return None,
    })
}

/// Returns the outcome of an attempt whose worker was not started.
pub(super) fn not_started(refusal: &Refusal) -> Outcome {
    let cause = match &refusal.remedy {
        Some(remedy) => format!("{} ({remedy})", refusal.cause),
        None => refusal.cause.clone(),
    };
    // The next attempt may succeed, for example after a full disk or quota, or a lock of git.
    let is_full = is_of_disk(&refusal.cause) || is_of_submissions(&refusal.cause);
    let is_lasting = is_final(refusal.kind) && !refusal.passes && !is_full;
    let fault = if is_lasting { FaultKind::Lasting } else { FaultKind::Passing };
    Outcome::Failure { cause: format!("cannot start the worker: {cause}"), evidence: None, fault }
}

/// Reports whether a cause is the state of a disk, in the words of the C library. git reports it as the failure of a
/// worktree.
fn is_of_disk(cause: &str) -> bool {
    ["No space left on device", "Disk quota exceeded", "Input/output error", "Read-only file system"]
        .iter()
        .any(|words| cause.contains(words))
}

/// Reports whether a batch system refuses a job because there are enough of this user or account, in the words of Slurm.
fn is_of_submissions(cause: &str) -> bool {
    ["MaxSubmit", "MaxJobs", "job submit limit", "submit limit"].iter().any(|words| cause.contains(words))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_that_takes_no_more_jobs_of_this_user_is_asked_again() {
        let fault = |words: &str| match not_started(&Refusal::new(RefusalKind::Start, words)) {
            Outcome::Failure { fault, .. } => fault,
            other => panic!("{other:?}"),
        };
        let full = "Slurm refuses the job: sbatch: error: QOSMaxSubmitJobPerUserLimit";
        assert_eq!(fault(full), FaultKind::Passing);
        assert_eq!(fault("Slurm refuses the job: sbatch: error: invalid partition specified: x"), FaultKind::Lasting);
    }

    #[test]
    fn a_worktree_that_the_disk_has_no_room_for_is_tried_again() {
        let fault = |cause: &str| match not_started(&Refusal::new(RefusalKind::Worktree, cause)) {
            Outcome::Failure { fault, .. } => fault,
            other => panic!("{other:?}"),
        };
        assert_eq!(fault("fatal: cannot create directory at 'x': No space left on device"), FaultKind::Passing);
        assert_eq!(fault("'x' is not a valid branch name"), FaultKind::Lasting);
    }

    #[test]
    fn a_refusal_that_passes_is_tried_again() {
        let cause = "2 worktree(s) use 5 MiB, more than worktree.quota (2 MiB)";
        let refusal = Refusal { passes: true, ..Refusal::new(RefusalKind::Worktree, cause) };
        assert!(matches!(not_started(&refusal), Outcome::Failure { fault: FaultKind::Passing, .. }));
    }
}
