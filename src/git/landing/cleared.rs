//! Waits until something that keeps an item from landing is gone: uncommitted edits, another git at work, or a base that
//! does not pass. The kernel reports changes of the files concerned; nothing is polled.

use std::collections::BTreeSet;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use swarm_model::merge::queue::Obstacle;

use super::checked_out::{Holder, Unready, holders_of_base};
use super::checkout::Marker;
use super::{at_work, land, obstacles, off_thread};
use crate::landing::obstacles::is_below;
use crate::landing::workspace::Workspace;
use crate::repository::fault::Fault;
use crate::repository::index;
use crate::repository::parse::{self, Change};
use crate::worktrees::admin;
use swarm_sys::files;
use swarm_sys::readable::Readable;

/// Pause between a change and the check, because programs change several files in a row.
const SETTLE: Duration = Duration::from_millis(500);
/// Maximum number of directories that are watched for one obstacle.
const DIRS_MAX: usize = 64;
/// Time until the next look if there are more.
const LOOK_AGAIN: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 10 });

const CHANGES: AddWatchFlags = AddWatchFlags::IN_CREATE
    .union(AddWatchFlags::IN_DELETE)
    .union(AddWatchFlags::IN_CLOSE_WRITE)
    .union(AddWatchFlags::IN_MOVED_TO)
    .union(AddWatchFlags::IN_MOVED_FROM)
    .union(AddWatchFlags::IN_ATTRIB)
    .union(AddWatchFlags::IN_DELETE_SELF)
    .union(AddWatchFlags::IN_MOVE_SELF);

/// Resolves once the obstacle is gone.
pub(crate) async fn cleared(workspace: Arc<Workspace>, obstacle: &Obstacle) -> Result<(), Fault> {
    if let Some(pid) = at_work::process(obstacle) {
        let failed = |error: std::io::Error| Fault::new(format!("cannot wait for process {pid}: {error}"));
        // Opened before the check, so that it is the same process.
        let Some(end) = at_work::end_of(pid).map_err(failed)? else { return Ok(()) };
        return match at_work::has_ended(pid) {
            true => Ok(()),
            false => Readable::new(end).map_err(failed)?.wait().await.map_err(failed),
        };
    }
    loop {
        let (at, about) = (Arc::clone(&workspace), obstacle.clone());
        // Watched before the check, so that no change is missed.
        let checked = off_thread(move || {
            let dirs = dirs(&at, &about, &holders_of_base(&at)?);
            let watch = watch(dirs.iter().take(DIRS_MAX))?;
            Ok((watch, dirs.len() > DIRS_MAX, is_gone(&at, &about)?))
        });
        let (watch, is_partial, is_gone) = checked.await?;
        if is_gone {
            return Ok(());
        }
        let failed = |error: std::io::Error| Fault::new(format!("cannot wait for a change: {error}"));
        let changes = Readable::new(OwnedFd::from(watch)).map_err(failed)?;
        let limit = if is_partial { LOOK_AGAIN } else { Duration::MAX };
        tokio::time::timeout(limit, changes.wait()).await.unwrap_or(Ok(())).map_err(failed)?;
        tokio::time::sleep(SETTLE).await;
    }
}

