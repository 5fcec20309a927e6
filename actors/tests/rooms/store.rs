//! Tests of `state.json` without the actor: its lock, damage, and data of other programs.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use swarm_actors::registry::store::{STATE_BYTES_MAX, Store};
use swarm_actors::registry::{Mutation, Refused, StoreError};
use swarm_model::{Row, WireStatus};
use tempfile::TempDir;

use crate::fixture::foreign_row;

/// A file with fields that only a newer program knows.
const FOREIGN: &str = r#"{
  "theirs": {"deep": [1,  2]},
  "workers": [
    {"name":"old","status":"running","cmd":["x"],"started":"2025-01-01T00:00:00.000001","cwd":"/","extra":{"b":1,"a":2}},
    {"unreadable": true}
  ],
  "after": null
}"#;

fn root() -> (TempDir, Store, PathBuf) {
    let home = tempfile::tempdir().expect("a directory for the test");
    let (store, state) = (Store::new(home.path()), home.path().join("state.json"));
    (home, store, state)
}

fn insert(name: &str) -> Mutation {
    Mutation::Insert(Box::new(foreign_row(name, Some(77))))
}

fn none() -> io::Result<Vec<Row>> {
    Ok(Vec::new())
}

fn commit(store: &mut Store, mutation: Mutation) -> Result<(), StoreError> {
    store.commit(vec![mutation], &none).map(|answers| assert_eq!(answers, vec![Ok(())]))
}

fn inode(path: &Path) -> u64 {
    fs::symlink_metadata(path).expect("it is there").ino()
}

#[test]
fn a_held_lock_times_out_and_its_holder_is_named() {
    let (home, store, state) = root();
    let lock = File::create(home.path().join("state.lock")).expect("makes the lock file");
    fs2::FileExt::lock_exclusive(&lock).expect("takes the lock");
    let mut store = store.lock_wait(Duration::from_millis(30));
    let refused = commit(&mut store, insert("a")).expect_err("the lock is held");
    let StoreError::Locked { holder, .. } = &refused else { panic!("{refused}") };
    assert!(holder.contains(&format!("process {} ", std::process::id())), "{holder}");
    assert!(!state.exists(), "written without the lock");
    drop(lock);
    // The thread that still waits in the kernel must not keep the lock forever.
    let mut patient = Store::new(home.path());
    assert_eq!(commit(&mut patient, insert("a")), Ok(()));
}

#[test]
fn data_of_other_programs_survives_byte_for_byte() {
    let (_home, mut store, state) = root();
    fs::write(&state, FOREIGN).expect("writes");
    commit(&mut store, insert("new")).expect("commits");
    let text = fs::read_to_string(&state).expect("reads");
    for line in FOREIGN.lines().skip(1).take(4).map(|line| line.trim().trim_end_matches(',')) {
        assert!(text.contains(line), "{line} is gone from {text}");
    }
    let expect = foreign_row("new", Some(77)).key();
    commit(&mut store, Mutation::Remove { name: "new".to_owned(), expect }).expect("commits");
    let (again, original): (serde_json::Value, serde_json::Value) = (
        serde_json::from_slice(&fs::read(&state).expect("reads")).expect("is JSON"),
        serde_json::from_str(FOREIGN).expect("is JSON"),
    );
    assert_eq!(again, original);
}

#[test]
fn a_commit_with_only_refused_mutations_leaves_the_file_alone() {
    let (_home, mut store, state) = root();
    commit(&mut store, insert("a")).expect("commits");
    let before = inode(&state);
    let answers = store.commit(vec![insert("a")], &none).expect("answers");
    assert_eq!(answers, vec![Err(Refused::Exists("a".to_owned()))]);
    assert_eq!(inode(&state), before);
}

#[test]
fn a_replaced_file_is_read_again() {
    let (_home, mut store, state) = root();
    commit(&mut store, insert("a")).expect("commits");
    fs::write(&state, FOREIGN).expect("writes in place");
    let answers = store.commit(vec![insert("old"), insert("a")], &none).expect("answers");
    assert_eq!(answers, vec![Err(Refused::Exists("old".to_owned())), Ok(())]);
}

#[test]
fn a_damaged_file_is_quarantined_and_rebuilt() {
    let (home, mut store, state) = root();
    let rebuilt = || Ok(vec![foreign_row("found", Some(5))]);
    for (round, kept) in ["state.json.corrupted", "state.json.corrupted.1"].into_iter().enumerate() {
        let damage = format!("{{\"workers\": [{round}");
        fs::remove_file(&state).unwrap_or_default();
        fs::write(&state, &damage).expect("writes");
        let damaged = inode(&state);
        let (table, told) = store.read(&rebuilt).expect("reads");
        assert!(table.find("found").is_some() && told.is_some());
        assert_eq!(inode(&state), damaged, "a reader must leave the path as it is");
        let answers = store.commit(vec![insert("new")], &rebuilt).expect("commits");
        assert_eq!(answers, vec![Ok(())]);
        let kept = home.path().join(kept);
        assert_eq!((inode(&kept), fs::read_to_string(&kept).ok()), (damaged, Some(damage)), "it is a hard link");
        let (table, told) = store.read(&none).expect("reads");
        assert_eq!((table.entries.len(), told), (2, None));
    }
    assert!(!home.path().join("state.json.corrupted.2").exists(), "kept more than once");
}

