//! `swarm run --on HOST,…`: the hosts or clusters of a run, and whether its work can be done there.

use std::collections::BTreeMap;
use std::path::Path;
use std::thread;

use swarm_config::hosts::HostConfig;
use swarm_config::sections::lost;
use swarm_hosts::{Fault, FaultKind, Pipe};
use swarm_model::asks::judge::Consent;
use swarm_model::run::plan::{Job, Plan, Rules, Seats, Work};
use swarm_model::run::progress::{Progress, Run, Stage};
use swarm_model::{Caller, Refusal, RefusalKind};
use swarm_store::repositories::{include, lines};
use swarm_store::runs::specs::check_id;
use swarm_sys::duration::NumberOrText;

use super::batch;
use super::settings;
use super::tags;
use super::waits;
use crate::cli::error::Failure;
use crate::cli::render::Clock;
use crate::cli::screen::Screen;

/// Maximum number of concurrent attempts of a run on a host whose configuration has no number.
const CAP: usize = 8;

/// Returns the rules about where attempts work, for these names of hosts or clusters, in their order. `limit` is the maximum
/// number of concurrent attempts.
///
/// # Errors
/// Refuses names that are no hosts, and hosts beside clusters.
pub fn placed(names: &[String], limit: usize) -> Result<Rules, Failure> {
    if names.is_empty() {
        return Ok(Rules::default());
    }
    let configured = swarm_config::places().map_err(invalid)?;
    let clusters = batch::clusters(names, &configured)?;
    let on = seats(names, &configured, (!clusters.is_empty()).then_some(limit))?;
    Ok(Rules { on, clusters, include: included(names)?, ..Rules::default() })
}

fn invalid(cause: String) -> Failure {
    Failure::new(RefusalKind::Invalid, cause)
}

/// Returns the places for attempts on these hosts, in their order. `cap` is that of each of them.
fn seats(
    names: &[String],
    configured: &BTreeMap<String, HostConfig>,
    cap: Option<usize>,
) -> Result<Vec<Seats>, Failure> {
    let mut seats: Vec<Seats> = Vec::new();
    for name in names {
        if name.is_empty() {
            return Err(invalid("'--on' has an empty name".to_owned()));
        }
        if name != Seats::LOCAL {
            swarm_hosts::find(name, configured)?;
        }
        if seats.iter().all(|seat| seat.host != *name) {
            let of_host = configured.get(name);
            let cap = cap.or_else(|| of_host.and_then(|host| host.cap)).unwrap_or(CAP);
            let tags = of_host.map(|host| host.tags.clone()).unwrap_or_default();
            seats.push(Seats { host: name.clone(), cap, tags });
        }
    }
    match seats.iter().any(|seat| seat.cap > 0) {
        true => Ok(seats),
        false => {
            let refusal = Refusal::new(RefusalKind::Invalid, "no host has room: the cap of each of them is 0");
            Err(refusal.remedy("set cap in [hosts.NAME] of your configuration").into())
        }
    }
}

/// Returns the time in milliseconds for which attempts wait for a host that is out of reach; `None` if a person decides.
///
/// # Errors
/// Refuses a text that is no time.
pub fn lost_ms(typed: Option<&String>, configured: Option<&NumberOrText>) -> Result<Option<u64>, Failure> {
    let text = typed.cloned().or_else(|| configured.map(NumberOrText::text)).unwrap_or_else(|| "wait".to_owned());
    let lost = lost(&text).map_err(|cause| Failure::new(RefusalKind::Invalid, cause))?;
    Ok(lost.map(super::jobs::milliseconds))
}

