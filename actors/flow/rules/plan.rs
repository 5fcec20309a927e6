//! Plan of the improvement phase: which roles write findings, in which order, and whose findings
//! each one reads.

use std::collections::{HashMap, HashSet, VecDeque};

use super::graph::Graph;
use super::json::Json;
use super::names::{FEEDBACK_ROLE, OWNER, RoleId};

/// Mode of the improvement phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImprovementMode {
    /// Each role runs after all roles downstream of it.
    GraphBased,
    /// All roles run at once, then the owner.
    Parallel,
}

impl ImprovementMode {
    pub fn word(self) -> &'static str {
        match self {
            Self::GraphBased => "graph-based",
            Self::Parallel => "parallel",
        }
    }

    pub fn of(word: &str) -> Option<Self> {
        [Self::GraphBased, Self::Parallel].into_iter().find(|mode| mode.word() == word)
    }

    fn title(self) -> &'static str {
        match self {
            Self::GraphBased => "Graph-Based Improvement",
            Self::Parallel => "Parallel Improvement",
        }
    }
}

/// Roles in workflow order, then the feedback step. Each edge leads from a role to one that reads
/// its findings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    pub entries: Vec<PlanEntry>,
    pub edges: Vec<(String, String)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanEntry {
    pub role: String,
    pub step: Step,
    /// Roles whose findings this step reads. Empty for the feedback step, which reads all.
    pub reads: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Continues the role's conversation.
    MetaAnalysis,
    /// Starts a new conversation.
    Feedback,
}

impl Step {
    pub fn word(self) -> &'static str {
        match self {
            Self::MetaAnalysis => "meta-analysis",
            Self::Feedback => "feedback",
        }
    }
}

impl Plan {
    /// Builds the plan for a workflow.
    ///
    /// # Errors
    /// Returns the reason why the workflow has no plan.
    pub fn of(graph: &Graph, mode: ImprovementMode) -> Result<Self, String> {
        let mut roles: HashMap<&str, String> = HashMap::new();
        for node in graph.nodes() {
            roles.insert(&node.id, RoleId::parse(&node.role)?.instance);
        }
        if roles.is_empty() {
            return Err("workflow.nodes must be a non-empty array".to_owned());
        }
        let plan = match mode {
            ImprovementMode::Parallel => parallel(graph, &roles)?,
            ImprovementMode::GraphBased => graph_based(graph, &roles)?,
        };
        let steps = plan.entries.iter().filter(|entry| entry.step == Step::MetaAnalysis);
        if steps.into_iter().any(|entry| entry.role == FEEDBACK_ROLE) {
            return Err("improvement feedback role must be distinct from workflow meta-analysis roles".to_owned());
        }
        Ok(plan)
    }

    pub fn entry(&self, role: &str) -> Option<&PlanEntry> {
        self.entries.iter().find(|entry| entry.role == role)
    }

    pub fn steps(&self) -> impl Iterator<Item = &PlanEntry> {
        self.entries.iter().filter(|entry| entry.step == Step::MetaAnalysis)
    }

    /// Returns the content of `improvement.yaml`.
    pub fn document(&self, mode: ImprovementMode) -> Json {
        let node = |entry: &PlanEntry| {
            let role = || Json::from(entry.role.as_str());
            Json::from([("id", role()), ("role", role()), ("step_type", Json::from(entry.step.word()))])
        };
        let edge = |(from, to): &(String, String)| {
            Json::from([("from", Json::from(from.as_str())), ("to", Json::from(to.as_str()))])
        };
        let summary = "Runtime-generated visualization of the selected improvement backward-pass plan.";
        let workflow = Json::from([
            ("name", Json::from(mode.title())),
            ("summary", Json::from(summary)),
            ("nodes", Json::List(self.entries.iter().map(node).collect())),
            ("edges", Json::List(self.edges.iter().map(edge).collect())),
        ]);
        Json::from([("workflow", workflow)])
    }
}

fn step(role: &str, reads: Vec<String>) -> PlanEntry {
    PlanEntry { role: role.to_owned(), step: Step::MetaAnalysis, reads }
}

fn feedback() -> PlanEntry {
    PlanEntry { role: FEEDBACK_ROLE.to_owned(), step: Step::Feedback, reads: Vec::new() }
}

