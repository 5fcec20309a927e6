//! `swarm plan`: turns a directory of specs into the workstreams of `.arial/state.json`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, BufRead as _, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};

use serde_json::json;
use swarm_model::run::plan::{Job, Plan, Work};
use swarm_model::run::progress::Run;
use swarm_model::{Caller, Refusal, RefusalKind};

use super::advice;
use super::args::PlanArgs;
use super::begin::agent_refusals;
use super::jobs::{Typed, job_of};
use super::own::{refuse_brought_along, refuse_tracked_link};
use super::own_spec;
use super::queue::note_given_up;
use super::withdrawn;
use crate::cli::caller;
use crate::cli::error::Failure;
use crate::cli::json;
use crate::cli::render::{counted, escape, table};
use crate::cli::screen::Screen;
use swarm_agents::Agent;
use swarm_store::repositories::{Site, tracked};
use swarm_store::runs::home::{ARIAL, Home, iso};
use swarm_store::runs::origin::JOURNAL;
use swarm_store::runs::specs::{self, Spec};
use swarm_store::runs::wire::{self, ArialState, Workstream};
use swarm_store::runs::{is_under_way, journal, load_repaired, records};
use swarm_sys::clock::wall_ms;
use swarm_sys::files::replace_durably;
use swarm_sys::paths::Paths;

/// Prefix of the branches of workstreams.
const BRANCHES: &str = "arial/";
/// Name of the file with the digests of the specs as they were planned.
const DIGESTS: &str = "plan.json";

pub fn run(args: &PlanArgs, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    let caller = caller::collect()?.caller;
    let site = swarm_store::repositories::site(&caller, args.base.as_deref())?;
    let specs = read_specs(&caller, &args.specs, screen)?;
    let consent = check(&site.root, &specs, screen)?;
    let home = Home::of(&site.root);
    refuse_tracked_link(&site.root, &caller)?;
    refuse_brought_along(&home, &JOURNAL, &caller, paths)?;
    prepare(&site.root, &home)?;
    if is_tracked(&site.root, &caller) {
        screen.warning(&format!(
            "{ARIAL} is tracked by git, so each worktree has a stale copy of it; run 'git rm -r --cached {ARIAL}' and commit"
        ));
    }
    // Held until this command ends.
    let _lock = alone(&home, paths)?;
    let (known, note) = load_repaired(&home).map_err(|cause| Refusal::new(RefusalKind::Invalid, cause))?;
    note.iter().for_each(|note| screen.warning(note));
    let known = known.map(|known| for_base(known, &site, &home, &caller)).transpose()?;
    let run = journal::replay(&home).map_err(|cause| Refusal::new(RefusalKind::Invalid, cause))?;
    let digests = with_done_versions(digests(&home), &specs, run.as_ref(), &home, &caller, screen);
    let mut state = state(&site, args, &specs, known, &digests);
    let renamed = avoid_branches(&mut state, run.as_ref(), &site, &caller)
        .map_err(|cause| Refusal::new(RefusalKind::Tool, cause))?;
    renamed.iter().for_each(|note| screen.aside("note: ", note));
    if let Some(run) = &run {
        let is_planned = |job: &Job| match &job.work {
            Work::Spec(work) => specs.iter().any(|spec| spec.id == job.id && spec.digest == work.digest),
            Work::Command(_) => true,
        };
        note_given_up(run, is_planned, paths, screen);
    }
    if !args.yes && !args.json && !agreed(&state, screen)? {
        return Ok(1);
    }
    // `state.json` first: if killed in between, a changed spec counts as changed once more.
    let unwritten = |error| Failure::system(format!("cannot write {}", home.state().display()), &error);
    wire::save(&home, &state).map_err(unwritten)?;
    if let Some(run) = &run {
        withdrawn::end(run, &state, paths, screen)?;
    }
    write_digests(&home, &specs).map_err(unwritten)?;
    show(args, &state, &specs, &home, screen)?;
    if !args.json {
        let asked = specs.iter().map(|spec| (spec.id.as_str(), spec.front.on.list()));
        super::tags::note(asked).iter().try_for_each(|note| screen.line(note))?;
        consent.iter().try_for_each(|consent| screen.line(consent))?;
    }
    Ok(0)
}

