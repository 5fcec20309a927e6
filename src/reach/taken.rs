//! What an attempt has left on a host is taken over: commits are fetched, and files are written.

use swarm_git::carry::{self, CarryError};
use swarm_git::clones;
use swarm_model::Caller;
use swarm_model::run::progress::Now;
use swarm_ports::{FarEnd, HostFault};
use swarm_store::runs::far::FarResult;

use super::evidence;
use super::place::{Place, carry_failed, failed_here};

/// An end that was taken over.
pub struct Taken {
    pub end: FarEnd,
    /// Commits that git here does not take. The host keeps them.
    pub refused: Vec<String>,
}

/// Fetches the work of an attempt that has ended, then writes its files.
pub fn over(now: &Now, place: &Place, mut left: FarResult, caller: &Caller) -> Result<Taken, HostFault> {
    let (mut kept, mut refused) = (Vec::new(), Vec::new());
    if let Some(tip) = left.tip.clone() {
        match carry::fetch(&place.common, &place.far, &tip, caller) {
            Ok(()) => {}
            Err(CarryError::Unsound(cause)) => {
                add(&mut left.waits, unsound(place, &tip, &cause));
                left.tip = None;
                refused.push(tip);
            }
            Err(error) => return Err(carry_failed(error)),
        }
    }
    let is_also = |commit: &String| left.also.as_ref() == Some(commit);
    let mut also = None;
    for commit in left.also.iter().chain(&left.strays) {
        let why = match left_here(now, place, commit, caller)? {
            Left::Here(name) => {
                kept.push(name);
                continue;
            }
            Left::Refused(cause) => {
                refused.push(commit.clone());
                unsound(place, commit, &cause)
            }
            Left::Lost(cause) => format!("what is there cannot be fetched: {cause}"),
        };
        // Commits on the base branch are no part of its work.
        also = also.or(Some(why).filter(|_| is_also(commit)));
    }
    also.into_iter().for_each(|why| add(&mut left.waits, why));
    let written = evidence::write(now, &place.far.host, &left);
    written.map_err(|error| failed_here(format!("cannot write the files of the attempt: {error}")))?;
    let FarResult { exit, tip, left_out, waits, is_restarted, ignored, .. } = left;
    Ok(Taken { end: FarEnd { exit, tip, left_out, waits, is_restarted, kept, ignored }, refused })
}

/// Adds a reason to those for which some work is not here.
fn add(waits: &mut Option<String>, why: String) {
    *waits = Some(match waits.take() {
        Some(first) => format!("{first}; also, {why}"),
        None => why,
    });
}

/// Returns why work is not fetched, and where it is.
fn unsound(place: &Place, tip: &str, cause: &str) -> String {
    let (host, clone) = (&place.far.host, &place.at.clone);
    format!(
        "git refuses its work as a possible attack: {cause}; it stays on {host} as {} in far/{}/{}/clone of the state \
         directory there",
        clones::refused(tip),
        clone.controller,
        clone.repository
    )
}

enum Left {
    /// Under this reference.
    Here(String),
    /// git here refuses it, for this reason.
    Refused(String),
    /// The host does not give it, for this reason.
    Lost(String),
}

/// Fetches what an attempt has left apart from its work.
fn left_here(now: &Now, place: &Place, commit: &str, caller: &Caller) -> Result<Left, HostFault> {
    let label = format!("{}.{}", now.job().id, now.progress.attempt);
    match carry::fetch_left(&place.common, &place.far, (commit, &label), caller) {
        Ok(name) => Ok(Left::Here(name)),
        Err(CarryError::Away(cause)) => Err(HostFault::Away { cause }),
        Err(CarryError::Unsound(cause)) => {
            tracing::warn!(host = place.far.host, commit, cause, "what an attempt has left on a host is refused");
            Ok(Left::Refused(cause))
        }
        // The work itself is here.
        Err(CarryError::Refused(cause) | CarryError::Failed(cause)) => {
            tracing::warn!(host = place.far.host, cause, "cannot fetch what an attempt has left on a host");
            Ok(Left::Lost(cause))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_is_named() {
        let mut waits = None;
        for why in ["an unfinished merge", "git refuses it"] {
            add(&mut waits, why.to_owned());
        }
        assert_eq!(waits.as_deref(), Some("an unfinished merge; also, git refuses it"));
    }
}
