//! `swarm flow run`, `resume` and `stop`: whether the supervisor works on a flow.

use serde_json::json;
use swarm_actors::model::{Answer, FlowOrder, FlowPlace, FlowRequest, FlowRules, Refusal, RefusalKind};

use super::args::{RunArgs, StopArgs};
use crate::adapters::flows::runner::is_run;
use crate::adapters::flows::store::FlowFiles;
use crate::api::client;
use crate::cli::answers::no_answer;
use crate::cli::caller;
use crate::cli::error::Failure;
use crate::cli::json;
use crate::cli::render::escape;
use crate::cli::screen::Screen;
use crate::paths::Paths;

pub fn run(args: &RunArgs, screen: &mut Screen) -> Result<u8, Failure> {
    let files = super::flow_of(&args.of)?;
    // What cannot be opened is told with its own code, and no supervisor is started for it.
    let open = files.open()?;
    let paths = paths()?;
    // One that is on record goes on until what it came to is queued.
    if open.flow.status() == "completed" && !is_run(&paths, &place_of(&files)?) {
        return told(&files, args.of.common.json, "over", screen);
    }
    let mut done = begin(&files, FlowRules { max: args.max.map(Into::into), once: args.once }, screen)?;
    if args.wait {
        done = ask(&paths, place_of(&files)?, FlowOrder::Rest, screen).or_else(gone)?;
        // Nobody may have been there any more to say so.
        if files.read()?.status() == "completed" {
            "over".clone_into(&mut done);
        }
    }
    told(&files, args.of.common.json, &done, screen)
}

/// Has the supervisor work on it.
///
/// # Errors
/// Why it does not.
pub fn begin(files: &FlowFiles, rules: FlowRules, screen: &mut Screen) -> Result<String, Failure> {
    ask(&paths()?, place_of(files)?, FlowOrder::Run(rules), screen)
}

/// It was over, and nobody ran it any more, before anybody could ask.
fn gone(failure: Failure) -> Result<String, Failure> {
    match &failure {
        Failure::Refused { refusal, .. } if refusal.kind == RefusalKind::NotFound => Ok("over".to_owned()),
        _ => Err(failure),
    }
}

pub fn stop(args: &StopArgs, screen: &mut Screen) -> Result<u8, Failure> {
    let files = super::flow_of(&args.of)?;
    let done = ask(&paths()?, place_of(&files)?, FlowOrder::Stop { node: args.node.clone() }, screen)?;
    told(&files, args.of.common.json, &done, screen)
}

/// Whoever runs the flow hears that its file says something new.
pub fn wake(files: &FlowFiles, screen: &mut Screen) {
    let (Ok(paths), Ok(place)) = (Paths::from_env(), place_of(files)) else { return };
    if !is_run(&paths, &place) {
        return;
    }
    // It is in the file all the same.
    if ask(&paths, place, FlowOrder::Wake, screen).is_err() {
        screen.warning("its supervisor cannot be told; the flow goes on when that is there again");
    }
}

/// The same for a process that nobody looks at.
pub fn wake_quietly(files: &FlowFiles) {
    let (Ok(paths), Ok(place)) = (Paths::from_env(), place_of(files)) else { return };
    if is_run(&paths, &place) {
        let _ = send(&paths, place, FlowOrder::Wake, &mut |_| {});
    }
}

fn paths() -> Result<Paths, Failure> {
    Paths::from_env().map_err(|error| Failure::new(RefusalKind::Invalid, error.to_string()))
}

pub fn place_of(files: &FlowFiles) -> Result<FlowPlace, Failure> {
    let root = files
        .root()
        .to_str()
        .ok_or_else(|| Failure::new(RefusalKind::Invalid, format!("the path {} is no text", files.root().display())))?;
    let id = files.id();
    Ok(FlowPlace { root: root.to_owned(), project: id.project.clone(), flow: id.flow.clone() })
}

fn ask(paths: &Paths, place: FlowPlace, order: FlowOrder, screen: &mut Screen) -> Result<String, Failure> {
    send(paths, place, order, &mut |text| screen.warning(text))
}

fn send(paths: &Paths, place: FlowPlace, order: FlowOrder, warn: &mut dyn FnMut(&str)) -> Result<String, Failure> {
    let mut caller = caller::collect()?.caller;
    if !matches!(order, FlowOrder::Run(_)) {
        caller.environment = Vec::new().into();
    }
    let request = FlowRequest { caller, place, order };
    let (mut done, mut refused): (Option<String>, Option<Refusal>) = (None, None);
    client::post(paths, "/v1/flow", &request, &mut |answer| match answer {
        Answer::Flow(line) => done = Some(line.done),
        Answer::Warning(text) => warn(&text),
        Answer::Refused(refusal) => refused = Some(refusal),
        Answer::Spawned(_)
        | Answer::Worker(_)
        | Answer::Merge(_)
        | Answer::Run(_)
        | Answer::Loop(_)
        | Answer::Nudge(_)
        | Answer::Accepted
        | Answer::Done => {}
    })?;
    match refused {
        Some(refusal) => Err(refusal.into()),
        None => done.ok_or_else(no_answer),
    }
}

fn told(files: &FlowFiles, as_json: bool, done: &str, screen: &mut Screen) -> Result<u8, Failure> {
    let id = files.id();
    if as_json {
        let object = json::object([("project", json!(id.project)), ("flow", json!(id.flow)), ("done", json!(done))]);
        json::print(screen, "swarm.flow.run/1", &object)?;
    } else {
        screen.line(&format!("{done}: {}", escape(&id.to_string())))?;
        if done == "waiting" {
            super::show::waits(&files.open()?, screen)?;
        }
    }
    Ok(0)
}
