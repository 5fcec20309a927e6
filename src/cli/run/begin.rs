//! `swarm run`: builds the plan of a run, hands it to the supervisor and shows the progress.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use swarm_model::asks::judge::Consent;
use swarm_model::run::plan::{Job, Plan, Rules, SpecWork, Work, branches_of_file};
use swarm_model::run::progress::{Mode, Run};
use swarm_model::{Caller, MergeSettings, Refusal, RefusalKind, RunLine, RunOrder, nearest};

use super::args::BeginArgs;
use super::attach::{self, View};
use super::base;
use super::flags;
use super::identity;
use super::jobs::{self, JobFile, Typed};
use super::on;
use super::own;
use super::plan::{alone, prepare, refused};
use super::queue::RunQueue;
use super::{advice, left, moved, places, renew, show, since};
use crate::cli::caller;
use crate::cli::error::Failure;
use crate::cli::screen::Screen;
use crate::cli::trust::{self, gate::Use, gate::refuse_other_rules};
use crate::cli::watch::{Changes, Until, wait_any};
use swarm_agents::consent::refusal;
use swarm_agents::{Agent, CAPABILITIES};
use swarm_config::Sections;
use swarm_config::defaults;
use swarm_config::sections::AgentConfig;
use swarm_config::trust::{SPECS, agent_files};
use swarm_store::repositories::landing::has_resolver;
use swarm_store::runs::home::{Home, make_all};
use swarm_store::runs::origin::RECORDS;
use swarm_store::runs::specs::{self, Spec};
use swarm_store::runs::{is_under_way, journal, load_repaired, order, wire};
use swarm_sys::paths::Paths;
use swarm_sys::quoting::quoted;

/// Maximum wait for the end of a run that is being stopped.
const STOP_MAX: Duration = Duration::from_secs(30);
/// Time within which the supervisor forgets a run that is over.
const SOON: Duration = Duration::from_millis(50);

pub fn run(args: &BeginArgs, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    let caller = caller::collect()?.caller;
    let (mut plan, again) = match &args.file {
        Some(file) => (of_file(args, file, &caller, paths, screen)?, None),
        None => of_specs(args, &caller, paths, screen)?,
    };
    plan.check_order().map_err(|cause| Failure::new(RefusalKind::Invalid, cause))?;
    on::check(&plan, args.retry_failed, &caller, screen)?;
    left::before(&plan, args.file.as_deref(), args.retry_failed, paths, screen)?;
    if args.dry_run {
        advice::dry(&plan, args.json, screen);
        return show::tree(plan, args.retry_failed, screen);
    }
    let home = Home::new(&plan.home);
    let made = home.make();
    made.map_err(|error| Failure::system(format!("cannot create {}", home.path().display()), &error))?;
    if let Some(warning) = swarm_sys::logind::warning() {
        screen.warning(&warning);
    }
    advice::before(&plan, args.json, screen);
    moved::forget_workers(&plan, &home, &caller, paths, screen)?;
    if args.retry_failed {
        renew::failed(&plan, &caller, paths, screen)?;
    }
    let (consent, hosts) = (advice::consent_of(&plan), on::note(&plan));
    let from = attach::length(&home);
    let mut begin = || {
        places::choose(&mut plan, args.retry_failed, &caller, paths, screen)?;
        Ok(RunOrder::Begin { plan: Box::new(plan.clone()), retry_failed: args.retry_failed })
    };
    let begun = send_behind_a_stop(&mut begin, &home, paths);
    let line = begun.map_err(|failure| about_file(failure, args.file.as_deref()))?;
    RunQueue::of(&plan, paths).warn_held(&plan, screen);
    if args.detach {
        screen.line(&format!("started run {} ({})", line.run, line.home))?;
        consent.iter().chain(&hosts).try_for_each(|line| screen.line(line))?;
        again.iter().for_each(|again| screen.aside("hint: ", again));
        return Ok(0);
    }
    consent.iter().chain(&hosts).for_each(|line| screen.aside("note: ", line));
    let retry = Some(attach::retry_command(args.file.as_deref()));
    let view = View { json: args.json, owns: true, told: from.lines, began_ms: None, retry };
    let code = attach::follow(&home, from, view, paths, screen)?;
    if let Some(review) =
        advice::review_of(&plan, journal::replay(&home).ok().flatten().as_ref()).filter(|_| !args.json)
    {
        screen.aside("hint: ", &review);
    }
    again.iter().filter(|_| !args.json).for_each(|again| screen.aside("hint: ", again));
    // Whoever changed the spec of a finished workstream asked for more than was done.
    Ok(if code == 0 && again.is_some() { 1 } else { code })
}

