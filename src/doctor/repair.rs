//! What is mended when a person agrees. Each looks once more whether it is still so, and
//! none of them can lose work: a worktree goes only on proof that it is ours and long left.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use swarm_model::Caller;

use super::{store, trees};
use crate::adapters::git;
use crate::api::client;
use crate::paths::Paths;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Repair {
    /// Only its user may read what is there.
    Mode { path: PathBuf, mode: u32 },
    /// A half-written file of a process that is gone.
    Temporary(PathBuf),
    /// A worktree that this state directory had made, that no worker has and that holds no work.
    Worktree { path: PathBuf, repo: PathBuf },
    /// A lock of a git that was killed.
    Lock { path: PathBuf, repo: PathBuf },
    /// Nobody looks after what runs.
    StartSupervisor,
    /// The one that runs is another program than this one.
    RestartSupervisor,
}

impl Repair {
    /// In the infinitive, as it is proposed.
    pub fn words(&self) -> String {
        match self {
            Self::Mode { path, mode } => format!("set the mode of {} to {mode:o}", path.display()),
            Self::Temporary(path) | Self::Lock { path, .. } => format!("remove {}", path.display()),
            Self::Worktree { path, .. } => {
                format!("remove the worktree {}, with the files that git ignores", path.display())
            }
            Self::StartSupervisor => "start the supervisor".to_owned(),
            Self::RestartSupervisor => "restart the supervisor (workers go on)".to_owned(),
        }
    }

    /// # Errors
    /// Why it was left as it is.
    pub fn apply(&self, paths: &Paths, caller: &Caller) -> Result<(), String> {
        let said = |error: io::Error| error.to_string();
        match self {
            Self::Mode { path, mode } => {
                // A link would lead to a file that is not meant.
                let meta = fs::symlink_metadata(path).map_err(said)?;
                match meta.is_symlink() {
                    true => Err("it is a link now".to_owned()),
                    false => fs::set_permissions(path, Permissions::from_mode(*mode)).map_err(said),
                }
            }
            Self::Temporary(path) => match store::is_abandoned(path) {
                true => fs::remove_file(path).map_err(said),
                false => Err("somebody writes there now".to_owned()),
            },
            Self::Worktree { path, repo } => trees::remove(path, repo, paths, caller),
            Self::Lock { path, repo } => git::remove_stale_lock(path, repo),
            Self::StartSupervisor => client::ensure(paths).map_err(|refusal| refusal.cause),
            Self::RestartSupervisor => {
                client::stop(paths, client::After::Another).map_err(|refusal| refusal.cause)?;
                client::ensure(paths).map_err(|refusal| refusal.cause)
            }
        }
    }
}
