//! Repository of a completion. libgit2 reads it in-process if it supports the format; otherwise
//! git does.

use std::fs;
use std::path::{Path, PathBuf};

use git2::{ErrorCode, Oid, Repository};

use super::complete::pinned;
use crate::repository::cli::Cli;
use crate::repository::fault::Fault;
use crate::repository::plain_ref::{self, Before, Update};
use crate::repository::{holders, objects, pipes};
use crate::trash::save::DURABLE;
use crate::worktrees::record;

pub(crate) struct CompletionRepo<'a> {
    cli: &'a Cli,
    pub(crate) dir: PathBuf,
    library: Option<Repository>,
}

impl<'a> CompletionRepo<'a> {
    pub(crate) fn open(cli: &'a Cli, dir: &Path) -> Self {
        Self { cli, dir: dir.to_owned(), library: objects::discover(cli, dir).ok() }
    }

    /// Returns the common directory.
    pub(crate) fn common(&self) -> Result<String, Fault> {
        if let Some(common) = self.library.as_ref().and_then(|repo| repo.commondir().to_str()) {
            return Ok(common.trim_end_matches('/').to_owned());
        }
        Ok(objects::common_dir(self.cli, &self.dir)?)
    }

    pub(crate) fn toplevel(&self) -> Option<PathBuf> {
        match &self.library {
            Some(repo) => repo.workdir().map(Path::to_owned),
            None => self.cli.read(&self.dir).args(["rev-parse", "--show-toplevel"]).line().ok().map(PathBuf::from),
        }
    }

    /// Returns the branch that is checked out here.
    pub(crate) fn head(&self) -> Option<String> {
        if let Some(head) = self.library.as_ref().and_then(|repo| objects::find_reference(repo, "HEAD").ok()) {
            let name = head.symbolic_target().ok().flatten()?;
            return name.strip_prefix("refs/heads/").map(str::to_owned);
        }
        self.cli.read(&self.dir).args(["symbolic-ref", "-q", "--short", "HEAD"]).line_if_any().ok().flatten()
    }

    /// Resolves a symbolic ref to the branch that it points to.
    pub(crate) fn resolved(&self, name: String) -> String {
        let Some(repo) = &self.library else {
            let asked = ["rev-parse", "--verify", "-q", "--symbolic-full-name", &name];
            let real = self.cli.read(&self.dir).args(asked).line_if_any().ok().flatten();
            return real.filter(|real| real.starts_with("refs/heads/")).unwrap_or(name);
        };
        let real = objects::find_reference(repo, &name).and_then(|found| found.resolve());
        real.ok().and_then(|real| real.name().ok().map(str::to_owned)).unwrap_or(name)
    }

    /// Returns the tip of a local branch, or `None` if there is no such branch.
    pub(crate) fn tip(&self, branch: &str) -> Result<Option<String>, Fault> {
        if !objects::is_branch_name(branch) {
            return Ok(None);
        }
        if let Some(repo) = &self.library {
            match objects::find_reference(repo, &format!("refs/heads/{branch}"))
                .and_then(|found| found.peel_to_commit())
            {
                Ok(commit) => return Ok(Some(commit.id().to_string())),
                Err(error) if error.code() == ErrorCode::NotFound => return Ok(None),
                Err(_) => {}
            }
        }
        Ok(objects::branch_tip(self.cli, &self.dir, branch)?)
    }

    /// Reports whether `commit` is `other` or contains it in its history.
    pub(crate) fn contains(&self, commit: &str, other: &str) -> Result<bool, Fault> {
        if commit == other {
            return Ok(true);
        }
        let descends = |repo: &Repository| repo.graph_descendant_of(Oid::from_str(commit)?, Oid::from_str(other)?);
        if let Some(Ok(known)) = self.library.as_ref().map(descends) {
            return Ok(known);
        }
        let (code, _) =
            self.cli.read(&self.dir).args(["merge-base", "--is-ancestor", other, commit]).run_for(&[0, 1])?;
        Ok(code == 0)
    }

    /// Reports whether `other` is `tip` or a commit on the line of its first parents.
    pub(crate) fn is_on_line(&self, tip: &str, other: &str) -> Result<bool, Fault> {
        if !self.contains(tip, other)? {
            return Ok(false);
        }
        // Nothing before `other`, whose parents are left out.
        let parents = format!("{other}^@");
        let listed = self.cli.read(&self.dir).args(["rev-list", "--first-parent", tip, "--not", &parents]).line()?;
        Ok(listed.lines().any(|commit| commit == other))
    }

    /// Returns the commits at which a branch has been, newest first. Empty if it has no reflog.
    pub(crate) fn reflog(&self, name: &str) -> Result<Vec<String>, Fault> {
        let read = |repo: &Repository| {
            // libgit2 would create a missing reflog, and git would write to it from then on.
            if !repo.reference_has_log(name)? {
                return Ok(Vec::new());
            }
            let log = repo.reflog(name)?;
            let before = log.iter().next_back().map(|oldest| oldest.id_old()).filter(|id| !id.is_zero());
            let ids = log.iter().map(|entry| entry.id_new()).chain(before);
            Ok::<_, git2::Error>(ids.map(|id| id.to_string()).collect())
        };
        if let Some(Ok(ids)) = self.library.as_ref().map(read) {
            return Ok(ids);
        }
        let (code, _) = self.cli.read(&self.dir).args(["reflog", "exists", name]).run_for(&[0, 1])?;
        if code == 1 {
            return Ok(Vec::new());
        }
        let listed = self.cli.read(&self.dir).args(["reflog", "show", "--format=%H", name, "--"]).line()?;
        Ok(listed.lines().map(str::to_owned).collect())
    }

    /// Creates the ref that keeps a tip from being pruned.
    pub(crate) fn pin(&self, tip: &str) -> Result<(), Fault> {
        let (name, why) = (pinned(tip), "swarm: finished work");
        if let Ok(common) = self.common() {
            record::check_reference(Path::new(&common), &name)?;
            // Only we write this ref; an existing lock is left over.
            holders::clear_stale_locks(&[Path::new(&common).join(format!("{name}.lock"))], None);
            // Its name says what it contains, unless a power cut has torn it; git would not write it again.
            let file = Path::new(&common).join(&name);
            let is_torn = record::read(&file).is_ok_and(|text| text.trim_ascii() != tip.as_bytes());
            if is_torn || pipes::is_pipe_at(&file) {
                fs::remove_file(&file).map_err(Fault::at(&file))?;
            }
            let update = Update { name: &name, to: tip, before: Before::Any, is_durable: false };
            if plain_ref::set(Path::new(&common), &update, |_| ())? {
                return Ok(());
            }
        }
        let pin = |repo: &Repository| repo.reference(&name, Oid::from_str(tip)?, true, why).map(drop);
        if self.library.as_ref().is_some_and(|repo| pin(repo).is_ok()) {
            return Ok(());
        }
        let call = self.cli.write(&self.dir).args(DURABLE);
        Ok(call.args(["update-ref", "--no-deref", "-m", why, &name, tip]).run().map(drop)?)
    }
}
