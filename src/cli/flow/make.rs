//! `swarm flow new`: creates a flow from a workflow.

use serde_json::json;
use swarm_actors::flow::rules::graph::Graph;
use swarm_actors::flow::rules::names::{FlowRef, RoleId};
use swarm_actors::flow::rules::validate::validate;
use swarm_model::asks::judge::Consent;
use swarm_model::{FlowPlace, FlowRules, Refusal, RefusalKind};

use super::args::NewArgs;
use super::check::{faults, rules};
use crate::cli::error::Failure;
use crate::cli::render::escape;
use crate::cli::screen::Screen;
use crate::cli::{caller, json};
use swarm_store::flows;
use swarm_store::flows::Make;
use swarm_store::flows::active::{FlowSite, check_merge, check_roles, exclude};
use swarm_store::flows::place::Workspace;
use swarm_store::flows::sidecar::Sidecar;
use swarm_store::flows::store::FlowFiles;

pub fn run(args: &NewArgs, screen: &mut Screen) -> Result<u8, Failure> {
    let project = FlowRef::new(&args.project, "x").map_err(|cause| Failure::new(RefusalKind::Invalid, cause))?.project;
    let space = super::workspace(&args.common)?;
    let workflow = super::read_file(&args.workflow)?;
    let faults = faults(&workflow, |document| validate(document, rules(args.relaxed)));
    if !faults.is_empty() {
        for fault in &faults {
            screen.errors(format!("{}\n", fault.text(&args.workflow)).as_bytes());
        }
        let cause = format!("invalid workflow '{}'", args.workflow.display());
        return Err(Refusal::new(RefusalKind::Invalid, cause).into());
    }
    let task = args.task.as_deref().map(super::text_of).transpose()?;
    check_first(args, &space, &project, &workflow, screen)?;
    let (base, merge) = (args.base.clone(), args.merge);
    let sidecar = Sidecar { base, task, relaxed: args.relaxed, merge, ..Sidecar::default() };
    let consent = args.consent.as_deref().and_then(Consent::of);
    // Before the flow exists: a flow that is committed by mistake is refused.
    exclude(space.root(), &caller::collect()?.caller)
        .map_err(|error| Failure::system("cannot exclude the flows from git", &error))?;
    let files = space.make(&Make { project: &project, workflow: &workflow, sidecar, consent })?;
    if args.a_docs {
        a_docs(&files).map_err(|error| Failure::system("cannot write the project's a-docs", &error))?;
    }
    if args.start {
        super::run::begin(&files, FlowRules::default(), screen)?;
    }
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

/// Checks before the flow is created that it could start and land: base, merge queue and roles.
fn check_first(
    args: &NewArgs,
    space: &Workspace,
    project: &str,
    workflow: &str,
    screen: &mut Screen,
) -> Result<(), Failure> {
    if args.base.is_none() && !args.merge && !args.start {
        return Ok(());
    }
    let invalid = |cause: String| Failure::new(RefusalKind::Invalid, cause);
    let root = space
        .root()
        .to_str()
        .ok_or_else(|| invalid(format!("path '{}' is not valid UTF-8", space.root().display())))?;
    let place = FlowPlace { root: root.to_owned(), project: project.to_owned(), flow: String::new() };
    let caller = caller::collect()?.caller;
    let graph = || Graph::resolve(&flows::yaml::parse(workflow).ok()?, None).ok();
    let graph = args.start.then(graph).flatten();
    if let Some(graph) = &graph {
        super::run::require_trust(&place, graph, screen)?;
    }
    let site = FlowSite::of(&place, &caller).map_err(invalid)?;
    if let Some(base) = &args.base {
        let wanted = format!("{base}^{{commit}}");
        let words = ["rev-parse", "--quiet", "--verify", "--end-of-options", &wanted];
        if swarm_store::repositories::lines(&site.dir, &words, &caller).is_none_or(|lines| lines.is_empty()) {
            return Err(invalid(format!("'{base}' is not a commit, branch or tag of {}", site.dir.display())));
        }
    }
    if args.merge {
        check_merge(&site, args.base.as_deref(), &caller).map_err(invalid)?;
    }
    if let Some(graph) = &graph {
        check_roles(&site, graph).map_err(invalid)?;
    }
    Ok(())
}

/// Writes the missing `required-readings.yaml` of each role, which A-Society reads before the role's first turn.
fn a_docs(files: &FlowFiles) -> std::io::Result<()> {
    let open = files.open().map_err(std::io::Error::other)?;
    let roles = files.root().join(&files.id().project).join("a-docs/roles");
    for node in open.graph.nodes() {
        let dir = roles.join(RoleId::base_of(&node.role));
        let file = dir.join("required-readings.yaml");
        if !file.exists() {
            std::fs::create_dir_all(&dir)?;
            let text = format!("role: {}\nrequired_readings: []\n", RoleId::base_of(&node.role));
            flows::replace(&file, text.as_bytes())?;
        }
    }
    Ok(())
}
