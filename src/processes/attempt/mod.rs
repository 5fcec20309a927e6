//! `swarm __attempt DIR`: one attempt of one workstream, the command of its worker. Reads its order, talks to the agent
//! turn by turn, reports the agent's activity, and writes a result. Has no runtime. May be killed at any moment; then
//! there is no result.
//!
//! `swarm __resolve HOME` does the same for a merge that has stopped with conflicts. `swarm __gate GATE` is the hook of an
//! agent that asks by a hook.

mod answered;
mod diary;
mod driver;
mod gate;
mod held;
mod judging;
mod log;
mod resolve;
pub mod session;
mod transcript;
pub mod turn;
mod usage;

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use swarm_model::asks::Asker;
use swarm_model::run::progress::Spent;
use swarm_model::run::words::Word;
use swarm_model::run::{FaultKind, Outcome, worker_name};

use self::diary::Diary;
use self::gate::Gate;
use self::held::{HOLD, Held, Parked};
use self::log::{Log, Stream};
use self::session::Doings;
use self::transcript::Transcript;
use self::turn::{Decided, Heard, Teller, take_turn};
use self::usage::Usage;
use swarm_agents::dialogue::Request;
use swarm_agents::transcript::Count;
use swarm_agents::{Deferred, Report, Session, Turn};
use swarm_store::runs::order::{self, AttemptResult, Order, PROMPT, STREAM};
use swarm_store::runs::prepare;
use swarm_sys::clock::random_uuid;
use swarm_sys::files::replace_durably;
use swarm_sys::paths::Paths;

pub use gate::{VERB as GATE, main as gate};
pub use resolve::main as resolve;

/// Maximum number of turns in one attempt.
const TURNS_MAX: usize = 100;
/// Maximum number of activity reports in one attempt.
const REPORTS_MAX: u32 = 10_000;

pub fn main(mut arguments: impl Iterator<Item = OsString>) -> u8 {
    let Some(dir) = arguments.next().map(PathBuf::from) else { return 2 };
    match attempt(&dir) {
        Ok(true) => 0,
        Ok(false) => 1,
        Err(error) => {
            swarm_sys::complain!("swarm: error: {}: {error}", dir.display());
            order::IO_FAILED
        }
    }
}

/// Runs the attempt and returns whether it succeeded.
fn attempt(dir: &Path) -> io::Result<bool> {
    let (order, digest) = order::read_with_digest(dir)?;
    let prompt = fs::read_to_string(dir.join(PROMPT))?;
    let diary = Diary::new(Log::open(&order.log)?, order.events.clone(), &order.run, &order.job);
    let doings = Doings::here();
    let stream = match Stream::open(&dir.join(STREAM)) {
        Ok(stream) => Some(stream),
        Err(error) => {
            swarm_sys::complain!("swarm: warning: cannot record the conversation: {error}");
            None
        }
    };
    let usage = Usage::new(dir.to_owned());
    let (reports, waits, last, held) = (0, false, String::new(), held(&order, dir)?);
    let transcript = None;
    let mut attempt =
        Attempt { dir, order: &order, diary, doings, usage, transcript, held, reports, waits, stream, last };
    let verdict = AttemptResult { order: digest, ..attempt.run(prompt) };
    drop(attempt);
    let well = matches!(verdict.outcome, Outcome::Success { .. });
    order::write_result(dir, &verdict)?;
    Ok(well)
}

/// Returns who asks in an attempt.
fn asker(order: &Order) -> Asker {
    Asker {
        worker: std::env::var("SWARM_WORKER").unwrap_or_else(|_| worker_name("", &order.job)),
        generation: None,
        run: Some(order.run.clone()),
        job: Some(order.job.clone()),
        attempt: Some(order.attempt),
        agent: Some(order.agent.name.clone()),
        ..Asker::default()
    }
}

/// Returns the judge of what the agent asks for.
fn held(order: &Order, dir: &Path) -> io::Result<Held> {
    let cwd = std::env::current_dir()?.to_string_lossy().into_owned();
    let hold = order.hold_ms.map_or(HOLD, Duration::from_millis);
    Ok(Held::new(Paths::from_env()?, asker(order), cwd, order.consent, hold).recording(dir).with_rules(&order.rules))
}

/// Returns the outcome of an attempt whose agent waits for an answer.
fn parked(Parked { number, what, kind }: Parked) -> Outcome {
    Outcome::Parked { ask: number, what, kind }
}

