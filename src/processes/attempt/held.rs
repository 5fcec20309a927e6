//! Holds an agent while a person is asked, and ends the requests of a turn.
//!
//! ```text
//!   request ──▶ judge ──▶ allowed, denied
//!                 └─▶ asked ──▶ answered ──▶ taken, then told
//!                       └─▶ the hold is over: the turn is cancelled, and the attempt ends; the request stays open
//! ```
//!
//! An agent that has stopped by itself is not held: its request is recorded, and the attempt ends.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::inotify::Inotify;
use swarm_agents::dialogue::Request;
use swarm_model::NeedKind;
use swarm_model::asks::judge::{Consent, Ruling};
use swarm_model::asks::rules::AskRule;
use swarm_model::asks::{Ask, AskRecord, AskState, Asker, Verdict, Waits};
use swarm_sys::paths::Paths;

use super::answered::{Answered, section};
use super::judging::{Judge, TOO_LONG, is_too_long};
use super::turn::{Decided, Heard};

/// Time for which an agent is held, unless the order says otherwise. The provider's cache is still warm then.
pub const HOLD: Duration = Duration::from_secs(240);

/// Why a request is over whose answer was used.
const HEARD: &str = "the agent has heard the answer";

/// Request that a person is asked about.
struct Open {
    call: String,
    ask: Ask,
    until: Instant,
}

/// Request for whose answer no process waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parked {
    pub number: u64,
    /// What is asked, in one line.
    pub what: String,
    pub kind: NeedKind,
}

pub struct Held {
    judge: Judge,
    hold: Duration,
    watch: Option<Inotify>,
    open: Vec<Open>,
    /// Requests whose answer the agent has heard in this turn.
    used: Vec<u64>,
    parked: Option<Parked>,
    /// The agent has stopped at a request.
    waits: bool,
    /// What is to be reported.
    news: Vec<String>,
    /// Last permission of the agent, until it is reported.
    allowed: Option<String>,
}

impl Parked {
    fn of(ask: &Ask) -> Self {
        Self { number: ask.number, what: ask.summary(), kind: ask.kind() }
    }
}

impl Held {
    /// `who` names the run, the workstream and the attempt.
    pub fn new(paths: Paths, who: Asker, cwd: String, consent: Option<Consent>, hold: Duration) -> Self {
        Self {
            judge: Judge::new(paths, who, cwd, consent),
            hold,
            watch: None,
            open: Vec::new(),
            used: Vec::new(),
            parked: None,
            waits: false,
            news: Vec::new(),
            allowed: None,
        }
    }

    /// Adds the rules of the repository at the beginning of the run.
    pub fn with_rules(mut self, rules: &[AskRule]) -> Self {
        self.judge.rules = rules.to_vec();
        self
    }

    /// Records in the directory of the attempt what the agent is denied.
    pub fn recording(mut self, dir: &Path) -> Self {
        self.judge.record = Some(dir.to_owned());
        self
    }

    /// Names the conversation in which is asked from now on.
    pub fn conversation(&mut self, id: &str) {
        self.judge.who.conversation = Some(id.to_owned());
    }

    pub fn asked(&mut self, request: &Request) -> Decided {
        let decided = self.decide(request);
        if let Decided::Now(Verdict::Deny { reason }) = &decided {
            self.judge.denied(&request.call, &request.tool, &request.wish, reason);
        }
        decided
    }

    fn decide(&mut self, request: &Request) -> Decided {
        match self.judge.ruling(&request.wish) {
            Ruling::Allow => Decided::Now(Verdict::Allow { input: None }),
            Ruling::Deny { reason } => Decided::Now(Verdict::Deny { reason }),
            Ruling::Ask => self.ask(request).unwrap_or_else(|error| no(format!("nobody can be asked: {error}"))),
        }
    }

    fn ask(&mut self, request: &Request) -> io::Result<Decided> {
        if is_too_long(&request.wish)? {
            return Ok(Decided::Now(Verdict::Deny { reason: TOO_LONG.to_owned() }));
        }
        let draft = self.judge.draft(request, Waits::Held)?;
        // Before the records are read, so that no answer is missed.
        self.watch()?;
        let held: Vec<u64> = self.open.iter().map(|open| open.ask.number).collect();
        let ask = match self.judge.earlier(&draft, &held)? {
            Some(AskRecord { ask, answer: Some(answer), .. }) => {
                return Ok(Decided::Now(self.take(&ask, answer.verdict)));
            }
            Some(record) => record.ask,
            None => self.judge.asks.ask(&draft)?,
        };
        self.tell(&ask);
        self.open.push(Open { call: request.call.clone(), ask, until: Instant::now() + self.hold });
        Ok(Decided::Held)
    }

