//! `swarm merge`: commands and views of the merge queues.

pub mod args;
mod progress;
mod queues;
mod show;
mod wait;

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use swarm_model::{MergeLine, MergeOrder, MergeRequest, Refusal, RefusalKind, Reply};

use self::args::{AddArgs, ItemArgs, MergeAction, QueueArgs};
use self::queues::Queues;
use super::caller;
use super::diff::left_out;
use super::error::Failure;
use super::json;
use super::render::escape;
use super::screen::Screen;
use super::trust::gate::{Use, refuse_other_rules};
use crate::api::client;
use swarm_store::repositories::{self, landing};
use swarm_store::views::{Detail, Pick, load_where};
use swarm_sys::paths::Paths;

pub fn run(action: &MergeAction, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    match action {
        MergeAction::Add(args) => add(args, paths, screen),
        MergeAction::Ls(args) => {
            warn_damaged(paths, screen)?;
            show::list(args, &Queues::read(paths, args.base.as_deref())?, screen)
        }
        MergeAction::Status(args) => show::status(args, &Queues::read(paths, args.base.as_deref())?, screen),
        MergeAction::Log(args) => show::log(args, &Queues::read(paths, args.base.as_deref())?, screen),
        MergeAction::Wait(args) => wait::run(args, paths, screen),
        MergeAction::Retry(args) => item(args, paths, screen, |target, item| MergeOrder::Retry { target, item }),
        MergeAction::Drop(args) => item(args, paths, screen, |target, item| MergeOrder::Drop { target, item }),
        MergeAction::Pause(args) => pause(args, paths, screen),
        MergeAction::Resume(args) => queue(args, paths, screen, |target| MergeOrder::Resume { target }),
    }
}

/// Warns of queues whose items cannot be shown: those of the caller's repository, or all outside of a repository.
fn warn_damaged(paths: &Paths, screen: &mut Screen) -> Result<(), Failure> {
    let damaged = landing::damaged(paths).map_err(|error| Failure::system("cannot read the merge queues", &error))?;
    if damaged.is_empty() {
        return Ok(());
    }
    let here = repositories::common_dir(&caller::collect()?.caller);
    let is_here = |queue: &&landing::DamagedQueue| match (&queue.target, &here) {
        (Some(target), Some(here)) => target.repository == *here,
        _ => true,
    };
    for queue in damaged.iter().filter(is_here) {
        screen.warning(&queue.what());
        if let Some(remedy) = queue.remedy() {
            screen.aside("hint: ", &remedy);
        }
    }
    Ok(())
}

fn add(args: &AddArgs, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    let names = match args.tagged.is_given() {
        true => args.tagged.names(&super::read(paths, screen)?)?,
        false => super::each_once(&args.names),
    };
    require_trust(args, &names, paths, screen)?;
    let settings = args.rules.settings();
    let order = MergeOrder::Add { names, base: args.base.clone(), priority: args.priority, settings };
    send(order, args.json, paths, screen)
}

/// Makes sure that a person agreed to the rules of each repository whose work is added.
fn require_trust(args: &AddArgs, names: &[String], paths: &Paths, screen: &mut Screen) -> Result<(), Failure> {
    let typed = [("merge.verify", &args.rules.verify), ("merge.resolver", &args.rules.resolver)];
    let overridden: Vec<&'static str> =
        typed.iter().filter(|(_, typed)| typed.is_some()).map(|(key, _)| *key).collect();
    let cwd =
        std::env::current_dir().map_err(|error| Failure::system("cannot determine the current directory", &error))?;
    let registry = load_where(paths, Detail::Word, Pick::All)?;
    let of_worker = |name: &String| {
        let row = &registry.find(name)?.row;
        row.worktree.as_ref().map(|worktree| PathBuf::from(&worktree.base_repo))
    };
    let here = || swarm_config::root_above(&cwd).map(Path::to_owned);
    let mut roots: Vec<PathBuf> = names.iter().filter_map(|name| of_worker(name).or_else(here)).collect();
    roots.sort_unstable();
    roots.dedup();
    // The supervisor reports a file that is invalid, after mistakes in the request itself.
    for root in roots.iter().filter(|root| swarm_config::as_written(Some(root)).is_ok()) {
        refuse_other_rules(root, &overridden)?;
        // The queue sets up its own worktrees, as a worker's are.
        let used = Use { overridden: overridden.clone(), ..Use::new(Some(root), &["merge", "worktree"]) };
        used.require(screen)?;
    }
    Ok(())
}

