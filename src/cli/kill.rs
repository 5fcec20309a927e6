//! `swarm kill`: asks the supervisor to stop workers.

use swarm_model::{KillRequest, RefusalKind, Scope};

use super::answers::Answers;
use super::args::KillArgs;
use super::caller;
use super::error::{Failure, unknown_worker};
use super::here;
use super::screen::Screen;
use crate::api::client::post_raw;
use swarm_store::views::Registry;
use swarm_sys::paths::Paths;

pub fn run(args: &KillArgs, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    let mut told = Answers::new(args.json);
    let registry = super::read_for(paths, super::only(&args.names).filter(|_| !args.all), screen)?;
    let is_starting = |name: &str| swarm_store::records::is_starting(paths, name);
    if let Some(scope) = scope(args, &registry, is_starting)? {
        if scope == Scope::All && !args.everywhere {
            let running: Vec<_> = registry.workers.iter().filter(|view| view.state.is_running()).collect();
            here::confirm_all("kill", &running, screen)?;
        }
        let caller = caller::collect()?.caller;
        let (rm_worktree, force_dirty) = (args.rm_worktree, args.force_dirty);
        let request = KillRequest { caller, scope, rm_worktree, force_dirty };
        post_raw(paths, &request, &mut |answer| told.tell(answer, "killed", screen))?;
    }
    told.end("swarm.killed/1", screen)
}

/// Returns the workers to kill, `None` for `--all` without workers. `--all` overrides a name, as in the original;
/// tags narrow it. A worker that is being started is not registered yet, but is killed as soon as it runs.
fn scope(args: &KillArgs, registry: &Registry, is_starting: impl Fn(&str) -> bool) -> Result<Option<Scope>, Failure> {
    if args.all && !args.tagged.is_given() {
        return Ok((!registry.workers.is_empty()).then_some(Scope::All));
    }
    if args.tagged.is_given() {
        return Ok(Some(Scope::Names(args.tagged.names(registry)?)));
    }
    if args.here {
        let found = here::workers(registry.workers.iter())?;
        let names: Vec<String> = found.into_iter().map(|view| view.row.name.clone()).collect();
        return Ok((!names.is_empty()).then_some(Scope::Names(names)));
    }
    let names = super::each_once(&args.names);
    for worker in names.iter().filter_map(|name| registry.find(name)) {
        super::refuse_elsewhere(worker)?;
    }
    match names.iter().find(|name| registry.find(name).is_none() && !is_starting(name)) {
        None if names.is_empty() => Err(Failure::new(RefusalKind::Invalid, "must specify worker name or --all")),
        None => Ok(Some(Scope::Names(names))),
        Some(unknown) => Err(unknown_worker(unknown, registry)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::sample;

    fn scope_of(words: &[&str], registry: &Registry) -> Result<Option<Scope>, String> {
        let crate::cli::args::Command::Kill(args) = sample::command(&[&["kill"], words].concat()) else {
            panic!("not kill");
        };
        scope(&args, registry, |name| name == "begins").map_err(|failure| {
            let mut err = Vec::new();
            assert_eq!(failure.report(&mut err), 1);
            String::from_utf8(err).expect("text")
        })
    }

    #[test]
    fn a_kill_needs_a_target() {
        let (none, some) = (sample::registry(Vec::new()), sample::registry(vec![sample::process("x")]));
        assert_eq!(scope_of(&["--all"], &none), Ok(None));
        assert_eq!(scope_of(&["x", "--all"], &some), Ok(Some(Scope::All)));
        assert_eq!(scope_of(&["x"], &some), Ok(Some(Scope::Names(vec!["x".into()]))));
        let two = sample::registry(vec![sample::process("x"), sample::process("y")]);
        assert_eq!(scope_of(&["x", "y", "x"], &two), Ok(Some(Scope::Names(vec!["x".into(), "y".into()]))));
        // One unknown name refuses the whole request.
        assert_eq!(scope_of(&["x", "why"], &some), Err("swarm: error: worker 'why' not found\n".into()));
        assert_eq!(scope_of(&[], &some), Err("swarm: error: must specify worker name or --all\n".into()));
        assert_eq!(scope_of(&["why"], &none), Err("swarm: error: worker 'why' not found\n".into()));
        assert_eq!(scope_of(&["begins"], &none), Ok(Some(Scope::Names(vec!["begins".into()]))));
    }
}
