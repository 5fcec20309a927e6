//! The log of a workstream: bounded, whatever an agent prints.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// Size at which it is put aside, in bytes; one part is kept.
const BYTES_MAX: u64 = 32 << 20;

pub struct Log {
    path: PathBuf,
    file: File,
    length: u64,
}

impl Log {
    /// # Errors
    /// What the system says.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
        let length = file.metadata()?.len();
        Ok(Self { path: path.to_owned(), file, length })
    }

    /// A full disk loses output, and the agent goes on.
    pub fn raw(&mut self, bytes: &[u8]) {
        if self.length >= BYTES_MAX {
            self.put_aside();
        }
        if self.file.write_all(bytes).is_ok() {
            self.length += bytes.len() as u64;
        }
    }

    fn put_aside(&mut self) {
        let mut aside = self.path.clone().into_os_string();
        aside.push(".1");
        let renewed = fs::rename(&self.path, aside).and_then(|()| Self::open(&self.path));
        match renewed {
            Ok(log) => *self = log,
            // Tried again after as much more.
            Err(_) => self.length = 0,
        }
    }
}
