//! Open requests that the rules allow now.

use std::io;
use std::path::PathBuf;

use swarm_model::asks::judge::Rule;
use swarm_model::asks::rules::AskRule;
use swarm_model::asks::{Ask, AskState};
use swarm_sys::paths::Paths;

use super::present;
use super::rules::rule_with;
use crate::records::started_in;
use crate::runs::order;
use crate::views::load_one;

/// Returns the open requests that the rules allow, by number. If the directory or the run of an agent is not known, its
/// requests stay open.
///
/// # Errors
/// Fails if the requests cannot be read.
pub fn allowed(paths: &Paths) -> io::Result<Vec<Ask>> {
    let open = present::unfinished(paths)?.into_iter().filter(|one| one.state() == AskState::Open);
    Ok(open.map(|one| one.ask).filter(|ask| is_allowed(paths, ask)).collect())
}

fn is_allowed(paths: &Paths, ask: &Ask) -> bool {
    let Some((dir, recorded)) = place(paths, ask) else { return false };
    rule_with(paths, &dir, &recorded, &ask.wish) == Ok(Rule::Allow)
}

/// Returns the directory whose rules apply to an agent, and the rules that its run has recorded.
fn place(paths: &Paths, ask: &Ask) -> Option<(PathBuf, Vec<AskRule>)> {
    let worker = load_one(paths, &ask.who.worker).ok()??;
    if let Some(run) = &ask.who.run {
        let order = order::read_order(order::attempt_of(&worker.row.cmd)?).ok()?;
        let is_its = order.run == *run && Some(&order.job) == ask.who.job.as_ref();
        return is_its.then(|| (ask.cwd.clone().into(), order.rules));
    }
    // The agent may have moved to another directory since.
    let started = started_in(&paths.workers().join(worker.dir?))?;
    Some((started.into(), Vec::new()))
}
