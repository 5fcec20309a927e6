//! Names that are there now, read as readers do: without a lock and without a
//! supervisor.

use std::collections::BTreeMap;
use std::path::Path;

use clap::Arg;
use swarm_model::WorkerView;

use super::Candidate;
use crate::adapters::flows::place::Workspace;
use crate::adapters::git::trove::Trove;
use crate::adapters::landing::journal;
use crate::adapters::runs::wire;
use crate::adapters::views::{Detail, Pick, load_where};
use crate::adapters::{loops, nudges};
use crate::cli::render::{Clock, state_word};
use crate::cli::{caller, parse};
use crate::config::keys;
use crate::paths::Paths;

/// What kind of names.
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
    Verbs,
    Keys,
    /// The shell knows these better.
    Files,
    Directories,
    Commands,
}

/// Which workers a verb is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    Any,
    Running,
    Stopped,
    /// Running in a window.
    Window,
    Worktree,
}

impl Live {
    /// By verb and argument; what is not known is told by its value's name.
    pub fn of(path: &str, arg: &Arg) -> Option<Self> {
        let verb = path.split(' ').next().unwrap_or_default();
        match (path, verb, arg.get_id().as_str()) {
            ("spawn" | "ralph spawn", _, "name") | (_, "send", "second") => None,
            (_, "ralph", "name") => Some(Self::Loops),
            (_, "peek" | "send" | "interrupt" | "eof" | "attach", "name" | "names" | "first") => {
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
            ("run context", _, "id") => Some(Self::Workstreams),
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

    /// The word for what the shell is to offer by itself.
    pub fn of_the_shell(self) -> Option<&'static str> {
        match self {
            Self::Files => Some("files"),
            Self::Directories => Some("directories"),
            Self::Commands => Some("commands"),
            _ => None,
        }
    }
}

/// Who is there. What cannot be read is not offered.
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
        Live::Verbs => parse::names().map(|name| Candidate::new(name.to_owned(), "verb")).collect(),
        Live::Keys => {
            let fixed = keys::KEYS.iter().filter(|key| !key.name.contains('*'));
            fixed.map(|key| Candidate::new(key.name.to_owned(), key.about)).collect()
        }
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

/// What was saved in the repository around.
fn saves() -> Vec<Candidate> {
    let collected = caller::collect().ok();
    let found = collected.and_then(|collected| Trove::open(&collected.caller, Path::new(".")).ok()?.saves().ok());
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

/// By id where that is enough, else with the project.
fn flows() -> Vec<Candidate> {
    let listed = workspace().and_then(|space| space.list(None).ok()).unwrap_or_default();
    let about = |row: &swarm_actors::flow::document::FlowSummary| {
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

/// Each name once, as its newest item stands.
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
