//! The home of a run: the directory with its files. The home is `.arial` in a repository, or a directory of its own in
//! the state directory.
//!
//! ```text
//!   state.json     the run in the format of the original Arial programs (specs only)
//!   run.jsonl      journal: the run at its start, and all events since
//!   events.jsonl   reported events
//!   lock           held while a run is active or being planned
//!   attempts/ID.N/ order, prompt, conversation and result of one attempt
//!   context/ID/    messages from people to an agent
//!   logs/ID.log    log of the agent
//!   worktrees/ID/  worktree of the agent
//! ```

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use super::records;
use swarm_sys::clock::{self, random_uuid};
use swarm_sys::files::{is_absent, list, list_if_present, make_dir, remove_abandoned, write_private};

/// Directory name of a repository's home.
pub const ARIAL: &str = ".arial";

/// Flag of `open` for files that are written: a symbolic link is an error.
pub const NO_LINK: i32 = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();
/// Depth of directories in a home, below those directly in it.
const DEPTH_MAX: u32 = 2;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Home(PathBuf);

impl Home {
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// Returns the home of the repository at `root`.
    pub fn of(root: &Path) -> Self {
        Self(root.join(ARIAL))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
    pub fn state(&self) -> PathBuf {
        self.0.join("state.json")
    }
    pub fn journal(&self) -> PathBuf {
        self.0.join("run.jsonl")
    }
    pub fn events(&self) -> PathBuf {
        self.0.join("events.jsonl")
    }
    pub fn lock(&self) -> PathBuf {
        self.0.join("lock")
    }
    pub fn joblog(&self) -> PathBuf {
        self.0.join("joblog")
    }
    pub fn attempt(&self, id: &str, attempt: u32) -> PathBuf {
        self.0.join("attempts").join(format!("{id}.{attempt}"))
    }
    pub fn context(&self, id: &str) -> PathBuf {
        self.0.join("context").join(id)
    }
    pub fn logs(&self) -> PathBuf {
        self.0.join("logs")
    }
    pub fn log(&self, id: &str) -> PathBuf {
        self.logs().join(format!("{id}.log"))
    }
    pub fn worktrees(&self) -> PathBuf {
        self.0.join("worktrees")
    }
    pub fn templates(&self) -> PathBuf {
        self.0.join("templates")
    }

    /// Checks that the home of a repository contains no symbolic link: a commit may bring one, through which a run would
    /// write wherever it leads. Templates are only read, and worktrees contain what is checked out there.
    ///
    /// # Errors
    /// Fails if there is a link, or on I/O errors.
    pub fn check_links(&self) -> io::Result<()> {
        if self.0.file_name().is_none_or(|name| name != ARIAL) {
            return Ok(());
        }
        for entry in list_if_present(&self.0)? {
            let (path, kind) = (entry.path(), entry.file_type()?);
            let depth = if path == self.worktrees() { 0 } else { DEPTH_MAX };
            if kind.is_symlink() && path != self.templates() {
                return Err(refuse_link(&path));
            }
            if kind.is_dir() && path != self.templates() {
                check_links_below(&path, depth)?;
            }
        }
        Ok(())
    }

    /// Creates the directories that every home has.
    ///
    /// # Errors
    /// Fails if the home contains a symbolic link, or on I/O errors.
    pub fn make(&self) -> io::Result<()> {
        self.check_links()?;
        for dir in [self.0.clone(), self.logs(), self.worktrees()] {
            make_all(&dir)?;
        }
        Ok(())
    }

    /// Removes temporary files of killed writers. Requires the lock.
    pub fn tidy(&self) {
        remove_torn(&self.0);
    }

    /// Reports whether a process holds the lock. It may be a supervisor with another state directory.
    pub fn is_locked(&self) -> bool {
        records::open(self.lock()).is_ok_and(|lock| lock.try_lock_shared().is_err())
    }

    /// Takes the lock, which is released when the file is closed.
    ///
    /// # Errors
    /// Fails with a message for users that names the holder, or on I/O errors.
    pub fn take_lock(&self) -> Result<File, String> {
        self.check_links().map_err(|error| error.to_string())?;
        let path = self.lock();
        let mut open = OpenOptions::new();
        open.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(NO_LINK | records::NO_WAIT);
        let open = open.open(&path).and_then(records::checked);
        let mut lock = open.map_err(|error| format!("{}: {error}", path.display()))?;
        if lock.try_lock().is_err() {
            let holder = records::read_text(&path).unwrap_or_default();
            // The holder may not have written its id yet.
            let holder = Some(holder.trim()).filter(|id| !id.is_empty());
            let holder = holder.map_or(String::new(), |id| format!(" (process {id})"));
            return Err(format!("a run or 'swarm plan' is in progress in {}{holder}", self.0.display()));
        }
        let written = lock.set_len(0).and_then(|()| writeln!(lock, "{}", std::process::id()));
        written.map_err(|error| format!("{}: {error}", path.display()))?;
        // What a killed 'swarm plan' left. Nobody writes but the holder of the lock.
        remove_abandoned(&self.0, |_| true).map_err(|error| format!("{}: {error}", self.0.display()))?;
        Ok(lock)
    }
}

/// Checks a directory of a home and the directories in it, down to `depth`.
fn check_links_below(dir: &Path, depth: u32) -> io::Result<()> {
    for entry in list_if_present(dir)? {
        let kind = entry.file_type()?;
        if kind.is_symlink() {
            return Err(refuse_link(&entry.path()));
        }
        if kind.is_dir() && depth > 0 {
            check_links_below(&entry.path(), depth - 1)?;
        }
    }
    Ok(())
}

fn refuse_link(path: &Path) -> io::Error {
    io::Error::other(format!("{} is a symbolic link, through which a run does not write: remove it", path.display()))
}

/// Removes temporary files of killed writers from a directory without active writers.
pub fn remove_torn(dir: &Path) {
    for file in list(dir).into_iter().flatten() {
        if file.file_name().to_string_lossy().contains(".tmp.") {
            let _ = fs::remove_file(file.path());
        }
    }
}

/// Creates a private directory with its parents; an existing one is not an error.
///
/// # Errors
/// Returns any other I/O error.
pub fn make_all(dir: &Path) -> io::Result<()> {
    match make_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && dir.is_dir() => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let Some(parent) = dir.parent() else { return Err(error) };
            make_all(parent)?;
            make_all(dir)
        }
        made => made,
    }
}

