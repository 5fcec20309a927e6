//! `swarm run`: makes the plan of what is to be done, hands it to the supervisor, and
//! shows how it goes.

use std::collections::BTreeSet;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use swarm_model::run::plan::{Plan, Rules};
use swarm_model::run::progress::{Mode, Run};
use swarm_model::{Caller, MergeSettings, Refusal, RefusalKind, RunLine, RunOrder};

use super::args::BeginArgs;
use super::attach::{self, View};
use super::flags;
use super::jobs::{self, JobFile, Typed};
use super::plan::{changed, prepare, refused};
use super::show;
use crate::adapters::git;
use crate::adapters::landing::has_resolver;
use crate::adapters::runs::home::{Home, make_all};
use crate::adapters::runs::specs::{self, Spec};
use crate::adapters::runs::{config, is_under_way, journal, run_id, wire};
use crate::adapters::views::{Detail, Pick, load_where};
use crate::agents::Agent;
use crate::cli::caller;
use crate::cli::error::Failure;
use crate::cli::screen::Screen;
use crate::cli::watch::{Changes, Until, wait_any};
use crate::paths::Paths;

/// How long a run that is being stopped is waited for.
const STOP_MAX: Duration = Duration::from_secs(30);
/// How soon one that is over has left the supervisor as well.
const SOON: Duration = Duration::from_millis(50);

pub fn run(args: &BeginArgs, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    let caller = caller::collect()?.caller;
    let plan = match &args.file {
        Some(file) => of_file(args, file, &caller, paths, screen)?,
        None => of_specs(args, &caller, paths, screen)?,
    };
    plan.check_order().map_err(|cause| Failure::new(RefusalKind::Invalid, cause))?;
    if args.dry_run {
        return show::tree(plan, args.retry_failed, screen);
    }
    let home = Home::new(&plan.home);
    let made = home.make();
    made.map_err(|error| Failure::system(format!("cannot make {}", home.path().display()), &error))?;
    if let Some(warning) = crate::adapters::logind::warning() {
        screen.warning(&warning);
    }
    let from = attach::length(&home);
    let order = RunOrder::Begin { plan: Box::new(plan), retry_failed: args.retry_failed };
    let begun = send_behind_a_stop(&order, &home, paths);
    let line = begun.map_err(|failure| about_file(failure, args.file.as_deref()))?;
    if args.detach {
        screen.line(&format!("started run {} ({})", line.run, line.home))?;
        return Ok(0);
    }
    let view = View { headless: args.headless, owns: true, told: from.lines };
    attach::follow(&home, from, view, paths, screen)
}

fn invalid(cause: impl Into<String>) -> Failure {
    Failure::new(RefusalKind::Invalid, cause)
}

/// A run that is just being stopped is waited for: whoever stopped it wants it to go on.
fn send_behind_a_stop(order: &RunOrder, home: &Home, paths: &Paths) -> Result<RunLine, Failure> {
    let deadline = Instant::now() + STOP_MAX;
    let changes = Changes::new()?;
    changes.add_dir(&paths.runs())?;
    loop {
        let is_ending = || {
            let stops = |run: &Run| !matches!(run.mode, Mode::Running | Mode::Held);
            journal::replay(home).ok().flatten().is_some_and(|run| stops(&run))
        };
        match super::send(paths, order.clone()) {
            Err(Failure::Refused { refusal, .. })
                if refusal.kind == RefusalKind::Exists && is_ending() && Instant::now() < deadline =>
            {
                // Its registration goes at its end, and what was told of it just behind that.
                let soon = if is_under_way(paths, home) { STOP_MAX } else { SOON };
                wait_any(&[(changes.as_fd(), Until::Readable)], Some(deadline.min(Instant::now() + soon)))?;
                changes.take()?;
            }
            sent => return sent,
        }
    }
}

/// What is said of a run that is under way is to be typed with its file.
fn about_file(failure: Failure, file: Option<&Path>) -> Failure {
    match (failure, file) {
        (Failure::Refused { mut refusal, code }, Some(file)) if refusal.kind == RefusalKind::Exists => {
            let file = file.display();
            refusal.remedy =
                Some(format!("swarm run attach --home {file} shows it, swarm run stop --home {file} ends it"));
            Failure::Refused { refusal, code }
        }
        (failure, _) => failure,
    }
}

fn typed(args: &BeginArgs) -> Typed {
    Typed { agent: args.agent.clone(), retries: args.retries, timeout: args.timeout }
}

