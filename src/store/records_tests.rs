use nix::fcntl::{FcntlArg, fcntl};

use super::*;

#[test]
fn a_lease_that_cannot_be_opened_is_an_error_and_never_a_free_lease() {
    let dir = tempfile::tempdir().expect("a directory");
    let paths = Paths::new(dir.path());
    let worker = paths.worker("a", 1);
    fs::create_dir_all(&worker).expect("made");
    let records = DiskRecords::new(paths);
    assert_eq!(records.read("a", 1).expect("readable").map(|facts| facts.lease.held), Some(false));
    std::os::unix::fs::symlink("lease", worker.join("lease")).expect("made");
    assert!(records.read("a", 1).is_err());
    assert!(!wait_let_go(&worker.join("lease")));
    let scan = records.scan_now().expect("the other workers");
    assert_eq!((scan.dirs.len(), scan.unreadable.len()), (0, 1));
    let error = scan.complete().expect_err("a worker is missing");
    assert!(error.to_string().contains("w/a.1"), "{error}");
}

#[test]
fn a_pipe_in_place_of_a_record_is_never_waited_for() {
    let dir = tempfile::tempdir().expect("a directory");
    let paths = Paths::new(dir.path());
    let worker = paths.worker("a", 1);
    fs::create_dir_all(&worker).expect("made");
    let pipe = |leaf: &str| {
        nix::unistd::mkfifo(&worker.join(leaf), nix::sys::stat::Mode::S_IRWXU).expect("made");
    };
    for leaf in ["exit.json", "wanted.json", "spec.json", "spec.pending", GROUPS, STUCK, WAITS] {
        pipe(leaf);
    }
    let records = DiskRecords::new(paths.clone());
    assert!(records.read("a", 1).is_ok_and(|facts| facts.is_some()));
    assert!(crate::exits::Slots::new(paths.root()).assign("b.1").is_some());
    assert_eq!(crate::views::broken_turn(&worker), None);
    pipe("lease");
    let error = records.read("a", 1).expect_err("its shim may live");
    assert!(error.to_string().ends_with("w/a.1/lease: not a regular file"), "{error}");
    assert!(!wait_let_go(&worker.join("lease")));
    assert!(leases::read(&worker).is_err());
    fs::remove_file(worker.join("lease")).expect("removed");
    remove_dir(&worker).expect("removed");
    assert!(!worker.exists());
}

#[test]
fn a_damaged_number_is_never_counted_from() {
    let dir = tempfile::tempdir().expect("a directory");
    let paths = Paths::new(dir.path());
    fs::create_dir_all(paths.workers()).expect("made");
    fs::create_dir(paths.workers().join(format!("a.{}", u64::MAX))).expect("made");
    let next = |above| DiskRecords::new(paths.clone()).next_free("a", above).map_err(|error| error.to_string());
    assert_eq!((next(0), next(u64::MAX), next(7)), (Ok(1), Ok(1), Ok(8)));
    assert!(DiskRecords::new(paths.clone()).scan_now().is_ok_and(|scan| scan.dirs.is_empty()));
    fs::write(dir.path().join(generations::FILE), [0xff; 8192]).expect("written");
    assert_eq!(next(3), Ok(4));
    fs::write(dir.path().join(generations::FILE), GENERATION_MAX.to_le_bytes().repeat(1024)).expect("written");
    assert!(next(3).is_err_and(|error| error.contains("generations")));
}

#[test]
fn a_later_start_is_found_under_any_higher_number() {
    let dir = tempfile::tempdir().expect("a directory");
    let paths = Paths::new(dir.path());
    fs::create_dir_all(paths.worker("a", 2)).expect("made");
    let records = DiskRecords::new(paths);
    assert_eq!([1, 2, u64::MAX].map(|known| records.may_have_later("a", known)), [true, false, false]);
    // Another name of the same set had this number.
    records.generations.retire("a", 8);
    assert_eq!([7, 8, 9].map(|known| records.may_have_later("a", known)), [true, true, false]);
}

