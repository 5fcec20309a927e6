//! Scratch files of git directories. They are in the repository's common directory and never in the record of a
//! worktree: a sandboxed agent can write to that record, and could prepare a link under the name of a scratch file, or
//! replace what git reads from one.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use swarm_sys::{files, procfs};

use crate::repository::fault::Fault;

/// Minimum age of leftovers of a process that is gone. It may only be out of sight, in another container or on another
/// machine.
const AGE_MIN: Duration = Duration::from_hours(24);

/// Scratch file beside a repository's data, deleted on drop. Files that a kill leaves behind are removed when they are a
/// day old.
pub(crate) struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// Returns a scratch file for work with the git directory `git_dir`. It does not exist yet.
    pub(crate) fn new(git_dir: &Path, what: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let place = place(git_dir);
        remove_leftovers_once(place);
        Self { path: place.join(format!("{}{count}", Self::prefix(what))) }
    }

    /// Returns the name prefix of this process's scratch files.
    pub(crate) fn prefix(what: &str) -> String {
        format!("swarm-{what}-{}-", std::process::id())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns only the path, for a directory that the caller deletes.
    pub(crate) fn into_path(self) -> PathBuf {
        self.path.clone()
    }

    /// Creates the file. Whatever has its name is removed and not written into.
    pub(crate) fn create(&self) -> Result<File, Fault> {
        let open = || OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&self.path);
        let made = match open() {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                fs::remove_file(&self.path).and_then(|()| open())
            }
            made => made,
        };
        made.map_err(Fault::at(&self.path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
        // Left by a git that was killed while it wrote an index here.
        let _ = fs::remove_file(self.path.with_added_extension("lock"));
    }
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
        let Some(pid) = name.to_str().and_then(writer) else { continue };
        let age = file.metadata()?.modified().ok().and_then(|at| SystemTime::now().duration_since(at).ok());
        if age.is_some_and(|age| age >= AGE_MIN) && procfs::stat(pid).is_none() {
            files::remove_tree(&file.path())?;
        }
    }
    Ok(())
}

/// Returns the pid in the name of a scratch file, `swarm-WHAT-PID-COUNT`, or of git's lock of one.
fn writer(name: &str) -> Option<i32> {
    let mut parts = name.strip_suffix(".lock").unwrap_or(name).strip_prefix("swarm-")?.split('-');
    let (what, pid, count) = (parts.next()?, parts.next()?, parts.next()?);
    let is_plain = !what.is_empty() && what.bytes().all(|byte| byte.is_ascii_lowercase()) && parts.next().is_none();
    count.parse::<u32>().ok().filter(|_| is_plain)?;
    pid.parse().ok().filter(|pid| *pid > 0)
}

#[cfg(test)]
#[path = "scratch_tests.rs"]
mod tests;
