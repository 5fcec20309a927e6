//! `swarm supervisor`: status, start, stop and installation of the supervisor.

mod unit;

use serde::Serialize;

use super::args::SupervisorAction;
use super::error::Failure;
use super::json;
use super::screen::Screen;
use crate::api::client::{self, After};
use swarm_store::views::{self, Registry};
use swarm_sys::paths::Paths;

/// Status in the form that `--json` prints. The optional keys are absent if no supervisor is running.
#[derive(Serialize)]
struct Status {
    running: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    guard: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    workers: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    socket: String,
    state_dir: String,
}

pub fn run(action: &SupervisorAction, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    match action {
        SupervisorAction::Status(flags) => status(flags.json, paths, screen),
        SupervisorAction::Start(flags) => {
            client::ensure(paths)?;
            done(flags.json, "supervisor is running", paths, screen)
        }
        SupervisorAction::Install(flags) => unit::install(flags, paths, screen),
        SupervisorAction::Uninstall(flags) => unit::uninstall(flags, paths, screen),
        SupervisorAction::Stop(flags) => {
            let was_there = client::stop(paths, After::None)?;
            let text = if was_there { "supervisor stopped" } else { "no supervisor is running" };
            let code = done(flags.json, text, paths, screen)?;
            // What cannot be read is no reason to call the stop a failure.
            let running = views::load(paths).map_or(0, |registry| running(&registry));
            if was_there && running > 0 && !flags.json {
                screen.line(&goes_on(running))?;
            }
            Ok(code)
        }
        SupervisorAction::Restart(flags) => {
            client::restart(paths)?;
            done(flags.json, "supervisor restarted", paths, screen)
        }
    }
}

fn running(registry: &Registry) -> usize {
    registry.workers.iter().filter(|worker| worker.state.is_running()).count()
}

/// Returns what goes on without a supervisor, and what does not.
fn goes_on(running: usize) -> String {
    let (are, verb) =
        if running == 1 { ("1 worker".to_owned(), "runs") } else { (format!("{running} workers"), "run") };
    format!("{are} still {verb}; nothing is restarted or landed until a command that needs the supervisor starts it")
}

fn done(as_json: bool, text: &str, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    if as_json {
        json::print(screen, "swarm.supervisor/1", &describe(paths)?)?;
    } else {
        screen.line(text)?;
    }
    Ok(0)
}

fn status(as_json: bool, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    let status = describe(paths)?;
    let code = u8::from(!status.running);
    if as_json {
        json::print(screen, "swarm.supervisor/1", &status)?;
        return Ok(code);
    }
    let place = format!("socket {}", status.socket);
    let line = match (status.pid, status.workers) {
        (Some(pid), Some(workers)) => {
            let guard = status.guard.map(|guard| format!(", guard {guard}")).unwrap_or_default();
            format!("supervisor: running (pid {pid}{guard}, {workers} live worker(s), {place})")
        }
        _ => format!("supervisor: stopped ({place}); the next command that needs it starts it"),
    };
    screen.line(&line)?;
    Ok(code)
}

fn describe(paths: &Paths) -> Result<Status, Failure> {
    let hello = client::hello(paths)?;
    Ok(Status {
        running: hello.is_some(),
        pid: hello.as_ref().map(|hello| hello.pid),
        guard: hello.as_ref().and_then(|hello| hello.guard),
        workers: hello.as_ref().map(|hello| hello.workers),
        version: hello.map(|hello| hello.build.version),
        socket: paths.socket().to_string_lossy().into_owned(),
        state_dir: paths.root().to_string_lossy().into_owned(),
    })
}
