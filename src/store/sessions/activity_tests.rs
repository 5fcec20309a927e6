//! Tests of recording agents' reports.

use std::fs;

use proptest::prelude::*;

use super::*;
use crate::sessions::{Change, FOLDER, update};

const LIMIT: Duration = Duration::from_secs(2);

fn begun(launch: &str) -> tempfile::TempDir {
    let base = tempfile::tempdir().expect("a directory");
    update::<_, StoreError>(base.path(), |session| {
        session.set_session_id(launch);
        session.set("issueIdentifier", &"a");
        session.set_status(SessionStatus::Running);
        Ok(Change::Write(()))
    })
    .expect("begun");
    base
}

fn said(word: Word) -> Heard {
    Heard { word: Some(word), ..Heard::default() }
}

fn tool(what: &str) -> Heard {
    said(Word::Tool(what.to_owned()))
}

fn files(base: &Path) -> Vec<String> {
    let entries = fs::read_dir(base.join(FOLDER)).expect("listed").flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn each_report_changes_only_what_it_is_about() {
    let text = |text: &str| text.to_owned();
    let (none, x) = (None, Some("x"));
    for (words, operation, waiting, idle, calls) in [
        (vec![Word::Tool(text("x"))], x, none, false, 1),
        (vec![Word::Tool(text("x")), Word::Done(text("x"))], none, none, false, 1),
        (vec![Word::Tool(text("y")), Word::Tool(text("x")), Word::Done(text("y"))], x, none, false, 2),
        (vec![Word::Tool(text("x")), Word::Waits(NeedKind::Question, text("may it?"))], x, Some("may it?"), false, 1),
        (
            vec![Word::Waits(NeedKind::Question, text("may it?")), Word::StillWaits(text("hello"))],
            none,
            Some("may it?"),
            false,
            0,
        ),
        (vec![Word::Idle(text("done")), Word::StillWaits(text("hello"))], none, Some("hello"), false, 0),
        (vec![Word::Waits(NeedKind::Question, text("may it?")), Word::Done(text("x"))], none, none, false, 0),
        (vec![Word::Tool(text("x")), Word::Idle(text("done"))], none, Some("done"), true, 1),
        (vec![Word::Idle(text("done")), Word::Working], none, none, false, 0),
        (vec![Word::Idle(text("done")), Word::Tool(text("x"))], x, none, false, 1),
        (vec![Word::Doing(text("x"))], x, none, false, 0),
        // An agent that ends after its turn has nothing left to do; one that ends while it asks has.
        (vec![Word::Idle(text("done")), Word::Over], none, Some("done"), true, 0),
        (vec![Word::Waits(NeedKind::Question, text("may it?")), Word::Over], none, none, false, 0),
        (vec![Word::Tool(text("x")), Word::Over], none, none, false, 1),
    ] {
        let seen = words.iter().cloned().fold(Tool::default(), |tool, word| tool.after(word, 7));
        let expected = Tool {
            at_ms: 7,
            calls,
            operation: operation.map(str::to_owned),
            waiting: waiting.map(str::to_owned),
            idle,
            waited: seen.waited.clone(),
            kind: seen.kind,
            since_ms: 7,
            turn_ms: seen.turn_ms,
            turn: None,
        };
        assert_eq!(seen, expected, "{words:?}");
    }
}

#[test]
fn a_turn_that_broke_off_stays_so_until_the_next_one() {
    let text = |text: &str| text.to_owned();
    let failed = Tool::default()
        .after(Word::Working, 3)
        .after(Word::Tool(text("x")), 4)
        .after(Word::Broken(TurnEnd::Failed, text("API Error")), 5);
    assert_eq!((failed.doing(), failed.turn_ms), (Doing::Idle, 3));
    let reminded = failed.after(Word::Idle(text("Claude is waiting for your input")), 65).after(Word::Over, 70);
    let shown = Activity::from(reminded.clone());
    assert_eq!((shown.turn, shown.what.as_deref()), (Some(TurnEnd::Failed), Some("its last turn failed: API Error")));
    let next = reminded.after(Word::Tool(text("y")), 80);
    assert_eq!((next.turn, next.turn_ms, next.doing()), (None, 80, Doing::Working));
    assert_eq!(next.after(Word::Idle(text("its turn is over")), 90).turn, None);
}

#[test]
fn the_end_of_a_turn_is_recorded_unless_the_agent_went_on() {
    let base = begun("L");
    let records = tempfile::tempdir().expect("a directory");
    let seen = note(base.path(), Some("L"), Some(records.path()), tool("x"), LIMIT).expect("noted");
    let end = |seen: &Tool, launch: &str| {
        note_end((Some(base.path()), launch), records.path(), seen, (TurnEnd::Interrupted, String::new()), LIMIT)
    };
    let later = note(base.path(), Some("L"), Some(records.path()), tool("y"), LIMIT).expect("noted");
    end(&seen, "L").expect("nothing is done");
    assert_eq!(activity(base.path()), Some(later.clone()));
    end(&later, "L-0").expect_err("another launch");
    end(&later, "L").expect("noted");
    let now = activity(base.path()).expect("there");
    assert_eq!((now.idle, now.turn), (true, Some(TurnEnd::Interrupted)));
    assert_eq!(recorded(records.path()), Some(now));
}

#[test]
fn reports_of_the_present_agent_are_recorded_and_those_of_earlier_ones_refused() {
    let base = begun("L-2");
    note(base.path(), Some("L-2"), None, tool("Bash: make"), LIMIT).expect("noted");
    for (launch, word) in [("L-1", "late"), ("", "nobody")] {
        let error = note(base.path(), Some(launch), None, tool(word), LIMIT).expect_err("is refused").to_string();
        assert!(error.ends_with("belongs to another launch"), "{error}");
    }
    let now = activity(base.path()).expect("there");
    assert_eq!((now.calls, now.operation.as_deref()), (1, Some("Bash: make")));
    let progress = fs::read_to_string(base.path().join(FOLDER).join(PROGRESS)).expect("read");
    assert!(progress.ends_with("|tool|Bash: make\n"), "{progress}");
    // A report by a person names the session but no launch.
    note(base.path(), None, None, said(Word::Waits(NeedKind::Question, "may it?".to_owned())), LIMIT).expect("noted");
    assert_eq!(activity(base.path()).expect("there").waiting.as_deref(), Some("may it?"));
    assert_eq!(files(base.path()), ["activity.json", "progress.log", "state.json", "state.lock"]);
}

#[test]
fn reports_without_a_session_create_nothing_and_ended_sessions_record_nothing() {
    let base = tempfile::tempdir().expect("a directory");
    assert!(matches!(note(base.path(), None, None, tool("x"), LIMIT), Err(StoreError::NotFound(_))));
    assert!(!base.path().join(FOLDER).exists());
    let base = begun("L");
    update::<_, StoreError>(base.path(), |session| {
        session.set_status(SessionStatus::Stopped);
        Ok(Change::Write(()))
    })
    .expect("ended");
    let error = note(base.path(), Some("L"), None, tool("x"), LIMIT).expect_err("is refused").to_string();
    assert!(error.ends_with("has ended"), "{error}");
    assert_eq!(activity(base.path()), None);
}

#[test]
fn the_conversation_is_recorded_once_and_the_rest_of_the_session_stays() {
    let base = begun("L");
    let path = base.path().join(FOLDER).join("state.json");
    let hear = |id: &str| Heard { conversation: Some(id.to_owned()), ..said(Word::Working) };
    note(base.path(), Some("L"), None, hear("C-1"), LIMIT).expect("noted");
    let first = fs::read_to_string(&path).expect("read");
    assert!(
        first.contains("\"providerSessionId\": \"C-1\"") && first.contains("\"issueIdentifier\": \"a\""),
        "{first}"
    );
    note(base.path(), Some("L"), None, hear("C-1"), LIMIT).expect("noted");
    assert_eq!(fs::read_to_string(&path).expect("read"), first, "it is not written again");
    note(base.path(), Some("L"), None, hear("C-2"), LIMIT).expect("noted");
    assert!(fs::read_to_string(&path).expect("read").contains("\"C-2\""));
}

#[test]
fn the_to_do_list_is_recorded() {
    let base = begun("L");
    let todos = json!([{ "content": "a", "status": "pending", "activeForm": "doing a" }]);
    note(base.path(), Some("L"), None, Heard { todos: Some(todos.clone()), ..tool("TodoWrite") }, LIMIT)
        .expect("noted");
    let kept = fs::read(base.path().join(FOLDER).join(TODOS)).expect("read");
    let kept: serde_json::Value = serde_json::from_slice(&kept).expect("JSON");
    assert_eq!(kept["items"], todos);
    assert!(kept["updatedAt"].is_u64());
}

#[test]
fn the_wait_for_a_held_lock_is_limited() {
    let base = begun("L");
    let folder = Folder::open(base.path()).expect("opened").expect("there");
    let held = folder.lock().expect("locked");
    let error = note(base.path(), Some("L"), None, tool("x"), Duration::from_millis(20)).expect_err("is refused");
    assert!(error.to_string().contains("is locked"), "{error}");
    drop(held);
    note(base.path(), Some("L"), None, tool("x"), LIMIT).expect("noted");
}

#[test]
fn concurrent_reports_all_count() {
    let base = begun("L");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..25 {
                    note(base.path(), Some("L"), None, tool("x"), Duration::from_secs(10)).expect("noted");
                }
            });
        }
    });
    assert_eq!(activity(base.path()).expect("there").calls, 100);
}

