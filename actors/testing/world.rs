//! A machine with everything that a supervisor interacts with.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::clock::FakeClock;
use super::events::{FakeEvents, FakeLogs};
use super::flows::FakeFlows;
use super::hosts::FakeHosts;
use super::jobs::FakeJobs;
use super::kernel::Kernel;
use super::landings::FakeLandings;
use super::launcher::FakeLauncher;
use super::loops::FakeLoops;
use super::nudges::FakeNudges;
use super::processes::FakeProcesses;
use super::records::FakeRecords;
use super::runs::FakeRuns;
use super::script::Script;
use super::sessions::FakeSessions;
use super::terminals::FakeTerminals;
use super::worktrees::FakeWorktrees;
use crate::registry::reconcile;
use crate::registry::store::{self, Loaded};
use swarm_model::{Ended, FineState, Reason, Row, Wire};
use swarm_ports::{DirFacts, Ports};

pub struct World {
    /// State directory. `state.json` and `state.lock` are real.
    pub root: PathBuf,
    pub clock: Arc<FakeClock>,
    pub events: Arc<FakeEvents>,
    pub flows: Arc<FakeFlows>,
    pub hosts: Arc<FakeHosts>,
    pub jobs: Arc<FakeJobs>,
    pub kernel: Arc<Kernel>,
    pub landings: Arc<FakeLandings>,
    pub launcher: Arc<FakeLauncher>,
    pub logs: Arc<FakeLogs>,
    pub loops: Arc<FakeLoops>,
    pub nudges: Arc<FakeNudges>,
    pub processes: FakeProcesses,
    pub records: Arc<FakeRecords>,
    pub runs: Arc<FakeRuns>,
    pub script: Arc<Script>,
    pub sessions: Arc<FakeSessions>,
    pub terminals: Arc<FakeTerminals>,
    pub worktrees: Arc<FakeWorktrees>,
}

/// A test whose fault never struck shows nothing, so it fails. One that may miss its faults forgets them.
impl Drop for World {
    fn drop(&mut self) {
        let unmet = self.script.unmet();
        assert!(unmet.is_empty() || std::thread::panicking(), "faults that never struck: {unmet:?}");
    }
}

impl World {
    /// Creates an empty machine below `home`, a directory of the test. Must run within a runtime.
    ///
    /// # Panics
    /// Panics if directories cannot be created there.
    pub fn new(home: &Path) -> Self {
        let root = home.join("state");
        fs::create_dir_all(&root).expect("the test's directory can be written");
        let clock = Arc::new(FakeClock::default());
        let script = Arc::new(Script::default());
        let kernel = Arc::new(Kernel::new(Arc::clone(&clock)));
        let records = Arc::new(FakeRecords::new(Arc::clone(&kernel), Arc::clone(&script)));
        let shims = FakeLauncher::new(root.clone(), Arc::clone(&kernel), Arc::clone(&records), Arc::clone(&script));
        let processes =
            FakeProcesses::new(Arc::clone(&kernel), Arc::clone(&records), Arc::clone(&clock), Arc::clone(&script));
        let nudges = Arc::new(FakeNudges::new(Arc::clone(&script)));
        let worktrees = FakeWorktrees::new(home.join("repo-worktrees"), Arc::clone(&script));
        let sessions = Arc::new(FakeSessions::new(Arc::clone(&clock), Arc::clone(&kernel), Arc::clone(&script)));
        Self {
            root,
            clock,
            events: Arc::default(),
            flows: Arc::new(FakeFlows::new(Arc::clone(&script))),
            hosts: Arc::new(FakeHosts::new(Arc::clone(&script))),
            jobs: Arc::new(FakeJobs::new(Arc::clone(&records))),
            kernel,
            landings: Arc::new(FakeLandings::new(Arc::clone(&script))),
            launcher: Arc::new(shims),
            logs: Arc::default(),
            loops: Arc::new(FakeLoops::new(Arc::clone(&script))),
            nudges,
            processes,
            records,
            runs: Arc::new(FakeRuns::new(Arc::clone(&script))),
            terminals: Arc::new(FakeTerminals::new(Arc::clone(&script))),
            script,
            sessions,
            worktrees: Arc::new(worktrees),
        }
    }

