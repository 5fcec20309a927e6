//! What a person should know before a run starts, and what to do with work that it leaves.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use swarm_agents::consent::{is_narrowed, own_limits, too_old};
use swarm_agents::{Agent, Kind};
use swarm_config::defaults;
use swarm_config::sections::AgentConfig;
use swarm_model::asks::judge::Consent;
use swarm_model::run::plan::{Job, Plan, SpecWork, Work};
use swarm_model::run::progress::Run;
use swarm_model::run::worker_name;
use swarm_model::{Refusal, RefusalKind};
use swarm_sys::paths::Paths;

use crate::cli::agents;
use crate::cli::error::Failure;
use crate::cli::screen::Screen;

/// Returns what the agents of a plan may do without asking, as [`consent`] does.
pub fn consent_of(plan: &Plan) -> Option<String> {
    let configured = swarm_config::as_written(Some(Path::new(&plan.root))).map(|all| all.agents).unwrap_or_default();
    consent(&plan.jobs, plan.rules.consent, &configured)
}

/// Returns what the agents of these jobs may do without asking. `None` if the jobs only execute what a person wrote. Agents
/// whose own command line says what they may do are named with it.
pub fn consent(jobs: &[Job], consent: Option<Consent>, configured: &BTreeMap<String, AgentConfig>) -> Option<String> {
    let name = |job: &Job| match &job.work {
        Work::Spec(work) => Some(work.adapter.clone().unwrap_or_else(|| defaults::AGENT.to_owned())),
        Work::Command(_) => None,
    };
    let mut names: BTreeSet<String> = jobs.iter().filter_map(name).filter(|name| name != "shell").collect();
    let mut own = Vec::new();
    // Another consent replaces these options, or refuses them.
    if matches!(consent, None | Some(Consent::FullAccess)) {
        names.retain(|name| {
            let limits = Agent::find(name, configured).ok().and_then(|agent| own_limits(&agent));
            own.extend(limits.map(|option| format!("{name} does what {option} in agents.{name} of swarm.toml allows")));
            limits.is_none()
        });
    }
    let all = (!names.is_empty()).then(|| {
        match consent {
            None => "agents edit files and run commands without asking, codex in its sandbox (see --consent)",
            Some(Consent::FullAccess) => "consent full-access: agents do everything without asking",
            Some(Consent::PartialAccess) => "consent partial-access: agents write in their worktree, and ask before they do anything else ('swarm approvals')",
            Some(Consent::NoAccess) => "consent no-access: agents ask before they do more than read ('swarm approvals')",
        }
        .to_owned()
    });
    let said: Vec<String> = all.into_iter().chain(own).collect();
    (!said.is_empty()).then(|| said.join("; "))
}

/// Returns which specs require capabilities of an agent that does not keep to them. `None` if there are none.
pub fn not_narrowed(jobs: &[Job], configured: &BTreeMap<String, AgentConfig>) -> Option<String> {
    let is_wide = |work: &SpecWork| {
        let name = work.adapter.as_deref().unwrap_or(defaults::AGENT);
        !work.capabilities.is_empty() && Agent::find(name, configured).is_ok_and(|agent| !is_narrowed(&agent))
    };
    let wide = |job: &Job| matches!(&job.work, Work::Spec(work) if is_wide(work)).then(|| format!("'{}'", job.id));
    let ids: Vec<String> = jobs.iter().filter_map(wide).collect();
    let list = ids.join(", ");
    (!ids.is_empty()).then(|| {
        format!("requiredCapabilities of {list} says what the agent must offer, and does not keep it from more (only claude)")
    })
}

/// Refuses versions of agents that cannot keep this consent. Other commands than the known programs are not executed to find
/// out: their attempts fail.
pub fn check_versions(
    jobs: &[Job],
    configured: &BTreeMap<String, AgentConfig>,
    consent: Option<Consent>,
    paths: &Paths,
) -> Result<(), Failure> {
    let Some(_) = consent.filter(|consent| *consent != Consent::FullAccess) else { return Ok(()) };
    let names: BTreeSet<&str> = jobs
        .iter()
        .filter_map(|job| match &job.work {
            Work::Spec(work) => Some(work.adapter.as_deref().unwrap_or(defaults::AGENT)),
            Work::Command(_) => None,
        })
        .collect();
    for agent in names.into_iter().filter_map(|name| Agent::find(name, configured).ok()) {
        let version = (agent.kind == Kind::Claude).then(|| agents::version(&agent, paths)).flatten();
        if let Some((cause, remedy)) = version.and_then(|version| too_old(&version, consent)) {
            return Err(Refusal::new(RefusalKind::Invalid, cause).remedy(remedy).into());
        }
    }
    Ok(())
}

