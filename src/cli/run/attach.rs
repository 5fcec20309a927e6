//! Following a run: what it told, line by line, from its file. Whoever follows may be
//! killed at any time; the run goes on, and the next one follows from where it likes.

use std::io::IsTerminal as _;
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use swarm_model::run::progress::{Mode, Verdict};
use swarm_model::run::words::{Line, Word};
use swarm_model::{Refusal, RefusalKind, RunOrder};

use super::args::AttachArgs;
use super::live::Live;
use crate::adapters::runs::home::Home;
use crate::adapters::runs::{is_under_way, journal};
use crate::api::client;
use crate::cli::error::Failure;
use crate::cli::screen::Screen;
use crate::cli::tail::{From, Pending, Tail};
use crate::cli::watch::{Changes, Interrupt, Until, wait_any};
use crate::paths::Paths;

/// The exit code of a run that was interrupted, as a shell has it.
const INTERRUPTED: u8 = 130;
/// How often it is looked whether the run still is: another supervisor may have taken
/// it over and ended it while nobody wrote.
const LOOK: Duration = Duration::from_secs(30);

/// How a run is shown.
#[derive(Clone, Copy, Debug)]
pub struct View {
    pub headless: bool,
    /// Ctrl-C stops the run, not only the view.
    pub owns: bool,
    /// The number of the last line that earlier runs told.
    pub told: u64,
}

/// Where the next line will be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    bytes: u64,
    /// Lines before it.
    pub lines: u64,
}

/// The end of what is told so far.
pub fn length(home: &Home) -> Position {
    let text = std::fs::read(home.events()).unwrap_or_default();
    let lines = text.iter().filter(|byte| **byte == b'\n').count();
    Position { bytes: text.len() as u64, lines: lines as u64 }
}

pub fn run(args: &AttachArgs, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    let home = super::home(args.home.as_deref())?;
    if !home.journal().exists() && !home.events().exists() {
        let refusal = Refusal::new(RefusalKind::NotFound, format!("no run was begun in {}", home.path().display()));
        return Err(refusal.remedy("swarm run begins one").into());
    }
    // Somebody has to be at work, if there is work.
    client::ensure(paths)?;
    somebody_carries_it_on(&home, paths)?;
    // It may be under way and have told nothing yet: what others told before is over.
    let is_under_way = over_by_journal(&home).is_none() && home.journal().exists();
    let (from, told) = position(&home, args.since, is_under_way);
    let view = View { headless: args.headless, owns: false, told };
    follow(&home, from, view, paths, screen)
}

/// Behind the line of this number, or where the last run begins; and how many lines
/// are of runs before the one that is under way.
fn position(home: &Home, since: Option<u64>, is_under_way: bool) -> (Position, u64) {
    let text = std::fs::read(home.events()).unwrap_or_default();
    let (mut at, mut last, mut asked, mut is_over) = (Position::default(), Position::default(), None, true);
    for line in text.split_inclusive(|byte| *byte == b'\n') {
        if since == Some(at.lines) {
            asked = Some(at);
        }
        match serde_json::from_slice::<Line>(line).map(|line| line.word) {
            Ok(Word::RunStarted { .. }) => (last, is_over) = (at, false),
            Ok(Word::RunCompleted { .. }) => is_over = true,
            _ => {}
        }
        at.bytes += line.len() as u64;
        at.lines += u64::from(line.ends_with(b"\n"));
    }
    let waits = is_under_way && is_over;
    let from = match since {
        Some(_) => asked.unwrap_or(at),
        None if waits => at,
        None => last,
    };
    (from, if waits { at.lines } else { 0 })
}

/// Shows what is told from there on, until the run is over.
pub fn follow(home: &Home, from: Position, view: View, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    let live = !view.headless && std::io::stdout().is_terminal();
    let mut follower = Follower {
        home,
        paths,
        owns: view.owns,
        changes: Changes::new()?,
        interrupt: Interrupt::catch()?,
        lines: from.lines,
        pending: Pending::default(),
        // Who begins a run waits for its own end, and who finds one under way as well.
        over: if view.owns || view.told > 0 { None } else { over_before(home, from) },
        told: view.told,
        begun: !view.owns,
        live: live.then(Live::new),
        interrupts: 0,
    };
    follower.changes.add_dir(home.path())?;
    follower.changes.add_file(&home.events())?;
    let mut tail = Tail::new(home.events());
    tail.start(From::Byte(from.bytes), &mut |bytes: &[u8]| follower.give(bytes, screen))?;
    loop {
        while tail.drain(&mut |bytes: &[u8]| follower.give(bytes, screen))?.more {}
        if let Some(code) = follower.over {
            return Ok(code);
        }
        if follower.wait()? {
            return Ok(0);
        }
    }
}

fn code_of(status: &str) -> u8 {
    match status {
        "completed" => 0,
        "interrupted" => INTERRUPTED,
        _ => 1,
    }
}

/// The exit code of the run whose last word is the last line before there.
fn over_before(home: &Home, from: Position) -> Option<u8> {
    let text = std::fs::read(home.events()).unwrap_or_default();
    let before = text.get(..usize::try_from(from.bytes).ok()?)?.trim_ascii_end();
    let last = before.rsplit(|byte| *byte == b'\n').next()?;
    match serde_json::from_slice::<Line>(last).ok()?.word {
        Word::RunCompleted { status, .. } => Some(code_of(&status)),
        _ => None,
    }
}

