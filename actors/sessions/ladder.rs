//! Ladder of steps for a worker that makes no progress: nudge twice, interrupt, restart three times,
//! give up and report. The ladder always ends. A worker that makes progress again starts at the foot,
//! but not before the cooldown is over. Time is counted in ticks of the heartbeat, so that neither a
//! clock that was set nor a machine that slept makes a worker look stuck.

use super::signals::Signal;
use swarm_model::{Rungs, TurnEnd, WatchRules};
use swarm_ports::Sight;

/// Maximum number of nudges on the ladder.
pub const NUDGES_MAX: u32 = 2;
/// Maximum number of restarts on the ladder.
pub const RESTARTS_MAX: u32 = 3;
/// Time without output after which a step has failed, in milliseconds.
pub const JUDGE_MS: u64 = 3 * 60 * 1000;
/// Time after a step in which output counts as its echo and not as progress, in milliseconds.
const ECHO_MS: u64 = 30 * 1000;
/// Minimum time between a ladder that helped and the next one, in milliseconds.
pub const COOLDOWN_MS: u64 = 5 * 60 * 1000;
/// Maximum total duration of a ladder, in milliseconds. After it the next step is to give up.
pub const TOTAL_MS: u64 = 45 * 60 * 1000;

/// Step of the ladder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Only reported, because a person has to act.
    Told,
    Nudged,
    Interrupted,
    Restarted,
    GivenUp,
}

impl Step {
    /// Returns the stable name of the step.
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

/// Result of one check of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    Take(Step, Signal),
    /// The worker makes progress again.
    Unstuck,
}

/// Position of one worker on the ladder, across all its generations.
#[derive(Clone, Debug, Default)]
pub struct Ladder {
    rungs: Rungs,
    /// When the first step was taken.
    began_ms: Option<u64>,
    /// When the last step was taken.
    acted_ms: Option<u64>,
    /// No step is taken before this time (cooldown).
    not_before_ms: u64,
    output: Option<u64>,
    wrote_ms: u64,
    operation: Option<((String, u64), u64)>,
    /// Signal that was reported last, so that it is reported only once. Of an idle agent with how its last turn ended: a
    /// turn may begin and break off between two checks.
    told: Option<(&'static str, Option<TurnEnd>)>,
}

/// Steps that are possible for a worker.
#[derive(Clone, Copy, Debug)]
pub struct Means<'a> {
    /// Watch rules. `None` if watching was not requested: what the screen shows is then reported, but
    /// no step is taken.
    pub rules: Option<&'a WatchRules>,
    pub window: bool,
}

impl Ladder {
    /// Returns a ladder that an earlier supervisor record_escalation. Its last step counts as taken now.
    pub fn resumed(rungs: Rungs, now_ms: u64) -> Self {
        Self { rungs, began_ms: Some(now_ms), acted_ms: Some(now_ms), wrote_ms: now_ms, ..Self::default() }
    }

    pub fn rungs(&self) -> Rungs {
        self.rungs
    }

