//! Whose worker is waited for, and when the files are looked at again.

use std::collections::{BTreeMap, BTreeSet};

use swarm_model::FlowRules;
use swarm_model::flows::{Ended, Standing, Turn};

/// How long files that could not be read or written are left alone, in milliseconds …
const PAUSE_MS: u64 = 1_000;
/// … twice as long each time, up to this.
const PAUSE_MS_MAX: u64 = 60_000;

#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The files may say something else now.
    Changed,
    Advanced(Standing),
    /// They could not be read or written. What ended is told again.
    Failed(Vec<Ended>),
    /// The worker of a turn runs.
    Started(Turn),
    Ended(Ended),
    /// A person wants the turn at this node, or of this role, to end.
    StopTurn(Turn),
    /// Whoever waited for its worker failed: somebody else is to.
    Unattended(Turn),
    Stop,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Bring what ended into the files, claim where that is asked for, and say what is at
    /// work then.
    Advance { ended: Vec<Ended>, claim: bool },
    /// Start the worker of a turn, or find it, and wait for its end.
    Attend(Turn),
    /// End its worker.
    Kill(Turn),
    /// Advance again after so many milliseconds.
    Arm(u64),
    /// Whoever waits for that: nothing is at work.
    Rested,
    /// Nothing will follow.
    Finish,
    /// A person wants it left: what was at work is kept for later.
    Leave,
}

/// What is known of a flow beside its files.
#[derive(Clone, Debug, Default)]
pub struct Machine {
    rules: FlowRules,
    /// By role: one turn each.
    at_work: BTreeMap<String, Turn>,
    ended: Vec<Ended>,
    /// Roles whose agent stands still until a person answers.
    asking: BTreeSet<String>,
    /// Roles whose turn is to end: its worker is killed as soon as it is there.
    doomed: BTreeSet<String>,
    /// Turns were begun, and by the rules no others are to.
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

    /// Nothing is at work but for those who stand still until a person answers.
    pub fn rests(&self) -> bool {
        self.at_work.keys().all(|role| self.asking.contains(role))
    }

    /// It is being left, and begins nothing more.
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
        // A person has said no to what its agent asked.
        for role in standing.denied {
            if let Some(turn) = self.at_work.get(&role).filter(|_| self.doomed.insert(role.clone())) {
                effects.push(Effect::Kill(turn.clone()));
            }
        }
        for turn in standing.turns {
            // A role whose last worker is still there waits for its end; what was begun
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
            effects.push(Effect::Rested);
            if self.over {
                effects.push(Effect::Finish);
            } else if self.rules.once {
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
