//! `swarm clean`: asks the supervisor to remove stopped workers.

use swarm_model::{CleanRequest, Refusal, RefusalKind, Scope, WorkerView};

use super::answers::Answers;
use super::args::CleanArgs;
use super::caller;
use super::error::{Failure, unknown_worker};
use super::here;
use super::run::left;
use super::screen::Screen;
use crate::api::client::post_raw;
use swarm_store::views::Registry;
use swarm_sys::paths::Paths;

pub fn run(args: &CleanArgs, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    let mut told = Answers::new(args.json);
    let registry = super::read_for(paths, super::only(&args.names).filter(|_| !args.all), screen)?;
    if let Some(scope) = scope(args, &registry)?.and_then(|scope| spare(scope, args, &registry, paths, screen)) {
        if scope == Scope::All && !args.everywhere {
            let stopped: Vec<_> = registry.workers.iter().filter(|view| !view.state.is_running()).collect();
            here::confirm_all("clean", &stopped, screen)?;
        }
        let caller = caller::collect()?.caller;
        let (rm_worktree, force_dirty) = (!args.no_rm_worktree, args.force_dirty);
        let request =
            CleanRequest { caller, scope, rm_worktree, force_dirty, drop_branch: rm_worktree, started_by: None };
        post_raw(paths, &request, &mut |answer| told.tell(answer, "cleaned", screen))?;
    }
    told.end("swarm.cleaned/1", screen)
}

/// Returns the workers to clean, `None` if no worker is stopped.
fn scope(args: &CleanArgs, registry: &Registry) -> Result<Option<Scope>, Failure> {
    if args.tagged.is_given() {
        // Running workers are skipped, as with `--all`.
        let stopped = args.tagged.workers(registry)?.into_iter().filter(|view| !view.state.is_running());
        let names: Vec<String> = stopped.map(|view| view.row.name.clone()).collect();
        return Ok((!names.is_empty()).then_some(Scope::Names(names)));
    }
    if args.here {
        let found = here::workers(registry.workers.iter().filter(|view| !view.state.is_running()))?;
        let names: Vec<String> = found.into_iter().map(|view| view.row.name.clone()).collect();
        return Ok((!names.is_empty()).then_some(Scope::Names(names)));
    }
    if args.all {
        let stopped = registry.workers.iter().any(|view| !view.state.is_running());
        return Ok(stopped.then_some(Scope::All));
    }
    let names = super::each_once(&args.names);
    if names.is_empty() {
        return Err(Failure::new(RefusalKind::Invalid, "must specify worker name or use --all"));
    }
    for name in &names {
        let view = match registry.find(name) {
            Some(view) => view,
            // Its worktree may have been kept when it was forgotten; the supervisor knows.
            None if args.force_dirty && !args.no_rm_worktree => continue,
            None => return Err(unknown_worker(name, registry)),
        };
        super::refuse_elsewhere(view)?;
        if view.state.is_running() {
            let cause = format!("cannot clean running worker '{name}'");
            let refusal = Refusal::new(RefusalKind::Running, cause);
            return Err(refusal.remedy(format!("run 'swarm kill {name}' first")).into());
        }
    }
    Ok(Some(Scope::Names(names)))
}

/// Leaves out the workers of runs whose work waits for a review, unless they are named or `--force-dirty` is given; notes name
/// them. `None` if no worker is left.
fn spare(scope: Scope, args: &CleanArgs, registry: &Registry, paths: &Paths, screen: &mut Screen) -> Option<Scope> {
    if args.force_dirty || !args.names.is_empty() {
        return Some(scope);
    }
    let is_meant = |view: &&WorkerView| match &scope {
        Scope::All => !view.state.is_running(),
        Scope::Names(names) => names.contains(&view.row.name),
    };
    let meant: Vec<&WorkerView> = registry.workers.iter().filter(is_meant).collect();
    let reviewed = left::reviewed(meant.iter().copied(), paths);
    for name in &reviewed {
        let next = format!("run 'swarm merge add {name}' to land it, or 'swarm clean {name}' to forget the worker");
        screen.aside("note: ", &format!("kept '{name}': its work has not landed; {next}"));
    }
    if reviewed.is_empty() {
        return Some(scope);
    }
    let names = meant.iter().map(|view| view.row.name.clone()).filter(|name| !reviewed.contains(name));
    let names: Vec<String> = names.collect();
    (!names.is_empty()).then_some(Scope::Names(names))
}

#[cfg(test)]
mod tests {
    use swarm_model::Ended;

    use super::*;
    use crate::cli::sample;

    fn scope_of(words: &[&str], registry: &Registry) -> Result<Option<Scope>, String> {
        let crate::cli::args::Command::Clean(args) = sample::command(&[&["clean"], words].concat()) else {
            panic!("not clean");
        };
        scope(&args, registry).map_err(|failure| {
            let mut err = Vec::new();
            assert_eq!(failure.report(&mut err), 1);
            String::from_utf8(err).expect("text")
        })
    }

    #[test]
    fn only_stopped_workers_are_cleaned() {
        let running = sample::registry(vec![sample::process("up")]);
        let both = sample::registry(vec![sample::process("up"), sample::ended("down", Ended::Code(0))]);
        assert_eq!(scope_of(&["--all"], &running), Ok(None));
        assert_eq!(scope_of(&["--all"], &both), Ok(Some(Scope::All)));
        assert_eq!(scope_of(&["down"], &both), Ok(Some(Scope::Names(vec!["down".into()]))));
        let refusal = "swarm: error: cannot clean running worker 'up'\nswarm: hint: run 'swarm kill up' first\n";
        assert_eq!(scope_of(&["up"], &both), Err(refusal.into()));
        // If any named worker is running, nothing is cleaned.
        assert_eq!(scope_of(&["down", "up"], &both), Err(refusal.into()));
        assert_eq!(scope_of(&[], &both), Err("swarm: error: must specify worker name or use --all\n".into()));
        let kept = scope_of(&["zzz", "--force-dirty"], &both);
        assert_eq!(kept, Ok(Some(Scope::Names(vec!["zzz".into()]))), "its worktree may have been kept");
        assert_eq!(scope_of(&["zzz"], &both), Err("swarm: error: worker 'zzz' not found\n".into()));
    }
}