/// Checks that work of this plan can be done on its hosts, before anything is begun: what travels, and that a host answers.
///
/// # Errors
/// Refuses what only works here, and a host that needs a person first.
pub fn check(plan: &Plan, retry_failed: bool, caller: &Caller, screen: &mut Screen) -> Result<(), Failure> {
    tags::check(plan, retry_failed)?;
    if !plan.rules.clusters.is_empty() {
        return batch::check(plan, caller, screen);
    }
    let hosts = plan.rules.on.iter().map(|seat| seat.host.as_str()).filter(|host| *host != Seats::LOCAL);
    let hosts: Vec<&str> = hosts.collect();
    if hosts.is_empty() {
        return Ok(());
    }
    check_plan(plan)?;
    let root = Path::new(&plan.root);
    if plan.jobs.iter().all(|job| job.branch.is_none()) {
        // No file goes there.
        return reach(&hosts, screen);
    }
    if let Some((cause, remedy)) = stays_here(root, plan.base.as_deref().unwrap_or("HEAD"), caller) {
        return Err(Refusal::new(RefusalKind::Invalid, cause).remedy(remedy).into());
    }
    let has_own = |all: swarm_config::Sections| {
        let own = all.worktree;
        let is_plain = own.link.is_empty() && own.ports.is_none();
        !is_plain || own.post_create.is_some() || own.pre_remove.is_some()
    };
    if swarm_config::as_written(Some(root)).is_ok_and(has_own) {
        screen.warning("[worktree] of swarm.toml, except for include, does not apply to worktrees on other hosts");
    }
    settings::check(plan, retry_failed, caller)?;
    check_files(root, &hosts, caller, screen)?;
    reach(&hosts, screen)
}

/// Refuses directories that only this machine has. A relative one is made on each host.
///
/// # Errors
/// Names the first job with such a directory.
pub fn check_directories(jobs: &[Job], placed: &Rules) -> Result<(), Failure> {
    let is_absolute = |job: &&Job| match &job.work {
        Work::Command(work) => work.cwd.as_deref().is_some_and(|cwd| Path::new(cwd).is_absolute()),
        Work::Spec(_) => false,
    };
    match jobs.iter().find(is_absolute).filter(|_| has_machines(placed)) {
        Some(job) => {
            let cause = format!("job '{}': cwd is an absolute path, which means nothing on other hosts", job.id);
            let remedy = "name a directory relative to the file, or begin the command with 'cd DIR &&'";
            Err(Refusal::new(RefusalKind::Invalid, cause).remedy(remedy).into())
        }
        None => Ok(()),
    }
}

/// Reports whether attempts work on other machines, which do not have the files of this one.
fn has_machines(rules: &Rules) -> bool {
    rules.clusters.is_empty() && rules.on.iter().any(|seat| seat.host != Seats::LOCAL)
}

/// Checks that a person has said for each host whether the ignored files that worktrees get go there.
fn check_files(root: &Path, hosts: &[&str], caller: &Caller, screen: &mut Screen) -> Result<(), Failure> {
    let configured = configured()?;
    let said = |host: &str| configured.get(host).and_then(|host| host.include);
    let unsaid: Vec<&str> = hosts.iter().copied().filter(|host| said(host).is_none()).collect();
    let (going, staying): (Vec<&str>, Vec<&str>) = hosts.iter().partition(|host| said(host) == Some(true));
    let files = match include::names(root, caller) {
        // Too many, of which none goes anywhere.
        Err(_) if going.is_empty() && unsaid.is_empty() => return Ok(()),
        files => files.map_err(|cause| {
            Refusal::new(RefusalKind::Invalid, cause)
                .remedy("name fewer in .worktreeinclude, or set include = false in [hosts.NAME]")
        })?,
    };
    if files.is_empty() {
        return Ok(());
    }
    let shown = some_of(&files);
    if let Some(first) = unsaid.first() {
        let cause =
            format!("nobody has said whether ignored files that worktrees get go to {}: {shown}", unsaid.join(", "));
        let remedy = format!("set include = true or false in [hosts.{}] of your own configuration", quoted_key(first));
        return Err(Refusal::new(RefusalKind::Invalid, cause).remedy(remedy).into());
    }
    if !staying.is_empty() {
        screen
            .aside("note: ", &format!("ignored files that worktrees get do not go to {}: {shown}", staying.join(", ")));
    }
    Ok(())
}

