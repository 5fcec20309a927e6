//! State of all edges of a workflow. Each edge and each edge key is looked up once, however many
//! nodes are queried afterwards.

use super::document::FlowRun;
use super::entry::Side;
use super::graph::{Graph, Key};

pub(super) struct Board<'a> {
    pub graph: &'a Graph,
    /// Whether the predecessor has handed over, by edge index. Of edges with the same key, only the
    /// first is set.
    completed: Vec<bool>,
    /// Deliverable handoffs of each node, by place.
    arrivals: Vec<Vec<Arrival<'a>>>,
}

/// A queued handoff that may be delivered.
pub(super) struct Arrival<'a> {
    pub from: &'a str,
    pub side: Side,
    /// Index in `receivingHandoff`.
    pub at: usize,
    /// The node's own queued handoff to `from`. This arrival supersedes it, so the node has to send
    /// it again.
    pub superseded: Option<Sent>,
}

#[derive(Clone, Copy)]
pub(super) struct Sent {
    pub edge: usize,
    /// Index in `receivingHandoff`.
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

    /// Reports whether anything can be delivered to the node.
    pub fn has(&self, node: &str) -> bool {
        !self.arrivals(node).is_empty()
    }

    /// Returns the deliverable handoffs of the node in queue order.
    pub fn arrivals(&self, node: &str) -> &[Arrival<'a>] {
        self.graph.place(node).map_or(&[], |place| &self.arrivals[place])
    }

    fn is_completed(&self, edge: usize) -> bool {
        self.completed[self.graph.first_of_key(edge)]
    }

    /// Returns the predecessors that have not handed over to the node.
    pub fn not_received(&self, node: &str) -> impl Iterator<Item = &'a str> {
        let open = self.graph.coming(node).filter(|edge| !self.is_completed(*edge));
        open.map(|edge| self.graph.ends(edge).0)
    }

    /// Returns the successors of the node, and whether it has handed over to each of them.
    pub fn sent(&self, node: &str) -> impl Iterator<Item = (&'a str, bool)> {
        self.graph.leaving(node).map(|edge| (self.graph.ends(edge).1, self.is_completed(edge)))
    }
}

fn arrivals<'a>(flow: &FlowRun, graph: &'a Graph) -> Vec<Vec<Arrival<'a>>> {
    let queued: Vec<(usize, Key)> = flow.queued().map(|(key, _)| graph.key(key)).enumerate().collect();
    // Queue index of the handoff along each edge, and against it.
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
            // A predecessor's handoff is stale while the node's own backward handoff to it is
            // undelivered.
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
