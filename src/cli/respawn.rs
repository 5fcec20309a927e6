//! `swarm respawn`: asks the supervisor to start workers again with their original settings.

use swarm_model::{Answer, RespawnRequest};

use super::answers::{Answers, no_answer};
use super::args::RespawnArgs;
use super::caller;
use super::error::{Failure, unknown_worker};
use super::screen::Screen;
use super::trust::again;
use crate::api::client::post_raw;
use swarm_store::loops;
use swarm_store::views::Registry;
use swarm_sys::paths::Paths;

pub fn run(args: &RespawnArgs, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    let registry = super::read_for(paths, args.name.as_deref(), screen)?;
    let names = names(args, &registry)?;
    let workers: Vec<_> = names.iter().filter_map(|name| registry.find(name)).collect();
    again::require(&workers, args.clean_first, paths, screen)?;
    let mut told = Answers::new(args.json);
    for name in &names {
        let request = RespawnRequest {
            caller: caller::collect()?.caller,
            name: name.clone(),
            clean_first: args.clean_first,
            force_dirty: args.force_dirty,
            generation: args.generation,
        };
        let (mut settled, mut refused) = (false, false);
        post_raw(paths, &request, &mut |answer| {
            refused |= matches!(answer, Answer::Refused(_));
            settled |= matches!(answer, Answer::Spawned(_) | Answer::Refused(_));
            told.tell(answer, "respawned", screen);
        })?;
        if !settled {
            return Err(no_answer());
        }
        if !refused && loops::is_over(paths, name) {
            let note = format!(
                "the ralph loop for '{name}' has ended, so the worker gets no prompt and runs as a plain worker"
            );
            screen.aside("note: ", &note);
        }
    }
    told.end("swarm.respawned/1", screen)
}

fn names(args: &RespawnArgs, registry: &Registry) -> Result<Vec<String>, Failure> {
    match &args.name {
        Some(name) if registry.find(name).is_none() => Err(unknown_worker(name, registry)),
        Some(name) => {
            registry.find(name).map_or(Ok(()), super::refuse_elsewhere)?;
            Ok(vec![name.clone()])
        }
        None => args.tagged.names(registry),
    }
}
