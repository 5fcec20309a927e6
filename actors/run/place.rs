//! Choice of the host for an attempt. Pure: the same progress leads to the same host.

use std::collections::BTreeMap;

use swarm_model::run::plan::Seats;
use swarm_model::run::progress::{Closed, Mode, Run, Stage, Unfit};

use super::next::ready;

/// Place of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Here,
    On(String),
}

/// Why a host does not get a job at the moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoSeat<'a> {
    /// The job asks for these tags, and the host does not have them.
    Tags(Vec<&'a str>),
    /// It said that it cannot execute the job.
    Unfit(&'a Unfit),
    /// Nothing can be started there.
    Closed(&'a Closed),
    /// It has not been told yet that an attempt of the job was given up.
    GivenUp,
    /// As many attempts of this run work there as may.
    Full,
}

/// Returns the jobs that could start if they had a place, each with what is in the way on each host.
pub fn without_place(run: &Run) -> Vec<(usize, Vec<(&str, NoSeat<'_>)>)> {
    let rules = &run.plan.rules;
    if rules.on.is_empty() || run.mode != Mode::Running || room(run) == 0 || (rules.fail_fast && run.has_failed) {
        return Vec::new();
    }
    let seating = Seating::of(run);
    let why = |job: usize| {
        let seats = rules.on.iter().filter_map(|seat| Some((seat.host.as_str(), seating.no_seat(seat, job)?)));
        (job, seats.collect())
    };
    ready(run).filter(|job| seating.place(*job).is_none()).map(why).collect()
}

/// Returns the number of attempts that may start beside those at work and the resolvers. A resolver that waits goes first:
/// finished work waits for it.
pub(super) fn room(run: &Run) -> usize {
    let working = run.count(|stage| *stage == Stage::Working);
    run.plan.rules.limit.max(1).saturating_sub(working + run.resolvers)
}

/// Reports whether a resolver may start beside the attempts at work and `running` resolvers. It works on this machine.
pub(super) fn has_room_for_resolver(run: &Run, running: usize) -> bool {
    let rules = &run.plan.rules;
    let here = rules.on.iter().find(|seats| seats.host == Seats::LOCAL);
    let is_full = here.is_some_and(|seats| Seating::with(run, running).used(seats) >= seats.cap.max(1));
    !is_full && run.count(|stage| *stage == Stage::Working) + running < rules.limit.max(1)
}

/// Attempts at work and resolvers, counted by host.
pub(super) struct Seating<'a> {
    run: &'a Run,
    used: BTreeMap<&'a str, usize>,
}

impl<'a> Seating<'a> {
    pub(super) fn of(run: &'a Run) -> Self {
        Self::with(run, run.resolvers)
    }

    fn with(run: &'a Run, resolvers: usize) -> Self {
        let mut used = BTreeMap::from([(Seats::LOCAL, resolvers)]);
        // A run without hosts has no use for the numbers, and may have thousands of jobs.
        let jobs = run.plan.jobs.iter().zip(&run.jobs);
        for (job, progress) in jobs.filter(|_| !run.plan.rules.on.is_empty()) {
            if progress.stage == Stage::Working || progress.sent {
                *used.entry(run.plan.rules.place_of(job, progress.host.as_deref())).or_default() += 1;
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
        let free = seats.iter().filter(|seat| self.is_open(seat, job));
        let is_other = |seat: &Seats| progress.host.as_ref() != Some(&seat.host);
        let best = free.min_by(|one, two| {
            // Used by its cap: a / b < c / d without a fraction.
            let (left, right) = (self.used(one) * two.cap, self.used(two) * one.cap);
            is_other(one).cmp(&is_other(two)).then(left.cmp(&right)).then(self.load(one).cmp(&self.load(two)))
        })?;
        let is_here = best.host == Seats::LOCAL || self.run.plan.rules.clusters.contains_key(&best.host);
        Some(if is_here { Place::Here } else { Place::On(best.host.clone()) })
    }

    /// Reports whether the host has room, and may be tried with the job.
    fn is_open(&self, seats: &Seats, job: usize) -> bool {
        self.no_seat(seats, job).is_none()
    }

    fn no_seat(&self, seats: &Seats, job: usize) -> Option<NoSeat<'a>> {
        let run: &'a Run = self.run;
        let lacking: Vec<&str> = seats.lacks(&run.plan.jobs[job]).collect();
        if !lacking.is_empty() {
            return Some(NoSeat::Tags(lacking));
        }
        let unfit = self.run.jobs[job].unfit.get(&seats.host).filter(|unfit| unfit.until_ms.is_some());
        let is_full = self.used(seats) >= seats.cap;
        // Those that try whether the host is there again take its places.
        let closed = self.run.closed.get(&seats.host).filter(|closed| closed.until_ms.is_some() || is_full);
        let no_seat = unfit.map(NoSeat::Unfit).or_else(|| closed.map(NoSeat::Closed));
        let no_seat = no_seat.or_else(|| self.run.avoids(job, &seats.host).then_some(NoSeat::GivenUp));
        no_seat.or_else(|| is_full.then_some(NoSeat::Full))
    }

    /// Returns the load that the host has reported last. One that has not is tried as if it had none.
    fn load(&self, seats: &Seats) -> u32 {
        self.run.loads.get(&seats.host).copied().unwrap_or_default()
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
    use swarm_model::run::progress::{ClosedKind, Progress};

    use super::*;

    fn run(seats: &[(&str, usize)], jobs: Vec<Progress>) -> Run {
        let on =
            seats.iter().map(|(host, cap)| Seats { host: (*host).to_owned(), cap: *cap, tags: Vec::new() }).collect();
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
        let closed = Closed {
            kind: ClosedKind::Away,
            cause: String::new(),
            tries: 1,
            refusals: 0,
            since_ms: 0,
            until_ms: Some(1),
        };
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
    fn an_attempt_that_is_a_job_works_with_the_files_here() {
        use swarm_model::JobOrder;
        let mut run = run(&[("jobs", 2)], vec![Progress::default(), at("box"), Progress::default()]);
        let order = JobOrder { host: "jobs".to_owned(), ..JobOrder::default() };
        Arc::make_mut(&mut run.plan).rules.clusters.insert("jobs".to_owned(), order);
        assert_eq!(place(&run, 0), Some(Place::Here));
        run.jobs[2] = Progress { stage: Stage::Working, ..Progress::default() };
        assert_eq!(place(&run, 0), Some(Place::Here));
        run.jobs[1] = run.jobs[2].clone();
        assert_eq!(place(&run, 0), None, "two of two are taken");
        // A version that does not know clusters looks for a machine of this name.
        Arc::make_mut(&mut run.plan).rules.clusters.clear();
        assert_eq!(place(&run, 0), on("jobs"));
    }

    #[test]
    fn an_attempt_that_was_sent_keeps_its_seat_although_its_run_was_stopped() {
        let sent = Progress { stage: Stage::Paused, sent: true, ..at("a") };
        assert_eq!(place(&run(&[("a", 1)], vec![Progress::default(), sent]), 0), None);
    }

    #[test]
    fn a_job_without_a_place_knows_what_is_in_the_way_on_each_host() {
        let closed = |until_ms| {
            let (kind, cause, since_ms) = (ClosedKind::Away, "no route".into(), 3);
            Closed { kind, cause, since_ms, tries: 1, refusals: 0, until_ms }
        };
        let lacks = Unfit { program: Some("p".into()), cause: "x".into(), tries: 1, until_ms: Some(9) };
        let unfit = [("a".to_owned(), lacks.clone())].into();
        let waits = Progress { unfit, ..Progress::default() };
        let mut run = run(&[("a", 2), ("b", 1), ("c", 2)], vec![waits, at("b"), Progress::default()]);
        run.closed.insert("c".into(), closed(Some(5)));
        let away = closed(Some(5));
        assert_eq!(
            without_place(&run),
            [(0, vec![("a", NoSeat::Unfit(&lacks)), ("b", NoSeat::Full), ("c", NoSeat::Closed(&away))])]
        );
        let mut tried = run.clone();
        tried.jobs[2] = at("c");
        Arc::make_mut(&mut tried.plan).rules.on[2].cap = 1;
        tried.closed.insert("c".into(), closed(None));
        assert_eq!(without_place(&tried)[0].1[2], ("c", NoSeat::Closed(&closed(None))), "it is not called full");
        for change in [
            |run: &mut Run| drop(run.closed.insert("c".into(), Closed { until_ms: None, ..run.closed["c"].clone() })),
            |run: &mut Run| run.mode = Mode::Held,
            |run: &mut Run| Arc::make_mut(&mut run.plan).rules.limit = 1,
            |run: &mut Run| Arc::make_mut(&mut run.plan).jobs[0].after.push("2".into()),
        ] {
            let mut run = run.clone();
            change(&mut run);
            assert!(without_place(&run).is_empty(), "{run:?}");
        }
    }

    #[test]
    fn the_load_decides_between_hosts_that_are_used_alike() {
        let at_work = |host: &str| Progress { stage: Stage::Pending, ..at(host) };
        for (loads, job, others, expected) in [
            (vec![("a", 1)], Progress::default(), vec![], on("b")),
            (vec![("a", 1), ("b", 2)], Progress::default(), vec![], on("a")),
            (vec![("a", 1), ("b", 1)], Progress::default(), vec![], on("a")),
            (vec![("a", 9)], Progress::default(), vec![at("b")], on("a")),
            (vec![("a", 9)], at_work("a"), vec![], on("a")),
        ] {
            let mut run = run(&[("a", 2), ("b", 2)], [vec![job], others].concat());
            run.loads = loads.iter().map(|(host, level)| ((*host).to_owned(), *level)).collect();
            assert_eq!(place(&run, 0), expected, "{loads:?}");
        }
    }

    fn tagged(run: &mut Run, hosts: &[Vec<&'static str>], jobs: &[Vec<&'static str>]) {
        let owned = |tags: &Vec<&str>| tags.iter().map(|tag| (*tag).to_owned()).collect();
        let plan = Arc::make_mut(&mut run.plan);
        plan.rules.on.iter_mut().zip(hosts).for_each(|(seats, tags)| seats.tags = owned(tags));
        plan.jobs.iter_mut().zip(jobs).for_each(|(job, tags)| job.on = owned(tags));
    }

    #[test]
    fn a_job_goes_only_to_a_host_with_all_its_tags() {
        for (asked, hosts, expected) in [
            (vec![], [vec![], vec!["gpu"]], on("a")),
            (vec!["gpu"], [vec![], vec!["gpu"]], on("b")),
            (vec!["gpu"], [vec!["gpu", "big"], vec!["gpu"]], on("a")),
            (vec!["gpu", "big"], [vec!["gpu"], vec!["big", "gpu"]], on("b")),
            (vec!["gpu", "big"], [vec!["gpu"], vec!["big"]], None),
        ] {
            let mut run = run(&[("a", 2), ("b", 2)], vec![Progress::default()]);
            tagged(&mut run, &hosts, std::slice::from_ref(&asked));
            assert_eq!(place(&run, 0), expected, "{asked:?} {hosts:?}");
        }
        // Also where the last attempt was, which may have been another plan's.
        let mut run = run(&[("a", 2), ("b", 2), ("local", 2)], vec![Progress { stage: Stage::Pending, ..at("a") }]);
        tagged(&mut run, &[vec![], vec!["gpu"], vec![]], &[vec!["gpu"]]);
        assert_eq!(place(&run, 0), on("b"));
        run.jobs[0].host = None;
        tagged(&mut run, &[vec![], vec![], vec!["gpu"]], &[]);
        assert_eq!(place(&run, 0), Some(Place::Here));
        tagged(&mut run, &[vec![], vec![], vec![]], &[]);
        let lacks = || NoSeat::Tags(vec!["gpu"]);
        assert_eq!(without_place(&run), [(0, vec![("a", lacks()), ("b", lacks()), ("local", lacks())])]);
    }

    proptest! {
        #[test]
        fn no_host_gets_more_than_its_cap_or_a_job_whose_tags_it_lacks(
            caps in proptest::collection::vec(1_usize..4, 1..4),
            owned in proptest::collection::vec(0_usize..4, 3),
            asked in proptest::collection::vec(0_usize..4, 1..12),
        ) {
            let names = ["a", "b", "c"];
            let sets = [vec![], vec!["gpu"], vec!["big"], vec!["gpu", "big"]];
            let pick = |numbers: &[usize]| numbers.iter().map(|number| sets[*number].clone()).collect::<Vec<_>>();
            let seats: Vec<(&str, usize)> = names.into_iter().zip(caps.iter().copied()).collect();
            let mut run = run(&seats, vec![Progress::default(); asked.len()]);
            tagged(&mut run, &pick(&owned), &pick(&asked));
            for job in 0..asked.len() {
                let fits = |run: &Run, seats: &Seats| seats.lacks(&run.plan.jobs[job]).next().is_none();
                match place(&run, job) {
                    Some(Place::On(host)) => {
                        prop_assert!(run.plan.rules.on.iter().any(|seats| seats.host == host && fits(&run, seats)));
                        run.jobs[job] = at(&host);
                    }
                    Some(Place::Here) => prop_assert!(false, "nobody named this machine"),
                    None => {
                        let is_full = |seats: &Seats| used(&run, &seats.host) == seats.cap;
                        prop_assert!(run.plan.rules.on.iter().all(|seats| is_full(seats) || !fits(&run, seats)));
                    }
                }
            }
            prop_assert!(seats.iter().all(|(host, cap)| used(&run, host) <= *cap));
        }
    }
}
