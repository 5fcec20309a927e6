//! `swarm run cleanup`: cleaning up after a run.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::json;
use swarm_model::run::plan::{Job, branches_of_file};
use swarm_model::run::progress::{Run, Stage};
use swarm_model::run::worker_name;
use swarm_model::{Caller, CleanRequest, Refusal, RefusalKind, Reply, Scope};
use swarm_ports::WorktreeError;

use super::args::Plain;
use super::own::{refuse_brought_along, root_of};
use super::queue::RunQueue;
use super::{left, places};
use crate::api::client;
use crate::cli::caller;
use crate::cli::error::Failure;
use crate::cli::json;
use crate::cli::render::escape;
use crate::cli::screen::Screen;
use swarm_store::runs::home::Home;
use swarm_store::runs::origin::RECORDS;
use swarm_store::runs::{journal, wire};
use swarm_store::views::{Detail, Pick, load_where};
use swarm_sys::files;
use swarm_sys::paths::Paths;
use swarm_sys::procfs;

/// Beginning of the names of the branches that runs make.
const OURS: &str = "arial/";

/// Removes worktrees and branches that no workstream needs: those of done ones, and leftovers. Work that exists nowhere
/// else is kept and named.
pub fn run(args: &Plain, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    let home = super::home(args.home.as_deref())?;
    let caller = caller::collect()?.caller;
    refuse_brought_along(&home, &RECORDS, &caller, paths)?;
    super::check_version(&home)?;
    let lock = super::plan::alone(&home, paths)?;
    let run = journal::replay(&home).map_err(|cause| Failure::new(RefusalKind::Invalid, cause))?;
    let mut tidied = Tidied::new(home, run.as_ref(), caller)?;
    let queue = run.as_ref().map(|run| RunQueue::of(&run.plan, paths));
    for (job, progress) in run.iter().flat_map(|run| run.plan.jobs.iter().zip(&run.jobs)) {
        let (Some(run), Some(queue)) = (&run, &queue) else { break };
        if left::is_left(run, job, progress, queue) {
            tidied.keep_left(run, job);
            continue;
        }
        let is_over = progress.stage == Stage::Done || progress.stage == Stage::Failed;
        let is_free = !is_over || tidied.clean(&worker_name(&run.plan.slug, &job.id), paths)?;
        if let Some(branch) = job.branch.as_ref().filter(|_| is_free) {
            tidied.spare(job.leaf(), branch, false, paths);
        }
    }
    let file = run.as_ref().filter(|run| run.plan.specs.is_none());
    let prefix = file.map_or_else(|| OURS.to_owned(), |run| branches_of_file(&run.plan.slug));
    for leaf in tidied.forgotten(run.as_ref())? {
        // A running worker is not a leftover: its worktree and branch are kept.
        let is_free = match &run {
            // What an earlier attempt of a job left. The worker of that name works elsewhere.
            Some(run) if run.plan.position(&leaf).is_some() => true,
            Some(run) => tidied.clean(&worker_name(&run.plan.slug, &leaf), paths)?,
            None => true,
        };
        if is_free {
            tidied.spare(&leaf, &format!("{prefix}{leaf}"), true, paths);
        }
    }
    drop(lock);
    let Tidied { removed, kept, .. } = tidied;
    if args.json {
        let kept: Vec<_> = kept.iter().map(|(what, why)| json!({"path": what, "reason": why})).collect();
        json::print(screen, "swarm.run-cleanup/1", &json!({"removed": removed, "kept": kept}))?;
        return Ok(0);
    }
    removed.iter().try_for_each(|what| screen.line(&format!("removed {}", escape(what))))?;
    kept.iter().for_each(|(what, why)| screen.aside("note: ", &format!("kept {what}: {why}")));
    Ok(0)
}

/// What a cleanup has removed and kept so far.
struct Tidied {
    home: Home,
    root: PathBuf,
    base: String,
    /// Directories of workstreams that are planned and not part of the run.
    planned: Vec<String>,
    caller: Caller,
    removed: Vec<String>,
    kept: Vec<(String, String)>,
}

