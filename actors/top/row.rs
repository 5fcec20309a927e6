//! The facts of one row, and which rows are listed in which order.

use std::cmp::Ordering;
use std::collections::BTreeMap;

/// Kind of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Worker,
    /// An item of a merge queue.
    Item,
    /// A request of an agent to a person.
    Request,
    Run,
    Workstream,
    Flow,
    /// A node of a flow.
    Node,
    /// Something else in a flow that waits for a person.
    Gate,
}

/// Identity of a row. A row may move and change; the cursor stays with it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Id {
    pub kind: Kind,
    pub name: String,
}

impl Id {
    pub fn worker(name: &str) -> Self {
        Self { kind: Kind::Worker, name: name.to_owned() }
    }
}

/// Rank of a row: what needs somebody is first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    NeedsYou,
    Failed,
    Working,
    /// Goes on without anybody, later.
    Queued,
    Ended,
}

impl Class {
    /// Returns the sign before the name, so that colour is never the only one.
    pub fn sign(self) -> char {
        match self {
            Self::NeedsYou => '!',
            Self::Failed => 'x',
            Self::Working => ' ',
            Self::Queued => '~',
            Self::Ended => '.',
        }
    }
}

/// How a person answers what a row asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// `swarm approve` or `deny` of this request.
    Permission(String),
    /// `swarm answer` of this request.
    Question(String),
    /// In its window only.
    Window,
    /// These words of a verb, and an answer behind them.
    Words(String),
}

impl Answer {
    pub fn request(&self) -> Option<&str> {
        match self {
            Self::Permission(request) | Self::Question(request) => Some(request),
            Self::Window | Self::Words(_) => None,
        }
    }
}

/// Run or flow of a row that is no worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    Run {
        home: String,
        /// Directory in which it is begun again. `None` if it is begun with a file.
        root: Option<String>,
        status: String,
        is_over: bool,
    },
    Workstream {
        home: String,
        root: Option<String>,
        id: String,
        stage: String,
        is_over: bool,
    },
    /// `node`: a part of it, and the role that plays it.
    Flow {
        root: String,
        flow: String,
        is_run: bool,
        node: Option<(String, String)>,
    },
}

/// Place of a row in the tree of its run or flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Branch {
    /// Key and name of the run or flow.
    pub of: String,
    pub name: String,
    /// Number of rows before it.
    pub at: usize,
    pub depth: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    pub id: Id,
    /// Name that is shown.
    pub label: String,
    /// Distinguishes two workers that had the same name one after the other.
    pub generation: Option<u64>,
    /// Revision of its last change.
    pub rev: u64,
    pub class: Class,
    pub state: String,
    /// Activity, question, or the way it ended.
    pub at: String,
    /// Time of its state in Unix milliseconds.
    pub since_ms: Option<u64>,
    pub is_running: bool,
    pub has_window: bool,
    pub tags: Vec<String>,
    /// Branch or directory.
    pub place: String,
    pub answer: Option<Answer>,
    /// Whether it is in the first list although it is no worker, because nothing else there says that it needs somebody.
    pub is_first: bool,
    /// Worker of a workstream or node. It may be gone.
    pub worker: Option<String>,
    pub branch: Option<Branch>,
    pub subject: Option<Subject>,
}

impl Row {
    /// Returns the name of who asks what the row asks. A request has its worker as its place.
    pub fn asks_for(&self) -> &str {
        match self.id.kind {
            Kind::Request => &self.place,
            Kind::Worker => &self.id.name,
            _ => &self.label,
        }
    }

    /// Reports whether the row is a part of a run or flow that a worker carries out.
    pub fn has_part(&self) -> bool {
        matches!(self.subject, Some(Subject::Workstream { .. } | Subject::Flow { node: Some(_), .. }))
    }

    /// Returns the name of the worker that the row is, or that carries it out.
    pub fn own_worker(&self) -> Option<&str> {
        if self.id.kind == Kind::Worker { Some(&self.id.name) } else { self.worker.as_deref() }
    }
}

/// Lists, each with rows of some kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum List {
    Workers,
    Runs,
    Flows,
    Queues,
    Requests,
}

impl List {
    pub const ALL: [Self; 5] = [Self::Workers, Self::Runs, Self::Flows, Self::Queues, Self::Requests];

