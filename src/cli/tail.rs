//! Reads a log and its rotated part as one stream: from the start, from the last lines, and as it grows. Keeps only one
//! block in memory.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use super::error::Failure;
use swarm_store::log_parts;

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
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// Set if the limit was reached before the end of the file.
    pub more: bool,
    /// Set if the path now names another file.
    pub switched: bool,
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
    /// Set if somebody held the lock of the log for so long that it is not waited for again.
    is_locked: bool,
}

/// Device and inode.
type Identity = (u64, u64);

impl Tail {
    pub fn new(path: PathBuf) -> Self {
        let older = log_parts::older(&path);
        Self { path, older, file: None, offset: 0, base: 0, part: None, is_copied: false, is_locked: false }
    }

    /// Reports whether the log or its rotated part exists.
    pub fn exists(&self) -> bool {
        self.path.is_file() || self.older.is_file()
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

    /// Opens the log at its start, and returns the rotated part before it.
    fn open(&mut self) -> Result<Option<Rc<File>>, Failure> {
        self.file = open(&self.path)?;
        if let Some(file) = &self.file {
            let limit = if self.is_locked { Duration::ZERO } else { log_parts::READ_LOCK_MAX };
            self.is_locked |= !log_parts::lock_for_reading(file, limit);
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
    match File::open(path) {
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
mod tests {
    use super::*;

    struct Log {
        _dir: tempfile::TempDir,
        path: PathBuf,
        older: PathBuf,
    }

    fn log(text: &str) -> Log {
        let dir = tempfile::tempdir().expect("a directory");
        let (path, older) = (dir.path().join("x.log"), dir.path().join("x.log.1"));
        fs::write(&path, text).expect("written");
        Log { _dir: dir, path, older }
    }

    fn taken(run: impl FnOnce(&mut Sink) -> Result<(), Failure>) -> String {
        let mut bytes = Vec::new();
        run(&mut |block| {
            bytes.extend_from_slice(block);
            Ok(())
        })
        .expect("readable");
        String::from_utf8(bytes).expect("text")
    }

    fn read(log: &Log, from: From) -> String {
        let mut tail = Tail::new(log.path.clone());
        taken(|sink| tail.start(from, sink).and_then(|()| tail.drain(sink).map(drop)))
    }

    fn append(path: &Path, text: &str) {
        use std::io::Write as _;
        fs::OpenOptions::new().append(true).open(path).expect("open").write_all(text.as_bytes()).expect("written");
    }

    #[test]
    fn the_last_lines_are_found_with_and_without_a_final_newline() {
        let one = log("a\nb\nc\n");
        assert_eq!(read(&one, From::LastLines(2)), "b\nc\n");
        assert_eq!(read(&one, From::LastLines(9)), "a\nb\nc\n");
        assert_eq!(read(&one, From::LastLines(0)), "");
        assert_eq!(read(&log("a\nb\nc"), From::LastLines(2)), "b\nc");
        assert_eq!(read(&log("\n\n\n"), From::LastLines(2)), "\n\n");
        assert_eq!(read(&log(""), From::LastLines(2)), "");
    }

    #[test]
    fn the_rotated_part_comes_first() {
        let one = log("c\nd\n");
        fs::write(&one.older, "a\nb\n").expect("written");
        assert_eq!(read(&one, From::Start), "a\nb\nc\nd\n");
        assert_eq!(read(&one, From::LastLines(3)), "b\nc\nd\n");
        assert_eq!(read(&one, From::LastLines(2)), "c\nd\n");
        fs::remove_file(&one.path).expect("removed");
        assert_eq!(read(&one, From::Start), "a\nb\n");
    }

    #[test]
    fn the_end_of_a_big_log_is_read_without_its_beginning() {
        let one = log("");
        let file = File::options().write(true).open(&one.path).expect("open");
        // A sparse file of a gigabyte: reading all of it would take noticeably long.
        file.set_len(1 << 30).expect("grown");
        append(&one.path, &format!("\n{}\nlast\n", "x".repeat(3 * BLOCK_BYTES)));
        assert_eq!(read(&one, From::LastLines(1)), "last\n");
        assert_eq!(read(&one, From::LastLines(2)).len(), 3 * BLOCK_BYTES + 1 + 5);
    }

    #[test]
    fn growth_truncation_and_renaming_lose_nothing() {
        let one = log("a\n");
        let mut tail = Tail::new(one.path.clone());
        assert_eq!(taken(|sink| tail.start(From::Start, sink)), "");
        assert_eq!(taken(|sink| tail.drain(sink).map(drop)), "a\n");
        append(&one.path, "b\n");
        assert_eq!(taken(|sink| tail.drain(sink).map(drop)), "b\n");
        // Copied by another program, with a read before it truncates the log.
        fs::copy(&one.path, &one.older).expect("copied");
        assert_eq!(taken(|sink| tail.drain(sink).map(drop)), "");
        fs::write(&one.path, "").expect("truncated");
        append(&one.path, "x\n");
        assert_eq!(taken(|sink| tail.drain(sink).map(drop)), "x\n");
        append(&one.path, "yy\n");
        assert_eq!(taken(|sink| tail.drain(sink).map(drop)), "yy\n");
        fs::remove_file(&one.older).expect("removed");
        assert_eq!(taken(|sink| tail.drain(sink).map(drop)), "");
        // Written, copied, truncated and written again between two reads.
        append(&one.path, "c\n");
        fs::copy(&one.path, &one.older).expect("copied");
        fs::write(&one.path, "d\n").expect("written");
        assert_eq!(taken(|sink| tail.drain(sink).map(drop)), "c\nd\n");
        append(&one.path, "e\n");
        fs::rename(&one.path, &one.older).expect("renamed");
        assert_eq!(taken(|sink| tail.drain(sink).map(drop)), "e\n");
        fs::write(&one.path, "f\n").expect("written");
        let mut switched = false;
        assert_eq!(taken(|sink| tail.drain(sink).map(|drained| switched = drained.switched)), "f\n");
        assert!(switched);
    }

    #[test]
    fn a_rotation_between_two_reads_neither_loses_nor_repeats_a_line() {
        let one = log("");
        let mut tail = Tail::new(one.path.clone());
        let lines = |range: std::ops::Range<u32>| range.map(|number| format!("{number:05}\n")).collect::<String>();
        append(&one.path, &lines(0..1000));
        assert_eq!(
            taken(|sink| tail.start(From::Start, sink).and_then(|()| tail.drain(sink).map(drop))),
            lines(0..1000)
        );
        for round in (1000..4000).step_by(1000) {
            append(&one.path, &lines(round..round + 100));
            log_parts::rotate(&one.path, 3000).expect("rotated");
            // Longer than before the rotation, so that the size alone does not show it.
            append(&one.path, &lines(round + 100..round + 1000 + 500));
            let expected = lines(round..round + 1500);
            assert_eq!(taken(|sink| tail.drain(sink).map(drop)), expected);
            log_parts::rotate(&one.path, 600).expect("rotated");
            append(&one.path, &lines(round + 1500..round + 1600));
            assert_eq!(taken(|sink| tail.drain(sink).map(drop)), lines(round + 1500..round + 1600));
        }
    }

    #[test]
    fn a_reader_beside_a_rotation_repeats_no_line() {
        use std::sync::atomic::{AtomicBool, Ordering};
        let one = log("");
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in (0..200_000).step_by(100) {
                    append(
                        &one.path,
                        &(number..number + 100).map(|number| format!("{number:06}\n")).collect::<String>(),
                    );
                    // Whole lines of seven bytes: a reader that misses a part continues at a line's start.
                    if fs::metadata(&one.path).expect("there").len() > 20_000 {
                        log_parts::rotate(&one.path, 7 * 1_400).expect("rotated");
                    }
                }
                done.store(true, Ordering::Release);
            });
            while !done.load(Ordering::Acquire) {
                let text = read(&one, From::Start);
                // A reader may see the first page of a write before the second, so the last line may be cut.
                let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
                let numbers: Vec<u32> = whole.lines().map(|line| line.parse().expect("a whole line")).collect();
                assert!(numbers.is_sorted_by(|one, next| one < next), "a line came twice");
            }
        });
    }

    #[test]
    fn one_drain_has_a_limit() {
        let one = log("");
        File::options().write(true).open(&one.path).expect("open").set_len(DRAIN_BYTES_MAX + 1).expect("grown");
        let mut tail = Tail::new(one.path.clone());
        let mut drains = Vec::new();
        for _ in 0..2 {
            let mut count = 0;
            let drained = tail.drain(&mut |block| {
                count += block.len() as u64;
                Ok(())
            });
            drains.push((count, drained.expect("readable").more));
        }
        assert_eq!(drains, [(DRAIN_BYTES_MAX, true), (1, false)]);
    }
}