fn invalid(cause: impl Into<String>) -> Failure {
    Failure::new(RefusalKind::Invalid, cause)
}

/// Makes and sends the order. If the run is just being stopped, waits for its end first, because the caller wants it to
/// continue, and makes the order anew, because the end may have changed how it begins.
fn send_behind_a_stop(
    order: &mut dyn FnMut() -> Result<RunOrder, Failure>,
    home: &Home,
    paths: &Paths,
) -> Result<RunLine, Failure> {
    let deadline = Instant::now() + STOP_MAX;
    let changes = Changes::new()?;
    changes.add_dir(&paths.runs())?;
    loop {
        let is_ending = || {
            let stops = |run: &Run| !matches!(run.mode, Mode::Running | Mode::Held);
            journal::replay(home).ok().flatten().is_some_and(|run| stops(&run))
        };
        match super::send(paths, order()?) {
            Err(Failure::Refused { refusal, .. })
                if refusal.kind == RefusalKind::Exists && is_ending() && Instant::now() < deadline =>
            {
                // A run is unregistered at its end, and its last events are written shortly afterwards.
                let soon = if is_under_way(paths, home) { STOP_MAX } else { SOON };
                wait_any(&[(changes.as_fd(), Until::Readable)], Some(deadline.min(Instant::now() + soon)))?;
                changes.take()?;
            }
            sent => return sent,
        }
    }
}

/// Waits until a run that is being stopped is over; returns false if it is not within the limit.
pub fn is_over_soon(home: &Home, paths: &Paths) -> Result<bool, Failure> {
    let deadline = Instant::now() + STOP_MAX;
    let changes = Changes::new()?;
    changes.add_dir(&paths.runs())?;
    while is_under_way(paths, home) {
        if deadline <= Instant::now() {
            return Ok(false);
        }
        wait_any(&[(changes.as_fd(), Until::Readable)], Some(deadline))?;
        changes.take()?;
    }
    Ok(true)
}

/// Adds the job file to the hint about a run that is already in progress.
fn about_file(failure: Failure, file: Option<&Path>) -> Failure {
    match (failure, file) {
        (Failure::Refused { mut refusal, code }, Some(file)) if refusal.kind == RefusalKind::Exists => {
            let file = file.display();
            refusal.remedy =
                Some(format!("run 'swarm run attach --home {file}' to follow it, or 'swarm run stop --home {file}'"));
            Failure::Refused { refusal, code }
        }
        (failure, _) => failure,
    }
}

fn typed(args: &BeginArgs) -> Typed {
    Typed { agent: args.agent.clone(), retries: args.retries, timeout: args.timeout }
}