/// Takes the lock of a home.
///
/// # Errors
/// Fails if a run is in progress there, with or without a supervisor.
pub fn alone(home: &Home, paths: &Paths) -> Result<File, Failure> {
    let refused = |cause: String| {
        let remedy = "run 'swarm run attach' to follow it, or 'swarm run stop' to end it";
        Refusal::new(RefusalKind::Running, cause).remedy(remedy)
    };
    let none_under_way = || match is_under_way(paths, home) {
        true => Err(refused(format!("a run is in progress in {}", home.path().display()))),
        false => Ok(()),
    };
    // Checked before, because a supervisor that resumes the run must not find the lock taken; and afterwards, because
    // the run may have started in between.
    none_under_way()?;
    let lock = home.take_lock().map_err(refused)?;
    none_under_way()?;
    Ok(lock)
}

/// Reports whether the home is committed, which happens by mistake.
fn is_tracked(root: &Path, caller: &Caller) -> bool {
    tracked(root, ARIAL, caller).is_ok_and(|entries| !entries.is_empty())
}

fn read_specs(caller: &Caller, typed: &str, screen: &mut Screen) -> Result<Vec<Spec>, Failure> {
    let dir = Path::new(&caller.cwd).join(typed);
    let folder = specs::read(&dir).map_err(refused)?;
    folder.notes.iter().for_each(|note| screen.aside("note: ", note));
    if folder.specs.is_empty() {
        let refusal = Refusal::new(RefusalKind::Invalid, format!("no specs in {}", dir.display()));
        return Err(refusal.remedy("add a *.md file that says what to do").into());
    }
    Ok(folder.specs)
}

pub fn refused((cause, remedy): (String, Option<String>)) -> Failure {
    Refusal { remedy, ..Refusal::new(RefusalKind::Invalid, cause) }.into()
}

/// Checks everything that a run would refuse, before anything is written. Returns what the agents may do, in words.
fn check(root: &Path, specs: &[Spec], screen: &mut Screen) -> Result<Option<String>, Failure> {
    let invalid = |cause: String| Failure::new(RefusalKind::Invalid, cause);
    let config = swarm_config::as_written(Some(root)).map_err(invalid)?;
    let typed = Typed::default();
    let jobs = specs.iter().map(|spec| job_of(spec, root, &config.run, &typed)).collect::<Result<_, _>>();
    let plan = Plan { jobs: jobs.map_err(invalid)?, ..Plan::default() };
    // The command line of the run may name another agent for specs that name none.
    let mut refusals = agent_refusals(specs, &plan.jobs, &config.agents, config.run.consent);
    refusals.retain(|(is_own, _)| *is_own);
    // A default that does not exist is a mistake, whatever the command line names later.
    if let Some(name) = &config.run.agent {
        Agent::find(name, &config.agents).map_err(|cause| invalid(format!("run.agent: {cause}")))?;
    }
    if let Some((_, last)) = refusals.pop() {
        refusals.iter().for_each(|(_, refusal)| screen.refusal(refusal));
        return Err(last.into());
    }
    plan.check_order().map_err(invalid)?;
    advice::missing(&plan, screen);
    advice::not_narrowed(&plan.jobs, &config.agents).iter().for_each(|note| screen.aside("note: ", note));
    Ok(advice::consent(&plan.jobs, config.run.consent, &config.agents))
}

/// Creates `.arial/` and excludes it from git.
pub fn prepare(root: &Path, home: &Home) -> Result<(), Failure> {
    let made = home.make().and_then(|()| swarm_store::repositories::exclude(root, ARIAL));
    made.map_err(|error| Failure::system(format!("cannot create {}", home.path().display()), &error))
}

/// Adapts the known state to another base branch: workstreams that did not land on that branch become pending again.
///
/// # Errors
/// Fails if a workstream still has a branch, because that branch has the history of the earlier base.
fn for_base(mut known: ArialState, site: &Site, home: &Home, caller: &Caller) -> Result<ArialState, Failure> {
    if known.base_branch == site.base {
        return Ok(known);
    }
    let begun = |row: &&Workstream| swarm_store::repositories::has_branch(&site.root, &row.branch, caller);
    if let Some(row) = known.workstreams.iter().find(begun) {
        let (id, from) = (&row.id, &known.base_branch);
        let cause = format!("workstream '{id}' was started for {from} and its branch {} still exists", row.branch);
        let remedy = format!("land it on {from}, or run 'swarm run cleanup' and 'git branch -D {}'", row.branch);
        return Err(Refusal::new(RefusalKind::Exists, cause).remedy(remedy).into());
    }
    let run = journal::replay(home).ok().flatten();
    let landed = |id: &str| run.as_ref().and_then(|run| run.jobs[run.plan.position(id)?].commit.as_deref());
    let is_here = |row: &Workstream| {
        landed(&row.id)
            .is_some_and(|commit| swarm_store::repositories::contains(&site.root, &site.base, commit, caller))
    };
    for row in known.workstreams.iter_mut().filter(|row| !is_here(row)) {
        *row =
            Workstream { status: "pending".to_owned(), started_at: None, completed_at: None, pid: None, ..row.clone() };
    }
    Ok(known)
}

