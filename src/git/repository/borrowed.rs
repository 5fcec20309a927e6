//! Objects of a repository that lie where they are removed: in an alternate below a worktree, for example.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::fault::Fault;
use crate::worktrees::{admin, record};
use swarm_sys::files::list;
use swarm_sys::quoting::quoted;

/// Number of alternates of alternates that git follows.
const DEPTH_MAX: u32 = 5;

/// Objects outside of the repository.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Borrowed {
    /// File that names the directory, or link to it.
    by: PathBuf,
    /// Directory with the objects.
    dir: PathBuf,
}

impl Borrowed {
    /// Returns why nothing that needs these objects lands, and nothing around them is removed.
    pub(crate) fn fault(&self, common: &Path) -> Fault {
        let (dir, by) = (self.dir.display(), self.by.display());
        let cause = format!("objects of the repository are in {dir}, which does not last (by {by})");
        let repack = format!("git -C {} repack -a -d", quoted(&common.to_string_lossy()));
        Fault::new(cause).remedy(format!("run '{repack}', remove what names them from {by}, and try again"))
    }
}

/// Returns the first directory with objects of a repository that lies below one of these places. Nearly all repositories
/// have none, and then nobody asks for the places.
pub(crate) fn below(common: &Path, places: impl FnOnce() -> Vec<PathBuf>) -> Option<Borrowed> {
    let mut all = Vec::new();
    collect(&common.join("objects"), DEPTH_MAX, &mut BTreeSet::new(), &mut all);
    if all.is_empty() {
        return None;
    }
    let own = common.canonicalize().ok()?;
    let places = places().into_iter().filter_map(|place| place.canonicalize().ok());
    // Of a repository that is itself there, all lies there.
    let places: Vec<PathBuf> = places.filter(|place| !own.starts_with(place)).collect();
    all.into_iter().find(|found| places.iter().any(|place| found.dir.starts_with(place)))
}

/// Returns the worktrees of a repository, and what a run keeps in the main one.
pub(crate) fn places(common: &Path) -> Vec<PathBuf> {
    let entries = admin::entries(common).unwrap_or_default();
    let trees = entries.iter().filter_map(|entry| admin::tree_of(entry));
    trees.chain(admin::checkout_of(common).map(|root| root.join(".arial"))).collect()
}

/// Collects the directories that a directory with objects names, by links and as alternates.
fn collect(objects: &Path, depth: u32, seen: &mut BTreeSet<PathBuf>, all: &mut Vec<Borrowed>) {
    if !objects.canonicalize().is_ok_and(|real| seen.insert(real)) {
        return;
    }
    let mut add = |by: &Path, dir: &Path| {
        let dir = dir.canonicalize().ok();
        all.extend(dir.map(|dir| Borrowed { by: by.to_owned(), dir }));
    };
    let inside = list(objects).unwrap_or_default().into_iter().map(|entry| entry.path());
    let is_link = |path: &PathBuf| path.symlink_metadata().is_ok_and(|meta| meta.is_symlink());
    inside.chain(Some(objects.to_owned())).filter(is_link).for_each(|link| add(&link, &link));
    let by = objects.join("info/alternates");
    let Some(text) = record::read_text(&by).ok().filter(|_| depth > 0) else { return };
    let named = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let dirs: Vec<PathBuf> = named.map(|line| objects.join(line)).collect();
    dirs.iter().for_each(|dir| add(&by, dir));
    dirs.iter().for_each(|dir| collect(dir, depth - 1, seen, all));
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn alternates_and_links_that_lead_into_a_place_are_found() {
        let dir = tempfile::tempdir().expect("a directory");
        let root = dir.path().canonicalize().expect("there");
        let common = root.join("repo/.git");
        let place = root.join("trees/a");
        for made in ["repo/.git/objects/info", "trees/a/objs/info", "other/objects/info", "trees/ab"] {
            fs::create_dir_all(root.join(made)).expect("made");
        }
        let places = [place.clone(), root.join("gone")];
        let seen = || below(&common, || places.to_vec()).map(|found| found.dir);
        let alternates = common.join("objects/info/alternates");
        for (text, expected) in [
            (String::new(), None),
            (format!("{}\n", root.join("other/objects").display()), None),
            (format!("{}\n", root.join("trees/ab").display()), None),
            ("# a comment\n../../../trees/a/objs\n".to_owned(), Some(place.join("objs"))),
            (format!("/nowhere\n{}\n", place.join("objs").display()), Some(place.join("objs"))),
        ] {
            fs::write(&alternates, &text).expect("written");
            assert_eq!(seen(), expected, "{text}");
        }
        // By way of another repository.
        fs::write(&alternates, format!("{}\n", root.join("other/objects").display())).expect("written");
        let further = root.join("other/objects/info/alternates");
        fs::write(&further, format!("{}\n", place.join("objs").display())).expect("written");
        assert_eq!(seen(), Some(place.join("objs")));
        fs::write(&alternates, "").expect("written");
        for name in ["pack", "ab"] {
            let link = common.join("objects").join(name);
            symlink(place.join("objs"), &link).expect("linked");
            assert_eq!(seen(), Some(place.join("objs")), "{name}");
            fs::remove_file(link).expect("removed");
        }
        assert_eq!(seen(), None);
        // A repository in the place has its own objects there.
        assert_eq!(below(&common, || vec![root.clone()]), None);
    }
}
