//! `swarm hosts start` and `stop`: allocations of Slurm that are hosts.

use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use serde::Serialize;
use swarm_config::hosts::check_argument;
use swarm_hosts::slurm::jobs::{Job, State, TOKEN_DIGITS};
use swarm_hosts::slurm::{Asked, Look, Submitted, cancel, chosen, look, submit, version};
use swarm_hosts::{Fault, FaultKind, Host, Pipe};
use swarm_model::{Refusal, RefusalKind};
use swarm_sys::clock::{random_token, wall_ms};

use super::args::{HostsStartArgs, HostsStopArgs};
use super::found;
use crate::cli::error::Failure;
use crate::cli::render::escape;
use crate::cli::screen::Screen;
use crate::cli::watch::{Interrupt, Until, wait_any};

/// Time for an allocation to end its workers, and for runs to fetch what they have done.
const STOP_MAX: Duration = Duration::from_secs(180);
/// First pause between two questions to Slurm, which is doubled up to the last one.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// Exit code after Ctrl-C.
const INTERRUPTED: u8 = 130;

/// Allocation of a host in the form that `--json` prints.
#[derive(Debug, Serialize)]
pub struct Allocation {
    job: u64,
    /// State in Slurm's word, in lower case.
    state: String,
    /// Why it waits or has ended, in Slurm's words.
    reason: Option<String>,
    node: Option<String>,
    /// Seconds until its time limit.
    left_s: Option<u64>,
    #[serde(skip)]
    is_pending: bool,
    #[serde(skip)]
    is_live: bool,
}

/// What Slurm says about a host.
pub struct Seen {
    pub allocation: Option<Allocation>,
    /// The host as it is reached, or why it is not.
    pub reached: Result<Host, Fault>,
}

impl Allocation {
    /// Returns the allocation of a host, and the host as it is reached through it. Other hosts have none.
    ///
    /// # Errors
    /// Returns why nothing is known about its allocations.
    pub fn of(host: &Host) -> Result<Seen, Fault> {
        if !host.is_allocation() {
            return Ok(Seen { allocation: None, reached: Ok(host.clone()) });
        }
        let look = look(host)?;
        Ok(Seen { allocation: look.present().map(Self::of_job), reached: chosen(host, &look) })
    }

    fn of_job(job: &Job) -> Self {
        Self {
            job: job.id,
            state: job.word.to_lowercase(),
            reason: job.reason.clone(),
            node: job.node.clone(),
            left_s: job.left(wall_ms()).map(|left| left.as_secs()),
            is_pending: job.state == State::Pending,
            is_live: job.state.is_live(),
        }
    }

    /// Returns the state of a host that has no other allocation, and is not reached through this one.
    pub fn state_of_host(&self) -> &'static str {
        match (self.is_pending, self.is_live) {
            (true, _) => "pending",
            (_, true) => "away",
            (_, false) => "ended",
        }
    }

    /// Returns `12 running, 7h52m left` or `12 pending (Resources)`.
    pub fn text(&self) -> String {
        let told = self.reason.as_ref().map_or_else(String::new, |reason| format!(" ({reason})"));
        let left = self.left_s.map_or_else(String::new, |left| format!(", {} left", minutes(left)));
        format!("{} {}{told}{left}", self.job, self.state)
    }
}

fn minutes(seconds: u64) -> String {
    match (seconds / 3600, seconds / 60 % 60) {
        (0, minutes) => format!("{minutes}m"),
        (hours, minutes) => format!("{hours}h{minutes:02}m"),
    }
}

pub fn start(args: &HostsStartArgs, screen: &mut Screen) -> Result<u8, Failure> {
    let host = found(std::slice::from_ref(&args.host))?.remove(0);
    for word in &args.arguments {
        check_argument(word)
            .map_err(|cause| Failure::new(RefusalKind::Invalid, format!("sbatch arguments: {cause}")))?;
    }
    if let Some(partition) = &args.partition {
        check_argument(partition).map_err(|cause| Failure::new(RefusalKind::Invalid, format!("partition: {cause}")))?;
    }
    let interrupt = Interrupt::catch()?;
    let before = look(&host).map_err(Refusal::from)?;
    if let Some(job) = live(&before) {
        let cause = format!("{} has an allocation: {}", host.name, Allocation::of_job(job).text());
        return Err(Refusal::new(RefusalKind::Exists, cause)
            .remedy(format!("use it, or run 'swarm hosts stop {}' first", host.name))
            .into());
    }
    let asked = Asked {
        time: args.time.clone(),
        cpus: args.cpus,
        partition: args.partition.clone(),
        arguments: args.arguments.clone(),
        gone: args.gone,
    };
    let mut token = random_token();
    token.truncate(TOKEN_DIGITS);
    match submit(&host, &asked, &token)? {
        Submitted::Job(job) => screen.line(&format!("submitted allocation {job} of {}", escape(&host.name)))?,
        Submitted::Unknown(cause) => {
            let cause = format!("it is not known whether Slurm has the allocation for {}: {cause}", host.name);
            let remedy =
                format!("run 'swarm hosts' in a minute, then 'swarm hosts start {}' if there is none", host.name);
            return Err(Refusal::new(RefusalKind::Tool, cause).remedy(remedy).into());
        }
    }
    screen.flush()?;
    if args.wait { await_host(&host, &token, &interrupt, screen) } else { Ok(0) }
}

fn live(look: &Look) -> Option<&Job> {
    look.present().filter(|job| job.state.is_live())
}

