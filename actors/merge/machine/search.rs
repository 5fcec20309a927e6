//! The search for the first bad link of a chain.
//!
//! A chain is verified at its tip. If that fails, the base alone is verified, unless it is known to pass: on a base that
//! fails, a failure says nothing about an item. Then bisection searches for the longest good prefix. A link is rejected
//! only after two failures on the same commit; the second one is in a directory without ignored files.

use super::{Effect, LOST_MAX, Machine};
use swarm_model::merge::queue::{BaseCheck, Link, Obstacle, Phase, Red, Search, State};
use swarm_model::merge::{BASE_FAILS, NOT_EXECUTED, Verdict};

/// End of the reason for which an item is rejected on a base that fails, too.
const BASE_TOO: &str = "; the base itself does not pass either";

impl Machine {
    pub(super) fn verified(&mut self, verdict: Verdict, effects: &mut Vec<Effect>) {
        let Phase::Verifying { base, chain, mut search } = self.queue.phase.clone() else { return };
        match verdict {
            Verdict::Unknown(reason) => {
                search.lost += 1;
                if search.lost >= LOST_MAX {
                    return self.stopped(&chain, &reason, None, effects);
                }
                return self.look(base, chain, search, effects);
            }
            Verdict::Green if search.of_base => self.remember_base(&base, self.caller_of(&chain), None),
            // One failure proves as little about a base as about an item.
            Verdict::Red(_) if search.of_base && !search.again => {
                return self.look(base, chain, Search { again: true, lost: 0, ..search }, effects);
            }
            Verdict::Red(reason) if search.of_base => {
                self.remember_base(&base, self.caller_of(&chain), Some(reason));
                if self.base_decides(&base, &chain, &search, effects) {
                    return;
                }
            }
            Verdict::Green => {
                if search.again
                    && let Some(item) = self.queue.item_mut(chain[search.at].item)
                {
                    item.flaky = true;
                }
                search.red = search.red.filter(|red| red.at != search.at);
                search.green = search.at + 1;
            }
            Verdict::Red(reason) => {
                search.red = Some(Red { at: search.at, sure: search.again, reason });
                if self.known_base(&base, &chain).is_none() {
                    return self.look(base, chain, Search { of_base: true, again: false, lost: 0, ..search }, effects);
                }
                if self.base_decides(&base, &chain, &search, effects) {
                    return;
                }
            }
        }
        match self.next_look(&chain, &search) {
            Some((at, again)) => {
                let search = Search { at, again, of_base: false, lost: 0, ..search };
                self.look(base, chain, search, effects);
            }
            None => self.decide(base, chain, search, effects),
        }
    }

    /// Verifies what the search asks for next.
    pub(super) fn look(&mut self, base: String, chain: Vec<Link>, search: Search, effects: &mut Vec<Effect>) {
        let link = &chain[search.at];
        let commit = if search.of_base { base.clone() } else { link.commit.clone() };
        // Files that earlier verifications left may be the reason why there was no result.
        let is_last = search.lost + 1 == LOST_MAX;
        effects.push(Effect::Verify { commit, of: link.item, fresh: search.of_base || search.again || is_last });
        self.queue.phase = Phase::Verifying { base, chain, search };
    }

    /// Returns the key of the caller of a chain, which all its items share.
    pub(super) fn caller_of(&self, chain: &[Link]) -> Option<String> {
        chain.first().and_then(|link| self.queue.item(link.item)?.caller.clone())
    }

    /// Records whether a base passes for a caller.
    pub(super) fn remember_base(&mut self, base: &str, caller: Option<String>, reason: Option<String>) {
        if let Some(command) = self.queue.rules.verify.clone() {
            let commit = base.to_owned();
            self.queue.checked = Some(BaseCheck { commit, command, caller, reason, failed: Vec::new() });
        }
    }

