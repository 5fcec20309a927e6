//! Packages that a repository brings for `opencode`, in `.opencode/node_modules`. opencode installs packages there itself,
//! but not over those that it finds, and plugins import them. Only what git tracks comes with the repository.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use super::index::{self, Tracked};
use super::{Entry, OPENCODE, digest, place};

/// Maximum size of a file, and maximum number of files.
const BYTES_MAX: u64 = 16 << 20;
const FILES_MAX: usize = 10_000;

/// Returns one entry for all files that git tracks in `folder` of `root`, or `None` if there are none.
///
/// # Errors
/// Fails if a file cannot be read, is too large, or is a link to a directory or a submodule, whose content git does not
/// track here; also if only git can read the index.
pub(super) fn tracked(root: &Path, folder: &str) -> Result<Option<Entry>, String> {
    // A part of the path may be a link.
    let Ok(dir) = root.join(folder).canonicalize() else { return Ok(None) };
    let Some(top) = crate::root_above(&dir) else { return Ok(None) };
    let Some(git) = place::git_dir_of(top).filter(|git| git.is_dir()) else { return Ok(None) };
    let Ok(prefix) = dir.strip_prefix(top) else { return Ok(None) };
    let is_wanted = |path: &[u8], _: bool| Path::new(OsStr::from_bytes(path)).starts_with(prefix);
    let Some(found) = index::tracked(&git.join("index"), &is_wanted) else {
        return Err(format!("{}: cannot tell what git tracks there", dir.display()));
    };
    if found.len() > FILES_MAX {
        return Err(format!("{}: git tracks more than {FILES_MAX} files there", dir.display()));
    }
    let mut lines = Vec::new();
    for Tracked { path, is_submodule } in found {
        let path = top.join(OsStr::from_bytes(&path));
        let failed = |why: &str| format!("{}: {why}", path.display());
        let Ok(meta) = fs::metadata(&path) else { continue };
        if is_submodule || !meta.is_file() || meta.len() > BYTES_MAX {
            return Err(failed("not a file of at most 16 MiB, so that what opencode would execute is not known"));
        }
        let content = fs::read(&path).map_err(|error| failed(&error.to_string()))?;
        let name = path.strip_prefix(&dir).unwrap_or(&path);
        lines.push(format!("{} {}\n", digest(&content).as_str().unwrap_or_default(), name.display()));
    }
    lines.sort();
    Ok((!lines.is_empty())
        .then(|| Entry { key: folder.to_owned(), ..Entry::of_text(OPENCODE, folder, "", &lines.concat()) }))
}