    /// Checks the worker at `now_ms`, a time that advances only while the heartbeat ticks.
    pub fn look(&mut self, sight: &Sight, screen: Option<Signal>, means: Means<'_>, now_ms: u64) -> Vec<Act> {
        self.note(sight, now_ms);
        let mut acts = Vec::new();
        let mut stands = false;
        match own_word(sight).or(screen) {
            Some(signal) if signal.needs_a_person() => return self.tell(signal),
            Some(signal) if signal.is_rest() => {
                self.settle(now_ms);
                return self.tell(signal);
            }
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

    /// Reports whether the next check may take a step. The screen must then be read first.
    pub fn is_due(&self, sight: &Sight, rules: &WatchRules, now_ms: u64) -> bool {
        self.output == Some(sight.output) && !self.rungs.given_up && self.signal(rules, now_ms).is_some()
    }

    /// Reports whether the worker is marked as needing a person.
    pub fn is_told(&self) -> bool {
        self.told.is_some()
    }

    /// Reports whether a worker that has just exited with a failure did so because of our interrupt.
    pub fn is_ended_by_us(&self, now_ms: u64) -> bool {
        let just_now = self.acted_ms.is_some_and(|acted_ms| now_ms.saturating_sub(acted_ms) < ECHO_MS);
        just_now && self.rungs.interrupted && self.rungs.restarts == 0 && !self.rungs.given_up
    }

    /// Records a restart as the step taken at `now_ms`.
    pub fn restart(&mut self, now_ms: u64) {
        self.rungs.restarts += 1;
        self.acted_ms = Some(now_ms);
    }

    fn note(&mut self, sight: &Sight, now_ms: u64) {
        if self.output != Some(sight.output) {
            // Output from before the first check is no reaction to an earlier step.
            self.wrote_ms = self.acted_ms.filter(|_| self.output.is_none()).unwrap_or(now_ms);
            self.output = Some(sight.output);
        }
        match (&self.operation, &sight.operation) {
            (Some((was, _)), Some(is)) if was == is => {}
            (_, is) => self.operation = is.clone().map(|is| (is, now_ms)),
        }
    }

    fn tell(&mut self, signal: Signal) -> Vec<Act> {
        let end = if let Signal::Idle { what } = &signal { TurnEnd::of_text(what) } else { None };
        let known = self.told.replace((signal.word(), end)) == Some((signal.word(), end));
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

    /// Ends the steps for a worker whose turn is over: it need not make progress before its next task.
    fn settle(&mut self, now_ms: u64) {
        if self.acted_ms.is_some() || self.rungs != Rungs::default() {
            // A mark of a step is replaced, so what the worker does now is reported again.
            *self = Self { output: self.output, not_before_ms: now_ms + COOLDOWN_MS, ..Self::default() };
        }
        (self.wrote_ms, self.operation) = (now_ms, None);
    }

    /// Handles a worker that makes progress. A step has helped once the worker writes after the echo
    /// of the step is over. A reported signal that still `stands` stays reported.
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

/// Returns the signal that the worker itself reports. It takes precedence over its screen.
fn own_word(sight: &Sight) -> Option<Signal> {
    let what = sight.waiting.clone()?;
    Some(if sight.idle { Signal::Idle { what } } else { Signal::Waiting { kind: sight.kind, what } })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use swarm_model::NeedKind;

    use super::*;

    const TICK_MS: u64 = 10_000;
    const MINUTE: u64 = 60_000;

    fn rules() -> WatchRules {
        WatchRules { after_ms: 10 * MINUTE, message: "go on".to_owned() }
    }

    fn silent(output: u64) -> Sight {
        Sight { output, ..Sight::default() }
    }

    /// Steps for a worker that writes nothing at all, each with its minute.
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
        // From the foot again, after the cooldown.
        let again = (15 * 6..60 * 6).find_map(|tick| {
            let acts = ladder.look(&silent(3), None, means, tick * TICK_MS);
            acts.into_iter().next().map(|act| (tick / 6, act))
        });
        assert!(matches!(again, Some((25, Act::Take(Step::Nudged, _)))), "{again:?}");
    }

    #[test]
    fn a_turn_that_broke_off_between_two_checks_is_told() {
        let mut ladder = Ladder::default();
        let means = Means { rules: None, window: true };
        let mut told = |what: &str| {
            let signal = Signal::Idle { what: what.to_owned() };
            ladder.look(&silent(1), Some(signal.clone()), means, 0) == [Act::Take(Step::Told, signal)]
        };
        let failed = "its last turn failed: 500";
        let words =
            ["its turn is over", "its turn is over", failed, failed, "its turn was interrupted", "it asks: Push?"];
        assert_eq!(words.map(&mut told), [true, false, true, false, true, true]);
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
    fn a_question_for_a_person_is_reported_once_and_no_step_is_taken() {
        let (mut ladder, rules) = (Ladder::default(), rules());
        let means = Means { rules: Some(&rules), window: true };
        let asks = || Some(Signal::Asks { what: "asks how to log in".to_owned() });
        let acts: Vec<Act> = (0..600).flat_map(|tick| ladder.look(&silent(1), asks(), means, tick * TICK_MS)).collect();
        assert!(matches!(&acts[..], [Act::Take(Step::Told, Signal::Asks { .. })]), "{acts:?}");
        let waits = Sight { waiting: Some("which branch?".to_owned()), ..silent(2) };
        let acts: Vec<Act> = (600..900).flat_map(|tick| ladder.look(&waits, None, means, tick * TICK_MS)).collect();
        assert!(matches!(&acts[..], [Act::Take(Step::Told, Signal::Waiting { .. })]), "{acts:?}");
    }

    /// Names of steps and signals.
    fn words(acts: Vec<Act>) -> Vec<(&'static str, &'static str)> {
        let word = |act: Act| match act {
            Act::Take(step, signal) => (step.word(), signal.word()),
            Act::Unstuck => ("unstuck", ""),
        };
        acts.into_iter().map(word).collect()
    }

    fn idle(output: u64) -> Sight {
        Sight { waiting: Some("its turn is over".to_owned()), idle: true, ..silent(output) }
    }

    #[test]
    fn an_idle_worker_is_reported_and_never_stuck() {
        let rules = rules();
        for rules in [None, Some(&rules)] {
            let (mut ladder, means) = (Ladder::default(), Means { rules, window: true });
            let acts = (0..9000).flat_map(|tick| ladder.look(&idle(1), None, means, tick * TICK_MS)).collect();
            assert_eq!(words(acts), [("told", "idle")]);
        }
    }

    #[test]
    fn a_worker_that_ends_its_turn_after_a_step_is_no_longer_stuck() {
        let (mut ladder, rules) = (Ladder::default(), rules());
        let means = Means { rules: Some(&rules), window: true };
        let until = |ladder: &mut Ladder, sight: &Sight, from: u64, to: u64| {
            words((from..to).flat_map(|tick| ladder.look(sight, None, means, tick * TICK_MS)).collect())
        };
        let ticks = |minutes: u64| minutes * MINUTE / TICK_MS;
        assert_eq!(until(&mut ladder, &silent(1), 0, ticks(14)), [("nudged", "silent"), ("nudged", "silent")]);
        assert_eq!(until(&mut ladder, &idle(2), ticks(14), ticks(90)), [("told", "idle")]);
        assert_eq!(ladder.rungs(), Rungs::default());
        // Its next task: the steps start from the first one, after the whole time of silence.
        assert_eq!(until(&mut ladder, &silent(3), ticks(90), ticks(100)), [("unstuck", "")]);
        assert_eq!(until(&mut ladder, &silent(3), ticks(100), ticks(102)), [("nudged", "silent")]);
    }

    #[test]
    fn what_an_agent_reports_takes_precedence_over_its_screen() {
        let (mut ladder, means) = (Ladder::default(), Means { rules: None, window: true });
        let asks = || Some(Signal::Asks { what: "asks for permission".to_owned() });
        let waits = Sight { waiting: Some("may it push?".to_owned()), ..silent(1) };
        let acts = ladder.look(&waits, asks(), means, 0);
        assert_eq!(
            acts,
            vec![Act::Take(Step::Told, Signal::Waiting { kind: NeedKind::Input, what: "may it push?".to_owned() })]
        );
    }

    #[test]
    fn a_lasting_signal_is_reported_once_and_does_not_prevent_a_nudge() {
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
    fn a_worker_without_watch_rules_is_left_alone() {
        let mut ladder = Ladder::default();
        let means = Means { rules: None, window: true };
        let acts: Vec<Act> = (0..9000).flat_map(|tick| ladder.look(&silent(1), None, means, tick * TICK_MS)).collect();
        assert_eq!(acts, Vec::new());
    }

    proptest! {
        /// For any output at any time: while the worker makes no progress there are at most two nudges,
        /// one interrupt, three restarts and one end, and any two steps are at least `JUDGE_MS` apart.
        #[test]
        fn steps_are_few_and_spaced(writes in proptest::collection::vec(0_u64..40, 1..2000), window in any::<bool>()) {
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
