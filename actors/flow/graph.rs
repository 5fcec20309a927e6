//! The workflow as the scheduler sees it: nodes, roles and edges.
//!
//! It is taken as it is: nothing here asks whether it is a good one (that is
//! [`validate`](super::validate)), because a flow whose workflow was edited into
//! something odd still has to be shown.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;

use serde_json::Value;
use thiserror::Error;

use super::json::Json;
use super::names::{edge_key, split_edge_key};

/// One node of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    pub id: String,
    pub role: String,
    /// What is read before the first turn, by name.
    pub required_readings: Vec<String>,
    /// What is to be done, said once.
    pub work: Vec<String>,
    /// Forward handoffs need a person's yes.
    pub human_colab: bool,
    /// It begins when all of its predecessors have handed over, not when one has.
    pub await_all_inputs: bool,
}

#[derive(Clone, Debug, Default)]
pub struct Graph {
    pub name: Option<String>,
    pub summary: Option<String>,
    nodes: Vec<Node>,
    edges: Vec<Edge>,
    /// The first node of each name.
    by_id: HashMap<String, usize>,
    /// Of each end of an edge, by its name.
    places: HashMap<String, usize>,
    /// By place, the edges that leave it, and those that come to it.
    leaving: Vec<Vec<usize>>,
    coming: Vec<Vec<usize>>,
    targets: HashMap<String, HashSet<String>>,
    by_key: HashMap<String, Key>,
}

#[derive(Clone, Debug)]
struct Edge {
    from: String,
    to: String,
    places: (usize, usize),
    /// What it is called in flows.
    key: String,
    /// The first one that is called so, for all that are.
    first: usize,
}

/// What an edge key means, by the places of edges among all of them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Key {
    /// It splits into two nodes.
    pub is_plain: bool,
    /// The first edge of that name.
    pub along: Option<usize>,
    /// The first edge that leads the other way.
    pub against: Option<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum GraphError {
    #[error("the workflow file has no workflow in it")]
    NoWorkflow,
}

impl Graph {
    /// The workflow of a flow: the record's, whose nodes take from the project's own one
    /// what they do not say themselves.
    ///
    /// # Errors
    /// Where the record's document has no workflow.
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

    /// In the order of the edges.
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

    /// Of an end of an edge; none for a name that is at no end.
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

    pub(super) fn leaving(&self, id: &str) -> impl Iterator<Item = usize> + use<'_> {
        self.place(id).into_iter().flat_map(|place| &self.leaving[place]).copied()
    }

    pub(super) fn coming(&self, id: &str) -> impl Iterator<Item = usize> + use<'_> {
        self.place(id).into_iter().flat_map(|place| &self.coming[place]).copied()
    }

    /// Each node on a line, and where it hands over to.
    pub fn to_text(&self) -> String {
        let mut out = String::new();
        for node in &self.nodes {
            let mut marks = String::new();
            if node.await_all_inputs {
                marks.push_str(", waits for all");
            }
            if node.human_colab {
                marks.push_str(", asks before it hands over");
            }
            let targets: Vec<&str> = self.successors(&node.id).collect();
            let arrow = if targets.is_empty() { String::new() } else { format!(" -> {}", targets.join(", ")) };
            writeln!(out, "{} ({}{marks}){arrow}", node.id, node.role).expect("writes into a text");
        }
        out
    }

    /// In the language of Graphviz; `colour` says how a node is filled.
    pub fn to_dot(&self, colour: impl Fn(&str) -> Option<&'static str>) -> String {
        let mut out = String::from(
            "digraph flow {\n  rankdir=LR;\n  node [shape=box, style=\"rounded,filled\", fillcolor=white];\n",
        );
        for node in &self.nodes {
            let label = quoted(&format!("{}\n{}", node.id, node.role));
            let fill = colour(&node.id).map(|colour| format!(", fillcolor={}", quoted(colour))).unwrap_or_default();
            writeln!(out, "  {} [label={label}{fill}];", quoted(&node.id)).expect("writes into a text");
        }
        for (from, to) in self.edges() {
            writeln!(out, "  {} -> {};", quoted(from), quoted(to)).expect("writes into a text");
        }
        out.push_str("}\n");
        out
    }
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}

/// What the record says of a node wins over what the project's workflow says of it.
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
