//! Named pipes from which git would read for ever. Whoever may write to a worktree, or to the data of a repository as a
//! sandboxed agent may, can put one in place of a file, and git and libgit2 open it without a limit.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirEntry};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use swarm_sys::files::list;

use crate::worktrees::{admin, record};
pub(crate) use references::{below, in_reference, in_reference_of, in_revision};

mod references;

/// Names of the files that git reads in every directory of a worktree.
const READ: [&str; 3] = [".gitignore", ".gitattributes", ".gitmodules"];
/// Files that git reads in the directory of a worktree or a repository.
const OF_REPOSITORY: [&str; 11] = [
    "HEAD",
    "commondir",
    "config",
    "config.worktree",
    "gitdir",
    "index",
    "info/attributes",
    "info/exclude",
    "info/grafts",
    "packed-refs",
    "shallow",
];
/// Directories with objects, below those of which git may read all files.
const OF_OBJECTS: [&str; 3] = ["info", "info/commit-graphs", "pack"];
/// Maximum length of a chain of directories with objects. git and libgit2 go as far.
const ALTERNATES_MAX: u32 = 5;
/// Maximum number of directories with objects that are looked at.
const OBJECTS_MAX: usize = 1000;
/// Maximum number of directories with single objects that are remembered.
const KNOWN_MAX: usize = 100_000;
/// Upper bound of the granularity of file times.
const FILE_CLOCK_MAX: Duration = Duration::from_secs(1);
/// Time limit for a search. A file system may not answer.
const SEARCH_MAX: Duration = Duration::from_secs(5);

/// Directories with single objects in which there was no pipe, by device and inode, with the time of their last change.
/// Only the kernel sets that time.
static KNOWN: Mutex<BTreeMap<(u64, u64), (i64, i64)>> = Mutex::new(BTreeMap::new());

/// Whether to look at directories with single objects.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Loose {
    /// If they have changed since they were looked at.
    IfChanged,
    Anew,
}

/// Returns a pipe below `tree` that git would read. `None` if there is none, or if the search takes too long.
pub(crate) fn find(tree: &Path) -> Option<PathBuf> {
    let (tree, (say, said)) = (tree.to_owned(), mpsc::channel());
    let deadline = Instant::now() + SEARCH_MAX;
    // A thread that the file system holds up cannot be ended.
    thread::Builder::new().spawn(move || say.send(search(tree, deadline))).ok()?;
    said.recv_timeout(SEARCH_MAX).ok().flatten()
}

/// Returns a pipe that git would read to open the repository around `dir`, a git directory or a directory in a worktree.
/// HEAD, and what it leads to, counts; see [`in_reference_of`] for other references.
pub(crate) fn in_repository(dir: &Path) -> Option<PathBuf> {
    in_git_dir(&dir.ancestors().find_map(git_dir_at)?, Loose::IfChanged)
}

/// Like [`in_repository`], and relies on no earlier look. Also looks at all references, and at the records of worktrees.
pub(crate) fn in_repository_anew(dir: &Path) -> Option<PathBuf> {
    let git_dir = dir.ancestors().find_map(git_dir_at)?;
    in_git_dir(&git_dir, Loose::Anew).or_else(|| references::anywhere(&git_dir, &common_of(&git_dir)))
}

/// Returns a pipe among the objects of a repository. An open repository reads new ones.
pub(crate) fn among_objects(common: &Path) -> Option<PathBuf> {
    in_objects(&common.join("objects"), Loose::IfChanged, ALTERNATES_MAX, &mut BTreeSet::new())
}

fn common_of(git_dir: &Path) -> PathBuf {
    let common = record::read_text(&git_dir.join("commondir")).map(|text| git_dir.join(text.trim_end()));
    common.unwrap_or_else(|_| git_dir.to_owned())
}

fn in_git_dir(git_dir: &Path, loose: Loose) -> Option<PathBuf> {
    let common = common_of(git_dir);
    let files = [git_dir, &common].into_iter().flat_map(|dir| OF_REPOSITORY.map(|name| dir.join(name)));
    files
        .chain([git_dir.to_owned()])
        .find(|file| is_pipe_at(file))
        .or_else(|| references::in_reference(git_dir, &common, "HEAD"))
        .or_else(|| in_objects(&common.join("objects"), loose, ALTERNATES_MAX, &mut BTreeSet::new()))
}

