//! Requests of an agent in a window: its hooks record them, and one of them waits for the answer beside the dialog.
//!
//! ```text
//!   request recorded ─▶ activity "waiting" ─▶ answered ─▶ taken ─▶ printed
//!                                        └─▶ over: answered in the dialog, interrupted, or the worker has ended
//! ```
//!
//! A rule that allows or denies answers at once, and nothing is recorded. A rule that asks, and rules that cannot be read,
//! leave it to a person.
//!
//! Whatever fails here leaves the question to the dialog: the hook ends without a word. An answer is taken before it is
//! printed, so it is used at most once. A hook that is killed leaves its request to the next report of its conversation
//! that settles it, or to the end of the worker.

use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::setsid;
use serde_json::Value;
use swarm_agents::asking::{self, Step};
use swarm_agents::consent::SECONDS_MAX;
use swarm_agents::hooks::{Heard, Word};
use swarm_model::TurnEnd;
use swarm_model::asks::judge::Rule;
use swarm_model::asks::{Ask, AskRecord, AskState, AskWish, Asker, Draft, Verdict, Waits};
use swarm_model::json::Members as _;
use swarm_store::asks::rules::rule_for;
use swarm_store::asks::{ANSWERED_IN_DIALOG, Asks};
use swarm_store::records;
use swarm_sys::clock::random_uuid;
use swarm_sys::commands::deadline;
use swarm_sys::paths::{Paths, digest};

use super::args::HookArgs;
use crate::cli::error::Failure;
use crate::cli::watch::{Changes, Interrupt, Until, wait_any};

/// Length of the digest of a tool use in bytes.
const MATTER_BYTES: usize = 8;
/// Maximum size of what is asked, in bytes. More than that is not recorded: only the dialog asks.
const WISH_BYTES_MAX: usize = 64 << 10;
/// Maximum wait for an answer: ends before the agent's own timeout of the hook.
const ANSWER_MAX: Duration = Duration::from_secs(SECONDS_MAX as u64 - 3600);
/// Limits of the question to tmux.
const TMUX_MAX: Duration = Duration::from_secs(2);
const TMUX_BYTES_MAX: usize = 1024;
/// Name of the agent that hides its dialog while its hook runs.
const CODEX: &str = "codex";
/// Key of the agent itself, as opposed to its subagents.
const ITSELF: &str = "-";

/// Program of the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Program {
    /// Shows its dialog while the hook runs.
    Claude,
    /// Shows its dialog after the hook has ended without an answer.
    Codex,
}

impl Program {
    fn name(self) -> &'static str {
        match self {
            Self::Claude => "claude",
            Self::Codex => CODEX,
        }
    }
}

/// Requests of an agent in a window.
pub struct Dialogs {
    asks: Asks,
    paths: Paths,
    /// Directory of the worker's records.
    records: PathBuf,
    /// Beginning of the keys of the worker's requests.
    start: String,
    agent: Program,
    worker: String,
    generation: Option<u64>,
}

/// Request for whose answer this process waits.
struct Open<'a> {
    dialogs: &'a Dialogs,
    ask: Ask,
    /// Beginning of the keys of the conversation's requests.
    conversation: String,
    input: Value,
    changes: Changes,
    signals: Interrupt,
}

impl Dialogs {
    /// Returns the requests of the worker that the arguments name. `None` if its hooks record none.
    pub fn of(args: &HookArgs) -> Option<Self> {
        let key = args.keys()?;
        let (worker, generation) = key.strip_prefix("worker/")?.rsplit_once('/')?;
        let records = args.records()?;
        let paths = Paths::new(records.parent()?.parent()?);
        let agent = if args.window { Program::Codex } else { Program::Claude };
        let (worker, generation) = (worker.to_owned(), generation.parse().ok());
        Some(Self { asks: Asks::new(&paths), paths, records, agent, start: format!("{key}/"), worker, generation })
    }

    /// Records what a hook says about requests, and reports the activity. Waits for the answer if `waits`.
    pub fn hear(&self, said: Value, mut heard: Heard, waits: bool, report: impl Fn(Heard)) {
        let conversation = format!("{}{}/", self.start, said.text("session_id").unwrap_or_default());
        let _ = self.settle(&said, &conversation);
        let asks = waits && asking::step(&said) == Step::Asks;
        if let Some((word, reply)) = asks.then(|| self.ruled(&said)).flatten() {
            report(Heard { word: Some(word), beside: self.beside(&conversation), ..heard });
            let _ = print(&reply);
            return;
        }
        let open = if asks { self.open(&said, &conversation).ok().flatten() } else { None };
        // Of several requests the first one is told, which is also the first that the agent shows, in whatever order their
        // hooks report.
        let own = open.as_ref().map(|open| open.ask.number);
        let is_told = own.is_some() || heard.word.as_ref().is_some_and(Word::is_work);
        heard.beside = if is_told { self.beside_of(&conversation, own) } else { None };
        // After the request was recorded, so that whoever sees that the agent waits finds what it asks.
        report(heard);
        drop(said);
        if let Some(open) = open {
            let _ = open.wait(&report);
        }
    }

