//! Checks of the state directory: its supervisor, its registry, file modes, and temporary files of dead processes.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use swarm_actors::registry::store::REGISTRY_BYTES_MAX;
use swarm_actors::registry::{journal, reconcile};
use swarm_model::{FineState, WorkerView};
use swarm_ports::Records as _;

use super::processes::listed;
use super::{Finding, Patient, Repair};
use crate::api::{self, client};
use swarm_store::records::DiskRecords;
use swarm_store::repositories::landing;
use swarm_store::views::Registry;
use swarm_sys::files::{is_abandoned, list};
use swarm_sys::paths::Paths;
use swarm_sys::state_id::has_id;

/// Maximum number of files that are checked.
const FILES_MAX: usize = 100_000;
/// Prefixes of the names of files in the state directory, including temporary files.
const FILES: [&str; 11] = [
    "allocation.",
    "claim",
    "job-",
    "state.",
    "events.jsonl",
    "supervisor.",
    "start.lock",
    "heartbeat.lock",
    "reserve",
    "exit.",
    "generations",
];
/// Directories in the state directory that contain only files of this program.
const FOLDERS: [&str; 8] = ["w", "run", "begun", "ralph", "flow", "heartbeats", "merge", "owed"];

/// Further directories in the state directory, for output, and for attempts of other hosts' runs.
const OTHER_FOLDERS: [&str; 3] = ["logs", "hooks", "far"];
/// Locks, which this program or the original made. They prove that a directory is a state directory.
const LOCKS: [&str; 4] = ["supervisor.lock", "start.lock", "state.lock", "heartbeat.lock"];

/// Reports whether a file in the state directory with this name is one of this program.
fn is_name_of_ours(name: &str) -> bool {
    name == "id" || name == "last" || FILES.iter().any(|known| name.starts_with(known))
}

fn is_here(worker: &WorkerView) -> bool {
    worker.state.is_running() && worker.elsewhere.is_none()
}

pub fn supervisor(patient: &Patient) -> Vec<Finding> {
    let running = patient
        .registry
        .as_ref()
        .map_or(0, |registry| registry.workers.iter().filter(|worker| is_here(worker) && worker.dir.is_some()).count());
    match client::hello(&patient.paths) {
        Ok(None) if running > 0 => {
            let what = format!("{running} worker(s) running without a supervisor: nothing is restarted or landed");
            vec![Finding::error("supervisor", what).repair(Repair::StartSupervisor)]
        }
        Ok(None) => Vec::new(),
        Ok(Some(hello)) if hello.build != *api::build() => {
            let what = format!("the supervisor (pid {}) is a different build than this program", hello.pid);
            vec![Finding::warning("supervisor", what).repair(Repair::RestartSupervisor)]
        }
        Ok(Some(_)) => Vec::new(),
        Err(refusal) => vec![Finding { remedy: refusal.remedy, ..Finding::error("supervisor", refusal.cause) }],
    }
}

pub fn registry(patient: &Patient) -> Vec<Finding> {
    let registry = match &patient.registry {
        Ok(registry) => registry,
        Err(cause) => return vec![Finding::error("registry", cause.clone())],
    };
    let journal = journal_damage(&patient.paths.root().join("state.journal"));
    let slots = lost_ends(patient.paths.root());
    let is_told = |text: &&String| slots.as_ref().is_some_and(|finding| finding.what == **text);
    let warned = registry.warnings.iter().filter(|text| !is_told(text));
    let warned: Vec<_> = warned.map(|text| Finding::error("registry", text.clone())).collect();
    let unreadable = registry.unreadable.iter().map(|(label, cause)| {
        Finding::error("registry", format!("cannot read entry {label} of state.json: {cause}"))
            .remedy("correct the entry by hand; until then, it and the records of its worker are kept unchanged")
    });
    let of = |state| {
        let those = registry.workers.iter().filter(move |worker| worker.state == state);
        those.map(|worker| worker.row.name.clone()).collect::<Vec<_>>()
    };
    let told = |names: Vec<String>, what: &str, remedy: &str| {
        let what = format!("{} worker(s) {what}: {}", names.len(), listed(&names));
        (!names.is_empty()).then(|| Finding::warning("registry", what).remedy(remedy))
    };
    let (rowless, unreadable_dirs) = records(patient, registry);
    let elsewhere = told(
        of(FineState::Elsewhere),
        "are on another machine that shares the state directory",
        "see 'swarm ls -l'; run 'swarm recover --gone HOST' if that machine is gone for good",
    );
    let down =
        told(of(FineState::Interrupted), "were running when the machine went down", "run 'swarm recover --apply'");
    let lost = told(of(FineState::Lost), "ended with an unknown result", "run 'swarm explain NAME' for details");
    let about_files = warned.into_iter().chain(slots).chain(journal).chain(unreadable);
    about_files.chain(unreadable_dirs).chain(rowless).chain(elsewhere).chain(down).chain(lost).collect()
}

