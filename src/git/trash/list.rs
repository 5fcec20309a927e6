//! The saves of one repository, for commands that list, show, restore and expire them.

use std::path::{Path, PathBuf};

use swarm_model::{Caller, Refusal, RefusalKind};
use swarm_ports::Expired;

use super::expiry::{self, Due, TrashPolicy};
use super::restore::{self, RestoreRequest, RestoredWorktree};
use super::saved::{self, Save};
use crate::repository::cli::Cli;
use crate::repository::fault::Fault;
use crate::repository::objects;
use crate::worktrees::{admin, settings};

/// The trash of one repository.
pub struct TrashList {
    cli: Cli,
    common: PathBuf,
    /// Base checkout, if there is one.
    base: Option<PathBuf>,
}

/// A path that differs from the save's HEAD, with the status letter of git.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangedPath {
    pub letter: char,
    pub path: String,
}

impl TrashList {
    /// Opens the repository around `dir`.
    ///
    /// # Errors
    /// Fails if there is no repository or no git.
    pub fn open(caller: &Caller, dir: &Path) -> Result<Self, Refusal> {
        let cli = Cli::new(caller).map_err(|error| refusal(error.into()))?;
        // Without a final `.`, which is the default.
        let dir: PathBuf = Path::new(&caller.cwd).join(dir).components().collect();
        let none = |_| {
            let cause = format!("no git repository at {}", dir.display());
            Refusal::new(RefusalKind::Invalid, cause).remedy("choose a repository with --repo")
        };
        let common = objects::common_dir(&cli, &dir).map_err(none)?;
        let common = PathBuf::from(common);
        let base = admin::base_around(&common, &dir);
        Ok(Self { cli, common, base })
    }

    /// Returns the base checkout, or the common directory of a bare repository.
    pub fn repository(&self) -> &Path {
        admin::checkout_of(&self.common).unwrap_or(&self.common)
    }

    /// Returns all saves, newest first.
    ///
    /// # Errors
    /// Fails if git fails.
    pub fn saves(&self) -> Result<Vec<Save>, Refusal> {
        saved::list(&self.cli, &self.common).map_err(refusal)
    }

    /// Returns the bytes on disk that only this save needs.
    ///
    /// # Errors
    /// Fails if git fails.
    pub fn bytes(&self, save: &Save) -> Result<u64, Refusal> {
        saved::bytes(&self.cli, &self.common, save).map_err(refusal)
    }

    /// Restores a save as a worktree.
    ///
    /// # Errors
    /// Returns why it cannot be restored; nothing was changed in that case.
    pub fn restore(&self, save: &Save, request: &RestoreRequest) -> Result<RestoredWorktree, Refusal> {
        restore::restore_by(&self.cli, &self.common, self.base.as_deref(), save, request).map_err(refusal)
    }

    /// Returns the saves that exceed the limits of a policy.
    ///
    /// # Errors
    /// Fails if git fails.
    pub fn due(&self, policy: TrashPolicy, now_ms: u64) -> Result<Vec<Due>, Refusal> {
        expiry::find(&self.cli, &self.common, policy, now_ms).map_err(refusal)
    }

    /// Deletes a save.
    ///
    /// # Errors
    /// Fails if git fails; the save still exists in that case.
    pub fn forget(&self, save: &Save) -> Result<(), Refusal> {
        expiry::forget(&self.cli, &self.common, save).map_err(refusal)
    }

    /// Returns the policy in the repository's `swarm.toml`.
    ///
    /// # Errors
    /// Fails if the configuration is invalid.
    pub fn policy(&self) -> Result<TrashPolicy, Refusal> {
        settings::trash(self.repository()).map_err(refusal)
    }

    /// Returns the paths that differ between the save and its HEAD.
    ///
    /// # Errors
    /// Fails if git fails.
    pub fn changed_paths(&self, save: &Save) -> Result<Vec<ChangedPath>, Refusal> {
        let out = self.diff(save, &["--name-status", "-z", "--no-renames"])?;
        let mut fields = out.split(|byte| *byte == 0).map(|field| String::from_utf8_lossy(field).into_owned());
        let mut changed = Vec::new();
        while let (Some(letter), Some(path)) = (fields.next().and_then(|text| text.chars().next()), fields.next()) {
            changed.push(ChangedPath { letter, path });
        }
        Ok(changed)
    }

    /// Returns the difference between the save and its HEAD as a patch.
    ///
    /// # Errors
    /// Fails if git fails.
    pub fn patch(&self, save: &Save) -> Result<Vec<u8>, Refusal> {
        self.diff(save, &["--no-renames", "--binary"])
    }

    fn diff(&self, save: &Save, shape: &[&str]) -> Result<Vec<u8>, Refusal> {
        let empty = || self.cli.read(&self.common).args(["hash-object", "-t", "tree", "/dev/null"]).line();
        let head = match &save.head {
            Some(head) => head.clone(),
            None => empty().map_err(|error| refusal(error.into()))?,
        };
        let call = self.cli.read(&self.common).args(["diff", "--no-color", "--no-ext-diff", "--no-textconv"]);
        call.args(shape).args([&head, &save.commit, "--"]).run().map_err(|error| refusal(error.into()))
    }
}

/// Deletes the saves that exceed the limits in the repository's settings; none without settings.
pub(crate) fn expire_by_settings(caller: &Caller, root: &Path, now_ms: u64) -> Result<Vec<Expired>, Fault> {
    let policy = settings::trash(root)?;
    if policy == TrashPolicy::default() {
        return Ok(Vec::new());
    }
    let (cli, common) = (Cli::new(caller)?, admin::common_dir(root).map_err(Fault::at(root))?);
    let mut expired = Vec::new();
    for due in expiry::find(&cli, &common, policy, now_ms)? {
        expiry::forget(&cli, &common, &due.save)?;
        let (reference, commit) = (due.save.reference, due.save.commit);
        expired.push(Expired { reference, commit, name: due.save.name, why: due.why.to_owned() });
    }
    Ok(expired)
}

fn refusal(fault: Fault) -> Refusal {
    Refusal { remedy: fault.remedy, ..Refusal::new(RefusalKind::Worktree, fault.cause) }
}
