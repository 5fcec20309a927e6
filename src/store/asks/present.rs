//! Requests as they are now: those that nobody waits for any more are ended.

use std::collections::BTreeMap;
use std::io;

use swarm_model::Needs;
use swarm_model::asks::{AskRecord, AskState, Waits};
use swarm_sys::paths::Paths;
use swarm_sys::procfs;

use super::Asks;
use crate::views::{Detail, Pick, load_where};

/// Beginning of the key of a request that an attempt of a run makes.
pub const ATTEMPT: &str = "run/";
/// Beginning of the key of a request that a process makes for itself, followed by its pid and its start time.
const PROCESS: &str = "process/";

/// Returns the key of a request that this process waits for.
///
/// # Errors
/// Fails if the process cannot be examined.
pub fn key_of_process() -> io::Result<String> {
    let pid = i32::try_from(std::process::id()).map_err(io::Error::other)?;
    let stat = procfs::stat(pid).ok_or_else(|| io::Error::other("cannot examine this process"))?;
    Ok(format!("{PROCESS}{pid}/{}/{}", stat.start_ticks, procfs::boot_id()))
}

/// Returns the requests that are not over, by number, and those that this call has ended. A request is over, answered
/// or not, and recorded as such, if its worker no longer exists, or if the agent's process waited and is gone.
///
/// # Errors
/// Fails if the requests cannot be read.
pub fn unfinished(paths: &Paths) -> io::Result<Vec<AskRecord>> {
    let asks = Asks::new(paths);
    // Before the workers: whoever asked until then was registered.
    let found = asks.unfinished()?;
    settled(paths, &asks, found)
}

/// Returns all requests by number, as [`unfinished`] does.
///
/// # Errors
/// Fails if the requests cannot be read.
pub fn all(paths: &Paths) -> io::Result<Vec<AskRecord>> {
    let asks = Asks::new(paths);
    let found = asks.all()?;
    settled(paths, &asks, found)
}

/// Returns a request as [`unfinished`] does, reading no other one. `None` if there is none with this number.
///
/// # Errors
/// Fails if the request cannot be read.
pub fn one(paths: &Paths, number: u64) -> io::Result<Option<AskRecord>> {
    let asks = Asks::new(paths);
    let found = asks.find(number)?.into_iter().collect();
    Ok(settled(paths, &asks, found)?.pop())
}

/// Returns what the agents of those of these workers ask that have ended and are started again after the answer, until an
/// agent has heard it.
///
/// # Errors
/// Fails if the requests cannot be read.
pub fn parked(paths: &Paths, names: &[&str]) -> io::Result<BTreeMap<String, Needs>> {
    if names.is_empty() {
        return Ok(BTreeMap::new());
    }
    let waits = |record: &AskRecord| {
        let is_kept = record.ask.waits == Waits::Parked || record.ask.key.starts_with(ATTEMPT);
        let is_due = matches!(record.state(), AskState::Open | AskState::Answered);
        is_kept && is_due && names.contains(&record.ask.who.worker.as_str())
    };
    let mut parked = BTreeMap::new();
    for record in Asks::new(paths).unfinished()?.iter().filter(|record| waits(record)) {
        parked.entry(record.ask.who.worker.clone()).or_insert_with(|| record.ask.needs());
    }
    Ok(parked)
}

/// Ends those of these requests for which nobody waits.
fn settled(paths: &Paths, asks: &Asks, mut found: Vec<AskRecord>) -> io::Result<Vec<AskRecord>> {
    let names: Vec<String> = found
        .iter()
        .filter(|record| record.state() != AskState::Over)
        .map(|record| record.ask.who.worker.clone())
        .collect();
    if names.is_empty() {
        return Ok(found);
    }
    let picked: Vec<&str> = names.iter().map(String::as_str).collect();
    // Without the workers nobody can tell: the requests stay open.
    let Ok(registry) = load_where(paths, Detail::Word, Pick::Named(&picked)) else { return Ok(found) };
    if !registry.unreadable.is_empty() {
        return Ok(found);
    }
    let workers: BTreeMap<&str, (bool, Option<u64>)> = registry
        .workers
        .iter()
        .map(|view| {
            let generation = view.row.swarm().map(|meta| meta.generation);
            (view.row.name.as_str(), (view.state.is_running(), generation))
        })
        .collect();
    for record in found.iter_mut().filter(|record| record.state() != AskState::Over) {
        let worker = workers.get(record.ask.who.worker.as_str()).copied();
        if let Some(why) = over(record, worker) {
            asks.end(record.ask.number, &why)?;
            if let Some(now) = asks.find(record.ask.number)? {
                *record = now;
            }
        }
    }
    Ok(found)
}

/// Returns why nobody waits for a request any more. `worker` tells whether its worker runs, and its generation; `None` if
/// there is no such worker.
fn over(record: &AskRecord, worker: Option<(bool, Option<u64>)>) -> Option<String> {
    let ask = &record.ask;
    let name = &ask.who.worker;
    let is_parked = ask.waits == Waits::Parked;
    // The run ends the requests of its attempts: they outlive the workers.
    if ask.key.starts_with(ATTEMPT) {
        return None;
    }
    let Some((is_running, generation)) = worker else { return Some(format!("worker '{name}' no longer exists")) };
    if is_parked {
        return None;
    }
    let is_other = matches!((ask.who.generation, generation), (Some(asked), Some(now)) if asked != now);
    if !is_running || is_other {
        return Some(format!("worker '{name}' has ended"));
    }
    (ask.key.starts_with(PROCESS) && !is_alive(&ask.key)).then(|| "the command that asked has ended".to_owned())
}

