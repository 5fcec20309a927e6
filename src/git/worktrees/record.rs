//! Files in the record of a worktree, `<common>/worktrees/<id>`. A sandboxed agent may write there, so the record is
//! trusted as little as the worktree itself: no link is followed, no existing file is written into, and no pipe is
//! waited for.

use std::ffi::OsStr;
use std::fs::{self, DirEntry, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Component, Path};

use swarm_sys::files::{self, Durability, Mode};

use super::{admin, own_settings};
use crate::repository::fault::Fault;
use crate::repository::writer;

/// Maximum size of a file that is read into memory. None that swarm or git writes comes near it.
const BYTES_MAX: u64 = 64 << 20;
/// A link that git-annex makes. Neither git nor swarm follows it.
const OF_ANNEX: &str = "annex";
/// Directories of a record in which git writes to files that exist.
const WRITTEN: [&str; 2] = ["logs", "info"];

/// Returns the content of a regular file. Fails for everything else, also for a link to one.
pub(crate) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let file = files::open_regular(OpenOptions::new().read(true), path)?;
    let mut content = Vec::new();
    file.take(BYTES_MAX + 1).read_to_end(&mut content)?;
    if content.len() as u64 > BYTES_MAX { Err(io::Error::other("larger than 64 MiB")) } else { Ok(content) }
}

/// Returns the content of a regular file, or of the one that a link leads to.
pub(crate) fn read_linked(path: &Path) -> io::Result<Vec<u8>> {
    read(&path.canonicalize()?)
}

/// Returns the content of a regular file as text.
pub(crate) fn read_text(path: &Path) -> io::Result<String> {
    String::from_utf8(read(path)?).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Writes a file. What is at `path` is replaced, also a link, and never written into.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let temporary = path.with_added_extension(format!("tmp-{}", writer::own_next()));
    files::replace(&temporary, path, bytes, Mode::KeepOrDefault { add: 0 }, Durability::None)
}

/// Makes sure that the record `entry` leads git nowhere else: neither to another common directory, whose configuration
/// git would execute, nor through a link to a file that git would write, nor to a pipe that it would wait for.
///
/// # Errors
/// Fails if the record is not what git has made, or cannot be read.
pub(crate) fn check(common: &Path, entry: &Path) -> Result<(), Fault> {
    check_common(common, entry)?;
    own_settings::check(common, entry)?;
    for dir in [entry.to_owned()].into_iter().chain(WRITTEN.map(|name| entry.join(name))) {
        for file in files::list_if_present(&dir).map_err(Fault::at(&dir))? {
            let kind = file.file_type().map_err(Fault::at(&dir))?;
            let is_special = kind.is_fifo() || kind.is_block_device() || kind.is_char_device();
            let is_known = || dir == entry && (file.file_name() == OF_ANNEX || is_reference(&file));
            if is_special || (kind.is_symlink() && !is_known()) {
                let what = if is_special { "is no file" } else { "is a symbolic link" };
                let fault = Fault::new(format!("{} {what}, which git does not make there", file.path().display()));
                return Err(fault.remedy("delete it".to_owned()));
            }
        }
    }
    Ok(())
}

/// Reports whether a link is a HEAD as git makes it with `core.preferSymlinkRefs`. Its target is the name of a reference,
/// and no path.
fn is_reference(link: &DirEntry) -> bool {
    let target = fs::read_link(link.path()).unwrap_or_default();
    let is_plain = target.components().all(|part| matches!(part, Component::Normal(_)));
    link.file_name() == "HEAD" && is_plain && target.starts_with("refs")
}

/// Makes sure that a record leads git to the common directory that contains it. A record without this file, or with a
/// file that a power cut has emptied, counts as incomplete, and no git uses it.
fn check_common(common: &Path, entry: &Path) -> Result<(), Fault> {
    let file = entry.join("commondir");
    let Some(text) = admin::ignore_missing(read(&file)).map_err(Fault::at(&file))? else { return Ok(()) };
    let target = text.trim_ascii_end();
    if admin::is_torn(&text) || admin::resolved(&entry.join(OsStr::from_bytes(target))) == admin::resolved(common) {
        return Ok(());
    }
    let shown = file.display();
    Err(Fault::new(format!("{shown} leads to another repository")).remedy("write the line '../..' to it".to_owned()))
}

/// Makes sure that git writes a reference, and its reflog, to the repository: a sandboxed agent may write in both places,
/// and git follows links there.
///
/// # Errors
/// Fails if a part of either path is a link.
pub(crate) fn check_reference(common: &Path, reference: &str) -> Result<(), Fault> {
    let is_link = |path: &Path| fs::symlink_metadata(path).is_ok_and(|meta| meta.is_symlink());
    // `git-new-workdir` makes links, also of the configuration, which no agent can replace.
    let is_linked_as_a_whole = is_link(&common.join("config"));
    for root in [common.to_owned(), common.join("logs")] {
        let mut path = root;
        for part in Path::new(reference) {
            path.push(part);
            if is_link(&path) && !(is_linked_as_a_whole && part == "refs") {
                let fault = Fault::new(format!("{} is a symbolic link, which git does not make there", path.display()));
                return Err(fault.remedy("delete it".to_owned()));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "record_tests.rs"]
mod tests;
