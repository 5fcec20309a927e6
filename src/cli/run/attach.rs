//! `swarm run attach`: follows a run by reading its event log line by line. The viewer may be killed at any time; the
//! run continues, and another viewer can follow it from any line.
//!
//! A terminal gets the live view ([`Live`]), other output plain text ([`Plain`]), and with `--json` the lines themselves.

use std::io::IsTerminal as _;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::time::{Duration, Instant};

use swarm_model::run::progress::{Mode, Verdict};
use swarm_model::run::words::{Line, Word};
use swarm_model::{Refusal, RefusalKind, RunOrder};

use super::args::AttachArgs;
use super::live::Live;
use super::plain::Plain;
use crate::api::client;
use crate::api::supervision::Supervision;
use crate::cli::error::Failure;
use crate::cli::screen::Screen;
use crate::cli::tail::{From, Pending, Tail};
use crate::cli::watch::{Changes, Interrupt, Until, wait_any};
use swarm_store::lines::{self, Damage};
use swarm_store::runs::home::{Home, from_iso, iso};
use swarm_store::runs::{is_under_way, journal, records};
use swarm_sys::clock::wall_ms;
use swarm_sys::paths::Paths;
use swarm_sys::quoting::command_line;

/// Exit code of an interrupted run, as a shell reports SIGINT.
const INTERRUPTED: u8 = 130;
/// Maximum interval between two checks of the run: another supervisor may have adopted and ended it without writing.
const LOOK: Duration = Duration::from_secs(30);

/// Options of a view of a run.
#[derive(Clone, Debug)]
pub struct View {
    /// Print the lines of the event log.
    pub json: bool,
    /// Ctrl-C stops the run, not only the view.
    pub owns: bool,
    /// Number of the last line that belongs to an earlier run.
    pub told: u64,
    /// Start of the run in Unix milliseconds, if an earlier line than the first one of the view has it.
    pub began_ms: Option<u64>,
    /// Command that retries failed workstreams. `None` if it is unknown.
    pub retry: Option<String>,
}

/// How lines are shown.
enum Show {
    Live(Box<Live>),
    Plain(Plain),
    /// The lines of the event log with their numbers.
    Json,
}

impl Show {
    fn new(view: &View, home: &Home) -> Self {
        // The live view draws on standard error.
        let is_terminal = std::io::stdout().is_terminal() && std::io::stderr().is_terminal();
        match view {
            View { json: true, .. } => Self::Json,
            View { .. } if is_terminal => Self::Live(Box::new(Live::new(&home.worktrees()))),
            View { began_ms, .. } => Self::Plain(Plain::new(*began_ms)),
        }
    }
}

/// Position in the event log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    bytes: u64,
    /// Number of lines before this position.
    pub lines: u64,
}

/// Returns the current end of the event log.
pub fn length(home: &Home) -> Position {
    let text = records::read(home.events()).unwrap_or_default();
    let lines = text.iter().filter(|byte| **byte == b'\n').count();
    Position { bytes: text.len() as u64, lines: lines as u64 }
}

pub fn run(args: &AttachArgs, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    let home = super::home(args.home.as_deref())?;
    if !home.journal().exists() && !home.events().exists() {
        let refusal = Refusal::new(RefusalKind::NotFound, format!("no run in {}", home.path().display()));
        return Err(refusal.remedy("run 'swarm run' to start one").into());
    }
    // A run that is not over needs a supervisor.
    client::ensure(paths)?;
    somebody_carries_it_on(&home, paths)?;
    // A run may have started without having logged anything yet; earlier lines then belong to earlier runs.
    let is_under_way = || over_by_journal(&home).is_none() && home.journal().exists();
    let since = screen.goes_on().or(args.since);
    let Place { from, told, began_ms } = position(&home, since, is_under_way);
    let retry = retry_of(args.home.as_deref(), &home);
    let view = View { json: args.json, owns: false, told, began_ms, retry };
    follow(&home, from, view, paths, screen)
}

