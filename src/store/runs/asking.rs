//! Requests of the agents of a run: which of them somebody still waits for.

use std::io;

use swarm_model::run::Outcome;

use crate::asks::Asks;

/// An attempt that has ended.
pub struct Attempt<'a> {
    pub run: &'a str,
    pub job: &'a str,
    pub number: u32,
    /// Whether the workstream has failed if this attempt has: no retry is left.
    pub is_last: bool,
    /// Whether its process has written how it ended, which it does unless it is killed.
    pub has_result: bool,
}

/// Returns the outcome of an attempt: one that was killed while its request was open waits for the answer, like one that
/// said so. Ends the open requests of the workstream that nobody waits for after this outcome.
///
/// # Errors
/// Fails if the requests cannot be read or ended.
pub fn settle(asks: &Asks, attempt: &Attempt<'_>, outcome: Outcome) -> io::Result<Outcome> {
    let of_job = format!("run/{}/{}/", attempt.run, attempt.job);
    let of_attempt = format!("{of_job}{}/", attempt.number);
    let open: Vec<_> = asks.open()?.into_iter().filter(|ask| ask.key.starts_with(&of_job)).collect();
    let was_killed = !attempt.has_result && matches!(outcome, Outcome::Failure { .. });
    let asked = open.iter().filter(|_| was_killed).rfind(|ask| ask.key.starts_with(&of_attempt));
    let outcome = match asked {
        Some(ask) => Outcome::Parked { ask: ask.number, what: ask.summary(), kind: ask.kind() },
        None => outcome,
    };
    let why = match &outcome {
        Outcome::Failure { .. } if attempt.is_last => "the workstream has failed",
        // The next attempt may ask again, under the number that people know.
        Outcome::Parked { .. } | Outcome::Failure { .. } => return Ok(outcome),
        Outcome::Success { .. } => "the agent finished without the answer",
        Outcome::Stopped => "the worker was stopped",
    };
    for ask in open {
        asks.end(ask.number, why)?;
    }
    Ok(outcome)
}

/// Ends the requests of a workstream that is planned anew or no longer planned, whether or not they were answered: no
/// attempt will hear the answer. Returns their numbers.
///
/// # Errors
/// Fails if the requests cannot be read or ended.
pub fn withdraw(asks: &Asks, run: &str, job: &str, why: &str) -> io::Result<Vec<u64>> {
    let of_job = format!("run/{run}/{job}/");
    let ours = asks.unfinished()?.into_iter().filter(|one| one.ask.key.starts_with(&of_job));
    ours.map(|one| asks.end(one.ask.number, why).map(|()| one.ask.number)).collect()
}

#[cfg(test)]
mod tests {
    use swarm_model::run::FaultKind;
    use swarm_sys::paths::Paths;

    use super::*;
    use crate::asks::tests::draft;

    #[test]
    fn a_request_outlives_the_attempts_that_wait_for_its_answer() {
        let dir = tempfile::tempdir().expect("a directory");
        let asks = Asks::new(&Paths::new(dir.path()));
        let ask = |key: &str| asks.ask(&draft(key, "make")).expect("asked").number;
        let failed = |fault| Outcome::Failure { cause: "red".to_owned(), evidence: None, fault };
        let success = || Outcome::Success { summary: None };
        let settled = |outcome: Outcome, number: u32, has_result: bool, is_last: bool| {
            let attempt = Attempt { run: "r", job: "j", number, is_last, has_result };
            settle(&asks, &attempt, outcome).expect("settled")
        };
        let is_open = |number: u64| asks.open().expect("read").iter().any(|ask| ask.number == number);
        let other = ask("run/r/jj/1/c");
        for (outcome, has_result, is_last, is_asking, stays) in [
            (failed(FaultKind::Lost), false, false, true, true),
            (failed(FaultKind::Task), false, true, true, true),
            (failed(FaultKind::Task), true, false, false, true),
            (failed(FaultKind::Task), true, true, false, false),
            (failed(FaultKind::Lasting), true, true, false, false),
            (success(), true, false, false, false),
            (Outcome::Stopped, false, false, false, false),
        ] {
            let number = ask("run/r/j/3/c");
            let shown = format!("{outcome:?} {is_last}");
            let now = settled(outcome.clone(), 3, has_result, is_last);
            assert_eq!(matches!(now, Outcome::Parked { ask, .. } if ask == number), is_asking, "{shown}");
            assert!(is_asking || now == outcome, "{shown}");
            assert_eq!(is_open(number), stays, "{shown}");
        }
        ask("run/r/j/3/c");
        assert_eq!(
            settled(failed(FaultKind::Lost), 4, false, false),
            failed(FaultKind::Lost),
            "an earlier attempt has asked"
        );
        assert!(is_open(other), "another workstream asks");
    }

    #[test]
    fn requests_of_a_workstream_that_is_planned_anew_are_over_also_if_they_were_answered() {
        let dir = tempfile::tempdir().expect("a directory");
        let asks = Asks::new(&Paths::new(dir.path()));
        let ask = |key: &str| asks.ask(&draft(key, "make")).expect("asked");
        let (open, answered) = (ask("run/r/j/1/c"), ask("run/r/j/2/c"));
        asks.answer(answered.number, &crate::asks::tests::answer(&answered, 1)).expect("answered");
        let others = ["run/r/jj/1/c", "run/rr/j/1/c", "worker/j/1/c"].map(|key| ask(key).number);
        let ended = withdraw(&asks, "r", "j", "it was planned anew").expect("ended");
        assert_eq!(ended, [open.number, answered.number]);
        let left: Vec<u64> = asks.unfinished().expect("read").iter().map(|one| one.ask.number).collect();
        assert_eq!(left, others);
        let over = asks.find(open.number).expect("read").and_then(|one| one.over).expect("over");
        assert_eq!(over.why, "it was planned anew");
    }
}
