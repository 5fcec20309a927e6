//! Removal of worktrees: deletes a worktree if no work is lost, else keeps it and says why.

use super::WorkerArguments;
use super::message::Removal;
use super::record::WorkerRecord;
use super::sites::{Sites, vacated};
use crate::registry::RegistryHandle;
use swarm_model::{BaseRef, Caller, Event, EventKind, Refusal, RefusalKind, RowWorktree, WorktreePlan};
use swarm_ports::{DroppedBranch, Expired, Force, Ports, Saved, WorktreeError};

/// Maximum number of ignored files that a note names.
const NAMED_MAX: usize = 5;

/// Lines for stderr about a removal, each with its kind. Often empty.
pub type Notes = Vec<(String, String)>;

impl Removal {
    pub fn force(self) -> Force {
        if self.force_dirty { Force::SaveFirst } else { Force::No }
    }
}

/// Removes the worktree for `kill --rm-worktree`. A refusal is only a warning.
pub async fn after_kill(of: &WorkerArguments, tree: &RowWorktree, removal: Removal, caller: &Caller) -> Notes {
    let name = &of.name;
    match remove(of, tree, removal, caller).await {
        Ok(notes) => notes,
        Err(error) => vec![warning(format!("cannot remove worktree for '{name}': {error}")), plain(remedy(&error))],
    }
}

/// Returns what removes the worktree in spite of this error.
fn remedy(error: &WorktreeError) -> String {
    match error {
        WorktreeError::Contains(inner) => {
            format!("remove the inner one first: 'swarm clean NAME --rm-worktree' or 'git worktree remove {inner}'")
        }
        WorktreeError::Used(worker) => format!("run 'swarm kill {worker}' first, or wait until it has ended"),
        WorktreeError::InUse(_) => "wait until it has ended, and remove the worktree there".to_owned(),
        _ => "use --force-dirty to remove anyway".to_owned(),
    }
}

/// Removes the worktree for `clean`, which started from `base`. On a refusal the worktree is kept, and the notes say where.
///
/// # Errors
/// Fails if git itself failed. What is left is then unknown, so the row must stay.
pub async fn on_clean(
    of: &WorkerArguments,
    (tree, base): (&RowWorktree, Option<&BaseRef>),
    removal: Removal,
    caller: &Caller,
) -> Result<Notes, Refusal> {
    let (ports, name) = (&of.ports, &of.name);
    let ignored = ports.worktrees.ignored(tree, caller).await;
    match remove(of, tree, removal, caller).await {
        Ok(mut notes) => {
            if !ignored.is_empty() {
                notes.push(("note".to_owned(), format!("removed {}", named(&ignored))));
            }
            Ok(notes)
        }
        Err(error @ WorktreeError::Tool(_)) => {
            let cause = format!("cannot remove worktree for '{name}': {error}");
            Err(Refusal::new(RefusalKind::Worktree, cause).of(name))
        }
        Err(error) => {
            let reason = match &error {
                WorktreeError::Unreachable(_) => "unpushed_commits",
                _ => "uncommitted_changes",
            };
            // Somebody else's session is left alone, and so is the record of somebody else's worktree.
            let is_in_use = matches!(error, WorktreeError::InUse(_));
            if !is_in_use {
                ports.sessions.preserve(&tree.path, reason, &error.to_string()).await;
            }
            // A run has nobody to show the notes to.
            tracing::info!(worker = name, path = tree.path, cause = %error, "keeping worktree");
            let mut notes = vec![
                warning(format!("preserving worktree for '{name}': {error}")),
                plain(format!("worktree at: {}", tree.path)),
                plain(remedy(&error)),
            ];
            if is_in_use {
                return Ok(notes);
            }
            match ports.worktrees.keep(name, tree, base).await {
                Ok(()) if !matches!(error, WorktreeError::Contains(_)) => {
                    let goes_on = |flags| format!("'swarm spawn --name {name} {flags}' continues in it; ");
                    let hint = format!(
                        "in {}, {}'swarm clean {name} --force-dirty' saves its work and removes it",
                        tree.base_repo,
                        tree.flags(name).map(goes_on).unwrap_or_default()
                    );
                    notes.push(("hint".to_owned(), hint));
                }
                Ok(()) => {}
                Err(error) => tracing::warn!(worker = name, %error, "cannot record that the worktree was kept"),
            }
            Ok(notes)
        }
    }
}

