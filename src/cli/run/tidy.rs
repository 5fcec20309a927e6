//! `swarm run cleanup` and `context`: cleaning up after a run, and messages to its agents.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::json;
use swarm_model::run::progress::{Run, Stage};
use swarm_model::run::worker_name;
use swarm_model::{Answer, Caller, CleanRequest, Refusal, RefusalKind, Scope};

use super::args::{ContextArgs, Plain};
use crate::api::client;
use crate::cli::caller;
use crate::cli::error::Failure;
use crate::cli::json;
use crate::cli::render::escape;
use crate::cli::screen::Screen;
use swarm_agents::short;
use swarm_store::runs::home::{Home, make_all};
use swarm_store::runs::journal;
use swarm_store::views::{Detail, Pick, load_where};
use swarm_sys::files::replace_durably;
use swarm_sys::paths::Paths;
use swarm_sys::procfs;

/// Maximum size of a message to an agent, in bytes.
const CONTEXT_BYTES_MAX: u64 = 1 << 20;

/// Removes worktrees and branches that no workstream needs: those of done ones, and leftovers. Work that exists nowhere
/// else is kept.
pub fn run(args: &Plain, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    let home = super::home(args.home.as_deref())?;
    let lock = super::plan::alone(&home, paths)?;
    let caller = caller::collect()?.caller;
    let run = journal::replay(&home).map_err(|cause| Failure::new(RefusalKind::Invalid, cause))?;
    let mut removed: Vec<String> = Vec::new();
    let mut kept: Vec<(String, String)> = Vec::new();
    for (job, progress) in run.iter().flat_map(|run| run.plan.jobs.iter().zip(&run.jobs)) {
        let Some(run) = &run else { break };
        if progress.stage == Stage::Done || progress.stage == Stage::Failed {
            let name = worker_name(&run.plan.slug, &job.id);
            clean(&name, &caller, paths, &mut kept)?;
        }
        if let Some(branch) = &job.branch {
            spare(&home, run, &job.id, branch, &caller, (&mut removed, &mut kept));
        }
    }
    for (run, id) in run.iter().flat_map(|run| forgotten(&home, run).into_iter().map(move |id| (run, id))) {
        // A running worker is not a leftover: its worktree and branch are kept.
        if clean(&worker_name(&run.plan.slug, &id), &caller, paths, &mut kept)? {
            spare(&home, run, &id, &format!("arial/{id}"), &caller, (&mut removed, &mut kept));
        }
    }
    drop(lock);
    if args.json {
        let kept: Vec<_> = kept.iter().map(|(what, why)| json!({"path": what, "reason": why})).collect();
        json::print(screen, "swarm.run-cleanup/1", &json!({"removed": removed, "kept": kept}))?;
        return Ok(0);
    }
    removed.iter().try_for_each(|what| screen.line(&format!("removed {}", escape(what))))?;
    kept.iter().for_each(|(what, why)| screen.aside("note: ", &format!("kept {what}: {why}")));
    Ok(0)
}

/// Returns the ids of workstreams of earlier plans, found by their worktrees.
fn forgotten(home: &Home, run: &Run) -> Vec<String> {
    let trees = fs::read_dir(home.worktrees()).into_iter().flatten().flatten();
    let names = trees.filter_map(|tree| tree.file_name().into_string().ok());
    names.filter(|id| run.plan.position(id).is_none()).collect()
}

/// Removes the worktree and the branch of a workstream unless they hold work that exists nowhere else.
fn spare(
    home: &Home,
    run: &Run,
    id: &str,
    branch: &str,
    caller: &Caller,
    (removed, kept): (&mut Vec<String>, &mut Vec<(String, String)>),
) {
    let (tree, root) = (home.worktrees().join(id), Path::new(&run.plan.root));
    if tree.exists() {
        match swarm_store::repositories::remove_worktree_if_spare(id, &tree, root, caller) {
            Ok(()) => removed.push(tree.to_string_lossy().into_owned()),
            Err(cause) => kept.push((tree.to_string_lossy().into_owned(), cause)),
        }
    }
    let base = run.plan.base.clone().unwrap_or_default();
    if swarm_store::repositories::remove_landed_branch(root, branch, &base, caller) == Ok(true) {
        removed.push(branch.to_owned());
    }
}

/// Deletes a worker without its worktree, which is handled separately. Returns false if the worker is kept.
fn clean(name: &str, caller: &Caller, paths: &Paths, kept: &mut Vec<(String, String)>) -> Result<bool, Failure> {
    let caller = Caller { request: swarm_sys::clock::random_token(), ..caller.clone() };
    let scope = Scope::Names(vec![name.to_owned()]);
    let request = CleanRequest { caller, scope, rm_worktree: false, force_dirty: false };
    let mut is_gone = true;
    client::post(paths, "/v1/clean", &request, &mut |answer| {
        if let Answer::Refused(refusal) = answer
            && refusal.kind != RefusalKind::NotFound
        {
            is_gone = false;
            kept.push((name.to_owned(), refusal.cause));
        }
    })?;
    Ok(is_gone)
}

