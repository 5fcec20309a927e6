//! `swarm notify test`: whether notifications arrive, each way by itself.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;

use clap::{Args, Subcommand};
use serde_json::json;
use swarm_actors::model::{Refusal, RefusalKind};
use swarm_actors::ports::Clock as _;

use super::error::Failure;
use super::json;
use super::render::escape;
use super::screen::Screen;
use crate::adapters::clock::SystemClock;
use crate::adapters::notify::{Notice, config, deliver};
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
    // The output of a command goes there.
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(paths.root())
        .map_err(|error| Failure::system(format!("cannot make {}", paths.root().display()), &error))?;
    let notice = Notice::test(SystemClock::new().wall_ms());
    let mut results = Vec::new();
    if let Some(command) = &notify.command {
        results.push(("command", deliver::command(paths, command, &notice)));
    }
    if notify.desktop {
        results.push(("desktop", deliver::desktop(paths, &notice)));
    }
    if let Some(url) = &notify.webhook {
        results.push(("webhook", deliver::webhook(url, &notice)));
    }
    let code = u8::from(results.iter().any(|(_, result)| result.is_err()));
    if args.json {
        let one = |(way, result): &(&str, Result<(), String>)| json!({"way": way, "delivered": result.is_ok(), "error": result.as_ref().err()});
        json::print_list(screen, "swarm.notified/1", "ways", results.iter().map(one).collect())?;
        return Ok(code);
    }
    for (way, result) in &results {
        match result {
            Ok(()) => screen.line(&format!("{way}: delivered"))?,
            Err(cause) => screen.line(&format!("{way}: failed: {}", escape(cause)))?,
        }
    }
    Ok(code)
}
