//! The screen as a pure function: its state, what happens, what is to be done.

use std::collections::{BTreeMap, BTreeSet};

use super::keys::{Action, Key, action_of};
use super::mode::Mode;
use super::reading::Reading;
use super::row::{Class, Id, Kind, List, Row, Show, Sort, View};

mod acts;
mod dialogs;
mod order;
mod seen;

/// Time without a key, in milliseconds, after which rows may change their order: nobody is about to press one.
pub const STILL_MS: u64 = 3000;

/// Input of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Rows are new or have changed, and others are gone; `is_whole`: there are no others.
    Rows {
        is_whole: bool,
        rows: Vec<Row>,
        gone: Vec<Id>,
    },
    Key(Key),
    /// Text came all at once.
    Pasted(String),
    Resized {
        columns: u16,
        rows: u16,
    },
    /// Text of a view is there, with this many lines.
    Shown {
        want: Want,
        lines: usize,
    },
    /// A verb has ended with this code, or by a signal, and said this last.
    Done {
        words: Vec<String>,
        code: Option<i32>,
        said: String,
    },
    /// A person should know this.
    Told(String),
    /// Nothing but the time.
    Tick,
}

/// Action that the shell carries out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Read what the detail shows; `None`: nothing.
    Show(Option<Want>),
    /// Run this verb, with a text as its standard input.
    Run {
        words: Vec<String>,
        input: Option<String>,
        /// Directory in which it runs, if not the present one.
        dir: Option<String>,
    },
    /// Give the terminal to the window of this worker.
    Attach(String),
    Suspend,
    Quit,
}

/// Text that the detail shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Want {
    pub id: Id,
    pub what: What,
    pub from: Reading,
    /// Changes if it is to be read again.
    pub edition: (Option<u64>, u64, u64),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    View(View),
    /// A request in full, by its number.
    Request(String),
}

/// A line about what was done. It stays until a key is pressed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub text: String,
    pub is_refusal: bool,
}

/// State of the screen.
#[derive(Clone, Debug)]
pub struct Machine {
    is_read_only: bool,
    rows: BTreeMap<Id, Row>,
    /// Identities of the rows that are listed, as they are shown.
    order: Vec<Id>,
    /// Whether `order` is not the one that the rows would have now.
    is_stale: bool,
    list: List,
    show: Show,
    sort: Sort,
    is_reversed: bool,
    is_frozen: bool,
    filter: String,
    selected: Option<Id>,
    /// Line of the selected row on the screen.
    line: usize,
    marks: BTreeSet<Id>,
    view: View,
    is_full: bool,
    /// First line of the detail that is shown. `None`: the end of a text that grows, else its begin.
    scroll: Option<usize>,
    /// Columns of the detail that are left out.
    across: usize,
    wanted: Option<Want>,
    /// Lines of the text that was read for `wanted`.
    lines: Option<usize>,
    /// How often a view was asked for again.
    again: u64,
    mode: Mode,
    message: Option<Message>,
    /// Verbs that have not ended.
    under_way: Vec<Vec<String>>,
    size: (u16, u16),
    key_at: Option<u64>,
}

impl Machine {
    pub fn new(is_read_only: bool) -> Self {
        Self {
            is_read_only,
            rows: BTreeMap::new(),
            order: Vec::new(),
            is_stale: false,
            list: List::Workers,
            show: Show::All,
            sort: Sort::Need,
            is_reversed: false,
            is_frozen: false,
            filter: String::new(),
            selected: None,
            line: 0,
            marks: BTreeSet::new(),
            view: View::Screen,
            is_full: false,
            scroll: None,
            across: 0,
            wanted: None,
            lines: None,
            again: 0,
            mode: Mode::List,
            message: None,
            under_way: Vec::new(),
            size: (80, 24),
            key_at: None,
        }
    }

    /// Takes an event at a time in milliseconds, and returns what is to be done.
    pub fn take(&mut self, now: u64, event: Event) -> Vec<Effect> {
        let mut effects = Vec::new();
        let may_move = !self.is_frozen && self.key_at.is_none_or(|at| now >= at.saturating_add(STILL_MS));
        match event {
            Event::Rows { is_whole, rows, gone } => {
                self.take_rows(is_whole, rows, gone);
                self.arrange(may_move);
                self.check_request();
            }
            Event::Key(key) => {
                self.key_at = Some(now);
                self.message = None;
                self.take_key(key, &mut effects);
            }
            Event::Pasted(text) => self.paste(&text),
            Event::Resized { columns, rows } => {
                self.size = (columns, rows);
                self.settle();
                self.see_request();
            }
            Event::Shown { want, lines } => self.take_text(&want, lines),
            Event::Done { words, code, said } => self.take_end(&words, code, said),
            Event::Told(text) => self.tell(text, true),
            Event::Tick => {
                if self.is_stale {
                    self.arrange(may_move);
                }
            }
        }
        let want = self.want();
        if want != self.wanted {
            let is_other = |one: &Option<Want>| one.as_ref().map(|want| (want.id.clone(), want.what.clone()));
            if is_other(&want) != is_other(&self.wanted) {
                (self.scroll, self.across, self.lines) = (None, 0, None);
            }
            self.wanted.clone_from(&want);
            effects.push(Effect::Show(want));
        }
        effects
    }

