//! Scratch directories that git cannot clean, or whose commit git cannot check out.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat};
use swarm_model::merge::queue::Rules;
use swarm_model::merge::{Resolution, Verdict};
use swarm_ports::{Landings as _, Verification};

use super::tests_checkout::Site;
use super::tests_complete::{log, stopped_merge, write};
use super::{discarded, furnish, leftover, resolve, scratch};
use crate::fixture::text;
use crate::landing::workspace::Workspace;
use crate::repository::markers::Conflict;
use scratch::Leftovers::{Delete, Keep};

/// Creates directories whose path is longer than the kernel accepts.
fn deep(top: &Path) {
    let open = |at: OwnedFd| openat(&at, c"dd", OFlags::DIRECTORY, Mode::empty()).unwrap();
    fs::create_dir_all(top).unwrap();
    let mut below = openat(CWD, top, OFlags::DIRECTORY, Mode::empty()).unwrap();
    for _ in 0..2500 {
        mkdirat(&below, c"dd", Mode::RWXU).unwrap();
        below = open(below);
    }
}

/// Returns a workspace with a branch `topic`, and its tip.
async fn prepared() -> (Site, Workspace, String) {
    let site = Site::new();
    site.branch("topic", "echo topic > topic");
    site.item("topic").await;
    let (workspace, commit) = (site.workspace(), site.tip("topic"));
    (site, workspace, commit)
}

#[tokio::test]
async fn a_scratch_directory_that_git_cannot_clean_is_made_anew() {
    let (site, workspace, commit) = prepared().await;
    let dir = workspace.own.join("verify");
    let record = || site.fix.repo.join(".git/worktrees/verify");
    let spoils: [(&str, &dyn Fn()); 8] = [
        // For root, this is no obstacle.
        ("directories that are not writable", &|| {
            for name in ["left", "ignored"] {
                write(&dir, &[&format!("{name}/pkg/mod/go.mod")]);
                fs::set_permissions(dir.join(name).join("pkg/mod"), fs::Permissions::from_mode(0o555)).unwrap();
            }
        }),
        ("untracked directories", &|| deep(&dir.join("left"))),
        ("ignored directories", &|| deep(&dir.join("ignored"))),
        ("directories in place of a file", &|| {
            fs::remove_file(dir.join("topic")).unwrap();
            deep(&dir.join("topic"));
        }),
        ("the index", &|| fs::write(record().join("index"), "no index").unwrap()),
        ("the index is a directory", &|| {
            fs::remove_file(record().join("index")).unwrap();
            fs::create_dir(record().join("index")).unwrap();
        }),
        ("HEAD", &|| fs::write(record().join("HEAD"), "no head\n").unwrap()),
        ("a file in its place", &|| {
            fs::remove_dir_all(&dir).unwrap();
            fs::write(&dir, "").unwrap();
        }),
    ];
    for (what, spoil) in spoils {
        scratch::prepare(&workspace, "verify", &commit, Keep).unwrap();
        fs::write(dir.join("ignored-not"), "untracked").unwrap();
        spoil();
        let scratch = scratch::prepare(&workspace, "verify", &commit, Delete).expect(what);
        assert_eq!(text(&site.fix.at(&dir, &["status", "--porcelain", "--ignored"])), "", "{what}");
        assert_eq!((text(&site.fix.at(&dir, &["rev-parse", "HEAD"])), &scratch.dir), (commit.clone(), &dir), "{what}");
        let listed = text(&site.fix.git(&["worktree", "list", "--porcelain"]));
        assert_eq!(listed.matches("worktree ").count(), 2, "{what}: {listed}");
        assert_eq!(discarded(&site.paths), Vec::<std::path::PathBuf>::new(), "{what}");
    }
}

#[tokio::test]
async fn what_git_cannot_clean_after_a_verification_is_deleted_at_once() {
    let (_site, workspace, commit) = prepared().await;
    let place = scratch::prepare(&workspace, "verify", &commit, Keep).unwrap();
    fs::write(place.dir.join("ignored"), "a cache").unwrap();
    scratch::discard(&workspace, &place, &commit);
    assert!(place.dir.join("ignored").exists());
    deep(&place.dir.join("left"));
    scratch::discard(&workspace, &place, &commit);
    assert!(!place.dir.exists());
    scratch::prepare(&workspace, "verify", &commit, Keep).unwrap();
    assert!(place.dir.join("topic").exists());
}

