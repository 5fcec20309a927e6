//! Nudges on disk: `heartbeats/NAME.json`, written under the original's `heartbeat.lock`. Only a supervisor writes;
//! listings read the files without the lock.

pub mod calendar;
pub mod wire;

use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nix::libc;
use swarm_model::nudges::{Now, Nudge};
use swarm_model::{Every, Wire};
use swarm_ports::{BoxFuture, Clock as _, Nudges, Survey};

use self::calendar::Calendar;
use self::wire::{File, Present};
use swarm_sys::clock::SystemClock;
use swarm_sys::files;
use swarm_sys::files::lock;
use swarm_sys::files::{blocking, make_dir, replace_durably};
use swarm_sys::paths::Paths;
use swarm_sys::procfs;

/// Maximum size of a file in bytes; a message has a line or two.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Maximum wait for the lock. The original waits forever.
const LOCK_MAX: Duration = Duration::from_secs(10);
const ENDING: &str = ".json";
/// Maximum number of damaged files of one worker that are kept.
const QUARANTINES_MAX: u32 = 10_000;

pub struct DiskNudges {
    paths: Paths,
    calendar: Arc<Calendar>,
}

impl DiskNudges {
    pub fn new(paths: Paths) -> Self {
        Self { paths, calendar: Arc::default() }
    }
}

/// Returns the present boot and time, which are needed to interpret the files.
pub fn present() -> Present {
    let clock = SystemClock::new();
    Present { boot: procfs::boot_id(), now: Now { boot_ms: clock.boot_ms(), wall_ms: clock.wall_ms() } }
}

/// Content of the directory of nudges.
#[derive(Default)]
pub struct Listed {
    /// Nudges, sorted by worker name.
    pub nudges: Vec<(File, Nudge)>,
    /// Unreadable files with the cause, including quarantined ones.
    pub damaged: Vec<(PathBuf, String)>,
}

/// Reads all nudges. Writes nothing.
///
/// # Errors
/// Fails if the directory exists and cannot be read.
pub fn list(paths: &Paths, present: &Present) -> io::Result<Listed> {
    let mut listed = Listed::default();
    for path in files(&paths.heartbeats())? {
        let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        if name.contains(".json.corrupted") {
            listed.damaged.push((path, "quarantined because it cannot be read".to_owned()));
        } else if name.ends_with(ENDING) {
            match read(&path, present) {
                Ok(Some(found)) => listed.nudges.push(found),
                Ok(None) => {}
                Err(fault) => listed.damaged.push((path, fault.cause())),
            }
        }
    }
    listed.nudges.sort_by(|(one, _), (other, _)| one.worker_name.cmp(&other.worker_name));
    Ok(listed)
}

/// Reads the nudge of one worker; `None` if it has none.
///
/// # Errors
/// Fails if the file exists and cannot be read or parsed.
pub fn read_one(paths: &Paths, worker: &str, present: &Present) -> io::Result<Option<(File, Nudge)>> {
    let Some(path) = path_of(paths, worker) else { return Ok(None) };
    read(&path, present).map_err(|fault| match fault {
        Fault::Unread(error) => error,
        Fault::Damaged(cause) => io::Error::other(cause),
    })
}

/// Reason why a file could not be used.
enum Fault {
    /// The system failed. The content may be sound.
    Unread(io::Error),
    /// The content is not that of a nudge of this worker.
    Damaged(String),
}

impl Fault {
    fn cause(self) -> String {
        match self {
            Self::Unread(error) => error.to_string(),
            Self::Damaged(cause) => cause,
        }
    }
}

fn read(path: &Path, present: &Present) -> Result<Option<(File, Nudge)>, Fault> {
    let Some(file) = read_file(path)? else { return Ok(None) };
    let nudge = file.nudge(present).map_err(Fault::Damaged)?;
    if path.file_name().and_then(OsStr::to_str) != Some(&format!("{}{ENDING}", nudge.worker)) {
        return Err(Fault::Damaged(format!("the file belongs to another worker, '{}'", nudge.worker)));
    }
    Ok(Some((file, nudge)))
}

