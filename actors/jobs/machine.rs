//! Verdicts about jobs, from their records and the last answers of the batch system.
//!
//! | exit record | what the batch system says | verdict |
//! |---|---|---|
//! | there | whatever | ended, as it says; an end by a signal waits for a moment for the reason |
//! | none | it waits | queued |
//! | none | it runs, is suspended, is being ended, or is in a state that is not known | works |
//! | none | nothing: the question failed | as before |
//! | none | it has ended | the record is waited for, then over |
//! | none | its node failed, or it was preempted | the same, not proven |
//! | none | it is absent in two answers some time apart | the same, not proven |
//! | none, and never executed | it is absent | submitted again, unless it is to be stopped |
//!
//! No verdict has an exit code. Absence and silence are different: only answers are counted.

use swarm_model::Over;

/// Time between two questions to the batch system in milliseconds, unless the configuration says otherwise.
pub const ASK_MS: u64 = 30_000;
/// Time for the record of a job that the batch system calls ended, in questions: a network file system may show it late.
const RECORD_MAX: u64 = 2;
/// Minimum time between two answers without the job, in questions.
const ABSENT_MIN: u64 = 2;
/// Time for the reason of an end by a signal, in milliseconds.
const REASON_MS_MAX: u64 = 15_000;
/// Maximum number of submissions of one start.
pub const SUBMISSIONS_MAX: u32 = 3;

/// Stage of a job in an answer of the batch system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Waits,
    /// The job runs, or may.
    Works,
    /// All of its processes have ended.
    Over,
    /// The job counts as ended, and its node was not asked.
    Lost,
}

/// Answer of the batch system about a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// The batch system has the job.
    Has(Stage),
    /// The batch system answers, and does not have the job.
    Absent,
    /// The batch system did not answer, or was not asked.
    Silent,
}

/// Facts in the directory of the generation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    pub has_record: bool,
    /// Whether the record names a signal whose reason the batch system may know.
    pub may_refine: bool,
    /// Whether the command was executed.
    pub executed: bool,
    /// Whether a later execution of the same job left, so that the state of the job is not that of the first one.
    pub left: bool,
    /// Whether the shim has said that it could not start the command.
    pub failed: bool,
    /// Whether it is to be stopped.
    pub stopped: bool,
}

/// Verdict about a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The job waits or works, or nothing new is known.
    Open,
    /// The job is submitted once more.
    Submit,
    /// The job has an exit record.
    Recorded,
    /// The job has ended without an exit record.
    Over(Over),
}

/// Watch of one job. Times are milliseconds since boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watch {
    /// Time between two questions in milliseconds.
    pub ask_ms: u64,
    /// Number of submissions so far.
    pub submissions: u32,
    /// Since when the record is there.
    recorded: Option<u64>,
    /// Since when the batch system says that it has ended.
    ended: Option<u64>,
    /// Time of the first answer without the job, after the last one with it.
    absent: Option<u64>,
}

impl Default for Watch {
    fn default() -> Self {
        Self { ask_ms: ASK_MS, submissions: 0, recorded: None, ended: None, absent: None }
    }
}

impl Watch {
    /// Returns what follows from an answer and the records at `now_ms`.
    pub fn judge(&mut self, told: Told, found: Found, now_ms: u64) -> Verdict {
        match told {
            Told::Has(stage) => {
                self.absent = None;
                match stage {
                    Stage::Waits | Stage::Works => self.ended = None,
                    Stage::Over | Stage::Lost => drop(self.ended.get_or_insert(now_ms)),
                }
            }
            Told::Absent => drop(self.absent.get_or_insert(now_ms)),
            Told::Silent => {}
        }
        if found.has_record {
            return self.recorded(told, found, now_ms);
        }
        self.recorded = None;
        if found.failed {
            return Verdict::Over(Over::Proven);
        }
        match told {
            Told::Has(Stage::Over | Stage::Lost) => self.ended(told, found, now_ms),
            Told::Absent => self.absent(found, now_ms),
            Told::Has(Stage::Waits | Stage::Works) | Told::Silent => Verdict::Open,
        }
    }

    /// Reports whether the record waits for the reason of a signal.
    pub fn wants_reason(&self) -> bool {
        self.recorded.is_some()
    }

    fn recorded(&mut self, told: Told, found: Found, now_ms: u64) -> Verdict {
        let since = *self.recorded.get_or_insert(now_ms);
        let has_reason = matches!(told, Told::Has(Stage::Over | Stage::Lost) | Told::Absent) || found.stopped;
        if !found.may_refine || has_reason || now_ms >= since + REASON_MS_MAX {
            Verdict::Recorded
        } else {
            Verdict::Open
        }
    }

    fn ended(&self, told: Told, found: Found, now_ms: u64) -> Verdict {
        // Without a command there is no record to wait for.
        let is_late = self.ended.is_some_and(|since| now_ms >= since + self.ask_ms * RECORD_MAX);
        if found.executed && !is_late {
            return Verdict::Open;
        }
        let is_proven = told == Told::Has(Stage::Over) && !found.left;
        Verdict::Over(if is_proven { Over::Proven } else { Over::Unproven })
    }

