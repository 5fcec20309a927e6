//! Waits until something that keeps an item from landing is gone: uncommitted edits, or a base that does not pass. The
//! kernel reports changes of the files concerned; nothing is polled.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use swarm_model::merge::queue::Obstacle;

use super::checked_out::{Holder, holders_of_base};
use super::{land, obstacles, off_thread};
use crate::landing::workspace::Workspace;
use crate::repository::fault::Fault;
use swarm_sys::readable::Readable;

/// Pause between a change and the check, because programs change several files in a row.
const SETTLE: Duration = Duration::from_millis(500);
/// Maximum number of directories that are watched for one obstacle.
const DIRS_MAX: usize = 64;

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
    loop {
        let (at, about) = (Arc::clone(&workspace), obstacle.clone());
        // Watched before the check, so that no change is missed.
        let checked = off_thread(move || {
            let holders = holders_of_base(&at)?.unwrap_or_default();
            let watch = watch(&dirs(&at, &about, &holders))?;
            Ok((watch, is_gone(&at, &about)?))
        });
        let (watch, is_gone) = checked.await?;
        if is_gone {
            return Ok(());
        }
        let failed = |error: std::io::Error| Fault::new(format!("cannot wait for a change: {error}"));
        Readable::new(OwnedFd::from(watch)).map_err(failed)?.wait().await.map_err(failed)?;
        tokio::time::sleep(SETTLE).await;
    }
}

pub(crate) fn is_gone(workspace: &Workspace, obstacle: &Obstacle) -> Result<bool, Fault> {
    let files = match obstacle {
        Obstacle::Base(commit) => return Ok(land::base(workspace)? != *commit),
        Obstacle::Edits(files) => files,
    };
    // While the base is being rebased, it cannot move.
    let Ok(holders) = holders_of_base(workspace)? else { return Ok(false) };
    // A slash at the end marks a directory that is in the way with anything in it.
    let (dirs, files): (Vec<&String>, Vec<&String>) = files.iter().partition(|file| file.ends_with('/'));
    for (tree, git_dir) in holders {
        for dir in &dirs {
            if obstacles::holds_anything(&tree, Path::new(dir.trim_end_matches('/')))? {
                return Ok(false);
            }
        }
        if files.is_empty() {
            continue;
        }
        let call = Workspace::named(workspace.cli.read(&tree), &git_dir, &tree);
        let status = ["--literal-pathspecs", "status", "--porcelain", "-z", "-uall", "--ignored", "--"];
        if !call.args(status).args(&files).run()?.is_empty() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns the directories in which a change may remove the obstacle.
fn dirs(workspace: &Workspace, obstacle: &Obstacle, holders: &[Holder]) -> BTreeSet<PathBuf> {
    let common = &workspace.common;
    match obstacle {
        Obstacle::Base(_) => {
            let reference = common.join(&workspace.target.branch);
            let above = reference.ancestors().skip(1).take_while(|dir| *dir != common.as_path());
            above.map(Path::to_owned).chain([common.clone(), common.join("reftable")]).collect()
        }
        Obstacle::Edits(files) => {
            let places = || holders.iter().flat_map(|(tree, _)| files.iter().map(|file| tree.join(file)));
            let above = places().filter_map(|file| file.parent().map(Path::to_owned));
            // The checkout of a submodule may be emptied and stay.
            let above = above.chain(places().filter(|place| place.as_os_str().as_encoded_bytes().ends_with(b"/")));
            let git_dirs = holders.iter().map(|(_, git_dir)| git_dir.clone());
            git_dirs.chain(above).take(DIRS_MAX).collect()
        }
    }
}

/// Watches the directories, or what exists above those that are missing, since they may be created again.
fn watch(dirs: &BTreeSet<PathBuf>) -> Result<Inotify, Fault> {
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
    use std::fs;

    use swarm_model::merge::Landing;
    use swarm_ports::Landings as _;

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
        let holders = holders_of_base(&workspace).unwrap().unwrap();
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
