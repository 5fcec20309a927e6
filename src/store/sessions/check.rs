//! Collects the observable facts of a session.

use std::io;
use std::path::Path;

use swarm_actors::sessions::recovery::{self, Facts, Known, STALE_MS};
use swarm_model::{Machine, Recovery, Session, SessionPlan};

use super::folder::Folder;
use super::store::{self, StoreError};
use super::{beat, set};
use swarm_sys::clock::wall_ms;
use swarm_sys::{machine, procfs};

/// Environment variable that sets the age in milliseconds at which a beat is stale.
const TIMEOUT: &str = "AGENT_HEARTBEAT_TIMEOUT_MS";
/// Environment variable that sets the maximum number of recoveries of a session.
const ATTEMPTS: &str = "AGENT_MAX_RECOVERY_ATTEMPTS";

/// Returns the maximum number of recoveries of a session.
pub fn attempts_max() -> i64 {
    set(ATTEMPTS).map_or(recovery::ATTEMPTS_MAX, |number| i64::try_from(number).unwrap_or(i64::MAX))
}

/// Facts about a session.
#[derive(Debug)]
pub struct Checked {
    pub state: Option<Session>,
    /// Why the state file could not be parsed. `None` if it was, or if there is none.
    pub malformed: Option<String>,
    pub beat_ms: Option<i64>,
    pub beat_pid: Option<i32>,
    pub known: Known,
    pub attempts_max: i64,
    pub stale_ms: i64,
}

impl Checked {
    pub fn facts<'a>(&'a self, expected: Option<&'a str>) -> Facts<'a> {
        Facts {
            state: self.state.as_ref(),
            expected,
            beat_ms: self.beat_ms,
            process: self.known,
            attempts_max: self.attempts_max,
            now_ms: i64::try_from(wall_ms()).unwrap_or(i64::MAX),
            stale_ms: self.stale_ms,
        }
    }
}

/// Checks the session in `base`. The limits come from the environment.
///
/// # Errors
/// Fails on I/O errors. A malformed state is not an error.
pub fn check(base: &Path) -> io::Result<Checked> {
    let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let mut checked = Checked {
        state: None,
        malformed: None,
        beat_ms: None,
        beat_pid: None,
        known: Known::Unknown,
        attempts_max: attempts_max(),
        stale_ms: signed(set(TIMEOUT).unwrap_or(STALE_MS)),
    };
    let Some(folder) = Folder::open(base)? else { return Ok(checked) };
    match store::load(&folder) {
        Ok(state) => checked.state = state,
        Err(StoreError::System(error)) => return Err(error),
        Err(error) => checked.malformed = Some(error.to_string()),
    }
    let beat = beat::stamp_of(&folder);
    (checked.beat_ms, checked.beat_pid) = (beat.map(|(at_ms, _)| at_ms), beat.map(|(_, pid)| pid));
    checked.known = known(checked.state.as_ref(), checked.beat_pid);
    Ok(checked)
}

/// Returns what this machine knows about the process named by the session. If the last beat has another pid, it was
/// written by another program and counts on its own, so the result is `Unknown` instead of `Gone`.
pub fn known(state: Option<&Session>, beat_pid: Option<i32>) -> Known {
    let boot = procfs::boot_id();
    let Some(owner) = state.and_then(Session::owner) else { return Known::Unknown };
    let Some(process) = owner.process else { return Known::Unknown };
    if !is_of_here(&process.boot, &owner.host, owner.machine.as_ref(), machine::this()) {
        return Known::Unknown;
    }
    match procfs::alive(&process, &boot) {
        Ok(Some(_)) => return Known::Alive,
        Ok(None) => {}
        Err(_) => return Known::Unknown,
    }
    if beat_pid.is_none_or(|pid| pid == process.pid) { Known::Gone } else { Known::Unknown }
}

/// Reports whether this machine can tell whether a process of this boot lives: it sees the processes of its present boot,
/// apart from those of containers, which have names of their own; and those of its earlier boots are gone. Another boot of
/// a machine with the same name may be another machine.
fn is_of_here(boot: &str, host: &str, machine: Option<&Machine>, here: &Machine) -> bool {
    if boot == here.boot {
        return host == here.host;
    }
    machine.is_some_and(|machine| !machine.id.is_empty() && machine.id == here.id)
}

/// Decides whether the session of this plan can be recovered.
pub fn answer(plan: &SessionPlan) -> Recovery {
    match check(Path::new(&plan.dir)) {
        Ok(checked) => recovery::decide(&checked.facts(Some(&plan.identifier))),
        Err(_) => Recovery::NoState,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_earlier_boot_is_gone_only_if_the_machine_is_certainly_this_one() {
        let machine = |id: &str, boot: &str| Machine { id: id.into(), boot: boot.into(), host: "ubuntu".into() };
        let here = machine("a", "2");
        for (boot, host, of, expected, why) in [
            ("2", "ubuntu", Some(machine("a", "2")), true, "this boot"),
            ("2", "ubuntu", None, true, "this boot, of an older version"),
            ("2", "container", Some(machine("a", "2")), false, "a container, whose processes are hidden"),
            ("1", "ubuntu", Some(machine("a", "1")), true, "an earlier boot"),
            ("1", "renamed", Some(machine("a", "1")), true, "an earlier boot, before it was renamed"),
            ("1", "ubuntu", Some(machine("b", "1")), false, "another machine of the same name"),
            ("1", "ubuntu", Some(machine("", "1")), false, "a machine without an id"),
            ("1", "ubuntu", None, false, "another boot, of an older version"),
        ] {
            assert_eq!(is_of_here(boot, host, of.as_ref(), &here), expected, "{why}");
        }
        assert!(!is_of_here("1", "ubuntu", Some(&machine("", "1")), &machine("", "2")), "no machine has an id");
    }
}
