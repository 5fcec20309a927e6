//! The log of a window as the window showed it.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use swarm_tmux::{Emulator, Shown, Size};

use crate::window_sizes;

/// Number of bytes at the end of a log that are rendered for its last lines.
const TAIL_BYTES: u64 = 1 << 20;
const BLOCK_BYTES: u64 = 1 << 20;
/// Sequences by which a program enters and leaves the alternate screen; both differ only in their last byte.
const ALTERNATE: [&[u8]; 2] = [b"\x1b[?1049", b"\x1b[?1047"];

/// Terminal that is fed with a log, and has the size that the window had at each position.
pub struct Replay {
    emulator: Emulator,
    size: Size,
    file: PathBuf,
    /// Sizes that the terminal does not have yet.
    sizes: VecDeque<(u64, Size)>,
    /// Length of the file of sizes when it was read.
    known_bytes: u64,
    /// Position of the next byte.
    position: u64,
}

impl Replay {
    /// Begins at `position` of a log, whose sizes are in `file`. Without sizes, lines wrap as in a window that nobody is
    /// attached to.
    pub fn new(file: PathBuf, position: u64) -> Self {
        let size = Size::default();
        let mut replay =
            Self { emulator: Emulator::new(size), size, file, sizes: VecDeque::new(), known_bytes: 0, position };
        replay.refresh();
        if let Some((_, size)) = replay.sizes.pop_front() {
            replay.size = size;
            replay.emulator = Emulator::new(size);
        }
        replay
    }

    /// Reads sizes that were recorded since the last call.
    pub fn refresh(&mut self) {
        let bytes = length(&self.file);
        if bytes == self.known_bytes {
            return;
        }
        self.known_bytes = bytes;
        self.sizes = window_sizes::read(&self.file).unwrap_or_default().into();
        while self.sizes.get(1).is_some_and(|(at, _)| *at <= self.position) {
            self.sizes.pop_front();
        }
    }

    /// Feeds bytes up to the next size, and returns their number.
    pub fn feed_some(&mut self, bytes: &[u8]) -> usize {
        let next = self.sizes.front().map_or(u64::MAX, |(at, _)| *at);
        let length = bytes.len().min(usize::try_from(next.saturating_sub(self.position)).unwrap_or(usize::MAX));
        self.emulator.feed(&bytes[..length]);
        self.position += length as u64;
        length
    }

    /// Takes the size that the window has at the current position; `None` if the terminal has it.
    pub fn next_size(&mut self) -> Option<Size> {
        let (_, size) = self.sizes.pop_front_if(|(at, _)| *at <= self.position)?;
        (std::mem::replace(&mut self.size, size) != size).then_some(size)
    }

    /// Feeds bytes.
    pub fn feed(&mut self, bytes: &[u8]) {
        let mut bytes = bytes;
        while !bytes.is_empty() {
            bytes = &bytes[self.feed_some(bytes)..];
            if let Some(size) = self.next_size() {
                self.emulator.resize(size);
            }
        }
    }

    pub fn emulator(&mut self) -> &mut Emulator {
        &mut self.emulator
    }
}

fn length(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |meta| meta.len())
}

/// Keeps the last lines of what a terminal showed.
pub struct LastLines {
    lines: VecDeque<String>,
    count: usize,
    /// Number of lines that were added so far.
    added: usize,
    /// Screen that a program left last, and `added` at that time. Without `for_reader` it counts only while nothing else
    /// was shown.
    left: Option<(usize, Vec<String>)>,
    for_reader: bool,
}

impl LastLines {
    pub fn new(count: usize) -> Self {
        Self { lines: VecDeque::new(), count, added: 0, left: None, for_reader: false }
    }

    /// Keeps the lines that a person wants to read: of several blank lines one, and also the screen that a full-screen
    /// program left last.
    pub fn for_reader(count: usize) -> Self {
        Self { for_reader: true, ..Self::new(count) }
    }

    /// Takes what `emulator` did.
    pub fn take(&mut self, emulator: &mut Emulator) {
        for shown in emulator.take() {
            match shown {
                Shown::Line(line) => self.push(line),
                Shown::HistoryCleared => {
                    self.lines.clear();
                    self.left = self.left.take().filter(|_| !self.for_reader);
                }
                Shown::Left(lines) if lines.is_empty() => {}
                Shown::Left(lines) => self.left = Some((self.added, lines)),
            }
        }
    }

