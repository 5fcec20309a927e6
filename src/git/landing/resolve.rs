//! Runs the user's resolver for a conflict, in a scratch worktree in which the merge is in
//! progress and the files contain conflict markers. The result becomes the item's new tip, and
//! is built and verified like any other.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use swarm_model::merge::queue::Item;
use swarm_model::merge::{RESOLVER_LATER, Resolution};

use super::landed::Landed;
use super::scratch::{Leftovers, Scratch};
use super::site::CompletionRepo;
use super::verify::open_log;
use super::{build, leftover, off_thread, run, scratch};
use crate::landing::workspace::Workspace;
use crate::repository::durable::sync_file_systems;
use crate::repository::fault::Fault;
use crate::repository::markers::{self, Conflict, Markers};
use crate::trash::raw;
use crate::worktrees::topic::{self, UNTRACKED_MAX};
use crate::worktrees::{generated, record};
use swarm_sys::commands::runner::{Ended, Outcome};

/// Maximum number of commits of one side in the log for the resolver.
const COMMITS_MAX: usize = 50;
/// Maximum number of conflicting files by which that log is filtered.
const FILES_MAX: usize = 500;
/// Maximum size of that log in bytes.
const MESSAGES_BYTES_MAX: usize = 16 << 10;
/// Maximum size of the variable with the names of the conflicting files in bytes. The kernel limits a variable to 128 KiB.
const FILES_BYTES_MAX: usize = 64 << 10;

fn name(item: &Item) -> String {
    format!("resolve-{}", item.id)
}

pub(crate) async fn resolve(
    workspace: Arc<Workspace>,
    item: &Item,
    onto: &str,
    files: &[String],
) -> Result<Resolution, Fault> {
    let Some(command) = &item.rules.resolver else {
        return Ok(Resolution::Failed("no resolver configured".to_owned()));
    };
    let log = workspace.own.join("logs").join(format!("{}.resolver.log", item.id));
    let (at, wanted, base, fresh) = (Arc::clone(&workspace), item.clone(), onto.to_owned(), log.clone());
    let conflicts = files.to_vec();
    let place = off_thread(move || {
        open_log(&fresh)?;
        let list = list_of(&fresh);
        fs::write(&list, conflicts.join("\n") + "\n").map_err(Fault::at(&list))?;
        leftover::keep_interrupted(&at, &name(&wanted), &wanted, &fresh)?;
        let _hold = at.hold()?;
        let start = start(&at, &wanted, &base)?;
        let place = scratch::prepare(&at, &name(&wanted), &start, Leftovers::Delete)?;
        // Exit code 1 is expected: the conflict, with its markers.
        let merge =
            ["-c", "commit.gpgSign=false", "-c", "merge.conflictStyle=merge", "merge", "--no-commit", "--no-ff"];
        // The user's settings for merges are meant for merges by hand.
        let own = ["--no-squash", "--no-verify-signatures", "--no-autostash"];
        at.identity()?
            .environment(place.write(&at).in_record(), None)
            .args(merge)
            .args(own)
            .arg(&wanted.tip)
            .run_for(&[0, 1])?;
        let said = [(&*start, &*wanted.tip), (&*wanted.tip, &*base)];
        let before = leftover::state(&at, &place);
        let stopped = markers::stopped(&|| place.read(&at), &place.entry, &place.dir)?;
        let said = said.map(|(not_in, of)| messages(&at, not_in, of, &conflicts));
        Ok(((place, start), before, stopped, said))
    });
    let ((place, start), before, stopped, [of_tip, of_onto]) = place.await?;
    let variables = [
        ("SWARM_MERGE_FILES", shortened(files)),
        ("SWARM_MERGE_LIST", list_of(&log).to_string_lossy().into_owned()),
        ("SWARM_MERGE_BASE", workspace.target.base().to_owned()),
        ("SWARM_MERGE_ONTO", onto.to_owned()),
        ("SWARM_MERGE_TIP", item.tip.clone()),
        ("SWARM_MERGE_ITEM", item.id.to_string()),
        ("SWARM_MERGE_NAME", item.name.clone()),
        ("SWARM_MERGE_TIP_LOG", of_tip),
        ("SWARM_MERGE_ONTO_LOG", of_onto),
    ];
    let order =
        run::Order { dir: &place.dir, log: &log, limit_ms: item.rules.timeout_ms, command, variables: &variables };
    let failed = match run::run(&workspace, &order).await {
        Ok(ended) => failure(ended, item, &log),
        Err(fault) => {
            leftover::append(&log, &format!("swarm: {}\n", fault.cause));
            Some(Resolution::Later(format!("the resolver cannot be started: {}", fault.cause)))
        }
    };
    let item = item.clone();
    off_thread(move || finish(&workspace, &place, &item, (&start, &stopped), failed, before.as_ref(), &log)).await
}

