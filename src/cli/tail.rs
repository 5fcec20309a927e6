//! Reads a log and its rotated part as one stream: from the start, from the last lines, and as it grows. Keeps only one
//! block in memory.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use super::error::Failure;

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

/// Position in a log that grows, and may be copied to `.1` and truncated, or renamed to `.1`.
pub struct Tail {
    path: PathBuf,
    older: PathBuf,
    file: Option<File>,
    offset: u64,
}

impl Tail {
    pub fn new(path: PathBuf) -> Self {
        let mut older = path.clone().into_os_string();
        older.push(".1");
        Self { path, older: older.into(), file: None, offset: 0 }
    }

    /// Reports whether the log or its rotated part exists.
    pub fn exists(&self) -> bool {
        self.path.is_file() || self.older.is_file()
    }

    /// Sets the position from which [`Tail::drain`] continues, and passes on everything wanted before it.
    pub fn start(&mut self, from: From, sink: &mut Sink) -> Result<(), Failure> {
        match from {
            From::Start => self.older_whole(sink),
            From::LastLines(lines) => self.place_before_last(lines, sink),
            From::Byte(offset) => {
                self.file = open(&self.path)?;
                self.offset = offset;
                Ok(())
            }
        }
    }

    /// Passes on the rotated part. If the log is rotated meanwhile, the new rotated part comes next and is read too.
    fn older_whole(&mut self, sink: &mut Sink) -> Result<(), Failure> {
        let mut read = None;
        while let Some(file) = open(&self.older)? {
            let meta = file.metadata().map_err(|error| self.unreadable(&error))?;
            let identity = (meta.ino(), meta.len(), meta.mtime(), meta.mtime_nsec());
            if read.replace(identity) == Some(identity) {
                break;
            }
            self.copy(&file, 0, u64::MAX, sink)?;
        }
        Ok(())
    }

    fn place_before_last(&mut self, lines: u64, sink: &mut Sink) -> Result<(), Failure> {
        let mut found = 0;
        self.file = open(&self.path)?;
        if let Some(file) = &self.file {
            (self.offset, found) = last_lines(file, lines).map_err(|error| self.unreadable(&error))?;
        }
        if found < lines
            && let Some(older) = open(&self.older)?
        {
            let (offset, _) = last_lines(&older, lines - found).map_err(|error| self.unreadable(&error))?;
            self.copy(&older, offset, u64::MAX, sink)?;
        }
        Ok(())
    }

    /// Passes on everything written since the last call, up to `DRAIN_BYTES_MAX`.
    pub fn drain(&mut self, sink: &mut Sink) -> Result<Drained, Failure> {
        let mut drained = Drained::default();
        let mut left = DRAIN_BYTES_MAX;
        loop {
            let file = match self.file.take() {
                Some(file) => file,
                None => match open(&self.path)? {
                    Some(file) => {
                        drained.switched = true;
                        file
                    }
                    None => return Ok(drained),
                },
            };
            let read = self.copy(&file, self.offset, left, sink)?;
            self.offset += read;
            left -= read;
            let meta = file.metadata().map_err(|error| self.unreadable(&error))?;
            if left == 0 {
                self.file = Some(file);
                drained.more = true;
                return Ok(drained);
            }
            if meta.len() < self.offset {
                // The log was copied to `.1` and truncated; the last bytes before that are only in the copy.
                if let Some(older) = open(&self.older)? {
                    self.copy(&older, self.offset, u64::MAX, sink)?;
                }
                self.file = Some(file);
                self.offset = 0;
                continue;
            }
            match fs::metadata(&self.path) {
                Ok(now) if (now.dev(), now.ino()) != (meta.dev(), meta.ino()) => self.offset = 0,
                // If the name is gone, it may come back; continue with the open file until then.
                Ok(_) | Err(_) => {
                    self.file = Some(file);
                    return Ok(drained);
                }
            }
        }
    }

    /// Copies from `offset` to the end, at most `limit` bytes; returns the number of bytes copied.
    fn copy(&self, file: &File, offset: u64, limit: u64, sink: &mut Sink) -> Result<u64, Failure> {
        let mut block = vec![0; BLOCK_BYTES];
        let mut done = 0;
        while done < limit {
            let want = usize::try_from(limit - done).unwrap_or(BLOCK_BYTES).min(BLOCK_BYTES);
            match file.read_at(&mut block[..want], offset + done) {
                Ok(0) => break,
                Ok(read) => {
                    sink(&block[..read])?;
                    done += read as u64;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(self.unreadable(&error)),
            }
        }
        Ok(done)
    }

    fn unreadable(&self, error: &io::Error) -> Failure {
        unreadable(&self.path, error)
    }
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
