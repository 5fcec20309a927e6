//! `swarm flow run`, `resume` and `stop`: start and stop the supervisor's work on a flow.

use serde_json::json;
use swarm_model::{FlowOrder, FlowPlace, FlowRequest, FlowRules, Refusal, RefusalKind, Reply};

use super::args::{RunArgs, StopArgs};
use crate::api::client;
use crate::cli::answers::no_answer;
use crate::cli::caller;
use crate::cli::error::Failure;
use crate::cli::json;
use crate::cli::render::escape;
use crate::cli::screen::Screen;
use crate::cli::trust::gate::Use;
use swarm_actors::flow::rules::graph::Graph;
use swarm_actors::flow::rules::names::RoleId;
use swarm_agents::consent;
use swarm_config::trust::agent_files;
use swarm_store::flows::active::FlowSite;
use swarm_store::flows::registered::is_run;
use swarm_store::flows::store::FlowFiles;
use swarm_sys::paths::Paths;

pub fn run(args: &RunArgs, screen: &mut Screen) -> Result<u8, Failure> {
    let files = super::flow_of(&args.of)?;
    // A flow that cannot be opened fails here, with its own exit code, before a supervisor is started.
    let open = super::opened(&files, screen)?;
    let paths = paths()?;
    let is_completed = open.flow.status() == "completed";
    let is_unqueued = is_completed && open.sidecar.not_queued.is_some();
    // A completed flow may still be recorded as running: until its result is in the merge queue.
    if is_completed && !is_unqueued && !is_run(&paths, &place_of(&files)?) {
        return told(&files, args.of.common.json, "over", screen);
    }
    let mut done = begin(&files, FlowRules { max: args.max.map(Into::into), once: args.once }, screen)?;
    if args.wait || is_unqueued {
        done = ask(&paths, place_of(&files)?, FlowOrder::Rest, screen).or_else(gone)?;
        // The flow may have completed after the supervisor stopped running it.
        if files.read()?.status() == "completed" {
            "over".clone_into(&mut done);
        }
    }
    told(&files, args.of.common.json, &done, screen)
}

/// Asks the supervisor to run the flow and returns its answer (`done`).
///
/// # Errors
/// Fails if the flow came with the repository. Returns the supervisor's refusal, or an error if the supervisor cannot be reached.
pub fn begin(files: &FlowFiles, rules: FlowRules, screen: &mut Screen) -> Result<String, Failure> {
    let place = place_of(files)?;
    files.check_origin(&caller::collect()?.caller)?;
    require_trust(&place, &files.open()?.graph, screen)?;
    ask(&paths()?, place, FlowOrder::Run(rules), screen)
}

/// Makes sure that a person agreed to the agents of the roles, and to the hooks and rules of their repository. What
/// cannot be read is reported by the supervisor.
///
/// # Errors
/// Fails if something is not trusted and nobody agrees.
pub fn require_trust(place: &FlowPlace, graph: &Graph, screen: &mut Screen) -> Result<(), Failure> {
    let Ok(site) = FlowSite::as_written(place, &caller::collect()?.caller) else { return Ok(()) };
    let players = graph.nodes().iter().filter_map(|node| site.config.player(&RoleId::key(&node.role)).ok());
    let mut loads: Vec<&'static str> = players.filter_map(|player| consent::loads(&player.agent)).collect();
    loads.sort_unstable();
    loads.dedup();
    let project = site.repo.as_ref().unwrap_or(&site.dir);
    // All folders, although only the first file counts: an agent may write one into a folder that has none.
    for folder in &site.folders {
        let mut used = vec!["agents", "flow"];
        used.extend(["merge", "worktree"].into_iter().filter(|_| site.repo.as_ref() == Some(folder)));
        let mut of_agents = Vec::new();
        if folder == project {
            used.extend(&loads);
            of_agents = agent_files(folder, &loads).map_err(|cause| Failure::new(RefusalKind::Invalid, cause))?;
        }
        Use { more: of_agents, ..Use::new(Some(folder), &used) }.require(screen)?;
    }
    Ok(())
}

/// Turns "not found" into `over`: the flow ended before the supervisor received the question.
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

/// Notifies the supervisor, if it runs the flow, that the flow's files have changed. Warns if that fails.
pub fn wake(files: &FlowFiles, screen: &mut Screen) {
    let (Ok(paths), Ok(place)) = (Paths::from_env(), place_of(files)) else { return };
    if !is_run(&paths, &place) {
        return;
    }
    // The change is in the file in any case.
    if ask(&paths, place, FlowOrder::Wake, screen).is_err() {
        screen.warning("cannot notify the supervisor; the flow continues when it is running again");
    }
}

/// Like `wake`, without a warning: for hooks, whose output no person sees.
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
    let root = files.root().to_str().ok_or_else(|| {
        Failure::new(RefusalKind::Invalid, format!("path '{}' is not valid UTF-8", files.root().display()))
    })?;
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
    let post = if request.order == FlowOrder::Rest { client::post_and_wait } else { client::post };
    post(paths, &request, &mut |reply| match reply {
        Reply::Answer(line) => done = Some(line.done),
        Reply::Warning(text) => warn(&text),
        Reply::Refused(refusal) => refused = Some(refusal),
    })?;
    match refused {
        Some(refusal) => Err(refusal.into()),
        None => done.ok_or_else(no_answer),
    }
}

fn told(files: &FlowFiles, as_json: bool, done: &str, screen: &mut Screen) -> Result<u8, Failure> {
    let id = files.id();
    let not_queued = if done == "over" { files.sidecar()?.not_queued } else { None };
    let code = u8::from(not_queued.is_some());
    if as_json {
        let object = json::object([
            ("project", json!(id.project)),
            ("flow", json!(id.flow)),
            ("done", json!(done)),
            ("not_queued", json!(not_queued)),
        ]);
        json::print(screen, "swarm.flow.run/1", &object)?;
    } else {
        screen.line(&format!("{done}: {}", escape(&id.to_string())))?;
        if done == "waiting" {
            super::show::waits(&files.open()?, screen)?;
        }
        if let Some(cause) = &not_queued {
            screen.warning(&super::show::unqueued(&id.flow, cause));
        }
        if done == "over" || done == "waiting" {
            let mut note = |line: &str| -> Result<(), Failure> {
                screen.aside("note: ", line);
                Ok(())
            };
            super::show::left_out(&files.open()?, &mut note)?;
        }
    }
    Ok(code)
}
