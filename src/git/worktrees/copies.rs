//! Ignored files for a new worktree: copies of files of the base checkout that match patterns,
//! by reflink if the file system supports it, and symbolic links to others. Never overwrites a
//! file, and never writes outside of the worktree.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{self, File, FileTimes, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use nix::libc;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

use super::settings::WorktreeSettings;
use super::{admin, identity, include, record};
use crate::repository::cli::Cli;
use crate::repository::fault::Fault;
use crate::repository::writer;
use crate::trash::raw;
use crate::trash::scratch::Scratch;
use swarm_sys::files;

/// File at the repository's root with patterns as in `.gitignore`.
pub(crate) const FILE: &str = ".worktreeinclude";
/// Maximum size of that file in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// File in the worktree's entry that lists the copies and the state of each when it was made.
const COPIED: &str = "swarm-copied";
/// Empty file in the worktree's entry, written when the worktree was set up.
const SET_UP: &str = "swarm-ready";
/// Start of the name under which a file is copied.
const COPYING: &str = ".swarm-copying-";
/// Directories of swarm and similar programs, which are never copied.
const EXCLUDED: [&str; 4] = [".git", ".agent", ".arial", ".a-society"];

/// Returns the ignored files of the base checkout that a new worktree gets.
pub(crate) fn wanted(cli: &Cli, base: &Path, settings: &WorktreeSettings) -> Result<Vec<Vec<u8>>, Fault> {
    let common = admin::common_dir(base).map_err(Fault::at(base))?;
    listed(cli, base, &common, settings).map(|(wanted, _)| wanted)
}

/// Returns the ignored files of the base checkout that a new worktree gets, and all ignored paths as git lists them.
fn listed(
    cli: &Cli,
    base: &Path,
    git_dir: &Path,
    settings: &WorktreeSettings,
) -> Result<(Vec<Vec<u8>>, Vec<u8>), Fault> {
    let Some(patterns) = patterns(base, settings)? else { return Ok((Vec::new(), Vec::new())) };
    let mut list = Scratch::new(git_dir, "patterns");
    list.create()?.write_all(&patterns).map_err(Fault::at(list.path()))?;
    let mut from = std::ffi::OsString::from("--exclude-from=");
    from.push(list.path());
    let named = cli.read(base).args(["ls-files", "-z", "--others", "--ignored"]).arg(from).run()?;
    let listed =
        cli.read(base).args(["ls-files", "-z", "--others", "--ignored", "--exclude-standard", "--directory"]).run()?;
    let ignored = Ignored::read(&listed);
    let named = named.split(|byte| *byte == 0).filter(|path| !path.is_empty() && !is_excluded(path));
    let wanted = named.filter(|path| ignored.has(path)).map(<[u8]>::to_vec).collect();
    Ok((wanted, listed))
}

pub(crate) fn copy_ignored(
    cli: &Cli,
    base: &Path,
    tree: &Path,
    record: &Path,
    settings: &WorktreeSettings,
) -> Result<(), Fault> {
    let (wanted, ignored) = listed(cli, base, record, settings)?;
    let ignored = Ignored::read(&ignored);
    if wanted.is_empty() {
        return Ok(());
    }
    // A file that the worktree's own commit does not ignore would look like work there.
    let named = |option: &str, path: &Path| {
        let mut word = std::ffi::OsString::from(option);
        word.push(path);
        word
    };
    let call = cli.read(tree).within(tree).args([named("--git-dir=", record), named("--work-tree=", tree)]);
    let call = call.args(["check-ignore", "-z", "--stdin", "--no-index"]);
    let known = raw::output_with_input_for(call, record, &wanted.join(&0), &[0, 1])?;
    let (mut copied, mut tidied) = (Vec::new(), HashSet::new());
    for path in known.split(|byte| *byte == 0).filter(|path| !path.is_empty()) {
        let name = Path::new(OsStr::from_bytes(path));
        let to = tree.join(name);
        if fs::symlink_metadata(&to).is_ok() {
            continue;
        }
        create_parents(base, tree, name)?;
        if tidied.insert(to.parent().map(Path::to_owned)) {
            remove_interrupted(&to);
        }
        match copy(&base.join(name), &to) {
            Ok(()) => {}
            // Deleted in the meantime.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(Fault::at(&base.join(name))(error)),
        }
        if !ignored.is_in_directory(path) {
            let fingerprint = fingerprint(&to).map_err(Fault::at(&to))?;
            copied.extend_from_slice(format!("{fingerprint} ").as_bytes());
            copied.extend_from_slice(path);
            copied.push(0);
        }
    }
    let note = record.join(COPIED);
    // Copies from an earlier setup, or restored from a save, are still copies.
    let new: HashSet<&[u8]> = entries(&copied).map(|(_, path)| path).collect();
    let earlier = record::read(&note).unwrap_or_default();
    let kept = entries(&earlier).filter(|(_, path)| !new.contains(path));
    let kept: Vec<u8> = kept.flat_map(|(fingerprint, path)| [fingerprint, b" ", path, b"\0"].concat()).collect();
    record::write(&note, &[kept, copied].concat()).map_err(Fault::at(&note))
}

