//! Keeps `git gc` away while there are objects that no ref holds yet. A gc that has
//! already marked the reachable objects would prune them, with `--prune=now` at once.
//! git's own lock for this is `gc.pid` in the common directory; the file names process
//! and host of its holder. git treats the lock of a dead process as stale, so killing
//! this process blocks nobody.
//!
//! This process holds the lock once per repository and counts its users.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::fault::Fault;
use super::holders;
use crate::worktrees::admin::ignore_missing;
use crate::worktrees::record;
use swarm_sys::files::lock;
use swarm_sys::procfs;

/// How long a queue item waits for a running `git gc`.
pub(crate) const LANDING_WAIT: Duration = Duration::from_secs(300);
/// How long a save that a person asked for waits for a running `git gc`.
pub(crate) const SAVE_WAIT: Duration = Duration::from_secs(60);

const FILE: &str = "gc.pid";
/// Lock file that git creates first and renames to `gc.pid`.
const LOCK: &str = "gc.pid.lock";
/// Age after which git, too, considers a holder gone, on whichever host.
const AGE_MAX: Duration = Duration::from_secs(12 * 3600);
/// Age after which `gc.pid.lock` may be abandoned; git holds it only for an instant.
const LOCK_AGE_MAX: Duration = Duration::from_secs(2);
/// Interval between checks if the kernel cannot report a change.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Tolerance between file times and process start times, in milliseconds.
const CLOCK_MS: i64 = 2_000;

/// Number of current users of each repository's lock in this process.
static HOLDS: Mutex<BTreeMap<PathBuf, usize>> = Mutex::new(BTreeMap::new());

/// Proof that no `git gc` prunes in the repository. Dropping it releases the lock.
#[derive(Debug)]
pub(crate) struct Hold {
    common: PathBuf,
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut holds = HOLDS.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(count) = holds.get_mut(&self.common) else { return };
        *count -= 1;
        if *count > 0 {
            return;
        }
        holds.remove(&self.common);
        let path = self.common.join(FILE);
        // Another process may have taken the lock by force.
        if record::read_text(&path).is_ok_and(|text| text == own_text()) {
            let _ = fs::remove_file(path);
        }
    }
}

/// Waits for a running `git gc` in the repository whose common directory is
/// `common`, and prevents new ones until the result is dropped. Fails if the lock
/// is not free after `limit`.
pub(crate) fn hold(common: &Path, limit: Duration) -> Result<Hold, Fault> {
    let failed = Fault::at(common);
    let common = common.canonicalize().map_err(&failed)?;
    let deadline = Instant::now() + limit;
    let mut watch = None;
    loop {
        let owner = {
            let mut holds = HOLDS.lock().unwrap_or_else(PoisonError::into_inner);
            let count = holds.get(&common).copied().unwrap_or_default();
            let owner = if count == 0 { take(&common).map_err(&failed)? } else { None };
            if owner.is_none() {
                holds.insert(common.clone(), count + 1);
            }
            owner
        };
        let Some(owner) = owner else { return Ok(Hold { common }) };
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(owner.fault(&common, limit));
        }
        match &watch {
            // Try once more after the watch exists, so that no change is missed.
            None => watch = Some(changes(&common)),
            Some(watch) => wait(watch.as_ref(), &owner, left),
        }
    }
}

/// Removes the lock of an earlier supervisor that was killed.
pub(crate) fn clear_stale(common: &Path) {
    let holds = HOLDS.lock().unwrap_or_else(PoisonError::into_inner);
    let is_free = common.canonicalize().is_ok_and(|common| !holds.contains_key(&common));
    if is_free && common.join(FILE).exists() && matches!(take(common), Ok(None)) {
        let _ = fs::remove_file(common.join(FILE));
    }
}

/// Current holder of the lock.
enum Owner {
    /// A live process on this host.
    Here(Pid),
    /// A process on another host, as the file says.
    Elsewhere(String),
    /// A process that holds `gc.pid.lock`.
    Lock,
}

impl Owner {
    fn fault(&self, common: &Path, waited: Duration) -> Fault {
        let (file, lock, seconds) = (common.join(FILE), common.join(LOCK), waited.as_secs());
        match self {
            Self::Here(pid) => {
                let pid = pid.as_raw_nonzero();
                Fault::new(format!("git gc (process {pid}) is still running in {} after {seconds} s", common.display()))
                    .remedy("try again after it has finished")
            }
            Self::Elsewhere(who) => {
                let cause = format!("git gc is running in {} on another host ({who})", common.display());
                Fault::new(cause)
                    .remedy(format!("if no git gc is running there, remove {} and try again", file.display()))
            }
            Self::Lock => Fault::new(format!("{} has existed for {seconds} s", lock.display()))
                .remedy("if no git process is running there, remove that file and try again"),
        }
    }
}