fn item(
    args: &ItemArgs,
    paths: &Paths,
    screen: &mut Screen,
    order: impl FnOnce(swarm_model::Target, u64) -> MergeOrder,
) -> Result<u8, Failure> {
    let queues = Queues::read(paths, args.base.as_deref())?;
    let (target, item) = queues.find(&args.item)?;
    send(order(target.clone(), item.id), args.json, paths, screen)
}

fn queue(
    args: &QueueArgs,
    paths: &Paths,
    screen: &mut Screen,
    order: impl FnOnce(swarm_model::Target) -> MergeOrder,
) -> Result<u8, Failure> {
    let queues = Queues::read(paths, args.base.as_deref())?;
    send(order(queues.one()?.target.clone()), args.json, paths, screen)
}

/// Pauses a queue. With `--base`, also one to which nothing has been added yet.
fn pause(args: &QueueArgs, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    let queues = Queues::read_any(paths, args.base.as_deref())?;
    let target = match &args.base {
        Some(base) if queues.0.is_empty() => landing::target_of(&caller::collect()?.caller, base)?,
        _ => queues.one()?.target.clone(),
    };
    send(MergeOrder::Pause { target }, args.json, paths, screen)
}

/// Sends an order to the supervisor and prints each answer as it arrives. Returns exit code 1 if any part was refused.
///
/// # Errors
/// Fails if the supervisor cannot be reached or answers nothing, or if standard output cannot be written.
fn send(order: MergeOrder, as_json: bool, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    let request = MergeRequest { caller: caller::collect()?.caller, order };
    let mut objects: Vec<Value> = Vec::new();
    let (mut code, mut broken) = (0, None);
    client::post(paths, &request, &mut |reply| match reply {
        Reply::Answer(line) => {
            objects.push(object(&line));
            if !as_json && broken.is_none() {
                broken = say(&line, screen).err();
            }
        }
        Reply::Refused(refusal) => {
            code = 1;
            screen.refusal(&refusal);
            objects.push(json!({"name": refusal.name, "error": refusal.cause, "hint": refusal.remedy}));
        }
        Reply::Warning(text) => screen.warning(&text),
    })?;
    if let Some(failure) = broken {
        return Err(failure);
    }
    if objects.is_empty() {
        return Err(Refusal::new(RefusalKind::Internal, "the supervisor closed the connection without a result").into());
    }
    if as_json {
        json::print_list(screen, "swarm.merged/1", "items", objects)?;
    }
    Ok(code)
}

fn say(line: &MergeLine, screen: &mut Screen) -> Result<(), Failure> {
    let base = escape(line.target.base()).into_owned();
    let text = match line.item {
        Some(item) if line.done == "dropped" => format!("dropped {} (item {item})", escape(&line.name)),
        Some(item) => format!("{} {} for {base} (item {item})", line.done, escape(&line.name)),
        None => format!("{} the queue of {base}", line.done),
    };
    screen.line(&text)?;
    screen.flush()?;
    if !line.left_out.is_empty() {
        screen.aside("note: ", &left_out(&line.left_out));
    }
    if let Some(reason) = &line.reason {
        screen.warning(&format!("'{}' cannot land yet: {reason}", line.name));
    }
    Ok(())
}

fn object(line: &MergeLine) -> Value {
    json!({
        "repository": line.target.repository,
        "base": line.target.base(),
        "item": line.item,
        "name": line.name,
        "done": line.done,
        "reason": line.reason,
        "left_out": line.left_out,
    })
}
