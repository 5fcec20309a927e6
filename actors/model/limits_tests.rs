use super::*;

#[test]
fn sizes_are_read_in_all_their_forms() {
    let cases = [("1", 1), ("1048576", 1 << 20), ("512M", 512 << 20), ("2G", 2 << 30), ("1.5G", 3 << 29)];
    let more = [("4k", 4096), ("1KiB", 1024), ("3mb", 3 << 20), ("1T", 1 << 40), ("0.5K", 512), ("10B", 10)];
    for (text, bytes) in cases.into_iter().chain(more) {
        assert_eq!(parse_size(text), Ok(bytes), "{text}");
    }
    assert_eq!(parse_size("9223372036854775807"), Ok(i64::MAX.unsigned_abs()));
}

#[test]
fn invalid_sizes_are_refused_with_a_reason() {
    for text in ["", "M", "-1", "1 M", "1X", "1.2.3", ".", "1.", ".5G", "0x10", "1e3", "1_000", "inf", "M1", "1MM", "é"]
    {
        assert!(parse_size(text).is_err_and(|cause| cause.contains("is not a size")), "{text:?}");
    }
    for text in ["0", "0M", "0.0G"] {
        assert_eq!(parse_size(text), Err("must be above 0".to_owned()));
    }
    for text in [
        "9223372036854775808",
        "8388608T",
        "99999999999999999999999999999999999999999T",
        "1000000000000000000000000000",
    ] {
        assert!(parse_size(text).is_err_and(|cause| cause.ends_with("is too large")), "{text}");
    }
    assert!(parse_memory("1023K").is_err() && parse_memory("1M") == Ok(1 << 20));
}

#[test]
fn cores_and_processes_are_read() {
    for (text, milli) in [("2", 2000), ("0.5", 500), ("1.25", 1250), ("0.01", 10), ("0.0105", 10), ("64", 64_000)] {
        assert_eq!(parse_cores(text), Ok(milli), "{text}");
    }
    for text in ["", "0", "0.001", "x", "-1", "1,5", "2 ", "1e1", "10000", "99999999999999999999999"] {
        assert!(parse_cores(text).is_err(), "{text:?}");
    }
    assert_eq!((parse_pids("1"), parse_pids("200")), (Ok(1), Ok(200)));
    for text in ["", "0", "-1", "+5", "1.5", "10k", "4194305", "99999999999"] {
        assert!(parse_pids(text).is_err(), "{text:?}");
    }
}

#[test]
fn the_configuration_accepts_the_same_text() {
    let text = r#"{"memory": "2G", "cpu": 1.5, "pids": 200, "max_output": "1G"}"#;
    let read = |text: &str| serde_json::from_str::<LimitsText>(text).expect("it has the form").parse();
    let limits =
        Limits { memory_bytes: Some(2 << 30), cpu_milli: Some(1500), pids: Some(200), max_output_bytes: Some(1 << 30) };
    assert_eq!(read(text), Ok(limits));
    assert_eq!(read(r#"{"cpu": 2, "memory": 1048576}"#).map(|limits| limits.cpu_milli), Ok(Some(2000)));
    assert_eq!(read("{}"), Ok(Limits::default()));
    assert!(read(r#"{"pids": -1}"#).is_err_and(|cause| cause.starts_with("pids: ")));
    assert!(read(r#"{"memory": "much"}"#).is_err_and(|cause| cause.starts_with("memory: 'much' is not")));
    assert!(serde_json::from_str::<LimitsText>(r#"{"memroy": "2G"}"#).is_err());
}

#[test]
fn flags_override_the_configuration() {
    let typed = Limits { pids: Some(5), ..Limits::default() };
    let configured = Limits { pids: Some(200), cpu_milli: Some(500), ..Limits::default() };
    assert_eq!(typed.or(configured), Limits { pids: Some(5), cpu_milli: Some(500), ..Limits::default() });
}

#[test]
fn only_requested_limits_are_reported_as_missing() {
    let limits = Limits { memory_bytes: Some(1 << 20), pids: Some(5), ..Limits::default() };
    let none = Held { asked: limits, ..Held::default() };
    let missed = none.warnings();
    assert_eq!(missed.len(), 2, "{missed:?}");
    assert!(missed[0].starts_with("--memory is not") && missed[1].starts_with("--pids is not"));
    let some = Held { asked: limits, memory: Some(By::Rlimit), pids: Some(By::GroupV1), ..Held::default() };
    assert_eq!((some.warnings().len(), some.notes().len()), (0, 1));
}

#[test]
fn held_limits_survive_a_round_trip() {
    let held = Held {
        asked: Limits { pids: Some(5), ..Limits::default() },
        pids: Some(By::GroupV1),
        groups: vec!["/g".to_owned()],
        ..Held::default()
    };
    let text = serde_json::to_string(&held).expect("plain");
    assert_eq!(serde_json::from_str::<Held>(&text).expect("its own"), held, "{text}");
    assert_eq!(serde_json::from_str::<Held>("{}").expect("an older one"), Held::default());
}

#[test]
fn hits_are_described_in_words() {
    let hits = |oom_kills, pids_refused| Hits { oom_kills, pids_refused }.words();
    assert_eq!(hits(0, 0), None);
    assert_eq!(hits(1, 0).as_deref(), Some("1 process out of memory"));
    assert_eq!(hits(0, 7).as_deref(), Some("7 processes refused by --pids"));
    assert_eq!(hits(2, 1).as_deref(), Some("2 processes out of memory, 1 process refused by --pids"));
}

#[test]
fn older_records_are_read_and_records_without_limits_look_like_them() {
    use crate::{Contract, Ended, ExitRecord, Lease};
    let usage = r#""usage":{"user_us":1,"system_us":2,"rss_max_kb":3}"#;
    let exit = format!(
        r#"{{"token":"t","started":"s","pid":7,"code":0,"reason":"exited","ended_at_ms":1,"duration_ms":2,{usage}}}"#
    );
    let read: ExitRecord = serde_json::from_str(&exit).expect("an older record");
    assert_eq!((read.ended, read.hits), (Ended::Code(0), Hits::default()));
    assert_eq!(serde_json::to_string(&read).expect("plain"), exit);
    let process = r#"{"pid":7,"start_ticks":1,"boot":"b"}"#;
    let lease =
        format!(r#"{{"token":"t","started":"s","worker":{process},"shim":{process},"pane":null,"restart":"never"}}"#);
    let read: Lease = serde_json::from_str(&lease).expect("an older lease");
    assert_eq!((serde_json::to_string(&read).expect("plain"), read.limits), (lease, None));
    let contract = serde_json::to_value(Contract::default()).expect("plain");
    assert!(contract.get("limits").is_none());
    assert!(serde_json::from_value::<Contract>(contract).expect("its own").limits.is_none());
}
