//! The log of a window for `swarm logs`, as the window showed it.

use std::collections::VecDeque;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::error::Failure;
use super::tail::{Found, Place, Tail};
use swarm_store::window_log::{LastLines, Replay, worded};
use swarm_store::window_sizes;
use swarm_store::windows::Shown;

/// Receives lines.
pub type Lines<'a> = dyn FnMut(&str) -> Result<(), Failure> + 'a;

/// Time after which the screen of a full-screen program counts as standing still. While they work, agents draw something
/// more often.
const STILL: Duration = Duration::from_secs(2);

/// Number of lines that are read for each line with words.
const FRAMES_MAX: usize = 4;

/// End of a log.
#[derive(Clone, Copy, Debug)]
pub enum End {
    /// This many lines.
    Lines(usize),
    /// This many lines with words, and the frames around them: a screen of an agent may be nearly empty.
    Worded(usize),
}

/// Window whose log is read.
pub struct Window {
    replay: Replay,
    /// Texts of the rows at the top of the screen that were printed.
    printed: VecDeque<String>,
    still: Still,
    /// Whether the conversation of its agent is printed instead of what the agent draws.
    pub talks: bool,
    /// Whether the last full-screen program has left its screen.
    left: bool,
}

/// State of the output of a window: which lines were printed, and what the screen shows.
#[derive(Debug, Serialize, Deserialize)]
pub struct Mark {
    printed: VecDeque<String>,
    still: Vec<String>,
    now: Vec<String>,
    is_changed: bool,
    left: bool,
}

/// Screen of a full-screen program, of which the lines that changed are printed when it stands still.
#[derive(Default)]
struct Still {
    printed: Vec<String>,
    now: Vec<String>,
    /// When it changed last. `None` if it was printed since.
    since: Option<Instant>,
}

impl Still {
    /// Takes the screen, and returns the lines to print.
    fn look(&mut self, screen: Vec<String>, now: Instant) -> Vec<String> {
        if screen != self.now {
            (self.now, self.since) = (screen, Some(now));
        }
        let is_still = self.since.is_some_and(|since| now.saturating_duration_since(since) >= STILL);
        if is_still { self.take() } else { Vec::new() }
    }

    /// Returns when it stands still, unless it changes.
    fn due(&self) -> Option<Instant> {
        self.since.and_then(|since| since.checked_add(STILL))
    }

    /// Returns the lines of the screen that were not on the one that was printed last, wherever they were.
    fn take(&mut self) -> Vec<String> {
        self.since = None;
        let mut known = std::mem::replace(&mut self.printed, self.now.clone());
        let (mut changed, mut gap) = (Vec::new(), false);
        for line in &self.now {
            if line.is_empty() {
                gap = !changed.is_empty();
            } else if let Some(at) = known.iter().position(|known| known == line) {
                known.swap_remove(at);
            } else {
                changed.extend(std::mem::take(&mut gap).then(String::new));
                changed.push(line.clone());
            }
        }
        changed
    }
}

impl Window {
    /// Reads the log up to its present end, and prints its last lines.
    pub fn start(log: &Path, tail: &mut Tail, end: End, lines: &mut Lines) -> Result<Self, Failure> {
        let mut last = LastLines::for_reader(match end {
            End::Lines(count) => count,
            End::Worded(count) => count.saturating_mul(FRAMES_MAX),
        });
        let sizes = window_sizes::beside(log);
        let base = tail.begin()?;
        let part = tail.part_start();
        let mut replay = Replay::new(sizes.clone(), part.unwrap_or(base));
        if part.is_some() {
            tail.copy_part(&mut |bytes: &[u8]| render(&mut replay, bytes, &mut last))?;
        } else {
            // The log of an earlier start, in another window.
            let mut earlier = Replay::new(sizes.with_added_extension("1"), 0);
            tail.copy_part(&mut |bytes: &[u8]| render(&mut earlier, bytes, &mut last))?;
            last.end(earlier.emulator());
        }
        while tail.drain(&mut |bytes: &[u8]| render(&mut replay, bytes, &mut last))?.more {}
        last.end(replay.emulator());
        let last = match end {
            End::Lines(_) => last.lines(),
            End::Worded(count) => worded(last.lines(), count),
        };
        last.iter().try_for_each(|line| lines(line))?;
        let printed = replay.emulator().primary().into();
        let shown = replay.emulator().alternate().unwrap_or_default();
        let still = Still { printed: shown.clone(), now: shown, since: None };
        Ok(Self { replay, printed, still, talks: false, left: false })
    }