/// Says what a person should know of a run that is only shown.
pub fn dry(plan: &Plan, as_json: bool, screen: &mut Screen) {
    consent_of(plan).iter().for_each(|line| screen.aside("note: ", line));
    before(plan, as_json, screen);
}

/// Warns of what a run does not do by itself, unless a program reads the output.
pub fn before(plan: &Plan, as_json: bool, screen: &mut Screen) {
    if as_json {
        return;
    }
    // As written: a dry run has asked nobody to agree to it.
    let configured =
        || swarm_config::as_written(Some(Path::new(&plan.root))).is_ok_and(|all| all.merge.verify.is_some());
    if let Some(warning) = unverified(plan).filter(|_| !configured()) {
        screen.warning(&warning);
        screen.aside("hint: ", "add --verify 'COMMAND', or set verify in [merge] of swarm.toml");
    }
    if plan.flags.no_merge && plan.jobs.iter().any(|job| !job.after.is_empty()) {
        screen.warning("with --no-merge, a workstream starts without the work of those that it comes after");
    } else {
        missing(plan, screen);
    }
}

/// Warns of specs that start without the work of those that they come after.
pub fn missing(plan: &Plan, screen: &mut Screen) {
    let warnings = unmerged(plan);
    warnings.iter().for_each(|warning| screen.warning(warning));
    if !warnings.is_empty() {
        screen.aside(
            "hint: ",
            "remove 'merge: false' from a spec that others come after, or plan those when its work is landed",
        );
    }
}

/// Returns a warning for each spec that comes after one that does not land: it counts as done, and the base never gets
/// its work.
fn unmerged(plan: &Plan) -> Vec<String> {
    let is_spec = |job: &&Job| matches!(job.work, Work::Spec(_));
    let stays = |id: &str| plan.jobs.iter().filter(is_spec).any(|job| job.id == id && !job.merge);
    let pairs = plan.jobs.iter().filter(is_spec).flat_map(|job| job.after.iter().map(|id| (&job.id, id)));
    let warn = |(job, id): (&String, &String)| {
        format!("workstream '{job}' starts without the work of '{id}', which does not land (merge: false)")
    };
    pairs.filter(|(_, id)| stays(id)).map(warn).collect()
}

/// Returns the warning if work would land that neither the plan nor the workstream verifies. An empty command is a choice.
fn unverified(plan: &Plan) -> Option<String> {
    let base = plan.base.as_ref().filter(|_| plan.rules.merge.verify.is_none())?;
    let lands = plan.jobs.iter().any(|job| job.merge && job.verify.is_none());
    lands.then(|| format!("nothing verifies the work before it lands on {base}"))
}

