//! Scratch directories that are no longer used and could not be cleaned. Each is renamed first, so that a new one can take
//! its place whatever is in it, and then deleted. What cannot be deleted stays under its new name.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::repository::fault::Fault;
use swarm_sys::files;
use swarm_sys::paths::Paths;

/// Beginning of the names of these directories, beside the one that was renamed. A number follows.
const NAME: &str = "discarded-";
/// Maximum number of such directories in a queue.
const COUNT_MAX: usize = 10;

/// Deletes what is at `path`, or moves it out of the way and deletes as much of it as possible. Does nothing if there is
/// nothing.
///
/// # Errors
/// Fails if `path` cannot be moved, or if there are too many such directories already.
pub(super) fn discard(path: &Path) -> Result<(), Fault> {
    discard_with(path, files::remove_tree)
}

fn discard_with(path: &Path, remove: fn(&Path) -> io::Result<()>) -> Result<(), Fault> {
    if files::is_absent(path) {
        return Ok(());
    }
    let own = path.parent().unwrap_or(path);
    let left = sweep_with(own, remove);
    if left.len() >= COUNT_MAX {
        let all = own.join(format!("{NAME}*"));
        let cause = format!("cannot delete {} directories that earlier commands left: {}", left.len(), all.display());
        return Err(Fault::new(cause).remedy("delete them with the rights of the user to whom their files belong"));
    }
    let aside = move_aside(path, own).map_err(Fault::at(path))?;
    delete(&aside, remove);
    Ok(())
}

/// Renames a file or directory to a free name beside it.
fn move_aside(path: &Path, own: &Path) -> io::Result<PathBuf> {
    let mut number = 1_u32;
    loop {
        let aside = own.join(format!("{NAME}{number}"));
        if files::is_absent(&aside) {
            match fs::rename(path, &aside) {
                // A verification and a resolver may end at the same time.
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::AlreadyExists) => {}
                moved => return moved.map(|()| aside),
            }
        }
        number += 1;
    }
}

/// Tries again to delete the discarded directories of a queue, for example because their deletion was interrupted. Returns
/// those that stay.
pub(super) fn sweep(own: &Path) -> Vec<PathBuf> {
    sweep_with(own, files::remove_tree)
}

fn sweep_with(own: &Path, remove: fn(&Path) -> io::Result<()>) -> Vec<PathBuf> {
    of_queue(own).into_iter().filter(|path| !delete(path, remove)).collect()
}

/// Returns whether nothing is left.
fn delete(path: &Path, remove: fn(&Path) -> io::Result<()>) -> bool {
    let removed = remove(path);
    if let Err(error) = &removed {
        tracing::warn!(path = %path.display(), %error, "cannot delete a scratch directory of a merge queue");
    }
    removed.is_ok()
}

fn of_queue(own: &Path) -> Vec<PathBuf> {
    let is_discarded = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.strip_prefix(NAME).is_some_and(|number| number.parse::<u32>().is_ok())
    };
    let entries = files::list_if_present(own).unwrap_or_default().into_iter();
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(is_discarded).collect();
    found.sort();
    found
}

/// Returns the discarded directories of all queues.
pub fn discarded(paths: &Paths) -> Vec<PathBuf> {
    let queues = files::list_if_present(&paths.merges()).unwrap_or_default();
    queues.iter().flat_map(|queue| of_queue(&queue.path())).collect()
}

/// Deletes a discarded directory. Does nothing if it is none.
///
/// # Errors
/// Fails if some of it cannot be deleted.
pub fn delete_discarded(paths: &Paths, path: &Path) -> io::Result<()> {
    if !discarded(paths).iter().any(|known| known == path) {
        return Ok(());
    }
    files::remove_tree(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_deleted_is_out_of_the_way_and_limited_in_number() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(dir.path());
        let (own, fails) = (paths.merges().join("queue"), |_: &Path| Err(io::Error::other("not mine")));
        let path = own.join("verify");
        fs::create_dir_all(own.join("left")).unwrap();
        fs::write(own.join(format!("{NAME}journal")), "").unwrap();
        discard_with(&path, fails).expect("there is nothing");
        for count in 1..=COUNT_MAX {
            fs::create_dir(&path).unwrap();
            fs::write(path.join("file"), "").unwrap();
            discard_with(&path, fails).unwrap();
            assert_eq!((path.exists(), discarded(&paths).len()), (false, count));
        }
        fs::write(&path, "a file in its place").unwrap();
        let fault = discard_with(&path, fails).unwrap_err();
        let all = own.join("discarded-*");
        let cause = format!("cannot delete 10 directories that earlier commands left: {}", all.display());
        assert_eq!(fault.cause, cause);
        assert!(path.exists(), "and nothing is lost");
        // With a removal that succeeds, the next call deletes all of them.
        discard(&path).unwrap();
        assert!(!path.exists() && discarded(&paths).is_empty());
        assert!(own.join("left").exists() && own.join(format!("{NAME}journal")).exists());
    }

    #[test]
    fn only_a_discarded_directory_is_deleted_on_request() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(dir.path());
        let (verify, old) = (paths.merges().join("q/verify"), paths.merges().join("q/discarded-7"));
        for path in [&verify, &old] {
            fs::create_dir_all(path.join("a/b")).unwrap();
            delete_discarded(&paths, path).unwrap();
        }
        assert!(verify.exists() && !old.exists());
    }
}
