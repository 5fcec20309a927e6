//! The saves of one repository, for commands: listed, looked into, brought back.

use std::path::{Path, PathBuf};

use swarm_actors::model::{Caller, Refusal, RefusalKind};

use super::cli::Cli;
use super::fault::Fault;
use super::objects;
use super::restore::{self, Back, Wish};
use super::saved::{self, Save};

pub struct Trove {
    cli: Cli,
    common: PathBuf,
}

/// A path that is another one than in the save's HEAD, with git's letter for how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Other {
    pub letter: char,
    pub path: String,
}

impl Trove {
    /// Of the repository around `dir`.
    ///
    /// # Errors
    /// When there is none, or no git.
    pub fn open(caller: &Caller, dir: &Path) -> Result<Self, Refusal> {
        let cli = Cli::new(caller).map_err(|error| refusal(error.into()))?;
        let dir = Path::new(&caller.cwd).join(dir);
        let none = |_| {
            let cause = format!("there is no git repository at {}", dir.display());
            Refusal::new(RefusalKind::Invalid, cause).remedy("name one with --repo")
        };
        let common = objects::common_dir(&cli, &dir).map_err(none)?;
        Ok(Self { cli, common: PathBuf::from(common) })
    }

    /// Its root, as far as it has one.
    pub fn repository(&self) -> &Path {
        let above = self.common.parent().filter(|_| self.common.ends_with(".git"));
        above.unwrap_or(&self.common)
    }

    /// All that is saved, the newest first.
    ///
    /// # Errors
    /// What git says.
    pub fn saves(&self) -> Result<Vec<Save>, Refusal> {
        saved::list(&self.cli, &self.common).map_err(refusal)
    }

    /// Bytes on disk that are needed for this alone.
    ///
    /// # Errors
    /// What git says.
    pub fn bytes(&self, save: &Save) -> Result<u64, Refusal> {
        saved::bytes(&self.cli, &self.common, save).map_err(refusal)
    }

    /// Brings it back.
    ///
    /// # Errors
    /// Why not; nothing was changed then.
    pub fn restore(&self, save: &Save, wish: &Wish) -> Result<Back, Refusal> {
        restore::restore(&self.cli, &self.common, save, wish).map_err(refusal)
    }

    /// What is in it that is not in its HEAD.
    ///
    /// # Errors
    /// What git says.
    pub fn others(&self, save: &Save) -> Result<Vec<Other>, Refusal> {
        let out = self.diff(save, &["--name-status", "-z", "--no-renames"])?;
        let mut fields = out.split(|byte| *byte == 0).map(|field| String::from_utf8_lossy(field).into_owned());
        let mut others = Vec::new();
        while let (Some(letter), Some(path)) = (fields.next().and_then(|text| text.chars().next()), fields.next()) {
            others.push(Other { letter, path });
        }
        Ok(others)
    }

    /// The same as a patch.
    ///
    /// # Errors
    /// What git says.
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

fn refusal(fault: Fault) -> Refusal {
    Refusal { remedy: fault.remedy, ..Refusal::new(RefusalKind::Worktree, fault.cause) }
}
