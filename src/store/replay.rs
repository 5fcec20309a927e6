//! Places in the event log, and reading on from one: what a listener missed is still in the files.

use std::fmt;
use std::fs::{File, Metadata};
use std::io::{self, BufRead as _, BufReader, ErrorKind, Seek as _, SeekFrom};
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::UNIX_EPOCH;

use serde::de::IgnoredAny;

/// Number of bytes after which one read of the log ends.
const READ_BYTES_MAX: u64 = 1 << 20;

/// A file of the event log. The number of an inode may be given to another file, which is younger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Known {
    inode: u64,
    born_ns: u64,
}

impl Known {
    fn of(meta: &Metadata) -> Self {
        let born = meta.created().ok().and_then(|born| born.duration_since(UNIX_EPOCH).ok());
        let born_ns = born.and_then(|born| u64::try_from(born.as_nanos()).ok()).unwrap_or(0);
        Self { inode: meta.ino(), born_ns }
    }
}

/// A place between two lines of the event log. Its text is the `id` of the event before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    file: Known,
    /// Number of bytes of the file before this place.
    offset: u64,
}

impl Place {
    /// Returns the end of a file.
    pub(crate) fn end_of(meta: &Metadata) -> Self {
        Self { file: Known::of(meta), offset: meta.len() }
    }

    /// Reports whether this place is in the same file as `other`, and not before it.
    pub fn is_reached_by(&self, other: &Self) -> bool {
        self.file == other.file && self.offset <= other.offset
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.file.inode, self.file.born_ns, self.offset)
    }
}

/// Text that is no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not the id of an event")]
pub struct PlaceError;

impl FromStr for Place {
    type Err = PlaceError;

    fn from_str(text: &str) -> Result<Self, PlaceError> {
        let mut parts = text.split('.').map(|part| part.parse::<u64>().map_err(|_| PlaceError));
        let mut next = || parts.next().ok_or(PlaceError)?;
        let place = Self { file: Known { inode: next()?, born_ns: next()? }, offset: next()? };
        if parts.next().is_none() { Ok(place) } else { Err(PlaceError) }
    }
}

/// A part of the log.
#[derive(Debug, Default)]
pub struct Part {
    /// Set if what followed the place is no longer there. The lines are then the oldest that are kept.
    pub is_gap: bool,
    /// The events, each with the place after it.
    pub lines: Vec<(Place, String)>,
    /// Place from which to read on. `None` if there is no log.
    pub next: Option<Place>,
    /// Set if more may be there.
    pub more: bool,
}

/// Reads the events after `from`, or all if that is `None`, oldest file first. Skips damaged lines and an incomplete last one.
///
/// # Errors
/// Returns an error if a file exists and cannot be read.
pub fn read(files: &[PathBuf], from: Option<&Place>) -> io::Result<Part> {
    let mut opened = Vec::new();
    for path in files {
        match File::open(path) {
            Ok(file) => opened.push((Known::of(&file.metadata()?), file)),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    let mut part = Part::default();
    let found = |from: &Place| Some((opened.iter().position(|(known, _)| *known == from.file)?, from.offset));
    let found_at = from.and_then(found);
    part.is_gap = from.is_some() && found_at.is_none();
    let (first, mut offset) = found_at.unwrap_or((0, 0));
    let mut left = READ_BYTES_MAX;
    for (file, opened) in opened.into_iter().skip(first) {
        let mut place = Place { file, offset };
        left = take_lines(&opened, &mut place, left, &mut part.lines)?;
        part.next = Some(place);
        if left == 0 {
            part.more = true;
            break;
        }
        offset = 0;
    }
    Ok(part)
}

/// Takes lines from `place` on, which it moves behind them, until about `left` bytes are read. Returns how many are left.
fn take_lines(file: &File, place: &mut Place, mut left: u64, lines: &mut Vec<(Place, String)>) -> io::Result<u64> {
    let mut reader = BufReader::new(file);
    reader.seek(SeekFrom::Start(place.offset))?;
    let mut line = Vec::new();
    while left > 0 {
        line.clear();
        let count = reader.read_until(b'\n', &mut line)? as u64;
        if line.pop() != Some(b'\n') {
            break;
        }
        place.offset += count;
        left = left.saturating_sub(count);
        let text = std::str::from_utf8(&line).ok().filter(|text| serde_json::from_str::<IgnoredAny>(text).is_ok());
        lines.extend(text.map(|text| (*place, text.to_owned())));
    }
    Ok(left)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn texts(part: &Part) -> Vec<&str> {
        part.lines.iter().map(|(_, text)| text.as_str()).collect()
    }

    #[test]
    fn events_are_read_on_from_a_place_through_a_rotation() {
        let dir = tempfile::tempdir().expect("a directory");
        let files = ["e.1", "e"].map(|name| dir.path().join(name));
        fs::write(&files[1], "{\"a\":1}\n\0torn\n{\"a\":2}\n").expect("written");
        let start = Place { offset: 0, ..Place::end_of(&fs::metadata(&files[1]).expect("there")) };
        let part = read(&files, Some(&start)).expect("read");
        assert_eq!((texts(&part), part.is_gap, part.more), (vec!["{\"a\":1}", "{\"a\":2}"], false, false));
        let after_one = part.lines[0].0;
        assert_eq!(after_one.to_string().parse(), Ok(after_one));
        fs::rename(&files[1], &files[0]).expect("rotated");
        fs::write(&files[1], "{\"a\":3}\n{\"a\":").expect("written");
        let part = read(&files, Some(&after_one)).expect("read");
        assert_eq!((texts(&part), part.is_gap), (vec!["{\"a\":2}", "{\"a\":3}"], false));
        // The rest of the line comes, and then the file of the place is gone.
        fs::write(&files[0], "").expect("emptied");
        fs::rename(&files[1], &files[0]).expect("rotated");
        fs::write(&files[1], "{\"a\":5}\n").expect("written");
        let part = read(&files, Some(&after_one)).expect("read");
        assert_eq!((texts(&part), part.is_gap), (vec!["{\"a\":3}", "{\"a\":5}"], true));
        assert_eq!(texts(&read(&files, part.next.as_ref()).expect("read")), Vec::<&str>::new());
    }

    #[test]
    fn a_long_log_is_read_in_parts() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("e");
        let line = format!("\"{}\"\n", "l".repeat(1 << 10));
        fs::write(&file, line.repeat(2500)).expect("written");
        let mut from = Place { offset: 0, ..Place::end_of(&fs::metadata(&file).expect("there")) };
        let (mut count, mut parts) = (0, 0);
        loop {
            let part = read(std::slice::from_ref(&file), Some(&from)).expect("read");
            (count, parts, from) = (count + part.lines.len(), parts + 1, part.next.expect("a place"));
            if !part.more {
                break;
            }
        }
        assert_eq!((count, parts), (2500, 3));
    }

    #[test]
    fn other_text_is_no_place() {
        for text in ["", "1", "1.2", "1.2.x", "1.2.3.4", "-1.2.3"] {
            assert_eq!(text.parse::<Place>(), Err(PlaceError), "{text}");
        }
    }
}
