//! `swarm hosts`: the hosts of the user's configuration, and how they are.

use std::thread;
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;
use swarm_hosts::{FaultKind, Host, Pipe};
use swarm_model::json::Members as _;
use swarm_model::{Refusal, RefusalKind};

use super::allocation::{Allocation, Seen};
use super::args::{HostsAction, HostsArgs};
use super::several::answer_of;
use super::{allocation, check, install, job, leave};
use crate::cli::error::Failure;
use crate::cli::json;
use crate::cli::render::{escape, table};
use crate::cli::screen::Screen;
use crate::reach::drained;
use swarm_sys::paths::Paths;

/// Time for the number of running workers.
const ANSWER_MAX: Duration = Duration::from_secs(20);

/// A host in the form that `--json` prints.
#[derive(Debug, Serialize)]
struct Row {
    name: String,
    /// `up`, `away`, `refused`, `missing` or `protocol`; of an allocation also `pending` or `ended`.
    state: &'static str,
    cause: Option<String>,
    remedy: Option<String>,
    machine: Option<String>,
    version: Option<String>,
    /// Time to connect and say hello.
    took_ms: Option<u64>,
    /// Number of running workers; `None` if it is not known.
    running: Option<usize>,
    cpus: Option<usize>,
    load: Option<f64>,
    /// Whether runs start nothing new there.
    drained: bool,
    /// Of a host that is an allocation of Slurm, the present or the last one.
    allocation: Option<Allocation>,
}

pub fn run(args: &HostsArgs, screen: &mut Screen) -> Result<u8, Failure> {
    match &args.action {
        None => list(args.json, screen),
        Some(HostsAction::Ls(ls)) => list(args.json || ls.json, screen),
        Some(HostsAction::Check(check)) => check::run(check, screen),
        Some(HostsAction::Install(install)) => install::run(install, screen),
        Some(HostsAction::Drain(named)) => leave::drain(&named.host, true, screen),
        Some(HostsAction::Resume(named)) => leave::drain(&named.host, false, screen),
        Some(HostsAction::Forget(forget)) => leave::forget(forget, screen),
        Some(HostsAction::Start(start)) => allocation::start(start, screen),
        Some(HostsAction::Stop(stop)) => allocation::stop(stop, screen),
    }
}

/// Returns the hosts of the user's configuration.
pub fn all() -> Result<Vec<Host>, Refusal> {
    let configured = swarm_config::hosts().map_err(|cause| Refusal::new(RefusalKind::Invalid, cause))?;
    Ok(swarm_hosts::known(&configured))
}

fn list(as_json: bool, screen: &mut Screen) -> Result<u8, Failure> {
    let hosts = all()?;
    let rows: Vec<Row> = thread::scope(|scope| {
        let asked: Vec<_> = hosts.iter().map(|host| scope.spawn(|| row(host))).collect();
        asked.into_iter().filter_map(|row| row.join().ok()).collect()
    });
    let code = u8::from(rows.iter().any(|row| row.state != "up"));
    if as_json {
        return json::print_list(screen, "swarm.hosts/1", "hosts", rows).map(|()| code);
    }
    if rows.is_empty() {
        screen.aside("", "no hosts are configured; '--host' takes any destination that ssh knows");
        return Ok(0);
    }
    screen.bytes(text(&rows).as_bytes())?;
    screen.flush()?;
    for row in &rows {
        if let Some(cause) = &row.cause {
            let mut refusal = Refusal::new(RefusalKind::Tool, cause.clone());
            refusal.remedy.clone_from(&row.remedy);
            screen.refusal(&refusal);
        }
    }
    Ok(code)
}

fn row(host: &Host) -> Row {
    let empty = Row {
        name: host.name.clone(),
        state: "up",
        cause: None,
        remedy: None,
        machine: None,
        version: None,
        took_ms: None,
        running: None,
        cpus: None,
        load: None,
        drained: Paths::from_env().is_ok_and(|paths| drained::is_drained(&paths, &host.name)),
        allocation: None,
    };
    if host.job_arguments().is_some() {
        return match swarm_hosts::slurm::version(host) {
            Ok(_) => Row { running: job::running(host), ..empty },
            Err(fault) => Row { state: word(fault.kind), cause: Some(fault.cause), remedy: fault.remedy, ..empty },
        };
    }
    let Seen { allocation, reached } = match Allocation::of(host) {
        Ok(seen) => seen,
        Err(fault) => {
            return Row { state: word(fault.kind), cause: Some(fault.cause), remedy: fault.remedy, ..empty };
        }
    };
    let host = match reached {
        Ok(host) => host,
        Err(fault) => {
            let state = allocation.as_ref().map_or("ended", Allocation::state_of_host);
            return Row { state, cause: Some(fault.cause), remedy: fault.remedy, allocation, ..empty };
        }
    };
    let empty = Row { allocation, ..empty };
    let host = &host;
    match Pipe::open(host) {
        Ok(mut pipe) => {
            let hello = pipe.hello.clone();
            Row {
                machine: Some(hello.machine),
                version: Some(hello.version),
                took_ms: u64::try_from(pipe.took.as_millis()).ok(),
                running: running(&mut pipe, host),
                cpus: Some(hello.cpus),
                load: Some(hello.load),
                ..empty
            }
        }
        Err(fault) => Row { state: word(fault.kind), cause: Some(fault.cause), remedy: fault.remedy, ..empty },
    }
}

fn word(kind: FaultKind) -> &'static str {
    match kind {
        FaultKind::Away => "away",
        FaultKind::Refused => "refused",
        FaultKind::Missing => "missing",
        FaultKind::Protocol => "protocol",
    }
}

/// Returns the number of running workers on the host.
fn running(pipe: &mut Pipe, host: &Host) -> Option<usize> {
    let words = ["ls", "--status", "running", "--json"].map(str::to_owned);
    let answer = answer_of(pipe, host, &words, ANSWER_MAX).ok()?;
    let list: Value = serde_json::from_slice(&answer.out).ok()?;
    list.member("workers").map(|_| list.list("workers").len())
}

fn text(rows: &[Row]) -> String {
    let mut heads = ["NAME", "STATE", "VERSION", "RUNNING", "LOAD", "CPUS", "MACHINE"].map(str::to_owned).to_vec();
    let has_allocations = rows.iter().any(|row| row.allocation.is_some());
    heads.extend(has_allocations.then(|| "ALLOCATION".to_owned()));
    let or_dash = |text: Option<String>| text.map_or_else(|| "-".to_owned(), |text| escape(&text).into_owned());
    let cells = |row: &Row| {
        let mut cells = vec![
            escape(&row.name).into_owned(),
            if row.drained { format!("{}, drained", row.state) } else { row.state.to_owned() },
            or_dash(row.version.clone()),
            or_dash(row.running.map(|running| running.to_string())),
            or_dash(row.load.map(|load| format!("{load:.1}"))),
            or_dash(row.cpus.map(|cpus| cpus.to_string())),
            or_dash(row.machine.clone()),
        ];
        cells.extend(has_allocations.then(|| or_dash(row.allocation.as_ref().map(Allocation::text))));
        cells
    };
    let rows: Vec<Vec<String>> = std::iter::once(heads).chain(rows.iter().map(cells)).collect();
    table(&rows, |_, _, _| None)
}