#[test]
fn a_lease_that_was_waited_for_is_not_held_by_the_waiting_thread() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("lease");
    for _ in 0..300 {
        let held = File::create(&path).expect("created");
        fcntl(&held, FcntlArg::F_OFD_SETLK(&whole_file_lock())).expect("locked");
        let waiting = std::thread::spawn({
            let path = path.clone();
            move || wait_let_go(&path) && !is_held(&File::open(&path).expect("there"))
        });
        drop(held);
        assert!(waiting.join().expect("no panic"));
    }
}

#[test]
fn a_record_that_cannot_be_read_is_an_error_and_never_an_absent_record() {
    let dir = tempfile::tempdir().expect("a directory");
    let paths = Paths::new(dir.path());
    for leaf in ["exit.json", "wanted.json", "spec.json"] {
        let worker = paths.worker("a", 1);
        fs::create_dir_all(&worker).expect("made");
        fs::write(worker.join(leaf), "{ torn").expect("written");
        assert!(DiskRecords::new(paths.clone()).read("a", 1).is_ok(), "{leaf}: malformed");
        fs::remove_file(worker.join(leaf)).expect("removed");
        // Its open succeeds, and its read fails.
        fs::create_dir(worker.join(leaf)).expect("made");
        assert!(DiskRecords::new(paths.clone()).read("a", 1).is_err(), "{leaf}");
        fs::remove_dir_all(&worker).expect("removed");
    }
}

#[tokio::test]
async fn a_damaged_leftover_does_not_keep_the_others_from_being_removed() {
    let dir = tempfile::tempdir().expect("a directory");
    let paths = Paths::new(dir.path());
    for generation in 1..=3 {
        fs::create_dir_all(paths.worker("a", generation)).expect("made");
    }
    fs::create_dir(paths.worker("a", 2).join("exit.json")).expect("made");
    let records = DiskRecords::new(paths.clone());
    assert!(records.remove_leftovers("a", None, None).await.is_err(), "one directory cannot be read");
    assert_eq!([1, 2, 3].map(|generation| paths.worker("a", generation).exists()), [false, true, false]);
}

#[tokio::test]
async fn the_number_of_a_removed_generation_is_not_given_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let paths = Paths::new(dir.path());
    let number = |name: &str, above| DiskRecords::new(paths.clone()).next_free(name, above).expect("readable");
    fs::create_dir_all(paths.worker("a", 1)).expect("made");
    assert_eq!((number("a", 0), number("b", 0)), (2, 1));
    DiskRecords::new(paths.clone()).remove("a", 1).await.expect("removed");
    assert_eq!((number("a", 0), number("b", 0)), (2, 1));
    for generation in [2, 5] {
        fs::create_dir_all(paths.worker("a", generation)).expect("made");
    }
    DiskRecords::new(paths.clone()).remove_leftovers("a", None, None).await.expect("removed");
    assert_eq!((number("a", 0), number("b", 7)), (6, 8));
}

#[test]
fn a_record_beyond_the_limit_is_an_error_and_never_an_absent_record() {
    let dir = tempfile::tempdir().expect("a directory");
    let paths = Paths::new(dir.path());
    let worker = paths.worker("a", 1);
    fs::create_dir_all(&worker).expect("made");
    let filled = |bytes: u64| format!("{{}}{}", " ".repeat(usize::try_from(bytes).expect("fits") - 2));
    let records = DiskRecords::new(paths);
    fs::write(worker.join("wanted.json"), filled(RECORD_BYTES_MAX)).expect("written");
    records.read("a", 1).expect("is not too large");
    for leaf in ["spec.json", "exit.json"] {
        fs::write(worker.join(leaf), filled(RECORD_BYTES_MAX + 1)).expect("written");
        let error = records.read("a", 1).expect_err("is too large").to_string();
        assert!(error.contains("larger than the limit"), "{error}");
        fs::remove_file(worker.join(leaf)).expect("removed");
    }
}
