//! File of the registry's journal, `state.journal`.
//!
//! The file is allocated and written in advance, so that a commit overwrites a few blocks and syncs nothing but them:
//! no size, no allocation and no directory. Each record begins in a new block; no block with an earlier record is
//! written again. All records of one pass over the file have the same epoch. A record is valid if its checksum is
//! right, and if it has the epoch of the first record and the number that follows.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use super::replay::Record;
use swarm_sys::files::open_regular;

/// Unit in which records are written, in bytes. A disk writes it as a whole, or in parts that are multiples of 512.
const BLOCK: usize = 4096;
/// Minimum size of the file, in bytes.
const SIZE_MIN: usize = 1 << 20;
/// Maximum size of a file that is read, in bytes. A registry of the maximum size needs a quarter of it.
const SIZE_MAX: u64 = 1 << 30;
const MAGIC: [u8; 8] = *b"swarmjnl";
const BOOT_BYTES: usize = 36;
/// Magic, epoch, number, length, checksum, boot.
const HEADER: usize = 8 + 8 + 4 + 4 + 4 + BOOT_BYTES;

/// The journal, open for writing. Its owner holds the registry lock while it writes.
pub struct Journal {
    file: File,
    size: usize,
    epoch: u64,
    boot: String,
    /// Position of the next record.
    tail: usize,
    number: u32,
    /// Position of the last record, and the bytes that it takes.
    last: (usize, usize),
}

/// Valid records of a journal.
#[derive(Debug, Default)]
pub struct Content {
    pub boot: String,
    pub records: Vec<Record>,
    /// Whether a valid record follows an invalid one.
    pub is_damaged: bool,
    epoch: u64,
}

impl Journal {
    /// Starts a new epoch with `record` as its first one. Everything that earlier records describe must be durable.
    /// Overwrites earlier records with zeros, because they contain the environments of workers: up to `used`, or all if
    /// that is `None`.
    ///
    /// # Errors
    /// Returns any I/O error. The journal then has the earlier epoch, the new one, or nothing.
    pub fn begin(path: &Path, boot: &str, record: &Record, used: Option<usize>) -> io::Result<Self> {
        let bytes = serde_json::to_vec(record)?;
        let size = bytes.len().saturating_mul(4).max(SIZE_MIN).next_multiple_of(SIZE_MIN);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_nanos());
        let (file, earlier) = match open_for_writing(path, size)? {
            Some(found) => found,
            None => (create(path, size)?, 0),
        };
        let epoch = u64::try_from(now).unwrap_or(0).max(earlier + 1);
        let size = usize::try_from(file.metadata()?.len()).unwrap_or(size);
        let mut journal = Self { file, size, epoch, boot: boot.to_owned(), tail: 0, number: 0, last: (0, 0) };
        if !journal.write(&bytes)? {
            return Err(io::Error::other("the journal is too small for its first record"));
        }
        // Not synced: the next record is, with them.
        let end = used.unwrap_or(journal.size).min(journal.size);
        journal.file.write_all_at(&vec![0; end.saturating_sub(journal.tail)], journal.tail as u64)?;
        Ok(journal)
    }

    /// Returns the number of bytes that the records take.
    pub fn used(&self) -> usize {
        self.tail
    }

    /// Appends a record durably. Returns false, and writes nothing, if the file has no room for it.
    ///
    /// # Errors
    /// Returns any I/O error. The record may be durable all the same.
    pub fn append(&mut self, record: &Record) -> io::Result<bool> {
        let bytes = serde_json::to_vec(record)?;
        self.write(&bytes)
    }

    /// Reports whether more than half of the file is in use.
    pub fn is_half_full(&self) -> bool {
        self.tail > self.size / 2
    }

    /// Makes the last record invalid, because its commit failed.
    ///
    /// # Errors
    /// Returns any I/O error. The record may then still be valid.
    pub fn void(self) -> io::Result<()> {
        let (at, length) = self.last;
        self.file.write_all_at(&vec![0; length], at as u64)?;
        self.file.sync_data()
    }

    fn write(&mut self, payload: &[u8]) -> io::Result<bool> {
        let Ok(length) = u32::try_from(payload.len()) else { return Ok(false) };
        let whole = (HEADER + payload.len()).next_multiple_of(BLOCK);
        if whole > self.size - self.tail {
            return Ok(false);
        }
        let mut bytes = Vec::with_capacity(whole);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&self.epoch.to_le_bytes());
        bytes.extend_from_slice(&self.number.to_le_bytes());
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend(self.boot.bytes().chain(std::iter::repeat(b' ')).take(BOOT_BYTES));
        bytes.extend_from_slice(payload);
        let checksum = crc32fast::hash(&bytes);
        bytes[24..28].copy_from_slice(&checksum.to_le_bytes());
        bytes.resize(whole, 0);
        self.file.write_all_at(&bytes, self.tail as u64)?;
        self.file.sync_data()?;
        self.last = (self.tail, whole);
        self.tail += whole;
        self.number += 1;
        Ok(true)
    }
}

