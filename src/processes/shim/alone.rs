//! `swarm __shim --alone DIR`: the shim as the job of a batch system, on a node that shares the state directory. There is no
//! supervisor beside it: the row was committed before the job was submitted. A job may be executed twice, because it was
//! submitted twice or put back into the queue; the first execution takes `claim`, and all others leave.
//!
//! | step | write | if everything is killed right after it |
//! |---|---|---|
//! | 1 | `claim`, by a link | the command was not executed; later executions leave |
//! | 2 | `spec.pending` becomes `spec.json` | the command counts as executed |
//! | 3 | mail that it has begun | seen at the next answer of the batch system |
//! | 4 | `exit.json` | as of every shim |
//! | 5 | mail that it has ended | seen at the next answer of the batch system |

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::Path;

use serde::Deserialize;
use swarm_model::{Ended, Spec, Wanted, WantedState};
use swarm_store::jobs::{CLAIM, FAILED, LEFT, send_mail};
use swarm_sys::files::write_private;

use crate::processes::pilot::claim::{self, Claim, Taken, Verdict};

/// Exit code of an execution that left the command to another one.
const LEAVES: u8 = 3;
/// Exit code if the command was not executed.
const FAILS: u8 = 1;

/// Runs one worker as a job. Returns the exit code of its command, as shells report it.
pub fn main(dir: Option<&OsStr>) -> u8 {
    let Some(dir) = dir.map(Path::new) else { return 2 };
    match take(dir) {
        Ok(Taken::Held) => {}
        Ok(Taken::Left(why)) => {
            swarm_sys::complain!("swarm: this job leaves: {why}");
            return LEAVES;
        }
        Err(error) => return fail(dir, &format!("cannot take {}: {error}", dir.join(CLAIM).display())),
    }
    match super::run_as(dir, true, || {}) {
        Ok(Some(Ended::Code(code))) => u8::try_from(code).unwrap_or(FAILS),
        Ok(Some(Ended::Signal(signal))) => u8::try_from(128 + signal).unwrap_or(FAILS),
        Ok(None) => FAILS,
        Err(error) => fail(dir, &error.to_string()),
    }
}

/// Takes the directory, unless another execution has, or nothing is to be started.
fn take(dir: &Path) -> io::Result<Taken> {
    #[derive(Deserialize)]
    struct Token {
        token: String,
    }
    let left = |why: &str| Ok(Taken::Left(why.to_owned()));
    let pending = match fs::read(dir.join("spec.pending")) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            note_left(dir);
            return left("its command was executed before, or its worker was removed");
        }
        Err(error) => return Err(error),
    };
    let wanted: Option<Wanted> = fs::read(dir.join("wanted.json")).ok().and_then(|it| serde_json::from_slice(&it).ok());
    if wanted.is_some_and(|wanted| wanted.state == WantedState::Stopped) {
        return left("its worker is to be stopped");
    }
    let Token { token } = serde_json::from_slice(&pending)?;
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let node = Some(variable("SLURMD_NODENAME")).filter(|node| !node.is_empty());
    let mine = Claim {
        token,
        job: variable("SLURM_JOB_ID").parse().unwrap_or_default(),
        node: node.unwrap_or_else(swarm_sys::clock::host),
    };
    let taken =
        claim::take(dir, &mine, |holder| Verdict::Holds(format!("job {} on {} has it", holder.job, holder.node)))?;
    if taken != Taken::Held {
        note_left(dir);
    }
    Ok(taken)
}

/// Notes that a later execution has left: the state of the job is no longer that of the first one.
fn note_left(dir: &Path) {
    if dir.is_dir() {
        let _ = write_private(&dir.join(LEFT), b"");
    }
}

/// Records that the command was not executed, and why.
fn fail(dir: &Path, why: &str) -> u8 {
    swarm_sys::complain!("swarm: error: cannot start the worker: {why}");
    let _ = write_private(&dir.join(FAILED), why.as_bytes());
    tell(dir, "failed");
    FAILS
}

/// Leaves mail about the worker in this directory.
pub(super) fn tell(dir: &Path, what: &str) {
    let root = dir.parent().and_then(Path::parent);
    if let (Some(root), Some(name)) = (root, dir.file_name().and_then(OsStr::to_str)) {
        send_mail(root, name, what);
    }
}

/// Returns the variables of the job that its worker gets: those of the batch system.
pub(super) fn variables(spec: &Spec) -> Vec<(String, String)> {
    if spec.contract.job.is_none() {
        return Vec::new();
    }
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .filter(|(name, _)| name.starts_with("SLURM_") || name.starts_with("SLURMD_"))
        .collect()
}