    /// Returns whether the base passes for the caller of the chain, if that is known. The same command may pass in the
    /// environment of one caller and fail in that of another.
    fn known_base(&self, base: &str, chain: &[Link]) -> Option<&BaseCheck> {
        let is_this = |known: &&BaseCheck| {
            let BaseCheck { commit, command, caller, .. } = known;
            commit == base && Some(command) == self.queue.rules.verify.as_ref() && *caller == self.caller_of(chain)
        };
        self.queue.checked.as_ref().filter(is_this)
    }

    /// Handles a failure on a base that fails, too, and returns true. Returns false if the failure is the item's own.
    ///
    /// Each item of a longer chain is verified alone, because one of them may mend the base; an item that fails alone
    /// waits for another base. An item whose worker starts again may be the one that is to mend the base: it is
    /// rejected once, so that its worker learns what fails, unless another item has failed on that base. It waits the next
    /// time, also if the base has moved meanwhile. If the command is found neither on the base nor with the item, no work
    /// of a worker helps.
    fn base_decides(&mut self, base: &str, chain: &[Link], search: &Search, effects: &mut Vec<Effect>) -> bool {
        let Some(reason) = self.known_base(base, chain).and_then(|known| known.reason.clone()) else { return false };
        let reason = format!("{BASE_FAILS}: {reason}");
        if let [link] = chain
            && let Some((name, mends)) = self.queue.item(link.item).map(|item| (item.name.clone(), item.mends))
            && let was_told = self.was_told(&name)
            && let Some(known) = &mut self.queue.checked
        {
            let was_executed = |reason: &str| !NOT_EXECUTED.iter().any(|words| reason.contains(words));
            let is_found = was_executed(&reason) || search.red.as_ref().is_some_and(|own| was_executed(&own.reason));
            if !known.failed.contains(&name) {
                known.failed.push(name);
            }
            if mends && known.failed.len() == 1 && is_found && !was_told {
                return false;
            }
        }
        self.stopped(chain, &reason, Some(Obstacle::Base(base.to_owned())), effects);
        true
    }

    /// Reports whether the worker of this name has learned already that the base fails, on this base or an earlier one.
    fn was_told(&self, name: &str) -> bool {
        let is_told = |state: &State| matches!(state, State::Rejected { reason } if reason.ends_with(BASE_TOO));
        self.queue.items.iter().any(|item| item.name == name && is_told(&item.state))
    }

    /// Returns the link to verify next, and whether it is for the second time. `None` if the search is over. A link
    /// is bad only if it failed twice, but only the link that will be rejected is verified a second time.
    fn next_look(&self, chain: &[Link], search: &Search) -> Option<(usize, bool)> {
        let green = search.green;
        match &search.red {
            // The first bad link is between the last good and the first failed one.
            Some(red) if red.at > green => Some((green + (red.at - green - 1) / 2, false)),
            Some(red) if !red.sure => Some((red.at, true)),
            Some(_) => None,
            None if green == chain.len() => None,
            None if self.queue.rules.verify_each => Some((green, false)),
            None => Some((chain.len() - 1, false)),
        }
    }

    /// Ends the search: lands the good links, rejects the first bad one, and queues those after it again.
    fn decide(&mut self, base: String, mut chain: Vec<Link>, search: Search, effects: &mut Vec<Effect>) {
        let is_base_bad = self.known_base(&base, &chain).is_some_and(|known| known.reason.is_some());
        let mut later = chain.split_off(search.green);
        if let Some(red) = search.red {
            let bad = later.remove(0);
            let too = if is_base_bad { BASE_TOO } else { "" };
            self.settle(bad.item, State::Rejected { reason: format!("{}{too}", red.reason) }, effects);
            if is_base_bad
                && let Some(name) = self.queue.item(bad.item).map(|item| item.name.clone())
                && let Some(known) = &mut self.queue.checked
            {
                // The second entry means that the worker has had its chance on this base.
                known.failed.push(name);
            }
        }
        for link in later {
            self.set(link.item, State::Queued);
        }
        if chain.is_empty() {
            self.queue.phase = Phase::Idle;
        } else {
            self.land(base, chain, effects);
        }
    }
}

#[cfg(test)]
#[path = "search_tests.rs"]
mod tests;