impl Tidied {
    /// Without a run, for example in a home that is only planned, the plan names the base.
    ///
    /// # Errors
    /// Fails if the run is one of another repository.
    fn new(home: Home, run: Option<&Run>, caller: Caller) -> Result<Self, Failure> {
        let state = wire::load(&home).ok().flatten();
        let root = match run {
            Some(run) => root_of(&home, run)?,
            None => home.path().parent().unwrap_or(home.path()).to_owned(),
        };
        let base =
            run.and_then(|run| run.plan.base.clone()).or_else(|| state.as_ref().map(|it| it.base_branch.clone()));
        let leaf = |row: &wire::Workstream| row.worktree_path.rsplit('/').next().unwrap_or_default().to_owned();
        let planned = state.iter().flat_map(|state| state.workstreams.iter().map(leaf)).collect();
        let (removed, kept) = (Vec::new(), Vec::new());
        Ok(Self { home, root, base: base.unwrap_or_default(), planned, caller, removed, kept })
    }

    /// Returns the directory names of worktrees that no workstream has: those that exist, and those that git still lists
    /// although they are gone.
    fn forgotten(&self, run: Option<&Run>) -> Result<BTreeSet<String>, Failure> {
        let dir = self.home.worktrees();
        let failed = |error: io::Error| Failure::system(format!("cannot list {}", dir.display()), &error);
        let there = files::list_if_present(&dir).map_err(failed)?.into_iter().map(|tree| tree.path());
        let real = dir.canonicalize().unwrap_or_else(|_| dir.clone());
        // Without a repository at the root, only directories are left over.
        let listed = swarm_store::repositories::worktrees_of(&self.root).unwrap_or_default();
        let listed = listed.into_iter().map(|tree| tree.path);
        let listed = listed.filter(|path| path.parent().is_some_and(|parent| parent == dir || parent == real));
        let names = there.chain(listed).filter_map(|path| path.file_name()?.to_str().map(str::to_owned));
        // No other run makes branches of such names, so that those without a worktree are leftovers, too.
        let file = run.filter(|run| run.plan.specs.is_none() && run.plan.base.is_some());
        let branches = file.and_then(|run| places::leaves(&self.root, &run.plan.slug, &self.caller));
        let names = names.chain(branches.into_iter().flatten());
        let is_known = |leaf: &String| {
            self.planned.contains(leaf) || run.iter().any(|run| run.plan.jobs.iter().any(|job| job.leaf() == leaf))
        };
        Ok(names.filter(|leaf| !is_known(leaf)).collect())
    }

    /// Removes the worktree and the branch of a workstream unless they hold work that exists nowhere else. The branch of
    /// a leftover is named if it stays.
    fn spare(&mut self, leaf: &str, branch: &str, is_leftover: bool, paths: &Paths) {
        let tree = self.home.worktrees().join(leaf);
        let shown = tree.to_string_lossy().into_owned();
        let is_there = tree.symlink_metadata().is_ok();
        let listed = swarm_store::repositories::worktrees_of(&self.root).unwrap_or_default();
        let is_same = |path: &Path| path == tree || is_same_place(path, &tree);
        let entry = listed.iter().find(|one| is_same(&one.path));
        let branch = match entry.and_then(|entry| entry.branch.as_deref()) {
            Some(own) if is_leftover && !own.starts_with(OURS) => {
                self.kept.push((shown, format!("is on branch '{own}', which no run has made")));
                return;
            }
            Some(own) if is_leftover => own,
            _ => branch,
        };
        if is_there && entry.is_none() && is_leftover {
            // Not a worktree. Only an empty directory holds nothing.
            match fs::remove_dir(&tree) {
                Ok(()) => self.removed.push(shown),
                Err(_) => self.kept.push((shown, "not a worktree of this repository, and not empty".to_owned())),
            }
        } else if is_there || entry.is_some() {
            match swarm_store::repositories::remove_worktree_if_clean(leaf, &tree, &self.root, paths, &self.caller) {
                Ok(()) => self.removed.push(shown),
                Err(WorktreeError::Used(worker)) => {
                    // Keep the branch, too, even if the worker has another one checked out.
                    self.kept.push((shown, used_by(&worker)));
                    return;
                }
                Err(error @ WorktreeError::InUse(_)) => {
                    self.kept.push((shown, error.to_string()));
                    return;
                }
                Err(error) => self.kept.push((shown, error.to_string())),
            }
        }
        match swarm_store::repositories::remove_landed_branch(&self.root, branch, &self.base, &self.caller) {
            Ok(true) => self.removed.push(branch.to_owned()),
            Ok(false) if is_leftover && swarm_store::repositories::has_branch(&self.root, branch, &self.caller) => {
                let why = format!("has commits that are not on '{}', or is checked out", self.base);
                self.kept.push((branch.to_owned(), why));
            }
            Ok(false) => {}
            Err(_) if !is_leftover => {}
            Err(cause) => self.kept.push((branch.to_owned(), cause)),
        }
    }

