//! Creates flows.

use std::io;

use rustix::rand::{GetRandomFlags, getrandom};
use swarm_actors::flow::rules::consent;
use swarm_actors::flow::rules::document::{FlowRun, NewFlow};
use swarm_actors::flow::rules::graph::Graph;
use swarm_actors::flow::rules::names::{FlowRef, flow_id};
use swarm_model::asks::judge::Consent;

use super::file;
use super::place::Workspace;
use super::sidecar::Sidecar;
use super::store::{FLOW, FlowFiles, StoreError, WORKFLOW, gate_of, sync_record};
use super::yaml;
use swarm_sys::clock::now_iso;

/// Parameters of a new flow.
#[derive(Debug)]
pub struct Make<'a> {
    pub project: &'a str,
    /// Text of a validated workflow.
    pub workflow: &'a str,
    pub sidecar: Sidecar,
    /// Permissions of agents without asking; `None` for the default, which permits nothing.
    pub consent: Option<Consent>,
}

impl Workspace {
    /// Creates a flow that has not started yet.
    ///
    /// # Errors
    /// Fails if the project name or the workflow is invalid, or on I/O errors.
    pub fn make(&self, make: &Make<'_>) -> Result<FlowFiles, StoreError> {
        let other = |cause: String| StoreError::System(io::Error::other(cause));
        let root =
            self.root().to_str().ok_or_else(|| other(format!("{} is not valid UTF-8", self.root().display())))?;
        let document = yaml::parse(make.workflow).map_err(other)?;
        let graph = Graph::resolve(&document, None).map_err(|error| other(error.to_string()))?;
        let first = graph.nodes().first().ok_or_else(|| other("the workflow has no nodes".to_owned()))?;
        let mut random = [0; 3];
        getrandom(&mut random, GetRandomFlags::empty()).map_err(io::Error::from)?;
        let id = flow_id(&now_iso(), random);
        let files = self.flow(FlowRef::new(make.project, &id).map_err(other)?);
        let record = files.dir().join("record");
        swarm_sys::files::make_dirs(&record)?;
        file::replace(&record.join(WORKFLOW), make.workflow.as_bytes())?;
        sync_record(&record)?;
        file::replace(&files.dir().join("swarm.json"), make.sidecar.render().as_bytes())?;
        let record_folder =
            record.to_str().ok_or_else(|| other("the path of the flow is not valid UTF-8".to_owned()))?;
        let new = NewFlow { id: files.id(), workspace_root: root, record_folder, first_node: first.id.as_str() };
        // `flow.json` is written last: the flow exists once this file exists.
        let mut flow = FlowRun::new(&new);
        if let Some(mode) = make.consent {
            let mut gate = gate_of(&flow);
            gate.set_mode(mode);
            consent::keep(&mut flow, &gate);
        }
        file::replace(&files.dir().join(FLOW), flow.render().as_bytes())?;
        Ok(files)
    }
}