pub(crate) fn is_gone(workspace: &Workspace, obstacle: &Obstacle) -> Result<bool, Fault> {
    let files = match obstacle {
        Obstacle::Base(commit) => return Ok(land::base(workspace)? != *commit),
        Obstacle::Leftovers => return Ok(Marker::load(workspace)?.is_none()),
        Obstacle::File(file) => {
            if let Some(pid) = at_work::process(obstacle) {
                return Ok(at_work::has_ended(pid));
            }
            let path = Path::new(file);
            if let (true, Some(git_dir)) = (path.ends_with(index::FILE), path.parent()) {
                // Not the file itself is in the way, but conflicts in it.
                let list = ["ls-files", "--unmerged", "-z"];
                let call = workspace.cli.read(git_dir).env("GIT_DIR", git_dir).env("GIT_IMPLICIT_WORK_TREE", "false");
                return Ok(!git_dir.exists() || call.args(list).run()?.is_empty());
            }
            return admin::ignore_missing(fs::symlink_metadata(path))
                .map(|seen| seen.is_none())
                .map_err(Fault::at(path));
        }
        Obstacle::Edits(files) => files,
    };
    // While the base is being rebased, it cannot move.
    let Ok(holders) = holders_of_base(workspace)? else { return Ok(false) };
    // A slash at the end marks a directory that is in the way with anything in it.
    let (dirs, files): (Vec<&String>, Vec<&String>) = files.iter().partition(|file| file.ends_with('/'));
    let (inexact, exact): (Vec<&String>, Vec<&String>) = files.into_iter().partition(|file| file.contains(LOST));
    for (tree, git_dir) in holders {
        for dir in &dirs {
            for place in places(&tree, dir.trim_end_matches('/')) {
                if obstacles::holds_anything(&tree, &place)? {
                    return Ok(false);
                }
            }
        }
        let status = || {
            let call = Workspace::named(workspace.cli.read(&tree), &git_dir, &tree);
            call.args(["status", "--porcelain", "-z", "-uall", "--ignored", "--ignore-submodules=dirty", "--"])
        };
        if !exact.is_empty() && !status().env("GIT_LITERAL_PATHSPECS", "1").args(&exact).run()?.is_empty() {
            return Ok(false);
        }
        if !inexact.is_empty() {
            let changes = parse::status(&status().args(inexact.iter().map(|file| pathspec(file))).run()?);
            let is_meant = |change: &Change| {
                let path = String::from_utf8_lossy(&change.path);
                inexact.iter().any(|file| path == file.as_str() || is_below(path.as_bytes(), file.as_bytes()))
            };
            if changes.iter().any(is_meant) {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

/// Stands in a name for bytes that are not UTF-8.
const LOST: char = char::REPLACEMENT_CHARACTER;

/// Returns a pathspec for all paths that have this name in UTF-8.
fn pathspec(name: &str) -> String {
    let mut spec = ":(top,glob)".to_owned();
    for c in name.chars() {
        match c {
            LOST => spec.push('*'),
            '*' | '?' | '[' | '\\' => spec.extend(['\\', c]),
            _ => spec.push(c),
        }
    }
    spec
}

/// Returns the paths below `root` that have this name in UTF-8. Parts that are not UTF-8 are looked up in the directory.
fn places(root: &Path, name: &str) -> Vec<PathBuf> {
    let mut found = vec![PathBuf::new()];
    for part in name.split('/') {
        let below = |above: PathBuf| {
            if !part.contains(LOST) {
                return vec![above.join(part)];
            }
            let names = files::list(&root.join(&above)).unwrap_or_default().into_iter().map(|entry| entry.file_name());
            names.filter(|name| name.to_string_lossy() == part).map(|name| above.join(name)).collect()
        };
        found = found.into_iter().flat_map(below).collect();
    }
    found
}

/// Returns the directories in which a change may remove the obstacle.
fn dirs(workspace: &Workspace, obstacle: &Obstacle, holders: &Result<Vec<Holder>, Unready>) -> BTreeSet<PathBuf> {
    let above = |file: &Path| file.parent().unwrap_or(file).to_owned();
    let common = &workspace.common;
    match obstacle {
        // The marker is there.
        Obstacle::Leftovers => BTreeSet::from([workspace.own.clone()]),
        Obstacle::Base(_) => {
            let reference = common.join(&workspace.target.branch);
            let above = reference.ancestors().skip(1).take_while(|dir| *dir != common.as_path());
            above.map(Path::to_owned).chain([common.clone(), common.join("reftable")]).collect()
        }
        Obstacle::File(file) => BTreeSet::from([above(Path::new(file))]),
        Obstacle::Edits(files) => {
            // The edits are looked at again once the base can move.
            let until = holders.as_ref().err().and_then(|unready| unready.until.as_deref()).map(above);
            let holders = holders.as_ref().map_or(&[][..], Vec::as_slice);
            let above =
                |file: &str| file.trim_end_matches('/').rsplit_once('/').map_or("", |(above, _)| above).to_owned();
            // The checkout of a submodule may be emptied and stay.
            let submodules =
                files.iter().filter(|file| file.ends_with('/')).map(|file| file.trim_end_matches('/').to_owned());
            let names: Vec<String> = files.iter().map(|file| above(file)).chain(submodules).collect();
            let in_tree = |tree: &PathBuf, name: &String| {
                let found = places(tree, name);
                let found = if found.is_empty() { vec![PathBuf::from(name)] } else { found };
                found.into_iter().map(|place| tree.join(place)).collect::<Vec<_>>()
            };
            let above = holders.iter().flat_map(|(tree, _)| names.iter().flat_map(|name| in_tree(tree, name)));
            let git_dirs = holders.iter().map(|(_, git_dir)| git_dir.clone());
            git_dirs.chain(above).chain(until).collect()
        }
    }
}

/// Watches the directories, or what exists above those that are missing, since they may be created again.
fn watch<'d>(dirs: impl IntoIterator<Item = &'d PathBuf>) -> Result<Inotify, Fault> {
    let failed = |error: nix::Error| Fault::new(format!("cannot watch files: {error}"));
    let watch = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK).map_err(failed)?;
    for dir in dirs {
        for place in dir.ancestors() {
            match watch.add_watch(place, CHANGES) {
                Ok(_) => break,
                Err(nix::Error::ENOENT | nix::Error::ENOTDIR) => {}
                Err(error) => return Err(failed(error)),
            }
        }
    }
    Ok(watch)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;

    use swarm_model::merge::Landing;
    use swarm_ports::Landings as _;

    use super::super::checkout::{self, Planned};
    use super::super::tests_checkout::Site;
    use super::*;
    use crate::fixture::text;

    fn edits(files: &[&str]) -> Obstacle {
        Obstacle::Edits(files.iter().map(|file| (*file).to_owned()).collect())
    }

    /// Asserts that the obstacle is there, and that the kernel reports its removal.
    async fn disappears(site: &Site, obstacle: &Obstacle, remove: impl FnOnce()) {
        let workspace = site.workspace();
        assert!(!is_gone(&workspace, obstacle).unwrap(), "{obstacle:?}");
        let holders = holders_of_base(&workspace).unwrap();
        let watch = watch(&dirs(&workspace, obstacle, &holders)).unwrap();
        assert_eq!(watch.read_events().err(), Some(nix::Error::EAGAIN), "the check itself changes nothing");
        remove();
        assert!(watch.read_events().is_ok_and(|events| !events.is_empty()), "{obstacle:?}");
        assert!(is_gone(&workspace, obstacle).unwrap(), "{obstacle:?}");
        assert_eq!(site.landings.cleared(&site.target, obstacle).await, Ok(()));
    }

    #[tokio::test]
    async fn edits_disappear_in_many_ways() {
        let site = Site::new();
        fs::create_dir(site.fix.repo.join("d")).unwrap();
        site.fix.commit("in a directory", "d/g", "1\n");
        site.branch("topic", "echo topic > t");
        site.item("topic").await;
        let (f, g, new) = (site.fix.repo.join("f"), site.fix.repo.join("d/g"), site.fix.repo.join("d/ignored"));
        let both = edits(&["f", "d/g", "d/ignored"]);
        let removals: [&dyn Fn(); 5] = [
            &|| drop(site.fix.git(&["checkout", "-q", "--", "."])),
            &|| drop(site.fix.git(&["stash", "-q"])),
            &|| drop(site.fix.git(&["commit", "-qam", "mine"])),
            &|| {
                fs::write(&f, text(&site.fix.git(&["show", "main:f"])) + "\n").unwrap();
                fs::write(&g, text(&site.fix.git(&["show", "main:d/g"])) + "\n").unwrap();
            },
            &|| drop(site.fix.git(&["switch", "-q", "-c", "elsewhere"])),
        ];
        for (number, remove) in removals.into_iter().enumerate() {
            fs::write(&f, format!("mine {number}\n")).unwrap();
            fs::write(&g, format!("mine {number}\n")).unwrap();
            disappears(&site, &both, remove).await;
            let _ = site.fix.attempt(&site.fix.repo, &["switch", "-q", "-f", "main"]);
        }
        fs::write(&new, "an ignored file\n").unwrap();
        disappears(&site, &both, || fs::remove_file(&new).unwrap()).await;
        // A directory that is gone is an edit, too.
        fs::remove_dir_all(g.parent().unwrap()).unwrap();
        disappears(&site, &edits(&["d/g"]), || {
            fs::create_dir(g.parent().unwrap()).unwrap();
            fs::write(&g, text(&site.fix.git(&["show", "main:d/g"])) + "\n").unwrap();
        })
        .await;
    }

    #[tokio::test]
    async fn edits_in_more_directories_than_are_watched_disappear() {
        let site = Site::new();
        let files: Vec<String> = (10..10 + DIRS_MAX + 2).map(|number| format!("d{number}/f")).collect();
        for file in &files {
            let path = site.fix.repo.join(file);
            fs::create_dir(path.parent().unwrap()).unwrap();
            fs::write(path, "1\n").unwrap();
        }
        site.fix.commit("many directories", "f", "2\n");
        site.branch("topic", "echo topic > t");
        site.item("topic").await;
        let last = site.fix.repo.join(files.last().unwrap());
        fs::write(&last, "an edit\n").unwrap();
        let obstacle = Obstacle::Edits(files);
        let remove = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            fs::write(&last, "1\n").unwrap();
        };
        let cleared = tokio::time::timeout(Duration::from_secs(30), site.landings.cleared(&site.target, &obstacle));
        assert_eq!(tokio::join!(cleared, remove).0, Ok(Ok(())));
    }

    #[tokio::test]
    async fn edits_in_files_whose_names_are_not_utf_8_are_waited_for() {
        let site = Site::new();
        let (dir, file) = (site.fix.repo.join(OsStr::from_bytes(b"d\xe9[1]")), OsStr::from_bytes(b"caf\xe9.txt"));
        fs::create_dir(&dir).unwrap();
        for path in [dir.join(file), site.fix.repo.join(file), dir.join("cafX.txt")] {
            fs::write(path, "1\n").unwrap();
        }
        site.fix.commit("odd names", "f", "2\n");
        site.branch("topic", "for file in *.txt d*/caf*; do echo topic > \"$file\"; done");
        fs::write(dir.join("cafX.txt"), "not in the way\n").unwrap();
        for path in [dir.join(file), site.fix.repo.join(file)] {
            fs::write(&path, "mine\n").unwrap();
            let Landing::Overlap(files) = site.land("topic").await else { panic!("it landed") };
            let obstacle = Obstacle::Edits(files.into_iter().filter(|file| !file.ends_with("X.txt")).collect());
            disappears(&site, &obstacle, || fs::write(&path, "1\n").unwrap()).await;
            fs::write(&path, "mine\n").unwrap();
            let above = path.parent().unwrap();
            disappears(&site, &obstacle, || {
                site.fix.at(above, &["checkout", "-q", "--", "."]);
            })
            .await;
            fs::write(dir.join("cafX.txt"), "not in the way\n").unwrap();
        }
        fs::write(dir.join("new"), "").unwrap();
        let whole = edits(&["d\u{fffd}[1]/"]);
        disappears(&site, &whole, || fs::remove_dir_all(&dir).unwrap()).await;
    }

    #[tokio::test]
    async fn a_submodule_in_the_way_is_gone_when_its_checkout_is() {
        let site = Site::new();
        site.submodule("lib");
        site.branch("file", "git rm -rq --cached lib; rm -rf lib; echo x > lib");
        fs::remove_file(site.fix.repo.join("lib/own")).unwrap();
        assert_eq!(text(&site.fix.git(&["status", "--porcelain"])), "", "git counts it as clean");
        let Landing::Overlap(files) = site.land("file").await else { panic!("it landed") };
        let lib = site.fix.repo.join("lib");
        disappears(&site, &Obstacle::Edits(files.clone()), || fs::remove_dir_all(&lib).unwrap()).await;
        fs::create_dir(&lib).unwrap();
        fs::write(lib.join("left"), "").unwrap();
        disappears(&site, &Obstacle::Edits(files), || fs::remove_file(lib.join("left")).unwrap()).await;
        assert_eq!(site.land("file").await, Landing::Done(Vec::new()));
    }

    #[tokio::test]
    async fn another_git_ends_its_work() {
        let mut site = Site::new();
        site.fix.set("GIT_SEQUENCE_EDITOR", "sed -i s/^pick/edit/");
        site.fix.commit("more", "f", "2\n");
        site.branch("topic", "echo topic > t");
        site.item("topic").await;
        let busy = |landed: Landing, start: &str| match landed {
            Landing::Busy { reason, file } if reason.contains(start) => Obstacle::File(file),
            other => panic!("{other:?}"),
        };
        let item = site.item("topic").await;
        let lock = site.fix.repo.join(".git/index.lock");
        fs::write(&lock, "").unwrap();
        let tip = |branch: &str| text(&site.fix.git(&["rev-parse", branch]));
        let Planned::Ready(plan) = checkout::plan(&site.workspace(), &tip("main"), &tip("topic")).unwrap() else {
            panic!("not ready")
        };
        let unready = plan.lock_within(Duration::ZERO).unwrap().expect("a lock");
        let locked = busy(unready.landing(), "index.lock has been locked by another git process");
        disappears(&site, &locked, || fs::remove_file(&lock).unwrap()).await;
        for end in ["--continue", "--abort"] {
            site.fix.git(&["rebase", "-q", "-i", "HEAD~1"]);
            let rebased = busy(site.land_item(&item).await, "'main' is being rebased in ");
            fs::write(site.fix.repo.join("f"), "mine\n").unwrap();
            let edited = edits(&["f"]);
            assert!(!is_gone(&site.workspace(), &edited).unwrap());
            let holders = holders_of_base(&site.workspace()).unwrap();
            assert_eq!(dirs(&site.workspace(), &edited, &holders), BTreeSet::from([site.fix.repo.join(".git")]));
            fs::write(site.fix.repo.join("f"), "2\n").unwrap();
            disappears(&site, &rebased, || drop(site.fix.git(&["rebase", end]))).await;
        }
        assert_eq!(site.land("topic").await, Landing::Done(Vec::new()));
    }

    #[tokio::test]
    async fn conflicts_of_a_person_are_waited_for() {
        let site = Site::new();
        site.branch("topic", "echo topic > t");
        site.fix.git(&["branch", "other"]);
        site.fix.commit("mine", "f", "mine\n");
        site.branch("theirs", "git reset -q --hard other; echo theirs > f");
        let (merge, abort) = (["merge", "-q", "theirs"], ["merge", "--abort"]);
        let ends: [&[&str]; 3] = [&abort, &["add", "f"], &["rm", "-q", "--cached", "f"]];
        for end in ends {
            assert!(!site.fix.attempt(&site.fix.repo, &merge).0, "a conflict");
            let before = text(&site.fix.git(&["status", "--porcelain"]));
            let Landing::Busy { reason, file } = site.land("topic").await else { panic!("it landed or failed") };
            assert!(reason.contains("has unresolved conflicts: f (the work lands by itself"), "{reason}");
            assert_eq!(text(&site.fix.git(&["status", "--porcelain"])), before);
            disappears(&site, &Obstacle::File(file), || drop(site.fix.git(end))).await;
            let _ = site.fix.attempt(&site.fix.repo, &["reset", "-q", "--hard"]);
        }
        assert_eq!(site.land("topic").await, Landing::Done(Vec::new()));
    }

    #[tokio::test]
    async fn a_base_moves_in_many_ways() {
        let site = Site::new();
        site.branch("topic", "echo topic > t");
        site.item("topic").await;
        let tip = || text(&site.fix.git(&["rev-parse", "main"]));
        disappears(&site, &Obstacle::Base(tip()), || site.fix.commit("more", "f", "2\n")).await;
        site.fix.git(&["pack-refs", "--all"]);
        disappears(&site, &Obstacle::Base(tip()), || drop(site.fix.git(&["reset", "-q", "--soft", "HEAD~1"]))).await;
        let then = tip();
        let moved = site.fix.git(&["commit-tree", "-p", &then, "-m", "x", "main^{tree}"]);
        disappears(&site, &Obstacle::Base(then), || {
            drop(site.fix.git(&["update-ref", "refs/heads/main", &text(&moved)]));
        })
        .await;
    }
}
