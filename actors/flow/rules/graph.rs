//! The workflow as the scheduler sees it: nodes, roles and edges.
//!
//! Nothing here validates the workflow (see [`validate`](super::validate)), because a flow must
//! stay displayable even if its workflow was edited into something invalid.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;

use super::json::Json;
use super::names::{RoleId, edge_key, split_edge_key};

/// Node of a workflow.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Node {
    pub id: String,
    pub role: String,
    /// Names of the documents to read before the first turn.
    pub required_readings: Vec<String>,
    /// Tasks of the node, given to the agent on the first visit.
    pub work: Vec<String>,
    /// Whether forward handoffs need approval by a person.
    pub human_colab: bool,
    /// AND join: the node starts once all predecessors have handed over. Otherwise one handoff
    /// suffices.
    pub await_all_inputs: bool,
}

/// Nodes and edges of a workflow when its flow started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Start {
    pub nodes: Vec<Node>,
    pub edges: Vec<(String, String)>,
}

impl Start {
    /// Reports whether the workflow had this node, played by this role instance, with this work.
    pub fn has(&self, node: &str, role: &str, work: &[String]) -> bool {
        let known = self.nodes.iter().find(|known| known.id == node);
        known.is_some_and(|known| RoleId::key(&known.role) == role && known.work == work)
    }
}

#[derive(Clone, Debug, Default)]
pub struct Graph {
    pub name: Option<String>,
    pub summary: Option<String>,
    nodes: Vec<Node>,
    edges: Vec<Edge>,
    /// First node of each id.
    by_id: HashMap<String, usize>,
    /// Place of each edge end, by node name.
    places: HashMap<String, usize>,
    /// Indexes of the edges that leave each place, and of those that enter it.
    leaving: Vec<Vec<usize>>,
    coming: Vec<Vec<usize>>,
    targets: HashMap<String, HashSet<String>>,
    by_key: HashMap<String, Key>,
    altered: Altered,
}

/// Nodes and edges that the workflow did not have when the flow started, or not with this work.
#[derive(Clone, Debug, Default)]
struct Altered {
    nodes: HashSet<String>,
    edges: HashSet<(String, String)>,
}

#[derive(Clone, Debug)]
struct Edge {
    from: String,
    to: String,
    places: (usize, usize),
    /// Edge key, as used in `flow.json`.
    key: String,
    /// Index of the first edge with this key.
    first: usize,
}

/// Meaning of an edge key, as edge indexes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Key {
    /// Whether the key splits into exactly two node names.
    pub is_plain: bool,
    /// First edge with this key.
    pub along: Option<usize>,
    /// First edge in the opposite direction.
    pub against: Option<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum GraphError {
    #[error("the workflow file has no 'workflow' object")]
    NoWorkflow,
}

impl Graph {
    /// Builds the graph of a flow from the record's workflow. Fields that a node of the record
    /// omits come from the canonical workflow's node with the same id.
    ///
    /// # Errors
    /// Fails if the record's document has no `workflow` object.
    pub fn resolve(record: &Value, canonical: Option<&Value>) -> Result<Self, GraphError> {
        let workflow = record.get("workflow").filter(|workflow| workflow.is_object()).ok_or(GraphError::NoWorkflow)?;
        let known: HashMap<&str, &Value> = canonical
            .and_then(|document| document.get("workflow")?.get("nodes")?.as_array())
            .into_iter()
            .flatten()
            .filter_map(|node| Some((node.get("id")?.as_str()?, node)))
            .collect();
        let nodes = workflow.get("nodes").and_then(Value::as_array).into_iter().flatten();
        let nodes = nodes.filter_map(|node| {
            let id = node.get("id")?.as_str()?;
            Some(node_of(id, node, known.get(id).copied()))
        });
        let edges = workflow.get("edges").and_then(Value::as_array).into_iter().flatten();
        let edges = edges.filter_map(|edge| {
            let end = |key| edge.get(key)?.as_str().map(str::to_owned);
            Some((end("from")?, end("to")?))
        });
        let text = |key| workflow.get(key).and_then(Value::as_str).map(str::to_owned);
        Ok(Self { name: text("name"), summary: text("summary"), ..Self::new(nodes.collect(), edges.collect()) })
    }

