//! Waits for keys, signals, changes and ends in one call of poll, and carries out what the machine wants. There is no ticker:
//! while nothing changes nothing wakes it, but once a minute if ages are shown.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal, raise};
use swarm_actors::top::{Effect, Event, Kind, Machine};

use super::super::error::Failure;
use super::super::render::{Clock, colour_wanted};
use super::super::watch::{Interrupt, Until, wait_any};
use super::args::TopArgs;
use super::children::Verb;
use super::draw::{self, Face, Text};
use super::reader::Reader;
use super::shown::Shown;
use super::terminal::Terminal;
use super::{attach, input, rows};
use crate::board::source::Source;
use crate::board::{Board, sgr};
use swarm_sys::paths::Paths;

/// Shortest time between two frames, unless a key was pressed.
const FRAME_PAUSE: Duration = Duration::from_millis(100);
/// Time after which ages are drawn again.
const AGES: Duration = Duration::from_secs(60);
/// Time by which ages are drawn earlier if something else wakes the program.
const AGES_EARLY: Duration = Duration::from_secs(1);
/// Verbs that run at the same time; others wait for their turn.
const VERBS_MAX: usize = 8;

/// Signals that end the program as they would without it, and those of job control and size.
const SIGNALS: [Signal; 7] = [
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGINT,
    Signal::SIGWINCH,
    Signal::SIGTSTP,
    Signal::SIGCONT,
];

pub fn run(args: &TopArgs, paths: &Paths) -> Result<u8, Failure> {
    let signals = Interrupt::catch_all(&SIGNALS)?;
    let source = Source::new(paths).map_err(|error| Failure::system("cannot watch for changes", &error))?;
    let mut shell = Shell::new(args, paths, source, signals);
    // Before the terminal is taken, so that what prevents it is printed as by any verb.
    shell.first_look()?;
    let terminal = Terminal::enter().map_err(|error| Failure::system("cannot use the terminal", &error))?;
    let end = shell.go(terminal)?;
    match end {
        End::Left => Ok(0),
        End::Signal(signal) => Ok(end_by(signal)),
    }
}

/// Why the screen ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Left,
    Signal(Signal),
}

/// Ends this process by a signal, as if it had not been caught. Returns the exit code that says so if it is ignored.
fn end_by(signal: Signal) -> u8 {
    let set: SigSet = [signal].into_iter().collect();
    let _ = set.thread_unblock();
    let _ = raise(signal);
    u8::try_from(128 + signal as i32).unwrap_or(u8::MAX)
}

struct Shell {
    machine: Machine,
    board: Board,
    rev: u64,
    source: Source,
    signals: Interrupt,
    reader: Reader,
    text: Text,
    verbs: Vec<(Vec<String>, Verb)>,
    waiting: VecDeque<(Vec<String>, Option<String>, Option<String>)>,
    shown: Shown,
    /// Warnings that were shown.
    told: Vec<String>,
    began: Instant,
    is_ascii: bool,
    /// Whether the picture is not that of the state, and whether it is wanted at once.
    is_dirty: bool,
    is_urgent: bool,
    drawn: Instant,
    end: Option<End>,
}

impl Shell {
    fn new(args: &TopArgs, paths: &Paths, source: Source, signals: Interrupt) -> Self {
        let now = Instant::now();
        Self {
            machine: Machine::new(args.read_only),
            board: Board::default(),
            rev: 0,
            source,
            signals,
            reader: Reader::new(paths),
            text: Text::default(),
            verbs: Vec::new(),
            waiting: VecDeque::new(),
            shown: Shown::default(),
            told: Vec::new(),
            began: now,
            is_ascii: args.ascii || !is_unicode(),
            is_dirty: true,
            is_urgent: true,
            drawn: now,
            end: None,
        }
    }

    fn first_look(&mut self) -> Result<(), Failure> {
        let warnings = self.source.look(&mut self.board)?;
        self.warn(warnings);
        Ok(())
    }

    fn go(&mut self, mut terminal: Terminal) -> Result<End, Failure> {
        let failed = |error: io::Error| Failure::system("cannot use the terminal", &error);
        let (columns, rows) = terminal.size();
        self.happen(&mut terminal, Event::Resized { columns, rows }).map_err(failed)?;
        self.take_rows(&mut terminal).map_err(failed)?;
        loop {
            if let Some(end) = self.end {
                return Ok(end);
            }
            let drawn = self.draw(&mut terminal);
            self.wait()?;
            match drawn.and_then(|()| self.take(&mut terminal)) {
                Ok(()) => {}
                // The terminal is gone.
                Err(error) if error.raw_os_error() == Some(nix::libc::EIO) => return Ok(End::Left),
                Err(error) => return Err(failed(error)),
            }
        }
    }

