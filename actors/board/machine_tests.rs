//! The board: after any sequence of changes, `since(r)` brings every reader to the present.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::{Board, Since, TOMBSTONES_MAX};

/// A reader: the rows that it has, and their revision.
#[derive(Clone, Debug, Default)]
struct Reader {
    rev: u64,
    rows: BTreeMap<u8, u8>,
}

impl Reader {
    fn take(&mut self, since: &Since<'_, u8, u8>) {
        if since.is_whole {
            self.rows.clear();
        }
        for key in &since.gone {
            assert!(since.rows.iter().all(|(_, row, _)| row != key), "a row is there and gone: {since:?}");
            self.rows.remove(*key);
        }
        for (at, key, row) in &since.rows {
            assert!(*at <= since.rev && (since.is_whole || *at > self.rev), "{since:?} for {}", self.rev);
            self.rows.insert(**key, **row);
        }
        self.rev = since.rev;
    }
}

#[derive(Clone, Debug)]
enum Act {
    Put(u8, u8),
    Remove(u8),
    /// Sets the rows of all keys below this one.
    Replace(u8, Vec<(u8, u8)>),
    /// A reader asks.
    Read(usize),
    /// The reader program is started again, and has nothing.
    Restart(usize),
    /// The program with the board is started again; it counts from the start.
    Anew,
}

fn act() -> impl Strategy<Value = Act> {
    let (key, row) = (0..6_u8, 0..3_u8);
    prop_oneof![
        6 => (key.clone(), row.clone()).prop_map(|(key, row)| Act::Put(key, row)),
        3 => key.clone().prop_map(Act::Remove),
        2 => (key.clone(), prop::collection::vec((key, row), 0..4)).prop_map(|(below, rows)| Act::Replace(below, rows)),
        3 => (0..4_usize).prop_map(Act::Read),
        1 => (0..4_usize).prop_map(Act::Restart),
        1 => Just(Act::Anew),
    ]
}

proptest! {
    #[test]
    fn every_reader_comes_to_the_present_state(acts in prop::collection::vec(act(), 0..80)) {
        let (mut board, mut truth) = (Board::<u8, u8>::default(), BTreeMap::new());
        let mut readers = vec![Reader::default(); 4];
        for act in acts {
            match act {
                Act::Put(key, row) => {
                    let (before, changes) = (board.rev(), truth.insert(key, row) != Some(row));
                    board.put(key, row);
                    prop_assert_eq!(board.rev(), before + u64::from(changes));
                }
                Act::Remove(key) => {
                    board.remove(&key);
                    truth.remove(&key);
                }
                Act::Replace(below, rows) => {
                    let rows: Vec<(u8, u8)> = rows.into_iter().filter(|(key, _)| *key < below).collect();
                    truth.retain(|key, _| *key >= below);
                    truth.extend(rows.iter().copied());
                    board.replace(|key| *key < below, rows);
                }
                Act::Read(which) => {
                    let reader = &mut readers[which];
                    reader.take(&board.since(reader.rev));
                    prop_assert_eq!(&reader.rows, &truth);
                }
                Act::Restart(which) => readers[which] = Reader::default(),
                Act::Anew => {
                    // Readers know by the id of the board that their revision counts no more.
                    board = Board::default();
                    truth.iter().for_each(|(key, row)| board.put(*key, *row));
                    readers.iter_mut().for_each(|reader| reader.rev = 0);
                }
            }
        }
        for reader in &mut readers {
            reader.take(&board.since(reader.rev));
            prop_assert_eq!(&reader.rows, &truth);
            prop_assert_eq!(board.since(reader.rev).rows.len() + board.since(reader.rev).gone.len(), 0);
        }
    }
}

#[test]
fn a_reader_that_is_older_than_the_tombstones_gets_everything() {
    let mut board = Board::<usize, ()>::default();
    (0..=TOMBSTONES_MAX).for_each(|key| board.put(key, ()));
    let all = board.rev();
    (0..TOMBSTONES_MAX).for_each(|key| board.remove(&key));
    let since = board.since(all);
    assert_eq!((since.is_whole, since.rows.len(), since.gone.len()), (false, 0, TOMBSTONES_MAX));
    board.remove(&TOMBSTONES_MAX);
    assert_eq!((board.since(all).is_whole, board.since(all + 1).is_whole), (true, false));
    assert!(board.since(board.rev() + 1).is_whole, "a revision of another board");
}