#[test]
fn a_missing_file_is_rebuilt_from_records_and_never_taken_for_empty() {
    let (_home, mut store, state) = root();
    assert_eq!(store.read(&none).map(|(table, told)| (table.entries.len(), told)), Ok((0, None)), "no worker yet");
    let unreadable = || Err(io::Error::other("too many open files"));
    assert!(matches!(store.read(&unreadable), Err(StoreError::Io { step: "rebuild", .. })));
    let rebuilt = || Ok(vec![foreign_row("found", Some(5))]);
    let (table, told) = store.read(&rebuilt).expect("reads");
    assert!(table.find("found").is_some() && told.is_some());
    store.commit(vec![insert("new")], &rebuilt).expect("commits");
    let text = fs::read_to_string(&state).expect("reads");
    assert!(text.contains("found") && text.contains("new"), "{text}");
}

#[test]
fn a_damaged_file_is_rebuilt_even_if_the_mutation_is_refused() {
    let (_home, mut store, state) = root();
    fs::write(&state, "").expect("writes");
    let rebuilt = || Ok(vec![foreign_row("found", Some(5))]);
    let answers = store.commit(vec![insert("found")], &rebuilt).expect("commits");
    assert_eq!(answers, vec![Err(Refused::Exists("found".to_owned()))]);
    assert!(fs::read_to_string(&state).expect("reads").contains("found"));
}

#[test]
fn the_file_of_a_newer_program_is_read_and_never_written() {
    let (_home, mut store, state) = root();
    let newer = FOREIGN.replacen('{', "{\n  \"schema_version\": 2,", 1);
    fs::write(&state, &newer).expect("writes");
    let status = Mutation::SetStatus {
        name: "old".to_owned(),
        expect: Row { pid: None, ..foreign_row("old", None) }.key(),
        status: WireStatus::Stopped,
    };
    for mutation in [insert("a"), status] {
        let refused = store.commit(vec![mutation], &none).expect_err("it is newer");
        assert_eq!(refused, StoreError::NewerSchema { path: state.clone(), version: 2 });
    }
    assert_eq!(fs::read_to_string(&state).expect("reads"), newer);
    assert!(store.read(&none).expect("reads").0.find("old").is_some());
}

#[test]
fn only_a_regular_file_is_opened() {
    let make_fifo = |path: &Path| {
        let made = std::process::Command::new("mkfifo").arg(path).status();
        assert!(made.expect("mkfifo is there").success());
    };
    let make_dir = |path: &Path| fs::create_dir(path).expect("makes a directory");
    let make_link = |path: &Path| std::os::unix::fs::symlink("elsewhere.json", path).expect("makes a link");
    type Make<'a> = &'a dyn Fn(&Path);
    let cases: [(&str, Make<'_>); 3] =
        [("a special file", &make_fifo), ("a directory", &make_dir), ("a symbolic link", &make_link)];
    for (what, make) in cases {
        let (_home, mut store, state) = root();
        make(&state);
        let before = inode(&state);
        let refused = StoreError::NotAFile { path: state.clone(), what };
        assert_eq!(store.read(&none).map(drop), Err(refused.clone()));
        assert_eq!(commit(&mut store, insert("a")), Err(refused));
        assert_eq!(inode(&state), before);
    }
}

#[test]
fn a_lock_behind_a_symbolic_link_is_taken() {
    let (home, mut store, _) = root();
    fs::write(home.path().join("real.lock"), "").expect("writes");
    std::os::unix::fs::symlink("real.lock", home.path().join("state.lock")).expect("linked");
    assert_eq!(store.commit(vec![insert("new")], &none).expect("commits"), vec![Ok(())]);
}

#[test]
fn leftovers_of_killed_commits_are_removed() {
    let (home, store, _) = root();
    let leftover = home.path().join("state.json.tmp.4711.3");
    let theirs = home.path().join("state.json.theirs");
    for path in [&leftover, &theirs] {
        fs::write(path, "half").expect("writes");
    }
    store.tidy().expect("has the lock");
    assert!(!leftover.exists(), "a temporary file stays for ever");
    assert!(theirs.exists(), "what is not ours was removed");
}

#[test]
fn the_workers_of_a_registry_that_is_too_large_can_be_ended_and_forgotten() {
    let (_home, mut store, state) = root();
    let long = "x".repeat(usize::try_from(STATE_BYTES_MAX + 1).expect("fits"));
    let row = |name: &str, argument: &str| {
        let (status, started) = ("running", "2025-01-01T00:00:00.000001");
        format!(r#"{{"name":"{name}","status":"{status}","cmd":["{argument}"],"started":"{started}","cwd":"/"}}"#)
    };
    fs::write(&state, format!("{{\"workers\":[{},{}]}}", row("a", "x"), row("large", &long))).expect("writes");
    let start = Mutation::Start { expect: None, row: Box::new(foreign_row("b", Some(77))), contract: None };
    let key = |store: &mut Store, name: &str| store.read(&none).expect("reads").0.find(name).expect("is there").key();
    let expect = key(&mut store, "a");
    let stop = Mutation::SetStatus { name: "a".to_owned(), expect, status: WireStatus::Stopped };
    let answers = store.commit(vec![start.clone(), stop], &none).expect("commits");
    assert!(matches!(&answers[..], [Err(Refused::Full { name, .. }), Ok(())] if name == "b"), "{answers:?}");
    let expect = key(&mut store, "large");
    commit(&mut store, Mutation::Remove { name: "large".to_owned(), expect }).expect("commits");
    commit(&mut store, start).expect("commits");
    assert!(fs::metadata(&state).expect("there").len() < 4096);
    // A file that is not a registry is not changed.
    fs::write(&state, long).expect("writes");
    let refused = store.read(&|| Ok(vec![foreign_row("found", Some(5))])).map(drop);
    assert!(matches!(&refused, Err(error @ StoreError::TooLarge { .. }) if error.remedy().is_some()), "{refused:?}");
}