    /// Names the work of a finished workstream that has not landed. Its worker and worktree stay, so that a person can review
    /// and land it.
    fn keep_left(&mut self, run: &Run, job: &Job) {
        let tree = self.home.worktrees().join(job.leaf());
        let what = match &job.branch {
            Some(branch) if tree.symlink_metadata().is_err() => branch.clone(),
            _ => tree.to_string_lossy().into_owned(),
        };
        self.kept.push((what, format!("its work has not landed; {}", left::to_land(run, job))));
    }

    /// Deletes a worker without its worktree, which is handled separately. Returns false if the worker is kept.
    fn clean(&mut self, name: &str, paths: &Paths) -> Result<bool, Failure> {
        let mut is_gone = true;
        forget(name, &self.caller, paths, &mut |refusal| {
            if refusal.kind != RefusalKind::NotFound {
                is_gone = false;
                self.kept.push((name.to_owned(), refusal.cause));
            }
        })?;
        Ok(is_gone)
    }
}

/// Returns why the worktree of a running worker stays, and what to do about it.
pub fn used_by(worker: &str) -> String {
    format!("{} (run 'swarm kill {worker}' first)", WorktreeError::Used(worker.to_owned()))
}

/// Deletes a worker without its worktree. Passes a refusal to `refused`.
///
/// # Errors
/// Fails if the supervisor cannot be reached.
pub fn forget(name: &str, caller: &Caller, paths: &Paths, refused: &mut dyn FnMut(Refusal)) -> Result<(), Failure> {
    let caller = Caller { request: swarm_sys::clock::random_token(), ..caller.clone() };
    let scope = Scope::Names(vec![name.to_owned()]);
    let request =
        CleanRequest { caller, scope, rm_worktree: false, force_dirty: false, drop_branch: false, started_by: None };
    client::post(paths, &request, &mut |reply| {
        if let Reply::Refused(refusal) = reply {
            refused(refusal);
        }
    })?;
    Ok(())
}

/// Reports whether two paths name the same directory, which may be gone.
fn is_same_place(one: &Path, other: &Path) -> bool {
    let real = |path: &Path| Some(path.parent()?.canonicalize().ok()?.join(path.file_name()?));
    real(one).is_some_and(|one| real(other) == Some(one))
}

/// Kills all processes of these workers at once, without time to clean up (second Ctrl-C).
pub fn kill_now(paths: &Paths, names: &[String]) {
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let Ok(registry) = load_where(paths, Detail::Word, Pick::Named(&names)) else { return };
    let tokens = registry.workers.iter().filter_map(|view| view.row.swarm()).map(|meta| meta.id.clone());
    kill_marked(&tokens.collect::<Vec<_>>());
}

/// Kills every process whose environment names one of these launch tokens.
fn kill_marked(tokens: &[String]) {
    let marks: Vec<Vec<u8>> = tokens.iter().map(|token| format!("SWARM_TOKEN={token}").into_bytes()).collect();
    let is_marked = |pid: i32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|one| marks.iter().any(|mark| mark == one))
    };
    // The second pass finds processes that were started during the first; the shim ends the rest.
    for _ in 0..2 {
        for pid in procfs::all().unwrap_or_default().into_iter().filter(|pid| is_marked(*pid)) {
            let Some(process) = Pid::from_raw(pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()) else {
                continue;
            };
            // Checked again after the pidfd was opened, so that the check is about the process that is signalled.
            if is_marked(pid) {
                let _ = pidfd_send_signal(&process, Signal::KILL);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::{Child, Command, Stdio};

    use super::*;

    fn marked(token: &str) -> Child {
        let mut command = Command::new("cat");
        command.env("SWARM_TOKEN", token).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("started")
    }

    #[test]
    fn only_what_a_worker_started_is_killed() {
        let (own, other) = (swarm_sys::clock::random_token(), swarm_sys::clock::random_token());
        let (mut ours, mut theirs) = (marked(&own), marked(&other));
        kill_marked(&[own]);
        assert_eq!(ours.wait().expect("waited").signal(), Some(9));
        drop(theirs.stdin.take());
        assert_eq!(theirs.wait().expect("waited").code(), Some(0), "it ended by itself");
    }
}