/// Returns how to land the work of a run with `--no-merge`, `None` for other runs. `run` is the state of the run: work of
/// another host has a branch here, and no worker.
pub fn review_of(plan: &Plan, run: Option<&Run>) -> Option<String> {
    if !plan.flags.no_merge {
        return None;
    }
    let progress_of = |job: &Job| run.and_then(|run| run.jobs.get(run.plan.position(&job.id)?));
    // Work that an earlier run has landed needs no review.
    let mut open = plan.jobs.iter().filter(|job| progress_of(job).is_none_or(|progress| progress.commit.is_none()));
    let (job, branch) = open.find_map(|job| Some((job, job.branch.as_ref()?)))?;
    let progress = progress_of(job);
    let host = progress.and_then(|progress| progress.host.as_ref());
    Some(match (host, &plan.base) {
        (Some(_), Some(base)) => {
            format!("review with 'git diff {base}...{branch}', land with 'swarm merge add {branch}'")
        }
        _ => {
            let name = worker_name(&plan.slug, &job.id);
            format!("review with 'swarm diff {name}', land with 'swarm merge add {name}'")
        }
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use swarm_model::MergeSettings;
    use swarm_model::run::plan::{CommandWork, Flags, Job, Rules, SpecWork};
    use swarm_model::run::progress::Progress;

    use super::*;

    #[test]
    fn work_that_lands_without_a_verification_is_warned_of() {
        let job =
            |merge: bool, verify: Option<&str>| Job { merge, verify: verify.map(str::to_owned), ..Job::default() };
        let plan = |verify: Option<&str>, job: Job| {
            let merge = MergeSettings { verify: verify.map(str::to_owned), ..MergeSettings::default() };
            let (base, rules) = (Some("main".to_owned()), Rules { merge, ..Rules::default() });
            Plan { base, rules, jobs: vec![job], ..Plan::default() }
        };
        let warning = Some("nothing verifies the work before it lands on main".to_owned());
        assert_eq!(unverified(&plan(None, job(true, None))), warning);
        for plan in [
            plan(Some("make test"), job(true, None)),
            plan(Some(""), job(true, None)),
            plan(None, job(true, Some("make test"))),
            plan(None, job(false, None)),
            Plan { base: None, ..plan(None, job(true, None)) },
        ] {
            assert_eq!(unverified(&plan), None, "{plan:?}");
        }
    }

    #[test]
    fn an_agent_that_swarm_toml_restricts_is_not_said_to_do_everything() {
        let spec = |adapter: Option<&str>| {
            let work = Work::Spec(SpecWork { adapter: adapter.map(str::to_owned), ..SpecWork::default() });
            Job { work, ..Job::default() }
        };
        let all = "agents edit files and run commands without asking, codex in its sandbox (see --consent)";
        let plan = "claude does what --permission-mode in agents.claude of swarm.toml allows";
        let arguments = ["--permission-mode", "plan"].map(str::to_owned).to_vec();
        let own = AgentConfig { arguments, ..AgentConfig::default() };
        let configured = BTreeMap::from([("claude".to_owned(), own)]);
        let none = BTreeMap::new();
        let both = [spec(None), spec(Some("codex"))];
        for (jobs, given, configured, said) in [
            (&both[..1], None, &none, Some(all.to_owned())),
            (&both[..1], None, &configured, Some(plan.to_owned())),
            (&both[..1], Some(Consent::FullAccess), &configured, Some(plan.to_owned())),
            (&both[..], None, &configured, Some(format!("{all}; {plan}"))),
            (&[spec(Some("shell"))][..], None, &none, None),
        ] {
            assert_eq!(consent(jobs, given, configured), said);
        }
    }

    #[test]
    fn a_spec_that_comes_after_one_that_does_not_land_is_warned_of() {
        let spec = |id: &str, merge: bool, after: &[&str]| Job {
            id: id.to_owned(),
            merge,
            after: after.iter().map(|id| (*id).to_owned()).collect(),
            work: Work::Spec(SpecWork::default()),
            ..Job::default()
        };
        let command = Job { work: Work::Command(CommandWork::default()), ..spec("d", true, &["a"]) };
        let jobs = vec![spec("a", false, &[]), spec("b", true, &["a"]), spec("c", false, &["b"]), command];
        let warning = "workstream 'b' starts without the work of 'a', which does not land (merge: false)";
        assert_eq!(unmerged(&Plan { jobs, ..Plan::default() }), [warning]);
    }

    #[test]
    fn only_work_that_was_not_to_land_is_named_for_review() {
        let job = Job { id: "a".to_owned(), branch: Some("arial/a".to_owned()), ..Job::default() };
        let plan = Plan { slug: "p".to_owned(), base: Some("main".to_owned()), jobs: vec![job], ..Plan::default() };
        assert_eq!(review_of(&plan, None), None);
        let plan = Plan { flags: Flags { no_merge: true, ..Flags::default() }, ..plan };
        let here = Some("review with 'swarm diff p.a', land with 'swarm merge add p.a'");
        assert_eq!(review_of(&plan, None).as_deref(), here);
        let run = |host: Option<&str>| {
            let jobs = vec![Progress { host: host.map(str::to_owned), ..Progress::default() }];
            Run { plan: Arc::new(plan.clone()), jobs, ..Run::default() }
        };
        assert_eq!(review_of(&plan, Some(&run(None))).as_deref(), here);
        let landed = Job { id: "landed".to_owned(), branch: Some("arial/landed".to_owned()), ..Job::default() };
        let both = Plan { jobs: vec![landed, plan.jobs[0].clone()], ..plan.clone() };
        let jobs = vec![Progress { commit: Some("c0ffee".to_owned()), ..Progress::default() }, Progress::default()];
        let after = Run { plan: Arc::new(both.clone()), jobs, ..Run::default() };
        assert_eq!(review_of(&both, Some(&after)).as_deref(), here, "the first one has landed");
        let there = "review with 'git diff main...arial/a', land with 'swarm merge add arial/a'";
        assert_eq!(review_of(&plan, Some(&run(Some("box")))).as_deref(), Some(there), "no worker here has it");
    }
}
