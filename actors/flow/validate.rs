//! Validation of a workflow: all problems at once.
//!
//! The shape is checked first, and the topology only if the shape is valid. Each finding has the
//! path of the faulty part, so that a caller with the document's text can add a line number.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::json;
use super::names::{FIRST_NODE, OWNER, RoleId};

/// Problem of a workflow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Path such as `workflow.nodes[2].role`. Empty for the document itself.
    pub path: String,
    pub message: String,
}

/// Whether the role `owner` must start and end the flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnerRules {
    Strict,
    Relaxed,
}

const NODE_KEYS: [&str; 6] = ["id", "role", "required_readings", "work", "human-colab", "await-all-inputs"];

/// Returns all problems of a document.
pub fn validate(document: &Value, rules: OwnerRules) -> Vec<Finding> {
    let findings = shape(document, rules);
    if findings.is_empty() { topology(document, rules) } else { findings }
}

/// Returns the topology problems of a document whose shape is valid.
pub fn topology(document: &Value, rules: OwnerRules) -> Vec<Finding> {
    let mut check = Check { findings: Vec::new(), rules };
    check.topology(&document["workflow"]);
    check.findings
}

/// Returns the shape problems of a document.
pub fn shape(document: &Value, rules: OwnerRules) -> Vec<Finding> {
    let mut check = Check { findings: Vec::new(), rules };
    let Some(members) = members_of(document) else {
        check.add("", "Document is not an object");
        return check.findings;
    };
    match members.iter().find(|(key, _)| key == "workflow") {
        None => check.add("", "Missing required field: workflow"),
        Some((_, workflow)) => match members_of(workflow) {
            None => check.add("workflow", "workflow must be an object"),
            Some(members) => check.workflow(workflow, &members),
        },
    }
    check.findings
}

type Entries<'a> = Vec<(String, &'a Value)>;

/// Returns the members of an object. A list counts as an object with its indexes as keys, as in the
/// original runtime.
fn members_of(value: &Value) -> Option<Entries<'_>> {
    match value {
        Value::Object(members) => Some(members.iter().map(|(key, value)| (key.clone(), value)).collect()),
        Value::Array(list) => Some(list.iter().enumerate().map(|(at, value)| (at.to_string(), value)).collect()),
        _ => None,
    }
}

fn is_filled(value: Option<&Value>) -> bool {
    value.and_then(Value::as_str).is_some_and(|text| !json::trim(text).is_empty())
}

struct Check {
    findings: Vec<Finding>,
    rules: OwnerRules,
}

impl Check {
    fn add(&mut self, path: &str, message: impl Into<String>) {
        self.findings.push(Finding { path: path.to_owned(), message: message.into() });
    }

    fn keys(&mut self, path: &str, members: &Entries<'_>, known: &[&str]) {
        let invalid: Vec<&str> =
            members.iter().map(|(key, _)| key.as_str()).filter(|key| !known.contains(key)).collect();
        if let Some(first) = invalid.first() {
            self.add(&format!("{path}.{first}"), format!("{path} contains invalid keys: {}", invalid.join(", ")));
        }
    }

    fn workflow(&mut self, workflow: &Value, members: &Entries<'_>) {
        self.keys("workflow", members, &["name", "summary", "nodes", "edges"]);
        if workflow.get("summary").is_some() && !is_filled(workflow.get("summary")) {
            self.add("workflow.summary", "workflow.summary must be a non-empty string if present");
        }
        if !is_filled(workflow.get("name")) {
            self.add("workflow.name", "workflow.name must be a non-empty string");
        }
        let Some(nodes) = workflow.get("nodes").and_then(Value::as_array).filter(|nodes| !nodes.is_empty()) else {
            self.add("workflow.nodes", "workflow.nodes must be a non-empty array");
            return;
        };
        let mut ids = HashSet::new();
        for (at, node) in nodes.iter().enumerate() {
            self.node(&format!("workflow.nodes[{at}]"), node, &mut ids);
        }
        let first = nodes[0].get("id").and_then(Value::as_str);
        if let (OwnerRules::Strict, Some(first)) = (self.rules, first.filter(|first| *first != FIRST_NODE)) {
            let message = format!("workflow.nodes[0].id must be exactly \"{FIRST_NODE}\" (found \"{first}\")");
            self.add("workflow.nodes[0].id", message);
        }
        let Some(edges) = workflow.get("edges").and_then(Value::as_array) else {
            self.add("workflow.edges", "workflow.edges must be an array");
            return;
        };
        for (at, edge) in edges.iter().enumerate() {
            self.edge(&format!("workflow.edges[{at}]"), edge, &ids);
        }
    }

