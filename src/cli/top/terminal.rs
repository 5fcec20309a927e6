//! The terminal: raw, on its alternate screen, and as it was at every end.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::sync::Mutex;

use ratatui::backend::{Backend, CrosstermBackend};
use ratatui::buffer::Buffer;
use ratatui::layout::{Position, Rect};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

/// Alternate screen, pasted text apart from typed text.
const ENTER: &[u8] = b"\x1b[?1049h\x1b[?2004h\x1b[?25l";
/// The reverse, with plain text and a visible cursor.
const LEAVE: &[u8] = b"\x1b[?2004l\x1b[0m\x1b[?25h\x1b[?1049l";
/// Size of a terminal that does not tell.
const SIZE: (u16, u16) = (80, 24);
/// Bytes of a frame that are collected before they are written.
const FRAME_BYTES: usize = 64 * 1024;

/// Attributes of the terminal before it was changed, for as long as it is.
static EARLIER: Mutex<Option<Termios>> = Mutex::new(None);

type Out = CrosstermBackend<io::BufWriter<File>>;

/// The terminal while the screen is on it. Dropping it restores the terminal.
pub struct Terminal {
    out: Out,
    /// Content of the terminal.
    shown: Buffer,
    has_cursor: bool,
    size: (u16, u16),
}

impl Terminal {
    /// Takes the terminal, on which standard input and output are.
    ///
    /// # Errors
    /// Fails if the terminal cannot be changed.
    pub fn enter() -> io::Result<Self> {
        restore_at_panic();
        let stdout = File::from(io::stdout().as_fd().try_clone_to_owned()?);
        let out = CrosstermBackend::new(io::BufWriter::with_capacity(FRAME_BYTES, stdout));
        let mut terminal = Self { out, shown: Buffer::default(), has_cursor: false, size: SIZE };
        terminal.take()?;
        Ok(terminal)
    }

    /// Takes the terminal again, after something else had it. All of it is drawn anew.
    ///
    /// # Errors
    /// Fails if the terminal cannot be changed.
    pub fn take(&mut self) -> io::Result<()> {
        let stdin = io::stdin();
        let now = tcgetattr(&stdin)?;
        let mut raw = now.clone();
        raw.make_raw();
        earlier().get_or_insert(now);
        tcsetattr(&stdin, OptionalActions::Now, &raw)?;
        write(ENTER)?;
        self.has_cursor = false;
        self.resize()
    }

    /// Gives the terminal back as it was.
    pub fn leave(&mut self) {
        restore();
    }

    /// Takes the present size. All is drawn anew.
    ///
    /// # Errors
    /// Fails if the terminal cannot be written.
    pub fn resize(&mut self) -> io::Result<()> {
        self.size = size();
        self.shown = self.empty();
        self.out.clear()
    }

    pub fn size(&self) -> (u16, u16) {
        self.size
    }

    /// Writes what differs from the frame before; nothing if nothing does.
    ///
    /// # Errors
    /// Fails if the terminal cannot be written.
    pub fn draw(&mut self, render: impl FnOnce(&mut Buffer) -> Option<Position>) -> io::Result<()> {
        let mut next = self.empty();
        let cursor = render(&mut next);
        let changes = self.shown.diff(&next);
        if changes.is_empty() && cursor.is_none() && !self.has_cursor {
            return Ok(());
        }
        if !changes.is_empty() {
            self.out.draw(changes.into_iter())?;
        }
        match cursor {
            Some(at) => {
                self.out.set_cursor_position(at)?;
                self.out.show_cursor()?;
            }
            None if self.has_cursor => self.out.hide_cursor()?,
            None => {}
        }
        self.has_cursor = cursor.is_some();
        self.shown = next;
        Backend::flush(&mut self.out)
    }

    fn empty(&self) -> Buffer {
        Buffer::empty(Rect::new(0, 0, self.size.0, self.size.1))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        restore();
    }
}

fn earlier() -> std::sync::MutexGuard<'static, Option<Termios>> {
    EARLIER.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Restores the terminal if it was changed. If it is gone, nothing can be done about it.
fn restore() {
    if let Some(attributes) = earlier().take() {
        let _ = write(LEAVE);
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &attributes);
    }
}

/// Has a panic restore the terminal before it is reported, so that the report can be read.
fn restore_at_panic() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let report = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            restore();
            report(panic);
        }));
    });
}

fn write(bytes: &[u8]) -> io::Result<()> {
    let mut out = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    out.write_all(bytes)
}

fn size() -> (u16, u16) {
    let size = tcgetwinsize(io::stdout()).map(|size| (size.ws_col, size.ws_row)).unwrap_or_default();
    if size.0 == 0 || size.1 == 0 { SIZE } else { size }
}
