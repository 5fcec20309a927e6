//! What the specs of a plan execute: their `verify` commands, and the shell blocks of those that the agent `shell` runs. Work
//! that landed may have changed the specs of later work: if one has lost its `verify`, or has another agent or lands now,
//! which it had not in the run so far, that counts as well.

use std::path::Path;
use std::sync::Arc;

use swarm_agents::Agent;
use swarm_agents::consent::loads;
use swarm_config::defaults;
use swarm_config::sections::AgentConfig;
use swarm_config::trust::{AGENTS, Effect, Entry, SPECS};
use swarm_config::{self, Sections};
use swarm_model::run::plan::{Plan, Work};

use super::gate;
use crate::cli::error::Failure;
use crate::cli::run::file_of;
use crate::cli::screen::Screen;
use swarm_store::runs::home::Home;
use swarm_store::runs::specs::{self, Spec};
use swarm_store::runs::{journal, wire};

/// Agent that executes the spec itself.
const SHELL: &str = "shell";

/// Returns the entries of the workstreams in `root` that are planned and not done.
///
/// # Errors
/// Fails if the configuration cannot be read. A plan or a spec that cannot be read is noted: `swarm run` reports it.
pub fn planned(root: &Path, screen: &mut Screen) -> Result<Vec<Entry>, Failure> {
    let config = swarm_config::as_written(Some(root)).map_err(gate::unreadable)?;
    let home = Home::of(root);
    let earlier = earlier(&home);
    let state = match wire::load(&home) {
        Ok(state) => state,
        Err(cause) => {
            screen.warning(&cause.to_string());
            None
        }
    };
    let mut all = Vec::new();
    for row in state.iter().flat_map(|state| &state.workstreams).filter(|row| row.status != "done") {
        match specs::read_one(&root.join(&row.spec_file)) {
            Ok(spec) => all.extend(entries(&spec, root, &config, None, earlier.as_deref())),
            Err((cause, _)) => screen.warning(&cause),
        }
    }
    Ok(all)
}

/// Returns the plan with which the run of this home last began; `None` if there is none.
pub fn earlier(home: &Home) -> Option<Arc<Plan>> {
    journal::begun(home).ok().map(|run| run.plan).filter(|plan| plan.specs.is_some())
}

/// Returns the entries of a spec. `typed` is the agent of the command line for specs that name none: a person who types
/// `shell` there has said that the specs are to be executed. `earlier` is the plan with which the run last began.
pub fn entries(spec: &Spec, root: &Path, config: &Sections, typed: Option<&str>, earlier: Option<&Plan>) -> Vec<Entry> {
    let file = file_of(spec, root);
    let mut all = vec![match &spec.front.verify {
        Some(verify) => Entry::of_text(SPECS, &file, "verify", verify),
        None => Entry::of_none(SPECS, &file, "verify"),
    }];
    all.extend(earlier.into_iter().flat_map(|earlier| changed(spec, &file, config, typed, earlier)));
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

/// Returns the entries of what a spec that has changed now permits and did not permit in the run so far.
fn changed(spec: &Spec, file: &str, config: &Sections, typed: Option<&str>, earlier: &Plan) -> Vec<Entry> {
    let job = earlier.jobs.iter().find(|job| job.id == spec.id);
    let Some((job, work)) = job.and_then(|job| if let Work::Spec(work) = &job.work { Some((job, work)) } else { None })
    else {
        return Vec::new();
    };
    if work.digest == spec.digest {
        return Vec::new();
    }
    let mut all = Vec::new();
    let mut add = |key: &str, value: &str, text: String| {
        all.push(Entry { text, effect: Effect::Permission, ..Entry::of_text(SPECS, file, key, value) });
    };
    if job.stays && spec.front.merge != Some(false) {
        add("merge", "true", "true (it was false)".to_owned());
    }
    let or_default = |name: Option<&str>| name.unwrap_or(defaults::AGENT).to_owned();
    let before = or_default(work.adapter.as_deref());
    let now = or_default(spec.front.adapter.as_deref().or(typed).or(config.run.agent.as_deref()));
    // A person has typed the agent for this run, and not for an earlier one.
    let is_typed = spec.front.adapter.is_none() && typed.is_some() && typed != earlier.flags.agent.as_deref();
    if before != now && !is_typed {
        add("adapter", &now, format!("{now} (it was {before})"));
    }
    all
}

/// Returns the sections of the files that an agent of this name loads from the repository.
pub fn sections_of(agent: &str, configured: &std::collections::BTreeMap<String, AgentConfig>) -> Option<&'static str> {
    let found = Agent::find(agent, configured).ok().and_then(|agent| loads(&agent));
    // A script with the name of an agent probably executes it.
    found.or_else(|| AGENTS.into_iter().find(|kind| agent == *kind))
}

