//! Identity of a run: its id, which is part of the keys of its queue items and of the requests that start its workers, and
//! the prefix of its workers' names.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use swarm_model::run::plan::Plan;

use crate::cli::error::Failure;
use swarm_store::runs::home::Home;
use swarm_store::runs::{journal, registered, run_id};
use swarm_store::views::{Detail, Pick, load_where};
use swarm_sys::files::is_absent;
use swarm_sys::paths::Paths;

/// Returns the id of the run in `home`, in whose journal `begun` is the plan. A state that was lost and planned again has
/// another date; the run is the same. In a copy of a project, whose journal is that of the original, another run begins.
pub fn of_specs(home: &Home, begun: Option<&Plan>, created_at: &str) -> String {
    match begun {
        Some(begun) if is_of(Path::new(&begun.home), home.path()) => begun.id.clone(),
        Some(_) => fresh(home),
        None => run_id(home.path(), created_at),
    }
}

/// Returns the id of the run of a job file. Without a journal it is a new one: an earlier run of the file may have made the
/// keys of another one's items.
pub fn of_file(home: &Home) -> String {
    journal::begun(home).map_or_else(|_| fresh(home), |run| run.plan.id.clone())
}

/// Reports whether the run that was begun in `recorded` is that in `home`: the same directory, perhaps moved since.
fn is_of(recorded: &Path, home: &Path) -> bool {
    let place = |path: &Path| fs::metadata(path).map(|found| (found.dev(), found.ino()));
    recorded == home
        || match (place(recorded), place(home)) {
            (Ok(recorded), Ok(home)) => recorded == home,
            _ => is_absent(recorded),
        }
}

fn fresh(home: &Home) -> String {
    run_id(home.path(), &swarm_sys::clock::random_token())
}

/// Returns the prefix of worker names: the name of the directory.
pub fn slug(root: &Path) -> String {
    let name = root.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let kept: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() || matches!(c, '-' | '_') { c } else { '-' }).collect();
    let kept = kept.trim_start_matches(['-', '_']);
    if kept.is_empty() { "run".to_owned() } else { kept.to_owned() }
}

/// Returns the prefix of a run that has begun, also if its repository was moved since. For another run like [`slug`], with the
/// run's id appended if a run of another repository with the same name has workers, or is about to.
pub fn own_slug(root: &Path, id: &str, home: &Home, paths: &Paths) -> Result<String, Failure> {
    let (plain, own) = (slug(root), format!("{}-{id}", slug(root)));
    // The sessions in its worktrees name its workers.
    if let Ok(run) = journal::begun(home)
        && run.plan.id == id
    {
        return Ok(run.plan.slug.clone());
    }
    let registry = load_where(paths, Detail::Word, Pick::All)?;
    let (prefix, trees) = (format!("{plain}."), home.worktrees());
    // A worker of this run whose worktree is elsewhere was started before the repository was moved.
    let is_here = |path: &str| Path::new(path).starts_with(&trees);
    let alike = registry.workers.iter().filter(|view| view.row.name.starts_with(&prefix));
    let (mut ours, mut theirs) = (false, false);
    for view in alike {
        for tag in view.row.tags.iter().filter_map(|tag| tag.strip_prefix("run:")) {
            let is_ours = tag == id && view.row.worktree.as_ref().is_none_or(|tree| is_here(&tree.path));
            ours |= is_ours;
            theirs |= !is_ours;
        }
    }
    // A run that has just begun has no workers yet.
    let others = registered(paths).into_iter().filter(|other| other != home.path());
    theirs |= others.map(Home::new).any(|other| journal::begun(&other).is_ok_and(|run| run.plan.slug == plain));
    Ok(if theirs && !ours { own } else { plain })
}

/// Returns the home of the run of a job file.
pub fn home_of_file(path: &Path, paths: &Paths) -> Home {
    Home::new(paths.runs().join(format!("{}-{}", slug(&path.with_extension("")), run_id(path, ""))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_of_a_run_is_another_run_and_a_moved_one_is_the_same() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = |name: &str| dir.path().join(name);
        fs::create_dir(path("one")).expect("made");
        fs::create_dir(path("two")).expect("made");
        std::os::unix::fs::symlink(path("two"), path("link")).expect("linked");
        let id = |recorded: &str| {
            let home = path(recorded).to_string_lossy().into_owned();
            let begun = Plan { id: "r1".to_owned(), home, ..Plan::default() };
            of_specs(&Home::new(path("two")), Some(&begun), "today")
        };
        assert_eq!([id("two"), id("link"), id("gone")], ["r1"; 3]);
        let (first, second) = (id("one"), id("one"));
        assert!(first != "r1" && second != "r1" && first != second, "{first} {second}");
    }
}