/// Returns the commit with which a resolver merges the item: `onto`, or one that also has what has landed of it as another
/// commit. That would conflict with itself, or come back although the base has changed it since.
pub(super) fn start(workspace: &Workspace, item: &Item, onto: &str) -> Result<String, Fault> {
    let library = workspace.library();
    let library = library.as_deref();
    let base = workspace.read().args(["merge-base", onto, &item.tip]).line_if_any()?;
    let landed = Landed { workspace, library, item, onto };
    let before = base.map(|base| landed.before(item.rules.strategy, &base)).transpose()?.flatten();
    before.map_or_else(|| Ok(onto.to_owned()), |landed| build::joined(workspace, onto, &landed))
}

/// Returns the file with all conflicts of a try.
fn list_of(log: &Path) -> PathBuf {
    log.with_extension("files")
}

/// Returns the first of these paths, one per line, as far as they fit into a variable: a longer one would keep the resolver
/// from being started at all.
pub(super) fn shortened(files: &[String]) -> String {
    let mut length = 0;
    let kept = files.iter().take_while(|file| {
        length += file.len() + 1;
        length <= FILES_BYTES_MAX
    });
    kept.map(String::as_str).collect::<Vec<_>>().join("\n")
}

/// Returns why a resolver that has ended has resolved nothing. `None` if it may have.
fn failure(ended: Ended, item: &Item, log: &Path) -> Option<Resolution> {
    let output = run::output(&ended, log);
    let is_later = matches!(ended.outcome, Outcome::Code(RESOLVER_LATER));
    let why = match ended.outcome {
        Outcome::Code(0) => return None,
        Outcome::Code(RESOLVER_LATER) => "cannot work now".to_owned(),
        Outcome::Code(code) => format!("exited with code {code}"),
        Outcome::Timeout => format!("timed out after {} s", item.rules.timeout_ms / 1000),
        Outcome::Signal(signal) => format!("was killed by signal {signal}"),
        Outcome::Unknown(why) => why,
    };
    let why = format!("the resolver {why}; {output}");
    Some(if is_later { Resolution::Later(why) } else { Resolution::Failed(why) })
}

/// Commits the result of a try, unless it has `failed`, keeps what does not land, and removes the scratch worktree. The
/// result is not lost if that removal fails.
pub(super) fn finish(
    workspace: &Workspace,
    place: &Scratch,
    item: &Item,
    (onto, conflicts): (&str, &[Conflict]),
    failed: Option<Resolution>,
    before: Option<&leftover::State>,
    log: &Path,
) -> Result<Resolution, Fault> {
    let has_ended = failed.is_none();
    let result = failed.map_or_else(|| commit_result(workspace, place, item, onto, conflicts, log), Ok);
    if let (true, Ok(Resolution::Failed(why))) = (has_ended, &result) {
        leftover::append(log, &format!("swarm: {why}\n"));
    }
    let kept = match &result {
        // All but the worktrees inside is committed or moved out.
        Ok(Resolution::Done(_)) => leftover::keep_inside(workspace, place, item, log),
        _ => leftover::keep(workspace, place, item, before, log),
    };
    match kept {
        Ok(()) => scratch::remove(workspace, place),
        Err(fault) => leftover::keep_unsaved(workspace, place, item, log, &fault),
    }
    result
}

/// Returns the messages of one side's commits that touch these files, newest first, as far as
/// they fit into a variable. They only help the resolver, so failures yield an empty text.
fn messages(workspace: &Workspace, not_in: &str, of: &str, files: &[String]) -> String {
    let call =
        workspace.read().args(["--literal-pathspecs", "log", "--no-show-signature", "--format=%h %s%n%w(0,4,4)%b"]);
    let call = call.args([format!("--max-count={COMMITS_MAX}"), format!("{not_in}..{of}")]).arg("--");
    let said = match call.args(files.iter().take(FILES_MAX)).run() {
        Ok(said) => said,
        Err(error) => {
            tracing::warn!(%error, "cannot read the commit messages for the resolver");
            return String::new();
        }
    };
    let said = String::from_utf8_lossy(&said);
    let lines = said.lines().filter(|line| !line.trim().is_empty());
    let mut length = 0;
    let kept = lines.take_while(|line| {
        length += line.len() + 1;
        length <= MESSAGES_BYTES_MAX
    });
    kept.collect::<Vec<_>>().join("\n")
}

