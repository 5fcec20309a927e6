//! What is done about a worker that stands still: nudge twice, interrupt, restart three
//! times, give up and tell. It ends; a worker that goes on by itself begins at the foot,
//! but not before the cooldown is over. Time is counted in ticks of the heartbeat, so
//! that neither a clock that is set nor a machine that slept makes anybody look stuck.

use super::signals::Signal;
use swarm_model::{Rungs, WatchRules};
use swarm_ports::Sight;

pub const NUDGES_MAX: u32 = 2;
pub const RESTARTS_MAX: u32 = 3;
/// A step is judged after this long without a word, in milliseconds.
pub const JUDGE_MS: u64 = 3 * 60 * 1000;
/// What follows a step within this time is its echo and no sign of life.
const ECHO_MS: u64 = 30 * 1000;
/// A ladder that ended well is not begun again before this is over.
pub const COOLDOWN_MS: u64 = 5 * 60 * 1000;
/// Whatever step it is at, it gives up after this long.
pub const TOTAL_MS: u64 = 45 * 60 * 1000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing is done: a person has to.
    Told,
    Nudged,
    Interrupted,
    Restarted,
    GivenUp,
}

impl Step {
    /// The stable name.
    pub fn word(self) -> &'static str {
        match self {
            Self::Told => "told",
            Self::Nudged => "nudged",
            Self::Interrupted => "interrupted",
            Self::Restarted => "restarted",
            Self::GivenUp => "given-up",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    Take(Step, Signal),
    /// It goes on by itself.
    Unstuck,
}

/// What is remembered of one worker, over all its lives.
#[derive(Clone, Debug, Default)]
pub struct Ladder {
    rungs: Rungs,
    /// When the first step was taken, and the last.
    began_ms: Option<u64>,
    acted_ms: Option<u64>,
    /// Not before this.
    not_before_ms: u64,
    output: Option<u64>,
    wrote_ms: u64,
    operation: Option<((String, u64), u64)>,
    /// What was told last, so that it is told once.
    told: Option<&'static str>,
}

/// What a worker can have done to it.
#[derive(Clone, Copy, Debug)]
pub struct Means<'a> {
    /// None for one that nobody asked to look after: what its screen says is told, and
    /// nothing done.
    pub rules: Option<&'a WatchRules>,
    pub window: bool,
}

impl Ladder {
    /// One that an earlier supervisor climbed: its last step is judged from now on.
    pub fn resumed(rungs: Rungs, now_ms: u64) -> Self {
        Self { rungs, began_ms: Some(now_ms), acted_ms: Some(now_ms), wrote_ms: now_ms, ..Self::default() }
    }

    pub fn rungs(&self) -> Rungs {
        self.rungs
    }

    /// One look at `now_ms`, which counts only while the heartbeat ticks.
    pub fn look(&mut self, sight: &Sight, screen: Option<Signal>, means: Means<'_>, now_ms: u64) -> Vec<Act> {
        self.note(sight, now_ms);
        let mut acts = Vec::new();
        let mut stands = false;
        match own_word(sight).or(screen) {
            Some(signal) if signal.needs_a_person() => return self.tell(signal),
            Some(signal) => {
                stands = true;
                acts = self.tell(signal);
            }
            None if means.rules.is_none() => acts.extend(self.told.take().map(|_| Act::Unstuck)),
            None => {}
        }
        if let Some(rules) = means.rules {
            acts.extend(match self.signal(rules, now_ms) {
                Some(signal) => self.climb(signal, means, now_ms),
                None => self.rest(stands, now_ms),
            });
        }
        acts
    }

    /// Whether the next look at it may come to a step. Then it is one at its screen first.
    pub fn is_due(&self, sight: &Sight, rules: &WatchRules, now_ms: u64) -> bool {
        self.output == Some(sight.output) && !self.rungs.given_up && self.signal(rules, now_ms).is_some()
    }

    /// Whether it is marked as one that needs a person.
    pub fn is_told(&self) -> bool {
        self.told.is_some()
    }

