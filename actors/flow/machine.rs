//! Decisions of a running flow: which turns to attend, and when to advance its files.

use std::collections::{BTreeMap, BTreeSet};

use swarm_model::FlowRules;
use swarm_model::flow::{Ended, Standing, Turn};

/// Pause before the first retry if the files cannot be read or written, in milliseconds. Each
/// further pause is twice as long.
const PAUSE_MS: u64 = 1_000;
/// Longest pause before a retry, in milliseconds.
const PAUSE_MS_MAX: u64 = 60_000;

#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The files may have changed.
    Changed,
    Advanced(Standing),
    /// The files could not be read or written. The ended turns are reported again with the next
    /// attempt.
    Failed(Vec<Ended>),
    /// The worker of a turn has started.
    Started(Turn),
    Ended(Ended),
    /// A person stops this turn.
    StopTurn(Turn),
    /// The task that attended the turn failed; another one has to take over.
    Unattended(Turn),
    Stop,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Record the ended turns in the files, claim nodes if `claim`, and report the running turns.
    Advance { ended: Vec<Ended>, claim: bool },
    /// Start the worker of a turn, or find it, and wait for its end.
    Attend(Turn),
    /// Kill the worker of a turn.
    Kill(Turn),
    /// Advance again after this many milliseconds.
    Arm(u64),
    /// Answer the callers that wait for the flow to rest.
    Rested,
    /// The flow is over: queue its result and close it.
    Finish,
    /// Leave the flow: running turns are kept for a later run.
    Leave,
}

/// State of a running flow that is not in its files.
#[derive(Clone, Debug, Default)]
pub struct Machine {
    rules: FlowRules,
    /// Running turns by role, one for each.
    at_work: BTreeMap<String, Turn>,
    ended: Vec<Ended>,
    /// Roles whose agent waits for a person's permission.
    asking: BTreeSet<String>,
    /// Roles whose turn must end. Its worker is killed as soon as it exists.
    doomed: BTreeSet<String>,
    /// Whether turns were started. With `once`, no others follow.
    begun: bool,
    stopping: bool,
    failures: u32,
    over: bool,
}

impl Machine {
    pub fn new(rules: FlowRules) -> Self {
        Self { rules, ..Self::default() }
    }

    pub fn turns(&self) -> impl Iterator<Item = &Turn> {
        self.at_work.values()
    }

    pub fn is_over(&self) -> bool {
        self.over
    }

    /// Reports whether no turn is running, except those that wait for a person's permission.
    pub fn rests(&self) -> bool {
        self.at_work.keys().all(|role| self.asking.contains(role))
    }

    /// Reports whether the flow is over or being stopped and starts nothing more.
    pub fn is_leaving(&self) -> bool {
        self.stopping || self.over
    }

    pub fn on(&mut self, event: Event) -> Vec<Effect> {
        match event {
            Event::Changed => self.advance(),
            Event::Advanced(standing) => self.advanced(standing),
            Event::Failed(ended) => {
                self.ended = ended;
                let pause = PAUSE_MS.saturating_mul(1 << self.failures.min(10)).min(PAUSE_MS_MAX);
                self.failures += 1;
                let rests = self.at_work.is_empty().then_some(Effect::Rested);
                [Effect::Arm(pause)].into_iter().chain(rests).collect()
            }
            Event::Started(turn) => {
                let is_doomed = self.stopping || self.doomed.contains(&turn.role);
                if is_doomed { vec![Effect::Kill(turn)] } else { Vec::new() }
            }
            Event::StopTurn(turn) => {
                self.doomed.insert(turn.role.clone());
                vec![Effect::Kill(turn)]
            }
            Event::Ended(ended) => {
                self.at_work.remove(&ended.turn.role);
                self.doomed.remove(&ended.turn.role);
                if self.stopping {
                    return self.leave_when_free();
                }
                self.ended.push(ended);
                self.advance()
            }
            Event::Unattended(turn) => {
                self.at_work.remove(&turn.role);
                self.doomed.remove(&turn.role);
                if self.stopping { self.leave_when_free() } else { self.advance() }
            }
            Event::Stop => {
                self.stopping = true;
                let mut effects: Vec<Effect> = self.at_work.values().cloned().map(Effect::Kill).collect();
                effects.extend(self.leave_when_free());
                effects
            }
        }
    }

    fn advance(&mut self) -> Vec<Effect> {
        if self.stopping || self.over {
            return Vec::new();
        }
        let claim = !(self.rules.once && self.begun);
        vec![Effect::Advance { ended: std::mem::take(&mut self.ended), claim }]
    }

    fn advanced(&mut self, standing: Standing) -> Vec<Effect> {
        self.failures = 0;
        self.asking = standing.asking.into_iter().collect();
        let mut effects = Vec::new();
        // A person denied the agent's request.
        for role in standing.denied {
            if let Some(turn) = self.at_work.get(&role).filter(|_| self.doomed.insert(role.clone())) {
                effects.push(Effect::Kill(turn.clone()));
            }
        }
        for turn in standing.turns {
            // A role whose last worker still exists waits for its end; a turn that was claimed
            // meanwhile is found in the files again.
            let is_full = self.rules.max.is_some_and(|max| self.at_work.len() >= max.max(1));
            if !is_full && !self.at_work.contains_key(&turn.role) {
                self.begun = true;
                self.at_work.insert(turn.role.clone(), turn.clone());
                effects.push(Effect::Attend(turn));
            }
        }
        if self.at_work.is_empty() {
            self.over = standing.over;
            if self.over {
                // First, so that who waits for the end learns whether the result is queued.
                effects.push(Effect::Finish);
            }
            effects.push(Effect::Rested);
            if self.rules.once && !self.over {
                effects.push(Effect::Leave);
            }
        } else if self.rests() {
            effects.push(Effect::Rested);
        }
        effects
    }

    fn leave_when_free(&self) -> Vec<Effect> {
        if self.at_work.is_empty() { vec![Effect::Rested, Effect::Leave] } else { Vec::new() }
    }
}
