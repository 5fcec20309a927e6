//! Directory and base branch of a file of jobs. A run that continues keeps the base for which it was started, whatever
//! branch is checked out now: its branches have the history of that base, and would bring it to any other.

use std::path::{Path, PathBuf};

use swarm_model::run::beginning::Beginning;
use swarm_model::run::plan::{Flags, Job, Plan};
use swarm_model::run::progress::Run;
use swarm_model::{Caller, Refusal, RefusalKind};
use swarm_store::repositories::{has_branch, site};
use swarm_store::runs::home::Home;
use swarm_store::runs::journal;

use super::jobs::JobFile;
use crate::cli::error::Failure;
use crate::cli::screen::Screen;

/// Jobs of an earlier run that go on.
struct Kept {
    /// Base for which they were started.
    base: String,
    /// Job and branch of each that has begun one.
    begun: Vec<(String, String)>,
}

/// A file of jobs, as far as it decides where the jobs run.
pub struct Question<'a> {
    /// File as typed, and its real path.
    pub shown: String,
    pub path: &'a Path,
    pub parsed: &'a JobFile,
    pub jobs: &'a [Job],
    pub flags: Flags,
    pub retry_failed: bool,
    pub home: &'a Home,
}

impl Question<'_> {
    /// Returns the directory in which the jobs run and the base branch: the file's own directory without a branch, or the
    /// root of its repository if a job needs a worktree. A note names the base of a run that continues if another
    /// branch is checked out.
    ///
    /// # Errors
    /// Fails if the file names another base than that of a branch on which a job goes on.
    pub fn answer(&self, caller: &Caller, screen: &mut Screen) -> Result<(PathBuf, Option<String>), Failure> {
        let dir = self.path.parent().unwrap_or(Path::new("/")).to_owned();
        if self.jobs.iter().all(|job| job.branch.is_none()) {
            return Ok((dir, None));
        }
        let caller = &Caller { cwd: dir.to_string_lossy().into_owned(), ..caller.clone() };
        let earlier = journal::replay(self.home).ok().flatten();
        let Some(Kept { base, begun }) = earlier.and_then(|run| self.kept(&run)) else {
            let site = site(caller, self.parsed.base.as_deref())?;
            return Ok((site.root, Some(site.base)));
        };
        let place = site(caller, Some(self.parsed.base.as_deref().unwrap_or(&base)))?;
        let is_there = |(_, branch): &&(String, String)| has_branch(&place.root, branch, caller);
        if place.base != base
            && let Some((id, branch)) = begun.iter().find(is_there)
        {
            let (shown, new) = (&self.shown, &place.base);
            let cause = format!(
                "{shown} names the base '{new}', but job '{id}' was started for '{base}' and its branch {branch} still exists"
            );
            let remedy = format!(
                "set the base to '{base}' to continue, or run 'swarm run cleanup --home {shown}' and 'git branch -D \
                 {branch}' to start over"
            );
            return Err(Refusal::new(RefusalKind::Exists, cause).remedy(remedy).into());
        }
        if self.parsed.base.is_none()
            && let Ok(now) = site(caller, None)
            && now.base != base
        {
            screen.aside("note: ", &format!("the run continues for {base}, although {} is checked out", now.base));
        }
        Ok((place.root, Some(place.base)))
    }

    /// Returns what goes on of the earlier run. `None` if no job with a branch does.
    fn kept(&self, earlier: &Run) -> Option<Kept> {
        let base = earlier.plan.base.clone()?;
        let (jobs, flags) = (self.jobs.to_vec(), self.flags.clone());
        let plan = Plan { base: Some(base.clone()), jobs, flags, ..Plan::default() };
        let beginning = Beginning::new(&plan, Some(earlier), self.retry_failed);
        let goes_on = |job: &&Job| job.branch.is_some() && beginning.continued(job).is_some();
        let mut jobs = self.jobs.iter().filter(goes_on).peekable();
        jobs.peek()?;
        let branch = |job: &Job| Some((job.id.clone(), beginning.branch(job)?.to_owned()));
        Some(Kept { base, begun: jobs.filter_map(branch).collect() })
    }
}
