//! `swarm ralph spawn`: checks all arguments before it asks the supervisor, in the order and words of the original
//! program.

use std::path::Path;

use serde_json::json;
use swarm_actors::loops::sight;
use swarm_model::loops::progress::Plan;
use swarm_model::{LoopOrder, NudgeSettings, Refusal, RefusalKind};

use super::args::SpawnArgs;
use super::run::View;
use crate::cli::answers::{no_answer, spawned_line, spawned_object};
use crate::cli::args;
use crate::cli::error::Failure;
use crate::cli::render::escape;
use crate::cli::screen::Screen;
use crate::cli::trust::again;
use crate::cli::{caller, json, spawn};
use swarm_sys::paths::Paths;

/// Iteration limits above this cause a warning.
const MANY_ITERATIONS: u32 = 50;

pub fn run(args: &SpawnArgs, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    if args.command.is_empty() {
        return Err(Failure::new(RefusalKind::Invalid, "no command provided (use -- command...)"));
    }
    spawn::check_name(&args.name)?;
    let prompt_file = prompt_file(&args.prompt_file)?;
    check_pattern(args)?;
    let mut plain = plain(args);
    plain.place.limits = spawn::defaults::limits(plain.place.limits)?;
    let nudge = spawn::nudge(&plain).map_err(|cause| Failure::new(RefusalKind::Invalid, cause))?;
    let collected = caller::collect()?;
    if plain.worktree
        && let Err(refusal) = swarm_store::repositories::root(&collected.caller)
        && ["not in a git repository", "not a git repository"].iter().any(|words| refusal.cause.contains(words))
    {
        return Err(no_repository(args, paths).into());
    }
    if plain.worktree {
        let used: Vec<&str> = std::iter::once("worktree").chain(again::loads_of(&plain.command)).collect();
        again::question(swarm_config::root_above(Path::new(&collected.caller.cwd)), &used)?.require(screen)?;
    }
    let log_limit = std::env::var("SWARM_LOG_MAX_BYTES").ok();
    let built = spawn::build(&plain, collected.caller, &paths.session(), log_limit.as_deref());
    let request = built.map_err(|refusal| match args.replace {
        true => refusal,
        false => spawn::taken_first(&args.name, paths).unwrap_or(refusal),
    })?;
    if args.max_iterations > MANY_ITERATIONS {
        screen.warning("high iteration count (>50) may consume significant resources");
    }
    if args.tmux {
        screen.aside("note: ", "Ralph workers always use tmux (--tmux flag has no effect)");
    }
    for variable in &collected.dropped {
        screen.warning(&format!("environment variable '{variable}' is not valid UTF-8 and is not passed on"));
    }
    let plan = Plan {
        id: request.caller.request.clone(),
        name: args.name.clone(),
        prompt_file,
        max_iterations: args.max_iterations,
        inactivity_timeout_s: args.inactivity_timeout.as_secs(),
        done_pattern: args.done_pattern.clone(),
        check_done_continuous: args.checks_done_continuously(),
        max_context: args.max_context,
        no_run: args.no_run,
        contract: request.contract,
        worktree: request.worktree,
        caller: request.caller,
    };
    let (replace, clean_state) = (args.replace, args.clean_state);
    let done = super::send(LoopOrder::Begin { plan: Box::new(plan), replace, clean_state }, paths, screen)?;
    announce(args, &plain, &done, nudge, paths, screen)
}

