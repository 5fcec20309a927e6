//! Finds processes that still work in a repository: those that hold a file open, and
//! a git that outlived the supervisor that started it.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use swarm_sys::files::list;
use swarm_sys::procfs;

use super::fault::Fault;

/// Maximum lag of file timestamps behind the system clock.
const FILE_CLOCK_MS_MAX: u64 = 50;

/// Maximum wait for other git processes in a repository before locks in one of its worktrees are left alone.
const MAINTENANCE_MAX: Duration = Duration::from_secs(5);

/// Maximum wait for a git in a repository that may own its locks, as long as git itself waits for `packed-refs`.
const GIT_MAX: Duration = Duration::from_secs(1);

/// Removes lock files that a killed git left behind. A lock file is removed if it is
/// not older than `since` and no live process holds it open. Returns the lock files
/// that still exist.
pub(crate) fn clear_stale_locks(locks: &[PathBuf], since: Option<SystemTime>) -> Vec<PathBuf> {
    let since = since.map(|time| time - Duration::from_millis(FILE_CLOCK_MS_MAX));
    let is_stale = |lock: &Path| {
        let made = fs::symlink_metadata(lock).and_then(|metadata| metadata.modified());
        let young = since.is_none_or(|since| made.is_ok_and(|made| made >= since));
        young && !is_held_open(lock)
    };
    for lock in locks {
        if lock.exists() && is_stale(lock) {
            let _ = fs::remove_file(lock);
        }
    }
    locks.iter().filter(|lock| lock.exists()).cloned().collect()
}

/// Removes the locks of a killed git of this user that are not older than `since`. Returns those that still exist. git
/// closes most locks right after it took them, so that nothing shows whose they are: if one of them belongs to another
/// user, or a git still works in one of the directories `dirs` after a second, nothing is removed, and `None` is returned.
pub(crate) fn clear_locks_of_killed(
    dirs: &[PathBuf],
    locks: &[PathBuf],
    since: Option<SystemTime>,
) -> Option<Vec<PathBuf>> {
    let identity = |lock: &Path| {
        let meta = fs::symlink_metadata(lock).ok()?;
        Some((meta.uid(), (meta.dev(), meta.ino(), meta.ctime(), meta.ctime_nsec())))
    };
    let found: Vec<_> = locks.iter().filter_map(|lock| Some((lock, identity(lock)?))).collect();
    let is_own = |uid: u32| uid == rustix::process::geteuid().as_raw();
    if found.is_empty() {
        return Some(Vec::new());
    }
    if !found.iter().all(|(_, (uid, _))| is_own(*uid)) || !no_git_works_in(dirs, GIT_MAX) {
        return None;
    }
    // A lock that was made during the search may belong to a git that began after it.
    let same = found.into_iter().filter(|(lock, known)| identity(lock).as_ref() == Some(known));
    clear_stale_locks(&same.map(|(lock, _)| lock.clone()).collect::<Vec<_>>(), since);
    Some(locks.iter().filter(|lock| lock.exists()).cloned().collect())
}

/// Removes locks in a worktree in which no process works any more: a git that was killed together with its agent left
/// them. `repo` is the repository's main worktree, in which nobody may use git at the moment either.
pub(crate) fn clear_locks_of_dead(tree: &Path, repo: &Path, locks: &[PathBuf]) {
    let left: Vec<PathBuf> = locks.iter().filter(|lock| lock.exists()).cloned().collect();
    if left.is_empty() || is_any_process_in(tree) || is_git_in(tree) {
        return;
    }
    // Usually the maintenance that git starts after a commit, which soon ends.
    if wait_for_git_at(repo, MAINTENANCE_MAX).is_err() {
        return;
    }
    for lock in clear_stale_locks(&left, None) {
        tracing::warn!(lock = %lock.display(), "cannot remove the lock of a git that is gone");
    }
}

/// Reports whether a process may hold a file open. Processes of other users do not count, nor do those that end meanwhile.
pub(crate) fn is_held_open(path: &Path) -> bool {
    let holds = |pid: Pid| match list(Path::new(&format!("/proc/{}/fd", pid.as_raw_nonzero()))) {
        Ok(fds) => fds.iter().any(|fd| fs::read_link(fd.path()).is_ok_and(|target| target == path)),
        // A process whose descriptors cannot be listed may hold the file open.
        Err(error) => !matches!(Errno::from_io_error(&error), Some(Errno::NOENT | Errno::SRCH | Errno::ACCESS)),
    };
    is_any(holds)
}

/// Reports whether something holds for any process, or the processes cannot be listed.
fn is_any(holds: impl Fn(Pid) -> bool) -> bool {
    processes().map_or(true, |all| all.into_iter().any(holds))
}

fn processes() -> io::Result<Vec<Pid>> {
    let listed = list(Path::new("/proc"))?.into_iter();
    Ok(listed.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter_map(Pid::from_raw).collect())
}

/// Waits until no git process is creating the worktree at `path` any more; fails if one
/// still is after `limit`. A supervisor that was killed leaves its git running, and a
/// rollback in parallel with it would leave files behind.
pub(crate) fn wait_for_git_at(path: &Path, limit: Duration) -> Result<(), Fault> {
    let deadline = Instant::now() + limit;
    for pid in processes().map_err(Fault::at(Path::new("/proc")))? {
        if !ends_or_leaves(pid, deadline, || is_git_at(pid, path)) {
            let pid = pid.as_raw_nonzero();
            return Err(Fault::new(format!("git (process {pid}) is still running in {}", path.display())));
        }
    }
    Ok(())
}