/// Returns the command that retries failed workstreams of the planned specs, or of this job file.
pub fn retry_command(file: Option<&Path>) -> String {
    let file = file.map(|file| file.to_string_lossy().into_owned());
    // 'swarm run' takes only what is recognizable as a path for a job file.
    let file = file.map(|file| if file.contains('/') || file.ends_with(".toml") { file } else { format!("./{file}") });
    let words = ["swarm", "run"].into_iter().chain(file.as_deref()).chain(["--retry-failed"]);
    command_line(words)
}

/// Returns the command that retries failed workstreams of the run that `--home` names. `None` if that is the directory
/// of a job file's run, which does not record the file.
fn retry_of(typed: Option<&Path>, home: &Home) -> Option<String> {
    let Some(typed) = typed else { return Some(retry_command(None)) };
    if !typed.is_dir() {
        return Some(retry_command(Some(typed)));
    }
    let plan = journal::replay(home).ok().flatten()?.plan;
    plan.specs.as_ref()?;
    Some(format!("{} && {}", command_line(["cd", &plan.root]), retry_command(None)))
}

/// Where a view begins.
struct Place {
    from: Position,
    /// Number of lines of runs before the current one.
    told: u64,
    /// Start of the run in which `from` lies, in Unix milliseconds.
    began_ms: Option<u64>,
}

/// Returns the position after line `since`, or by default the start of the last run. `is_under_way` is asked after the
/// lines were read, because the end of a run is in its journal before it is among the lines: a last line that is an end is
/// that of an earlier run if the journal does not have it.
fn position(home: &Home, since: Option<u64>, is_under_way: impl FnOnce() -> bool) -> Place {
    let text = records::read(home.events()).unwrap_or_default();
    let (mut at, mut last, mut asked, mut is_over) = (Position::default(), Position::default(), None, true);
    let (mut began_ms, mut asked_began_ms) = (None, None);
    for line in text.split_inclusive(|byte| *byte == b'\n') {
        if since == Some(at.lines) {
            (asked, asked_began_ms) = (Some(at), began_ms);
        }
        match serde_json::from_slice::<Line>(line) {
            Ok(Line { word: Word::RunStarted { .. }, time, .. }) => {
                (last, is_over, began_ms) = (at, false, from_iso(&time));
            }
            Ok(Line { word: Word::RunCompleted { .. }, .. }) => is_over = true,
            _ => {}
        }
        at.bytes += line.len() as u64;
        at.lines += u64::from(line.ends_with(b"\n"));
    }
    let waits = is_over && is_under_way();
    let from = match since {
        Some(_) => asked.unwrap_or(at),
        None if waits => at,
        None => last,
    };
    let began_ms = if asked.is_some() { asked_began_ms } else { began_ms };
    Place { from, told: if waits { at.lines } else { 0 }, began_ms }
}

