//! `swarm hosts check`: everything that work on a host needs, one sentence per problem.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use swarm_hosts::{Host, Pipe};
use swarm_model::{Refusal, RefusalKind};
use swarm_sys::paths::Paths;

use super::args::HostsCheckArgs;
use super::moved::moved;
use super::several::{Answer, answer_of};
use super::{allocation, found, job, list};
use crate::cli::error::Failure;
use crate::cli::render::escape;
use crate::cli::screen::Screen;

/// Time for the doctor there.
const ANSWER_MAX: Duration = Duration::from_secs(120);
/// Difference between two clocks that is reported.
const SKEW_MAX: Duration = Duration::from_secs(2);

pub fn run(args: &HostsCheckArgs, screen: &mut Screen) -> Result<u8, Failure> {
    let hosts = if args.hosts.is_empty() { list::all()? } else { found(&args.hosts)? };
    if hosts.is_empty() {
        screen.aside("", "no hosts are configured; name a destination for ssh: swarm hosts check me@build1");
    }
    let mut code = 0;
    for host in &hosts {
        let is_good = match host.job_arguments() {
            Some(_) => job::check(host, &args.agents, args.job, screen)?,
            None if args.job => {
                let cause = format!("{} makes no jobs", host.name);
                let refusal = Refusal::new(RefusalKind::Invalid, cause);
                screen.refusal(&refusal.remedy("leave --job out, or name a host with engine = \"slurm\""));
                false
            }
            None => check(host, &args.agents, screen)?,
        };
        code |= u8::from(!is_good);
        screen.flush()?;
    }
    Ok(code)
}

/// Checks one host, and these agents there; returns whether all is well.
fn check(host: &Host, agents: &[String], screen: &mut Screen) -> Result<bool, Failure> {
    let host = &match allocation::check(host, screen)? {
        Ok(reached) => reached,
        Err(fault) => {
            screen.refusal(&Refusal::from(fault));
            return Ok(false);
        }
    };
    let mut pipe = match Pipe::open(host) {
        Ok(pipe) => pipe,
        Err(fault) => {
            screen.refusal(&Refusal::from(fault));
            return Ok(false);
        }
    };
    let hello = pipe.hello.clone();
    screen.line(&format!(
        "{}: swarm {} on {}, connected in {} ms",
        escape(&host.name),
        escape(&hello.version),
        escape(&hello.machine),
        pipe.took.as_millis()
    ))?;
    let mut is_good = true;
    if let Some(skew) = skew(hello.wall_ms).filter(|skew| *skew > SKEW_MAX) {
        is_good = false;
        screen.line(&format!("  its clock differs from this one by {} seconds", skew.as_secs()))?;
    }
    if hello.version != env!("CARGO_PKG_VERSION") {
        screen.line(&format!("  this machine has swarm {}", env!("CARGO_PKG_VERSION")))?;
    }
    is_good &= show(answer_of(&mut pipe, host, &["doctor".to_owned()], ANSWER_MAX), screen)?;
    if let Some(refusal) = Paths::from_env().ok().and_then(|paths| moved(&paths, host)) {
        is_good = false;
        screen.refusal(&refusal);
    }
    for agent in agents {
        // A connection executes one verb.
        let words = ["agents", "--check", agent].map(str::to_owned);
        let answer = Pipe::open(host).map_err(Refusal::from);
        is_good &= show(answer.and_then(|mut pipe| answer_of(&mut pipe, host, &words, ANSWER_MAX)), screen)?;
    }
    Ok(is_good)
}

/// Prints the answer of a verb there; returns whether all is well.
fn show(answer: Result<Answer, Refusal>, screen: &mut Screen) -> Result<bool, Failure> {
    match answer {
        Ok(answer) => {
            for line in String::from_utf8_lossy(&[answer.out, answer.err].concat()).lines() {
                screen.line(&format!("  {}", escape(line)))?;
            }
            Ok(answer.code == 0)
        }
        Err(refusal) => {
            screen.refusal(&refusal);
            Ok(false)
        }
    }
}

fn skew(wall_ms: u64) -> Option<Duration> {
    let there = UNIX_EPOCH + Duration::from_millis(wall_ms);
    let here = SystemTime::now();
    here.duration_since(there).or_else(|_| there.duration_since(here)).ok()
}