fn state(
    site: &Site,
    args: &PlanArgs,
    specs: &[Spec],
    known: Option<ArialState>,
    digests: &BTreeMap<String, String>,
) -> ArialState {
    let now = iso(wall_ms());
    let row = |spec: &Spec| {
        let unchanged = digests.get(&spec.id) == Some(&spec.digest);
        let kept = known.as_ref().and_then(|state| state.row(&spec.id)).filter(|_| unchanged);
        let kept = kept.cloned().map(|row| Workstream { description: spec.description.clone(), ..row });
        kept.unwrap_or_else(|| fresh(&site.root, spec, known.as_ref()))
    };
    let workstreams = specs.iter().map(row).collect();
    ArialState {
        version: 2,
        specs_dir: args.specs.clone(),
        base_branch: site.base.clone(),
        status: "planning".to_owned(),
        created_at: known.as_ref().map_or_else(|| now.clone(), |state| state.created_at.clone()),
        updated_at: now,
        workstreams,
        others: known.map(|state| state.others).unwrap_or_default(),
    }
}

fn fresh(root: &Path, spec: &Spec, known: Option<&ArialState>) -> Workstream {
    let file = spec.path.canonicalize().unwrap_or_else(|_| spec.path.clone());
    let file = file.strip_prefix(root).map(Path::to_path_buf).unwrap_or(file);
    let required = spec.front.required_capabilities.clone();
    Workstream {
        id: spec.id.clone(),
        spec_file: file.to_string_lossy().into_owned(),
        title: spec.title.clone(),
        description: spec.description.clone(),
        status: "pending".to_owned(),
        branch: format!("{BRANCHES}{}", spec.id),
        worktree_path: format!("{ARIAL}/worktrees/{}", spec.id),
        adapter: spec.front.adapter.clone(),
        required_capabilities: Some(required).filter(|required| !required.is_empty()),
        others: known.and_then(|state| state.row(&spec.id)).map(|row| row.others.clone()).unwrap_or_default(),
        ..Workstream::default()
    }
}

/// Gives workstreams that have not begun another branch if theirs exists: its work is of an earlier version of the spec,
/// of another home, or of the user. Returns a note about each.
fn avoid_branches(
    state: &mut ArialState,
    run: Option<&Run>,
    site: &Site,
    caller: &Caller,
) -> Result<Vec<String>, String> {
    let has_begun = |row: &Workstream| {
        let job = run.and_then(|run| run.plan.position(&row.id).map(|at| &run.jobs[at]));
        // Without a journal, another program may have begun it.
        let is_own = job.is_none_or(|job| job.begun.as_ref().is_some_and(|topic| topic.branch == row.branch));
        row.started_at.is_some() && is_own
    };
    let ids: BTreeSet<String> = state.workstreams.iter().map(|row| row.id.clone()).collect();
    let exists = |branch: &str| -> Result<bool, String> {
        Ok(swarm_store::repositories::branch_tip(&site.root, branch, caller)?.is_some())
    };
    let mut notes = Vec::new();
    let is_open = |row: &Workstream| matches!(row.status.as_str(), "pending" | "failed") && !has_begun(row);
    for row in state.workstreams.iter_mut().filter(|row| is_open(row)) {
        let taken = row.branch.clone();
        if !exists(&taken)? {
            continue;
        }
        let mut number = 2;
        let mut leaf = format!("{}-{number}", row.id);
        while ids.contains(&leaf) || exists(&format!("{BRANCHES}{leaf}"))? {
            number += 1;
            leaf = format!("{}-{number}", row.id);
        }
        row.branch = format!("{BRANCHES}{leaf}");
        row.worktree_path = format!("{ARIAL}/worktrees/{leaf}");
        notes.push(format!("branch '{taken}' exists; workstream '{}' will use '{}'", row.id, row.branch));
    }
    Ok(notes)
}

fn digests(home: &Home) -> BTreeMap<String, String> {
    let text = records::read(home.path().join(DIGESTS)).unwrap_or_default();
    serde_json::from_slice(&text).unwrap_or_default()
}

