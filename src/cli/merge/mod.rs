//! `swarm merge`: commands and views of the merge queues.

pub mod args;
mod progress;
pub mod queues;
pub mod show;
mod wait;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use swarm_model::{Caller, MergeLine, MergeOrder, MergeRequest, Refusal, RefusalKind, Reply, TurnEnd, WorkerView};

use self::args::{AddArgs, ItemsArgs, MergeAction, QueueArgs};
use self::queues::Queues;
use super::caller;
use super::diff::left_out;
use super::error::Failure;
use super::json;
use super::render::escape;
use super::screen::Screen;
use super::trust::gate::{Use, refuse_other_rules};
use crate::api::client;
use swarm_ports::pid_list;
use swarm_store::repositories::{self, landing};
use swarm_store::sessions;
use swarm_store::views::{self, Registry, session_dir};
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
        MergeAction::Retry(args) => items(args, paths, screen, |target, item| MergeOrder::Retry { target, item }),
        MergeAction::Drop(args) => items(args, paths, screen, |target, item| MergeOrder::Drop { target, item }),
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
    let registry = super::read(paths, screen)?;
    let names = match args.tagged.is_given() {
        true => args.tagged.names(&registry)?,
        false => super::each_once(&args.names),
    };
    let running: Vec<&WorkerView> =
        names.iter().filter_map(|name| registry.find(name)).filter(|view| view.state.is_running()).collect();
    running.iter().try_for_each(|view| super::refuse_elsewhere(view))?;
    refuse_ambiguous(&names, &registry)?;
    let mut known = names.iter().filter_map(|name| registry.find(name)).filter(|_| !args.uncommitted);
    known.try_for_each(|view| refuse_broken_turn(view, last_words(view, paths).as_deref()))?;
    require_trust(args, &names, &registry, screen)?;
    let takes_all = |view: &&&WorkerView| args.uncommitted || is_idle(view, paths);
    let uncommitted = running.iter().filter(takes_all).map(|view| view.row.name.clone()).collect();
    let settings = args.rules.settings();
    let order = MergeOrder::Add {
        names: names.clone(),
        base: args.base.clone(),
        priority: args.priority,
        settings,
        uncommitted,
        generation: args.generation,
    };
    let code = send(order, args.json, paths, screen)?;
    for view in running.iter().filter(|_| code == 0) {
        let name = &view.row.name;
        let text = match view.left() {
            [] => format!("worker '{name}' is still running: what it does from now on is not included"),
            left => format!("processes of worker '{name}' cannot be ended: {}", pid_list(left)),
        };
        screen.aside("note: ", &text);
    }
    let caller = caller::collect()?.caller;
    for name in names.iter().filter(|name| registry.find(name).is_none()) {
        let kept = repositories::kept_worktree(name, paths.root(), &caller).filter(|kept| !kept.is_superseded);
        if let Some(kept) = kept {
            let text = format!("worker '{name}' is forgotten; what its worktree {} contains is added", kept.tree.path);
            screen.aside("note: ", &text);
        }
    }
    Ok(code)
}

/// Refuses names of workers of other repositories that are branches here.
fn refuse_ambiguous(names: &[String], registry: &Registry) -> Result<(), Failure> {
    let caller = caller::collect()?.caller;
    let Some(here) = repositories::common_dir(&caller) else { return Ok(()) };
    let mut known: BTreeMap<&str, bool> = BTreeMap::new();
    for name in names {
        let Some(tree) = registry.find(name).and_then(|view| view.row.worktree.as_ref()) else { continue };
        let is_elsewhere = *known.entry(&tree.base_repo).or_insert_with(|| {
            let there = Caller { cwd: tree.base_repo.clone(), ..caller.clone() };
            repositories::common_dir(&there).is_some_and(|there| there != here)
        });
        if is_elsewhere && repositories::has_branch(Path::new(&caller.cwd), name, &caller) {
            let (there, here) = (&tree.base_repo, checkout(&here));
            let cause = format!("'{name}' is a worker of {there} and a branch of {here}");
            let remedy = format!(
                "for the branch: swarm merge add refs/heads/{name}; for the worker, run the command in {there}"
            );
            return Err(Refusal::new(RefusalKind::Invalid, cause).of(name).remedy(remedy).into());
        }
    }
    Ok(())
}

/// Returns the directory of a repository as people know it.
fn checkout(common: &str) -> &str {
    common.strip_suffix("/.git").unwrap_or(common)
}

/// Reports whether the agent of a worker has said that its turn is over, so that nothing changes in its worktree until
/// somebody writes to it.
fn is_idle(view: &WorkerView, paths: &Paths) -> bool {
    let activity = session_dir(paths, view).and_then(|dir| sessions::activity(&dir));
    activity.is_some_and(|activity| activity.idle)
}

/// Returns how the last turn of a worker's agent ended, in words, if it failed or was interrupted.
fn last_words(view: &WorkerView, paths: &Paths) -> Option<String> {
    match view.broken_turn() {
        Some(end) => view.activity.as_ref()?.what.clone().or_else(|| Some(end.words().to_owned())),
        None if view.state.is_running() => None,
        None => views::broken_turn(&paths.workers().join(view.dir.as_ref()?)),
    }
}

