//! Names that exist at the moment, read without a lock and without a supervisor.

use std::collections::BTreeMap;
use std::path::Path;

use clap::Arg;
use swarm_model::asks::Ask;
use swarm_model::{NeedKind, WorkerView};

use super::Candidate;
use crate::cli::render::{Clock, state_word};
use crate::cli::{caller, parse};
use swarm_config::keys;
use swarm_store::asks::{Asks, rules};
use swarm_store::flows::place::Workspace;
use swarm_store::repositories::landing::journal;
use swarm_store::repositories::trash::list::TrashList;
use swarm_store::runs::wire;
use swarm_store::views::{Detail, Pick, load_where};
use swarm_store::windows::KEY_NAMES;
use swarm_store::{loops, nudges};
use swarm_sys::paths::Paths;

/// Kind of names to offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Live {
    Workers(Which),
    Tags,
    Flows,
    Projects,
    Loops,
    Nudged,
    Items,
    Workstreams,
    Saves,
    /// Requests that are open.
    Asks(Option<Questions>),
    Rules,
    Verbs,
    Keys,
    /// Keys that can be pressed in a window.
    WindowKeys,
    /// Completed by the shell itself, as are the next two.
    Files,
    Directories,
    Commands,
}

/// Requests that a verb applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Questions {
    Only,
    None,
}

/// Workers that a verb applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    Any,
    Running,
    Stopped,
    /// Running in a tmux window.
    Window,
    Worktree,
}

impl Live {
    /// Returns the kind of names for an argument of a verb; for unlisted arguments, by the name of their value.
    pub fn of(path: &str, arg: &Arg) -> Option<Self> {
        let verb = path.split(' ').next().unwrap_or_default();
        match (path, verb, arg.get_id().as_str()) {
            ("spawn" | "ralph spawn", _, "name") | (_, "send", "second") => None,
            (_, "ralph", "name") => Some(Self::Loops),
            (_, "keys", "keys") => Some(Self::WindowKeys),
            (_, "peek" | "send" | "keys" | "interrupt" | "eof" | "attach", "name" | "names" | "first") => {
                Some(Self::Workers(Which::Window))
            }
            (_, "kill" | "wait", "names") => Some(Self::Workers(Which::Running)),
            (_, "clean", "names") => Some(Self::Workers(Which::Stopped)),
            (_, "session", "name" | "worker") | (_, "diff", _) | ("merge add", _, "names") => {
                Some(Self::Workers(Which::Worktree))
            }
            ("heartbeat start", _, "worker") => Some(Self::Workers(Which::Window)),
            (_, "heartbeat", "worker") => Some(Self::Nudged),
            (_, "merge", "item" | "items") => Some(Self::Items),
            ("run context", _, "id") | ("run give-up", _, "ids") => Some(Self::Workstreams),
            (_, "approve", "requests") => Some(Self::Asks(Some(Questions::None))),
            ("answer", _, "request") => Some(Self::Asks(Some(Questions::Only))),
            (_, "deny", "requests") | ("approvals", _, "request") => Some(Self::Asks(None)),
            ("rules rm", _, "number") => Some(Self::Rules),
            (_, "restore", "what") => Some(Self::Saves),
            (_, "man", "verb") => Some(Self::Verbs),
            (_, "config", "keys") => Some(Self::Keys),
            (_, "flow", "flow") => Some(Self::Flows),
            (_, "flow", "project") => Some(Self::Projects),
            (_, _, "tag" | "tags") => Some(Self::Tags),
            (_, _, "name" | "names" | "worker") => Some(Self::Workers(Which::Any)),
            (_, _, "command") => Some(Self::Commands),
            _ => Self::by_value(arg),
        }
    }

    fn by_value(arg: &Arg) -> Option<Self> {
        let name = arg.get_value_names().and_then(|names| names.first()).map(|name| name.as_str());
        match name {
            Some("DIR") => Some(Self::Directories),
            Some("FILE" | "FILE.toml" | "WORKFLOW" | "PATH") => Some(Self::Files),
            _ => None,
        }
    }

    /// Returns the keyword by which the script asks the shell for its own completion.
    pub fn of_the_shell(self) -> Option<&'static str> {
        match self {
            Self::Files => Some("files"),
            Self::Directories => Some("directories"),
            Self::Commands => Some("commands"),
            _ => None,
        }
    }
}