/// Commits the resolver's result on top of the item's tip. `conflicts` are those with which the merge has stopped.
pub(super) fn commit_result(
    workspace: &Workspace,
    place: &Scratch,
    item: &Item,
    onto: &str,
    conflicts: &[Conflict],
    log: &Path,
) -> Result<Resolution, Fault> {
    record::check(&workspace.common, &place.entry)?;
    let _hold = workspace.hold()?;
    let head = place.read(workspace).args(["rev-parse", "--verify", "HEAD"]).line()?;
    if let Some(conflict) = conflicts.iter().find(|conflict| conflict.markers(&place.dir) != Markers::default()) {
        return Ok(Resolution::Failed(format!("the resolver left conflict markers in {}", conflict.shown())));
    }
    let open = markers::conflicts(&|| place.read(workspace), &place.entry)?;
    if let Some(conflict) = markers::untouched(conflicts, &open, &place.dir)? {
        let how = "it must change the file, or run 'git add' or 'git rm' on it";
        return Ok(Resolution::Failed(format!("the resolver left {} unresolved ({how})", conflict.shown())));
    }
    let merging = place.entry.join("MERGE_HEAD");
    if head == onto && !merging.try_exists().map_err(Fault::at(&merging))? {
        return Ok(Resolution::Failed("the resolver aborted the merge".to_owned()));
    }
    let out = match add_all(workspace, place)? {
        Added::All => Vec::new(),
        Added::Without(out) => out,
        Added::Nothing(why) => return Ok(Resolution::Failed(why)),
    };
    leftover::move_out(workspace, place, item, &out, log)?;
    let tree = place.write(workspace).arg("write-tree").line()?;
    if tree == build::tree_of(workspace, onto)? {
        // It would count as landed although nothing of it is on the base.
        return Ok(Resolution::Failed("the resolver dropped all changes of the item".to_owned()));
    }
    let tip = if head == onto {
        let message =
            format!("Merge {} into {}\n\nConflicts resolved by the resolver.\n", workspace.target.base(), item.name);
        build::commit_tree(workspace, &tree, &[&item.tip, onto], &message, None)?
    } else {
        // The resolver committed by itself: either a merge of both sides, or something else.
        let has = |commit: &str| {
            let call = place.read(workspace).args(["merge-base", "--is-ancestor", commit, &head]);
            call.run_for(&[0, 1]).map(|(code, _)| code == 0)
        };
        if !has(onto)? || !has(&item.tip)? {
            let why = "the resolver created a commit that does not merge both sides";
            return Ok(Resolution::Failed(why.to_owned()));
        }
        if build::tree_of(workspace, &head)? == tree {
            head
        } else {
            let message = format!("Conflicts of {} resolved\n\nLeft uncommitted by the resolver.\n", item.name);
            build::commit_tree(workspace, &tree, &[&head], &message, None)?
        }
    };
    CompletionRepo::open(&workspace.cli, &workspace.common).pin(&tip)?;
    // The resolver's own git syncs little of what it commits.
    sync_file_systems([workspace.common.as_path()])?;
    Ok(Resolution::Done(tip))
}

/// Result of adding what a resolver left.
enum Added {
    All,
    /// All but these untracked paths, which are of kinds that tools generate, or nested repositories.
    Without(Vec<Vec<u8>>),
    /// Nothing, for this reason.
    Nothing(String),
}

/// Adds all that the resolver left to the index: changes, deletions, and new files that are not ignored.
fn add_all(workspace: &Workspace, place: &Scratch) -> Result<Added, Fault> {
    let read = || place.read(workspace);
    let open = markers::conflicts(&read, &place.entry)?;
    let is_bare = |conflict: &&Conflict| {
        let dir = conflict.place(&place.dir);
        let dir = dir.filter(|dir| fs::symlink_metadata(dir).is_ok_and(|meta| meta.is_dir()));
        dir.is_some_and(|dir| fs::symlink_metadata(dir.join(".git")).is_err())
    };
    let (links, dirs): (Vec<_>, Vec<_>) = open.iter().filter(is_bare).partition(|conflict| conflict.is_link);
    if let Some(link) = links.first() {
        return Ok(Added::Nothing(format!("the resolver chose no commit for the submodule {}", link.shown())));
    }
    let dirs: Vec<&[u8]> = dirs.into_iter().map(|conflict| conflict.path.as_slice()).collect();
    if let Err(fault) = add_tracked(workspace, place, &dirs) {
        // git refuses what is neither a file nor a link nor a directory, for example.
        let why = format!("git cannot add what the resolver left: {fault}");
        return if fault.is_tool_failure { Err(fault) } else { Ok(Added::Nothing(why)) };
    }
    let listed = read().args(["ls-files", "-z", "--others", "--exclude-standard"]).strict().run()?;
    let untracked = listed.split(|byte| *byte == 0).filter(|path| !path.is_empty());
    let (out, new) = generated::split(untracked, || read().args(["ls-files", "-z"]).run())?;
    if new.len() > UNTRACKED_MAX {
        let limit = format!("more than {UNTRACKED_MAX}; it must commit or ignore them");
        return Ok(Added::Nothing(format!("the resolver left {} untracked files, {limit}", new.len())));
    }
    if !new.is_empty() {
        let add = place.write(workspace).env("GIT_LITERAL_PATHSPECS", "1").args(["add", "--sparse", "--"]);
        add.args(new.iter().map(|path| OsStr::from_bytes(path))).run()?;
    }
    Ok(if out.is_empty() { Added::All } else { Added::Without(out.into_iter().map(<[u8]>::to_vec).collect()) })
}

/// Adds the changes of tracked files. `dirs` are conflicts in whose place the resolver has put a directory. git runs in
/// no repository within the worktree, whose configuration the resolver could have written.
fn add_tracked(workspace: &Workspace, place: &Scratch, dirs: &[&[u8]]) -> Result<(), Fault> {
    let step = || place.write(workspace);
    if !dirs.is_empty() {
        let remove = step().args(["update-index", "--force-remove", "-z", "--stdin"]);
        raw::feed(remove, &place.entry, &dirs.join(&0))?;
    }
    topic::add_tracked(&step, &place.entry)
}
