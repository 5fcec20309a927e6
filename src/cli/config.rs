//! `swarm config`: each value that applies here, and the file that sets it.

use std::path::Path;

use clap::Args;
use serde_json::json;
use swarm_model::{Refusal, RefusalKind, nearest};

use super::error::Failure;
use super::json;
use super::render::{escape, table};
use super::screen::Screen;
use swarm_config::{self, Shown, Source, keys, trust};
use swarm_sys::paths::Paths;
use swarm_sys::quoting::command_line;

/// Mark of a value that does not apply.
const UNTRUSTED: &str = " (not trusted)";

#[derive(Debug, Args)]
pub struct ConfigArgs {
    /// Show only these keys or sections
    #[arg(value_name = "KEY")]
    pub keys: Vec<String>,
    /// Show only keys that a file sets
    #[arg(long)]
    pub set: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

pub fn run(args: &ConfigArgs, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    if let Some(unknown) = args.keys.iter().find(|key| !is_known(key)) {
        return Err(no_key(unknown).into());
    }
    let cwd =
        std::env::current_dir().map_err(|error| Failure::system("cannot determine the current directory", &error))?;
    let root = swarm_config::root_above(&cwd);
    let mut list = match swarm_config::shown(swarm_config::user_path().as_deref(), root, trust::book_path().as_deref())
    {
        Ok(list) => list,
        Err(causes) => return wrong(&causes, screen),
    };
    list.retain(|one| is_asked(args, one));
    if args.json {
        return print(&list, root, paths, screen);
    }
    let head = ["KEY", "VALUE", "SOURCE"].map(str::to_owned).to_vec();
    let origin = |one: &Shown| origin(&one.source) + if one.in_force { "" } else { UNTRUSTED };
    let row = |one: &Shown| vec![one.key.clone(), escape(&one.value).into_owned(), origin(one)];
    let rows: Vec<Vec<String>> = std::iter::once(head).chain(list.iter().map(row)).collect();
    screen.bytes(table(&rows, |_, _, _| None).as_bytes())?;
    if let Some(root) = root.filter(|_| screen.terminal && list.iter().any(|one| !one.in_force)) {
        let agree = format!("run 'swarm trust {}'", command_line([&*root.to_string_lossy()]));
        screen.aside("hint: ", &format!("values that are not trusted do not apply; {agree} to see and accept them"));
    }
    Ok(0)
}

fn is_asked(args: &ConfigArgs, one: &Shown) -> bool {
    let is_below = |key: &String| one.key == *key || one.key.starts_with(&format!("{key}."));
    (args.keys.is_empty() || args.keys.iter().any(is_below)) && !(args.set && one.source == Source::Default)
}

fn is_known(key: &str) -> bool {
    let path: Vec<&str> = key.split('.').collect();
    keys::find(&path).is_some() || keys::is_section(&path)
}

fn no_key(key: &str) -> Refusal {
    let refusal = Refusal::new(RefusalKind::Invalid, format!("key '{}' not found", escape(key)));
    let names: Vec<&str> = keys::KEYS.iter().map(|key| key.name).collect();
    match nearest(key, names) {
        Some(near) => refusal.remedy(format!("did you mean '{near}'?")),
        None => refusal.remedy("run 'swarm config' to list all keys"),
    }
}

fn origin(source: &Source) -> String {
    match source {
        Source::Default => "default".to_owned(),
        Source::File { path, line } => format!("{}:{line}", escape(path)),
    }
}

/// Reports all mistakes at once, so that they can be fixed together.
fn wrong(causes: &[String], screen: &mut Screen) -> Result<u8, Failure> {
    let refusal = |cause: &String| Refusal::new(RefusalKind::Invalid, cause.clone());
    match causes {
        [] => Ok(1),
        [more @ .., last] => {
            for cause in more {
                screen.refusal(&refusal(cause));
            }
            Err(refusal(last).remedy("fix the file and try again").into())
        }
    }
}

fn print(list: &[Shown], root: Option<&Path>, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    let one = |one: &Shown| {
        let (path, line) = match &one.source {
            Source::Default => (None, None),
            Source::File { path, line } => (Some(path), Some(line)),
        };
        json!({"key": one.key, "value": one.value, "file": path, "line": line, "in_force": one.in_force, "about": one.about})
    };
    let body = json!({
        "state_dir": paths.root(),
        "user_file": swarm_config::user_path(),
        "repository_file": root.map(|root| root.join(swarm_config::FILE)),
        "values": list.iter().map(one).collect::<Vec<_>>(),
    });
    json::print(screen, "swarm.config/1", &body)?;
    Ok(0)
}
