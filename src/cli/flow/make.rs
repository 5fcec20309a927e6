//! `swarm flow new`.

use serde_json::json;
use swarm_actors::flow::names::FlowRef;
use swarm_actors::flow::validate::validate;
use swarm_actors::model::{Refusal, RefusalKind};

use super::args::NewArgs;
use super::check::{faults, rules};
use crate::adapters::flows::Make;
use crate::adapters::flows::sidecar::Sidecar;
use crate::cli::error::Failure;
use crate::cli::json;
use crate::cli::render::escape;
use crate::cli::screen::Screen;

pub fn run(args: &NewArgs, screen: &mut Screen) -> Result<u8, Failure> {
    let project = FlowRef::new(&args.project, "x").map_err(|cause| Failure::new(RefusalKind::Invalid, cause))?.project;
    let space = super::workspace(&args.common)?;
    let workflow = super::read_file(&args.workflow)?;
    let faults = faults(&workflow, |document| validate(document, rules(args.relaxed)));
    if !faults.is_empty() {
        for fault in &faults {
            screen.errors(format!("{}\n", fault.text(&args.workflow)).as_bytes());
        }
        let cause = format!("{} is no workflow that a flow can follow", args.workflow.display());
        return Err(Refusal::new(RefusalKind::Invalid, cause).into());
    }
    let task = args.task.as_deref().map(super::text_of).transpose()?;
    let sidecar = Sidecar { base: args.base.clone(), task, relaxed: args.relaxed, ..Sidecar::default() };
    let files = space.make(&Make { project: &project, workflow: &workflow, sidecar })?;
    let id = files.id();
    if args.common.json {
        let record = files.dir().join("record");
        let object = json::object([
            ("project", json!(id.project)),
            ("flow", json!(id.flow)),
            ("root", json!(space.root())),
            ("record", json!(record)),
        ]);
        json::print(screen, "swarm.flow.new/1", &object)?;
    } else {
        screen.line(&escape(&id.flow))?;
    }
    Ok(0)
}
