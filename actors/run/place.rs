//! Choice of the host for an attempt. Pure: the same progress leads to the same host.

use std::collections::BTreeMap;

use swarm_model::run::plan::Seats;
use swarm_model::run::progress::{Run, Stage};

/// Place of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Here,
    On(String),
}

/// Attempts at work, counted by host.
pub(super) struct Seating<'a> {
    run: &'a Run,
    used: BTreeMap<&'a str, usize>,
}

impl<'a> Seating<'a> {
    pub(super) fn of(run: &'a Run) -> Self {
        let mut used = BTreeMap::new();
        // A run without hosts has no use for the numbers, and may have thousands of jobs.
        for progress in run.jobs.iter().filter(|_| !run.plan.rules.on.is_empty()) {
            if progress.stage == Stage::Working || progress.sent {
                *used.entry(progress.host.as_deref().unwrap_or(Seats::LOCAL)).or_default() += 1;
            }
        }
        Self { run, used }
    }

    /// Returns the place for the next attempt of a job; `None` if there is none at the moment. What a job has begun here
    /// stays here, because its worktree may contain what no commit does; all that was done on hosts is in a commit, and may
    /// go on anywhere. The host of the last attempt goes first: it has the agent's conversation.
    pub(super) fn place(&self, job: usize) -> Option<Place> {
        let (seats, progress) = (&self.run.plan.rules.on, &self.run.jobs[job]);
        if seats.is_empty() || (progress.host.is_none() && progress.begun.is_some()) {
            return Some(Place::Here);
        }
        let free = seats.iter().filter(|seat| self.is_open(seat));
        let is_other = |seat: &Seats| progress.host.as_ref() != Some(&seat.host);
        let best = free.min_by(|one, two| {
            // Used by its cap: a / b < c / d without a fraction.
            let (left, right) = (self.used(one) * two.cap, self.used(two) * one.cap);
            is_other(one).cmp(&is_other(two)).then(left.cmp(&right))
        })?;
        Some(if best.host == Seats::LOCAL { Place::Here } else { Place::On(best.host.clone()) })
    }

    /// Reports whether the host has room, and may be tried.
    fn is_open(&self, seats: &Seats) -> bool {
        let is_due = self.run.closed.get(&seats.host).is_none_or(|closed| closed.until_ms.is_none());
        is_due && self.used(seats) < seats.cap
    }

    fn used(&self, seats: &Seats) -> usize {
        self.used.get(seats.host.as_str()).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use swarm_model::run::plan::{Job, Plan, Rules, Topic};
    use swarm_model::run::progress::{Closed, ClosedKind, Progress};

    use super::*;

    fn run(seats: &[(&str, usize)], jobs: Vec<Progress>) -> Run {
        let on = seats.iter().map(|(host, cap)| Seats { host: (*host).to_owned(), cap: *cap }).collect();
        let plan = Plan {
            jobs: (0..jobs.len()).map(|at| Job { id: at.to_string(), ..Job::default() }).collect(),
            rules: Rules { on, ..Rules::default() },
            ..Plan::default()
        };
        Run { plan: Arc::new(plan), jobs, ..Run::default() }
    }

    fn place(run: &Run, job: usize) -> Option<Place> {
        Seating::of(run).place(job)
    }

    fn used(run: &Run, host: &str) -> usize {
        run.jobs.iter().filter(|job| job.host.as_deref() == Some(host)).count()
    }

    fn at(host: &str) -> Progress {
        Progress { stage: Stage::Working, host: Some(host.to_owned()), ..Progress::default() }
    }

    fn on(host: &str) -> Option<Place> {
        Some(Place::On(host.to_owned()))
    }

    #[test]
    fn the_least_used_host_with_room_is_chosen() {
        let new = Progress::default;
        assert_eq!(place(&run(&[], vec![new()]), 0), Some(Place::Here));
        for (working, expected) in [
            (vec![], on("a")),
            (vec![at("a")], on("b")),
            (vec![at("a"), at("b")], on("b")),
            (vec![at("a"), at("b"), at("b"), at("b"), at("b")], on("a")),
            (vec![at("a"), at("a"), at("b"), at("b"), at("b"), at("b")], None),
        ] {
            let jobs = std::iter::once(new()).chain(working).collect();
            assert_eq!(place(&run(&[("a", 2), ("b", 4)], jobs), 0), expected);
        }
    }

    #[test]
    fn an_attempt_goes_where_the_last_one_was_and_not_where_nothing_can_be_started() {
        let again = Progress { host: Some("b".to_owned()), attempt: 1, ..Progress::default() };
        let mut run = run(&[("a", 2), ("b", 4)], vec![again, at("b")]);
        assert_eq!(place(&run, 0), on("b"));
        let closed = Closed { kind: ClosedKind::Away, cause: String::new(), tries: 1, until_ms: Some(1) };
        run.closed.insert("b".to_owned(), closed.clone());
        assert_eq!(place(&run, 0), on("a"));
        run.closed.insert("a".to_owned(), closed.clone());
        assert_eq!(place(&run, 0), None);
        run.closed.insert("b".to_owned(), Closed { until_ms: None, ..closed });
        assert_eq!(place(&run, 0), on("b"), "it is due");
    }

    #[test]
    fn what_was_begun_here_stays_here_and_what_was_begun_on_a_host_goes_on_anywhere() {
        let topic = Some(Topic { branch: "b".to_owned(), base: "main".to_owned() });
        let here = Progress { begun: topic.clone(), ..Progress::default() };
        let there = Progress { begun: topic, host: Some("a".to_owned()), ..Progress::default() };
        let both = run(&[("a", 1), (Seats::LOCAL, 1)], vec![here, there.clone(), at("a"), Progress::default()]);
        assert_eq!(place(&both, 0), Some(Place::Here));
        assert_eq!(place(&both, 1), Some(Place::Here), "its host is full");
        assert_eq!(place(&both, 3), Some(Place::Here));
        assert_eq!(place(&run(&[("a", 1), (Seats::LOCAL, 1)], vec![there.clone()]), 0), on("a"));
        assert_eq!(place(&run(&[], vec![there.clone()]), 0), Some(Place::Here), "the run names no host any more");
        assert_eq!(place(&run(&[(Seats::LOCAL, 1)], vec![there]), 0), Some(Place::Here));
    }

    #[test]
    fn an_attempt_that_was_sent_keeps_its_seat_although_its_run_was_stopped() {
        let sent = Progress { stage: Stage::Paused, sent: true, ..at("a") };
        assert_eq!(place(&run(&[("a", 1)], vec![Progress::default(), sent]), 0), None);
    }

    proptest! {
        #[test]
        fn no_host_gets_more_than_its_cap(caps in proptest::collection::vec(1_usize..4, 1..4), jobs in 1_usize..12) {
            let names = ["a", "b", "c"];
            let seats: Vec<(&str, usize)> = names.into_iter().zip(caps.iter().copied()).collect();
            let mut run = run(&seats, vec![Progress::default(); jobs]);
            for job in 0..jobs {
                match place(&run, job) {
                    Some(Place::On(host)) => run.jobs[job] = at(&host),
                    Some(Place::Here) => prop_assert!(false, "nobody named this machine"),
                    None => prop_assert!(seats.iter().all(|(host, cap)| used(&run, host) == *cap)),
                }
            }
            prop_assert!(seats.iter().all(|(host, cap)| used(&run, host) <= *cap));
        }
    }
}
