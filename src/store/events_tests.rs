//! Tests of the event log and its followers.

use super::*;
use swarm_model::EventKind;

#[test]
fn a_request_is_found_after_damaged_lines() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("events.jsonl");
    fs::write(&path, b"{\"at_ms\":1,\"\xff\"}\n\0\0\n").expect("written");
    let log = EventLog::new(path);
    let kind = EventKind::WorkerCleaned;
    log.emit(Event { at_ms: 2, worker: None, generation: None, request: Some("asked".into()), kind });
    assert!(log.seen("asked") && !log.seen("other"));
}

#[test]
fn a_refusal_is_that_of_its_own_generation() {
    let dir = tempfile::tempdir().expect("a directory");
    let paths = Paths::new(dir.path().to_owned());
    let log = EventLog::new(paths.events());
    for (generation, cause) in [(1, "gone"), (2, "full"), (2, "still full")] {
        let kind = EventKind::MergeRefused { cause: cause.to_owned() };
        let (worker, generation) = (Some("w".to_owned()), Some(generation));
        log.emit(Event { at_ms: 2, worker, generation, request: None, kind });
    }
    let refused = |name, generation| refused(&paths, name, generation);
    assert_eq!([refused("w", 1), refused("w", 2)], [Some("gone".to_owned()), Some("still full".to_owned())]);
    assert_eq!([refused("w", 3), refused("v", 1)], [None, None]);
    assert!(!has_ended(&paths, "w", 1));
}

#[test]
fn an_event_after_a_torn_line_is_kept() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("events.jsonl");
    fs::write(&path, "{\"at_ms\":1,\"ty").expect("written");
    let log = EventLog::new(path.clone());
    for pid in [7, 8] {
        let kind = EventKind::SupervisorStarted { pid };
        log.emit(Event { at_ms: 2, worker: None, generation: None, request: None, kind });
    }
    let text = fs::read_to_string(&path).expect("readable");
    let lines: Vec<Option<Event>> = text.lines().map(|line| serde_json::from_str(line).ok()).collect();
    assert_eq!(lines.iter().map(Option::is_some).collect::<Vec<_>>(), [false, true, true], "{text}");
}

fn event(at_ms: u64) -> Event {
    Event { at_ms, worker: None, generation: None, request: None, kind: EventKind::WorkerCleaned }
}

/// Waits until `count` events were heard. Returns their times, with 0 for a gap.
async fn hear(follower: &mut Follower, count: usize) -> Vec<u64> {
    let mut times = Vec::new();
    while times.len() < count {
        let heard = follower.next().await.expect("readable").expect("goes on");
        times.extend(heard.into_iter().map(|heard| match heard {
            Heard::Event(told) => serde_json::from_str::<Event>(&told.text).expect("an event").at_ms,
            Heard::Gap => 0,
        }));
    }
    times
}

#[tokio::test]
async fn a_follower_that_lagged_reads_what_it_missed() {
    let dir = tempfile::tempdir().expect("a directory");
    let log = Arc::new(EventLog::new(dir.path().join("events.jsonl")));
    log.emit(event(1));
    let (mut now, count) = (log.follow(None), 3 * LISTENER_LAG_MAX as u64);
    (2..count).for_each(|at_ms| log.emit(event(at_ms)));
    assert_eq!(hear(&mut now, count as usize - 2).await, (2..count).collect::<Vec<_>>());
    log.emit(event(count));
    assert_eq!(hear(&mut now, 1).await, [count]);
}

#[tokio::test]
async fn a_follower_goes_on_after_a_place_until_its_file_is_gone() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("events.jsonl");
    let log = Arc::new(EventLog::new(path.clone()));
    let mut first = log.follow(None);
    (1..4).for_each(|at_ms| log.emit(event(at_ms)));
    let heard = first.next().await.expect("readable").expect("goes on");
    let [Heard::Event(Told { place: Some(place), .. })] = heard.as_slice() else { panic!("{heard:?}") };
    // Another process goes on.
    let log = Arc::new(EventLog::new(path.clone()));
    let mut later = log.follow(Some(*place));
    assert_eq!(hear(&mut later, 2).await, [2, 3]);
    log.emit(event(4));
    assert_eq!(hear(&mut later, 1).await, [4]);
    fs::remove_file(&path).expect("removed");
    let log = Arc::new(EventLog::new(path));
    log.emit(event(5));
    assert_eq!(hear(&mut log.follow(Some(*place)), 2).await, [0, 5]);
}
