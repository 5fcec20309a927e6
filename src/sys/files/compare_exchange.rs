//! Replacement of a file that another program also replaces, without a lock: the new file and the old one are
//! swapped, and the old one is then compared with what was read before.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::mem;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::{Errno, retry_on_intr};

use super::{absent_ok, list_if_present};
use crate::paths::digest;

const PRIVATE: u32 = 0o600;
/// End of the name of a temporary file that is being written.
const PART: &str = ".part";
/// Maximum number of versions that are kept beside a file.
const KEPT_MAX: u32 = 1000;
/// Maximum number of swaps back, more than the number of other writers.
const TRIES_MAX: u32 = 64;

/// Result of a replacement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replaced {
    Done,
    /// Another program has written the file since. Its version remains.
    Overtaken,
}

/// Replaces the file with `text`, but only if it still contains `seen` (`None`: only if it does not exist).
///
/// # Errors
/// Fails if the file cannot be read or written.
pub fn replace(path: &Path, seen: Option<&[u8]>, text: &[u8], durably: bool) -> io::Result<Replaced> {
    replace_while(path, seen, text, durably, || true)
}

/// Replaces the file like [`replace`], but does not try if `still` returns `false` immediately before. Readers then
/// never see a version that is swapped back.
///
/// # Errors
/// Fails if the file cannot be read or written.
pub fn replace_while(
    path: &Path,
    seen: Option<&[u8]>,
    text: &[u8],
    durably: bool,
    still: impl FnOnce() -> bool,
) -> io::Result<Replaced> {
    let temporary = temporary(path, seen, text);
    let written = write(&temporary, path, text, durably);
    let replaced = written.and_then(|()| match seen {
        _ if !still() => Ok(Replaced::Overtaken),
        Some(seen) => exchange(&temporary, path, seen, text),
        None => create(&temporary, path),
    })?;
    // The temporary file now has the old content, or content that is not needed.
    absent_ok(fs::remove_file(&temporary))?;
    if durably && let Some(dir) = path.parent() {
        File::open(dir)?.sync_all()?;
    }
    Ok(replaced)
}

/// Returns the name of the temporary file. It contains digests of what is replaced and of the replacement, so that any
/// other content is known as a version of another program after a crash.
fn temporary(path: &Path, seen: Option<&[u8]>, text: &[u8]) -> PathBuf {
    with_end(path, &format!(".tmp.{}.{}.{}", std::process::id(), digest_of(seen.unwrap_or_default()), digest_of(text)))
}

fn with_end(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    PathBuf::from(name)
}

fn digest_of(text: &[u8]) -> String {
    digest(text, 8)
}

/// Removes the temporary files that killed processes left beside the file. A process that was killed between two swaps
/// leaves a version of another program that nobody has read. That version is put back if the file still has what was
/// swapped in for it. Otherwise it is moved aside, and its new path is returned. Pipes, sockets and devices are no version
/// of the file, and stay. The caller excludes writers of this program.
///
/// # Errors
/// Fails if a file cannot be read or moved. Nothing that was not read is removed.
pub fn recover(path: &Path) -> io::Result<Vec<PathBuf>> {
    let (Some(dir), Some(name)) = (path.parent(), path.file_name().and_then(OsStr::to_str)) else {
        return Err(io::Error::other("not a valid file name"));
    };
    let (prefix, mut aside) = (format!("{name}.tmp."), Vec::new());
    for entry in list_if_present(dir)? {
        let left = entry.path();
        let of = entry.file_name();
        let Some(of) = of.to_str().and_then(|of| of.strip_prefix(&prefix)) else { continue };
        let kind = entry.file_type()?;
        if !kind.is_file() && !kind.is_dir() && !kind.is_symlink() {
            continue;
        }
        // A file that was not written completely was never swapped in.
        if !of.ends_with(PART) && !settle(path, &left, of, &mut aside)? {
            continue;
        }
        absent_ok(fs::remove_file(&left))?;
    }
    Ok(aside)
}

