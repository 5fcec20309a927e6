//! Recovery of the registry and of the contracts after a power cut, tested without the actor.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use swarm_actors::registry::replay::Unsynced;
use swarm_actors::registry::store::{self, Loaded, Store};
use swarm_actors::registry::{Mutation, StoreError, reconcile};
use swarm_model::{Contract, Row, RowKey, Spec, WireStatus};
use tempfile::TempDir;

use crate::fixture::foreign_row;

const BEFORE: &str = "00000000-0000-4000-8000-000000000001";

struct Disk {
    home: TempDir,
    store: Store,
    cuts: u32,
}

fn none() -> io::Result<Vec<Row>> {
    Ok(Vec::new())
}

fn spec(name: &str, generation: u64, token: &str) -> Spec {
    let contract = Contract { argv: vec!["true".to_owned()], cwd: "/".to_owned(), ..Contract::default() };
    Spec {
        name: name.to_owned(),
        generation,
        token: token.to_owned(),
        request: "r".to_owned(),
        started: format!("2026-01-01T00:00:00.{generation:06}"),
        contract,
        worktree: None,
        logs: Vec::new(),
        resume: None,
        hooked: None,
        machine: None,
        exit_slot: None,
    }
}

impl Disk {
    fn new() -> Self {
        let home = tempfile::tempdir().expect("a directory for the test");
        fs::create_dir(home.path().join("w")).expect("made");
        let store = Store::of_boot(home.path(), BEFORE.to_owned());
        Self { home, store, cuts: 0 }
    }

    fn state(&self) -> PathBuf {
        self.home.path().join("state.json")
    }

    fn dir(&self, spec: &Spec) -> PathBuf {
        self.home.path().join("w").join(format!("{}.{}", spec.name, spec.generation))
    }

    fn text(&self) -> String {
        fs::read_to_string(self.state()).expect("there is a registry")
    }

    /// Starts a worker as an ordinary start does: contract, then row.
    fn start(&mut self, spec: &Spec, expect: Option<RowKey>) -> Row {
        let text = serde_json::to_string(spec).expect("is JSON");
        fs::create_dir(self.dir(spec)).expect("made");
        fs::write(self.dir(spec).join("spec.json"), &text).expect("written");
        let row = reconcile::row_of(spec, 77, "host");
        let contract = Some(Unsynced { dir: format!("{}.{}", spec.name, spec.generation), text });
        self.commit(Mutation::Start { expect, row: Box::new(row.clone()), contract });
        row
    }

    fn commit(&mut self, mutation: Mutation) {
        assert_eq!(self.store.commit(vec![mutation], &none).expect("commits"), vec![Ok(())]);
    }

    /// Makes the file older than this boot.
    fn age(&self) {
        self.modified(SystemTime::UNIX_EPOCH);
    }

    fn modified(&self, at: SystemTime) {
        match fs::File::options().write(true).open(self.state()) {
            Ok(file) => file.set_modified(at).expect("set"),
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::NotFound),
        }
    }

    /// Cuts the power, and lets a supervisor of the next boot recover.
    fn cut(&mut self) {
        self.age();
        self.boot();
    }

    fn boot(&mut self) {
        self.cuts += 1;
        self.store = Store::of_boot(self.home.path(), format!("boot {}", self.cuts));
        self.store.recover().expect("recovers");
    }

    fn noted(&mut self) -> Result<(), StoreError> {
        let guard = store::lock(self.home.path(), store::LOCK_WAIT_MAX)?;
        self.store.note_changes(&guard)
    }

    fn closed(&mut self) {
        let guard = store::lock(self.home.path(), store::LOCK_WAIT_MAX).expect("free");
        self.store.close(&guard).expect("closes");
    }

    fn names(&mut self) -> Vec<String> {
        let (table, _) = self.store.read(&none).expect("reads");
        table.entries.iter().filter_map(|entry| entry.name().map(str::to_owned)).collect()
    }
}

fn contract_of(dir: &Path) -> Option<String> {
    let text = fs::read(dir.join("spec.pending")).or_else(|_| fs::read(dir.join("spec.json"))).ok()?;
    Some(serde_json::from_slice::<Spec>(&text).ok()?.token)
}

