//! What a person does to a run by hand: clearing up after it, talking to an agent.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use serde_json::json;
use swarm_actors::model::{Answer, Caller, CleanRequest, Refusal, RefusalKind, Scope};
use swarm_actors::run::progress::Stage;
use swarm_actors::run::worker_name;

use super::args::{ContextArgs, Plain};
use crate::adapters::git;
use crate::adapters::records::write_durably;
use crate::adapters::runs::home::{Home, make_all};
use crate::adapters::runs::journal;
use crate::adapters::{process, procfs};
use crate::agents::short;
use crate::api::client;
use crate::cli::caller;
use crate::cli::error::Failure;
use crate::cli::json;
use crate::cli::render::escape;
use crate::cli::screen::Screen;
use crate::paths::Paths;

/// Longest thing to say to an agent, in bytes.
const CONTEXT_BYTES_MAX: u64 = 1 << 20;

/// `swarm run cleanup`: what is done needs neither worktree nor branch, and what is
/// pending and was never begun has none. Work that is nowhere else stays.
pub fn run(args: &Plain, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    let home = super::home(args.home.as_deref())?;
    let lock = super::plan::alone(&home, paths)?;
    let caller = caller::collect()?.caller;
    let run = journal::replay(&home).map_err(|cause| Failure::new(RefusalKind::Invalid, cause))?;
    let mut removed: Vec<String> = Vec::new();
    let mut kept: Vec<(String, String)> = Vec::new();
    for (job, progress) in run.iter().flat_map(|run| run.plan.jobs.iter().zip(&run.jobs)) {
        let Some(run) = &run else { break };
        let Some(branch) = &job.branch else { continue };
        if progress.stage == Stage::Done || progress.stage == Stage::Failed {
            let name = worker_name(&run.plan.slug, &job.id);
            clean(&name, &caller, paths, &mut kept)?;
        }
        let tree = home.worktrees().join(&job.id);
        if tree.exists() {
            match git::remove_worktree_if_spare(&job.id, &tree, Path::new(&run.plan.root), &caller) {
                Ok(()) => removed.push(tree.to_string_lossy().into_owned()),
                Err(cause) => kept.push((tree.to_string_lossy().into_owned(), cause)),
            }
        }
        let base = run.plan.base.clone().unwrap_or_default();
        if git::remove_landed_branch(Path::new(&run.plan.root), branch, &base, &caller) == Ok(true) {
            removed.push(branch.clone());
        }
    }
    drop(lock);
    if args.json {
        let kept: Vec<_> = kept.iter().map(|(what, why)| json!({"path": what, "reason": why})).collect();
        json::print(screen, "swarm.run-cleanup/1", &json!({"removed": removed, "kept": kept}))?;
        return Ok(0);
    }
    removed.iter().try_for_each(|what| screen.line(&format!("removed {}", escape(what))))?;
    kept.iter().for_each(|(what, why)| screen.aside("note: ", &format!("{what} stays: {why}")));
    Ok(0)
}

/// Forgets a worker; its worktree is looked at on its own.
fn clean(name: &str, caller: &Caller, paths: &Paths, kept: &mut Vec<(String, String)>) -> Result<(), Failure> {
    let caller = Caller { request: crate::adapters::clock::random_token(), ..caller.clone() };
    let scope = Scope::Name(name.to_owned());
    let request = CleanRequest { caller, scope, rm_worktree: false, force_dirty: false };
    client::post(paths, "/v1/clean", &request, &mut |answer| {
        if let Answer::Refused(refusal) = answer
            && refusal.kind != RefusalKind::NotFound
        {
            kept.push((name.to_owned(), refusal.cause));
        }
    })?;
    Ok(())
}

/// `swarm run context`: it waits in a file until the agent's next turn begins.
pub fn context(args: &ContextArgs, screen: &mut Screen) -> Result<u8, Failure> {
    let home = super::home(args.home.as_deref())?;
    let run = journal::replay(&home).map_err(|cause| Failure::new(RefusalKind::Invalid, cause))?;
    let known = run.as_ref().and_then(|run| run.plan.position(&args.id).map(|at| &run.jobs[at]));
    let Some(progress) = known else {
        let names = run.as_ref().map(|run| run.plan.jobs.iter().map(|job| job.id.as_str()).collect::<Vec<_>>());
        let near = names.and_then(|names| swarm_actors::model::nearest(&args.id, names).map(str::to_owned));
        let mut refusal = Refusal::new(RefusalKind::NotFound, format!("there is no workstream '{}'", args.id));
        refusal.remedy = near.map(|near| format!("did you mean '{near}'?"));
        return Err(refusal.into());
    };
    if matches!(progress.stage, Stage::Done | Stage::Failed | Stage::Finishing | Stage::Merging | Stage::Waiting) {
        let cause = format!("workstream '{}' is {}, its agent has no turn to come", args.id, progress.stage.word());
        return Err(Failure::new(RefusalKind::Invalid, cause));
    }
    let text = text(&args.text)?;
    let path = leave(&home, &args.id, &text)?;
    if args.json {
        json::print(screen, "swarm.run-context/1", &json!({"workstream": args.id, "file": path, "text": text}))?;
    } else {
        screen.line(&format!("{} is told at its next turn: {}", escape(&args.id), escape(&short(&text))))?;
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
        return Err(Failure::new(RefusalKind::Invalid, format!("that is more than {CONTEXT_BYTES_MAX} bytes")));
    }
    if text.trim().is_empty() {
        return Err(Failure::new(RefusalKind::Invalid, "there is nothing in it to be said"));
    }
    Ok(text)
}

fn leave(home: &Home, id: &str, text: &str) -> Result<PathBuf, Failure> {
    let dir = home.context(id);
    // In the order in which it was said.
    let at = jiff::Timestamp::now().as_nanosecond();
    let name = format!("{at:020}.md");
    let written = make_all(&dir).and_then(|()| write_durably(&dir, &name, text.as_bytes()));
    written.map_err(|error| Failure::system(format!("cannot write to {}", dir.display()), &error))?;
    Ok(dir.join(name))
}

/// The second Ctrl-C: no time to clear up is given any more. Of each worker its name
/// and the number of its process, which may be another one's by now.
pub fn kill_now(workers: impl Iterator<Item = (String, i32)>) {
    let boot = procfs::boot_id();
    for (name, pid) in workers {
        let Some(process) = procfs::identity(pid, &boot).and_then(|identity| process::pidfd(&identity, &boot)) else {
            continue;
        };
        // Looked at behind the handle: what is read here is of that process or it is gone.
        let own = format!("SWARM_WORKER={name}");
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        if environment.split(|byte| *byte == 0).any(|one| one == own.as_bytes()) {
            let _ = rustix::process::pidfd_send_signal(&process, rustix::process::Signal::KILL);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;

    fn sleeper(worker: &str) -> Child {
        let mut command = Command::new("cat");
        command.env("SWARM_WORKER", worker).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("started")
    }

    #[test]
    fn only_the_process_that_is_the_worker_is_killed() {
        let pid = |child: &Child| i32::try_from(child.id()).expect("a pid");
        let (mut ours, mut theirs) = (sleeper("p.a"), sleeper("q.a"));
        // The number of p.b's process has become another one's.
        kill_now([("p.a".to_owned(), pid(&ours)), ("p.b".to_owned(), pid(&theirs))].into_iter());
        assert_eq!(ours.wait().expect("waited").code(), None, "ended by the signal");
        drop(theirs.stdin.take());
        assert_eq!(theirs.wait().expect("waited").code(), Some(0), "it ended by itself");
    }
}
