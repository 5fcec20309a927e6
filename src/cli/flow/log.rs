//! `swarm flow events`, `feed` and `rm`: the history of a flow, and its removal.

use std::collections::BTreeMap;
use std::os::fd::AsFd as _;
use std::path::Path;

use serde_json::{Map, Value, json};
use swarm_model::{Refusal, RefusalKind};
use swarm_sys::files::list;

use super::args::{EventsArgs, FeedArgs, FlowOf};
use crate::cli::error::Failure;
use crate::cli::events::damage_of;
use crate::cli::json;
use crate::cli::render::escape;
use crate::cli::screen::Screen;
use crate::cli::watch::{Changes, Interrupt, Until, wait_any};
use swarm_store::flows::feed;

pub fn events(args: &EventsArgs, screen: &mut Screen) -> Result<u8, Failure> {
    let files = super::flow_of(&args.of)?;
    let (mut shown, mut warned) = (0, false);
    watched(args.follow, files.dir(), screen, &mut |screen| {
        let (events, damaged) = files.events()?;
        if let Some(first) = damaged.first().filter(|_| !warned) {
            screen.warning(&damage_of(&files.events_file(), first, damaged.len()));
            warned = true;
        }
        for event in events.iter().skip(shown) {
            if args.of.common.json {
                json::print(screen, "swarm.flow.event/1", event)?;
            } else {
                screen.line(&escape(&line(event)))?;
            }
        }
        shown = events.len();
        Ok(())
    })
}

pub fn feed(args: &FeedArgs, screen: &mut Screen) -> Result<u8, Failure> {
    let files = super::flow_of(&args.of)?;
    files.read()?;
    let mut shown: BTreeMap<String, (String, String)> = BTreeMap::new();
    watched(args.follow, &files.dir().join("roles"), screen, &mut |screen| {
        let roles = args.role.clone().map_or_else(|| feed::roles(files.dir()), |role| vec![role]);
        for role in roles {
            for item in feed::read(files.dir(), &role) {
                let text = |key: &str| feed::text(&item, key).to_owned();
                let (id, said) = (text("id"), text("text"));
                // If an item has grown, only the new part is printed.
                let before = shown.insert(id.clone(), (text("type"), said.clone()));
                let new = match &before {
                    Some((_, known)) if *known == said => continue,
                    Some((_, known)) => said.strip_prefix(known.as_str()).unwrap_or(&said),
                    None => said.as_str(),
                };
                if args.of.common.json {
                    let object = json::object([
                        ("role", json!(role)),
                        ("item", serde_json::from_str(&item.render_compact()).unwrap_or_default()),
                    ]);
                    json::print(screen, "swarm.flow.feed/1", &object)?;
                } else {
                    for (at, line) in new.trim_matches('\n').lines().enumerate() {
                        let head = if at == 0 { format!("{}: ", text("label")) } else { "  ".to_owned() };
                        screen.line(&format!("{}  {head}{}", escape(&role), escape(line)))?;
                    }
                }
            }
        }
        Ok(())
    })
}

/// Shows the existing entries, and with `follow` new ones until Ctrl-C or until standard output is closed.
fn watched(
    follow: bool,
    dir: &Path,
    screen: &mut Screen,
    show: &mut dyn FnMut(&mut Screen) -> Result<(), Failure>,
) -> Result<u8, Failure> {
    if !follow {
        show(screen)?;
        return Ok(0);
    }
    let (changes, interrupt) = (Changes::new()?, Interrupt::catch()?);
    let watch = |changes: &Changes| -> Result<(), Failure> {
        let deeper = list(dir).into_iter().flatten().map(|entry| entry.path());
        let there = deeper.filter(|path| path.is_dir()).chain(Some(dir.to_owned()).filter(|dir| dir.is_dir()));
        there.chain(dir.parent().map(Path::to_owned)).try_for_each(|dir| changes.add_dir(&dir))
    };
    loop {
        // Watch before reading, so that no change between the two is missed.
        watch(&changes)?;
        show(screen)?;
        screen.flush()?;
        let stdout = std::io::stdout();
        let sources =
            [(changes.as_fd(), Until::Readable), (interrupt.as_fd(), Until::Readable), (stdout.as_fd(), Until::HungUp)];
        let ready = wait_any(&sources, None)?;
        if ready[1] {
            return Ok(0);
        }
        if ready[2] {
            return Err(Failure::Output(std::io::ErrorKind::BrokenPipe.into()));
        }
        changes.take()?;
    }
}

/// Returns an event as `TIME KIND KEY=VALUE …`.
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
        let refusal = Refusal::new(RefusalKind::Running, format!("flow '{id}' is running"));
        return Err(refusal.remedy(format!("run 'swarm flow stop {id}' first")).into());
    }
    crate::cli::flow::respond::told(&files, &args.common, "removed", Some(&id.to_string()), screen)
}
