//! What a landing would write over or remove that git does not keep: files that
//! nobody tracks, and repositories of their own. git itself refuses for some of
//! it; but it overwrites what is ignored, and removes the checkout of a submodule
//! with all that is in it.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use super::trees::{Differing, Kind};
use crate::repository::fault::Fault;
use crate::worktrees::admin;

/// The submodules among these paths in whose place something else comes: a file
/// there or above it, or files below it. What of a submodule is checked out stays
/// where it is only taken out of the base.
pub(crate) fn replaced_links(paths: &[Differing]) -> BTreeSet<&[u8]> {
    let is_replaced = |link: &Differing| {
        let touches = |other: &Differing| is_below(&other.path, &link.path) || is_below(&link.path, &other.path);
        link.after.is_some() || paths.iter().any(|other| other.after.is_some() && touches(other))
    };
    let links = paths.iter().filter(|path| path.before == Some(Kind::Link) && path.after != Some(Kind::Link));
    links.filter(|link| is_replaced(link)).map(|link| link.path.as_slice()).collect()
}

/// Whether the one path is in the directory that the other one names.
pub(crate) fn is_below(one: &[u8], other: &[u8]) -> bool {
    one.strip_prefix(other).is_some_and(|rest| rest.first() == Some(&b'/'))
}

/// A directory that has the base checked out.
pub(crate) struct Tree<'a> {
    pub(crate) root: &'a Path,
    /// Asks for all paths in its index, each with a NUL behind it.
    pub(crate) tracked: &'a dyn Fn() -> Result<Vec<u8>, Fault>,
}

impl Tree<'_> {
    /// What of `new`, paths where the base has no file, and of `links`, replaced
    /// submodules, is somebody's.
    pub(crate) fn untracked<'p>(
        &self,
        new: impl Iterator<Item = &'p [u8]>,
        links: impl Iterator<Item = &'p [u8]>,
    ) -> Result<BTreeSet<PathBuf>, Fault> {
        let mut found = BTreeSet::new();
        for link in links.map(|path| Path::new(OsStr::from_bytes(path))) {
            if self.holds_anything(link)? {
                found.insert(link.to_owned());
            }
        }
        let mut places = BTreeSet::new();
        for path in new {
            places.extend(self.standing(Path::new(OsStr::from_bytes(path)))?);
        }
        if !places.is_empty() {
            let listed = (self.tracked)()?;
            let tracked = listed.split(|byte| *byte == 0).map(|path| Path::new(OsStr::from_bytes(path))).collect();
            places.into_iter().try_for_each(|place| self.walk(place, &tracked, &mut found))?;
        }
        Ok(found)
    }

    /// What stands at a path: itself, or above it what is no directory.
    fn standing(&self, path: &Path) -> Result<Option<PathBuf>, Fault> {
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

    /// Collects what is not tracked at a place and below it.
    fn walk(&self, place: PathBuf, tracked: &BTreeSet<&Path>, found: &mut BTreeSet<PathBuf>) -> Result<(), Fault> {
        if !self.look(&place)?.is_some_and(|seen| seen.is_dir()) {
            if !tracked.contains(place.as_path()) {
                found.insert(place);
            }
            return Ok(());
        }
        // Only a submodule is a directory and in the index.
        if tracked.contains(place.as_path()) {
            if self.holds_anything(&place)? {
                found.insert(place);
            }
            return Ok(());
        }
        let names = self.names(&place)?;
        if names.iter().any(|name| name == ".git") {
            let mut repository = place.into_os_string().into_vec();
            repository.push(b'/');
            found.insert(OsString::from_vec(repository).into());
            return Ok(());
        }
        names.into_iter().try_for_each(|name| self.walk(place.join(name), tracked, found))
    }

    fn look(&self, path: &Path) -> Result<Option<fs::Metadata>, Fault> {
        let path = self.root.join(path);
        admin::ignore_missing(fs::symlink_metadata(&path)).map_err(Fault::at(&path))
    }

    /// Whether it is a directory with anything in it.
    fn holds_anything(&self, dir: &Path) -> Result<bool, Fault> {
        Ok(self.look(dir)?.is_some_and(|seen| seen.is_dir()) && !self.names(dir)?.is_empty())
    }

    fn names(&self, dir: &Path) -> Result<Vec<OsString>, Fault> {
        let dir = self.root.join(dir);
        let listed = fs::read_dir(&dir).and_then(Iterator::collect::<io::Result<Vec<_>>>).map_err(Fault::at(&dir))?;
        Ok(listed.into_iter().map(|entry| entry.file_name()).collect())
    }
}