/// Returns the plan, and what a person does to execute specs that changed after their workstreams were done.
fn of_specs(
    args: &BeginArgs,
    caller: &Caller,
    paths: &Paths,
    screen: &mut Screen,
) -> Result<(Plan, Option<String>), Failure> {
    let root = swarm_store::repositories::root(caller)?;
    let home = Home::of(&root);
    own::refuse_tracked_link(&root, caller)?;
    own::refuse_brought_along(&home, &RECORDS, caller, paths)?;
    let args = &flags::with_earlier(args, &home, screen);
    let state = planned_state(&home, paths, screen)?;
    let Some(state) = state.filter(|state| !state.workstreams.is_empty()) else {
        let refusal = Refusal::new(RefusalKind::NotFound, format!("no plan in {}", root.display()));
        return Err(refusal.remedy("run 'swarm plan --specs DIR' first").into());
    };
    // Fails if the base branch was renamed or deleted since: nothing could land.
    swarm_store::repositories::site(caller, Some(&state.base_branch))?;
    let mut planned: Vec<Spec> = Vec::with_capacity(state.workstreams.len());
    for row in &state.workstreams {
        let file = root.join(&row.spec_file);
        if !file.exists() {
            let cause = format!("workstream '{}': spec not found: {}", row.id, file.display());
            let remedy = format!("run 'swarm plan --specs {}' to plan again", state.specs_dir);
            return Err(Refusal::new(RefusalKind::Invalid, cause).remedy(remedy).into());
        }
        let spec = specs::read_one(&file).map_err(refused)?;
        if spec.id != row.id {
            return Err(invalid(format!(
                "{}: workstream '{}' does not match its spec file {}",
                home.state().display(),
                row.id,
                row.spec_file
            )));
        }
        if let Some(pid) = own::at_work(row, &home).filter(|_| !is_under_way(paths, &home)) {
            let cause = format!("workstream '{}' is in use by process {pid} of another program", row.id);
            let remedy = "wait until that process ends, or end it";
            return Err(Refusal::new(RefusalKind::Running, cause).remedy(remedy).into());
        }
        planned.push(spec);
    }
    since::note_unplanned(&planned, screen);
    let again = since::warn_changed(&state, &planned, &home, args.retry_failed, caller, screen);
    let config = trusted(args, &state, &planned, &root, screen)?;
    let jobs = planned.iter().map(|spec| jobs::job_of(spec, &root, &config.run, &typed(args)));
    let mut jobs = jobs.collect::<Result<Vec<_>, _>>().map_err(invalid)?;
    for (job, row) in jobs.iter_mut().zip(&state.workstreams) {
        // The original program names branches differently, and its branch may exist already.
        if row.branch.starts_with("arial/") && swarm_store::repositories::is_branch_name(&row.branch) {
            job.branch = Some(row.branch.clone());
        }
    }
    if args.no_merge {
        jobs.iter_mut().for_each(|job| job.merge = false);
    }
    let consent = args.consent.or(config.run.consent);
    check_agents(&planned, &jobs, &config.agents, consent, screen)?;
    advice::check_versions(&jobs, &config.agents, consent, paths)?;
    prepare(&root, &home)?;
    let limit = limit(args, config.run.limit);
    let rules = Rules {
        limit,
        groups: config.run.groups.clone(),
        fail_fast: args.fail_fast || config.run.fail_fast.unwrap_or(false),
        merge: settings(args.verify.as_ref(), &root, &home),
        consent,
        asks: swarm_config::repository_approvals(&root).map_err(|cause| Failure::new(RefusalKind::Invalid, cause))?,
        lost_ms: on::lost_ms(args.lost.as_ref(), config.run.lost.as_ref())?,
        ..on::placed(&args.on, limit)?
    };
    let begun = trust::specs::earlier(&home);
    if let Some(begun) = &begun {
        refuse_used_names(&home, begun, &jobs)?;
    }
    let id = identity::of_specs(&home, begun.as_deref(), &state.created_at);
    let plan = Plan {
        slug: identity::own_slug(&root, &id, &home, paths)?,
        id,
        home: home.path().to_string_lossy().into_owned(),
        root: root.to_string_lossy().into_owned(),
        base: Some(state.base_branch),
        specs: Some(specs_dir(&root, &state.specs_dir, &planned)),
        jobs,
        rules,
        flags: flags::of(args),
    };
    Ok((plan, again))
}

