//! Lists directories completely or not at all: a listing that fails half-way never looks like a short one.

use std::fs::{self, DirEntry};
use std::io;
use std::path::Path;

/// Returns all entries of a directory. Repeats the listing if a signal interrupts it, which the standard library does
/// not do here.
///
/// # Errors
/// Fails if the directory does not exist or cannot be read completely.
pub fn list(dir: &Path) -> io::Result<Vec<DirEntry>> {
    loop {
        match fs::read_dir(dir).and_then(Iterator::collect) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            listed => return listed,
        }
    }
}

/// Returns all entries of a directory, and none if it does not exist.
///
/// # Errors
/// Fails if the directory exists and cannot be read completely.
pub fn list_if_present(dir: &Path) -> io::Result<Vec<DirEntry>> {
    match list(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        listed => listed,
    }
}

/// Reports whether there is certainly nothing at this path. A path that cannot be examined may exist.
pub fn is_absent(path: &Path) -> bool {
    let absent = |error: io::Error| matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory);
    std::fs::symlink_metadata(path).is_err_and(absent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_certainly_does_not_exist_is_absent() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("file");
        std::fs::write(&file, "").expect("written");
        let loops = dir.path().join("loops");
        std::os::unix::fs::symlink("loops", &loops).expect("made");
        let absent = [dir.path().join("none"), file.join("below")].map(|path| is_absent(&path));
        let other = [file, loops.clone(), loops.join("below")].map(|path| is_absent(&path));
        assert_eq!((absent, other), ([true; 2], [false; 3]));
    }

    #[test]
    fn an_absent_directory_is_empty_only_if_that_is_asked_for() {
        let dir = tempfile::tempdir().expect("a directory");
        fs::write(dir.path().join("a"), "").expect("written");
        let names = |entries: Vec<DirEntry>| entries.iter().map(DirEntry::file_name).collect::<Vec<_>>();
        assert_eq!(names(list(dir.path()).expect("listed")), ["a"]);
        let absent = dir.path().join("absent");
        assert!(list(&absent).is_err_and(|error| error.kind() == io::ErrorKind::NotFound));
        assert_eq!(list_if_present(&absent).expect("empty").len(), 0);
        assert!(list_if_present(&dir.path().join("a")).is_err(), "a file is no directory");
    }
}
