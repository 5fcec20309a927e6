//! Decides about what an agent of a run wants to do, and uses people's answers: for agents in a dialogue, for the hook of
//! `claude`, and while a conflict is resolved.
//!
//! An answer is taken durably before the agent hears it. Killed in between, the agent is told no the next time. Whatever
//! goes wrong is a no.

use std::io;
use std::path::{Path, PathBuf};

use swarm_agents::confined::is_confined;
use swarm_agents::dialogue::Request;
use swarm_agents::short;
use swarm_model::asks::judge::{Consent, Rule, Ruling, judge};
use swarm_model::asks::rules::AskRule;
use swarm_model::asks::{Ask, AskRecord, AskState, AskWish, Asker, Draft, Verdict, Waits};
use swarm_model::run::words::Word;
use swarm_store::asks::rules::rule_with;
use swarm_store::asks::{Asks, digest_of};
use swarm_store::runs::{denied, events, order};
use swarm_sys::clock::wall_ms;
use swarm_sys::paths::Paths;

/// What an agent is told about an answer that was used before.
pub const SPENT: &str = "it was allowed once and may have run: look before you try again";

/// What an agent is told about a request that is too long to be shown to a person.
pub const TOO_LONG: &str = "this is too long to be shown to a person: do it in smaller steps";

/// Maximum size of what a person is asked, in bytes.
const WISH_BYTES_MAX: usize = 64 << 10;

/// Number of characters of a digest in a key.
const KEY_CHARS: usize = 16;

/// Reports whether a wish is too long to be shown to a person.
///
/// # Errors
/// Fails if it cannot be written as JSON.
pub fn is_too_long(wish: &AskWish) -> io::Result<bool> {
    Ok(serde_json::to_string(wish)?.len() > WISH_BYTES_MAX)
}

pub struct Judge {
    paths: Paths,
    pub asks: Asks,
    /// Names the run, the workstream and the attempt.
    pub who: Asker,
    /// Worktree of the agent, even if the agent has moved to another directory.
    cwd: String,
    consent: Consent,
    /// Directory of the attempt, in which denials are recorded. `None`: they are not.
    pub record: Option<PathBuf>,
    /// Rules of the repository at the beginning of the run, which hold beside those that it has now.
    pub rules: Vec<AskRule>,
}

impl Judge {
    /// Without a consent, everything is allowed that no rule denies.
    pub fn new(paths: Paths, who: Asker, cwd: String, consent: Option<Consent>) -> Self {
        let (asks, consent, record) = (Asks::new(&paths), consent.unwrap_or(Consent::FullAccess), None);
        Self { paths, asks, who, cwd, consent, record, rules: Vec::new() }
    }

    /// Records that the agent is told no.
    pub fn denied(&self, call: &str, tool: &str, wish: &AskWish, reason: &str) {
        let Some(dir) = &self.record else { return };
        if let Err(error) = denied::record(dir, call, tool, wish, reason) {
            swarm_sys::complain!("swarm: warning: cannot record what the agent was denied: {error}");
        }
        Self::tell_denied(dir, &short(&format!("{}{}: {reason}", denied::DENIED, wish.summary(tool))));
    }

    /// Tells those who follow the run.
    fn tell_denied(dir: &Path, text: &str) {
        // Only an attempt has an order.
        let Ok(order) = order::read_order(dir) else { return };
        let word = Word::Activity { text: text.to_owned() };
        let told = events::line(&order.run, &order.job, wall_ms(), word).map_err(io::Error::other);
        if let Err(error) = told.and_then(|line| events::report(&order.events, &line)) {
            swarm_sys::complain!("swarm: warning: {}: {error}", order.events.display());
        }
    }

    /// Decides about a wish by the consent and the rules. A rule that cannot be read may deny it.
    pub fn ruling(&self, wish: &AskWish) -> Ruling {
        let is_confined = match wish {
            AskWish::Write { path, .. } => is_confined(self.cwd.as_ref(), path.as_ref()),
            _ => false,
        };
        let rule = match self.consent {
            Consent::FullAccess => Ok(Rule::None),
            Consent::NoAccess | Consent::PartialAccess => rule_with(&self.paths, self.cwd.as_ref(), &self.rules, wish),
        };
        let rule = rule.unwrap_or_else(|cause| Rule::Deny { reason: format!("the rules cannot be read: {cause}") });
        judge(self.consent, rule, wish, is_confined)
    }

