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

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use swarm_git::carry::{self, CarryError, FarRepository};
use swarm_model::Caller;
use swarm_model::run::plan::Plan;
use swarm_model::run::{Abandoned, far_worker_name, worker_name};
use swarm_ports::HostFault;
use swarm_store::runs::far::{FarAnswer, FarAttempt, FarCall};
use swarm_store::runs::home::Home;
use swarm_sys::files::is_absent;

use super::evidence;
use super::link::Link;
use super::owed::{self, Brings, Owed};
use super::place::{Site, carry_failed, failed_here};
use super::{Reach, entry, odd, off_thread};
use crate::processes::near::CARRY;

/// Time for the processes of a worker to end that was stopped.
const END_MAX: Duration = Duration::from_secs(60);

impl Reach {
    /// Connects to the host and tells it what it is owed: everything with a new connection, else what concerns one job.
    pub(super) async fn tell(&self, (run, job): (&str, &str), host: &str, caller: &Caller) -> Result<(), HostFault> {
        let link = self.link(run, host, caller).await?;
        let mut is_new = false;
        let all = || {
            is_new = true;
            self.deliver(&link, host, caller, None)
        };
        link.delivered.get_or_try_init(all).await?;
        if is_new { Ok(()) } else { self.deliver(&link, host, caller, Some((run, job))).await }
    }

    /// Tells a host what it is owed, or what it is owed about one job of a run. What it cannot do stays on record.
    pub(super) async fn deliver(
        &self,
        link: &Link,
        host: &str,
        caller: &Caller,
        only: Option<(&str, &str)>,
    ) -> Result<(), HostFault> {
        // It may be another machine, and it removes what no job needs.
        self.doubt(host);
        let lock = entry(&self.delivering, host.to_owned());
        let _held = lock.lock().await;
        let (paths, name) = (self.paths.clone(), host.to_owned());
        let mut stays = BTreeSet::new();
        for (file, owed) in off_thread(move || Ok(owed::of_host(&paths, &name))).await? {
            let job = owed.at().map(|at| (at.run.clone(), at.job.clone())).unwrap_or_default();
            let is_other = only.is_some_and(|(run, id)| (run, id) != (job.0.as_str(), job.1.as_str()));
            // What was given up is not forgotten before its work is here.
            if is_other || stays.contains(&job) {
                continue;
            }
            if owed.brings.is_some() {
                match self.bring_back(link, &owed, caller).await {
                    Ok(()) => {}
                    Err(fault @ HostFault::Away { .. }) => return Err(fault),
                    Err(HostFault::Busy { cause } | HostFault::Refused { cause } | HostFault::Unfit { cause, .. }) => {
                        tracing::warn!(host, job = %job.1, %cause, "cannot bring back the work of an attempt that was given up");
                        stays.insert(job);
                        continue;
                    }
                }
            }
            match link.ask(&owed.call).await? {
                FarAnswer::Busy(_) | FarAnswer::Unknown(_) | FarAnswer::Unfit { .. } => {}
                answer => {
                    if let FarAnswer::Refused(cause) = answer {
                        tracing::warn!(host, cause, "a host does not remove what a job has left");
                    }
                    owed::settle(&file);
                }
            }
        }
        Ok(())
    }

    /// Ends an attempt that was given up, and keeps its work here.
    async fn bring_back(&self, link: &Link, owed: &Owed, caller: &Caller) -> Result<(), HostFault> {
        let (Some(at), Some(brings)) = (owed.at(), &owed.brings) else { return Ok(()) };
        let host = owed.host.as_str();
        match answered(link.ask(&FarCall::Stop(at.clone())).await?)? {
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
            return Ok(());
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
            Err(error) => Err(carry_failed(error)),
        };
        if let Some(references) = off_thread(keep).await? {
            tracing::info!(host, job = %at.job, ?references, "the work of an attempt that was given up is here");
            return Ok(());
        }
        for commit in commits {
            match answered(link.ask(&FarCall::Withhold { at: at.clone(), commit }).await?) {
                Ok(_) | Err(HostFault::Refused { .. }) => {}
                Err(fault) => return Err(fault),
            }
        }
        Ok(())
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
            let owed = Owed { host: abandoned.host.clone(), call: FarCall::Forget(at), brings };
            let recorded = owed::record(&paths, &key(&run, &abandoned), &owed);
            recorded.map_err(|error| failed_here(format!("cannot record it: {error}")))
        })
        .await
    }

    /// Does what is owed to an attempt that was given up, and returns the references to its work.
    pub(super) async fn reclaimed(
        &self,
        plan: &Plan,
        abandoned: &Abandoned,
        caller: &Caller,
    ) -> Result<Vec<String>, HostFault> {
        self.tell((&plan.id, &abandoned.job), &abandoned.host, caller).await?;
        let file = owed::file(&self.paths, &abandoned.host, &key(&plan.id, abandoned));
        let (run, dir) = (plan.id.clone(), Home::new(&plan.home).attempt(&abandoned.job, abandoned.attempt));
        off_thread(move || {
            if !is_absent(&file) {
                return Err(HostFault::Busy { cause: "its work is not here yet".to_owned() });
            }
            Ok(owed::returned(&dir, &run))
        })
        .await
    }

    /// Returns a connection on which all owed calls have been sent.
    pub(super) async fn connected(&self, run: &str, host: &str, caller: &Caller) -> Result<Arc<Link>, HostFault> {
        let link = self.link(run, host, caller).await?;
        link.delivered.get_or_try_init(|| self.deliver(&link, host, caller, None)).await?;
        Ok(link)
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
