//! `swarm flow ls`, `status` and `graph`: read-only views of flows.

use serde_json::{Value, json};
use swarm_actors::flow::rules::document::{FlowRun, FlowSummary};
use swarm_actors::flow::rules::improvement;
use swarm_actors::flow::rules::json::Json;
use swarm_actors::flow::rules::names::RoleId;
use swarm_actors::flow::rules::status::{Doing, NodeStatus, Stall, status as status_of};
use swarm_model::asks::judge::Consent;

use super::args::{FlowOf, GraphArgs, LsArgs};
use crate::board::flow::{status_object, waiting};
use crate::cli::error::Failure;
use crate::cli::json;
use crate::cli::render::{escape, table};
use crate::cli::screen::Screen;
use swarm_store::flows::place::Workspace;
use swarm_store::flows::store::{FlowFiles, Open, gate_of};
use swarm_store::flows::{active, registered};
use swarm_sys::paths::Paths;
use swarm_sys::quoting::command_line;

pub fn list(args: &LsArgs, screen: &mut Screen) -> Result<u8, Failure> {
    let space = super::workspace(&args.common)?;
    let listing = space.list(args.project.as_deref()).map_err(|error| Failure::system("cannot list flows", &error))?;
    for cause in &listing.broken {
        screen.warning(cause);
    }
    let code = u8::from(!listing.broken.is_empty());
    if args.common.json {
        let rows = listing.rows.iter().map(|row| row_value(row, not_queued(&space, row).as_deref())).collect();
        json::print_list(screen, "swarm.flows/1", "flows", rows)?;
        return Ok(code);
    }
    if listing.rows.is_empty() {
        return Ok(code);
    }
    let mut rows = vec![["FLOW", "STATUS", "NAME"].map(str::to_owned).to_vec()];
    rows.extend(listing.rows.iter().map(|one| row(one, not_queued(&space, one).is_some())));
    screen.bytes(trimmed(&table(&rows, |_, _, _| None)).as_bytes())?;
    Ok(code)
}

/// Returns why the result of a completed flow is in no merge queue.
fn not_queued(space: &Workspace, row: &FlowSummary) -> Option<String> {
    let is_completed = row.openable && row.status == "completed";
    is_completed.then(|| space.flow(row.id.clone()).sidecar().ok()?.not_queued)?
}

fn row(row: &FlowSummary, is_unqueued: bool) -> Vec<String> {
    let status = match row.openable {
        true if is_unqueued => format!("{} (result not queued)", escape(&row.status)),
        true => escape(&row.status).into_owned(),
        false => format!("{} (version {}, cannot be opened)", escape(&row.status), escape(&row.version)),
    };
    vec![escape(&row.id.to_string()).into_owned(), status, named(row.record_name.as_deref())]
}

fn named(name: Option<&str>) -> String {
    name.map_or_else(|| "-".to_owned(), |name| escape(name).into_owned())
}

