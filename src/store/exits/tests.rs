use std::os::unix::fs::symlink;

use swarm_model::{Contract, Ended, Machine, Reason, Usage, worker_dir_name};
use swarm_ports::Records as _;
use swarm_sys::paths::Paths;
use swarm_sys::procfs;

use super::*;
use crate::records::DiskRecords;

const EARLIER: &str = "00000000-0000-4000-8000-000000000001";

/// A state directory.
struct State {
    home: tempfile::TempDir,
}

impl State {
    fn new() -> Self {
        let home = tempfile::tempdir().expect("a directory");
        fs::create_dir(home.path().join("w")).expect("made");
        Self { home }
    }

    fn root(&self) -> &Path {
        self.home.path()
    }

    fn dir(&self, name: &str) -> PathBuf {
        self.root().join("w").join(worker_dir_name(name, 1))
    }

    /// Makes the directory of a start in an earlier boot, with its contract.
    fn start(&self, name: &str, slot: Option<u32>) {
        let spec = Spec {
            name: name.to_owned(),
            generation: 1,
            token: format!("token of {name}"),
            request: "r".to_owned(),
            started: "2026-01-01T00:00:00.000001".to_owned(),
            contract: Contract { argv: vec!["true".to_owned()], cwd: "/".to_owned(), ..Contract::default() },
            worktree: None,
            logs: Vec::new(),
            resume: None,
            hooked: None,
            machine: Some(Machine { id: String::new(), boot: EARLIER.to_owned(), host: "host".to_owned() }),
            exit_slot: slot,
        };
        fs::create_dir_all(self.dir(name)).expect("made");
        fs::write(self.dir(name).join("spec.pending"), serde_json::to_vec(&spec).expect("JSON")).expect("written");
    }

    fn read(&self, name: &str) -> swarm_ports::DirFacts {
        DiskRecords::new(Paths::new(self.root())).read(name, 1).expect("readable").expect("there")
    }
}

fn record(name: &str, code: i32) -> ExitRecord {
    ExitRecord {
        token: format!("token of {name}"),
        started: "2026-01-01T00:00:00.000001".to_owned(),
        pid: 77,
        ended: Ended::Code(code),
        reason: Reason::Exited,
        ended_at_ms: 1,
        duration_ms: 2,
        usage: Usage::default(),
        survivors: Vec::new(),
        hits: swarm_model::Hits::default(),
        interrupted: false,
        server_lost: None,
    }
}

/// Waits for the sync that has begun, and returns its result.
fn joined(slots: &Slots) -> std::thread::Result<io::Result<Vec<(u32, u64)>>> {
    let syncing = slots.lock().as_mut().and_then(|table| table.syncing.take());
    syncing.expect("a sync has begun").join()
}

fn name_of(name: &str) -> String {
    worker_dir_name(name, 1)
}

#[test]
fn the_end_of_an_earlier_boot_is_read_from_the_slot_until_its_file_is_there() {
    let state = State::new();
    let slots = Slots::new(state.root());
    let number = slots.assign(&name_of("a"));
    state.start("a", number);
    state.start("b", slots.assign(&name_of("b")));
    let slot = Slot::take(state.root(), number.expect("assigned"), &name_of("a"), EARLIER).expect("free");
    slot.write(&record("a", 3)).expect("written");
    for torn in [None, Some(""), Some("\0\0\0"), Some("{\"token\":")] {
        if let Some(torn) = torn {
            fs::write(state.dir("a").join("exit.json"), torn).expect("written");
        }
        let facts = state.read("a");
        assert_eq!(facts.exit, Some(record("a", 3)), "{torn:?}");
        assert!(matches!(facts.spec, SpecFacts::Executed(_)), "an end proves that it was executed");
    }
    assert_eq!(state.read("b").exit, None);
    let lost = LostEnds::read(state.root(), &procfs::boot_id()).expect("readable");
    assert_eq!(lost.of(&"token of a".to_owned()), Some(record("a", 3)));
    assert_eq!(lost.of(&"token of b".to_owned()), None);
    restore(state.root(), &procfs::boot_id()).expect("restored");
    let text = fs::read(state.dir("a").join("exit.json")).expect("there");
    assert_eq!(serde_json::from_slice::<ExitRecord>(&text).expect("whole"), record("a", 3));
    assert!(!state.dir("b").join("exit.json").exists());
}

