//! Prepares the request that starts the worker of an attempt, and determines its outcome.

use std::io;
use std::path::{Path, PathBuf};

use swarm_actors::run::machine::is_last;
use swarm_actors::worker::LOG_LIMIT_BYTES;
use swarm_model::asks::judge::Consent;
use swarm_model::run::plan::{CommandWork, Job, Plan, SpecWork, Work, branches_of_file};
use swarm_model::run::progress::{Now, Spent};
use swarm_model::run::words::Word;
use swarm_model::run::{FaultKind, Outcome};
use swarm_model::run::{request_of, request_prefix};
use swarm_model::{Caller, Contract, Ended, ExitRecord, Reason, SessionRules, SpawnRequest, WorktreeRequest};

use super::home::{self, Home, make_all};
use super::joblog;
use super::order::{self, AttemptResult, Order, PROMPT};
use super::prompt::{self, Template, fill};
use super::seal::{Sealed, Seals};
use swarm_config::defaults;

use super::asking::{self, Attempt};
use super::batch;
use super::behind::{self, Behind};
use super::earlier::{conversation, is_in_new_place};
use super::ends::{errors_of, first, killed, tail, unknown_end};
use super::queued::has_landed;
use super::{events, rejection, specs};
use crate::asks::Asks;
use swarm_agents::{Agent, Kind, consent, end_words, shell_script};
use swarm_config::Sections;
use swarm_config::trust::{
    Entry, Project, SPECS, Status, agent_places, compare, loads_as_agreed, loads_nothing, recorded, user_book,
};
use swarm_sys::clock::{random_uuid, wall_ms};
use swarm_sys::files::replace_durably;
use swarm_sys::paths::Paths;

/// Returns the outcome for an internal failure: another attempt may succeed.
pub fn broken(cause: &str) -> Outcome {
    Outcome::Failure { cause: cause.to_owned(), evidence: None, fault: FaultKind::Passing }
}

/// Returns the outcome for a job that cannot be executed as specified: another attempt would fail as well.
fn lasting(cause: impl Into<String>) -> Outcome {
    Outcome::Failure { cause: cause.into(), evidence: None, fault: FaultKind::Lasting }
}

/// Returns the request that starts the worker of an attempt. Writes the order of the attempt first, unless that was done
/// before a crash.
///
/// # Errors
/// Returns the outcome of the attempt if it cannot start, and ends the requests of the workstream to which nobody waits for
/// an answer any more.
pub fn prepare(now: &Now, caller: &Caller, executable: &Path, paths: &Paths) -> Result<SpawnRequest, Outcome> {
    prepared(now, caller, executable, paths).map_err(|outcome| settled(now, outcome, true, paths))
}

fn prepared(now: &Now, caller: &Caller, executable: &Path, paths: &Paths) -> Result<SpawnRequest, Outcome> {
    let (plan, asked, attempt) = (&*now.plan, now.job(), now.progress.attempt);
    let request = request_of(&plan.id, &asked.id, attempt);
    let mut contract = contract(plan, asked, caller);
    match &asked.work {
        Work::Command(work) => {
            if now.progress.host.is_some() {
                // Here, the start of the worker refuses such a branch.
                check_begun(now, caller)?;
            }
            behind::renewed(now, caller, paths);
            command(plan, work, &mut contract);
        }
        Work::Spec(work) => {
            let home = Home::new(&plan.home);
            // Work that has landed since the run began may have brought a link. Plain commands land nothing.
            home.check_links().map_err(|error| lasting(error.to_string()))?;
            let dir = home.attempt(&asked.id, attempt);
            let seals = Seals::of(&super::place(paths, &plan.home));
            let sealed = seals.compare(&asked.id, attempt, &dir);
            match sealed.map_err(|error| broken(&format!("cannot read the seal of the attempt's order: {error}")))? {
                // A crash interrupted the start of this attempt, and its worker may be running on its branch.
                Sealed::Intact => {}
                Sealed::Unknown if is_ordered(plan, &dir) => {}
                Sealed::Changed => order_attempt(now, work, (&dir, &seals), None, paths)?,
                Sealed::No | Sealed::Unknown => {
                    check_branch(now, caller)?;
                    let behind = behind::renewed(now, caller, paths);
                    order_attempt(now, work, (&dir, &seals), behind.as_ref(), paths)?;
                }
            }
            let executable = batch::program(plan, asked, caller, executable);
            contract.argv = vec![executable, order::VERB.to_owned(), dir.to_string_lossy().into_owned()];
        }
    }
    batch::submit(plan, asked, &mut contract);
    Ok(SpawnRequest {
        caller: Caller { request, cwd: plan.root.clone(), ..caller.clone() },
        name: now.worker(),
        contract,
        worktree: asked.branch.clone().map(|branch| worktree(now, branch)),
        replaces: Some(request_prefix(&plan.id, &asked.id)),
        takes_over: None,
    })
}