/// Refuses a new workstream with the name of one that was in a plan before `begun`, the latest plan of this run: the attempts and queue items of
/// both would have the same keys, so that the earlier work would be taken for that of the new one.
fn refuse_used_names(home: &Home, begun: &Plan, jobs: &[Job]) -> Result<(), Failure> {
    let is_used = |job: &&Job| {
        begun.jobs.iter().all(|known| known.id != job.id) && home.attempt(&job.id, 1).join(order::ORDER).exists()
    };
    match jobs.iter().find(is_used) {
        Some(job) => {
            let cause = format!("workstream '{}' is new, but this run had another one of that name", job.id);
            let remedy = "rename its spec, then run 'swarm plan' again";
            Err(Refusal::new(RefusalKind::Exists, cause).remedy(remedy).into())
        }
        None => Ok(()),
    }
}

/// Returns the planned state. A damaged file is repaired first, unless a run is in progress.
fn planned_state(home: &Home, paths: &Paths, screen: &mut Screen) -> Result<Option<wire::ArialState>, Failure> {
    match wire::load(home) {
        Ok(state) => Ok(state),
        Err(wire::StateFault::Unusable(cause)) => Err(invalid(cause)),
        Err(wire::StateFault::Damaged(_)) => {
            let _lock = alone(home, paths)?;
            let (state, note) = load_repaired(home).map_err(invalid)?;
            note.iter().for_each(|note| screen.warning(note));
            Ok(state)
        }
    }
}

/// Returns the configuration, after a person agreed to everything that the run executes from the repository's files:
/// hooks, rules and agents of `swarm.toml`, commands in specs, and what the agents load. A dry run executes nothing.
fn trusted(
    args: &BeginArgs,
    state: &wire::ArialState,
    planned: &[Spec],
    root: &Path,
    screen: &mut Screen,
) -> Result<Sections, Failure> {
    let config = swarm_config::as_written(Some(root)).map_err(invalid)?;
    if args.dry_run {
        return Ok(config);
    }
    let (mut sections, mut more) = (vec!["agents", "merge", "run", "trash", "worktree"], Vec::new());
    let earlier = trust::specs::earlier(&Home::of(root));
    for (spec, _) in planned.iter().zip(&state.workstreams).filter(|(_, row)| row.status != "done") {
        more.extend(trust::specs::entries(spec, root, &config, args.agent.as_deref(), earlier.as_deref()));
        let own = spec.front.adapter.as_deref().or(args.agent.as_deref()).or(config.run.agent.as_deref());
        sections.extend(trust::specs::sections_of(own.unwrap_or(defaults::AGENT), &config.agents));
    }
    sections.sort_unstable();
    sections.dedup();
    more.extend(agent_files(root, &sections).map_err(invalid)?);
    sections.push(SPECS);
    let mut overridden = if args.verify.is_some() { vec!["merge.verify"] } else { Vec::new() };
    overridden.extend(args.consent.map(|_| "run.consent"));
    refuse_other_rules(root, &overridden)?;
    Use { more, overridden, ..Use::new(Some(root), &sections) }.require(screen)?;
    swarm_config::load(Some(root)).map_err(invalid)
}

/// Checks the agents of all jobs. A spec that names an invalid agent fails by itself, and does not hold up the others.
///
/// # Errors
/// Returns the last problem if no job has an agent, or if the agent of the command line or the configuration is invalid;
/// prints the others.
fn check_agents(
    specs: &[Spec],
    jobs: &[Job],
    configured: &BTreeMap<String, AgentConfig>,
    consent: Option<Consent>,
    screen: &mut Screen,
) -> Result<(), Failure> {
    let mut refusals = agent_refusals(specs, jobs, configured, consent);
    let own = refusals.iter().filter(|(is_own, _)| *is_own).count();
    if own == refusals.len() && own < specs.len() {
        refusals.iter().for_each(|(_, refusal)| screen.refusal(refusal));
        return Ok(());
    }
    let Some((_, last)) = refusals.pop() else { return Ok(()) };
    refusals.iter().for_each(|(_, refusal)| screen.refusal(refusal));
    Err(last.into())
}

