//! The composition root of the supervisor: the only place that knows both the
//! ports and what fills them.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use swarm_ports::Ports;
use tracing_subscriber::EnvFilter;

use crate::processes::launcher::ShimLauncher;
use swarm_git::Git;
use swarm_git::landing::GitLandings;
use swarm_git::worktrees::hook::Home;
use swarm_store::events::EventLog;
use swarm_store::flows::runner::DiskFlows;
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

/// Everything the actors need, over the real world. Within a runtime.
///
/// # Errors
/// When the kernel refuses to watch files.
pub fn ports(paths: &Paths) -> io::Result<Wired> {
    // Everything below asks again, and gets this answer.
    swarm_sys::procfs::known_boot_id()?;
    let events = Arc::new(EventLog::new(paths.events()));
    // The running file, also after an upgrade replaced it: shims and supervisor are of one build.
    let executable = PathBuf::from(format!("/proc/{}/exe", std::process::id()));
    // What a row shows of an agent's command, and a respawn executes: the file as it is
    // installed, where it is still there.
    let installed = std::env::current_exe().ok().filter(|path| path.exists()).unwrap_or_else(|| executable.clone());
    // Agents run it for as long as they live: only under a name that outlives this process.
    let hooks = Some(installed.clone()).filter(|path| *path != executable);
    let ports = Ports {
        clock: Arc::new(SystemClock::new()),
        events: Arc::<EventLog>::clone(&events),
        flows: Arc::new(DiskFlows::start(paths.clone(), installed.clone())?),
        landings: Arc::new(GitLandings::new(paths.clone(), executable.clone())),
        launcher: Arc::new(ShimLauncher::new(paths.clone(), executable.clone())),
        logs: Arc::new(LogKeeper::start(paths.clone())?),
        loops: Arc::new(DiskLoops::new(paths.clone())),
        nudges: Arc::new(DiskNudges::new(paths.clone())),
        processes: Arc::new(SystemProcesses::new()),
        records: Arc::new(DiskRecords::new(paths.clone())),
        runs: Arc::new(DiskRuns::new(paths.clone(), installed)),
        sessions: Arc::new(DiskSessions::new(paths.clone(), hooks)),
        terminals: Arc::new(TmuxTerminals::new(paths.clone())),
        worktrees: Arc::new(Git::with(Home { executable, state_dir: paths.root().to_owned(), logs: paths.hooks() })),
    };
    Ok(Wired { ports, events })
}

/// JSON lines to standard error, which the guard pointed at `supervisor.log`.
pub fn trace() {
    let filter = EnvFilter::try_from_env("SWARM_LOG").unwrap_or_else(|_| EnvFilter::new("info,ractor=warn"));
    let subscriber = tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        .with_writer(|| Quiet(io::stderr()))
        .log_internal_errors(false)
        .with_env_filter(filter);
    let _ = subscriber.try_init();
    std::panic::set_hook(Box::new(|panic| tracing::error!(%panic, "a panic")));
}

/// Standard error that never fails: a full disk must not end the supervisor
/// because it wanted to say so.
struct Quiet(io::Stderr);

impl io::Write for Quiet {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _ = self.0.write_all(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
