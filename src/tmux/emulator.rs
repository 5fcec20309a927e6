//! Rendering of a window's output as its screen showed it: cursor movements, line wrap, wide characters, scrollback and
//! the alternate screen.

use std::collections::VecDeque;

use avt::parser::{DecMode, EdScope, Function};
use avt::{Cell, Line, Observation, Observer, Operation, Screen, ScreenKind, Terminal};

/// Sequence that deletes the scrollback. `avt` does not know it.
const CLEAR_HISTORY: &[u8] = b"\x1b[3J";
/// Number of pauses for which a row that the program went back to counts as one that it repaints.
const PAUSES: usize = 8;

/// Size of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    pub columns: u16,
    pub rows: u16,
}

impl Default for Size {
    /// Returns the size of a window that nobody is attached to.
    fn default() -> Self {
        Self { columns: 200, rows: 50 }
    }
}

/// What a terminal did, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shown {
    /// A line left the top of the screen.
    Line(String),
    /// The program deleted the scrollback.
    HistoryCleared,
    /// The program left the alternate screen, which showed these lines last.
    Left(Vec<String>),
}

/// A terminal without a display.
pub struct Emulator {
    terminal: Terminal,
    watch: Watch,
    /// Beginning of a character, or of the sequence that deletes the scrollback.
    rest: Vec<u8>,
}

#[derive(Default)]
struct Watch {
    shown: Vec<Shown>,
    /// Number of lines that left the screen; the number of its first row.
    gone: u64,
    /// Row of the cursor on the primary screen.
    row: usize,
    /// Highest row to which the cursor went back since the last pause.
    highest: Option<u64>,
    /// `highest` of the pauses before.
    pauses: VecDeque<Option<u64>>,
    /// The alternate screen before it was cleared last.
    wiped: Vec<String>,
}

impl Observer for Watch {
    type Output = ();

    fn before(&mut self, context: &mut Observation<'_>, operation: &Operation) {
        match operation {
            Operation::Function(Function::Decrst(modes))
                if context.terminal().active_screen_kind() == ScreenKind::Alternate
                    && modes.as_slice().iter().any(|mode| is_alternate(*mode)) =>
            {
                // Some programs clear their screen before they leave it.
                let (left, wiped) = (lines(context.terminal().screen()), std::mem::take(&mut self.wiped));
                self.shown.push(Shown::Left(if left.is_empty() { wiped } else { left }));
            }
            Operation::Function(Function::Ed(scope))
                if context.terminal().active_screen_kind() == ScreenKind::Alternate
                    && clears_all(scope, context.terminal()) =>
            {
                let wiped = lines(context.terminal().screen());
                if !wiped.is_empty() {
                    self.wiped = wiped;
                }
            }
            Operation::Function(Function::Ris) => {
                let lines = lines(context.terminal().primary_screen());
                self.gone += lines.len() as u64;
                self.shown.extend(lines.into_iter().map(Shown::Line));
            }
            _ => {}
        }
    }

    fn after(&mut self, context: &mut Observation<'_>, operation: &Operation) {
        let terminal = context.terminal();
        if terminal.active_screen_kind() != ScreenKind::Primary {
            return;
        }
        let row = terminal.cursor().row;
        match operation {
            Operation::Function(Function::Print(_)) => {}
            // Nothing is left to repaint.
            Operation::Function(Function::Ris | Function::Ed(EdScope::All)) => {
                self.highest = None;
                self.pauses.clear();
            }
            Operation::Function(_) if row < self.row => {
                let to = self.gone + row as u64;
                self.highest = Some(self.highest.map_or(to, |highest| highest.min(to)));
            }
            _ => {}
        }
        self.row = row;
    }

    fn evicted(&mut self, _: &mut Observation<'_>, line: &Line) {
        self.gone += 1;
        self.shown.push(Shown::Line(text(line)));
    }

