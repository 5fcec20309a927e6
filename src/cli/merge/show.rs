//! `swarm merge ls`, `status` and `log`: queues and items as text and as JSON.

use serde_json::{Value, json};
use swarm_model::merge::queue::{Item, Obstacle, State};
use swarm_model::{QueueView, Target};

use super::args::{ItemArgs, LogArgs, LsArgs};
use super::queues::Queues;
use crate::cli::error::Failure;
use crate::cli::json;
use crate::cli::render::{Clock, counted, escape, table, words};
use crate::cli::screen::Screen;

pub use crate::board::item::{item_object, stage};

/// Maximum number of files that are named on an item's line.
const FILES_MAX: usize = 3;
/// Length of an abbreviated commit id.
const COMMIT: usize = 10;

const BOLD: &str = "\x1b[1m";
const GREEN: &str = "\x1b[32m";
const RED: &str = "\x1b[31m";
const YELLOW: &str = "\x1b[33m";

pub fn list(args: &LsArgs, queues: &Queues, screen: &mut Screen) -> Result<u8, Failure> {
    let is_shown = |item: &Item| args.all || !item.is_past();
    if args.json {
        let shown = queues.0.iter().map(|view| queue_object(view, is_shown)).collect();
        json::print_list(screen, "swarm.merge/1", "queues", shown)?;
        return Ok(0);
    }
    let clock = Clock::system();
    let many = queues.0.len() > 1;
    for view in &queues.0 {
        let items: Vec<&Item> = view.queue.items.iter().filter(|item| is_shown(item)).collect();
        if many && !items.is_empty() {
            screen.line(&format!("{} ({}):", escape(view.target.base()), escape(&view.target.repository)))?;
        }
        warn_held(view, screen);
        let rows = items.iter().map(|item| row(view, item, &clock));
        screen.bytes(painted(["ITEM", "NAME", "STATE", "SINCE", "REASON"], rows, screen.colour).as_bytes())?;
    }
    screen.flush()?;
    Ok(0)
}

/// Reports whether nothing lands from the queue until a person does something.
pub fn is_held(view: &QueueView) -> bool {
    view.queue.paused || view.stuck.is_some()
}

/// Warns if the queue is paused, or blocked because its journal cannot be written.
pub fn warn_held(view: &QueueView, screen: &mut Screen) {
    if view.queue.paused {
        screen.warning(&format!("the queue of {} is paused", view.target.base()));
    }
    if let Some(why) = &view.stuck {
        screen.warning(&format!(
            "the queue of {} is blocked until its journal can be written: {why}",
            view.target.base()
        ));
    }
}

fn row(view: &QueueView, item: &Item, clock: &Clock) -> Vec<String> {
    let since = item.settled_ms.filter(|_| item.state.is_settled()).unwrap_or(item.added_ms);
    let age = clock.since_ms(since).map(words).unwrap_or_default();
    vec![item.id.to_string(), escape(&item.name).into_owned(), stage(view, item).to_owned(), age, why(item)]
}

fn why(item: &Item) -> String {
    let files = |files: &[String]| {
        let named = files.iter().take(FILES_MAX).map(|file| escape(file).into_owned()).collect::<Vec<_>>().join(", ");
        let more = if files.len() > FILES_MAX { ", …" } else { "" };
        format!("{named}{more}")
    };
    match &item.state {
        State::Landed { commit } => short(commit).to_owned(),
        State::Conflict { files: named } => files(named),
        State::Rejected { reason } => escape(reason).into_owned(),
        State::Waiting { reason, files: named } if named.is_empty() => escape(reason).into_owned(),
        State::Waiting { reason, files: named } => format!("{}: {}", escape(reason), files(named)),
        State::Queued => item.reason().map(|why| format!("paused: {}", escape(why))).unwrap_or_default(),
        _ => String::new(),
    }
}

fn short(commit: &str) -> &str {
    commit.get(..COMMIT).unwrap_or(commit)
}