/// Returns the git directory if `dir` is one, or has one. A pipe in place of `.git` counts as one.
fn git_dir_at(dir: &Path) -> Option<PathBuf> {
    let dot_git = dir.join(".git");
    let is_git_dir = || ["objects", "commondir"].iter().any(|name| dir.join(name).symlink_metadata().is_ok());
    match admin::link_of(dir) {
        Ok(Some(target)) => Some(target),
        _ if dot_git.is_dir() || is_pipe_at(&dot_git) => Some(dot_git),
        _ => Some(dir.to_owned()).filter(|dir| dir.join("HEAD").symlink_metadata().is_ok() && is_git_dir()),
    }
}

/// Looks into a directory with objects and those that it names, each once, as git does.
fn in_objects(objects: &Path, loose: Loose, depth: u32, seen: &mut BTreeSet<(u64, u64)>) -> Option<PathBuf> {
    let meta = fs::metadata(objects).ok().filter(|_| seen.len() < OBJECTS_MAX)?;
    if !seen.insert((meta.dev(), meta.ino())) {
        return None;
    }
    // Without a repository, or in one without packs, these are missing.
    let files = OF_OBJECTS.iter().flat_map(|name| list(&objects.join(name)).unwrap_or_default());
    let found = files.filter(|file| is_pipe(file).unwrap_or_default()).map(|file| file.path()).next();
    found.or_else(|| in_loose(objects, loose)).or_else(|| {
        let text = record::read_text(&objects.join("info/alternates")).ok().filter(|_| depth > 0)?;
        let mut lines = text.lines().filter(|line| !line.is_empty());
        lines.find_map(|line| in_objects(&objects.join(line), loose, depth - 1, seen))
    })
}

/// Looks at single objects: one directory for each first byte of their names.
fn in_loose(objects: &Path, loose: Loose) -> Option<PathBuf> {
    let is_of_byte = |entry: &DirEntry| entry.file_name().as_bytes().len() == 2;
    let dirs = list(objects).unwrap_or_default().into_iter().filter(is_of_byte);
    dirs.map(|dir| dir.path()).find_map(|dir| in_loose_dir(&dir, loose))
}

fn in_loose_dir(dir: &Path, loose: Loose) -> Option<PathBuf> {
    let meta = fs::metadata(dir).ok()?;
    let (id, changed) = ((meta.dev(), meta.ino()), (meta.ctime(), meta.ctime_nsec()));
    let known = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if loose == Loose::IfChanged && known().get(&id) == Some(&changed) {
        return None;
    }
    let files = list(dir).ok()?;
    if let Some(file) = files.iter().find(|file| is_pipe(file).unwrap_or_default()) {
        return Some(file.path());
    }
    let at = Duration::new(u64::try_from(meta.ctime()).ok()?, u32::try_from(meta.ctime_nsec()).ok()?);
    let age = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH + at);
    // A directory that changed just now may change again at the same time. What a link leads to may change unnoticed.
    let is_settled = age.is_ok_and(|age| age > FILE_CLOCK_MAX);
    if is_settled && !files.iter().any(|file| file.file_type().is_ok_and(|kind| kind.is_symlink())) {
        let mut known = known();
        if known.len() >= KNOWN_MAX {
            known.clear();
        }
        known.insert(id, changed);
    }
    None
}

