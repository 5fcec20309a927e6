//! The end of an allocation, for its workers.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use swarm_model::{KillRequest, Reply, Scope};
use swarm_store::views;
use swarm_sys::allocation::Allocation;
use swarm_sys::files::{is_absent, list_if_present, replace_durably};
use swarm_sys::paths::Paths;

use crate::api::client::post;
use crate::cli::caller;
use crate::processes::far;

/// File with the workers that were ended because their allocation was, each as NAME.GENERATION.
const ENDED: &str = "allocation.ended";
/// Directory of attempts of other hosts' runs.
const FAR: &str = "far";
/// Time for runs to ask for the ends of their attempts.
pub const ASK_MAX: Duration = Duration::from_secs(60);
/// Time for runs to fetch what was done, once they know.
pub const FETCH_MAX: Duration = Duration::from_secs(10);
pub const FETCH_PAUSE: Duration = Duration::from_millis(500);
/// Time for the supervisor to end, and for the claim to be released.
pub const CLOSE_MAX: Duration = Duration::from_secs(20);

/// Ends all workers; returns whether there were any. Who they are is recorded first: what is ended with its allocation has not
/// failed.
pub fn end_workers(paths: &Paths) -> bool {
    let running = match views::load(paths) {
        Ok(registry) => registry.workers,
        Err(refusal) => {
            warn(&refusal.cause);
            return false;
        }
    };
    let running = running.iter().filter(|view| view.state.is_running());
    let names: BTreeSet<String> =
        running.filter_map(|view| Some(worker(&view.row.name, view.row.swarm()?.generation))).collect();
    if names.is_empty() {
        return false;
    }
    let text: String = names.iter().map(|name| format!("{name}\n")).collect();
    if let Err(error) = replace_durably(paths.root(), ENDED, text.as_bytes()) {
        warn(&format!("{ENDED}: {error}"));
    }
    let killed = caller::collect().map(|collected| collected.caller).and_then(|caller| {
        let request = KillRequest {
            caller,
            scope: Scope::All,
            rm_worktree: false,
            force_dirty: false,
            started_by: None,
            generation: None,
        };
        post(paths, &request, &mut |reply| {
            if let Reply::Refused(refusal) = reply {
                warn(&refusal.cause);
            }
        })
    });
    if let Err(refusal) = killed {
        warn(&refusal.cause);
    }
    true
}

fn warn(cause: &str) {
    swarm_sys::complain!("swarm: warning: workers cannot be ended: {cause}");
}

fn worker(name: &str, generation: u64) -> String {
    format!("{name}.{generation}")
}

/// Reports whether the worker was ended because its allocation was.
pub fn was_ended(paths: &Paths, name: &str, generation: u64) -> bool {
    Allocation::of_this().is_some() && is_named(paths.root(), &worker(name, generation))
}

fn is_named(root: &Path, worker: &str) -> bool {
    fs::read_to_string(root.join(ENDED)).is_ok_and(|text| text.lines().any(|line| line == worker))
}

/// Reports whether there are attempts whose run has not asked for their end.
pub fn has_attempts(paths: &Paths) -> bool {
    let below = |dirs: Vec<std::path::PathBuf>| -> Vec<std::path::PathBuf> {
        dirs.iter().flat_map(|dir| list_if_present(dir).unwrap_or_default()).map(|entry| entry.path()).collect()
    };
    let repositories = below(below(vec![paths.root().join(FAR)]));
    let homes = below(repositories.iter().map(|dir| dir.join("runs")).collect());
    let attempts = below(homes.iter().map(|home| home.join("attempts")).collect());
    attempts.iter().any(|attempt| is_absent(&attempt.join(far::ENDED)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_whose_run_has_not_asked_for_their_end_are_found() {
        let dir = tempfile::tempdir().expect("a directory");
        let paths = Paths::new(dir.path());
        assert!(!has_attempts(&paths));
        let home = dir.path().join("far/0123456789abcdef/fedcba98/runs/01234567");
        fs::create_dir_all(home.join("attempts")).expect("made");
        assert!(!has_attempts(&paths));
        fs::create_dir(home.join("attempts/a.1")).expect("made");
        assert!(has_attempts(&paths));
        fs::write(home.join("attempts/a.1").join(far::ENDED), "{}").expect("written");
        assert!(!has_attempts(&paths));
    }

    #[test]
    fn only_recorded_generations_were_ended() {
        let dir = tempfile::tempdir().expect("a directory");
        assert!(!is_named(dir.path(), "a.1"));
        fs::write(dir.path().join(ENDED), "a.1\nb.2\n").expect("written");
        assert!(is_named(dir.path(), "a.1") && !is_named(dir.path(), "a.2") && !is_named(dir.path(), "b"));
    }
}
