//! Worktrees as a list of paths and branches. The directories are real but empty, because a start
//! checks whether an earlier one still exists.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use super::script::Script;
use swarm_model::{BaseRef, Caller, RowWorktree, WorktreePlan, WorktreeRequest};
use swarm_ports::{BoxFuture, DroppedBranch, Expired, Force, Kept, Saved, WorktreeError, Worktrees};

pub struct FakeWorktrees {
    above: PathBuf,
    script: Arc<Script>,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    /// Number of uncommitted changes by path.
    trees: BTreeMap<String, usize>,
    branches: BTreeSet<String>,
    /// Branches that were made, and at which commit, by the path of the worktree.
    made: BTreeMap<String, (String, String)>,
    saved: Vec<String>,
    /// Worktrees that stayed when their workers were forgotten.
    kept: BTreeMap<String, Kept>,
    /// Branches with commits that only their reflogs have.
    taken_back: BTreeSet<String>,
    /// The disk of all worktrees is not mounted.
    unmounted: bool,
}

impl FakeWorktrees {
    /// Creates the fake; `above` is the default parent directory of worktrees.
    pub fn new(above: PathBuf, script: Arc<Script>) -> Self {
        Self { above, script, inner: Mutex::default() }
    }

    pub fn paths(&self) -> Vec<String> {
        self.with(|inner| inner.trees.keys().cloned().collect())
    }

    /// Returns the default path of a worktree.
    pub fn path(&self, name: &str) -> String {
        self.above.join(name).to_string_lossy().into_owned()
    }

    pub fn branches(&self) -> Vec<String> {
        self.with(|inner| inner.branches.iter().cloned().collect())
    }

    /// Returns the paths whose work was saved before they were removed.
    pub fn saved(&self) -> Vec<String> {
        self.with(|inner| inner.saved.clone())
    }

    /// Sets the number of uncommitted changes at `path`.
    pub fn dirty(&self, path: &str, changes: usize) {
        self.with(|inner| inner.trees.insert(path.to_owned(), changes));
    }

    /// Takes the disk of all worktrees away, or brings it back.
    pub fn unmount(&self, unmounted: bool) {
        for path in self.paths() {
            let _ = if unmounted { fs::remove_dir(path) } else { fs::create_dir(path) };
        }
        self.with(|inner| inner.unmounted = unmounted);
    }

    /// Gives a branch commits that only its reflog has.
    pub fn take_back(&self, branch: &str) {
        self.with(|inner| inner.taken_back.insert(branch.to_owned()));
    }

    fn may_go(&self, path: &str, force: Force) -> Result<(), WorktreeError> {
        match (self.with(|inner| inner.trees.get(path).copied()), force) {
            (Some(changes), Force::No) if changes > 0 => Err(WorktreeError::Dirty(changes)),
            _ => Ok(()),
        }
    }

    /// Removes the worktree. Uncommitted changes are saved first.
    fn take_away(&self, path: &str) -> Option<Saved> {
        let changes = self.with(|inner| {
            inner.made.remove(path);
            inner.trees.remove(path)
        })?;
        let _ = fs::remove_dir(path);
        (changes > 0).then(|| {
            self.with(|inner| inner.saved.push(path.to_owned()));
            Saved { reference: format!("refs/swarm/trash{path}"), commit: "c".repeat(40) }
        })
    }

