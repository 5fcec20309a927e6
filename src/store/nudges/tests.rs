use std::os::unix::fs::PermissionsExt as _;

use super::*;
use swarm_model::nudges::Status;

fn home() -> (tempfile::TempDir, Paths) {
    let dir = tempfile::tempdir().expect("a directory");
    let paths = Paths::new(dir.path());
    (dir, paths)
}

fn nudge(worker: &str) -> Nudge {
    let now = present().now;
    Nudge {
        worker: worker.to_owned(),
        every: Every::Interval { ms: 60_000 },
        message: "é".to_owned(),
        jitter_ms: 0,
        status: Status::Active,
        anchor: now.moment(),
        expires: Some(now.after(90_000)),
        created_ms: now.wall_ms,
        last_beat_ms: None,
        beats: 0,
        handled: 0,
        unfinished: false,
        request: "r".to_owned(),
        whole: true,
    }
}

#[tokio::test]
async fn what_is_saved_is_read_and_private() {
    let (_dir, paths) = home();
    let disk = DiskNudges::new(paths.clone());
    assert_eq!(disk.load().await.expect("nothing"), []);
    assert!(!paths.heartbeats().exists(), "reading makes nothing");
    disk.save(&nudge("w")).await.expect("saved");
    assert_eq!(disk.read("w").await.expect("read"), Some(nudge_as_read(&disk).await));
    let path = paths.heartbeats().join("w.json");
    let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o7777;
    assert_eq!((mode(&path), mode(&paths.heartbeats()), mode(&paths.heartbeat_lock())), (0o600, 0o700, 0o600));
    let text = fs::read_to_string(&path).expect("text");
    assert!(text.starts_with("{\n  \"worker_name\": \"w\",\n") && text.contains("\"\\u00e9\""), "{text}");
    disk.remove("w").await.expect("removed");
    disk.remove("w").await.expect("gone already");
    assert_eq!(disk.read("w").await.expect("read"), None);
}

async fn nudge_as_read(disk: &DiskNudges) -> Nudge {
    disk.load().await.expect("loads").remove(0)
}

#[tokio::test]
async fn unreadable_files_are_quarantined_and_the_others_are_loaded() {
    let (_dir, paths) = home();
    let disk = DiskNudges::new(paths.clone());
    disk.save(&nudge("good")).await.expect("saved");
    for (name, text) in [("torn", "{\"worker_name\":"), ("other", r#"{"worker_name":"x","interval_seconds":9}"#)] {
        fs::write(paths.heartbeats().join(format!("{name}.json")), text).expect("written");
    }
    fs::write(paths.heartbeats().join("torn.json.corrupted"), "an earlier one").expect("written");
    fs::write(paths.heartbeats().join("x.json.tmp.7"), "half").expect("written");
    let listed = list(&paths, &present()).expect("listed");
    assert_eq!((listed.nudges.len(), listed.damaged.len()), (1, 3));
    let names: Vec<String> = disk.load().await.expect("loads").into_iter().map(|nudge| nudge.worker).collect();
    assert_eq!(names, ["good"]);
    let mut left: Vec<String> = files(&paths.heartbeats())
        .expect("listed")
        .iter()
        .map(|path| path.file_name().expect("a name").to_string_lossy().into_owned())
        .collect();
    left.sort();
    assert_eq!(left, ["good.json", "other.json.corrupted", "torn.json.corrupted", "torn.json.corrupted.1"]);
    assert_eq!(
        list(&paths, &present()).expect("listed").damaged.len(),
        3,
        "quarantined files are listed until they are removed"
    );
}

#[tokio::test]
async fn invalid_names_are_refused_and_unknown_keys_are_preserved() {
    let (dir, paths) = home();
    let disk = DiskNudges::new(paths.clone());
    for name in ["../x", "a/b", "", "a\0"] {
        assert!(disk.save(&nudge(name)).await.is_err(), "{name:?}");
        assert!(disk.read(name).await.is_ok_and(|found| found.is_none()), "{name:?}");
    }
    assert!(!dir.path().join("x.json").exists());
    disk.save(&nudge("w")).await.expect("saved");
    let path = paths.heartbeats().join("w.json");
    let mut value: serde_json::Value = serde_json::from_slice(&fs::read(&path).expect("read")).expect("JSON");
    value["theirs"] = "kept".into();
    fs::write(&path, value.to_string()).expect("written");
    disk.save(&nudge("w")).await.expect("saved");
    assert!(fs::read_to_string(&path).expect("read").contains("\"theirs\": \"kept\""));
}

#[tokio::test]
async fn a_lock_that_another_program_holds_is_waited_for() {
    let (_dir, paths) = home();
    let disk = DiskNudges::new(paths.clone());
    disk.save(&nudge("w")).await.expect("saved");
    let held = lock(&paths).expect("locked");
    let saved = tokio::spawn(async move { disk.save(&nudge("w")).await });
    tokio::task::yield_now().await;
    assert!(!saved.is_finished());
    drop(held);
    saved.await.expect("no panic").expect("saved");
}
