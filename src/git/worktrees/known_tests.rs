//! Worktrees of earlier generations whose directories are missing.

use std::fs;

use swarm_model::WorktreeRequest;
use swarm_ports::WorktreeError;

use crate::fixture::Fixture;

#[test]
fn a_known_worktree_is_not_made_again_below_a_mount_point() {
    let fix = Fixture::new();
    let disk = fix.root.join("disk");
    let asked = || WorktreeRequest { dir: Some(disk.join("trees").to_str().unwrap().to_owned()), ..fix.asked() };
    fix.make(&fix.plan_of("w", &asked()).unwrap()).unwrap();
    let known = WorktreeRequest { branch: Some("w".to_owned()), is_known: true, ..asked() };
    // The directory above is missing, or it is the mount point itself.
    let mounted = fix.root.join("mounted");
    fs::rename(&disk, &mounted).unwrap();
    for above in ["", "disk/trees"] {
        fs::create_dir_all(fix.root.join(above)).unwrap();
        let error = fix.plan_of("w", &known).unwrap_err();
        let WorktreeError::Create { cause, remedy, passes } = error else { panic!("{error}") };
        assert!(cause.contains("is missing, with all of") && passes, "{cause}");
        assert!(remedy.unwrap().contains("git worktree prune"));
    }
    fs::remove_dir_all(&disk).unwrap();
    fs::rename(&mounted, &disk).unwrap();
    assert!(!fix.plan_of("w", &known).unwrap().makes_tree);
    // What somebody has deleted among others is made again.
    fs::remove_dir_all(disk.join("trees/w")).unwrap();
    fs::write(disk.join("trees/other"), "").unwrap();
    assert!(fix.plan_of("w", &known).unwrap().makes_tree);
    // So is the last one beside the repository.
    let (_, path) = fix.made("v");
    fs::remove_dir_all(path.parent().unwrap()).unwrap();
    assert!(fix.plan_of("v", &WorktreeRequest { is_known: true, ..fix.asked() }).unwrap().makes_tree);
}
