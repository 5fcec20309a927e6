use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::registry::{Mutation, apply};
use swarm_model::{Row, WireStatus};

fn row(name: &str, started: u32) -> Row {
    Row {
        name: name.to_owned(),
        status: WireStatus::Running,
        cmd: vec!["true".to_owned()],
        started: started.to_string(),
        cwd: "/".to_owned(),
        env: BTreeMap::new(),
        tags: Vec::new(),
        tmux: None,
        worktree: None,
        pid: None,
        metadata: swarm_model::Metadata::default(),
    }
}

#[derive(Clone, Debug)]
enum Step {
    Insert(u8),
    Remove(u8),
    Stop(u8),
    Renew(u8),
    /// Another program writes the file: with a row more or, if the number is even, with one row less.
    Foreign(u8),
    /// The journal is full, or another process goes on.
    Begin,
    Close,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..6_u8).prop_map(Step::Insert),
        2 => (0..6_u8).prop_map(Step::Remove),
        2 => (0..6_u8).prop_map(Step::Stop),
        2 => (0..6_u8).prop_map(Step::Renew),
        1 => (0..6_u8).prop_map(Step::Foreign),
        1 => Just(Step::Begin),
        1 => Just(Step::Close),
    ]
}

/// What the disk may have, and what was acknowledged.
#[derive(Default)]
struct Disk {
    records: Vec<Record>,
    /// Versions that the file may have after a power cut; the last one is visible. `None` is a missing file.
    versions: Vec<Option<String>>,
    /// Position among the versions from which on other programs wrote the file without a commit of ours.
    foreign: usize,
    /// Text of the last commit.
    committed: Option<String>,
    clock: u32,
}

impl Disk {
    fn visible(&self) -> Option<&String> {
        self.versions.last().and_then(Option::as_ref)
    }

    fn table(&self) -> Table {
        self.visible().map(|text| Table::parse(text).expect("a table")).unwrap_or_default()
    }

    fn commit(&mut self, new: &Table, closed: bool) {
        let old = self.table();
        // Closing records the file as it is.
        let text = self.visible().filter(|_| closed).cloned().unwrap_or_else(|| new.render());
        let is_ours = self.foreign == self.versions.len() && !self.records.is_empty() && !closed;
        let change = if is_ours {
            Change::between(&old, new)
        } else {
            // The visible version is synced first.
            let visible = self.versions.pop().unwrap_or_default();
            let after = visible.as_deref().map(Version::of);
            self.versions = vec![visible];
            self.records.clear();
            Change::Whole { after, text: text.clone() }
        };
        self.records.push(Record { version: Version::of(&text), change, contracts: Vec::new(), closed, at_ms: 0 });
        self.versions.push(Some(text.clone()));
        self.foreign = self.versions.len();
        self.committed = Some(text);
    }

    fn take(&mut self, step: &Step) {
        self.clock += 1;
        let mut table = self.table();
        let name = |number: &u8| format!("w{number}");
        let known = |number: &u8| table.find(&name(number)).map(|row| row.key());
        let mutation = match step {
            Step::Insert(number) => Mutation::Insert(Box::new(row(&name(number), self.clock))),
            Step::Remove(number) => match known(number) {
                Some(expect) => Mutation::Remove { name: name(number), expect },
                None => return,
            },
            Step::Stop(number) => match known(number) {
                Some(expect) => Mutation::SetStatus { name: name(number), expect, status: WireStatus::Stopped },
                None => return,
            },
            Step::Renew(number) => match known(number) {
                Some(expect) => Mutation::Replace { expect, row: Box::new(row(&name(number), self.clock)) },
                None => return,
            },
            Step::Foreign(number) => {
                if number % 2 == 0 {
                    table.entries.pop();
                } else {
                    table.entries.push(Entry::of(row(&format!("theirs{}", self.clock), self.clock)));
                }
                self.versions.push(Some(format!("{}\n", table.render())));
                return;
            }
            Step::Begin => return self.records.clear(),
            Step::Close if self.visible().is_some() => return self.commit(&table, true),
            Step::Close => return,
        };
        // As the store does, which clones its table: rows that stay are the same ones.
        let old = table.clone();
        if apply(&mut table, mutation).is_ok() {
            let is_ours = self.foreign == self.versions.len() && !self.records.is_empty();
            if is_ours {
                let change = Change::between(&old, &table);
                let text = table.render();
                self.records.push(Record {
                    version: Version::of(&text),
                    change,
                    contracts: Vec::new(),
                    closed: false,
                    at_ms: 0,
                });
                self.versions.push(Some(text.clone()));
                self.foreign = self.versions.len();
                self.committed = Some(text);
            } else {
                self.commit(&table, false);
            }
        }
    }
}