fn announce(
    args: &SpawnArgs,
    plain: &args::SpawnArgs,
    done: &super::Done,
    nudge: Option<NudgeSettings>,
    paths: &Paths,
    screen: &mut Screen,
) -> Result<u8, Failure> {
    let name = escape(&args.name);
    let spawned = done.spawned.as_ref().ok_or_else(no_answer)?;
    let nudge = spawn::begin_nudge(plain, nudge, paths, screen);
    spawn::wait_ready(plain, spawned, paths, screen)?;
    if args.json {
        let mut object = spawned_object(spawned);
        object.insert("iteration".to_owned(), json!(1));
        object.insert("max_iterations".to_owned(), json!(args.max_iterations));
        object.insert("replaced".to_owned(), json!(done.is("replaced")));
        json::print(screen, "swarm.ralph.spawned/1", &object)?;
        return nudge.map(|_| 0);
    }
    if done.is("replaced") {
        screen.line(&format!("replaced existing worker {name}"))?;
    }
    if done.is("cleared") {
        screen.line(&format!("cleared ralph state for {name}"))?;
    }
    let mode = format!("[ralph mode: iteration 1/{}]", args.max_iterations);
    screen.line(&format!("{} {mode}", spawned_line("spawned", spawned)))?;
    spawn::tell_nudge(nudge?.as_ref(), screen)?;
    if args.foreground {
        screen.flush()?;
        return View::of_whole_loop(&args.name, paths).follow(paths, screen);
    }
    if !args.no_run {
        let lines = [("ralph status", "loop progress"), ("peek", "terminal output")];
        let more = [("ralph logs", "iteration history"), ("kill", "stop worker")];
        screen.line("\nMonitor:")?;
        let wide = "ralph status".len() + name.chars().count();
        for (verb, what) in lines.into_iter().chain(more) {
            let words = format!("{verb} {name}");
            screen.line(&format!("  swarm {words:<width$}    # {what}", width = wide + 1))?;
        }
    }
    Ok(0)
}

/// Returns the refusal for a start outside of a git repository. A worktree is the default, so this is a common mistake;
/// a name that is already in use is reported first.
fn no_repository(args: &SpawnArgs, paths: &Paths) -> Refusal {
    let taken = if args.replace { None } else { spawn::taken_first(&args.name, paths) };
    taken.unwrap_or_else(|| {
        Refusal::new(RefusalKind::Worktree, "not in a git repository (required for --worktree)")
            .remedy("use --no-worktree to run in the current directory")
    })
}

/// Returns the absolute path of the prompt file, because the loop reads it from another directory.
///
/// # Errors
/// Fails if the file is missing, unreadable or not UTF-8, or if its path is not UTF-8.
fn prompt_file(typed: &Path) -> Result<String, Refusal> {
    let shown = typed.display();
    let refused = |cause: String| Refusal::new(RefusalKind::Invalid, cause);
    let missing = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            let remedy = "run 'swarm ralph init' to create a PROMPT.md";
            refused(format!("prompt file not found: {shown}")).remedy(remedy)
        }
        _ => refused(format!("cannot read prompt file: {shown}: {error}")),
    };
    let file = typed.canonicalize().map_err(missing)?;
    std::fs::read_to_string(&file).map_err(missing)?;
    file.into_os_string()
        .into_string()
        .map_err(|_| refused(format!("path of the prompt file is not valid UTF-8: {shown}")))
}

fn check_pattern(args: &SpawnArgs) -> Result<(), Refusal> {
    let Some(text) = &args.done_pattern else { return Ok(()) };
    sight::pattern(text).map(drop).map_err(|cause| {
        let cause = format!("invalid done pattern '{text}': {}", cause.trim_start_matches("error: "));
        let remedy = "use a regular expression without look-around and backreferences";
        Refusal::new(RefusalKind::Invalid, cause).remedy(remedy)
    })
}

/// Returns the arguments of the ordinary `swarm spawn` that this start is based on.
fn plain(args: &SpawnArgs) -> args::SpawnArgs {
    args::SpawnArgs {
        on: None,
        file: None,
        stuck_after: None,
        stuck_message: None,
        name: args.name.clone(),
        tmux: true,
        no_tmux: false,
        place: args.place.clone(),
        worktree: args.wants_worktree(),
        no_worktree: false,
        timeout: None,
        restart: None,
        session_dir: None,
        issue: None,
        work_type: None,
        prompt: None,
        merge: false,
        json: args.json,
        command: args.command.clone(),
    }
}