    /// Whether one that has ended by itself, with a failure, did so for our interrupt.
    pub fn is_ended_by_us(&self, now_ms: u64) -> bool {
        let just_now = self.acted_ms.is_some_and(|acted_ms| now_ms.saturating_sub(acted_ms) < ECHO_MS);
        just_now && self.rungs.interrupted && self.rungs.restarts == 0 && !self.rungs.given_up
    }

    /// The next step, which is taken already.
    pub fn restart(&mut self, now_ms: u64) {
        self.rungs.restarts += 1;
        self.acted_ms = Some(now_ms);
    }

    fn note(&mut self, sight: &Sight, now_ms: u64) {
        if self.output != Some(sight.output) {
            // What it wrote before the first look is no answer to a step before that.
            self.wrote_ms = self.acted_ms.filter(|_| self.output.is_none()).unwrap_or(now_ms);
            self.output = Some(sight.output);
        }
        match (&self.operation, &sight.operation) {
            (Some((was, _)), Some(is)) if was == is => {}
            (_, is) => self.operation = is.clone().map(|is| (is, now_ms)),
        }
    }

    fn tell(&mut self, signal: Signal) -> Vec<Act> {
        let known = self.told == Some(signal.word());
        self.told = Some(signal.word());
        if known { Vec::new() } else { vec![Act::Take(Step::Told, signal)] }
    }

    fn signal(&self, rules: &WatchRules, now_ms: u64) -> Option<Signal> {
        let for_ms = now_ms.saturating_sub(self.wrote_ms.max(self.acted_ms.unwrap_or(0)));
        let limit_ms = if self.acted_ms.is_some() { JUDGE_MS.min(rules.after_ms) } else { rules.after_ms };
        if for_ms >= limit_ms {
            return Some(Signal::Silent { for_ms: now_ms.saturating_sub(self.wrote_ms) });
        }
        let ((operation, _), since_ms) = self.operation.as_ref()?;
        let for_ms = now_ms.saturating_sub((*since_ms).max(self.acted_ms.unwrap_or(0)));
        (for_ms >= rules.after_ms)
            .then(|| Signal::SameOperation { operation: operation.clone(), for_ms: now_ms.saturating_sub(*since_ms) })
    }

    fn climb(&mut self, signal: Signal, means: Means<'_>, now_ms: u64) -> Vec<Act> {
        if self.rungs.given_up || now_ms < self.not_before_ms {
            return Vec::new();
        }
        let began_ms = *self.began_ms.get_or_insert(now_ms);
        let out_of_time = now_ms.saturating_sub(began_ms) >= TOTAL_MS;
        let step = if out_of_time {
            Step::GivenUp
        } else if means.window && self.rungs.nudges < NUDGES_MAX {
            self.rungs.nudges += 1;
            Step::Nudged
        } else if means.window && !self.rungs.interrupted {
            self.rungs.interrupted = true;
            Step::Interrupted
        } else if self.rungs.restarts < RESTARTS_MAX {
            self.restart(now_ms);
            Step::Restarted
        } else {
            Step::GivenUp
        };
        self.rungs.given_up = step == Step::GivenUp;
        self.acted_ms = Some(now_ms);
        vec![Act::Take(step, signal)]
    }

    /// It does not stand still. What was done about it has helped once it writes after
    /// the echo of that is over. What was told and still `stands` stays told.
    fn rest(&mut self, stands: bool, now_ms: u64) -> Vec<Act> {
        let still = self.told.filter(|_| stands);
        let told = self.told.take().is_some() && still.is_none();
        self.told = still;
        let helped = self.acted_ms.is_some_and(|acted_ms| self.wrote_ms >= acted_ms.saturating_add(ECHO_MS));
        if !helped {
            return if told { vec![Act::Unstuck] } else { Vec::new() };
        }
        let kept =
            Self { output: self.output, wrote_ms: self.wrote_ms, operation: self.operation.take(), ..Self::default() };
        *self = Self { not_before_ms: now_ms + COOLDOWN_MS, told: still, ..kept };
        vec![Act::Unstuck]
    }
}

