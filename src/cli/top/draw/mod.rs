//! Draws the screen: a function of its state, the text of the detail and the clock. No lines are drawn around anything, so
//! that copied text is text, and colour is never the only sign.

mod detail;
mod foot;
mod pen;

use ratatui::buffer::Buffer;
use ratatui::layout::Position;
use ratatui::style::{Color, Modifier, Style};
use swarm_actors::top::{Area, Class, Id, Kind, List, Machine, Mode, Row, Show, Sort, Subject, Want};

use super::super::render::words;
use crate::board::sgr;
pub use detail::help_lines;
use pen::Pen;

/// Fewest columns of a list that shows more of a state than its sign.
const STATE_COLUMNS_MIN: u16 = 50;
/// Widest columns of names and states.
const NAME_MAX: usize = 28;
const STATE_MAX: usize = 13;
const AGE: usize = 4;
/// Deepest part of a tree that is indented further.
const DEPTH_MAX: usize = 6;

/// How the terminal shows things.
#[derive(Clone, Copy, Debug)]
pub struct Face {
    pub colour: bool,
    /// Whether it shows more than ASCII.
    pub unicode: bool,
    /// Unix time in milliseconds.
    pub now_ms: u64,
}

/// Text that was read for the detail.
#[derive(Clone, Debug, Default)]
pub struct Text {
    pub want: Option<Want>,
    pub lines: Vec<sgr::Line>,
}

/// Draws the screen. Returns where the cursor is, if something is being typed.
pub fn draw(machine: &Machine, text: &Text, face: Face, buffer: &mut Buffer) -> Option<Position> {
    let layout = machine.layout();
    let mut pen = Pen { buffer, face };
    if layout.head.is_empty() {
        return foot::draw(machine, &mut pen, layout.foot);
    }
    head(machine, &mut pen, layout.head);
    if let Mode::Help(line) = machine.mode() {
        let (columns, rows) = machine.size();
        detail::help(&mut pen, Area { x: 0, y: 1, columns, rows: rows.saturating_sub(2) }, *line);
    } else {
        list(machine, &mut pen, layout.titles, layout.list);
        detail::draw(machine, text, &mut pen, layout.views, layout.detail);
    }
    foot::draw(machine, &mut pen, layout.foot)
}

/// Returns the totals of all workers, the most pressing first.
pub fn totals(machine: &Machine) -> String {
    counts(machine.rows())
}

/// Returns the totals of the workers among these rows, and of what else needs somebody.
pub fn counts<'a>(rows: impl IntoIterator<Item = &'a Row>) -> String {
    let (mut workers, mut others) = (Vec::new(), 0);
    for row in rows {
        match row.id.kind {
            Kind::Worker => workers.push(row),
            _ => others += usize::from(row.is_first && row.class == Class::NeedsYou),
        }
    }
    let of = |class: Class| workers.iter().filter(|row| row.class == class).count();
    let mut parts = vec![super::super::render::counted(workers.len() as u64, "worker")];
    let needs = of(Class::NeedsYou) + others;
    let words = [
        (needs, if needs == 1 { "needs you" } else { "need you" }),
        (of(Class::Failed), "failed"),
        (of(Class::Working), "at work"),
        (of(Class::Queued), "queued"),
        (of(Class::Ended), "ended"),
    ];
    parts.extend(words.iter().filter(|(count, _)| *count > 0).map(|(count, word)| format!("{count} {word}")));
    parts.join("  ")
}

fn head(machine: &Machine, pen: &mut Pen<'_>, area: Area) {
    let mut parts = Vec::new();
    if machine.list() != List::Workers {
        parts.push(machine.list().title().to_owned());
    } else {
        parts.extend(under_way(machine));
    }
    if !machine.filter().is_empty() {
        parts.push(format!("/{}", machine.filter()));
    }
    if machine.show() != Show::All {
        parts.push(machine.show().title().to_owned());
    }
    let (sort, is_reversed, is_frozen) = machine.sort();
    if sort != Sort::Need || is_reversed {
        parts.push(format!("by {}{}", sort.title(), if is_reversed { ", reversed" } else { "" }));
    }
    if is_frozen {
        parts.push("frozen".to_owned());
    }
    match machine.marked() {
        (0, _) => {}
        (count, 0) => parts.push(format!("{count} marked")),
        (count, hidden) => parts.push(format!("{count} marked, {hidden} not listed")),
    }
    let left = format!("swarm  {}", totals(machine));
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let end = pen.put(area, 0, &left, bold);
    let right = parts.join("  ");
    let width = pen.width(&right);
    let columns = usize::from(area.columns);
    let at = columns.saturating_sub(width).max(usize::from(end) + 2);
    if at < columns {
        pen.put(area, at, &right, Style::new());
    }
}

/// Returns how far the run is that is under way, or how many there are.
fn under_way(machine: &Machine) -> Option<String> {
    let is_under_way = |row: &&Row| matches!(row.subject, Some(Subject::Run { is_over: false, .. }));
    let runs: Vec<&Row> = machine.rows().filter(is_under_way).collect();
    match runs.as_slice() {
        [] => None,
        [run] => {
            let done = run.at.split(" done").next().filter(|_| run.class != Class::Failed);
            let name = run.branch.as_ref().map_or("", |branch| &branch.name);
            Some(format!("run {name}{}", done.map(|done| format!(": {done}")).unwrap_or_default()))
        }
        many => Some(format!("{} runs", many.len())),
    }
}

