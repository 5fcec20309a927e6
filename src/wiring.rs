//! Composition root of the supervisor: the only place that knows both the ports and their adapters.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use swarm_ports::Ports;
use tracing_subscriber::EnvFilter;

use crate::jobs::SlurmJobs;
use crate::processes::guard;
use crate::processes::launcher::ShimLauncher;
use crate::reach::Reach;
use swarm_git::Git;
use swarm_git::landing::GitLandings;
use swarm_git::worktrees::hook::Home;
use swarm_store::events::EventLog;
use swarm_store::flows::active::DiskFlows;
use swarm_store::logs::LogKeeper;
use swarm_store::loops::DiskLoops;
use swarm_store::nudges::DiskNudges;
use swarm_store::processes::SystemProcesses;
use swarm_store::records::DiskRecords;
use swarm_store::runs::DiskRuns;
use swarm_store::sessions::DiskSessions;
use swarm_store::terminals::TmuxTerminals;
use swarm_sys::clock::SystemClock;
use swarm_sys::paths::Paths;

pub struct Wired {
    pub ports: Ports,
    pub events: Arc<EventLog>,
}

/// Creates the real adapters for all ports. Must be called within a runtime.
///
/// # Errors
/// Fails if the boot id cannot be read.
pub fn ports(paths: &Paths) -> io::Result<Wired> {
    // Read once here; later calls use the cached value.
    swarm_sys::procfs::known_boot_id()?;
    let events = Arc::new(EventLog::new(paths.events()));
    // The running executable even if an upgrade has replaced the file, so that shims and supervisor are of one build.
    let executable = PathBuf::from(format!("/proc/{}/exe", std::process::id()));
    // The installed file, if it still exists: rows show it in commands, and a respawn executes it.
    let installed = std::env::current_exe().ok().filter(|path| path.exists()).unwrap_or_else(|| executable.clone());
    // Agents run hooks as long as they live, so the path must remain valid after this process.
    let hooks = Some(installed.clone()).filter(|path| *path != executable);
    let ports = Ports {
        clock: Arc::new(SystemClock::new()),
        events: Arc::<EventLog>::clone(&events),
        flows: Arc::new(DiskFlows::start(paths.clone(), installed.clone())),
        hosts: Arc::new(Reach::new(paths.clone(), installed.clone())),
        jobs: Arc::new(SlurmJobs::new(paths.clone())),
        landings: Arc::new(GitLandings::new(paths.clone(), executable.clone())),
        launcher: Arc::new(ShimLauncher::new(paths.clone(), executable.clone())),
        logs: Arc::new(LogKeeper::start(paths.clone())),
        loops: Arc::new(DiskLoops::new(paths.clone())),
        nudges: Arc::new(DiskNudges::new(paths.clone())),
        processes: Arc::new(SystemProcesses::new()),
        records: Arc::new(DiskRecords::new(paths.clone())),
        runs: Arc::new(DiskRuns::new(paths.clone(), installed)),
        sessions: Arc::new(DiskSessions::new(paths.clone(), hooks)),
        terminals: Arc::new(TmuxTerminals::new(paths.clone())),
        worktrees: Arc::new(Git::with(Home {
            executable,
            state_dir: paths.root().to_owned(),
            logs: paths.hooks(),
            strangers: swarm_store::strangers::check,
        })),
    };
    Ok(Wired { ports, events })
}

/// Logs JSON lines to standard error, which the guard has redirected to `supervisor.log`.
pub fn trace(paths: &Paths) {
    let log = paths.supervisor_log();
    let filter = EnvFilter::try_from_env("SWARM_LOG").unwrap_or_else(|_| EnvFilter::new("info,ractor=warn"));
    let subscriber = tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        .with_writer(move || Quiet(io::stderr(), log.clone()))
        .log_internal_errors(false)
        .with_env_filter(filter);
    let _ = subscriber.try_init();
    std::panic::set_hook(Box::new(|panic| tracing::error!(%panic, "a panic")));
}

/// Standard error that ignores write errors: a full disk must not end the supervisor when it logs that. Keeps the log
/// within its limit.
struct Quiet(io::Stderr, PathBuf);

impl io::Write for Quiet {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _ = self.0.write_all(bytes).and_then(|()| guard::bound_log(&self.1));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
