//! `swarm flow events` and `rm`.

use serde_json::{Map, Value};
use swarm_actors::model::{Refusal, RefusalKind};

use super::args::FlowOf;
use crate::cli::error::Failure;
use crate::cli::json;
use crate::cli::render::escape;
use crate::cli::screen::Screen;

pub fn events(args: &FlowOf, screen: &mut Screen) -> Result<u8, Failure> {
    for event in super::flow_of(args)?.events()? {
        if args.common.json {
            json::print(screen, "swarm.flow.event/1", &event)?;
        } else {
            screen.line(&escape(&line(&event)))?;
        }
    }
    Ok(0)
}

/// `TIME KIND KEY=VALUE …`
fn line(event: &Map<String, Value>) -> String {
    let word = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let first = ["time", "kind"].into_iter().filter_map(|key| event.get(key)).map(word);
    let others = event.iter().filter(|(key, _)| !["time", "kind"].contains(&key.as_str()));
    first.chain(others.map(|(key, value)| format!("{key}={}", word(value)))).collect::<Vec<_>>().join(" ")
}

pub fn remove(args: &FlowOf, screen: &mut Screen) -> Result<u8, Failure> {
    let files = super::flow_of(args)?;
    let id = files.id();
    if !files.remove()? {
        let refusal = Refusal::new(RefusalKind::Running, format!("{id} is being run"));
        return Err(refusal.remedy("stop it first").into());
    }
    super::voice::told(&files, &args.common, "removed", Some(&id.to_string()), screen)
}
