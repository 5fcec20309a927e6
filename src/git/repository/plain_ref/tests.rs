use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use super::*;
use crate::fixture::{Fixture, text};
use crate::repository::holders::clear_stale_locks;
use swarm_sys::files;

fn update<'a>(name: &'a str, to: &'a str, before: Before<'a>) -> Update<'a> {
    Update { name, to, before, is_durable: true }
}

#[test]
fn references_are_set_as_git_sets_them() {
    let fix = Fixture::new();
    let common = fix.repo.join(".git");
    let first = text(&fix.git(&["rev-parse", "HEAD"]));
    fix.commit("second", "f", "2\n");
    let second = text(&fix.git(&["rev-parse", "HEAD"]));
    let odd = OsStr::from_bytes(b"refs/heads/\xff");
    fs::write(common.join(odd), format!("{first}\n")).expect("written");
    for name in ["refs/heads/loose", "refs/heads/deep/packed"] {
        fix.git(&["update-ref", name, &first]);
        if name.ends_with("packed") {
            fix.git(&["pack-refs", "--all", "--prune"]);
        }
        let mut logged = false;
        assert!(set(&common, &update(name, &second, Before::Is(&first)), |_| logged = true).expect("set") && logged);
        append(&common, name, &format!("{first} {second} T <t@localhost> 1 +0000\twhy\n"));
        assert_eq!(text(&fix.git(&["rev-parse", name])), second);
        assert!(text(&fix.git(&["reflog", "show", name])).contains("why"), "{name}");
        let lost = set(&common, &update(name, &first, Before::Is(&first)), |_| ()).expect_err("it has moved");
        assert!(lost.transient, "{lost:?}");
    }
    assert!(!common.join(odd).exists(), "it is packed, too");
    let new = "refs/swarm/done/x";
    assert!(set(&common, &update(new, &first, Before::Absent), |_| ()).expect("set"));
    set(&common, &update(new, &second, Before::Absent), |_| ()).expect_err("it exists");
    assert!(set(&common, &update(new, &second, Before::Any), |_| ()).expect("set"));
    assert_eq!(text(&fix.git(&["rev-parse", new])), second);
    assert!(!common.join("refs/swarm/done/x.lock").exists());
    fix.git(&["fsck"]);
}

#[test]
fn links_that_appear_after_a_check_are_not_followed() {
    let fix = Fixture::new();
    let (common, outside) = (fix.repo.join(".git"), fix.root.join("outside"));
    let head = text(&fix.git(&["rev-parse", "HEAD"]));
    fs::create_dir(&outside).expect("made");
    fs::write(outside.join("precious"), "precious\n").expect("written");
    fix.git(&["branch", "w"]);
    let log = common.join("logs/refs/heads/w");
    fs::remove_file(&log).expect("removed");
    symlink(outside.join("precious"), &log).expect("linked");
    append(&common, "refs/heads/w", "line\n");
    fs::remove_file(common.join("refs/heads/w")).expect("removed");
    symlink(outside.join("precious"), common.join("refs/heads/w")).expect("linked");
    set(&common, &update("refs/heads/w", &head, Before::Any), |_| ()).expect_err("a link");
    symlink(&outside, common.join("refs/heads/d")).expect("linked");
    let fault = set(&common, &update("refs/heads/d/x", &head, Before::Any), |_| ()).expect_err("a link");
    assert!(fault.cause.contains("is a symbolic link"), "{fault:?}");
    symlink(&outside, common.join("logs/refs/heads/d")).expect("linked");
    append(&common, "refs/heads/d/precious", "line\n");
    assert_eq!(fs::read_to_string(outside.join("precious")).expect("read"), "precious\n");
    assert_eq!(fs::read_dir(&outside).expect("listed").count(), 1);
}

/// Returns a repository, its common directory, and the ids of two commits.
fn two() -> (Fixture, PathBuf, String, String) {
    let fix = Fixture::new();
    let first = text(&fix.git(&["rev-parse", "HEAD"]));
    fix.commit("second", "f", "2\n");
    let second = text(&fix.git(&["rev-parse", "HEAD"]));
    let common = fix.repo.join(".git");
    (fix, common, first, second)
}

