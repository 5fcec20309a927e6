//! `swarm recover --gone HOST`: declares that a machine that shares the state directory is gone for good.

use std::collections::BTreeSet;

use swarm_model::{Machine, Refusal, RefusalKind};
use swarm_ports::{Records as _, Scan};
use swarm_store::records::DiskRecords;
use swarm_sys::machine::{self, Gone};
use swarm_sys::paths::Paths;

use crate::cli::error::Failure;

/// Records that nothing of the boots of `host` that wrote records here runs any more. A later boot of the same machine
/// counts as another machine again.
///
/// # Errors
/// Fails if no other machine of this name wrote records here, or if they cannot be read.
pub fn declare(host: &str, paths: &Paths) -> Result<(), Failure> {
    let failed = |error: std::io::Error| {
        Failure::from(Refusal::new(RefusalKind::Registry, format!("cannot declare '{host}' gone: {error}")))
    };
    let others = others(paths).map_err(failed)?;
    let (meant, rest): (Vec<_>, Vec<_>) = others.into_iter().partition(|machine| machine.host == host);
    if meant.is_empty() {
        let cause = format!("no other machine named '{host}' uses {}", paths.root().display());
        let names: BTreeSet<String> = rest.into_iter().map(|machine| format!("'{}'", machine.host)).collect();
        let refusal = Refusal::new(RefusalKind::Invalid, cause);
        return Err(match names.is_empty() {
            true => refusal,
            false => refusal.remedy(format!("name one of these: {}", names.into_iter().collect::<Vec<_>>().join(", "))),
        }
        .into());
    }
    machine::declare_gone(paths, &meant).map_err(failed)
}

/// Returns the other machines that the records and the supervisor's fence name, without those that are gone.
fn others(paths: &Paths) -> std::io::Result<Vec<Machine>> {
    let mut found: Vec<Machine> = machine::other_holder(paths)?.into_iter().collect();
    let gone = Gone::new(paths);
    for facts in DiskRecords::new(paths.clone()).scan_now().and_then(Scan::complete)? {
        let leased = facts.lease.content.as_ref().and_then(|lease| lease.machine.as_ref());
        for machine in leased.into_iter().chain(facts.spec.spec().and_then(|spec| spec.machine.as_ref())) {
            if gone.elsewhere(Some(machine))?.is_some() {
                found.push(machine.clone());
            }
        }
    }
    Ok(found)
}