    /// Returns the beginning of the keys of the workstream's requests.
    pub fn of_job(&self) -> String {
        let part = |part: &Option<String>| part.clone().unwrap_or_default();
        format!("run/{}/{}/", part(&self.who.run), part(&self.who.job))
    }

    /// Returns the beginning of the keys of this attempt's requests.
    fn of_attempt(&self) -> String {
        format!("{}{}", self.of_job(), self.who.attempt.unwrap_or(0))
    }

    /// Returns the request to be recorded. An agent may ask for several things about the same use of a tool.
    ///
    /// # Errors
    /// Fails as [`digest_of`] does.
    pub fn draft(&self, request: &Request, waits: Waits) -> io::Result<Draft> {
        let mut draft = Draft {
            key: String::new(),
            who: Asker { call: Some(request.call.clone()), ..self.who.clone() },
            tool: request.tool.clone(),
            wish: request.wish.clone(),
            cwd: self.cwd.clone(),
            waits,
        };
        let digest: String = digest_of(&draft)?.chars().take(KEY_CHARS).collect();
        draft.key = format!("{}/{}/{digest}", self.of_attempt(), request.call);
        Ok(draft)
    }

    /// Returns the record of this very use of a tool, or else one of the same content that was not used yet. Leaves out
    /// the numbers in `others`.
    pub fn earlier(&self, draft: &Draft, others: &[u64]) -> io::Result<Option<AskRecord>> {
        let digest = digest_of(draft)?;
        let mut all = self.asks.unfinished()?;
        all.retain(|one| !others.contains(&one.ask.number));
        let is_unused = |one: &AskRecord| matches!(one.state(), AskState::Open | AskState::Answered);
        let same = |one: &AskRecord| one.ask.digest == digest && is_unused(one) && self.is_ours(&one.ask);
        let at = all
            .iter()
            .position(|one| one.ask.key == draft.key)
            .or_else(|| all.iter().position(|one| same(one) && one.ask.who.call == draft.who.call))
            .or_else(|| all.iter().position(same));
        Ok(at.map(|at| all.swap_remove(at)))
    }

    /// Uses the answer to a request that was made before its agent stopped, and returns what the agent may hear. `None` if
    /// nobody has answered. An agent that has heard the answer before may have been killed while it used the tool: then a
    /// yes becomes a no.
    pub fn heard_before(&self, request: &Request) -> io::Result<Option<Verdict>> {
        let is_same_use = |one: &AskRecord| {
            one.taken.is_some() && one.ask.who.call.as_deref() == Some(&*request.call) && self.is_ours(&one.ask)
        };
        if let Some(heard) = self.asks.all()?.into_iter().find(is_same_use) {
            return Ok(Some(match heard.answer.map(|answer| answer.verdict) {
                Some(verdict @ (Verdict::Deny { .. } | Verdict::Answer { .. })) => verdict,
                Some(Verdict::Allow { .. }) | None => Verdict::Deny { reason: SPENT.to_owned() },
            }));
        }
        let earlier = self.earlier(&self.draft(request, Waits::Parked)?, &[])?;
        let answered = earlier.and_then(|AskRecord { ask, answer, .. }| Some((ask, answer?.verdict)));
        Ok(answered.map(|(ask, verdict)| self.take(&ask, verdict).unwrap_or_else(|no| no)))
    }

    /// Uses an answer, and returns what the agent may hear.
    ///
    /// # Errors
    /// Fails with what the agent hears instead, if the answer must not be used.
    pub fn take(&self, ask: &Ask, verdict: Verdict) -> Result<Verdict, Verdict> {
        let reason = match self.asks.take(ask.number, &self.of_attempt()) {
            Ok(true) => return Ok(verdict),
            Ok(false) => SPENT.to_owned(),
            Err(error) => format!("the answer cannot be recorded as used: {error}"),
        };
        Err(Verdict::Deny { reason })
    }

    /// Reports whether the same workstream has asked.
    pub fn is_ours(&self, ask: &Ask) -> bool {
        (&ask.who.run, &ask.who.job) == (&self.who.run, &self.who.job)
    }
}
