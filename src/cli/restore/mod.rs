//! `swarm restore`: lists, shows and restores the saves of removed worktrees.

#[allow(rustdoc::broken_intra_doc_links, rustdoc::invalid_html_tags, reason = "comments of arguments are help texts")]
pub mod args;
mod expire;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde::Serialize;
use swarm_model::{Caller, Refusal, RefusalKind, nearest};

use self::args::RestoreArgs;
use super::caller;
use super::diff::for_terminal;
use super::error::Failure;
use super::json;
use super::render::{Clock, escape, size, table, words};
use super::screen::Screen;
use swarm_store::repositories::trash::list::{ChangedPath, TrashList};
use swarm_store::repositories::trash::restore::{RestoreRequest, RestoredWorktree};
use swarm_store::repositories::trash::saved::{Save, find};
use swarm_sys::paths::Paths;

/// Length of an abbreviated commit id.
const SHORT: usize = 12;

/// Save in the form that `--json` prints.
#[derive(Serialize)]
struct Shown<'a> {
    id: String,
    name: &'a str,
    number: usize,
    stamp: &'a str,
    reference: &'a str,
    commit: &'a str,
    repository: &'a Path,
    at_ms: u64,
    path: Option<&'a Path>,
    branch: Option<&'a str>,
    head: Option<&'a str>,
    unfinished: Option<&'a str>,
    changes: Option<usize>,
    bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    commits: Option<&'a [String]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    files: Option<Vec<File<'a>>>,
}

#[derive(Serialize)]
struct File<'a> {
    path: &'a str,
    status: &'static str,
}

#[derive(Serialize)]
struct Restored<'a> {
    id: String,
    name: &'a str,
    reference: &'a str,
    path: &'a Path,
    branch: Option<&'a str>,
    head: Option<&'a str>,
    notes: &'a [String],
    dropped: bool,
}

pub fn run(args: &RestoreArgs, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    let caller = caller::collect()?.caller;
    if args.all_repos {
        let lists = all(&caller, paths, screen)?;
        return list(&lists, args.json, screen);
    }
    let trash = TrashList::open(&caller, &args.repo)?;
    if args.expire {
        return expire::run(args, &trash, screen);
    }
    let Some(what) = &args.what else { return list(&[trash], args.json, screen) };
    let saves = trash.saves()?;
    let save = find(&saves, what).ok_or_else(|| unknown(what, &saves, &trash))?;
    if args.diff {
        return patch(&trash, save, screen);
    }
    if args.show {
        return show(&trash, save, args.json, screen);
    }
    let to = args.to.as_deref().map(|to| Path::new(&caller.cwd).join(to));
    let state_dir = Some(paths.root().to_owned());
    let request = RestoreRequest { to, branch: args.branch.clone(), drop_save: args.drop, state_dir };
    let back = trash.restore(save, &request)?;
    tell(save, &back, args.json, screen)
}

/// Opens the repositories of all workers that have or had a worktree. A repository that cannot be opened is warned of.
fn all(caller: &Caller, paths: &Paths, screen: &mut Screen) -> Result<Vec<TrashList>, Failure> {
    let registry = super::read(paths, screen)?;
    let trees = registry.workers.iter().filter_map(|view| view.row.worktree.as_ref());
    let repos: BTreeSet<PathBuf> = trees.map(|tree| PathBuf::from(&tree.base_repo)).collect();
    let mut lists: Vec<TrashList> = Vec::new();
    for repo in repos {
        match TrashList::open(caller, &repo) {
            Ok(trash) if lists.iter().all(|known| known.repository() != trash.repository()) => lists.push(trash),
            Ok(_) => {}
            Err(refusal) => screen.warning(&refusal.cause),
        }
    }
    Ok(lists)
}

fn unknown(what: &str, saves: &[Save], trash: &TrashList) -> Refusal {
    let cause = format!("save '{what}' not found in {}", trash.repository().display());
    let near = nearest(what, saves.iter().map(|save| save.name.as_str()));
    let remedy = match near {
        Some(near) => format!("did you mean '{near}'?"),
        None => "run 'swarm restore' to list all saves".to_owned(),
    };
    Refusal::new(RefusalKind::NotFound, cause).remedy(remedy)
}

fn list(lists: &[TrashList], as_json: bool, screen: &mut Screen) -> Result<u8, Failure> {
    let mut found = Vec::new();
    for trash in lists {
        for save in trash.saves()? {
            let bytes = trash.bytes(&save)?;
            found.push((trash.repository(), save, bytes));
        }
    }
    if as_json {
        let saves = found.iter().map(|(repository, save, bytes)| shown(repository, save, *bytes, None)).collect();
        json::print_list(screen, "swarm.saves/1", "saves", saves)?;
        return Ok(0);
    }
    if found.is_empty() {
        let places: Vec<String> = lists.iter().map(|trash| trash.repository().display().to_string()).collect();
        screen.aside("note: ", &format!("no saves in {}", places.join(", ")));
        return Ok(0);
    }
    let clock = Clock::system();
    let header = ["NAME", "SAVED", "AGE", "BRANCH", "HEAD", "CHANGES", "SIZE", "WAS AT"];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    rows.extend(found.iter().map(|(_, save, bytes)| row(save, *bytes, &clock)));
    screen.bytes(table(&rows, |_, _, _| None).as_bytes())?;
    Ok(0)
}

