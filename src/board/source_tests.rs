//! The reader of the board against a real directory and the kernel.

use std::fs;
use std::path::Path;

use rustix::event::{PollFd, PollFlags, poll};

use super::*;

/// Limit of each wait.
const SOON: Duration = Duration::from_secs(20);

/// Replaces the registry as its writer does.
fn put(root: &Path, names: &[&str]) {
    let row = |name: &&str| format!(r#"{{"name":"{name}","status":"stopped","cmd":["x"],"started":"s","cwd":"/"}}"#);
    let rows: Vec<String> = names.iter().map(row).collect();
    fs::write(root.join("new"), format!("{{\"workers\":[{}]}}", rows.join(","))).expect("written");
    fs::rename(root.join("new"), root.join("state.json")).expect("renamed");
}

/// Looks until the board has these rows.
fn until(source: &mut Source, board: &mut Board, names: &[&str]) {
    let deadline = Instant::now() + SOON;
    loop {
        source.look(board).expect("readable");
        let since = board.since(0);
        let found: BTreeSet<&str> = since.rows.iter().map(|(_, key, _)| key.name.as_str()).collect();
        if found == names.iter().copied().collect() {
            return;
        }
        let now = Instant::now();
        assert!(now < deadline, "{found:?}");
        let left = source.due().unwrap_or(deadline).min(deadline).saturating_duration_since(now);
        let left = Timespec::try_from(left + Duration::from_millis(1)).expect("short");
        poll(&mut [PollFd::new(&source.epoll, PollFlags::IN)], Some(&left)).expect("polled");
    }
}

#[test]
fn rows_follow_the_registry_also_if_it_is_not_there_yet() {
    let dir = tempfile::tempdir().expect("a directory");
    let root = dir.path().join("above/state");
    let mut source = Source::new(&Paths::new(&root)).expect("starts");
    let mut board = Board::default();
    until(&mut source, &mut board, &[]);
    assert!(source.due().is_none() && !root.exists());
    fs::create_dir_all(&root).expect("made");
    put(&root, &["a"]);
    until(&mut source, &mut board, &["a"]);
    let rev = board.rev();
    put(&root, &["a", "b"]);
    until(&mut source, &mut board, &["a", "b"]);
    let since = board.since(rev);
    assert_eq!((since.rows.len(), since.gone.len()), (1, 0), "one row has changed");
    put(&root, &["b"]);
    until(&mut source, &mut board, &["b"]);
    fs::rename(&root, dir.path().join("away")).expect("renamed");
    until(&mut source, &mut board, &[]);
    fs::rename(dir.path().join("away"), &root).expect("renamed");
    until(&mut source, &mut board, &["b"]);
    assert_eq!(source.due(), None, "nothing happens, so nothing is due");
}

#[test]
fn changes_in_quick_succession_are_read_together() {
    let dir = tempfile::tempdir().expect("a directory");
    put(dir.path(), &["a"]);
    let mut source = Source::new(&Paths::new(dir.path())).expect("starts");
    let mut board = Board::default();
    until(&mut source, &mut board, &["a"]);
    // As after a look that has taken long.
    source.not_before = Instant::now() + SOON;
    put(dir.path(), &["a", "b"]);
    source.look(&mut board).expect("readable");
    assert_eq!((board.rev(), source.due()), (1, Some(source.not_before)));
    source.not_before = Instant::now();
    until(&mut source, &mut board, &["a", "b"]);
}

#[test]
fn a_registry_that_cannot_be_read_is_tried_again() {
    let dir = tempfile::tempdir().expect("a directory");
    fs::create_dir(dir.path().join("state.json")).expect("made");
    let mut source = Source::new(&Paths::new(dir.path())).expect("starts");
    let mut board = Board::default();
    source.look(&mut board).expect_err("is a directory");
    assert!(source.due().is_some_and(|due| due > Instant::now()));
}