    pub fn new(nodes: Vec<Node>, edges: Vec<(String, String)>) -> Self {
        let mut graph = Self { nodes, ..Self::default() };
        for (at, node) in graph.nodes.iter().enumerate() {
            graph.by_id.entry(node.id.clone()).or_insert(at);
        }
        for (at, (from, to)) in edges.into_iter().enumerate() {
            let key = edge_key(&from, &to);
            let first = *graph.key_mut(&key).along.get_or_insert(at);
            graph.key_mut(&edge_key(&to, &from)).against.get_or_insert(at);
            let places = (graph.place_of(&from), graph.place_of(&to));
            graph.leaving[places.0].push(at);
            graph.coming[places.1].push(at);
            graph.targets.entry(from.clone()).or_default().insert(to.clone());
            graph.edges.push(Edge { from, to, places, key, first });
        }
        graph
    }

    fn place_of(&mut self, name: &str) -> usize {
        let new = self.leaving.len();
        let place = *self.places.entry(name.to_owned()).or_insert(new);
        if place == new {
            self.leaving.push(Vec::new());
            self.coming.push(Vec::new());
        }
        place
    }

    fn key_mut(&mut self, key: &str) -> &mut Key {
        let is_plain = split_edge_key(key).is_some();
        self.by_key.entry(key.to_owned()).or_insert(Key { is_plain, ..Key::default() })
    }

    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    pub fn edges(&self) -> impl Iterator<Item = (&str, &str)> {
        (0..self.edges.len()).map(|edge| self.ends(edge))
    }

    pub fn node(&self, id: &str) -> Option<&Node> {
        self.by_id.get(id).map(|at| &self.nodes[*at])
    }

    /// Returns the successors of a node in edge order.
    pub fn successors(&self, id: &str) -> impl Iterator<Item = &str> {
        self.leaving(id).map(|edge| self.ends(edge).1)
    }

    pub fn predecessors(&self, id: &str) -> impl Iterator<Item = &str> {
        self.coming(id).map(|edge| self.ends(edge).0)
    }

    pub fn is_edge(&self, from: &str, to: &str) -> bool {
        self.targets.get(from).is_some_and(|targets| targets.contains(to))
    }

    pub(super) fn key(&self, key: &str) -> Key {
        self.by_key.get(key).copied().unwrap_or_default()
    }

    /// Returns the place of a node. `None` if no edge touches it.
    pub(super) fn place(&self, name: &str) -> Option<usize> {
        self.places.get(name).copied()
    }

    pub(super) fn place_count(&self) -> usize {
        self.leaving.len()
    }

    pub(super) fn places(&self, edge: usize) -> (usize, usize) {
        self.edges[edge].places
    }

    pub(super) fn edge_count(&self) -> usize {
        self.edges.len()
    }

    pub(super) fn ends(&self, edge: usize) -> (&str, &str) {
        let Edge { from, to, .. } = &self.edges[edge];
        (from, to)
    }

    pub(super) fn key_of(&self, edge: usize) -> &str {
        &self.edges[edge].key
    }

    pub(super) fn first_of_key(&self, edge: usize) -> usize {
        self.edges[edge].first
    }

    /// Makes the forward handoffs of these nodes need approval by a person.
    pub fn require_approval(&mut self, is_gate: impl Fn(&str) -> bool) {
        for node in &mut self.nodes {
            node.human_colab |= is_gate(&node.id);
        }
    }

    /// Builds the graph of a workflow as it was.
    pub fn of(start: &Start) -> Self {
        Self::new(start.nodes.clone(), start.edges.clone())
    }

    /// Returns the nodes and edges, to be compared with later versions of the workflow.
    pub fn start(&self) -> Start {
        Start { nodes: self.nodes.clone(), edges: self.owned_edges() }
    }

