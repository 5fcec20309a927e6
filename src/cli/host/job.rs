//! `swarm hosts check` of a host whose workers are jobs of Slurm: submits one that shows what works on a node.

use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use swarm_hosts::Host;
use swarm_hosts::slurm::single::{Cluster, Sent, program_word};
use swarm_hosts::slurm::version;
use swarm_model::{Refusal, RefusalKind};
use swarm_store::views;
use swarm_sys::clock::random_token;
use swarm_sys::files::make_dirs;
use swarm_sys::paths::Paths;
use swarm_sys::quoting::quoted;

use crate::cli::error::Failure;
use crate::cli::render::escape;
use crate::cli::screen::Screen;
use crate::cli::spawn::on::program;

/// Time for a job to begin, and for its file to be seen here.
const JOB_MAX: Duration = Duration::from_secs(120);
/// Pause between two looks for the file. A network file system tells nobody of changes.
const LOOK: Duration = Duration::from_millis(50);
/// File that the job writes.
const FILE: &str = "seen";

/// Returns the number of running workers that are jobs of this host; `None` if it is not known.
pub fn running(host: &Host) -> Option<usize> {
    let registry = views::load(&Paths::from_env().ok()?).ok()?;
    let is_there = |view: &&swarm_model::WorkerView| {
        view.state.is_running() && view.job.as_ref().is_some_and(|job| job.host == host.name)
    };
    Some(registry.workers.iter().filter(is_there).count())
}

/// Checks Slurm, and with a job that the nodes share the state directory and have the program and these agents; returns
/// whether all is well.
pub fn check(host: &Host, agents: &[String], with_job: bool, screen: &mut Screen) -> Result<bool, Failure> {
    let name = escape(&host.name).into_owned();
    match version(host) {
        Ok(version) => screen.line(&format!("{name}: {} on this machine, a job for each worker", escape(&version)))?,
        Err(fault) => {
            screen.refusal(&Refusal::from(fault));
            return Ok(false);
        }
    }
    if !with_job {
        screen.line("  not checked on a node: add --job")?;
        return Ok(true);
    }
    let configured = swarm_config::hosts().map_err(|cause| Failure::new(RefusalKind::Invalid, cause))?;
    let program = program(configured.get(&host.name).unwrap_or(&swarm_config::hosts::HostConfig::default()))?;
    let paths = Paths::from_env().map_err(|error| Failure::system("cannot find the state directory", &error))?;
    let token = random_token();
    let dir = paths.root().join("slurm").join(format!("check.{token}"));
    make_dirs(&dir).map_err(|error| Failure::system("cannot make a directory for the job", &error))?;
    let seen = submitted(host, &dir, &script(&program, agents), &token);
    // A job that begins later can write nothing.
    let _ = std::fs::remove_dir_all(&dir);
    match seen {
        Ok((text, took)) => told(&text, agents, took, screen),
        Err(refusal) => {
            screen.refusal(&refusal);
            Ok(false)
        }
    }
}

/// Returns the script of the job: a line for its node, one for the program, and one for each agent.
fn script(program: &str, agents: &[String]) -> String {
    let mut script = "#!/bin/sh\n{ echo \"node ${SLURMD_NODENAME:-$(hostname)}\"\n".to_owned();
    let _ = writeln!(script, "echo \"program $({} --version 2>&1 | head -n 1)\"", program_word(program));
    for agent in agents {
        let _ = writeln!(script, "echo \"agent $(command -v {})\"", quoted(agent));
    }
    script + "} > seen.tmp && mv seen.tmp seen\n"
}

/// Submits the job, and returns what it wrote, and the time until that was seen.
fn submitted(host: &Host, dir: &Path, script: &str, token: &str) -> Result<(String, Duration), Refusal> {
    let refused = |cause: String| Refusal::new(RefusalKind::Tool, format!("{}: {cause}", host.name));
    let environment: Vec<(String, String)> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    let cluster = Cluster::of(&environment);
    let job = format!("swarm-check.{}", token.get(..12).unwrap_or(token));
    let begun = Instant::now();
    match cluster.submit_script(dir, host.job_arguments().unwrap_or_default(), &job, script) {
        Sent::Job(_) => {}
        Sent::Refused(words) => return Err(refused(format!("Slurm refuses the job: {words}"))),
        Sent::Unknown(why) => return Err(refused(format!("it is not known whether Slurm has the job: {why}"))),
    }
    loop {
        if let Ok(text) = std::fs::read_to_string(dir.join(FILE)) {
            return Ok((text, begun.elapsed()));
        }
        if begun.elapsed() >= JOB_MAX {
            break;
        }
        std::thread::sleep(LOOK);
    }
    let answer = cluster.ask().unwrap_or_default();
    let line = answer.iter().find(|line| line.name == job);
    let said = line.map_or_else(
        || "it is gone".to_owned(),
        |line| {
            let reason = line.reason.as_ref().map(|reason| format!(" ({reason})"));
            format!("Slurm says {}{}", line.word, reason.unwrap_or_default())
        },
    );
    let _ = cluster.cancel(&job, true);
    let refusal = refused(format!("no file of a job was seen within {} seconds: {said}", JOB_MAX.as_secs()));
    Err(refusal.remedy("if the job has run, the nodes do not share this state directory: use engine = \"slurm-pilot\""))
}

/// Prints what the job wrote; returns whether all is well.
fn told(text: &str, agents: &[String], took: Duration, screen: &mut Screen) -> Result<bool, Failure> {
    let mut lines = text.lines();
    let mut next = |key: &str| lines.next().and_then(|line| line.strip_prefix(key)).unwrap_or_default().trim();
    let node = next("node");
    screen.line(&format!("  a job ran on {}, and its file was seen after {} ms", escape(node), took.as_millis()))?;
    let program = next("program");
    let mut is_good = program.starts_with("swarm ");
    screen.line(&format!(
        "  the program there: {}",
        if program.is_empty() { "not found".into() } else { escape(program) }
    ))?;
    for agent in agents {
        let path = next("agent");
        is_good &= !path.is_empty();
        let path = if path.is_empty() { "not found".into() } else { escape(path) };
        screen.line(&format!("  {}: {path}", escape(agent)))?;
    }
    Ok(is_good)
}