/// Opens an existing journal that is large enough, and returns it with its epoch.
fn open_for_writing(path: &Path, size: usize) -> io::Result<Option<(File, u64)>> {
    let file = match open_regular(OpenOptions::new().read(true).write(true), path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let length = file.metadata()?.len();
    if length < size as u64 || length > SIZE_MAX {
        return Ok(None);
    }
    let mut header = [0; HEADER];
    file.read_exact_at(&mut header, 0)?;
    Ok(Some((file, if header.starts_with(&MAGIC) { number(&header[8..16]) } else { 0 })))
}

/// Creates the journal, allocated and durable, in place of an earlier one.
fn create(path: &Path, size: usize) -> io::Result<File> {
    let temporary = PathBuf::from(format!("{}.tmp", path.display()));
    // Left by a killed process. Nobody else uses it while the registry is locked.
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&temporary)?;
    let written = file
        .write_all_at(&vec![0; size], 0)
        .and_then(|()| file.sync_all())
        .and_then(|()| fs::rename(&temporary, path))
        .and_then(|()| File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all());
    if let Err(error) = written {
        let _ = fs::remove_file(&temporary);
        return Err(error);
    }
    Ok(file)
}

/// Reads the records of a journal. `None` if there is no file or no valid record.
///
/// # Errors
/// Fails if the file exists and cannot be read.
pub fn read(path: &Path) -> io::Result<Option<Content>> {
    read_unless(path, |_| false)
}

/// Reads the records of a journal, except if it was written during this boot: then the file that it protects is intact.
///
/// # Errors
/// Fails if the file exists and cannot be read.
pub fn read_of_other_boot(path: &Path, boot: &str) -> io::Result<Option<Content>> {
    read_unless(path, |written| boot.is_empty() || written == boot)
}

fn read_unless(path: &Path, skips: impl FnOnce(&str) -> bool) -> io::Result<Option<Content>> {
    let mut file = match open_regular(OpenOptions::new().read(true), path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut bytes = vec![0; HEADER];
    match file.read_exact(&mut bytes) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    let boot = boot_of(&bytes);
    if !bytes.starts_with(&MAGIC) || skips(&boot) {
        return Ok(None);
    }
    file.take(SIZE_MAX).read_to_end(&mut bytes)?;
    let content = scan(&bytes);
    Ok((!content.records.is_empty()).then_some(content))
}

/// Returns the valid records among the bytes of a journal.
fn scan(bytes: &[u8]) -> Content {
    let epoch = bytes.get(8..16).map_or(0, number);
    let mut content = Content { epoch, ..Content::default() };
    let mut at = 0;
    while let Some((epoch, boot, record, length)) = record_at(bytes, at, content.records.len()) {
        if epoch != content.epoch {
            break;
        }
        content.boot = boot;
        content.records.push(record);
        at += length;
    }
    let is_later = |block: &[u8]| {
        let of_epoch = block.starts_with(&MAGIC) && number(&block[8..16]) == content.epoch;
        of_epoch && number(&block[16..20]) > content.records.len() as u64
    };
    let rest = bytes.get(at..).unwrap_or_default().chunks_exact(BLOCK);
    content.is_damaged = rest.into_iter().any(is_later);
    content
}

/// Returns epoch, boot, content and size of the valid record of this number at `at`.
fn record_at(bytes: &[u8], at: usize, expected: usize) -> Option<(u64, String, Record, usize)> {
    let header = bytes.get(at..at.checked_add(HEADER)?)?;
    let length = usize::try_from(number(&header[20..24])).ok()?;
    let whole = bytes.get(at..at.checked_add(HEADER)?.checked_add(length)?)?;
    if !header.starts_with(&MAGIC) || number(&header[16..20]) != expected as u64 {
        return None;
    }
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&whole[..24]);
    hasher.update(&[0; 4]);
    hasher.update(&whole[28..]);
    if u64::from(hasher.finalize()) != number(&header[24..28]) {
        return None;
    }
    let record = serde_json::from_slice(&whole[HEADER..]).ok()?;
    Some((number(&header[8..16]), boot_of(header), record, whole.len().next_multiple_of(BLOCK)))
}

fn boot_of(header: &[u8]) -> String {
    String::from_utf8_lossy(&header[HEADER - BOOT_BYTES..HEADER]).trim_end().to_owned()
}

