//! Rolls the files of an interrupted landing back, or forward if their new index was in place already.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use super::kept::MADE;
use super::lock::{OLD, PATHS, RESTORE};
use super::written::{Found, Goals, Kind};
use super::{Checkout, FileStamp, Marker, Written, refused};
use crate::landing::land;
use crate::landing::workspace::Workspace;
use crate::repository::cli::CliError;
use crate::repository::content::Match;
use crate::repository::fault::Fault;
use crate::repository::index;
use crate::worktrees::{admin, record};
use swarm_sys::files::{remove_tree, sync_file_system};

impl Checkout {
    /// Restores the files that an interrupted landing wrote, if the index is still the old one, or the base has not moved. If
    /// it is the new one, completes the files, of which a power cut may have taken some. Returns whether it is the new one.
    pub(super) fn restore(&self, workspace: &Workspace, marker: &Marker) -> Result<bool, Fault> {
        let index = match self.read(workspace).args(["diff-index", "--cached", "-z", "--name-only", &marker.to]).run() {
            // The commit was pruned long after the landing, so only the user can judge the files.
            Err(CliError::Exit { .. }) if !self.has(workspace, &marker.to)? => return Ok(false),
            index => index?,
        };
        let differing: HashSet<&[u8]> = index.split(|byte| *byte == 0).collect();
        let is_old = self.files.iter().any(|file| differing.contains(file.path.as_slice()));
        if !is_old && self.put_old_index_back(workspace, marker)? {
            // It may be what an earlier landing, which was cut off, has put in place.
            return self.restore(workspace, marker);
        }
        match is_old {
            true => self.roll_back(workspace, marker).map(|()| false),
            // Without a power cut they are complete, and what differs is an edit.
            false if marker.is_of_this_boot() => Ok(true),
            false => self.roll_forward(workspace, marker).map(|()| true),
        }
    }

    /// Puts the old index back if the base has not moved, and nobody has replaced the new one since. After a kill, the files
    /// are rolled back as if the new one had never been there. Returns whether it is back.
    fn put_old_index_back(&self, workspace: &Workspace, marker: &Marker) -> Result<bool, Fault> {
        if !self.has_both_indexes() || land::is_ancestor(workspace, &marker.to, &land::base(workspace)?)? {
            return Ok(false);
        }
        let index = self.git_dir.join(index::FILE);
        fs::rename(self.git_dir.join(OLD), &index).map_err(Fault::at(&index))?;
        Ok(true)
    }

    /// Reports whether the repository contains an object.
    fn has(&self, workspace: &Workspace, id: &str) -> Result<bool, Fault> {
        Ok(self.read(workspace).args(["cat-file", "-e", id]).run_for(&[0, 1])?.0 == 0)
    }

    /// A kill at any point leaves files that are either untouched or back, and those are left alone the next time.
    fn roll_back(&self, workspace: &Workspace, marker: &Marker) -> Result<(), Fault> {
        let goals = Goals::read(self, workspace, marker)?;
        let files = || self.files.iter().enumerate().filter(|(_, file)| !file.is_somebodys());
        // New files first: a directory of theirs may be where an old file belongs, and one of them where a directory does.
        for (_, file) in files().filter(|(_, file)| file.before.is_none()) {
            let path = self.path_of(file);
            match goals.look(file)? {
                Some(Found::Content(Match::Whole | Match::Beginning)) => {
                    admin::ignore_missing(fs::remove_file(&path)).map_err(Fault::at(&path))?;
                    remove_empty(path.parent(), &self.tree);
                }
                Some(Found::Directory) if goals.of(file).is_some_and(|goal| goal.kind == Kind::Submodule) => {
                    // Fails if anything is in it.
                    let _ = fs::remove_dir(&path);
                }
                _ => {}
            }
        }
        let (mut lost, mut is_changed) = (Vec::new(), false);
        for (number, file) in files().filter(|(_, file)| file.before.is_some()) {
            self.remove_beside(file)?;
            let path = self.path_of(file);
            if FileStamp::at(&path) == file.before || self.is_kept_at(number, &path) {
                continue;
            }
            // A missing file was removed by git in order to write it again.
            let is_ours = match goals.look(file)? {
                Some(Found::Nothing | Found::Directory | Found::Content(Match::Whole | Match::Beginning)) => true,
                Some(Found::Content(Match::Other)) | None => false,
            };
            match is_ours {
                true if self.has_kept(number, file) => is_changed |= self.put(&self.kept(number), file)?,
                true => lost.push(file),
                false => {}
            }
        }
        for link in self.files.iter().filter(|file| file.was_link) {
            // The directory was empty; otherwise the landing would not have written anything.
            let _ = fs::create_dir(self.path_of(link));
        }
        is_changed |= self.write_again(workspace, &marker.from, &lost)?;
        if is_changed { self.refresh(workspace) } else { Ok(()) }
    }