    pub fn title(self) -> &'static str {
        match self {
            Self::Workers => "workers",
            Self::Runs => "runs",
            Self::Flows => "flows",
            Self::Queues => "queues",
            Self::Requests => "requests",
        }
    }

    pub fn has(self, row: &Row) -> bool {
        let is_asked = |row: &Row| row.answer.is_some();
        match self {
            Self::Workers => row.id.kind == Kind::Worker || row.is_first,
            Self::Runs => matches!(row.id.kind, Kind::Run | Kind::Workstream),
            Self::Flows => matches!(row.id.kind, Kind::Flow | Kind::Node | Kind::Gate),
            Self::Queues => row.id.kind == Kind::Item,
            Self::Requests => {
                let of_flow = matches!(row.id.kind, Kind::Flow | Kind::Node | Kind::Gate);
                row.id.kind == Kind::Request || ((of_flow || row.is_first) && is_asked(row))
            }
        }
    }

    /// Reports whether its rows are trees.
    pub fn is_tree(self) -> bool {
        matches!(self, Self::Runs | Self::Flows)
    }

    /// Returns the next list, or the previous one.
    #[must_use]
    pub fn step(self, forward: bool) -> Self {
        step(&Self::ALL, self, forward)
    }
}

/// Parts of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Show {
    All,
    NeedsYou,
    AtWork,
    Failed,
    Ended,
}

impl Show {
    const ALL: [Self; 5] = [Self::All, Self::NeedsYou, Self::AtWork, Self::Failed, Self::Ended];

    pub fn title(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::NeedsYou => "need you",
            Self::AtWork => "at work",
            Self::Failed => "failed",
            Self::Ended => "ended",
        }
    }

    #[must_use]
    pub fn next(self) -> Self {
        step(&Self::ALL, self, true)
    }

    fn has(self, class: Class) -> bool {
        match self {
            Self::All => true,
            Self::NeedsYou => class == Class::NeedsYou,
            Self::AtWork => matches!(class, Class::Working | Class::Queued),
            Self::Failed => class == Class::Failed,
            Self::Ended => class == Class::Ended,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sort {
    Need,
    Name,
    Age,
    State,
}

impl Sort {
    const ALL: [Self; 4] = [Self::Need, Self::Name, Self::Age, Self::State];

    pub fn title(self) -> &'static str {
        match self {
            Self::Need => "need",
            Self::Name => "name",
            Self::Age => "age",
            Self::State => "state",
        }
    }

    #[must_use]
    pub fn next(self) -> Self {
        step(&Self::ALL, self, true)
    }

    /// Compares two rows; those that are equal otherwise, by their names.
    pub fn compare(self, one: &Row, other: &Row) -> Ordering {
        let first = match self {
            Self::Need => one.class.cmp(&other.class),
            Self::Name => Ordering::Equal,
            // The youngest first; those without a time last.
            Self::Age => other.since_ms.cmp(&one.since_ms),
            Self::State => one.state.cmp(&other.state),
        };
        first.then_with(|| one.label.cmp(&other.label)).then_with(|| one.id.cmp(&other.id))
    }
}

/// Puts rows of trees into their order: those that are most pressing first, each with its parts.
pub fn in_trees(rows: &mut [&Row]) {
    let mut most = BTreeMap::<&str, Class>::new();
    for row in rows.iter() {
        let of = row.branch.as_ref().map_or("", |branch| &branch.of);
        let class = most.entry(of).or_insert(row.class);
        *class = (*class).min(row.class);
    }
    rows.sort_by(|one, other| {
        let key = |row: &Row| row.branch.as_ref().map(|branch| (most.get(branch.of.as_str()).copied(), branch.clone()));
        let order = |branch: &Branch| (branch.name.clone(), branch.of.clone(), branch.at);
        match (key(one), key(other)) {
            (Some((class, one)), Some((than, other))) => class.cmp(&than).then_with(|| order(&one).cmp(&order(&other))),
            (one, other) => one.is_none().cmp(&other.is_none()),
        }
    });
}

/// Views of what is selected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum View {
    Screen,
    Log,
    Diff,
    Session,
    History,
    Explain,
}

impl View {
    pub const ALL: [Self; 6] = [Self::Screen, Self::Log, Self::Diff, Self::Session, Self::History, Self::Explain];

