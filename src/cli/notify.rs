//! `swarm notify test`: whether notifications arrive, each way by itself.

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
use crate::adapters::clock::SystemClock;
use crate::adapters::notify::{Failed, Notice, Way, config, deliver};
use crate::paths::Paths;

#[derive(Debug, Args)]
pub struct NotifyArgs {
    #[command(subcommand)]
    pub action: NotifyAction,
}

#[derive(Debug, Subcommand)]
pub enum NotifyAction {
    /// Send one by each way that is configured (exit code 1 when one fails)
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
    let notify = config::read(&path).map_err(|cause| refused(cause).remedy("mend the file, then try again"))?;
    if notify.is_empty() {
        let remedy =
            format!("in {}: [notify] with command = \"…\", desktop = true or webhook = \"http://…\"", path.display());
        return Err(refused("no notifications are configured".to_owned()).remedy(remedy).into());
    }
    // A command is run there.
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(paths.root())
        .map_err(|error| Failure::system(format!("cannot make {}", paths.root().display()), &error))?;
    let notice = Notice::test(SystemClock::new().wall_ms());
    // Side by side, as one may take its whole time.
    let results: Vec<(Way, Result<(), Failed>)> = thread::scope(|scope| {
        let (notify, notice) = (&notify, &notice);
        let begun = Way::ALL.map(|way| (way, scope.spawn(move || deliver::by(way, paths, notify, notice))));
        let done = begun.into_iter().filter_map(|(way, begun)| {
            let panicked = |_| Some(Err(Failed::for_good("swarm failed")));
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

/// With what the command said: the person who configured it looks for the reason.
fn whole(failed: &Failed) -> String {
    let Failed { cause, output, .. } = failed;
    if output.is_empty() { cause.clone() } else { format!("{cause}: {output}") }
}
