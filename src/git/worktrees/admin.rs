//! git's administrative directories of worktrees, `<common>/worktrees/<id>`, here called entries.
//! This module reads their files directly, so that an incomplete entry is understood even if git
//! itself fails on it.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use swarm_sys::files;

use super::remove::REMOVING;
use super::{identity, owner, record, removable};

/// Maximum size of a `.git` file: the longest path and some words.
const LINK_BYTES_MAX: u64 = 8 << 10;

/// Content of `locked` while git creates a worktree.
const INITIALIZING: &str = "initializing";

/// Returns the common directory of the repository whose worktree has its root at `toplevel`.
pub(crate) fn common_dir(toplevel: &Path) -> io::Result<PathBuf> {
    let dot_git = toplevel.join(".git");
    let git_dir = match link_of(toplevel)? {
        Some(target) => target,
        None if dot_git.is_dir() => dot_git,
        None => {
            return Err(io::Error::new(
                io::ErrorKind::NotFound,
                format!("{} is not a git repository", toplevel.display()),
            ));
        }
    };
    let common = match record::read_text(&git_dir.join("commondir")) {
        Ok(text) => git_dir.join(text.trim_end()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => git_dir,
        Err(error) => return Err(error),
    };
    common.canonicalize()
}

/// Returns the target of the `.git` file of a worktree, or `None` if `.git` is anything else or
/// does not exist. Whoever can write to the worktree chooses the target: it is compared with the record, and no git
/// follows it. See `identity`.
pub(crate) fn link_of(tree: &Path) -> io::Result<Option<PathBuf>> {
    let dot_git = tree.join(".git");
    // The file is an agent's to replace: no link is followed, and a pipe does not block.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::io::retry_on_intr(|| rustix::fs::open(&dot_git, flags, Mode::empty())) {
        Ok(fd) => fs::File::from(fd),
        // A symbolic link and a socket cannot be opened.
        Err(Errno::NOENT | Errno::LOOP | Errno::NXIO) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    if !file.metadata()?.is_file() {
        return Ok(None);
    }
    let mut text = Vec::new();
    file.take(LINK_BYTES_MAX + 1).read_to_end(&mut text)?;
    let is_short = text.len() as u64 <= LINK_BYTES_MAX;
    Ok(identity::target_of(&text).filter(|_| is_short).map(|target| tree.join(target)))
}

/// Reports whether a power cut took the end of a file that git writes in one piece. An index that git wrote without a
/// checksum looks the same.
pub(crate) fn is_torn(content: &[u8]) -> bool {
    content.is_empty() || content.ends_with(b"\0")
}

/// Returns the worktree path in the content of a `gitdir` file, or `None` if there is none.
fn named_tree(entry: &Path, text: &[u8]) -> Option<PathBuf> {
    let named = Some(text.trim_ascii_end()).filter(|named| !is_torn(named))?;
    entry.join(OsStr::from_bytes(named)).parent().map(resolved)
}

/// Returns the worktree path that an entry names, or `None` if it cannot be read.
pub(crate) fn tree_of(entry: &Path) -> Option<PathBuf> {
    named_tree(entry, &record::read(&entry.join("gitdir")).ok()?)
}

/// Returns the worktree path that an entry names. An unreadable entry is an error; an
/// incomplete one yields `None`.
pub(crate) fn known_tree_of(entry: &Path) -> io::Result<Option<PathBuf>> {
    let text = ignore_missing(record::read(&entry.join("gitdir")))?;
    Ok(text.and_then(|text| named_tree(entry, &text)))
}

/// Returns the entry of the worktree at `path`, whether or not that directory exists. An agent may write the path of any
/// worktree to its own entry: of several entries, the one to which the worktree leads counts.
///
/// # Errors
/// Fails if no readable entry matches and some entry was unreadable: the worktree must not
/// be mistaken for one of another repository.
pub(crate) fn entry_of(common: &Path, path: &Path) -> io::Result<Option<PathBuf>> {
    let mut found = entries_of(common, path)?;
    let own = if found.len() > 1 { found.iter().position(|entry| leads_to(path, entry)) } else { None };
    Ok(own.map(|own| found.swap_remove(own)).or_else(|| found.into_iter().next()))
}

/// Returns all entries that name the worktree at `path`.
///
/// # Errors
/// Fails as [`entry_of`] does.
pub(crate) fn entries_of(common: &Path, path: &Path) -> io::Result<Vec<PathBuf>> {
    let path = resolved(path);
    let (mut found, mut failed) = (Vec::new(), None);
    for entry in entries(common)? {
        match record::read(&entry.join("gitdir")) {
            Ok(text) if named_tree(&entry, &text).is_some_and(|tree| tree == path) => found.push(entry),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => failed = Some(error),
        }
    }
    failed.filter(|_| found.is_empty()).map_or(Ok(found), Err)
}

/// Reports whether the `.git` file of the worktree at `tree` leads to the entry.
pub(crate) fn leads_to(tree: &Path, entry: &Path) -> bool {
    link_of(tree).ok().flatten().is_some_and(|link| resolved(&link) == resolved(entry))
}

/// Reports whether an entry names a worktree that is not its own: the base checkout, or one that leads to another entry
/// which names it as well.
///
/// # Errors
/// Fails as [`entry_of`] does.
pub(crate) fn is_of_another(common: &Path, entry: &Path, tree: &Path) -> io::Result<bool> {
    if checkout_of(common).is_some_and(|main| resolved(main) == resolved(tree)) {
        return Ok(true);
    }
    Ok(!leads_to(tree, entry) && entries_of(common, tree)?.iter().any(|other| leads_to(tree, other)))
}

/// Returns the other worktrees of the repository that exist inside the worktree at `path`, sorted. git does not know
/// them there: its status of the outer worktree says nothing about one in an ignored directory.
///
/// # Errors
/// Fails if an entry cannot be read, or if it is unknown whether its worktree exists.
pub(crate) fn trees_inside(common: &Path, path: &Path) -> io::Result<Vec<PathBuf>> {
    let path = resolved(path);
    let mut found = Vec::new();
    for entry in entries(common)? {
        let named = match known_tree_of(&entry) {
            // Not a directory, so not an entry.
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => continue,
            named => named?,
        };
        let Some(tree) = named.filter(|tree| *tree != path) else { continue };
        let is_inside = tree.starts_with(&path);
        match fs::symlink_metadata(&tree) {
            Ok(_) => found.extend(Some(tree).filter(|_| is_inside)),
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                found.extend(moved_inside(&entry, &tree, &path)?);
            }
            // That of another worktree elsewhere does not matter.
            Err(error) if is_inside => return Err(error),
            Err(_) => {}
        }
    }
    found.sort();
    Ok(found)
}