#[cfg(test)]
mod tests {
    use super::*;
    use swarm_config::trust::{Agreed, Status, compare};
    use swarm_model::run::plan::{Flags, Job, SpecWork};

    fn spec(digest: &str, adapter: Option<&str>, merge: Option<bool>, verify: Option<&str>) -> Spec {
        let mut spec = Spec { id: "b".into(), path: "/r/specs/b.md".into(), digest: digest.into(), ..Spec::default() };
        spec.front.adapter = adapter.map(str::to_owned);
        spec.front.verify = verify.map(str::to_owned);
        spec.front.merge = merge;
        spec
    }

    /// Returns the plan of a run that has begun with this spec, whose work is not to land.
    fn begun(adapter: Option<&str>, typed: Option<&str>) -> Plan {
        let work = SpecWork { digest: "old".into(), adapter: adapter.map(str::to_owned), ..SpecWork::default() };
        let job = Job { id: "b".into(), work: Work::Spec(work), stays: true, ..Job::default() };
        Plan {
            jobs: vec![job],
            flags: Flags { agent: typed.map(str::to_owned), ..Flags::default() },
            ..Plan::default()
        }
    }

    fn shown(spec: &Spec, typed: Option<&str>, earlier: &Plan) -> Vec<(String, String)> {
        let all = entries(spec, Path::new("/r"), &Sections::default(), typed, Some(earlier));
        all.into_iter().filter(|entry| !entry.is_none()).map(|entry| (entry.key, entry.text)).collect()
    }

    #[test]
    fn a_changed_spec_needs_consent_for_another_agent_and_for_landing() {
        let pair = |key: &str, text: &str| (format!("specs/b.md {key}"), text.to_owned());
        let codex = || begun(Some("codex"), None);
        let lands = pair("merge", "true (it was false)");
        let other = |name: &str| pair("adapter", &format!("{name} (it was codex)"));
        assert_eq!(shown(&spec("new", Some("qwen"), None, None), None, &codex()), [lands.clone(), other("qwen")]);
        assert_eq!(shown(&spec("new", None, Some(true), None), None, &codex()), [lands, other("claude")]);
        assert_eq!(shown(&spec("new", Some("codex"), Some(false), None), None, &codex()), []);
        assert_eq!(shown(&spec("new", None, Some(false), None), Some("qwen"), &codex()), [], "typed now");
        let earlier = begun(Some("codex"), Some("qwen"));
        assert_eq!(shown(&spec("new", None, Some(false), None), Some("qwen"), &earlier), [other("qwen")]);
        assert_eq!(shown(&spec("old", None, None, None), None, &codex()), [], "the configuration has changed");
        assert_eq!(shown(&spec("new", Some("qwen"), None, None), None, &Plan::default()), [], "a new spec");
    }

    #[test]
    fn a_spec_without_a_verification_needs_consent_if_one_was_agreed_to() {
        let root = Path::new("/r");
        let of = |verify| entries(&spec("new", None, None, verify), root, &Sections::default(), None, None);
        let statuses = |agreed: Option<&Agreed>, verify| {
            let all = compare(agreed, &[SPECS], &of(verify)).into_iter();
            all.map(|(status, entry)| (status, entry.key)).collect::<Vec<_>>()
        };
        let is = |status| [(status, "specs/b.md verify".to_owned())];
        assert_eq!(statuses(None, None), [], "nobody agreed to one");
        assert_eq!(statuses(None, Some("x")), is(Status::New));
        let recorded = of(Some("x")).into_iter().map(|entry| (entry.key, entry.value)).collect();
        let agreed = Agreed { at_ms: 1, sections: [(SPECS.to_owned(), recorded)].into() };
        assert_eq!(statuses(Some(&agreed), Some("x")), is(Status::Agreed));
        assert_eq!(statuses(Some(&agreed), None), is(Status::Removed));
    }
}
