//! `swarm respawn`.

use swarm_actors::model::{Answer, RespawnRequest};

use super::answers::{Told, no_answer};
use super::args::RespawnArgs;
use super::caller;
use super::error::{Failure, unknown_worker};
use super::screen::Screen;
use crate::adapters::loops;
use crate::api::client::post;
use crate::paths::Paths;

pub fn run(args: &RespawnArgs, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    let registry = super::read_one(paths, &args.name, screen)?;
    if registry.find(&args.name).is_none() {
        return Err(unknown_worker(&args.name, &registry));
    }
    let request = RespawnRequest {
        caller: caller::collect()?.caller,
        name: args.name.clone(),
        clean_first: args.clean_first,
        force_dirty: args.force_dirty,
    };
    let (mut told, mut settled) = (Told::new(args.json), false);
    post(paths, "/v1/respawn", &request, &mut |answer| {
        settled |= matches!(answer, Answer::Spawned(_) | Answer::Refused(_));
        told.tell(answer, "respawned", screen);
    })?;
    let code = told.end("swarm.respawned/1", screen)?;
    if code == 0 && loops::is_over(paths, &args.name) {
        screen.aside("note: ", "its ralph loop is over and gives it no prompt: it is a worker like any other now");
    }
    if settled { Ok(code) } else { Err(no_answer()) }
}
