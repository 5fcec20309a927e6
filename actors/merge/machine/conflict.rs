//! Conflicts, and the one resolver of the queue. Several items that conflict with each other can only be resolved one
//! after the other: the landing of one changes what the next conflicts with. So the result of a resolver lands before
//! the next conflict is considered.

use super::{Effect, Machine, pause_ms};
use swarm_model::merge::Resolution;
use swarm_model::merge::queue::{ItemId, PAUSE_MS_MAX, State};

/// Maximum number of results of a resolver, for one item, that may be overtaken by the base without counting as tries.
const RACES_MAX: u32 = 5;
/// Maximum number of tries of a resolver, for one item, that end at a limit without counting as tries.
const LIMITED_MAX: u32 = 20;
/// First pause after such a try, in milliseconds.
const LIMITED_MS: u64 = 60_000;

impl Machine {
    /// Handles a conflict of an item with the base itself, at commit `onto`.
    pub(super) fn conflicts(&mut self, id: ItemId, onto: String, files: Vec<String>, effects: &mut Vec<Effect>) {
        let rules = &self.queue.rules;
        let tries = if rules.resolver.is_some() { rules.resolver_tries } else { 0 };
        let is_free = self.queue.resolving.is_none_or(|other| other == id);
        let Some(item) = self.queue.item_mut(id) else { return };
        if item.onto.take().is_some_and(|seen| seen != onto) && item.races < RACES_MAX {
            // The base moved while the result of the resolver was on its way.
            item.races += 1;
            item.resolved = item.resolved.saturating_sub(1);
        }
        if item.resolved >= tries {
            return self.settle(id, State::Conflict { files }, effects);
        }
        if !is_free {
            item.held = true;
            item.state = State::Queued;
            return;
        }
        item.state = State::Resolving;
        item.onto = Some(onto.clone());
        self.queue.resolving = Some(id);
        effects.push(Effect::Resolve { item: id, onto, files });
    }

    /// Queues the item again, with the new tip if the resolver made one. If the item still conflicts and no try is
    /// left, the next build settles it as a conflict.
    pub(super) fn resolved(&mut self, id: ItemId, resolution: Resolution, now_ms: u64) {
        let Some(item) = self.queue.item_mut(id).filter(|item| item.state == State::Resolving) else { return };
        item.state = State::Queued;
        match resolution {
            Resolution::Done(tip) => {
                let work = std::mem::replace(&mut item.tip, tip);
                item.unresolved.get_or_insert(work);
                item.resolved += 1;
                item.limited = 0;
            }
            Resolution::Later(reason) if item.limited < LIMITED_MAX => {
                item.onto = None;
                item.limited += 1;
                item.later_ms = Some(now_ms + pause_ms(LIMITED_MS, item.limited, PAUSE_MS_MAX));
                item.why_later = Some(reason);
                // The pauses may take hours, and the other conflicts need not wait for them.
                self.release_held(id);
            }
            Resolution::Failed(_) | Resolution::Later(_) => {
                item.onto = None;
                item.resolved += 1;
            }
        }
    }

    /// Forgets a resolver that was running when the supervisor died. Its work counts only once it has reported.
    pub(super) fn forget_resolver(&mut self) {
        let running = self.queue.items.iter_mut().filter(|item| item.state == State::Resolving);
        for item in running {
            item.state = State::Queued;
            item.onto = None;
        }
    }

    /// Lets the next conflict be considered if `id` is the item for which the others were held.
    pub(super) fn release_held(&mut self, id: ItemId) {
        if self.queue.resolving == Some(id) {
            self.queue.resolving = None;
            self.queue.items.iter_mut().for_each(|item| item.held = false);
        }
    }
}

#[cfg(test)]
#[path = "conflict_tests.rs"]
mod tests;
