//! `swarm hosts drain`, `resume` and `forget`: hosts that are not to be used, or are gone for good.

use swarm_model::{Refusal, RefusalKind};
use swarm_sys::paths::Paths;

use super::args::HostsForgetArgs;
use crate::cli::error::Failure;
use crate::cli::render::escape;
use crate::cli::screen::Screen;
use crate::reach::drained;
use crate::reach::owed::{self, Owed};

/// Number of attempts that a refusal names.
const NAMED_MAX: usize = 10;

/// Lets runs start nothing new on a host, or ends that.
pub fn drain(host: &str, is_drained: bool, screen: &mut Screen) -> Result<u8, Failure> {
    let paths = checked(host)?;
    drained::set(&paths, host, is_drained).map_err(|error| Failure::system("cannot record it", &error))?;
    let host = escape(host);
    let line = match is_drained {
        true => format!("{host} is drained: runs start nothing new there; 'swarm hosts resume {host}' ends that"),
        false => format!("runs may use {host}"),
    };
    screen.line(&line)?;
    Ok(0)
}

/// Forgets what a host was still to be told.
pub fn forget(args: &HostsForgetArgs, screen: &mut Screen) -> Result<u8, Failure> {
    let paths = checked(&args.host)?;
    let all = owed::of_host(&paths, &args.host);
    let host = escape(&args.host);
    if !args.force && !all.is_empty() {
        let refusal = Refusal::new(RefusalKind::Running, refused(&host, all.iter().map(|(_, owed)| owed)));
        let remedy = "a run that reaches the host gets and removes that; with --force it stays there";
        return Err(refusal.remedy(remedy).into());
    }
    for (file, _) in &all {
        owed::settle(file);
    }
    drained::set(&paths, &args.host, false).map_err(|error| Failure::system("cannot forget it", &error))?;
    let left = if all.is_empty() { "" } else { "; what it has of runs stays there, below far/ in its state directory" };
    screen.line(&format!("forgot {host}{left}"))?;
    Ok(0)
}

/// Returns what a host is still to be told.
fn refused<'a>(host: &str, all: impl Iterator<Item = &'a Owed>) -> String {
    let named = |owed: &Owed| owed.at().map(|at| format!("{}.{}", at.job, at.attempt)).unwrap_or_default();
    let (work, others): (Vec<&Owed>, Vec<&Owed>) = all.partition(|owed| owed.brings.is_some());
    let (running, files): (Vec<&Owed>, Vec<&Owed>) = others.into_iter().partition(|owed| owed.to_stop().is_some());
    let listed = |some: &[&Owed]| some.iter().take(NAMED_MAX).map(|owed| named(owed)).collect::<Vec<_>>().join(", ");
    let (work, running) = (("work that is not here", &work), ("attempts that were stopped", &running));
    let parts = [work, running, ("files of finished workstreams", &files)].into_iter();
    let parts = parts.filter(|(_, some)| !some.is_empty()).map(|(what, some)| format!("{what} ({})", listed(some)));
    format!("{host} may still have {}", parts.collect::<Vec<_>>().join(" and "))
}

fn checked(host: &str) -> Result<Paths, Failure> {
    let configured = swarm_config::hosts().map_err(|cause| Failure::new(RefusalKind::Invalid, cause))?;
    swarm_hosts::find(host, &configured)?;
    Paths::from_env().map_err(|error| Failure::system("cannot find the state directory", &error))
}