    fn push(&mut self, line: String) {
        if self.for_reader && line.is_empty() && self.lines.back().is_some_and(String::is_empty) {
            return;
        }
        self.added += 1;
        if self.lines.len() == self.count {
            self.lines.pop_front();
        }
        if self.count > 0 {
            self.lines.push_back(line);
        }
    }

    /// Adds the screen at the end of one life of the window.
    pub fn end(&mut self, emulator: &mut Emulator) {
        self.take(emulator);
        emulator.screen().into_iter().for_each(|line| self.push(line));
    }

    /// Returns the lines, oldest first, without blank ones at the end.
    pub fn lines(self) -> Vec<String> {
        let mut lines = Vec::from(self.lines);
        let shows_left = self.for_reader || lines.iter().all(String::is_empty);
        // If more lines followed than are kept, it is out of sight.
        if let Some((at, left)) = self.left.filter(|(at, _)| shows_left && self.added - at <= self.count) {
            let index = lines.len().saturating_sub(self.added - at);
            lines.splice(index..index, left);
        }
        if self.for_reader {
            lines.dedup_by(|next, line| next.is_empty() && line.is_empty());
        }
        while lines.last().is_some_and(String::is_empty) {
            lines.pop();
        }
        lines.split_off(lines.len().saturating_sub(self.count))
    }
}

/// Reports whether a line says anything. Lines of frames, which agents draw around what they say, do not.
fn has_words(line: &str) -> bool {
    line.chars().any(char::is_alphanumeric)
}

/// Returns the end of these lines that has `count` lines with words. Of equal lines without words that follow each other,
/// only the first is left.
pub fn worded(mut lines: Vec<String>, count: usize) -> Vec<String> {
    lines.dedup_by(|next, line| next == line && !has_words(line));
    let with_words = lines.iter().enumerate().rev().filter(|(_, line)| has_words(line));
    let begin = with_words.map(|(at, _)| at).take(count).last();
    lines.split_off(begin.unwrap_or(0))
}

/// Returns the last lines of a window's log that have words, as the window showed them; if none has, those that are not
/// blank. Reads only the end of the log.
///
/// # Errors
/// Fails if the log cannot be read.
pub fn last_lines(log: &Path, count: usize) -> io::Result<Vec<String>> {
    let lines = lines_since(log, 0)?;
    let has_any = lines.iter().any(|line| has_words(line));
    let counts = |line: &String| if has_any { has_words(line) } else { !line.trim().is_empty() };
    let lines: Vec<String> = lines.into_iter().filter(counts).collect();
    Ok(lines[lines.len().saturating_sub(count)..].to_vec())
}

/// Returns what the window showed because of the output after offset `from` of its log, or of the last `TAIL_BYTES` of it;
/// of the whole log if it was truncated since.
///
/// # Errors
/// Fails if the log cannot be read.
pub fn lines_since(log: &Path, from: u64) -> io::Result<Vec<String>> {
    let file = File::open(log)?;
    let length = file.metadata()?.len();
    let from =
        if from <= length { from.max(length.saturating_sub(TAIL_BYTES)) } else { length.saturating_sub(TAIL_BYTES) };
    let mut bytes = vec![0; usize::try_from(length - from).unwrap_or(0)];
    file.read_exact_at(&mut bytes, from)?;
    let base = File::open(crate::log_parts::older(log)).ok().and_then(|part| crate::log_parts::part_of(&part));
    let base = base.map_or(0, |part| part.next);
    let mut replay = Replay::new(window_sizes::beside(log), base.saturating_add(from));
    if from > 0 && is_alternate_at(&file, from)? {
        replay.emulator().feed(b"\x1b[?1049h");
    }
    replay.feed(&bytes);
    let mut lines = LastLines::new(usize::MAX);
    lines.end(replay.emulator());
    Ok(lines.lines())
}