/// Takes the lock as git does, or returns its current holder.
fn take(common: &Path) -> io::Result<Option<Owner>> {
    // Serializes swarm processes: none removes a lock file that another has just created.
    let dir = File::open(common)?;
    lock::lock(&dir)?;
    let lock = common.join(LOCK);
    let make = || OpenOptions::new().write(true).create_new(true).mode(0o644).open(&lock);
    let mut file = match make() {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            if !is_abandoned(&lock) {
                return Ok(Some(Owner::Lock));
            }
            ignore_missing(fs::remove_file(&lock))?;
            make()?
        }
        made => made?,
    };
    // From here on no git gc starts; one that is already running is found below.
    let taken = match living_holder(common) {
        Ok(None) => {
            // The file must be readable for every user of the repository, whatever our umask is.
            let written = file.set_permissions(Permissions::from_mode(0o644));
            let written = written.and_then(|()| file.write_all(own_text().as_bytes()));
            written.and_then(|()| fs::rename(&lock, common.join(FILE))).map(|()| None)
        }
        other => other,
    };
    if !matches!(taken, Ok(None)) {
        let _ = fs::remove_file(&lock);
    }
    taken
}

fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

fn own_text() -> String {
    format!("{} {}", std::process::id(), host())
}

/// Returns the holder named in `gc.pid` if it is alive as far as we can tell.
fn living_holder(common: &Path) -> io::Result<Option<Owner>> {
    let path = common.join(FILE);
    let Some(text) = ignore_missing(record::read_text(&path))? else { return Ok(None) };
    // `HOLDS` tracks what this process holds.
    if text == own_text() {
        return Ok(None);
    }
    let Some(made) = ignore_missing(fs::metadata(&path).and_then(|meta| meta.modified()))? else { return Ok(None) };
    let age = made.elapsed().unwrap_or_default();
    let words: Vec<&str> = text.split_ascii_whitespace().collect();
    let [pid, its_host] = words.as_slice() else { return Ok(None) };
    let Some(pid) = pid.parse().ok().and_then(Pid::from_raw) else { return Ok(None) };
    if age > AGE_MAX {
        return Ok(None);
    }
    if *its_host != host() {
        return Ok(Some(Owner::Elsewhere(text.trim().to_owned())));
    }
    Ok(may_be_its_writer(pid.as_raw_nonzero().get(), age).then_some(Owner::Here(pid)))
}

/// Reports whether `pid` may be the process that wrote the lock. A process that started
/// after the file was written and is not a git has only reused the pid.
fn may_be_its_writer(pid: i32, age: Duration) -> bool {
    let stat = match procfs::read_stat(pid) {
        Ok(stat) => stat.filter(procfs::Stat::is_alive),
        Err(_) => return true,
    };
    let Some(stat) = stat else { return false };
    let now = jiff::Timestamp::now().as_millisecond();
    let made_ms = now - i64::try_from(age.as_millis()).unwrap_or(i64::MAX);
    if procfs::process_start_ms(stat.start_ticks) <= made_ms + CLOCK_MS {
        return true;
    }
    // If the clock was set in between, the times prove nothing; compare the program.
    let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let first = command.split(|byte| *byte == 0).next().unwrap_or_default();
    first.rsplit(|byte| *byte == b'/').next().is_some_and(|name| name == b"git" || name == b"swarm")
}

/// Reports whether no live process holds `gc.pid.lock`.
fn is_abandoned(lock: &Path) -> bool {
    let text = record::read_text(lock).unwrap_or_default();
    if let Some((pid, its_host)) = text.split_once(' ')
        && let (Ok(pid), true) = (pid.parse(), its_host.trim() == host())
        && procfs::read_stat(pid).is_ok_and(|stat| stat.is_none_or(|stat| !stat.is_alive()))
    {
        return true;
    }
    let made = fs::symlink_metadata(lock).and_then(|meta| meta.modified());
    let is_old = made.is_ok_and(|made| made.elapsed().is_ok_and(|age| age > LOCK_AGE_MAX));
    is_old && !holders::is_held_open(lock)
}

/// Watches for files that disappear from the directory; `None` if the system has no watch left.
fn changes(common: &Path) -> Option<Inotify> {
    let changes = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK).ok()?;
    changes.add_watch(common, AddWatchFlags::IN_DELETE | AddWatchFlags::IN_MOVED_FROM).ok()?;
    Some(changes)
}

/// Waits until a file disappears, the holder exits or the time is over.
fn wait(watch: Option<&Inotify>, owner: &Owner, left: Duration) {
    let holder = match owner {
        Owner::Here(pid) => pidfd_open(*pid, PidfdFlags::empty()).ok(),
        Owner::Elsewhere(_) | Owner::Lock => None,
    };
    let is_notified = watch.is_some() && holder.is_some();
    let left = if is_notified { left } else { left.min(POLL_INTERVAL) };
    let watched = watch.map(|watch| PollFd::from_borrowed_fd(watch.as_fd(), PollFlags::IN));
    let held = holder.as_ref().map(|holder| PollFd::new(holder, PollFlags::IN));
    let mut fds: Vec<PollFd<'_>> = watched.into_iter().chain(held).collect();
    let timeout = Timespec::try_from(left).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 });
    let _ = poll(&mut fds, Some(&timeout));
    if let Some(watch) = watch {
        let _ = watch.read_events();
    }
}

#[cfg(test)]
#[path = "gc_lock_tests.rs"]
mod tests;