fn contract(plan: &Plan, job: &Job, caller: &Caller) -> Contract {
    Contract {
        cwd: plan.root.clone(),
        environment: caller.environment.clone(),
        tags: vec![format!("run:{}", plan.id)],
        umask: caller.umask,
        rlimits: caller.rlimits.clone(),
        nice: caller.nice,
        attributes: caller.attributes.clone(),
        timeout_ms: job.timeout_ms,
        log_limit_bytes: LOG_LIMIT_BYTES,
        session: session(job),
        ..Contract::default()
    }
}

/// Returns the session settings: a description of the work, and its agent.
fn session(job: &Job) -> SessionRules {
    match &job.work {
        Work::Spec(work) => SessionRules {
            prompt: Some(format!("{} ({})", work.title, work.file)),
            provider: work.adapter.clone().or_else(|| Some(defaults::AGENT.to_owned())),
            ..SessionRules::default()
        },
        Work::Command(_) => SessionRules::default(),
    }
}

fn command(plan: &Plan, work: &CommandWork, contract: &mut Contract) {
    contract.argv.clone_from(&work.argv);
    contract.env.clone_from(&work.env);
    if let Some(cwd) = &work.cwd {
        contract.cwd = Path::new(&plan.root).join(cwd).to_string_lossy().into_owned();
    }
}

fn worktree(now: &Now, branch: String) -> WorktreeRequest {
    let (plan, job) = (&*now.plan, now.job());
    let is_begun = now.progress.begun.as_ref().is_some_and(|begun| begun.branch == branch);
    let is_of_file = branch.starts_with(&branches_of_file(&plan.slug));
    let dir = Home::new(&plan.home).worktrees().to_string_lossy().into_owned();
    WorktreeRequest {
        cwd: plan.root.clone(),
        branch: Some(branch),
        dir: Some(dir),
        // In full, so that nothing else of that name is meant if the branch is gone.
        base: plan.base.as_ref().map(|base| format!("refs/heads/{base}")),
        leaf: Some(job.leaf().to_owned()),
        // A job that starts over is given a branch that does not exist, and takes over none that appeared since. The branch
        // of a spec is checked before; older programs gave jobs the branches of their earlier runs.
        resume: is_begun || !is_of_file,
        ..WorktreeRequest::default()
    }
}

/// Checks that the branch of the job was created by an attempt of this run. Work on another branch of that name is
/// somebody else's and must not land. Work that conflicted, and that a person has merged since, needs no attempt.
fn check_branch(now: &Now, caller: &Caller) -> Result<(), Outcome> {
    let (Some(branch), Some(base)) = (&now.job().branch, &now.plan.base) else { return Ok(()) };
    if has_landed(now, caller) {
        return Err(Outcome::Success { summary: Some(format!("{branch} is on {base} already")) });
    }
    check_begun(now, caller)
}

