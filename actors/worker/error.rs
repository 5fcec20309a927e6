//! Conversions from the errors of the registry and of the ports to a refusal.

use crate::registry::{Refused, RegistryError, StoreError};
use swarm_model::{ProcessId, Refusal, RefusalKind};
use swarm_ports::{LaunchError, ProcessError, SessionError, WorktreeError, pid_list};

pub fn of_store(error: &StoreError) -> Refusal {
    Refusal { remedy: error.remedy(), ..Refusal::new(RefusalKind::Registry, error.to_string()) }
}

/// Refusal for a worker of another machine that shares the state directory.
pub fn elsewhere(name: &str, host: &str) -> Refusal {
    Refusal::new(RefusalKind::Running, format!("worker '{name}' is on machine '{host}'"))
        .of(name)
        .remedy(format!("run this on '{host}', or run 'swarm recover --gone {host}' if that machine is gone for good"))
}

pub fn of_registry(error: &RegistryError) -> Refusal {
    match error {
        RegistryError::Store(error) => of_store(error),
        RegistryError::Refused(refused) => {
            let kind = match refused {
                Refused::Exists(name) => return Refusal::exists(name),
                Refused::Missing(_) => RefusalKind::NotFound,
                Refused::Changed(_) | Refused::Unreadable(_) | Refused::Full { .. } => RefusalKind::Registry,
            };
            Refusal { remedy: refused.remedy(), ..Refusal::new(kind, refused.to_string()) }
        }
    }
}

pub fn of_launch(error: &LaunchError) -> Refusal {
    let kind = match error {
        LaunchError::Exec(_) | LaunchError::NotStarted(_) => RefusalKind::Start,
        LaunchError::Tmux(_) => RefusalKind::Tool,
        LaunchError::System(_) => RefusalKind::Internal,
    };
    Refusal::new(kind, error.to_string())
}

pub fn of_worktree(error: &WorktreeError) -> Refusal {
    let (remedy, passes) = match error {
        WorktreeError::Create { remedy, passes, .. } => (remedy.clone(), *passes),
        _ => (None, false),
    };
    Refusal { remedy, passes, ..Refusal::new(RefusalKind::Worktree, error.to_string()) }
}

pub fn of_session(error: &SessionError) -> Refusal {
    let refusal = |kind| Refusal::new(kind, error.to_string());
    match error {
        SessionError::Mismatch { found, worker, path, .. } => {
            let forgets = match worker.as_deref() {
                Some(worker) => format!("run 'swarm clean {worker} --rm-worktree'"),
                None => "run 'swarm clean' for the worker that owns it".to_owned(),
            };
            refusal(RefusalKind::Worktree).remedy(format!(
                "{forgets} or remove {path} to discard that session; run 'swarm spawn --issue {found}' to continue it"
            ))
        }
        // Not final: a predecessor that was killed counts as alive while its last beat is recent.
        SessionError::Alive { .. } => refusal(RefusalKind::Running).remedy("wait until it has ended, or kill it"),
        SessionError::Blocked(_) => {
            refusal(RefusalKind::Worktree).remedy("remove it: nothing else may be in the place of the session's files")
        }
        SessionError::Taken { .. } => refusal(RefusalKind::Worktree),
        SessionError::System(cause) => {
            Refusal::new(RefusalKind::Internal, format!("cannot start the session: {cause}"))
        }
    }
}

pub fn of_process(error: &ProcessError) -> Refusal {
    let refusal = Refusal::new(RefusalKind::Tool, error.to_string());
    match error {
        ProcessError::Survivors(pids) => refusal.remedy(of_survivors(pids)),
        ProcessError::Tool(_) => refusal,
    }
}

/// Returns the refusal to go on while processes of a worker live that could not be ended.
pub fn survivors(name: &str, living: &[ProcessId]) -> Refusal {
    let pids: Vec<i32> = living.iter().map(|process| process.pid).collect();
    let cause = format!("processes of worker '{name}' cannot be ended: {}", pid_list(&pids));
    Refusal::new(RefusalKind::Running, cause).remedy(of_survivors(&pids)).of(name)
}

/// Returns the refusal to stop or replace a worker whose shim lives and was not ended, for example because its lease is
/// damaged and no process is found.
pub fn held_lease(name: &str, generation: u64) -> Refusal {
    let dir = swarm_model::worker_dir_name(name, generation);
    let cause = format!("worker '{name}' still runs: its lease w/{dir}/lease is held");
    let remedy = format!("end the process 'swarm __shim' whose working directory is w/{dir}, then try again");
    Refusal::new(RefusalKind::Running, cause).remedy(remedy).of(name)
}

fn of_survivors(pids: &[i32]) -> String {
    let pids = pids.iter().map(i32::to_string).collect::<Vec<_>>().join(" ");
    format!("end them as their user or as root, such as with 'sudo kill {pids}', then try again")
}

pub fn of_io(step: &str, error: &std::io::Error) -> Refusal {
    Refusal::new(RefusalKind::Internal, format!("cannot {step}: {error}"))
}

/// Reports whether a failure to start a worker says nothing about the worker: a file could not be written, the registry
/// could not be changed, or something is in the way that may disappear, such as a disk that is not mounted.
pub fn is_of_system(refusal: &Refusal) -> bool {
    refusal.passes || matches!(refusal.kind, RefusalKind::Internal | RefusalKind::Registry)
}

/// Returns the refusal to start a worker again whose launch contract (`spec.json`) cannot be read.
pub fn no_contract(name: &str) -> Refusal {
    Refusal::new(RefusalKind::Start, format!("launch contract of worker '{name}' is missing")).of(name)
}

pub fn not_found(name: &str) -> Refusal {
    Refusal::new(RefusalKind::NotFound, format!("worker '{name}' not found")).of(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::is_final;
    use swarm_model::SessionPlan;

    #[test]
    fn a_predecessor_that_may_be_alive_is_waited_for() {
        let alive = SessionError::Alive { path: "/t".to_owned(), evidence: "its last beat is young".to_owned() };
        assert!(!is_final(of_session(&alive).kind));
    }

    #[test]
    fn what_is_in_the_place_of_a_session_is_not_waited_for() {
        let refusal = of_session(&SessionError::Blocked("/t/.agent is not a directory".to_owned()));
        assert!(is_final(refusal.kind) && refusal.remedy.is_some(), "{refusal:?}");
        assert_eq!(refusal.cause, "cannot start the session: /t/.agent is not a directory");
        assert!(!is_final(of_session(&SessionError::System("full".to_owned())).kind));
    }

    #[test]
    fn the_hint_names_the_session_directory_and_never_the_worktree() {
        let plan = SessionPlan {
            dir: "/trees/a".to_owned(),
            identifier: "A-2".to_owned(),
            work_type: String::new(),
            prompt: String::new(),
            provider: None,
        };
        let refusal = of_session(&SessionError::mismatch(&plan, "A-1".to_owned()));
        assert_eq!(refusal.cause, "the session in /trees/a/.agent belongs to 'A-1', not to 'A-2'");
        let remedy = refusal.remedy.expect("there is one");
        assert!(remedy.contains(" or remove /trees/a/.agent to discard that session"), "{remedy}");
    }
}
