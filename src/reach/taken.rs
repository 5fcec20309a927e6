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
                left.waits = Some(unsound(place, &tip, &cause));
                left.tip = None;
                refused.push(tip);
            }
            Err(error) => return Err(carry_failed(error)),
        }
    }
    for commit in left.also.iter().chain(&left.strays) {
        match left_here(now, place, commit, caller)? {
            Left::Here(name) => kept.push(name),
            Left::Refused => refused.push(commit.clone()),
            Left::Lost => {}
        }
    }
    let written = evidence::write(now, &place.far.host, &left);
    written.map_err(|error| failed_here(format!("cannot write the files of the attempt: {error}")))?;
    let FarResult { exit, tip, left_out, waits, is_restarted, ignored, .. } = left;
    Ok(Taken { end: FarEnd { exit, tip, left_out, waits, is_restarted, kept, ignored }, refused })
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
    Refused,
    /// The host does not give it.
    Lost,
}

/// Fetches what an attempt has left apart from its work.
fn left_here(now: &Now, place: &Place, commit: &str, caller: &Caller) -> Result<Left, HostFault> {
    let label = format!("{}.{}", now.job().id, now.progress.attempt);
    match carry::fetch_left(&place.common, &place.far, (commit, &label), caller) {
        Ok(name) => Ok(Left::Here(name)),
        Err(CarryError::Away(cause)) => Err(HostFault::Away { cause }),
        Err(CarryError::Unsound(cause)) => {
            tracing::warn!(host = place.far.host, commit, cause, "what an attempt has left on a host is refused");
            Ok(Left::Refused)
        }
        // The work itself is here.
        Err(CarryError::Refused(cause) | CarryError::Failed(cause)) => {
            tracing::warn!(host = place.far.host, cause, "cannot fetch what an attempt has left on a host");
            Ok(Left::Lost)
        }
    }
}