#[test]
fn the_slot_says_nothing_in_its_own_boot_nor_about_another_start() {
    let state = State::new();
    let slots = Slots::new(state.root());
    let number = slots.assign(&name_of("a")).expect("assigned");
    state.start("a", Some(number));
    let write = |name: &str, boot: &str| {
        let slot = Slot::take(state.root(), number, &name_of("a"), boot).expect("free");
        slot.write(&record(name, 3)).expect("written");
    };
    write("a", &procfs::boot_id());
    assert_eq!(state.read("a").exit, None);
    write("another a", EARLIER);
    assert_eq!(state.read("a").exit, None);
    restore(state.root(), &procfs::boot_id()).expect("nothing to do");
    assert!(!state.dir("a").join("exit.json").exists());
    write("a", EARLIER);
    assert_eq!(state.read("a").exit, Some(record("a", 3)));
}

#[test]
fn a_torn_slot_is_no_record() {
    let entry = |code| Entry { dir: "a.1".to_owned(), boot: EARLIER.to_owned(), record: record("a", code) };
    let (old, new) = (encode(&entry(3)).expect("fits"), encode(&entry(4)).expect("fits"));
    assert_eq!(decode(&new), Some(entry(4)));
    for at in 0..new.len() {
        let mut torn = old.clone();
        torn[..at].copy_from_slice(&new[..at]);
        let whole = [&old, &new].into_iter().find(|whole| **whole == torn);
        assert_eq!(decode(&torn), whole.and_then(|whole| decode(whole)), "{at} bytes were written");
        let mut zeroed = new.clone();
        zeroed[at..].fill(0);
        assert!(zeroed == new || decode(&zeroed).is_none(), "{at} bytes were written over zeros");
    }
    assert_eq!(decode(&[0; SLOT]), None);
    assert_eq!(decode(&[]), None);
    for dir in ["", ".", "..", "../a.1", "/a"] {
        let entry = Entry { dir: dir.to_owned(), ..entry(3) };
        assert_eq!(decode(&encode(&entry).expect("fits")), None, "{dir}");
    }
    let large = ExitRecord { survivors: vec![i32::MAX; 400], ..record("a", 3) };
    assert!(encode(&Entry { record: large, ..entry(3) }).is_err());
}

#[test]
fn a_slot_has_one_shim_and_a_file_that_was_replaced_has_none() {
    let state = State::new();
    let slots = Slots::new(state.root());
    let number = slots.assign(&name_of("a")).expect("assigned");
    let take = |number, boot| Slot::take(state.root(), number, "a.1", boot);
    let slot = take(number, EARLIER).expect("free");
    assert!(take(number, EARLIER).is_err(), "another shim has it");
    assert!(take(number + 1, EARLIER).is_ok());
    assert!(take(u32::MAX, EARLIER).is_err(), "there is no such slot");
    assert!(take(number + 1, "").is_err(), "a record without a boot tells nothing");
    fs::rename(state.root().join(FILE), state.root().join("aside")).expect("renamed");
    assert!(slot.write(&record("a", 3)).is_err(), "the file is gone");
    symlink("aside", state.root().join(FILE)).expect("linked");
    assert!(slot.write(&record("a", 3)).is_err() && take(number, EARLIER).is_err(), "followed a link");
    assert_eq!(slots.assign(&name_of("b")), None, "followed a link");
    fs::remove_file(state.root().join(FILE)).expect("removed");
    assert!(slots.assign(&name_of("b")).is_some() && slot.write(&record("a", 3)).is_err(), "it is another file");
}

