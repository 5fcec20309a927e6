//! Checks a workflow against the state of a running flow.

use std::collections::{BTreeSet, HashMap, HashSet};

use serde_json::Value;

use super::document::FlowRun;
use super::graph::Graph;
use super::json::{Json, Members};
use super::names::{edge_key, split_edge_key};
use super::validate::{self, Finding, OwnerRules};

/// Returns all problems of a document, by itself and for the flow that uses it.
pub fn validate(document: &Value, rules: OwnerRules, flow: &FlowRun) -> Vec<Finding> {
    let shape = validate::shape(document, rules);
    let Ok(graph) = Graph::resolve(document, None) else { return shape };
    if !shape.is_empty() {
        return shape;
    }
    let mut findings = validate::topology(document, rules);
    findings.extend(check(&graph, flow));
    findings
}

/// Returns what the state of a flow refers to but the workflow does not have.
pub fn check(graph: &Graph, flow: &FlowRun) -> Vec<Finding> {
    let mut check = Check { graph, findings: Vec::new(), named: Vec::new(), sources: HashMap::new() };
    let keys = |key| flow.object(key).into_iter().flat_map(Members::keys);
    check.name("runningNodes", flow.running());
    for source in ["awaitingHumanNodes", "pendingHumanInputs"] {
        check.name(source, keys(source));
    }
    if flow.object("pendingHandoffApprovals").is_none() {
        check.add("workflow state is missing pendingHandoffApprovals".to_owned());
    }
    check.name("pendingHandoffApprovals", keys("pendingHandoffApprovals"));
    check.name("visitedNodeIds", flow.visited());
    check.name("awaitingHandoff", flow.awaiting_handoff());
    check.edges("completedHandoffs", flow.completed());
    check.edges("receivingHandoff", flow.queued().map(|(key, _)| key));
    check.missing_nodes();
    check.roles(flow);
    check.suspended(flow);
    check.findings
}

struct Check<'a> {
    graph: &'a Graph,
    findings: Vec<Finding>,
    /// Node names in the order of first mention.
    named: Vec<&'a str>,
    sources: HashMap<&'a str, BTreeSet<&'static str>>,
}

impl<'a> Check<'a> {
    /// Adds a finding. All findings concern nodes and edges as a whole.
    fn add(&mut self, message: String) {
        self.findings.push(Finding { path: "workflow".to_owned(), message });
    }

    fn name(&mut self, source: &'static str, nodes: impl Iterator<Item = &'a str>) {
        for node in nodes {
            let sources = self.sources.entry(node).or_default();
            if sources.is_empty() {
                self.named.push(node);
            }
            sources.insert(source);
        }
    }

    fn edges(&mut self, source: &'static str, keys: impl Iterator<Item = &'a str>) {
        for key in keys {
            let Some((from, to)) = split_edge_key(key) else {
                self.add(format!("workflow state {source} contains invalid handoff key \"{key}\""));
                continue;
            };
            self.name(source, [from, to].into_iter());
            let forward = self.graph.is_edge(from, to);
            if source == "completedHandoffs" {
                if !forward {
                    self.add(format!(
                        "workflow state completedHandoffs contains \"{key}\", but workflow.edges does not include that edge"
                    ));
                }
            } else if !forward && !self.graph.is_edge(to, from) {
                let reverse = edge_key(to, from);
                self.add(format!(
                    "workflow state {source} contains \"{key}\", but workflow.edges does not include either \"{key}\" or \"{reverse}\""
                ));
            }
        }
    }

    fn missing_nodes(&mut self) {
        for node in std::mem::take(&mut self.named) {
            if self.graph.node(node).is_none() {
                let sources: Vec<&str> = self.sources[node].iter().copied().collect();
                self.add(format!(
                    "workflow state references node \"{node}\" from {}, but workflow.nodes does not include it",
                    sources.join(", ")
                ));
            }
        }
    }

    fn roles(&mut self, flow: &FlowRun) {
        for (node, wait) in flow.object("awaitingHumanNodes").into_iter().flat_map(Members::iter) {
            let role = wait.as_object().and_then(|wait| wait.get("role"));
            let said = role.map_or_else(|| "undefined".to_owned(), Json::to_text);
            if let Some(defined) = self.graph.node(node).filter(|defined| defined.role != said) {
                self.add(format!(
                    "workflow state awaitingHumanNodes references node \"{node}\" with role \"{said}\", but workflow.nodes defines role \"{}\"",
                    defined.role
                ));
            }
        }
    }

    /// Finds nodes that await a handoff that no other node can send.
    fn suspended(&mut self, flow: &FlowRun) {
        let receiving: HashSet<&str> = flow.queued().filter_map(|(key, _)| Some(split_edge_key(key)?.1)).collect();
        for node in flow.awaiting_handoff() {
            let expects = self.graph.predecessors(node).next().is_some() || receiving.contains(node);
            if self.graph.node(node).is_some() && !expects {
                self.add(format!(
                    "workflow state awaitingHandoff contains \"{node}\", but workflow.edges has no inbound edge and receivingHandoff has no queued handoff for it"
                ));
            }
        }
    }
}