/// Replaces the digests of specs whose present version is the one that is done: it was executed after it had changed, or only
/// the landed work of its own workstream changed it. A note names each of the latter.
fn with_done_versions(
    mut digests: BTreeMap<String, String>,
    specs: &[Spec],
    run: Option<&Run>,
    home: &Home,
    caller: &Caller,
    screen: &mut Screen,
) -> BTreeMap<String, String> {
    for spec in specs {
        let Some(known) = digests.get_mut(&spec.id).filter(|known| **known != spec.digest) else { continue };
        let Some(run) = run else { continue };
        if own_spec::is_done(run, home, spec) {
            known.clone_from(&spec.digest);
            continue;
        }
        let Some(commit) = own_spec::landed_by(run, home, spec, caller) else { continue };
        known.clone_from(&spec.digest);
        let short = commit.get(..12).unwrap_or(&commit);
        let text = format!("spec '{}' was changed by its own work ({short}), and counts as done", spec.id);
        screen.aside("note: ", &text);
    }
    digests
}

fn write_digests(home: &Home, specs: &[Spec]) -> io::Result<()> {
    let all: BTreeMap<&str, &str> = specs.iter().map(|spec| (spec.id.as_str(), spec.digest.as_str())).collect();
    replace_durably(home.path(), DIGESTS, &serde_json::to_vec_pretty(&all)?)
}

/// Returns the ids of specs that changed since they were planned.
pub fn changed(home: &Home, specs: &[Spec]) -> Vec<String> {
    let digests = digests(home);
    let changed = |spec: &&Spec| digests.get(&spec.id).is_some_and(|digest| *digest != spec.digest);
    specs.iter().filter(changed).map(|spec| spec.id.clone()).collect()
}

/// Asks for confirmation on a terminal. Returns true without a terminal, where no one could answer.
fn agreed(state: &ArialState, screen: &mut Screen) -> Result<bool, Failure> {
    if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
        return Ok(true);
    }
    screen.line(&rows(state))?;
    screen.flush()?;
    let count = counted(state.workstreams.len() as u64, "workstream");
    let mut out = io::stderr();
    let _ = write!(out, "plan {count} for {}? [Y/n] ", escape(&state.base_branch)).and_then(|()| out.flush());
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer).map_err(|error| Failure::system("cannot read the answer", &error))?;
    // The end of input is not a consent.
    Ok(!answer.is_empty() && matches!(answer.trim(), "" | "y" | "Y" | "yes"))
}

fn rows(state: &ArialState) -> String {
    let head = ["ID", "STATUS", "AGENT", "TITLE"].map(str::to_owned).to_vec();
    let row = |row: &Workstream| {
        let agent = row.adapter.clone().unwrap_or_else(|| "-".to_owned());
        [&row.id, &row.status, &agent, &row.title].map(|text| escape(text).into_owned()).to_vec()
    };
    let all: Vec<Vec<String>> = std::iter::once(head).chain(state.workstreams.iter().map(row)).collect();
    super::show::without_trails(&table(&all, |_, _, _| None))
}

fn show(args: &PlanArgs, state: &ArialState, specs: &[Spec], home: &Home, screen: &mut Screen) -> Result<u8, Failure> {
    if args.json {
        let on: BTreeMap<&str, Vec<String>> =
            specs.iter().map(|spec| (spec.id.as_str(), spec.front.on.list())).collect();
        let row = |row: &Workstream| json!({"id": row.id, "title": row.title, "status": row.status, "spec_file": row.spec_file, "branch": row.branch, "on": on.get(row.id.as_str()).cloned().unwrap_or_default()});
        let rows: Vec<_> = state.workstreams.iter().map(row).collect();
        let path: PathBuf = home.path().to_owned();
        let body = json!({"home": path, "base": state.base_branch, "workstreams": rows});
        json::print(screen, "swarm.plan/1", &body)?;
        return Ok(0);
    }
    if !io::stdin().is_terminal() || args.yes {
        screen.line(&rows(state))?;
    }
    let count = |status: &str| state.workstreams.iter().filter(|row| row.status == status).count();
    let (all, pending, failed) = (state.workstreams.len(), count("pending"), count("failed"));
    // A row with another status than these is under way and is continued.
    let next = match all - count("done") {
        0 => "",
        open if open == failed => "; next: swarm run --retry-failed",
        _ => "; next: swarm run",
    };
    let planned = counted(all as u64, "workstream");
    screen.line(&format!("planned {planned} for {}, {pending} pending{next}", escape(&state.base_branch)))?;
    Ok(0)
}
