//! Startup of a supervisor: reconciles what is on disk with what runs, by means of the records that
//! an ordinary start writes.

use std::sync::Arc;

use super::error::SupervisorError;
use super::machine::{Adoption, adoptions};
use crate::registry::{Mutation, RegistryHandle, reconcile};
use crate::worker::is_closing;
use swarm_model::Row;
use swarm_ports::{DirFacts, Ports, Scan, SpecFacts, Unreadable};

/// Work for the actor of a worker that was found on disk.
pub enum Task {
    /// Adopt the worker of this name.
    Adopt(String),
    /// Roll back a start that was never committed.
    RollBack(Box<DirFacts>),
}

/// Cleans up dead records among the names that `wanted` selects. Returns what is left for the actors.
pub async fn sweep(
    ports: &Ports,
    registry: &RegistryHandle,
    wanted: &(dyn Fn(&str) -> bool + Sync),
) -> Result<Vec<Task>, SupervisorError> {
    let listing = registry.list().await?;
    let rows = &listing.rows;
    let Scan { mut dirs, unreadable } = ports.records.scan().await.map_err(SupervisorError::Records)?;
    dirs.retain(|facts| wanted(&facts.name));
    // The actor of a worker whose records cannot be read tries again until it can adopt the worker.
    let is_current = |one: &&Unreadable| {
        let of =
            |row: &&Arc<Row>| row.name == one.name && row.swarm().is_some_and(|meta| meta.generation == one.generation);
        wanted(&one.name) && rows.iter().any(|row| of(&row))
    };
    let mut tasks: Vec<Task> = unreadable.iter().filter(is_current).map(|one| Task::Adopt(one.name.clone())).collect();
    let is_damaged = |name: &str| unreadable.iter().any(|one| one.name == name);
    for adoption in adoptions(&listing, &dirs, &ports.clock.host()) {
        match adoption {
            Adoption::Worker(name) => tasks.push(Task::Adopt(name)),
            Adoption::AdoptBack(row) if dirs.iter().any(|facts| facts.name == row.name && is_closing(ports, facts)) => {
            }
            Adoption::AdoptBack(row) => {
                tracing::warn!(worker = %row.name, "a running worker has no row; inserting it again");
                if let Err(error) = registry.mutate(Mutation::Insert(row)).await {
                    tracing::error!(%error, "cannot insert the missing row");
                }
            }
            // Records of the earlier generation that cannot be read are no proof that it has none.
            Adoption::Renew { row, .. } if is_damaged(&row.name) => {}
            Adoption::Renew { outdated, row } => {
                tracing::warn!(worker = %row.name, "a worker has the row of an earlier generation; replacing it");
                if let Err(error) = registry.mutate(Mutation::Replace { expect: outdated.key(), row }).await {
                    tracing::error!(%error, "cannot replace the row of an earlier generation");
                }
            }
            Adoption::Remove { name, generation, with_logs } => {
                remove(ports, &name, generation, with_logs && !is_damaged(&name)).await;
            }
            // In the worker's actor: a worktree whose removal hangs must not keep the supervisor from starting.
            Adoption::Abort(facts) => tasks.push(Task::RollBack(facts)),
        }
    }
    Ok(tasks)
}

/// Handles the rows that another program dropped. Deletes the records of ended workers, which that
/// program does not know of. Returns the workers that get their row back, with their generations: those that run,
/// because nobody cleans a running worker, and those that have the row of an earlier generation. That program saved a
/// list that it had read before the start. Lists the directories before the rows, so that a start that is committed in
/// between has its row.
pub async fn settle_dropped(ports: &Ports, registry: &RegistryHandle) -> Result<Vec<(String, u64)>, SupervisorError> {
    let Scan { mut dirs, unreadable } = ports.records.scan().await.map_err(SupervisorError::Records)?;
    let listing = registry.list().await?;
    let rows = &listing.rows;
    let mut names: Vec<String> = dirs.iter().map(|facts| facts.name.clone()).collect();
    names.extend(unreadable.into_iter().map(|one| one.name));
    // A spec that was not executed yet belongs to a start in progress.
    dirs.retain(|facts| matches!(facts.spec, SpecFacts::Executed(_)));
    for adoption in adoptions(&listing, &dirs, &ports.clock.host()) {
        if let Adoption::Remove { name, generation, with_logs: true } = adoption {
            let alone = names.iter().filter(|other| **other == name).count() == 1;
            remove(ports, &name, generation, alone).await;
        }
    }
    let has_row = |facts: &DirFacts| rows.iter().any(|row| row.name == facts.name);
    let is_dropped = |facts: &&DirFacts| reconcile::runs(facts) && !has_row(facts) && !is_closing(ports, facts);
    let outdated = reconcile::outdated(rows, &dirs).into_iter().map(|(_, facts)| facts);
    let lost = dirs.iter().filter(is_dropped).chain(outdated).filter(|facts| !listing.unjudged.covers(&facts.name));
    Ok(lost.map(|facts| (facts.name.clone(), facts.generation)).collect())
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