/// Returns the place inside `path` of a worktree that no longer exists where its entry says: whoever moves a worktree
/// moves those inside it, whose entries then still name the old path. Only its `.git` file leads to the entry.
fn moved_inside(entry: &Path, old: &Path, path: &Path) -> io::Result<Option<PathBuf>> {
    let parts: Vec<_> = old.components().skip(1).collect();
    // The repository may have moved, too. That of a submodule does not end like this.
    let end = Path::new("worktrees").join(entry.file_name().unwrap_or_default());
    for first in 0..parts.len() {
        let tree = path.join(parts[first..].iter().collect::<PathBuf>());
        let link = match link_of(&tree) {
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => continue,
            link => link?,
        };
        let tree = resolved(&tree);
        if link.is_some_and(|link| link.ends_with(&end)) && tree.starts_with(path) {
            return Ok(Some(tree));
        }
    }
    Ok(None)
}

pub(crate) fn entries(common: &Path) -> io::Result<Vec<PathBuf>> {
    let listed = files::list_if_present(&common.join("worktrees"))?;
    Ok(listed.into_iter().map(|entry| entry.path()).collect())
}

/// Returns the directories in which a git of the repository may work: the common one, and those of all worktrees.
///
/// # Errors
/// Fails if the entries cannot be listed.
pub(crate) fn dirs(common: &Path) -> io::Result<Vec<PathBuf>> {
    let trees: Vec<PathBuf> = entries(common)?.iter().filter_map(|entry| tree_of(entry)).collect();
    let main = checkout_of(common).map(Path::to_owned);
    Ok(std::iter::once(common.to_owned()).chain(main).chain(trees).collect())
}

/// Returns the reason of the lock if the worktree is locked. The lock that git writes while it
/// creates a worktree does not count: under the creation lock no worktree is being created.
pub(crate) fn lock_reason(entry: &Path) -> Option<String> {
    let text = record::read(&entry.join("locked")).ok()?;
    let reason = String::from_utf8_lossy(&text).trim().to_owned();
    (reason != INITIALIZING && !text.ends_with(b"\0")).then_some(reason)
}

/// Reports whether a worktree is locked for this reason, of which a power cut may have left only the beginning.
pub(crate) fn is_locked_for(entry: &Path, reason: &str) -> bool {
    let Ok(text) = record::read(&entry.join("locked")) else { return false };
    let start = text.iter().position(|byte| *byte == 0);
    start.map_or_else(|| text.trim_ascii() == reason.as_bytes(), |end| reason.as_bytes().starts_with(&text[..end]))
}

