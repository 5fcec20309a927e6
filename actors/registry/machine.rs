//! Decisions of the registry: how a mutation changes the table, and which mutations share a commit.

use std::collections::VecDeque;

use super::error::Refused;
use super::replay::Unsynced;
use super::store::START_BYTES_MAX;
use super::table::{Entry, Table};
use swarm_model::{Row, RowKey, WireStatus};

/// Number of bytes by which the row of a worker grows at most if it is started again with the same contract.
const GROWTH_BYTES_MAX: u64 = 4096;

/// One change of `state.json`.
#[derive(Clone, Debug, PartialEq)]
pub enum Mutation {
    /// Adds the row of a start, as `Insert` or, with the key of the row that it expects, as `Replace`. The contract is
    /// recorded with it if its file was not synced. Refused if the file would exceed [`START_BYTES_MAX`].
    Start { expect: Option<RowKey>, row: Box<Row>, contract: Option<Unsynced> },
    /// Adds a new worker. Refused if the name exists, also in a row that cannot be read.
    Insert(Box<Row>),
    /// Replaces a worker's row with that of its next generation. The row moves to the end, as in
    /// the original `swarm`. Refused if the row is no longer the expected one.
    Replace { expect: RowKey, row: Box<Row> },
    /// Removes a worker that is cleaned, or whose start is rolled back.
    Remove { name: String, expect: RowKey },
    /// Sets the advisory status of a row. Refused if the row is no longer the expected one.
    SetStatus { name: String, expect: RowKey, status: WireStatus },
}

impl Mutation {
    /// Takes out the contract that must be recorded with the mutation.
    pub fn take_contract(&mut self) -> Option<Unsynced> {
        match self {
            Self::Start { contract, .. } => contract.take(),
            Self::Insert(_) | Self::Replace { .. } | Self::Remove { .. } | Self::SetStatus { .. } => None,
        }
    }
}

/// Applies one mutation. A refused mutation does not change the table.
///
/// # Errors
/// Refused if the name already exists or has a row that cannot be read (insert), is unknown, or has a row other than the
/// expected one; a start also if the file would become too large.
pub fn apply(table: &mut Table, mutation: Mutation) -> Result<(), Refused> {
    match mutation {
        Mutation::Start { expect: Some(expect), row, .. } => {
            let at = expected(table, &row.name, &expect)?;
            check_room(table, &row, Some(&table.entries[at]), START_BYTES_MAX)?;
            return apply(table, Mutation::Replace { expect, row });
        }
        Mutation::Start { expect: None, row, .. } => {
            if table.position(&row.name).is_none() {
                check_room(table, &row, None, START_BYTES_MAX)?;
            }
            return apply(table, Mutation::Insert(row));
        }
        Mutation::Insert(row) => {
            if table.position(&row.name).is_some() {
                return Err(Refused::Exists(row.name));
            }
            if table.damage(&row.name).is_some() {
                return Err(Refused::Unreadable(row.name));
            }
            table.entries.push(Entry::of(*row));
        }
        Mutation::Replace { expect, row } => {
            let at = expected(table, &row.name, &expect)?;
            let earlier = table.entries.remove(at);
            table.entries.push(Entry::after(&earlier, *row));
        }
        Mutation::Remove { name, expect } => {
            let at = expected(table, &name, &expect)?;
            table.entries.remove(at);
        }
        Mutation::SetStatus { name, expect, status } => {
            let at = expected(table, &name, &expect)?;
            table.entries[at] = table.entries[at].with_status(status);
        }
    }
    Ok(())
}

/// Checks that the file has room for the row of a start. That of a worker which is started again may be a little longer
/// than its earlier row, so that no restart fails because of what others started.
fn check_room(table: &Table, row: &Row, earlier: Option<&Entry>, limit_bytes: u64) -> Result<(), Refused> {
    let before = table.size();
    let length = earlier.map_or_else(|| Entry::of(row.clone()), |earlier| Entry::after(earlier, row.clone())).size();
    let bytes = before + length - earlier.map_or(0, Entry::size);
    let is_alike = earlier.is_some() && bytes <= before + GROWTH_BYTES_MAX;
    if bytes <= limit_bytes || is_alike {
        return Ok(());
    }
    Err(Refused::Full { name: row.name.clone(), bytes, limit_bytes })
}

fn expected(table: &Table, name: &str, expect: &RowKey) -> Result<usize, Refused> {
    let same = |entry: &Entry| entry.row.as_ref().is_ok_and(|row| row.name == name && row.key() == *expect);
    if let Some(at) = table.entries.iter().position(same) {
        return Ok(at);
    }
    match table.position(name) {
        Some(_) => Err(Refused::Changed(name.to_owned())),
        None => Err(Refused::Missing(name.to_owned())),
    }
}

