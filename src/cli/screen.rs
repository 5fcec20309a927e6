//! Output of verbs: results go to standard output, everything else to standard error.

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal as _, Write};
use std::os::fd::AsFd as _;

use super::error::{Failure, refuse};
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
        Self { out, err, terminal: false, colour: false, rows: None, columns: None }
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
        let _ = self.err.write_all(lines);
    }

    /// Writes `swarm: warning: <text>` to standard error.
    pub fn warning(&mut self, text: &str) {
        self.aside("warning: ", text);
    }

    /// Writes `swarm: <prefix><text>` to standard error. Ignores failures, which could not be reported anywhere.
    pub fn aside(&mut self, prefix: &str, text: &str) {
        let _ = writeln!(self.err, "swarm: {prefix}{}", escape(text));
    }

    /// Writes the refusal of one worker among several to standard error.
    pub fn refusal(&mut self, refusal: &Refusal) {
        let _ = refuse(refusal, self.err);
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
