use serde_json::{Value, json};
use swarm_actors::loops::machine::{Effect, Event, Machine};
use swarm_model::loops::progress::{Stage, Status};

use super::*;

/// Returns the loops as a supervisor finds them that has just started.
fn active(paths: &Paths) -> io::Result<Vec<String>> {
    super::active(paths, &Written::default()).map(|Survey { found, unread }| {
        assert_eq!(unread, []);
        found
    })
}

fn site() -> (tempfile::TempDir, Paths) {
    let dir = tempfile::tempdir().expect("a directory");
    let paths = Paths::new(dir.path());
    (dir, paths)
}

/// A loop that has just started, with its first line unwritten.
fn begun(name: &str) -> Loop {
    let plan = Plan {
        name: name.to_owned(),
        prompt_file: "/p/PROMPT.md".to_owned(),
        max_iterations: 5,
        inactivity_timeout_s: 180,
        ..Plan::default()
    };
    let mut it = Machine::new(Loop::new(plan, 1_767_312_000_000));
    let effects = it.on(&Event::Began, 1_767_312_000_000);
    let words =
        effects.into_iter().filter_map(|effect| if let Effect::Tell(word) = effect { Some(word) } else { None });
    let mut it = Loop::clone(&it);
    it.lines.extend(words.map(|word| (1_767_312_000_000, word)));
    it
}

/// Returns the loop after one more event.
fn after(it: Loop, event: &Event) -> Loop {
    let mut machine = Machine::new(it);
    machine.on(event, 0);
    Loop::clone(&machine)
}

fn state(dir: &Path) -> Value {
    serde_json::from_slice(&fs::read(dir.join(STATE)).expect("written")).expect("JSON")
}

#[test]
fn the_state_has_the_original_fields_and_preserves_unknown_ones() {
    let (_site, paths) = site();
    let dir = dir(&paths, "w").expect("a name");
    let mut it = begun("w");
    assert_eq!(save(&dir, &it).expect("saved"), Filed::Current);
    let mut written = state(&dir);
    assert_eq!(written["status"], "running");
    assert_eq!(written["monitor_pid"], std::process::id());
    assert_eq!(written["started"].as_str().map(str::len), Some("2026-01-02T00:00:00.000000".len()));
    assert_eq!(written["exit_reason"], Value::Null);
    let keys = written.as_object().expect("an object").len();
    assert_eq!(keys, 20, "{written}");
    written["theirs"] = json!([1]);
    fs::write(dir.join(STATE), written.to_string()).expect("written");
    it = after(it, &Event::Pause { reason: "user".into() });
    save(&dir, &it).expect("saved");
    assert_eq!((&state(&dir)["theirs"], &state(&dir)["status"]), (&json!([1]), &json!("paused")));
    let known = read(&paths, "w").expect("readable").expect("there");
    assert_eq!((known.state.status, known.record), (Status::Paused, Some(it)));
}

#[test]
fn each_line_is_written_once_wherever_the_log_was_torn() {
    let (_site, paths) = site();
    let dir = dir(&paths, "w").expect("a name");
    let it = begun("w");
    save(&dir, &it).expect("saved");
    save(&dir, &it).expect("saved again");
    let log = dir.join(LOG);
    let whole = fs::read_to_string(&log).expect("there");
    assert!(whole.ends_with(" [START] iteration 1/5\n") && whole.lines().count() == 1, "{whole}");
    for torn in 0..whole.len() {
        fs::write(&log, &whole[..torn]).expect("torn");
        repair(&dir, &it).expect("repaired");
        assert_eq!(fs::read_to_string(&log).expect("there"), whole);
    }
    // Another program wrote at the position of our line.
    fs::write(&log, "2026-01-01T00:00:00 [PAUSE] loop paused reason=sigterm\n").expect("written");
    repair(&dir, &it).expect("repaired");
    assert_eq!(fs::read_to_string(&log).expect("there").lines().count(), 2);
}

