//! Which sessions are beaten for, and when, as a pure function.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::model::Fence;
use crate::ports::{Beaten, Life, LifeEnd, SessionError};

#[derive(Clone, Debug)]
pub enum Event {
    Began(Arc<Life>),
    Ended(Arc<Life>, LifeEnd),
    Ran(Arc<Life>, Result<Fence, SessionError>),
    Tick,
    Beaten(Vec<(Arc<Life>, Beaten)>),
}

#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Write that it runs; `Ran` tells how that went.
    Run(Arc<Life>),
    /// Write how it ended.
    End(Arc<Life>, LifeEnd),
    /// One beat for each; `Beaten` tells what it met.
    Beat(Vec<(Arc<Life>, Fence)>),
    /// Fire `Tick` an interval after the last one, or after now.
    Arm,
    TellLost {
        worker: String,
        generation: u64,
        found: Fence,
    },
}

/// A life under this machine's eyes.
#[derive(Clone, Debug)]
struct Tracked {
    life: Arc<Life>,
    /// Known once its state was written.
    fence: Option<Fence>,
}

#[derive(Clone, Debug, Default)]
pub struct Machine {
    lives: BTreeMap<String, Tracked>,
    armed: bool,
    /// A round of beats is being written. The next one waits for it.
    beating: bool,
}

impl Machine {
    pub fn on(&mut self, event: Event) -> Vec<Effect> {
        match event {
            Event::Began(life) => self.began(life),
            Event::Ended(life, end) => {
                if self.is_tracked(&life) {
                    self.lives.remove(&life.worker);
                }
                vec![Effect::End(life, end)]
            }
            Event::Ran(life, ran) => self.ran(&life, ran),
            Event::Tick => self.tick(),
            Event::Beaten(beaten) => {
                self.beating = false;
                beaten.into_iter().filter_map(|(life, beaten)| self.beaten(&life, beaten)).collect()
            }
        }
    }

    fn is_tracked(&self, life: &Life) -> bool {
        self.lives.get(&life.worker).is_some_and(|tracked| tracked.life.generation == life.generation)
    }

    fn began(&mut self, life: Arc<Life>) -> Vec<Effect> {
        let newer = self.lives.get(&life.worker).is_some_and(|tracked| tracked.life.generation > life.generation);
        if newer {
            return Vec::new();
        }
        self.lives.insert(life.worker.clone(), Tracked { life: Arc::clone(&life), fence: None });
        let mut effects = vec![Effect::Run(life)];
        effects.extend(self.arm());
        effects
    }

    fn ran(&mut self, life: &Arc<Life>, ran: Result<Fence, SessionError>) -> Vec<Effect> {
        if !self.is_tracked(life) {
            return Vec::new();
        }
        match ran {
            Ok(fence) => {
                self.lives.insert(life.worker.clone(), Tracked { life: Arc::clone(life), fence: Some(fence.clone()) });
                // The first one at once.
                vec![Effect::Beat(vec![(Arc::clone(life), fence)])]
            }
            Err(SessionError::Taken { found, .. }) => self.lost(life, found).into_iter().collect(),
            // Tried again with the next tick.
            Err(_) => Vec::new(),
        }
    }

    fn tick(&mut self) -> Vec<Effect> {
        self.armed = false;
        let mut effects: Vec<Effect> = self.arm().into_iter().collect();
        let unwritten = self.lives.values().filter(|tracked| tracked.fence.is_none());
        effects.extend(unwritten.map(|tracked| Effect::Run(Arc::clone(&tracked.life))));
        let due: Vec<(Arc<Life>, Fence)> = self
            .lives
            .values()
            .filter_map(|tracked| Some((Arc::clone(&tracked.life), tracked.fence.clone()?)))
            .collect();
        // A disk that takes longer than that gets fewer beats, not a queue of them.
        if !due.is_empty() && !self.beating {
            self.beating = true;
            effects.push(Effect::Beat(due));
        }
        effects
    }

    fn beaten(&mut self, life: &Arc<Life>, beaten: Beaten) -> Option<Effect> {
        match beaten {
            Beaten::Done => None,
            Beaten::Missing => self.is_tracked(life).then(|| Effect::Run(Arc::clone(life))),
            Beaten::Lost { found } if self.is_tracked(life) => self.lost(life, found),
            // It has ended meanwhile, and the next one may well have its session.
            Beaten::Lost { .. } => None,
        }
    }

    fn lost(&mut self, life: &Arc<Life>, found: Fence) -> Option<Effect> {
        self.lives.remove(&life.worker)?;
        Some(Effect::TellLost { worker: life.worker.clone(), generation: life.generation, found })
    }

    /// The timer runs while there is anybody to beat for.
    fn arm(&mut self) -> Option<Effect> {
        if self.armed || self.lives.is_empty() {
            return None;
        }
        self.armed = true;
        Some(Effect::Arm)
    }
}

#[cfg(test)]
#[path = "machine_tests.rs"]
mod tests;
