//! What a host is owed: attempts that were given up are ended there and their work is brought back, and what finished jobs
//! have left is removed. Every step is repeated at the next contact until the host has answered:
//!
//! | step | if everything is killed, or the line is cut, right after it |
//! |---|---|
//! | the file in `owed/` | told at the next contact, of whichever run |
//! | the worker is stopped; what it left is committed and pinned there | stopped already; the same commit |
//! | the work is fetched; a reference here keeps it | fetched again: nothing to do |
//! | worker, worktree and branch are removed there | removed already |
//! | the file is removed | |

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use swarm_git::carry::{self, CarryError, FarRepository};
use swarm_model::Caller;
use swarm_model::run::plan::Plan;
use swarm_model::run::progress::Now;
use swarm_model::run::{Abandoned, far_worker_name, worker_name};
use swarm_ports::{HostFault, Reclaimed};
use swarm_store::runs::far::{FarAnswer, FarAttempt, FarCall};
use swarm_store::runs::home::Home;
use swarm_sys::files::is_absent;

use super::evidence;
use super::link::Link;
use super::owed::{self, Brings, Owed};
use super::place::{Site, carry_failed, failed_here};
use super::{Reach, cause_of, entry, odd, off_thread};
use crate::processes::near::CARRY;

/// Time for the processes of a worker to end that was stopped.
const END_MAX: Duration = Duration::from_secs(60);
/// Time for the answer to an order that goes before all other calls of a connection.
const ORDER_MAX: Duration = Duration::from_secs(10);

/// Number of tries to get an attempt that was given up from a host that a person forgets meanwhile.
const RECLAIM_TRIES: u32 = 3;

/// Why something that is owed stays on record although the host answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Left {
    /// Another machine or state directory answers, which never had the attempt.
    Elsewhere,
    /// This is in the way.
    Waits(String),
}

/// Orders that stay on record, by their file.
type AllLeft = BTreeMap<PathBuf, Left>;

impl Reach {
    /// Connects to the host and tells it what it is owed about one job. Returns what stays on record.
    pub(super) async fn tell(&self, job: (&str, &str), host: &str, caller: &Caller) -> Result<AllLeft, HostFault> {
        let link = self.connected(job.0, host, caller).await?;
        self.deliver(&link, host, caller, job).await
    }

    /// Connects to a host, and first delivers the orders that the host has not received, and the removals that finished jobs
    /// need there. The work of attempts that were given up is fetched meanwhile.
    pub(super) async fn connected(&self, run: &str, host: &str, caller: &Caller) -> Result<Arc<Link>, HostFault> {
        let link = self.link(run, host, caller).await?;
        let first = || async {
            // It may be another machine.
            self.doubt(host);
            self.order(&link, host).await?;
            let (with_work, without): (BTreeSet<_>, BTreeSet<_>) = self.owed_jobs(host).await?;
            for job in without.difference(&with_work) {
                self.deliver(&link, host, caller, (&job.0, &job.1)).await?;
            }
            if !with_work.is_empty() {
                let (reach, of, name, by) = (self.clone(), Arc::clone(&link), host.to_owned(), caller.clone());
                link.keep(tokio::spawn(async move {
                    for (run, job) in with_work {
                        if let Err(fault) = reach.deliver(&of, &name, &by, (&run, &job)).await {
                            return tracing::info!(host = name, ?fault, "work comes back at the next contact");
                        }
                    }
                }));
            }
            Ok(())
        };
        link.delivered.get_or_try_init(first).await?;
        Ok(link)
    }

    /// Returns the jobs about which the host is owed something: those with work that comes back, and those with anything else.
    async fn owed_jobs(
        &self,
        host: &str,
    ) -> Result<(BTreeSet<(String, String)>, BTreeSet<(String, String)>), HostFault> {
        let (paths, name) = (self.paths.clone(), host.to_owned());
        let all = off_thread(move || Ok(owed::of_host(&paths, &name))).await?;
        let named = |owed: &Owed| owed.at().map(|at| (at.run.clone(), at.job.clone())).unwrap_or_default();
        let of = |has_work: bool| all.iter().filter(move |(_, owed)| owed.brings.is_some() == has_work);
        Ok((of(true).map(|(_, owed)| named(owed)).collect(), of(false).map(|(_, owed)| named(owed)).collect()))
    }

