//! `swarm ralph`: loops that start an agent repeatedly, each time with a fresh context, until its work is done.

pub mod args;
mod prompt;
mod run;
mod show;
mod spawn;

use serde_json::json;
use swarm_model::loops::progress::Status;
use swarm_model::{LoopAnswer, LoopOrder, LoopRequest, Refusal, RefusalKind, Reply, Spawned};

use self::args::{CleanArgs, NameArgs, RalphAction, StopArgs};
use super::answers::no_answer;
use super::args::KillArgs;
use super::error::{Failure, unknown_worker};
use super::render::escape;
use super::screen::Screen;
use super::tagged::Tagged;
use super::{caller, json, kill};
use crate::api::client;
use swarm_store::loops::{self, Known};
use swarm_store::views::load;
use swarm_sys::paths::Paths;

pub fn run(action: &RalphAction, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    match action {
        RalphAction::Spawn(args) => spawn::run(args, paths, screen),
        RalphAction::Run(args) => run_loop(args, paths, screen),
        RalphAction::Init(args) => prompt::init(args, screen),
        RalphAction::Template(args) => prompt::template(args, screen),
        RalphAction::Status(args) => show::status(args, paths, screen),
        RalphAction::Pause(args) => pause(args, paths, screen),
        RalphAction::Resume(args) => resume(args, paths, screen),
        RalphAction::List(args) => show::list(args, paths, screen),
        RalphAction::Clean(args) => clean(args, paths, screen),
        RalphAction::Logs(args) => show::logs(args, paths, screen),
        RalphAction::Stop(args) => stop(args, paths, screen),
    }
}

/// Reads the loop of this name and prints its warning, if any.
///
/// # Errors
/// Fails if the loop cannot be read, if the worker has no loop, or if there is neither.
fn known(name: &str, paths: &Paths, screen: &mut Screen) -> Result<Known, Failure> {
    match loops::read(paths, name).map_err(|cause| Failure::new(RefusalKind::Registry, cause))? {
        Some(known) => {
            if let Some(warning) = &known.warning {
                screen.warning(warning);
            }
            Ok(known)
        }
        None => {
            let registry = load(paths)?;
            match registry.find(name) {
                Some(_) => {
                    let cause = format!("worker '{name}' is not a ralph worker");
                    Err(Failure::new(RefusalKind::Invalid, cause))
                }
                None => Err(unknown_worker(name, &registry)),
            }
        }
    }
}

fn no_state(name: &str) -> Failure {
    Failure::new(RefusalKind::NotFound, format!("no ralph state found for worker '{name}'"))
}

/// Returns what a person does about a loop whose agent cannot work.
fn unblock(name: &str) -> String {
    let name = escape(name);
    format!("answer the agent ('swarm attach {name}') or log in, then run 'swarm ralph resume {name}'")
}

/// Supervisor's answer to an order.
#[derive(Default)]
struct Done {
    /// Actions in the order in which they were done: `paused`, `resumed` and so on.
    lines: Vec<String>,
    spawned: Option<Spawned>,
}

impl Done {
    fn is(&self, word: &str) -> bool {
        self.lines.iter().any(|line| line == word)
    }
}

/// Sends an order to the supervisor and prints its notes and warnings.
///
/// # Errors
/// Returns the supervisor's refusal, or an error if the supervisor cannot be reached or answers nothing.
fn send(order: LoopOrder, paths: &Paths, screen: &mut Screen) -> Result<Done, Failure> {
    let mut collected = caller::collect()?.caller;
    // The contract of a new loop, or of one that this program started, already holds the environment.
    let is_known = match &order {
        LoopOrder::Begin { .. } | LoopOrder::Clean { .. } => true,
        LoopOrder::Pause { name, .. }
        | LoopOrder::Resume { name }
        | LoopOrder::Attend { name }
        | LoopOrder::Stop { name } => loops::is_ours(paths, name),
    };
    if is_known {
        collected.environment = Vec::new().into();
    }
    let request = LoopRequest { caller: collected, order };
    let (mut done, mut refused): (Done, Option<Refusal>) = (Done::default(), None);
    client::post(paths, &request, &mut |reply| match reply {
        Reply::Answer(LoopAnswer::Line(line)) => {
            for (severity, text) in &line.notes {
                let prefix = if severity == "plain" { String::new() } else { format!("{severity}: ") };
                screen.aside(&prefix, text);
            }
            done.lines.push(line.done);
        }
        Reply::Answer(LoopAnswer::Spawned(spawned)) => done.spawned = Some(spawned),
        Reply::Warning(text) => screen.warning(&text),
        Reply::Refused(refusal) => refused = Some(refusal),
    })?;
    match refused {
        Some(refusal) => Err(refusal.into()),
        None if done.lines.is_empty() && done.spawned.is_none() => Err(no_answer()),
        None => Ok(done),
    }
}

