//! `swarm heartbeat`: text that is typed into windows on a schedule. Lists read the files; changes go through the
//! supervisor.

pub mod args;
mod show;

use serde_json::json;
use swarm_model::{
    Answer, Every, NudgeLine, NudgeOrder, NudgeRequest, NudgeSettings, Refusal, RefusalKind, WorkerView,
};

use self::args::{HeartbeatAction, StartArgs};
use super::caller;
use super::error::{Failure, suggestion};
use super::json;
use super::render::escape;
use super::screen::Screen;
use crate::api::client;
use swarm_store::views::Registry;
use swarm_sys::paths::Paths;

/// Intervals below this cause a warning, in milliseconds.
const SHORT_MS: u64 = 60_000;

pub fn run(action: &HeartbeatAction, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    match action {
        HeartbeatAction::Start(args) => start(args, paths, screen),
        HeartbeatAction::Stop(args) => change(&args.worker, NudgeOrder::Stop, args.json, paths, screen),
        HeartbeatAction::Pause(args) => change(&args.worker, NudgeOrder::Pause, args.json, paths, screen),
        HeartbeatAction::Resume(args) => change(&args.worker, NudgeOrder::Resume, args.json, paths, screen),
        HeartbeatAction::List(args) => show::list(args, paths, screen),
        HeartbeatAction::Status(args) => show::status(args, paths, screen),
    }
}

fn start(args: &StartArgs, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    let settings = args.settings().map_err(said)?;
    let registry = super::read_one(paths, &args.worker, screen)?;
    let view = registry.find(&args.worker).ok_or_else(|| unknown(&args.worker, &registry))?;
    can_be_nudged(view).map_err(said)?;
    warn_of(&settings, &mut |text| screen.errors(format!("Warning: {text}\n").as_bytes()));
    let order = NudgeOrder::Start { settings: settings.clone(), force: args.force };
    let line = ask(&args.worker, order, paths).map_err(|refusal| worded(&refusal))?;
    if args.json {
        print(&line, screen)?;
    } else {
        screen.line(&format!("Heartbeat started for {} ({})", escape(&line.worker), times(&settings)))?;
    }
    Ok(0)
}

fn change(worker: &str, order: NudgeOrder, as_json: bool, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    let line = ask(worker, order, paths).map_err(|refusal| worded(&refusal))?;
    if as_json {
        print(&line, screen)?;
        return Ok(0);
    }
    let name = escape(&line.worker);
    screen.line(&match line.done.as_str() {
        "inactive" => format!("No active heartbeat for {name}"),
        done => format!("Heartbeat {done} for {name}"),
    })?;
    Ok(0)
}

/// Sends an order to the supervisor and returns its answer.
///
/// # Errors
/// Returns the supervisor's refusal, or an error if the supervisor cannot be reached.
pub fn ask(worker: &str, order: NudgeOrder, paths: &Paths) -> Result<NudgeLine, Refusal> {
    let request = NudgeRequest { caller: caller::collect()?.caller, worker: worker.to_owned(), order };
    let mut told = None;
    client::post(paths, "/v1/nudges", &request, &mut |answer| match answer {
        Answer::Nudge(line) => told = Some(Ok(line)),
        Answer::Refused(refusal) => told = Some(Err(refusal)),
        Answer::Spawned(_)
        | Answer::Worker(_)
        | Answer::Merge(_)
        | Answer::Run(_)
        | Answer::Loop(_)
        | Answer::Flow(_)
        | Answer::Warning(_)
        | Answer::Accepted
        | Answer::Done => {}
    })?;
    let silent = || Refusal::new(RefusalKind::Internal, "the supervisor closed the connection without a result");
    told.unwrap_or_else(|| Err(silent()))
}

/// Warns of settings that are allowed but probably unintended.
pub fn warn_of(settings: &NudgeSettings, warn: &mut dyn FnMut(&str)) {
    if let Every::Interval { ms } = settings.every
        && ms < SHORT_MS
    {
        warn("very short interval (less than 1 minute)");
    }
}

/// Describes the schedule, for example `every 1h 30m, expires in 24h 0m`.
pub fn times(settings: &NudgeSettings) -> String {
    let when = match &settings.every {
        Every::Interval { ms } => format!("every {}", show::duration(*ms)),
        Every::Cron { expression } => format!("at '{}'", escape(expression)),
    };
    match settings.expire_ms {
        Some(ms) => format!("{when}, expires in {}", show::duration(ms)),
        None => format!("{when}, no expiration"),
    }
}

fn can_be_nudged(view: &WorkerView) -> Result<(), String> {
    if view.row.tmux.is_none() && view.pane.is_none() {
        return Err("heartbeat requires tmux worker".to_owned());
    }
    let comes_back = view.next_start_ms.is_some();
    if !view.state.is_running() && !comes_back {
        return Err(format!("worker '{}' is not running", view.row.name));
    }
    Ok(())
}

fn print(line: &NudgeLine, screen: &mut Screen) -> Result<(), Failure> {
    let object = json::object([("worker", json!(line.worker)), ("done", json!(line.done))]);
    json::print(screen, "swarm.heartbeat-changed/1", &object)
}

/// Returns a failure with the prefix `Error:` instead of `swarm: error:`, as the original program does for these verbs.
fn said(cause: String) -> Failure {
    Failure::Plain { line: format!("Error: {cause}"), hint: None }
}

fn unknown(worker: &str, registry: &Registry) -> Failure {
    let line = match registry.unreadable.iter().find(|(row, _)| row == worker) {
        Some((_, cause)) => format!("Error: cannot read the registry entry of worker '{worker}': {cause}"),
        None => format!("Error: worker '{worker}' not found"),
    };
    Failure::Plain { line, hint: suggestion(worker, registry) }
}

fn worded(refusal: &Refusal) -> Failure {
    let is_a_sentence = refusal.cause.starts_with("No heartbeat found");
    let line = if is_a_sentence { refusal.cause.clone() } else { format!("Error: {}", refusal.cause) };
    Failure::Plain { line, hint: refusal.remedy.clone() }
}
