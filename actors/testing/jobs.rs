//! A batch system whose jobs begin and end when a test says so.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::records::{FakeRecords, Key};
use swarm_model::{ExitRecord, Job, Over, Refusal, RefusalKind};
use swarm_ports::{BoxFuture, Jobs, MAY_WORK};
use tokio::sync::Notify;

/// Jobs by the directories of their starts.
pub struct FakeJobs {
    records: Arc<FakeRecords>,
    changed: Arc<Notify>,
    is_silent: AtomicBool,
}

impl FakeJobs {
    pub fn new(records: Arc<FakeRecords>) -> Self {
        Self { records, changed: Arc::default(), is_silent: AtomicBool::new(false) }
    }

    /// Returns the last start of `name`, whether it was executed or not.
    fn last(&self, name: &str) -> Key {
        let keys = self.records.keys();
        keys.into_iter().rfind(|(of, _)| of == name).expect("it was submitted")
    }

    /// Executes the command of the last job of `name`.
    ///
    /// # Panics
    /// Panics if there is none, as all of these do.
    pub fn begin(&self, name: &str) {
        self.records.execute(&self.last(name));
    }

    /// Ends the command of the last job of `name`, which records it.
    pub fn end(&self, name: &str, exit: ExitRecord) {
        self.records.set_exit(&self.last(name), exit);
        self.changed.notify_waiters();
    }

    /// Ends the last job of `name` without a record.
    pub fn lose(&self, name: &str, word: &str, over: Over) {
        self.records.say(&self.last(name), word, Some(over));
        self.changed.notify_waiters();
    }

    /// Says whether the batch system reaches the nodes.
    pub fn reach(&self, reaches: bool) {
        self.is_silent.store(!reaches, Ordering::Relaxed);
    }

    fn job(&self, key: &Key) -> Option<Job> {
        self.records.facts(key)?.lease.job
    }
}

impl Jobs for FakeJobs {
    fn over(&self, name: &str, generation: u64) -> BoxFuture<'static, ()> {
        let (records, changed, key) =
            (Arc::clone(&self.records), Arc::clone(&self.changed), (name.to_owned(), generation));
        Box::pin(async move {
            loop {
                let change = changed.notified();
                if records.facts(&key).is_none_or(|facts| !facts.lease.held) {
                    return;
                }
                change.await;
            }
        })
    }

    fn stop<'a>(&'a self, name: &'a str, generation: u64) -> BoxFuture<'a, Result<(), Refusal>> {
        let key = (name.to_owned(), generation);
        Box::pin(async move {
            if self.job(&key).is_none() {
                return Err(Refusal::new(RefusalKind::Tool, format!("worker '{name}' is no job")));
            }
            self.records.say(&key, "CANCELLED by 0", Some(Over::Proven));
            self.changed.notify_waiters();
            Ok(())
        })
    }

    fn check_gone<'a>(&'a self, name: &'a str, generation: u64) -> BoxFuture<'a, Result<(), Refusal>> {
        let key = (name.to_owned(), generation);
        Box::pin(async move {
            if self.is_silent.load(Ordering::Relaxed) {
                let refusal = Refusal::new(RefusalKind::Tool, format!("the job of '{name}' was lost: {MAY_WORK}"));
                return Err(Refusal { passes: true, ..refusal });
            }
            if let Some(word) = self.job(&key).and_then(|job| job.state) {
                self.records.say(&key, &word, Some(Over::Proven));
            }
            Ok(())
        })
    }
}
