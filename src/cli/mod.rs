//! Command line interface: parses arguments, sends requests, prints answers, exits. Each verb has a file; shared are
//! failures (`error`), output streams (`screen`), text for people (`render`) and text for programs (`json`).
//!
//! Verbs that read use files and the kernel; verbs that change something ask the supervisor. This module keeps no
//! state and reads nothing before the command line has been parsed.

mod agents;
mod agents_check;
mod answers;
#[allow(rustdoc::broken_intra_doc_links, rustdoc::invalid_html_tags, reason = "comments of arguments are help texts")]
mod args;
mod asks;
mod attach;
pub mod caller;
mod clean;
mod columns;
mod complete;
mod config;
mod datetime;
mod diff;
mod doctor;
mod du;
pub mod error;
mod escape;
mod events;
mod examples;
mod explain;
mod flow;
mod follow;
mod groups;
mod heartbeat;
mod here;
mod history;
mod host;
mod init;
mod init_args;
mod jobs;
mod json;
mod kill;
mod life;
mod logs;
mod logs_many;
mod logs_talk;
mod logs_window;
mod ls;
mod man;
mod many;
mod marks;
mod mcp;
mod merge;
mod notify;
mod parse;
mod peek;
mod progress_bar;
mod ralph;
mod ready;
mod recover;
mod render;
mod respawn;
mod restore;
pub mod run;
mod said;
#[cfg(test)]
pub mod sample;
pub mod screen;
mod send;
mod session;
mod spawn;
mod status;
mod supervisor;
mod tagged;
mod tail;
mod terminal;
mod top;
mod trust;
mod wait;
mod watch;
mod web;

use std::ffi::OsString;

use swarm_model::{Refusal, RefusalKind, WorkerView};

use args::Command;
pub use complete::main as complete;
use error::Failure;
use screen::Screen;
use swarm_store::views::{Detail, Pick, Registry, load, load_where};
use swarm_sys::duration;
use swarm_sys::paths::Paths;

pub fn main(words: &[OsString]) -> u8 {
    let (chosen, words) = match host::take(words) {
        Ok(taken) => taken,
        Err(cause) => return parse::report(&parse::misused(cause)),
    };
    match parse::parse(&words) {
        Ok(cli) => screen::run(|screen| match host::run(chosen, &cli.command, &words[1..], screen)? {
            Some(code) => Ok(code),
            None => dispatch(&cli.command, screen),
        }),
        Err(error) => parse::report(&error),
    }
}

/// Executes a verb for another machine, to which it says how far it is: `swarm __marked WORD…`.
pub fn marked(arguments: impl Iterator<Item = OsString>) -> u8 {
    let words: Vec<OsString> = std::iter::once("swarm".into()).chain(arguments).collect();
    match parse::parse(&words) {
        Ok(cli) => screen::run_marked(|screen| dispatch(&cli.command, screen)),
        Err(error) => parse::report(&error),
    }
}