#[tokio::test]
async fn a_scratch_directory_is_removed_whatever_is_in_it() {
    let (site, workspace, commit) = prepared().await;
    let place = scratch::prepare(&workspace, "resolve-7", &commit, Delete).unwrap();
    deep(&place.dir.join("ignored"));
    scratch::remove(&workspace, &place);
    assert!(!place.dir.exists() && !site.fix.repo.join(".git/worktrees").exists());
    assert!(discarded(&site.paths).is_empty());
    scratch::remove(&workspace, &place);
}

#[tokio::test]
async fn directories_whose_deletion_was_interrupted_are_deleted_by_the_next_sweep() {
    let (_site, workspace, _) = prepared().await;
    let left = workspace.own.join("discarded-3");
    deep(&left);
    assert_eq!(discarded::sweep(&workspace.own), Vec::<std::path::PathBuf>::new());
    assert!(!left.exists());
}

#[tokio::test]
async fn an_item_whose_commit_cannot_be_checked_out_is_rejected_and_the_next_one_is_not() {
    let site = Site::new();
    let blob = text(&site.fix.git(&["hash-object", "-w", "f"]));
    let long =
        format!("git update-index --add --cacheinfo 100644,{blob},{}f; git commit -qm deep; exit", "dd/".repeat(1400));
    site.branch("good", "echo good > good");
    site.branch("deep", &long);
    let mut item = site.item("deep").await;
    // The program that would run it does not exist.
    item.rules.verify = Some("true".into());
    let verify = async |kind| site.landings.verify(&site.target, &item, &site.tip("deep"), kind).await;
    for kind in [Verification::First, Verification::Again, Verification::Base] {
        let path = format!("{}…", "dd/".repeat(20));
        let why = format!("the commit cannot be checked out: the path '{path}' has 4201 bytes, and 4095 is the limit");
        assert_eq!(verify(kind).await, Verdict::Red(why));
    }
    let next = site.landings.verify(&site.target, &item, &site.tip("good"), Verification::First).await;
    assert!(matches!(&next, Verdict::Unknown(why) if why.starts_with("cannot run 'true'")), "{next:?}");
    assert_eq!(fs::read_to_string(site.workspace().own.join("verify/good")).unwrap(), "good\n");
}

#[tokio::test]
async fn the_result_of_a_resolver_does_not_depend_on_the_removal_of_its_worktree() {
    for is_known in [true, false] {
        let site = Site::new();
        let (item, place, onto) = stopped_merge(&site).await;
        let (workspace, log, conflicts) = (site.workspace(), log(&site), [Conflict::at("list")]);
        write(&place.dir, &["list"]);
        deep(&place.dir.join("ignored"));
        if !is_known {
            // The worktrees inside cannot be listed.
            fs::create_dir_all(site.fix.repo.join(".git/worktrees/z/gitdir")).unwrap();
        }
        let result = resolve::finish(&workspace, &place, &item, (&onto, &conflicts), None, None, &log).unwrap();
        let Resolution::Done(tip) = result else { panic!("{result:?}") };
        assert_eq!(text(&site.fix.git(&["show", &format!("{tip}:list")])), "of the resolver");
        let kept = workspace.own.join("left/0-1");
        assert_eq!((place.dir.exists(), kept.exists()), (false, !is_known));
        assert!(discarded(&site.paths).is_empty());
        if !is_known {
            let told = fs::read_to_string(log).unwrap();
            assert!(told.contains("cannot be saved: ") && told.contains(&kept.display().to_string()), "{told}");
            assert_eq!(text(&site.fix.at(&kept, &["rev-parse", "HEAD"])), onto, "it is a worktree");
        }
    }
}

