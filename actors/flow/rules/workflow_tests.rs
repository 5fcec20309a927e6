//! Tests of workflow validation: messages and their paths in the document.

use serde_json::{Value, json};

use super::document::{FlowRun, NewFlow};
use super::graph::{Graph, GraphError};
use super::json::Json;
use super::live;
use super::names::FlowRef;
use super::validate::{Finding, OwnerRules, topology, validate};

fn line() -> Value {
    json!({"workflow": {
        "name": "W",
        "nodes": [
            {"id": "owner-intake", "role": "owner"},
            {"id": "b", "role": "dev", "work": ["x"], "await-all-inputs": true},
            {"id": "c", "role": "owner", "human-colab": true},
        ],
        "edges": [{"from": "owner-intake", "to": "b"}, {"from": "b", "to": "c"}],
    }})
}

fn changed(change: impl Fn(&mut Value)) -> Value {
    let mut document = line();
    change(&mut document["workflow"]);
    document
}

fn said(document: &Value, rules: OwnerRules) -> Vec<(String, String)> {
    validate(document, rules).into_iter().map(|Finding { path, message }| (path, message)).collect()
}

#[test]
fn each_mistake_has_its_message_and_path() {
    let one = |document: Value, path: &str, message: &str| {
        let found = said(&document, OwnerRules::Strict);
        assert_eq!(found, [(path.to_owned(), message.to_owned())], "{document}");
    };
    one(json!(7), "", "Document is not an object");
    one(json!({}), "", "Missing required field: workflow");
    one(json!({"workflow": null}), "workflow", "workflow must be an object");
    one(changed(|w| w["extra"] = json!(1)), "workflow.extra", "workflow contains invalid keys: extra");
    one(
        changed(|w| w["summary"] = json!(" ")),
        "workflow.summary",
        "workflow.summary must be a non-empty string if present",
    );
    one(changed(|w| w["name"] = json!(3)), "workflow.name", "workflow.name must be a non-empty string");
    one(changed(|w| w["nodes"] = json!([])), "workflow.nodes", "workflow.nodes must be a non-empty array");
    one(changed(|w| w["edges"] = json!(null)), "workflow.edges", "workflow.edges must be an array");
    one(
        changed(|w| w["nodes"][1] = json!("x")).clone_without_edges(),
        "workflow.nodes[1]",
        "workflow.nodes[1] must be an object",
    );
    one(
        changed(|w| w["nodes"][1]["guidance"] = json!([])),
        "workflow.nodes[1].guidance",
        "workflow.nodes[1] contains invalid keys: guidance",
    );
    one(
        changed(|w| w["nodes"][2]["role"] = json!(" owner")),
        "workflow.nodes[2].role",
        "workflow.nodes[2].role must not include leading or trailing whitespace",
    );
    one(
        changed(|w| drop(w["nodes"][1].as_object_mut().expect("an object").remove("role"))),
        "workflow.nodes[1].role",
        "workflow.nodes[1].role must be a non-empty string",
    );
    one(
        changed(|w| w["nodes"][1]["human-colab"] = json!("yes")),
        "workflow.nodes[1].human-colab",
        "workflow.nodes[1].human-colab must be a boolean if present",
    );
    one(
        changed(|w| w["nodes"][1]["work"] = json!("x")),
        "workflow.nodes[1].work",
        "workflow.nodes[1].work must be an array of non-empty strings if present",
    );
    one(
        changed(|w| w["nodes"][1]["work"] = json!(["x", ""])),
        "workflow.nodes[1].work[1]",
        "workflow.nodes[1].work[1] must be a non-empty string",
    );
    one(
        changed(|w| w["edges"][1]["to"] = json!("zzz")),
        "workflow.edges[1].to",
        "workflow.edges[1].to \"zzz\" does not match any node id",
    );
    one(
        changed(|w| w["nodes"][2]["role"] = json!("owner_2")),
        "workflow.nodes[2].role",
        "End node \"c\" must have role \"owner\" (found \"owner_2\")",
    );
    let role = said(&changed(|w| w["nodes"][1]["role"] = json!("Dev")), OwnerRules::Strict);
    assert!(role[0].1.starts_with("workflow.nodes[1].role Invalid role id \"Dev\"."), "{role:?}");
}

trait WithoutEdges {
    fn clone_without_edges(self) -> Self;
}

impl WithoutEdges for Value {
    fn clone_without_edges(mut self) -> Self {
        self["workflow"]["edges"] = json!([]);
        self
    }
}