    /// Keeps a workflow that agents may have edited from leading around the approvals that it required at its start:
    /// nodes and edges of the start remain, with their roles, approvals and joins. What was added, and nodes whose work
    /// was changed, are [altered](Self::is_altered).
    #[must_use]
    pub fn held_to(self, start: &Start) -> Self {
        let (mut nodes, mut edges) = (self.nodes.clone(), self.owned_edges());
        let known: HashMap<&str, &Node> = start.nodes.iter().map(|node| (node.id.as_str(), node)).collect();
        let mut altered = Altered::default();
        for node in &mut nodes {
            match known.get(node.id.as_str()) {
                None => drop(altered.nodes.insert(node.id.clone())),
                Some(before) => {
                    if (&node.work, &node.required_readings) != (&before.work, &before.required_readings) {
                        altered.nodes.insert(node.id.clone());
                    }
                    node.role.clone_from(&before.role);
                    node.human_colab |= before.human_colab;
                    node.await_all_inputs |= before.await_all_inputs;
                }
            }
        }
        nodes.extend(start.nodes.iter().filter(|node| self.node(&node.id).is_none()).cloned());
        let before: HashSet<&(String, String)> = start.edges.iter().collect();
        altered.edges.extend(edges.iter().filter(|edge| !before.contains(edge)).cloned());
        edges.extend(start.edges.iter().filter(|(from, to)| !self.is_edge(from, to)).cloned());
        Self { name: self.name, summary: self.summary, altered, ..Self::new(nodes, edges) }
    }

    /// Reports whether a handoff from one node to another uses something that the workflow did not have when the flow
    /// started. Always false for a workflow that required no approval then.
    pub fn is_altered(&self, from: &str, to: &str) -> bool {
        let edge = |from: &str, to: &str| self.altered.edges.contains(&(from.to_owned(), to.to_owned()));
        self.altered.nodes.contains(to) || edge(from, to) || edge(to, from)
    }

    fn owned_edges(&self) -> Vec<(String, String)> {
        self.edges().map(|(from, to)| (from.to_owned(), to.to_owned())).collect()
    }

    pub(super) fn leaving(&self, id: &str) -> impl Iterator<Item = usize> + use<'_> {
        self.place(id).into_iter().flat_map(|place| &self.leaving[place]).copied()
    }

    pub(super) fn coming(&self, id: &str) -> impl Iterator<Item = usize> + use<'_> {
        self.place(id).into_iter().flat_map(|place| &self.coming[place]).copied()
    }

    /// Renders one line per node with its successors.
    pub fn to_text(&self) -> String {
        let mut out = String::new();
        for node in &self.nodes {
            let mut marks = String::new();
            if node.await_all_inputs {
                marks.push_str(", waits for all inputs");
            }
            if node.human_colab {
                marks.push_str(", handoffs need approval");
            }
            let targets: Vec<&str> = self.successors(&node.id).collect();
            let arrow = if targets.is_empty() { String::new() } else { format!(" -> {}", targets.join(", ")) };
            writeln!(out, "{} ({}{marks}){arrow}", node.id, node.role).expect("writing to a string succeeds");
        }
        out
    }

    /// Renders the graph for Graphviz. `colour` returns a node's fill color.
    pub fn to_dot(&self, colour: impl Fn(&str) -> Option<&'static str>) -> String {
        let mut out = String::from(
            "digraph flow {\n  rankdir=LR;\n  node [shape=box, style=\"rounded,filled\", fillcolor=white];\n",
        );
        for node in &self.nodes {
            let label = quoted(&format!("{}\n{}", node.id, node.role));
            let fill = colour(&node.id).map(|colour| format!(", fillcolor={}", quoted(colour))).unwrap_or_default();
            writeln!(out, "  {} [label={label}{fill}];", quoted(&node.id)).expect("writing to a string succeeds");
        }
        for (from, to) in self.edges() {
            writeln!(out, "  {} -> {};", quoted(from), quoted(to)).expect("writing to a string succeeds");
        }
        out.push_str("}\n");
        out
    }
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}

/// Merges a node of the record with its canonical node. The record's fields win.
fn node_of(id: &str, own: &Value, canonical: Option<&Value>) -> Node {
    let member = |key: &str| own.get(key).or_else(|| canonical?.get(key));
    let texts = |key| {
        let list = member(key).and_then(Value::as_array).into_iter().flatten();
        list.filter_map(|item| item.as_str().map(str::to_owned)).collect()
    };
    let flag = |key| member(key).is_some_and(|value| Json::from(value).is_truthy());
    Node {
        id: id.to_owned(),
        role: member("role").and_then(Value::as_str).unwrap_or_default().to_owned(),
        required_readings: texts("required_readings"),
        work: texts("work"),
        human_colab: flag("human-colab"),
        await_all_inputs: flag("await-all-inputs"),
    }
}