    /// Waits until something happens or is due.
    fn wait(&mut self) -> Result<(), Failure> {
        let (stdin, stdout) = (io::stdin(), io::stdout());
        let mut sources: Vec<(BorrowedFd<'_>, Until)> = vec![
            (stdin.as_fd(), Until::HungUp),
            (stdout.as_fd(), Until::HungUp),
            (stdin.as_fd(), Until::Readable),
            (self.signals.as_fd(), Until::Readable),
            (self.source.as_fd(), Until::Readable),
        ];
        let verbs = self.verbs.iter().flat_map(|(_, verb)| verb.fds());
        sources.extend(self.reader.fds().into_iter().chain(verbs).map(|fd| (fd, Until::Readable)));
        let ready = wait_any(&sources, self.due())?;
        if ready.iter().take(2).any(|is_ready| *is_ready) {
            self.end = Some(End::Signal(Signal::SIGHUP));
        }
        Ok(())
    }

    fn due(&self) -> Option<Instant> {
        let machine = self.machine.due().map(|at| self.began + Duration::from_millis(at));
        let frame = self.is_dirty.then(|| if self.is_urgent { self.drawn } else { self.drawn + FRAME_PAUSE });
        let ages = self.machine.window().next().is_some().then(|| self.drawn + AGES);
        [self.source.due(), machine, self.reader.due(), frame, ages].into_iter().flatten().min()
    }

    fn take(&mut self, terminal: &mut Terminal) -> io::Result<()> {
        if self.end.is_some() {
            return Ok(());
        }
        self.take_signals(terminal)?;
        // Reading from a terminal that belongs to another job would stop this one.
        for event in input::take()? {
            self.is_urgent = true;
            self.happen(terminal, event)?;
        }
        match self.source.look(&mut self.board) {
            Ok(warnings) => self.warn(warnings),
            // The board keeps the rows that were read. The next look reads the others again.
            Err(refusal) => self.warn(vec![refusal.cause]),
        }
        self.take_rows(terminal)?;
        self.take_verbs(terminal)?;
        if let Some(text) = self.reader.look() {
            let (want, lines) = (text.want.clone(), text.lines.len());
            self.text = text;
            if let Some(want) = want {
                self.happen(terminal, Event::Shown { want, lines })?;
            }
        }
        if self.machine.due().is_some_and(|at| self.now() >= at) {
            self.happen(terminal, Event::Tick)?;
        }
        // The minute's look at the workers comes a moment before: one wake-up is enough for both.
        self.is_dirty |= self.drawn.elapsed() + AGES_EARLY >= AGES;
        Ok(())
    }

    /// Takes all signals that have come.
    fn take_signals(&mut self, terminal: &mut Terminal) -> io::Result<()> {
        let mut is_resized = false;
        for signal in self.signals.take_all() {
            match signal {
                Signal::SIGWINCH => is_resized = true,
                Signal::SIGTSTP => self.suspend(terminal)?,
                // The shell had the terminal meanwhile.
                Signal::SIGCONT => {
                    terminal.take()?;
                    is_resized = true;
                }
                Signal::SIGINT => self.end = Some(End::Left),
                signal => self.end = Some(End::Signal(signal)),
            }
        }
        if is_resized {
            terminal.resize()?;
            let (columns, rows) = terminal.size();
            self.is_urgent = true;
            self.happen(terminal, Event::Resized { columns, rows })?;
        }
        Ok(())
    }

    fn suspend(&mut self, terminal: &mut Terminal) -> io::Result<()> {
        terminal.leave();
        raise(Signal::SIGSTOP)?;
        terminal.take()?;
        let (columns, rows) = terminal.size();
        self.is_urgent = true;
        self.happen(terminal, Event::Resized { columns, rows })
    }