    /// Returns when the order of the rows changes although nothing happens. `None`: never.
    pub fn due(&self) -> Option<u64> {
        let at = self.key_at.filter(|_| self.is_stale && !self.is_frozen)?;
        Some(at.saturating_add(STILL_MS))
    }

    fn take_rows(&mut self, is_whole: bool, rows: Vec<Row>, gone: Vec<Id>) {
        if is_whole {
            self.rows.clear();
        }
        for id in gone {
            self.rows.remove(&id);
        }
        self.rows.extend(rows.into_iter().map(|row| (row.id.clone(), row)));
        let rows = &self.rows;
        self.marks.retain(|id| rows.contains_key(id));
    }

    fn take_text(&mut self, want: &Want, lines: usize) {
        if self.wanted.as_ref() != Some(want) {
            return;
        }
        self.lines = Some(lines);
        self.see_request();
    }

    /// Notes that the request that is being answered is on the screen. It is not if there is no place for it.
    fn see_request(&mut self) {
        let has_place = !self.layout().detail.is_empty() && self.lines.is_some();
        let of_want = self.wanted.as_ref().map(|want| &want.what);
        if let (Mode::Answer(request), Some(What::Request(number)), true) = (&mut self.mode, of_want, has_place) {
            request.is_shown |= request.answer.request() == Some(number);
        }
    }

    fn take_end(&mut self, words: &[String], code: Option<i32>, said: String) {
        if let Some(at) = self.under_way.iter().position(|one| one == words) {
            self.under_way.remove(at);
        }
        let verb = format!("swarm {}", words.join(" "));
        match code {
            Some(0) => {
                let said = if said.is_empty() { "done".to_owned() } else { said };
                self.tell(format!("{verb}: {said}"), false);
            }
            Some(code) => self.tell(format!("{verb}: exit code {code}: {said}"), true),
            None => self.tell(format!("{verb}: ended by a signal: {said}"), true),
        }
    }

    fn tell(&mut self, text: String, is_refusal: bool) {
        self.message = Some(Message { text, is_refusal });
    }

    /// Returns the text that the detail shows.
    fn want(&self) -> Option<Want> {
        if let Mode::Answer(request) = &self.mode {
            let number = request.answer.request()?.to_owned();
            let from = Reading::Verb(vec!["approvals".to_owned(), number.clone()]);
            return Some(Want {
                id: request.id.clone(),
                what: What::Request(number),
                from,
                edition: (None, 0, self.again),
            });
        }
        if self.layout().detail.is_empty() {
            return None;
        }
        let row = self.selected()?;
        let worker = row.own_worker().and_then(|name| self.rows.get(&Id::worker(name)));
        let from = Reading::of(row, worker, self.view);
        let is_of_worker = worker.is_some() && row.has_part() && !self.view.is_followed();
        let rev = match self.view {
            _ if row.id.kind == Kind::Item => row.rev,
            _ if row.subject.is_some() && !from.grows() && !is_of_worker => self.rev_of_tree(row),
            view if view.follows_row() => row.rev,
            _ => 0,
        };
        let edition = (row.generation, rev, self.again);
        Some(Want { id: row.id.clone(), what: What::View(self.view), from, edition })
    }

    /// Returns the revision of the last change of a run or flow with all its parts.
    fn rev_of_tree(&self, row: &Row) -> u64 {
        let of = |row: &Row| row.branch.as_ref().map(|branch| branch.of.clone());
        let (key, rows) = (of(row), self.rows.values());
        rows.filter(|other| key.is_some() && of(other) == key).map(|row| row.rev).max().unwrap_or(row.rev)
    }

