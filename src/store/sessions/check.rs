//! What can be found out about a session from outside.

use std::io;
use std::path::Path;

use swarm_actors::heartbeat::recovery::{self, Facts, Known, STALE_MS};
use swarm_model::Recovery;
use swarm_model::{Session, SessionPlan};

use super::folder::Folder;
use super::store::{self, StoreError};
use super::{beat, set};
use swarm_sys::clock::{host, wall_ms};
use swarm_sys::procfs;

/// How it is set when a beat is too old to count.
const TIMEOUT: &str = "AGENT_HEARTBEAT_TIMEOUT_MS";
/// How it is set how often a session is gone on with.
const ATTEMPTS: &str = "AGENT_MAX_RECOVERY_ATTEMPTS";

/// How often a session is gone on with.
pub fn attempts_max() -> i64 {
    set(ATTEMPTS).map_or(recovery::ATTEMPTS_MAX, |number| i64::try_from(number).unwrap_or(i64::MAX))
}

/// What has been found out about the session in `base`.
#[derive(Debug)]
pub struct Checked {
    pub state: Option<Session>,
    /// Why there is none, where there is a file.
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

/// Looks at the session in `base`. The limits are those of the environment.
///
/// # Errors
/// When it cannot be looked at; a malformed state is no error.
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

/// What this machine knows of the process that the session names. A beat of another
/// process is another program's, and speaks for itself.
pub fn known(state: Option<&Session>, beat_pid: Option<i32>) -> Known {
    let boot = procfs::boot_id();
    let Some(owner) = state.and_then(Session::owner) else { return Known::Unknown };
    let Some(process) = owner.process.filter(|_| owner.host == host()) else { return Known::Unknown };
    if procfs::alive(&process, &boot).is_some() {
        return Known::Alive;
    }
    if beat_pid.is_none_or(|pid| pid == process.pid) { Known::Gone } else { Known::Unknown }
}

/// Whether the session of this plan can be gone on with.
pub fn answer(plan: &SessionPlan) -> Recovery {
    match check(Path::new(&plan.dir)) {
        Ok(checked) => recovery::decide(&checked.facts(Some(&plan.identifier))),
        Err(_) => Recovery::NoState,
    }
}