/// Checks that nobody else has work on the branch of the job.
fn check_begun(now: &Now, caller: &Caller) -> Result<(), Outcome> {
    let (Some(branch), Some(base)) = (&now.job().branch, &now.plan.base) else { return Ok(()) };
    if now.has_begun() {
        return Ok(());
    }
    let root = Path::new(&now.plan.root);
    let tip = swarm_git::repository::branch_tip(root, branch, caller).map_err(|cause| broken(&cause))?;
    if tip.is_none_or(|tip| swarm_git::repository::contains(root, base, &tip, caller)) {
        return Ok(());
    }
    Err(lasting(format!(
        "branch '{branch}' exists and has work that this workstream did not begin (run 'swarm plan' to use another \
         branch, or rename it with 'git branch -m')"
    )))
}

/// Reports whether the order of an attempt exists already, of a run that an older version began.
fn is_ordered(plan: &Plan, dir: &Path) -> bool {
    dir.join(PROMPT).exists() && order::read_order(dir).is_ok_and(|order| order.run == plan.id)
}

/// Writes the order of an attempt: finds the agent, checks its capabilities, reads the spec, and writes the prompt. The
/// worktree is created later with the worker, so that none is created if this fails.
fn order_attempt(
    now: &Now,
    work: &SpecWork,
    (dir, seals): (&Path, &Seals),
    behind: Option<&Behind>,
    paths: &Paths,
) -> Result<(), Outcome> {
    let (plan, asked, attempt) = (&*now.plan, now.job(), now.progress.attempt);
    let root = Path::new(&plan.root);
    let config = swarm_config::load(Some(root)).map_err(lasting)?;
    config.unasked.require(&["agents"]).map_err(|untrusted| lasting(untrusted.to_string()))?;
    let times = config.approvals.times().map_err(|(key, cause)| lasting(format!("{key}: {cause}")))?;
    let hold_ms = times.hold.and_then(|hold| u64::try_from(hold.as_millis()).ok());
    let name = work.adapter.as_deref().unwrap_or(defaults::AGENT);
    let mut agent = Agent::find(name, &config.agents).map_err(lasting)?;
    let missing = agent.missing(&work.capabilities);
    if !missing.is_empty() {
        return Err(lasting(format!("agent '{name}' lacks required capabilities: {}", missing.join(", "))));
    }
    if let Some((cause, remedy)) = consent::refusal(&agent, plan.rules.consent) {
        return Err(lasting(format!("{cause} ({remedy})")));
    }
    consent::narrow(&mut agent, &work.capabilities);
    let spec = specs::read_one(&root.join(&work.file)).map_err(|(cause, _)| lasting(cause))?;
    let home = Home::new(&plan.home);
    // Runs started by older programs have no digest.
    if !work.digest.is_empty() && spec.digest != work.digest {
        let word = Word::SpecChanged { attempt, file: work.file.clone() };
        let told =
            events::line(&plan.id, &asked.id, wall_ms(), word).and_then(|line| events::report(&home.events(), &line));
        if let Err(error) = told {
            tracing::warn!(home = %plan.home, %error, "cannot report that a spec changed");
        }
    }
    let text = prompt_text(now, &agent, &spec.body, &config, behind, paths)?;
    if !agent.converses() {
        check_script(root, work, &spec.digest, &text)?;
    }
    let goes_on = agent.resumes() && !is_in_new_place(now);
    let earlier = if goes_on { conversation(&home, &asked.id, (attempt, &spec.digest), &agent) } else { None };
    let (session, deferred) = earlier.map_or((None, None), |(session, deferred)| (Some(session), deferred));
    let written = || -> io::Result<()> {
        make_all(dir)?;
        let order = serde_json::to_vec_pretty(&Order {
            run: plan.id.clone(),
            job: asked.id.clone(),
            attempt,
            spec: Some(spec.digest.clone()),
            root: Some(root.to_owned()),
            consent: plan.rules.consent,
            rules: plan.rules.asks.clone(),
            session,
            deferred,
            agent,
            events: home.events(),
            log: home.log(&asked.id),
            context: home.context(&asked.id),
            fresh_id: random_uuid(),
            hold_ms,
        })?;
        seals.record(&asked.id, attempt, &order)?;
        replace_durably(dir, PROMPT, text.as_bytes())?;
        order::write_order(dir, &order)
    };
    written().map_err(|error| broken(&format!("cannot write the order of the attempt: {error}")))
}