    fn take_key(&mut self, key: Key, effects: &mut Vec<Effect>) {
        // Leaving is possible everywhere.
        if key == Key::Ctrl('c') {
            return effects.push(Effect::Quit);
        }
        if key == Key::Ctrl('z') {
            return effects.push(Effect::Suspend);
        }
        if self.mode != Mode::List {
            return self.take_dialog_key(key, effects);
        }
        let Some(action) = action_of(key) else { return };
        let page = usize::from(self.layout().list.rows).max(1);
        let at = self.index().unwrap_or_default();
        match action {
            Action::Down => self.go(at + 1),
            Action::Up => self.go(at.saturating_sub(1)),
            Action::First => self.go(0),
            Action::Last => self.go(usize::MAX),
            Action::HalfDown => self.go(at + page.div_ceil(2)),
            Action::HalfUp => self.go(at.saturating_sub(page.div_ceil(2))),
            Action::PageDown => self.go(at + page),
            Action::PageUp => self.go(at.saturating_sub(page)),
            Action::NextNeed => self.next_need(),
            Action::Quit => effects.push(Effect::Quit),
            Action::Suspend => effects.push(Effect::Suspend),
            Action::Help => self.mode = Mode::Help(0),
            Action::Back => self.back(),
            _ if self.take_list_action(action) || self.take_detail_action(action) => {}
            _ => self.act(action, effects),
        }
    }

    fn next_need(&mut self) {
        let from = self.index().map_or(0, |at| at + 1);
        let needs = |id: &&Id| self.rows.get(*id).is_some_and(|row| row.class == Class::NeedsYou);
        let next = self.order.iter().skip(from).chain(self.order.iter().take(from)).find(needs).cloned();
        match next.and_then(|id| self.order.iter().position(|one| *one == id)) {
            Some(at) => self.go(at),
            None => self.tell("nothing that is listed needs you".to_owned(), false),
        }
    }

    fn back(&mut self) {
        if self.is_full {
            self.is_full = false;
            self.settle();
        } else if !self.filter.is_empty() || self.show != Show::All {
            self.filter.clear();
            self.show = Show::All;
            self.rearrange();
        } else {
            self.marks.clear();
        }
    }

    fn take_list_action(&mut self, action: Action) -> bool {
        match action {
            Action::Filter => self.mode = Mode::Filter(self.filter.clone()),
            Action::Show => self.show = self.show.next(),
            Action::Sort => self.sort = self.sort.next(),
            Action::Reverse => self.is_reversed = !self.is_reversed,
            Action::Freeze => self.is_frozen = !self.is_frozen,
            Action::NextList => self.list = self.list.step(true),
            Action::PreviousList => self.list = self.list.step(false),
            Action::Mark => {
                if let Some(id) = self.selected.clone()
                    && !self.marks.remove(&id)
                {
                    self.marks.insert(id);
                }
                self.go(self.index().unwrap_or_default() + 1);
                return true;
            }
            Action::MarkAll => {
                let all: BTreeSet<Id> = self.order.iter().cloned().collect();
                if all.is_subset(&self.marks) {
                    self.marks.retain(|id| !all.contains(id));
                } else {
                    self.marks.extend(all);
                }
                return true;
            }
            _ => return false,
        }
        if action != Action::Filter {
            self.arrange(action != Action::Freeze || !self.is_frozen);
        }
        true
    }

    fn take_detail_action(&mut self, action: Action) -> bool {
        let view = match action {
            Action::NextView => self.view.step(true),
            Action::PreviousView => self.view.step(false),
            Action::Screen => View::Screen,
            Action::Log => View::Log,
            Action::Diff => View::Diff,
            Action::Session => View::Session,
            Action::History => View::History,
            Action::Explain => View::Explain,
            Action::Again => {
                self.again += 1;
                return true;
            }
            Action::Full => {
                self.is_full = !self.is_full;
                self.settle();
                return true;
            }
            Action::TextDown => return self.scroll_by(1),
            Action::TextUp => return self.scroll_by(-1),
            Action::TextPageDown => return self.scroll_by(self.page()),
            Action::TextPageUp => return self.scroll_by(-self.page()),
            Action::TextRight => {
                self.across = self.across.saturating_add(8).min(usize::from(u16::MAX));
                return true;
            }
            Action::TextLeft => {
                self.across = self.across.saturating_sub(8);
                return true;
            }
            _ => return false,
        };
        self.view = view;
        true
    }

    fn page(&self) -> isize {
        isize::try_from(self.detail_rows()).unwrap_or(isize::MAX).max(1)
    }

    fn detail_rows(&self) -> usize {
        usize::from(self.layout().detail.rows)
    }

    /// Moves the text. At the end of one that grows, it follows again.
    fn scroll_by(&mut self, lines: isize) -> bool {
        let last = self.lines.unwrap_or_default().saturating_sub(self.detail_rows());
        let to = self.top_line().saturating_add_signed(lines).min(last);
        self.scroll = if to == last && self.is_followed() { None } else { Some(to) };
        true
    }

    fn is_followed(&self) -> bool {
        matches!(self.wanted.as_ref().map(|want| &want.what), Some(What::View(view)) if view.is_followed())
    }
}

#[cfg(test)]
#[path = "machine_tests.rs"]
pub mod tests;
