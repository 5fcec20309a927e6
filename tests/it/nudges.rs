//! Nudges: each beat comes on time and once, also if the supervisor dies, with the messages and files of the
//! original program.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::{Rig, SOON, holds_for, proc, quick, timed, wait_quiet, wait_until};

/// Answers each line with a running count.
const COUNT: &str = "n=0; while IFS= read -r line; do n=$((n+1)); printf 'got<%s> %d\\n$ ' \"$line\" $n; done";
const SHORT: &str = "Warning: very short interval (less than 1 minute)\n";

fn counter(rig: &Rig, name: &str) {
    rig.spawn_sh(name, &["--tmux"], COUNT);
}

fn file(rig: &Rig, name: &str) -> Value {
    let text = fs::read(rig.root().join("heartbeats").join(format!("{name}.json"))).expect("a file");
    serde_json::from_slice(&text).expect("JSON")
}

fn got(rig: &Rig, name: &str) -> usize {
    rig.log(name, "tmux").matches("got<").count()
}

fn beats(rig: &Rig, name: &str) -> u64 {
    file(rig, name)["beat_count"].as_u64().expect("a number")
}

#[test]
fn beats_come_each_second_and_the_file_has_the_original_format() {
    let rig = Rig::new();
    counter(&rig, "w");
    let began = Instant::now();
    let said = rig.swarm(&["heartbeat", "start", "w", "--interval", "1", "--expire", "1h", "--message", "go on"]);
    said.is(0, "Heartbeat started for w (every 1s, expires in 1h 0m)\n", SHORT);
    wait_until("five beats", SOON, || got(&rig, "w") >= 5);
    assert!(began.elapsed() >= Duration::from_secs(5), "{:?}", began.elapsed());
    // Five more beats, measured from the arrival of one.
    quick("five beats", Duration::from_millis(6500), || {
        let before = got(&rig, "w");
        wait_until("the next beat", SOON, || got(&rig, "w") > before);
        timed(|| wait_until("five more beats", SOON, || got(&rig, "w") > before + 5))
    });
    assert!(rig.log("w", "tmux").contains("got<go on> 5"));
    let file = file(&rig, "w");
    for (key, value) in [("worker_name", "w"), ("message", "go on"), ("status", "active")] {
        assert_eq!(file[key], value, "{file}");
    }
    let supervisor = rig.keepers().0.expect("it runs");
    assert_eq!((file["interval_seconds"].as_u64(), file["monitor_pid"].as_i64()), (Some(1), Some(supervisor.into())));
    assert!(file["expire_at"].as_str().expect("a time").ends_with("+00:00"), "{file}");
    // A beat is due one second after the last due time, even if the last beat was late.
    rig.swarm(&["heartbeat", "pause", "w"]).is(0, "Heartbeat paused for w\n", "");
    let paused = got(&rig, "w");
    holds_for("the nudge is paused", Duration::from_millis(1500), || got(&rig, "w") <= paused + 1);
    let paused = beats(&rig, "w");
    rig.swarm(&["heartbeat", "resume", "w"]).is(0, "Heartbeat resumed for w\n", "");
    wait_until("the nudge continues", SOON, || beats(&rig, "w") > paused);
    rig.swarm(&["heartbeat", "stop", "w"]).is(0, "Heartbeat stopped for w\n", "");
    rig.swarm(&["heartbeat", "stop", "w"]).is(0, "No active heartbeat for w\n", "");
    let told = rig.swarm(&["events", "w"]).ok();
    assert!(told.contains("nudged (beat 1)") && told.contains("nudged (beat 5)"), "{told}");
}

