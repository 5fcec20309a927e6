//! File of the registry's journal, `state.journal`.
//!
//! The file is allocated and written in advance, so that a commit overwrites a few blocks and syncs nothing but them:
//! no size, no allocation and no directory. It has two areas. All records of one pass over an area have the same epoch;
//! the next epoch begins in the other area, so that a torn first record leaves the earlier epoch. Each record begins in a
//! new block, and no block of a record is written again before a later epoch is durable. A record is valid if its
//! checksum is right, and if it has the epoch of the first record and the number that follows.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use super::replay::Record;
use swarm_sys::files::open_regular;

/// Unit in which records are written, in bytes. A disk writes it as a whole, or in parts that are multiples of 512.
const BLOCK: usize = 4096;
/// Minimum size of an area, in bytes.
const AREA_MIN: usize = 512 << 10;
/// Maximum size of an area, in bytes, unless its first record needs more.
const AREA_MAX: usize = 128 << 20;
/// Maximum size of a file that is read, in bytes. A registry of the maximum size needs half of it.
const SIZE_MAX: u64 = 1 << 30;
const MAGIC: [u8; 8] = *b"swarmjnl";
const BOOT_BYTES: usize = 36;
/// Magic, epoch, number, length, checksum, boot.
const HEADER: usize = 8 + 8 + 4 + 4 + 4 + BOOT_BYTES;

/// The journal, open for writing. Its owner holds the registry lock while it writes.
pub struct Journal {
    file: File,
    area: Area,
    epoch: u64,
    boot: String,
    /// Number of bytes of the area that records take.
    tail: usize,
    number: u32,
}

/// Part of the file, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Area {
    start: usize,
    size: usize,
}

/// Valid records of a journal.
#[derive(Debug, Default)]
pub struct Content {
    pub boot: String,
    pub records: Vec<Record>,
    /// Whether a valid record follows an invalid one.
    pub is_damaged: bool,
    epoch: u64,
    area: Area,
}

impl Journal {
    /// Starts a new epoch with `record` as its first one. `state.json` must be durable, and `record` must have every
    /// contract that is still needed. Then overwrites the earlier epoch with zeros, because it contains the environments
    /// of workers.
    ///
    /// # Errors
    /// Returns any I/O error. The journal then has the earlier epoch or the new one.
    pub fn begin(path: &Path, boot: &str, record: &Record) -> io::Result<Self> {
        let payload = serde_json::to_vec(record)?;
        let size = area_size(payload.len());
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_nanos());
        let now = u64::try_from(now).unwrap_or(0);
        // A larger file is made before it is needed; a full disk must not require one that is not.
        if let Some((file, bytes, earlier)) = open_for_writing(path, size / 2)? {
            let areas = areas(usize::try_from(file.metadata()?.len()).unwrap_or(0));
            let (area, other) = if earlier.area == areas[0] { (areas[1], areas[0]) } else { (areas[0], areas[1]) };
            let mut journal = Self::new(file, area, now.max(earlier.epoch + 1), boot);
            journal.write(&payload)?;
            // Not synced: the next record is, with them.
            journal.clear(other, &bytes)?;
            let rest = Area { start: area.start + journal.tail, size: area.size - journal.tail };
            journal.clear(rest, &bytes)?;
            return Ok(journal);
        }
        let temporary = PathBuf::from(format!("{}.tmp", path.display()));
        let made = create(&temporary, 2 * size).and_then(|file| {
            let mut journal = Self::new(file, Area { start: 0, size }, now, boot);
            journal.write(&payload)?;
            journal.file.sync_all()?;
            fs::rename(&temporary, path)?;
            File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()?;
            Ok(journal)
        });
        made.inspect_err(|_| drop(fs::remove_file(&temporary)))
    }

    fn new(file: File, area: Area, epoch: u64, boot: &str) -> Self {
        Self { file, area, epoch, boot: boot.to_owned(), tail: 0, number: 0 }
    }

    /// Overwrites a part of the file with zeros, but for a rest that consists of zeros in the `earlier` content of the file.
    fn clear(&self, part: Area, earlier: &[u8]) -> io::Result<()> {
        let used = earlier.get(part.start..part.start + part.size).unwrap_or_default();
        let used = used.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        self.file.write_all_at(&vec![0; used.next_multiple_of(BLOCK).min(part.size)], part.start as u64)
    }

    /// Appends a record durably. Returns false, and writes nothing, if the area has no room for it.
    ///
    /// # Errors
    /// Returns any I/O error. The record may be durable all the same.
    pub fn append(&mut self, record: &Record) -> io::Result<bool> {
        let bytes = serde_json::to_vec(record)?;
        self.write(&bytes)
    }

    /// Reports whether more than half of the area is in use.
    pub fn is_half_full(&self) -> bool {
        self.tail > self.area.size / 2
    }

    /// Returns the number of bytes that contracts of earlier records may take in the first record of the next epoch.
    pub fn room_for_contracts(&self) -> usize {
        self.area.size / 8
    }

    fn write(&mut self, payload: &[u8]) -> io::Result<bool> {
        let Ok(length) = u32::try_from(payload.len()) else { return Ok(false) };
        let whole = (HEADER + payload.len()).next_multiple_of(BLOCK);
        if whole > self.area.size - self.tail {
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
        let at = self.area.start + self.tail;
        self.file.write_all_at(&bytes, at as u64)?;
        self.file.sync_data()?;
        self.tail += whole;
        self.number += 1;
        Ok(true)
    }
}