    /// Reads the log up to `place`, prints what came after it as one that follows it does, and goes on from there.
    pub fn go_on(log: &Path, tail: &mut Tail, place: &Place, mark: Mark, lines: &mut Lines) -> Result<Self, Failure> {
        let found = tail.find(place)?;
        let base = tail.begin()?;
        let sizes = window_sizes::beside(log);
        let (sizes, begin) = match (found, tail.part_start()) {
            // The log of an earlier life comes first.
            (Found::Part, None) => (sizes.with_added_extension("1"), 0),
            (_, part) => (sizes, part.unwrap_or(base)),
        };
        let mut known = match found {
            Found::Log | Found::Part => place.position().saturating_sub(begin),
            Found::Gone => 0,
        };
        let since = mark.is_changed.then(Instant::now);
        let still = Still { printed: mark.still, now: mark.now, since };
        let replay = Replay::new(sizes, begin);
        let mut window = Self { replay, printed: mark.printed, still, talks: false, left: mark.left };
        let mut feed = |bytes: &[u8]| {
            let (old, new) = bytes.split_at(bytes.len().min(usize::try_from(known).unwrap_or(usize::MAX)));
            known -= old.len() as u64;
            window.replay.feed(old);
            window.replay.emulator().take();
            if new.is_empty() { Ok(()) } else { window.feed(new, lines) }
        };
        if found == Found::Part || tail.part_start().is_some() {
            tail.copy_part(&mut feed)?;
        }
        while tail.drain(&mut feed)?.more {}
        Ok(window)
    }

    /// Returns what was printed.
    pub fn mark(&self) -> Mark {
        Mark {
            printed: self.printed.clone(),
            still: self.still.printed.clone(),
            now: self.still.now.clone(),
            is_changed: self.still.since.is_some(),
            left: self.left,
        }
    }

    /// Takes more output, and prints the lines that left the screen by it. No bytes mean that there are no more for now:
    /// then the lines are printed that are finished.
    pub fn feed(&mut self, bytes: &[u8], lines: &mut Lines) -> Result<(), Failure> {
        let mut bytes = bytes;
        if bytes.is_empty() {
            self.replay.refresh();
            self.turn(lines)?;
            self.settle(lines)?;
            return self.draw(Instant::now(), lines);
        }
        while !bytes.is_empty() {
            bytes = &bytes[self.replay.feed_some(bytes)..];
            self.give(lines)?;
            self.turn(lines)?;
        }
        Ok(())
    }

    /// Prints what left the screen and was not printed.
    fn give(&mut self, lines: &mut Lines) -> Result<(), Failure> {
        for shown in self.replay.emulator().take() {
            match shown {
                Shown::Line(line) => {
                    if self.printed.pop_front().is_none_or(|printed| printed != line) && !self.is_mute() {
                        lines(&line)?;
                    }
                }
                Shown::Left(left) => {
                    self.still.now = left;
                    let changed = std::mem::take(&mut self.still).take();
                    if !self.talks {
                        changed.iter().try_for_each(|line| lines(line))?;
                    }
                    self.left = true;
                }
                Shown::HistoryCleared => {}
            }
        }
        Ok(())
    }

    /// Prints what has changed on the screen of a full-screen program that stands still at `now`.
    fn draw(&mut self, now: Instant, lines: &mut Lines) -> Result<(), Failure> {
        let Some(screen) = self.replay.emulator().alternate() else { return Ok(()) };
        self.left = false;
        let changed = self.still.look(screen, now);
        if self.talks { Ok(()) } else { changed.iter().try_for_each(|line| lines(line)) }
    }

