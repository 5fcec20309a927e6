//! `swarm merge wait`: sleeps on the journals' directories until everything that
//! is waited for is settled.

use std::os::fd::AsFd as _;
use std::time::Instant;

use swarm_actors::merge::queue::{Item, ItemId};
use swarm_actors::model::{QueueView, Target};

use super::args::WaitArgs;
use super::queues::Queues;
use super::show::item_object;
use crate::api::client;
use crate::cli::error::Failure;
use crate::cli::json;
use crate::cli::render::escape;
use crate::cli::screen::Screen;
use crate::cli::watch::{Changes, Until, wait_any};
use crate::paths::Paths;

type Wanted = (Target, ItemId);

pub fn run(args: &WaitArgs, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    let deadline = args.timeout.filter(|limit| !limit.is_zero()).map(|limit| Instant::now() + limit);
    let changes = Changes::new()?;
    let mut queues = Queues::read(paths, args.base.as_deref())?;
    let wanted = wanted(args, &queues)?;
    let mut left = wanted.clone();
    if left.iter().any(|wanted| find(&queues, wanted).is_some_and(|(_, item)| !item.state.is_settled())) {
        // Somebody has to be at work.
        client::ensure(paths)?;
    }
    watch(&changes, paths)?;
    loop {
        queues = Queues::read(paths, args.base.as_deref())?;
        let mut open = Vec::new();
        for one in left {
            match find(&queues, &one) {
                Some((_, item)) if !item.state.is_settled() => open.push(one),
                Some((view, item)) if !args.json => say(view, item, screen)?,
                _ => {}
            }
        }
        left = open;
        let is_late = deadline.is_some_and(|deadline| Instant::now() >= deadline);
        if left.is_empty() || is_late {
            break;
        }
        wait_any(&[(changes.as_fd(), Until::Readable)], deadline)?;
        changes.take()?;
    }
    end(args, &queues, &wanted, &left, screen)
}

fn end(
    args: &WaitArgs,
    queues: &Queues,
    wanted: &[Wanted],
    left: &[Wanted],
    screen: &mut Screen,
) -> Result<u8, Failure> {
    let found: Vec<_> = wanted.iter().filter_map(|one| find(queues, one)).collect();
    if args.json {
        let objects = found.iter().map(|(view, item)| item_object(view, item)).collect();
        json::print_list(screen, "swarm.merge.waited/1", "items", objects)?;
    } else {
        for (view, item) in left.iter().filter_map(|one| find(queues, one)) {
            screen.line(&format!(
                "{}: {} on its way to {} (timeout)",
                escape(&item.name),
                item.state.word(),
                escape(view.target.base())
            ))?;
        }
    }
    Ok(u8::from(!left.is_empty() || found.iter().any(|(_, item)| !item.state.is_done())))
}

fn wanted(args: &WaitArgs, queues: &Queues) -> Result<Vec<Wanted>, Failure> {
    if args.items.is_empty() {
        let open = queues.0.iter().flat_map(|view| {
            let open = view.queue.items.iter().filter(|item| !item.state.is_settled());
            open.map(|item| (view.target.clone(), item.id))
        });
        return Ok(open.collect());
    }
    args.items.iter().map(|name| queues.find(name).map(|(target, item)| (target.clone(), item.id))).collect()
}

fn find<'a>(queues: &'a Queues, (target, id): &Wanted) -> Option<(&'a QueueView, &'a Item)> {
    let view = queues.0.iter().find(|view| view.target == *target)?;
    Some((view, view.queue.item(*id)?))
}

fn watch(changes: &Changes, paths: &Paths) -> Result<(), Failure> {
    let entries = std::fs::read_dir(paths.merges()).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).try_for_each(|dir| changes.add_dir(&dir))
}

fn say(view: &QueueView, item: &Item, screen: &mut Screen) -> Result<(), Failure> {
    screen.line(&format!("{}: {} ({})", escape(&item.name), item.state.word(), escape(view.target.base())))?;
    screen.flush()
}