/// Reports whether the alternate screen is shown at `end` of a log.
fn is_alternate_at(file: &File, end: u64) -> io::Result<bool> {
    let overlap = ALTERNATE[0].len() as u64 + 1;
    let (mut end, mut block) = (end, Vec::new());
    while end > 0 {
        let from = end.saturating_sub(BLOCK_BYTES);
        block.resize(usize::try_from(end - from).unwrap_or(0), 0);
        file.read_exact_at(&mut block, from)?;
        let last = ALTERNATE.iter().filter_map(|sequence| memchr::memmem::rfind(&block, sequence)).max();
        if let Some(last) = last.and_then(|at| block.get(at + ALTERNATE[0].len())) {
            return Ok(*last == b'h');
        }
        // A sequence may be on the border of two blocks.
        end = if from == 0 { 0 } else { from + overlap };
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Logged {
        _dir: tempfile::TempDir,
        log: PathBuf,
    }

    fn logged(text: &str, sizes: &str) -> Logged {
        let dir = tempfile::tempdir().expect("a directory");
        let log = dir.path().join("x.tmux.log");
        fs::write(&log, text).expect("written");
        fs::write(window_sizes::beside(&log), sizes).expect("written");
        Logged { _dir: dir, log }
    }

    #[test]
    fn frames_do_not_count_as_lines() {
        let frame = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>();
        let drawn = frame(&["one", "two", "", "│", "│", "│", "│ three", "╰──╯", "", "❯"]);
        assert_eq!(worded(drawn.clone(), 2), frame(&["two", "", "│", "│ three", "╰──╯", "", "❯"]));
        assert_eq!(worded(drawn.clone(), 1), frame(&["│ three", "╰──╯", "", "❯"]));
        assert_eq!(worded(drawn, 9).first().map(String::as_str), Some("one"));
        assert_eq!(worded(frame(&["same", "same"]), 9), frame(&["same", "same"]));
        assert_eq!(worded(frame(&["│", "│"]), 9), frame(&["│"]));
    }

    #[test]
    fn lines_wrap_at_the_width_that_the_window_had() {
        let text = "0123456789ab\r\n0123456789ab\r\n";
        let logged = logged(text, "0 10 5\n14 80 5\n");
        assert_eq!(last_lines(&logged.log, 9).expect("read"), ["0123456789ab", "0123456789ab"]);
        fs::write(window_sizes::beside(&logged.log), "0 10 5\n").expect("written");
        assert_eq!(last_lines(&logged.log, 9).expect("read"), ["0123456789", "ab", "0123456789", "ab"]);
        fs::remove_file(window_sizes::beside(&logged.log)).expect("removed");
        assert_eq!(last_lines(&logged.log, 1).expect("read"), ["0123456789ab"]);
    }

    #[test]
    fn a_long_log_is_read_from_its_end_on_the_screen_that_was_shown() {
        let filler = "\x1b[1;1Hold\x1b[K\x1b[2;1Hother\x1b[K".repeat(100_000);
        assert!(filler.len() as u64 > 2 * TAIL_BYTES);
        let logged = logged(&format!("shell\r\n\x1b[?1049h{filler}\x1b[1;1Hnew\x1b[K"), "0 80 24\n");
        assert_eq!(last_lines(&logged.log, 9).expect("read"), ["new", "other"]);
        let left = format!("{}\x1b[?1049l$ ", fs::read_to_string(&logged.log).expect("read"));
        fs::write(&logged.log, left).expect("written");
        assert_eq!(last_lines(&logged.log, 9).expect("read"), ["$"]);
    }

    #[test]
    fn a_reader_gets_the_screen_that_was_left_and_no_runs_of_blank_lines() {
        let lines = |text: &str, mut last: LastLines| {
            let mut emulator = Emulator::new(Size { columns: 20, rows: 10 });
            emulator.feed(text.as_bytes());
            last.end(&mut emulator);
            last.lines()
        };
        let told = "\x1b[?1049h\x1b[Hquestion\x1b[5;1Hanswer\x1b[1;1H\x1b[?1049lResume with x\r\n";
        assert_eq!(lines(told, LastLines::new(9)), ["Resume with x"]);
        assert_eq!(lines(told, LastLines::for_reader(9)), ["question", "", "answer", "Resume with x"]);
        assert_eq!(lines(told, LastLines::for_reader(2)), ["answer", "Resume with x"]);
        let cleared = format!("{told}\x1b[H\x1b[2J\x1b[3J$ ");
        assert_eq!(lines(&cleared, LastLines::for_reader(9)), ["$"]);
        let later = format!("{told}{}", "line\r\n".repeat(30));
        assert_eq!(lines(&later, LastLines::for_reader(9)), ["line"; 9]);
        let spread = "one\r\n\r\n\r\n\r\n\r\n\r\ntwo\r\n\r\n\r\n";
        assert_eq!(lines(spread, LastLines::for_reader(3)), ["one", "", "two"]);
        assert_eq!(lines(spread, LastLines::for_reader(0)), Vec::<String>::new());
    }

    #[test]
    fn the_screen_of_a_program_that_left_nothing_else_is_kept() {
        let logged = logged("\x1b[?1049h\x1b[Hhello\r\nworld\x1b[?1049l", "");
        assert_eq!(last_lines(&logged.log, 9).expect("read"), ["hello", "world"]);
    }
}