    /// Ends the attempts that were stopped or given up while the host was out of reach.
    async fn order(&self, link: &Link, host: &str) -> Result<(), HostFault> {
        let (paths, name) = (self.paths.clone(), host.to_owned());
        for (file, owed) in off_thread(move || Ok(owed::of_host(&paths, &name))).await? {
            let Some(at) = owed.to_stop() else { continue };
            let call = FarCall::Stop(at.clone());
            match tokio::time::timeout(ORDER_MAX, link.ask(&call)).await {
                Ok(Ok(FarAnswer::Done)) => {
                    off_thread(move || {
                        owed::stopped(&file, &owed);
                        Ok(())
                    })
                    .await?;
                }
                Ok(Err(fault @ HostFault::Away { .. })) => return Err(fault),
                told => tracing::info!(host, job = %at.job, ?told, "an attempt is not ended on a host yet"),
            }
        }
        Ok(())
    }

    /// Does what a host is owed about one job. Returns what stays on record.
    async fn deliver(
        &self,
        link: &Link,
        host: &str,
        caller: &Caller,
        (run, job): (&str, &str),
    ) -> Result<AllLeft, HostFault> {
        let lock = entry(&self.delivering, (host.to_owned(), run.to_owned(), job.to_owned()));
        let _held = lock.lock().await;
        let (paths, name) = (self.paths.clone(), host.to_owned());
        let is_its = |owed: &Owed| match owed.at() {
            Some(at) => (at.run.as_str(), at.job.as_str()) == (run, job),
            None => run.is_empty() && job.is_empty(),
        };
        let all = off_thread(move || Ok(owed::of_host(&paths, &name))).await?;
        let mut left = AllLeft::new();
        for (file, owed) in all.into_iter().filter(|(_, owed)| is_its(owed)) {
            // What was given up is not forgotten before its work is here.
            if owed.to_stop().is_some() && owed.brings.is_none()
                || left.values().any(|left| matches!(left, Left::Waits(_)))
            {
                continue;
            }
            match self.done(link, &owed, caller).await {
                Ok(None) => match owed.record_back() {
                    Ok(()) => owed::settle(&file),
                    Err(error) => drop(left.insert(file, Left::Waits(format!("cannot record it: {error}")))),
                },
                Ok(Some(Left::Elsewhere)) => drop(left.insert(file, Left::Elsewhere)),
                Err(fault @ HostFault::Away { .. }) => return Err(fault),
                Ok(Some(Left::Waits(cause)))
                | Err(HostFault::Busy { cause } | HostFault::Refused { cause } | HostFault::Unfit { cause, .. }) => {
                    tracing::warn!(host, job, %cause, "something that is owed to a host waits");
                    left.insert(file, Left::Waits(cause));
                }
            }
        }
        Ok(left)
    }

    /// Does what is owed. Returns why it stays on record.
    async fn done(&self, link: &Link, owed: &Owed, caller: &Caller) -> Result<Option<Left>, HostFault> {
        if owed.brings.is_some()
            && let Some(left) = self.bring_back(link, owed, caller).await?
        {
            return Ok(Some(left));
        }
        // The host may remove commits during the call, so what it is known to have is forgotten before and after it.
        self.doubt(&owed.host);
        let (answer, whom) = link.ask_whom(&owed.call).await?;
        self.doubt(&owed.host);
        Ok(match answer {
            _ if owed.is_of_another(whom.as_deref()) => Some(Left::Elsewhere),
            FarAnswer::Busy(cause) | FarAnswer::Unknown(cause) | FarAnswer::Unfit { cause, .. } => {
                Some(Left::Waits(cause))
            }
            FarAnswer::Refused(cause) => {
                tracing::warn!(host = owed.host, cause, "a host does not remove what a job has left");
                None
            }
            _ => None,
        })
    }

