//! Mount points below a directory.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

/// Returns the places at `dir` or below where a file system is mounted. None if `dir` does not exist.
///
/// # Errors
/// Fails if `dir` or the list of mounts cannot be read.
pub fn mounts_below(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let dir = match dir.canonicalize() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        dir => dir?,
    };
    // A thread may have a list of its own.
    let listed = fs::read("/proc/thread-self/mountinfo")?;
    let points = listed.split(|byte| *byte == b'\n').filter_map(point);
    Ok(points.filter(|point| point.starts_with(&dir)).collect())
}

/// Returns the mount point in a line of `mountinfo`, see proc(5).
fn point(line: &[u8]) -> Option<PathBuf> {
    let field = line.split(|byte| *byte == b' ').nth(4)?;
    Some(PathBuf::from(OsString::from_vec(unescaped(field))))
}

/// Replaces `\ooo`, as which the kernel writes spaces, tabs, line ends and backslashes.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, after @ ..] = rest {
        let digits = after.get(..3).filter(|_| *first == b'\\').and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                text.push(byte);
                rest = &after[3..];
            }
            None => {
                text.push(*first);
                rest = after;
            }
        }
    }
    text
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use nix::mount::{MsFlags, mount};
    use nix::sched::{CloneFlags, unshare};

    /// Runs `work` while `from` is mounted at `to`, which is made, and only for its thread. Returns false, without having
    /// run it, if this process may not mount anything.
    pub(crate) fn with_mount(from: &Path, to: &Path, work: impl FnOnce() + Send) -> bool {
        fs::create_dir_all(to).expect("made");
        let run = || {
            if unshare(CloneFlags::CLONE_NEWNS).is_err() {
                return false;
            }
            let none = None::<&str>;
            mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).expect("private");
            mount(Some(from), to, none, MsFlags::MS_BIND, none).expect("mounted");
            work();
            true
        };
        std::thread::scope(|scope| scope.spawn(run).join().expect("finished"))
    }

    #[test]
    fn mounts_are_found_at_a_directory_and_below() {
        let dir = tempfile::tempdir().expect("a directory");
        let root = dir.path().canonicalize().expect("there");
        let (from, to) = (root.join("from"), root.join("top/a b\\c\td"));
        fs::create_dir(&from).expect("made");
        let is_mounted = with_mount(&from, &to, || {
            std::os::unix::fs::symlink(root.join("top"), root.join("link")).expect("linked");
            for above in [&root.join("top"), &to, &root.join("link")] {
                assert_eq!(mounts_below(above).expect("read"), std::slice::from_ref(&to));
            }
            fs::create_dir(root.join("to")).expect("made");
            assert_eq!(mounts_below(&root.join("to")).expect("read"), Vec::<PathBuf>::new());
        });
        assert!(is_mounted || !nix::unistd::getuid().is_root());
        assert_eq!(mounts_below(&root.join("absent")).expect("absent"), Vec::<PathBuf>::new());
        assert!(mounts_below(Path::new("/")).expect("read").contains(&PathBuf::from("/")));
    }

    #[test]
    fn escaped_bytes_are_replaced() {
        let line = br"36 35 98:0 /mnt1 /mnt2/a\040b\134c\011\012\0 rw,noatime master:1 - ext3 /dev/root rw";
        assert_eq!(point(line), Some(PathBuf::from("/mnt2/a b\\c\t\n\\0")));
        assert_eq!(point(b""), None);
    }
}