/// Refuses the work of an agent whose last turn failed or was interrupted, as `words` say: it may be incomplete.
fn refuse_broken_turn(view: &WorkerView, words: Option<&str>) -> Result<(), Failure> {
    let name = &view.row.name;
    let Some((words, end)) = words.and_then(|words| Some((words, TurnEnd::of_text(words)?))) else { return Ok(()) };
    let why = words.split_once(": ").map_or_else(String::new, |(_, cause)| format!(": {cause}"));
    let cause = match end {
        TurnEnd::Failed => format!("the last turn of worker '{name}' failed{why}; its work may be incomplete"),
        TurnEnd::Interrupted => {
            format!("the last turn of worker '{name}' was interrupted{why}; its work may be incomplete")
        }
    };
    let remedy = match view.state.is_running() {
        true => format!(
            "run 'swarm send {name} \"go on\"' to have it finish, or add --uncommitted to land the work as it is"
        ),
        false => format!("look at it with 'swarm diff {name}', and add --uncommitted to land the work as it is"),
    };
    Err(Refusal::new(RefusalKind::Invalid, cause).of(name).remedy(remedy).into())
}

/// Makes sure that a person agreed to the rules of each repository whose work is added.
fn require_trust(args: &AddArgs, names: &[String], registry: &Registry, screen: &mut Screen) -> Result<(), Failure> {
    let typed = [("merge.verify", &args.rules.verify), ("merge.resolver", &args.rules.resolver)];
    let overridden: Vec<&'static str> =
        typed.iter().filter(|(_, typed)| typed.is_some()).map(|(key, _)| *key).collect();
    let cwd =
        std::env::current_dir().map_err(|error| Failure::system("cannot determine the current directory", &error))?;
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

/// Sends an order about each item. One unknown item refuses all.
fn items(
    args: &ItemsArgs,
    paths: &Paths,
    screen: &mut Screen,
    order: impl Fn(swarm_model::Target, u64) -> MergeOrder,
) -> Result<u8, Failure> {
    let queues = Queues::read(paths, args.base.as_deref())?;
    let found = super::each_once(&args.items).into_iter().map(|item| queues.find(&item));
    let orders: Vec<MergeOrder> =
        found.map(|found| found.map(|(target, item)| order(target.clone(), item.id))).collect::<Result<_, _>>()?;
    send_all(orders, args.json, paths, screen)
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

fn send(order: MergeOrder, as_json: bool, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    send_all(vec![order], as_json, paths, screen)
}

/// Sends orders to the supervisor and prints each answer as it arrives. Returns exit code 1 if any part was refused.
///
/// # Errors
/// Fails if the supervisor cannot be reached or answers nothing, or if standard output cannot be written.
fn send_all(orders: Vec<MergeOrder>, as_json: bool, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    let mut objects: Vec<Value> = Vec::new();
    let (mut code, mut broken) = (0, None);
    let here = repositories::common_dir(&caller::collect()?.caller);
    for order in orders {
        let before = objects.len();
        let request = MergeRequest { caller: caller::collect()?.caller, order };
        client::post(paths, &request, &mut |reply| match reply {
            Reply::Answer(line) => {
                objects.push(object(&line));
                if !as_json && broken.is_none() {
                    broken = say(&line, here.as_deref(), screen).err();
                }
            }
            Reply::Refused(refusal) => {
                code = 1;
                screen.refusal(&refusal);
                objects.push(json!({"name": refusal.name, "error": refusal.cause, "hint": refusal.remedy}));
            }
            Reply::Warning(text) => screen.warning(&text),
        })?;
        if objects.len() == before {
            let cause = "the supervisor closed the connection without a result";
            return Err(Refusal::new(RefusalKind::Internal, cause).into());
        }
    }
    if let Some(failure) = broken {
        return Err(failure);
    }
    if as_json {
        json::print_list(screen, "swarm.merged/1", "items", objects)?;
    }
    Ok(code)
}

/// Prints an answer. A queue of another repository than the one `here` is named with it.
fn say(line: &MergeLine, here: Option<&str>, screen: &mut Screen) -> Result<(), Failure> {
    let base = escape(line.target.base()).into_owned();
    let base = match here {
        Some(here) if here == line.target.repository => base,
        _ => format!("{base} of {}", escape(checkout(&line.target.repository))),
    };
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

#[cfg(test)]
mod tests {
    use swarm_model::Ended;

    use super::*;
    use crate::cli::sample;

    #[test]
    fn the_work_of_a_broken_turn_is_refused_also_after_the_end_of_its_agent() {
        let home = tempfile::tempdir().expect("a directory");
        let paths = Paths::new(home.path());
        let view = WorkerView { dir: Some("fix.1".to_owned()), ..sample::ended("fix", Ended::Code(0)) };
        let dir = paths.workers().join("fix.1");
        std::fs::create_dir_all(&dir).expect("made");
        let refused = |end: Option<TurnEnd>| {
            let waiting = Some(end.map_or("its turn is over".to_owned(), |end| end.told("API Error")));
            let tool = sessions::Tool { waiting, idle: true, turn: end, ..sessions::Tool::default() };
            std::fs::write(dir.join("activity.json"), json!(tool).to_string()).expect("written");
            refuse_broken_turn(&view, last_words(&view, &paths).as_deref()).is_err()
        };
        assert_eq!(last_words(&view, &paths), None, "it has reported nothing");
        assert_eq!([None, Some(TurnEnd::Failed), Some(TurnEnd::Interrupted)].map(refused), [false, true, true]);
        assert_eq!(last_words(&view, &paths).as_deref(), Some("its turn was interrupted: API Error"));
    }
}
