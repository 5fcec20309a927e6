//! Repairs that are applied if the user agrees. Each checks its condition again first, and none can lose work: a
//! worktree is removed only if it provably belongs to this state directory and was abandoned long ago.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use swarm_model::Caller;

use super::trees;
use crate::api::client;
use swarm_sys::files::is_abandoned;
use swarm_sys::paths::Paths;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Repair {
    /// Restricts a file or directory to its owner.
    Mode { path: PathBuf, mode: u32 },
    /// Removes a temporary file whose writer is gone.
    Temporary(PathBuf),
    /// Deletes what is left of a scratch directory of a merge queue.
    Discarded(PathBuf),
    /// Removes a worktree that this state directory created, that no worker uses and that holds no work.
    Worktree { path: PathBuf, repo: PathBuf },
    /// Removes a lock of a git process that was killed.
    Lock { path: PathBuf, repo: PathBuf },
    /// Starts the missing supervisor of running workers.
    StartSupervisor,
    /// Replaces a supervisor of another build.
    RestartSupervisor,
}

impl Repair {
    /// Describes the repair as an imperative, for the proposal to the user.
    pub fn words(&self) -> String {
        match self {
            Self::Mode { path, mode } => format!("set the mode of {} to {mode:o}", path.display()),
            Self::Temporary(path) | Self::Discarded(path) | Self::Lock { path, .. } => {
                format!("remove {}", path.display())
            }
            Self::Worktree { path, .. } => {
                format!("remove the worktree {} with its ignored files", path.display())
            }
            Self::StartSupervisor => "start the supervisor".to_owned(),
            Self::RestartSupervisor => "restart the supervisor (workers continue)".to_owned(),
        }
    }

    /// Applies the repair.
    ///
    /// # Errors
    /// Returns the reason if nothing was changed, for example because the condition no longer holds.
    pub fn apply(&self, paths: &Paths, caller: &Caller) -> Result<(), String> {
        let said = |error: io::Error| error.to_string();
        match self {
            Self::Mode { path, mode } => {
                // Setting the mode of a symbolic link would change another file.
                let meta = fs::symlink_metadata(path).map_err(said)?;
                match meta.is_symlink() {
                    true => Err("the file is now a symbolic link".to_owned()),
                    false => fs::set_permissions(path, Permissions::from_mode(*mode)).map_err(said),
                }
            }
            Self::Temporary(path) => match is_abandoned(path) {
                true => fs::remove_file(path).map_err(said),
                false => Err("the file is now in use".to_owned()),
            },
            Self::Discarded(path) => swarm_git::landing::delete_discarded(paths, path).map_err(said),
            Self::Worktree { path, repo } => trees::remove(path, repo, paths, caller),
            Self::Lock { path, repo } => swarm_git::repository::remove_stale_lock(path, repo),
            Self::StartSupervisor => client::ensure(paths).map_err(|refusal| refusal.cause),
            Self::RestartSupervisor => client::restart(paths).map_err(|refusal| refusal.cause),
        }
    }
}