#[test]
fn a_corrupt_state_is_quarantined_and_rebuilt() {
    let (_site, paths) = site();
    let dir = dir(&paths, "w").expect("a name");
    let it = begun("w");
    save(&dir, &it).expect("saved");
    for (text, kept) in [("{torn", "state.json.corrupted"), ("[]", "state.json.corrupted.1")] {
        let fresh = dir.join("fresh");
        fs::write(&fresh, text).expect("written");
        fs::rename(&fresh, dir.join(STATE)).expect("replaced");
        let known = read(&paths, "w").expect("readable").expect("there");
        assert_eq!((known.state.max_iterations, known.warning.is_some()), (5, true));
        save(&dir, &it).expect("saved");
        assert_eq!(fs::read_to_string(dir.join(kept)).expect("kept"), text);
        assert_eq!(state(&dir)["max_iterations"], 5);
    }
    // The state of another program's loop cannot be rebuilt.
    fs::remove_file(dir.join(RECORD)).expect("removed");
    fs::write(dir.join(STATE), "{").expect("written");
    assert!(read(&paths, "w").is_err());
}

#[test]
fn invalid_names_have_no_directory() {
    let (_site, paths) = site();
    assert!(dir(&paths, "../x").is_none() && dir(&paths, "").is_none());
    assert!(read(&paths, "..").expect("no failure").is_none());
    save(&dir(&paths, "b").expect("a name"), &begun("b")).expect("saved");
    save(&dir(&paths, "a").expect("a name"), &begun("a")).expect("saved");
    assert_eq!(names(&paths).expect("listed"), ["a", "b"]);
    assert_eq!(active(&paths).expect("listed"), ["a", "b"]);
}

#[test]
fn a_loop_that_cannot_be_read_hides_no_other() {
    let (_site, paths) = site();
    for name in ["a", "c"] {
        save(&dir(&paths, name).expect("a name"), &begun(name)).expect("saved");
    }
    let unread = dir(&paths, "b").expect("a name");
    // A directory can be opened, but not read, whoever asks.
    fs::create_dir_all(unread.join(RECORD)).expect("made");
    let survey = super::active(&paths, &Written::default()).expect("listed");
    assert_eq!(survey.found, ["a", "c"]);
    let places: Vec<String> = survey.unread.into_iter().map(|one| one.place).collect();
    assert_eq!(places, [unread.to_string_lossy().into_owned()]);
    fs::remove_dir(unread.join(RECORD)).expect("removed");
    save(&unread, &begun("b")).expect("saved");
    assert_eq!(active(&paths).expect("listed"), ["a", "b", "c"]);
    // The directory itself.
    fs::remove_dir_all(paths.loops()).expect("removed");
    fs::write(paths.loops(), "").expect("written");
    super::active(&paths, &Written::default()).expect_err("a file is no directory");
}

#[test]
fn a_state_that_cannot_be_read_stays_where_it_is() {
    let (_site, paths) = site();
    let dir = dir(&paths, "w").expect("a name");
    let mut it = filed(&dir);
    (it.status, it.stage) = (Status::Paused, Stage::Between { again: false });
    fs::remove_file(dir.join(STATE)).expect("removed");
    fs::write(dir.join(RECORD), serde_json::to_vec(&it).expect("JSON")).expect("written");
    // A directory can be opened, but not read, whoever asks.
    fs::create_dir(dir.join(STATE)).expect("made");
    let survey = super::active(&paths, &Written::default()).expect("listed");
    assert_eq!((survey.found.len(), survey.unread.len()), (0, 1), "another program may have changed it");
    assert_eq!(wire_or_repair(&dir, "w"), None);
    let known = read(&paths, "w").expect("readable").expect("there");
    assert_eq!((known.state.status, known.warning.is_some()), (Status::Paused, true));
    assert!(dir.join(STATE).is_dir(), "it is not moved aside");
    fs::remove_file(dir.join(RECORD)).expect("removed");
    assert!(read(&paths, "w").is_err() && dir.join(STATE).is_dir());
}

#[tokio::test]
async fn files_that_this_process_writes_are_not_repaired() {
    let (_site, paths) = site();
    let dir = dir(&paths, "w").expect("a name");
    let loops = DiskLoops::new(paths);
    loops.save(&begun("w")).await.expect("saved");
    // The temporary file of a write in progress.
    let temporary = dir.join(format!("{RECORD}.tmp.1"));
    fs::write(&temporary, "half").expect("written");
    assert_eq!(loops.active().await.expect("listed").found, ["w"]);
    assert!(temporary.exists());
    let next = DiskLoops::new(loops.paths);
    assert_eq!(next.active().await.expect("listed").found, ["w"]);
    assert!(!temporary.exists(), "its writer is gone");
}

