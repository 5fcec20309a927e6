//! Common directory of a call that names its git directory. git would read it from `commondir` in the record of a
//! worktree, which a sandboxed agent may change after that file was checked. For references, git reads the file anyway.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// Returns the git directory that a call names in its environment or with `--git-dir`.
pub(super) fn git_dir<'a>(variables: &'a [(OsString, OsString)], args: &'a [OsString]) -> Option<&'a Path> {
    let named = variables.iter().find(|(key, _)| key == "GIT_DIR").map(|(_, dir)| dir.as_os_str());
    let option = || args.iter().find_map(|arg| arg.as_bytes().strip_prefix(b"--git-dir=")).map(OsStr::from_bytes);
    named.or_else(option).map(Path::new)
}

/// Returns an argument, which leads to the git directory `view` instead if it is `--git-dir`.
pub(super) fn in_view(arg: &OsStr, view: Option<&Path>) -> OsString {
    match view.filter(|_| arg.as_bytes().starts_with(b"--git-dir=")) {
        Some(view) => [OsStr::new("--git-dir="), view.as_os_str()].into_iter().collect(),
        None => arg.to_owned(),
    }
}

/// Returns the common directory that contains the record `git_dir` of a worktree. `None` for a git directory that is no
/// such record.
pub(super) fn common(git_dir: &Path) -> Option<&Path> {
    let parent = git_dir.parent().filter(|parent| parent.file_name() == Some(OsStr::new("worktrees")))?;
    // A bare repository may be in a directory of this name, too.
    parent.parent().filter(|common| common.join("HEAD").exists() && common.join("objects").exists())
}
