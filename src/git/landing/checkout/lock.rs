//! Locks the index of a directory that has the base checked out. Our lock is a hard link to a file whose inode is
//! recorded. That file is empty until git may write; a kill cannot take that away, and a power cut is known by the boot.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

use super::kept::{KEPT, MADE};
use super::{Checkout, Marker};
use crate::landing::workspace::Workspace;
use crate::repository::fault::Fault;
use crate::repository::index;
use crate::trash::scratch;
use crate::worktrees::admin;
use swarm_sys::files::{self, remove_tree};

pub(super) const INDEX: &str = "swarm-landing.index";
pub(super) const LOCK: &str = "swarm-landing.lock";
pub(super) const RESTORE: &str = "swarm-landing.restore";
/// Second name of the index that the new one replaces, until the base has moved.
pub(super) const OLD: &str = "swarm-landing.old";
/// Second name of the new index. It tells whether somebody else has replaced that since.
pub(super) const NEW: &str = "swarm-landing.new";
/// Temporary file with what git would write.
pub(super) const EXPECTED: &str = "swarm-landing.expected";
/// Temporary list of paths for git.
pub(super) const PATHS: &str = "swarm-landing.paths";
/// How long to wait for another git that has locked the index.
pub(super) const LOCK_WAIT: Duration = Duration::from_secs(10);

/// Hard-links `ours` to `lock`, waiting until the lock is free. Returns `false` on timeout.
pub(super) fn take(ours: &Path, lock: &Path, limit: Duration) -> io::Result<bool> {
    retry_until(lock.parent().unwrap_or(lock), limit, || match fs::hard_link(ours, lock) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        Err(_) => Ok(false),
    })
}

