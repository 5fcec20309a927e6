//! Checks for processes and windows that no supervisor manages.

use std::collections::BTreeMap;

use swarm_model::{FineState, WorkerView};

use super::{Finding, Patient};
use swarm_ports::pid_list;
use swarm_store::records::DiskRecords;
use swarm_sys::procfs;
use swarm_tmux::{Server, Tmux};

/// Maximum number of names in a finding.
const NAMES_MAX: usize = 5;

pub fn processes(patient: &Patient) -> Vec<Finding> {
    let Ok(registry) = &patient.registry else { return Vec::new() };
    let mut found = Vec::new();
    for worker in registry.workers.iter().filter(|worker| worker.state == FineState::Unsupervised) {
        let name = &worker.row.name;
        let what = format!("worker '{name}' is running, but its shim was killed: its exit code will be unknown");
        found.push(Finding::warning("processes", what).remedy(format!("run 'swarm respawn {name}' to restart it")));
    }
    for worker in registry.workers.iter().filter(|worker| !worker.survivors.is_empty()) {
        let (name, pids) = (&worker.row.name, pid_list(&worker.survivors));
        let what = format!("processes of worker '{name}' cannot be ended: {pids}");
        found.push(Finding::warning("processes", what).remedy(format!(
            "inspect them with 'ps -fp {}'; only their user or root can end them",
            pids.replace(' ', "")
        )));
    }
    found.extend(left(patient, &registry.workers));
    found.extend(windows(patient, &registry.workers));
    found
}

/// Finds processes whose environment names a worker that has ended.
fn left(patient: &Patient, workers: &[WorkerView]) -> Vec<Finding> {
    let ended: BTreeMap<&str, &WorkerView> = workers
        .iter()
        .filter(|worker| !worker.state.is_running())
        .map(|worker| (worker.row.name.as_str(), worker))
        .collect();
    if ended.is_empty() {
        return Vec::new();
    }
    let mut by_worker: BTreeMap<(String, String), Vec<i32>> = BTreeMap::new();
    for pid in procfs::all().unwrap_or_default() {
        if let Some(mark) = mark_of(pid).filter(|(name, _)| ended.contains_key(name.as_str())) {
            by_worker.entry(mark).or_default().push(pid);
        }
    }
    let records = DiskRecords::new(patient.paths.clone());
    let is_of = |name: &str, token: &str| {
        let generation = ended.get(name)?.row.swarm()?.generation;
        let facts = records.read(name, generation).ok().flatten()?;
        Some(facts.spec.spec()?.token == token)
    };
    let those = by_worker.into_iter().filter(|((name, token), _)| is_of(name, token) == Some(true));
    those
        .map(|((name, _), pids)| {
            let pids: Vec<String> = pids.iter().map(i32::to_string).collect();
            let what = format!("worker '{name}' has ended, but some of its processes still run: {}", pids.join(", "));
            Finding::warning("processes", what)
                .remedy(format!("inspect them with 'ps -fp {}', then end them with 'kill'", pids.join(",")))
        })
        .collect()
}

/// Returns the name and the launch token of the worker that started a living process.
fn mark_of(pid: i32) -> Option<(String, String)> {
    let environment = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
    let text = |key: &str| {
        let mut pairs = environment.split(|byte| *byte == 0);
        pairs.find_map(|pair| Some(String::from_utf8_lossy(pair).strip_prefix(key)?.strip_prefix('=')?.to_owned()))
    };
    procfs::stat(pid).filter(procfs::Stat::is_alive)?;
    Some((text("SWARM_WORKER")?, text("SWARM_TOKEN")?))
}

/// Finds dead windows in this state directory's tmux session that belong to no worker.
fn windows(patient: &Patient, workers: &[WorkerView]) -> Vec<Finding> {
    let session = patient.paths.session();
    let mut servers: Vec<Server> = Vec::new();
    for row in workers.iter().filter_map(|worker| worker.row.tmux.as_ref()) {
        let server = row.socket.clone().map_or(Server::Default, Server::Name);
        if !servers.contains(&server) {
            servers.push(server);
        }
    }
    let known: Vec<i32> =
        workers.iter().filter_map(|worker| worker.pane.as_ref()).map(|pane| pane.server_pid).collect();
    let (mut names, mut found) = (Vec::new(), Vec::new());
    for server in servers {
        let panes = match Tmux::new(server, &patient.caller.environment).list() {
            Ok(panes) => panes,
            Err(error) => {
                let finding = Finding::error("processes", format!("cannot query a tmux server with workers: {error}"));
                found.push(Finding { remedy: error.remedy(), ..finding });
                continue;
            }
        };
        let ours = panes.iter().filter(|pane| pane.session == session && known.contains(&pane.server_pid));
        let has_worker = |pane: &str, window: &str| {
            workers.iter().any(|worker| {
                worker.pane.as_ref().is_some_and(|known| known.pane == pane)
                    || worker.row.tmux.as_ref().is_some_and(|row| row.window == window)
            })
        };
        // A living window may belong to the user.
        let strange = ours.filter(|pane| pane.dead && !has_worker(&pane.pane, &pane.window));
        names.extend(strange.map(|pane| format!("{} ({})", pane.window, pane.window_id)));
    }
    if !names.is_empty() {
        let shown = listed(&names);
        let what = format!("tmux session {session} has dead window(s) without a worker: {shown}");
        found.push(Finding::warning("processes", what).remedy("close them with 'tmux kill-window -t ID'"));
    }
    found
}

pub(super) fn listed(names: &[String]) -> String {
    let shown = names.iter().take(NAMES_MAX).cloned().collect::<Vec<_>>().join(", ");
    match names.len().checked_sub(NAMES_MAX) {
        Some(more) if more > 0 => format!("{shown} and {more} more"),
        _ => shown,
    }
}