/// Finds a journal that would not restore the registry after a power cut. An orderly end of the supervisor begins a new
/// one.
fn journal_damage(path: &Path) -> Option<Finding> {
    let what = match journal::read(path) {
        Ok(Some(content)) if content.is_damaged => {
            format!("{} is damaged: after a power cut, the latest changes would be lost", path.display())
        }
        Ok(_) => return None,
        Err(error) => format!("cannot read {}: {error}", path.display()),
    };
    Some(Finding::error("registry", what).repair(Repair::RestartSupervisor))
}

/// Finds a file of ends that cannot be read. Without it, workers whose records a power cut has taken count as interrupted.
fn lost_ends(root: &Path) -> Option<Finding> {
    let cause = swarm_store::exits::damage(root)?;
    let what = format!("{cause}: how workers ended before the machine was restarted may be missing");
    let path = root.join("exit.slots").display().to_string();
    Some(Finding::error("registry", what).remedy(format!("move it away: mv '{path}' '{path}.aside'")))
}

/// Finds running workers without a row, and directories that cannot be read.
fn records(patient: &Patient, registry: &Registry) -> (Vec<Finding>, Vec<Finding>) {
    let scan = match DiskRecords::new(patient.paths.clone()).scan_now() {
        Ok(scan) => scan,
        Err(error) => {
            return (
                Vec::new(),
                vec![Finding::error("registry", format!("cannot read the workers' records: {error}"))],
            );
        }
    };
    let has_row = |name: &str| {
        let mut rows = registry.workers.iter().map(|worker| &worker.row.name);
        let is_unlisted = registry.unlisted.iter().any(|other| other == name);
        (!is_unlisted && rows.any(|row| row == name)) || registry.unreadable.iter().any(|(row, _)| row == name)
    };
    let rowless = scan.dirs.iter().filter(|facts| reconcile::runs(facts) && !has_row(&facts.name)).map(|facts| {
        let what =
            format!("worker '{}' is running but has no row in state.json: other programs do not know it", facts.name);
        // A starting supervisor inserts the row again.
        Finding::error("registry", what).repair(Repair::RestartSupervisor)
    });
    // Damage of `exit.slots` is reported once, and not for each worker.
    let slots = swarm_store::exits::damage(patient.paths.root());
    let unreadable = scan.unreadable.iter().filter(|one| Some(&one.cause) != slots.as_ref()).map(|one| {
        let what =
            format!("cannot read the records of worker '{}' in w/{0}.{}: {}", one.name, one.generation, one.cause);
        Finding::error("registry", what).remedy("check the disk and the modes of that directory")
    });
    (rowless.collect(), unreadable.collect())
}

/// Finds merge queues whose journals are damaged, and which therefore show no items.
pub fn queues(patient: &Patient) -> Vec<Finding> {
    match landing::damaged(&patient.paths) {
        Ok(damaged) => damaged
            .into_iter()
            .map(|queue| Finding { remedy: queue.remedy(), ..Finding::error("queues", queue.what()) })
            .collect(),
        Err(error) => vec![Finding::error("queues", format!("cannot read the merge queues: {error}"))],
    }
}

