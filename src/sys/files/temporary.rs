//! Names of temporary files, and those whose writers were killed.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use super::{list_if_present, remove_if_present};
use crate::procfs;

/// Names that threads of this process use now.
static IN_USE: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// A name for a temporary file that no other thread uses before it is dropped: `NAME.tmp.PID`, and `NAME.tmp.PID.N` if several
/// threads replace the same file.
pub(super) struct Temporary {
    pub(super) path: PathBuf,
}

impl Temporary {
    pub(super) fn new(dir: &Path, name: &str) -> Self {
        let pid = std::process::id();
        let first = dir.join(format!("{name}.tmp.{pid}"));
        let further = (1_u32..).map(|number| dir.join(format!("{name}.tmp.{pid}.{number}")));
        let mut in_use = IN_USE.lock().unwrap_or_else(PoisonError::into_inner);
        let path = std::iter::once(first).chain(further).find(|path| !in_use.contains(path)).unwrap_or_default();
        in_use.insert(path.clone());
        Self { path }
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        IN_USE.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.path);
    }
}

/// Reports whether this is a temporary file whose writer is gone. The name ends in the writer's pid: `.tmp.PID`,
/// `.tmp.PID.N` or `.tmp-PID-N`.
pub fn is_abandoned(path: &Path) -> bool {
    let Some((_, pid)) = path.file_name().and_then(|name| writer(name.to_str()?)) else { return false };
    let Ok(meta) = fs::symlink_metadata(path) else { return false };
    meta.is_file() && !wrote_it(pid, meta.mtime())
}

/// Removes temporary files of killed writers for the files in `dir` whose names are `meant`. Must not be called if
/// processes of other machines may write them now.
///
/// # Errors
/// Fails if the directory cannot be listed, or a file cannot be removed.
pub fn remove_abandoned(dir: &Path, meant: impl Fn(&str) -> bool) -> io::Result<()> {
    for entry in list_if_present(dir)? {
        let name = entry.file_name();
        let is_meant = name.to_str().and_then(writer).is_some_and(|(of, _)| meant(of));
        if is_meant && is_abandoned(&entry.path()) {
            remove_if_present(&entry.path())?;
        }
    }
    Ok(())
}

/// Returns the name of the file that is replaced, and the pid of the writer.
fn writer(name: &str) -> Option<(&str, i32)> {
    let (before, rest) = name.rsplit_once(".tmp.").or_else(|| name.rsplit_once(".tmp-"))?;
    let mut numbers = rest.split(['.', '-']);
    let pid = numbers.next()?.parse().ok().filter(|pid| *pid > 0)?;
    // Only numbers may follow.
    (!before.is_empty() && numbers.all(|number| number.parse::<u64>().is_ok())).then_some((before, pid))
}

/// Reports whether a living process has this pid and already existed when the file was written.
fn wrote_it(pid: i32, written_s: i64) -> bool {
    procfs::stat(pid).is_some_and(|stat| {
        stat.is_alive() && procfs::process_start_ms(stat.start_ticks) / 1000 <= written_s.saturating_add(1)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::{Durability, replace_private};

    #[test]
    fn temporary_files_name_their_writer() {
        assert_eq!(writer("state.json.tmp.12.3"), Some(("state.json", 12)));
        assert_eq!(writer("exit.json.tmp.45"), Some(("exit.json", 45)));
        assert_eq!(writer(".flow.json.tmp-7-1"), Some((".flow.json", 7)));
        for name in
            ["state.json", "x.tmp", "a.tmp.b", "a.tmp.-3", ".heartbeat.json.tmp-session", "a.tmp.0", "a.tmp.7.json"]
        {
            assert_eq!(writer(name), None, "{name}");
        }
    }

    #[test]
    fn threads_that_replace_one_file_do_not_share_a_temporary_file() {
        let dir = tempfile::tempdir().expect("a directory");
        let pid = std::process::id();
        let name = |temporary: &Temporary| temporary.path.file_name().and_then(|name| name.to_str().map(str::to_owned));
        let first = Temporary::new(dir.path(), "a");
        let second = Temporary::new(dir.path(), "a");
        assert_eq!(name(&first), Some(format!("a.tmp.{pid}")));
        assert_eq!(name(&second), Some(format!("a.tmp.{pid}.1")));
        drop(first);
        assert_eq!(name(&Temporary::new(dir.path(), "a")), Some(format!("a.tmp.{pid}")));
        let replace = || (0..50).try_for_each(|_| replace_private(dir.path(), "b", &[7; 64], Durability::None));
        std::thread::scope(|scope| {
            let threads = [(); 4].map(|()| scope.spawn(replace));
            threads.into_iter().for_each(|thread| thread.join().expect("no panic").expect("replaced"));
        });
        assert_eq!(fs::read(dir.path().join("b")).expect("there").len(), 64);
    }

    #[test]
    fn a_file_of_a_living_process_is_not_abandoned() {
        let dir = tempfile::tempdir().expect("a directory");
        let mine = dir.path().join(format!("a.tmp.{}", std::process::id()));
        fs::write(&mine, "").expect("written");
        assert!(!is_abandoned(&mine));
        // Older than the process that has this number now.
        let old = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000);
        fs::File::options().write(true).open(&mine).and_then(|file| file.set_modified(old)).expect("set");
        assert!(is_abandoned(&mine));
        let nobody = dir.path().join(format!("a.tmp.{}", i32::MAX));
        fs::write(&nobody, "").expect("written");
        assert!(is_abandoned(&nobody));
    }

    #[test]
    fn only_abandoned_files_of_the_meant_names_are_removed() {
        let dir = tempfile::tempdir().expect("a directory");
        let (gone, here) = (i32::MAX, std::process::id());
        let names = ["plan.json".to_owned(), format!("plan.json.tmp.{gone}"), format!("plan.json.tmp.{here}")]
            .into_iter()
            .chain([format!("notes.tmp.{gone}")]);
        names.for_each(|name| fs::write(dir.path().join(name), "").expect("written"));
        remove_abandoned(dir.path(), |name| name == "plan.json").expect("removed");
        let entries = list_if_present(dir.path()).expect("listed");
        let mut left: Vec<_> = entries.iter().filter_map(|entry| entry.file_name().into_string().ok()).collect();
        left.sort_unstable();
        assert_eq!(left, [format!("notes.tmp.{gone}"), "plan.json".to_owned(), format!("plan.json.tmp.{here}")]);
        remove_abandoned(&dir.path().join("none"), |_| true).expect("nothing to do");
    }
}
