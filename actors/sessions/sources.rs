//! Choice of the source that tells the state of an agent: its own reports, or its screen. Pure functions.

use swarm_ports::{Life, Sight};

/// Time without output after which the screen of an agent shows its state, in milliseconds. While they work, agents draw
/// something more often.
const QUIET_MS: u64 = 2_000;
/// Likewise for an agent that reports what it does, and has not reported the end of its turn: claude reports none if it is
/// interrupted before its first output.
const DOUBT_MS: u64 = 5_000;

/// Reports whether only its screen tells what an agent does.
pub fn is_mute(life: &Life, sight: &Sight) -> bool {
    life.agent && life.window && !sight.reports
}

/// Reports whether an agent in a window reports that it works.
pub fn is_at_work(life: &Life, sight: &Sight) -> bool {
    life.agent && life.window && sight.reports && sight.waiting.is_none()
}

/// Reports whether the agent has drawn nothing for so long that its screen shows its state.
pub fn stands_still(sight: &Sight) -> bool {
    sight.quiet_ms >= if sight.reports { DOUBT_MS } else { QUIET_MS }
}

/// Reports whether this actor reports what the worker waits for. For an attempt of a run, whose
/// session names an agent although its command does not, the run itself does so.
pub fn speaks_for_itself(life: &Life) -> bool {
    life.agent || life.plan.as_ref().is_some_and(|plan| plan.provider.is_none())
}
