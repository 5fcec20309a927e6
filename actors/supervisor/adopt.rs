//! The first act of a supervisor: bring what lies on disk and what runs
//! together, by the same records that an ordinary start writes.

use super::error::SupervisorError;
use super::machine::{Adoption, adoptions};
use crate::registry::{Mutation, RegistryHandle};
use crate::worker;
use swarm_model::{Event, EventKind};
use swarm_ports::{DirFacts, Ports, SpecFacts};

/// Cleans up after what died, among the names that `wanted` picks, and tells
/// which of them need an actor.
pub async fn sweep(
    ports: &Ports,
    registry: &RegistryHandle,
    wanted: &(dyn Fn(&str) -> bool + Sync),
) -> Result<Vec<String>, SupervisorError> {
    let rows = registry.rows().await?;
    let mut dirs = ports.records.scan().await.map_err(SupervisorError::Records)?;
    dirs.retain(|facts| wanted(&facts.name));
    let mut names = Vec::new();
    for adoption in adoptions(&rows, &dirs, &ports.clock.host()) {
        match adoption {
            Adoption::Worker(name) => names.push(name),
            Adoption::AdoptBack(row) => {
                tracing::warn!(worker = %row.name, "it runs and its row is missing, putting the row back");
                if let Err(error) = registry.mutate(Mutation::Insert(row)).await {
                    tracing::error!(%error, "the missing row could not be put back");
                }
            }
            Adoption::Remove { name, generation, with_logs } => remove(ports, &name, generation, with_logs).await,
            Adoption::Abort(facts) => {
                if abort(ports, registry, *facts.clone()).await.is_none() {
                    names.push(facts.name);
                }
            }
        }
    }
    Ok(names)
}

/// After another program wrote: records of ended workers whose row it dropped
/// go, as it has no word for them. Directories are listed before the rows, so
/// that a start that is committed meanwhile has its row.
pub async fn forget_dropped(ports: &Ports, registry: &RegistryHandle) -> Result<(), SupervisorError> {
    let mut dirs = ports.records.scan().await.map_err(SupervisorError::Records)?;
    let rows = registry.rows().await?;
    let names: Vec<String> = dirs.iter().map(|facts| facts.name.clone()).collect();
    // What was not executed yet is a start under way.
    dirs.retain(|facts| matches!(facts.spec, SpecFacts::Executed(_)));
    for adoption in adoptions(&rows, &dirs, &ports.clock.host()) {
        if let Adoption::Remove { name, generation, with_logs: true } = adoption {
            let alone = names.iter().filter(|other| **other == name).count() == 1;
            remove(ports, &name, generation, alone).await;
        }
    }
    Ok(())
}

async fn remove(ports: &Ports, name: &str, generation: u64, with_logs: bool) {
    let mut removed = ports.records.remove(name, generation).await;
    if with_logs && removed.is_ok() {
        removed = ports.records.remove_logs(name).await;
    }
    if let Err(error) = removed {
        tracing::warn!(worker = name, generation, %error, "records that no row leads to stay");
    }
}

/// Takes back a start that was never committed, as soon as its shim has seen
/// that. `None` when its shim found the row committed after all.
async fn abort(ports: &Ports, registry: &RegistryHandle, facts: DirFacts) -> Option<()> {
    if !ports.records.lease_is_let_go(&facts.name, facts.generation).await {
        return None;
    }
    let now = ports.records.observe(&facts.name, facts.generation).await.ok().flatten();
    if let Some(now) = &now
        && let Ok(Some(row)) = registry.find(&facts.name).await
        && crate::registry::reconcile::belongs(&row, now)
    {
        return None;
    }
    if let Some(spec) = facts.spec.spec() {
        if let Some(plan) = &spec.worktree {
            let caller = worker::caller_of(&spec.contract, &spec.request);
            if let Err(error) = ports.worktrees.undo(plan, &caller).await {
                tracing::error!(worker = %facts.name, path = %plan.path, %error, "the worktree of an aborted start stays");
                return Some(());
            }
        }
        ports.events.emit(Event {
            at_ms: ports.clock.wall_ms(),
            worker: Some(facts.name.clone()),
            generation: Some(facts.generation),
            request: Some(spec.request.clone()),
            kind: EventKind::StartAborted { cause: "nothing was executed before it was cut off".to_owned() },
        });
    }
    remove(ports, &facts.name, facts.generation, false).await;
    Some(())
}
