//! What the specs of a plan execute: their `verify` commands, and the shell blocks of those that the agent `shell` runs.

use std::path::Path;

use swarm_agents::Agent;
use swarm_agents::consent::loads;
use swarm_config::defaults;
use swarm_config::sections::AgentConfig;
use swarm_config::trust::{AGENTS, Entry, SPECS};
use swarm_config::{self, Sections};

use super::gate;
use crate::cli::error::Failure;
use crate::cli::run::file_of;
use crate::cli::screen::Screen;
use swarm_store::runs::home::Home;
use swarm_store::runs::specs::{self, Spec};
use swarm_store::runs::wire;

/// Agent that executes the spec itself.
const SHELL: &str = "shell";

/// Returns the entries of the workstreams in `root` that are planned and not done.
///
/// # Errors
/// Fails if the configuration cannot be read. A plan or a spec that cannot be read is noted: `swarm run` reports it.
pub fn planned(root: &Path, screen: &mut Screen) -> Result<Vec<Entry>, Failure> {
    let config = swarm_config::as_written(Some(root)).map_err(gate::unreadable)?;
    let state = match wire::load(&Home::of(root)) {
        Ok(state) => state,
        Err(cause) => {
            screen.warning(&cause.to_string());
            None
        }
    };
    let mut all = Vec::new();
    for row in state.iter().flat_map(|state| &state.workstreams).filter(|row| row.status != "done") {
        match specs::read_one(&root.join(&row.spec_file)) {
            Ok(spec) => all.extend(entries(&spec, root, &config, None)),
            Err((cause, _)) => screen.warning(&cause),
        }
    }
    Ok(all)
}

/// Returns the entries of a spec. `typed` is the agent of the command line for specs that name none: a person who types
/// `shell` there has said that the specs are to be executed.
pub fn entries(spec: &Spec, root: &Path, config: &Sections, typed: Option<&str>) -> Vec<Entry> {
    let file = file_of(spec, root);
    let mut all = Vec::new();
    if let Some(verify) = &spec.front.verify {
        all.push(Entry::of_text(SPECS, &file, "verify", verify));
    }
    let agent = match (spec.front.adapter.as_deref(), typed) {
        (Some(own), _) => own,
        (None, Some(_)) => return all,
        (None, None) => config.run.agent.as_deref().unwrap_or(defaults::AGENT),
    };
    if agent == SHELL
        && let Ok(script) = swarm_agents::shell_script(&spec.body)
    {
        all.push(Entry::of_text(SPECS, &file, "sh", &script));
    }
    all
}

/// Returns the sections of the files that an agent of this name loads from the repository.
pub fn sections_of(agent: &str, configured: &std::collections::BTreeMap<String, AgentConfig>) -> Option<&'static str> {
    let found = Agent::find(agent, configured).ok().and_then(|agent| loads(&agent));
    // A script with the name of an agent probably executes it.
    found.or_else(|| AGENTS.into_iter().find(|kind| agent == *kind))
}
