//! Questions of the renderer about the state.

use super::super::layout::Layout;
use super::super::mode::Mode;
use super::super::row::{Id, List, Row, Show, Sort, View};
use super::{Machine, Message, Want};

impl Machine {
    /// Returns the areas of the screen.
    pub fn layout(&self) -> Layout {
        Layout::of(self.size.0, self.size.1, self.is_full || matches!(self.mode, Mode::Answer(_)))
    }

    pub fn size(&self) -> (u16, u16) {
        self.size
    }

    pub fn selected(&self) -> Option<&Row> {
        self.rows.get(self.selected.as_ref()?)
    }

    /// Returns the rows that are on the screen, each with whether it is selected and whether it is marked.
    pub fn window(&self) -> impl Iterator<Item = (&Row, bool, bool)> {
        let height = usize::from(self.layout().list.rows);
        let top = self.index().unwrap_or_default().saturating_sub(self.line);
        let ids = self.order.iter().skip(top).take(height);
        ids.filter_map(|id| {
            let row = self.rows.get(id)?;
            Some((row, self.selected.as_ref() == Some(id), self.marks.contains(id)))
        })
    }

    /// Returns the row with this identity.
    pub fn row(&self, id: &Id) -> Option<&Row> {
        self.rows.get(id)
    }

    pub fn rows(&self) -> impl Iterator<Item = &Row> {
        self.rows.values()
    }

    /// Returns the number of rows that are listed, and the place of the selected one.
    pub fn place(&self) -> (usize, usize) {
        (self.order.len(), self.index().map_or(0, |at| at + 1))
    }

    /// Returns the number of rows that are marked, and how many of them are not listed.
    pub fn marked(&self) -> (usize, usize) {
        (self.marks.len(), self.marks.iter().filter(|id| !self.order.contains(id)).count())
    }

    /// Returns the first line of the detail that is shown.
    pub fn top_line(&self) -> usize {
        let last = self.lines.unwrap_or_default().saturating_sub(self.detail_rows());
        match self.scroll {
            Some(line) => line.min(last),
            None if self.is_followed() => last,
            None => 0,
        }
    }

    /// Returns the columns of the detail that are left out.
    pub fn across(&self) -> usize {
        self.across
    }

    /// Returns the text that was asked for last, and whether it is there.
    pub fn wanted(&self) -> (Option<&Want>, bool) {
        (self.wanted.as_ref(), self.lines.is_some())
    }

    pub fn view(&self) -> View {
        self.view
    }

    pub fn list(&self) -> List {
        self.list
    }

    pub fn show(&self) -> Show {
        self.show
    }

    /// Returns the order of the list, whether it is reversed, and whether it is frozen.
    pub fn sort(&self) -> (Sort, bool, bool) {
        (self.sort, self.is_reversed, self.is_frozen)
    }

    pub fn filter(&self) -> &str {
        &self.filter
    }

    pub fn mode(&self) -> &Mode {
        &self.mode
    }

    pub fn message(&self) -> Option<&Message> {
        self.message.as_ref()
    }

    /// Returns the words of a verb that has not ended, if there is one.
    pub fn under_way(&self) -> Option<&[String]> {
        self.under_way.last().map(Vec::as_slice)
    }

    pub fn is_read_only(&self) -> bool {
        self.is_read_only
    }
}