fn of_specs(args: &BeginArgs, caller: &Caller, paths: &Paths, screen: &mut Screen) -> Result<Plan, Failure> {
    let root = git::root(caller)?;
    let home = Home::of(&root);
    let args = &flags::with_earlier(args, &home, screen);
    let state = wire::load(&home).map_err(invalid)?;
    let Some(state) = state.filter(|state| !state.workstreams.is_empty()) else {
        let refusal = Refusal::new(RefusalKind::NotFound, format!("nothing is planned in {}", root.display()));
        return Err(refusal.remedy("swarm plan --specs DIR").into());
    };
    // Moved away or deleted since: nothing could land.
    git::site(caller, Some(&state.base_branch))?;
    let config = crate::config::load(Some(&root)).map_err(invalid)?;
    let mut planned: Vec<Spec> = Vec::with_capacity(state.workstreams.len());
    for row in &state.workstreams {
        let file = root.join(&row.spec_file);
        if !file.exists() {
            let cause = format!("the spec of '{}' is gone: {}", row.id, file.display());
            let remedy = format!("swarm plan --specs {} plans what is there", state.specs_dir);
            return Err(Refusal::new(RefusalKind::Invalid, cause).remedy(remedy).into());
        }
        let spec = specs::read_one(&file).map_err(refused)?;
        if spec.id != row.id {
            return Err(invalid(format!(
                "{}: '{}' is not the name of {}",
                home.state().display(),
                row.id,
                row.spec_file
            )));
        }
        if let Some(pid) = at_work(row, &home).filter(|_| !is_under_way(paths, &home)) {
            let cause = format!("workstream '{}' is at work in process {pid}, of another program", row.id);
            return Err(Refusal::new(RefusalKind::Running, cause).remedy("wait for its end, or end it").into());
        }
        planned.push(spec);
    }
    if let Some(folder) = planned.first().and_then(|spec| spec.path.parent()) {
        let known: BTreeSet<&str> = planned.iter().map(|spec| spec.id.as_str()).collect();
        for new in specs::names(folder).iter().filter(|name| !known.contains(name.as_str())) {
            screen.aside("note: ", &format!("spec '{new}' is not planned; swarm plan takes it up"));
        }
    }
    for id in changed(&home, &planned) {
        screen.warning(&format!("spec '{id}' changed after it was planned; it is taken as it is now"));
    }
    let jobs = planned.iter().map(|spec| jobs::job_of(spec, &root, &config.run, &typed(args)));
    let mut jobs = jobs.collect::<Result<Vec<_>, _>>().map_err(invalid)?;
    for (job, row) in jobs.iter_mut().zip(&state.workstreams) {
        // Other programs have other names for it, and it may be there already.
        if row.branch.starts_with("arial/") && git::is_branch_name(&row.branch) {
            job.branch = Some(row.branch.clone());
        }
    }
    for name in jobs.iter().filter_map(|job| agent_of(&job.work)) {
        Agent::find(name, &config.agents).map_err(invalid)?;
    }
    prepare(&root, &home)?;
    let rules = Rules {
        limit: limit(args, config.run.limit),
        groups: config.run.groups.clone(),
        fail_fast: args.fail_fast || config.run.fail_fast.unwrap_or(false),
        merge: settings(args.verify.as_ref(), &root, &home),
    };
    let id = run_id(home.path(), &state.created_at);
    Ok(Plan {
        slug: own_slug(&root, &id, &home, paths)?,
        id,
        home: home.path().to_string_lossy().into_owned(),
        root: root.to_string_lossy().into_owned(),
        base: Some(state.base_branch),
        specs: Some(specs_dir(&root, &state.specs_dir, &planned)),
        jobs,
        rules,
        flags: flags::of(args),
    })
}

/// The process that works on it, where one does in its worktree.
fn at_work(row: &wire::Workstream, home: &Home) -> Option<i32> {
    let pid = row.pid.filter(|pid| row.status == "running" && *pid > 1)?;
    let at = std::fs::read_link(format!("/proc/{pid}/cwd")).ok()?;
    let tree = home.worktrees().join(&row.id).canonicalize().ok()?;
    // A worker of ours is known where workers are.
    let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let is_ours = environment.split(|byte| *byte == 0).any(|one| one.starts_with(b"SWARM_WORKER="));
    // One without any is just ending.
    (at.starts_with(tree) && !environment.is_empty() && !is_ours).then_some(pid)
}

/// The folder of the specs, from the root: as it was typed it may be from elsewhere.
fn specs_dir(root: &Path, typed: &str, planned: &[Spec]) -> String {
    let dir = planned.first().and_then(|spec| spec.path.parent());
    let dir = dir.map(|dir| dir.strip_prefix(root).unwrap_or(dir).to_string_lossy().into_owned());
    dir.unwrap_or_else(|| typed.to_owned())
}

fn agent_of(work: &swarm_model::run::plan::Work) -> Option<&str> {
    match work {
        swarm_model::run::plan::Work::Spec(work) => Some(work.adapter.as_deref().unwrap_or(config::AGENT)),
        swarm_model::run::plan::Work::Command(_) => None,
    }
}

fn limit(args: &BeginArgs, configured: Option<usize>) -> usize {
    let typed = args.limit.and_then(|limit| usize::try_from(limit).ok());
    typed.or(configured).unwrap_or(config::LIMIT).max(1)
}

