use super::*;

const WALL: u64 = 1_767_312_000_000;

fn present(boot: &str, boot_ms: u64, wall_ms: u64) -> Present {
    Present { boot: boot.to_owned(), now: Now { boot_ms, wall_ms } }
}

/// A file as the original writes it.
const THEIRS: &str = r#"{
  "worker_name": "w",
  "interval_seconds": 3600,
  "message": "continue",
  "expire_at": "2026-01-03T00:00:00+00:00",
  "created_at": "2026-01-01T23:00:00.123456+00:00",
  "last_beat_at": "2026-01-01T23:30:00Z",
  "beat_count": 1,
  "status": "active",
  "monitor_pid": 77,
  "note": {"of": "another"}
}"#;

fn read(text: &str) -> File {
    serde_json::from_str(text).expect("a file")
}

#[test]
fn a_file_of_the_original_is_understood_and_kept() {
    let here = present("b1", 3_600_000, WALL);
    let nudge = read(THEIRS).nudge(&here).expect("understood");
    assert_eq!(nudge.every, Every::Interval { ms: 3_600_000 });
    assert_eq!(nudge.anchor.boot_ms, 3_600_000 - 1_800_000, "the interval starts at the last beat");
    assert_eq!(nudge.expires.map(|end| end.boot_ms), Some(3_600_000 + 24 * 3_600_000));
    assert!(!nudge.whole);
    let nudge = Nudge { beats: 2, last_beat_ms: Some(WALL + 1), whole: true, ..nudge };
    let written = File::of(&nudge, &here, 0, Some(read(THEIRS)));
    assert_eq!(written.created_at, "2026-01-01T23:00:00.123456+00:00");
    assert_eq!(written.last_beat_at.as_deref(), Some("2026-01-02T00:00:00.001000+00:00"));
    assert_eq!((written.beat_count, written.interval_seconds), (2, 3600));
    assert_eq!(written.monitor_pid, Some(i64::from(std::process::id())));
    assert_eq!(written.others["note"]["of"], "another");
    let again = written.nudge(&here).expect("understood");
    assert_eq!(again, nudge);
}

#[test]
fn keys_come_in_the_order_of_the_original() {
    let here = present("b1", 5, WALL);
    let nudge = read(THEIRS).nudge(&here).expect("understood");
    let text = serde_json::to_string(&File::of(&nudge, &here, 0, None)).expect("JSON");
    let at = |key: &str| text.find(&format!("\"{key}\":")).unwrap_or_else(|| panic!("{key} is missing: {text}"));
    let keys = [
        "worker_name",
        "interval_seconds",
        "message",
        "expire_at",
        "created_at",
        "last_beat_at",
        "beat_count",
        "status",
        "monitor_pid",
        "swarm",
    ];
    assert!(keys.windows(2).all(|pair| at(pair[0]) < at(pair[1])), "{text}");
}

#[test]
fn times_use_the_boot_clock_within_a_boot_and_the_wall_clock_after_it() {
    let here = present("b1", 1_000_000, WALL);
    let anchor = Moment { boot_ms: 400_000, wall_ms: WALL - 600_000 };
    let expires = Some(Moment { boot_ms: 2_000_000, wall_ms: WALL + 1_000_000 });
    let nudge = read(THEIRS).nudge(&here).expect("understood");
    let nudge = Nudge { anchor, expires, handled: 3, jitter_ms: 9, whole: true, ..nudge };
    let file = File::of(&nudge, &here, 0, None);
    let set = present("b1", 1_000_500, WALL + 7_200_000);
    assert_eq!(file.nudge(&set).expect("understood"), nudge);
    let rebooted = file.nudge(&present("b2", 60_000, WALL + 120_000)).expect("understood");
    assert_eq!(rebooted.anchor.boot_ms, 60_000 - 720_000);
    assert_eq!(rebooted.expires.map(|end| end.boot_ms), Some(60_000 + 880_000));
    assert_eq!((rebooted.handled, rebooted.jitter_ms), (3, 9));
}

#[test]
fn a_cron_expression_is_an_interval_to_the_original() {
    let here = present("b1", 5, WALL);
    let every = Every::Cron { expression: "0 9 * * *".to_owned() };
    let nudge = Nudge { every, whole: true, ..read(THEIRS).nudge(&here).expect("understood") };
    let file = File::of(&nudge, &here, 86_400_000, None);
    assert_eq!(file.interval_seconds, 86_400);
    assert_eq!(file.nudge(&here).expect("understood"), nudge);
    let stripped = File { swarm: None, ..file };
    assert_eq!(stripped.nudge(&here).expect("understood").every, Every::Interval { ms: 86_400_000 });
}

#[test]
fn invalid_fields_are_named() {
    let here = present("b1", 5, WALL);
    for (field, value, cause) in [
        ("status", "\"asleep\"", "unknown status 'asleep'"),
        ("expire_at", "\"soon\"", "expire_at is not a time: 'soon'"),
        ("created_at", "\"x\"", "created_at is not a time: 'x'"),
    ] {
        let mut value_of: Value = serde_json::from_str(THEIRS).expect("JSON");
        value_of[field] = serde_json::from_str(value).expect("JSON");
        let file: File = serde_json::from_value(value_of).expect("a file");
        assert_eq!(file.nudge(&here), Err(cause.to_owned()));
    }
    let least = read(r#"{"worker_name":"w","interval_seconds":60}"#);
    let nudge = least.nudge(&here).expect("understood");
    assert_eq!((nudge.message.as_str(), nudge.status, nudge.beats), ("continue", Status::Active, 0));
}