/// Parses the copy list: the state of each copy, and its path.
fn entries(note: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    note.split(|byte| *byte == 0).filter_map(|entry| {
        let at = entry.iter().position(|byte| *byte == b' ')?;
        Some((&entry[..at], &entry[at + 1..]))
    })
}

/// Creates the configured links to the base checkout if their targets exist.
pub(crate) fn link_ignored(cli: &Cli, base: &Path, tree: &Path, settings: &WorktreeSettings) -> Result<(), Fault> {
    for name in &settings.link {
        let from = base.join(name);
        let Ok(real) = from.canonicalize() else { continue };
        if !base.canonicalize().is_ok_and(|root| real.starts_with(root)) {
            return Err(Fault::new(format!("worktree.link: '{name}' points outside of the repository")));
        }
        let (code, _) = cli.read(base).args(["check-ignore", "-q", "--", name]).run_for(&[0, 1])?;
        if code != 0 {
            return Err(Fault::new(format!("worktree.link: '{name}' is not ignored by git"))
                .remedy("add it to .gitignore or remove it from worktree.link"));
        }
        let to = tree.join(name);
        if fs::symlink_metadata(&to).is_ok() {
            continue;
        }
        create_parents(base, tree, Path::new(name))?;
        // A pattern for a directory does not match a symbolic link to one.
        crate::repository::exclude::exclude_path(base, name).map_err(Fault::at(base))?;
        symlink(&from, &to).map_err(Fault::at(&to))?;
    }
    Ok(())
}

/// Returns the copies that changed since they were made. Deleted copies do not count, and neither do files that were sent from
/// another machine: they may be secret, and go with the worktree.
pub(crate) fn changed(tree: &Path, record: &Path) -> Vec<Vec<u8>> {
    let text = record::read(&record.join(COPIED)).unwrap_or_default();
    let common = record::read_text(&record.join("commondir")).unwrap_or_default();
    let withheld = include::withheld(&record.join(common.trim_end()));
    let is_changed = |then: &[u8], path: &[u8]| {
        // git adds nothing that is reached through a link.
        let copy = admin::without_links(tree, Path::new(OsStr::from_bytes(path)));
        copy.is_some_and(|copy| fingerprint(&copy).is_ok_and(|now| now.as_bytes() != then))
    };
    let is_work = |then: &[u8], path: &[u8]| !withheld.contains(path) && is_changed(then, path);
    entries(&text).filter(|(then, path)| is_work(then, path)).map(|(_, path)| path.to_vec()).collect()
}

/// Returns the ignored files that somebody made in a worktree since it was set up, apart from copies, and from what is in
/// directories that are ignored as a whole. They are no work, and go with the worktree.
pub(crate) fn made_since(cli: &Cli, tree: &Path, base_repo: &Path) -> Result<Vec<String>, Fault> {
    let Some(place) = identity::open(cli, tree, base_repo)? else { return Ok(Vec::new()) };
    let list = ["ls-files", "-z", "--others", "--ignored", "--exclude-standard", "--directory"];
    let listed = place.call(cli.read(tree)).args(list).run()?;
    let note = record::read(&place.git_dir.join(COPIED)).unwrap_or_default();
    let copied: HashSet<&[u8]> = entries(&note).map(|(_, path)| path).collect();
    let changed_at = |path: &Path| fs::symlink_metadata(path).ok().filter(fs::Metadata::is_file)?.modified().ok();
    let set_up_at = changed_at(&place.git_dir.join(SET_UP));
    let is_made = |path: &&[u8]| {
        let changed_at = changed_at(&tree.join(OsStr::from_bytes(path)));
        !copied.contains(path) && !is_excluded(path) && changed_at.is_some() && changed_at > set_up_at
    };
    let listed = Ignored::read(&listed);
    let mut made: Vec<String> =
        listed.files.into_iter().filter(is_made).map(|path| String::from_utf8_lossy(path).into_owned()).collect();
    made.sort_unstable();
    Ok(made)
}