fn row(save: &Save, bytes: u64, clock: &Clock) -> Vec<String> {
    let dash = || "-".to_owned();
    vec![
        escape(&save.id()).into_owned(),
        clock.local(save.at_ms),
        clock.since_ms(save.at_ms).map_or_else(dash, words),
        branch(save).map_or_else(dash, |branch| escape(branch).into_owned()),
        save.head.as_deref().map_or_else(dash, |head| short(head).to_owned()),
        save.changes.map_or_else(dash, |count| count.to_string()),
        size(bytes),
        save.path.as_deref().map_or_else(dash, |path| escape(&path.to_string_lossy()).into_owned()),
    ]
}

fn shown<'a>(repository: &'a Path, save: &'a Save, bytes: u64, files: Option<Vec<File<'a>>>) -> Shown<'a> {
    Shown {
        id: save.id(),
        name: &save.name,
        number: save.number,
        stamp: &save.stamp,
        reference: &save.reference,
        commit: &save.commit,
        repository,
        at_ms: save.at_ms,
        path: save.path.as_deref(),
        branch: branch(save),
        head: save.head.as_deref(),
        unfinished: save.doing.as_deref(),
        changes: save.changes,
        bytes,
        commits: save.commits.as_deref(),
        files,
    }
}

fn show(trash: &TrashList, save: &Save, as_json: bool, screen: &mut Screen) -> Result<u8, Failure> {
    let (bytes, changed) = (trash.bytes(save)?, trash.changed_paths(save)?);
    if as_json {
        let file = |other: &'_ ChangedPath| match other.letter {
            'A' => "added",
            'D' => "deleted",
            'T' => "type",
            _ => "modified",
        };
        let files = changed.iter().map(|other| File { path: &other.path, status: file(other) }).collect();
        json::print(screen, "swarm.save/1", &shown(trash.repository(), save, bytes, Some(files)))?;
        return Ok(0);
    }
    let clock = Clock::system();
    let none = || "-".to_owned();
    for (key, value) in [
        ("saved", clock.local(save.at_ms)),
        ("was at", save.path.as_deref().map_or_else(none, |path| path.display().to_string())),
        ("branch", branch(save).map_or_else(none, str::to_owned)),
        ("head", save.head.clone().unwrap_or_else(none)),
        ("operation", save.doing.clone().unwrap_or_else(none)),
        ("size", size(bytes)),
        ("ref", save.reference.clone()),
    ] {
        screen.line(&format!("{key:<9} {}", escape(&value)))?;
    }
    save.commits.iter().flatten().try_for_each(|commit| screen.line(&format!("{:<9} {commit}", "also")))?;
    changed.iter().try_for_each(|other| screen.line(&format!("{} {}", other.letter, escape(&other.path))))?;
    Ok(0)
}

fn patch(trash: &TrashList, save: &Save, screen: &mut Screen) -> Result<u8, Failure> {
    let text = trash.patch(save)?;
    if screen.rows.is_some() {
        screen.bytes(for_terminal(&text, screen.colour).as_bytes())?;
    } else {
        screen.bytes(&text)?;
    }
    Ok(0)
}

fn tell(save: &Save, back: &RestoredWorktree, as_json: bool, screen: &mut Screen) -> Result<u8, Failure> {
    if as_json {
        let restored = Restored {
            id: save.id(),
            name: &save.name,
            reference: &save.reference,
            path: &back.path,
            branch: back.branch.as_deref(),
            head: save.head.as_deref(),
            notes: &back.notes,
            dropped: back.dropped,
        };
        json::print(screen, "swarm.restored/1", &restored)?;
        return Ok(0);
    }
    let on = match (&back.branch, &save.head) {
        (Some(branch), _) => format!("branch {branch}"),
        (None, Some(head)) => format!("at {}", short(head)),
        (None, None) => "no branch".to_owned(),
    };
    let place = back.path.to_string_lossy();
    screen.line(&format!("restored {} to {} ({})", escape(&save.name), escape(&place), escape(&on)))?;
    back.notes.iter().for_each(|note| screen.aside("note: ", note));
    Ok(0)
}

fn branch(save: &Save) -> Option<&str> {
    save.branch.as_deref().map(|full| full.strip_prefix("refs/heads/").unwrap_or(full))
}

fn short(commit: &str) -> &str {
    commit.get(..SHORT).unwrap_or(commit)
}
