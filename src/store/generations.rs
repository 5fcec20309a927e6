//! Numbers of starts that must not be given again. A number, together with the name, is how pages, programs and saved copies
//! of the registry refer to a start, also after its records were removed.
//!
//! A file of fixed size keeps the highest number whose records were removed, for each of many sets of names. A name may thus
//! begin with a higher number than necessary, and never with a lower one. The number is written before the records are
//! removed, in place, and without a sync. After a power cut it may be missing; then the id of a start, which is never the
//! same, tells those of one number apart.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use swarm_sys::files::open_regular;
use swarm_sys::paths::Paths;

/// Name of the file in the state directory.
pub const FILE: &str = "generations";
/// Number of sets of names.
const SETS: usize = 1024;
/// Length of a number in the file, which has the least significant byte first.
const BYTES: usize = size_of::<u64>();
/// Highest number that a start can have: the highest that every reader of JSON represents exactly. A higher one is damage,
/// and counts as absent.
pub const GENERATION_MAX: u64 = 1 << 53;

/// The highest numbers whose records were removed. Only the supervisor removes records, so that it reads the file once.
pub struct Generations {
    path: PathBuf,
    highest: Mutex<Option<Vec<u64>>>,
}

impl Generations {
    pub fn new(paths: &Paths) -> Self {
        Self { path: paths.root().join(FILE), highest: Mutex::new(None) }
    }

    /// Returns a number that is not lower than that of any start of this name whose records were removed.
    ///
    /// # Errors
    /// Fails if the file exists and cannot be read.
    pub fn highest(&self, name: &str) -> io::Result<u64> {
        let mut highest = self.lock();
        Ok(self.known(&mut highest)?[set_of(name)])
    }

    /// Records that the records of a start are about to be removed. A failure is logged: the number then counts until the
    /// supervisor ends.
    pub fn retire(&self, name: &str, generation: u64) {
        let mut highest = self.lock();
        let set = set_of(name);
        let recorded = match self.known(&mut highest) {
            Ok(known) if generation <= known[set] => return,
            Ok(known) => {
                known[set] = generation;
                self.write(set, generation)
            }
            Err(error) => Err(error),
        };
        if let Err(error) = recorded {
            tracing::warn!(worker = name, generation, %error, "cannot record the number of a start that is forgotten");
        }
    }

    fn known<'a>(&self, highest: &'a mut Option<Vec<u64>>) -> io::Result<&'a mut Vec<u64>> {
        match highest {
            Some(known) => Ok(known),
            None => Ok(highest.insert(self.read()?)),
        }
    }

    fn read(&self) -> io::Result<Vec<u64>> {
        let mut numbers = vec![0; SETS];
        let file = match open_regular(OpenOptions::new().read(true), &self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(numbers),
            Err(error) => return Err(error),
        };
        let mut bytes = [0; SETS * BYTES];
        let mut length = 0;
        while length < bytes.len() {
            match file.read_at(&mut bytes[length..], length as u64)? {
                0 => break,
                count => length += count,
            }
        }
        for (number, bytes) in numbers.iter_mut().zip(bytes.as_chunks().0) {
            *number = u64::from_le_bytes(*bytes);
        }
        if numbers.iter().any(|number| *number > GENERATION_MAX) {
            tracing::warn!(file = %self.path.display(), "some numbers of forgotten starts are damaged, and are ignored");
            numbers.iter_mut().filter(|number| **number > GENERATION_MAX).for_each(|number| *number = 0);
        }
        Ok(numbers)
    }

    fn write(&self, set: usize, generation: u64) -> io::Result<()> {
        let file = open_regular(OpenOptions::new().write(true).create(true).truncate(false).mode(0o600), &self.path)?;
        file.write_all_at(&generation.to_le_bytes(), (set * BYTES) as u64)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Vec<u64>>> {
        self.highest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the set of a name, by its FNV-1a hash.
fn set_of(name: &str) -> usize {
    let hash = name
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    (hash % SETS as u64) as usize
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn highest(paths: &Paths, name: &str) -> Option<u64> {
        Generations::new(paths).highest(name).ok()
    }

    #[test]
    fn the_highest_number_of_a_name_outlives_the_supervisor() {
        let dir = tempfile::tempdir().expect("a directory");
        let paths = Paths::new(dir.path());
        assert_eq!(highest(&paths, "a"), Some(0));
        for (retired, expected) in [(9, 9), (10, 10), (3, 10), (1 << 40, 1 << 40)] {
            Generations::new(&paths).retire("a", retired);
            assert_eq!((highest(&paths, "a"), highest(&paths, "b")), (Some(expected), Some(0)), "{retired}");
        }
        for number in 0..5000 {
            let generations = Generations::new(&paths);
            generations.retire(&format!("worker-{number}"), 2);
            assert!(generations.highest(&format!("worker-{number}")).is_ok_and(|highest| highest >= 2));
        }
        assert_eq!(fs::metadata(dir.path().join(FILE)).expect("there").len(), (SETS * BYTES) as u64);
        fs::write(dir.path().join(FILE), "torn").expect("written");
        assert_eq!(highest(&paths, "a"), Some(0));
        for (number, expected) in [(u64::MAX, 0), (GENERATION_MAX + 1, 0), (GENERATION_MAX, GENERATION_MAX)] {
            fs::write(dir.path().join(FILE), number.to_le_bytes().repeat(SETS)).expect("written");
            assert_eq!(highest(&paths, "a"), Some(expected), "{number}");
        }
    }

    #[test]
    fn a_number_that_cannot_be_written_counts_until_the_supervisor_ends() {
        let dir = tempfile::tempdir().expect("a directory");
        let paths = Paths::new(dir.path());
        let generations = Generations::new(&paths);
        assert_eq!(generations.highest("a").ok(), Some(0));
        fs::create_dir(dir.path().join(FILE)).expect("made");
        generations.retire("a", 4);
        assert_eq!(generations.highest("a").ok(), Some(4));
        assert_eq!(highest(&paths, "a"), None, "a file that cannot be read is not an absent one");
    }
}