/// Returns the name of a row in a list: below its run or flow, or with the name of it.
fn name_of(machine: &Machine, row: &Row) -> String {
    let name = super::super::render::escape(&row.label);
    let is_tree = machine.list().is_tree() && machine.sort().0 == Sort::Need;
    match &row.branch {
        Some(branch) if is_tree => format!("{}{name}", "  ".repeat(branch.depth.min(DEPTH_MAX))),
        Some(branch) if branch.depth > 0 => format!("{}/{name}", super::super::render::escape(&branch.name)),
        _ => name.into_owned(),
    }
}

/// Returns what a row is at: what its worker is at, if nothing else is known.
fn at_of<'m>(machine: &'m Machine, row: &'m Row) -> &'m str {
    let worker = row.worker.as_ref().filter(|_| row.at.is_empty());
    worker.and_then(|name| machine.row(&Id::worker(name))).map_or(&row.at, |worker| &worker.at)
}

/// Widths of the columns of a list.
struct Columns {
    name: usize,
    state: usize,
    age: usize,
}

fn list(machine: &Machine, pen: &mut Pen<'_>, titles: Area, area: Area) {
    if titles.is_empty() {
        return;
    }
    let rows: Vec<(&Row, bool, bool)> = machine.window().collect();
    let widest = |text: &dyn Fn(&Row) -> usize| rows.iter().map(|(row, ..)| text(row)).max().unwrap_or_default();
    let has_place = titles.columns >= STATE_COLUMNS_MIN;
    let name = widest(&|row| pen.width(&name_of(machine, row))).clamp(4, NAME_MAX);
    let columns = Columns {
        name: name.min(usize::from(titles.columns).saturating_sub(4)),
        state: if has_place { widest(&|row| pen.width(&row.state)).clamp(5, STATE_MAX) } else { 0 },
        age: if has_place { AGE } else { 0 },
    };
    let cells = |name: &str, state: &str, age: &str, at: &str| {
        let mut at_column = 3;
        let mut cells = vec![(at_column, columns.name, name.to_owned())];
        at_column += columns.name + 2;
        if has_place {
            cells.push((at_column, columns.state, state.to_owned()));
            at_column += columns.state + 2;
            cells.push((at_column + AGE.saturating_sub(age.len()), columns.age, age.to_owned()));
            at_column += AGE + 2;
        }
        cells.push((at_column, usize::MAX, at.to_owned()));
        cells
    };
    let dim = Style::new().add_modifier(Modifier::DIM);
    for (at, width, text) in cells("NAME", "STATE", "AGE", "AT") {
        pen.put_cut(titles, at, width, &text, dim);
    }
    let (count, place) = machine.place();
    if count > usize::from(area.rows) {
        let text = format!("{place}/{count}");
        let at = usize::from(titles.columns).saturating_sub(text.len());
        pen.put(titles, at, &text, dim);
    }
    for (y, (row, is_selected, is_marked)) in (area.y..).zip(rows) {
        let line = Area { y, rows: 1, ..area };
        let style = if is_selected { Style::new().add_modifier(Modifier::REVERSED) } else { Style::new() };
        if is_selected {
            pen.fill(line, style);
        }
        let sign = if is_selected { style } else { pen.colour(sign_style(row.class)) };
        pen.put(line, 0, if is_selected { ">" } else { " " }, style);
        pen.put(line, 1, &row.class.sign().to_string(), sign);
        pen.put(line, 2, if is_marked { "+" } else { " " }, style);
        let name = name_of(machine, row);
        for (at, width, text) in cells(&name, &row.state, &age(row, pen.face.now_ms), at_of(machine, row)) {
            let style = if row.class == Class::NeedsYou { style.add_modifier(Modifier::BOLD) } else { style };
            pen.put_cut(line, at, width, &text, style);
        }
    }
    if count == 0 {
        pen.put(area, 3, &nothing(machine), Style::new());
    }
}

/// Returns why the list is empty.
fn nothing(machine: &Machine) -> String {
    let of_list = machine.rows().filter(|row| machine.list().has(row)).count();
    match machine.list() {
        _ if of_list > 0 => format!("none of {of_list} matches; esc shows all"),
        List::Workers => "no workers; start one with n, or 'swarm spawn --name NAME -- COMMAND'".to_owned(),
        other => format!("no {}", other.title()),
    }
}

/// Returns how long a row has been as it is; minutes are the finest.
fn age(row: &Row, now_ms: u64) -> String {
    let Some(since) = row.since_ms else { return "-".to_owned() };
    let ahead = since.saturating_sub(now_ms) / 1000;
    match now_ms.saturating_sub(since) / 1000 {
        // The next start is due then.
        0 if ahead >= 60 => format!("+{}", words(ahead)),
        0..60 => "<1m".to_owned(),
        seconds => words(seconds),
    }
}

fn sign_style(class: Class) -> Style {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    match class {
        Class::NeedsYou => bold.fg(Color::Magenta),
        Class::Failed => bold.fg(Color::Red),
        Class::Queued => bold.fg(Color::Cyan),
        Class::Working | Class::Ended => Style::new(),
    }
}

#[cfg(test)]
#[path = "../draw_tests.rs"]
pub mod tests;
