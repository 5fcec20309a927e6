//! Tags of hosts, for which specs and jobs ask (`on: [gpu]`).

use std::collections::BTreeMap;

use swarm_config::hosts::HostConfig;
use swarm_model::run::plan::{Job, Plan, Seats};
use swarm_model::run::progress::{Progress, Run, Stage};
use swarm_model::{Refusal, RefusalKind};
use swarm_store::runs::before_the_next;
use swarm_store::runs::home::Home;

use crate::board::run::quoted;
use crate::cli::error::Failure;

/// Checks that each job that is to be executed fits on a host of the run, or here if the run names none.
///
/// # Errors
/// Names the first job that no host can ever execute, and what each host lacks.
pub fn check(plan: &Plan, retry_failed: bool) -> Result<(), Failure> {
    if plan.jobs.iter().all(|job| job.on.is_empty()) {
        return Ok(());
    }
    let configured = swarm_config::places().map_err(|cause| Failure::new(RefusalKind::Invalid, cause))?;
    let earlier = before_the_next(&Home::new(&plan.home)).ok().flatten();
    let run = Run::begin(plan.clone(), earlier.as_ref(), retry_failed);
    let mut jobs = run.plan.jobs.iter().zip(&run.jobs).filter(|(_, progress)| is_placed_anew(progress));
    match jobs.find_map(|(job, _)| refusal(job, &plan.rules.on, &configured)) {
        Some(refusal) => Err(refusal.into()),
        None => Ok(()),
    }
}

/// Reports whether a job will need a place. What was begun here goes on here.
pub fn is_placed_anew(progress: &Progress) -> bool {
    let is_open = matches!(
        progress.stage,
        Stage::Pending | Stage::Working | Stage::Paused | Stage::BackingOff { .. } | Stage::Asking { .. }
    );
    is_open && !progress.sent && (progress.begun.is_none() || progress.host.is_some())
}

/// Returns the refusal of a job that none of these hosts can execute; no hosts mean this machine.
fn refusal(job: &Job, hosts: &[Seats], configured: &BTreeMap<String, HostConfig>) -> Option<Refusal> {
    let tags_of = |name: &str| configured.get(name).map(|host| host.tags.clone()).unwrap_or_default();
    let here = [Seats { host: Seats::LOCAL.to_owned(), cap: 1, tags: tags_of(Seats::LOCAL) }];
    let seats = if hosts.is_empty() { here.as_slice() } else { hosts };
    let lacks = |seat: &Seats| quoted(seat.lacks(job));
    if seats.iter().any(|seat| seat.cap > 0 && lacks(seat).is_empty()) {
        return None;
    }
    let word = |seat: &Seats| match lacks(seat) {
        lacks if lacks.is_empty() => format!("the cap of {} is 0", seat.host),
        lacks if hosts.is_empty() => format!("this machine lacks {lacks}"),
        lacks => format!("{} lacks {lacks}", seat.host),
    };
    let causes: Vec<String> = seats.iter().map(word).collect();
    let tags = quoted(job.on.iter().map(String::as_str));
    let cause = format!("'{}' asks for a host with {tags}: {}", job.id, causes.join(", "));
    let fits = |(name, host): &(&String, &HostConfig)| {
        let (cap, tags) = (host.cap.unwrap_or(1), host.tags.clone());
        let seat = Seats { host: (*name).clone(), cap, tags };
        cap > 0 && seat.lacks(job).next().is_none()
    };
    let known: Vec<&str> = configured.iter().filter(fits).map(|(name, _)| name.as_str()).collect();
    let remedy = match known.first() {
        Some(host) => format!("add it: --on {host}"),
        None => "set tags in [hosts.NAME] of your configuration, and name that host with --on".to_owned(),
    };
    Some(Refusal::new(RefusalKind::Invalid, cause).remedy(remedy))
}

/// Returns what a person should know of a plan whose specs ask for hosts: which tags, and which specs.
pub fn note<'a>(asked: impl Iterator<Item = (&'a str, Vec<String>)>) -> Option<String> {
    let mut by_tags = BTreeMap::<String, Vec<&str>>::new();
    for (id, tags) in asked.filter(|(_, tags)| !tags.is_empty()) {
        by_tags.entry(quoted(tags.iter().map(String::as_str))).or_default().push(id);
    }
    let parts = by_tags.iter().map(|(tags, ids)| format!("{tags}: {}", ids.join(", ")));
    let parts: Vec<String> = parts.collect();
    (!parts.is_empty()).then(|| format!("some need a host with tags (swarm run --on HOST): {}", parts.join("; ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_that_no_host_can_execute_is_refused_with_what_each_lacks() {
        let tags = |tags: &[&str]| tags.iter().map(|tag| (*tag).to_owned()).collect::<Vec<_>>();
        let seat = |host: &str, cap: usize, own: &[&str]| Seats { host: host.to_owned(), cap, tags: tags(own) };
        let job = |on: &[&str]| Job { id: "j".to_owned(), on: tags(on), ..Job::default() };
        let host = |own: &[&str]| HostConfig { tags: tags(own), ..HostConfig::default() };
        let configured = BTreeMap::from([("gpu1".to_owned(), host(&["gpu"])), ("local".to_owned(), host(&["ssd"]))]);
        let said = |on: &[&str], seats: &[Seats]| {
            refusal(&job(on), seats, &configured).map(|refusal| (refusal.cause, refusal.remedy.unwrap_or_default()))
        };
        let unset = "set tags in [hosts.NAME] of your configuration, and name that host with --on";
        for (on, seats, expected) in [
            (&[] as &[&str], vec![], None),
            (&["ssd"], vec![], None),
            (&["gpu"], vec![], Some(("'j' asks for a host with 'gpu': this machine lacks 'gpu'", "add it: --on gpu1"))),
            (&["gpu"], vec![seat("box", 2, &[]), seat("gpu1", 2, &["gpu"])], None),
            (
                &["gpu", "big"],
                vec![seat("box", 2, &[]), seat("gpu1", 2, &["gpu"])],
                Some(("'j' asks for a host with 'gpu', 'big': box lacks 'gpu', 'big', gpu1 lacks 'big'", unset)),
            ),
            (
                &["gpu"],
                vec![seat("gpu1", 0, &["gpu"])],
                Some(("'j' asks for a host with 'gpu': the cap of gpu1 is 0", "add it: --on gpu1")),
            ),
        ] {
            let expected = expected.map(|(cause, remedy)| (cause.to_owned(), remedy.to_owned()));
            assert_eq!(said(on, &seats), expected, "{on:?} {seats:?}");
        }
    }

    #[test]
    fn a_plan_names_what_its_specs_ask_for() {
        let gpu = || vec!["gpu".to_owned()];
        let asked = [("a", gpu()), ("b", Vec::new()), ("c", gpu()), ("d", vec!["gpu".to_owned(), "big".to_owned()])];
        let said = "some need a host with tags (swarm run --on HOST): 'gpu': a, c; 'gpu', 'big': d";
        assert_eq!(note(asked.into_iter()).as_deref(), Some(said));
        assert_eq!(note(std::iter::empty()), None);
    }
}