    /// Ends an attempt that was given up, and keeps its work here. Returns why that is not possible.
    async fn bring_back(&self, link: &Link, owed: &Owed, caller: &Caller) -> Result<Option<Left>, HostFault> {
        let (Some(at), Some(brings)) = (owed.at(), &owed.brings) else { return Ok(None) };
        let host = owed.host.as_str();
        let (answer, whom) = link.ask_whom(&FarCall::Stop(at.clone())).await?;
        if owed.is_of_another(whom.as_deref()) {
            return Ok(Some(Left::Elsewhere));
        }
        match answered(answer)? {
            FarAnswer::Done => {}
            _ => return Err(odd(host)),
        }
        let end = FarCall::End { at: at.clone(), base: brings.base.clone(), subject: None };
        let slow = |_| HostFault::Busy { cause: format!("its processes did not end within {} s", END_MAX.as_secs()) };
        let ended = tokio::time::timeout(END_MAX, link.ask(&end)).await.map_err(slow)??;
        let FarAnswer::Ended(left) = answered(ended)? else { return Err(odd(host)) };
        let left = evidence::bounded(*left);
        // A save of the worktree has all that it is made of.
        let tip = left.tip.filter(|tip| Some(tip) != brings.begun.as_ref());
        let commits: Vec<String> = left.also.into_iter().chain(tip).chain(left.strays).collect();
        if commits.is_empty() {
            return Ok(None);
        }
        let far = FarRepository {
            program: self.executable.clone(),
            verb: CARRY,
            host: host.to_owned(),
            controller: at.clone.controller.clone(),
            repository: at.clone.repository.clone(),
        };
        let (common, name, caller) = (brings.common.clone(), brings.reference.clone(), caller.clone());
        let (dir, run, asked) = (brings.dir.clone(), at.run.clone(), commits.clone());
        let keep = move || match carry::keep_all(&common, &far, (&asked, &name), &caller) {
            Ok(references) => {
                let recorded = dir.map_or(Ok(()), |dir| owed::record_returned(&dir, &run, references.clone()));
                recorded.map_err(|error| failed_here(format!("cannot record it: {error}")))?;
                Ok(Some(references))
            }
            Err(CarryError::Unsound(cause)) => {
                tracing::warn!(cause, "git refuses the work of an attempt that was given up");
                Ok(None)
            }
            // The host has answered. What fails from here on is in the way of this work alone.
            Err(error) => Err(failed_here(cause_of(carry_failed(error)))),
        };
        if let Some(references) = off_thread(keep).await? {
            tracing::info!(host, job = %at.job, ?references, "the work of an attempt that was given up is here");
            return Ok(None);
        }
        for commit in commits {
            match answered(link.ask(&FarCall::Withhold { at: at.clone(), commit }).await?) {
                Ok(_) | Err(HostFault::Refused { .. }) => {}
                Err(fault) => return Err(fault),
            }
        }
        Ok(None)
    }

    /// Records that an attempt was given up.
    pub(super) async fn given_up(&self, plan: &Plan, abandoned: &Abandoned, caller: &Caller) -> Result<(), HostFault> {
        let (paths, caller, abandoned) = (self.paths.clone(), caller.clone(), abandoned.clone());
        let (root, base, home) = (PathBuf::from(&plan.root), plan.base.clone(), Home::new(&plan.home));
        let (run, worker) = (plan.id.clone(), worker_name(&plan.slug, &abandoned.job));
        off_thread(move || {
            let dir = home.attempt(&abandoned.job, abandoned.attempt);
            let sent = evidence::sent(&dir, &run);
            let tip = sent.as_ref().map(|sent| sent.tip.clone());
            // A job without a worktree leaves nothing to bring back.
            let has_tree = tip.as_ref().is_none_or(|tip| !tip.is_empty());
            let Site { common, mut clone } = match has_tree {
                true => Site::of(&paths, &root, &caller)?,
                false => Site::at(&paths, home.path().to_owned())?,
            };
            clone.repository = sent.as_ref().and_then(|sent| sent.repository.clone()).unwrap_or(clone.repository);
            let brings = base.filter(|_| has_tree).map(|base| {
                let (reference, dir) = (abandoned.reference(), Some(dir));
                Brings { common, base, begun: tip, reference, dir }
            });
            let at = FarAttempt {
                host: sent.and_then(|sent| sent.host),
                clone,
                worker: far_worker_name(&worker, &run),
                job: abandoned.job.clone(),
                attempt: abandoned.attempt,
                run: run.clone(),
            };
            let owed = Owed { brings, ..Owed::new(&abandoned.host, FarCall::Forget(at)) };
            let recorded = owed::record(&paths, &key(&run, &abandoned), &owed);
            recorded.map_err(|error| failed_here(format!("cannot record it: {error}")))
        })
        .await
    }

