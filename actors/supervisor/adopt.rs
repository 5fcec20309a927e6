//! Startup of a supervisor: reconciles what is on disk with what runs, by means of the records that
//! an ordinary start writes.

use super::error::SupervisorError;
use super::machine::{Adoption, adoptions};
use crate::registry::{Mutation, RegistryHandle};
use crate::worker;
use swarm_model::{Event, EventKind};
use swarm_ports::{DirFacts, Ports, SpecFacts};

/// Cleans up dead starts and records among the names that `wanted` selects. Returns the names that
/// need an actor.
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
                tracing::warn!(worker = %row.name, "a running worker has no row; inserting it again");
                if let Err(error) = registry.mutate(Mutation::Insert(row)).await {
                    tracing::error!(%error, "cannot insert the missing row");
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

/// Deletes the records of ended workers whose row another program removed; that program does not
/// know of the records. Lists the directories before the rows, so that a start that is committed in
/// between has its row.
pub async fn forget_dropped(ports: &Ports, registry: &RegistryHandle) -> Result<(), SupervisorError> {
    let mut dirs = ports.records.scan().await.map_err(SupervisorError::Records)?;
    let rows = registry.rows().await?;
    let names: Vec<String> = dirs.iter().map(|facts| facts.name.clone()).collect();
    // A spec that was not executed yet belongs to a start in progress.
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
        tracing::warn!(worker = name, generation, %error, "cannot delete records that belong to no row");
    }
}

/// Rolls back a start that was never committed, once its shim has noticed that and released the
/// lease. Returns `None` if the shim still holds the lease or the row was committed after all.
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
                tracing::error!(worker = %facts.name, path = %plan.path, %error, "cannot roll back a worktree");
                return Some(());
            }
        }
        ports.events.emit(Event {
            at_ms: ports.clock.wall_ms(),
            worker: Some(facts.name.clone()),
            generation: Some(facts.generation),
            request: Some(spec.request.clone()),
            kind: EventKind::StartAborted { cause: "interrupted before the command was executed".to_owned() },
        });
    }
    remove(ports, &facts.name, facts.generation, false).await;
    Some(())
}