/// Shows the lines from `from` on until the run is over, and returns the exit code.
pub fn follow(home: &Home, from: Position, view: View, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    let mut follower = Follower {
        home,
        paths,
        supervision: Supervision::ensure(paths)?,
        owns: view.owns,
        changes: Changes::new()?,
        interrupt: Interrupt::catch()?,
        lines: from.lines,
        pending: Pending::default(),
        // A viewer of a new or running run waits for the end of that run, not for that of an earlier one.
        over: if view.owns || view.told > 0 { None } else { over_before(home, from) },
        told: view.told,
        begun: !view.owns,
        show: Show::new(&view, home),
        retry: view.retry.filter(|_| !view.json),
        has_failed: false,
        has_damage: false,
        interrupts: 0,
    };
    follower.changes.add_dir(home.path())?;
    follower.changes.add_file(&home.events())?;
    let mut tail = Tail::new(home.events());
    tail.start(From::Byte(from.bytes), &mut |bytes: &[u8]| follower.give(bytes, screen))?;
    loop {
        while tail.drain(&mut |bytes: &[u8]| follower.give(bytes, screen))?.more {}
        screen.mark(|| follower.lines)?;
        if let Some(code) = follower.over {
            follower.hint(screen);
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

/// Returns the exit code of the run that ended with the last line before `from`; `None` if that line is not an end.
fn over_before(home: &Home, from: Position) -> Option<u8> {
    let text = records::read(home.events()).unwrap_or_default();
    let before = text.get(..usize::try_from(from.bytes).ok()?)?.trim_ascii_end();
    let last = before.rsplit(|byte| *byte == b'\n').next()?;
    match serde_json::from_slice::<Line>(last).ok()?.word {
        Word::RunCompleted { status, .. } => Some(code_of(&status)),
        _ => None,
    }
}

/// Returns the exit code of a run that is over according to its journal, even if its last event was never written.
fn over_by_journal(home: &Home) -> Option<u8> {
    match journal::replay(home).ok()??.mode {
        Mode::Over(Verdict::Completed) => Some(0),
        Mode::Over(Verdict::Failed) => Some(1),
        Mode::Over(Verdict::Interrupted) => Some(INTERRUPTED),
        Mode::Running | Mode::Held | Mode::Stopping => None,
    }
}

/// Checks that a supervisor is responsible for the run.
///
/// # Errors
/// Fails if the run is not over and no supervisor knows it: its directory was copied, or the state directory is new.
fn somebody_carries_it_on(home: &Home, paths: &Paths) -> Result<(), Failure> {
    // Checked again after the journal was read, because the run may have started in between.
    let nobody = || !is_under_way(paths, home) && !home.is_locked();
    if home.journal().exists() && nobody() && over_by_journal(home).is_none() && nobody() {
        let cause = format!("the run in {} has no supervisor", home.path().display());
        return Err(Refusal::new(RefusalKind::NotFound, cause).remedy("run 'swarm run' to continue it").into());
    }
    Ok(())
}

struct Follower<'a> {
    home: &'a Home,
    paths: &'a Paths,
    supervision: Supervision<'a>,
    owns: bool,
    changes: Changes,
    interrupt: Interrupt,
    lines: u64,
    /// Line that is not written completely yet.
    pending: Pending,
    /// Exit code, once the run is over.
    over: Option<u8>,
    told: u64,
    /// The `run.started` line was seen; lines before it are not shown to the caller that started the run.
    begun: bool,
    show: Show,
    /// Command that retries failed workstreams; `None` if no hint is wanted.
    retry: Option<String>,
    /// The last line of the run said that workstreams failed.
    has_failed: bool,
    /// A damaged line was reported.
    has_damage: bool,
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
        // A line that was torn by a crash is counted but not shown.
        let text = text.trim_ascii_end();
        let object = text.strip_suffix(b"}");
        if object.is_none() && lines::damage(text, 0).is_none() {
            return Ok(());
        }
        let line = serde_json::from_slice::<Line>(text).ok().or_else(|| self.damage_report(text));
        self.begun |= line.as_ref().is_some_and(|line| matches!(line.word, Word::RunStarted { .. }));
        if !self.begun {
            // Last lines of the run before.
            return Ok(());
        }
        match (&mut self.show, &line) {
            (Show::Json, _) if lines::damage(text, 0).is_none() => {
                let object = String::from_utf8_lossy(object.unwrap_or(text));
                screen.line(&format!("{object},\"seq\":{}}}", self.lines))?;
            }
            (Show::Json, Some(Line { word: Word::JournalDamaged { file, line, error }, .. })) => {
                screen.warning(&super::plain::damaged(file, *line, error));
            }
            (Show::Json, _) => {}
            (Show::Live(live), Some(line)) => live.show(line),
            (Show::Plain(plain), Some(line)) => {
                plain.show(line).map_or(Ok(()), |text| screen.line(&text))?;
            }
            (Show::Live(_) | Show::Plain(_), None) => {}
        }
        match line.map(|line| line.word) {
            Some(Word::RunCompleted { status, failed, .. }) if self.lines > self.told => {
                self.over = Some(code_of(&status));
                self.has_failed = status == "failed" && failed > 0;
            }
            // Another run has started since.
            Some(Word::RunStarted { .. }) => (self.over, self.has_failed) = (None, false),
            _ => {}
        }
        Ok(())
    }

    /// Returns a report of the first line that is damaged, and not only torn.
    fn damage_report(&mut self, text: &[u8]) -> Option<Line> {
        if !self.begun {
            return None;
        }
        let Damage { line, cause: error } = lines::damage(text, usize::try_from(self.lines).unwrap_or(usize::MAX))?;
        if std::mem::replace(&mut self.has_damage, true) {
            return None;
        }
        let word = Word::JournalDamaged { file: self.home.events().to_string_lossy().into_owned(), line, error };
        Some(Line { time: iso(wall_ms()), run: String::new(), number: None, workstream: None, word })
    }

    /// Prints how to retry after workstreams have failed.
    fn hint(&self, screen: &mut Screen) {
        if let Some(retry) = self.retry.as_ref().filter(|_| self.has_failed) {
            screen.aside("hint: ", &format!("run '{retry}' to retry what failed"));
        }
    }

    /// Sleeps until there may be something new. Returns true if only the view must end.
    fn wait(&mut self) -> Result<bool, Failure> {
        let stdout = std::io::stdout();
        let sources = [
            (self.changes.as_fd(), Until::Readable),
            (self.interrupt.as_fd(), Until::Readable),
            (stdout.as_fd(), Until::HungUp),
        ];
        let supervisor = self.supervision.fd().map(|supervisor| (supervisor, Until::Readable));
        let sources: Vec<_> = sources.into_iter().chain(supervisor).collect();
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
        if ready.get(3) == Some(&true) {
            // The last line may have been written just before the supervisor ended.
            self.over = self.over.or_else(|| over_by_journal(self.home));
            if self.over.is_none() {
                // If the supervisor and its guard died together, only a command starts them again.
                self.supervision.renew()?;
            }
        }
        if ready.iter().all(|ready| !ready) {
            self.over = self.over.or_else(|| over_by_journal(self.home));
            somebody_carries_it_on(self.home, self.paths)?;
        }
        Ok(false)
    }

    /// Stops the run at the first interrupt, and kills its workers at the second one.
    fn interrupted(&mut self) -> Result<(), Failure> {
        self.interrupts += 1;
        let home = self.home.path().to_string_lossy().into_owned();
        if self.interrupts == 1 {
            swarm_sys::complain!("swarm: stopping the run; press Ctrl-C again to kill its workers");
            return match super::send(self.paths, RunOrder::Stop { home }) {
                // The run has just ended by itself; its last line says so.
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

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn whether_a_run_is_under_way_is_asked_after_its_lines_were_read() {
        let dir = tempfile::tempdir().expect("makes a directory");
        let home = Home::new(dir.path());
        fs::create_dir_all(home.path()).expect("made");
        let line = |word: Word| {
            let time = "2030-01-31T14:05:00.000Z".to_owned();
            let line = Line { time, run: "r".to_owned(), number: None, workstream: None, word };
            serde_json::to_string(&line).expect("a line") + "\n"
        };
        let (done, failed, pending) = (1, 0, 0);
        let end = line(Word::RunCompleted { status: "completed".to_owned(), done, failed, pending });
        let start = line(Word::RunStarted { workstreams: 1, pending: 1, failed: 0 });
        fs::write(home.events(), [start, end.clone()].concat()).expect("written");
        let earlier = length(&home);
        // Another run has begun, and it ends now.
        let ends = || {
            let both = fs::read_to_string(home.events()).expect("there") + &end;
            fs::write(home.events(), both).expect("written");
            true
        };
        let place = position(&home, None, ends);
        assert_eq!((place.from.bytes, place.told), (earlier.bytes, earlier.lines), "its end is waited for");
        assert_eq!(position(&home, None, || false).from.bytes, 0, "the last run is shown");
    }
}