/// Returns a table with coloured states, or nothing if there are no rows.
fn painted<const N: usize>(head: [&str; N], rows: impl Iterator<Item = Vec<String>>, colour: bool) -> String {
    let all: Vec<Vec<String>> = std::iter::once(head.map(str::to_owned).to_vec()).chain(rows).collect();
    if all.len() == 1 {
        return String::new();
    }
    let text = table(&all, |column, line, text| match (line, head[column]) {
        _ if !colour => None,
        (0, _) => Some(BOLD),
        (_, "STATE") => match text.trim_end() {
            "landed" | "noop" => Some(GREEN),
            "conflict" | "rejected" => Some(RED),
            "waiting" => Some(YELLOW),
            _ => None,
        },
        _ => None,
    });
    text.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

pub fn status(args: &ItemArgs, queues: &Queues, screen: &mut Screen) -> Result<u8, Failure> {
    let (target, item) = queues.find(&args.item)?;
    let Some(view) = queues.0.iter().find(|view| view.target == *target) else { return Ok(2) };
    if args.json {
        json::print(screen, "swarm.merge.item/1", &item_object(view, item))?;
    } else {
        for line in lines(view, target, item) {
            screen.line(&line)?;
        }
    }
    if !item.state.is_settled() {
        warn_held(view, screen);
    }
    Ok(u8::from(!item.is_complete()))
}

fn lines(view: &QueueView, target: &Target, item: &Item) -> Vec<String> {
    let clock = Clock::system();
    let mut lines =
        vec![format!("{} (item {} of {}): {}", escape(&item.name), item.id, escape(target.base()), stage(view, item))];
    let mut say = |key: &str, value: String| lines.push(format!("  {key:<10}{value}"));
    say("queued", clock.local(item.added_ms));
    if let Some(at_ms) = item.settled_ms.filter(|_| item.state.is_settled()) {
        say("settled", clock.local(at_ms));
    }
    if !item.tip.is_empty() {
        say("tip", item.tip.clone());
    }
    match &item.state {
        State::Landed { commit } => say("commit", commit.clone()),
        State::Conflict { files } => {
            files.iter().for_each(|file| say("conflict", escape(file).into_owned()));
            let name = escape(&item.name);
            say("to fix", format!("merge {} into {name}, commit, then swarm merge add {name}", escape(target.base())));
        }
        State::Rejected { reason } => say("why", escape(reason).into_owned()),
        State::Waiting { reason, files } => {
            say("why", escape(reason).into_owned());
            files.iter().for_each(|file| say("file", escape(file).into_owned()));
            let verb = if item.tip.is_empty() { "add" } else { "retry" };
            let command = format!("swarm merge {verb} {}", escape(&item.name));
            say(
                "next",
                match item.obstacle() {
                    Some(Obstacle::Base(_)) => {
                        let other = format!("swarm merge add {} --verify COMMAND", escape(&item.name));
                        format!("it continues by itself when that is gone; or {command}; or {other}")
                    }
                    Some(_) => format!("it continues by itself when that is gone; or {command}"),
                    None => command,
                },
            );
        }
        State::Queued => {
            if let Some(why) = item.reason() {
                say("why", escape(why).into_owned());
                item.later_ms.iter().for_each(|at_ms| say("paused", format!("until {}", clock.local(*at_ms))));
            }
        }
        _ => {}
    }
    item.left_out.iter().for_each(|file| say("left out", escape(file).into_owned()));
    if let Some(command) = &item.verified_by {
        say("verified", format!("{}{}", escape(command), if item.flaky { " (failed once, then passed)" } else { "" }));
    }
    if item.resolved > 0 {
        say("resolver", counted(item.resolved.into(), "run"));
    }
    lines
}

pub fn log(args: &LogArgs, queues: &Queues, screen: &mut Screen) -> Result<u8, Failure> {
    let settled = queues.0.iter().flat_map(|view| view.queue.items.iter().map(move |item| (view, item)));
    let mut settled: Vec<_> = settled.filter(|(_, item)| item.state.is_settled()).collect();
    settled.sort_by_key(|(_, item)| item.settled_ms);
    let first = args.lines.map_or(0, |lines| settled.len().saturating_sub(lines));
    let settled = &settled[first..];
    if args.json {
        let objects = settled.iter().map(|(view, item)| item_object(view, item)).collect();
        json::print_list(screen, "swarm.merge.log/1", "items", objects)?;
        return Ok(0);
    }
    let clock = Clock::system();
    let base = |view| escape(&queues.name_of(view)).into_owned();
    let rows = settled.iter().map(|(view, item)| log_row(base(view), item, &clock));
    let head = ["TIME", "ITEM", "NAME", "STATE", "BASE", "DURATION", "VERIFIED", "REASON"];
    screen.bytes(painted(head, rows, screen.colour).as_bytes())?;
    screen.flush()?;
    Ok(0)
}

fn log_row(base: String, item: &Item, clock: &Clock) -> Vec<String> {
    let took = item.settled_ms.map(|at| words(at.saturating_sub(item.added_ms) / 1000)).unwrap_or_default();
    let verified = match (&item.verified_by, item.flaky) {
        (None, _) => "unverified".to_owned(),
        (Some(command), false) => escape(command).into_owned(),
        (Some(command), true) => format!("{} (flaky)", escape(command)),
    };
    vec![
        item.settled_ms.map(|at| clock.local(at)).unwrap_or_default(),
        item.id.to_string(),
        escape(&item.name).into_owned(),
        item.state.word().to_owned(),
        base,
        took,
        match &item.state {
            State::Landed { .. } => verified,
            // The command that rejected the item.
            State::Rejected { .. } => item.rules.verify.as_deref().map_or("-".to_owned(), |by| escape(by).into_owned()),
            _ => "-".to_owned(),
        },
        why(item),
    ]
}

fn queue_object(view: &QueueView, is_shown: impl Fn(&Item) -> bool) -> Value {
    let items = view.queue.items.iter().filter(|item| is_shown(item));
    json!({
        "repository": view.target.repository,
        "base": view.target.base(),
        "paused": view.queue.paused,
        "stuck": view.stuck,
        "items": items.map(|item| item_object(view, item)).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_states_are_coloured() {
        let rows = || [["0", "waiting", "landed"], ["1", "x", "rejected"]].map(|row| row.map(str::to_owned).to_vec());
        let head = ["ITEM", "NAME", "STATE"];
        let text = painted(head, rows().into_iter(), true);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].contains(&format!("{BOLD}NAME")), "{text:?}");
        assert_eq!(lines[1], format!("0     waiting  {GREEN}landed  \x1b[0m"));
        assert!(lines[2].contains(&format!("{RED}rejected")), "{text:?}");
        let plain = "ITEM  NAME     STATE\n0     waiting  landed\n1     x        rejected\n";
        assert_eq!(painted(head, rows().into_iter(), false), plain);
        assert_eq!(painted(head, std::iter::empty(), true), "", "no rows, no header");
    }
}