/// Returns the first few names, and the number of others.
fn some_of(files: &[String]) -> String {
    const SHOWN: usize = 3;
    let shown: Vec<String> = files.iter().take(SHOWN).map(|file| file.escape_debug().to_string()).collect();
    match files.len().saturating_sub(SHOWN) {
        0 => shown.join(", "),
        others => format!("{} and {others} more", shown.join(", ")),
    }
}

/// Returns a key as TOML takes it.
fn quoted_key(key: &str) -> String {
    let is_bare = key.chars().all(|it| it.is_ascii_alphanumeric() || "_-".contains(it));
    if is_bare { key.to_owned() } else { format!("'{key}'") }
}

fn configured() -> Result<BTreeMap<String, HostConfig>, Failure> {
    swarm_config::hosts().map_err(|cause| Failure::new(RefusalKind::Invalid, cause))
}

/// Returns the hosts of these to which ignored files go.
///
/// # Errors
/// Refuses a configuration that cannot be read.
pub fn included(names: &[String]) -> Result<Vec<String>, Failure> {
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let configured = configured()?;
    let goes = |name: &&String| configured.get(*name).is_some_and(|host| host.include == Some(true));
    Ok(names.iter().filter(goes).cloned().collect())
}

fn check_plan(plan: &Plan) -> Result<(), Failure> {
    let refuse = |cause: &str, remedy: &str| Err(Refusal::new(RefusalKind::Invalid, cause).remedy(remedy).into());
    let is_out = |job: &&Job| match &job.work {
        Work::Command(work) => job.branch.is_none() && plan.directory_of(work).is_none(),
        Work::Spec(_) => false,
    };
    // A host makes directories of these names.
    let wrong = |job: &Job| match check_id(&job.id) {
        Ok(()) if job.id.starts_with('-') => Some("the name begins with '-'".to_owned()),
        checked => checked.err(),
    };
    if let Some((job, cause)) = plan.jobs.iter().find_map(|job| Some((job, wrong(job)?))) {
        return refuse(&format!("job '{}': {cause}", job.id), "rename it, or run without --on");
    }
    if let Some(job) = plan.jobs.iter().find(is_out) {
        let cause = format!("job '{}': cwd leaves {}, which other hosts do not have", job.id, plan.root);
        return refuse(&cause, "name a directory below it, or run without --on");
    }
    if plan.rules.consent.is_some_and(|consent| consent != Consent::FullAccess) {
        return refuse(
            "agents on other hosts cannot ask a person here",
            "use --consent full-access, or run without --on",
        );
    }
    Ok(())
}

/// Returns what of a repository cannot be sent to other hosts, and what to do.
fn stays_here(root: &Path, base: &str, caller: &Caller) -> Option<(String, &'static str)> {
    let says = |words: &[&str]| lines(root, words, caller).unwrap_or_default();
    if !says(&["config", "--get-regexp", r"^remote\..*\.promisor$"]).is_empty() {
        let cause = "a partial clone lacks objects that a host needs".to_owned();
        return Some((cause, "fetch them first: git fetch --refetch --no-filter, then unset remote.NAME.promisor"));
    }
    let base = format!("refs/heads/{base}");
    if !says(&["ls-tree", "--name-only", &base, ".gitmodules"]).is_empty() {
        return Some(("submodules are not sent to other hosts".to_owned(), "run without --on"));
    }
    let with_lfs = says(&["grep", "-l", "-F", "filter=lfs", &base, "--", ":(glob)**/.gitattributes"]);
    if !with_lfs.is_empty() {
        return Some(("files of git-lfs are not sent to other hosts".to_owned(), "run without --on"));
    }
    None
}