/// Keeps an agent from loading files of `dir`, a worktree of the project of `root`, to which nobody agreed: an earlier
/// attempt, or work that landed, may have written them. A file that cannot be read is not loaded either.
///
/// # Errors
/// Fails if such a file exists and the agent cannot be kept from loading it.
pub fn hold_back(agent: &mut Agent, root: &Path, dir: &Path) -> Result<(), String> {
    consent::set_own_settings_only(agent);
    let Some(section) = consent::loads(agent) else { return Ok(()) };
    let kind = consent::loader(agent);
    // codex takes a directory in which it may write for trusted from then on, and records that for its user, unless it is
    // told otherwise. Only a directory with agreed files is left to codex: it may load more kinds of files than are listed.
    let trusts_itself = kind == Kind::Codex && loads_nothing(root, dir, section).unwrap_or(false);
    if !trusts_itself && loads_as_agreed(root, dir, section).unwrap_or(false) {
        return Ok(());
    }
    match consent::own_settings_only(kind, dir) {
        Some(words) => consent::add_arguments(agent, words),
        None => {
            let names: Vec<&str> = agent_places(section).collect();
            let (name, names) = (&agent.name, names.join(", "));
            // What goes to another machine is agreed to on none.
            let is_far = Paths::from_env().is_ok_and(|paths| root.starts_with(paths.root().join("far")));
            return Err(match is_far {
                true => format!(
                    "{name} would load files in the worktree, which counts on no other host ({names}): remove them, or run it \
                     without --on"
                ),
                false => format!(
                    "{name} would load files in the worktree that are not those that were trusted ({names}): run 'swarm trust'"
                ),
            });
        }
    }
    Ok(())
}

/// Hides the files that an agent writes for itself into its worktree from git, so that they are no work of it.
pub fn hide_own_files(agent: &Agent, root: &Path) {
    let names = agent.kind.own_files();
    if names.is_empty() {
        return;
    }
    if let Err(error) = swarm_git::repository::exclude_at_root(root, names) {
        swarm_sys::complain!("swarm: warning: cannot hide the agent's own files from git: {error}");
    }
}

/// Restricts an agent in `dir`, a worktree of the repository of `root`, to what it may do without asking. `hook` is the
/// command that decides about its uses of tools, if it needs one.
pub fn restrict(agent: &mut Agent, asked: Option<Consent>, root: Option<&Path>, dir: &Path, hook: &str) {
    let roots = root.map(|root| git_dirs(root, dir)).unwrap_or_default();
    let roots: Vec<&str> = roots.iter().filter_map(|root| root.to_str()).collect();
    consent::restrict(agent, asked, &roots, hook);
}

/// Directories of a repository in which git writes when it works in a worktree, and the data of git-lfs. Its configuration and
/// its hooks are in none of them: git executes what they name, also when swarm looks at the worktree. Recorded resolutions
/// (`rr-cache`) are in none either: git uses them unasked, and writes through links there. Without them, a merge goes on.
const GIT_DATA: [&str; 5] = ["objects", "refs", "logs", "reftable", "lfs"];

/// Returns the directories in which git writes when it works in the worktree `dir`: its own, and those with data of the
/// repository of `root`. All of the repository's if `dir` is its main checkout, whose index is there. An agent may have
/// written another path into the worktree's `.git`, so only one below that of the repository counts.
fn git_dirs(root: &Path, dir: &Path) -> Vec<PathBuf> {
    let Ok(common) = Project::of(root).map(|project| PathBuf::from(project.key)) else { return Vec::new() };
    let link = std::fs::read_to_string(dir.join(".git")).unwrap_or_default();
    let own = link.strip_prefix("gitdir: ").and_then(|own| dir.join(own.trim_end()).canonicalize().ok());
    let own = own.filter(|own| own.starts_with(&common));
    if dir.join(".git").canonicalize().is_ok_and(|git| git == common) {
        return vec![common];
    }
    let data = GIT_DATA.iter().map(|name| common.join(name)).filter(|data| data.is_dir());
    own.into_iter().chain(data).collect()
}