/// The exit code of a run that was cut off between its end and its last word.
fn over_by_journal(home: &Home) -> Option<u8> {
    match journal::replay(home).ok()??.mode {
        Mode::Over(Verdict::Completed) => Some(0),
        Mode::Over(Verdict::Failed) => Some(1),
        Mode::Over(Verdict::Interrupted) => Some(INTERRUPTED),
        Mode::Running | Mode::Held | Mode::Stopping => None,
    }
}

/// A home that was copied, or a state directory that is new, has a run that no supervisor
/// knows of.
fn somebody_carries_it_on(home: &Home, paths: &Paths) -> Result<(), Failure> {
    // Once more behind the journal: it may have begun in between.
    let nobody = || !is_under_way(paths, home) && !home.is_locked();
    if home.journal().exists() && nobody() && over_by_journal(home).is_none() && nobody() {
        let cause = format!("no supervisor carries on the run in {}", home.path().display());
        return Err(Refusal::new(RefusalKind::NotFound, cause).remedy("swarm run goes on with it").into());
    }
    Ok(())
}

struct Follower<'a> {
    home: &'a Home,
    paths: &'a Paths,
    owns: bool,
    changes: Changes,
    interrupt: Interrupt,
    lines: u64,
    /// A line whose end was not written yet.
    pending: Pending,
    /// The exit code, once the run is over.
    over: Option<u8>,
    told: u64,
    /// Whoever begins a run hears of its beginning first.
    begun: bool,
    live: Option<Live>,
    interrupts: u32,
}

impl Follower<'_> {
    fn give(&mut self, bytes: &[u8], screen: &mut Screen) -> Result<(), Failure> {
        if bytes.is_empty() {
            return screen.flush();
        }
        for line in self.pending.whole(bytes) {
            self.lines += 1;
            self.line(&line, screen)?;
        }
        screen.flush()
    }

    fn line(&mut self, text: &[u8], screen: &mut Screen) -> Result<(), Failure> {
        // A line that a crash tore counts, and says nothing.
        let text = text.trim_ascii_end();
        let Some(object) = text.strip_suffix(b"}") else { return Ok(()) };
        let line = serde_json::from_slice::<Line>(text).ok();
        self.begun |= line.as_ref().is_some_and(|line| matches!(line.word, Word::RunStarted { .. }));
        if !self.begun {
            // The last words of the run before.
            return Ok(());
        }
        match (&mut self.live, &line) {
            (Some(live), Some(line)) => live.show(line),
            (Some(_), None) => {}
            (None, _) => screen.line(&format!("{},\"seq\":{}}}", String::from_utf8_lossy(object), self.lines))?,
        }
        match line.map(|line| line.word) {
            Some(Word::RunCompleted { status, .. }) if self.lines > self.told => self.over = Some(code_of(&status)),
            // Another one has begun since.
            Some(Word::RunStarted { .. }) => self.over = None,
            _ => {}
        }
        Ok(())
    }

    /// Sleeps until there is something to look at. True when only the view is to end.
    fn wait(&mut self) -> Result<bool, Failure> {
        let stdout = std::io::stdout();
        let sources = [
            (self.changes.as_fd(), Until::Readable),
            (self.interrupt.as_fd(), Until::Readable),
            (stdout.as_fd(), Until::HungUp),
        ];
        let ready = wait_any(&sources, Some(Instant::now() + LOOK))?;
        self.changes.take()?;
        self.changes.add_file(&self.home.events())?;
        if ready[2] {
            return Ok(true);
        }
        if ready[1] {
            self.interrupt.take();
            if !self.owns {
                return Ok(true);
            }
            self.interrupted()?;
        }
        if ready.iter().all(|ready| !ready) {
            // Where the supervisor and its guard died together, a command is what wakes them.
            client::ensure(self.paths)?;
            self.over = self.over.or_else(|| over_by_journal(self.home));
            somebody_carries_it_on(self.home, self.paths)?;
        }
        Ok(false)
    }

    /// The first time what is at work is stopped, the second time killed.
    fn interrupted(&mut self) -> Result<(), Failure> {
        self.interrupts += 1;
        let home = self.home.path().to_string_lossy().into_owned();
        if self.interrupts == 1 {
            eprintln!("swarm: stopping what is at work; once more kills it");
            return match super::send(self.paths, RunOrder::Stop { home }) {
                // It has just ended by itself, and says so.
                Err(Failure::Refused { refusal, .. }) if refusal.kind == RefusalKind::NotFound => Ok(()),
                sent => sent.map(drop),
            };
        }
        let run = journal::replay(self.home).ok().flatten();
        let jobs = run.iter().flat_map(|run| (0..run.jobs.len()).map(|at| run.now(at)));
        let at_work = jobs.filter(|now| now.progress.pid.is_some());
        super::tidy::kill_now(self.paths, &at_work.map(|now| now.worker()).collect::<Vec<_>>());
        Ok(())
    }
}