/// Like [`lock_reason`], for a worktree whose creation may have been interrupted. An empty lock is a person's without a
/// reason, unless the entry is incomplete: then a power cut emptied the lock that git wrote.
pub(crate) fn lock_reason_of_unfinished(entry: &Path) -> Option<String> {
    let is_whole = |file: &str| record::read(&entry.join(file)).is_ok_and(|content| !is_torn(&content));
    lock_reason(entry).filter(|reason| {
        !reason.is_empty() || ["gitdir", "commondir", "HEAD", "index"].iter().all(|file| is_whole(file))
    })
}

/// Returns the entries for a worktree called `name` that name no path: their creation stopped before git recorded it, or
/// a power cut took it.
pub(crate) fn unfinished(common: &Path, name: &str) -> Vec<PathBuf> {
    let is_ours = |entry: &PathBuf| {
        let id = entry.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let digits = id.strip_prefix(name).is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_digit()));
        let names_nothing = ignore_missing(record::read(&entry.join("gitdir")))
            .is_ok_and(|named| named.is_none_or(|named| is_torn(named.trim_ascii_end())));
        digits && names_nothing && entry.is_dir() && lock_reason_of_unfinished(entry).is_none()
    };
    entries(common).unwrap_or_default().into_iter().filter(is_ours).collect()
}

/// Copies an index with its modification time. git compares the content of files that are not
/// older than the index, because they may have changed again within the same second.
pub(crate) fn copy_index(from: &Path, to: &Path) -> io::Result<()> {
    let mut source = files::open_regular(fs::File::options().read(true), from)?;
    let known = source.metadata()?;
    // After a kill, `to` may be a hard link of the file that is copied.
    ignore_missing(fs::remove_file(to))?;
    let mut copy = fs::File::create_new(to)?;
    io::copy(&mut source, &mut copy)?;
    copy.set_permissions(known.permissions())?;
    copy.set_modified(known.modified()?)
}

/// Writes the `commondir` of worktrees again if a power cut before `boot` took its content, because git would create no
/// worktree at all. It is the same in every worktree.
pub(crate) fn complete_torn(common: &Path, boot: SystemTime) -> io::Result<()> {
    for entry in entries(common)? {
        let file = entry.join("commondir");
        // Whatever else is there, no power cut has left it.
        let content = record::read(&file).ok();
        if content.is_some_and(|content| is_torn(&content)) && fs::symlink_metadata(&file)?.modified()? < boot {
            record::write(&file, b"../..\n")?;
        }
    }
    Ok(())
}

/// Removes an entry. Removes the mark of the removal and the file that names the worktree after all others but HEAD, so
/// that an interrupted removal can be found again.
pub(crate) fn remove(entry: &Path) -> io::Result<()> {
    for file in files::list_if_present(entry)? {
        if !["gitdir", "HEAD", REMOVING].iter().any(|last| file.file_name() == *last) {
            files::remove_in_place(&file.path())?;
        }
    }
    for file in [REMOVING, "gitdir"] {
        ignore_missing(fs::remove_file(entry.join(file)))?;
    }
    // git ignores an entry that names no worktree, but takes one without HEAD for damaged. If this fails, only a power cut
    // could still bring such an entry back.
    let _ = fs::File::open(entry).and_then(|entry| entry.sync_all());
    ignore_missing(fs::remove_file(entry.join("HEAD")))?;
    ignore_missing(fs::remove_dir(entry))?;
    // git removes `worktrees` together with its last entry, and so do we.
    if let Some(above) = entry.parent() {
        let _ = fs::remove_dir(above);
    }
    Ok(())
}

/// Removes a worktree's directory, and its `.git` file last: as long as that file exists, the
/// rest is known to belong to the worktree.
///
/// # Errors
/// Fails if something cannot be deleted. If that is known before, nothing was deleted.
pub(crate) fn remove_tree(tree: &Path) -> io::Result<()> {
    removable::prepare(tree)?;
    remove_prepared(tree)
}

/// Removes a directory with everything in it.
pub(crate) fn remove_all(dir: &Path) -> io::Result<()> {
    removable::prepare(dir)?;
    files::remove_tree(dir)
}

/// Removes a worktree's directory as [`remove_tree`] does, after its directories were made deletable.
pub(crate) fn remove_prepared(tree: &Path) -> io::Result<()> {
    for file in files::list_if_present(tree)? {
        if file.file_name() != ".git" {
            files::remove_in_place(&file.path())?;
        }
    }
    ignore_missing(fs::remove_file(tree.join(".git")))?;
    ignore_missing(fs::remove_dir(tree))?;
    Ok(())
}

pub(crate) fn ignore_missing<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the base checkout of a repository from its common directory; a bare one has none.
pub(crate) fn checkout_of(common: &Path) -> Option<&Path> {
    common.parent().filter(|_| common.ends_with(".git"))
}