/// Group commit: mutations that arrive during a commit go together into the next one. Those that are patient begin no
/// commit of their own before they are due. `T` is the reply handle of each mutation.
#[derive(Debug)]
pub struct Committer<T> {
    waiting: VecDeque<(Mutation, T)>,
    /// Whether all that wait are patient and not due.
    is_patient: bool,
    under_way: Option<Vec<T>>,
}

/// Maximum number of mutations in one commit. A larger batch would delay its first mutation too long.
pub const BATCH_MAX: usize = 256;

impl<T> Default for Committer<T> {
    fn default() -> Self {
        Self { waiting: VecDeque::new(), is_patient: true, under_way: None }
    }
}

impl<T> Committer<T> {
    /// Adds a mutation. If this returns a batch, the caller must commit it now.
    pub fn ask(&mut self, mutation: Mutation, reply: T) -> Option<Vec<Mutation>> {
        self.waiting.push_back((mutation, reply));
        self.is_patient = false;
        self.next()
    }

    /// Adds a mutation that may wait for others. If this returns true, the caller must call [`Committer::due`] after a while.
    pub fn ask_patiently(&mut self, mutation: Mutation, reply: T) -> bool {
        self.waiting.push_back((mutation, reply));
        self.waiting.len() == 1
    }

    /// Ends the patience of all that wait. If this returns a batch, the caller must commit it now.
    pub fn due(&mut self) -> Option<Vec<Mutation>> {
        self.is_patient = self.waiting.is_empty();
        self.next()
    }

    /// Ends the current commit. Returns its replies in order, and the next batch to commit, if any.
    pub fn committed(&mut self) -> (Vec<T>, Option<Vec<Mutation>>) {
        let replies = self.under_way.take().unwrap_or_default();
        (replies, self.next())
    }

    pub fn is_idle(&self) -> bool {
        self.under_way.is_none() && self.waiting.is_empty()
    }