    fn absent(&mut self, found: Found, now_ms: u64) -> Verdict {
        if !found.executed && !found.left {
            if found.stopped {
                return Verdict::Over(Over::Proven);
            }
            if self.submissions < SUBMISSIONS_MAX {
                self.absent = None;
                return Verdict::Submit;
            }
        }
        let is_confirmed = self.absent.is_some_and(|since| now_ms >= since + self.ask_ms * ABSENT_MIN);
        if is_confirmed { Verdict::Over(Over::Unproven) } else { Verdict::Open }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NONE: Found =
        Found { has_record: false, may_refine: false, executed: true, left: false, failed: false, stopped: false };

    fn seconds(seconds: u64) -> u64 {
        seconds * 1000
    }

    /// Returns the verdict after the last of these answers, each at a second.
    fn after(answers: &[(u64, Told)], found: Found) -> Verdict {
        let mut watch = Watch { submissions: 1, ..Watch::default() };
        let verdicts = answers.iter().map(|(at, told)| watch.judge(*told, found, seconds(*at)));
        verdicts.last().expect("an answer")
    }

    #[test]
    fn a_job_ends_by_its_record_or_by_answers_and_never_by_silence() {
        use Stage::{Lost, Over as Ended, Waits, Works};
        use Told::{Absent, Has, Silent};
        let (recorded, pending) = (Found { has_record: true, ..NONE }, Found { executed: false, ..NONE });
        let (proven, unproven) = (Verdict::Over(Over::Proven), Verdict::Over(Over::Unproven));
        let by_signal = Found { may_refine: true, ..recorded };
        let left = Found { left: true, ..NONE };
        for (answers, found, expected) in [
            (&[(0, Silent)][..], recorded, Verdict::Recorded),
            (&[(0, Has(Works))], recorded, Verdict::Recorded),
            (&[(0, Has(Lost))], recorded, Verdict::Recorded),
            // The reason of a signal.
            (&[(0, Has(Works))], by_signal, Verdict::Open),
            (&[(0, Has(Works)), (3, Has(Ended))], by_signal, Verdict::Recorded),
            (&[(0, Has(Works)), (15, Silent)], by_signal, Verdict::Recorded),
            (&[(0, Silent)], Found { stopped: true, ..by_signal }, Verdict::Recorded),
            // Jobs that wait or run.
            (&[(0, Has(Waits))], pending, Verdict::Open),
            (&[(0, Has(Works))], NONE, Verdict::Open),
            (&[(0, Silent), (86_400, Silent)], NONE, Verdict::Open),
            (&[(0, Has(Works)), (86_400, Silent)], NONE, Verdict::Open),
            // It has ended, and its record is waited for.
            (&[(0, Has(Ended))], NONE, Verdict::Open),
            (&[(0, Has(Ended)), (59, Has(Ended))], NONE, Verdict::Open),
            (&[(0, Has(Ended)), (60, Has(Ended))], NONE, proven),
            (&[(0, Has(Ended)), (60, Silent)], NONE, Verdict::Open),
            (&[(0, Has(Ended)), (30, Has(Works)), (60, Has(Ended))], NONE, Verdict::Open),
            (&[(0, Has(Lost)), (60, Has(Lost))], NONE, unproven),
            (&[(0, Has(Ended)), (60, Has(Ended))], left, unproven),
            // Never executed.
            (&[(0, Has(Ended))], pending, proven),
            (&[(0, Has(Lost))], pending, unproven),
            (&[(0, Silent)], Found { failed: true, ..pending }, proven),
            (&[(0, Absent)], pending, Verdict::Submit),
            (&[(0, Absent)], Found { stopped: true, ..pending }, proven),
            (&[(0, Absent)], Found { left: true, ..pending }, Verdict::Open),
            // Forgotten.
            (&[(0, Absent)], NONE, Verdict::Open),
            (&[(0, Absent), (59, Absent)], NONE, Verdict::Open),
            (&[(0, Absent), (60, Absent)], NONE, unproven),
            (&[(0, Absent), (60, Silent)], NONE, Verdict::Open),
            (&[(0, Absent), (30, Has(Works)), (60, Absent)], NONE, Verdict::Open),
        ] {
            assert_eq!(after(answers, found), expected, "{answers:?} {found:?}");
        }
    }

    #[test]
    fn a_job_that_never_begins_is_not_submitted_for_ever() {
        let (mut watch, pending) = (Watch { submissions: 1, ..Watch::default() }, Found { executed: false, ..NONE });
        let mut submitted = 1;
        for at in 0..20 {
            match watch.judge(Told::Absent, pending, seconds(at * 30)) {
                Verdict::Submit => {
                    submitted += 1;
                    watch.submissions = submitted;
                }
                Verdict::Over(over) => {
                    assert_eq!((over, submitted), (Over::Unproven, SUBMISSIONS_MAX));
                    return;
                }
                Verdict::Open | Verdict::Recorded => {}
            }
        }
        panic!("it is submitted for ever");
    }

    fn told() -> impl Strategy<Value = Told> {
        prop_oneof![
            Just(Told::Has(Stage::Waits)),
            Just(Told::Has(Stage::Works)),
            Just(Told::Has(Stage::Over)),
            Just(Told::Has(Stage::Lost)),
            Just(Told::Absent),
            Just(Told::Silent),
        ]
    }

    proptest! {
        #[test]
        fn no_end_follows_from_an_answer_that_says_none(answers in prop::collection::vec((told(), 0..200_u64), 1..30)) {
            let (mut watch, mut at) = (Watch::default(), 0);
            for (told, pause) in answers {
                at += pause;
                let verdict = watch.judge(told, NONE, seconds(at));
                let says_end = matches!(told, Told::Has(Stage::Over | Stage::Lost) | Told::Absent);
                prop_assert!(says_end || verdict == Verdict::Open, "{told:?}: {verdict:?}");
                let is_proven = verdict == Verdict::Over(Over::Proven);
                prop_assert!(!is_proven || told == Told::Has(Stage::Over), "{told:?}: {verdict:?}");
            }
        }
    }
}
