//! Log of a workstream, bounded in size.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use swarm_store::runs::home::NO_LINK;

/// Size at which the log is rotated, in bytes; one old part is kept.
const BYTES_MAX: u64 = 32 << 20;

/// Size beyond which a write of a stream is not delayed, in bytes.
const HELD_MAX: usize = 256 << 10;

/// Everything that an agent printed. Written after each batch of its output.
pub struct Stream {
    log: Log,
    held: Vec<u8>,
}

impl Stream {
    /// Opens or creates the file for appending.
    ///
    /// # Errors
    /// Fails if the file cannot be opened.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { log: Log::open(path)?, held: Vec::new() })
    }

    pub fn push(&mut self, bytes: &[u8]) {
        self.held.extend_from_slice(bytes);
        if self.held.len() >= HELD_MAX {
            self.write();
        }
    }

    pub fn write(&mut self) {
        if !self.held.is_empty() {
            self.log.raw(&self.held);
            self.held.clear();
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.write();
    }
}

pub struct Log {
    path: PathBuf,
    file: File,
    length: u64,
}

impl Log {
    /// Opens or creates the log for appending.
    ///
    /// # Errors
    /// Fails if the file cannot be opened.
    pub fn open(path: &Path) -> io::Result<Self> {
        let mut open = OpenOptions::new();
        let file = open.append(true).create(true).mode(0o600).custom_flags(NO_LINK).open(path)?;
        let length = file.metadata()?.len();
        Ok(Self { path: path.to_owned(), file, length })
    }

    /// Appends output. On a full disk it is lost, and the agent continues.
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
            // Retried after the same amount of further output.
            Err(_) => self.length = 0,
        }
    }
}