/// Waits until the host answers, or its allocation has ended.
fn await_host(host: &Host, token: &str, interrupt: &Interrupt, screen: &mut Screen) -> Result<u8, Failure> {
    let (mut pause, mut said) = (PAUSE_MIN, String::new());
    loop {
        let looked = look(host);
        let cause = match &looked {
            Ok(look) => match chosen(host, look) {
                Ok(reached) => match Pipe::open(&reached) {
                    Ok(_) => {
                        screen.line(&format!("{} is up", escape(&host.name)))?;
                        return Ok(0);
                    }
                    Err(fault) if fault.kind == FaultKind::Away => fault.cause,
                    Err(fault) => return Err(Refusal::from(fault).into()),
                },
                Err(fault) => {
                    // The list may not have it yet.
                    let is_over = look.jobs.iter().any(|job| job.token == token && !job.state.is_live());
                    if is_over {
                        return Err(Refusal::from(fault).into());
                    }
                    fault.cause
                }
            },
            Err(fault) => fault.cause.clone(),
        };
        if cause != said {
            screen.aside("", &cause);
            said = cause;
        }
        if is_interrupted(interrupt, pause)? {
            return Ok(INTERRUPTED);
        }
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Waits for a moment. Slurm tells nobody of changes.
fn is_interrupted(interrupt: &Interrupt, pause: Duration) -> Result<bool, Failure> {
    let ready = wait_any(&[(interrupt.as_fd(), Until::Readable)], Some(Instant::now() + pause))?;
    Ok(ready[0])
}

pub fn stop(args: &HostsStopArgs, screen: &mut Screen) -> Result<u8, Failure> {
    let host = found(std::slice::from_ref(&args.host))?.remove(0);
    let interrupt = Interrupt::catch()?;
    let looked = look(&host).map_err(Refusal::from)?;
    let jobs: Vec<&Job> = looked.jobs.iter().filter(|job| job.state.is_live()).collect();
    if jobs.is_empty() {
        return Err(Refusal::new(RefusalKind::NotFound, format!("{} has no allocation", host.name)).into());
    }
    for job in jobs.iter().filter(|job| job.state != State::Ending) {
        cancel(&host, job, false)?;
    }
    let (deadline, mut pause) = (Instant::now() + STOP_MAX, PAUSE_MIN);
    loop {
        // An answer that does not come is no end.
        let left = look(&host).map(|look| look.jobs.into_iter().filter(|job| job.state.is_live()).collect::<Vec<_>>());
        if left.as_ref().is_ok_and(Vec::is_empty) {
            let ids: Vec<String> = jobs.iter().map(|job| job.id.to_string()).collect();
            screen.line(&format!("ended allocation {} of {}", ids.join(", "), escape(&host.name)))?;
            return Ok(0);
        }
        if Instant::now() >= deadline {
            for job in left.unwrap_or_default().iter().filter(|job| job.state != State::Ending) {
                cancel(&host, job, true)?;
            }
            let cause =
                format!("{} did not end its workers within {} s, and was cancelled", host.name, STOP_MAX.as_secs());
            return Err(Failure::new(RefusalKind::Tool, cause));
        }
        if is_interrupted(&interrupt, pause)? {
            return Ok(INTERRUPTED);
        }
        pause = (pause * 2).min(Duration::from_secs(5));
    }
}

/// Says what is known about Slurm and the allocation of a host, and returns the host as it is reached. Other hosts are
/// returned as they are.
pub fn check(host: &Host, screen: &mut Screen) -> Result<Result<Host, Fault>, Failure> {
    if !host.is_allocation() {
        return Ok(Ok(host.clone()));
    }
    let (version, looked) = match version(host).and_then(|version| Ok((version, look(host)?))) {
        Ok(known) => known,
        Err(fault) => return Ok(Err(fault)),
    };
    let place = host.destination().unwrap_or("this machine");
    screen.line(&format!("{}: {} on {}", escape(&host.name), escape(&version), escape(place)))?;
    let reached = chosen(host, &looked);
    if let (Ok(_), Some(job)) = (&reached, looked.present()) {
        screen.line(&format!("  allocation {}", escape(&Allocation::of_job(job).text())))?;
        // The job has written its token.
        if looked.holder.as_deref() != Some(job.token.as_str()) {
            let (state, node) = (host.state.clone().unwrap_or_default(), job.node.clone().unwrap_or_default());
            let cause = format!("{}: {place} does not see what the job writes to {state} on node {node}", host.name);
            let remedy = Some(format!("set [hosts.{}] state to a directory on a shared file system", host.name));
            return Ok(Err(Fault { kind: FaultKind::Refused, cause, remedy }));
        }
    }
    Ok(reached)
}

#[cfg(test)]
mod tests {
    use swarm_hosts::slurm::jobs::jobs;

    use super::*;

    #[test]
    fn an_allocation_is_shown_with_what_slurm_says() {
        let now = wall_ms() / 1000;
        for (line, text, state) in [
            (format!("12|RUNNING|None|n1|1|{}|", now + 7 * 3600 + 90), "12 running, 7h01m left", "away"),
            (format!("12|RUNNING|None|n1|1|{}|", now + 90), "12 running, 1m left", "away"),
            ("12|PENDING|Resources|n/a|N/A|N/A|".to_owned(), "12 pending (Resources)", "pending"),
            ("12|TIMEOUT|TimeLimit|n1|1|2|".to_owned(), "12 timeout (TimeLimit)", "ended"),
        ] {
            let job = jobs(&format!("{line}swarm.a.0123456789ab"), "a").remove(0);
            let shown = Allocation::of_job(&job);
            assert_eq!((shown.text().as_str(), shown.state_of_host()), (text, state));
        }
    }
}
