//! Verifies a commit with the user's command. Only its exit code counts as a verdict: a command
//! that was killed by a signal, or could not be run, gives none.

use std::fs::{DirBuilder, OpenOptions};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::PathBuf;
use std::sync::Arc;

use swarm_model::merge::Verdict;
use swarm_model::merge::queue::Item;

use super::scratch::{Edits, Leftovers, Scratch};
use super::{furnish, off_thread, run, scratch, unfit, with_retries};
use crate::landing::workspace::Workspace;
use crate::repository::fault::Fault;
use swarm_ports::Verification;
use swarm_sys::commands::runner::Outcome;

/// Name of the scratch directory for verifications, in the queue's directory.
const SCRATCH: &str = "verify";

/// Returns the path of the log of an item's verifications, or of those of the base on which it failed.
fn log(workspace: &Workspace, item: &Item, kind: Verification) -> PathBuf {
    let of_base = if kind == Verification::Base { ".base" } else { "" };
    workspace.own.join("logs").join(format!("{}{of_base}.log", item.id))
}

pub(crate) async fn verify(
    workspace: Arc<Workspace>,
    item: &Item,
    commit: &str,
    kind: Verification,
) -> Result<Verdict, Fault> {
    let Some(command) = &item.rules.verify else { return Ok(Verdict::Green) };
    let log = log(&workspace, item, kind);
    let leftovers = if kind == Verification::First { Leftovers::Keep } else { Leftovers::Delete };
    let (at, wanted, empty) = (Arc::clone(&workspace), commit.to_owned(), log.clone());
    let rules = item.rules.clone();
    let scratch = off_thread(move || {
        let prepared = open_log(&empty).and_then(|()| {
            let prepare = || {
                let scratch = scratch::prepare(&at, SCRATCH, &wanted, leftovers)?;
                furnish::furnish(&at, &scratch, &rules, leftovers).map(|edits| (scratch, edits))
            };
            with_retries(&|| at.locks(), prepare)
        });
        if prepared.is_err() {
            scratch::free_space(&at, SCRATCH);
        }
        match prepared {
            Err(fault) => unfit::reason(&at, &wanted).map(Err).ok_or(fault),
            Ok(prepared) => Ok(Ok(prepared)),
        }
    });
    let (scratch, set_up) = match scratch.await? {
        Ok(prepared) => prepared,
        Err(why) => return Ok(Verdict::Red(format!("the commit cannot be checked out: {why}"))),
    };
    let variables = [
        ("SWARM_MERGE_COMMIT", commit.to_owned()),
        ("SWARM_MERGE_BASE", workspace.target.base().to_owned()),
        ("SWARM_MERGE_ITEM", item.id.to_string()),
        ("SWARM_MERGE_NAME", item.name.clone()),
    ];
    let order =
        run::Order { dir: &scratch.dir, log: &log, limit_ms: item.rules.timeout_ms, command, variables: &variables };
    let ended = run::run(&workspace, &order).await?;
    let output = (run::last_line(&log), run::output(&ended, &log));
    let verdict = judge(&workspace, (&scratch, &set_up), (ended.outcome, output), item, commit).await?;
    if verdict != Verdict::Green {
        let (at, place, commit) = (Arc::clone(&workspace), scratch.clone(), commit.to_owned());
        off_thread(move || {
            scratch::discard(&at, &place, &commit);
            scratch::free_space(&at, SCRATCH);
            Ok(())
        })
        .await?;
    }
    Ok(verdict)
}

/// Derives the verdict from the end of the command in a scratch worktree, whose setup made these edits.
async fn judge(
    workspace: &Arc<Workspace>,
    (scratch, set_up): (&Scratch, &Edits),
    (outcome, (last, output)): (Outcome, (String, String)),
    item: &Item,
    commit: &str,
) -> Result<Verdict, Fault> {
    let Some(command) = &item.rules.verify else { return Ok(Verdict::Green) };
    let red = |why: String| Ok(Verdict::Red(format!("'{command}' {why}; {output}")));
    match outcome {
        Outcome::Code(0) => {
            let (at, wanted) = (Arc::clone(workspace), commit.to_owned());
            let (place, before) = (scratch.clone(), set_up.clone());
            match off_thread(move || scratch::changed(&at, &place, &wanted, &before)).await? {
                None => Ok(Verdict::Green),
                Some(how) => red(format!("passed, but {how}")),
            }
        }
        Outcome::Code(code) => red(format!("exited with code {code}{last}")),
        Outcome::Timeout => red(format!("timed out after {} s and was killed{last}", item.rules.timeout_ms / 1000)),
        Outcome::Signal(signal) => Ok(Verdict::Unknown(format!("'{command}' was killed by signal {signal}"))),
        Outcome::Unknown(why) => Ok(Verdict::Unknown(why)),
    }
}

/// Creates an empty log, and its directory if needed.
pub(crate) fn open_log(log: &std::path::Path) -> Result<(), Fault> {
    let dir = log.parent().unwrap_or(log);
    DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(Fault::at(dir))?;
    let made = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(log);
    made.map(drop).map_err(Fault::at(log))
}
