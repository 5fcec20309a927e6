//! Finds untracked files and nested repositories that a landing would overwrite or delete. git
//! itself refuses in some of these cases, but it overwrites ignored files, and deletes the checkout
//! of a submodule with everything in it.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use super::trees::{Differing, Kind};
use crate::repository::fault::Fault;
use crate::worktrees::admin;
use swarm_sys::files;

/// Returns the submodules among these paths that are replaced by something else: a file at the
/// path or above it, or files below it. A submodule that the base merely drops keeps its
/// checkout.
pub(crate) fn replaced_links(paths: &[Differing]) -> BTreeSet<&[u8]> {
    let is_replaced = |link: &Differing| {
        let touches = |other: &Differing| is_below(&other.path, &link.path) || is_below(&link.path, &other.path);
        link.after.is_some() || paths.iter().any(|other| other.after.is_some() && touches(other))
    };
    let links = paths.iter().filter(|path| path.before == Some(Kind::Link) && path.after != Some(Kind::Link));
    links.filter(|link| is_replaced(link)).map(|link| link.path.as_slice()).collect()
}

/// Reports whether path `one` is inside directory `other`.
pub(crate) fn is_below(one: &[u8], other: &[u8]) -> bool {
    one.strip_prefix(other).is_some_and(|rest| rest.first() == Some(&b'/'))
}

/// Returns the path with a slash at its end: the directory is in the way, as long as anything is in it. git may count
/// it as clean, like a submodule that is checked out.
fn as_directory(path: &Path) -> PathBuf {
    path.join("")
}

/// A worktree that has the base checked out.
pub(crate) struct Tree<'a> {
    pub(crate) root: &'a Path,
    /// Returns all paths in its index, each terminated by NUL.
    pub(crate) tracked: &'a dyn Fn() -> Result<Vec<u8>, Fault>,
}

impl Tree<'_> {
    /// Returns untracked work that is in the way. `new` are paths at which the base has no file,
    /// `links` are replaced submodules.
    pub(crate) fn untracked<'p>(
        &self,
        new: impl Iterator<Item = &'p [u8]>,
        links: impl Iterator<Item = &'p [u8]>,
    ) -> Result<BTreeSet<PathBuf>, Fault> {
        let mut found = BTreeSet::new();
        for link in links.map(|path| Path::new(OsStr::from_bytes(path))) {
            if holds_anything(self.root, link)? {
                found.insert(as_directory(link));
            }
        }
        let mut places = BTreeSet::new();
        for path in new {
            places.extend(self.obstacle(Path::new(OsStr::from_bytes(path)))?);
        }
        if !places.is_empty() {
            let listed = (self.tracked)()?;
            let tracked = listed.split(|byte| *byte == 0).map(|path| Path::new(OsStr::from_bytes(path))).collect();
            places.into_iter().try_for_each(|place| self.walk(place, &tracked, &mut found))?;
        }
        Ok(found)
    }

    /// Returns the tracked files among `paths` that a person has deleted or whose directory was replaced by something
    /// else, each with what names that change. git would bring the files back, and delete a symbolic link above them.
    pub(crate) fn displaced<'p>(&self, paths: &'p [Differing]) -> Result<Vec<(&'p [u8], PathBuf)>, Fault> {
        let mut found = Vec::new();
        // The directory of the last file: neighbours follow each other.
        let mut known: Option<&Path> = None;
        for file in paths.iter().filter(|file| file.before == Some(Kind::File)) {
            let path = Path::new(OsStr::from_bytes(&file.path));
            let above = path.parent().unwrap_or(Path::new(""));
            let place = match known == Some(above) {
                true => self.look(path)?.map(|_| path.to_owned()),
                false => self.obstacle(path)?,
            };
            match place {
                Some(place) if place == path => known = Some(above),
                Some(place) => found.push((file.path.as_slice(), place)),
                // What lands deletes it, too.
                None if file.after.is_none() => {}
                None => found.push((file.path.as_slice(), path.to_owned())),
            }
        }
        Ok(found)
    }

    /// Returns what exists at a path: the path itself, or a parent that is not a directory.
    fn obstacle(&self, path: &Path) -> Result<Option<PathBuf>, Fault> {
        let mut place = PathBuf::new();
        for part in path {
            place.push(part);
            match self.look(&place)? {
                None => return Ok(None),
                Some(seen) if !seen.is_dir() => break,
                Some(_) => {}
            }
        }
        Ok(Some(place))
    }

    /// Collects the untracked files at a path and below it.
    fn walk(&self, place: PathBuf, tracked: &BTreeSet<&Path>, found: &mut BTreeSet<PathBuf>) -> Result<(), Fault> {
        if !self.look(&place)?.is_some_and(|seen| seen.is_dir()) {
            if !tracked.contains(place.as_path()) {
                found.insert(place);
            }
            return Ok(());
        }
        // A directory that is in the index is a submodule.
        if tracked.contains(place.as_path()) {
            if holds_anything(self.root, &place)? {
                found.insert(as_directory(&place));
            }
            return Ok(());
        }
        let names = self.names(&place)?;
        if names.iter().any(|name| name == ".git") {
            found.insert(as_directory(&place));
            return Ok(());
        }
        names.into_iter().try_for_each(|name| self.walk(place.join(name), tracked, found))
    }

    fn look(&self, path: &Path) -> Result<Option<fs::Metadata>, Fault> {
        let path = self.root.join(path);
        admin::ignore_missing(fs::symlink_metadata(&path)).map_err(Fault::at(&path))
    }

    fn names(&self, dir: &Path) -> Result<Vec<OsString>, Fault> {
        names(&self.root.join(dir))
    }
}

/// Reports whether `dir` is a directory below `root` that is not empty.
pub(crate) fn holds_anything(root: &Path, dir: &Path) -> Result<bool, Fault> {
    let dir = root.join(dir);
    let seen = admin::ignore_missing(fs::symlink_metadata(&dir)).map_err(Fault::at(&dir))?;
    Ok(seen.is_some_and(|seen| seen.is_dir()) && !names(&dir)?.is_empty())
}

fn names(dir: &Path) -> Result<Vec<OsString>, Fault> {
    let listed = files::list(dir).map_err(Fault::at(dir))?;
    Ok(listed.into_iter().map(|entry| entry.file_name()).collect())
}