/// Kind of the directory that `SWARM_DIR` names.
enum Place {
    /// It does not exist yet, or is empty.
    New,
    /// Only this program writes there.
    Own,
    /// A state directory that also contains other files.
    Shared,
    /// Somebody else's directory, or no directory at all.
    Other(&'static str),
}

fn place(root: &Path) -> Place {
    let names: Vec<String> = match list(root) {
        Ok(entries) => entries.into_iter().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Place::New,
        Err(error) if error.kind() == std::io::ErrorKind::NotADirectory => return Place::Other("is not a directory"),
        Err(_) => return Place::Other("cannot be read"),
    };
    if names.is_empty() {
        return Place::New;
    }
    // A host that has only been asked by runs of other machines has an id and no locks yet.
    let is_evident = names.iter().any(|name| LOCKS.contains(&name.as_str()))
        || has_id(&Paths::new(root))
        || is_registry(&root.join("state.json"));
    let is_known = |name: &String| {
        is_name_of_ours(name) || FOLDERS.contains(&name.as_str()) || OTHER_FOLDERS.contains(&name.as_str())
    };
    match (is_evident, names.iter().all(is_known)) {
        (true, true) => Place::Own,
        (true, false) => Place::Shared,
        (false, _) => Place::Other("contains files, but no state of swarm"),
    }
}

/// Reports whether a file is a registry, which other programs' files of that name are not.
fn is_registry(path: &Path) -> bool {
    #[derive(serde::Deserialize)]
    struct Shape {
        #[serde(rename = "workers")]
        _workers: Vec<serde::de::IgnoredAny>,
    }
    let is_file = fs::symlink_metadata(path).is_ok_and(|meta| meta.is_file() && meta.len() <= REGISTRY_BYTES_MAX);
    is_file && fs::read(path).is_ok_and(|text| serde_json::from_slice::<Shape>(&text).is_ok())
}

pub fn modes(patient: &Patient) -> Vec<Finding> {
    let own = nix::unistd::getuid().as_raw();
    let mut found = Vec::new();
    let root = patient.paths.root();
    let place = place(root);
    if let Place::Other(why) = place {
        let what = format!("SWARM_DIR names {}, which {why}", root.display());
        return vec![Finding::error("modes", what).remedy("set SWARM_DIR to a new directory, or unset it")];
    }
    for path in ours(patient, true) {
        let Ok(meta) = fs::symlink_metadata(&path) else { continue };
        if meta.is_symlink() {
            continue;
        }
        if meta.uid() != own {
            let what = format!("{} belongs to another user (uid {})", path.display(), meta.uid());
            found.push(
                Finding::error("modes", what).remedy("change its owner, or set SWARM_DIR to a directory of your own"),
            );
            continue;
        }
        let mode = meta.permissions().mode() & 0o7777;
        if path == root && matches!(place, Place::Shared) && mode & 0o077 != 0 {
            let what =
                format!("{} is accessible to other users (mode {mode:o}) and has other files too", path.display());
            found.push(Finding::warning("modes", what).remedy("set SWARM_DIR to a directory of its own"));
            continue;
        }
        if mode & 0o077 != 0 {
            let what = format!("{} is accessible to other users (mode {mode:o})", path.display());
            found.push(Finding::error("modes", what).repair(Repair::Mode { path, mode: mode & 0o700 }));
        }
    }
    found
}

pub fn leftovers(patient: &Patient) -> Vec<Finding> {
    let abandoned = ours(patient, false).into_iter().filter(|path| is_abandoned(path));
    let told = |path: PathBuf| {
        let what = format!("{} is a temporary file of a process that is gone", path.display());
        Finding::warning("leftovers", what).repair(Repair::Temporary(path))
    };
    let discarded = swarm_git::landing::discarded(&patient.paths).into_iter().map(|path| {
        let what = format!("{} is what a command of a merge queue left, and could not be deleted", path.display());
        let remedy = "if some of its files belong to another user, delete it with the rights of that user";
        Finding::warning("leftovers", what).remedy(remedy).repair(Repair::Discarded(path))
    });
    abandoned.map(told).chain(discarded).collect()
}

/// Returns the files and directories of this program: the root, its files with known names, and two levels of its
/// directories. Everything else there, such as checkouts and worktrees, belongs to the user.
fn ours(patient: &Patient, with_logs: bool) -> Vec<PathBuf> {
    let root = patient.paths.root();
    let mut found: Vec<PathBuf> = Vec::new();
    if matches!(place(root), Place::Other(_)) {
        return found;
    }
    let named = |dir: &Path| list(dir).into_iter().flatten().map(|entry| entry.path()).collect::<Vec<_>>();
    let is_file_of_ours = |path: &Path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        is_name_of_ours(&name) && fs::symlink_metadata(path).is_ok_and(|meta| !meta.is_dir())
    };
    found.extend(Some(root.to_owned()).filter(|root| root.exists()));
    found.extend(named(root).into_iter().filter(|path| is_file_of_ours(path)));
    let logs = with_logs.then_some("logs");
    for folder in FOLDERS.into_iter().chain(logs).map(|name| root.join(name)).filter(|folder| folder.is_dir()) {
        let each = named(&folder);
        found.push(folder);
        for one in each {
            let is_dir = fs::symlink_metadata(&one).is_ok_and(|meta| meta.is_dir());
            if is_dir {
                let files =
                    named(&one).into_iter().filter(|path| fs::symlink_metadata(path).is_ok_and(|meta| meta.is_file()));
                found.extend(files);
            }
            found.push(one);
        }
        if found.len() > FILES_MAX {
            break;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_only_runs_of_other_machines_have_used_is_a_state_directory() {
        let dir = tempfile::tempdir().expect("a directory");
        let root = dir.path().join("state");
        assert!(matches!(place(&root), Place::New));
        swarm_sys::state_id::state_id(&Paths::new(&root)).expect("an id");
        assert!(matches!(place(&root), Place::Own));
        fs::create_dir(root.join("far")).expect("made");
        assert!(matches!(place(&root), Place::Own));
        fs::write(root.join("thesis.tex"), "").expect("written");
        assert!(matches!(place(&root), Place::Shared));
        fs::write(root.join("id"), "an id of another program\n").expect("written");
        assert!(matches!(place(&root), Place::Other(_)));
    }
}