#[test]
fn output_is_returned_as_plain_text() {
    let (site, _) = site();
    let path = site.path().join("log");
    fs::write(&path, "before\n\u{1b}[31mAll done\u{1b}[0m\r\n").expect("written");
    assert_eq!(output_since(&path, 7).expect("read"), "All done\n");
    assert_eq!(output_since(&path, 999).expect("read"), "before\nAll done\n");
}

#[test]
fn withdrawing_a_loop_restores_the_earlier_one() {
    let (_site, paths) = site();
    let dir = dir(&paths, "w").expect("a name");
    assert_eq!(earlier::read(&dir).expect("readable"), None);
    save(&dir, &begun("w")).expect("saved");
    let mut theirs = state(&dir);
    theirs["theirs"] = json!([1]);
    fs::write(dir.join(STATE), theirs.to_string()).expect("written");
    let files = || [RECORD, STATE, LOG].map(|name| fs::read_to_string(dir.join(name)).expect("there"));
    let before = files();
    let mut it = begun("w");
    it.earlier = earlier::read(&dir).expect("readable");
    it.lines_at = before[2].len() as u64;
    it.max_iterations = 9;
    save(&dir, &it).expect("saved");
    assert!(files().iter().zip(&before).all(|(now, then)| now != then));
    let earlier = load(&dir).expect("readable").and_then(|it| it.earlier).expect("kept");
    for _ in 0..2 {
        earlier::restore(&dir, &earlier).expect("restored");
        assert_eq!(files(), before);
    }
}

/// Changes the file as the original does: read, change, rename.
fn theirs(dir: &Path, change: impl Fn(&mut Value)) {
    let mut text = state(dir);
    change(&mut text);
    fs::write(dir.join("theirs"), text.to_string()).expect("written");
    fs::rename(dir.join("theirs"), dir.join(STATE)).expect("replaced");
}

/// A loop whose state file is up to date.
fn filed(dir: &Path) -> Loop {
    let mut it = begun("w");
    assert_eq!(save(dir, &it).expect("saved"), Filed::Current);
    it.wires_before = vec![it.wire()];
    it
}

#[test]
fn what_another_program_writes_between_our_read_and_write_is_not_overwritten() {
    let (_site, paths) = site();
    let dir = dir(&paths, "w").expect("a name");
    for (key, value) in [("status", json!("paused")), ("max_iterations", json!(2))] {
        let mut it = filed(&dir);
        it.consecutive_failures = 3;
        let mut once = Some(());
        let filed = write_state_between(&dir, &it, true, &mut || {
            if once.take().is_some() {
                theirs(&dir, |state| state[key] = value.clone());
            }
        });
        let Filed::Others(wire) = filed.expect("no failure") else { panic!("{key} was overwritten") };
        assert_eq!((&state(&dir)[key], &state(&dir)["consecutive_failures"]), (&value, &json!(0)));
        // After the change was taken over, the loop's own state is written.
        it = after(it, &Event::Others(wire));
        it.wires_before = vec![wire];
        assert_eq!(save(&dir, &it).expect("saved"), Filed::Current);
        assert_eq!((&state(&dir)[key], &state(&dir)["consecutive_failures"]), (&value, &json!(3)));
        fs::remove_dir_all(&dir).expect("removed");
    }
}

#[test]
fn a_field_added_concurrently_is_preserved() {
    let (_site, paths) = site();
    let dir = dir(&paths, "w").expect("a name");
    let mut it = filed(&dir);
    it.consecutive_failures = 3;
    let mut once = Some(());
    let done = write_state_between(&dir, &it, false, &mut || {
        if once.take().is_some() {
            theirs(&dir, |state| state["theirs"] = json!([1]));
        }
    });
    assert_eq!(done.expect("no failure"), Filed::Current);
    assert_eq!((&state(&dir)["theirs"], &state(&dir)["consecutive_failures"]), (&json!([1]), &json!(3)));
}

/// Leaves the files of a process that was killed after it swapped in `ours` for `seen`, and found `left` in its place.
fn killed(dir: &Path, seen: &str, ours: &str, left: &str) {
    let digests = [seen, ours].map(|text| swarm_sys::paths::digest(text.as_bytes(), 8)).join(".");
    fs::write(dir.join(format!("{STATE}.tmp.1.{digests}")), left).expect("written");
    fs::write(dir.join(STATE), ours).expect("written");
}

/// Returns the text of a state file with another value.
fn with(text: &str, key: &str, value: Value) -> String {
    let mut state: Value = serde_json::from_str(text).expect("JSON");
    state[key] = value;
    state.to_string()
}

