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

/// Returns the fault for what is in the way of one attempt here. It says nothing about the host.
pub fn failed_here(cause: impl Into<String>) -> HostFault {
    HostFault::Unfit { program: None, cause: cause.into() }
}

pub fn carry_failed(error: CarryError) -> HostFault {
    match error {
        CarryError::Away(cause) => HostFault::Away { cause },
        CarryError::Refused(cause) => HostFault::Refused { cause },
        CarryError::Unsound(cause) => failed_here(format!("git here refuses what it fetched: {cause}")),
        CarryError::Failed(cause) => failed_here(cause),
    }
}

/// Place of an attempt.
#[derive(Clone, Debug)]
pub struct Place {
    /// Common directory of the repository. Of a job without a worktree, which needs no repository, the home of the run.
    pub common: PathBuf,
    /// Directory of the attempt.
    pub dir: PathBuf,
    pub far: FarRepository,
    pub at: FarAttempt,
}

/// A repository here, and its clones on hosts.
pub struct Site {
    /// Common directory of the repository.
    pub common: PathBuf,
    pub clone: FarClone,
}

impl Site {
    pub fn of(paths: &Paths, root: &Path, caller: &Caller) -> Result<Self, HostFault> {
        Self::at(paths, carry::common_of(root, caller).map_err(failed_here)?)
    }

    /// Returns the site of what is at `common`.
    pub fn at(paths: &Paths, common: PathBuf) -> Result<Self, HostFault> {
        let controller = state_id(paths)
            .map_err(|error| failed_here(format!("cannot read the id of the state directory: {error}")))?;
        let repository = digest(common.as_os_str().as_encoded_bytes(), DIGEST);
        Ok(Self { common, clone: FarClone { controller, repository } })
    }
}

impl Place {
    pub fn of(paths: &Paths, executable: &Path, now: &Now, host: &str, caller: &Caller) -> Result<Self, HostFault> {
        let Site { common, mut clone } = match now.job().branch {
            Some(_) => Site::of(paths, Path::new(&now.plan.root), caller)?,
            None => Site::at(paths, PathBuf::from(&now.plan.home))?,
        };
        let home = Home::new(&now.plan.home);
        let sent = |attempt| evidence::sent(&home.attempt(&now.job().id, attempt), &now.plan.id);
        // The repository may have been moved since the job was sent for the first time.
        if let Some(known) = (1..=now.progress.attempt).rev().find_map(|attempt| sent(attempt)?.repository) {
            clone.repository = known;
        }
        let far = FarRepository {
            program: executable.to_owned(),
            verb: CARRY,
            host: host.to_owned(),
            controller: clone.controller.clone(),
            repository: clone.repository.clone(),
        };
        let dir = home.attempt(&now.job().id, now.progress.attempt);
        // The job may have worked on several hosts, each of which has a state directory of its own.
        let of_host = |attempt| {
            let is_there = |sent: &Sent| match &sent.name {
                Some(name) => name == host,
                None => attempt == now.progress.attempt,
            };
            sent(attempt).filter(is_there)
        };
        let at = FarAttempt {
            host: (1..=now.progress.attempt).rev().find_map(of_host).and_then(|sent| sent.host),
            clone,
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
    let (tip, base_commit) = match &now.job().branch {
        Some(branch) => {
            let base = now.plan.base.as_deref().ok_or_else(|| failed_here("the run has no base branch"))?;
            let tip_of = |branch: &str| branch_tip(root, branch, caller).map_err(failed_here);
            let base_commit = tip_of(base)?.ok_or_else(|| failed_here(format!("base branch '{base}' not found")))?;
            (tip_of(branch)?.unwrap_or_else(|| base_commit.clone()), base_commit)
        }
        None => (String::new(), String::new()),
    };
    let repository = Some(place.at.clone.repository.clone());
    // The branch may have been moved to work of this attempt before.
    let taken = evidence::sent(&place.dir, run).and_then(|sent| sent.taken);
    let name = Some(place.far.host.clone());
    let sent = Sent { run: run.clone(), tip, base_commit, repository, name, host: None, taken };
    let home = Home::new(&now.plan.home);
    let recorded = home.check_links().and_then(|()| evidence::record_sent(&place.dir, &sent));
    recorded.map_err(|error| failed_here(format!("cannot record the commits of the attempt: {error}")))?;
    Ok(sent)
}