/// Connects to each host, at the same time. One that is out of reach may come back while the run goes on.
fn reach(hosts: &[&str], screen: &mut Screen) -> Result<(), Failure> {
    let configured = configured()?;
    let faults: Vec<Option<Fault>> = thread::scope(|scope| {
        let found = hosts.iter().filter_map(|name| swarm_hosts::find(name, &configured).ok());
        let asked: Vec<_> = found.map(|host| scope.spawn(move || Pipe::open(&host).err())).collect();
        asked.into_iter().map(|asked| asked.join().unwrap_or_default()).collect()
    });
    let (all, away) = (faults.len(), faults.iter().flatten().filter(|fault| fault.kind == FaultKind::Away).count());
    for fault in faults.into_iter().flatten() {
        if fault.kind != FaultKind::Away || away == all {
            return Err(Refusal::from(fault).into());
        }
        screen.refusal(&Refusal::from(fault));
    }
    Ok(())
}

/// Returns where a workstream works.
pub fn where_it_is(run: &Run, progress: &Progress, clock: &Clock) -> Option<String> {
    match (&progress.stage, &progress.host) {
        (Stage::Working, Some(host)) => Some(match (progress.away_ms, &progress.stuck) {
            (Some(away_ms), _) => {
                let why = run.closed.get(host).map_or_else(String::new, |closed| format!(": {}", closed.cause));
                format!("on {host}, which is out of reach{}{why}", waits::since(away_ms, clock))
            }
            (None, Some(cause)) => format!("on {host}, which answers; in the way: {cause}"),
            (None, None) => format!("on {host}"),
        }),
        (Stage::Paused, Some(host)) if progress.sent => {
            Some(format!("may still work on {host}; 'swarm run' looks, and takes its work"))
        }
        _ => None,
    }
}

/// Returns what a person should know about agents on other hosts.
pub fn note(plan: &Plan) -> Option<String> {
    if !plan.rules.clusters.is_empty() {
        return Some(batch::note(&plan.rules));
    }
    let hosts: Vec<String> = plan.rules.on.iter().map(|seat| format!("{} ({})", seat.host, seat.cap)).collect();
    let is_agent = |job: &Job| match &job.work {
        Work::Spec(work) => work.adapter.as_deref() != Some("shell"),
        Work::Command(_) => false,
    };
    let login = if plan.jobs.iter().any(is_agent) { "; their agents must be logged in there" } else { "" };
    let is_bare = has_machines(&plan.rules) && plan.jobs.iter().any(|job| job.branch.is_none());
    let bare = if is_bare { "; jobs without a worktree begin in an empty directory there" } else { "" };
    (!hosts.is_empty()).then(|| format!("the work is done on {}{login}{bare}", hosts.join(", ")))
}

#[cfg(test)]
mod tests {
    use jiff::tz::TimeZone;
    use swarm_model::run::progress::{Closed, ClosedKind};

    use super::*;

    #[test]
    fn a_host_out_of_reach_is_named_with_the_cause() {
        let clock = Clock { now: "2026-01-31T18:00:00Z".parse().expect("a time"), zone: TimeZone::UTC };
        let at = |away_ms| {
            let host = Some("a".to_owned());
            Progress { stage: Stage::Working, host, away_ms, ..Progress::default() }
        };
        let mut run = Run::default();
        let shown = |run: &Run, away_ms| where_it_is(run, &at(away_ms), &clock).expect("at work");
        assert_eq!(shown(&run, Some(0)), "on a, which is out of reach");
        let (kind, cause) = (ClosedKind::Away, "no route".to_owned());
        run.closed.insert("a".to_owned(), Closed { kind, cause, tries: 1, refusals: 0, since_ms: 0, until_ms: None });
        assert_eq!(shown(&run, Some(0)), "on a, which is out of reach: no route");
        assert_eq!(shown(&run, None), "on a");
    }
}