/// Notes that a worktree is set up, from which [`made_since`] counts. Without the note it counts all files.
pub(crate) fn note_set_up(common: &Path, tree: &Path) {
    if let Ok(Some(entry)) = admin::entry_of(common, tree) {
        let _ = record::write(&entry.join(SET_UP), b"");
    }
}

/// Returns the copies whose originals changed or are gone since they were made.
pub(crate) fn stale(base: &Path, record: &Path) -> Vec<Vec<u8>> {
    let text = record::read(&record.join(COPIED)).unwrap_or_default();
    // The inode alone differs between an original and its copy.
    let without_inode = |fingerprint: &[u8]| fingerprint.rsplitn(2, |byte| *byte == b':').nth(1).map(<[u8]>::to_vec);
    let is_stale = |then: &[u8], path: &[u8]| {
        let now = fingerprint(&base.join(OsStr::from_bytes(path)));
        now.map_or(true, |now| without_inode(now.as_bytes()) != without_inode(then))
    };
    entries(&text).filter(|(then, path)| is_stale(then, path)).map(|(_, path)| path.to_vec()).collect()
}

/// Removes copies from a worktree, so that they are made again. A copy that is reached through a symbolic link stays,
/// because it is somebody else's file.
pub(crate) fn remove(tree: &Path, copies: &[Vec<u8>]) -> Result<(), Fault> {
    let root = tree.canonicalize().map_err(Fault::at(tree))?;
    for name in paths(copies) {
        if let Some(copy) = admin::without_links(&root, &name) {
            admin::ignore_missing(fs::remove_file(&copy)).map_err(Fault::at(&copy))?;
        }
    }
    Ok(())
}

/// Marks copies as changed regardless of their state, because they come from a save.
pub(crate) fn mark_changed(record: &Path, paths: &[Vec<u8>]) -> io::Result<()> {
    if paths.is_empty() {
        return Ok(());
    }
    let lines: Vec<u8> = paths.iter().flat_map(|path| [b"- ".as_slice(), path, b"\0"].concat()).collect();
    record::write(&record.join(COPIED), &lines)
}

/// Returns size, times, mode and inode as text; writing a file changes it.
fn fingerprint(path: &Path) -> io::Result<String> {
    let meta = fs::symlink_metadata(path)?;
    Ok(format!("{}:{}.{}:{:o}:{}", meta.len(), meta.mtime(), meta.mtime_nsec(), meta.mode(), meta.ino()))
}

/// Returns the content of the file with patterns in the base checkout; nothing if there is none.
pub(crate) fn included(base: &Path) -> Result<Vec<u8>, Fault> {
    let path = base.join(FILE);
    let failed = Fault::at(&path);
    let unfit = |what: &str| Fault::new(format!("{} is {what}", path.display()));
    // A link is followed. To read a pipe would block, and a device may never end.
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&path);
    let Some(file) = admin::ignore_missing(opened).map_err(&failed)? else { return Ok(Vec::new()) };
    if !file.metadata().map_err(&failed)?.is_file() {
        return Err(unfit("not a regular file"));
    }
    let mut text = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut text).map_err(&failed)?;
    if text.len() as u64 > FILE_BYTES_MAX { Err(unfit("larger than 1 MiB")) } else { Ok(text) }
}

fn patterns(base: &Path, settings: &WorktreeSettings) -> Result<Option<Vec<u8>>, Fault> {
    let path = base.join(FILE);
    let mut text = included(base)?;
    if text.split(|byte| *byte == b'\n').any(|line| line.split(|byte| *byte == b'/').any(|part| part == b"..")) {
        return Err(Fault::new(format!("{} has a pattern outside of the repository", path.display())));
    }
    for pattern in &settings.include {
        text.push(b'\n');
        text.extend_from_slice(pattern.as_bytes());
    }
    Ok(Some(text).filter(|text| !text.trim_ascii().is_empty()))
}