    /// Ends the requests that were answered in the dialog, as a hook says.
    fn settle(&self, said: &Value, conversation: &str) -> io::Result<()> {
        let agent = format!("{conversation}{}/", asking::subagent(said).unwrap_or(ITSELF));
        let shown = ANSWERED_IN_DIALOG;
        match asking::step(said) {
            Step::Used => {
                let matter = format!("{agent}{}/", matter(said));
                let same = self.asks.unfinished()?.into_iter().filter(|one| one.ask.key.starts_with(&matter));
                // Of several equal requests, the one that was answered before is the one that was carried out.
                let Some(used) = same.max_by_key(|one| (one.state() == AskState::Taken, u64::MAX - one.ask.number))
                else {
                    return Ok(());
                };
                let why = if used.state() == AskState::Taken { "its answer was carried out" } else { shown };
                self.asks.end(used.ask.number, why)
            }
            Step::Turn => self.asks.end_all(&agent, shown),
            Step::Ended => self.asks.end_all(conversation, "the conversation is over"),
            // codex takes no text before its hook has ended.
            Step::Prompt if self.agent == Program::Codex => self.asks.end_all(&agent, shown),
            Step::Prompt | Step::Asks | Step::Other => Ok(()),
        }
    }

    /// Returns what the agent does next, and the answer to it, if a rule decides about what it wants.
    fn ruled(&self, said: &Value) -> Option<(Word, Value)> {
        let input = said.member("tool_input").cloned().unwrap_or_default();
        let tool = said.text("tool_name").unwrap_or_default();
        let wish = asking::wish(tool, &input);
        // Where it was started, because it may have moved to another directory.
        let started = records::started_in(&self.records)?;
        let (word, verdict) = match rule_for(&self.paths, Path::new(&started), &wish) {
            Ok(Rule::Allow) => (Word::Doing(asking::tool(tool, &wish)), Verdict::Allow { input: None }),
            Ok(Rule::Deny { reason }) => (Word::Working, Verdict::Deny { reason }),
            Ok(Rule::None | Rule::Ask) | Err(_) => return None,
        };
        Some((word, asking::reply(&verdict, &wish, &input)))
    }

    /// Returns the verdict as the agent can hear it: codex takes no other input from a hook.
    fn told(&self, verdict: &Verdict) -> Verdict {
        match verdict {
            Verdict::Allow { input: Some(input) } if self.agent == Program::Codex => {
                Verdict::Deny { reason: format!("a person wants this instead: {input}") }
            }
            verdict => verdict.clone(),
        }
    }

    /// Returns what the agent still waits for.
    fn beside(&self, conversation: &str) -> Option<Word> {
        self.beside_of(conversation, None)
    }

    /// Returns what the agent waits for first. `None` if that is its request `own`, or nothing.
    fn beside_of(&self, conversation: &str, own: Option<u64>) -> Option<Word> {
        let all = self.asks.unfinished().ok()?;
        let open = all.iter().find(|one| one.ask.key.starts_with(conversation) && one.state() == AskState::Open)?;
        (own != Some(open.ask.number)).then(|| asking::waits(&open.ask.tool, &open.ask.wish))
    }

    /// Records the request of a hook. `None` if it is too long to be recorded.
    fn open(&self, said: &Value, conversation: &str) -> Result<Option<Open<'_>>, Failure> {
        let text = |key: &str| said.text(key).unwrap_or_default().to_owned();
        let input = said.member("tool_input").cloned().unwrap_or_default();
        let (tool, wish) = (text("tool_name"), asking::wish(&text("tool_name"), &input));
        if serde_json::to_string(&wish).map_or(usize::MAX, |wish| wish.len()) > WISH_BYTES_MAX {
            return Ok(None);
        }
        if self.agent == Program::Codex && !is_unwatched() {
            return Ok(None);
        }
        let agent = asking::subagent(said).unwrap_or(ITSELF);
        let who = Asker {
            worker: self.worker.clone(),
            generation: self.generation,
            agent: Some(self.agent.name().to_owned()),
            conversation: Some(text("session_id")),
            ..Asker::default()
        };
        // Equal tool uses are different requests: an answer to one is none to the other.
        let key = format!("{conversation}{agent}/{}/{}", matter(said), random_uuid());
        let draft = Draft { key, who, tool, wish, cwd: text("cwd"), waits: Waits::Shown };
        // Both before the request exists, so that no answer and no signal is missed.
        let signals = Interrupt::catch_all(&[Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP])?;
        // codex ends the process group of its hook by SIGKILL: outside of it, the death of the shell around is a signal.
        let _ = set_pdeathsig(Signal::SIGTERM);
        let _ = setsid();
        let changes = Changes::new()?;
        let failed = |error: io::Error| Failure::system("cannot record the request", &error);
        self.asks.make_dir().map_err(failed)?;
        changes.add_dir(self.asks.dir())?;
        let ask = self.asks.ask(&draft).map_err(failed)?;
        // Only the questions need their input again.
        let input = if matches!(ask.wish, AskWish::Question { .. }) { input } else { Value::Null };
        Ok(Some(Open { dialogs: self, ask, conversation: conversation.to_owned(), input, changes, signals }))
    }
}

