//! What is kept and reported of a finished job before its worker is cleaned.

use std::fs;

use swarm_agents::short;
use swarm_model::RowWorktree;
use swarm_model::run::plan::Work;
use swarm_model::run::progress::Now;
use swarm_model::run::words::Word;
use swarm_sys::clock::wall_ms;
use swarm_sys::paths::Paths;

use super::home::Home;
use super::registration::{place, read_any};
use super::{events, order};

/// Maximum number of ignored files that an event names.
const IGNORED_MAX: usize = 100;

/// Moves the logs of a finished command to the home of its run. The log of an agent is there already.
pub(super) fn keep(now: &Now, paths: &Paths) {
    let (home, worker) = (Home::new(&now.plan.home), now.worker());
    if matches!(now.job().work, Work::Spec(_)) {
        if now.job().merge {
            report_ignored(&home, now, paths);
        }
        return report_late(&home, &now.plan.id, &now.job().id);
    }
    for kind in ["stdout", "stderr"] {
        let kept = home.logs().join(format!("{}.{kind}.log", now.job().id));
        let _ = fs::rename(paths.log(&worker, kind), kept);
    }
}

/// Reports the ignored files in the worktree of a finished workstream, which is removed next.
fn report_ignored(home: &Home, now: &Now, paths: &Paths) {
    let Ok(Some(active)) = read_any(&place(paths, &now.plan.home)) else { return };
    let path = home.worktrees().join(now.job().leaf()).to_string_lossy().into_owned();
    let branch = now.job().branch.clone().unwrap_or_default();
    let tree = RowWorktree { path, branch, base_repo: now.plan.root.clone() };
    let mut files = swarm_git::worktrees::ignored_files(&tree, &active.caller);
    files.truncate(IGNORED_MAX);
    if files.is_empty() {
        return;
    }
    let line = events::line(&now.plan.id, &now.job().id, wall_ms(), Word::Ignored { files });
    if let Err(error) = line.and_then(|line| events::report(&home.events(), &line)) {
        tracing::warn!(home = %now.plan.home, %error, "cannot report ignored files");
    }
}

/// Reports messages to an agent that will not have another turn.
fn report_late(home: &Home, run: &str, id: &str) {
    for (file, text) in order::said(&home.context(id)) {
        let word = Word::Context { delivered: false, text: short(&text) };
        let told = events::line(run, id, wall_ms(), word).and_then(|line| events::report(&home.events(), &line));
        if let Err(error) = told.and_then(|()| order::take(&file, false)) {
            tracing::warn!(file = %file.display(), %error, "cannot report a message that came too late");
        }
    }
}