/// Returns the base checkout of a repository: its main worktree, or without one that around `dir`, unless swarm has made
/// it.
pub(crate) fn base_around(common: &Path, dir: &Path) -> Option<PathBuf> {
    if let Some(main) = checkout_of(common) {
        return Some(main.to_owned());
    }
    let top = swarm_config::root_above(dir)?;
    let is_of_it = common_dir(top).is_ok_and(|found| found == resolved(common));
    let is_made = entry_of(common, top).ok()?.is_some_and(|entry| owner::is_marked(&entry));
    (is_of_it && !is_made).then(|| top.to_owned())
}

/// Resolves the symbolic links in the existing part of a path.
pub(crate) fn resolved(path: &Path) -> PathBuf {
    if let Ok(real) = path.canonicalize() {
        return real;
    }
    match (path.parent(), path.file_name()) {
        (Some(above), Some(name)) => resolved(above).join(name),
        _ => path.to_owned(),
    }
}

/// Returns the path of `name` below `root`. Returns `None` if a directory between the two does not exist or is a symbolic
/// link: whoever may write to a worktree chooses where such a link leads, and git takes what is behind it for absent.
pub(crate) fn without_links(root: &Path, name: &Path) -> Option<PathBuf> {
    let mut path = root.to_owned();
    let mut parts = name.components().peekable();
    while let Some(part) = parts.next() {
        let Component::Normal(part) = part else { return None };
        path.push(part);
        let is_passed = parts.peek().is_none() || fs::symlink_metadata(&path).is_ok_and(|meta| meta.is_dir());
        is_passed.then_some(())?;
    }
    Some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_found_through_links_and_relative_paths() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let entry = root.join("r/.git/worktrees/w");
        fs::create_dir_all(&entry).unwrap();
        fs::write(entry.join("gitdir"), "../../../../real/w/.git\n").unwrap();
        fs::create_dir_all(root.join("real")).unwrap();
        std::os::unix::fs::symlink(root.join("real"), root.join("link")).unwrap();
        assert_eq!(entry_of(&root.join("r/.git"), &root.join("link/w")).unwrap(), Some(entry.clone()));
        assert_eq!(entry_of(&root.join("r/.git"), &root.join("link/other")).unwrap(), None);
        remove(&entry).unwrap();
        remove(&entry).unwrap();
        assert!(!root.join("r/.git/worktrees").exists());
    }

    #[test]
    fn of_several_entries_that_name_a_worktree_its_own_counts() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let (common, tree) = (root.join("r/.git"), root.join("w"));
        fs::create_dir_all(&tree).unwrap();
        let entries = ["a", "b", "c"].map(|name| common.join("worktrees").join(name));
        for entry in &entries {
            fs::create_dir_all(entry).unwrap();
            fs::write(entry.join("gitdir"), tree.join(".git").as_os_str().as_bytes()).unwrap();
        }
        for own in &entries {
            fs::write(tree.join(".git"), identity::link_text(own)).unwrap();
            assert_eq!(entry_of(&common, &tree).unwrap().as_ref(), Some(own));
            for entry in &entries {
                assert_eq!(is_of_another(&common, entry, &tree).unwrap(), entry != own);
            }
        }
        fs::write(tree.join(".git"), "gitdir: /elsewhere\n").unwrap();
        assert!(!is_of_another(&common, &entries[0], &tree).unwrap(), "no entry is known to be its own");
        assert!(is_of_another(&common, &entries[0], &root.join("r")).unwrap(), "the base checkout has none");
    }

    #[test]
    fn only_entries_without_a_path_count_as_unfinished() {
        let dir = tempfile::tempdir().unwrap();
        for (id, file, text) in [
            ("w", "locked", "initializing"),
            ("w1", "locked", "mine"),
            ("w2", "gitdir", "/x/.git"),
            ("w3", "gitdir", "/x/.g\0\0\0"),
            ("w3", "locked", "initi\0\0\0"),
            ("w4", "HEAD", ""),
            ("w4", "gitdir", ""),
            ("w4", "locked", ""),
            ("wx", "locked", "initializing"),
        ] {
            fs::create_dir_all(dir.path().join("worktrees").join(id)).unwrap();
            fs::write(dir.path().join("worktrees").join(id).join(file), text).unwrap();
        }
        let mut found = unfinished(dir.path(), "w");
        found.sort();
        assert_eq!(found, ["w", "w3", "w4"].map(|id| dir.path().join("worktrees").join(id)));
        assert_eq!(lock_reason(&dir.path().join("worktrees/w4")).as_deref(), Some(""), "a person's, without a reason");
        assert_eq!(lock_reason(&dir.path().join("worktrees/w1")).as_deref(), Some("mine"));
    }
}
