//! Checks that a directory is the worktree that its repository has on record, before git runs in it.
//! An agent can write to its worktree's `.git`, so that nothing in it is trusted: the record in the
//! common directory names the worktree, and the `.git` file must lead back to that record. git is
//! then pointed at both explicitly and discovers nothing.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use super::{admin, plan, record};
use crate::repository::cli::Cli;
use crate::repository::fault::Fault;
use crate::trash::save::Place;

/// A worktree whose record and `.git` file agree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Verified {
    pub(crate) common: PathBuf,
    /// The record, `<common>/worktrees/<id>`; the common directory itself for the base checkout.
    pub(crate) entry: PathBuf,
}

/// Returns the record of the worktree at `tree`, or `None` if there is no directory with files.
///
/// # Errors
/// Fails unless the record and the `.git` file agree.
pub(crate) fn verified(tree: &Path, base_repo: &Path) -> Result<Option<Verified>, Fault> {
    match fs::symlink_metadata(tree) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Fault::at(tree)(error)),
        Ok(_) if plan::is_empty_dir(tree) => return Ok(None),
        Ok(_) => {}
    }
    let known = recorded(tree, base_repo)?;
    check(&known, tree, base_repo)?;
    Ok(Some(known))
}

/// Returns the worktree at `tree`, or `None` if there is no directory with files.
///
/// # Errors
/// Fails as [`verified`] does, and if git's administrative files are incomplete.
pub(crate) fn open(cli: &Cli, tree: &Path, base_repo: &Path) -> Result<Option<Place>, Fault> {
    let Some(known) = verified(tree, base_repo)? else { return Ok(None) };
    let place = Place::of(cli, &known.common, &known.entry, tree, "")?;
    if !place.is_whole {
        return Err(Fault::new(format!("git's administrative files for {} are incomplete", tree.display())));
    }
    Ok(Some(place))
}

/// Makes sure that an agent which starts in an existing worktree works in that worktree and not in a
/// repository above it. Writes a missing `.git` file again and changes nothing else.
///
/// # Errors
/// Fails if `.git` is anything but the file that the record names.
pub(crate) fn ensure(tree: &Path, base_repo: &Path) -> Result<(), Fault> {
    let known = recorded(tree, base_repo)?;
    let dot_git = tree.join(".git");
    if fs::symlink_metadata(&dot_git).is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
        let all = admin::entries_of(&known.common, tree).map_err(Fault::at(tree))?;
        if all.len() > 1 {
            let all: Vec<String> = all.iter().map(|entry| entry.display().to_string()).collect();
            let cause =
                format!("{} has lost its .git file, and several records name it: {}", tree.display(), all.join(", "));
            let remedy = format!("write 'gitdir: RECORD' with its own record to {}", dot_git.display());
            return Err(Fault::new(cause).remedy(remedy));
        }
        let mut file = fs::File::create_new(&dot_git).map_err(Fault::at(&dot_git))?;
        file.write_all(&link_text(&known.entry)).map_err(Fault::at(&dot_git))?;
        tracing::warn!(tree = %tree.display(), "the worktree had lost its .git file, which was written again");
    }
    check(&known, tree, base_repo)
}

/// Returns the content of the `.git` file of a worktree.
pub(crate) fn link_text(entry: &Path) -> Vec<u8> {
    [b"gitdir: ", entry.as_os_str().as_bytes(), b"\n"].concat()
}

fn foreign(tree: &Path, base_repo: &Path) -> Fault {
    Fault::new(format!("{} is not a worktree of {}", tree.display(), base_repo.display()))
}

/// Returns the record that names `tree`. Does not look at the worktree's own `.git`.
fn recorded(tree: &Path, base_repo: &Path) -> Result<Verified, Fault> {
    let common = admin::common_dir(base_repo).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Fault::new(format!("the repository {} no longer exists", base_repo.display())),
        _ => Fault::at(base_repo)(error),
    })?;
    let metadata = fs::symlink_metadata(tree).map_err(Fault::at(tree))?;
    if !metadata.is_dir() {
        // A link would lead git to a directory of somebody else.
        return Err(Fault::new(format!("{} is not a directory", tree.display()))
            .remedy("move the worktree back to this path".to_owned()));
    }
    let entry = admin::entry_of(&common, tree).map_err(Fault::at(tree))?;
    let entry = entry.ok_or_else(|| foreign(tree, base_repo))?;
    record::check(&common, &entry)?;
    Ok(Verified { common, entry })
}

fn check(known: &Verified, tree: &Path, base_repo: &Path) -> Result<(), Fault> {
    let shown = tree.display();
    let repair = format!("run 'git -C {} worktree repair'", base_repo.display());
    match admin::link_of(tree).map_err(Fault::at(tree))? {
        Some(link) if admin::resolved(&link) == admin::resolved(&known.entry) => Ok(()),
        Some(_) => Err(Fault::new(format!("the .git file of {shown} leads to another repository"))
            .remedy(format!("remove {shown}/.git, then {repair}"))),
        None => match fs::symlink_metadata(tree.join(".git")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(Fault::new(format!("{shown} has lost its .git file")).remedy(repair))
            }
            Err(error) => Err(Fault::at(tree)(error)),
            Ok(_) => Err(Fault::new(format!("{shown}/.git is not the .git file of a worktree"))
                .remedy(format!("move {shown}/.git away, then {repair}"))),
        },
    }
}

/// Parses a `.git` file.
pub(crate) fn target_of(text: &[u8]) -> Option<&Path> {
    let target = text.strip_prefix(b"gitdir: ")?.trim_ascii_end();
    // A power cut may leave zeros at the end of a file.
    (!target.is_empty() && !target.contains(&0)).then(|| Path::new(OsStr::from_bytes(target)))
}

#[cfg(test)]
#[path = "identity_tests.rs"]
mod tests;