fn dispatch(command: &Command, screen: &mut Screen) -> Result<u8, Failure> {
    let paths = || Paths::from_env().map_err(|error| Failure::new(RefusalKind::Invalid, error.to_string()));
    match command {
        Command::Approvals(args) => asks::list(args, &paths()?, screen),
        Command::Approve(args) => asks::approve(args, &paths()?, screen),
        Command::Deny(args) => asks::deny(args, &paths()?, screen),
        Command::Answer(args) => asks::answer(args, &paths()?, screen),
        Command::Rules(args) => asks::rules(args, &paths()?, screen),
        Command::Ask(args) => asks::ask(args, &paths()?, screen),
        Command::Ls(args) => ls::run(args, &paths()?, screen),
        Command::Top(args) => top::run(args, &paths()?, screen),
        Command::Spawn(args) => spawn::run(args, &paths()?, screen),
        Command::Kill(args) => kill::run(args, &paths()?, screen),
        Command::Clean(args) => clean::run(args, &paths()?, screen),
        Command::Respawn(args) => respawn::run(args, &paths()?, screen),
        Command::Restore(args) => restore::run(args, &paths()?, screen),
        Command::Recover(args) => recover::run(args, &paths()?, screen),
        Command::Status(args) => status::run(args, &paths()?, screen),
        Command::Wait(args) => wait::run(args, &paths()?, screen),
        Command::Logs(args) => logs::run(args, &paths()?, screen),
        Command::Events(args) => events::run(args, &paths()?, screen),
        Command::History(args) => history::run(args, &paths()?, screen),
        Command::Du(args) => du::run(args, &paths()?, screen),
        Command::Diff(args) => diff::run(args, &paths()?, screen),
        Command::Merge(args) => merge::run(&args.action, &paths()?, screen),
        Command::Plan(args) => run::plan(args, &paths()?, screen),
        Command::Run(args) => run::run(args, &paths()?, screen),
        Command::Session(args) => session::run(&args.action, paths, screen),
        Command::Ralph(args) => ralph::run(&args.action, &paths()?, screen),
        Command::Heartbeat(args) => heartbeat::run(&args.action, &paths()?, screen),
        Command::Flow(args) => flow::run(&args.action, screen),
        Command::Agents(args) => agents::run(args, &paths()?, screen),
        Command::Init(args) => init::run(args, screen),
        Command::Peek(args) => terminal::peek(args, &paths()?, screen),
        Command::Send(args) => terminal::send(args, &paths()?, screen),
        Command::Keys(args) => terminal::keys(args, &paths()?, screen),
        Command::Interrupt(args) => terminal::interrupt(args, &paths()?, screen),
        Command::Eof(args) => terminal::eof(args, &paths()?, screen),
        Command::Attach(args) => terminal::attach(args, &paths()?, screen),
        Command::Explain(args) => explain::run(args, &paths()?, screen),
        Command::Doctor(args) => doctor::run(args, &paths()?, screen),
        Command::Config(args) => config::run(args, &paths()?, screen),
        Command::Trust(args) if args.run => trust::run_records(args, &paths()?, screen),
        Command::Trust(args) => trust::run(args, screen),
        Command::Mcp(args) => mcp::run(args, &paths()?, screen),
        Command::Web(args) => web::run(args, &paths()?, screen),
        Command::Notify(args) => notify::run(&args.action, &paths()?, screen),
        Command::Hosts(args) => host::list::run(args, screen),
        Command::Completions(args) => complete::script(args, screen),
        Command::Man(args) => man::run(args, screen),
        Command::Supervisor(args) => supervisor::run(&args.action, &paths()?, screen),
    }
}

/// Reads the registry and prints its warnings.
fn read(paths: &Paths, screen: &mut Screen) -> Result<Registry, Failure> {
    let registry = load(paths)?;
    warn_all(&registry, screen);
    Ok(registry)
}

/// Reads the registry for one worker without checking the processes of the others, and prints its warnings. If the
/// name is unknown, reads all workers, so that the caller can suggest a similar name.
fn read_one(paths: &Paths, name: &str, screen: &mut Screen) -> Result<Registry, Failure> {
    let registry = load_where(paths, Detail::Fine, Pick::Named(&[name]))?;
    if registry.workers.is_empty() {
        return read(paths, screen);
    }
    warn_all(&registry, screen);
    Ok(registry)
}

/// Reads one worker if `name` is given, else all workers.
fn read_for(paths: &Paths, name: Option<&str>, screen: &mut Screen) -> Result<Registry, Failure> {
    match name {
        Some(name) => read_one(paths, name, screen),
        None => read(paths, screen),
    }
}

/// Returns the name if there is exactly one.
fn only(names: &[String]) -> Option<&str> {
    if let [name] = names { Some(name) } else { None }
}

/// Refuses to touch a worker that another machine supervises.
///
/// # Errors
/// Fails if the worker is on another machine.
fn refuse_elsewhere(worker: &WorkerView) -> Result<(), Refusal> {
    match &worker.elsewhere {
        Some(host) => Err(swarm_actors::worker::elsewhere(&worker.row.name, host)),
        None => Ok(()),
    }
}

/// Returns the names in their order, without duplicates.
fn each_once(names: &[String]) -> Vec<String> {
    let mut once: Vec<String> = Vec::new();
    for name in names {
        if !once.contains(name) {
            once.push(name.clone());
        }
    }
    once
}

fn warn_all(registry: &Registry, screen: &mut Screen) {
    for warning in &registry.warnings {
        screen.warning(warning);
    }
}