    fn end(&mut self, _: &mut Observation<'_>) {}
}

/// Reports whether a terminal clears its whole screen when it erases this part of it.
fn clears_all(scope: &EdScope, terminal: &Terminal) -> bool {
    let cursor = terminal.cursor();
    matches!(scope, EdScope::All) || (matches!(scope, EdScope::Below) && (cursor.col, cursor.row) == (0, 0))
}

fn is_alternate(mode: DecMode) -> bool {
    matches!(mode, DecMode::AltScreenBuffer | DecMode::SaveCursorAltScreenBuffer)
}

fn text(line: &Line) -> String {
    // Most of a line is usually blank.
    let filled = line.cells().iter().rposition(|cell| cell.char() != ' ').map_or(0, |last| last + 1);
    let mut text = String::with_capacity(filled);
    // The second column of a wide character has no width.
    let shown = line.cells()[..filled].iter().filter(|cell| cell.width() > 0).map(Cell::char);
    text.extend(shown.filter(|c| !c.is_control()));
    text.truncate(text.trim_end().len());
    text
}

/// Returns the rows of a screen, without blank ones at its end.
fn lines(screen: Screen<'_>) -> Vec<String> {
    let mut lines: Vec<String> = screen.visible_lines().map(text).collect();
    let filled = lines.iter().rposition(|line| !line.is_empty()).map_or(0, |last| last + 1);
    lines.truncate(filled);
    lines
}

impl Emulator {
    pub fn new(size: Size) -> Self {
        // Fails only for a size of 0.
        let made = Terminal::new(size.columns.max(1).into(), size.rows.max(1).into());
        let terminal = made.unwrap_or_else(|_| unreachable!("neither side is 0"));
        Self { terminal, watch: Watch::default(), rest: Vec::new() }
    }

    pub fn feed(&mut self, bytes: &[u8]) {
        let joined;
        let mut bytes = if self.rest.is_empty() {
            bytes
        } else {
            joined = [std::mem::take(&mut self.rest).as_slice(), bytes].concat();
            joined.as_slice()
        };
        while let Some(at) = memchr::memmem::find(bytes, CLEAR_HISTORY) {
            self.decode(&bytes[..at], true);
            self.watch.shown.push(Shown::HistoryCleared);
            bytes = &bytes[at + CLEAR_HISTORY.len()..];
        }
        let begun = (1..CLEAR_HISTORY.len()).rev().find(|length| bytes.ends_with(&CLEAR_HISTORY[..*length]));
        let (now, later) = bytes.split_at(bytes.len() - begun.unwrap_or(0));
        self.decode(now, !later.is_empty());
        self.rest.extend_from_slice(later);
    }

    /// Feeds text. The beginning of a character at its end is kept for the next call, unless it `is_whole`.
    fn decode(&mut self, bytes: &[u8], is_whole: bool) {
        let mut chunks = bytes.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            self.terminal.feed_with(chunk.valid(), &mut self.watch);
            let invalid = chunk.invalid();
            if chunks.peek().is_none() && !is_whole && is_begun(invalid) {
                self.rest.extend_from_slice(invalid);
            } else if !invalid.is_empty() {
                self.terminal.feed_with(char::REPLACEMENT_CHARACTER, &mut self.watch);
            }
        }
    }

    pub fn resize(&mut self, size: Size) {
        self.terminal.resize_with(size.columns.into(), size.rows.into(), &mut self.watch);
        self.watch.row = self.primary_row();
    }

    /// Takes what happened since the last call.
    pub fn take(&mut self) -> Vec<Shown> {
        std::mem::take(&mut self.watch.shown)
    }

    /// Returns the screen as it is: below the primary screen the alternate one, while it is shown.
    pub fn screen(&self) -> Vec<String> {
        self.primary().into_iter().chain(self.alternate().unwrap_or_default()).collect()
    }

    pub fn primary(&self) -> Vec<String> {
        lines(self.terminal.primary_screen())
    }

    /// Returns the alternate screen. `None` unless it is shown.
    pub fn alternate(&self) -> Option<Vec<String>> {
        (self.terminal.active_screen_kind() == ScreenKind::Alternate).then(|| lines(self.terminal.screen()))
    }

    /// Returns the number of lines that left the top of the screen.
    pub fn gone(&self) -> u64 {
        self.watch.gone
    }

    /// Returns the rows that the program has finished, because its cursor is below them and it does not repaint them.
    /// To be called when no more output is there for now.
    pub fn finished(&mut self) -> Vec<String> {
        let watch = &mut self.watch;
        watch.pauses.push_back(watch.highest.take());
        if watch.pauses.len() > PAUSES {
            watch.pauses.pop_front();
        }
        let repainted = watch.pauses.iter().flatten().min().copied().unwrap_or(u64::MAX);
        let repainted = usize::try_from(repainted.saturating_sub(watch.gone)).unwrap_or(usize::MAX);
        let rows = self.primary_row().min(repainted);
        self.terminal.primary_screen().visible_lines().take(rows).map(text).collect()
    }

    fn primary_row(&self) -> usize {
        if self.terminal.active_screen_kind() == ScreenKind::Primary { self.terminal.cursor().row } else { 0 }
    }
}

/// Reports whether `bytes`, which are not valid UTF-8, may become a character.
fn is_begun(bytes: &[u8]) -> bool {
    !bytes.is_empty() && std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

#[cfg(test)]
#[path = "emulator_tests.rs"]
mod tests;