#[test]
fn a_cycle_is_reported_from_its_first_node_to_itself() {
    let round = changed(|w| w["edges"].as_array_mut().expect("a list").push(json!({"from": "c", "to": "b"})));
    let found = said(&round, OwnerRules::Strict);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].1, "Workflow graph must be acyclic; cycle detected: b -> c -> b");
    // A long cycle must not overflow the stack.
    let nodes: Vec<Value> = (0..20_000).map(|at| json!({"id": format!("n{at}"), "role": "dev"})).collect();
    let edges: Vec<Value> =
        (0..20_000).map(|at| json!({"from": format!("n{at}"), "to": format!("n{}", (at + 1) % 20_000)})).collect();
    let long = json!({"workflow": {"name": "W", "nodes": nodes, "edges": edges}});
    assert_eq!(validate(&long, OwnerRules::Relaxed).len(), 2);
}

#[test]
fn relaxed_rules_allow_any_role_at_start_and_end() {
    let free = json!({"workflow": {"name": "W", "nodes": [{"id": "plan", "role": "lead"}, {"id": "do", "role": "dev"}],
        "edges": [{"from": "plan", "to": "do"}]}});
    assert_eq!(said(&free, OwnerRules::Relaxed), []);
    assert!(!said(&free, OwnerRules::Strict).is_empty());
    let late = json!({"workflow": {"name": "W", "nodes": [{"id": "do", "role": "dev"}, {"id": "plan", "role": "lead"}],
        "edges": [{"from": "plan", "to": "do"}]}});
    let found = said(&late, OwnerRules::Relaxed);
    assert_eq!(
        found,
        [("workflow.nodes[1]".to_owned(), "Start node \"plan\" must be the first of workflow.nodes".to_owned())]
    );
}

#[test]
fn nodes_and_edges_of_the_state_must_exist_in_the_workflow() {
    let id = FlowRef::new("p", "f").expect("is a name");
    let mut flow =
        FlowRun::new(&NewFlow { id: &id, workspace_root: "/ws", record_folder: "/ws/r", first_node: "ghost" });
    flow.add("visitedNodeIds", "ghost");
    flow.add("completedHandoffs", "b=>owner-intake");
    flow.queue("c=>owner-intake", "x.md");
    flow.add("awaitingHandoff", "owner-intake");
    let wait = [("role", Json::from("qa")), ("reason", Json::from("prompt-human"))];
    flow.object_mut("awaitingHumanNodes").set("b", wait);
    let found: Vec<String> = live::check(&Graph::resolve(&line(), None).expect("is one"), &flow)
        .into_iter()
        .map(|finding| finding.message)
        .collect();
    assert_eq!(
        found,
        [
            "workflow state completedHandoffs contains \"b=>owner-intake\", but workflow.edges does not include that edge",
            "workflow state receivingHandoff contains \"c=>owner-intake\", but workflow.edges does not include either \"c=>owner-intake\" or \"owner-intake=>c\"",
            "workflow state references node \"ghost\" from runningNodes, visitedNodeIds, but workflow.nodes does not include it",
            "workflow state awaitingHumanNodes references node \"b\" with role \"qa\", but workflow.nodes defines role \"dev\"",
        ]
    );
}

#[test]
fn a_topology_is_read_from_any_document() {
    let hostile = [json!(null), json!([]), json!(7), json!("x"), json!([{"id": 7, "role": []}]), json!({"id": "a"})];
    for nodes in &hostile {
        for edges in hostile.iter().chain([&json!([{"from": "a", "to": "b"}, {"from": 7}, null])]) {
            topology(&json!({"workflow": {"nodes": nodes, "edges": edges}}), OwnerRules::Strict);
        }
        topology(&json!({"workflow": nodes}), OwnerRules::Relaxed);
        topology(nodes, OwnerRules::Relaxed);
    }
}

#[test]
fn a_graph_is_shown_as_text_and_for_graphviz() {
    let graph = Graph::resolve(&line(), None).expect("is one");
    assert_eq!(
        graph.to_text(),
        "owner-intake (owner) -> b\nb (dev, waits for all inputs) -> c\nc (owner, handoffs need approval)\n"
    );
    let dot = graph.to_dot(|node| (node == "b").then_some("gold"));
    assert!(dot.contains("  \"b\" [label=\"b\\ndev\", fillcolor=\"gold\"];\n"), "{dot}");
    assert!(dot.contains("  \"b\" -> \"c\";\n") && dot.ends_with("}\n"), "{dot}");
    for document in [json!(null), json!({}), json!({"workflow": []})] {
        assert_eq!(Graph::resolve(&document, None).err(), Some(GraphError::NoWorkflow), "{document}");
    }
}