    /// Records the request of an agent that has stopped at it.
    pub fn park(&mut self, request: &Request) -> io::Result<Parked> {
        let draft = self.judge.draft(request, Waits::Parked)?;
        let ask = match self.judge.earlier(&draft, &[])? {
            Some(record) => record.ask,
            None => self.judge.asks.ask(&draft)?,
        };
        self.tell(&ask);
        self.waits = true;
        Ok(Parked::of(&ask))
    }

    fn tell(&mut self, ask: &Ask) {
        self.news.push(news_of(ask));
    }

    /// Uses an answer, and returns what the agent may hear.
    fn take(&mut self, ask: &Ask, verdict: Verdict) -> Verdict {
        match self.judge.take(ask, verdict) {
            Ok(verdict) => {
                self.used.push(ask.number);
                self.news.push(said(ask.number, &verdict));
                self.allowed = matches!(verdict, Verdict::Allow { input: None }).then(|| ask.needs().text);
                verdict
            }
            Err(no) => no,
        }
    }

    /// Returns answers to open requests. At the end of the hold the turn is to be cancelled.
    pub fn heard(&mut self) -> Vec<Heard> {
        if self.open.is_empty() {
            return Vec::new();
        }
        if let Some(watch) = &self.watch {
            while watch.read_events().is_ok_and(|events| !events.is_empty()) {}
        }
        let mut heard = Vec::new();
        for open in std::mem::take(&mut self.open) {
            match self.answer_of(&open.ask) {
                Some(verdict) => {
                    if let Verdict::Deny { reason } = &verdict {
                        self.judge.denied(&open.call, &open.ask.tool, &open.ask.wish, reason);
                    }
                    heard.push(Heard::Verdict(open.call, verdict));
                }
                None => self.open.push(open),
            }
        }
        let now = Instant::now();
        if let Some(late) = self.open.iter().find(|open| open.until <= now) {
            self.parked = Some(Parked::of(&late.ask));
            self.open.clear();
            heard.push(Heard::Park);
        }
        heard
    }

    fn answer_of(&mut self, ask: &Ask) -> Option<Verdict> {
        match self.judge.asks.find(ask.number) {
            Ok(Some(AskRecord { over: Some(over), .. })) => Some(Verdict::Deny { reason: over.why }),
            Ok(Some(AskRecord { answer: Some(answer), .. })) => Some(self.take(ask, answer.verdict)),
            Ok(Some(_)) => None,
            Ok(None) => Some(Verdict::Deny { reason: "the request is gone".to_owned() }),
            Err(error) => Some(Verdict::Deny { reason: format!("the answer cannot be read: {error}") }),
        }
    }

