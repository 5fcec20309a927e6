//! `swarm __pilot`: the far side of a host that is an allocation of Slurm. `hold` is the job: it takes the state directory and
//! keeps a supervisor running in it. `enter` is a step of the job: it passes a connection on, if the job holds the directory.
//!
//! ```text
//! sbatch -> hold: claim, allocation.json, supervisor … until the end: workers are ended, claim released
//! srun   -> enter: is it this allocation, and does its supervisor run? -> __stdio, __git or __attach
//! ```

pub mod claim;
mod ending;
mod hold;
mod times;

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use swarm_hosts::slurm::is_scrubbed;
use swarm_sys::allocation::{Allocation, VARIABLE};
use swarm_sys::clock::wall_ms;
use swarm_sys::files::replace_durably;
use swarm_sys::paths::Paths;
use swarm_sys::state_id::state_id;

use self::times::{Refused, Times};
use super::far;
use crate::api::client;

pub use ending::was_ended;

pub const VERB: &str = "__pilot";

/// File that describes the allocation which holds the directory.
const PRESENT: &str = "allocation.json";
/// Time for the job to take its directory, and to start a supervisor, once it runs.
const OPEN_MAX: Duration = Duration::from_secs(15);
/// Pause between two looks. A network file system tells nobody of changes.
const LOOK_PAUSE: Duration = Duration::from_millis(50);

/// The allocation that holds the directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Present {
    token: String,
    job: u64,
    node: String,
    /// Begin and end, in milliseconds since the Unix epoch. `None`: it has no end.
    begun_ms: u64,
    ends_ms: Option<u64>,
    /// Set once workers are ended because the allocation is.
    ending: bool,
}

impl Present {
    fn read(dir: &Path) -> Option<Self> {
        serde_json::from_slice(&std::fs::read(dir.join(PRESENT)).ok()?).ok()
    }

    fn write(&self, dir: &Path) -> io::Result<()> {
        replace_durably(dir, PRESENT, &serde_json::to_vec(self)?)
    }

    fn times(&self, now_ms: u64) -> Option<Times> {
        let ends_ms = self.ends_ms?;
        Some(Times {
            all: Duration::from_millis(ends_ms.saturating_sub(self.begun_ms)),
            left: Duration::from_millis(ends_ms.saturating_sub(now_ms)),
        })
    }
}

pub fn main(mut words: impl Iterator<Item = OsString>) -> u8 {
    let mode = words.next().unwrap_or_default();
    let rest: Vec<String> = words.map(|word| word.to_string_lossy().into_owned()).collect();
    let done = match (mode.to_str(), rest.as_slice()) {
        (Some("hold"), [state, token, name, more @ ..]) => hold::begin(state, token, name, more),
        (Some("serve"), [state, token, name, more @ ..]) => hold::serve(state, token, name, more),
        (Some("enter"), [state, token, words @ ..]) if !words.is_empty() => enter(state, token, words),
        _ => Err("unknown words of __pilot".to_owned()),
    };
    match done {
        Ok(code) => code,
        Err(cause) => {
            swarm_sys::complain!("swarm: error: {cause}");
            1
        }
    }
}

/// Becomes this program with these words, as a process of the allocation.
fn replaced(words: &[String], allocation: &Allocation, more: &[(&str, &str)]) -> String {
    let executable = match std::env::current_exe() {
        Ok(executable) => executable,
        Err(error) => return format!("cannot find the program: {error}"),
    };
    let mut command = Command::new(executable);
    command.args(words).env(VARIABLE, allocation.text()).envs(more.iter().copied());
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(is_scrubbed)) {
        command.env_remove(name);
    }
    format!("cannot start swarm: {}", command.exec())
}

/// Returns the allocation with this token in the directory.
fn allocation_in(paths: &Paths, token: &str) -> Result<Allocation, String> {
    let directory = state_id(paths).map_err(|error| format!("{}: {error}", paths.root().display()))?;
    Ok(Allocation { directory, token: token.to_owned() })
}

/// Waits until `is_done`; returns false after the time for a job to open.
fn is_soon(is_done: impl Fn() -> bool) -> bool {
    let deadline = Instant::now() + OPEN_MAX;
    while !is_done() {
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(LOOK_PAUSE);
    }
    true
}

/// Passes a connection on, if the allocation with this token holds the directory and its supervisor runs. A supervisor that
/// is started by a step would end with it.
fn enter(state: &str, token: &str, words: &[String]) -> Result<u8, String> {
    let paths = Paths::new(far::at_home(state)?);
    let root = paths.root();
    if !is_soon(|| Present::read(root).is_some_and(|present| present.token == token)) {
        let holder = claim::read(root).ok().flatten().filter(|claim| claim.token != token);
        return Err(match holder {
            Some(claim) => format!("allocation {} on {} holds {}", claim.job, claim.node, root.display()),
            None => format!("the allocation has not taken {} yet", root.display()),
        });
    }
    if !is_soon(|| client::is_running(&paths)) {
        return Err(format!(
            "the supervisor of the allocation does not answer: see {}",
            paths.supervisor_log().display()
        ));
    }
    Err(replaced(words, &allocation_in(&paths, token)?, &[]))
}

/// Why an allocation does not start something.
pub enum NoTime {
    /// It starts nothing any more.
    Closed(String),
    /// It does not start this.
    TooLong(String),
}

/// Returns why this allocation does not start an attempt with this time limit; `None` if it does, or if this is no allocation.
pub fn no_time(paths: &Paths, limit_ms: Option<u64>) -> Option<NoTime> {
    Allocation::of_this()?;
    let present = Present::read(paths.root())?;
    let job = present.job;
    if present.ending {
        return Some(NoTime::Closed(format!("allocation {job} is ending")));
    }
    let times = present.times(wall_ms())?;
    let minutes = times.left.as_secs() / 60;
    Some(match times.refuses(limit_ms.map(Duration::from_millis))? {
        Refused::Closed => NoTime::Closed(format!("allocation {job} ends in {minutes} min")),
        Refused::TooLong => {
            let limit = limit_ms.unwrap_or_default().div_ceil(60_000);
            NoTime::TooLong(format!("allocation {job} ends in {minutes} min, and the time limit is {limit} min"))
        }
    })
}