/// Stores a message for an agent in a file, which is delivered when the agent's next turn starts.
pub fn context(args: &ContextArgs, screen: &mut Screen) -> Result<u8, Failure> {
    let home = super::home(args.home.as_deref())?;
    let run = journal::replay(&home).map_err(|cause| Failure::new(RefusalKind::Invalid, cause))?;
    let known = run.as_ref().and_then(|run| run.plan.position(&args.id).map(|at| &run.jobs[at]));
    let Some(progress) = known else {
        let names = run.as_ref().map(|run| run.plan.jobs.iter().map(|job| job.id.as_str()).collect::<Vec<_>>());
        let near = names.and_then(|names| swarm_model::nearest(&args.id, names).map(str::to_owned));
        let mut refusal = Refusal::new(RefusalKind::NotFound, format!("workstream '{}' not found", args.id));
        refusal.remedy = near.map(|near| format!("did you mean '{near}'?"));
        return Err(refusal.into());
    };
    if matches!(progress.stage, Stage::Done | Stage::Failed | Stage::Finishing | Stage::Merging | Stage::Waiting) {
        let cause = format!("workstream '{}' is {}: its agent has no further turn", args.id, progress.stage.word());
        return Err(Failure::new(RefusalKind::Invalid, cause));
    }
    let text = text(&args.text)?;
    let path = leave(&home, &args.id, &text)?;
    if args.json {
        json::print(screen, "swarm.run-context/1", &json!({"workstream": args.id, "file": path, "text": text}))?;
    } else {
        screen.line(&format!("{} gets this at its next turn: {}", escape(&args.id), escape(&short(&text))))?;
    }
    Ok(0)
}

fn text(typed: &str) -> Result<String, Failure> {
    let mut text = typed.to_owned();
    if typed == "-" {
        text.clear();
        let mut input = std::io::stdin().lock().take(CONTEXT_BYTES_MAX + 1);
        input.read_to_string(&mut text).map_err(|error| Failure::system("cannot read standard input", &error))?;
    }
    if text.len() as u64 > CONTEXT_BYTES_MAX {
        return Err(Failure::new(
            RefusalKind::Invalid,
            format!("the message is longer than {CONTEXT_BYTES_MAX} bytes"),
        ));
    }
    if text.trim().is_empty() {
        return Err(Failure::new(RefusalKind::Invalid, "the message is empty"));
    }
    Ok(text)
}

fn leave(home: &Home, id: &str, text: &str) -> Result<PathBuf, Failure> {
    let dir = home.context(id);
    // Named by time, so that messages are delivered in order.
    let at = jiff::Timestamp::now().as_nanosecond();
    let name = format!("{at:020}.md");
    let written = make_all(&dir).and_then(|()| replace_durably(&dir, &name, text.as_bytes()));
    written.map_err(|error| Failure::system(format!("cannot write to {}", dir.display()), &error))?;
    Ok(dir.join(name))
}

/// Kills all processes of these workers at once, without time to clean up (second Ctrl-C).
pub fn kill_now(paths: &Paths, names: &[String]) {
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let Ok(registry) = load_where(paths, Detail::Word, Pick::Named(&names)) else { return };
    let tokens = registry.workers.iter().filter_map(|view| view.row.swarm()).map(|meta| meta.id.clone());
    kill_marked(&tokens.collect::<Vec<_>>());
}

/// Kills every process whose environment names one of these launch tokens.
fn kill_marked(tokens: &[String]) {
    let marks: Vec<Vec<u8>> = tokens.iter().map(|token| format!("SWARM_TOKEN={token}").into_bytes()).collect();
    let is_marked = |pid: i32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|one| marks.iter().any(|mark| mark == one))
    };
    // The second pass finds processes that were started during the first; the shim ends the rest.
    for _ in 0..2 {
        for pid in procfs::all().unwrap_or_default().into_iter().filter(|pid| is_marked(*pid)) {
            let Some(process) = Pid::from_raw(pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()) else {
                continue;
            };
            // Checked again after the pidfd was opened, so that the check is about the process that is signalled.
            if is_marked(pid) {
                let _ = pidfd_send_signal(&process, Signal::KILL);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::{Child, Command, Stdio};

    use super::*;

    fn marked(token: &str) -> Child {
        let mut command = Command::new("cat");
        command.env("SWARM_TOKEN", token).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("started")
    }

    #[test]
    fn only_what_a_worker_started_is_killed() {
        let (own, other) = (swarm_sys::clock::random_token(), swarm_sys::clock::random_token());
        let (mut ours, mut theirs) = (marked(&own), marked(&other));
        kill_marked(&[own]);
        assert_eq!(ours.wait().expect("waited").signal(), Some(9));
        drop(theirs.stdin.take());
        assert_eq!(theirs.wait().expect("waited").code(), Some(0), "it ended by itself");
    }
}
