use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;

use super::*;
use crate::fixture::{Fixture, text};

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
        assert!(set(&common, &update(name, &second, Before::Is(&first)), || logged = true).expect("set") && logged);
        append(&common, name, &format!("{first} {second} T <t@localhost> 1 +0000\twhy\n"));
        assert_eq!(text(&fix.git(&["rev-parse", name])), second);
        assert!(text(&fix.git(&["reflog", "show", name])).contains("why"), "{name}");
        let lost = set(&common, &update(name, &first, Before::Is(&first)), || ()).expect_err("it has moved");
        assert!(lost.transient, "{lost:?}");
    }
    assert!(!common.join(odd).exists(), "it is packed, too");
    let new = "refs/swarm/done/x";
    assert!(set(&common, &update(new, &first, Before::Absent), || ()).expect("set"));
    set(&common, &update(new, &second, Before::Absent), || ()).expect_err("it exists");
    assert!(set(&common, &update(new, &second, Before::Any), || ()).expect("set"));
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
    set(&common, &update("refs/heads/w", &head, Before::Any), || ()).expect_err("a link");
    symlink(&outside, common.join("refs/heads/d")).expect("linked");
    let fault = set(&common, &update("refs/heads/d/x", &head, Before::Any), || ()).expect_err("a link");
    assert!(fault.cause.contains("is a symbolic link"), "{fault:?}");
    symlink(&outside, common.join("logs/refs/heads/d")).expect("linked");
    append(&common, "refs/heads/d/precious", "line\n");
    assert_eq!(fs::read_to_string(outside.join("precious")).expect("read"), "precious\n");
    assert_eq!(fs::read_dir(&outside).expect("listed").count(), 1);
}