#[test]
fn a_killed_supervisor_repeats_no_beat_and_the_next_one_continues() {
    let rig = Rig::new();
    counter(&rig, "w");
    rig.swarm(&["heartbeat", "start", "w", "--interval", "1s"]);
    for round in 1..=4 {
        wait_until("a beat", SOON, || beats(&rig, "w") >= round * 2);
        let supervisor = rig.keepers().0;
        // In some rounds the guard restarts the supervisor, in others the next command does.
        if round % 2 == 1 {
            proc::kill(supervisor.expect("it runs"));
        } else {
            rig.kill_keepers();
            wait_until("supervisor and guard are gone", SOON, || rig.keepers() == (None, None));
            rig.swarm(&["supervisor", "restart"]);
        }
        wait_until("another supervisor runs", SOON, || rig.keepers().0.is_some_and(|pid| Some(pid) != supervisor));
        let mine = || file(&rig, "w")["monitor_pid"].as_i64();
        wait_until("the file names the new supervisor", SOON, || mine() == rig.keepers().0.map(i64::from));
    }
    rig.swarm(&["heartbeat", "stop", "w"]).is(0, "Heartbeat stopped for w\n", "");
    let counted = usize::try_from(beats(&rig, "w")).expect("few");
    // Each kill may lose the beat that was just being typed.
    wait_until("all other beats arrived", SOON, || got(&rig, "w") + 4 >= counted);
    holds_for("no beat is repeated", Duration::from_millis(1500), || got(&rig, "w") <= counted);
}

#[test]
fn a_nudge_ends_with_its_worker() {
    let rig = Rig::new();
    for name in ["ends", "killed"] {
        counter(&rig, name);
        rig.swarm(&["heartbeat", "start", name, "--interval", "4h"]).is(
            0,
            &format!("Heartbeat started for {name} (every 4h 0m, no expiration)\n"),
            "",
        );
    }
    rig.swarm(&["eof", "ends"]).is(0, "sent eof to ends\n", "");
    wait_until("the nudge is stopped", SOON, || file(&rig, "ends")["status"] == "stopped");
    rig.swarm(&["kill", "killed"]).is(0, "killed killed\n", "");
    assert_eq!(file(&rig, "killed")["status"], "stopped", "before kill returns");
    rig.swarm(&["clean", "--all"]).ok();
    assert!(!rig.root().join("heartbeats/killed.json").exists() && !rig.root().join("heartbeats/ends.json").exists());
    rig.swarm(&["heartbeat", "list"]).is(0, "No heartbeats found\n", "");
}

#[test]
fn a_nudge_pauses_after_a_reboot_or_lost_server_until_its_worker_is_back() {
    let rig = Rig::new();
    counter(&rig, "w");
    rig.swarm(&["heartbeat", "start", "w", "--interval", "1"]);
    for lose_server in [false, true] {
        wait_until("a beat", SOON, || got(&rig, "w") >= 1);
        if lose_server {
            let server = rig.tmux(&["display-message", "-p", "#{pid}"]).ok();
            proc::kill(server.trim().parse().expect("a pid"));
            wait_until("the worker is lost", SOON, || rig.fine("w") != "running");
        } else {
            crate::recover::reboot(&rig);
            // Any command that needs a supervisor starts one.
            rig.spawn("x", &[], &["sleep", "600"]);
        }
        holds_for("the nudge stays active", Duration::from_secs(2), || file(&rig, "w")["status"] == "active");
        let counted = beats(&rig, "w");
        rig.swarm(&["recover", "w", "--apply", "--settle", "0"]).ok();
        wait_until("the nudge continues", SOON * 2, || beats(&rig, "w") > counted + 1);
    }
    rig.swarm(&["kill", "w"]).ok();
    assert_eq!(file(&rig, "w")["status"], "stopped");
}

#[test]
fn a_nudge_survives_the_iterations_of_a_loop_and_ends_with_the_loop() {
    let site = crate::ralph::Site::new("[ $n = 2 ] && exit 3; sleep 2; exit 0");
    site.begin(&["--max-iterations", "3"]).ok();
    site.rig.swarm(&["heartbeat", "start", "dev", "--interval", "1"]);
    let status = || file(&site.rig, "dev")["status"].clone();
    for iteration in 2..=3 {
        site.wait_line_within(&format!("[START] iteration {iteration}/3"), SOON * 2);
        assert_eq!(status(), "active");
    }
    site.wait_line_within("[DONE]", SOON * 3);
    wait_until("the nudge ends with the loop", SOON, || status() == "stopped");
}

