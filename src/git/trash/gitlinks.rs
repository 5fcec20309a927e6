//! What git's status does not show at the places of submodules: repositories that are not the worktree's own, and files
//! in the directory of a submodule that is not checked out. git takes such a directory for the submodule itself and does
//! not look into it.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use super::save::Place;
use super::scratch::Scratch;
use crate::repository::cli::Cli;
use crate::repository::fault::Fault;
use crate::repository::parse::{self, Change, Entry};
use crate::worktrees::{admin, plan};

/// Mode of a submodule in an index.
const MODE: u32 = 0o160_000;

/// Files at the path of a submodule that do not belong to it.
pub(crate) struct Foreign {
    /// Path of the submodule.
    pub(crate) link: Vec<u8>,
    /// A repository as an untracked directory, or the untracked files that are not ignored.
    pub(crate) changes: Vec<Change>,
}

/// Returns what is at the places of submodules and no checkout of the worktree's own submodules. Only these can be
/// checked without trusting what is in them.
pub(crate) fn foreign(cli: &Cli, place: &Place) -> Result<Vec<Foreign>, Fault> {
    if !place.is_whole {
        return Ok(Vec::new());
    }
    let modules = admin::resolved(&place.git_dir.join("modules"));
    let links = gitlinks(cli, place)?;
    let mut found = Vec::new();
    for link in &links {
        let dir = admin::without_links(&place.tree, Path::new(OsStr::from_bytes(link)));
        let Some(dir) = dir.filter(|dir| has_git(dir)) else { continue };
        // Compared with the worktree's own submodules only; no git follows it.
        let target = admin::link_of(&dir).map_err(Fault::at(&dir))?;
        if !target.is_some_and(|target| admin::resolved(&target).starts_with(&modules)) {
            found.push(Foreign { link: link.clone(), changes: vec![untracked([link, b"/".as_slice()].concat())] });
        }
    }
    found.extend(files(cli, place, &links)?);
    Ok(found)
}

/// Returns the submodules among the entries of an index whose place holds files, although no submodule is checked out
/// there.
pub(crate) fn with_files(cli: &Cli, place: &Place, entries: &[Entry]) -> Result<BTreeSet<Vec<u8>>, Fault> {
    let links = entries.iter().filter(|entry| entry.mode == "160000").map(|entry| entry.path.clone()).collect();
    Ok(files(cli, place, &links)?.into_iter().map(|found| found.link).collect())
}

/// Returns the files in directories of submodules that are not checked out. Ignored files are no work there either.
fn files(cli: &Cli, place: &Place, links: &BTreeSet<Vec<u8>>) -> Result<Vec<Foreign>, Fault> {
    let is_bare = |link: &&Vec<u8>| {
        let dir = admin::without_links(&place.tree, Path::new(OsStr::from_bytes(link)));
        let dir = dir.filter(|dir| fs::symlink_metadata(dir).is_ok_and(|meta| meta.is_dir()));
        dir.is_some_and(|dir| !has_git(&dir) && !plan::is_empty_dir(&dir))
    };
    let bare: Vec<&Vec<u8>> = links.iter().filter(is_bare).collect();
    if bare.is_empty() {
        return Ok(Vec::new());
    }
    // With an index that does not exist, git knows no submodules and looks into their directories.
    let none = Scratch::new(&place.git_dir, "none");
    let call = place.call(cli.read(&place.tree)).env("GIT_INDEX_FILE", none.path()).env("GIT_LITERAL_PATHSPECS", "1");
    let call = call.args(["ls-files", "-z", "--others", "--exclude-standard", "--"]);
    let listed = call.args(bare.iter().map(|link| OsStr::from_bytes(link))).strict().run()?;
    let mut found: BTreeMap<&Vec<u8>, Vec<Change>> = BTreeMap::new();
    for path in listed.split(|byte| *byte == 0) {
        let is_below = |link: &&&Vec<u8>| path.strip_prefix(link.as_slice()).is_some_and(|rest| rest.starts_with(b"/"));
        if let Some(link) = bare.iter().find(is_below) {
            found.entry(link).or_default().push(untracked(path.to_vec()));
        }
    }
    Ok(found.into_iter().map(|(link, changes)| Foreign { link: link.clone(), changes }).collect())
}

fn untracked(path: Vec<u8>) -> Change {
    Change { staged: b'?', unstaged: b'?', path }
}

fn has_git(dir: &Path) -> bool {
    !fs::symlink_metadata(dir.join(".git")).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

/// Returns the paths of the submodules in the index.
fn gitlinks(cli: &Cli, place: &Place) -> Result<BTreeSet<Vec<u8>>, Fault> {
    let Some(index) = place.index() else { return Ok(BTreeSet::new()) };
    // libgit2 does not read every kind of index.
    if let Ok(index) = git2::Index::open(&index) {
        return Ok(index.iter().filter(|entry| entry.mode == MODE).map(|entry| entry.path).collect());
    }
    let listed = parse::index(&place.call(cli.read(&place.tree)).args(["ls-files", "-s", "-z"]).run()?);
    Ok(listed.into_iter().filter(|entry| entry.mode == "160000").map(|entry| entry.path).collect())
}