/// Returns the path of a worker's file; `None` for names that the original `swarm` accepted and that would lead out of
/// the directory.
fn path_of(paths: &Paths, worker: &str) -> Option<PathBuf> {
    let leads_elsewhere = worker.is_empty() || worker.contains(['/', '\0']);
    (!leads_elsewhere).then(|| paths.heartbeats().join(format!("{worker}{ENDING}")))
}

fn read_file(path: &Path) -> Result<Option<File>, Fault> {
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path);
    let file = match opened {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Fault::Unread(error)),
    };
    let mut text = Vec::new();
    file.take(FILE_BYTES_MAX).read_to_end(&mut text).map_err(Fault::Unread)?;
    serde_json::from_slice(&text).map(Some).map_err(|error| Fault::Damaged(error.to_string()))
}

fn files(dir: &Path) -> io::Result<Vec<PathBuf>> {
    Ok(files::list_if_present(dir)?.into_iter().map(|entry| entry.path()).collect())
}

fn lock(paths: &Paths) -> io::Result<fs::File> {
    let held = || {
        let (path, waited) = (paths.heartbeat_lock(), LOCK_MAX.as_secs());
        io::Error::other(format!("{} is locked (waited {waited} s)", path.display()))
    };
    lock::lock_within(lock_file(paths)?, LOCK_MAX)?.ok_or_else(held)
}

/// Takes the lock if it is free; otherwise returns `None`.
fn try_lock(paths: &Paths) -> io::Result<Option<fs::File>> {
    let file = lock_file(paths)?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(fs::TryLockError::WouldBlock) => Ok(None),
        Err(fs::TryLockError::Error(error)) => Err(error),
    }
}

fn lock_file(paths: &Paths) -> io::Result<fs::File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600).open(paths.heartbeat_lock())
}

/// Reads all nudges. Writers replace the files as a whole, so that reading needs no lock. Only with the lock, which is
/// not waited for, leftovers are removed and damaged files moved aside.
fn load(paths: &Paths) -> io::Result<Survey<Nudge>> {
    let (present, mut survey, mut to_tidy) = (present(), Survey::default(), Vec::new());
    for path in files(&paths.heartbeats())? {
        let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        if name.contains(".json.tmp.") {
            to_tidy.push(path);
        } else if name.ends_with(ENDING) {
            match read(&path, &present) {
                Ok(found) => survey.found.extend(found.map(|(_, nudge)| nudge)),
                Err(Fault::Unread(error)) => survey.miss(path.display(), error),
                Err(Fault::Damaged(_)) => to_tidy.push(path),
            }
        }
    }
    if !to_tidy.is_empty() {
        tidy(paths, to_tidy, &present, &mut survey);
    }
    Ok(survey)
}

/// Removes leftovers of killed supervisors, and moves damaged files aside. What must wait for the lock is listed as
/// unread.
fn tidy(paths: &Paths, files: Vec<PathBuf>, present: &Present, survey: &mut Survey<Nudge>) {
    let lock = try_lock(paths);
    let held = match &lock {
        Ok(Some(_)) => None,
        Ok(None) => Some(format!("{} is locked", paths.heartbeat_lock().display())),
        Err(error) => Some(format!("{}: {error}", paths.heartbeat_lock().display())),
    };
    for path in files {
        let is_leftover = !path.as_os_str().to_string_lossy().ends_with(ENDING);
        match (&held, is_leftover) {
            (None, true) => drop(fs::remove_file(&path)),
            // The next supervisor removes it.
            (Some(_), true) => {}
            (Some(held), false) => survey.miss(path.display(), format!("damaged, or being written: {held}")),
            // A program that does not replace the file as a whole may have written it meanwhile.
            (None, false) => match read(&path, present) {
                Ok(found) => survey.found.extend(found.map(|(_, nudge)| nudge)),
                Err(Fault::Unread(error)) => survey.miss(path.display(), error),
                Err(Fault::Damaged(why)) => {
                    if let Err(error) = quarantine(&path, &why) {
                        survey.miss(path.display(), format!("{why}; it cannot be moved aside: {error}"));
                    }
                }
            },
        }
    }
}