#[test]
fn spawn_starts_a_nudge_and_checks_its_flags_first() {
    let rig = Rig::new();
    let spawn = |name: &str, flags: &[&str]| {
        rig.swarm(&[&["spawn", "--name", name], flags, &["--", "sh", "-c", COUNT]].concat())
    };
    spawn("a", &["--tmux", "--heartbeat", "soon"]).refused(1, "invalid interval 'soon'");
    spawn("a", &["--tmux", "--heartbeat", "4h", "--heartbeat-expire", "0"]).refused(1, "invalid expire '0'");
    assert_eq!(rig.names().len(), 0, "nothing was started");
    let said = spawn("a", &["--tmux", "--heartbeat", "1", "--heartbeat-expire", "24h", "--heartbeat-message", "on"]);
    assert_eq!(said.err, "swarm: warning: very short interval (less than 1 minute)\n");
    let lines: Vec<&str> = said.out.lines().collect();
    assert!(lines[0].starts_with("spawned a (tmux: "), "{lines:?}");
    assert_eq!(lines[1], "heartbeat started (every 1s, expires in 24h 0m)");
    wait_until("a is nudged", SOON, || rig.log("a", "tmux").contains("got<on> 1"));
    let said = spawn("b", &["--heartbeat", "4h"]);
    assert_eq!(said.err, "swarm: warning: heartbeat requires tmux worker, skipping (use --tmux)\n");
    assert!(said.out.starts_with("spawned b (pid: ") && said.out.lines().count() == 1);
    assert!(!rig.root().join("heartbeats/b.json").exists());
}

#[test]
fn mistakes_have_the_messages_of_the_original() {
    let rig = Rig::new();
    let say = |words: &[&str]| rig.swarm(&[&["heartbeat"], words].concat());
    let start = |name: &str, interval: &str| say(&["start", name, "--interval", interval]);
    start("w", "4h").is(1, "", "Error: worker 'w' not found\n");
    start("w", "0").is(1, "", "Error: invalid interval '0'\n");
    rig.spawn("process", &[], &["sleep", "600"]);
    start("process", "4h").is(1, "", "Error: heartbeat requires tmux worker\n");
    counter(&rig, "w");
    start("w", "4h").is(0, "Heartbeat started for w (every 4h 0m, no expiration)\n", "");
    start("w", "2h").is(1, "", "Error: heartbeat already active for 'w' (use --force to replace)\n");
    say(&["start", "w", "--interval", "90m", "--force"]).is(
        0,
        "Heartbeat started for w (every 1h 30m, no expiration)\n",
        "",
    );
    say(&["resume", "w"]).is(1, "", "Error: heartbeat for 'w' is not paused (status: active)\n");
    for verb in ["pause", "resume", "status"] {
        say(&[verb, "nobody"]).is(1, "", "No heartbeat found for nobody\n");
    }
    say(&["stop", "nobody"]).is(0, "No active heartbeat for nobody\n", "");
    assert_eq!(say(&["start", "w"]).code, Some(2));
    say(&["start", "w", "--cron", "* * *"]).is(
        1,
        "",
        "Error: invalid cron expression '* * *': expected 5 fields (minute hour day month weekday), found 3\n",
    );
    let said = say(&["start", "w", "--cron", "0 9 * * 1-5", "--jitter", "10m", "--force"]);
    said.is(0, "Heartbeat started for w (at '0 9 * * 1-5', no expiration)\n", "");
    let status = say(&["status", "w"]).ok();
    assert!(status.contains("Interval: 0 9 * * 1-5\nJitter: 10m 0s\n") && status.contains("T09:0"), "{status}");
    say(&["start", "w", "--interval", "1h", "--jitter", "1h", "--force"]).is(
        1,
        "",
        "Error: invalid jitter '1h': it must be shorter than the interval\n",
    );
}