#[test]
fn a_link_or_malformed_file_in_its_place_is_replaced_and_never_followed() {
    let base = begun("L");
    let (kept, path) = (base.path().join("kept"), base.path().join(FOLDER).join(ACTIVITY));
    fs::write(&kept, "{\"calls\": 7}").expect("written");
    std::os::unix::fs::symlink(&kept, &path).expect("linked");
    assert_eq!(note(base.path(), Some("L"), None, tool("x"), LIMIT).expect("noted").calls, 1);
    assert_eq!(fs::read_to_string(&kept).expect("read"), "{\"calls\": 7}");
    for odd in ["", "{", "[]", "{\"calls\": -1}", "{\"calls\": \"many\"}"] {
        fs::write(&path, odd).expect("written");
        assert_eq!(note(base.path(), Some("L"), None, tool("x"), LIMIT).expect("noted").calls, 1, "{odd}");
    }
    fs::write(&path, format!("{{\"calls\": {}}}", u64::MAX)).expect("written");
    assert_eq!(note(base.path(), Some("L"), None, tool("x"), LIMIT).expect("noted").calls, u64::MAX);
}

proptest! {
    /// An agent that uses a tool is not idle, and only tool calls are counted.
    #[test]
    fn no_order_of_reports_contradicts_itself(order in proptest::collection::vec(0_usize..8, 0..40)) {
        let mut tool = Tool::default();
        for which in order {
            let x = || "x".to_owned();
            let words = [Word::Working, Word::Tool(x()), Word::Doing(x()), Word::Done(x()), Word::Waits(NeedKind::Question, x()),
                         Word::StillWaits(x()), Word::Idle(x()), Word::Over];
            let before = tool.calls;
            tool = tool.after(words[which].clone(), 1);
            prop_assert!(!tool.idle || (tool.waiting.is_some() && tool.operation.is_none()));
            prop_assert_eq!(tool.calls - before, u64::from(which == 1));
        }
    }
}