    pub fn ports(&self) -> Ports {
        Ports {
            clock: self.clock.clone(),
            events: self.events.clone(),
            flows: self.flows.clone(),
            hosts: self.hosts.clone(),
            jobs: self.jobs.clone(),
            landings: self.landings.clone(),
            launcher: self.launcher.clone(),
            logs: self.logs.clone(),
            loops: self.loops.clone(),
            nudges: self.nudges.clone(),
            processes: Arc::new(self.processes.clone()),
            records: self.records.clone(),
            runs: self.runs.clone(),
            sessions: self.sessions.clone(),
            terminals: self.terminals.clone(),
            worktrees: self.worktrees.clone(),
        }
    }

    /// Lets virtual time pass. Paused time advances only when no task can run, so everything that
    /// was started has finished by then.
    pub async fn pass(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }

    /// Waits until everything that was started has finished.
    pub async fn settle(&self) {
        self.pass(Duration::from_millis(1)).await;
    }

    /// Returns the rows of `state.json`. Empty if there is no readable file.
    pub fn rows(&self) -> Vec<Row> {
        let Ok(Loaded::Table(table)) = store::load(&self.root.join("state.json")) else { return Vec::new() };
        table.entries.iter().filter_map(|entry| entry.row.as_deref().ok().cloned()).collect()
    }

    pub fn row(&self, name: &str) -> Option<Row> {
        self.rows().into_iter().find(|row| row.name == name)
    }

    /// Returns the records that the row of `name` leads to.
    pub fn facts(&self, name: &str) -> Option<DirFacts> {
        let row = self.row(name)?;
        self.records.all().into_iter().find(|facts| reconcile::belongs(&row, facts))
    }

    /// Returns the state that readers derive for the worker now.
    pub fn state(&self, name: &str) -> Option<FineState> {
        self.facts(name).map(|facts| reconcile::fine_state(&facts))
    }

    /// Ends the command of `name`.
    ///
    /// # Panics
    /// Panics if no worker of that name was ever executed.
    pub fn end(&self, name: &str, ended: Ended) {
        self.processes.end(&self.records.newest(name).expect("it was started"), ended);
    }

    /// Interrupts the worker of `name`, as a machine does that shuts down.
    ///
    /// # Panics
    /// As [`World::end`].
    pub fn interrupt(&self, name: &str, ended: Ended) {
        self.processes.interrupt(&self.records.newest(name).expect("it was started"), ended);
    }

    /// Ends the command of `name` for the given reason.
    ///
    /// # Panics
    /// As [`World::end`].
    pub fn end_because(&self, name: &str, ended: Ended, reason: Reason) {
        self.processes.end_because(&self.records.newest(name).expect("it was started"), ended, reason);
    }

    /// Closes the window of `name`, alone or together with the tmux server.
    ///
    /// # Panics
    /// As [`World::end`].
    pub fn hang_up(&self, name: &str, server_lost: bool) {
        self.processes.hang_up(&self.records.newest(name).expect("it was started"), server_lost);
    }

    /// Kills the shim of `name`.
    ///
    /// # Panics
    /// Panics if no worker of that name was ever executed.
    pub fn kill_shim(&self, name: &str) {
        self.processes.kill_shim(&self.records.newest(name).expect("it was started"));
    }

    /// Returns the text of `state.json`.
    pub fn state_text(&self) -> String {
        fs::read_to_string(self.root.join("state.json")).unwrap_or_default()
    }

    /// Replaces `state.json` as another program would.
    ///
    /// # Panics
    /// Panics if the file cannot be written.
    pub fn write_state(&self, text: &str) {
        let temporary = self.root.join("theirs.tmp");
        fs::write(&temporary, text).expect("the test's directory can be written");
        fs::rename(temporary, self.root.join("state.json")).expect("the test's directory can be written");
    }

    /// Replaces the rows as another program would.
    ///
    /// # Panics
    /// As [`World::write_state`].
    pub fn write_rows(&self, rows: &[Row]) {
        let file = serde_json::json!({ "workers": rows });
        self.write_state(&Wire::render(&file, 0).expect("rows are JSON"));
    }
}
