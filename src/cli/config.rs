//! `swarm config`: each value that holds here, and which file it is from.

use std::path::Path;

use clap::Args;
use serde_json::json;
use swarm_model::{Refusal, RefusalKind, nearest};

use super::error::Failure;
use super::json;
use super::render::{escape, table};
use super::screen::Screen;
use crate::config::{self, Shown, Source, keys};
use crate::paths::Paths;

#[derive(Debug, Args)]
pub struct ConfigArgs {
    /// Only these keys, or all of a section
    #[arg(value_name = "KEY")]
    pub keys: Vec<String>,
    /// Only what is set in a file
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
    let cwd = std::env::current_dir().map_err(|error| Failure::system("the current directory", &error))?;
    let root = config::root_above(&cwd);
    let mut list = match config::shown(config::user_path().as_deref(), root) {
        Ok(list) => list,
        Err(causes) => return wrong(&causes, screen),
    };
    list.retain(|one| is_asked(args, one));
    if args.json {
        return print(&list, root, paths, screen);
    }
    let head = ["KEY", "VALUE", "SOURCE"].map(str::to_owned).to_vec();
    let row = |one: &Shown| vec![one.key.clone(), escape(&one.value).into_owned(), origin(&one.source)];
    let rows: Vec<Vec<String>> = std::iter::once(head).chain(list.iter().map(row)).collect();
    screen.bytes(table(&rows, |_, _, _| None).as_bytes())?;
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
    let refusal = Refusal::new(RefusalKind::Invalid, format!("there is no key '{}'", escape(key)));
    let names: Vec<&str> = keys::KEYS.iter().map(|key| key.name).collect();
    match nearest(key, names) {
        Some(near) => refusal.remedy(format!("did you mean '{near}'?")),
        None => refusal.remedy("swarm config shows them all"),
    }
}

fn origin(source: &Source) -> String {
    match source {
        Source::Default => "default".to_owned(),
        Source::File { path, line } => format!("{}:{line}", escape(path)),
    }
}

/// All of it at once: who mends a file wants to mend it in one go.
fn wrong(causes: &[String], screen: &mut Screen) -> Result<u8, Failure> {
    let refusal = |cause: &String| Refusal::new(RefusalKind::Invalid, cause.clone());
    match causes {
        [] => Ok(1),
        [more @ .., last] => {
            for cause in more {
                screen.refusal(&refusal(cause));
            }
            Err(refusal(last).remedy("mend the file, then try again").into())
        }
    }
}

fn print(list: &[Shown], root: Option<&Path>, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    let one = |one: &Shown| {
        let (path, line) = match &one.source {
            Source::Default => (None, None),
            Source::File { path, line } => (Some(path), Some(line)),
        };
        json!({"key": one.key, "value": one.value, "file": path, "line": line, "about": one.about})
    };
    let body = json!({
        "state_dir": paths.root(),
        "user_file": config::user_path(),
        "repository_file": root.map(|root| root.join(config::FILE)),
        "values": list.iter().map(one).collect::<Vec<_>>(),
    });
    json::print(screen, "swarm.config/1", &body)?;
    Ok(0)
}
