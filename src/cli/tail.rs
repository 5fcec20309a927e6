//! Reads a log and its rotated part as one stream: from the start, from the last lines, and as it grows. Keeps only one
//! block in memory.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};

use super::error::Failure;
use swarm_store::log_parts;
use swarm_store::runs::records;

const BLOCK_BYTES: usize = 64 * 1024;

/// Maximum number of bytes that one call of [`Tail::drain`] reads, so that Ctrl-C is noticed even if the worker writes
/// faster than the terminal.
const DRAIN_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// Receives the bytes.
pub type Sink<'a> = dyn FnMut(&[u8]) -> Result<(), Failure> + 'a;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum From {
    Start,
    LastLines(u64),
    /// From this byte offset.
    Byte(u64),
}

/// Incomplete last line.
#[derive(Debug, Default)]
pub struct Pending(Vec<u8>);

impl Pending {
    /// Adds bytes; returns the lines that are now complete, each with its newline.
    pub fn whole(&mut self, bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut lines = Vec::new();
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.0.extend_from_slice(part);
            if self.0.ends_with(b"\n") {
                lines.push(std::mem::take(&mut self.0));
            }
        }
        lines
    }

    /// Returns the incomplete last line.
    pub fn rest(&self) -> &[u8] {
        &self.0
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// Set if the limit was reached before the end of the file.
    pub more: bool,
    /// Set if the path now names another file.
    pub switched: bool,
}

/// Place in a log, from which another process can go on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    file: Option<Known>,
    part: Option<Known>,
    base: u64,
    offset: u64,
}

impl Place {
    /// Returns the position among all bytes that were ever written to the log.
    pub fn position(&self) -> u64 {
        self.base.saturating_add(self.offset)
    }
}

/// A file that is not kept open. Its inode may be given to another file, which is younger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Known {
    inode: u64,
    born_ns: Option<u64>,
}

impl Known {
    fn of(file: &File) -> io::Result<Self> {
        let meta = file.metadata()?;
        let born = meta.created().ok().and_then(|born| born.duration_since(UNIX_EPOCH).ok());
        Ok(Self { inode: meta.ino(), born_ns: born.and_then(|born| u64::try_from(born.as_nanos()).ok()) })
    }
}

/// What became of the log in which a place is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// The place is in the current log.
    Log,
    /// It was renamed to the rotated part.
    Part,
    /// It is gone, or was not there.
    Gone,
}

/// Maximum number of tries to find the last lines of a log that is rotated meanwhile.
const TRIES_MAX: usize = 10;

/// Position in a log that grows, and may be copied to `.1` and truncated, or renamed to `.1`.
pub struct Tail {
    path: PathBuf,
    older: PathBuf,
    file: Option<File>,
    offset: u64,
    /// Position of the first byte of the log.
    base: u64,
    /// Rotated part that belongs to `base`. Kept open, so that no other file gets its inode.
    part: Option<(Identity, Rc<File>)>,
    /// Whether that part begins as the log, which is about to be truncated.
    is_copied: bool,
}

/// Device and inode.
type Identity = (u64, u64);

