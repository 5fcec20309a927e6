//! Rows with the revision of their last change, as a pure function: facts in, changed rows out.
//!
//! A reader has the rows as of some revision, and asks for what is newer. It gets present rows, never a history: nothing
//! can be missed or counted twice, a slow reader gets the latest, and memory is bounded by the rows. What is gone leaves a
//! tombstone. A reader that is older than the oldest tombstone, or that has the revision of another board, gets everything.

use std::collections::BTreeMap;

/// Number of tombstones that are kept.
pub const TOMBSTONES_MAX: usize = 4096;

/// Rows by key, such as the kind and the name of what they show.
#[derive(Clone, Debug)]
pub struct Board<K, R> {
    /// Number of changes so far.
    rev: u64,
    rows: BTreeMap<K, (u64, R)>,
    /// Keys of the rows, by the revision of their last change.
    changed: BTreeMap<u64, K>,
    /// Revision at which each key was removed that has no row now.
    gone: BTreeMap<K, u64>,
    /// Keys that were removed, by that revision.
    tombstones: BTreeMap<u64, K>,
    /// Revision of the newest tombstone that is no longer kept.
    forgotten: u64,
}

/// What is newer than a revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Since<'a, K, R> {
    /// Whether these are all rows, and a reader drops those that it has.
    pub is_whole: bool,
    /// Revision that the reader then has.
    pub rev: u64,
    /// Rows with the revision of their last change, oldest change first.
    pub rows: Vec<(u64, &'a K, &'a R)>,
    /// Keys that have no row any more.
    pub gone: Vec<&'a K>,
}

impl<K, R> Default for Board<K, R> {
    fn default() -> Self {
        let (rows, changed, gone, tombstones) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { rev: 0, rows, changed, gone, tombstones, forgotten: 0 }
    }
}

impl<K: Ord + Clone, R: PartialEq> Board<K, R> {
    /// Returns the revision of the last change.
    pub fn rev(&self) -> u64 {
        self.rev
    }

    /// Sets a row. The same row again is no change.
    pub fn put(&mut self, key: K, row: R) {
        if self.rows.get(&key).is_some_and(|(_, known)| *known == row) {
            return;
        }
        self.rev += 1;
        if let Some(at) = self.gone.remove(&key) {
            self.tombstones.remove(&at);
        }
        self.changed.insert(self.rev, key.clone());
        if let Some((earlier, _)) = self.rows.insert(key, (self.rev, row)) {
            self.changed.remove(&earlier);
        }
    }

    /// Removes a row.
    pub fn remove(&mut self, key: &K) {
        let Some((at, _)) = self.rows.remove(key) else { return };
        self.changed.remove(&at);
        self.rev += 1;
        self.gone.insert(key.clone(), self.rev);
        self.tombstones.insert(self.rev, key.clone());
        while self.tombstones.len() > TOMBSTONES_MAX
            && let Some((at, key)) = self.tombstones.pop_first()
        {
            self.gone.remove(&key);
            self.forgotten = at;
        }
    }

    /// Sets the rows of all keys that `is_of` selects: those that are not given are removed.
    pub fn replace(&mut self, is_of: impl Fn(&K) -> bool, rows: impl IntoIterator<Item = (K, R)>) {
        let rows: BTreeMap<K, R> = rows.into_iter().collect();
        let left: Vec<K> = self.rows.keys().filter(|key| is_of(key) && !rows.contains_key(key)).cloned().collect();
        left.iter().for_each(|key| self.remove(key));
        rows.into_iter().for_each(|(key, row)| self.put(key, row));
    }

    /// Returns what brings a reader that has the rows as of `rev` to the present. Revision 0 has no rows.
    pub fn since(&self, rev: u64) -> Since<'_, K, R> {
        let is_whole = rev == 0 || rev < self.forgotten || rev > self.rev;
        let after = if is_whole { 0 } else { rev };
        let rows = self.changed.range(after.saturating_add(1)..);
        let rows = rows.filter_map(|(at, key)| Some((*at, key, &self.rows.get(key)?.1))).collect();
        let gone = self.tombstones.range(after.saturating_add(1)..).map(|(_, key)| key);
        Since { is_whole, rev: self.rev, rows, gone: if is_whole { Vec::new() } else { gone.collect() } }
    }
}

#[cfg(test)]
#[path = "machine_tests.rs"]
mod tests;
