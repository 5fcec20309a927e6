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
    assert_eq!(disk.load().await.expect("nothing"), Survey::default());
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
    disk.load().await.expect("loads").found.remove(0)
}

#[tokio::test]
async fn damaged_files_are_quarantined_and_the_others_are_loaded() {
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
    assert_eq!(loaded(&disk).await, (vec!["good".to_owned()], Vec::new()));
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

/// Returns the workers whose nudges are loaded, and the names of the files that could not be read.
async fn loaded(disk: &DiskNudges) -> (Vec<String>, Vec<String>) {
    let Survey { found, unread } = disk.load().await.expect("loads");
    let name = |place: &str| place.rsplit('/').next().expect("a name").to_owned();
    (found.into_iter().map(|nudge| nudge.worker).collect(), unread.iter().map(|one| name(&one.place)).collect())
}

#[tokio::test]
async fn a_file_that_cannot_be_read_stays_where_it_is() {
    let (_dir, paths) = home();
    let disk = DiskNudges::new(paths.clone());
    disk.save(&nudge("good")).await.expect("saved");
    // A directory can be opened, but not read, whoever asks.
    let path = paths.heartbeats().join("w.json");
    fs::create_dir(&path).expect("made");
    assert_eq!(loaded(&disk).await, (vec!["good".to_owned()], vec!["w.json".to_owned()]));
    disk.save(&nudge("w")).await.expect_err("nobody knows what is there");
    assert!(path.is_dir(), "it is not moved aside");
    fs::remove_dir(&path).expect("removed");
    disk.save(&nudge("w")).await.expect("saved");
    assert_eq!(loaded(&disk).await.1, Vec::<String>::new());
    // The directory itself.
    fs::remove_dir_all(paths.heartbeats()).expect("removed");
    fs::write(paths.heartbeats(), "").expect("written");
    disk.load().await.expect_err("a file is no directory");
    disk.remove("w").await.expect_err("nobody knows whether it is there");
}

#[tokio::test]
async fn nudges_are_loaded_while_another_program_holds_the_lock() {
    let (_dir, paths) = home();
    let disk = DiskNudges::new(paths.clone());
    disk.save(&nudge("good")).await.expect("saved");
    let (torn, left) = (paths.heartbeats().join("torn.json"), paths.heartbeats().join("x.json.tmp.7"));
    fs::write(&torn, "{").expect("written");
    fs::write(&left, "half").expect("written");
    let held = lock(&paths).expect("locked");
    assert_eq!(loaded(&disk).await, (vec!["good".to_owned()], vec!["torn.json".to_owned()]));
    assert!(torn.exists() && left.exists(), "their writer may be at work");
    drop(held);
    assert_eq!(loaded(&disk).await, (vec!["good".to_owned()], Vec::new()));
    assert!(!torn.exists() && !left.exists());
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