    pub fn title(self) -> &'static str {
        match self {
            Self::Screen => "screen",
            Self::Log => "log",
            Self::Diff => "diff",
            Self::Session => "session",
            Self::History => "history",
            Self::Explain => "explain",
        }
    }

    #[must_use]
    pub fn step(self, forward: bool) -> Self {
        step(&Self::ALL, self, forward)
    }

    /// Reports whether its text grows at the end, which is shown then.
    pub fn is_followed(self) -> bool {
        matches!(self, Self::Screen | Self::Log)
    }

    /// Reports whether it tells of what the row tells, and is read again with it.
    pub fn follows_row(self) -> bool {
        matches!(self, Self::Session | Self::History | Self::Explain)
    }
}

fn step<T: Copy + PartialEq>(all: &[T], present: T, forward: bool) -> T {
    let at = all.iter().position(|one| *one == present).unwrap_or_default();
    let by = if forward { 1 } else { all.len() - 1 };
    all[(at + by) % all.len()]
}

/// Reports whether a row is listed: its part is shown, and all words of the filter are somewhere in it. `!word` must not be,
/// `state:`, `tag:` and `name:` look at one thing only.
pub fn is_listed(row: &Row, list: List, show: Show, filter: &str) -> bool {
    list.has(row) && show.has(row.class) && filter.split_whitespace().all(|word| matches(row, word))
}

fn matches(row: &Row, word: &str) -> bool {
    if let Some(not) = word.strip_prefix('!') {
        return not.is_empty() || !matches(row, not);
    }
    let within = |text: &str, part: &str| text.to_lowercase().contains(&part.to_lowercase());
    match word.split_once(':') {
        Some(("state", part)) => within(&row.state, part),
        Some(("tag", part)) => part.is_empty() || row.tags.iter().any(|tag| tag.starts_with(part)),
        Some(("name", part)) => within(&row.label, part),
        _ => {
            let name = row.branch.as_ref().map(|branch| &branch.name);
            let texts = [&row.label, &row.state, &row.at, &row.place].into_iter().chain(name);
            texts.chain(&row.tags).any(|text| within(text, word))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::machine::tests::row;
    use super::*;

    #[test]
    fn all_words_of_a_filter_must_be_there() {
        let mut row = row("parser", Class::Working);
        row.state = "working".into();
        row.at = "Bash: cargo test".into();
        row.tags = vec!["core".into()];
        let listed = |filter: &str| is_listed(&row, List::Workers, Show::All, filter);
        for filter in ["", "pars", "PARS cargo", "tag:core", "state:work", "!docs", "tag:", "name:parser test", "!"] {
            assert!(listed(filter), "{filter}");
        }
        for filter in ["docs", "pars docs", "tag:ore", "!cargo", "name:cargo", "state:failed"] {
            assert!(!listed(filter), "{filter}");
        }
        assert!(!is_listed(&row, List::Queues, Show::All, ""));
        assert!(!is_listed(&row, List::Workers, Show::Failed, ""));
        assert!(is_listed(&row, List::Workers, Show::AtWork, ""));
    }

    #[test]
    fn trees_stay_together_and_the_most_pressing_is_first() {
        let part = |of: &str, at: usize, class| Row {
            branch: Some(Branch { of: of.into(), name: of.into(), at, depth: at.min(1) }),
            ..row(&format!("{of}{at}"), class)
        };
        let rows = [
            part("b", 1, Class::Ended),
            part("a", 1, Class::Working),
            part("b", 2, Class::NeedsYou),
            part("a", 0, Class::Working),
            part("b", 0, Class::Working),
        ];
        let mut order: Vec<&Row> = rows.iter().collect();
        in_trees(&mut order);
        assert_eq!(order.iter().map(|row| row.id.name.as_str()).collect::<Vec<_>>(), ["b0", "b1", "b2", "a0", "a1"]);
    }

    #[test]
    fn those_that_need_somebody_are_first() {
        let mut rows = [
            row("e", Class::Ended),
            row("b", Class::Working),
            row("a", Class::Working),
            row("q", Class::Queued),
            row("f", Class::Failed),
            row("n", Class::NeedsYou),
        ];
        rows.sort_by(|one, other| Sort::Need.compare(one, other));
        assert_eq!(rows.map(|row| row.id.name), ["n", "f", "a", "b", "q", "e"]);
    }

    #[test]
    fn steps_go_around() {
        assert_eq!((View::Explain.step(true), View::Screen.step(false)), (View::Screen, View::Explain));
        assert_eq!(List::Requests.step(true), List::Workers);
    }
}
