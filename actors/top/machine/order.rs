//! The order of the list, and the place of the cursor in it.

use std::collections::BTreeSet;

use super::super::row::{Id, Row, Sort, in_trees, is_listed};
use super::Machine;

impl Machine {
    /// Finds out which rows are listed. Those that were stay where they are, unless they `may_move`.
    pub(super) fn arrange(&mut self, may_move: bool) {
        let listed = |row: &&Row| is_listed(row, self.list, self.show, &self.filter);
        let mut rows: Vec<&Row> = self.rows.values().filter(listed).collect();
        if self.list.is_tree() && self.sort == Sort::Need {
            in_trees(&mut rows);
        } else {
            rows.sort_by(|one, other| self.sort.compare(one, other));
        }
        if self.is_reversed {
            rows.reverse();
        }
        let wanted: Vec<Id> = rows.into_iter().map(|row| row.id.clone()).collect();
        let at = self.index();
        if may_move {
            self.order.clone_from(&wanted);
        } else {
            let listed: BTreeSet<&Id> = wanted.iter().collect();
            self.order.retain(|id| listed.contains(id));
            let known: BTreeSet<Id> = self.order.iter().cloned().collect();
            self.order.extend(wanted.iter().filter(|id| !known.contains(id)).cloned());
        }
        self.is_stale = self.order != wanted;
        if self.index().is_none() {
            // The next one takes its place.
            let at = at.unwrap_or_default().min(self.order.len().saturating_sub(1));
            self.selected = self.order.get(at).cloned();
        }
        self.settle();
    }

    /// Lists other rows, or the same in another order.
    pub(super) fn rearrange(&mut self) {
        self.arrange(true);
    }

    /// Returns the place of the selected row.
    pub(super) fn index(&self) -> Option<usize> {
        let selected = self.selected.as_ref()?;
        self.order.iter().position(|id| id == selected)
    }

    /// Keeps the selected row on the screen, and the screen full.
    pub(super) fn settle(&mut self) {
        let height = usize::from(self.layout().list.rows).max(1);
        let at = self.index().unwrap_or_default();
        let last_top = self.order.len().saturating_sub(height);
        let top = at.saturating_sub(self.line.min(height - 1)).min(last_top);
        self.line = at - top;
        // A row of the last page may be further down than it was.
        if self.line >= height {
            self.line = height - 1;
        }
    }

    pub(super) fn go(&mut self, to: usize) {
        let Some(from) = self.index() else { return };
        let to = to.min(self.order.len() - 1);
        self.line = if to > from { self.line + (to - from) } else { self.line.saturating_sub(from - to) };
        self.selected = self.order.get(to).cloned();
        self.settle();
    }
}