#[test]
fn a_slot_is_free_again_once_its_directory_is_removed() {
    let state = State::new();
    let slots = Slots::of(state.root(), 2);
    let number = slots.assign(&name_of("a"));
    state.start("a", number);
    let other = slots.assign(&name_of("b"));
    state.start("b", other);
    assert!(number.is_some() && other.is_some() && number != other);
    assert_eq!(slots.assign(&name_of("c")), None);
    let failed = slots.removing(&state.dir("a"), |_| Err(io::Error::other("it stays")));
    assert!(failed.is_err() && slots.assign(&name_of("c")).is_none());
    slots.removing(&state.dir("a"), |dir| fs::remove_dir_all(dir)).expect("removed");
    assert_eq!(slots.assign(&name_of("c")), number);
}

#[test]
fn a_new_supervisor_leaves_alone_what_contracts_records_and_shims_have() {
    let state = State::new();
    let before = Slots::of(state.root(), 4);
    let numbers = ["contract", "record", "shim", "removed"].map(|name| before.assign(&name_of(name)).expect("free"));
    state.start("contract", Some(numbers[0]));
    fs::create_dir(state.dir("record")).expect("made");
    let write = |at: usize, name: &str| {
        let slot = Slot::take(state.root(), numbers[at], &name_of(name), EARLIER).expect("free");
        slot.write(&record(name, 3)).expect("written");
    };
    write(1, "record");
    write(3, "removed");
    let _shim = Slot::take(state.root(), numbers[2], &name_of("shim"), EARLIER).expect("free");
    let after = Slots::of(state.root(), 4);
    assert_eq!(after.assign(&name_of("next")), Some(numbers[3]));
    assert_eq!(after.assign(&name_of("last")), None);
}

#[test]
fn slots_of_recorded_ends_are_free_after_a_sync() {
    let state = State::new();
    let slots = Slots::of(state.root(), 8);
    let start = |name: &str| {
        let number = slots.assign(&name_of(name));
        state.start(name, number);
        number
    };
    let end = |name: &str| fs::write(state.dir(name).join("exit.json"), "{}").expect("written");
    let names: Vec<String> = (0..8).map(|number| format!("n{number}")).collect();
    let numbers: Vec<Option<u32>> = names.iter().map(|name| start(name)).collect();
    assert!(numbers.iter().all(Option::is_some));
    end("n2");
    assert_eq!(slots.assign("next.1"), None, "a sync begins");
    let synced = joined(&slots);
    slots.lock().as_mut().expect("open").free(synced);
    assert_eq!(slots.assign("next.1"), numbers[2]);
    assert_eq!(slots.assign("another.1"), None, "nobody else has ended");
}

#[test]
fn a_slot_that_was_assigned_again_is_not_freed_by_an_earlier_sync() {
    let state = State::new();
    let slots = Slots::of(state.root(), 1);
    let number = slots.assign(&name_of("a"));
    state.start("a", number);
    fs::write(state.dir("a").join("exit.json"), "{}").expect("written");
    assert_eq!(slots.assign("b.1"), None, "a sync begins");
    // The same name starts again, in a directory of the same name, before the supervisor learns of the sync.
    slots.removing(&state.dir("a"), |dir| fs::remove_dir_all(dir)).expect("removed");
    let synced = joined(&slots);
    assert_eq!(slots.lock().as_mut().expect("open").take("a.1"), number);
    slots.lock().as_mut().expect("open").free(synced);
    state.start("a", number);
    assert_eq!(slots.assign("b.1"), None);
}

#[tokio::test]
async fn the_first_slot_is_assigned_as_the_next_ones_are() {
    let state = State::new();
    let records = DiskRecords::new(Paths::new(state.root()));
    let first = records.exit_slot("a", 1).await;
    let second = records.exit_slot("b", 1).await;
    assert!(first.is_some() && second.is_some() && first != second);
    // A start that fails removes its directory.
    state.start("a", first);
    records.remove("a", 1).await.expect("removed");
    assert_eq!(records.exit_slot("c", 1).await, first);
}