#[test]
fn what_a_crash_during_an_exchange_left_is_restored() {
    let (_site, paths) = site();
    let dir = dir(&paths, "w").expect("a name");
    let it = filed(&dir);
    save(&dir, &it).expect("saved");
    let there = |name: &str| fs::read_to_string(dir.join(name)).expect("there");
    let leftovers =
        || files::list(&dir).expect("listed").iter().any(|it| it.path().to_string_lossy().contains(".tmp."));
    let ours = there(STATE);
    let seen = with(&ours, "total_failures", json!(7));
    let (paused, grown) = (with(&ours, "status", json!("paused")), with(&ours, "theirs", json!([1])));
    // What came out is in the file again, unless it is what was read before the exchange, or our own version.
    for (left, expected) in [(&paused, &paused), (&grown, &grown), (&seen, &ours), (&ours, &ours)] {
        killed(&dir, &seen, &ours, left);
        repair(&dir, &it).expect("repaired");
        assert_eq!((&there(STATE), leftovers()), (expected, false));
    }
    // A version that cannot be parsed is kept as well.
    killed(&dir, &seen, &ours, "{torn");
    repair(&dir, &it).expect("repaired");
    assert_eq!((state(&dir)["max_iterations"].clone(), there("state.json.corrupted")), (json!(5), "{torn".to_owned()));
    assert!(!leftovers());
}

#[test]
fn a_version_that_was_written_after_a_crash_is_not_replaced_by_an_earlier_one() {
    let (_site, paths) = site();
    let dir = dir(&paths, "w").expect("a name");
    let it = filed(&dir);
    save(&dir, &it).expect("saved");
    let there = |name: &str| fs::read_to_string(dir.join(name)).expect("there");
    let ours = there(STATE);
    let earlier = with(&ours, "max_iterations", json!(2));
    killed(&dir, "seen", &ours, &earlier);
    theirs(&dir, |state| state["status"] = json!("paused"));
    let later = there(STATE);
    repair(&dir, &it).expect("repaired");
    assert_eq!((there(STATE), there("state.json.kept")), (later, earlier));
}

#[test]
fn the_state_of_another_program_becomes_an_inactive_loop() {
    let (_site, paths) = site();
    let dir = dir(&paths, "w").expect("a name");
    fs::create_dir_all(&dir).expect("made");
    let mut text = serde_json::to_value(WireState::of(&begun("w"))).expect("JSON");
    text["started"] = json!("2026-01-02T00:00:00.123456");
    text["status"] = json!("stopped");
    text["exit_reason"] = json!("monitor_disconnected");
    text["iteration_durations"] = json!([3]);
    text["monitor_pid"] = json!(std::process::id());
    text["theirs"] = json!({"a": 1});
    fs::write(dir.join(STATE), text.to_string()).expect("written");
    let found = found(&paths, "w").expect("readable").expect("there");
    assert_eq!(found.keeper, None, "the command line of this process is another one");
    let mut it = found.it;
    assert!(it.is_disconnected() && !it.is_active() && it.stage == Stage::Between { again: false });
    it.wires_before = vec![it.wire()];
    assert_eq!(save(&dir, &it).expect("saved"), Filed::Current);
    text["monitor_pid"] = Value::Null;
    assert_eq!(state(&dir), text, "nothing of it is lost");
    assert!(super::found(&paths, "w").expect("readable").is_none() && is_ours(&paths, "w"));
}

#[test]
fn a_change_by_another_program_makes_an_inactive_loop_active() {
    let (_site, paths) = site();
    let dir = dir(&paths, "w").expect("a name");
    let mut it = filed(&dir);
    (it.status, it.stage) = (Status::Paused, Stage::Between { again: false });
    save(&dir, &it).expect("saved");
    it.wires_before = vec![it.wire()];
    save(&dir, &it).expect("saved");
    assert_eq!(active(&paths).expect("listed"), Vec::<String>::new());
    theirs(&dir, |state| state["status"] = json!("running"));
    assert_eq!(active(&paths).expect("listed"), ["w"]);
    // A finished loop stays finished, whatever is written there.
    (it.status, it.stage) = (Status::Failed, Stage::Over);
    fs::write(dir.join(RECORD), serde_json::to_vec(&it).expect("JSON")).expect("written");
    assert_eq!(active(&paths).expect("listed"), Vec::<String>::new());
}