fn trimmed(table: &str) -> String {
    table.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

fn row_value(row: &FlowSummary, not_queued: Option<&str>) -> Value {
    json!({
        "project": row.id.project, "flow": row.id.flow, "status": row.status, "openable": row.openable,
        "version": row.version, "record": row.record_folder, "name": row.record_name, "summary": row.record_summary,
        "not_queued": not_queued,
    })
}

pub fn status(args: &FlowOf, screen: &mut Screen) -> Result<u8, Failure> {
    let files = super::flow_of(args)?;
    let (open, warnings) = super::examined(&files)?;
    warnings.iter().for_each(|warning| screen.warning(warning));
    let status = status_of(&open.flow, &open.graph);
    let company = company(&files, &open);
    if args.common.json {
        let mut object = status_object(&open, &status);
        object.insert("run".to_owned(), json!(is_run(&files)));
        object.insert("roles".to_owned(), company.iter().map(Part::value).collect());
        object.insert("warnings".to_owned(), json!(warnings));
        json::print(screen, "swarm.flow/1", &object)?;
        return Ok(0);
    }
    let flow = &open.flow;
    let id = flow.id().to_string();
    screen.line(&format!("{}: {}, {}", escape(&id), named(flow.record_name.as_deref()), escape(flow.status())))?;
    let mut rows = vec![["NODE", "ROLE", "STATE"].map(str::to_owned).to_vec()];
    rows.extend(status.nodes.iter().map(node_row));
    screen.bytes(trimmed(&table(&rows, |_, _, _| None)).as_bytes())?;
    if !status.next.is_empty() {
        screen.line(&format!("next: {}", escape(&status.next.join(", "))))?;
    }
    looking_back(flow, screen)?;
    waits(&open, screen)?;
    let free = company.iter().filter(|part| !part.held_back && !part.agent.is_empty());
    let free: Vec<String> = free.map(|part| format!("{} ({})", part.role, part.agent)).collect();
    let mode = gate_of(flow).mode();
    if mode != Consent::FullAccess && !free.is_empty() {
        let what = match mode {
            Consent::NoAccess => "agents that cannot ask for permission, not started unless the role is marked unsafe",
            _ => "agents that cannot ask for permission and act without limits",
        };
        screen.line(&format!("consent {}: {what}: {}", mode.word(), escape(&free.join(", "))))?;
    }
    if !is_run(&files) && flow.status() == "running" && status.stall.is_none() {
        let line = command_line(["swarm", "flow", "run", &flow.id().flow]);
        screen.line(&format!("not running: {}", escape(&line)))?;
    }
    if let Some(line) = what_helps(flow, status.stall) {
        screen.line(line)?;
    }
    left_out(&open, &mut |line| screen.line(&escape(line)))?;
    if let Some(cause) = &open.sidecar.not_queued {
        screen.line(&escape(&unqueued(&flow.id().flow, cause)))?;
    }
    Ok(0)
}

/// Passes on a line for each role that has not handed over everything in its worktree.
pub fn left_out<E>(open: &Open, tell: &mut dyn FnMut(&str) -> Result<(), E>) -> Result<(), E> {
    open.sidecar.left_out.iter().try_for_each(|(role, left)| {
        let shown = left.shown();
        tell(&format!("{role}: {} uncommitted path(s) were not handed over: {shown}", left.count))
    })
}

/// Describes why the result of a flow does not land, and what to do about it.
pub fn unqueued(flow: &str, cause: &str) -> String {
    let again = command_line(["swarm", "flow", "run", flow]);
    format!("the result is not queued for landing: {cause} (to try again, run '{again}')")
}

/// Prints which roles run and which have finished the improvement phase, while it is running.
fn looking_back(flow: &FlowRun, screen: &mut Screen) -> Result<(), Failure> {
    let Some(phase) = flow.phase().filter(|_| improvement::is_running(flow)) else { return Ok(()) };
    let list = |key: &str| {
        let roles = phase.get(key).and_then(Json::as_list).unwrap_or_default().iter().filter_map(Json::as_text);
        let roles: Vec<&str> = roles.collect();
        if roles.is_empty() { "none".to_owned() } else { escape(&roles.join(", ")).into_owned() }
    };
    let mode = phase.text("mode").unwrap_or_default();
    screen.line(&format!(
        "improvement phase ({}): running {}; done {}",
        escape(mode),
        list("runningRoles"),
        list("completedRoles")
    ))
}

/// Prints one line for everything that waits for a person, with the command that answers it.
pub fn waits(open: &Open, screen: &mut Screen) -> Result<(), Failure> {
    for one in waiting(open) {
        // Not shortened: the end of a line of ours names the remedy.
        let what = one.what.lines().next().map(str::trim).unwrap_or_default();
        let what = if what.is_empty() { one.reason.as_str() } else { what };
        screen.line(&format!("{}: {} → {}", escape(&one.who), escape(what), escape(&one.helps)))?;
    }
    Ok(())
}

fn is_run(files: &FlowFiles) -> bool {
    let place = super::run::place_of(files).ok();
    place.zip(Paths::from_env().ok()).is_some_and(|(place, paths)| registered::is_run(&paths, &place))
}

/// A role and the agent that plays it.
struct Part {
    role: String,
    /// Name of the agent; empty if it cannot be determined.
    agent: String,
    /// The agent asks before it does what the flow does not allow.
    held_back: bool,
    /// Name of the role's worker; `None` before its first turn.
    worker: Option<String>,
    /// Number of turns that were started.
    turn: u64,
    /// The first paths that its last handoff left out.
    left_out: Vec<String>,
}

impl Part {
    fn value(&self) -> Value {
        json!({
            "role": self.role, "agent": Some(&self.agent).filter(|agent| !agent.is_empty()),
            "held_back": self.held_back, "worker": self.worker, "turn": self.turn,
            "left_out": self.left_out,
        })
    }
}

fn company(files: &FlowFiles, open: &Open) -> Vec<Part> {
    let caller = crate::cli::caller::collect().map(|collected| collected.caller).unwrap_or_default();
    let site = super::run::place_of(files).ok().and_then(|place| active::FlowSite::as_written(&place, &caller).ok());
    let mut parts: Vec<Part> = Vec::new();
    for node in open.graph.nodes() {
        let role = RoleId::key(&node.role);
        if parts.iter().any(|part| part.role == role) {
            continue;
        }
        let player = site.as_ref().and_then(|site| site.config.player(&role).ok());
        let side = open.sidecar.roles.get(&role);
        parts.push(Part {
            held_back: player.as_ref().is_some_and(|player| player.agent.resumes()),
            agent: player.map(|player| player.agent.name).unwrap_or_default(),
            worker: side.map(|side| side.worker.clone()),
            turn: side.map_or(0, |side| side.turn),
            left_out: open.sidecar.left_out.get(&role).map(|left| left.paths.clone()).unwrap_or_default(),
            role,
        });
    }
    parts
}

fn what_helps(flow: &FlowRun, stall: Option<Stall>) -> Option<&'static str> {
    match (flow.status(), stall) {
        (_, Some(Stall::Suspended)) => {
            Some("stalled: no handoff will reach the waiting nodes; run 'swarm flow answer' to continue one")
        }
        (_, Some(Stall::Dead)) => Some("stalled: no node can ever run; the workflow or the state was edited"),
        _ => None,
    }
}

