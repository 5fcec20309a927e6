//! `swarm run --on HOST,…`: the hosts of a run, and whether its work can be done there.

use std::collections::BTreeMap;
use std::path::Path;
use std::thread;

use serde_json::json;
use swarm_config::hosts::HostConfig;
use swarm_hosts::{Fault, FaultKind, Pipe};
use swarm_model::asks::judge::Consent;
use swarm_model::run::plan::{Job, Plan, Seats, Work};
use swarm_model::run::progress::{Closed, ClosedKind, Progress, Run, Stage};
use swarm_model::{Caller, Refusal, RefusalKind};
use swarm_store::repositories::lines;

use crate::cli::error::Failure;
use crate::cli::screen::Screen;

/// Maximum number of concurrent attempts of a run on a host whose configuration has no number.
const CAP: usize = 8;

/// Returns the places for attempts on these hosts, in their order.
///
/// # Errors
/// Refuses names that are no hosts.
pub fn seats(names: &[String]) -> Result<Vec<Seats>, Failure> {
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let invalid = |cause: String| Failure::new(RefusalKind::Invalid, cause);
    let configured = swarm_config::hosts().map_err(invalid)?;
    let mut seats: Vec<Seats> = Vec::new();
    for name in names {
        if name.is_empty() {
            return Err(invalid("'--on' has an empty name".to_owned()));
        }
        if name != Seats::LOCAL {
            swarm_hosts::find(name, &configured)?;
        }
        if seats.iter().all(|seat| seat.host != *name) {
            seats.push(Seats { host: name.clone(), cap: cap(name, &configured) });
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

fn cap(name: &str, configured: &BTreeMap<String, HostConfig>) -> usize {
    configured.get(name).and_then(|host| host.cap).unwrap_or(CAP)
}

/// Checks that work of this plan can be done on its hosts, before anything is begun: what travels, and that a host answers.
///
/// # Errors
/// Refuses what only works here, and a host that needs a person first.
pub fn check(plan: &Plan, caller: &Caller, screen: &mut Screen) -> Result<(), Failure> {
    let hosts = plan.rules.on.iter().map(|seat| seat.host.as_str()).filter(|host| *host != Seats::LOCAL);
    let hosts: Vec<&str> = hosts.collect();
    if hosts.is_empty() {
        return Ok(());
    }
    check_plan(plan)?;
    let root = Path::new(&plan.root);
    if let Some((cause, remedy)) = stays_here(root, plan.base.as_deref().unwrap_or("HEAD"), caller) {
        return Err(Refusal::new(RefusalKind::Invalid, cause).remedy(remedy).into());
    }
    let has_own = |all: swarm_config::Sections| {
        let own = all.worktree;
        let is_plain = own.include.is_empty() && own.link.is_empty() && own.ports.is_none();
        !is_plain || own.post_create.is_some() || own.pre_remove.is_some()
    };
    if swarm_config::as_written(Some(root)).is_ok_and(has_own) {
        screen.warning("[worktree] of swarm.toml does not apply to worktrees on other hosts");
    }
    reach(&hosts, screen)
}

fn check_plan(plan: &Plan) -> Result<(), Failure> {
    let refuse = |cause: &str, remedy: &str| Err(Refusal::new(RefusalKind::Invalid, cause).remedy(remedy).into());
    if plan.jobs.iter().any(|job: &Job| matches!(job.work, Work::Command(_))) {
        return refuse(
            "'--on' is for specs: commands are not executed on other hosts",
            "run the job file without --on",
        );
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
    let include = root.join(".worktreeinclude");
    if include.exists() {
        let from = format!("--exclude-from={}", include.display());
        if let Some(file) = says(&["ls-files", "--others", "--ignored", &from]).first() {
            let cause = format!("files that .worktreeinclude names, such as '{file}', are not sent to other hosts");
            return Some((cause, "run without --on, or remove .worktreeinclude"));
        }
    }
    None
}

/// Connects to each host, at the same time. One that is out of reach may come back while the run goes on.
fn reach(hosts: &[&str], screen: &mut Screen) -> Result<(), Failure> {
    let configured = swarm_config::hosts().map_err(|cause| Failure::new(RefusalKind::Invalid, cause))?;
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

/// Returns where a workstream works, or why it waits for a host.
pub fn where_it_is(run: &Run, progress: &Progress) -> Option<String> {
    match (&progress.stage, &progress.host) {
        (Stage::Working, Some(host)) => Some(match run.closed.get(host) {
            Some(Closed { kind: ClosedKind::Away, .. }) => format!("on {host}, which is out of reach"),
            _ => format!("on {host}"),
        }),
        (Stage::Paused, Some(host)) if progress.sent => {
            Some(format!("may still work on {host}; 'swarm run' looks, and takes its work"))
        }
        (Stage::Pending, _) if !run.closed.is_empty() => {
            let closed = run.closed.iter().map(|(host, closed)| format!("{host} is {}", closed.kind.word()));
            Some(format!("waits for a host: {}", closed.collect::<Vec<_>>().join(", ")))
        }
        _ => None,
    }
}

/// Returns the hosts of a run in the form that `--json` prints.
pub fn states(run: &Run) -> Vec<serde_json::Value> {
    let state = |seat: &Seats| {
        let closed = run.closed.get(&seat.host);
        let is_there = |job: &&Progress| {
            let host = job.host.as_deref().unwrap_or(Seats::LOCAL);
            host == seat.host && (job.stage == Stage::Working || job.sent)
        };
        json!({
            "name": seat.host,
            "cap": seat.cap,
            "working": run.jobs.iter().filter(is_there).count(),
            "state": closed.map_or("open", |closed| closed.kind.name()),
            "cause": closed.map(|closed| &closed.cause),
        })
    };
    run.plan.rules.on.iter().map(state).collect()
}

/// Returns what a person should know about agents on other hosts.
pub fn note(plan: &Plan) -> Option<String> {
    let hosts: Vec<String> = plan.rules.on.iter().map(|seat| format!("{} ({})", seat.host, seat.cap)).collect();
    let is_agent = |job: &Job| match &job.work {
        Work::Spec(work) => work.adapter.as_deref() != Some("shell"),
        Work::Command(_) => false,
    };
    let login = if plan.jobs.iter().any(is_agent) { "; their agents must be logged in there" } else { "" };
    (!hosts.is_empty()).then(|| format!("the work is done on {}{login}", hosts.join(", ")))
}