/// Returns the little-endian number in at most eight bytes.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::super::replay::{Change, Version};
    use super::*;

    fn record(text: &str) -> Record {
        let change = Change::Whole { after: None, text: text.to_owned() };
        Record { version: Version::of(text), change, contracts: Vec::new(), closed: false }
    }

    fn texts(bytes: &[u8]) -> Vec<String> {
        let of = |record: Record| match record.change {
            Change::Whole { text, .. } => text,
            Change::Rows(_) => String::new(),
        };
        scan(bytes).records.into_iter().map(of).collect()
    }

    fn journal(texts: &[&str]) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("state.journal");
        let mut journal = Journal::begin(&path, "boot", &record(texts[0]), None).expect("begins");
        for text in &texts[1..] {
            assert!(journal.append(&record(text)).expect("appends"));
        }
        (dir, path)
    }

    #[test]
    fn records_of_one_boot_are_read_by_another() {
        let (_dir, path) = journal(&["a", "b"]);
        assert!(read_of_other_boot(&path, "boot").expect("reads").is_none());
        assert!(read_of_other_boot(&path, "").expect("reads").is_none(), "the boot is unknown");
        let content = read_of_other_boot(&path, "another").expect("reads").expect("records");
        assert_eq!((content.boot.as_str(), content.records.len(), content.is_damaged), ("boot", 2, false));
        assert!(read(&path.with_extension("none")).expect("absent").is_none());
        fs::write(&path, "short").expect("writes");
        assert!(read(&path).expect("reads").is_none());
        fs::remove_file(&path).expect("removed");
        std::os::unix::fs::symlink("elsewhere", &path).expect("linked");
        assert!(read(&path).is_err(), "followed a link");
        assert!(Journal::begin(&path, "boot", &record("a"), None).is_err(), "followed a link");
    }

    #[test]
    fn a_torn_record_ends_the_journal() {
        let long = "x".repeat(3 * BLOCK);
        let (_dir, path) = journal(&["a", &long]);
        let bytes = fs::read(&path).expect("reads");
        assert_eq!(texts(&bytes), ["a".to_owned(), long.clone()]);
        for kept in (BLOCK..=5 * BLOCK).step_by(512) {
            let mut torn = bytes.clone();
            torn[kept..].fill(0);
            let whole = torn == bytes;
            assert_eq!(texts(&torn).len(), 1 + usize::from(whole), "{kept} bytes were written");
            assert!(!scan(&torn).is_damaged);
        }
    }

    #[test]
    fn an_invalid_record_before_valid_ones_is_damage() {
        let (_dir, path) = journal(&["a", "b", "c"]);
        let bytes = fs::read(&path).expect("reads");
        for (at, left) in [(0, 0), (1, 1), (2, 2)] {
            let mut damaged = bytes.clone();
            damaged[at * BLOCK + HEADER + 2] ^= 1;
            assert_eq!((texts(&damaged).len(), scan(&damaged).is_damaged), (left, at < 2), "record {at}");
        }
    }

    #[test]
    fn an_earlier_epoch_does_not_continue_a_new_one() {
        let (_dir, path) = journal(&["a", "b", "c"]);
        let mut again = Journal::begin(&path, "later", &record("d"), Some(0)).expect("begins");
        assert_eq!(texts(&fs::read(&path).expect("reads")), ["d"]);
        assert!(!scan(&fs::read(&path).expect("reads")).is_damaged, "records of the earlier epoch follow");
        assert!(again.append(&record("e")).expect("appends"));
        assert_eq!(texts(&fs::read(&path).expect("reads")), ["d", "e"]);
        again.void().expect("takes back");
        assert_eq!(texts(&fs::read(&path).expect("reads")), ["d"]);
    }

    #[test]
    fn a_new_epoch_overwrites_the_records_of_the_earlier_one() {
        for used in [None, Some(3 * BLOCK)] {
            let (_dir, path) = journal(&["a", "secret", "secret"]);
            Journal::begin(&path, "boot", &record("d"), used).expect("begins");
            let text = String::from_utf8_lossy(&fs::read(&path).expect("reads")).into_owned();
            assert!(!text.contains("secret"), "with {used:?}");
        }
    }

    #[test]
    fn a_full_journal_takes_no_record_and_a_larger_one_replaces_it() {
        let (_dir, path) = journal(&["a"]);
        let mut journal = Journal::begin(&path, "boot", &record("a"), None).expect("begins");
        let half = "x".repeat(SIZE_MIN / 2);
        assert!(!journal.is_half_full());
        assert!(journal.append(&record(&half)).expect("appends") && journal.is_half_full());
        let before = fs::read(&path).expect("reads");
        assert!(!journal.append(&record(&half)).expect("has no room"));
        assert_eq!(fs::read(&path).expect("reads"), before);
        Journal::begin(&path, "boot", &record(&half), None).expect("begins");
        let size = fs::metadata(&path).expect("there").len();
        assert!(size > 2 * SIZE_MIN as u64 && size.is_multiple_of(SIZE_MIN as u64), "{size}");
        assert_eq!(texts(&fs::read(&path).expect("reads")), [half]);
    }
}
