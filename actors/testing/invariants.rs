//! Invariants that hold whenever nothing is in progress.

use std::collections::BTreeSet;

use super::world::World;
use crate::registry::reconcile;
use swarm_ports::{DirFacts, SpecFacts};

impl World {
    /// Checks all invariants.
    ///
    /// # Errors
    /// Returns a description of the first violation.
    pub fn check(&self) -> Result<(), String> {
        self.each_start_is_executed_once()?;
        self.no_worker_runs_without_a_row()?;
        self.no_row_without_a_life()?;
        self.no_directory_without_a_row()?;
        self.one_life_per_name()
    }

    /// Checks that no start was executed twice.
    ///
    /// # Errors
    /// Names the token that was executed twice.
    pub fn each_start_is_executed_once(&self) -> Result<(), String> {
        let mut seen = BTreeSet::new();
        match self.records.executions().into_iter().find(|token| !seen.insert(token.clone())) {
            None => Ok(()),
            Some(token) => Err(format!("the start {token} was executed twice")),
        }
    }

    /// Checks that every running worker has a row.
    ///
    /// # Errors
    /// Names the generation that runs without a row.
    pub fn no_worker_runs_without_a_row(&self) -> Result<(), String> {
        let rows = self.rows();
        let stray =
            |facts: &DirFacts| facts.lease.worker_alive && !rows.iter().any(|row| reconcile::belongs(row, facts));
        refuse(self.records.all().into_iter().find(stray), "runs without a row")
    }

    /// Checks that each row of this program leads to records of an executed command.
    ///
    /// # Errors
    /// Names the row that does not.
    pub fn no_row_without_a_life(&self) -> Result<(), String> {
        let dirs = self.records.all();
        for row in self.rows().iter().filter(|row| row.swarm().is_some()) {
            let lived =
                |facts: &&DirFacts| matches!(facts.spec, SpecFacts::Executed(_)) && reconcile::belongs(row, *facts);
            if !dirs.iter().any(|facts| lived(&facts)) {
                return Err(format!("the row of {} leads to no command that was executed", row.name));
            }
        }
        Ok(())
    }

    /// Checks that every directory has a row.
    ///
    /// # Errors
    /// Names the directory without a row.
    pub fn no_directory_without_a_row(&self) -> Result<(), String> {
        let rows = self.rows();
        let stray = |facts: &DirFacts| !rows.iter().any(|row| reconcile::belongs(row, facts));
        refuse(self.records.all().into_iter().find(stray), "has a directory and no row")
    }

    /// Checks that no worker runs twice.
    ///
    /// # Errors
    /// Names the worker that runs twice.
    pub fn one_life_per_name(&self) -> Result<(), String> {
        let mut seen = BTreeSet::new();
        let twice = |facts: &DirFacts| facts.lease.worker_alive && !seen.insert(facts.name.clone());
        refuse(self.records.all().into_iter().find(twice), "runs beside an earlier life")
    }
}

fn refuse(found: Option<DirFacts>, what: &str) -> Result<(), String> {
    match found {
        None => Ok(()),
        Some(facts) => Err(format!("{}.{} {what}", facts.name, facts.generation)),
    }
}
