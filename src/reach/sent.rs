//! Attempts that are recorded here as being on a host, with the state directory to which each was sent.

use std::collections::BTreeMap;

use swarm_store::runs::home::Home;
use swarm_store::runs::{journal, registered};
use swarm_sys::paths::Paths;

use super::{evidence, owed};

/// Returns the attempts that runs attend on a host, or about which it is owed something, as `JOB.ATTEMPT`. Each has the id
/// of the state directory to which it was sent; attempts without a known one are left out.
pub fn sent_to(paths: &Paths, host: &str) -> BTreeMap<String, String> {
    let of_owed = owed::of_host(paths, host).into_iter().filter_map(|(_, owed)| {
        let at = owed.at()?;
        Some((format!("{}.{}", at.job, at.attempt), at.host.clone()?))
    });
    let homes = registered(paths);
    let of_runs = homes.iter().flat_map(|home| under_way(&Home::new(home), host));
    of_owed.chain(of_runs).collect()
}

/// Returns the attempts of one run whose end on the host is not known.
fn under_way(home: &Home, host: &str) -> Vec<(String, String)> {
    let Ok(Some(run)) = journal::replay(home) else { return Vec::new() };
    let jobs = run.plan.jobs.iter().zip(&run.jobs);
    let those = jobs.filter(|(_, progress)| progress.is_out() && progress.host.as_deref() == Some(host));
    those
        .filter_map(|(job, progress)| {
            let sent = evidence::sent(&home.attempt(&job.id, progress.attempt), &run.plan.id)?;
            Some((format!("{}.{}", job.id, progress.attempt), sent.host?))
        })
        .collect()
}
