//! Numbers of starts that must not be given again. A number, together with the name, is how pages, programs and saved copies
//! of the registry refer to a start, also after its records were removed.
//!
//! One number serves all names: the highest one whose records were removed. It is written before they are, in place, so
//! that a full disk has room for it, and without a sync. After a power cut it may be missing or torn; then the id of a start,
//! which is never the same, tells those of one number apart.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use swarm_sys::files::open_regular;
use swarm_sys::paths::Paths;

/// File with the highest number, in the state directory.
const FILE: &str = "generation";
/// Number of digits of the largest number. The length of the file does not change.
const DIGITS: usize = 20;

/// The highest number whose records were removed. Only the supervisor removes records, so that it reads the file once.
pub struct Generations {
    path: PathBuf,
    highest: Mutex<Option<u64>>,
}

impl Generations {
    pub fn new(paths: &Paths) -> Self {
        Self { path: paths.root().join(FILE), highest: Mutex::new(None) }
    }

    /// Returns the highest number whose records were removed. 0 if none is known.
    ///
    /// # Errors
    /// Fails if the file exists and cannot be read.
    pub fn highest(&self) -> io::Result<u64> {
        self.known(&mut self.lock())
    }

    /// Records that the records of a start are about to be removed. A failure is logged: the number then counts until the
    /// supervisor ends.
    pub fn retire(&self, generation: u64) {
        let mut highest = self.lock();
        let known = self.known(&mut highest).unwrap_or(0);
        if generation <= known {
            return;
        }
        *highest = Some(generation);
        if let Err(error) = self.write(generation) {
            tracing::warn!(%error, "cannot record the number of a start whose records are removed");
        }
    }

    fn known(&self, highest: &mut Option<u64>) -> io::Result<u64> {
        if let Some(known) = *highest {
            return Ok(known);
        }
        let known = match open_regular(OpenOptions::new().read(true), &self.path) {
            Ok(file) => {
                let mut text = [0; DIGITS];
                let length = file.read_at(&mut text, 0)?;
                str::from_utf8(&text[..length]).ok().and_then(|text| text.parse().ok()).unwrap_or(0)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
            Err(error) => return Err(error),
        };
        *highest = Some(known);
        Ok(known)
    }

    fn write(&self, generation: u64) -> io::Result<()> {
        let text = format!("{generation:0DIGITS$}\n");
        let file = open_regular(OpenOptions::new().write(true).create(true).truncate(false).mode(0o600), &self.path)?;
        file.write_all_at(text.as_bytes(), 0)
    }

    fn lock(&self) -> MutexGuard<'_, Option<u64>> {
        self.highest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn highest(paths: &Paths) -> Option<u64> {
        Generations::new(paths).highest().ok()
    }

    #[test]
    fn the_highest_number_outlives_the_supervisor() {
        let dir = tempfile::tempdir().expect("a directory");
        let paths = Paths::new(dir.path());
        assert_eq!(highest(&paths), Some(0));
        for (retired, expected) in [(9, 9), (10, 10), (3, 10), (u64::MAX - 1, u64::MAX - 1)] {
            Generations::new(&paths).retire(retired);
            assert_eq!(highest(&paths), Some(expected), "{retired}");
        }
        for torn in ["", "0000", "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", "x"] {
            fs::write(dir.path().join(FILE), torn).expect("written");
            assert_eq!(highest(&paths), Some(0), "{torn:?}");
        }
        Generations::new(&paths).retire(7);
        assert_eq!(highest(&paths), Some(7));
    }

    #[test]
    fn a_number_that_cannot_be_written_counts_until_the_supervisor_ends() {
        let dir = tempfile::tempdir().expect("a directory");
        let paths = Paths::new(dir.path());
        let generations = Generations::new(&paths);
        assert_eq!(generations.highest().ok(), Some(0));
        fs::create_dir(dir.path().join(FILE)).expect("made");
        generations.retire(4);
        assert_eq!(generations.highest().ok(), Some(4));
        assert_eq!(highest(&paths), None, "a file that cannot be read is no absence");
    }
}