/// Reports whether this is a pipe, or a link to one.
pub(crate) fn is_pipe_at(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|meta| meta.file_type().is_fifo())
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
    use crate::fixture::{Fixture, text};
    use crate::repository::cli::CliError;
    use crate::repository::objects;

    #[test]
    fn a_pipe_in_the_data_of_a_repository_is_found_before_it_is_opened() {
        let fix = Fixture::new();
        let tree = fix.root.join("w");
        fix.git(&["worktree", "add", "-q", tree.to_str().expect("text")]);
        let (git, record, other) = (fix.repo.join(".git"), fix.repo.join(".git/worktrees/w"), fix.root.join("other"));
        fs::create_dir_all(other.join("info")).expect("made");
        let unpacked = git.join("objects/info/alternates");
        fs::write(&unpacked, format!("{}\n", other.display())).expect("written");
        fs::create_dir_all(tree.join("d")).expect("made");
        let dirs = [&fix.repo, &git, &record, &tree, &tree.join("d")];
        assert!(dirs.iter().all(|dir| in_repository(dir).is_none()));
        let names = ["packed-refs", "shallow", "objects/pack/multi-pack-index", "objects/pack/pack-x.idx"];
        let names = names.map(|name| git.join(name)).into_iter();
        for pipe in names.chain([git.join("objects/info/commit-graph"), other.join("info/alternates")]) {
            mkfifo(&pipe, Mode::S_IRWXU).expect("made");
            for dir in dirs {
                assert_eq!(in_repository(dir).map(|found| found.canonicalize().expect("there")).as_ref(), Some(&pipe));
                assert!(objects::open(dir).is_err_and(|error| error.message().ends_with("which is a named pipe")));
            }
            fs::remove_file(&pipe).expect("removed");
        }
        fs::remove_file(&unpacked).expect("removed");
        mkfifo(&unpacked, Mode::S_IRWXU).expect("made");
        let cli = fix.cli();
        assert!(objects::discover(&cli, &tree).is_err());
        // git itself waits, and is ended.
        let held = cli.read(&tree).args(["cat-file", "-e", &"1".repeat(40)]).run().expect_err("held up");
        assert!(matches!(&held, CliError::Pipe(found) if found.ends_with("objects/info/alternates")), "{held:?}");
    }

    #[test]
    fn a_pipe_in_place_of_a_single_object_is_found_whenever_it_is_made() {
        let fix = Fixture::new();
        let commit = text(&fix.git(&["rev-parse", "HEAD"]));
        let dir = fix.repo.join(".git/objects").join(&commit[..2]);
        let (object, saved) = (dir.join(&commit[2..]), fix.root.join("saved"));
        for _ in 0..2 {
            assert_eq!((in_repository(&fix.repo), in_repository_anew(&fix.repo)), (None, None));
            fs::rename(&object, &saved).expect("moved");
            mkfifo(&object, Mode::S_IRWXU).expect("made");
            assert_eq!(in_repository(&fix.repo).as_ref(), Some(&object));
            assert_eq!(among_objects(&fix.repo.join(".git")).as_ref(), Some(&object));
            assert!(objects::open(&fix.repo).is_err());
            let held = fix.cli().read(&fix.repo).args(["cat-file", "-p", &commit]).run().expect_err("held up");
            assert!(matches!(&held, CliError::Pipe(found) if *found == object), "{held:?}");
            fs::rename(&saved, &object).expect("moved");
        }
    }

    #[test]
    fn a_directory_with_single_objects_is_listed_again_once_it_has_changed() {
        let (linked, dir) = (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
        std::os::unix::fs::symlink("elsewhere", linked.path().join("link")).expect("linked");
        let pipe = dir.path().join("pipe");
        fs::write(dir.path().join("object"), "").expect("written");
        let known = |dir: &Path| {
            let meta = fs::metadata(dir).expect("there");
            let known = KNOWN.lock().expect("not poisoned");
            known.get(&(meta.dev(), meta.ino())) == Some(&(meta.ctime(), meta.ctime_nsec()))
        };
        let look = || in_loose_dir(dir.path(), Loose::IfChanged);
        // The kernel alone sets the time.
        while !known(dir.path()) {
            assert_eq!(look(), None);
            thread::yield_now();
        }
        assert_eq!(in_loose_dir(linked.path(), Loose::IfChanged), None);
        assert!(!known(linked.path()), "what the link leads to may become a pipe");
        mkfifo(&pipe, Mode::S_IRWXU).expect("made");
        assert!(!known(dir.path()));
        assert_eq!((look(), look()), (Some(pipe.clone()), Some(pipe.clone())));
    }

    #[test]
    fn directories_with_objects_that_name_each_other_are_looked_at_once() {
        let fix = Fixture::new();
        let objects = fix.repo.join(".git/objects");
        let other = fix.root.join("other");
        fs::create_dir_all(other.join("info")).expect("made");
        let lines = format!("{}\n{}\n", objects.display(), other.display()).repeat(2000);
        fs::write(objects.join("info/alternates"), &lines).expect("written");
        fs::write(other.join("info/alternates"), &lines).expect("written");
        assert_eq!(in_repository(&fix.repo), None);
        mkfifo(&other.join("info/commit-graph"), Mode::S_IRWXU).expect("made");
        assert_eq!(in_repository(&fix.repo), Some(other.join("info/commit-graph")));
    }

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