impl Open<'_> {
    /// Waits until the request is answered or over, and prints the answer.
    fn wait(&self, report: &impl Fn(Heard)) -> Result<(), Failure> {
        let asks = &self.dialogs.asks;
        let number = self.ask.number;
        let failed = |error: io::Error| Failure::system("cannot follow the request", &error);
        let deadline = Instant::now() + ANSWER_MAX;
        loop {
            let record = asks.find(number).map_err(failed)?;
            let Some(record) = record.filter(|record| record.over.is_none()) else { return Ok(()) };
            if let Some(answer) = record.answer {
                return self.give(&answer.verdict, report).map_err(failed);
            }
            let sources = [(self.changes.as_fd(), Until::Readable), (self.signals.as_fd(), Until::Readable)];
            wait_any(&sources, Some(deadline))?;
            self.changes.take()?;
            if self.signals.take().is_some() {
                // The agent ends its hooks if a person dismissed the dialog. It reports nothing else about that.
                asks.end(number, "the dialog was dismissed, or the agent has ended").map_err(failed)?;
                let word = Word::Broken(TurnEnd::Interrupted, String::new());
                report(Heard { word: Some(word), ..Heard::default() });
                return Ok(());
            }
            if Instant::now() >= deadline {
                return asks.end(number, "nobody answered in time").map_err(failed);
            }
        }
    }

    fn give(&self, verdict: &Verdict, report: &impl Fn(Heard)) -> io::Result<()> {
        let asks = &self.dialogs.asks;
        let reply = asking::reply(&self.dialogs.told(verdict), &self.ask.wish, &self.input);
        let is_allowed = reply.member("hookSpecificOutput").member("decision").text("behavior") == Some("allow");
        if !asks.take(self.ask.number, &format!("{}.hook.{}", self.ask.who.worker, std::process::id()))? {
            return Ok(());
        }
        let word = if is_allowed { Word::Doing(asking::tool(&self.ask.tool, &self.ask.wish)) } else { Word::Working };
        report(Heard { word: Some(word), beside: self.dialogs.beside(&self.conversation), ..Heard::default() });
        print(&reply)?;
        // The agent reports the end of a tool use that was allowed, and nothing about one that was denied.
        if is_allowed { Ok(()) } else { asks.end(self.ask.number, "it was denied") }
    }
}

fn print(reply: &Value) -> io::Result<()> {
    let mut out = io::stdout();
    writeln!(out, "{reply}").and_then(|()| out.flush())
}

/// Leaves the open requests of an agent to its dialog, because a person is about to look at its window. An agent that shows
/// its dialog anyway keeps its requests.
///
/// # Errors
/// Returns any I/O error.
pub fn give_way(asks: &Asks, worker: &str, generation: u64) -> io::Result<()> {
    let keys = Asks::of_worker(worker, generation);
    let ours = |one: &AskRecord| one.ask.key.starts_with(&keys) && one.state() == AskState::Open;
    let hidden = asks.unfinished()?.into_iter().filter(|one| ours(one) && one.is_hidden());
    let ended: Vec<io::Result<()>> =
        hidden.map(|one| asks.end(one.ask.number, "somebody looks at the window, where its dialog asks")).collect();
    ended.into_iter().collect()
}

/// Reports whether no terminal shows the window of this process.
fn is_unwatched() -> bool {
    let Ok(pane) = std::env::var("TMUX_PANE") else { return false };
    let mut tmux = Command::new("tmux");
    tmux.args(["display-message", "-p", "-t", &pane, "#{window_active_clients}"]);
    // An older tmux does not know the number.
    deadline::run(&mut tmux, None, TMUX_MAX, TMUX_BYTES_MAX).is_ok_and(|said| said.success && said.stdout == b"0\n")
}

/// Returns the short name of the tool use that a hook names.
fn matter(said: &Value) -> String {
    digest(asking::matter(said).as_bytes(), MATTER_BYTES)
}