    fn node<'a>(&mut self, path: &str, node: &'a Value, ids: &mut HashSet<&'a str>) {
        let Some(members) = members_of(node) else {
            self.add(path, format!("{path} must be an object"));
            return;
        };
        self.keys(path, &members, &NODE_KEYS);
        let at = |key: &str| format!("{path}.{key}");
        match node.get("id").and_then(Value::as_str).filter(|id| !json::trim(id).is_empty()) {
            None => self.add(&at("id"), format!("{path}.id must be a non-empty string")),
            Some(id) if !ids.insert(id) => self.add(&at("id"), format!("{path}.id \"{id}\" is not unique")),
            Some(_) => {}
        }
        match node.get("role").and_then(Value::as_str).filter(|role| !json::trim(role).is_empty()) {
            None => self.add(&at("role"), format!("{path}.role must be a non-empty string")),
            Some(role) if role != json::trim(role) => {
                self.add(&at("role"), format!("{path}.role must not include leading or trailing whitespace"));
            }
            Some(role) => {
                if let Err(error) = RoleId::parse(role) {
                    self.add(&at("role"), format!("{path}.role {error}"));
                }
            }
        }
        for key in ["human-colab", "await-all-inputs"] {
            if node.get(key).is_some_and(|value| !value.is_boolean()) {
                self.add(&at(key), format!("{path}.{key} must be a boolean if present"));
            }
        }
        for key in ["required_readings", "work"] {
            self.texts(&at(key), node.get(key));
        }
    }

    fn texts(&mut self, path: &str, value: Option<&Value>) {
        let Some(value) = value else { return };
        let Some(list) = value.as_array() else {
            self.add(path, format!("{path} must be an array of non-empty strings if present"));
            return;
        };
        for at in (0..list.len()).filter(|at| !is_filled(list.get(*at))) {
            self.add(&format!("{path}[{at}]"), format!("{path}[{at}] must be a non-empty string"));
        }
    }

    fn edge(&mut self, path: &str, edge: &Value, ids: &HashSet<&str>) {
        let Some(members) = members_of(edge) else {
            self.add(path, format!("{path} must be an object"));
            return;
        };
        self.keys(path, &members, &["from", "to"]);
        for key in ["from", "to"] {
            let at = format!("{path}.{key}");
            match edge.get(key).and_then(Value::as_str).filter(|end| !json::trim(end).is_empty()) {
                None => self.add(&at, format!("{at} must be a non-empty string")),
                Some(end) if !ids.contains(end) => {
                    self.add(&at, format!("{at} \"{end}\" does not match any node id"));
                }
                Some(_) => {}
            }
        }
    }

    /// Checks the topology of a workflow whose shape is valid.
    fn topology(&mut self, workflow: &Value) {
        let text = |value: &Value, key: &str| value[key].as_str().unwrap_or_default().to_owned();
        let list = |key: &str| workflow[key].as_array().map(Vec::as_slice).unwrap_or_default();
        let nodes: Vec<(String, String)> =
            list("nodes").iter().map(|node| (text(node, "id"), text(node, "role"))).collect();
        let edges: Vec<(String, String)> =
            list("edges").iter().map(|edge| (text(edge, "from"), text(edge, "to"))).collect();
        let strict = self.rules == OwnerRules::Strict;
        if let ([(_, role)], true) = (nodes.as_slice(), edges.is_empty()) {
            if strict && role != OWNER {
                let message = format!("Sole node role must be exactly \"{OWNER}\" (found \"{role}\")");
                self.add("workflow.nodes[0].role", message);
            }
        } else {
            self.ends(&nodes, &edges);
        }
        if let Some(cycle) = cycle(&nodes, &edges) {
            let message = format!("Workflow graph must be acyclic; cycle detected: {}", cycle.join(" -> "));
            self.add("workflow.edges", message);
        }
    }

    fn ends(&mut self, nodes: &[(String, String)], edges: &[(String, String)]) {
        let sources: HashSet<&str> = edges.iter().map(|(from, _)| from.as_str()).collect();
        let targets: HashSet<&str> = edges.iter().map(|(_, to)| to.as_str()).collect();
        let starts: Vec<usize> = (0..nodes.len()).filter(|at| !targets.contains(nodes[*at].0.as_str())).collect();
        if starts.len() != 1 {
            let message = format!("Workflow must have exactly one start node (found {})", starts.len());
            self.add("workflow.nodes", message);
        }
        if self.rules == OwnerRules::Relaxed {
            // A new flow starts with the first node of the list.
            if starts.len() == 1 && starts[0] != 0 {
                let message = format!("Start node \"{}\" must be the first of workflow.nodes", nodes[starts[0]].0);
                self.add(&format!("workflow.nodes[{}]", starts[0]), message);
            }
            return;
        }
        for at in starts {
            let (id, role) = &nodes[at];
            if id != FIRST_NODE {
                let message = format!("Start node \"{id}\" must be exactly \"{FIRST_NODE}\"");
                self.add(&format!("workflow.nodes[{at}].id"), message);
            }
            if role != OWNER {
                let message = format!("Start node \"{id}\" must have role \"{OWNER}\" (found \"{role}\")");
                self.add(&format!("workflow.nodes[{at}].role"), message);
            }
        }
        for (at, (id, role)) in nodes.iter().enumerate().filter(|(_, (id, _))| !sources.contains(id.as_str())) {
            if role != OWNER {
                let message = format!("End node \"{id}\" must have role \"{OWNER}\" (found \"{role}\")");
                self.add(&format!("workflow.nodes[{at}].role"), message);
            }
        }
    }
}