#[test]
fn references_are_deleted_as_git_deletes_them() {
    let (fix, common, first, second) = two();
    for (name, is_packed, is_loose) in
        [("refs/heads/a/loose", false, true), ("refs/heads/a/packed", true, false), ("refs/heads/a/both", true, true)]
    {
        fix.git(&["update-ref", name, &first]);
        fix.git(&["tag", "-a", "-m", "peeled", &format!("t{is_loose}{is_packed}"), &first]);
        if is_packed {
            fix.git(&["pack-refs", "--all", "--prune"]);
        }
        if is_packed && is_loose {
            fix.git(&["update-ref", name, &second]);
        }
        let now = if is_packed && is_loose { &second } else { &first };
        assert_eq!(common.join(name).exists(), is_loose, "{name}");
        let kept = delete(&common, name, Some(&"1".repeat(40))).expect_err("it has another value");
        assert!(kept.cause.contains("but expected") && !kept.transient, "{kept:?}");
        assert_eq!(text(&fix.git(&["rev-parse", name])), *now);
        assert!(delete(&common, name, Some(now)).expect("deleted"));
        assert!(!fix.attempt(&fix.repo, &["rev-parse", "--verify", "-q", name]).0, "{name}");
        assert!(!common.join("refs/heads/a").exists() && !common.join("logs/refs/heads/a").exists(), "{name}");
        fix.git(&["fsck", "--strict"]);
        assert!(delete(&common, name, None).expect("nothing is there"));
    }
    let tags = text(&fix.git(&["for-each-ref", "--format=%(*objectname)", "refs/tags"]));
    assert_eq!(tags.lines().collect::<Vec<_>>(), [first.as_str(); 3], "their lines are whole");
    let locks = ["packed-refs.lock", "refs/heads/main.lock"];
    assert!(!locks.iter().any(|lock| common.join(lock).exists()));
    // The symbolic reference itself, and not what it points to.
    fix.git(&["symbolic-ref", "refs/heads/link", "refs/heads/main"]);
    assert!(delete(&common, "refs/heads/link", None).expect("deleted"));
    assert_eq!(text(&fix.git(&["rev-parse", "main"])), second);
}

#[test]
fn a_reference_in_the_way_of_another_one_is_named() {
    let (fix, common, first, _) = two();
    let any = |name: &str| set(&common, &update(name, &first, Before::Any), |_| ());
    for is_packed in [false, true] {
        fix.git(&["update-ref", "refs/heads/one", &first]);
        fix.git(&["update-ref", "refs/heads/two/below", &first]);
        if is_packed {
            fix.git(&["pack-refs", "--all", "--prune"]);
        }
        for (name, other) in [("refs/heads/one/below", "refs/heads/one"), ("refs/heads/two", "refs/heads/two")] {
            let fault = any(name).expect_err("in the way");
            assert!(fault.cause.contains("cannot be a reference") && fault.cause.contains(other), "{fault:?}");
            assert!(fault.remedy.is_some() && !fault.transient);
        }
        fix.git(&["for-each-ref"]);
        assert_eq!(text(&fix.git(&["fsck", "--strict"])), "");
    }
    // Empty directories of references that are gone.
    fs::create_dir_all(common.join("refs/heads/three/x/y")).expect("made");
    fs::create_dir_all(common.join("logs/refs/heads/three/x")).expect("made");
    let entry = Entry { why: "why", makes: true };
    write(&fix.cli(), &common, ("refs/heads/three", &first), Before::Absent, entry).expect("set");
    assert_eq!(text(&fix.git(&["rev-parse", "three"])), first);
    assert_eq!(text(&fix.git(&["log", "-1", "-g", "--format=%gs", "three"])), "why");
    let again = write(&fix.cli(), &common, ("refs/heads/three", &first), Before::Absent, entry);
    assert!(again.expect_err("it is there").cause.ends_with("already exists"));
    for name in ["refs/heads/../../x", "refs//x", "refs/heads/a.lock", "../x", "refs/heads/.."] {
        assert!(any(name).expect_err("no name").cause.contains("is not a valid name"), "{name}");
    }
    let none = "1".repeat(40);
    let missing = write(&fix.cli(), &common, ("refs/heads/four", &none), Before::Absent, entry);
    assert!(missing.expect_err("no commit").cause.contains("is no commit"));
}