proptest! {
    /// Whatever version of the file a power cut leaves, torn or missing, the last commit is restored, except that later
    /// changes by another program stay.
    #[test]
    fn the_last_commit_is_restored_from_every_version(steps in proptest::collection::vec(step(), 1..30)) {
        let mut disk = Disk { versions: vec![None], ..Disk::default() };
        for one in &steps {
            disk.take(one);
            let (Some(committed), false) = (&disk.committed, disk.records.is_empty()) else { continue };
            for (at, version) in disk.versions.iter().enumerate() {
                let is_foreign = at >= disk.foreign;
                let restored = replay(&disk.records, version.as_deref()).map_err(TestCaseError::fail)?;
                let text = restored.or_else(|| version.clone());
                if is_foreign {
                    prop_assert!(text.as_ref() == Some(committed) || text == *version);
                } else {
                    prop_assert_eq!(text.as_ref(), Some(committed), "from version {} of {:?}", at, disk.versions);
                }
                let torn = version.as_ref().map(|text| text[..text.len() / 2].to_owned());
                let is_closed = disk.records.last().is_some_and(|record| record.closed);
                for found in [torn.as_deref(), Some(""), Some("\0\0"), None] {
                    if is_closed && found.is_none() {
                        // Somebody removed it.
                        prop_assert_eq!(replay(&disk.records, None), Ok(None));
                        continue;
                    }
                    let restored = replay(&disk.records, found).map_err(TestCaseError::fail)?;
                    prop_assert_eq!(restored.as_ref(), Some(committed), "from {:?}", found);
                }
            }
        }
    }
}

#[test]
fn what_another_program_wrote_after_the_registry_was_closed_stays() {
    let mut disk = Disk { versions: vec![None], ..Disk::default() };
    for step in [Step::Insert(1), Step::Insert(2), Step::Close] {
        disk.take(&step);
    }
    // The same text as before the second start: another program removed that worker.
    let earlier = disk.versions[0].clone().expect("a version");
    let mut first = disk.table();
    first.entries.truncate(1);
    let first = first.render();
    for text in [earlier, first] {
        assert_eq!(replay(&disk.records, Some(&text)), Ok(None));
    }
}

#[test]
fn records_that_contradict_each_other_change_nothing() {
    let mut disk = Disk { versions: vec![None], ..Disk::default() };
    for number in 1..4 {
        disk.take(&Step::Insert(number));
    }
    disk.records.remove(1);
    assert!(replay(&disk.records, None).is_err());
    disk.records.remove(0);
    assert!(replay(&disk.records, None).is_err(), "nothing to begin with");
    let far = Change::Rows(vec![Piece::Kept(usize::MAX, 2)]);
    assert!(far.apply(Content::Text("{\"workers\": []}".to_owned())).is_err());
}

#[test]
fn the_newest_contract_of_a_directory_counts() {
    let contract = |dir: &str, text: &str| Unsynced { dir: dir.to_owned(), text: text.to_owned() };
    let record = |contracts| Record {
        version: Version::of(""),
        change: Change::Rows(Vec::new()),
        contracts,
        closed: false,
        at_ms: 0,
    };
    let records = [record(vec![contract("a.1", "old"), contract("b.1", "b")]), record(vec![contract("a.1", "new")])];
    assert_eq!(contracts(&records), [contract("b.1", "b"), contract("a.1", "new")]);
}
