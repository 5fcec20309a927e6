//! `swarm __gate GATE`: the hook that `claude` calls before each use of a tool in a run. It decides at once: yes, no, or
//! stop here. If `claude` stops, its process ends, the attempt records the request, and a later attempt continues at this
//! very use, for which the hook is called again.
//!
//! ```text
//!   use ──▶ ruling ──▶ no
//!             ├─▶ answered before ──▶ taken ──▶ what the person said
//!             ├─▶ yes
//!             └─▶ ask: nobody can be asked, or a subagent asks, or another use waits ──▶ no
//!                      else the use is recorded as the one to stop at ──▶ stop
//! ```
//!
//! Of several uses in one answer, only one can wait: `claude` would forget the others. Whatever goes wrong is a no.

use std::ffi::OsString;
use std::io::{self, Read as _, Write as _};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use swarm_agents::consent::quoted;
use swarm_agents::gating::{Answer, Call};
use swarm_model::asks::Asker;
use swarm_model::asks::judge::{Consent, Ruling};
use swarm_model::asks::rules::AskRule;
use swarm_store::runs::order;
use swarm_sys::paths::Paths;

use super::judging::{Judge, TOO_LONG, is_too_long};

/// First argument of the command.
pub const VERB: &str = "__gate";
/// Maximum size of the hook's input, in bytes.
const SAID_BYTES_MAX: u64 = 64 << 20;
/// Answer to a subagent.
const SUBAGENT: &str = "a person has to allow this, and a subagent cannot ask: do it in the main conversation";
/// Answer to a use of a tool while another one waits.
const SIBLING: &str = "another request of yours waits for a person: try this again after that was answered";
/// Answer where nobody can be asked.
pub const NOBODY: &str = "nobody can be asked while a conflict is resolved";

/// What the hook has to know. It is on the command line of the hook, where the agent cannot change it.
#[derive(Debug, Serialize, Deserialize)]
pub struct Gate {
    /// State directory.
    pub root: PathBuf,
    /// Worktree of the agent.
    pub cwd: String,
    pub consent: Option<Consent>,
    pub who: Asker,
    /// Directory of the attempt. `None` if nobody can be asked.
    pub dir: Option<PathBuf>,
    /// Directory of the attempt, in which denials are recorded. `None`: they are not.
    #[serde(default)]
    pub record: Option<PathBuf>,
    /// Rules of the repository at the beginning of the run.
    #[serde(default)]
    pub rules: Vec<AskRule>,
}

impl Gate {
    /// Returns the command that the agent has to execute.
    ///
    /// # Errors
    /// Fails if there is no path of this program.
    pub fn command(&self) -> io::Result<String> {
        let program = std::env::current_exe()?;
        let gate = serde_json::to_string(self)?;
        Ok(format!("{} {VERB} {}", quoted(&program.to_string_lossy()), quoted(&gate)))
    }

    /// Decides about the use of a tool.
    ///
    /// # Errors
    /// Fails if requests cannot be read, or the use cannot be recorded. Then the tool must not be used.
    fn decide(&self, call: &Call) -> io::Result<Answer> {
        let mut judge = Judge::new(Paths::new(&self.root), self.who.clone(), self.cwd.clone(), self.consent);
        judge.record.clone_from(&self.record);
        judge.rules.clone_from(&self.rules);
        let answer = self.answer(&judge, call)?;
        if let Answer::Deny { reason } = &answer
            // That is for later.
            && reason != SIBLING
        {
            let request = &call.request;
            judge.denied(&request.call, &request.tool, &request.wish, reason);
        }
        Ok(answer)
    }

    fn answer(&self, judge: &Judge, call: &Call) -> io::Result<Answer> {
        let request = &call.request;
        let no = |reason: &str| Ok(Answer::Deny { reason: reason.to_owned() });
        let ruling = if call.is_free() { Ruling::Allow } else { judge.ruling(&request.wish) };
        if let Ruling::Deny { reason } = &ruling {
            return no(reason);
        }
        let stops_here = |dir: &PathBuf| order::deferred(dir).as_deref() == Some(&*request.call);
        let is_resumed = self.dir.as_ref().is_some_and(stops_here);
        if ruling == Ruling::Allow && !is_resumed {
            return Ok(Answer::Allow { input: None });
        }
        let Some(dir) = &self.dir else { return no(NOBODY) };
        if let Some(verdict) = judge.heard_before(request)? {
            order::clear_deferred(dir, &request.call)?;
            return Ok(call.told(&verdict));
        }
        if ruling == Ruling::Allow {
            order::clear_deferred(dir, &request.call)?;
            return Ok(Answer::Allow { input: None });
        }
        if call.is_subagent {
            return no(SUBAGENT);
        }
        if is_too_long(&request.wish)? {
            return no(TOO_LONG);
        }
        if order::defer(dir, &request.call)? { Ok(Answer::Defer) } else { no(SIBLING) }
    }
}

pub fn main(mut arguments: impl Iterator<Item = OsString>) -> u8 {
    let answer = answer(arguments.next()).unwrap_or_else(|cause| Answer::Deny { reason: cause });
    let mut out = io::stdout();
    // The exit code of a hook that has not answered must not be zero.
    u8::from(writeln!(out, "{}", answer.text()).and_then(|()| out.flush()).is_err())
}

fn answer(gate: Option<OsString>) -> Result<Answer, String> {
    let gate = gate.ok_or("the hook is not complete")?;
    let gate: Gate = serde_json::from_slice(gate.as_encoded_bytes()).map_err(|error| format!("the hook: {error}"))?;
    let mut said = String::new();
    let read = io::stdin().take(SAID_BYTES_MAX).read_to_string(&mut said);
    read.map_err(|error| format!("cannot read the hook's input: {error}"))?;
    let call = Call::of(&said).map_err(|cause| format!("cannot read the hook's input: {cause}"))?;
    gate.decide(&call).map_err(|error| format!("nobody can be asked: {error}"))
}

#[cfg(test)]
#[path = "gate_tests.rs"]
mod tests;
