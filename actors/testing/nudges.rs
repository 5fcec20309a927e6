//! In-memory files of nudges, and a calendar of full minutes.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use super::script::Script;
use swarm_model::nudges::{Nudge, Status};
use swarm_ports::{BoxFuture, Nudges, Survey};

pub struct FakeNudges {
    script: Arc<Script>,
    files: Mutex<BTreeMap<String, Nudge>>,
}

impl FakeNudges {
    pub fn new(script: Arc<Script>) -> Self {
        Self { script, files: Mutex::default() }
    }

    pub fn get(&self, worker: &str) -> Option<Nudge> {
        self.with(|files| files.get(worker).cloned())
    }

    /// Writes a nudge as another program would.
    pub fn put(&self, nudge: Nudge) {
        self.with(|files| files.insert(nudge.worker.clone(), nudge));
    }

    /// Deletes a nudge as another program would.
    pub fn take_away(&self, worker: &str) {
        self.with(|files| files.remove(worker));
    }

    pub fn status(&self, worker: &str) -> Option<Status> {
        self.get(worker).map(|nudge| nudge.status)
    }

    fn with<T>(&self, work: impl FnOnce(&mut BTreeMap<String, Nudge>) -> T) -> T {
        work(&mut self.files.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Returns the next date of `*/N * * * *` in UTC. Other expressions are errors.
fn date_after(expression: &str, wall_ms: u64) -> Result<u64, String> {
    let minutes: Option<u64> =
        expression.strip_prefix("*/").and_then(|rest| rest.strip_suffix(" * * * *")?.parse().ok());
    let every = minutes.ok_or("this calendar knows no such expression")? * 60_000;
    Ok((wall_ms / every + 1) * every)
}

impl Nudges for FakeNudges {
    fn load(&self) -> BoxFuture<'_, io::Result<Survey<Nudge>>> {
        Box::pin(async {
            let nudges = self.with(|files| files.values().cloned().collect());
            self.script.survey("nudge.load", nudges, |nudge: &Nudge| nudge.worker.clone()).await
        })
    }

    fn read<'a>(&'a self, worker: &'a str) -> BoxFuture<'a, io::Result<Option<Nudge>>> {
        Box::pin(async move {
            self.script.before("nudge.read", worker).await.map_err(io::Error::other)?;
            Ok(self.get(worker))
        })
    }

    fn save<'a>(&'a self, nudge: &'a Nudge) -> BoxFuture<'a, io::Result<()>> {
        Box::pin(async move {
            self.script.before("nudge.save", &nudge.worker).await.map_err(io::Error::other)?;
            self.put(nudge.clone());
            self.script.after("nudge.save").await.map_err(io::Error::other)
        })
    }

    fn remove<'a>(&'a self, worker: &'a str) -> BoxFuture<'a, io::Result<()>> {
        Box::pin(async move {
            self.script.before("nudge.remove", worker).await.map_err(io::Error::other)?;
            self.with(|files| files.remove(worker));
            Ok(())
        })
    }

    fn date_after(&self, expression: &str, wall_ms: u64) -> Result<u64, String> {
        date_after(expression, wall_ms)
    }
}