fn pause(args: &NameArgs, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    known(&args.name, paths, screen)?;
    let order = LoopOrder::Pause { name: args.name.clone(), reason: "user".to_owned() };
    change(args, order, paths, screen)
}

fn resume(args: &NameArgs, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    known(&args.name, paths, screen)?;
    change(args, LoopOrder::Resume { name: args.name.clone() }, paths, screen)
}

fn change(args: &NameArgs, order: LoopOrder, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    let done = send(order, paths, screen)?;
    let word = done.lines.last().map_or("unchanged", String::as_str);
    if args.json {
        json::print(screen, "swarm.ralph.changed/1", &json!({"name": args.name, "done": word}))?;
    } else if word != "unchanged" {
        screen.line(&format!("{word} ralph loop for {}", escape(&args.name)))?;
    }
    Ok(0)
}

fn run_loop(args: &NameArgs, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    let name = &args.name;
    let state = known(name, paths, screen)?.state;
    let refused = |what: String| Failure::new(RefusalKind::Invalid, format!("ralph loop for '{name}' {what}"));
    match state.status {
        Status::Running => {}
        Status::Paused => return Err(refused(format!("is paused (use 'swarm ralph resume {name}' first)"))),
        Status::Stopped | Status::Failed => return Err(refused(format!("has status '{}'", state.status.word()))),
    }
    let view = run::View::from_here(name, paths, args.json)?;
    send(LoopOrder::Attend { name: name.clone() }, paths, screen)?;
    view.follow(paths, screen)
}

fn clean(args: &CleanArgs, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    let names = match (&args.names[..], args.all) {
        (_, true) => loops::names(paths)
            .map_err(|error| Failure::system(format!("cannot list '{}'", paths.loops().display()), &error))?,
        ([], false) => return Err(Failure::new(RefusalKind::Invalid, "must specify worker name or use --all")),
        (names, false) => crate::cli::each_once(names),
    };
    let registry = load(paths)?;
    let mut cleaned = Vec::new();
    for name in names {
        if !loops::dir(paths, &name).is_some_and(|dir| dir.exists()) {
            return Err(no_state(&name));
        }
        send(LoopOrder::Clean { name: name.clone() }, paths, screen)?;
        if registry.find(&name).is_some_and(|view| view.state.is_running()) {
            screen.warning(&format!("worker '{name}' is still running (only ralph state removed)"));
        }
        if !args.json {
            screen.line(&format!("cleaned ralph state for {}", escape(&name)))?;
        }
        cleaned.push(name);
    }
    if args.json {
        json::print_list(screen, "swarm.ralph.cleaned/1", "names", cleaned)?;
    }
    Ok(0)
}

/// Ends a loop and its worker like `swarm kill`. A loop whose worker is gone is ended as well.
fn stop(args: &StopArgs, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    let name = &args.name;
    let has_worker = load(paths)?.find(name).is_some();
    let is_there = loops::dir(paths, name).is_some_and(|dir| dir.exists());
    if has_worker && is_there && !loops::is_ours(paths, name) {
        // A loop of the original program has its own monitor, so a kill alone would not end it.
        send(LoopOrder::Stop { name: name.clone() }, paths, screen)?;
    }
    if has_worker || loops::read(paths, name).is_ok_and(|known| known.is_none()) {
        let (rm_worktree, force_dirty, json) = (args.rm_worktree, args.force_dirty, args.json);
        return kill::run(
            &KillArgs {
                names: vec![name.clone()],
                tagged: Tagged::default(),
                rm_worktree,
                force_dirty,
                all: false,
                here: false,
                everywhere: false,
                generation: None,
                json,
            },
            paths,
            screen,
        );
    }
    send(LoopOrder::Stop { name: name.clone() }, paths, screen)?;
    if args.json {
        json::print_list(
            screen,
            "swarm.killed/1",
            "workers",
            vec![json!({"name": name, "done": "killed", "notes": []})],
        )?;
    } else {
        screen.line(&format!("killed {}", escape(name)))?;
    }
    Ok(0)
}
