//! `swarm run context`: messages to the agents of a run.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use serde_json::json;
use swarm_agents::short;
use swarm_model::run::plan::{Seats, Work};
use swarm_model::run::progress::{Now, Stage};
use swarm_model::{Refusal, RefusalKind};
use swarm_store::runs::far::FarText;
use swarm_store::runs::home::{Home, make_all};
use swarm_store::runs::journal;
use swarm_store::runs::origin::RECORDS;
use swarm_sys::files::replace_durably;
use swarm_sys::paths::Paths;

use super::args::ContextArgs;
use super::own::refuse_brought_along;
use crate::cli::caller;
use crate::cli::error::Failure;
use crate::cli::host::one;
use crate::cli::json;
use crate::cli::render::escape;
use crate::cli::screen::Screen;
use crate::processes::far::say;
use crate::reach;

/// Maximum size of a message to an agent, in bytes.
const CONTEXT_BYTES_MAX: u64 = 1 << 20;
/// The same for an agent on a host, which gets it as an argument.
const FAR_BYTES_MAX: usize = 64 << 10;

/// Stores a message for an agent in a file, which is delivered when the agent's next turn starts. If it works on a host, the
/// message is passed on; the file stays until the host says that it was delivered.
pub fn context(args: &ContextArgs, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    let home = super::home(args.home.as_deref())?;
    refuse_brought_along(&home, &RECORDS, &caller::collect()?.caller, paths)?;
    super::check_version(&home)?;
    let run = journal::replay(&home).map_err(|cause| Failure::new(RefusalKind::Invalid, cause))?;
    let known = run.as_ref().and_then(|run| run.plan.position(&args.id).map(|at| run.now(at)));
    let Some(now) = known else {
        let names = run.as_ref().map(|run| run.plan.jobs.iter().map(|job| job.id.as_str()).collect::<Vec<_>>());
        let near = names.and_then(|names| swarm_model::nearest(&args.id, names).map(str::to_owned));
        let mut refusal = Refusal::new(RefusalKind::NotFound, format!("workstream '{}' not found", args.id));
        refusal.remedy = near.map(|near| format!("did you mean '{near}'?"));
        return Err(refusal.into());
    };
    let stage = &now.progress.stage;
    if matches!(stage, Stage::Done | Stage::Failed | Stage::Finishing | Stage::Merging | Stage::Waiting) {
        let cause = format!("workstream '{}' is {}: its agent has no further turn", args.id, stage.word());
        return Err(Failure::new(RefusalKind::Invalid, cause));
    }
    let text = text(&args.text)?;
    let host = host_of(&now);
    if host.is_some() && text.len() > FAR_BYTES_MAX {
        let cause = format!("the message is longer than {FAR_BYTES_MAX} bytes, the most for an agent on another host");
        return Err(Failure::new(RefusalKind::Invalid, cause));
    }
    let (path, name) = leave(&home, &args.id, &text)?;
    if let Some(host) = host {
        pass_on(&now, host, &FarText { name, text: text.clone() }, paths, screen)
            .map_err(|failure| kept(failure, host))?;
    }
    if args.json {
        json::print(screen, "swarm.run-context/1", &json!({"workstream": args.id, "file": path, "text": text}))?;
    } else {
        screen.line(&format!("{} gets this at its next turn: {}", escape(&args.id), escape(&short(&text))))?;
    }
    Ok(0)
}

/// Returns the host on which the attempt works.
fn host_of(now: &Now) -> Option<&str> {
    let is_there = now.progress.sent && now.progress.stage == Stage::Working && matches!(now.job().work, Work::Spec(_));
    now.progress.host.as_deref().filter(|host| is_there && *host != Seats::LOCAL)
}

/// Leaves a message on the host of an attempt.
fn pass_on(now: &Now, host: &str, message: &FarText, paths: &Paths, screen: &mut Screen) -> Result<(), Failure> {
    let invalid = |cause: String| Failure::new(RefusalKind::Invalid, cause);
    let configured = swarm_config::hosts().map_err(invalid)?;
    let found = swarm_hosts::find(host, &configured)?;
    let at = reach::attempt_there(paths, now, host, &caller::collect()?.caller).map_err(invalid)?;
    match one::pass(&found, &say::words(&at, message), screen, &mut |_, _| Ok(()))? {
        0 => Ok(()),
        _ => Err(invalid(format!("{host} did not take it"))),
    }
}

/// Returns the failure for a message that did not arrive on a host.
fn kept(failure: Failure, host: &str) -> Failure {
    let Refusal { kind, cause, .. } = failure.into_refusal();
    let refusal = Refusal::new(kind, format!("the agent on {host} does not get this: {cause}"));
    refusal.remedy("the message is kept; if there is another attempt, it begins with it").into()
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

/// Writes a message, and returns its file and its name.
fn leave(home: &Home, id: &str, text: &str) -> Result<(PathBuf, String), Failure> {
    let dir = home.context(id);
    // Named by time, so that messages are delivered in order.
    let name = format!("{:020}", jiff::Timestamp::now().as_nanosecond());
    let file = format!("{name}.md");
    let written = home.check_links().and_then(|()| make_all(&dir));
    let written = written.and_then(|()| replace_durably(&dir, &file, text.as_bytes()));
    written.map_err(|error| Failure::system(format!("cannot write to {}", Path::new(&dir).display()), &error))?;
    Ok((dir.join(file), name))
}
