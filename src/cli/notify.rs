//! `swarm notify test`: sends a test notification through each configured channel and reports the results.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::thread;

use clap::{Args, Subcommand};
use serde_json::json;
use swarm_model::{Refusal, RefusalKind};
use swarm_ports::Clock as _;

use super::error::Failure;
use super::json;
use super::render::escape;
use super::screen::Screen;
use crate::notify::{Failed, Notice, Way, config, deliver};
use swarm_sys::clock::SystemClock;
use swarm_sys::paths::Paths;

#[derive(Debug, Args)]
pub struct NotifyArgs {
    #[command(subcommand)]
    pub action: NotifyAction,
}

#[derive(Debug, Subcommand)]
pub enum NotifyAction {
    /// Send a test notification through each configured channel (exit code 1: one failed)
    Test(TestArgs),
}

#[derive(Debug, Args)]
pub struct TestArgs {
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

pub fn run(action: &NotifyAction, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    let NotifyAction::Test(args) = action;
    let refused = |cause: String| Refusal::new(RefusalKind::Invalid, cause);
    let path = config::path().ok_or_else(|| refused("neither XDG_CONFIG_HOME nor HOME is set".to_owned()))?;
    let notify = config::read(&path).map_err(|cause| refused(cause).remedy("fix the file and try again"))?;
    if notify.is_empty() {
        let remedy = format!("set command, desktop or webhook under [notify] in {}", path.display());
        return Err(refused("no notifications are configured".to_owned()).remedy(remedy).into());
    }
    // A notification command runs in this directory.
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(paths.root())
        .map_err(|error| Failure::system(format!("cannot create {}", paths.root().display()), &error))?;
    let notice = Notice::test(SystemClock::new().wall_ms());
    // In parallel, because a slow one may use its whole time limit.
    let results: Vec<(Way, Result<(), Failed>)> = thread::scope(|scope| {
        let (notify, notice) = (&notify, &notice);
        let begun = Way::ALL.map(|way| (way, scope.spawn(move || deliver::by(way, paths, notify, notice))));
        let done = begun.into_iter().filter_map(|(way, begun)| {
            let panicked = |_| Some(Err(Failed::for_good("internal error")));
            Some((way, begun.join().unwrap_or_else(panicked)?))
        });
        done.collect()
    });
    let code = u8::from(results.iter().any(|(_, result)| result.is_err()));
    if args.json {
        let one = |(way, result): &(Way, Result<(), Failed>)| json!({"way": way, "delivered": result.is_ok(), "error": result.as_ref().err().map(whole)});
        json::print_list(screen, "swarm.notified/1", "ways", results.iter().map(one).collect())?;
        return Ok(code);
    }
    for (way, result) in &results {
        match result {
            Ok(()) => screen.line(&format!("{}: delivered", way.name()))?,
            Err(failed) => screen.line(&format!("{}: failed: {}", way.name(), escape(&whole(failed))))?,
        }
    }
    Ok(code)
}

/// Returns the cause with the output of the command, which helps the person who configured it.
fn whole(failed: &Failed) -> String {
    let Failed { cause, output, .. } = failed;
    if output.is_empty() { cause.clone() } else { format!("{cause}: {output}") }
}
