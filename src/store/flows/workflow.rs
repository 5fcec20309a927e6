//! The workflow of a flow. Agents may edit it while the flow runs, also into something that cannot be read.

use std::thread;
use std::time::Instant;

use serde_json::Value;
use swarm_actors::flow::rules::document::FlowRun;
use swarm_actors::flow::rules::graph::Graph;
use swarm_actors::flow::rules::validate::{Finding, OwnerRules, validate};
use swarm_sys::quoting::command_line;

use super::sidecar::Sidecar;
use super::store::{FlowFiles, LOOK_PAUSE, Open, StoreError, read_yaml, workflow_of};

impl FlowFiles {
    /// Reads the present workflow, which agents may edit at any time. They cannot remove an approval by a person that it
    /// required when the flow first ran, nor lead around it. If it cannot be read, returns the last valid one and the
    /// cause.
    ///
    /// # Errors
    /// Fails if the workflow is missing or invalid, and the flow has not run yet.
    pub(super) fn graph(&self, flow: &FlowRun, sidecar: &Sidecar) -> Result<(Graph, Option<String>), StoreError> {
        let last = sidecar.last.as_ref().or(sidecar.start.as_ref());
        let (mut graph, damage) = match (self.present(flow), last) {
            (Ok(graph), _) => (graph, None),
            (Err(error), Some(last)) => (Graph::of(last), Some(error.to_string())),
            (Err(error), None) => return Err(error),
        };
        let is_gated = sidecar.gates.as_ref().is_some_and(|gates| !gates.is_empty());
        if let Some(start) = sidecar.start.as_ref().filter(|_| is_gated) {
            graph = graph.held_to(start);
        }
        graph.require_approval(|node| sidecar.gates.as_ref().is_some_and(|gates| gates.contains(node)));
        Ok((graph, damage))
    }

    fn present(&self, flow: &FlowRun) -> Result<Graph, StoreError> {
        let document = self.workflow(flow)?;
        let shared = self.root().join(&self.id().project).join("a-docs/workflow/main.yaml");
        let canonical = read_yaml(&shared).map_err(|cause| StoreError::Unreadable { path: shared, cause })?;
        let resolved = Graph::resolve(&document, canonical.as_ref());
        resolved.map_err(|error| StoreError::Unreadable { path: workflow_of(flow), cause: error.to_string() })
    }

    /// Returns a message for users about the first rule that the present workflow breaks. `None` if it breaks none.
    ///
    /// # Errors
    /// Fails if the file is missing or not valid YAML.
    pub fn fault(&self, open: &Open) -> Result<Option<String>, StoreError> {
        let is_relaxed = open.sidecar.relaxed;
        let rules = if is_relaxed { OwnerRules::Relaxed } else { OwnerRules::Strict };
        let document = self.workflow(&open.flow)?;
        let path = workflow_of(&open.flow).display().to_string();
        let words = ["swarm", "flow", "check", &path, "--relaxed"];
        let check = command_line(words.into_iter().take(if is_relaxed { 5 } else { 4 }));
        let message = |first: &Finding| format!("invalid workflow: {} (run '{check}')", first.message);
        Ok(validate(&document, rules).first().map(message))
    }

    /// Reads the document of the workflow without validation.
    ///
    /// # Errors
    /// Fails if the file is missing or not valid YAML.
    pub fn workflow(&self, flow: &FlowRun) -> Result<Value, StoreError> {
        let path = workflow_of(flow);
        let mut document = read_yaml(&path);
        let began = Instant::now();
        // An agent may be writing the file at this moment.
        while document.is_err() && began.elapsed() < self.torn_max {
            thread::sleep(LOOK_PAUSE);
            document = read_yaml(&path);
        }
        let absent = || Err("file not found".to_owned());
        let document = document.and_then(|document| document.map_or_else(absent, Ok));
        document.map_err(|cause| StoreError::Unreadable { path, cause })
    }
}
