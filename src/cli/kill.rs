//! `swarm kill`: asks the supervisor to stop workers.

use swarm_model::{KillRequest, RefusalKind, Row, Scope, WorkerView};

use super::answers::Answers;
use super::args::KillArgs;
use super::caller;
use super::error::{Failure, unknown_worker};
use super::here;
use super::screen::Screen;
use crate::api::client::post_raw;
use swarm_store::starting;
use swarm_store::views::Registry;
use swarm_sys::paths::Paths;

pub fn run(args: &KillArgs, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    let mut told = Answers::new(args.json);
    let registry = super::read_for(paths, super::only(&args.names).filter(|_| !args.all), screen)?;
    let ended: Vec<String> =
        registry.workers.iter().filter(|view| has_ended(view)).map(|view| view.row.name.clone()).collect();
    if let Some(scope) = scope(args, &registry, || starting::rows(paths))? {
        if scope == Scope::All && !args.everywhere {
            let running: Vec<_> = registry.workers.iter().filter(|view| view.state.is_running()).collect();
            here::confirm_all("kill", &running, screen)?;
        }
        let caller = caller::collect()?.caller;
        let (rm_worktree, force_dirty) = (args.rm_worktree, args.force_dirty);
        if let Scope::Names(names) = &scope {
            // Only for a person: the original prints nothing more.
            let is_told = screen.terminal;
            for name in names.iter().filter(|name| is_told && ended.contains(name)) {
                screen.aside("note: ", &format!("worker '{name}' had already ended"));
            }
        }
        let request =
            KillRequest { caller, scope, rm_worktree, force_dirty, started_by: None, generation: args.generation };
        post_raw(paths, &request, &mut |answer| told.tell(answer, "killed", screen))?;
    }
    told.end("swarm.killed/1", screen)
}

/// Reports whether the end of a worker is recorded, nothing of it runs, and nothing will start it again.
fn has_ended(view: &WorkerView) -> bool {
    view.exit.is_some()
        && !view.state.is_running()
        && view.next_start_ms.is_none()
        && view.survivors.is_empty()
        && !view.is_parked()
}

/// Returns the workers to kill, `None` for `--all` without workers. `--all` overrides a name, as in the original;
/// tags narrow it. Workers that are being started, `begun`, are not registered yet, but are killed as soon as they run.
fn scope(args: &KillArgs, registry: &Registry, begun: impl Fn() -> Vec<Row>) -> Result<Option<Scope>, Failure> {
    let named = |rows: &[&Row]| super::each_once(&rows.iter().map(|row| row.name.clone()).collect::<Vec<_>>());
    if args.all && !args.tagged.is_given() {
        return Ok((!registry.workers.is_empty() || !begun().is_empty()).then_some(Scope::All));
    }
    if args.tagged.is_given() {
        let begun = begun();
        let mut rows: Vec<&Row> = begun.iter().filter(|row| args.tagged.is_of(row)).collect();
        match args.tagged.workers(registry) {
            Ok(found) => rows.splice(0..0, found.into_iter().map(|view| &*view.row)).for_each(drop),
            Err(nobody) if rows.is_empty() => return Err(nobody.into()),
            Err(_) => {}
        }
        return Ok(Some(Scope::Names(named(&rows))));
    }
    if args.here {
        let begun = begun();
        let rows = here::rows(registry.workers.iter().map(|view| &*view.row).chain(&begun))?;
        return Ok((!rows.is_empty()).then(|| Scope::Names(named(&rows))));
    }
    let names = super::each_once(&args.names);
    for worker in names.iter().filter_map(|name| registry.find(name)) {
        super::refuse_elsewhere(worker)?;
    }
    let is_begun = |name: &str| begun().iter().any(|row| row.name == name);
    match names.iter().find(|name| registry.find(name).is_none() && !is_begun(name)) {
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
        let begun = || vec![Row { tags: vec!["new".into()], ..Row::clone(&sample::process("begins").row) }];
        scope(&args, registry, begun).map_err(|failure| {
            let mut err = Vec::new();
            assert_eq!(failure.report(&mut err), 1);
            String::from_utf8(err).expect("text")
        })
    }

    #[test]
    fn only_a_worker_of_which_nothing_runs_or_is_due_has_ended() {
        use swarm_model::{Ended, FineState};
        let ended = sample::ended("x", Ended::Code(3));
        assert!(has_ended(&ended));
        assert!(!has_ended(&sample::process("x")));
        assert!(!has_ended(&WorkerView { state: FineState::Backoff, next_start_ms: Some(1), ..ended.clone() }));
        assert!(!has_ended(&WorkerView { survivors: vec![7], ..ended }));
    }

    #[test]
    fn a_kill_needs_a_target() {
        let (none, some) = (sample::registry(Vec::new()), sample::registry(vec![sample::process("x")]));
        assert_eq!(scope_of(&["--all"], &none), Ok(Some(Scope::All)), "one is being started");
        assert_eq!(scope_of(&["x", "--all"], &some), Ok(Some(Scope::All)));
        assert_eq!(scope_of(&["x"], &some), Ok(Some(Scope::Names(vec!["x".into()]))));
        let two = sample::registry(vec![sample::process("x"), sample::process("y")]);
        assert_eq!(scope_of(&["x", "y", "x"], &two), Ok(Some(Scope::Names(vec!["x".into(), "y".into()]))));
        // One unknown name refuses the whole request.
        assert_eq!(scope_of(&["x", "why"], &some), Err("swarm: error: worker 'why' not found\n".into()));
        assert_eq!(scope_of(&[], &some), Err("swarm: error: must specify worker name or --all\n".into()));
        assert_eq!(scope_of(&["why"], &none), Err("swarm: error: worker 'why' not found\n".into()));
        let begins = Ok(Some(Scope::Names(vec!["begins".into()])));
        assert_eq!(scope_of(&["begins"], &none), begins);
        assert_eq!(scope_of(&["--tag", "new"], &some), begins);
        assert_eq!(scope_of(&["--tag", "ci"], &some), Ok(Some(Scope::Names(vec!["x".into()]))));
        assert!(scope_of(&["--tag", "old"], &some).is_err());
    }
}