impl Tail {
    pub fn new(path: PathBuf) -> Self {
        let older = log_parts::older(&path);
        Self { path, older, file: None, offset: 0, base: 0, part: None, is_copied: false }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reports whether the log or its rotated part exists.
    pub fn exists(&self) -> bool {
        self.path.is_file() || self.older.is_file()
    }

    /// Reports whether the log was there when it was read.
    pub fn has_log(&self) -> bool {
        self.file.is_some()
    }

    /// Reports whether the rotated part was there when the log was read.
    pub fn has_part(&self) -> bool {
        self.part.is_some()
    }

    /// Sets the position from which [`Tail::drain`] continues, and passes on everything wanted before it.
    pub fn start(&mut self, from: From, sink: &mut Sink) -> Result<(), Failure> {
        match from {
            From::Start => match self.open()? {
                Some(older) => self.copy(&older, 0, sink),
                None => Ok(()),
            },
            From::LastLines(lines) => self.place_before_last(lines, sink),
            From::Byte(offset) => {
                self.open()?;
                self.offset = offset;
                Ok(())
            }
        }
    }

    /// Returns the present place.
    pub fn place(&self) -> Result<Place, Failure> {
        let known = |file: Option<&File>| file.map(Known::of).transpose().map_err(|error| self.unreadable(&error));
        let file = known(self.file.as_ref())?;
        let part = known(self.part.as_ref().map(|(_, part)| &**part))?;
        Ok(Place { file, part, base: self.base, offset: self.offset })
    }

    /// Goes on from a place. Passes on what is there if the log of that place is gone.
    pub fn go_on(&mut self, place: &Place, sink: &mut Sink) -> Result<(), Failure> {
        let older = self.open()?;
        let is_same = |file: Option<&File>, known: Option<Known>| match (file, known) {
            (Some(file), Some(known)) => {
                Known::of(file).map(|now| now == known).map_err(|error| self.unreadable(&error))
            }
            (Some(_) | None, _) => Ok(false),
        };
        let is_same_part = is_same(older.as_deref(), place.part)?;
        match self.found(older.as_deref(), place)? {
            Found::Log => {}
            Found::Part => {
                let file = older.as_deref().map(File::try_clone).transpose();
                self.file = file.map_err(|error| self.unreadable(&error))?;
            }
            Found::Gone if is_same_part => return Ok(()),
            Found::Gone => return older.map_or(Ok(()), |older| self.copy(&older, 0, sink)),
        }
        (self.base, self.offset) = (place.base, place.offset);
        if !is_same_part {
            // Found to be rotated by whoever reads next.
            self.part = None;
        }
        Ok(())
    }

    /// Opens the log at its start, and returns what became of the log in which `place` is.
    pub fn find(&mut self, place: &Place) -> Result<Found, Failure> {
        let older = self.open()?;
        self.found(older.as_deref(), place)
    }

    fn found(&self, older: Option<&File>, place: &Place) -> Result<Found, Failure> {
        let known = |file: &File| Known::of(file).map_err(|error| self.unreadable(&error));
        let log = self.file.as_ref().map(known).transpose()?;
        let older = older.map(known).transpose()?;
        Ok(match place.file {
            Some(file) if log == Some(file) => Found::Log,
            Some(file) if older == Some(file) => Found::Part,
            Some(_) | None => Found::Gone,
        })
    }

    /// Opens the log at its start, before its rotated part. Returns the position of its first byte, among all that were
    /// ever written to it.
    pub fn begin(&mut self) -> Result<u64, Failure> {
        self.open().map(|_| self.base)
    }

    /// Returns the position of the first byte of the rotated part. `None` if there is no part, or if it is a whole log
    /// that was renamed, after which positions begin anew.
    pub fn part_start(&self) -> Option<u64> {
        self.part.as_ref().and_then(|(_, part)| log_parts::part_of(part)).map(|part| part.start)
    }

    /// Passes on the rotated part.
    pub fn copy_part(&self, sink: &mut Sink) -> Result<(), Failure> {
        self.part.as_ref().map_or(Ok(()), |(_, part)| self.copy(part, 0, sink))
    }

    /// Opens the log at its start, and returns the rotated part before it.
    fn open(&mut self) -> Result<Option<Rc<File>>, Failure> {
        self.file = open(&self.path)?;
        if let Some(file) = &self.file {
            log_parts::lock_for_reading(file);
        }
        let older = open(&self.older);
        if let Some(file) = &self.file {
            log_parts::unlock(file);
        }
        let older = older?.map(Rc::new);
        (self.offset, self.is_copied) = (0, false);
        self.base = older.as_deref().and_then(log_parts::part_of).map_or(0, |part| part.next);
        self.part = match &older {
            Some(older) => Some((identity(older).map_err(|error| self.unreadable(&error))?, Rc::clone(older))),
            None => None,
        };
        Ok(older)
    }

    fn place_before_last(&mut self, lines: u64, sink: &mut Sink) -> Result<(), Failure> {
        for _ in 0..TRIES_MAX {
            let older = self.open()?;
            let found = self.file.as_ref().map_or(Ok((0, 0)), |file| last_lines(file, lines));
            if self.is_rotated()? {
                continue;
            }
            let (offset, found) = found.map_err(|error| self.unreadable(&error))?;
            self.offset = offset;
            if let Some(older) = older.filter(|_| found < lines) {
                let (offset, _) = last_lines(&older, lines - found).map_err(|error| self.unreadable(&error))?;
                self.copy(&older, offset, sink)?;
            }
            return Ok(());
        }
        // Rotated again and again: everything that comes is new.
        Ok(())
    }

    /// Passes on everything written since the last call, up to `DRAIN_BYTES_MAX`.
    pub fn drain(&mut self, sink: &mut Sink) -> Result<Drained, Failure> {
        let mut drained = Drained::default();
        let mut left = DRAIN_BYTES_MAX;
        loop {
            let file = match self.file.take() {
                Some(file) => file,
                None => {
                    self.open()?;
                    let Some(file) = self.file.take() else { return Ok(drained) };
                    drained.switched = true;
                    file
                }
            };
            let is_rotated = self.copy_log(&file, &mut left, sink)?;
            if left == 0 {
                self.file = Some(file);
                drained.more = true;
                return Ok(drained);
            }
            let meta = file.metadata().map_err(|error| self.unreadable(&error))?;
            if is_rotated || self.is_rotated()? {
                self.follow_rotation(file, sink)?;
                continue;
            }
            if meta.len() < self.offset {
                // Truncated without a part, because the disk was full, or by whoever copied it before.
                if let Some((_, older)) = self.part.as_ref().filter(|_| self.is_copied) {
                    self.copy(older, self.offset, sink)?;
                }
                self.file = Some(file);
                (self.offset, self.is_copied) = (0, false);
                continue;
            }
            match fs::metadata(&self.path) {
                Ok(now) if (now.dev(), now.ino()) != (meta.dev(), meta.ino()) => {}
                // If the name is gone, it may come back; continue with the open file until then.
                Ok(_) | Err(_) => {
                    self.file = Some(file);
                    return Ok(drained);
                }
            }
        }
    }

    /// Continues after `file` was copied to `.1` and truncated, or renamed to `.1`: passes on what was written before
    /// that and is only there.
    fn follow_rotation(&mut self, file: File, sink: &mut Sink) -> Result<(), Failure> {
        let position = self.base.saturating_add(self.offset);
        let offset = self.offset;
        let own = identity(&file).map_err(|error| self.unreadable(&error))?;
        if self.older_identity()? == Some(own) {
            // Renamed: no more is written to it than what it contains.
            self.part = Some((own, Rc::new(file.try_clone().map_err(|error| self.unreadable(&error))?)));
            self.file = Some(file);
            return Ok(());
        }
        let older = self.open()?;
        let now = self.file.as_ref().map(File::metadata).transpose().map_err(|error| self.unreadable(&error))?;
        let is_whole = now.is_some_and(|now| (now.dev(), now.ino()) == own && now.len() >= offset);
        let part = older.as_deref().and_then(log_parts::part_of);
        if part.is_none() && is_whole {
            // The part was deleted, or somebody else copies the log and truncates it in a moment.
            (self.offset, self.is_copied) = (offset, older.is_some());
            return Ok(());
        }
        // If the beginning of a part was not kept, some output is lost.
        let from = part.map_or(offset, |part| position.saturating_sub(part.start));
        match older {
            Some(older) => self.copy(&older, from, sink),
            None => Ok(()),
        }
    }

    /// Passes on the bytes of the log from the present offset to its end, at most `left`. Reports whether the log was
    /// rotated meanwhile; what was read after that is not passed on.
    fn copy_log(&mut self, file: &File, left: &mut u64, sink: &mut Sink) -> Result<bool, Failure> {
        let mut block = vec![0; BLOCK_BYTES];
        while *left > 0 {
            let want = usize::try_from(*left).unwrap_or(BLOCK_BYTES).min(BLOCK_BYTES);
            match file.read_at(&mut block[..want], self.offset) {
                Ok(0) => break,
                Ok(read) => {
                    // The part appears before the log is truncated, so a block read before that is the old one.
                    if self.is_rotated()? {
                        return Ok(true);
                    }
                    sink(&block[..read])?;
                    self.offset += read as u64;
                    *left -= read as u64;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(self.unreadable(&error)),
            }
        }
        Ok(false)
    }

    /// Reports whether there is another rotated part than when the log was opened.
    fn is_rotated(&self) -> Result<bool, Failure> {
        Ok(self.older_identity()? != self.part.as_ref().map(|(identity, _)| *identity))
    }

    fn older_identity(&self) -> Result<Option<Identity>, Failure> {
        match fs::metadata(&self.older) {
            Ok(meta) => Ok(Some((meta.dev(), meta.ino()))),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(unreadable(&self.older, &error)),
        }
    }

    /// Passes on a file from `offset` to its end.
    fn copy(&self, file: &File, offset: u64, sink: &mut Sink) -> Result<(), Failure> {
        let mut block = vec![0; BLOCK_BYTES];
        let mut offset = offset;
        loop {
            match file.read_at(&mut block, offset) {
                Ok(0) => return Ok(()),
                Ok(read) => {
                    sink(&block[..read])?;
                    offset += read as u64;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(self.unreadable(&error)),
            }
        }
    }

    fn unreadable(&self, error: &io::Error) -> Failure {
        unreadable(&self.path, error)
    }
}

fn identity(file: &File) -> io::Result<Identity> {
    file.metadata().map(|meta| (meta.dev(), meta.ino()))
}

fn unreadable(path: &Path, error: &io::Error) -> Failure {
    Failure::system(format!("cannot read {}", path.display()), error)
}

fn open(path: &Path) -> Result<Option<File>, Failure> {
    match records::open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(unreadable(path, &error)),
    }
}

/// Returns the offset of the last `lines` lines, and how many there are, up to that number. Reads backwards block by
/// block, so the cost does not depend on the size of the log.
fn last_lines(file: &File, lines: u64) -> io::Result<(u64, u64)> {
    let end = file.metadata()?.len();
    if lines == 0 || end == 0 {
        return Ok((end, 0));
    }
    let mut block = vec![0; BLOCK_BYTES];
    let (mut position, mut found) = (end, 0);
    while position > 0 {
        let size = usize::try_from(position).unwrap_or(BLOCK_BYTES).min(BLOCK_BYTES);
        position -= size as u64;
        file.read_exact_at(&mut block[..size], position)?;
        for index in (0..size).rev().filter(|index| block[*index] == b'\n') {
            let after = position + index as u64 + 1;
            // The newline at the end of the file ends the last line and starts none.
            if after != end {
                found += 1;
                if found == lines {
                    return Ok((after, lines));
                }
            }
        }
    }
    Ok((0, found + 1))
}

#[cfg(test)]
#[path = "tail_tests.rs"]
mod tests;
