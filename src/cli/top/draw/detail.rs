//! The detail: a view of what is selected, the workers that a question is about, or the table of keys.

use ratatui::style::{Color, Modifier, Style};
use swarm_actors::top::{Area, Group, Machine, Mode, Reading, TABLE, View, What, shown};

use super::super::super::render::escape;
use super::Text;
use super::pen::Pen;
use crate::board::sgr;

pub fn draw(machine: &Machine, text: &Text, pen: &mut Pen<'_>, views: Area, area: Area) {
    if views.is_empty() {
        return;
    }
    match machine.mode() {
        Mode::Ask(question) if question.planned.is_some() => {
            pen.title(views, question.planned.as_ref().map_or("", |planned| &planned.question));
            let words = question.planned.iter().map(|planned| format!("swarm {}", planned.words.join(" ")));
            let dir = question.planned.iter().filter_map(|planned| Some(format!("in {}", planned.dir.as_ref()?)));
            for (line, y) in words.chain(dir).zip(area.y..area.y + area.rows) {
                pen.put(Area { y, rows: 1, ..area }, 1, &escape(&line), Style::new());
            }
        }
        Mode::Ask(question) => {
            pen.title(views, if question.verb == "kill" { "stop these workers" } else { "start these workers again" });
            for ((id, _), y) in question.targets.iter().zip(area.y..area.y + area.rows) {
                pen.put(Area { y, rows: 1, ..area }, 1, &escape(&id.name), Style::new());
            }
        }
        Mode::Answer(request) => {
            let number = request.answer.request().unwrap_or_default();
            pen.title(views, &format!("request {number} of {}", escape(&request.worker)));
            body(machine, text, pen, area);
        }
        _ => {
            pen.title(views, &title(machine, usize::from(views.columns)));
            body(machine, text, pen, area);
        }
    }
}

/// Returns the name of what is selected, and the views with the present one in brackets.
fn title(machine: &Machine, columns: usize) -> String {
    let Some(row) = machine.selected() else { return String::new() };
    let name = escape(&row.label);
    let Some(present) = Reading::title(row, machine.view()) else { return name.into_owned() };
    let view = |(number, view): (usize, &View)| {
        let title = Reading::title(row, *view).unwrap_or_default();
        if *view == machine.view() { format!("[{number} {title}]") } else { format!("{number} {title}") }
    };
    let views: Vec<String> = (1..).zip(&View::ALL).map(view).collect();
    let all = format!("{name}  {}", views.join("  "));
    if all.chars().count() < columns { all } else { format!("{present}: {name}") }
}

fn body(machine: &Machine, text: &Text, pen: &mut Pen<'_>, area: Area) {
    let (want, is_there) = machine.wanted();
    let Some(want) = want else { return };
    let is_meant = text.want.as_ref().is_some_and(|shown| (&shown.id, &shown.what) == (&want.id, &want.what));
    if !is_meant || !is_there {
        return;
    }
    if text.lines.is_empty() {
        pen.put(area, 0, "(nothing)", Style::new().add_modifier(Modifier::DIM));
    }
    let is_diff = want.what == What::View(View::Diff);
    let top = machine.top_line();
    for (line, y) in text.lines.iter().skip(top).zip(area.y..area.y + area.rows) {
        let place = Area { y, rows: 1, ..area };
        let base = if is_diff { diff_style(line) } else { Style::new() };
        let mut at = 0;
        let mut left_out = machine.across();
        for run in line {
            let text = escape(&run.text);
            let (text, skipped) = without_start(&text, left_out, pen);
            left_out -= skipped.min(left_out);
            if at >= usize::from(area.columns) {
                break;
            }
            if !text.is_empty() {
                let style = pen.colour(base.patch(style(run.style)));
                at = usize::from(pen.put(place, at, text, style));
            }
        }
    }
}

/// Returns a text without its first columns, and how many these were.
fn without_start<'t>(text: &'t str, columns: usize, pen: &Pen<'_>) -> (&'t str, usize) {
    let mut skipped = 0;
    for (at, c) in text.char_indices() {
        if skipped >= columns {
            return (&text[at..], skipped);
        }
        skipped += pen.width(c.encode_utf8(&mut [0; 4]));
    }
    if columns == 0 { (text, 0) } else { ("", skipped) }
}

fn style(style: sgr::Style) -> Style {
    let colour = |colour| match colour {
        sgr::Colour::Indexed(index) => Color::Indexed(index),
        sgr::Colour::Rgb(red, green, blue) => Color::Rgb(red, green, blue),
    };
    let modifiers = [
        (style.bold, Modifier::BOLD),
        (style.dim, Modifier::DIM),
        (style.italic, Modifier::ITALIC),
        (style.underlined, Modifier::UNDERLINED),
        (style.reversed, Modifier::REVERSED),
        (style.struck, Modifier::CROSSED_OUT),
    ];
    let modifiers = modifiers.into_iter().filter(|(is_set, _)| *is_set).map(|(_, modifier)| modifier);
    let plain = Style { fg: style.front.map(colour), bg: style.back.map(colour), ..Style::new() };
    plain.add_modifier(modifiers.collect::<Modifier>())
}

/// Returns the style of a line of a patch; its first character says the same.
fn diff_style(line: &sgr::Line) -> Style {
    let text = line.first().map_or("", |run| run.text.as_str());
    match text.as_bytes() {
        [b'+', b'+', b'+', ..] | [b'-', b'-', b'-', ..] => Style::new().add_modifier(Modifier::BOLD),
        [b'd', b'i', b'f', b'f', b' ', ..] => Style::new().add_modifier(Modifier::BOLD),
        [b'+', ..] => Style::new().fg(Color::Green),
        [b'-', ..] => Style::new().fg(Color::Red),
        [b'@', b'@', ..] => Style::new().fg(Color::Cyan),
        _ => Style::new(),
    }
}

/// Returns the table of keys, each title with its lines.
pub fn help_lines() -> Vec<(String, bool)> {
    let width = TABLE.iter().map(|binding| shown(binding).len()).max().unwrap_or_default();
    let mut lines = Vec::new();
    for group in Group::ALL {
        if !lines.is_empty() {
            lines.push((String::new(), false));
        }
        lines.push((group.title().to_owned(), true));
        for binding in TABLE.iter().filter(|binding| binding.group == group) {
            lines.push((format!("  {:width$}  {}", shown(binding), binding.help), false));
        }
    }
    lines.push((String::new(), false));
    lines.push(("Signs: ! needs you   x failed or stuck   ~ goes on later   . ended".to_owned(), false));
    lines
}

pub fn help(pen: &mut Pen<'_>, area: Area, from: usize) {
    let lines = help_lines();
    let from = from.min(lines.len().saturating_sub(usize::from(area.rows)));
    for ((text, is_title), y) in lines.iter().skip(from).zip(area.y..area.y + area.rows) {
        let style = if *is_title { Style::new().add_modifier(Modifier::BOLD) } else { Style::new() };
        pen.put(Area { y, rows: 1, ..area }, 1, text, style);
    }
}