    fn roll_forward(&self, workspace: &Workspace, marker: &Marker) -> Result<(), Fault> {
        let goals = Goals::read(self, workspace, marker)?;
        let listed = self.read(workspace).args(["ls-files", "-t", "-z"]).run()?;
        let skipped = refused::skipped(&listed);
        let (mut new, mut is_changed) = (Vec::new(), false);
        for (number, file) in self.files.iter().enumerate() {
            if file.is_somebodys() || file.was_link || skipped.contains(file.path.as_slice()) {
                continue;
            }
            self.remove_beside(file)?;
            let path = self.path_of(file);
            let is_old = || FileStamp::at(&path) == file.before || self.is_kept_at(number, &path);
            let wanted = goals.of(file).is_some_and(|goal| goal.kind != Kind::Submodule);
            match goals.look(file)? {
                Some(Found::Nothing) if wanted => new.push(file),
                Some(Found::Content(Match::Beginning)) => new.push(file),
                Some(Found::Content(Match::Other)) if wanted && is_old() => new.push(file),
                Some(Found::Content(Match::Other)) if is_old() => {
                    admin::ignore_missing(fs::remove_file(&path)).map_err(Fault::at(&path))?;
                    remove_empty(path.parent(), &self.tree);
                    is_changed = true;
                }
                _ => {}
            }
        }
        is_changed |= self.write_again(workspace, &marker.to, &new)?;
        if is_changed { self.refresh(workspace) } else { Ok(()) }
    }

    /// Writes files as a checkout of the commit does. Returns whether any was written.
    fn write_again(&self, workspace: &Workspace, commit: &str, files: &[&Written]) -> Result<bool, Fault> {
        if files.is_empty() {
            return Ok(false);
        }
        let (made, list) = (self.git_dir.join(MADE), self.git_dir.join(PATHS));
        let failed = Fault::at(&made);
        remove_tree(&made).and_then(|()| fs::create_dir(&made)).map_err(&failed)?;
        let index = self.scratch_index(RESTORE).map_err(&failed)?;
        let step = || self.write(workspace).env("GIT_INDEX_FILE", &index).args(["-c", "core.sparseCheckout=false"]);
        step().args(["read-tree", commit]).run()?;
        let paths: Vec<&[u8]> = files.iter().map(|file| file.path.as_slice()).collect();
        record::write(&list, &paths.join(&0)).map_err(&failed)?;
        let input = fs::File::open(&list).map_err(&failed)?;
        // They are written elsewhere, so that no kill leaves a part of a file that looks like an edit.
        let mut prefix = OsString::from("--prefix=");
        prefix.push(made.join(""));
        step().args(["checkout-index", "-z", "--stdin"]).arg(prefix).input(input).run()?;
        sync_file_system(&made).map_err(&failed)?;
        let mut is_changed = false;
        for file in files {
            is_changed |= self.put(&made.join(OsStr::from_bytes(&file.path)), file)?;
        }
        Ok(is_changed)
    }

    /// Refreshes the index, because files have new times.
    fn refresh(&self, workspace: &Workspace) -> Result<(), Fault> {
        let old = self.git_dir.join("index");
        let new = self.scratch_index(RESTORE).map_err(Fault::at(&old))?;
        admin::copy_index(&old, &new).map_err(Fault::at(&new))?;
        index::refresh(self.write(workspace).env("GIT_INDEX_FILE", &new))?;
        fs::rename(&new, &old).map_err(Fault::at(&old))
    }
}

impl Written {
    /// Reports whether a file of the user was in the way, which the landing did not write.
    fn is_somebodys(&self) -> bool {
        self.is_new && self.before.is_some()
    }
}

/// Removes directories that the landing created, from `dir` upwards, as long as they are empty.
fn remove_empty(dir: Option<&Path>, tree: &Path) {
    let mut dir = dir;
    while let Some(path) = dir.filter(|path| *path != tree && path.starts_with(tree)) {
        if fs::remove_dir(path).is_err() {
            return;
        }
        dir = path.parent();
    }
}