    /// Has the machine take an event, and carries out what it wants.
    fn happen(&mut self, terminal: &mut Terminal, event: Event) -> io::Result<()> {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            self.is_dirty = true;
            for effect in self.machine.take(self.now(), event) {
                match effect {
                    Effect::Show(Some(want)) if want.id.kind == Kind::Item => {
                        self.reader.show(None);
                        let lines = sgr::lines(&rows::item_lines(self.shown.item(&want.id.name)));
                        events.push_back(Event::Shown { want: want.clone(), lines: lines.len() });
                        self.text = Text { want: Some(want), lines };
                    }
                    Effect::Show(want) => self.reader.show(want),
                    Effect::Run { words, input, dir } => self.waiting.push_back((words, input, dir)),
                    Effect::Attach(name) => events.extend(self.attach(terminal, &name)?),
                    Effect::Suspend => self.suspend(terminal)?,
                    Effect::Quit => self.end = Some(End::Left),
                }
            }
        }
        self.start_verbs(terminal)
    }

    fn attach(&mut self, terminal: &mut Terminal, name: &str) -> io::Result<Vec<Event>> {
        terminal.leave();
        let (events, end) = attach::run(name, &self.signals)?;
        self.end = self.end.or(end);
        if end.is_none() {
            terminal.take()?;
        }
        self.reader.again();
        let (columns, rows) = terminal.size();
        self.is_urgent = true;
        Ok([Event::Resized { columns, rows }].into_iter().chain(events).collect())
    }

    fn start_verbs(&mut self, terminal: &mut Terminal) -> io::Result<()> {
        while self.verbs.len() < VERBS_MAX
            && let Some((words, input, dir)) = self.waiting.pop_front()
        {
            match Verb::start(&words, input.as_deref(), dir.as_deref()) {
                Ok(verb) => self.verbs.push((words, verb)),
                Err(error) => {
                    let said = format!("cannot be started: {error}");
                    self.happen(terminal, Event::Done { words, code: None, said })?;
                }
            }
        }
        Ok(())
    }

    fn take_verbs(&mut self, terminal: &mut Terminal) -> io::Result<()> {
        let mut ended = Vec::new();
        self.verbs.retain_mut(|(words, verb)| match verb.look() {
            Some(end) => {
                ended.push((words.clone(), end));
                false
            }
            None => true,
        });
        for (words, end) in ended {
            let said = last_words(&end.output, end.code == Some(0));
            self.happen(terminal, Event::Done { words, code: end.code, said })?;
        }
        self.start_verbs(terminal)
    }

    /// Hands the rows that have changed to the machine.
    fn take_rows(&mut self, terminal: &mut Terminal) -> io::Result<()> {
        if self.board.rev() == self.rev {
            return Ok(());
        }
        let since = self.board.since(self.rev);
        let (is_whole, rev) = (since.is_whole, since.rev);
        let (rows, gone) = self.shown.take(&since, &Clock::system());
        self.rev = rev;
        self.happen(terminal, Event::Rows { is_whole, rows, gone })
    }

    /// Shows warnings that are new.
    fn warn(&mut self, warnings: Vec<String>) {
        for warning in warnings {
            if !self.told.contains(&warning) {
                self.machine.take(self.now(), Event::Told(format!("warning: {warning}")));
                self.told.push(warning);
                self.is_dirty = true;
            }
        }
    }

    fn draw(&mut self, terminal: &mut Terminal) -> io::Result<()> {
        let is_time = self.is_urgent || self.drawn.elapsed() >= FRAME_PAUSE;
        if !self.is_dirty || !is_time {
            return Ok(());
        }
        let now_ms = u64::try_from(Clock::system().now.as_millisecond()).unwrap_or_default();
        let face = Face { colour: colour_wanted(), unicode: !self.is_ascii, now_ms };
        terminal.draw(|buffer| draw::draw(&self.machine, &self.text, face, buffer))?;
        (self.is_dirty, self.is_urgent, self.drawn) = (false, false, Instant::now());
        Ok(())
    }

    /// Returns the time for the machine, in milliseconds.
    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// Returns what a verb said last; of one that was refused all, since the hint follows the cause.
pub fn last_words(output: &[u8], is_success: bool) -> String {
    let text = String::from_utf8_lossy(output);
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    if is_success {
        return lines.next_back().unwrap_or_default().to_owned();
    }
    let lines: Vec<&str> = lines.collect();
    lines[lines.len().saturating_sub(3)..].join("; ")
}

/// Reports whether the locale has characters beyond ASCII.
fn is_unicode() -> bool {
    let set = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    let locale = set("LC_ALL").or_else(|| set("LC_CTYPE")).or_else(|| set("LANG")).unwrap_or_default();
    let locale = locale.to_ascii_lowercase();
    locale.contains("utf-8") || locale.contains("utf8")
}

#[cfg(test)]
mod tests {
    use super::last_words;

    #[test]
    fn a_success_tells_its_last_line_and_a_refusal_why() {
        assert_eq!(last_words(b"killed a\nkilled b\n\n", true), "killed b");
        assert_eq!(last_words(b"swarm: error: no\nswarm: hint: do\n", false), "swarm: error: no; swarm: hint: do");
        assert_eq!(last_words(b"", false), "");
    }
}