/// Appends complete lines in one write. If a crash tore the last line, a newline is inserted first.
///
/// # Errors
/// Returns any I/O error.
pub fn append_lines(path: &Path, lines: &str) -> io::Result<File> {
    use std::os::unix::fs::FileExt as _;
    let mut open = OpenOptions::new();
    let mut file =
        open.read(true).append(true).create(true).mode(0o600).custom_flags(NO_LINK | records::NO_WAIT).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other(format!("{} is not a regular file: remove it", path.display())));
    }
    let length = file.metadata()?.len();
    let mut last = [b'\n'];
    if length > 0 {
        file.read_exact_at(&mut last, length - 1)?;
    }
    if last == *b"\n" {
        file.write_all(lines.as_bytes())?;
    } else {
        file.write_all(format!("\n{lines}").as_bytes())?;
    }
    Ok(file)
}

/// Creates a private file with this text unless it exists. Of several callers, one creates it, and nobody sees it empty.
///
/// # Errors
/// Returns any I/O error, except that the file exists.
pub fn create_with(path: &Path, text: &str) -> io::Result<()> {
    if !is_absent(path) {
        return Ok(());
    }
    let temporary = path.with_extension(format!("{}.tmp", random_uuid()));
    let made = write_private(&temporary, text.as_bytes()).and_then(|()| fs::hard_link(&temporary, path));
    let _ = fs::remove_file(&temporary);
    match made {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

/// Reads at most the last `bytes_max` bytes of a file.
///
/// # Errors
/// Returns any I/O error.
pub fn end_of(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut file = records::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(bytes_max)))?;
    let mut bytes = Vec::with_capacity(usize::try_from(length.min(bytes_max)).unwrap_or(0) + 1);
    file.take(bytes_max).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Formats Unix milliseconds as ISO 8601 in UTC, with milliseconds.
pub fn iso(at_ms: u64) -> String {
    let at = i64::try_from(at_ms).ok().and_then(|at_ms| jiff::Timestamp::from_millisecond(at_ms).ok());
    clock::iso(at.unwrap_or_default())
}

/// Parses an ISO 8601 time into Unix milliseconds; `None` if it is not valid.
pub fn from_iso(text: &str) -> Option<u64> {
    let at: jiff::Timestamp = text.parse().ok()?;
    u64::try_from(at.as_millisecond()).ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_file_that_several_create_has_its_first_line_once() {
        let dir = tempfile::tempdir().expect("makes a directory");
        for round in 0..50 {
            let path = dir.path().join(format!("joblog.{round}"));
            let start = std::sync::Barrier::new(4);
            std::thread::scope(|scope| {
                for job in 0..4 {
                    let (path, start) = (&path, &start);
                    scope.spawn(move || {
                        start.wait();
                        create_with(path, "head\n").expect("created");
                        append_lines(path, &format!("{job}\n")).expect("appended");
                    });
                }
            });
            let text = fs::read_to_string(&path).expect("read");
            assert!(text.starts_with("head\n") && text.matches("head").count() == 1, "{text}");
            assert_eq!(text.lines().count(), 5, "{text}");
        }
        assert_eq!(list(dir.path()).expect("listed").len(), 50, "no temporary file is left");
    }

    #[test]
    fn a_home_with_a_link_is_refused_and_nothing_is_written_through_it() {
        let dir = tempfile::tempdir().expect("makes a directory");
        let outside = dir.path().join("outside");
        fs::create_dir(&outside).expect("made");
        fs::write(outside.join("file"), "mine").expect("written");
        let home = Home::new(dir.path().join(ARIAL));
        home.make().expect("made");
        fs::create_dir_all(home.attempt("a", 1)).expect("made");
        let lock = home.take_lock().expect("taken");
        drop(lock);
        for (link, target) in [
            ("lock", "file"),
            ("events.jsonl", "file"),
            ("worktrees", ""),
            ("worktrees/a", ""),
            ("logs", ""),
            ("logs/a.log", "file"),
            ("attempts", ""),
            ("attempts/a.1/order.json", "file"),
            ("context", ""),
        ] {
            let path = home.path().join(link);
            let aside = dir.path().join("aside");
            let is_there = fs::rename(&path, &aside).is_ok();
            symlink(outside.join(target), &path).expect("linked");
            let cause = format!("{} is a symbolic link", path.display());
            assert!(home.make().expect_err(link).to_string().starts_with(&cause));
            assert!(home.take_lock().expect_err(link).starts_with(&cause));
            if target == "file" {
                append_lines(&path, "evil\n").expect_err(link);
            }
            fs::remove_file(&path).expect("removed");
            if is_there {
                fs::rename(&aside, &path).expect("back");
            }
        }
        symlink(&outside, home.templates()).expect("linked");
        home.make().expect("templates are only read");
        assert_eq!(fs::read_to_string(outside.join("file")).expect("read"), "mine");
        assert_eq!(fs::read_dir(&outside).expect("read").count(), 1);
    }

    #[test]
    fn pipes_in_place_of_records_are_refused_and_not_waited_for() {
        use rustix::fs::{CWD, FileType, Mode, mknodat};
        let dir = tempfile::tempdir().expect("a directory");
        let home = Home::new(dir.path());
        for path in [home.journal(), home.state(), home.events(), home.lock()] {
            fs::create_dir_all(path.parent().expect("a parent")).expect("made");
            mknodat(CWD, &path, FileType::Fifo, Mode::RWXU, 0).expect("made");
            records::read(&path).expect_err("a pipe");
            append_lines(&path, "line\n").expect_err("a pipe");
            end_of(&path, 10).expect_err("a pipe");
        }
        assert!(crate::runs::journal::read(&home).expect_err("a pipe").ends_with("not a regular file"));
        crate::runs::journal::append(&home, &[]).expect_err("a pipe");
        crate::runs::wire::load(&home).expect_err("a pipe");
        assert!(!home.is_locked());
        assert!(home.take_lock().expect_err("a pipe").ends_with("not a regular file"));
        // A link that a person made is followed.
        fs::write(dir.path().join("kept"), "text").expect("written");
        symlink(dir.path().join("kept"), dir.path().join("link")).expect("linked");
        assert_eq!(records::read_text(dir.path().join("link")).expect("read"), "text");
    }
}
