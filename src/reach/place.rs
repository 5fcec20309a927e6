//! Where an attempt is: its repository and directory here, its clone and worker on the host.

use std::path::{Path, PathBuf};

use swarm_git::carry::{self, CarryError, FarRepository};
use swarm_git::repository::branch_tip;
use swarm_model::Caller;
use swarm_model::run::far_worker_name;
use swarm_model::run::progress::Now;
use swarm_ports::HostFault;
use swarm_store::runs::far::{FarAttempt, FarClone};
use swarm_store::runs::home::Home;
use swarm_sys::paths::{Paths, digest};
use swarm_sys::state_id::state_id;

use super::evidence::{self, Sent};
use crate::processes::near::CARRY;

/// Size of the digest of a repository in bytes.
const DIGEST: usize = 16;

pub fn refused(cause: impl Into<String>) -> HostFault {
    HostFault::Refused { cause: cause.into() }
}

pub fn away_or_refused(error: CarryError) -> HostFault {
    match error {
        CarryError::Away(cause) => HostFault::Away { cause },
        CarryError::Refused(cause) => HostFault::Refused { cause },
    }
}

/// Place of an attempt.
#[derive(Clone, Debug)]
pub struct Place {
    /// Common directory of the repository.
    pub common: PathBuf,
    /// Directory of the attempt.
    pub dir: PathBuf,
    pub far: FarRepository,
    pub at: FarAttempt,
}

impl Place {
    pub fn of(paths: &Paths, executable: &Path, now: &Now, host: &str, caller: &Caller) -> Result<Self, HostFault> {
        let common = carry::common_of(Path::new(&now.plan.root), caller).map_err(refused)?;
        let controller =
            state_id(paths).map_err(|error| refused(format!("cannot read the id of the state directory: {error}")))?;
        let home = Home::new(&now.plan.home);
        let sent = |attempt| evidence::sent(&home.attempt(&now.job().id, attempt), &now.plan.id);
        // The repository may have been moved since the job was sent for the first time.
        let known = (1..=now.progress.attempt).rev().find_map(|attempt| sent(attempt)?.repository);
        let repository = known.unwrap_or_else(|| digest(common.as_os_str().as_encoded_bytes(), DIGEST));
        let far = FarRepository {
            program: executable.to_owned(),
            verb: CARRY,
            host: host.to_owned(),
            controller: controller.clone(),
            repository: repository.clone(),
        };
        let dir = home.attempt(&now.job().id, now.progress.attempt);
        let at = FarAttempt {
            host: sent(now.progress.attempt).and_then(|sent| sent.host),
            clone: FarClone { controller, repository },
            run: now.plan.id.clone(),
            job: now.job().id.clone(),
            attempt: now.progress.attempt,
            worker: far_worker_name(&now.worker(), &now.plan.id),
        };
        Ok(Self { common, dir, far, at })
    }

    /// Returns the clone on the host.
    pub fn clone_there(&self) -> FarClone {
        self.at.clone.clone()
    }

    /// Returns what tells this clone on this host apart from others.
    pub fn key(&self) -> (String, PathBuf) {
        (self.far.host.clone(), self.common.clone())
    }
}

/// Chooses and records the commits with which an attempt begins. An attempt that was not sent yet begins with the branches as
/// they are now.
pub fn chosen(now: &Now, place: &Place, caller: &Caller) -> Result<Sent, HostFault> {
    let (run, root) = (&now.plan.id, Path::new(&now.plan.root));
    let base = now.plan.base.as_deref().ok_or_else(|| refused("the run has no base branch"))?;
    let branch = now.job().branch.as_deref().ok_or_else(|| refused("the job has no branch"))?;
    let tip_of = |branch: &str| branch_tip(root, branch, caller).map_err(refused);
    let base_commit = tip_of(base)?.ok_or_else(|| refused(format!("base branch '{base}' not found")))?;
    let tip = tip_of(branch)?.unwrap_or_else(|| base_commit.clone());
    let repository = Some(place.at.clone.repository.clone());
    let sent = Sent { run: run.clone(), tip, base_commit, repository, host: None };
    let home = Home::new(&now.plan.home);
    let recorded = home.check_links().and_then(|()| evidence::record_sent(&place.dir, &sent));
    recorded.map_err(|error| refused(format!("cannot record the commits of the attempt: {error}")))?;
    Ok(sent)
}