    /// Returns when something may have to be printed although nothing is written.
    pub fn due(&self) -> Option<Instant> {
        self.still.due()
    }

    /// Reports whether the agent draws what is printed as its conversation.
    fn is_mute(&self) -> bool {
        self.talks && !self.left
    }

    /// Gives the terminal the size that the window has now. What leaves the screen by that was printed, or is about to be
    /// repainted.
    fn turn(&mut self, lines: &mut Lines) -> Result<(), Failure> {
        let Some(size) = self.replay.next_size() else { return Ok(()) };
        self.settle(lines)?;
        let emulator = self.replay.emulator();
        emulator.resize(size);
        emulator.take();
        self.printed = emulator.primary().into();
        Ok(())
    }

    fn settle(&mut self, lines: &mut Lines) -> Result<(), Failure> {
        let finished = self.replay.emulator().finished();
        self.print(finished, lines)
    }

    fn print(&mut self, rows: Vec<String>, lines: &mut Lines) -> Result<(), Failure> {
        let is_mute = self.is_mute();
        for (index, row) in rows.into_iter().enumerate() {
            let printed = self.printed.get_mut(index);
            if !is_mute && printed.as_deref() != Some(&row) {
                lines(&row)?;
            }
            match printed {
                Some(printed) => *printed = row,
                None => self.printed.push_back(row),
            }
        }
        Ok(())
    }

    /// Prints the rest of the screen.
    pub fn end(&mut self, lines: &mut Lines) -> Result<(), Failure> {
        let emulator = self.replay.emulator();
        let (primary, shown) = (emulator.primary(), emulator.alternate());
        self.print(primary, lines)?;
        self.still.now = shown.unwrap_or_default();
        let changed = self.still.take();
        if self.talks { Ok(()) } else { changed.iter().try_for_each(|line| lines(line)) }
    }
}