    /// Does what is owed to an attempt that was given up.
    pub(super) async fn reclaimed(
        &self,
        plan: &Plan,
        abandoned: &Abandoned,
        caller: &Caller,
    ) -> Result<Reclaimed, HostFault> {
        let file = owed::file(&self.paths, &abandoned.host, &key(&plan.id, abandoned));
        let dir = Home::new(&plan.home).attempt(&abandoned.job, abandoned.attempt);
        let has_tree = plan.base.is_some() && evidence::sent(&dir, &plan.id).is_none_or(|sent| !sent.tip.is_empty());
        for _ in 0..RECLAIM_TRIES {
            let left = self.tell((&plan.id, &abandoned.job), &abandoned.host, caller).await?;
            match left.get(&file) {
                Some(Left::Elsewhere) => return Ok(Reclaimed::Gone),
                Some(Left::Waits(cause)) => return Err(HostFault::Busy { cause: cause.clone() }),
                None if !is_absent(&file) => break,
                None => {}
            }
            match owed::returned(&dir, &plan.id) {
                Some(references) => return Ok(Reclaimed::Back(references)),
                None if !has_tree => return Ok(Reclaimed::Back(Vec::new())),
                // A person has forgotten the host meanwhile. It answers after all.
                None => self.given_up(plan, abandoned, caller).await?,
            }
        }
        Err(HostFault::Busy { cause: "other work of the workstream comes back first".to_owned() })
    }

    /// Ends an attempt. That is owed before the host is asked.
    pub(super) async fn stopped(&self, now: &Now, host: &str, caller: &Caller) -> Result<(), HostFault> {
        let place = self.place(now, host, caller).await?;
        let (paths, key) = (self.paths.clone(), format!("{}/{}/{}/stop", now.plan.id, now.job().id, place.at.attempt));
        let owed = Owed::new(host, FarCall::Stop(place.at.clone()));
        let file = owed::file(&self.paths, host, &key);
        off_thread(move || {
            owed::record(&paths, &key, &owed).map_err(|error| failed_here(format!("cannot record it: {error}")))
        })
        .await?;
        match self.call(&now.plan.id, host, caller, FarCall::Stop(place.at)).await? {
            FarAnswer::Done => {}
            _ => return Err(odd(host)),
        }
        off_thread(move || {
            owed::settle(&file);
            Ok(())
        })
        .await
    }

    async fn link(&self, run: &str, host: &str, caller: &Caller) -> Result<Arc<Link>, HostFault> {
        let (links, run, name, by) = (Arc::clone(&self.links), run.to_owned(), host.to_owned(), caller.clone());
        // It may start a process.
        off_thread(move || links.get(&run, &name, &by)).await
    }
}

fn key(run: &str, abandoned: &Abandoned) -> String {
    format!("{run}/{}/{}", abandoned.job, abandoned.attempt)
}

/// Returns the fault of an answer that is one.
pub(super) fn answered(answer: FarAnswer) -> Result<FarAnswer, HostFault> {
    match answer {
        FarAnswer::Busy(cause) => Err(HostFault::Busy { cause }),
        FarAnswer::Refused(cause) => Err(HostFault::Refused { cause }),
        FarAnswer::Unfit { program, cause } => Err(HostFault::Unfit { program, cause }),
        FarAnswer::Unknown(cause) => Err(HostFault::Away { cause }),
        answer => Ok(answer),
    }
}
