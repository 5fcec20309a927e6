//! What lies along the edges of a workflow: each edge and each key is looked up once, for
//! all nodes that are asked about afterwards.

use super::document::FlowRun;
use super::entry::Side;
use super::graph::{Graph, Key};

pub(super) struct Board<'a> {
    pub graph: &'a Graph,
    /// By edge, of each name the first: its predecessor has handed over.
    completed: Vec<bool>,
    /// By place.
    arrivals: Vec<Vec<Arrival<'a>>>,
}

/// What is queued for a node and may be delivered.
pub(super) struct Arrival<'a> {
    pub from: &'a str,
    pub side: Side,
    /// Its place in the queue.
    pub at: usize,
    /// What the node had sent itself and is asked to send anew.
    pub superseded: Option<Sent>,
}

#[derive(Clone, Copy)]
pub(super) struct Sent {
    pub edge: usize,
    /// Its place in the queue.
    pub at: usize,
}

impl<'a> Board<'a> {
    pub fn of(flow: &FlowRun, graph: &'a Graph) -> Self {
        let mut completed = vec![false; graph.edge_count()];
        for edge in flow.completed().filter_map(|key| graph.key(key).along) {
            completed[edge] = true;
        }
        Self { graph, completed, arrivals: arrivals(flow, graph) }
    }

    /// Something may be delivered to the node.
    pub fn has(&self, node: &str) -> bool {
        !self.arrivals(node).is_empty()
    }

    /// In the order of the queue.
    pub fn arrivals(&self, node: &str) -> &[Arrival<'a>] {
        self.graph.place(node).map_or(&[], |place| &self.arrivals[place])
    }

    fn is_completed(&self, edge: usize) -> bool {
        self.completed[self.graph.first_of_key(edge)]
    }

    /// Predecessors that have not handed over to the node.
    pub fn not_received(&self, node: &str) -> impl Iterator<Item = &'a str> {
        let open = self.graph.coming(node).filter(|edge| !self.is_completed(*edge));
        open.map(|edge| self.graph.ends(edge).0)
    }

    /// Successors of the node, and whether it has handed over to them.
    pub fn sent(&self, node: &str) -> impl Iterator<Item = (&'a str, bool)> {
        self.graph.leaving(node).map(|edge| (self.graph.ends(edge).1, self.is_completed(edge)))
    }
}

fn arrivals<'a>(flow: &FlowRun, graph: &'a Graph) -> Vec<Vec<Arrival<'a>>> {
    let queued: Vec<(usize, Key)> = flow.queued().map(|(key, _)| graph.key(key)).enumerate().collect();
    // By edge: the place of what is queued along it, and against it.
    let (mut along, mut against) = (vec![None; graph.edge_count()], vec![None; graph.edge_count()]);
    let queued = || queued.iter().filter(|(_, key)| key.is_plain);
    for (at, key) in queued() {
        if let Some(edge) = key.along {
            along[edge] = Some(*at);
        }
        if let Some(edge) = key.against {
            against[edge] = Some(*at);
        }
    }
    let mut found: Vec<Vec<Arrival<'_>>> = (0..graph.place_count()).map(|_| Vec::new()).collect();
    for &(at, key) in queued() {
        match (key.along, key.against) {
            // What a predecessor sent is stale while the request to it is not read.
            (Some(edge), reverse) if reverse.is_some() || against[edge].is_none() => {
                let arrival = Arrival { from: graph.ends(edge).0, side: Side::Predecessor, at, superseded: None };
                found[graph.places(edge).1].push(arrival);
            }
            (None, Some(edge)) => {
                let superseded = along[edge].map(|at| Sent { edge, at });
                let arrival = Arrival { from: graph.ends(edge).1, side: Side::Successor, at, superseded };
                found[graph.places(edge).0].push(arrival);
            }
            _ => {}
        }
    }
    found
}
