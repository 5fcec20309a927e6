//! Decides about what the agent of an attempt wants to do, and holds the agent while a person is asked.
//!
//! ```text
//!   request ──▶ judge ──▶ allowed, denied
//!                 └─▶ asked ──▶ answered ──▶ taken, then told
//!                       └─▶ the hold is over: the turn is cancelled, and the attempt ends; the request stays open
//! ```
//!
//! An answer is taken durably before the agent hears it. Killed in between, the agent is told no the next time. Whatever
//! goes wrong is a no.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::{Duration, Instant};

use nix::sys::inotify::Inotify;
use swarm_agents::confined::is_confined;
use swarm_agents::dialogue::Request;
use swarm_model::NeedKind;
use swarm_model::asks::judge::{Consent, Rule, Ruling, judge};
use swarm_model::asks::{Ask, AskRecord, AskState, AskWish, Asker, Draft, Verdict, Waits};
use swarm_store::asks::rules::rule_for;
use swarm_store::asks::{Asks, digest_of};
use swarm_sys::paths::Paths;

use super::turn::{Decided, Heard};

/// Time for which an agent is held, unless the order says otherwise. The provider's cache is still warm then.
pub const HOLD: Duration = Duration::from_secs(240);
/// What an agent is told about an answer that was used before.
const SPENT: &str = "it was allowed once and may have run: look before you try again";

/// Request that a person is asked about.
struct Open {
    call: String,
    ask: Ask,
    until: Instant,
}

/// Request for which the turn was cancelled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parked {
    pub number: u64,
    /// What is asked, in one line.
    pub what: String,
    pub kind: NeedKind,
}

pub struct Held {
    paths: Paths,
    asks: Asks,
    /// Beginning of the keys of this attempt's requests.
    prefix: String,
    who: Asker,
    cwd: String,
    consent: Consent,
    hold: Duration,
    watch: Option<Inotify>,
    open: Vec<Open>,
    /// Requests whose answer the agent has heard in this turn.
    used: Vec<u64>,
    parked: Option<Parked>,
    /// What is to be reported.
    news: Vec<String>,
}

impl Held {
    /// `who` names the run, the workstream and the attempt.
    pub fn new(paths: Paths, who: Asker, cwd: String, consent: Option<Consent>, hold: Duration) -> Self {
        let (run, job) = (who.run.clone().unwrap_or_default(), who.job.clone().unwrap_or_default());
        Self {
            asks: Asks::new(&paths),
            paths,
            prefix: format!("run/{run}/{job}/{}", who.attempt.unwrap_or(0)),
            who,
            cwd,
            consent: consent.unwrap_or(Consent::FullAccess),
            hold,
            watch: None,
            open: Vec::new(),
            used: Vec::new(),
            parked: None,
            news: Vec::new(),
        }
    }

    /// Names the conversation in which is asked from now on.
    pub fn conversation(&mut self, id: &str) {
        self.who.conversation = Some(id.to_owned());
    }

    pub fn asked(&mut self, request: &Request) -> Decided {
        let is_confined = match &request.wish {
            AskWish::Write { path } => is_confined(self.cwd.as_ref(), path.as_ref()),
            _ => false,
        };
        // The worktree, even if the agent has moved to another directory. A rule that cannot be read may deny it.
        let rule = match self.consent {
            Consent::FullAccess => Ok(Rule::None),
            Consent::NoAccess | Consent::PartialAccess => rule_for(&self.paths, self.cwd.as_ref(), &request.wish),
        };
        let rule = rule.unwrap_or_else(|cause| Rule::Deny { reason: format!("the rules cannot be read: {cause}") });
        match judge(self.consent, rule, &request.wish, is_confined) {
            Ruling::Allow => Decided::Now(Verdict::Allow { input: None }),
            Ruling::Deny { reason } => Decided::Now(Verdict::Deny { reason }),
            Ruling::Ask => self.ask(request).unwrap_or_else(|error| no(format!("nobody can be asked: {error}"))),
        }
    }