#[test]
fn lists_need_no_supervisor_and_name_damaged_files() {
    let rig = Rig::new();
    counter(&rig, "w");
    rig.swarm(&["heartbeat", "start", "w", "--interval", "4h"]).ok();
    rig.swarm(&["supervisor", "stop"]).ok();
    wait_until("supervisor and guard are gone", SOON, || rig.keepers() == (None, None));
    let table = rig.swarm(&["heartbeat", "ls"]).ok();
    assert!(table.starts_with("WORKER          INTERVAL   NEXT BEAT    EXPIRES      STATUS     BEATS"), "{table}");
    assert!(table.contains("w               4h 0m      3h 59m       never        active     0"), "{table}");
    let json: Value = serde_json::from_str(&rig.swarm(&["heartbeat", "list", "--format", "json"]).ok()).expect("JSON");
    assert_eq!(json[0]["worker_name"], "w");
    let text = rig.swarm(&["heartbeat", "status", "w", "--format", "json"]).ok();
    let json: Value = serde_json::from_str(&text).expect("JSON");
    assert!(json["next_beat_at"].is_string() && json["interval_seconds"] == 14400, "{json}");
    let json: Value = serde_json::from_str(&rig.swarm(&["heartbeat", "list", "--json"]).ok()).expect("JSON");
    assert_eq!(
        (json["schema"].as_str(), json["heartbeats"][0]["interval_ms"].as_u64()),
        (Some("swarm.heartbeats/1"), Some(14_400_000))
    );
    assert_eq!(rig.keepers(), (None, None), "none was started");
    fs::write(rig.root().join("heartbeats/torn.json"), "{").expect("written");
    let said = rig.swarm(&["heartbeat", "list"]);
    assert!(said.code == Some(1) && said.err.starts_with("Warning: ") && said.err.contains("torn.json: "), "{said:?}");
    assert!(said.out.contains("\nw "), "the valid rows are shown: {said:?}");
    // A supervisor quarantines the file, which is still named.
    rig.swarm(&["heartbeat", "pause", "w"]).ok();
    assert!(rig.root().join("heartbeats/torn.json.corrupted").exists());
    assert_eq!(rig.swarm(&["heartbeat", "list"]).code, Some(1));
}

#[test]
fn a_nudge_of_the_original_is_adopted() {
    let rig = Rig::new();
    counter(&rig, "w");
    rig.swarm(&["supervisor", "stop"]).ok();
    wait_until("supervisor and guard are gone", SOON, || rig.keepers() == (None, None));
    fs::create_dir_all(rig.root().join("heartbeats")).expect("made");
    let theirs = r#"{"worker_name": "w", "interval_seconds": 1, "message": "theirs", "expire_at": null,
        "created_at": "2026-01-01T00:00:00.5+00:00", "last_beat_at": null, "beat_count": 7, "status": "active",
        "monitor_pid": 4194303, "note": 1}"#;
    fs::write(rig.root().join("heartbeats/w.json"), theirs).expect("written");
    // Any command that needs a supervisor starts one.
    rig.spawn("x", &[], &["sleep", "600"]);
    wait_until("w is nudged", SOON, || rig.log("w", "tmux").contains("got<theirs> 2"));
    let file = file(&rig, "w");
    assert!(file["beat_count"].as_u64() >= Some(9) && file["note"] == 1, "{file}");
    assert_eq!(file["created_at"], "2026-01-01T00:00:00.5+00:00");
}

#[test]
fn a_hanging_window_delays_no_other() {
    let rig = Rig::new();
    rig.spawn_sh("hangs", &["--tmux", "--tmux-socket", "other", "--session", "s"], COUNT);
    counter(&rig, "w");
    for name in ["hangs", "w"] {
        rig.swarm(&["heartbeat", "start", name, "--interval", "1"]);
    }
    let server = rig.tmux(&["-L", "other", "display-message", "-p", "#{pid}"]).ok();
    let server = server.trim().parse().expect("a pid");
    proc::signal(server, proc::Signal::STOP);
    let before = got(&rig, "w");
    wait_until("the other one is nudged", SOON, || got(&rig, "w") >= before + 4);
    proc::signal(server, proc::Signal::CONT);
    let (then, counted) = (got(&rig, "hangs"), beats(&rig, "hangs"));
    wait_until("the window continues", SOON * 2, || got(&rig, "hangs") > then && beats(&rig, "hangs") > counted);
}

#[test]
fn no_process_wakes_between_beats() {
    let rig = Rig::new();
    counter(&rig, "w");
    rig.swarm(&["heartbeat", "start", "w", "--interval", "4h"]).ok();
    rig.swarm(&["heartbeat", "start", "w", "--cron", "0 0 1 1 *", "--force"]).ok();
    let supervisor = rig.keepers().0.expect("runs");
    wait_quiet(&[supervisor]);
}