/// Settles a complete temporary file with the end `of` its name. Returns whether it is not needed any more.
fn settle(path: &Path, left: &Path, of: &str, aside: &mut Vec<PathBuf>) -> io::Result<bool> {
    let Some(text) = read(left)? else { return Ok(false) };
    let present = read(path)?;
    let (of_text, mut digests) = (digest_of(&text), of.split('.').skip(1));
    let (seen, ours) = (digests.next(), digests.next());
    if present.as_ref() == Some(&text) || [seen, ours].contains(&Some(of_text.as_str())) {
        return Ok(true);
    }
    let is_ours = |present: &&Vec<u8>| ours == Some(digest_of(present).as_str());
    if let Some(present) = present.as_ref().filter(is_ours)
        && replace(path, Some(present), &text, true)? == Replaced::Done
    {
        return Ok(true);
    }
    for number in 0..KEPT_MAX {
        let end = if number == 0 { ".kept".to_owned() } else { format!(".kept.{number}") };
        let kept = with_end(path, &end);
        match rename(left, &kept, RenameFlags::NOREPLACE) {
            Ok(()) => {
                aside.push(kept);
                return Ok(false);
            }
            Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(io::Error::other(format!("there are too many files {}.kept", path.display())))
}

/// Writes the temporary file under another name first, so that it is complete under its own. It gets the mode of an
/// existing file; a new file is private.
fn write(temporary: &Path, path: &Path, text: &[u8], durably: bool) -> io::Result<()> {
    let part = with_end(path, &format!(".tmp.{}{PART}", std::process::id()));
    write_part(&part, path, text, durably)?;
    fs::rename(part, temporary)
}

fn write_part(temporary: &Path, path: &Path, text: &[u8], durably: bool) -> io::Result<()> {
    absent_ok(fs::remove_file(temporary))?;
    let mode = fs::metadata(path).map_or(PRIVATE, |meta| meta.permissions().mode() & 0o777);
    let written = (|| {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(PRIVATE).open(temporary)?;
        if mode != PRIVATE {
            file.set_permissions(fs::Permissions::from_mode(mode))?;
        }
        file.write_all(text)?;
        if durably { file.sync_all() } else { Ok(()) }
    })();
    if written.is_err() {
        let _ = fs::remove_file(temporary);
    }
    written
}

fn create(temporary: &Path, path: &Path) -> io::Result<Replaced> {
    match rename(temporary, path, RenameFlags::NOREPLACE) {
        Ok(()) => Ok(Replaced::Done),
        Err(Errno::EXIST) => Ok(Replaced::Overtaken),
        Err(error) if is_unknown(error) => look_and_rename(temporary, path, None),
        Err(error) => Err(error.into()),
    }
}

fn exchange(temporary: &Path, path: &Path, seen: &[u8], text: &[u8]) -> io::Result<Replaced> {
    match rename(temporary, path, RenameFlags::EXCHANGE) {
        Ok(()) => {}
        Err(Errno::NOENT) => return Ok(Replaced::Overtaken),
        Err(error) if is_unknown(error) => return look_and_rename(temporary, path, Some(seen)),
        Err(error) => return Err(error.into()),
    }
    let mut out = match read_existing(temporary) {
        Ok(out) => out,
        Err(error) => {
            // Nobody knows what came out, so it goes back.
            rename(temporary, path, RenameFlags::EXCHANGE)?;
            return Err(error);
        }
    };
    if out == seen {
        return Ok(Replaced::Done);
    }
    // Swap back until we recover exactly what we last wrote.
    let mut put = text.to_vec();
    for _ in 0..TRIES_MAX {
        rename(temporary, path, RenameFlags::EXCHANGE)?;
        let came = read_existing(temporary)?;
        if came == put {
            return Ok(Replaced::Overtaken);
        }
        put = mem::replace(&mut out, came);
    }
    Err(io::Error::other("another program keeps writing the file"))
}

/// Replaces the file if the file system cannot swap files. Only a check immediately before protects other writers.
fn look_and_rename(temporary: &Path, path: &Path, seen: Option<&[u8]>) -> io::Result<Replaced> {
    if read(path)?.as_deref() != seen {
        return Ok(Replaced::Overtaken);
    }
    fs::rename(temporary, path)?;
    Ok(Replaced::Done)
}

/// Returns the content of a file. `None` if it does not exist. Does not wait for the other end of a pipe.
///
/// # Errors
/// Fails if the file exists and cannot be read, or is not a regular file.
pub fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match read_existing(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn read_existing(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = OpenOptions::new().read(true).custom_flags(nix::libc::O_NONBLOCK).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other(format!("{} is not a regular file", path.display())));
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn rename(from: &Path, to: &Path, flags: RenameFlags) -> Result<(), Errno> {
    retry_on_intr(|| renameat_with(CWD, from, CWD, to, flags))
}

/// Reports whether the file system or the kernel does not support the flag.
fn is_unknown(error: Errno) -> bool {
    matches!(error, Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;
    use std::sync::atomic::Ordering::SeqCst;

    use super::*;

    #[test]
    fn only_what_was_seen_is_replaced() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("state.json");
        let there = || fs::read_to_string(&path).expect("there");
        for durably in [false, true] {
            fs::write(&path, "seen").expect("written");
            assert_eq!(replace(&path, Some(b"seen"), b"ours", durably).expect("no failure"), Replaced::Done);
            assert_eq!(there(), "ours");
            // Another program has replaced, removed or created the file since.
            assert_eq!(replace(&path, Some(b"seen"), b"more", durably).expect("no failure"), Replaced::Overtaken);
            assert_eq!(there(), "ours");
            assert_eq!(replace(&path, None, b"more", durably).expect("no failure"), Replaced::Overtaken);
            assert_eq!(there(), "ours");
            fs::remove_file(&path).expect("removed");
            assert_eq!(replace(&path, Some(b"ours"), b"more", durably).expect("no failure"), Replaced::Overtaken);
            assert!(!path.exists());
            assert_eq!(replace(&path, None, b"new", durably).expect("no failure"), Replaced::Done);
            assert_eq!(there(), "new");
        }
        assert_eq!(fs::read_dir(dir.path()).expect("readable").count(), 1, "a temporary file is left");
    }

    /// Leaves a temporary file as a process does that is killed after it swapped `ours` in.
    fn killed(path: &Path, seen: &str, ours: &str, came_out: &str) {
        let left = temporary(path, Some(seen.as_bytes()), ours.as_bytes());
        fs::write(left, came_out).expect("written");
        fs::write(path, ours).expect("written");
    }

    #[test]
    fn a_version_that_nobody_has_read_survives_a_kill() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("state.json");
        let there = || fs::read_to_string(&path).expect("there");
        let files = || fs::read_dir(dir.path()).expect("readable").count();
        assert_eq!(recover(&path).expect("nothing to do"), Vec::<PathBuf>::new());
        for (came_out, present) in [("seen", "ours"), ("ours", "ours"), ("theirs", "theirs")] {
            killed(&path, "seen", "ours", came_out);
            assert_eq!(recover(&path).expect("recovers"), Vec::<PathBuf>::new());
            assert_eq!((there().as_str(), files()), (present, 1), "{came_out}");
        }
        // The file was written since.
        for kept in ["state.json.kept", "state.json.kept.1"] {
            killed(&path, "seen", "ours", "theirs");
            fs::write(&path, "newer").expect("written");
            assert_eq!(recover(&path).expect("recovers"), [dir.path().join(kept)]);
            assert_eq!(fs::read_to_string(dir.path().join(kept)).expect("kept"), "theirs");
            assert_eq!(there(), "newer");
        }
        // A process of an older version left it, and one was killed while it wrote.
        fs::write(dir.path().join("state.json.tmp.7"), "unknown").expect("written");
        fs::write(dir.path().join("state.json.tmp.7.part"), "half").expect("written");
        assert_eq!(recover(&path).expect("recovers"), [dir.path().join("state.json.kept.2")]);
        assert_eq!(files(), 4);
        // A directory can be opened, but not read, whoever asks.
        let unread = dir.path().join("state.json.tmp.8.a.b");
        fs::create_dir(&unread).expect("made");
        recover(&path).expect_err("nobody knows what it has");
        assert!(unread.exists());
    }

    #[test]
    fn nobody_waits_for_the_other_end_of_a_pipe() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("flow.json");
        let pipe = |path: &Path| nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).expect("made");
        fs::write(&path, "ours").expect("written");
        let left = dir.path().join("flow.json.tmp.7.a.b");
        pipe(&left);
        assert_eq!(recover(&path).expect("recovers"), Vec::<PathBuf>::new());
        assert!(left.exists(), "it is not ours");
        let part = dir.path().join(format!("flow.json.tmp.{}.part", std::process::id()));
        pipe(&part);
        assert_eq!(replace(&path, Some(b"ours"), b"more", false).expect("replaces"), Replaced::Done);
        // Another program has put a pipe in the place of the file.
        fs::remove_file(&path).expect("removed");
        pipe(&path);
        assert!(read(&path).is_err_and(|error| error.to_string().ends_with("is not a regular file")));
        replace(&path, Some(b"more"), b"again", false).expect_err("nobody knows what it has");
        assert!(!fs::symlink_metadata(&path).expect("there").is_file(), "it is put back");
    }

    #[test]
    fn nothing_that_another_program_writes_is_lost() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("state.json");
        fs::write(&path, "ours 0").expect("written");
        // The other program writes less often during one replacement than the replacement is tried.
        let (written, allowed) = (AtomicU32::new(0), AtomicU32::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut done = 0;
                while done < 500 {
                    allowed.store(written.load(SeqCst) + TRIES_MAX / 2, SeqCst);
                    let seen = fs::read_to_string(&path).expect("there");
                    let theirs = seen.split(' ').nth(1).expect("two words");
                    let replaced = replace(&path, Some(seen.as_bytes()), format!("{done} {theirs}").as_bytes(), false);
                    done += u32::from(replaced.expect("no failure") == Replaced::Done);
                }
                allowed.store(u32::MAX, SeqCst);
            });
            scope.spawn(|| {
                let aside = dir.path().join("theirs");
                for count in 1..=500 {
                    while count > allowed.load(SeqCst) {
                        std::thread::yield_now();
                    }
                    fs::write(&aside, format!("theirs {count}")).expect("written");
                    fs::rename(&aside, &path).expect("renamed");
                    written.store(count, SeqCst);
                }
            });
        });
        let text = fs::read_to_string(&path).expect("there");
        assert!(text.ends_with(" 500"), "{text}");
    }
}
