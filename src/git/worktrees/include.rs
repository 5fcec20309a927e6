//! Ignored files that go to another machine with the work. They are read here as a worktree here would get them, and put into
//! the working directory of the clone there, from where the worktree is furnished. They never become part of a commit that
//! swarm makes there, whatever is ignored there by then.

use std::collections::HashSet;
use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Component, Path};

use nix::libc;
use swarm_model::Caller;
use swarm_sys::files::{list, remove_tree};

use super::{admin, copies, record, settings};
use crate::clones::Failure;
use crate::repository::cli::Cli;
use crate::repository::exclude::exclude_paths;
use crate::repository::fault::Fault;

/// Maximum size of all files together.
pub const BYTES_MAX: u64 = 16 << 20;
/// Maximum number of files.
pub const FILES_MAX: usize = 1000;
/// File in the common directory that lists all files that were ever put into the clone, each followed by NUL.
const WITHHELD: &str = "swarm-withheld";

/// A file that goes to another machine.
#[derive(Clone, PartialEq, Eq)]
pub struct File {
    /// Path from the root of the checkout.
    pub path: String,
    /// Permissions.
    pub mode: u32,
    pub content: Vec<u8>,
}

/// Returns the files of a checkout that would go to another machine. Symbolic links, and names that are not UTF-8, stay.
///
/// # Errors
/// Returns a message if git cannot tell, or if there are too many.
pub fn names(root: &Path, caller: &Caller) -> Result<Vec<String>, String> {
    let all = found(root, caller).map_err(|fault| fault.cause)?;
    let bytes: u64 = all.iter().map(|(_, bytes)| bytes).sum();
    if all.len() > FILES_MAX || bytes > BYTES_MAX {
        return Err(too_much(all.len(), bytes));
    }
    Ok(all.into_iter().map(|(path, _)| path).collect())
}

fn too_much(count: usize, bytes: u64) -> String {
    let mib = bytes.div_ceil(1 << 20);
    format!(
        "{count} ignored files of {mib} MiB would go to other hosts, more than {FILES_MAX} or {} MiB",
        BYTES_MAX >> 20
    )
}

fn found(root: &Path, caller: &Caller) -> Result<Vec<(String, u64)>, Fault> {
    let cli = Cli::new(caller)?;
    let settings = settings::worktree(root)?;
    let wanted = copies::wanted(&cli, root, &settings)?.into_iter().filter_map(|path| String::from_utf8(path).ok());
    let sized = |path: String| {
        let meta = fs::symlink_metadata(root.join(&path)).ok().filter(fs::Metadata::is_file)?;
        (path != copies::FILE).then_some((path, meta.len()))
    };
    Ok(wanted.filter_map(sized).collect())
}

/// Reads the files of a checkout that go to another machine.
///
/// # Errors
/// Returns a message if git cannot tell, if a file cannot be read, or if there are too many.
pub fn read(root: &Path, caller: &Caller) -> Result<Vec<File>, String> {
    let (mut files, mut bytes) = (Vec::new(), 0);
    for path in names(root, caller)? {
        let at = root.join(&path);
        let opened = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(&at);
        let file = match opened {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            opened => opened.map_err(|error| format!("{}: {error}", at.display()))?,
        };
        let mut content = Vec::new();
        let read = file.metadata().and_then(|meta| {
            (&file).take(BYTES_MAX + 1).read_to_end(&mut content).map(|_| meta.permissions().mode() & 0o777)
        });
        let mode = read.map_err(|error| format!("{}: {error}", at.display()))?;
        bytes += content.len() as u64;
        if bytes > BYTES_MAX {
            return Err(too_much(files.len() + 1, bytes));
        }
        files.push(File { path, mode, content });
    }
    Ok(files)
}

/// Puts files into the working directory of a clone, in place of those that are there. A worktree that is made next gets
/// them. The caller must hold a lock, so that nobody else makes worktrees of the clone.
///
/// # Errors
/// Fails if a path leads elsewhere, or on I/O errors.
pub fn put(clone: &Path, files: &[File]) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::from(Fault::at(clone)(error));
    if let Some(odd) = files.iter().find(|file| !is_plain(&file.path)) {
        return Err(Fault::new(format!("'{}' is not a path of an ignored file", odd.path.escape_debug())).into());
    }
    clear(clone).map_err(failed)?;
    if files.is_empty() {
        return Ok(());
    }
    withhold(clone, files).map_err(failed)?;
    for File { path, mode, content } in files {
        let (at, failed) = (clone.join(path), |error: io::Error| Failure::from(Fault::at(Path::new(path))(error)));
        if let Some(above) = at.parent() {
            DirBuilder::new().recursive(true).mode(0o700).create(above).map_err(failed)?;
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&at).map_err(failed)?;
        file.write_all(content).map_err(failed)?;
        file.set_permissions(Permissions::from_mode(mode & 0o777)).map_err(failed)?;
    }
    fs::write(clone.join(copies::FILE), "*\n").map_err(failed)
}

/// Removes the files from the working directory of a clone. The caller must hold the lock of [`put`].
///
/// # Errors
/// Returns any I/O error.
pub fn clear(clone: &Path) -> io::Result<()> {
    for entry in list(clone)?.into_iter().filter(|entry| entry.file_name() != ".git") {
        remove_tree(&entry.path())?;
    }
    Ok(())
}

/// Keeps files out of what git adds by itself, and out of the commits that swarm makes.
fn withhold(clone: &Path, files: &[File]) -> io::Result<()> {
    let common = admin::common_dir(clone)?;
    let mut known = withheld(&common);
    let fresh = files.iter().filter(|file| !known.contains(file.path.as_bytes())).count();
    known.extend(files.iter().map(|file| file.path.clone().into_bytes()));
    if fresh > 0 {
        let mut known: Vec<Vec<u8>> = known.into_iter().collect();
        known.sort_unstable();
        record::write(&common.join(WITHHELD), &known.join(&0))?;
    }
    exclude_paths(clone, files.iter().map(|file| file.path.as_str()))
}

/// Returns the paths of files that were sent from another machine, and are no work.
pub(crate) fn withheld(common: &Path) -> HashSet<Vec<u8>> {
    let text = record::read(&common.join(WITHHELD)).unwrap_or_default();
    text.split(|byte| *byte == 0).filter(|path| !path.is_empty()).map(<[u8]>::to_vec).collect()
}

/// Reports whether a path consists of plain names, none of which git or swarm gives a meaning.
fn is_plain(path: &str) -> bool {
    let rejoined: Option<Vec<&str>> = Path::new(path)
        .components()
        .map(|part| if let Component::Normal(name) = part { name.to_str() } else { None })
        .collect();
    let is_same = rejoined.is_some_and(|parts| parts.join("/") == path);
    is_same && !path.is_empty() && path != copies::FILE && !path.contains('\0') && !copies::is_excluded(path.as_bytes())
}

#[cfg(test)]
#[path = "include_tests.rs"]
mod tests;
