//! Named pipes in a worktree from which git would read for ever. Whoever may write to the worktree can put one in place
//! of a file with rules for git, and git opens it without a limit.

use std::fs::{self, DirEntry};
use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use swarm_sys::files::list;

/// Names of the files that git reads in every directory of a worktree.
const READ: [&str; 3] = [".gitignore", ".gitattributes", ".gitmodules"];
/// Time limit for a search. A file system may not answer.
const SEARCH_MAX: Duration = Duration::from_secs(5);

/// Returns a pipe below `tree` that git would read. `None` if there is none, or if the search takes too long.
pub(crate) fn find(tree: &Path) -> Option<PathBuf> {
    let (tree, (say, said)) = (tree.to_owned(), mpsc::channel());
    let deadline = Instant::now() + SEARCH_MAX;
    // A thread that the file system holds up cannot be ended.
    thread::Builder::new().spawn(move || say.send(search(tree, deadline))).ok()?;
    said.recv_timeout(SEARCH_MAX).ok().flatten()
}

fn search(tree: PathBuf, deadline: Instant) -> Option<PathBuf> {
    // Directories, and whether they belong to a repository inside: git reads several files of it.
    let mut open = vec![(tree, false)];
    while let Some((dir, is_git)) = open.pop().filter(|_| Instant::now() < deadline) {
        // What cannot be listed is no reason to stop.
        for entry in list(&dir).unwrap_or_default() {
            let name = entry.file_name();
            let is_read = is_git || READ.iter().any(|read| name == *read);
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => open.push((entry.path(), is_git || name == ".git")),
                Ok(_) if is_read && is_pipe(&entry).unwrap_or_default() => return Some(entry.path()),
                _ => {}
            }
        }
    }
    None
}

/// Reports whether this is a pipe, or a symbolic link to one.
fn is_pipe(entry: &DirEntry) -> io::Result<bool> {
    let kind = entry.file_type()?;
    let kind = if kind.is_symlink() { fs::metadata(entry.path())?.file_type() } else { kind };
    Ok(kind.is_fifo())
}

#[cfg(test)]
mod tests {
    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;

    #[test]
    fn only_pipes_that_git_reads_are_found() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = |name: &str| dir.path().join(name);
        let pipe = |name: &str| {
            fs::create_dir_all(path(name).parent().expect("a directory")).expect("created");
            mkfifo(&path(name), Mode::S_IRWXU).expect("made");
        };
        pipe("pipe");
        pipe("a/b/gitignore");
        fs::write(path(".gitignore"), "").expect("written");
        std::os::unix::fs::symlink("..", path("a/up")).expect("linked");
        assert_eq!(find(dir.path()), None);
        for name in ["a/b/.gitattributes", ".gitmodules", "sub/.git/HEAD", "sub/.git/refs/heads/x"] {
            pipe(name);
            assert_eq!(find(dir.path()), Some(path(name)));
            fs::remove_file(path(name)).expect("removed");
        }
        std::os::unix::fs::symlink("pipe", path(".gitmodules")).expect("linked");
        assert_eq!(find(dir.path()), Some(path(".gitmodules")));
        assert_eq!(find(&path("absent")), None);
    }
}