struct Attempt<'a> {
    dir: &'a Path,
    order: &'a Order,
    diary: Diary,
    doings: Doings,
    usage: Usage,
    /// The agent's own file of the conversation, for agents that report their usage at the end of a turn only.
    transcript: Option<Transcript>,
    held: Held,
    reports: u32,
    /// The agent is recorded as waiting.
    waits: bool,
    /// Conversation of the attempt; `None` if it cannot be recorded.
    stream: Option<Stream>,
    /// Last reported activity; repetitions are not reported.
    last: String,
}

impl Attempt<'_> {
    fn run(&mut self, prompt: String) -> AttemptResult {
        let (mut session, mut spent) = (self.order.session.clone(), Spent::default());
        // An agent that has stopped at the use of a tool continues there without a prompt.
        let mut stopped_at = self.stopped_at();
        if let Some(what) = stopped_at.as_deref().and_then(|call| self.held.allowed_at(call)) {
            // The agent reports nothing of it before it is done.
            self.doings.answered(Some(what.clone()));
            self.tell(Word::Activity { text: what });
        }
        let is_new = session.is_none();
        let mut said = if stopped_at.is_some() { String::new() } else { self.whole(&prompt, is_new) };
        let mut fresh_id = self.order.fresh_id.clone();
        for _ in 0..TURNS_MAX {
            let report = match self.turn(&said, session.as_ref(), &fresh_id) {
                Ok(report) => report,
                Err(cause) => {
                    let outcome = Outcome::Failure { cause, evidence: None, fault: FaultKind::Lasting };
                    return AttemptResult::new(outcome, spent);
                }
            };
            spent = spent.plus(report.spent);
            if let Some(call) = stopped_at.take()
                && (report.is_gone || report.deferred == Some(Deferred::Nowhere))
            {
                self.clear_deferred(&call);
                said = self.whole(&prompt, false);
                if !report.is_gone {
                    continue;
                }
            }
            if report.is_gone && session.take().is_some() {
                self.tell(Word::Activity { text: "the conversation is gone; starting a new one".to_owned() });
                // The new conversation needs the whole prompt, whichever message found the old one gone.
                let whole = if said.starts_with(&prompt) { said } else { format!("{prompt}\n\n{said}") };
                said = match self.answered() {
                    Some(answered) => self.written(format!("{whole}\n\n{answered}")),
                    None => whole,
                };
                fresh_id = random_uuid();
                continue;
            }
            session = report.session.or(session);
            if let Some(session) = &session {
                self.usage.end(session);
            }
            if !matches!(report.outcome, Outcome::Success { .. }) {
                // Messages that arrived in the meantime are left for the next attempt.
                return AttemptResult::new(report.outcome, spent);
            }
            let more = session.is_some() && self.order.agent.resumes();
            let context = self.take_context(more);
            if !more || context.is_empty() {
                return AttemptResult::new(report.outcome, spent);
            }
            said = context;
        }
        let cause = format!("not done after {TURNS_MAX} turns");
        AttemptResult::new(Outcome::Failure { cause, evidence: None, fault: FaultKind::Task }, spent)
    }

    /// Returns the use of a tool at which the agent has stopped in an earlier attempt, and records that it is there.
    fn stopped_at(&self) -> Option<String> {
        let call = self.order.deferred.clone()?;
        let turn = Turn { consent: self.order.consent, ..Turn::default() };
        let is_there = self.order.session.is_some() && turn.may_ask();
        // If it cannot be recorded, the agent is told its task again.
        (is_there && order::defer(self.dir, &call).unwrap_or(false)).then_some(call)
    }

    /// Records that the agent does not stop, or no longer.
    fn clear_deferred(&self, call: &str) {
        if let Err(error) = order::clear_deferred(self.dir, call) {
            swarm_sys::complain!("swarm: warning: cannot record that the agent continues: {error}");
        }
    }

    /// Returns the prompt with everything that the agent has to be told, and updates its file. A new conversation does not
    /// know what people have answered in earlier ones.
    fn whole(&mut self, prompt: &str, is_new: bool) -> String {
        let said = self.with_context(prompt.to_owned(), is_new);
        if said == prompt { said } else { self.written(said) }
    }

    /// Updates the file of the prompt, for agents that read it.
    fn written(&self, prompt: String) -> String {
        if let Err(error) = replace_durably(self.dir, PROMPT, prompt.as_bytes()) {
            swarm_sys::complain!("swarm: warning: cannot write the prompt: {error}");
        }
        prompt
    }

    /// Returns the command of the hook that decides about the uses of tools of an agent in `tree`.
    fn hook(&self, tree: &Path) -> io::Result<String> {
        let gate = Gate {
            root: Paths::from_env()?.root().to_owned(),
            cwd: tree.to_string_lossy().into_owned(),
            consent: self.order.consent,
            who: asker(self.order),
            dir: Some(std::path::absolute(self.dir)?),
            record: Some(std::path::absolute(self.dir)?),
            rules: self.order.rules.clone(),
        };
        gate.command()
    }

    fn turn(&mut self, prompt: &str, session: Option<&Session>, fresh_id: &str) -> Result<Report, String> {
        let mut agent = self.order.agent.clone();
        let here = std::env::current_dir().map_err(|error| format!("cannot find the worktree: {error}"))?;
        let hook = self.hook(&here).map_err(|error| format!("cannot find this program: {error}"))?;
        prepare::restrict(&mut agent, self.order.consent, self.order.root.as_deref(), &here, &hook);
        if let Some(root) = &self.order.root {
            // Before each turn: the agent may have written such a file in the last one.
            prepare::hold_back(&mut agent, root, &here)?;
            prepare::hide_own_files(&agent, root);
        }
        let here = std::env::current_dir().map_err(|error| format!("cannot find the worktree: {error}"))?;
        let here = here.to_string_lossy();
        let turn = Turn { prompt, session, fresh_id, cwd: &here, consent: self.order.consent };
        let mut launch = agent.launch(&turn);
        let prompt_file = self.dir.join(PROMPT).to_string_lossy().into_owned();
        for (key, value) in [
            ("SWARM_PROMPT", prompt_file.as_str()),
            ("SWARM_RUN", self.order.run.as_str()),
            ("SWARM_WORKSTREAM", self.order.job.as_str()),
            ("SWARM_ATTEMPT", self.order.attempt.to_string().as_str()),
        ] {
            launch.env.push((key.to_owned(), value.to_owned()));
        }
        self.usage.begin(session);
        if let Some(session) = session {
            self.held.conversation(&session.id);
        }
        let count = Count::new(agent.kind, turn.may_ask());
        self.transcript = count.and_then(|count| Transcript::begin(count, &launch, session));
        let report = take_turn(&launch, agent.talk(&turn), self).map_err(|error| {
            let program = launch.argv.first().map_or("nothing", String::as_str);
            format!("cannot start '{program}': {error}")
        })?;
        let report = self.counted(report);
        let has_succeeded = matches!(report.outcome, Outcome::Success { .. });
        if turn.may_ask() {
            self.held.end_heard(None);
            self.told_of_requests();
        }
        Ok(match self.held.end_turn(has_succeeded) {
            Some(request) => Report { outcome: parked(request), is_gone: false, ..report },
            None => self.stopped(report),
        })
    }

    /// Records the request at which the agent has stopped. Another hook may have stopped it: then the outcome stays.
    fn stopped(&mut self, report: Report) -> Report {
        let Some(Deferred::At(request)) = &report.deferred else { return report };
        if order::deferred(self.dir).as_deref() != Some(&*request.call) {
            return report;
        }
        let outcome = match self.held.park(request) {
            Ok(request) => parked(request),
            Err(error) => prepare::broken(&format!("cannot record what the agent asks: {error}")),
        };
        self.told_of_requests();
        Report { outcome, ..report }
    }

    /// Adds the usage of a turn that the agent did not report, because it was killed.
    fn counted(&mut self, mut report: Report) -> Report {
        let Some(mut transcript) = self.transcript.take() else { return report };
        transcript.look();
        let is_told = report.spent.input_tokens > 0 || report.spent.output_tokens > 0;
        if let (false, Some(session)) = (is_told, &mut report.session) {
            report.spent = report.spent.plus(transcript.spent());
            session.unreported = session.unreported.plus(transcript.spent());
        }
        report
    }

    /// Reports what became of requests to people.
    fn told_of_requests(&mut self) {
        let (news, waits) = self.held.news();
        if !waits && !news.is_empty() {
            self.doings.answered(self.held.allowed());
        }
        for text in news {
            self.tell(if waits { Word::NeedsInput { cause: text } } else { Word::Activity { text } });
        }
    }

    /// Records whether the agent waits. On a full disk this is lost, as reports are.
    fn mark(&mut self, word: &Word) {
        let cause = match word {
            // After the last report nothing would clear the mark again.
            Word::NeedsInput { cause } if self.listens() => Some(cause.as_str()),
            Word::Activity { .. } if self.waits => None,
            _ => return,
        };
        self.waits = cause.is_some();
        if let Some(cause) = cause {
            self.doings.waits(cause);
        }
        if let Err(error) = order::write_waiting(self.dir, cause) {
            swarm_sys::complain!("swarm: warning: cannot record what the agent waits for: {error}");
        }
    }

    fn with_context(&mut self, prompt: String, is_new: bool) -> String {
        if !self.order.agent.converses() {
            return prompt;
        }
        let answered = if is_new { self.answered() } else { None };
        let decided = self.asks().then(|| self.held.decided()).flatten();
        let context = Some(self.take_context(true)).filter(|context| !context.is_empty());
        [Some(prompt), answered, decided, context].into_iter().flatten().collect::<Vec<_>>().join("\n\n")
    }

    /// Reports whether the agent may ask a person.
    fn asks(&self) -> bool {
        self.order.agent.asks(&Turn { consent: self.order.consent, ..Turn::default() })
    }

    /// Returns what a new conversation has to know of the answers in earlier ones.
    fn answered(&self) -> Option<String> {
        let has_changed = |attempt: u32| {
            let name = format!("{}.{attempt}", self.order.job);
            let earlier = order::read_order(&self.dir.with_file_name(name)).ok().and_then(|order| order.spec);
            earlier.is_some() && earlier != self.order.spec
        };
        self.held.answered(!self.asks(), has_changed)
    }

    /// Takes the messages of people that arrived since, and reports each as delivered or as too late.
    fn take_context(&mut self, delivered: bool) -> String {
        let said = order::said(&self.order.context).into_iter();
        let taken = said.filter(|(file, _)| order::take(file, delivered).is_ok());
        let texts: Vec<String> = taken.map(|(_, text)| text).collect();
        for text in &texts {
            self.tell(Word::Context { delivered, text: swarm_agents::short(text) });
        }
        self.diary.write();
        if delivered { texts.join("\n\n") } else { String::new() }
    }
}