/// Returns a refusal for each invalid agent, and whether a spec names it. Such a spec is reported with its file; an agent
/// of the command line or the configuration is reported once.
pub fn agent_refusals(
    specs: &[Spec],
    jobs: &[Job],
    configured: &BTreeMap<String, AgentConfig>,
    consent: Option<Consent>,
) -> Vec<(bool, Refusal)> {
    let mut refusals: Vec<(bool, Refusal)> = Vec::new();
    for (spec, Job { work, .. }) in specs.iter().zip(jobs) {
        let Work::Spec(work) = work else { continue };
        refusals.extend(unknown_capabilities(work, configured).into_iter().map(|refusal| (true, refusal)));
        let name = work.adapter.as_deref().unwrap_or(defaults::AGENT);
        let (found, is_own) = (Agent::find(name, configured), spec.front.adapter.is_some());
        let refused = found.as_ref().ok().and_then(|agent| refusal(agent, consent));
        if let Some((cause, remedy)) = refused {
            let cause = if is_own { format!("{}: {cause}", work.file) } else { cause };
            if refusals.iter().all(|(_, earlier)| earlier.cause != cause) {
                refusals.push((is_own, Refusal::new(RefusalKind::Invalid, cause).remedy(remedy)));
            }
        }
        let Err(cause) = found else { continue };
        let cause = if is_own { format!("{}: {cause}", work.file) } else { cause };
        if refusals.iter().any(|(_, earlier)| earlier.cause == cause) {
            continue;
        }
        let known = swarm_agents::BUILT_IN.into_iter().chain(configured.keys().map(String::as_str));
        let near = nearest(name, known).filter(|near| *near != name);
        let remedy = near.map(|near| format!("did you mean '{near}'?"));
        refusals.push((is_own, Refusal { remedy, ..Refusal::new(RefusalKind::Invalid, cause) }));
    }
    refusals
}

/// Returns a refusal for each required capability that neither a built-in nor a configured agent has by name.
fn unknown_capabilities(work: &SpecWork, configured: &BTreeMap<String, AgentConfig>) -> Vec<Refusal> {
    let own = configured.values().filter_map(|agent| agent.capabilities.as_ref()).flatten().map(String::as_str);
    let known: BTreeSet<&str> = CAPABILITIES.into_iter().chain(own).collect();
    let refusal = |one: &String| {
        let cause = format!("{}: unknown capability '{one}'", work.file);
        let remedy = match nearest(one, known.iter().copied()) {
            Some(near) => format!("did you mean '{near}'?"),
            None => format!("use one of {}", known.iter().copied().collect::<Vec<_>>().join(", ")),
        };
        Refusal::new(RefusalKind::Invalid, cause).remedy(remedy)
    };
    work.capabilities.iter().filter(|one| !known.contains(one.as_str())).map(refusal).collect()
}

/// Returns the directory of the specs relative to the root. The typed path may be relative to another directory.
fn specs_dir(root: &Path, typed: &str, planned: &[Spec]) -> String {
    let dir = planned.first().and_then(|spec| spec.path.parent());
    let dir = dir.map(|dir| dir.strip_prefix(root).unwrap_or(dir).to_string_lossy().into_owned());
    dir.unwrap_or_else(|| typed.to_owned())
}

fn limit(args: &BeginArgs, configured: Option<usize>) -> usize {
    let typed = args.limit.and_then(|limit| usize::try_from(limit).ok());
    typed.or(configured).unwrap_or(defaults::RUN_LIMIT).max(1)
}

/// Returns the merge settings of the run. Conflicts go to the workstream's own agent unless the repository configures a
/// resolver.
fn settings(verify: Option<&String>, root: &Path, home: &Home) -> MergeSettings {
    let ours = || {
        let program = std::env::current_exe().ok()?;
        Some(format!("{} __resolve {}", quoted(&program.to_string_lossy()), quoted(&home.path().to_string_lossy())))
    };
    let resolver = if has_resolver(root) { None } else { ours() };
    MergeSettings { verify: verify.cloned(), resolver, ..MergeSettings::default() }
}