#[test]
fn other_kinds_of_repositories_work() {
    let fix = Fixture::new();
    for kind in ["--object-format=sha256", "--ref-format=reftable"] {
        let repo = fix.root.join(&kind[2..]);
        fix.at(&fix.root, &["init", "-q", "-b", "main", kind, repo.to_str().expect("text")]);
        fix.at(&repo, &["commit", "-q", "--allow-empty", "-m", "one"]);
        let (common, cli) = (repo.join(".git"), fix.cli());
        let id = text(&fix.at(&repo, &["rev-parse", "HEAD"]));
        let entry = Entry { why: "why", makes: true };
        write(&cli, &common, ("refs/heads/new", &id), Before::Absent, entry).expect("set");
        write(&cli, &common, ("refs/heads/new", &id), Before::Absent, entry).expect_err("it is there");
        write(&cli, &common, ("refs/heads/new", &id), Before::Is(&id), entry).expect("the same");
        assert_eq!(text(&fix.at(&repo, &["log", "-1", "-g", "--format=%gs %H", "new"])), format!("why {id}"));
        let tree = repo.with_extension("w");
        fix.at(&repo, &["worktree", "add", "-q", "--detach", tree.to_str().expect("text")]);
        let record = common.join("worktrees").join(tree.file_name().expect("named"));
        attach(&cli, [&common, &record], ("refs/heads/new", &id), "moved").expect("attached");
        assert_eq!(text(&fix.at(&tree, &["symbolic-ref", "HEAD"])), "refs/heads/new");
        assert_eq!(text(&fix.at(&tree, &["log", "-1", "-g", "--format=%gs", "HEAD"])), "moved");
        let are_files = !kind.contains("reftable");
        assert_eq!(set(&common, &update("refs/swarm/x", &id, Before::Any), |_| ()), Ok(are_files));
        assert_eq!(delete(&common, "refs/swarm/x", Some(&id)), Ok(are_files));
        fix.at(&repo, &["fsck"]);
    }
}

#[test]
fn the_file_of_packed_references_may_be_large_and_a_link() {
    let (fix, common, first, second) = two();
    fix.git(&["branch", "old", &first]);
    fix.git(&["pack-refs", "--all", "--prune"]);
    let (packed, real) = (common.join("packed-refs"), fix.root.join("real"));
    let mut lines = fs::read(&packed).expect("read");
    let begin = lines.len();
    for number in 0.. {
        if lines.len() - begin > 64 << 20 {
            break;
        }
        lines.extend(format!("{first} refs/zz/{number:07}{}\n", "x".repeat(150)).into_bytes());
    }
    fs::write(&real, lines).expect("written");
    fs::remove_file(&packed).expect("removed");
    symlink(&real, &packed).expect("linked");
    assert!(set(&common, &update("refs/heads/old", &second, Before::Is(&first)), |_| ()).expect("set"));
    assert_eq!(text(&fix.git(&["rev-parse", "old"])), second);
    assert!(delete(&common, "refs/heads/old", Some(&second)).expect("deleted"));
    assert!(!fix.attempt(&fix.repo, &["rev-parse", "--verify", "-q", "old"]).0);
    assert!(fs::symlink_metadata(&packed).expect("there").is_symlink());
}

