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
use swarm_ports::{BoxFuture, Clock as _, Nudges};

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
            match read_file(&path).and_then(|file| interpret(file, &path, present)) {
                Ok(Some(found)) => listed.nudges.push(found),
                Ok(None) => {}
                Err(error) => listed.damaged.push((path, error.to_string())),
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
    read_file(&path).and_then(|file| interpret(file, &path, present))
}

fn interpret(file: Option<File>, path: &Path, present: &Present) -> io::Result<Option<(File, Nudge)>> {
    let Some(file) = file else { return Ok(None) };
    let nudge = file.nudge(present).map_err(io::Error::other)?;
    if path.file_name().and_then(OsStr::to_str) != Some(&format!("{}{ENDING}", nudge.worker)) {
        return Err(io::Error::other(format!("the file belongs to another worker, '{}'", nudge.worker)));
    }
    Ok(Some((file, nudge)))
}

/// Returns the path of a worker's file; `None` for names that the original `swarm` accepted and that would lead out of
/// the directory.
fn path_of(paths: &Paths, worker: &str) -> Option<PathBuf> {
    let leads_elsewhere = worker.is_empty() || worker.contains(['/', '\0']);
    (!leads_elsewhere).then(|| paths.heartbeats().join(format!("{worker}{ENDING}")))
}

fn read_file(path: &Path) -> io::Result<Option<File>> {
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path);
    let file = match opened {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut text = Vec::new();
    file.take(FILE_BYTES_MAX).read_to_end(&mut text)?;
    Ok(Some(serde_json::from_slice(&text)?))
}

fn files(dir: &Path) -> io::Result<Vec<PathBuf>> {
    Ok(files::list_if_present(dir)?.into_iter().map(|entry| entry.path()).collect())
}

fn lock(paths: &Paths) -> io::Result<fs::File> {
    let path = paths.heartbeat_lock();
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path)?;
    let locked = lock::lock_within(file, LOCK_MAX)?;
    let held = || io::Error::other(format!("{} is locked (waited {} s)", path.display(), LOCK_MAX.as_secs()));
    locked.ok_or_else(held)
}

fn load(paths: &Paths) -> io::Result<Vec<Nudge>> {
    let present = present();
    let _lock = lock(paths)?;
    let mut nudges = Vec::new();
    for path in files(&paths.heartbeats())? {
        let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        if name.contains(".json.tmp.") {
            // A leftover of a killed supervisor.
            let _ = fs::remove_file(&path);
        } else if name.ends_with(ENDING) {
            match read_file(&path).and_then(|file| interpret(file, &path, &present)) {
                Ok(Some((_, nudge))) => nudges.push(nudge),
                Ok(None) => {}
                Err(error) => quarantine(&path, &error),
            }
        }
    }
    Ok(nudges)
}

/// Renames an unreadable file to the first free `NAME.json.corrupted[.N]`, so that its content is kept.
fn quarantine(path: &Path, why: &io::Error) {
    let numbered = |count: u32| {
        let mut name = path.as_os_str().to_owned();
        name.push(".corrupted");
        if count > 0 {
            name.push(format!(".{count}"));
        }
        PathBuf::from(name)
    };
    let free = (0..u32::MAX).map(numbered).find(|name| fs::symlink_metadata(name).is_err());
    match free.map(|name| fs::rename(path, &name).map(|()| name)) {
        Some(Ok(name)) => {
            tracing::error!(file = %path.display(), %why, aside = %name.display(), "quarantined an unreadable nudge");
        }
        Some(Err(_)) | None => tracing::error!(file = %path.display(), %why, "cannot read a nudge"),
    }
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
        Err(error) => {
            quarantine(&path, &error);
            None
        }
    };
    let file = File::of(nudge, &present(), gap_ms, there);
    let text = Wire::render(&file, 0)?;
    replace_durably(&paths.heartbeats(), &format!("{}{ENDING}", nudge.worker), text.as_bytes())
}

fn remove(paths: &Paths, worker: &str) -> io::Result<()> {
    let Some(path) = path_of(paths, worker).filter(|path| fs::symlink_metadata(path).is_ok()) else { return Ok(()) };
    let _lock = lock(paths)?;
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => fs::File::open(paths.heartbeats())?.sync_all(),
    }
}

impl Nudges for DiskNudges {
    fn load(&self) -> BoxFuture<'_, io::Result<Vec<Nudge>>> {
        if !self.paths.heartbeats().exists() {
            return Box::pin(std::future::ready(Ok(Vec::new())));
        }
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
        if !self.paths.heartbeats().exists() {
            return Box::pin(std::future::ready(Ok(())));
        }
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
