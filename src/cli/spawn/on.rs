//! `swarm spawn --on NAME`: the worker is a job of Slurm. It is submitted on this machine, whose state directory the nodes
//! share.

use std::collections::BTreeMap;

use swarm_config::hosts::HostConfig;
use swarm_model::{Contract, JobOrder, Refusal, RefusalKind};

use crate::cli::args::SpawnArgs;

/// Returns the flags for a job: windows, restarts and what watches a process do not apply, also if they are configured.
///
/// # Errors
/// Refuses those that were typed, and names that make no jobs.
pub fn adjusted(typed: &SpawnArgs, filled: &SpawnArgs) -> Result<SpawnArgs, Refusal> {
    if typed.on.is_none() {
        return Ok(filled.clone());
    }
    let place = &typed.place;
    let flags = [
        ("--tmux", typed.tmux),
        ("--session", place.session.is_some()),
        ("--tmux-socket", place.tmux_socket.is_some()),
        ("--ready-wait", place.ready_wait),
        ("--heartbeat", place.nudge.heartbeat.is_some()),
        ("--restart", typed.restart.is_some()),
        ("--stuck-after", typed.stuck_after.is_some()),
        ("--session-dir", typed.session_dir.is_some()),
        ("--issue", typed.issue.is_some()),
        ("--work-type", typed.work_type.is_some()),
        ("--prompt", typed.prompt.is_some()),
        ("--max-output", place.limits.max_output.is_some()),
    ];
    if let Some((flag, _)) = flags.into_iter().find(|(_, is_given)| *is_given) {
        let refusal = invalid(format!("{flag} does not apply to a worker that is a job"));
        return Err(refusal.remedy("leave it out, or use an allocation as a host: engine = \"slurm-pilot\""));
    }
    let mut args = filled.clone();
    (args.tmux, args.restart, args.stuck_after) = (false, None, None);
    args.place.nudge.heartbeat = None;
    args.place.limits.max_output = None;
    Ok(args)
}

fn invalid(cause: String) -> Refusal {
    Refusal::new(RefusalKind::Invalid, cause)
}

/// Makes the contract that of a job, if one was asked for.
///
/// # Errors
/// Refuses a name that makes no jobs.
pub fn make_job(args: &SpawnArgs, contract: &mut Contract) -> Result<(), Refusal> {
    let Some(name) = &args.on else { return Ok(()) };
    let configured = swarm_config::hosts().map_err(invalid)?;
    let mut order = order(name, &configured)?;
    let limits = args.place.limits;
    order.ask_for(limits.memory.map(|bytes| format!("--mem={}M", bytes.div_ceil(1 << 20))));
    order.ask_for(limits.cpu.map(|milli| format!("--cpus-per-task={}", milli.div_ceil(1000))));
    order.limit(contract.timeout_ms);
    contract.become_job(order);
    Ok(())
}

/// Returns the order of jobs of a configured cluster, without anything of a single worker.
///
/// # Errors
/// Refuses a name that makes no jobs.
pub fn order(name: &str, configured: &BTreeMap<String, HostConfig>) -> Result<JobOrder, Refusal> {
    let Some(config) = configured.get(name) else {
        let refusal = invalid(format!("host '{name}' is not configured"));
        return Err(refusal.remedy(format!("set engine = \"slurm\" in [hosts.{name}] of your configuration")));
    };
    let host = swarm_hosts::find(name, configured)?;
    let Some(arguments) = host.job_arguments() else {
        let refusal = invalid(format!("host '{name}' makes no jobs"));
        return Err(
            refusal.remedy(format!("run 'swarm --host {name} spawn', or set engine = \"slurm\" in [hosts.{name}]"))
        );
    };
    let ask = config.ask.as_deref().map(swarm_sys::duration::parse_positive).transpose().map_err(invalid)?;
    let ask_ms = ask.map(|ask| u64::try_from(ask.as_millis()).unwrap_or(u64::MAX));
    Ok(JobOrder { host: name.to_owned(), program: program(config)?, arguments: arguments.to_vec(), ask_ms })
}

/// Returns the path of `swarm` on the nodes: the configured one, or that of this program, which they have to share.
///
/// # Errors
/// Fails if the path of this program is not known.
pub fn program(config: &HostConfig) -> Result<String, Refusal> {
    if let Some(program) = &config.swarm {
        return Ok(program.clone());
    }
    let path = std::env::current_exe().ok().and_then(|path| path.into_os_string().into_string().ok());
    path.ok_or_else(|| invalid("the path of this program is not known".to_owned()).remedy("set swarm in [hosts.NAME]"))
}

/// Returns a warning about a limit that is not in force for a job.
pub fn warning(args: &SpawnArgs) -> Option<&'static str> {
    let has_pids = args.on.is_some() && args.place.limits.pids.is_some();
    has_pids.then_some("--pids is not in force for a worker that is a job")
}
