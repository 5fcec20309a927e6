//! Scratch files of git directories. They are in the repository's common directory and never in the record of a
//! worktree: a sandboxed agent can write to that record, and could prepare a link under the name of a scratch file, or
//! replace what git reads from one.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use swarm_sys::files;

use crate::repository::fault::Fault;
use crate::repository::writer::{self, Writer};

/// Minimum age of leftovers of a process that is gone.
const AGE_MIN: Duration = Duration::from_hours(24);
/// Minimum age of leftovers of a process that may only be out of sight, in another container or on another machine. No file
/// is worked with that long.
const UNSEEN_AGE_MIN: Duration = Duration::from_hours(30 * 24);
/// Maximum number of names that are tried for a file.
const TRIES_MAX: u32 = 100;

/// Scratch file beside a repository's data, deleted on drop. Files that a kill leaves behind are removed when they are a
/// day old.
#[derive(Debug)]
pub(crate) struct Scratch {
    path: PathBuf,
    what: String,
}

impl Scratch {
    /// Returns a scratch file for work with the git directory `git_dir`. It does not exist yet.
    pub(crate) fn new(git_dir: &Path, what: &str) -> Self {
        let place = place(git_dir);
        remove_leftovers_once(place);
        Self { path: unused(place, what), what: what.to_owned() }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns only the path, for a directory that the caller deletes.
    pub(crate) fn into_path(self) -> PathBuf {
        self.path.clone()
    }

    /// Creates the file. If something has got its name meanwhile, that stays, and the file gets another name.
    pub(crate) fn create(&mut self) -> Result<File, Fault> {
        let open = |path: &Path| OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path);
        for _ in 0..TRIES_MAX {
            match open(&self.path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    let place = self.path.parent().unwrap_or(&self.path);
                    self.path = unused(place, &self.what);
                }
                made => return made.map_err(Fault::at(&self.path)),
            }
        }
        Err(Fault::at(&self.path)(io::ErrorKind::AlreadyExists.into()))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
        // Left by a git that was killed while it wrote an index here.
        let _ = fs::remove_file(self.path.with_added_extension("lock"));
    }
}

/// Returns a path in `place` at which nothing is.
fn unused(place: &Path, what: &str) -> PathBuf {
    let next = || place.join(format!("swarm-{what}-{}", writer::own_next()));
    let mut path = next();
    for _ in 0..TRIES_MAX {
        if fs::symlink_metadata(&path).is_err() {
            break;
        }
        path = next();
    }
    path
}

/// Returns the directory of the scratch files for a git directory: the common directory if it is the record of a worktree
/// or below one, and otherwise itself.
pub(crate) fn place(git_dir: &Path) -> &Path {
    let is_common = |dir: &&Path| dir.join("HEAD").exists() && dir.join("objects").exists();
    let records = git_dir.ancestors().skip(1).filter(|above| above.ends_with("worktrees"));
    // The outermost, because a record may contain repositories of submodules, which may have worktrees.
    records.filter_map(Path::parent).filter(is_common).last().unwrap_or(git_dir)
}

/// Removes what killed processes left in a directory, once for each process and directory.
fn remove_leftovers_once(dir: &Path) {
    static SEEN: Mutex<Option<HashSet<PathBuf>>> = Mutex::new(None);
    // Another directory of swarm, and no repository.
    if !fs::symlink_metadata(dir.join("objects")).is_ok_and(|meta| meta.is_dir()) {
        return;
    }
    let mut seen = SEEN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if seen.get_or_insert_default().insert(dir.to_owned()) {
        drop(seen);
        let _ = remove_leftovers(dir);
    }
}

fn remove_leftovers(dir: &Path) -> io::Result<()> {
    for file in files::list_if_present(dir)? {
        let name = file.file_name();
        let Some(writer) = name.to_str().and_then(|name| writer_of(name, None)) else { continue };
        let age = file.metadata()?.modified().ok().and_then(|at| SystemTime::now().duration_since(at).ok());
        let age_min = match writer.is_gone() {
            Some(true) => AGE_MIN,
            Some(false) => continue,
            None => UNSEEN_AGE_MIN,
        };
        if age.is_some_and(|age| age >= age_min) {
            files::remove_tree(&file.path())?;
        }
    }
    Ok(())
}

/// Returns who made a scratch file, `swarm-WHAT-WRITER-COUNT`, or git's lock of one. `None` if it has another name, or is
/// for something else than `meant`.
pub(crate) fn writer_of(name: &str, meant: Option<&str>) -> Option<Writer> {
    let rest = name.strip_suffix(".lock").unwrap_or(name).strip_prefix("swarm-")?;
    let (what, rest) = rest.split_once('-')?;
    let (writer, count) = rest.rsplit_once('-')?;
    let is_plain = !what.is_empty() && what.bytes().all(|byte| byte.is_ascii_lowercase());
    count.parse::<u32>().ok().filter(|_| is_plain && meant.is_none_or(|meant| meant == what))?;
    Writer::parse(writer)
}

#[cfg(test)]
#[path = "scratch_tests.rs"]
mod tests;
