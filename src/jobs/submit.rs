//! Start of a worker that is a job. Its row is committed between the two steps.
//!
//! | step | write | if everything is killed right after it |
//! |---|---|---|
//! | 1 prepare | `job.json` | the start is withdrawn |
//! | 2 the row | | Slurm does not have the job: the next supervisor submits it |
//! | 3 open: sbatch | | Slurm has the job, which the next supervisor finds by its name |
//! | 4 its number in `job.json` | | the same |

use std::io;
use std::path::PathBuf;

use swarm_hosts::slurm::single::Sent;
use swarm_model::Spec;
use swarm_ports::{LaunchError, Prepared};
use swarm_store::jobs;
use swarm_sys::files::make_dirs;
use swarm_sys::paths::Paths;

use super::seen::Known;

/// Job that is not submitted yet.
pub struct JobGate(Known);

/// Prepares the submission of a start. Nothing is executed.
///
/// # Errors
/// Fails if its files cannot be written.
pub fn prepare(paths: &Paths, dir: PathBuf, spec: &Spec) -> Result<Prepared, LaunchError> {
    let failed = |error: io::Error| LaunchError::System(format!("cannot prepare the job: {error}"));
    let known = Known::of(paths, dir, spec).map_err(failed)?;
    let known = known.ok_or_else(|| LaunchError::System("the worker is no job".to_owned()))?;
    make_dirs(&jobs::mail(paths.root())).map_err(failed)?;
    jobs::write(&known.dir, &known.job).map_err(failed)?;
    Ok(Prepared { lease: jobs::lease(spec), window: None, gate: Box::new(JobGate(known)) })
}

/// Submits the job. Returns warnings.
///
/// # Errors
/// Fails if Slurm refuses it. If it is not known whether Slurm has the job, the start goes on: the fleet finds it, or submits
/// it again.
pub fn open(gate: JobGate) -> Result<Vec<String>, LaunchError> {
    let JobGate(mut known) = gate;
    let sent = known.cluster.submit(&known.dir, &known.order, &known.job.name);
    known.job.submissions = 1;
    let warning = match sent {
        Sent::Refused(words) => return Err(LaunchError::NotStarted(format!("Slurm refuses the job: {words}"))),
        Sent::Job(number) => {
            known.job.number = Some(number);
            None
        }
        Sent::Unknown(why) => Some(format!("it is not known yet whether Slurm has the job: {why}")),
    };
    // Slurm knows the rest.
    if let Err(error) = jobs::write(&known.dir, &known.job) {
        tracing::warn!(job = known.job.name, %error, "cannot note the number of a job");
    }
    Ok(warning.into_iter().collect())
}