/// Refuses a shell script other than the one with which the run began, or to which a person agreed: work that landed may
/// have changed the spec. Whoever begins a run agrees to its scripts, or types `--agent shell`.
fn check_script(root: &Path, work: &SpecWork, digest: &str, script: &str) -> Result<(), Outcome> {
    if work.digest == digest {
        return Ok(());
    }
    let agreed = user_book().map(|book| recorded(&book, root)).transpose().map_err(|cause| broken(&cause))?;
    let entry = Entry::of_text(SPECS, &work.file, "sh", script);
    match compare(agreed.flatten().as_ref(), &[SPECS], &[entry]).first() {
        Some((Status::New | Status::Changed, _)) => {
            let (remedy, file) = ("run 'swarm trust', then 'swarm run --retry-failed'", &work.file);
            Err(lasting(format!("the commands in {file} changed and are not trusted ({remedy})")))
        }
        _ => Ok(()),
    }
}

fn prompt_text(
    now: &Now,
    agent: &Agent,
    body: &str,
    config: &Sections,
    behind: Option<&Behind>,
    paths: &Paths,
) -> Result<String, Outcome> {
    if !agent.converses() {
        return shell_script(body).map_err(lasting);
    }
    let (plan, asked, progress) = (&*now.plan, now.job(), &now.progress);
    let folders = prompt::folders(Path::new(&plan.root), &Home::new(&plan.home), config);
    let load = |template: Template| template.load(&folders).map_err(|error| lasting(error.to_string()));
    let specs = plan.specs.as_deref().unwrap_or_default();
    let context = prompt::context(&Path::new(&plan.root).join(specs)).map_err(|error| lasting(error.to_string()))?;
    let title = if let Work::Spec(work) = &asked.work { work.title.as_str() } else { "" };
    let attempt = progress.attempt.to_string();
    let values = [
        ("spec", body.trim()),
        ("context", context.as_str()),
        ("title", title),
        ("id", asked.id.as_str()),
        ("branch", asked.branch.as_deref().unwrap_or_default()),
        ("base", plan.base.as_deref().unwrap_or_default()),
        ("attempt", attempt.as_str()),
        ("questions", prompt::questions(agent, plan.rules.consent)),
    ];
    let execution = fill(&load(Template::Execution)?, &values);
    if progress.attempt <= 1 || (progress.evidence.is_none() && is_in_new_place(now)) {
        return Ok(execution);
    }
    let template = match (&progress.evidence, &progress.given_up) {
        (Some(_), _) => Template::Retry,
        // That attempt was not interrupted here.
        (None, Some(note)) => return Ok(format!("{}\n\n{note}\n", execution.trim_end())),
        (None, None) => Template::Continue,
    };
    let mut values = values.to_vec();
    let worktree = Home::new(&plan.home).worktrees().join(asked.leaf());
    let evidence = progress.evidence.as_deref().map(|evidence| rejection::with_output(evidence, &worktree, paths));
    values.extend([("evidence", evidence.as_deref().unwrap_or_default()), ("execution", execution.as_str())]);
    let mut text = fill(&load(template)?, &values);
    if let Some(note) = &progress.given_up {
        text = format!("{}\n\n{note}\n", text.trim_end());
    }
    Ok(behind.iter().fold(text, |text, behind| behind.told_after(&text)))
}

/// Returns the outcome of the present attempt by all evidence, and what it spent. Ends the requests of the workstream to
/// which nobody waits for an answer any more.
pub fn outcome(now: &Now, exit: Option<&ExitRecord>, paths: &Paths) -> (Outcome, Spent) {
    let (outcome, spent, has_result) = evident(now, exit, paths);
    (settled(now, outcome, has_result, paths), spent)
}