    fn with<T>(&self, work: impl FnOnce(&mut Inner) -> T) -> T {
        work(&mut self.inner.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn not_made(cause: String) -> WorktreeError {
    WorktreeError::Create { cause, remedy: None, passes: false }
}

impl Worktrees for FakeWorktrees {
    fn plan<'a>(
        &'a self,
        name: &'a str,
        asked: &'a WorktreeRequest,
        _: &'a Caller,
    ) -> BoxFuture<'a, Result<WorktreePlan, WorktreeError>> {
        Box::pin(async move {
            self.script.before("plan", name).await.map_err(WorktreeError::Tool)?;
            if asked.is_known && self.with(|inner| inner.unmounted) {
                let cause = format!("the worktree of {name} is missing, with all that was beside it");
                return Err(WorktreeError::Create { cause, remedy: None, passes: true });
            }
            let above = asked.dir.as_ref().map_or_else(|| self.above.clone(), PathBuf::from);
            let path = above.join(name).to_string_lossy().into_owned();
            let branch = asked.branch.clone().unwrap_or_else(|| name.to_owned());
            let made = self.with(|inner| inner.made.get(&path).cloned()).filter(|(made, _)| *made == branch);
            Ok(WorktreePlan {
                makes_branch: !self.branches().contains(&branch),
                made_at: made.map(|(_, commit)| commit),
                makes_tree: !self.paths().contains(&path),
                path,
                branch,
                base_repo: asked.cwd.clone(),
                base: BaseRef { branch: Some("main".to_owned()), commit: "b".repeat(40) },
            })
        })
    }

    fn make<'a>(&'a self, plan: &'a WorktreePlan, _: &'a Caller) -> BoxFuture<'a, Result<(), WorktreeError>> {
        Box::pin(async move {
            self.script.before("make", &plan.branch).await.map_err(not_made)?;
            fs::create_dir_all(&plan.path).map_err(|error| not_made(error.to_string()))?;
            self.with(|inner| {
                inner.trees.entry(plan.path.clone()).or_insert(0);
                inner.branches.insert(plan.branch.clone());
                if let Some(commit) = plan.branch_origin() {
                    inner.made.insert(plan.path.clone(), (plan.branch.clone(), commit.to_owned()));
                }
            });
            self.script.after("make").await.map_err(not_made)
        })
    }

    fn undo<'a>(&'a self, plan: &'a WorktreePlan, _: &'a Caller) -> BoxFuture<'a, Result<(), WorktreeError>> {
        Box::pin(async move {
            self.script.before("undo", &plan.branch).await.map_err(WorktreeError::Tool)?;
            let saved = if plan.makes_tree { self.take_away(&plan.path) } else { None };
            if plan.makes_branch && saved.is_none() {
                self.with(|inner| inner.branches.remove(&plan.branch));
            }
            Ok(())
        })
    }

    fn port<'a>(
        &'a self,
        _plan: &'a WorktreePlan,
        _taken: &'a [u16],
    ) -> BoxFuture<'a, Result<Option<u16>, WorktreeError>> {
        Box::pin(async move { Ok(None) })
    }

    fn expire<'a>(
        &'a self,
        _base_repo: &'a str,
        _now_ms: u64,
        _caller: &'a Caller,
    ) -> BoxFuture<'a, Result<Vec<Expired>, WorktreeError>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn check<'a>(
        &'a self,
        path: &'a str,
        _: &'a str,
        force: Force,
        _: &'a Caller,
    ) -> BoxFuture<'a, Result<(), WorktreeError>> {
        Box::pin(async move {
            self.script.before("check", path).await.map_err(WorktreeError::Tool)?;
            self.may_go(path, force)
        })
    }

    fn remove<'a>(
        &'a self,
        name: &'a str,
        path: &'a str,
        _: &'a str,
        force: Force,
        _: &'a Caller,
    ) -> BoxFuture<'a, Result<Option<Saved>, WorktreeError>> {
        Box::pin(async move {
            self.script.before("remove_tree", name).await.map_err(WorktreeError::Tool)?;
            self.may_go(path, force)?;
            Ok(self.take_away(path))
        })
    }

    fn drop_branch<'a>(
        &'a self,
        plan: &'a WorktreePlan,
        _: &'a Caller,
    ) -> BoxFuture<'a, Result<DroppedBranch, WorktreeError>> {
        Box::pin(async move {
            self.script.before("drop_branch", &plan.branch).await.map_err(WorktreeError::Tool)?;
            let is_deleted =
                !self.paths().contains(&plan.path) && self.with(|inner| inner.branches.remove(&plan.branch));
            let is_saved = is_deleted && self.with(|inner| inner.taken_back.remove(&plan.branch));
            let reference = format!("refs/swarm/trash/{}", plan.branch);
            Ok(DroppedBranch { is_deleted, saved: is_saved.then(|| Saved { reference, commit: "c".repeat(40) }) })
        })
    }

    fn keep<'a>(
        &'a self,
        name: &'a str,
        tree: &'a RowWorktree,
        base: Option<&'a BaseRef>,
    ) -> BoxFuture<'a, Result<(), WorktreeError>> {
        Box::pin(async move {
            let kept = Kept { tree: tree.clone(), base: base.cloned(), is_superseded: false };
            self.with(|inner| inner.kept.insert(name.to_owned(), kept));
            Ok(())
        })
    }

    fn kept<'a>(&'a self, name: &'a str, _: &'a Caller) -> BoxFuture<'a, Result<Option<Kept>, WorktreeError>> {
        Box::pin(async move {
            let kept = self.with(|inner| inner.kept.get(name).cloned());
            Ok(kept.filter(|kept| self.paths().contains(&kept.tree.path)))
        })
    }
}