#[tokio::test]
async fn a_try_that_cannot_be_saved_is_kept_as_it_is_and_the_next_one_starts() {
    let site = Site::new();
    let (item, place, onto) = stopped_merge(&site).await;
    let (workspace, log) = (site.workspace(), log(&site));
    let failed = || Resolution::Failed("the resolver exited with code 1".into());
    for number in 1..=2 {
        write(&place.dir, &["own"]);
        deep(&place.dir.join("deep"));
        if number == 1 {
            let result = resolve::finish(&workspace, &place, &item, (&onto, &[]), Some(failed()), None, &log).unwrap();
            assert_eq!(result, failed());
        } else {
            leftover::keep_interrupted(&workspace, "resolve-0", &item, &log).unwrap();
        }
        let kept = workspace.own.join(format!("left/0-{number}"));
        assert_eq!(fs::read_to_string(kept.join("own")).unwrap(), "of the resolver\n");
        assert!(kept.join("deep/dd/dd").exists() && !place.dir.exists());
        scratch::prepare(&workspace, "resolve-0", &onto, Delete).unwrap();
    }
}

/// Writes the stat data of the first file of an index as they are now, but keeps the object: git takes the file for
/// unchanged.
fn forge(index: &Path, file: &Path) {
    use std::os::unix::fs::MetadataExt as _;
    let mut content = fs::read(index).unwrap();
    let meta = fs::symlink_metadata(file).unwrap();
    let numbers =
        [meta.ctime(), meta.ctime_nsec(), meta.mtime(), meta.mtime_nsec(), meta.dev() as i64, meta.ino() as i64];
    let sizes = [0o100_644, i64::from(meta.uid()), i64::from(meta.gid()), meta.size() as i64];
    let fields = numbers.into_iter().chain(sizes).flat_map(|number| (number as u32).to_be_bytes());
    content.splice(12..52, fields);
    content.truncate(content.len() - 20);
    // Without a checksum: git does not compare one of zeros.
    content.extend([0; 20]);
    fs::write(index, content).unwrap();
}

#[tokio::test]
async fn a_file_that_a_verification_hides_by_forged_stat_data_is_written_again() {
    let site = Site::new();
    // The first file of the index.
    site.branch("topic", "echo as committed > ./+a");
    site.item("topic").await;
    let (workspace, commit) = (site.workspace(), site.tip("topic"));
    let place = scratch::prepare(&workspace, "verify", &commit, Keep).unwrap();
    let (file, index) = (place.dir.join("+a"), place.entry.join("index"));
    let kept = fs::symlink_metadata(&file).unwrap().modified().unwrap();
    scratch::prepare(&workspace, "verify", &commit, Keep).unwrap();
    assert_eq!(fs::symlink_metadata(&file).unwrap().modified().unwrap(), kept, "a file that nobody wrote stays");
    let poison = || {
        fs::write(&file, "of a verification\n").unwrap();
        // git reads files that are not older than the index.
        let old = kept - std::time::Duration::from_secs(3600);
        fs::File::options().write(true).open(&file).unwrap().set_modified(old).unwrap();
        forge(&index, &file);
        assert_eq!(text(&site.fix.at(&place.dir, &["status", "--porcelain"])), "", "git does not see it");
    };
    poison();
    let changed = scratch::changed(&workspace, &place, &commit, &scratch::Edits::default()).unwrap();
    assert_eq!(changed.as_deref(), Some("changed 1 tracked file(s): +a"));
    poison();
    scratch::prepare(&workspace, "verify", &commit, Keep).unwrap();
    assert_eq!(fs::read_to_string(&file).unwrap(), "as committed\n");
    poison();
    scratch::discard(&workspace, &place, &commit);
    assert_eq!(fs::read_to_string(&file).unwrap(), "as committed\n");
}

#[tokio::test]
async fn files_in_the_place_of_a_submodule_do_not_reach_the_next_verification() {
    let (site, workspace, _) = prepared().await;
    site.submodule("sub");
    let next = || {
        let place = scratch::prepare(&workspace, "verify", &site.tip("main"), Keep).unwrap();
        furnish::furnish(&workspace, &place, &Rules::default(), Keep).unwrap();
        place
    };
    let place = next();
    let left = place.dir.join("sub/override.sh");
    fs::write(&left, "exit 0\n").unwrap();
    fs::write(place.dir.join("ignored"), "made by the setup\n").unwrap();
    next();
    assert!(!left.exists() && place.dir.join("sub").is_dir());
    assert!(place.dir.join("ignored").exists(), "ignored files stay");
    assert!(site.fix.repo.join("sub/own").exists(), "the base checkout is as it was");
}