/// How what is finished lands: conflicts go to the workstream's own agent, where the
/// repository names no other resolver.
fn settings(verify: Option<&String>, root: &Path, home: &Home) -> MergeSettings {
    let ours = || {
        let program = std::env::current_exe().ok()?;
        Some(format!("{} __resolve {}", quoted(&program.to_string_lossy()), quoted(&home.path().to_string_lossy())))
    };
    let resolver = if has_resolver(root) { None } else { ours() };
    MergeSettings { verify: verify.cloned(), resolver, ..MergeSettings::default() }
}

/// As a word for `sh`.
pub fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// What workers' names begin with: the directory's name.
fn slug(root: &Path) -> String {
    let name = root.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let kept: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() || matches!(c, '-' | '_') { c } else { '-' }).collect();
    let kept = kept.trim_start_matches(['-', '_']);
    if kept.is_empty() { "run".to_owned() } else { kept.to_owned() }
}

/// The same, and the run's name where a run of another repository that is called alike
/// has workers.
fn own_slug(root: &Path, id: &str, home: &Home, paths: &Paths) -> Result<String, Failure> {
    let (plain, own) = (slug(root), format!("{}-{id}", slug(root)));
    // What it was called goes on to be called so.
    if journal::begun(home).is_ok_and(|run| run.plan.slug == own) {
        return Ok(own);
    }
    let registry = load_where(paths, Detail::Word, Pick::All)?;
    let prefix = format!("{plain}.");
    let alike = registry.workers.iter().filter(|view| view.row.name.starts_with(&prefix));
    let tags: Vec<&str> = alike.flat_map(|view| &view.row.tags).filter_map(|tag| tag.strip_prefix("run:")).collect();
    let (ours, theirs) = (tags.contains(&id), tags.iter().any(|tag| *tag != id));
    Ok(if theirs && !ours { own } else { plain })
}

fn of_file(
    args: &BeginArgs,
    file: &Path,
    caller: &Caller,
    paths: &Paths,
    screen: &mut Screen,
) -> Result<Plan, Failure> {
    let shown = file.display();
    let is_path = file.extension().is_some_and(|extension| extension == "toml") || file.to_string_lossy().contains('/');
    if !is_path {
        let refusal =
            Refusal::new(RefusalKind::NotFound, format!("'{shown}' is no file of jobs and no word of `swarm run`"));
        let remedy = "a file of jobs has .toml or a / in its name; swarm run --help has the words";
        return Err(Failure::from(refusal.remedy(remedy)).unknown_is_two());
    }
    let path = file.canonicalize().map_err(|error| Failure::system(shown.to_string(), &error))?;
    let text = std::fs::read_to_string(&path).map_err(|error| Failure::system(shown.to_string(), &error))?;
    let parsed = jobs::parse(&text).map_err(|cause| invalid(format!("{shown}, {cause}")))?;
    let (id, home) = (run_id(&path, ""), home_of_file(&path, paths));
    let args = &flags::with_earlier(args, &home, screen);
    let jobs = jobs::jobs_of(&parsed, &typed(args)).map_err(|cause| invalid(format!("{shown}: {cause}")))?;
    if jobs.is_empty() {
        return Err(Refusal::new(RefusalKind::Invalid, format!("{shown} has no job"))
            .remedy("[[job]] and below it command = \"make\" is one")
            .into());
    }
    let (root, base) = place(&parsed, &jobs, &path, caller)?;
    make_all(&paths.runs()).map_err(|error| Failure::system(paths.runs().display(), &error))?;
    let verify = args.verify.clone().or_else(|| parsed.verify.clone());
    let rules = Rules {
        limit: limit(args, parsed.limit),
        groups: parsed.groups.clone(),
        fail_fast: args.fail_fast || parsed.fail_fast.unwrap_or(false),
        merge: MergeSettings { verify, ..MergeSettings::default() },
    };
    Ok(Plan {
        home: home.path().to_string_lossy().into_owned(),
        // Files of jobs are often called alike, and so are their jobs.
        slug: format!("{}-{id}", slug(&path.with_extension(""))),
        id,
        root: root.to_string_lossy().into_owned(),
        base,
        specs: None,
        jobs,
        rules,
        flags: flags::of(args),
    })
}

/// Where the run of a file of jobs is kept.
pub fn home_of_file(path: &Path, paths: &Paths) -> Home {
    Home::new(paths.runs().join(format!("{}-{}", slug(&path.with_extension("")), run_id(path, ""))))
}

/// Where its jobs run: its own directory, or the repository that they need.
fn place(
    parsed: &JobFile,
    jobs: &[swarm_model::run::plan::Job],
    path: &Path,
    caller: &Caller,
) -> Result<(PathBuf, Option<String>), Failure> {
    let dir = path.parent().unwrap_or(Path::new("/")).to_owned();
    if jobs.iter().all(|job| job.branch.is_none()) {
        return Ok((dir, None));
    }
    let caller = Caller { cwd: dir.to_string_lossy().into_owned(), ..caller.clone() };
    let site = git::site(&caller, parsed.base.as_deref())?;
    Ok((site.root, Some(site.base)))
}
