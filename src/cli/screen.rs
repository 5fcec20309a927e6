//! Where a verb writes: results to standard output, all else to standard error.

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal as _, Write};
use std::os::fd::AsFd as _;

use super::error::{Failure, refuse};
use super::render::{self, escape};
use swarm_model::Refusal;

/// The two streams. Verbs take it as an argument, so tests can read what they say.
pub struct Screen<'a> {
    out: &'a mut dyn Write,
    err: &'a mut dyn Write,
    /// Standard output is a terminal that wants colours.
    pub colour: bool,
    /// Rows of that terminal, when it is one.
    pub rows: Option<u16>,
    /// Its columns.
    pub columns: Option<u16>,
}

/// When colours are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Colour {
    Auto,
    Always,
    Never,
}

/// Puts a prefix before each line that is written through it.
struct Prefixed<'a, 'b> {
    screen: &'a mut Screen<'b>,
    prefix: &'a str,
    /// A line was begun and not ended.
    open: bool,
    /// The first failure to write.
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
        Self { out, err, colour: false, rows: None, columns: None }
    }

    /// Runs `verb` with a prefix before each line of its result, which then ends with a
    /// line's end.
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

    /// What a person asked for wins over what the terminal seems to want.
    pub fn colour_as(&mut self, asked: Option<Colour>) {
        match asked {
            Some(Colour::Always) => self.colour = true,
            Some(Colour::Never) => self.colour = false,
            Some(Colour::Auto) | None => {}
        }
    }

    /// Whole lines or blocks, as they are.
    pub fn bytes(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.out.write_all(bytes).map_err(Failure::Output)
    }

    /// One line of a result.
    pub fn line(&mut self, text: &str) -> Result<(), Failure> {
        self.bytes(text.as_bytes())?;
        self.bytes(b"\n")
    }

    /// Makes everything visible that was written, for verbs that report as things happen.
    pub fn flush(&mut self) -> Result<(), Failure> {
        self.out.flush().map_err(Failure::Output)
    }

    /// Whole lines for standard error, as they are.
    pub fn errors(&mut self, lines: &[u8]) {
        let _ = self.err.write_all(lines);
    }

    pub fn warning(&mut self, text: &str) {
        self.aside("warning: ", text);
    }

    /// `swarm: <prefix><text>` on standard error. A failure to write there has
    /// nobody left to be told to.
    pub fn aside(&mut self, prefix: &str, text: &str) {
        let _ = writeln!(self.err, "swarm: {prefix}{}", escape(text));
    }

    /// The lines of a refusal of one worker among several.
    pub fn refusal(&mut self, refusal: &Refusal) {
        let _ = refuse(refusal, self.err);
    }
}

/// Runs `verb` on the process's own streams and turns its failure into text
/// and exit code. Output is buffered: a list of a thousand workers is one write.
pub fn run(verb: impl FnOnce(&mut Screen) -> Result<u8, Failure>) -> u8 {
    let mut err = io::stderr();
    let stdout = match io::stdout().as_fd().try_clone_to_owned() {
        Ok(fd) => File::from(fd),
        Err(error) => return Failure::Output(error).report(&mut err),
    };
    let terminal = stdout.is_terminal();
    let size = rustix::termios::tcgetwinsize(&stdout).ok();
    let mut out = BufWriter::with_capacity(64 * 1024, stdout);
    let mut errors = io::stderr();
    let mut screen = Screen::new(&mut out, &mut errors);
    screen.colour = terminal && render::colour_wanted();
    screen.rows = size.map(|size| size.ws_row).filter(|rows| *rows > 0);
    screen.columns = size.map(|size| size.ws_col).filter(|columns| *columns > 0);
    let result = verb(&mut screen).and_then(|code| screen.flush().map(|()| code));
    result.unwrap_or_else(|failure| {
        // What was printed before a refusal still belongs on the screen first.
        let _ = screen.flush();
        failure.report(&mut err)
    })
}
