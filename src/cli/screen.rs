//! Output of verbs: results go to standard output, everything else to standard error.

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal as _, Write};
use std::os::fd::AsFd as _;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::error::{Failure, refuse};
use super::marks::Marks;
use super::render::{self, escape};
use swarm_model::Refusal;
use swarm_sys::streams;

/// The two output streams. Verbs get them as an argument, so that tests can read the output.
pub struct Screen<'a> {
    out: &'a mut dyn Write,
    err: &'a mut dyn Write,
    /// Set if standard output is a terminal: a person reads it.
    pub terminal: bool,
    /// Set if standard output is a terminal and colours are wanted.
    pub colour: bool,
    /// Rows of the terminal; `None` if standard output is none.
    pub rows: Option<u16>,
    /// Columns of the terminal; `None` if standard output is none.
    pub columns: Option<u16>,
    /// Set if another machine asked for the verb, and for marks of how far it is.
    marks: Option<Marks>,
    /// Set if something was written since the last mark.
    has_printed: bool,
}

/// When to use colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Colour {
    Auto,
    Always,
    Never,
}

/// Writer that adds a prefix to each line.
struct Prefixed<'a, 'b> {
    screen: &'a mut Screen<'b>,
    prefix: &'a str,
    /// Set while the current line is incomplete.
    open: bool,
    /// First failure to write.
    broken: Option<Failure>,
}

impl Write for Prefixed<'_, '_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let prefix = if self.open { "" } else { self.prefix };
            let written = self.screen.bytes(prefix.as_bytes()).and_then(|()| self.screen.bytes(part));
            if let Err(failure) = written {
                self.broken.get_or_insert(failure);
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            self.open = !part.ends_with(b"\n");
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> Screen<'a> {
    pub fn new(out: &'a mut dyn Write, err: &'a mut dyn Write) -> Self {
        Self { out, err, terminal: false, colour: false, rows: None, columns: None, marks: None, has_printed: false }
    }

    /// Runs `verb` with a prefix before each line of its output, and completes the last line.
    pub fn under(
        &mut self,
        prefix: &str,
        verb: impl FnOnce(&mut Screen) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let (rows, mut errors) = (self.rows, Vec::new());
        let mut out = Prefixed { screen: self, prefix, open: false, broken: None };
        let mut inner = Screen { rows, ..Screen::new(&mut out, &mut errors) };
        let done = verb(&mut inner);
        let Prefixed { open, broken, .. } = out;
        self.errors(&errors);
        match broken {
            Some(failure) => Err(failure),
            None if open => self.bytes(b"\n").and(done),
            None => done,
        }
    }

    /// Applies `--color`, which overrides the detected setting.
    pub fn colour_as(&mut self, asked: Option<Colour>) {
        match asked {
            Some(Colour::Always) => self.colour = true,
            Some(Colour::Never) => self.colour = false,
            Some(Colour::Auto) | None => {}
        }
    }

    /// Writes bytes to standard output unchanged.
    pub fn bytes(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.has_printed |= !bytes.is_empty();
        self.out.write_all(bytes).map_err(Failure::Output)
    }

    /// Writes one line to standard output.
    pub fn line(&mut self, text: &str) -> Result<(), Failure> {
        self.bytes(text.as_bytes())?;
        self.bytes(b"\n")
    }

    /// Flushes standard output, for verbs that report progress.
    pub fn flush(&mut self) -> Result<(), Failure> {
        self.out.flush().map_err(Failure::Output)
    }

    /// Writes whole lines to standard error unchanged.
    pub fn errors(&mut self, lines: &[u8]) {
        self.has_printed |= !lines.is_empty();
        let _ = self.err.write_all(lines);
    }

    /// Writes `swarm: warning: <text>` to standard error.
    pub fn warning(&mut self, text: &str) {
        self.aside("warning: ", text);
    }

    /// Writes `swarm: <prefix><text>` to standard error. Ignores failures, which could not be reported anywhere.
    pub fn aside(&mut self, prefix: &str, text: &str) {
        self.has_printed = true;
        let _ = writeln!(self.err, "swarm: {prefix}{}", escape(text));
    }

    /// Writes the refusal of one worker among several to standard error.
    pub fn refusal(&mut self, refusal: &Refusal) {
        self.has_printed = true;
        let _ = refuse(refusal, self.err);
    }

    /// Says how far the verb is: all output so far belongs to this mark. Does nothing if nobody asked for marks.
    pub fn mark<M: Serialize>(&mut self, mark: impl FnOnce() -> M) -> Result<(), Failure> {
        if self.marks.is_none() {
            return Ok(());
        }
        self.flush()?;
        let has_printed = std::mem::take(&mut self.has_printed);
        let sent = self.marks.as_mut().map_or(Ok(()), |marks| marks.send(&mark(), has_printed));
        sent.map_err(Failure::Output)
    }

    /// Reports whether the verb says how far it is.
    pub fn is_marked(&self) -> bool {
        self.marks.is_some()
    }

    /// Returns the mark from which the verb goes on; `None` if it begins.
    pub fn goes_on<M: DeserializeOwned>(&self) -> Option<M> {
        self.marks.as_ref().and_then(Marks::from)
    }

    /// Returns the time for which the verb was executed before it was cut.
    pub fn spent(&self) -> Duration {
        self.marks.as_ref().map(Marks::spent).unwrap_or_default()
    }
}

/// Standard output. Writes fail if the caller has closed it.
struct Stdout(File);

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if streams::stdout_was_closed() {
            return Err(rustix::io::Errno::BADF.into());
        }
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Runs `verb` on the streams of this process, prints its failure and returns the exit code. Output is buffered: a list
/// of a thousand workers is one write.
pub fn run(verb: impl FnOnce(&mut Screen) -> Result<u8, Failure>) -> u8 {
    let mut err = io::stderr();
    let stdout = match io::stdout().as_fd().try_clone_to_owned() {
        Ok(fd) => File::from(fd),
        Err(error) => return Failure::Output(error).report(&mut err),
    };
    let terminal = stdout.is_terminal();
    let size = rustix::termios::tcgetwinsize(&stdout).ok();
    let mut out = BufWriter::with_capacity(64 * 1024, Stdout(stdout));
    let mut errors = io::stderr();
    let mut screen = Screen::new(&mut out, &mut errors);
    screen.terminal = terminal;
    screen.colour = terminal && render::colour_wanted();
    screen.rows = size.map(|size| size.ws_row).filter(|rows| *rows > 0);
    screen.columns = size.map(|size| size.ws_col).filter(|columns| *columns > 0);
    let result = verb(&mut screen).and_then(|code| screen.flush().map(|()| code));
    result.unwrap_or_else(|failure| {
        // Output before the failure is printed first.
        let _ = screen.flush();
        failure.report(&mut err)
    })
}

/// Runs `verb` for another machine, which gets its output and its marks; prints its failure and returns the exit code.
pub fn run_marked(verb: impl FnOnce(&mut Screen) -> Result<u8, Failure>) -> u8 {
    let taken = Marks::take().and_then(|marks| marks.streams().map(|streams| (marks, streams)));
    let (marks, (out, mut err)) = match taken {
        Ok(taken) => taken,
        Err(error) => return Failure::system("cannot take the connection", &error).report(&mut io::stderr()),
    };
    let mut out = BufWriter::with_capacity(64 * 1024, out);
    let mut screen = Screen::new(&mut out, &mut err);
    screen.marks = Some(marks);
    let result = verb(&mut screen).and_then(|code| screen.flush().map(|()| code));
    result.unwrap_or_else(|failure| {
        let _ = screen.flush();
        failure.report(screen.err)
    })
}