    fn next(&mut self) -> Option<Vec<Mutation>> {
        if self.under_way.is_some() || self.waiting.is_empty() || self.is_patient {
            return None;
        }
        let count = self.waiting.len().min(BATCH_MAX);
        let (batch, replies) = self.waiting.drain(..count).unzip();
        // Mutations that are left over have waited long enough.
        self.is_patient = self.waiting.is_empty();
        self.under_way = Some(replies);
        Some(batch)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn row(name: &str, started: &str) -> Row {
        Row {
            name: name.to_owned(),
            status: WireStatus::Running,
            cmd: vec!["true".to_owned()],
            started: started.to_owned(),
            cwd: "/".to_owned(),
            env: BTreeMap::new(),
            tags: Vec::new(),
            tmux: None,
            worktree: None,
            pid: Some(99),
            metadata: swarm_model::Metadata::default(),
        }
    }

    #[test]
    fn one_name_has_one_row() {
        let mut table = Table::default();
        assert_eq!(apply(&mut table, Mutation::Insert(Box::new(row("a", "1")))), Ok(()));
        let again = apply(&mut table, Mutation::Insert(Box::new(row("a", "2"))));
        assert_eq!(again, Err(Refused::Exists("a".to_owned())));
        assert_eq!(table.find("a").map(|row| row.started.clone()), Some("1".to_owned()));
    }

    #[test]
    fn a_name_whose_row_cannot_be_read_gets_no_second_one() {
        let mut table = Table::default();
        table.entries.push(Entry::parse("{\"name\":\"a\",\"env\":[]}"));
        let refused = apply(&mut table, Mutation::Insert(Box::new(row("a", "2"))));
        assert_eq!(refused, Err(Refused::Unreadable("a".to_owned())));
        assert_eq!(apply(&mut table, Mutation::Insert(Box::new(row("b", "2")))), Ok(()));
    }

    #[test]
    fn a_row_that_another_program_replaced_is_not_changed() {
        let mut table = Table::default();
        apply(&mut table, Mutation::Insert(Box::new(row("a", "2")))).expect("inserts");
        let stale = row("a", "1").key();
        let remove = Mutation::Remove { name: "a".to_owned(), expect: stale.clone() };
        assert_eq!(apply(&mut table, remove), Err(Refused::Changed("a".to_owned())));
        let replace = Mutation::Replace { expect: stale, row: Box::new(row("a", "3")) };
        assert_eq!(apply(&mut table, replace), Err(Refused::Changed("a".to_owned())));
        assert_eq!(table.entries.len(), 1);
    }

    #[test]
    fn a_start_finds_room_and_every_other_change_needs_none() {
        let start = |name: &str, expect: Option<RowKey>, argument: usize| {
            let row = Row { cmd: vec!["x".repeat(argument)], ..row(name, "2") };
            Mutation::Start { expect, row: Box::new(row), contract: None }
        };
        let mut table = Table::default();
        let half = usize::try_from(START_BYTES_MAX / 2).expect("fits");
        assert_eq!(apply(&mut table, start("a", None, half)), Ok(()));
        let key = table.find("a").expect("there").key();
        let refused = apply(&mut table, start("b", None, half)).expect_err("too large");
        assert!(refused.to_string().contains("no room for worker 'b'") && refused.remedy().is_some(), "{refused}");
        assert_eq!(apply(&mut table, start("a", None, half)), Err(Refused::Exists("a".to_owned())));
        let grown = apply(&mut table, start("a", Some(key.clone()), 2 * half));
        assert!(matches!(grown, Err(Refused::Full { .. })), "{grown:?}");
        assert_eq!(table.entries.len(), 1, "refused, and changed");
        // A row that another program dropped; the table is as large as no start may make it.
        let lost = Row { cmd: vec!["x".repeat(2 * half)], ..row("lost", "1") };
        assert_eq!(apply(&mut table, Mutation::Insert(Box::new(lost.clone()))), Ok(()));
        assert!(matches!(apply(&mut table, start("c", None, 1)), Err(Refused::Full { .. })));
        assert_eq!(apply(&mut table, start("lost", Some(lost.key()), 2 * half + 9)), Ok(()), "a restart");
        let again = table.find("lost").expect("there").key();
        let status =
            Mutation::SetStatus { name: "lost".to_owned(), expect: again.clone(), status: WireStatus::Stopped };
        assert_eq!(apply(&mut table, status), Ok(()));
        assert_eq!(apply(&mut table, Mutation::Remove { name: "lost".to_owned(), expect: again }), Ok(()));
        assert_eq!(apply(&mut table, start("b", None, 1)), Ok(()));
    }

    #[test]
    fn the_size_of_a_table_is_that_of_its_text() {
        let mut table = Table::parse("{\"theirs\": [1, 2], \"workers\": [], \"after\": \"x\"}").expect("parses");
        for name in ["a", "b", "c"] {
            apply(&mut table, Mutation::Insert(Box::new(row(name, "1")))).expect("inserts");
            let (size, length) = (table.size(), table.render().len() as u64);
            assert!(size >= length && size <= length + 400, "{size} for {length}");
        }
    }

    #[test]
    fn mutations_that_wait_share_the_next_commit() {
        let mut committer = Committer::default();
        let insert = |name: &str| Mutation::Insert(Box::new(row(name, "1")));
        assert_eq!(committer.ask(insert("a"), 1).map(|batch| batch.len()), Some(1));
        assert_eq!(committer.ask(insert("b"), 2), None);
        assert_eq!(committer.ask(insert("c"), 3), None);
        let (replies, next) = committer.committed();
        assert_eq!((replies, next.map(|batch| batch.len())), (vec![1], Some(2)));
        let (replies, next) = committer.committed();
        assert_eq!((replies, next), (vec![2, 3], None));
        assert!(committer.is_idle());
    }

    #[test]
    fn a_patient_mutation_goes_into_the_next_commit_or_begins_one_when_it_is_due() {
        let mut committer = Committer::default();
        let insert = |name: &str| Mutation::Insert(Box::new(row(name, "1")));
        assert!(committer.ask_patiently(insert("a"), 1), "the first one is due after a while");
        assert!(!committer.ask_patiently(insert("b"), 2), "with the first one");
        assert_eq!(committer.ask(insert("c"), 3).map(|batch| batch.len()), Some(3));
        assert!(committer.ask_patiently(insert("d"), 4));
        assert_eq!(committer.committed(), (vec![1, 2, 3], None), "it begins no commit of its own");
        assert_eq!(committer.due().map(|batch| batch.len()), Some(1));
        assert!(committer.ask_patiently(insert("e"), 5));
        assert_eq!(committer.due(), None, "a commit is under way");
        assert_eq!(committer.committed(), (vec![4], Some(vec![insert("e")])));
        assert_eq!(committer.committed(), (vec![5], None));
        assert_eq!(committer.due(), None, "nothing waits");
        assert!(committer.is_idle());
    }

    proptest! {
        /// Every mutation is answered once and in order, for any sequence of events.
        #[test]
        fn every_mutation_is_answered_once(steps in proptest::collection::vec(0..4_u8, 1..400)) {
            let mut committer = Committer::default();
            let (mut asked, mut answered, mut busy) = (0_usize, Vec::new(), false);
            for step in steps {
                let insert = Mutation::Insert(Box::new(row("x", "1")));
                let batch = match step {
                    0 => committer.ask(insert, asked),
                    1 => {
                        committer.ask_patiently(insert, asked);
                        None
                    }
                    2 => committer.due(),
                    _ if busy => {
                        let (replies, next) = committer.committed();
                        answered.extend(replies);
                        busy = next.is_some();
                        None
                    }
                    _ => None,
                };
                asked += usize::from(step < 2);
                prop_assert!(!(busy && batch.is_some()));
                busy |= batch.is_some();
            }
            busy |= committer.due().is_some();
            while busy {
                let (replies, next) = committer.committed();
                answered.extend(replies);
                busy = next.is_some();
            }
            prop_assert_eq!(answered, (0..asked).collect::<Vec<_>>());
        }
    }
}