/// Returns the first cycle found by a depth-first walk. Its first node is also its last.
fn cycle(nodes: &[(String, String)], edges: &[(String, String)]) -> Option<Vec<String>> {
    #[derive(Clone, Copy, PartialEq)]
    enum Mark {
        New,
        OnPath,
        Done,
    }
    let at: HashMap<&str, usize> = nodes.iter().enumerate().map(|(at, (id, _))| (id.as_str(), at)).collect();
    let mut targets = vec![Vec::new(); nodes.len()];
    for (from, to) in edges {
        targets[at[from.as_str()]].push(at[to.as_str()]);
    }
    let mut marks = vec![Mark::New; nodes.len()];
    for root in 0..nodes.len() {
        if marks[root] != Mark::New {
            continue;
        }
        // Iterative, because a long workflow would overflow the call stack.
        marks[root] = Mark::OnPath;
        let mut path = vec![(root, 0)];
        while let Some((node, next)) = path.last_mut() {
            let Some(target) = targets[*node].get(*next).copied() else {
                marks[*node] = Mark::Done;
                path.pop();
                continue;
            };
            *next += 1;
            match marks[target] {
                Mark::Done => {}
                Mark::New => {
                    marks[target] = Mark::OnPath;
                    path.push((target, 0));
                }
                Mark::OnPath => {
                    let from = path.iter().position(|(node, _)| *node == target).unwrap_or_default();
                    let circle = path[from..].iter().map(|(node, _)| *node).chain([target]);
                    return Some(circle.map(|node| nodes[node].0.clone()).collect());
                }
            }
        }
    }
    None
}