fn render(replay: &mut Replay, bytes: &[u8], last: &mut LastLines) -> Result<(), Failure> {
    replay.feed(bytes);
    last.take(replay.emulator());
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::{self, OpenOptions};
    use std::io::Write as _;
    use std::path::PathBuf;

    use super::*;

    struct Followed {
        _dir: tempfile::TempDir,
        log: PathBuf,
        tail: Tail,
        window: Window,
    }

    /// A followed log in a window of 20 columns and 4 rows, and its last 2 lines.
    fn followed(text: &str) -> (Followed, Vec<String>) {
        let dir = tempfile::tempdir().expect("a directory");
        let log = dir.path().join("x.tmux.log");
        fs::write(&log, text).expect("written");
        fs::write(window_sizes::beside(&log), "0 20 4\n").expect("written");
        let mut tail = Tail::new(log.clone());
        let mut said = Vec::new();
        let window = Window::start(&log, &mut tail, End::Lines(2), &mut |line| {
            said.push(line.to_owned());
            Ok(())
        });
        (Followed { _dir: dir, log, tail, window: window.expect("read") }, said)
    }

    impl Followed {
        /// Returns what is printed after the window got `text` and paused.
        fn gets(&mut self, text: &str) -> Vec<String> {
            let mut log = OpenOptions::new().append(true).open(&self.log).expect("open");
            log.write_all(text.as_bytes()).expect("written");
            let mut said = Vec::new();
            let (tail, window) = (&mut self.tail, &mut self.window);
            let mut lines = |line: &str| {
                said.push(line.to_owned());
                Ok(())
            };
            tail.drain(&mut |bytes: &[u8]| window.feed(bytes, &mut lines)).expect("read");
            window.feed(b"", &mut lines).expect("read");
            said
        }

        fn ends(mut self) -> Vec<String> {
            let mut said = Vec::new();
            let ended = self.window.end(&mut |line| {
                said.push(line.to_owned());
                Ok(())
            });
            ended.expect("printed");
            said
        }
    }

    #[test]
    fn a_line_is_printed_when_it_is_complete() {
        let (mut window, first) = followed("1\r\n2\r\n3\r\n4\r\n5\r\n");
        assert_eq!(first, ["4", "5"]);
        assert_eq!(window.gets("si"), Vec::<String>::new());
        assert_eq!(window.gets("x\r\nseven\r\n"), ["six", "seven"]);
        assert_eq!(window.gets("8\r\n9\r\n10\r\n11\r\n12\r\n13"), ["8", "9", "10", "11", "12"]);
        assert_eq!(window.ends(), ["13"]);
    }

    #[test]
    fn rows_that_are_repainted_are_printed_once_they_are_left() {
        let (mut window, first) = followed("start\r\n");
        assert_eq!(first, ["start"]);
        assert_eq!(window.gets("a 1\r\nb"), ["a 1"]);
        for step in 2..20 {
            assert_eq!(window.gets(&format!("\r\x1b[2K\x1b[1A\x1b[2Ka {step}\r\nb")), Vec::<String>::new());
        }
        assert_eq!(window.gets("\r\x1b[2K\x1b[1A\x1b[2Kmessage\r\na 20\r\nb\x1b[1A\r\x1b[1B"), Vec::<String>::new());
        assert_eq!(window.gets("\r\nc\r\nd"), ["message"], "the rest may be repainted");
        assert_eq!(window.ends(), ["a 20", "b", "c", "d"]);
    }

    #[test]
    fn a_full_screen_program_prints_its_last_screen_when_it_leaves_it() {
        let (mut window, _) = followed("$ vi\r\n");
        assert_eq!(window.gets("\x1b[?1049h\x1b[2J\x1b[Htext\r\n~"), Vec::<String>::new());
        assert_eq!(window.gets("\x1b[?1049l$ "), ["text", "~"]);
        assert_eq!(window.ends(), ["$"]);
    }

    #[test]
    fn a_full_screen_program_prints_what_has_changed_when_it_stands_still() {
        let (mut window, _) = followed("$ agent\r\n\x1b[?1049h\x1b[H> ask\r\n");
        let gets = |window: &mut Followed, text: &str, after: Duration| {
            let mut said = window.gets(text);
            let later = Instant::now() + after;
            let drawn = window.window.draw(later, &mut |line| {
                said.push(line.to_owned());
                Ok(())
            });
            drawn.expect("printed");
            said
        };
        assert_eq!(gets(&mut window, "answer 1\r\n", STILL / 2), Vec::<String>::new(), "it may go on");
        assert!(window.window.due().is_some());
        assert_eq!(gets(&mut window, "\x1b[2;1Hanswer one\x1b[4;1H> ", STILL), ["answer one", "", ">"]);
        assert_eq!(window.window.due(), None);
        assert_eq!(
            gets(&mut window, "\x1b[H\x1b[2Janswer one\r\nanswer two\r\n> ", STILL),
            ["answer two"],
            "it scrolled"
        );
        assert_eq!(gets(&mut window, "\x1b[1;1H\x1b[1;1H", STILL), Vec::<String>::new());
        assert_eq!(window.gets("\x1b[Hbye\x1b[K\x1b[?1049l$ "), ["bye"], "the rest was printed");
        assert_eq!(window.ends(), ["$"]);
    }

    #[test]
    fn what_an_agent_draws_is_not_printed_beside_its_conversation() {
        let (mut window, _) = followed("$ agent\r\n");
        window.window.talks = true;
        assert_eq!(window.gets("one\r\ntwo\r\nthree\r\nfour\r\nfive\r\n"), Vec::<String>::new());
        assert_eq!(window.gets("\x1b[?1049h\x1b[2J\x1b[Htext\r\n"), Vec::<String>::new());
        assert_eq!(window.gets("\x1b[?1049lResume with x\r\n"), ["Resume with x"], "it has left its screen");
        assert_eq!(window.ends(), Vec::<String>::new());
    }

    #[test]
    fn a_size_that_is_recorded_meanwhile_counts() {
        let (mut window, _) = followed("one\r\n");
        fs::write(window_sizes::beside(&window.log), "0 20 4\n5 10 4\n").expect("written");
        assert_eq!(window.gets("0123456789ab\r\n"), ["0123456789ab"], "it is not noticed before the next pause");
        assert_eq!(window.gets("0123456789ab\r\n"), ["0123456789", "ab"]);
    }
}
