//! A git directory of swarm's own for work in a worktree whose record may have settings (`extensions.worktreeConfig`): an
//! agent could change them between their check and git's start. It has a copy of the checked settings and of HEAD, and
//! leads to everything else in the record.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::{own_settings, record};
use crate::repository::fault::Fault;
use crate::trash::scratch::Scratch;
use swarm_sys::files;

/// Files of a record that git may create through the view.
const MADE: [&str; 2] = ["index", "ORIG_HEAD"];

/// Git directory that stands for a record. Dropping it deletes it.
#[derive(Debug)]
pub(crate) struct RecordView {
    dir: PathBuf,
}

impl RecordView {
    /// Makes a view of the record `entry`. Returns `None` if git reads no settings from a record.
    ///
    /// # Errors
    /// Fails if the settings may execute something, or if the record cannot be read.
    pub(crate) fn open(common: &Path, entry: &Path) -> Result<Option<Self>, Fault> {
        let Some(settings) = own_settings::checked(common, entry)? else { return Ok(None) };
        let view = Self { dir: Scratch::new(common, "record").into_path() };
        view.fill(common, entry, &settings).map_err(|error| match error.kind() {
            // As git says without a view; nothing else is the matter.
            io::ErrorKind::NotFound => Fault::new(format!("{} is incomplete", entry.display())),
            _ => Fault::at(entry)(error),
        })?;
        Ok(Some(view))
    }

    fn fill(&self, common: &Path, entry: &Path, settings: &[u8]) -> io::Result<()> {
        fs::create_dir(&self.dir)?;
        let own = ["HEAD", "commondir", own_settings::FILE];
        let known = files::list(entry)?.into_iter().map(|file| file.file_name());
        for name in known.filter(|name| !own.iter().chain(&MADE).any(|own| name == own)) {
            // A lock in the view would not be the record's.
            if Path::new(&name).extension() != Some(OsStr::new("lock")) {
                symlink(entry.join(&name), self.dir.join(&name))?;
            }
        }
        for name in MADE {
            symlink(entry.join(name), self.dir.join(name))?;
        }
        fs::write(self.dir.join(own_settings::FILE), settings)?;
        // git finds references by this file, and everything else by its environment.
        fs::write(self.dir.join("commondir"), [common.as_os_str().as_bytes(), b"\n"].concat())?;
        // Written last: it makes the directory a git directory.
        fs::write(self.dir.join("HEAD"), head(&entry.join("HEAD"))?)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.dir
    }
}

/// Returns the content of a HEAD, which may be a link to the name of a reference.
fn head(file: &Path) -> io::Result<Vec<u8>> {
    match fs::read_link(file) {
        Ok(target) if target.starts_with("refs") => Ok(format!("ref: {}\n", target.display()).into_bytes()),
        _ => record::read(file),
    }
}

impl Drop for RecordView {
    fn drop(&mut self) {
        let _ = files::remove_tree(&self.dir);
    }
}