/// Waits until no git runs any more that was started with this variable, given as `NAME=VALUE`; fails if one still does
/// after `limit`.
pub(crate) fn wait_for_marked_git(variable: &[u8], limit: Duration) -> Result<(), Fault> {
    let deadline = Instant::now() + limit;
    let is_marked = |pid: Pid| {
        let pid = pid.as_raw_nonzero().get();
        // The shell executes git. What is not known to be another process may be one.
        let is_git = procfs::command(pid).is_some_and(|name| name.starts_with("git") || name == "sh");
        is_git && procfs::has_variable(pid, variable).unwrap_or(true)
    };
    for pid in processes().map_err(Fault::at(Path::new("/proc")))? {
        if !ends_or_leaves(pid, deadline, || is_marked(pid)) {
            let pid = pid.as_raw_nonzero();
            return Err(Fault::new(format!("a git of an earlier landing (process {pid}) is still running")));
        }
    }
    Ok(())
}

/// Waits until a process has ended or `is_there` is false. Returns false if `deadline` comes first.
pub(crate) fn ends_or_leaves(pid: Pid, deadline: Instant, is_there: impl Fn() -> bool) -> bool {
    if !is_there() {
        return true;
    }
    // Open the pidfd first, then check again: this proves it is the same process.
    let pidfd = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(pidfd) => pidfd,
        Err(error) => return error == Errno::SRCH,
    };
    while is_there() {
        let left = deadline.saturating_duration_since(Instant::now());
        let Ok(timeout) = Timespec::try_from(left) else { return false };
        match poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&timeout)) {
            Ok(0) => return false,
            Ok(_) => break,
            Err(_) => {}
        }
    }
    true
}

/// Reports whether the current directory of any process may be inside `dir`.
pub(crate) fn is_any_process_in(dir: &Path) -> bool {
    let Ok(dir) = dir.canonicalize() else { return false };
    let stands =
        |pid: Pid| fs::read_link(format!("/proc/{}/cwd", pid.as_raw_nonzero())).is_ok_and(|cwd| cwd.starts_with(&dir));
    is_any(stands)
}

/// Reports whether a git process may be working in the worktree `tree`.
pub(crate) fn is_git_in(tree: &Path) -> bool {
    is_any(|pid| is_git_at(pid, tree))
}

/// Waits until no git of this user works in one of these directories or below, for example the maintenance that git
/// starts after a commit. A git whose directory cannot be read counts. Returns false if one still works after `limit`.
pub(crate) fn no_git_works_in(dirs: &[PathBuf], limit: Duration) -> bool {
    let deadline = Instant::now() + limit;
    let dirs: Vec<PathBuf> =
        dirs.iter().flat_map(|dir| [Some(dir.clone()), dir.canonicalize().ok()]).flatten().collect();
    let is_one = |pid: Pid| {
        let root = PathBuf::from(format!("/proc/{}", pid.as_raw_nonzero()));
        let is_own = fs::metadata(&root).is_ok_and(|meta| meta.uid() == rustix::process::geteuid().as_raw());
        let is_git = || fs::read_to_string(root.join("comm")).is_ok_and(|comm| comm.starts_with("git"));
        is_own
            && is_git()
            && match fs::read_link(root.join("cwd")) {
                Ok(cwd) => dirs.iter().any(|dir| cwd.starts_with(dir) || is_git_at(pid, dir)),
                // The kernel denies access to a process that has just ended.
                Err(_) => root.exists(),
            }
    };
    processes().is_ok_and(|all| all.into_iter().all(|pid| ends_or_leaves(pid, deadline, || is_one(pid))))
}

fn is_git_at(pid: Pid, path: &Path) -> bool {
    let root = PathBuf::from(format!("/proc/{}", pid.as_raw_nonzero()));
    let is_git = fs::read_to_string(root.join("comm")).is_ok_and(|comm| comm.trim() == "git");
    let command = fs::read(root.join("cmdline")).unwrap_or_default();
    let names_it = command.split(|byte| *byte == 0).any(|arg| arg == path.as_os_str().as_encoded_bytes());
    // The helper that checks files out does not name the path but runs in it.
    is_git && (names_it || fs::read_link(root.join("cwd")).is_ok_and(|cwd| cwd.starts_with(path)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_git_with_the_mark_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let mark = format!("SWARM_LANDING={}", dir.path().display());
        let wait = || wait_for_marked_git(mark.as_bytes(), Duration::ZERO);
        let git = |is_marked: bool| {
            let mut git = std::process::Command::new("git");
            git.args(["hash-object", "--stdin"]).current_dir(dir.path()).stdin(std::process::Stdio::piped());
            if is_marked {
                git.env("SWARM_LANDING", dir.path());
            }
            git.stdout(std::process::Stdio::null()).spawn().unwrap()
        };
        let (mut users, mut ours) = (git(false), git(true));
        let cause = wait().unwrap_err().cause;
        assert_eq!(cause, format!("a git of an earlier landing (process {}) is still running", ours.id()));
        drop(ours.stdin.take());
        ours.wait().unwrap();
        assert_eq!(wait(), Ok(()));
        drop(users.stdin.take());
        users.wait().unwrap();
    }

    #[test]
    fn a_lock_is_removed_only_if_it_is_young_and_not_open() {
        let dir = tempfile::tempdir().unwrap();
        let lock = dir.path().canonicalize().unwrap().join("x.lock");
        let held = fs::File::create(&lock).unwrap();
        assert_eq!(clear_stale_locks(std::slice::from_ref(&lock), None), vec![lock.clone()]);
        drop(held);
        let later = SystemTime::now() + Duration::from_secs(60);
        assert_eq!(clear_stale_locks(std::slice::from_ref(&lock), Some(later)), vec![lock.clone()]);
        assert!(clear_stale_locks(std::slice::from_ref(&lock), None).is_empty());
        assert!(!lock.exists());
    }
}