    /// Returns the descriptor that is readable when a request was answered.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.watch.as_ref().filter(|_| !self.open.is_empty()).map(|watch| watch.as_fd())
    }

    /// Returns the time at which the hold is over.
    pub fn until(&self) -> Option<Instant> {
        self.open.iter().map(|open| open.until).min()
    }

    /// Returns what an agent that has stopped at the use of a tool does first, once it continues: that use, if a person has
    /// allowed it.
    pub fn allowed_at(&self, call: &str) -> Option<String> {
        let all = self.judge.asks.unfinished().unwrap_or_default();
        let is_it = |one: &AskRecord| {
            let is_allowed =
                matches!(&one.answer, Some(answer) if matches!(answer.verdict, Verdict::Allow { input: None }));
            is_allowed && one.state() == AskState::Answered && one.ask.who.call.as_deref() == Some(call)
        };
        all.into_iter().find(|one| is_it(one) && self.judge.is_ours(&one.ask)).map(|one| one.ask.needs().text)
    }

    /// Returns what the agent was allowed since the last call.
    pub fn allowed(&mut self) -> Option<String> {
        self.allowed.take()
    }

    /// Returns what is to be reported, and whether the agent waits for a person.
    pub fn news(&mut self) -> (Vec<String>, bool) {
        (std::mem::take(&mut self.news), self.waits || !self.open.is_empty())
    }

    /// Ends the records of a turn. Requests without an answer stay open, for the turn that asks again, unless the agent
    /// has finished without them. Returns the request for which the turn was cancelled.
    pub fn end_turn(&mut self, has_succeeded: bool) -> Option<Parked> {
        let mut over: Vec<(u64, &str)> = self.used.drain(..).map(|number| (number, HEARD)).collect();
        if has_succeeded {
            over.extend(self.open.iter().map(|open| (open.ask.number, "the agent continued without it")));
        }
        self.open.clear();
        for (number, why) in over {
            self.end(number, why);
        }
        self.parked.take()
    }

    /// Ends the requests whose answers the agent has heard from its hook: the one of a use of a tool that has a result, or
    /// all at the end of the turn.
    pub fn end_heard(&mut self, call: Option<&str>) {
        let is_of_call = |one: &AskRecord| call.is_none() || one.ask.who.call.as_deref() == call;
        // On an error they are ended later, or stay as they are: used.
        for record in self.judge.asks.unfinished().unwrap_or_default() {
            let is_known = self.used.contains(&record.ask.number);
            let is_used = record.state() == AskState::Taken && self.judge.is_ours(&record.ask);
            if is_used && !is_known && is_of_call(&record) {
                self.news.extend(record.answer.map(|answer| said(record.ask.number, &answer.verdict)));
                self.end(record.ask.number, HEARD);
            }
        }
    }

    fn end(&self, number: u64, why: &str) {
        if let Err(error) = self.judge.asks.end(number, why) {
            swarm_sys::complain!("swarm: warning: cannot record the end of request {number}: {error}");
        }
    }

    /// Returns what people have answered since the agent was last told, as part of the next prompt. The answers themselves
    /// are used when the agent asks again.
    pub fn decided(&self) -> Option<String> {
        let all = self.judge.asks.unfinished().unwrap_or_default();
        let is_ours = |one: &&AskRecord| self.judge.is_ours(&one.ask) && one.state() == AskState::Answered;
        let lines: Vec<String> = all.iter().filter(is_ours).filter_map(line).collect();
        let head = "A person has answered what you had asked for before your turn was interrupted:";
        (!lines.is_empty()).then(|| format!("{head}\n\n{}", lines.join("\n")))
    }

    /// Returns the answers that the workstream got in earlier conversations, or before this one was found gone, as part of the
    /// first prompt of a new one. Leaves out those that [`Self::decided`] tells, unless `all` is set. `has_changed` reports
    /// whether the task of an attempt was another one.
    pub fn answered(&self, all: bool, has_changed: impl Fn(u32) -> bool) -> Option<String> {
        let is_told = |one: &AskRecord| one.answer.is_some() && (all || one.state() != AskState::Answered);
        let found = self.judge.asks.all().unwrap_or_default().into_iter();
        let ours = found.filter(|one| self.judge.is_ours(&one.ask) && is_told(one));
        let answered = ours.map(|record| {
            let is_of_earlier_task = record.ask.who.attempt.is_some_and(&has_changed);
            Answered { record, is_of_earlier_task }
        });
        section(&answered.collect::<Vec<_>>())
    }

    fn watch(&mut self) -> io::Result<()> {
        if self.watch.is_none() {
            self.watch = Some(self.judge.asks.watch()?);
        }
        Ok(())
    }
}

/// Returns the news that an agent asks, with the commands that answer.
fn news_of(ask: &Ask) -> String {
    let (number, what) = (ask.number, ask.summary());
    let how = match ask.kind() {
        NeedKind::Question => format!("'{}'", ask.command()),
        NeedKind::Permission | NeedKind::Login | NeedKind::Trust | NeedKind::Input => {
            format!("'swarm approve {number}' or 'swarm deny {number}'")
        }
    };
    format!("request {number}: {what} (answer with {how})")
}

fn said(number: u64, verdict: &Verdict) -> String {
    format!("request {number} was {}", verdict.participle())
}

fn no(reason: String) -> Decided {
    Decided::Now(Verdict::Deny { reason })
}

fn line(record: &AskRecord) -> Option<String> {
    let what = record.ask.text();
    Some(match &record.answer.as_ref()?.verdict {
        Verdict::Allow { input: None } => format!("- allowed, once: {what}"),
        Verdict::Allow { input: Some(input) } => format!("- not allowed as asked: {what}\n  allowed instead: {input}"),
        Verdict::Deny { reason } => format!("- denied: {what}\n  {reason}"),
        Verdict::Answer { answers } => {
            let each: Vec<String> = answers.iter().map(|(_, answer)| answer.clone()).collect();
            format!("- {what}\n  Answer: {}", each.join("; "))
        }
    })
}

#[cfg(test)]
#[path = "held_tests.rs"]
mod tests;