pub(crate) fn is_excluded(path: &[u8]) -> bool {
    path.split(|byte| *byte == b'/')
        .any(|part| EXCLUDED.iter().any(|excluded| part.eq_ignore_ascii_case(excluded.as_bytes())))
}

/// Ignored paths of the base checkout: single files, and whole directories.
struct Ignored<'a> {
    files: HashSet<&'a [u8]>,
    dirs: HashSet<&'a [u8]>,
}

impl<'a> Ignored<'a> {
    fn read(out: &'a [u8]) -> Self {
        let (mut files, mut dirs) = (HashSet::new(), HashSet::new());
        for path in out.split(|byte| *byte == 0).filter(|path| !path.is_empty()) {
            match path.strip_suffix(b"/") {
                Some(dir) => dirs.insert(dir),
                None => files.insert(path),
            };
        }
        Self { files, dirs }
    }

    fn has(&self, path: &[u8]) -> bool {
        self.files.contains(path) || self.is_in_directory(path)
    }

    /// Reports whether the path is inside a directory that is ignored as a whole; tools generate such files.
    fn is_in_directory(&self, path: &[u8]) -> bool {
        let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
        ends.into_iter().any(|at| self.dirs.contains(&path[..at]))
    }
}

/// Creates the parent directories with the permissions of the base checkout. Fails if one of
/// them is a file or a symbolic link, which may lead elsewhere.
fn create_parents(base: &Path, tree: &Path, name: &Path) -> Result<(), Fault> {
    let above: Vec<&Path> = name.ancestors().skip(1).filter(|dir| !dir.as_os_str().is_empty()).collect();
    for dir in above.into_iter().rev() {
        let path = tree.join(dir);
        match fs::symlink_metadata(&path) {
            Ok(meta) if meta.is_dir() => {}
            Ok(_) => {
                let cause = format!(
                    "cannot copy {} into the worktree: {} is not a directory there",
                    name.display(),
                    dir.display()
                );
                return Err(Fault::new(cause));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                fs::create_dir(&path).map_err(Fault::at(&path))?;
                if let Ok(meta) = fs::metadata(base.join(dir)) {
                    fs::set_permissions(&path, meta.permissions()).map_err(Fault::at(&path))?;
                }
            }
            Err(error) => return Err(Fault::at(&path)(error)),
        }
    }
    Ok(())
}

/// Copies a file with its mode and modification time, and a symbolic link as a link.
pub(crate) fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let meta = fs::symlink_metadata(from)?;
    if meta.is_symlink() {
        return symlink(fs::read_link(from)?, to);
    }
    if !meta.is_file() {
        // Sockets and pipes belong to the processes that created them.
        return Ok(());
    }
    let mut source = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(from)?;
    // Under another name, so that an interrupted copy is never taken for the file.
    let temporary = temporary(to);
    let mut copy = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
    let mut fill = || {
        if rustix::fs::ioctl_ficlone(&copy, &source).is_err() {
            // Copies inside the kernel if possible.
            io::copy(&mut source, &mut copy)?;
        }
        finish(&copy, &meta)?;
        rename_new(&temporary, to)
    };
    fill().inspect_err(|_| drop(fs::remove_file(&temporary)))
}

/// Returns the name under which a file is copied.
fn temporary(to: &Path) -> PathBuf {
    let dir = to.parent().unwrap_or(to);
    dir.join(format!("{COPYING}{}", writer::own_next()))
}

/// Renames a file to a name that does not exist.
fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // Some network file systems know no such rename.
        Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {
            fs::hard_link(from, to)?;
            fs::remove_file(from)
        }
        renamed => Ok(renamed?),
    }
}

/// Removes what interrupted copies left in the directory of a file.
fn remove_interrupted(to: &Path) {
    for file in to.parent().and_then(|dir| files::list(dir).ok()).into_iter().flatten() {
        if file.file_name().as_bytes().starts_with(COPYING.as_bytes()) {
            let _ = fs::remove_file(file.path());
        }
    }
}

fn finish(copy: &File, meta: &fs::Metadata) -> io::Result<()> {
    copy.set_permissions(fs::Permissions::from_mode(meta.permissions().mode() & 0o7777))?;
    copy.set_times(FileTimes::new().set_modified(meta.modified()?))
}

/// Converts raw paths.
pub(crate) fn paths(paths: &[Vec<u8>]) -> Vec<PathBuf> {
    paths.iter().map(|path| PathBuf::from(OsStr::from_bytes(path))).collect()
}
