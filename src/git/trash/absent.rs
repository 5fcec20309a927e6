//! Worktrees whose directory is missing: it was moved or deleted, or its disk is not mounted. The index, the HEAD and the
//! reflog in the entry may still be the only copy of something, and are saved like those of a whole worktree.

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use swarm_ports::Saved;

use super::metadata::WorktreeMetadata;
use super::only_here;
use super::raw::Raw;
use super::save::{self, Place, SavedIndex, StateTrees};
use super::scratch::Scratch;
use crate::repository::cli::Cli;
use crate::repository::fault::Fault;
use crate::repository::{gc_lock, parse};
use crate::worktrees::remove::{REMOVING, in_progress, unreachable_head};
use crate::worktrees::{admin, owner};
use swarm_sys::files;
use swarm_sys::quoting::command_line;

/// First bytes of an index.
const INDEX_MAGIC: &[u8] = b"DIRC";

/// A worktree with an empty directory in place of the missing one, so that git can run.
struct StandIn {
    place: Place,
}

impl StandIn {
    fn make(cli: &Cli, common: &Path, entry: &Path) -> Result<Self, Fault> {
        let tree = Scratch::new(entry, "absent").into_path();
        let make = || {
            fs::create_dir(&tree)?;
            fs::set_permissions(&tree, fs::Permissions::from_mode(0o755))
        };
        make().map_err(Fault::at(&tree))?;
        let place = Place::of(cli, common, entry, &tree, "");
        place.map(|place| Self { place }).inspect_err(|_| drop(fs::remove_dir(&tree)))
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.place.tree);
    }
}

/// Returns what the entry of a missing worktree holds that exists nowhere else, or `None` if there is nothing.
pub(crate) fn unsaved(cli: &Cli, common: &Path, entry: &Path) -> Result<Option<String>, Fault> {
    let there = StandIn::make(cli, common, entry)?;
    let place = &there.place;
    if !place.is_whole {
        return Ok(None);
    }
    if let Some(doing) = in_progress(entry) {
        return Ok(Some(format!("{doing} in progress")));
    }
    if has_staged(cli, place)? {
        return Ok(Some("staged changes".to_owned()));
    }
    if unreachable_head(cli, place)?.is_some() || !only_here::commits(cli, place)?.is_empty() {
        return Ok(Some("commits that no branch or tag contains".to_owned()));
    }
    Ok(None)
}

/// Returns the refusal to remove the entry of the worktree at `path`.
pub(crate) fn refusal(path: &Path, what: &str) -> Fault {
    Fault::new(format!("the worktree at {} is missing, and git still has its {what}", path.display()))
}

/// Returns how to end the absence of a worktree that belongs at `tree`: `if_moved` says what to do if it is elsewhere.
pub(crate) fn remedy(common: &Path, entry: &Path, tree: &Path, if_moved: &str) -> String {
    let repo = admin::checkout_of(common).unwrap_or(common).to_string_lossy();
    let forced: &[&str] = if admin::lock_reason(entry).is_some() { &["-f", "-f"] } else { &[] };
    let at = tree.to_string_lossy();
    let words = ["git", "-C", &repo, "worktree", "remove"].into_iter().chain(forced.iter().copied());
    format!("{if_moved}, or run '{}' if it is gone", command_line(words.chain([&*at])))
}

/// Fails if the worktree of a worker, which belongs at `tree` and is not there, may hold work elsewhere: git still has an
/// entry for it, or one of ours that has its branch checked out.
pub(crate) fn check(cli: &Cli, repo: &Path, tree: &Path, branch: &str) -> Result<(), Fault> {
    let Some(common) = admin::ignore_missing(admin::common_dir(repo)).map_err(Fault::at(repo))? else { return Ok(()) };
    let entry = admin::entry_of(&common, tree).map_err(Fault::at(tree))?;
    if let Some(entry) = entry.filter(|entry| !entry.join(REMOVING).exists()) {
        let cause = format!("its worktree {} is missing", tree.display());
        let missing = Fault { is_mendable: true, ..Fault::new(cause) };
        return Err(missing.remedy(remedy(&common, &entry, tree, "bring it back to this path")));
    }
    let listed = parse::worktrees(&cli.read(&common).args(["worktree", "list", "--porcelain", "-z"]).run()?);
    let full = format!("refs/heads/{branch}");
    for at in listed.iter().filter(|one| one.branch.as_ref() == Some(&full)).map(|one| Path::new(&one.path)) {
        let entry = admin::entry_of(&common, at).map_err(Fault::at(at))?;
        if entry.is_some_and(|entry| owner::is_marked(&entry)) {
            let cause = format!("its worktree {} was moved to {}", tree.display(), at.display());
            let words = [repo, at, tree].map(Path::to_string_lossy);
            let back = command_line(["git", "-C", &words[0], "worktree", "move", &words[1], &words[2]]);
            return Err(Fault::new(cause).remedy(format!("run '{back}'")));
        }
    }
    Ok(())
}

/// Saves the entry of the worktree that belongs at `path`. The files of the save are those of the index; a file with a
/// conflict is only in the index.
pub(crate) fn save(cli: &Cli, common: &Path, entry: &Path, path: &Path, name: &str) -> Result<Saved, Fault> {
    let there = StandIn::make(cli, common, entry)?;
    let place = &there.place;
    let _hold = gc_lock::hold(&place.common(), gc_lock::SAVE_WAIT)?;
    let SavedIndex { entries, tree: index, is_merged, flags } = save::capture_index(cli, place)?;
    let is_file =
        |entry: &parse::Entry| entry.stage == 0 && !flags.intended.iter().any(|(_, path)| *path == entry.path);
    let files: Vec<_> = entries.into_iter().filter(is_file).collect();
    let raw = Raw::new(place, &index)?;
    raw.fill_index(cli, &files)?;
    let tree = raw.write(cli).arg("write-tree").line()?;
    let metadata =
        WorktreeMetadata::of(&place.tree, Some(&place.git_dir), flags, &files).map_err(Fault::at(&place.tree))?;
    let metadata = save::metadata_tree(cli, place, &metadata)?;
    save::record(cli, place, path, name, &StateTrees { tree, index, is_merged, metadata }, 0)
}

/// Reports whether the index holds something that HEAD does not.
fn has_staged(cli: &Cli, place: &Place) -> Result<bool, Fault> {
    let file = place.git_dir.join("index");
    // A power cut may have taken its content. A pipe in its place is never waited for.
    let mut magic = [0; INDEX_MAGIC.len()];
    let opened = files::open_regular(fs::File::options().read(true), &file);
    if opened.and_then(|mut index| index.read_exact(&mut magic)).is_err() || magic != *INDEX_MAGIC {
        return Ok(false);
    }
    let Some(head) = &place.head else {
        return Ok(!place.call(cli.read(&place.tree)).args(["ls-files", "-z"]).run()?.is_empty());
    };
    let args = ["diff-index", "--cached", "--quiet", "--ignore-submodules=none", head, "--"];
    Ok(place.call(cli.read(&place.tree)).args(args).run_for(&[0, 1])?.0 == 1)
}