fn parallel(graph: &Graph, roles: &HashMap<&str, String>) -> Result<Plan, String> {
    let mut met = HashSet::new();
    let distinct = graph.nodes().iter().map(|node| roles[node.id.as_str()].as_str()).filter(|role| met.insert(*role));
    let (owners, others): (Vec<&str>, Vec<&str>) = distinct.partition(|role| *role == OWNER);
    if owners.is_empty() {
        return Err("parallel improvement mode requires exactly one owner role".to_owned());
    }
    let mut entries: Vec<PlanEntry> = others.iter().map(|role| step(role, Vec::new())).collect();
    entries.push(step(OWNER, others.iter().map(ToString::to_string).collect()));
    entries.push(feedback());
    let mut edges: Vec<(String, String)> = others.iter().map(|role| ((*role).to_owned(), OWNER.to_owned())).collect();
    edges.push((OWNER.to_owned(), FEEDBACK_ROLE.to_owned()));
    Ok(Plan { entries, edges })
}

fn graph_based(graph: &Graph, roles: &HashMap<&str, String>) -> Result<Plan, String> {
    let known = |id: &&str| graph.node(id).is_some();
    let is_source = |id: &str| graph.predecessors(id).find(known).is_none();
    let sources: Vec<&str> = graph.nodes().iter().map(|node| node.id.as_str()).filter(|id| is_source(id)).collect();
    let [source] = sources.as_slice() else {
        return Err("workflow.nodes must produce exactly one source node".to_owned());
    };
    let kept = kept_nodes(graph, roles, &depths(graph, source));
    let by_node: HashMap<&str, &str> = kept.iter().map(|(role, node)| (*node, *role)).collect();
    let mut entries: Vec<PlanEntry> = kept.iter().map(|(role, _)| step(role, Vec::new())).collect();
    let mut edges = Vec::new();
    for (role, node) in &kept {
        for downstream in reached(graph, node, &by_node) {
            if downstream != *role {
                edges.push((downstream.to_owned(), (*role).to_owned()));
            }
        }
    }
    for entry in &mut entries {
        entry.reads = edges.iter().filter(|(_, to)| *to == entry.role).map(|(from, _)| from.clone()).collect();
    }
    entries.push(feedback());
    edges.push((roles[source].clone(), FEEDBACK_ROLE.to_owned()));
    Ok(Plan { entries, edges })
}

/// Returns each node's distance from the source in edges, by the shortest path.
fn depths<'a>(graph: &'a Graph, source: &'a str) -> HashMap<&'a str, usize> {
    let mut depths = HashMap::from([(source, 0)]);
    let mut next = VecDeque::from([source]);
    while let Some(node) = next.pop_front() {
        let depth = depths[node] + 1;
        for to in graph.successors(node).filter(|to| graph.node(to).is_some()) {
            if !depths.contains_key(to) {
                depths.insert(to, depth);
                next.push_back(to);
            }
        }
    }
    depths
}

/// Returns each role's node nearest to the source, in order of the roles' first appearance.
fn kept_nodes<'a>(
    graph: &'a Graph,
    roles: &'a HashMap<&str, String>,
    depths: &HashMap<&str, usize>,
) -> Vec<(&'a str, &'a str)> {
    let depth = |node: &str| depths.get(node).copied().unwrap_or(usize::MAX);
    let mut kept: Vec<(&str, &str)> = Vec::new();
    let mut at: HashMap<&str, usize> = HashMap::new();
    for node in graph.nodes() {
        let role = roles[node.id.as_str()].as_str();
        match at.get(role) {
            None => {
                at.insert(role, kept.len());
                kept.push((role, &node.id));
            }
            Some(at) if depth(&node.id) < depth(kept[*at].1) => kept[*at].1 = &node.id,
            Some(_) => {}
        }
    }
    kept
}

/// Returns the roles reached from a kept node through nodes that are not kept.
fn reached<'a>(graph: &'a Graph, node: &str, by_node: &HashMap<&str, &'a str>) -> Vec<&'a str> {
    let mut seen = HashSet::new();
    let mut found = Vec::new();
    let mut next: VecDeque<&str> = graph.successors(node).collect();
    while let Some(candidate) = next.pop_front() {
        if candidate == node || !seen.insert(candidate) {
            continue;
        }
        match by_node.get(candidate) {
            Some(role) if found.contains(role) => {}
            Some(role) => found.push(*role),
            None => next.extend(graph.successors(candidate)),
        }
    }
    found
}