#[test]
fn a_deletion_follows_no_link() {
    let (fix, common, first, _) = two();
    let outside = fix.root.join("outside");
    fs::create_dir(&outside).expect("made");
    for name in ["x", "y", "log"] {
        fs::write(outside.join(name), format!("{first}\n")).expect("written");
    }
    symlink(&outside, common.join("refs/heads/d")).expect("linked");
    assert!(delete(&common, "refs/heads/d/x", None).expect_err("a link").cause.contains("is a symbolic link"));
    symlink(outside.join("y"), common.join("refs/heads/y")).expect("linked");
    assert!(delete(&common, "refs/heads/y", None).expect_err("a link").cause.contains("is a symbolic link"));
    fix.git(&["branch", "w"]);
    fs::remove_file(common.join("logs/refs/heads/w")).expect("removed");
    symlink(outside.join("log"), common.join("logs/refs/heads/w")).expect("linked");
    assert!(delete(&common, "refs/heads/w", None).expect("deleted"));
    assert!(fs::symlink_metadata(common.join("logs/refs/heads/w")).is_err(), "the link itself is gone");
    let entry = Entry { why: "why", makes: true };
    symlink(outside.join("new"), common.join("logs/refs/heads/v")).expect("linked");
    let head = text(&fix.git(&["rev-parse", "HEAD"]));
    write(&fix.cli(), &common, ("refs/heads/v", &head), Before::Absent, entry).expect("set");
    let mut left: Vec<_> = files::list(&outside).expect("listed").into_iter().map(|file| file.file_name()).collect();
    left.sort();
    assert_eq!(left, ["log", "x", "y"]);
    assert!(left.iter().all(|name| fs::read_to_string(outside.join(name)).expect("read") == format!("{first}\n")));
}

#[test]
fn a_held_lock_of_packed_references_is_no_lock_of_the_dead() {
    let (fix, common, first, _) = two();
    let path = packed_lock(&common);
    let lock = packed::Lock::take(path.clone()).expect("taken").expect("free");
    assert_eq!(clear_stale_locks(std::slice::from_ref(&path), None), [path.as_path()], "its owner lives");
    drop(lock);
    assert!(!path.exists());
    fix.git(&["update-ref", "refs/heads/topic", &first]);
    fix.git(&["pack-refs", "--all", "--prune"]);
    assert!(delete(&common, "refs/heads/topic", None).expect("deleted"));
    let names = files::list(&common).expect("read").into_iter().map(|file| file.file_name());
    assert!(names.into_iter().all(|name| !name.to_string_lossy().starts_with("swarm-")), "no scratch file stays");
}

#[test]
fn packed_references_behind_a_link_are_locked_where_git_locks_them() {
    let (fix, common, first, _) = two();
    let (file, away) = (common.join("packed-refs"), fix.root.join("away"));
    fs::create_dir(&away).expect("made");
    for name in ["one", "two"] {
        fix.git(&["update-ref", &format!("refs/heads/{name}"), &first]);
    }
    fix.git(&["pack-refs", "--all", "--prune"]);
    fs::rename(&file, away.join("packed")).expect("moved");
    symlink("../../away/packed", &file).expect("linked");
    // git waits for no lock here.
    fix.git(&["config", "core.packedRefsTimeout", "0"]);
    let lock = packed::Lock::take(packed_lock(&common)).expect("taken").expect("free");
    assert!(!fix.attempt(&fix.repo, &["branch", "-D", "one"]).0, "git respects it");
    drop(lock);
    assert!(delete(&common, "refs/heads/one", None).expect("deleted"));
    fix.git(&["branch", "-D", "two"]);
    let packed = fs::read_to_string(away.join("packed")).expect("read");
    assert!(!packed.contains("refs/heads/one") && !packed.contains("refs/heads/two"), "{packed}");
    assert_eq!(fs::read_link(&file).expect("a link"), Path::new("../../away/packed"));
    assert_eq!(files::list(&away).expect("listed").len(), 1, "no lock and no scratch file stays");
    // Only git knows where it would make the file.
    fs::rename(away.join("packed"), away.join("other")).expect("moved");
    assert!(!delete(&common, "refs/heads/main", None).expect("left to git"));
    assert!(
        common.join("refs/heads/main").exists()
            || fs::read_to_string(away.join("other")).expect("read").contains("main")
    );
}
