use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

fn base() -> tempfile::TempDir {
    tempfile::tempdir().expect("a directory")
}

fn put(base: &Path, text: &str) {
    fs::create_dir_all(base.join(".agent")).expect("made");
    fs::write(base.join(".agent/state.json"), text).expect("written");
}

fn text(base: &Path) -> String {
    fs::read_to_string(base.join(".agent/state.json")).expect("read")
}

fn set(base: &Path, key: &str, value: i64) -> Session {
    let changed = update::<_, StoreError>(base, |session| {
        session.set(key, &value);
        Ok(Change::Write(()))
    });
    changed.expect("updated").0
}

#[test]
fn missing_malformed_and_foreign_sessions_are_different_errors() {
    let base = base();
    assert!(matches!(read(base.path()), Err(StoreError::NotFound(_))));
    put(base.path(), "{\"issueIdentifier\": \"A-1\"");
    assert!(matches!(read(base.path()), Err(StoreError::Malformed { .. })));
    put(base.path(), "{\"issueIdentifier\": \"A-1\", \"prompt\": \"go\"}");
    let Err(StoreError::Mismatch { found, .. }) = read_expect(base.path(), "B-2") else { panic!("not refused") };
    assert_eq!(found.text("prompt").as_deref(), Some("go"));
    assert!(read_expect(base.path(), "A-1").is_ok());
    put(base.path(), "{}");
    assert!(read_expect(base.path(), "B-2").is_ok(), "a session without an issue fits any");
}

#[test]
fn an_update_starts_with_zero_values_and_returns_the_new_state() {
    let base = base();
    let session = set(base.path(), "pid", 7);
    assert_eq!((session.integer("pid"), session.integer("attemptCount")), (Some(7), Some(1)));
    assert_eq!(session, read(base.path()).expect("read"));
    assert!(session.integer("lastUpdatedAt").is_some_and(|at| at > 1_600_000_000_000));
}

#[test]
fn no_change_writes_nothing_and_a_failure_neither() {
    let base = base();
    let before = set(base.path(), "pid", 7);
    let kept = update::<_, StoreError>(base.path(), |session| {
        session.set("pid", &8);
        Ok(Change::Keep(()))
    });
    assert!(kept.is_ok());
    let failed = update::<(), StoreError>(base.path(), |session| {
        session.set("pid", &9);
        Err(StoreError::System(io::Error::other("no")))
    });
    assert!(failed.is_err());
    set(base.path(), "pid", 7);
    assert_eq!(text(base.path()), before.render());
}

#[test]
fn a_malformed_file_is_moved_aside_before_anything_is_written() {
    let base = base();
    put(base.path(), "half of it");
    set(base.path(), "pid", 1);
    assert_eq!(fs::read_to_string(base.path().join(".agent/state.json.malformed")).expect("read"), "half of it");
    assert_eq!(read(base.path()).expect("read").integer("pid"), Some(1));
}

#[test]
fn concurrent_updates_all_count() {
    let base = base();
    std::thread::scope(|scope| {
        for _ in 0..10 {
            scope.spawn(|| {
                for _ in 0..5 {
                    let added = update::<_, StoreError>(base.path(), |session| {
                        let count = session.integer("count").unwrap_or_default();
                        session.set("count", &(count + 1));
                        Ok(Change::Write(()))
                    });
                    added.expect("updated");
                }
            });
        }
    });
    assert_eq!(read(base.path()).expect("read").integer("count"), Some(50));
    let left: Vec<_> = fs::read_dir(base.path().join(".agent")).expect("listed").flatten().collect();
    assert_eq!(left.len(), 2, "the state and the lock: {left:?}");
}

#[test]
fn a_file_that_is_rewritten_in_place_continuously_can_be_read() {
    let base = base();
    let filling = "x".repeat(200_000);
    let whole = format!("{{\"issueIdentifier\": \"A-1\", \"filling\": \"{filling}\"}}");
    put(base.path(), &whole);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                // As the original program writes it: truncate, then write.
                fs::write(base.path().join(".agent/state.json"), &whole).expect("written");
            }
        });
        let found: Vec<_> = (0..20).map(|_| read(base.path()).map(|session| session.identifier())).collect();
        // Before anything fails, because the scope waits for the writer.
        over.store(true, Ordering::Relaxed);
        for identifier in found {
            assert_eq!(identifier.expect("read").as_deref(), Some("A-1"));
        }
    });
}

#[test]
fn only_the_files_of_a_session_are_excluded_from_git() {
    let base = base();
    fs::create_dir_all(base.path().join(".git/info")).expect("made");
    fs::write(base.path().join(".git/HEAD"), "ref: refs/heads/main\n").expect("written");
    super::super::folder::exclude(base.path());
    let excluded = fs::read_to_string(base.path().join(".git/info/exclude")).expect("read");
    let lines: Vec<_> = excluded.lines().collect();
    assert!(lines.contains(&"/.agent/state.json") && !lines.contains(&"/.agent/"), "{excluded}");
}