/// Returns the outcome of an attempt in view of its requests, as [`asking::settle`] does.
fn settled(now: &Now, outcome: Outcome, has_result: bool, paths: &Paths) -> Outcome {
    let is_work = matches!(now.job().work, Work::Spec(_));
    if !is_work || now.plan.rules.consent.is_none() {
        return outcome;
    }
    let asks = Asks::new(paths);
    let is_last = matches!(outcome, Outcome::Failure { fault, .. } if is_last(now, fault));
    let (run, job, number) = (now.plan.id.as_str(), now.job().id.as_str(), now.progress.attempt);
    let settled = asking::settle(&asks, &Attempt { run, job, number, is_last, has_result }, outcome.clone());
    settled.unwrap_or_else(|error| {
        tracing::warn!(job, %error, "cannot end the requests of a workstream");
        outcome
    })
}

/// Returns the outcome of the present attempt, what it spent, and whether the attempt itself left a result.
fn evident(now: &Now, exit: Option<&ExitRecord>, paths: &Paths) -> (Outcome, Spent, bool) {
    let (asked, attempt) = (now.job(), now.progress.attempt);
    let home = Home::new(&now.plan.home);
    if let Work::Command(work) = &asked.work {
        let logged = joblog::write(&home, now, work, exit);
        if let Err(error) = logged {
            tracing::warn!(home = %now.plan.home, %error, "cannot write the joblog");
        }
    }
    let dir = home.attempt(&asked.id, attempt);
    if matches!(asked.work, Work::Spec(_)) {
        // The process of the attempt has ended, perhaps during a write.
        home::remove_torn(&dir);
    }
    // A result of another order is not that of this attempt.
    let seals = Seals::of(&super::place(paths, &now.plan.home));
    let is_ours = |left: &AttemptResult| seals.accepts(&asked.id, attempt, &left.order).unwrap_or(false);
    let left = order::read_result(&dir).filter(is_ours);
    let spent = match &left {
        Some(left) => left.spent,
        None if matches!(asked.work, Work::Spec(_)) => {
            killed(&dir, |order| seals.accepts(&asked.id, attempt, order).unwrap_or(false))
        }
        None => Spent::default(),
    };
    let has_result = left.is_some();
    let task = |cause: String, evidence: Option<String>| Outcome::Failure { cause, evidence, fault: FaultKind::Task };
    let lost = |cause: &str| Outcome::Failure { cause: cause.to_owned(), evidence: None, fault: FaultKind::Lost };
    let outcome = match (exit.map(|exit| exit.reason), left) {
        // Its result may only say that the agent was told to end as well.
        (Some(Reason::Stopped), left) if exit.is_some_and(|exit| exit.interrupted) => match left {
            Some(AttemptResult { outcome: success @ Outcome::Success { .. }, .. }) => success,
            _ => lost("ended by a signal that swarm did not send, such as that of a shutdown"),
        },
        (Some(Reason::Stopped | Reason::Closed | Reason::Abandoned), _) => Outcome::Stopped,
        (Some(Reason::Timeout), _) => task(
            match asked.timeout_ms {
                Some(limit_ms) => format!("timed out after {} s", limit_ms / 1000),
                None => "reached the time limit of its job".to_owned(),
            },
            None,
        ),
        (Some(Reason::Output), _) => task("exceeded its output limit".to_owned(), None),
        (_, Some(left)) => left.outcome,
        (Some(Reason::OutOfMemory), None) => task("ran out of memory".to_owned(), None),
        (None, None) => lost("ended with an unknown result: the machine went down, or its shim was killed"),
        (Some(Reason::Exited), None) => match (&asked.work, exit.map(|exit| exit.ended)) {
            (Work::Command(_), Some(Ended::Code(0))) => Outcome::Success { summary: None },
            (Work::Command(_), ended) => {
                let said = tail(&errors_of(now, paths));
                task(format!("{}{}", ended.map_or_else(unknown_end, end_words), first(&said)), said)
            }
            (Work::Spec(_), Some(Ended::Code(code))) if code == i32::from(order::IO_FAILED) => {
                let said = tail(&errors_of(now, paths));
                broken(&format!("cannot read the order or write the result of the attempt{}", first(&said)))
            }
            (Work::Spec(_), ended) => {
                task(format!("{} without a result", ended.map_or_else(unknown_end, end_words)), None)
            }
        },
    };
    (outcome, spent, has_result)
}