/// Renames a damaged file to the first free `NAME.json.corrupted[.N]`, so that its content is kept.
fn quarantine(path: &Path, why: &str) -> io::Result<()> {
    let numbered = |count: u32| {
        let mut name = path.as_os_str().to_owned();
        name.push(".corrupted");
        if count > 0 {
            name.push(format!(".{count}"));
        }
        PathBuf::from(name)
    };
    let is_free = |name: &PathBuf| fs::symlink_metadata(name).is_err_and(|error| is_absent(&error));
    let aside = (0..QUARANTINES_MAX).map(numbered).find(is_free);
    let aside = aside.ok_or_else(|| io::Error::other("no name for it is free"))?;
    fs::rename(path, &aside)?;
    tracing::error!(file = %path.display(), why, aside = %aside.display(), "quarantined a damaged nudge");
    Ok(())
}

fn is_absent(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
}

fn save(paths: &Paths, nudge: &Nudge, gap_ms: u64) -> io::Result<()> {
    let Some(path) = path_of(paths, &nudge.worker) else {
        return Err(io::Error::other(format!("'{}' is not a valid file name", nudge.worker)));
    };
    match make_dir(&paths.heartbeats()) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let _lock = lock(paths)?;
    let there = match read_file(&path) {
        Ok(there) => there,
        Err(Fault::Unread(error)) => return Err(error),
        Err(Fault::Damaged(why)) => {
            quarantine(&path, &why)?;
            None
        }
    };
    let file = File::of(nudge, &present(), gap_ms, there);
    let text = Wire::render(&file, 0)?;
    replace_durably(&paths.heartbeats(), &format!("{}{ENDING}", nudge.worker), text.as_bytes())
}

fn remove(paths: &Paths, worker: &str) -> io::Result<()> {
    let Some(path) = path_of(paths, worker) else { return Ok(()) };
    match fs::symlink_metadata(&path) {
        Err(error) if is_absent(&error) => return Ok(()),
        Err(error) => return Err(error),
        Ok(_) => {}
    }
    let _lock = lock(paths)?;
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => fs::File::open(paths.heartbeats())?.sync_all(),
    }
}

impl Nudges for DiskNudges {
    fn load(&self) -> BoxFuture<'_, io::Result<Survey<Nudge>>> {
        let paths = self.paths.clone();
        blocking(move || load(&paths))
    }

    fn read<'a>(&'a self, worker: &'a str) -> BoxFuture<'a, io::Result<Option<Nudge>>> {
        // One small read from the page cache is cheaper than a thread.
        let found = read_one(&self.paths, worker, &present());
        Box::pin(std::future::ready(found.map(|found| found.map(|(_, nudge)| nudge))))
    }

    fn save<'a>(&'a self, nudge: &'a Nudge) -> BoxFuture<'a, io::Result<()>> {
        let gap_ms = match &nudge.every {
            Every::Interval { .. } => 0,
            Every::Cron { expression } => gap_ms(&self.calendar, expression).unwrap_or(0),
        };
        let (paths, nudge) = (self.paths.clone(), nudge.clone());
        blocking(move || save(&paths, &nudge, gap_ms))
    }

    fn remove<'a>(&'a self, worker: &'a str) -> BoxFuture<'a, io::Result<()>> {
        let (paths, worker) = (self.paths.clone(), worker.to_owned());
        blocking(move || remove(&paths, &worker))
    }

    fn date_after(&self, expression: &str, wall_ms: u64) -> Result<u64, String> {
        self.calendar.date_after(expression, wall_ms)
    }
}

/// Returns the time between the next two dates, in milliseconds.
fn gap_ms(calendar: &Calendar, expression: &str) -> Result<u64, String> {
    let first = calendar.date_after(expression, SystemClock::new().wall_ms())?;
    Ok(calendar.date_after(expression, first)? - first)
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