/// Returns the size of an area whose first record has this length.
fn area_size(payload: usize) -> usize {
    let least = (HEADER + payload).next_multiple_of(BLOCK);
    payload.saturating_mul(4).next_multiple_of(BLOCK).clamp(AREA_MIN, AREA_MAX).max(least)
}

/// Returns the two areas of a file of this size.
fn areas(size: usize) -> [Area; 2] {
    let size = size / 2 / BLOCK * BLOCK;
    [Area { start: 0, size }, Area { start: size, size }]
}

/// Opens an existing journal whose areas have at least this size, and returns it with its bytes and its content.
fn open_for_writing(path: &Path, size: usize) -> io::Result<Option<(File, Vec<u8>, Content)>> {
    let mut file = match open_regular(OpenOptions::new().read(true).write(true), path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let length = file.metadata()?.len();
    if length < 2 * size as u64 || length > SIZE_MAX {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    (&mut file).take(SIZE_MAX).read_to_end(&mut bytes)?;
    let content = scan(&bytes);
    Ok(Some((file, bytes, content)))
}

/// Creates a file of this size under a temporary name, with all of its blocks.
fn create(temporary: &Path, size: usize) -> io::Result<File> {
    // Left by a killed process. Nobody else uses it while the registry is locked.
    match fs::remove_file(temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(temporary)?;
    file.write_all_at(&vec![0; size], 0)?;
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
    let mut headers = Vec::new();
    for area in areas(usize::try_from(file.metadata()?.len().min(SIZE_MAX)).unwrap_or(0)) {
        let mut header = [0; HEADER];
        match file.read_exact_at(&mut header, area.start as u64) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            read => read?,
        }
        headers.extend(header.starts_with(&MAGIC).then(|| (number(&header[8..16]), boot_of(&header))));
    }
    // If the newest epoch was torn, its process had recovered, and made durable, what an earlier boot had left.
    if headers.into_iter().max().is_none_or(|(_, boot)| skips(&boot)) {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    (&mut file).take(SIZE_MAX).read_to_end(&mut bytes)?;
    let content = scan(&bytes);
    Ok((!content.records.is_empty()).then_some(content))
}

/// Returns the valid records of the newest epoch among the bytes of a journal.
fn scan(bytes: &[u8]) -> Content {
    let both = areas(bytes.len()).map(|area| scan_area(bytes, area));
    let newest = both.iter().map(|content| content.epoch).max().unwrap_or(0);
    let is_damaged = both.iter().any(|content| content.is_damaged && content.epoch == newest);
    let best = both.into_iter().filter(|content| !content.records.is_empty()).max_by_key(|content| content.epoch);
    Content { is_damaged, epoch: newest, ..best.unwrap_or_default() }
}

fn scan_area(bytes: &[u8], area: Area) -> Content {
    let bytes = &bytes[area.start..area.start + area.size];
    let epoch = bytes.get(8..16).filter(|_| bytes.starts_with(&MAGIC)).map_or(0, number);
    let mut content = Content { epoch, area, ..Content::default() };
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
    content.is_damaged = epoch != 0 && rest.into_iter().any(is_later);
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
        Record { version: Version::of(text), change, contracts: Vec::new(), closed: false, at_ms: 0 }
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
        let mut journal = Journal::begin(&path, "boot", &record(texts[0])).expect("begins");
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
        assert!(Journal::begin(&path, "boot", &record("a")).is_err(), "followed a link");
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
        let mut again = Journal::begin(&path, "later", &record("d")).expect("begins");
        assert_eq!(texts(&fs::read(&path).expect("reads")), ["d"]);
        assert!(!scan(&fs::read(&path).expect("reads")).is_damaged, "records of the earlier epoch follow");
        assert!(again.append(&record("e")).expect("appends"));
        assert_eq!(texts(&fs::read(&path).expect("reads")), ["d", "e"]);
    }

    #[test]
    fn a_new_epoch_overwrites_the_records_of_the_earlier_one() {
        let (_dir, path) = journal(&["a", "secret", "secret"]);
        Journal::begin(&path, "boot", &record("d")).expect("begins");
        Journal::begin(&path, "boot", &record("e")).expect("begins");
        let text = String::from_utf8_lossy(&fs::read(&path).expect("reads")).into_owned();
        assert!(!text.contains("secret"));
    }

    #[test]
    fn a_torn_begin_leaves_the_earlier_epoch() {
        let (_dir, path) = journal(&["a", "b"]);
        for round in 0..3 {
            let before = fs::read(&path).expect("reads");
            let earlier = texts(&before);
            let long = format!("{round}{}", "x".repeat(2 * BLOCK));
            let mut again = Journal::begin(&path, "later", &record(&long)).expect("begins");
            let after = fs::read(&path).expect("reads");
            let area = again.area;
            for kept in (0..=again.tail).step_by(512) {
                let mut torn = before.clone();
                torn[area.start..area.start + kept].copy_from_slice(&after[area.start..area.start + kept]);
                let is_whole = torn[area.start..area.start + again.tail] == after[area.start..area.start + again.tail];
                let expected = if is_whole { std::slice::from_ref(&long) } else { &earlier[..] };
                assert_eq!(texts(&torn), expected, "{kept} bytes of round {round} were written");
                assert!(!scan(&torn).is_damaged);
            }
            assert!(again.append(&record("more")).expect("appends"));
        }
    }

    #[test]
    fn a_full_journal_takes_no_record_and_a_larger_one_replaces_it() {
        let (_dir, path) = journal(&["a"]);
        let mut journal = Journal::begin(&path, "boot", &record("a")).expect("begins");
        let half = "x".repeat(AREA_MIN / 2);
        assert!(!journal.is_half_full());
        assert!(journal.append(&record(&half)).expect("appends") && journal.is_half_full());
        let before = fs::read(&path).expect("reads");
        assert!(!journal.append(&record(&half)).expect("has no room"));
        assert_eq!(fs::read(&path).expect("reads"), before);
        Journal::begin(&path, "boot", &record(&half)).expect("begins");
        let size = fs::metadata(&path).expect("there").len();
        assert!(size > 4 * AREA_MIN as u64 && size.is_multiple_of(2 * BLOCK as u64), "{size}");
        assert_eq!(texts(&fs::read(&path).expect("reads")), [half]);
    }
}
