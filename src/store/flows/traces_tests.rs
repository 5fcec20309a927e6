//! Random walks that the other program took: each step from the state before it to the
//! state after it.

use std::collections::HashSet;

use serde_json::Value;
use swarm_actors::flow::document::FlowRun;
use swarm_actors::flow::graph::Graph;
use swarm_actors::flow::handoff::Artifact;
use swarm_actors::flow::names::FlowRef;
use swarm_actors::flow::operator::{self, To};

use super::replay::{Runner, flow_in, graph_of, record_folder, state_of, strings, text, timeless};

const ROOT: &str = "/ws";

#[test]
fn every_step_of_every_walk_is_the_same() {
    let mut steps = 0;
    let walks = text("traces.jsonl");
    for line in walks.lines() {
        steps += replay(&serde_json::from_str(line).expect("is JSON"));
    }
    assert_eq!((walks.lines().count(), steps), (60, 938));
}

fn replay(walk: &Value) -> usize {
    let field = |key: &str| walk[key].as_str().expect("is text");
    let id = FlowRef::new(field("project"), field("flowId")).expect("is a flow's name");
    let graph = graph_of(field("workflow"));
    let folder = record_folder(&id, "");
    let files: HashSet<String> =
        strings(&walk["artifacts"]).into_iter().map(|name| format!("{}/{name}", &folder[1..])).collect();
    let look = |path: &str| if files.contains(path) { Artifact::File } else { Artifact::Missing };
    let steps = walk["steps"].as_array().expect("a list");
    let mut flow = flow_in(&steps[0]["before"], &id, ROOT);
    let mut runner = Runner::default();
    for (at, step) in steps.iter().enumerate() {
        let place = format!("{} step {at}: {}", field("name"), step["op"]);
        assert_eq!(state_of(&flow), timeless(step["before"].clone()), "before {place}");
        match step["op"].as_str() {
            Some(op @ ("claim" | "claim-next")) => {
                if op == "claim" {
                    runner.restart(&mut flow);
                    assert_eq!(runner.initial, strings(&step["initial"]), "initial of {place}");
                }
                let (claimed, events) = runner.claim(&mut flow, &graph);
                assert_eq!(claimed, strings(&step["claimed"]), "claimed in {place}");
                assert_eq!(Value::Array(events), step["events"], "events of {place}");
            }
            Some("signal") => {
                let node = step["node"].as_str().expect("a node");
                let (events, refused) = runner.turn(&mut flow, &graph, node, &strings(&step["texts"]), look);
                assert_eq!(refused, step["repairMessages"], "refusals in {place}");
                assert_eq!(Value::Array(events), step["events"], "events of {place}");
            }
            Some("operator") => {
                let action = &step["action"];
                let before = flow.render();
                let refused = operate(&mut flow, &graph, action, look);
                assert_eq!(u64::from(refused), step["errors"], "refusals in {place}");
                assert!(!refused || flow.render() == before, "a refusal changed something in {place}");
            }
            other => panic!("{other:?} in {place}"),
        }
        assert_eq!(state_of(&flow), timeless(step["after"].clone()), "after {place}");
    }
    steps.len()
}

/// Does what a person did. Says whether it was refused.
pub fn operate(flow: &mut FlowRun, graph: &Graph, action: &Value, look: impl Fn(&str) -> Artifact) -> bool {
    let field = |key: &str| action[key].as_str();
    let node = field("nodeId").unwrap_or_default();
    match field("kind") {
        Some("answer") => {
            let to = match (field("nodeId"), field("role")) {
                (Some(node), _) => To::Node(node),
                (None, Some(role)) => To::Role(role),
                (None, None) => To::Anyone,
            };
            operator::answer(flow, graph, to, field("text").expect("a text"), "now").is_err()
        }
        Some("approve") => operator::approve(flow, graph, node, look).is_err(),
        Some("decline") => operator::decline(flow, node, None).is_err(),
        other => panic!("{other:?}"),
    }
}