/// Reports whether the process of a key may be alive.
fn is_alive(key: &str) -> bool {
    let mut parts = key.trim_start_matches(PROCESS).splitn(3, '/');
    let pid = parts.next().and_then(|pid| pid.parse().ok());
    let start = parts.next().and_then(|ticks| ticks.parse::<u64>().ok());
    let (Some(pid), Some(start), Some(boot)) = (pid, start, parts.next()) else { return true };
    // A process in another namespace is not visible here.
    boot == procfs::boot_id() && procfs::stat(pid).is_some_and(|stat| stat.is_alive() && stat.start_ticks == start)
}

#[cfg(test)]
mod tests {
    use super::*;
    use swarm_model::asks::{Ask, AskWish, Asker, SCHEMA};

    fn record(waits: Waits, run: Option<&str>, key: &str) -> AskRecord {
        let who =
            Asker { worker: "fix".to_owned(), generation: Some(2), run: run.map(str::to_owned), ..Asker::default() };
        let ask = Ask {
            schema: SCHEMA.to_owned(),
            number: 1,
            key: key.to_owned(),
            who,
            tool: "Bash".to_owned(),
            wish: AskWish::Command { command: "make".to_owned() },
            cwd: "/".to_owned(),
            waits,
            digest: String::new(),
            asked_at_ms: 1,
            expires_at_ms: None,
        };
        AskRecord { ask, answer: None, taken: None, over: None }
    }

    #[test]
    fn a_request_is_over_if_nobody_waits_for_it() {
        let gone = Some("worker 'fix' no longer exists");
        let ended = Some("worker 'fix' has ended");
        for (waits, run, key, worker, why) in [
            (Waits::Held, None, "k", Some((true, Some(2))), None),
            (Waits::Held, None, "k", Some((true, None)), None),
            (Waits::Held, None, "k", Some((false, Some(2))), ended),
            (Waits::Shown, None, "k", Some((true, Some(3))), ended),
            (Waits::Held, Some("r"), "k", Some((false, Some(2))), ended),
            (Waits::Held, Some("r"), "k", None, gone),
            (Waits::Held, Some("r"), "run/r/j/1/c", Some((false, Some(2))), None),
            (Waits::Parked, None, "k", Some((false, Some(2))), None),
            (Waits::Parked, None, "k", Some((false, Some(3))), None),
            (Waits::Parked, None, "k", None, gone),
            (Waits::Parked, Some("r"), "run/r/j/1/c", None, None),
        ] {
            let found = over(&record(waits, run, key), worker);
            assert_eq!(found.as_deref(), why, "{waits:?} {run:?} {key} {worker:?}");
        }
    }

    #[test]
    fn a_request_is_over_with_the_process_that_waited() {
        let own = key_of_process().expect("this process");
        let running = Some((true, Some(2)));
        assert_eq!(over(&record(Waits::Held, None, &own), running), None);
        let other = own.replacen(PROCESS, "process/1", 1);
        for key in [other, format!("{own}x")] {
            let why = over(&record(Waits::Held, None, &key), running);
            assert_eq!(why.as_deref(), Some("the command that asked has ended"), "{key}");
        }
    }

    #[test]
    fn a_request_is_over_without_its_worker_whether_or_not_its_answer_was_used() {
        let dir = tempfile::tempdir().expect("a directory");
        let paths = Paths::new(dir.path());
        let asks = Asks::new(&paths);
        for key in ["open", "answered", "taken", "run/r/j/1/c"] {
            let ask = asks.ask(&crate::asks::tests::draft(key, "make")).expect("asked");
            if key != "open" {
                asks.answer(ask.number, &crate::asks::tests::answer(&ask, 1)).expect("answered");
            }
        }
        assert!(asks.take(3, "process 1").expect("taken"));
        let states: Vec<AskState> = unfinished(&paths).expect("read").iter().map(AskRecord::state).collect();
        assert_eq!(states, [AskState::Over, AskState::Over, AskState::Over, AskState::Answered]);
        let left: Vec<u64> = asks.unfinished().expect("read").iter().map(|one| one.ask.number).collect();
        assert_eq!(left, [4], "the answer to a workstream is used by its next attempt");
    }

    #[test]
    fn a_worker_is_parked_until_its_agent_has_heard_the_answer() {
        let dir = tempfile::tempdir().expect("a directory");
        let paths = Paths::new(dir.path());
        let asks = Asks::new(&paths);
        assert!(parked(&paths, &["a"]).expect("nothing was asked").is_empty());
        let ask = asks.ask(&crate::asks::tests::draft("run/r/j/1/c", "make")).expect("asked");
        let told = || {
            let parked = parked(&paths, &["a", "b"]).expect("read");
            parked.into_iter().map(|(name, needs)| (name, needs.answer.unwrap_or_default())).collect::<Vec<_>>()
        };
        assert_eq!(told(), [("a".to_owned(), "swarm approve 1".to_owned())]);
        assert!(parked(&paths, &["b"]).expect("read").is_empty());
        asks.answer(1, &crate::asks::tests::answer(&ask, 1)).expect("answered");
        assert_eq!(told().len(), 1, "the next attempt hears it");
        assert!(asks.take(1, "process 1").expect("taken"));
        assert!(told().is_empty());
    }
}