#[test]
fn rows_and_contracts_are_restored_from_every_state_of_the_disk() {
    type Loss<'a> = &'a dyn Fn(&Disk, &str);
    let cases: [(&str, Loss<'_>); 6] = [
        ("nothing", &|_, _| {}),
        ("the rename", &|disk, earlier| fs::write(disk.state(), earlier).expect("written")),
        ("the content", &|disk, _| fs::write(disk.state(), "").expect("written")),
        ("a part of the content", &|disk, _| {
            fs::write(disk.state(), [&disk.text().as_bytes()[..40], &[0; 300]].concat()).expect("written");
        }),
        ("the file", &|disk, _| fs::remove_file(disk.state()).expect("removed")),
        ("the directories", &|disk, _| fs::remove_dir_all(disk.home.path().join("w")).expect("removed")),
    ];
    for (what, lose) in cases {
        let mut disk = Disk::new();
        let specs = ["a", "b", "c"].map(|name| spec(name, 1, &format!("token-{name}")));
        disk.start(&specs[0], None);
        let earlier = disk.text();
        let row = disk.start(&specs[1], None);
        disk.start(&specs[2], None);
        disk.commit(Mutation::SetStatus { name: "b".to_owned(), expect: row.key(), status: WireStatus::Stopped });
        let last = disk.text();
        for leaf in ["b.1", "c.1"] {
            fs::remove_dir_all(disk.home.path().join("w").join(leaf)).expect("removed");
        }
        fs::write(disk.dir(&specs[0]).join("spec.json"), "torn").expect("written");
        lose(&disk, &earlier);
        disk.age();
        // Before any supervisor: a command that reads.
        match store::load(&disk.state()).expect("reads") {
            Loaded::Table(table) => assert_eq!(table.render(), last, "a reader, without {what}"),
            other => panic!("a reader sees {other:?} without {what}"),
        }
        disk.cut();
        assert_eq!(disk.text(), last, "without {what}");
        for spec in &specs {
            assert_eq!(contract_of(&disk.dir(spec)).as_ref(), Some(&spec.token), "{} without {what}", spec.name);
        }
        // Once more, after a commit of this boot.
        disk.commit(Mutation::Insert(Box::new(foreign_row("d", None))));
        let last = disk.text();
        disk.cut();
        assert_eq!(disk.text(), last);
    }
}

#[test]
fn the_directory_of_an_earlier_start_with_the_same_number_is_replaced() {
    let mut disk = Disk::new();
    let (old, new) = (spec("a", 1, "old"), spec("a", 1, "new"));
    let row = disk.start(&old, None);
    disk.commit(Mutation::Remove { name: "a".to_owned(), expect: row.key() });
    fs::remove_dir_all(disk.dir(&old)).expect("removed");
    disk.start(&new, None);
    // The removal and what followed did not reach the disk.
    fs::write(disk.dir(&old).join("spec.json"), serde_json::to_string(&old).expect("is JSON")).expect("written");
    fs::write(disk.dir(&old).join("exit.json"), "{}").expect("written");
    disk.cut();
    assert_eq!(contract_of(&disk.dir(&new)).as_deref(), Some("new"));
    assert!(!disk.dir(&new).join("exit.json").exists(), "the new start has the end of the old one");
}

#[test]
fn a_contract_without_a_row_is_not_restored() {
    let mut disk = Disk::new();
    let (first, second) = (spec("a", 1, "first"), spec("a", 2, "second"));
    let row = disk.start(&first, None);
    disk.start(&second, Some(row.key()));
    for spec in [&first, &second] {
        fs::remove_dir_all(disk.dir(spec)).expect("removed");
    }
    disk.cut();
    assert!(!disk.dir(&first).exists(), "an earlier generation");
    assert_eq!(contract_of(&disk.dir(&second)).as_deref(), Some("second"));
}

#[test]
fn during_one_boot_the_file_counts() {
    let mut disk = Disk::new();
    disk.start(&spec("a", 1, "a"), None);
    let seen = disk.text();
    disk.start(&spec("b", 1, "b"), None);
    // A process that was killed between its record and the rename leaves the earlier file.
    fs::write(disk.state(), &seen).expect("written");
    disk.store = Store::of_boot(disk.home.path(), BEFORE.to_owned());
    disk.store.recover().expect("recovers");
    assert_eq!(disk.names(), ["a"]);
    disk.commit(Mutation::Insert(Box::new(foreign_row("c", None))));
    disk.cut();
    assert_eq!(disk.names(), ["a", "c"]);
    assert_eq!(contract_of(&disk.dir(&spec("a", 1, "a"))).as_deref(), Some("a"), "the contract was carried over");
}

#[test]
fn what_other_programs_wrote_last_stays() {
    let theirs = |disk: &Disk, text: &str| {
        fs::write(disk.home.path().join("theirs"), text).expect("written");
        fs::rename(disk.home.path().join("theirs"), disk.state()).expect("renamed");
    };
    let mut disk = Disk::new();
    disk.start(&spec("a", 1, "a"), None);
    let first = disk.text();
    disk.start(&spec("b", 1, "b"), None);
    // Another program removes the last row. The file then has the text of an earlier version.
    theirs(&disk, &first);
    disk.noted().expect("notes");
    disk.cut();
    assert_eq!(disk.names(), ["a"]);
    // Another program changes a row, and the supervisor does not notice.
    theirs(&disk, &first.replace("\"cwd\": \"/\"", "\"cwd\": \"/theirs\""));
    disk.cut();
    assert!(disk.text().contains("/theirs"));
    // Another program writes the file after the registry was closed.
    disk.start(&spec("c", 1, "c"), None);
    disk.closed();
    theirs(&disk, &first);
    disk.cut();
    assert_eq!(disk.names(), ["a"]);
}

#[test]
fn a_long_life_is_restored_as_well() {
    let mut disk = Disk::new();
    let keep = spec("keep", 1, "keep");
    disk.start(&keep, None);
    let mut previous = None;
    for generation in 1..400 {
        let mut next = spec("busy", generation, &format!("busy-{generation}"));
        next.contract.env.insert("FILL".to_owned(), "x".repeat(6000));
        let row = disk.start(&next, previous.take());
        fs::remove_dir_all(disk.dir(&next)).expect("removed");
        previous = Some(row.key());
    }
    let last = disk.text();
    fs::remove_file(disk.state()).expect("removed");
    disk.cut();
    assert_eq!(disk.text(), last);
    assert_eq!(contract_of(&disk.dir(&keep)).as_deref(), Some("keep"));
    let size = fs::metadata(disk.home.path().join("state.journal")).expect("there").len();
    assert_eq!(size, 1 << 20, "the journal grows");
}

#[test]
fn a_supervisor_that_commits_nothing_notes_what_others_wrote_before_and_after_it_started() {
    for is_late in [false, true] {
        let mut disk = Disk::new();
        disk.start(&spec("a", 1, "a"), None);
        let first = disk.text();
        disk.start(&spec("b", 1, "b"), None);
        if !is_late {
            fs::write(disk.state(), &first).expect("written");
        }
        disk.store = Store::of_boot(disk.home.path(), BEFORE.to_owned());
        disk.store.recover().expect("recovers");
        if is_late {
            fs::write(disk.state(), &first).expect("written");
            disk.noted().expect("notes");
        }
        fs::remove_dir_all(disk.dir(&spec("b", 1, "b"))).expect("removed");
        disk.cut();
        assert_eq!(disk.names(), ["a"]);
        assert!(!disk.dir(&spec("b", 1, "b")).exists(), "the contract came back");
    }
}

#[test]
fn what_a_person_removed_after_an_orderly_end_stays_removed() {
    let mut disk = Disk::new();
    disk.start(&spec("a", 1, "a"), None);
    disk.closed();
    fs::remove_file(disk.state()).expect("removed");
    fs::remove_dir_all(disk.home.path().join("w")).expect("removed");
    for _ in 0..2 {
        disk.cut();
        assert!(!disk.state().exists() && !disk.home.path().join("w").exists());
    }
    // Without an orderly end, a missing directory tells the same.
    disk.store = Store::of_boot(disk.home.path(), BEFORE.to_owned());
    fs::create_dir(disk.home.path().join("w")).expect("made");
    disk.start(&spec("a", 1, "a"), None);
    fs::remove_file(disk.state()).expect("removed");
    fs::remove_dir_all(disk.home.path().join("w")).expect("removed");
    disk.cut();
    assert!(!disk.state().exists() && !disk.home.path().join("w").exists());
    fs::create_dir(disk.home.path().join("w")).expect("made");
    disk.start(&spec("b", 1, "b"), None);
    fs::remove_file(disk.state()).expect("removed");
    disk.cut();
    assert_eq!(disk.names(), ["b"]);
}

#[test]
fn a_directory_that_cannot_be_read_keeps_nobody_from_being_restored() {
    let mut disk = Disk::new();
    let specs = ["a", "b"].map(|name| spec(name, 1, name));
    for spec in &specs {
        disk.start(spec, None);
        fs::remove_file(disk.dir(spec).join("spec.json")).expect("removed");
    }
    fs::create_dir(disk.dir(&specs[0]).join("spec.json")).expect("made");
    let last = disk.text();
    fs::remove_file(disk.state()).expect("removed");
    disk.cut();
    assert_eq!(disk.text(), last);
    assert_eq!(contract_of(&disk.dir(&specs[1])).as_deref(), Some("b"));
}

#[test]
fn a_commit_that_was_refused_does_not_happen_later() {
    let mut disk = Disk::new();
    disk.start(&spec("a", 1, "a"), None);
    let journal = disk.home.path().join("state.journal");
    fs::rename(&journal, disk.home.path().join("aside")).expect("moved");
    fs::create_dir(&journal).expect("made");
    disk.store = Store::of_boot(disk.home.path(), BEFORE.to_owned());
    let mutation = Mutation::Insert(Box::new(foreign_row("refused", None)));
    assert!(disk.store.commit(vec![mutation], &none).is_err());
    fs::remove_dir(&journal).expect("removed");
    fs::rename(disk.home.path().join("aside"), &journal).expect("moved");
    disk.cut();
    assert_eq!(disk.names(), ["a"]);
}

#[test]
fn what_another_program_wrote_after_the_boot_stays() {
    let mut disk = Disk::new();
    disk.start(&spec("a", 1, "a"), None);
    let first = disk.text();
    disk.start(&spec("b", 1, "b"), None);
    fs::write(disk.state(), &first).expect("written");
    disk.modified(SystemTime::now() + Duration::from_secs(1));
    disk.boot();
    assert_eq!(disk.names(), ["a"]);
}

#[test]
fn a_version_from_before_the_last_commit_is_replaced_whatever_the_clock_says() {
    let mut disk = Disk::new();
    disk.start(&spec("a", 1, "a"), None);
    let (first, then) = (disk.text(), fs::metadata(disk.state()).and_then(|meta| meta.modified()).expect("known"));
    disk.start(&spec("b", 1, "b"), None);
    fs::write(disk.state(), &first).expect("written");
    // By a slow clock, this is after the boot.
    disk.modified(then);
    disk.boot();
    assert_eq!(disk.names(), ["a", "b"]);
}

#[test]
fn a_file_that_is_no_text_is_rebuilt_although_there_is_a_journal() {
    let mut disk = Disk::new();
    disk.start(&spec("a", 1, "a"), None);
    fs::write(disk.state(), [0xff, 0xfe]).expect("written");
    disk.store = Store::of_boot(disk.home.path(), BEFORE.to_owned());
    disk.store.recover().expect("recovers");
    disk.start(&spec("b", 1, "b"), None);
    assert_eq!(disk.names(), ["b"], "these records are no part of the test");
    disk.cut();
    assert_eq!(disk.names(), ["b"]);
}

#[test]
fn a_recovery_reads_only_a_regular_file() {
    type Make<'a> = &'a dyn Fn(&Path);
    let make_link = |path: &Path| std::os::unix::fs::symlink("aside", path).expect("made");
    let make_pipe = |path: &Path| {
        let made = std::process::Command::new("mkfifo").arg(path).status();
        assert!(made.expect("mkfifo is there").success());
    };
    let make_dir = |path: &Path| fs::create_dir(path).expect("made");
    let cases: [(&str, Make<'_>); 3] =
        [("a symbolic link", &make_link), ("a directory", &make_dir), ("a special file", &make_pipe)];
    for (what, make) in cases {
        let mut disk = Disk::new();
        disk.start(&spec("a", 1, "a"), None);
        disk.age();
        let (state, aside) = (disk.state(), disk.home.path().join("aside"));
        fs::rename(&state, &aside).expect("moved");
        make(&state);
        let refused = StoreError::NotAFile { path: state.clone(), what };
        disk.store = Store::of_boot(disk.home.path(), "next".to_owned());
        assert_eq!(disk.store.recover(), Err(refused.clone()), "{what}");
        assert_eq!(disk.noted(), Err(refused.clone()), "{what}");
        assert_eq!(disk.store.read(&none).err(), Some(refused), "{what}");
        fs::rename(&state, disk.home.path().join("strange")).expect("moved");
        fs::rename(&aside, &state).expect("moved back");
        disk.cut();
        assert_eq!(disk.names(), ["a"], "{what}");
    }
}