    fn ask(&mut self, request: &Request) -> io::Result<Decided> {
        let draft = Draft {
            key: format!("{}/{}", self.prefix, request.call),
            who: Asker { call: Some(request.call.clone()), ..self.who.clone() },
            tool: request.tool.clone(),
            wish: request.wish.clone(),
            cwd: self.cwd.clone(),
            waits: Waits::Held,
        };
        // Before the records are read, so that no answer is missed.
        self.watch()?;
        let ask = match self.earlier(&draft)? {
            Some(AskRecord { ask, answer: Some(answer), .. }) => {
                return Ok(Decided::Now(self.take(&ask, answer.verdict)));
            }
            Some(record) => record.ask,
            None => self.asks.ask(&draft)?,
        };
        let one_line = ask.summary();
        self.news.push(format!("request {}: {one_line} (answer with 'swarm approve' or 'swarm deny')", ask.number));
        self.open.push(Open { call: request.call.clone(), ask, until: Instant::now() + self.hold });
        Ok(Decided::Held)
    }

    /// Returns the record of this very use of a tool, or else one of the same content that was not used yet.
    fn earlier(&self, draft: &Draft) -> io::Result<Option<AskRecord>> {
        let digest = digest_of(draft)?;
        let mut all = self.asks.unfinished()?;
        all.retain(|one| {
            one.state() != AskState::Over && !self.open.iter().any(|open| open.ask.number == one.ask.number)
        });
        let is_unused = |one: &AskRecord| matches!(one.state(), AskState::Open | AskState::Answered);
        let same = |one: &AskRecord| {
            let (here, there) = (&draft.who, &one.ask.who);
            one.ask.digest == digest && is_unused(one) && (&here.run, &here.job) == (&there.run, &there.job)
        };
        let at = all.iter().position(|one| one.ask.key == draft.key).or_else(|| all.iter().position(same));
        Ok(at.map(|at| all.swap_remove(at)))
    }

    /// Uses an answer, and returns what the agent may hear.
    fn take(&mut self, ask: &Ask, verdict: Verdict) -> Verdict {
        let reason = match self.asks.take(ask.number, &self.prefix) {
            Ok(true) => {
                self.used.push(ask.number);
                self.news.push(format!("request {} was {}", ask.number, verdict.participle()));
                return verdict;
            }
            Ok(false) => SPENT.to_owned(),
            Err(error) => format!("the answer cannot be recorded as used: {error}"),
        };
        Verdict::Deny { reason }
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
                Some(verdict) => heard.push(Heard::Verdict(open.call, verdict)),
                None => self.open.push(open),
            }
        }
        let now = Instant::now();
        if let Some(late) = self.open.iter().find(|open| open.until <= now) {
            let (number, kind) = (late.ask.number, late.ask.kind());
            self.parked = Some(Parked { number, what: late.ask.summary(), kind });
            self.open.clear();
            heard.push(Heard::Park);
        }
        heard
    }

    fn answer_of(&mut self, ask: &Ask) -> Option<Verdict> {
        match self.asks.find(ask.number) {
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

    /// Returns what is to be reported, and whether the agent waits for a person.
    pub fn news(&mut self) -> (Vec<String>, bool) {
        (std::mem::take(&mut self.news), !self.open.is_empty())
    }

    /// Ends the records of a turn. Requests without an answer stay open, for the turn that asks again, unless the agent
    /// has finished without them. Returns the request for which the turn was cancelled.
    pub fn end_turn(&mut self, has_succeeded: bool) -> Option<Parked> {
        let mut over: Vec<(u64, &str)> =
            self.used.drain(..).map(|number| (number, "the agent has heard the answer")).collect();
        if has_succeeded {
            over.extend(self.open.iter().map(|open| (open.ask.number, "the agent continued without it")));
        }
        self.open.clear();
        for (number, why) in over {
            if let Err(error) = self.asks.end(number, why) {
                eprintln!("swarm: warning: cannot record the end of request {number}: {error}");
            }
        }
        self.parked.take()
    }

    /// Returns what people have answered since the agent was last told, as part of the next prompt. The answers themselves
    /// are used when the agent asks again.
    pub fn decided(&self) -> Option<String> {
        let all = self.asks.unfinished().unwrap_or_default();
        let is_ours = |one: &&AskRecord| {
            (&one.ask.who.run, &one.ask.who.job) == (&self.who.run, &self.who.job) && one.state() == AskState::Answered
        };
        let lines: Vec<String> = all.iter().filter(is_ours).filter_map(line).collect();
        let head = "A person has answered what you had asked for before your turn was interrupted:";
        (!lines.is_empty()).then(|| format!("{head}\n\n{}", lines.join("\n")))
    }

    fn watch(&mut self) -> io::Result<()> {
        if self.watch.is_none() {
            self.watch = Some(self.asks.watch()?);
        }
        Ok(())
    }
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
