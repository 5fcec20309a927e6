//! Invariants that hold whenever nothing is in progress. They use no code of the rooms: rows are read as plain JSON, and
//! compared with what the fakes recorded.

use std::collections::BTreeSet;

use serde_json::Value;

use super::world::World;
use swarm_ports::{DirFacts, SpecFacts};

/// What `state.json` says of a worker.
struct OnDisk {
    name: String,
    started: String,
    /// Launch token; `None` if another program started the worker.
    token: Option<String>,
}

impl OnDisk {
    fn of(row: &Value) -> Option<Self> {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        Some(Self {
            name: text(row.get("name")?)?,
            started: text(row.get("started")?)?,
            token: row.pointer("/metadata/swarm/id").and_then(text),
        })
    }

    /// Reports whether the start that this directory records wrote the row.
    fn is_of(&self, facts: &DirFacts) -> bool {
        let spec = facts.spec.spec();
        spec.is_some_and(|spec| {
            self.name == facts.name && self.started == spec.started && self.token.as_ref() == Some(&spec.token)
        })
    }
}

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

    /// Returns the rows of `state.json`. A missing file has none.
    ///
    /// # Errors
    /// Fails if the file is damaged: a check of no rows would prove nothing.
    fn on_disk(&self) -> Result<Vec<OnDisk>, String> {
        let text = self.state_text();
        if text.is_empty() {
            return Ok(Vec::new());
        }
        let file: Value = serde_json::from_str(&text).map_err(|error| format!("state.json: {error}"))?;
        let rows = file.get("workers").and_then(Value::as_array).ok_or("state.json has no workers")?;
        rows.iter().map(|row| OnDisk::of(row).ok_or_else(|| format!("state.json has a damaged row: {row}"))).collect()
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
        let rows = self.on_disk()?;
        let stray = |facts: &DirFacts| facts.lease.worker_alive && !rows.iter().any(|row| row.is_of(facts));
        refuse(self.records.all().into_iter().find(stray), "runs without a row")
    }

    /// Checks that each row of this program leads to records of an executed command. A job may wait in the queue, and be
    /// cancelled there.
    ///
    /// # Errors
    /// Names the row that does not.
    pub fn no_row_without_a_life(&self) -> Result<(), String> {
        let dirs = self.records.all();
        for row in self.on_disk()?.iter().filter(|row| row.token.is_some()) {
            let is_job = |facts: &DirFacts| facts.lease.job.is_some();
            let lived =
                |facts: &&DirFacts| (matches!(facts.spec, SpecFacts::Executed(_)) || is_job(facts)) && row.is_of(facts);
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
        let rows = self.on_disk()?;
        let stray = |facts: &DirFacts| !rows.iter().any(|row| row.is_of(facts));
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