/// Returns the existing names of a kind. Names that cannot be read are left out.
pub fn candidates(live: Live, paths: &Paths) -> Vec<Candidate> {
    match live {
        Live::Workers(which) => workers(which, paths),
        Live::Tags => tags(paths),
        Live::Flows => flows(),
        Live::Projects => projects(),
        Live::Loops => {
            loops::names(paths).unwrap_or_default().into_iter().map(|name| Candidate::new(name, "loop")).collect()
        }
        Live::Nudged => {
            let listed = nudges::list(paths, &nudges::present()).unwrap_or_default();
            listed.nudges.into_iter().map(|(file, _)| Candidate::new(file.worker_name, "heartbeat")).collect()
        }
        Live::Items => items(paths),
        Live::Workstreams => workstreams(),
        Live::Saves => saves(),
        Live::Asks(questions) => asks(questions, paths),
        Live::Rules => {
            let made = rules::made(paths).unwrap_or_default();
            made.into_iter().map(|made| Candidate::new(made.number.to_string(), made.rule.pattern)).collect()
        }
        Live::Verbs => parse::names().map(|name| Candidate::new(name.to_owned(), "verb")).collect(),
        Live::Keys => {
            let fixed = keys::KEYS.iter().filter(|key| !key.name.contains('*'));
            fixed.map(|key| Candidate::new(key.name.to_owned(), key.about)).collect()
        }
        Live::WindowKeys => KEY_NAMES.into_iter().map(|name| Candidate::new(name.to_owned(), "key")).collect(),
        Live::Files | Live::Directories | Live::Commands => Vec::new(),
    }
}

fn views(paths: &Paths) -> Vec<WorkerView> {
    load_where(paths, Detail::Word, Pick::All).map(|registry| registry.workers).unwrap_or_default()
}

fn workers(which: Which, paths: &Paths) -> Vec<Candidate> {
    let clock = Clock::system();
    let is_meant = |view: &WorkerView| match which {
        Which::Any => true,
        Which::Running => view.state.is_running(),
        Which::Stopped => !view.state.is_running(),
        Which::Window => view.row.tmux.is_some() && view.state.is_running(),
        Which::Worktree => view.row.worktree.is_some(),
    };
    let about = |view: &WorkerView| match view.state.is_running() {
        true => format!("{}, {}", state_word(view.state), clock.age(&view.row.started)),
        false => state_word(view.state).to_owned(),
    };
    let meant = views(paths).into_iter().filter(is_meant);
    meant.map(|view| Candidate::new(view.row.name.clone(), about(&view))).collect()
}

fn asks(questions: Option<Questions>, paths: &Paths) -> Vec<Candidate> {
    let is_meant = |ask: &Ask| {
        let is_question = ask.kind() == NeedKind::Question;
        questions.is_none_or(|questions| (questions == Questions::Only) == is_question)
    };
    let open = Asks::new(paths).open().unwrap_or_default();
    let about = |ask: &Ask| format!("{}: {}", ask.who.worker, ask.needs().text);
    open.iter().filter(|ask| is_meant(ask)).map(|ask| Candidate::new(ask.number.to_string(), about(ask))).collect()
}

/// Returns the saves in the repository of the current directory.
fn saves() -> Vec<Candidate> {
    let collected = caller::collect().ok();
    let found = collected.and_then(|collected| TrashList::open(&collected.caller, Path::new(".")).ok()?.saves().ok());
    found.unwrap_or_default().iter().map(|save| Candidate::new(save.id(), "saved")).collect()
}

fn tags(paths: &Paths) -> Vec<Candidate> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for view in views(paths) {
        for tag in &view.row.tags {
            *counts.entry(tag.clone()).or_default() += 1;
        }
    }
    let about = |count| if count == 1 { "1 worker".to_owned() } else { format!("{count} workers") };
    counts.into_iter().map(|(tag, count)| Candidate::new(tag, about(count))).collect()
}

fn workspace() -> Option<Workspace> {
    Workspace::find(None, &std::env::current_dir().ok()?).ok()
}

/// Returns each flow by its id, and again as PROJECT/FLOW.
fn flows() -> Vec<Candidate> {
    let listed = workspace().and_then(|space| space.list(None).ok()).unwrap_or_default();
    let about = |row: &swarm_actors::flow::rules::document::FlowSummary| {
        format!("{} {}", row.status, row.record_name.as_deref().unwrap_or_default()).trim_end().to_owned()
    };
    let plain = listed.rows.iter().map(|row| Candidate::new(row.id.flow.clone(), about(row)));
    let full = listed.rows.iter().map(|row| Candidate::new(row.id.to_string(), about(row)));
    plain.chain(full).collect()
}

fn projects() -> Vec<Candidate> {
    let ids = workspace().and_then(|space| space.ids(None).ok()).unwrap_or_default();
    let names: std::collections::BTreeSet<String> = ids.into_iter().map(|id| id.project).collect();
    names.into_iter().map(|name| Candidate::new(name, "project")).collect()
}

/// Returns the name of each queue item once, described by its newest item.
fn items(paths: &Paths) -> Vec<Candidate> {
    let mut newest = BTreeMap::new();
    for view in journal::views(paths).unwrap_or_default() {
        for item in view.queue.items {
            newest.insert(item.name.clone(), format!("item {} for {}", item.id, view.target.base()));
        }
    }
    newest.into_iter().map(|(name, about)| Candidate::new(name, about)).collect()
}

fn workstreams() -> Vec<Candidate> {
    let state = crate::cli::run::home(None).ok().and_then(|home| wire::load(&home).ok().flatten());
    let rows = state.map(|state| state.workstreams).unwrap_or_default();
    rows.into_iter().map(|row| Candidate::new(row.id, row.status)).collect()
}