/// Returns the real path of a file of jobs, and its content.
fn read(file: &Path) -> Result<(PathBuf, JobFile), Failure> {
    let shown = file.display();
    let is_path = file.extension().is_some_and(|extension| extension == "toml") || file.to_string_lossy().contains('/');
    if !is_path {
        let refusal =
            Refusal::new(RefusalKind::NotFound, format!("'{shown}' is not a job file or subcommand of 'swarm run'"));
        let remedy = "name a job file as FILE.toml or ./FILE, or run 'swarm run --help' to list subcommands";
        return Err(Failure::from(refusal.remedy(remedy)).unknown_is_two());
    }
    let unreadable = |error: std::io::Error| Failure::system(format!("cannot read '{shown}'"), &error);
    let path = file.canonicalize().map_err(unreadable)?;
    let text = std::fs::read_to_string(&path).map_err(unreadable)?;
    let parsed = jobs::parse(&text).map_err(|cause| invalid(format!("{shown}{cause}")))?;
    Ok((path, parsed))
}

fn of_file(
    args: &BeginArgs,
    file: &Path,
    caller: &Caller,
    paths: &Paths,
    screen: &mut Screen,
) -> Result<Plan, Failure> {
    let shown = file.display();
    let (path, parsed) = read(file)?;
    let home = identity::home_of_file(&path, paths);
    let id = identity::of_file(&home);
    let args = &flags::with_earlier(args, &home, screen);
    // With the id, because job files and jobs often have the same names.
    let slug = format!("{}-{id}", identity::slug(&path.with_extension("")));
    let mut jobs = jobs::jobs_of(&parsed, &branches_of_file(&slug), &typed(args))
        .map_err(|cause| invalid(format!("{shown}: {cause}")))?;
    if args.no_merge {
        jobs.iter_mut().for_each(|job| job.merge = false);
    }
    if jobs.is_empty() {
        return Err(Refusal::new(RefusalKind::Invalid, format!("'{shown}' defines no jobs"))
            .remedy("add a [[job]] table with a command")
            .into());
    }
    let question = base::Question {
        shown: shown.to_string(),
        path: &path,
        parsed: &parsed,
        jobs: &jobs,
        flags: flags::of(args),
        retry_failed: args.retry_failed,
        home: &home,
    };
    let (root, base) = question.answer(caller, screen)?;
    let limit = limit(args, parsed.limit);
    let placed = on::placed(&args.on, limit)?;
    on::check_directories(&jobs, &placed)?;
    let dir = path.parent().unwrap_or(Path::new("/"));
    if root != dir {
        jobs::run_in(&mut jobs, dir);
    }
    let verify = args.verify.clone().or_else(|| parsed.verify.clone());
    if base.is_some() && !args.dry_run {
        refuse_other_rules(&root, jobs::rules_of(verify.as_deref(), &jobs))?;
        // Only the rules of worktrees and landing come from `swarm.toml`; the file of jobs was named by a person.
        Use::new(Some(&root), &["merge", "worktree"]).require(screen)?;
    }
    make_all(&paths.runs())
        .map_err(|error| Failure::system(format!("cannot create {}", paths.runs().display()), &error))?;
    let rules = Rules {
        limit,
        groups: parsed.groups.clone(),
        fail_fast: args.fail_fast || parsed.fail_fast.unwrap_or(false),
        merge: MergeSettings { verify, ..MergeSettings::default() },
        // A person wrote the commands.
        consent: None,
        asks: Vec::new(),
        ..placed
    };
    Ok(Plan {
        home: home.path().to_string_lossy().into_owned(),
        slug,
        id,
        root: root.to_string_lossy().into_owned(),
        base,
        specs: None,
        jobs,
        rules,
        flags: flags::of(args),
    })
}
