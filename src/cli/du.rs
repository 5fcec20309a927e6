//! `swarm du`: disk usage of workers and saved worktrees.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;

use super::caller;
use super::error::{Failure, unknown_worker};
use super::json;
use super::render::{escape, size, table};
use super::screen::Screen;
use swarm_store::repositories::trash::list::TrashList;
use swarm_store::repositories::usage::bytes;
use swarm_sys::paths::Paths;

#[derive(Debug, Args)]
pub struct DuArgs {
    /// Workers to measure [default: all workers, other worktrees and saves]
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Serialize)]
struct Usage {
    workers: Vec<Worker>,
    /// Worktrees of the same repositories without a worker; a quota counts them too.
    others: Vec<Other>,
    saves: Vec<Saves>,
    bytes: u64,
}

#[derive(Serialize)]
struct Other {
    path: PathBuf,
    bytes: u64,
}

#[derive(Serialize)]
struct Worker {
    name: String,
    path: Option<String>,
    worktree_bytes: u64,
    log_bytes: u64,
    bytes: u64,
}

#[derive(Serialize)]
struct Saves {
    repository: PathBuf,
    count: usize,
    bytes: u64,
}

pub fn run(args: &DuArgs, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    let registry = super::read_for(paths, super::only(&args.names), screen)?;
    for name in &args.names {
        registry.find(name).ok_or_else(|| unknown_worker(name, &registry))?;
    }
    let is_asked = |name: &str| args.names.is_empty() || args.names.iter().any(|asked| asked == name);
    let (mut workers, mut repos) = (Vec::new(), BTreeSet::new());
    for row in registry.workers.iter().map(|view| &view.row).filter(|row| is_asked(&row.name)) {
        let path = row.worktree.as_ref().map(|tree| tree.path.clone());
        repos.extend(row.worktree.as_ref().map(|tree| PathBuf::from(&tree.base_repo)));
        let worktree_bytes = path.as_deref().map_or(0, |path| bytes(Path::new(path)));
        let log_bytes = logs(paths, &row.name);
        let bytes = worktree_bytes + log_bytes;
        workers.push(Worker { name: row.name.clone(), path, worktree_bytes, log_bytes, bytes });
    }
    workers.sort_by(|a, b| (b.bytes, &a.name).cmp(&(a.bytes, &b.name)));
    let is_all = args.names.is_empty();
    let others = if is_all { others(&repos, &workers) } else { Vec::new() };
    let saves = if is_all { saves(&repos, screen)? } else { Vec::new() };
    let of_workers = workers.iter().map(|worker| worker.bytes).chain(others.iter().map(|other| other.bytes));
    let total = of_workers.chain(saves.iter().map(|saves| saves.bytes)).sum();
    let usage = Usage { workers, others, saves, bytes: total };
    if args.json {
        json::print(screen, "swarm.du/1", &usage)?;
    } else {
        print(&usage, screen)?;
    }
    Ok(0)
}

fn others(repos: &BTreeSet<PathBuf>, workers: &[Worker]) -> Vec<Other> {
    let resolved = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let known: BTreeSet<PathBuf> =
        workers.iter().filter_map(|worker| Some(resolved(Path::new(worker.path.as_ref()?)))).collect();
    let here = std::env::current_dir()
        .ok()
        .and_then(|cwd| swarm_store::repositories::main_tree(swarm_config::root_above(&cwd)?));
    let mut roots: BTreeSet<PathBuf> = repos.iter().map(|repo| resolved(repo)).collect();
    roots.extend(here.map(|root| resolved(&root)));
    let listed = roots.iter().flat_map(|root| swarm_store::repositories::worktrees_of(root).unwrap_or_default());
    let strange = listed.map(|one| resolved(&one.path)).filter(|path| !known.contains(path) && path.exists());
    let mut others: Vec<Other> = strange.map(|path| Other { bytes: bytes(&path), path }).collect();
    others.sort_by(|a, b| (b.bytes, &a.path).cmp(&(a.bytes, &b.path)));
    others
}

/// Returns the size of the logs of a worker, including rotated parts, in bytes.
fn logs(paths: &Paths, name: &str) -> u64 {
    let files = ["stdout", "stderr", "tmux"].map(|kind| paths.log(name, kind));
    let sizes = swarm_store::window_sizes::beside(&paths.log(name, "tmux"));
    files.iter().chain([&sizes]).map(|file| bytes(file) + bytes(&file.with_added_extension("1"))).sum()
}

/// Returns the saves in the repositories of the workers and in the current one.
fn saves(repos: &BTreeSet<PathBuf>, screen: &mut Screen) -> Result<Vec<Saves>, Failure> {
    let caller = caller::collect()?.caller;
    let mut found: Vec<Saves> = Vec::new();
    let here = TrashList::open(&caller, Path::new(".")).ok();
    for trash in repos.iter().map(|repo| TrashList::open(&caller, repo)).chain(here.map(Ok)) {
        let trash = match trash {
            Ok(trash) => trash,
            Err(refusal) => {
                screen.warning(&refusal.cause);
                continue;
            }
        };
        if found.iter().any(|known| known.repository == trash.repository()) {
            continue;
        }
        let saves = trash.saves()?;
        let bytes = saves.iter().map(|save| trash.bytes(save)).sum::<Result<u64, _>>()?;
        found.push(Saves { repository: trash.repository().to_owned(), count: saves.len(), bytes });
    }
    found.retain(|saves| saves.count > 0);
    Ok(found)
}

fn print(usage: &Usage, screen: &mut Screen) -> Result<(), Failure> {
    let mut rows = vec![["SIZE", "WORKTREE", "LOGS", "NAME"].map(str::to_owned).to_vec()];
    for worker in &usage.workers {
        let name = escape(&worker.name).into_owned();
        rows.push(vec![size(worker.bytes), size(worker.worktree_bytes), size(worker.log_bytes), name]);
    }
    for other in &usage.others {
        let text = format!("(no worker) {}", escape(&other.path.to_string_lossy()));
        rows.push(vec![size(other.bytes), size(other.bytes), "-".to_owned(), text]);
    }
    for saves in &usage.saves {
        let place = saves.repository.to_string_lossy();
        let text = format!("({} saved in {})", saves.count, escape(&place));
        rows.push(vec![size(saves.bytes), "-".to_owned(), "-".to_owned(), text]);
    }
    if rows.len() > 1 {
        rows.push(vec![size(usage.bytes), "-".to_owned(), "-".to_owned(), "(total)".to_owned()]);
        screen.bytes(table(&rows, |_, _, _| None).as_bytes())?;
    }
    Ok(())
}
