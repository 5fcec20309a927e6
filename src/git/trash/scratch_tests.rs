use std::os::unix::fs::symlink;
use std::time::SystemTime;

use super::*;
use crate::fixture::Fixture;

#[test]
fn scratch_files_are_never_in_the_record_of_a_worktree() {
    let fix = Fixture::new();
    let common = fix.repo.join(".git");
    let record = common.join("worktrees/w");
    for git_dir in [record.clone(), record.join("modules/a"), record.join("modules/a/worktrees/b"), common.clone()] {
        assert_eq!(Scratch::new(&git_dir, "list").path().parent(), Some(common.as_path()), "{}", git_dir.display());
    }
    // A repository may lie in a directory of that name.
    let other = fix.root.join("worktrees/r/.git");
    assert_eq!(place(&other), other);
}

#[test]
fn what_has_the_name_of_a_scratch_file_is_not_written_into() {
    let fix = Fixture::new();
    let precious = fix.root.join("precious");
    fs::write(&precious, "precious\n").expect("written");
    for is_hard in [false, true] {
        let mut scratch = Scratch::new(&fix.repo.join(".git"), "list");
        let taken = scratch.path().to_owned();
        match is_hard {
            true => fs::hard_link(&precious, scratch.path()).expect("linked"),
            false => symlink(&precious, scratch.path()).expect("linked"),
        }
        let mut file = scratch.create().expect("created");
        io::Write::write_all(&mut file, b"list").expect("written");
        assert_eq!(fs::read_to_string(&precious).expect("read"), "precious\n");
        assert_eq!(fs::read_to_string(scratch.path()).expect("read"), "list");
        drop(scratch);
        assert_eq!(fs::read_to_string(taken).expect("it stays"), "precious\n");
    }
}

#[test]
fn only_old_files_of_processes_that_are_gone_are_left_over() {
    let fix = Fixture::new();
    let common = fix.repo.join(".git");
    let (gone, here) = (i32::MAX, std::process::id());
    let old = SystemTime::now() - 2 * AGE_MIN;
    let names = [
        (format!("swarm-list-{gone}-0"), true),
        (format!("swarm-index-{gone}-0.lock"), true),
        (format!("swarm-list-{here}-100000"), true),
        (format!("swarm-list-{gone}-1"), false),
        ("swarm-landing.kept".to_owned(), true),
        (format!("swarm-list-{}-0", writer::in_another_namespace()), true),
        (format!("swarm-list-{}-0", replaced(&writer::own(), '.', "1")), true),
        (format!("swarm-list-{}-100001", writer::own()), true),
    ];
    for (name, is_old) in &names {
        let file = File::create(common.join(name)).expect("created");
        if *is_old {
            file.set_modified(old).expect("set");
        }
    }
    let raw = common.join(format!("swarm-raw-{gone}-7"));
    fs::create_dir_all(raw.join("refs")).expect("created");
    File::open(&raw).and_then(|dir| dir.set_modified(old)).expect("set");
    remove_leftovers(&common).expect("removed");
    let left: Vec<bool> = names.iter().map(|(name, _)| common.join(name).exists()).collect();
    assert_eq!((left, raw.exists()), (vec![false, false, true, true, true, true, false, true], false));
}

/// Returns a text with another last part.
fn replaced(text: &str, separator: char, last: &str) -> String {
    format!("{}{separator}{last}", text.rsplit_once(separator).expect("two parts").0)
}

#[test]
fn no_file_is_shared_with_a_process_that_has_the_same_pid_elsewhere() {
    let fix = Fixture::new();
    let common = fix.repo.join(".git");
    let theirs = common.join(format!("swarm-list-{}-0", writer::in_another_namespace()));
    fs::write(&theirs, "theirs").expect("written");
    let paths: Vec<PathBuf> = (0..3).map(|_| Scratch::new(&common, "list").into_path()).collect();
    let own = paths.iter().map(|path| path.file_name().and_then(|name| writer_of(name.to_str()?, Some("list"))));
    assert!(own.into_iter().all(|writer| writer == Writer::parse(&writer::own())), "{paths:?}");
    assert_eq!(fs::read_to_string(&theirs).expect("read"), "theirs");
}