/// Counts ignored files and names the first ones.
fn named(files: &[String]) -> String {
    let first = files.iter().take(NAMED_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
    let more = if files.len() > NAMED_MAX { ", …" } else { "" };
    let word = if files.len() == 1 { "file" } else { "files" };
    format!("{} ignored {word}: {first}{more}", files.len())
}

/// Removes the worktree that stayed when this worker was forgotten, if that is forced. `None` if there is none.
///
/// # Errors
/// Fails if the worktree must stay nevertheless.
pub async fn kept(of: &WorkerArguments, removal: Removal, caller: &Caller) -> Result<Option<Notes>, Refusal> {
    let name = &of.name;
    if !removal.rm_worktree || !removal.force_dirty {
        return Ok(None);
    }
    let refused = |error: WorktreeError| {
        let refusal = Refusal::new(RefusalKind::Worktree, format!("cannot remove worktree for '{name}': {error}"));
        let remedy = matches!(error, WorktreeError::Used(_) | WorktreeError::InUse(_)).then(|| remedy(&error));
        Refusal { remedy, ..refusal }.of(name)
    };
    let Some(kept) = of.ports.worktrees.kept(name, caller).await.map_err(refused)? else { return Ok(None) };
    remove(of, &kept.tree, removal, caller).await.map(Some).map_err(refused)
}

/// Deletes the branch that was made for a worker whose worktree is gone, if its base contains it. A branch that cannot be
/// deleted stays. The notes say what was saved first.
pub async fn drop_branch(ports: &Ports, subject: &WorkerRecord, caller: &Caller) -> Notes {
    let WorkerRecord::Ours { row, .. } = subject else { return Notes::new() };
    let Some(plan) = subject.plan().filter(|plan| plan.branch_origin().is_some()) else { return Notes::new() };
    // A branch that was made again still lands on the base of the first generation.
    let base = BaseRef { branch: subject.base().branch, ..plan.base.clone() };
    let plan = WorktreePlan { base, ..plan.clone() };
    let branch = &plan.branch;
    let saved = match ports.worktrees.drop_branch(&plan, caller).await {
        Ok(DroppedBranch { is_deleted, saved }) => {
            if is_deleted {
                tracing::info!(worker = row.name, branch, "deleted a branch that its base contains");
            }
            saved
        }
        Err(error) => {
            tracing::warn!(worker = row.name, branch, %error, "cannot delete the branch");
            None
        }
    };
    let Some(saved) = saved else { return Notes::new() };
    let reference = saved.reference.clone();
    tell_of_save(ports, &row.name, saved, caller);
    let text = format!(
        "commits of '{branch}' that were taken back or rewritten were saved as {reference}; 'swarm restore {branch}' \
         brings them back"
    );
    vec![("note".to_owned(), text)]
}

fn tell_of_save(ports: &Ports, name: &str, Saved { reference, commit }: Saved, caller: &Caller) {
    ports.events.emit(Event {
        at_ms: ports.clock.wall_ms(),
        worker: Some(name.to_owned()),
        generation: None,
        request: Some(caller.request.clone()),
        kind: EventKind::WorktreeSaved { reference, commit },
    });
}

/// Returns the refusal of `respawn --clean-first`.
pub fn respawn_refusal(name: &str, tree: &RowWorktree, error: &WorktreeError) -> Refusal {
    let or_commit = match error {
        WorktreeError::Contains(_) | WorktreeError::Used(_) | WorktreeError::InUse(_) => "",
        _ => ", or commit changes first",
    };
    Refusal::new(RefusalKind::Worktree, format!("cannot remove worktree: {error}"))
        .remedy(format!("worktree at: {}; {}{or_commit}", tree.path, remedy(error)))
        .of(name)
}

/// Removes the worktree, unless another worker uses it. The notes say what was saved first.
///
/// # Errors
/// Returns why the worktree must stay.
pub async fn remove(
    of: &WorkerArguments,
    tree: &RowWorktree,
    removal: Removal,
    caller: &Caller,
) -> Result<Notes, WorktreeError> {
    let (ports, name) = (&of.ports, &of.name);
    let _claim = vacated(ports, &of.registry, &of.sites, name, &tree.path).await?;
    let saved = ports.worktrees.remove(name, &tree.path, &tree.base_repo, removal.force(), caller).await?;
    let mut notes = expire(ports, tree, caller).await;
    let Some(saved) = saved else { return Ok(notes) };
    let note = format!("uncommitted work of '{name}' was saved as {}", saved.reference);
    tell_of_save(ports, name, saved, caller);
    notes.insert(0, ("note".to_owned(), note));
    Ok(notes)
}

/// Deletes saves that are too old or too large, if the repository's settings say so. The notes list
/// what was deleted.
async fn expire(ports: &Ports, tree: &RowWorktree, caller: &Caller) -> Notes {
    let now_ms = ports.clock.wall_ms();
    let expired = match ports.worktrees.expire(&tree.base_repo, now_ms, caller).await {
        Ok(expired) => expired,
        Err(error) => return vec![warning(format!("cannot expire the saves of {}: {error}", tree.base_repo))],
    };
    let mut notes = Notes::new();
    for Expired { reference, commit, name, why } in expired {
        notes.push(("note".to_owned(), format!("save {reference} ({commit}) has expired: {why}")));
        ports.events.emit(Event {
            at_ms: now_ms,
            worker: Some(name),
            generation: None,
            request: Some(caller.request.clone()),
            kind: EventKind::SaveExpired { reference, commit, why },
        });
    }
    notes
}

/// Rolls back the worktree of a start of `worker` that failed, unless another worker uses it: the start may have run a
/// command that started one.
///
/// # Errors
/// Returns why the worktree must stay.
pub async fn undo(
    ports: &Ports,
    registry: &RegistryHandle,
    sites: &Sites,
    worker: &str,
    plan: &WorktreePlan,
    caller: &Caller,
) -> Result<(), WorktreeError> {
    let mut _claim = None;
    if plan.makes_tree {
        _claim = match vacated(ports, registry, sites, worker, &plan.path).await {
            Err(error @ WorktreeError::Used(_)) => return Err(error),
            // The start may have failed because the registry cannot be read.
            claimed => claimed.ok(),
        };
    }
    ports.worktrees.undo(plan, caller).await
}

/// Checks whether the worktree may be removed, without removing it.
///
/// # Errors
/// Returns why the worktree must stay.
pub async fn check(
    of: &WorkerArguments,
    tree: &RowWorktree,
    removal: Removal,
    caller: &Caller,
) -> Result<(), WorktreeError> {
    drop(vacated(&of.ports, &of.registry, &of.sites, &of.name, &tree.path).await?);
    of.ports.worktrees.check(&tree.path, &tree.base_repo, removal.force(), caller).await
}

fn warning(text: String) -> (String, String) {
    ("warning".to_owned(), text)
}

fn plain(text: String) -> (String, String) {
    ("plain".to_owned(), text)
}