impl Teller for Attempt<'_> {
    fn asked(&mut self, request: &Request) -> Decided {
        let decided = self.held.asked(request);
        self.told_of_requests();
        decided
    }

    fn heard(&mut self) -> Vec<Heard> {
        let heard = self.held.heard();
        self.told_of_requests();
        heard
    }

    fn answers(&self) -> Option<BorrowedFd<'_>> {
        self.held.fd()
    }

    fn held_until(&self) -> Option<Instant> {
        self.held.until()
    }

    fn session(&mut self, id: String) {
        self.held.conversation(&id);
        self.doings.conversation(&id);
        if let Some(transcript) = &mut self.transcript {
            transcript.named(&id);
        }
        self.usage.named(id);
    }

    fn spent(&mut self, spent: Spent) {
        self.usage.spent(spent);
    }

    fn tell(&mut self, word: Word) {
        self.mark(&word);
        if let Word::Activity { text } = &word {
            // If the log has the raw output, activity is not logged again.
            if !self.wants_raw() {
                self.diary.note(text);
            }
            self.reports += 1;
            if self.reports > REPORTS_MAX || *text == self.last {
                return;
            }
            self.last.clone_from(text);
        }
        self.diary.tell(word);
    }

    fn printed(&mut self, bytes: &[u8]) {
        if let Some(transcript) = &mut self.transcript {
            transcript.heard();
        }
        if let Some(stream) = &mut self.stream {
            stream.push(bytes);
        }
    }

    fn raw(&mut self, bytes: &[u8]) {
        self.diary.raw(bytes);
    }

    fn unheard(&mut self, cause: &str) {
        if let Err(error) = order::write_unheard(self.dir, cause) {
            swarm_sys::complain!("swarm: warning: cannot record what nobody could be asked: {error}");
        }
    }

    fn tool(&mut self, what: &str) {
        self.doings.tool(what);
    }

    fn says(&mut self) {
        self.doings.says();
    }

    fn done(&mut self, call: &str) {
        self.clear_deferred(call);
        if self.order.deferred.as_deref() == Some(call) {
            self.held.end_heard(Some(call));
            self.told_of_requests();
        }
    }

    fn todos(&mut self, items: &serde_json::Value) {
        self.doings.todos(items);
    }

    fn looked(&mut self) -> Option<Duration> {
        if let Some(stream) = &mut self.stream {
            stream.write();
        }
        self.diary.write();
        if let Some(spent) = self.transcript.as_mut().and_then(Transcript::look) {
            self.usage.spent(spent);
        }
        let later = self.transcript.as_mut().and_then(Transcript::pause);
        [self.usage.write(), self.doings.write(), later].into_iter().flatten().min()
    }

    fn wants_raw(&self) -> bool {
        !self.order.agent.resumes()
    }

    fn listens(&self) -> bool {
        self.reports < REPORTS_MAX
    }
}
