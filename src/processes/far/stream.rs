//! `swarm __stream CONTROLLER REPOSITORY RUN JOB ATTEMPT WORKER [--follow]`: prints what the agent of an attempt has recorded,
//! with `--follow` until its worker has ended. Unlike other internal processes, it may be executed in place of a verb.

use std::ffi::OsString;

use swarm_model::RefusalKind;
use swarm_store::runs::far::{FarAttempt, FarClone};
use swarm_store::runs::order::STREAM;
use swarm_sys::paths::Paths;

use super::place::Attempt;
use crate::cli::error::Failure;
use crate::cli::run::logs::pass;
use crate::cli::screen::{self, Screen};

pub const VERB: &str = "__stream";
const FOLLOW: &str = "--follow";

/// Returns the words that print the conversation of an attempt on its host.
pub fn words(at: &FarAttempt, follow: bool) -> Vec<String> {
    let FarAttempt { clone, run, job, attempt, worker, .. } = at;
    let attempt = attempt.to_string();
    let words = [VERB, &clone.controller, &clone.repository, run, job, &attempt, worker];
    words.into_iter().chain(follow.then_some(FOLLOW)).map(str::to_owned).collect()
}

pub fn main(arguments: impl Iterator<Item = OsString>) -> u8 {
    let words: Vec<String> = arguments.map(|word| word.to_string_lossy().into_owned()).collect();
    screen::run(|screen| print(&words, screen))
}

fn print(words: &[String], screen: &mut Screen) -> Result<u8, Failure> {
    let invalid = |cause: String| Failure::new(RefusalKind::Invalid, cause);
    let (at, follow) = read(words).ok_or_else(|| invalid("these are not the words of an attempt".to_owned()))?;
    let paths = Paths::from_env().map_err(|error| Failure::system("cannot find the state directory", &error))?;
    let attempt = Attempt::of(&at, &paths).map_err(invalid)?;
    let worker = follow.then_some(at.worker.as_str());
    pass(&attempt.dir.join(STREAM), worker, &paths, &mut |bytes| {
        screen.bytes(bytes)?;
        screen.flush()
    })?;
    Ok(0)
}

/// Reads what [`words`] makes, without the verb.
pub fn read(words: &[String]) -> Option<(FarAttempt, bool)> {
    let (words, follow) = match words.split_last() {
        Some((last, words)) if last == FOLLOW => (words, true),
        _ => (words, false),
    };
    let [controller, repository, run, job, attempt, worker] = words else { return None };
    let clone = FarClone { controller: controller.clone(), repository: repository.clone() };
    let (run, job, worker) = (run.clone(), job.clone(), worker.clone());
    Some((FarAttempt { clone, run, job, attempt: attempt.parse().ok()?, worker, host: None }, follow))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_an_attempt_are_read_again() {
        let clone = FarClone { controller: "c0ffee00".into(), repository: "c0ffee00".into() };
        let (run, job, worker) = ("0a1b2c3d".into(), "a".into(), "p.a".into());
        let at = FarAttempt { clone, run, job, attempt: 2, worker, host: None };
        for follow in [false, true] {
            assert_eq!(read(&words(&at, follow)[1..]), Some((at.clone(), follow)));
        }
        assert_eq!(read(&words(&at, false)[2..]), None);
    }
}