/// Repeats `attempt` whenever a file disappears from `dir`. Returns `false` if it did not succeed
/// within `limit`.
pub(crate) fn retry_until(
    dir: &Path,
    limit: Duration,
    mut attempt: impl FnMut() -> io::Result<bool>,
) -> io::Result<bool> {
    let deadline = Instant::now() + limit;
    let mut watch = None;
    loop {
        if attempt()? {
            return Ok(true);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        match &watch {
            // Try once more after the watch exists, so that no change is missed.
            None => {
                let changes = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
                changes.add_watch(dir, AddWatchFlags::IN_DELETE | AddWatchFlags::IN_MOVED_FROM)?;
                watch = Some(changes);
            }
            Some(changes) => {
                let left = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
                let _ = poll(&mut [PollFd::new(changes.as_fd(), PollFlags::POLLIN)], left);
                let _ = changes.read_events();
            }
        }
    }
}

impl Checkout {
    /// Returns the place of a temporary index after removing what a killed git left there, also its lock, which would stop
    /// every later git.
    pub(super) fn scratch_index(&self, name: &str) -> io::Result<PathBuf> {
        let path = self.temporary(name);
        admin::ignore_missing(fs::remove_file(path.with_added_extension("lock")))?;
        admin::ignore_missing(fs::remove_file(&path))?;
        Ok(path)
    }

    /// Returns the place of a temporary index. It is not in the record of a worktree, where an agent could replace it by a
    /// link, which git would follow.
    pub(super) fn temporary(&self, name: &str) -> PathBuf {
        let place = scratch::place(&self.git_dir);
        match self.git_dir.file_name().filter(|_| place != self.git_dir) {
            // A record may be named "lock", and that is the extension of git's own lock.
            Some(entry) => {
                let mut named = OsString::from(format!("{name}-"));
                named.push(entry);
                place.join(named)
            }
            None => place.join(name),
        }
    }

    /// Puts the new index in place, and keeps the old one, because the base may fail to move.
    pub(super) fn replace_index(&self) -> io::Result<()> {
        let (made, index) = (self.temporary(INDEX), self.git_dir.join(index::FILE));
        let [old, new] = [OLD, NEW].map(|name| self.git_dir.join(name));
        admin::ignore_missing(fs::remove_file(&old))?;
        admin::ignore_missing(fs::remove_file(&new))?;
        // A power cut may then take both names or the rename, and not the content of the old index.
        // The system may refuse another name for a file of another user.
        let copy = |_| fs::copy(&index, &old).and_then(|_| fs::File::open(&old)?.sync_all());
        fs::hard_link(&index, &old).or_else(copy)?;
        fs::hard_link(&made, &new)?;
        fs::rename(made, index)
    }

    /// Reports whether the index is the one that the landing has put in place, and the old one is kept.
    pub(super) fn has_both_indexes(&self) -> bool {
        let id = |name: &str| fs::symlink_metadata(self.git_dir.join(name)).map(|seen| (seen.dev(), seen.ino()));
        let is_ours = id(NEW).is_ok_and(|new| id(index::FILE).is_ok_and(|index| index == new));
        is_ours && id(OLD).is_ok()
    }

    /// Notes that git may write from now on.
    pub(super) fn note_begin(&self) -> Result<(), Fault> {
        let lock = self.git_dir.join(LOCK);
        let open = files::open_regular(fs::File::options().write(true).create(true).truncate(true), &lock);
        open.and_then(|mut file| file.write_all(b"\n")).map_err(Fault::at(&lock))
    }

    /// Reports whether git is known not to have written here.
    fn is_untouched(&self, marker: &Marker) -> bool {
        let ours = |name| fs::symlink_metadata(self.git_dir.join(name)).ok().filter(|seen| seen.ino() == self.lock);
        let lock = ours(LOCK).or_else(|| ours("index.lock"));
        marker.is_of_this_boot() && lock.is_some_and(|lock| lock.len() == 0)
    }

    /// Undoes what an interrupted landing did here.
    pub(super) fn undo(&self, workspace: &Workspace, marker: &Marker) -> Result<(), Fault> {
        let is_untouched = self.is_untouched(marker);
        let checkout = self.locked()?;
        match if is_untouched { Ok(()) } else { checkout.restore(workspace, marker).map(drop) } {
            Ok(()) => checkout.release(),
            Err(fault) => {
                // The roll back may fail for a long time, and the user needs the index meanwhile.
                checkout.unlock()?;
                Err(fault)
            }
        }
    }

    /// Returns this checkout with its index locked: by the interrupted landing, or now.
    fn locked(&self) -> Result<Self, Fault> {
        let lock = self.git_dir.join("index.lock");
        let failed = Fault::at(&lock);
        if fs::symlink_metadata(&lock).is_ok_and(|seen| seen.ino() == self.lock) {
            return Ok(self.clone());
        }
        let ours = self.git_dir.join(LOCK);
        if !ours.exists() {
            fs::File::create_new(&ours).map_err(&failed)?;
        }
        let number = fs::symlink_metadata(&ours).map_err(&failed)?.ino();
        // An earlier recovery took the lock and was killed.
        if fs::symlink_metadata(&lock).is_ok_and(|seen| seen.ino() == number) {
            return Ok(Self { lock: number, ..self.clone() });
        }
        if !take(&ours, &lock, LOCK_WAIT).map_err(&failed)? {
            let cause =
                format!("{} is still locked by another git process after an interrupted landing", lock.display());
            return Err(Fault::new(cause)
                .remedy("if no git process is running there, remove that file; the work then lands by itself"));
        }
        Ok(Self { lock: number, ..self.clone() })
    }

    /// Removes the lock if it is ours.
    pub(super) fn unlock(&self) -> Result<(), Fault> {
        let lock = self.git_dir.join("index.lock");
        if fs::symlink_metadata(&lock).is_ok_and(|seen| seen.ino() == self.lock) {
            fs::remove_file(&lock).map_err(Fault::at(&lock))?;
        }
        Ok(())
    }

    /// Removes the lock if it is ours, and our temporary files.
    pub(super) fn release(&self) -> Result<(), Fault> {
        self.unlock()?;
        let temporary = [INDEX, RESTORE].map(|name| self.temporary(name));
        let locks = temporary.iter().map(|path| path.with_added_extension("lock"));
        // Older versions had all of them here.
        let own = [LOCK, INDEX, RESTORE, OLD, NEW, EXPECTED, PATHS].map(|name| self.git_dir.join(name));
        for path in locks.chain(temporary.clone()).chain(own) {
            admin::ignore_missing(fs::remove_file(&path)).map_err(Fault::at(&path))?;
        }
        [KEPT, MADE].iter().try_for_each(|name| {
            let path = self.git_dir.join(name);
            admin::ignore_missing(remove_tree(&path)).map(drop).map_err(Fault::at(&path))
        })
    }
}