fn node_row(node: &NodeStatus) -> Vec<String> {
    let mut state = node.doing.word().to_owned();
    if let Doing::AwaitingHuman(reason) = &node.doing {
        state = format!("{state} ({})", escape(reason));
    }
    if node.answered {
        state.push_str(", answered");
    }
    vec![escape(&node.node).into_owned(), escape(&node.role).into_owned(), state]
}

pub fn graph(args: &GraphArgs, screen: &mut Screen) -> Result<u8, Failure> {
    let open = super::opened(&super::flow_of(&args.of)?, screen)?;
    if args.of.common.json {
        let node = |node: &swarm_actors::flow::rules::graph::Node| {
            json!({
                "id": node.id, "role": node.role, "human_colab": node.human_colab,
                "await_all_inputs": node.await_all_inputs,
            })
        };
        let edge = |(from, to): (&str, &str)| {
            let done = open.flow.is_completed(&swarm_actors::flow::rules::names::edge_key(from, to));
            json!({"from": from, "to": to, "done": done})
        };
        let nodes: Value = open.graph.nodes().iter().map(node).collect();
        let edges: Value = open.graph.edges().map(edge).collect();
        json::print(screen, "swarm.flow.graph/1", &json::object([("nodes", nodes), ("edges", edges)]))?;
        return Ok(0);
    }
    if args.dot {
        let status = status_of(&open.flow, &open.graph);
        let colour = |id: &str| colour(&status.nodes.iter().find(|node| node.node == id)?.doing);
        screen.bytes(open.graph.to_dot(colour).as_bytes())?;
        return Ok(0);
    }
    for line in open.graph.to_text().lines() {
        screen.line(&escape(line))?;
    }
    Ok(0)
}

fn colour(doing: &Doing) -> Option<&'static str> {
    match doing {
        Doing::Idle => None,
        Doing::Ready => Some("lightyellow"),
        Doing::Running => Some("lightblue"),
        Doing::AwaitingHuman(_) => Some("orange"),
        Doing::AwaitingHandoff => Some("khaki"),
        Doing::Done => Some("palegreen"),
    }
}