/// What it says itself, which is worth more than what its screen seems to say.
fn own_word(sight: &Sight) -> Option<Signal> {
    let what = sight.waiting.clone()?;
    Some(if sight.idle { Signal::Idle { what } } else { Signal::Waiting { what } })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TICK_MS: u64 = 10_000;
    const MINUTE: u64 = 60_000;

    fn rules() -> WatchRules {
        WatchRules { after_ms: 10 * MINUTE, message: "go on".to_owned() }
    }

    fn silent(output: u64) -> Sight {
        Sight { output, ..Sight::default() }
    }

    /// The steps of one that says nothing at all, with their minutes.
    fn steps(window: bool, ticks: u64) -> Vec<(u64, &'static str)> {
        let (mut ladder, rules) = (Ladder::default(), rules());
        let means = Means { rules: Some(&rules), window };
        let look = |tick: u64| {
            let now_ms = tick * TICK_MS;
            let acts = ladder.look(&silent(1), None, means, now_ms);
            acts.into_iter()
                .map(move |act| match act {
                    Act::Take(step, _) => (now_ms / MINUTE, step.word()),
                    Act::Unstuck => (now_ms / MINUTE, "unstuck"),
                })
                .collect::<Vec<_>>()
        };
        (0..ticks).flat_map(look).collect()
    }

    #[test]
    fn the_ladder_ends() {
        let expected = [
            (10, "nudged"),
            (13, "nudged"),
            (16, "interrupted"),
            (19, "restarted"),
            (22, "restarted"),
            (25, "restarted"),
            (28, "given-up"),
        ];
        assert_eq!(steps(true, 6 * 24 * 60), expected);
        assert_eq!(
            steps(false, 6 * 24 * 60),
            [(10, "restarted"), (13, "restarted"), (16, "restarted"), (19, "given-up")]
        );
    }

    #[test]
    fn the_echo_of_a_nudge_is_no_sign_of_life_and_work_is() {
        let (mut ladder, rules) = (Ladder::default(), rules());
        let means = Means { rules: Some(&rules), window: true };
        ladder.look(&silent(1), None, means, 0);
        assert_eq!(ladder.look(&silent(1), None, means, 10 * MINUTE).len(), 1);
        assert_eq!(ladder.look(&silent(2), None, means, 10 * MINUTE + TICK_MS), Vec::new(), "its echo");
        let second = ladder.look(&silent(2), None, means, 14 * MINUTE);
        assert!(matches!(&second[..], [Act::Take(Step::Nudged, _)]), "{second:?}");
        assert_eq!(ladder.look(&silent(3), None, means, 15 * MINUTE), vec![Act::Unstuck]);
        // Again from the foot, after the cooldown.
        let again = (15 * 6..60 * 6).find_map(|tick| {
            let acts = ladder.look(&silent(3), None, means, tick * TICK_MS);
            acts.into_iter().next().map(|act| (tick / 6, act))
        });
        assert!(matches!(again, Some((25, Act::Take(Step::Nudged, _)))), "{again:?}");
    }

    #[test]
    fn the_same_operation_for_too_long_counts_although_there_is_output() {
        let (mut ladder, rules) = (Ladder::default(), rules());
        let means = Means { rules: Some(&rules), window: true };
        let at = |tick: u64| Sight { output: tick, operation: Some(("Bash: make".to_owned(), 1)), ..Sight::default() };
        let acts: Vec<Act> = (0..=60).flat_map(|tick| ladder.look(&at(tick), None, means, tick * TICK_MS)).collect();
        assert!(matches!(&acts[..], [Act::Take(Step::Nudged, Signal::SameOperation { .. })]), "{acts:?}");
    }

    #[test]
    fn what_a_person_has_to_do_is_told_once_and_not_acted_on() {
        let (mut ladder, rules) = (Ladder::default(), rules());
        let means = Means { rules: Some(&rules), window: true };
        let asks = || Some(Signal::Asks { what: "it asks how to log in" });
        let acts: Vec<Act> = (0..600).flat_map(|tick| ladder.look(&silent(1), asks(), means, tick * TICK_MS)).collect();
        assert!(matches!(&acts[..], [Act::Take(Step::Told, Signal::Asks { .. })]), "{acts:?}");
        let waits = Sight { waiting: Some("which branch?".to_owned()), ..silent(2) };
        let acts: Vec<Act> = (600..900).flat_map(|tick| ladder.look(&waits, None, means, tick * TICK_MS)).collect();
        assert!(matches!(&acts[..], [Act::Take(Step::Told, Signal::Waiting { .. })]), "{acts:?}");
    }

    #[test]
    fn who_waits_for_what_is_next_is_told_of_and_where_that_was_asked_for_nudged() {
        let idle = || Sight { waiting: Some("it waits".to_owned()), idle: true, ..silent(1) };
        let words = |rules: Option<&WatchRules>| {
            let mut ladder = Ladder::default();
            let means = Means { rules, window: true };
            let acts = (0..=70).flat_map(|tick| ladder.look(&idle(), None, means, tick * TICK_MS));
            acts.map(|act| if let Act::Take(step, signal) = act { (step.word(), signal.word()) } else { ("", "") })
                .collect::<Vec<_>>()
        };
        assert_eq!(words(None), [("told", "idle")]);
        assert_eq!(words(Some(&rules())), [("told", "idle"), ("nudged", "silent")]);
    }

    #[test]
    fn its_own_word_counts_before_its_screen() {
        let (mut ladder, means) = (Ladder::default(), Means { rules: None, window: true });
        let asks = || Some(Signal::Asks { what: "it asks for a permission" });
        let waits = Sight { waiting: Some("may it push?".to_owned()), ..silent(1) };
        let acts = ladder.look(&waits, asks(), means, 0);
        assert_eq!(acts, vec![Act::Take(Step::Told, Signal::Waiting { what: "may it push?".to_owned() })]);
    }

    #[test]
    fn what_is_only_told_is_told_once_while_it_stands_and_keeps_nobody_from_being_helped() {
        let (mut ladder, rules) = (Ladder::default(), rules());
        let means = Means { rules: Some(&rules), window: true };
        let full = || Some(Signal::ContextFull { percent: 95 });
        let acts: Vec<Act> =
            (0..50).flat_map(|tick| ladder.look(&silent(tick), full(), means, tick * TICK_MS)).collect();
        assert!(matches!(&acts[..], [Act::Take(Step::Told, Signal::ContextFull { .. })]), "{acts:?}");
        assert_eq!(ladder.look(&silent(50), None, means, 50 * TICK_MS), vec![Act::Unstuck]);
        let acts: Vec<Act> =
            (51..120).flat_map(|tick| ladder.look(&silent(50), full(), means, tick * TICK_MS)).collect();
        let steps: Vec<_> =
            acts.iter().map(|act| if let Act::Take(step, _) = act { Some(*step) } else { None }).collect();
        assert_eq!(steps, [Some(Step::Told), Some(Step::Nudged)], "{acts:?}");
    }

    #[test]
    fn whom_nobody_asked_to_look_after_is_left_alone() {
        let mut ladder = Ladder::default();
        let means = Means { rules: None, window: true };
        let acts: Vec<Act> = (0..9000).flat_map(|tick| ladder.look(&silent(1), None, means, tick * TICK_MS)).collect();
        assert_eq!(acts, Vec::new());
    }

    proptest! {
        /// Whatever it writes and whenever: between two signs of life there are at most
        /// two nudges, one interrupt, three restarts and one end, and never two steps
        /// closer than the time in which one is judged.
        #[test]
        fn it_never_goes_in_circles(writes in proptest::collection::vec(0_u64..40, 1..2000), window in any::<bool>()) {
            let (mut ladder, rules) = (Ladder::default(), rules());
            let means = Means { rules: Some(&rules), window };
            let (mut output, mut steps, mut last) = (0, Vec::new(), None);
            for (tick, write) in writes.into_iter().enumerate() {
                output += u64::from(write == 0);
                let now_ms = tick as u64 * TICK_MS;
                for act in ladder.look(&silent(output), None, means, now_ms) {
                    match act {
                        Act::Unstuck => steps.clear(),
                        Act::Take(step, _) => {
                            steps.push(step);
                            prop_assert!(last.is_none_or(|last| now_ms - last >= JUDGE_MS));
                            last = Some(now_ms);
                            let of = |step| steps.iter().filter(|one| **one == step).count();
                            prop_assert!(of(Step::Nudged) <= 2 && of(Step::Interrupted) <= 1);
                            prop_assert!(of(Step::Restarted) <= 3 && of(Step::GivenUp) <= 1);
                        }
                    }
                }
            }
        }
    }
}
